/*
 * Rule 3, and reachability for the others.
 *
 * A clock says for each lane how far it has got at the latest possible moment: clock[lane] = p
 * means that the first p tasks of the lane have ended. A task's clock when it starts is the lane's
 * clock before it, joined with the end clocks of its phase-0 dependencies; when it ends, also with
 * those of its phase-1 dependencies. So "a happens before b" is one comparison, for any two tasks.
 *
 *   lane 0   a1--a2             clock of b2 at its start: {0: 2, 1: 1}
 *   lane 1       \__b1--b2      a2 -> b1, and b1 stands before b2
 *
 * A task that learns nothing new shares the clock of the task before it in its lane: of its own
 * lane a clock knows nothing, positions do. So one clock is kept for each task that
 * really waits.
 */
#include "core/verify/private.h"

#include <string.h>

static void
make_space(RpVerifier *verifier)
{
    if (verifier->n_tasks <= verifier->max_tasks)
        return;
    verifier->max_tasks = verifier->source == NULL ? verifier->n_tasks : 2 * verifier->n_tasks;
    verifier->lane = g_renew(guint32, verifier->lane, verifier->max_tasks);
    verifier->position = g_renew(guint32, verifier->position, verifier->max_tasks);
    verifier->start_row = g_renew(guint32, verifier->start_row, verifier->max_tasks);
    verifier->end_row = g_renew(guint32, verifier->end_row, verifier->max_tasks);
}

/* Lanes without tasks take no space, unless they may get some; positions count from 1. */
static void
number_lanes(RpVerifier *verifier)
{
    const guint n = rp_plan_n_lanes(verifier->plan);

    make_space(verifier);
    if (verifier->dense == NULL) {
        verifier->dense = g_new(guint32, n);
        verifier->length = g_new0(guint32, n);
        for (guint i = 0; i < n; i++)
            verifier->dense[i] = verifier->source == NULL ? G_MAXUINT32 : i;
        verifier->n_lanes = verifier->source == NULL ? 0 : n;
    }
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        guint32 lane = rp_verifier_task(verifier, i)->lane;

        if (verifier->dense[lane] == G_MAXUINT32)
            verifier->dense[lane] = verifier->n_lanes++;
        verifier->lane[i] = verifier->dense[lane];
        verifier->position[i] = ++verifier->length[lane];
    }
    verifier->stride = (verifier->n_lanes + 3) / 4 * 4;
}

/* The task before @task in its lane; lanes run in the order of ids. */
static guint32 *
make_lane_predecessors(const RpVerifier *verifier)
{
    guint32 *previous = g_new(guint32, verifier->n_tasks);
    g_autofree guint32 *last = g_new(guint32, verifier->n_lanes);

    for (guint i = 0; i < verifier->n_lanes; i++)
        last[i] = RP_NO_TASK;
    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        previous[i] = last[verifier->lane[i]];
        last[verifier->lane[i]] = i;
    }
    return previous;
}

/* Calls for each task that @task waits for; retired ones have ended. Index n_dependencies = lane.
 */
static guint32
predecessor(const RpVerifier *verifier, const guint32 *previous, guint32 task, guint which)
{
    const RpTask *of = rp_verifier_task(verifier, task);
    const RpDependency *dependencies = rp_plan_dependencies(verifier->plan, of);

    if (which == of->dependency_count)
        return previous[task];
    if (dependencies[which].task < verifier->first_id)
        return RP_NO_TASK;
    return (guint32)(dependencies[which].task - verifier->first_id);
}

/* Some dependency points forward. Names two tasks of a cycle, or the two out of order. Tasks are followed to
 * those that they wait for: one that is still being followed closes a cycle. */
static gboolean
fail_order(RpVerifier *verifier, guint32 waiting, guint32 awaited)
{
    enum { NEW, FOLLOWED, RUNS };
    const guint32 n = verifier->n_tasks;
    g_autofree guint32 *previous = make_lane_predecessors(verifier);
    g_autofree guint8 *state = g_new0(guint8, n);
    g_autofree guint *edge = g_new0(guint, n); /* the next to be followed */
    g_autofree guint32 *path = g_new(guint32, (gsize)n + 1);
    guint32 before = RP_NO_TASK, length = 0;

    for (guint32 root = 0; root < n && (before == RP_NO_TASK || state[before] != FOLLOWED);) {
        if (length == 0 && state[root] != NEW) {
            root++;
            continue;
        }
        if (length == 0)
            path[length++] = root;
        const guint32 at = path[length - 1];

        state[at] = FOLLOWED;
        before = RP_NO_TASK;
        if (edge[at] > rp_verifier_task(verifier, at)->dependency_count) {
            state[at] = RUNS;
            length--;
            continue;
        }
        before = predecessor(verifier, previous, at, edge[at]++);
        if (before != RP_NO_TASK && state[before] == NEW)
            path[length++] = before;
    }
    if (before == RP_NO_TASK || state[before] != FOLLOWED)
        return rp_verifier_fail(verifier, RP_RULE_DEADLOCK, awaited, waiting,
                                "the second task waits for the first, which the plan lists later: "
                                "its lanes cannot be issued in the plan's order");
    guint32 first = length;

    /* once around: every cycle has an edge that points forward */
    for (path[length] = before; first == length || path[first] != before;) {
        first--;
        if (path[first] < path[first + 1]) {
            waiting = path[first];
            awaited = path[first + 1];
        }
    }
    return rp_verifier_fail(
        verifier, RP_RULE_DEADLOCK, awaited, waiting,
        "a cycle of %u tasks: the second waits for the first, which waits, through "
        "lanes and dependencies, for the second",
        length - first);
}

gboolean
rp_verify_deadlock(RpVerifier *verifier)
{
    guint32 waiting = RP_NO_TASK, awaited = RP_NO_TASK;

    number_lanes(verifier);
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);
        const RpDependency *dependencies = rp_plan_dependencies(verifier->plan, task);

        for (guint k = 0; k < task->dependency_count; k++) {
            RpTaskId id = dependencies[k].task;

            if (dependencies[k].phase > 1)
                return rp_verifier_fail(verifier, RP_RULE_DEADLOCK, RP_NO_TASK, i,
                                        "dependency on phase %u, which does not exist",
                                        dependencies[k].phase);
            if (id < verifier->first_id)
                continue;
            if (id - verifier->first_id >= verifier->n_tasks)
                return rp_verifier_fail(
                    verifier, RP_RULE_DEADLOCK, RP_NO_TASK, i,
                    "waits for task %" G_GUINT64_FORMAT ", which the plan does not have", id);
            if (id - verifier->first_id == i)
                return rp_verifier_fail(verifier, RP_RULE_DEADLOCK, i, i, "waits for itself");
            if (id - verifier->first_id > i && waiting == RP_NO_TASK) {
                waiting = i;
                awaited = (guint32)(id - verifier->first_id);
            }
        }
    }
    return waiting == RP_NO_TASK || fail_order(verifier, waiting, awaited);
}

/* A new clock, a copy of @row. Returns: FALSE when the limit is reached. */
static gboolean
copy_row(RpVerifier *verifier, guint32 row, guint32 *copy)
{
    gsize row_bytes = verifier->stride * sizeof(guint32);

    if (verifier->n_rows == verifier->max_rows) {
        gsize most = (gsize)MIN(verifier->clock_bytes / row_bytes, RP_NO_TASK - 1);

        if (verifier->n_rows >= most)
            return FALSE;
        verifier->max_rows = MIN(most, MAX(1024, verifier->max_rows * 2));
        verifier->clocks = g_realloc_n(verifier->clocks, verifier->max_rows, row_bytes);
    }
    *copy = (guint32)verifier->n_rows++;
    memcpy(verifier->clocks + *copy * verifier->stride, verifier->clocks + row * verifier->stride,
           row_bytes);
    return TRUE;
}

const RpOldTask *
rp_verifier_old(const RpVerifier *verifier, RpTaskId id)
{
    guint low = 0, high = verifier->old != NULL ? verifier->old->len : 0;

    while (low < high) {
        const guint half = (low + high) / 2;
        const RpOldTask *old = &g_array_index(verifier->old, RpOldTask, half);

        if (old->id == id)
            return old;
        if (old->id < id)
            low = half + 1;
        else
            high = half;
    }
    return NULL;
}

/* @row learns that @task has ended, and all that has ended before it. */
static void
join(RpVerifier *verifier, guint32 row, const RpOldTask *task)
{
    guint32 *into = verifier->clocks + row * verifier->stride;
    const guint32 *from = verifier->clocks + task->end_row * verifier->stride;

    for (gsize i = 0; i < verifier->stride; i++)
        into[i] = MAX(into[i], from[i]);
    into[task->lane] = MAX(into[task->lane], task->position);
}

/* Finds a task's place. FALSE: it is an old one of which nothing is known, so that waiting for it
 * proves nothing. */
static gboolean
find_task(const RpVerifier *verifier, RpTaskId id, RpOldTask *found)
{
    const guint32 index = (guint32)(id - verifier->first_id);
    const RpOldTask *old;

    if (id >= verifier->first_id) {
        *found = (RpOldTask){id, verifier->lane[index], verifier->position[index],
                             verifier->end_row[index]};
        return TRUE;
    }
    old = rp_verifier_old(verifier, id);
    if (old != NULL)
        *found = *old;
    return old != NULL;
}

/* The maximum of clock @base and the dependencies of @phase; a new row only if they add
 * something. */
static gboolean
join_dependencies(RpVerifier *verifier, guint32 index, guint32 phase, guint32 base, guint32 *row)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpDependency *dependencies = rp_plan_dependencies(verifier->plan, task);

    *row = base;
    for (guint k = 0; k < task->dependency_count; k++) {
        RpOldTask before;

        if (dependencies[k].phase != phase || !find_task(verifier, dependencies[k].task, &before) ||
            before.lane == verifier->lane[index] ||
            verifier->clocks[*row * verifier->stride + before.lane] >= before.position)
            continue;
        if (*row == base && !copy_row(verifier, base, row))
            return FALSE;
        join(verifier, *row, &before);
    }
    return TRUE;
}

gboolean
rp_verify_make_clocks(RpVerifier *verifier)
{
    if (verifier->clocks == NULL) {
        verifier->lane_row = g_new0(guint32, verifier->n_lanes);
        verifier->max_rows = 1;
        verifier->n_rows = 1; /* row 0: nothing has ended */
        verifier->clocks = g_new0(guint32, verifier->stride);
    }
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        guint32 *row = &verifier->lane_row[verifier->lane[i]];

        if (!join_dependencies(verifier, i, 0, *row, &verifier->start_row[i]) ||
            !join_dependencies(verifier, i, 1, verifier->start_row[i], &verifier->end_row[i]))
            return rp_verifier_fail(verifier, RP_RULE_NONE, RP_NO_TASK, RP_NO_TASK,
                                    "too large to verify: the order of %u tasks on %u lanes takes "
                                    "more than %" G_GUINT64_FORMAT " bytes",
                                    verifier->n_tasks, verifier->n_lanes, verifier->clock_bytes);
        *row = verifier->end_row[i];
    }
    return TRUE;
}

/* Clocks that are still needed move to the front; their order stays. */
static void
compact_rows(RpVerifier *verifier)
{
    g_autofree guint32 *moved = g_new0(guint32, verifier->n_rows); /* 1: is needed */
    const gsize row_bytes = verifier->stride * sizeof(guint32);
    guint32 n = 0;

    moved[0] = 1;
    for (guint32 i = 0; i < verifier->n_tasks; i++)
        moved[verifier->start_row[i]] = moved[verifier->end_row[i]] = 1;
    for (guint l = 0; l < verifier->n_lanes; l++)
        moved[verifier->lane_row[l]] = 1;
    for (guint i = 0; i < verifier->old->len; i++)
        moved[g_array_index(verifier->old, RpOldTask, i).end_row] = 1;
    for (gsize row = 0; row < verifier->n_rows; row++) {
        if (moved[row] == 0)
            continue;
        memmove(verifier->clocks + n * verifier->stride, verifier->clocks + row * verifier->stride,
                row_bytes);
        moved[row] = n++;
    }
    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        verifier->start_row[i] = moved[verifier->start_row[i]];
        verifier->end_row[i] = moved[verifier->end_row[i]];
    }
    for (guint l = 0; l < verifier->n_lanes; l++)
        verifier->lane_row[l] = moved[verifier->lane_row[l]];
    for (guint i = 0; i < verifier->old->len; i++) {
        RpOldTask *old = &g_array_index(verifier->old, RpOldTask, i);

        old->end_row = moved[old->end_row];
    }
    verifier->n_rows = n;
}

void
rp_verifier_forget_clocks(RpVerifier *verifier, guint32 n)
{
    guint32 *const tables[] = {verifier->lane, verifier->position, verifier->start_row,
                               verifier->end_row};

    for (guint i = 0; i < G_N_ELEMENTS(tables); i++)
        memmove(tables[i], tables[i] + n, (verifier->n_tasks - n) * sizeof(guint32));
    verifier->n_tasks -= n;
    compact_rows(verifier);
}
