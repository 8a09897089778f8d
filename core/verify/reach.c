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

/* Lanes without tasks take no space, unless they may get some; positions count from 1. */
static void
number_lanes(RpVerifier *verifier)
{
    const guint n = rp_plan_n_lanes(verifier->plan);
    const gboolean grows = verifier->source != NULL;

    if (verifier->lanes == NULL) {
        verifier->lanes = g_new0(RpLaneState, n);
        for (guint i = 0; i < n; i++)
            verifier->lanes[i].dense = grows ? i : RP_NONE;
        verifier->n_lanes = grows ? n : 0;
    }
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        RpLaneState *lane = &verifier->lanes[rp_verifier_task(verifier, i)->lane];

        if (lane->dense == RP_NONE)
            lane->dense = verifier->n_lanes++;
        verifier->places[i].lane = lane->dense;
        verifier->places[i].position = ++lane->length;
    }
    verifier->stride = (verifier->n_lanes + 3) / 4 * 4;
}

/* A task that @task waits for, through its lane or a dependency, and that cannot run. */
static guint32
find_blocker(const RpVerifier *verifier, const guint32 *previous, const gboolean *runs,
             guint32 task)
{
    const RpTask *of = rp_verifier_task(verifier, task);
    const RpDependency *dependencies = rp_plan_dependencies(verifier->plan, of);

    for (guint k = 0; k < of->dependency_count; k++) {
        const guint32 before = rp_verifier_index(verifier, dependencies[k].task);

        if (before < verifier->n_tasks && !runs[before])
            return before;
    }
    return previous[task] != RP_NO_TASK && !runs[previous[task]] ? previous[task] : RP_NO_TASK;
}

/* Some dependency points forward. Names two tasks of a cycle, or the two out of order. */
static gboolean
fail_order(RpVerifier *verifier, guint32 waiting, guint32 awaited)
{
    const guint32 n = verifier->n_tasks;
    g_autofree guint32 *previous = g_new(guint32, n); /* in the lane */
    g_autofree guint32 *last = g_new(guint32, verifier->n_lanes);
    g_autofree gboolean *runs = g_new0(gboolean, n);
    guint32 at = RP_NO_TASK, length = 0;
    gboolean more = TRUE;

    memset(last, 0xff, verifier->n_lanes * sizeof(guint32)); /* RP_NO_TASK */
    for (guint32 i = 0; i < n; i++) {
        previous[i] = last[verifier->places[i].lane];
        last[verifier->places[i].lane] = i;
    }
    while (more) { /* one pass for each dependency of a chain that points forward */
        more = FALSE;
        at = RP_NO_TASK;
        for (guint32 i = 0; i < n; i++) {
            if (runs[i])
                continue;
            runs[i] = find_blocker(verifier, previous, runs, i) == RP_NO_TASK;
            more = more || runs[i];
            at = runs[i] || at != RP_NO_TASK ? at : i;
        }
    }
    if (at == RP_NO_TASK)
        return fail_tasks(verifier, RP_RULE_DEADLOCK, awaited, waiting,
                          "the second task waits for the first, which the plan lists later: its "
                          "lanes cannot be issued in the plan's order");
    /* from blocker to blocker the way ends in a cycle; once around: some edge of it points forward */
    for (guint32 i = 0; i < n; i++)
        at = find_blocker(verifier, previous, runs, at);
    const guint32 begin = at;
    do {
        const guint32 before = find_blocker(verifier, previous, runs, at);

        if (at < before) {
            waiting = at;
            awaited = before;
        }
        at = before;
        length++;
    } while (at != begin);
    return fail_tasks(verifier, RP_RULE_DEADLOCK, awaited, waiting,
                      "a cycle of %u tasks: the second waits for the first, which waits, through "
                      "lanes and dependencies, for the second",
                      length);
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
            const RpTaskId id = dependencies[k].task, before = id - verifier->first_id;

            if (dependencies[k].phase > 1)
                return fail_task(verifier, RP_RULE_DEADLOCK, i,
                                 "dependency on phase %u, which does not exist",
                                 dependencies[k].phase);
            if (id < verifier->first_id)
                continue;
            if (before >= verifier->n_tasks)
                return fail_task(
                    verifier, RP_RULE_DEADLOCK, i,
                    "waits for task %" G_GUINT64_FORMAT ", which the plan does not have", id);
            if (before == i)
                return fail_tasks(verifier, RP_RULE_DEADLOCK, i, i, "waits for itself");
            if (before > i && waiting == RP_NO_TASK) {
                waiting = i;
                awaited = (guint32)before;
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

/* The maximum of clock @base and the dependencies of @phase, with all that has ended before these; a new row
 * only if they add something. To wait for a task of which nothing is known proves nothing. */
static gboolean
join_dependencies(RpVerifier *verifier, guint32 index, guint32 phase, guint32 base, guint32 *row)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpDependency *dependencies = rp_plan_dependencies(verifier->plan, task);

    *row = base;
    for (guint k = 0; k < task->dependency_count; k++) {
        if (dependencies[k].phase != phase)
            continue;
        const RpTaskPlace *before = rp_verifier_place(verifier, dependencies[k].task);
        if (before == NULL || before->lane == verifier->places[index].lane ||
            verifier->clocks[*row * verifier->stride + before->lane] >= before->position)
            continue;
        if (*row == base && !copy_row(verifier, base, row))
            return FALSE;
        guint32 *into = verifier->clocks + *row * verifier->stride;
        const guint32 *from = verifier->clocks + before->end_row * verifier->stride;
        for (gsize i = 0; i < verifier->stride; i++)
            into[i] = MAX(into[i], from[i]);
        into[before->lane] = MAX(into[before->lane], before->position);
    }
    return TRUE;
}

gboolean
rp_verify_make_clocks(RpVerifier *verifier)
{
    if (verifier->clocks == NULL) {
        verifier->max_rows = 1;
        verifier->n_rows = 1; /* row 0: nothing has ended */
        verifier->clocks = g_new0(guint32, verifier->stride);
    }
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        RpLaneState *lane = &verifier->lanes[rp_verifier_task(verifier, i)->lane];
        RpTaskPlace *place = &verifier->places[i];

        if (!join_dependencies(verifier, i, 0, lane->row, &place->start_row) ||
            !join_dependencies(verifier, i, 1, place->start_row, &place->end_row))
            return fail_plan(verifier, RP_RULE_NONE,
                             "too large to verify: the order of %u tasks on %u lanes takes more "
                             "than %" G_GUINT64_FORMAT " bytes",
                             verifier->n_tasks, verifier->n_lanes, verifier->clock_bytes);
        lane->row = place->end_row;
    }
    return TRUE;
}

/* Calls @visit with every row that is in use. */
static void
visit_rows(RpVerifier *verifier, void (*visit)(guint32 *row, guint32 *moved), guint32 *moved)
{
    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        visit(&verifier->places[i].start_row, moved);
        visit(&verifier->places[i].end_row, moved);
    }
    for (guint l = 0; l < rp_plan_n_lanes(verifier->plan); l++)
        visit(&verifier->lanes[l].row, moved);
    for (guint i = 0; i < verifier->old->len; i++)
        visit(&g_array_index(verifier->old, RpOldTask, i).place.end_row, moved);
}

static void
mark(guint32 *row, guint32 *moved)
{
    moved[*row] = 1;
}

static void
renumber(guint32 *row, guint32 *moved)
{
    *row = moved[*row];
}

void
rp_verifier_forget_clocks(RpVerifier *verifier, guint32 n)
{
    g_autofree guint32 *moved =
        g_new0(guint32, verifier->n_rows); /* 1: is needed; then: to there */
    const gsize stride = verifier->stride;
    guint32 n_rows = 0;

    verifier->n_tasks -= n;
    memmove(verifier->places, verifier->places + n, verifier->n_tasks * sizeof(RpTaskPlace));
    /* clocks that are still needed move to the front; their order stays */
    moved[0] = 1;
    visit_rows(verifier, mark, moved);
    for (gsize row = 0; row < verifier->n_rows; row++) {
        if (moved[row] == 0)
            continue;
        memmove(verifier->clocks + n_rows * stride, verifier->clocks + row * stride,
                stride * sizeof(guint32));
        moved[row] = n_rows++;
    }
    visit_rows(verifier, renumber, moved);
    verifier->n_rows = n_rows;
}
