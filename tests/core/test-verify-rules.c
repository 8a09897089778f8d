/*
 * One way to break each rule, and the answer it must get: the rule by name, and the two tasks.
 */
#include "tests/rp-test.h"

#include "tests/core/plan-mutate.h"

/* One mutation with the answer it must get. */
typedef struct {
    const char *name;
    RpTestPlan plan;
    RpTaskKind from, to; /* kinds of the two tasks that the violation names */
    RpRule rule;
    void (*mutate)(RpPlanDraft *draft);
} Mutation;

#define FULL(schedule, gpus, stages, m, round, async, lean)                                        \
    {                                                                                              \
        schedule, gpus, stages, m, round, RP_FIDELITY_FULL, async, TRUE, FALSE, lean, FALSE, 512,  \
            3                                                                                      \
    }
#define PACKED(schedule, gpus, stages, m, round)                                                   \
    {                                                                                              \
        schedule, gpus, stages, m, round, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512,  \
            3, .packed = TRUE                                                                      \
    }
#define RESIDENT(is_packed)                                                                        \
    {                                                                                              \
        "roundpipe", 2, 2, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3,        \
            .packed = (is_packed), .resident = G_MAXUINT64                                         \
    }
#define BLOCKING                                                                                   \
    {                                                                                              \
        "roundpipe", 2, 2, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, TRUE, FALSE, FALSE, 512, 3         \
    }
/* Three layers of a forward stage save something, and two of a backward stage. */
#define SAVED                                                                                      \
    {                                                                                              \
        "roundpipe", 2, 1, 4, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3,        \
            .saved = RP_SAVED(MLP) | RP_SAVED(ATTENTION)                                           \
    }
/* One fused stage, each round on a device of its own. */
#define FUSED(rounds) FULL("roundpipe", rounds, 0, (rounds) * (rounds), rounds, FALSE, FALSE)
/* The same on one device: rounds stay there, and leave with the last. */
#define KEPT(rounds) FULL("roundpipe", 1, 0, rounds, 1, FALSE, FALSE)
/* A forward slot and three backward ones on four devices: each stage stays on its own. */
#define KEPT_APART(rounds) FULL("roundpipe", 4, 1, 4 * (rounds), 4, TRUE, FALSE)
/* Two rounds, which the norm and the steps add. */
#define APART                                                                                      \
    {                                                                                              \
        "roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3,        \
            .apart = TRUE                                                                          \
    }
#define COMPUTE(schedule, gpus, stages, m)                                                         \
    {                                                                                              \
        schedule, gpus, stages, m, 0, RP_FIDELITY_COMPUTE, FALSE, TRUE, FALSE, FALSE, FALSE, 512,  \
            2                                                                                      \
    }

/* Drops the edges into the @nth task of kind @to in @iteration that come from tasks of kind @from.
 */
static void
drop_edges(RpPlanDraft *draft, RpTaskKind from, RpTaskKind to, guint32 iteration)
{
    gboolean found = FALSE;

    for (guint nth = 0; !found; nth++) {
        guint index = rp_plan_draft_find(draft, to, iteration, nth);

        assert_int_not_equal(index, RP_NONE);
        GArray *edges = rp_plan_draft_task(draft, index)->dependencies;
        for (guint k = edges->len; k-- > 0;) {
            guint other = (guint)g_array_index(edges, RpDependency, k).task;

            if (rp_plan_draft_task(draft, other)->task.kind != from ||
                !rp_plan_draft_conflict(draft, other, index))
                continue;
            g_array_remove_index(edges, k);
            found = TRUE;
        }
    }
}

static void
forget_activation_download(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_ACTIVATION_DOWNLOAD, RP_TASK_ACTIVATION_UPLOAD, 0);
}

static void
forget_parameters(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_PARAMETER_UPLOAD, RP_TASK_FORWARD, 0);
}

static void
expand_too_early(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_PARAMETER_UPLOAD, RP_TASK_EXPAND, 0);
}

static void
upload_over_packed(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_EXPAND, RP_TASK_PARAMETER_UPLOAD, 0);
}

static void
forget_to_expand(RpPlanDraft *draft)
{
    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0))->dropped = TRUE;
}

static void
expand_twice(RpPlanDraft *draft)
{
    (void)rp_plan_draft_duplicate(draft, rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0));
}

static void
expand_behind_the_action(RpPlanDraft *draft)
{
    rp_plan_draft_move_behind(draft, rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0),
                              rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0));
}

static void
expand_into_what_is_packed(RpPlanDraft *draft)
{
    const guint expand = rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0);

    rp_plan_draft_access(draft, expand, 1)->buffer = rp_plan_draft_access(draft, expand, 0)->buffer;
}

static void
upload_past_the_packed(RpPlanDraft *draft)
{
    const guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);
    const guint upload = rp_plan_draft_find(draft, RP_TASK_PARAMETER_UPLOAD, 0, 0);
    const guint at =
        rp_plan_draft_find_access(draft, upload, RP_ACCESS_WRITE, RP_BUFFER_PARAMETERS, FALSE);

    rp_plan_draft_access(draft, upload, at)->buffer =
        rp_plan_draft_access(draft, forward, 0)->buffer;
}

/* Accesses by which the first @kind with two such reads and writes the tensors that two layers
 * save. */
static RpAccess *
two_saved(RpPlanDraft *draft, RpTaskKind kind, RpAccess **other)
{
    for (guint nth = 0;; nth++) {
        const guint index = rp_plan_draft_find(draft, kind, 0, nth);
        RpAccess *found = NULL;

        for (guint i = 0; i < rp_plan_draft_task(draft, index)->accesses->len; i++) {
            RpAccess *access = rp_plan_draft_access(draft, index, i);

            if (access->role != RP_ROLE_SAVED)
                continue;
            if (found != NULL) {
                *other = access;
                return found;
            }
            found = access;
        }
    }
}

static void
exchange_saved(RpPlanDraft *draft, RpTaskKind kind)
{
    RpAccess *other;
    RpAccess *access = two_saved(draft, kind, &other);
    const guint32 buffer = access->buffer;

    access->buffer = other->buffer;
    other->buffer = buffer;
}

static void
exchange_what_two_layers_save(RpPlanDraft *draft)
{
    exchange_saved(draft, RP_TASK_FORWARD);
}

static void
exchange_what_two_layers_saved(RpPlanDraft *draft)
{
    exchange_saved(draft, RP_TASK_BACKWARD);
}

static void
forget_what_is_saved(RpPlanDraft *draft)
{
    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_SAVED_DOWNLOAD, 0, 0))->dropped =
        TRUE;
}

static void
bring_back_over_what_is_leaving(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_SAVED_DOWNLOAD, RP_TASK_SAVED_UPLOAD, 0);
}

static void
recompute_before_it_is_back(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_SAVED_UPLOAD, RP_TASK_BACKWARD, 0);
}

static void
save_over_what_is_leaving(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_SAVED_DOWNLOAD, RP_TASK_FORWARD, 0);
}

static void
save_in_part(RpPlanDraft *draft)
{
    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_SAVED_DOWNLOAD, 0, 0))
        ->task.bytes -= 512;
}

static RpPlanLayer *
row(RpPlanDraft *draft, guint layer)
{
    return &draft->tables.layers[layer];
}

static guint
first_resident(const RpPlanDraft *draft)
{
    return rp_plan_draft_find(draft, RP_TASK_RESIDENT_UPLOAD, 0, 0);
}

static void
forget_what_stays(RpPlanDraft *draft)
{
    rp_plan_draft_task(draft, first_resident(draft))->dropped = TRUE;
}

static void
upload_twice_what_stays(RpPlanDraft *draft)
{
    (void)rp_plan_draft_duplicate(draft, first_resident(draft));
}

static void
upload_behind_the_action_what_stays(RpPlanDraft *draft)
{
    rp_plan_draft_move_behind(draft, first_resident(draft),
                              rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0));
}

/* Its place on the device, as the tables have it. */
static guint32 *
place_of_first_resident(RpPlanDraft *draft)
{
    const RpTask *task = &rp_plan_draft_task(draft, first_resident(draft))->task;

    return &draft->tables
                .slot_layers[task->lane / RP_LANES_PER_DEVICE * draft->n_layers + task->layer]
                .resident;
}

static void
lay_what_stays_into_a_slot(RpPlanDraft *draft)
{
    const guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 1, 0);
    const guint at =
        rp_plan_draft_find_access(draft, forward, RP_ACCESS_WRITE, RP_BUFFER_WORKSPACE, FALSE);

    g_array_index(draft->buffers, RpBuffer, *place_of_first_resident(draft)).offset =
        g_array_index(draft->buffers, RpBuffer, rp_plan_draft_access(draft, forward, at)->buffer)
            .offset;
}

static void
forget_the_place_of_what_stays(RpPlanDraft *draft)
{
    *place_of_first_resident(draft) = RP_NONE;
}

static void
train_what_stays(RpPlanDraft *draft)
{
    const guint layer = rp_plan_draft_task(draft, first_resident(draft))->task.layer;

    for (guint i = 0; i < draft->tasks->len; i++) {
        RpTask *task = &rp_plan_draft_task(draft, i)->task;

        if (task->kind == RP_TASK_RESIDENT_UPLOAD && task->layer == layer)
            task->bytes += 512;
    }
    row(draft, layer)->resident_bytes += 512;
}

static void
save_in_the_fused_stage(RpPlanDraft *draft)
{
    row(draft, draft->n_layers - 2)->saved_bytes = 512;
}

static void
forget_last_reader(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_FORWARD, RP_TASK_ACTIVATION_UPLOAD, 0);
}

static void
forget_weight_integrity(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_PARAMETER_UPLOAD, RP_TASK_PARAMETER_COPY, 1);
}

static void
forget_torn_weights(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_PARAMETER_COPY, RP_TASK_PARAMETER_UPLOAD, 2);
}

static void
forget_gradient_integrity(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_OPTIMIZER_STEP, RP_TASK_GRADIENT_DOWNLOAD, 1);
}

static void
forget_sum(RpPlanDraft *draft)
{
    drop_edges(draft, RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_GRADIENT_ACCUMULATE, 0);
}

/* The first task of iteration 0 that adds @n rounds; its staging buffers are its first accesses. */
static GArray *
accesses_of_sum(RpPlanDraft *draft, guint n, guint *index)
{
    for (guint nth = 0;; nth++) {
        const guint task = rp_plan_draft_find(draft, RP_TASK_GRADIENT_ACCUMULATE, 0, nth);
        guint found = 0;

        assert_int_not_equal(task, RP_NONE);
        GArray *accesses = rp_plan_draft_task(draft, task)->accesses;
        while (g_array_index(accesses, RpAccess, found).role == RP_ROLE_STAGING)
            found++;
        if (index != NULL)
            *index = task;
        if (found == n)
            return accesses;
    }
}

/* As a sum of later rounds does. */
static void
add_to_sum(GArray *accesses)
{
    for (guint i = 0; i < accesses->len; i++)
        if (g_array_index(accesses, RpAccess, i).role == RP_ROLE_HOST)
            g_array_index(accesses, RpAccess, i).mode = RP_ACCESS_READ | RP_ACCESS_WRITE;
}

static void
leave_first_round_out(RpPlanDraft *draft)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);

    g_array_remove_index(accesses, 0);
    add_to_sum(accesses);
}

/* The buffer then still holds the sum of the iteration before. */
static void
begin_with_what_is_there(RpPlanDraft *draft)
{
    add_to_sum(accesses_of_sum(draft, 4, NULL));
}

/* A later sum: earlier terms are lost. */
static void
begin_again(RpPlanDraft *draft)
{
    guint index;
    GArray *accesses = accesses_of_sum(draft, 1, &index);

    if (rp_plan_draft_task(draft, index)->task.round == 0) {
        const guint32 stage = rp_plan_draft_task(draft, index)->task.stage;

        do
            index++;
        while (rp_plan_draft_task(draft, index)->task.kind != RP_TASK_GRADIENT_ACCUMULATE ||
               rp_plan_draft_task(draft, index)->task.stage != stage);
        accesses = rp_plan_draft_task(draft, index)->accesses;
    }
    for (guint i = 0; i < accesses->len; i++)
        if (g_array_index(accesses, RpAccess, i).role == RP_ROLE_HOST)
            g_array_index(accesses, RpAccess, i).mode = RP_ACCESS_WRITE;
}

static void
leave_middle_round_out(RpPlanDraft *draft)
{
    g_array_remove_index(accesses_of_sum(draft, 4, NULL), 1);
}

static void
add_no_round(RpPlanDraft *draft)
{
    g_array_remove_range(accesses_of_sum(draft, 4, NULL), 0, 4);
}

static void
read_a_round_twice(RpPlanDraft *draft)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);

    g_array_index(accesses, RpAccess, 1).buffer = g_array_index(accesses, RpAccess, 2).buffer;
}

static void
add_a_round_twice(RpPlanDraft *draft)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);
    const RpAccess again = g_array_index(accesses, RpAccess, 2);

    g_array_insert_val(accesses, 3, again);
}

static void
add_rounds_out_of_order(RpPlanDraft *draft)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);
    const RpAccess first = g_array_index(accesses, RpAccess, 0);

    g_array_index(accesses, RpAccess, 0) = g_array_index(accesses, RpAccess, 1);
    g_array_index(accesses, RpAccess, 1) = first;
}

static void
add_what_is_no_staging(RpPlanDraft *draft)
{
    g_array_index(accesses_of_sum(draft, 4, NULL), RpAccess, 2).role = RP_ROLE_HOST;
}

static guint
n_staged(const RpDraftTask *sum)
{
    guint n = 0;

    while (g_array_index(sum->accesses, RpAccess, n).role == RP_ROLE_STAGING)
        n++;
    return n;
}

/* The same rounds of a stage whose sum comes later. */
static void
add_rounds_of_another_stage(RpPlanDraft *draft)
{
    for (guint i = 0;; i++) {
        const guint index = rp_plan_draft_find(draft, RP_TASK_GRADIENT_ACCUMULATE, 0, i);
        const RpDraftTask *sum = rp_plan_draft_task(draft, index);

        for (guint k = i + 1;; k++) {
            const guint other = rp_plan_draft_find(draft, RP_TASK_GRADIENT_ACCUMULATE, 0, k);

            if (other == RP_NONE)
                break;
            const RpDraftTask *next = rp_plan_draft_task(draft, other);
            if (next->task.stage == sum->task.stage || next->task.round != sum->task.round ||
                n_staged(next) != n_staged(sum) ||
                g_array_index(next->accesses, RpAccess, 0).buffer ==
                    g_array_index(sum->accesses, RpAccess, 0).buffer)
                continue;
            for (guint n = 0; n < n_staged(sum); n++)
                g_array_index(sum->accesses, RpAccess, n) =
                    g_array_index(next->accesses, RpAccess, n);
            return;
        }
    }
}

/* The second task adds the last of the rounds that the first adds. */
static void
sum_a_round_in_two_tasks(RpPlanDraft *draft)
{
    guint index;

    accesses_of_sum(draft, 4, &index);
    const guint copy = rp_plan_draft_duplicate(draft, index);
    g_array_remove_range(rp_plan_draft_task(draft, copy)->accesses, 0, 2);
    add_to_sum(rp_plan_draft_task(draft, copy)->accesses);
}

/* By which the last action of round @round of iteration 1 adds to the rounds before; KEPT(). */
static RpAccess *
kept_access(RpPlanDraft *draft, guint round)
{
    const guint action = rp_plan_draft_find(draft, RP_TASK_FUSED, 1, round);
    const guint access =
        rp_plan_draft_find_access(draft, action, RP_ACCESS_WRITE, RP_BUFFER_GRADIENTS, FALSE);

    assert_int_not_equal(access, RP_NONE);
    return rp_plan_draft_access(draft, action, access);
}

static void
overwrite_kept_rounds(RpPlanDraft *draft)
{
    kept_access(draft, 2)->mode = RP_ACCESS_WRITE;
}

static void
add_the_first_round_to_what_was_there(RpPlanDraft *draft)
{
    kept_access(draft, 0)->mode = RP_ACCESS_READ | RP_ACCESS_WRITE;
}

static void
forget_kept_rounds(RpPlanDraft *draft)
{
    for (guint nth = 0;; nth++) {
        const guint index = rp_plan_draft_find(draft, RP_TASK_GRADIENT_DOWNLOAD, 1, nth);

        if (index == RP_NONE)
            return;
        rp_plan_draft_task(draft, index)->dropped = TRUE;
    }
}

/* The sum of the rounds before then reaches the host twice. */
static void
send_a_kept_round(RpPlanDraft *draft)
{
    const guint last = rp_plan_draft_find(draft, RP_TASK_GRADIENT_DOWNLOAD, 1, 0);
    const guint copy = rp_plan_draft_duplicate(draft, last);
    const RpDependency edge = {.task = rp_plan_draft_find(draft, RP_TASK_FUSED, 1, 1)};
    const RpDependency back = {.task = copy};
    RpDraftTask *sent = rp_plan_draft_task(draft, copy);

    sent->task.round = 1;
    g_array_set_size(sent->dependencies, 0);
    g_array_append_val(sent->dependencies, edge);
    rp_plan_draft_move_behind(draft, copy, (guint)edge.task);
    g_array_append_val(
        rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_FUSED, 1, 2))->dependencies,
        back);
}

static void
call_rounds_one(RpPlanDraft *draft)
{
    draft->tables.modes.gradients = RP_GRADIENTS_ONE_ROUND;
}

static void
step_early(RpPlanDraft *draft)
{
    draft->tables.modes.step = RP_STEP_EARLY;
}

static void
step_at_once(RpPlanDraft *draft)
{
    draft->tables.modes.step = RP_STEP_AT_ONCE;
}

/* A backward stage's last round is added to those of the fused stage, on another device. */
static void
add_to_rounds_of_another_stage(RpPlanDraft *draft)
{
    for (guint nth = 0;; nth++) {
        const guint index = rp_plan_draft_find(draft, RP_TASK_BACKWARD, 1, nth);
        const guint fused = rp_plan_draft_find(draft, RP_TASK_FUSED, 1, nth);
        guint access, other;

        assert_int_not_equal(index, RP_NONE);
        access = rp_plan_draft_find_access(draft, index, RP_ACCESS_READ | RP_ACCESS_WRITE,
                                           RP_BUFFER_GRADIENTS, FALSE);
        other =
            rp_plan_draft_find_access(draft, fused, RP_ACCESS_WRITE, RP_BUFFER_GRADIENTS, FALSE);
        if (access == RP_NONE)
            continue;
        assert_int_not_equal(other, RP_NONE);
        rp_plan_draft_access(draft, index, access)->buffer =
            rp_plan_draft_access(draft, fused, other)->buffer;
        return;
    }
}

static void
forget_gradients(RpPlanDraft *draft)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    g_array_set_size(rp_plan_draft_task(draft, norm)->dependencies, 0);
    for (guint nth = 0; rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 0, nth) != RP_NONE;
         nth++) {
        guint step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 0, nth);
        GArray *edges = rp_plan_draft_task(draft, step)->dependencies;

        for (guint k = edges->len; k-- > 0;)
            if (rp_plan_draft_task(draft, (guint)g_array_index(edges, RpDependency, k).task)
                    ->task.kind == RP_TASK_GRADIENT_DOWNLOAD)
                g_array_remove_index(edges, k);
    }
}

static void
step_before_copy(RpPlanDraft *draft)
{
    guint copy = rp_plan_draft_find(draft, RP_TASK_PARAMETER_COPY, 1, 0);
    guint32 layer = rp_plan_draft_task(draft, copy)->task.layer;
    guint nth = 0, step;

    do
        step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 2, nth++);
    while (rp_plan_draft_task(draft, step)->task.layer != layer);
    rp_plan_draft_move_behind(draft, copy, step);
}

static guint32
written_buffer(const RpPlanDraft *draft, guint step)
{
    guint write =
        rp_plan_draft_find_access(draft, step, RP_ACCESS_WRITE, RP_BUFFER_PARAMETERS, TRUE);

    return rp_plan_draft_access(draft, step, write)->buffer;
}

/* An upload of iteration 2 reads the weights that 1 made (staleness 0), in good order. */
static void
read_fresh_weights(RpPlanDraft *draft)
{
    guint step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 1, 0);
    guint32 stale = written_buffer(draft, rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 0, 0));
    RpDependency edge = {.task = step};

    for (guint nth = 0;; nth++) {
        guint upload = rp_plan_draft_find(draft, RP_TASK_PARAMETER_UPLOAD, 2, nth);
        GArray *accesses = rp_plan_draft_task(draft, upload)->accesses;

        for (guint i = 0; i < accesses->len && upload > step; i++) {
            if (g_array_index(accesses, RpAccess, i).buffer != stale)
                continue;
            g_array_index(accesses, RpAccess, i).buffer = written_buffer(draft, step);
            g_array_append_val(rp_plan_draft_task(draft, upload)->dependencies, edge);
            return;
        }
    }
}

/* An upload of iteration 2 reads the initial weights (staleness 2): nobody wrote them in 0. */
static void
read_stale_weights(RpPlanDraft *draft)
{
    guint upload = rp_plan_draft_find(draft, RP_TASK_PARAMETER_UPLOAD, 2, 0);
    guint at = rp_plan_draft_find_access(draft, upload, RP_ACCESS_READ, RP_BUFFER_PARAMETERS, TRUE);
    guint32 right = rp_plan_draft_access(draft, upload, at)->buffer;
    RpBuffer fresh = g_array_index(draft->buffers, RpBuffer, right);
    guint32 elsewhere = draft->buffers->len;

    for (guint b = 0; b < draft->buffers->len; b++)
        if (g_array_index(draft->buffers, RpBuffer, b).arena == fresh.arena)
            fresh.offset = MAX(fresh.offset, g_array_index(draft->buffers, RpBuffer, b).offset +
                                                 g_array_index(draft->buffers, RpBuffer, b).bytes);
    g_array_append_val(draft->buffers, fresh);
    for (guint nth = 0;; nth++) {
        guint step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 0, nth);
        guint write =
            rp_plan_draft_find_access(draft, step, RP_ACCESS_WRITE, RP_BUFFER_PARAMETERS, TRUE);

        if (written_buffer(draft, step) != right)
            continue;
        rp_plan_draft_access(draft, step, write)->buffer = elsewhere;
        return;
    }
}

static void
overlap_parameters(RpPlanDraft *draft)
{
    RpBuffer *first = NULL;

    for (guint b = 0; b < draft->buffers->len; b++) {
        RpBuffer *buffer = &g_array_index(draft->buffers, RpBuffer, b);

        if (buffer->arena != 0 || buffer->category != RP_BUFFER_PARAMETERS)
            continue;
        if (first != NULL) {
            buffer->offset = first->offset + first->bytes - 1;
            return;
        }
        first = buffer;
    }
}

static void
leave_the_arena(RpPlanDraft *draft)
{
    guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);

    rp_plan_draft_access(draft, forward, 0)->buffer = draft->buffers->len;
}

static void
shrink_segment(RpPlanDraft *draft)
{
    rp_plan_draft_stage(draft, 0)->parameters.segments[0].bytes -= 512;
}

static void
late_stash(RpPlanDraft *draft)
{
    for (guint nth = 0;; nth++) {
        guint backward = rp_plan_draft_find(draft, RP_TASK_BACKWARD, 0, nth);

        for (guint k = 0; k < rp_plan_draft_task(draft, backward)->dependencies->len; k++) {
            RpDependency *edge = rp_plan_draft_dependency(draft, backward, k);

            if (rp_plan_draft_task(draft, (guint)edge->task)->task.kind == RP_TASK_STASH_UPLOAD) {
                edge->phase = 1;
                return;
            }
        }
    }
}

static void
backward_before_forward(RpPlanDraft *draft)
{
    guint backward = rp_plan_draft_find(draft, RP_TASK_BACKWARD, 0, 0);
    guint32 lane = rp_plan_draft_task(draft, backward)->task.lane;
    guint forward = RP_NONE;

    for (guint i = 0; i < backward; i++) {
        const RpTask *task = &rp_plan_draft_task(draft, i)->task;

        if (task->lane == lane && task->micro_batch == 0)
            forward = i;
    }
    /* on the last stage: its forward waits for another device, its backward for nobody */
    rp_plan_draft_swap(draft, forward, backward);
}

static void
wait_for_the_future(RpPlanDraft *draft)
{
    RpDependency edge = {.task = rp_plan_draft_find(draft, RP_TASK_BACKWARD, 0, 3)};
    guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);

    g_array_append_val(rp_plan_draft_task(draft, forward)->dependencies, edge);
}

/* Nothing but its lane orders it. */
static void
norm_waits_for_nothing(RpPlanDraft *draft)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    g_array_set_size(rp_plan_draft_task(draft, norm)->dependencies, 0);
}

static void
drop_norm(RpPlanDraft *draft)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    rp_plan_draft_task(draft, norm)->dropped = TRUE;
}

static void
norm_leaves_a_layer_out(RpPlanDraft *draft)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    g_array_remove_index(rp_plan_draft_task(draft, norm)->accesses, 1);
}

/* The norm is a barrier, as it was: it orders all, and nobody reads its result. */
static void
step_without_decision(RpPlanDraft *draft)
{
    guint step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 0, 1);
    GArray *accesses = rp_plan_draft_task(draft, step)->accesses;

    for (guint i = accesses->len; i-- > 0;)
        if (g_array_index(accesses, RpAccess, i).role == RP_ROLE_DECISION)
            g_array_remove_index(accesses, i);
}

/* The head of iteration 2 reads the decision on 1, of which it may be too early to hear. */
static void
head_reads_another_decision(RpPlanDraft *draft)
{
    guint head = rp_plan_draft_find(draft, RP_TASK_FUSED, 2, 0);
    GArray *accesses = rp_plan_draft_task(draft, head)->accesses;

    for (guint i = 0; i < accesses->len; i++)
        if (g_array_index(accesses, RpAccess, i).role == RP_ROLE_DECISION)
            g_array_index(accesses, RpAccess, i).buffer = draft->tables.decisions[1];
}

static void
exchange_input_and_gradient(RpPlanDraft *draft)
{
    guint backward = rp_plan_draft_find(draft, RP_TASK_BACKWARD, 0, 0);
    GArray *accesses = rp_plan_draft_task(draft, backward)->accesses;

    for (guint i = 0; i < accesses->len; i++) {
        RpAccess *access = &g_array_index(accesses, RpAccess, i);

        if (access->role == RP_ROLE_INPUT)
            access->role = RP_ROLE_GRADIENT;
        else if (access->role == RP_ROLE_GRADIENT)
            access->role = RP_ROLE_INPUT;
    }
}

static void
cut_device_buffers(RpPlanDraft *draft)
{
    for (guint b = 0; b < draft->buffers->len; b++) {
        RpBuffer *buffer = &g_array_index(draft->buffers, RpBuffer, b);

        if (buffer->arena < draft->gpus && b != draft->tables.constants[buffer->arena])
            buffer->bytes = MIN(buffer->bytes, RP_BUFFER_ALIGNMENT);
    }
}

static void
exchange_weights(RpPlanDraft *draft)
{
    const guint32 first = row(draft, 0)->weights[0];

    row(draft, 0)->weights[0] = row(draft, 3)->weights[0];
    row(draft, 3)->weights[0] = first;
}

static void
exchange_gradients(RpPlanDraft *draft)
{
    const guint32 first = row(draft, 0)->gradients[0];

    row(draft, 0)->gradients[0] = row(draft, 3)->gradients[0];
    row(draft, 3)->gradients[0] = first;
}

/* APART(): the access of task @index to gradients of round 1 of @layer, on the host. */
static RpAccess *
access_of_round(RpPlanDraft *draft, guint index, guint layer, guint *at)
{
    GArray *accesses = rp_plan_draft_task(draft, index)->accesses;

    for (*at = 0; *at < accesses->len; ++*at)
        if (g_array_index(accesses, RpAccess, *at).buffer == row(draft, layer)->gradients[1])
            return &g_array_index(accesses, RpAccess, *at);
    return NULL;
}

static void
leave_a_round_out(RpPlanDraft *draft, RpTaskKind kind)
{
    const guint index = rp_plan_draft_find(draft, kind, 1, 0);
    const guint layer = rp_plan_draft_task(draft, index)->task.layer;
    guint at;

    assert_non_null(access_of_round(draft, index, kind == RP_TASK_NORM ? 0 : layer, &at));
    g_array_remove_index(rp_plan_draft_task(draft, index)->accesses, at);
}

static void
step_without_a_round(RpPlanDraft *draft)
{
    leave_a_round_out(draft, RP_TASK_OPTIMIZER_STEP);
}

static void
norm_without_a_round(RpPlanDraft *draft)
{
    leave_a_round_out(draft, RP_TASK_NORM);
}

/* The second round of layer 0 where its first one is. */
static void
send_home_over_another_round(RpPlanDraft *draft)
{
    RpAccess *access = NULL;
    guint at;

    for (guint nth = 0; access == NULL; nth++)
        access = access_of_round(
            draft, rp_plan_draft_find(draft, RP_TASK_GRADIENT_DOWNLOAD, 1, nth), 0, &at);
    access->buffer = row(draft, 0)->gradients[0];
}

/* Each still has one, and all are read. */
static void
exchange_rounds(RpPlanDraft *draft)
{
    const guint32 first = row(draft, 0)->gradients[0];

    row(draft, 0)->gradients[0] = row(draft, 0)->gradients[1];
    row(draft, 0)->gradients[1] = first;
}

static void
keep_a_sum_apart(RpPlanDraft *draft)
{
    draft->tables.modes.gradients = RP_GRADIENTS_SUMMED;
}

static void
share_optimizer_state(RpPlanDraft *draft)
{
    row(draft, 0)->optimizer = row(draft, 3)->optimizer;
}

static void
lay_constants_under_a_buffer(RpPlanDraft *draft)
{
    const RpBuffer *other = &g_array_index(
        draft->buffers, RpBuffer,
        rp_plan_draft_access(draft, rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0), 0)->buffer);

    g_array_index(draft->buffers, RpBuffer, draft->tables.constants[0]).offset = other->offset;
}

static void
use_constants_as_workspace(RpPlanDraft *draft)
{
    guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);
    guint at =
        rp_plan_draft_find_access(draft, forward, RP_ACCESS_WRITE, RP_BUFFER_WORKSPACE, FALSE);

    rp_plan_draft_access(draft, forward, at)->buffer =
        draft->tables
            .constants[rp_plan_draft_task(draft, forward)->task.lane / RP_LANES_PER_DEVICE];
}

static void
transfer_fewer_bytes(RpPlanDraft *draft)
{
    for (guint i = 0; i < draft->tasks->len; i++) {
        RpTask *task = &rp_plan_draft_task(draft, i)->task;

        if (task->layer == 2 &&
            (task->kind == RP_TASK_ACTGRAD_DOWNLOAD || task->kind == RP_TASK_ACTGRAD_UPLOAD))
            task->bytes -= 512;
    }
}

static const Mutation mutations[] = {
    {"a norm that waits for nothing", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_NORM, RP_RULE_INCOMPLETE_GRADIENTS, norm_waits_for_nothing},
    {"no norm", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS, RP_TASK_OPTIMIZER_STEP,
     RP_RULE_DECISION, drop_norm},
    {"a norm that leaves a layer out", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_NORM, RP_RULE_DECISION, norm_leaves_a_layer_out},
    {"a step that follows no decision", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_OPTIMIZER_STEP, RP_RULE_DECISION, step_without_decision},
    {"a head that follows another decision", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_DECISION, head_reads_another_decision},
    {"input and gradient exchanged", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_TASK_ACTGRAD_UPLOAD, RP_TASK_BACKWARD, RP_RULE_ACTIONS, exchange_input_and_gradient},
    {"device buffers of 512 bytes", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_PARAMETER_UPLOAD, RP_RULE_OPERANDS, cut_device_buffers},
    {"weights of two layers exchanged", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_PARAMETER_UPLOAD, RP_RULE_OPERANDS, exchange_weights},
    {"gradients of two layers exchanged", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_N_TASK_KINDS, RP_TASK_GRADIENT_DOWNLOAD, RP_RULE_OPERANDS, exchange_gradients},
    {"one optimizer state for two layers", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TABLES, share_optimizer_state},
    {"constants under another buffer", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_N_TASK_KINDS, RP_RULE_TABLES, lay_constants_under_a_buffer},
    {"constants written over", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_FORWARD, RP_RULE_OPERANDS, use_constants_as_workspace},
    {"a value that travels in part", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_ACTGRAD_DOWNLOAD, RP_RULE_OPERANDS, transfer_fewer_bytes},
    {"an upload that does not wait for the download", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_TASK_ACTIVATION_DOWNLOAD, RP_TASK_ACTIVATION_UPLOAD, RP_RULE_ACTIONS,
     forget_activation_download},
    {"a stash that arrives late", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_TASK_STASH_UPLOAD,
     RP_TASK_BACKWARD, RP_RULE_ACTIONS, late_stash},
    {"an action that does not wait for its parameters", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_TASK_PARAMETER_UPLOAD, RP_TASK_FORWARD, RP_RULE_TRANSFERS, forget_parameters},
    {"packed parameters expanded before they are there", PACKED("roundpipe", 2, 2, 2, 0),
     RP_TASK_PARAMETER_UPLOAD, RP_TASK_EXPAND, RP_RULE_TRANSFERS, expand_too_early},
    {"packed parameters overwritten while they are expanded", PACKED("roundpipe", 2, 2, 2, 0),
     RP_TASK_EXPAND, RP_TASK_PARAMETER_UPLOAD, RP_RULE_BUFFERS, upload_over_packed},
    {"packed parameters that are not expanded", PACKED("roundpipe", 2, 2, 2, 0), RP_N_TASK_KINDS,
     RP_TASK_FORWARD, RP_RULE_TRANSFERS, forget_to_expand},
    {"packed parameters expanded twice", PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND,
     RP_TASK_EXPAND, RP_RULE_TRANSFERS, expand_twice},
    {"parameters expanded behind the action", PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND,
     RP_TASK_FORWARD, RP_RULE_TRANSFERS, expand_behind_the_action},
    {"parameters expanded into what is packed", PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND,
     RP_TASK_FORWARD, RP_RULE_TRANSFERS, expand_into_what_is_packed},
    {"packed parameters uploaded past their place", PACKED("roundpipe", 2, 2, 2, 0),
     RP_TASK_PARAMETER_UPLOAD, RP_TASK_EXPAND, RP_RULE_TRANSFERS, upload_past_the_packed},
    {"weights that stay and never came", RESIDENT(FALSE), RP_N_TASK_KINDS, RP_TASK_FORWARD,
     RP_RULE_TRANSFERS, forget_what_stays},
    {"packed weights that stay and never came", RESIDENT(TRUE), RP_N_TASK_KINDS, RP_TASK_EXPAND,
     RP_RULE_TRANSFERS, forget_what_stays},
    {"weights that stay uploaded twice", RESIDENT(FALSE), RP_TASK_RESIDENT_UPLOAD,
     RP_TASK_RESIDENT_UPLOAD, RP_RULE_TRANSFERS, upload_twice_what_stays},
    {"weights that stay uploaded behind the action", RESIDENT(FALSE), RP_N_TASK_KINDS,
     RP_TASK_FORWARD, RP_RULE_TRANSFERS, upload_behind_the_action_what_stays},
    {"weights that stay where a slot is", RESIDENT(FALSE), RP_N_TASK_KINDS, RP_N_TASK_KINDS,
     RP_RULE_BUFFERS, lay_what_stays_into_a_slot},
    {"weights that stay nowhere", RESIDENT(FALSE), RP_N_TASK_KINDS, RP_TASK_RESIDENT_UPLOAD,
     RP_RULE_TRANSFERS, forget_the_place_of_what_stays},
    {"weights that stay and are trained", RESIDENT(FALSE), RP_N_TASK_KINDS, RP_N_TASK_KINDS,
     RP_RULE_TABLES, train_what_stays},
    {"what two layers save in each other's places", SAVED, RP_TASK_FORWARD, RP_TASK_SAVED_DOWNLOAD,
     RP_RULE_ACTIONS, exchange_what_two_layers_save},
    {"what two layers saved in each other's places", SAVED, RP_TASK_SAVED_UPLOAD, RP_TASK_BACKWARD,
     RP_RULE_ACTIONS, exchange_what_two_layers_saved},
    {"what a layer saves left behind", SAVED, RP_TASK_FORWARD, RP_TASK_BACKWARD, RP_RULE_ACTIONS,
     forget_what_is_saved},
    {"what a layer saved brought back over what is leaving", SAVED, RP_TASK_SAVED_DOWNLOAD,
     RP_TASK_SAVED_UPLOAD, RP_RULE_BUFFERS, bring_back_over_what_is_leaving},
    {"a recompute before what was saved is back", SAVED, RP_N_TASK_KINDS, RP_TASK_BACKWARD,
     RP_RULE_ACTIONS, recompute_before_it_is_back},
    {"what a layer saves overwritten while it leaves", SAVED, RP_N_TASK_KINDS, RP_TASK_FORWARD,
     RP_RULE_BUFFERS, save_over_what_is_leaving},
    {"what a layer saves in part", SAVED, RP_N_TASK_KINDS, RP_TASK_SAVED_DOWNLOAD, RP_RULE_OPERANDS,
     save_in_part},
    {"something saved within one action", SAVED, RP_TASK_FUSED, RP_N_TASK_KINDS, RP_RULE_ACTIONS,
     save_in_the_fused_stage},
    {"an input overwritten while it is read", FULL("roundpipe", 2, 2, 4, 0, TRUE, FALSE),
     RP_TASK_FORWARD, RP_TASK_ACTIVATION_UPLOAD, RP_RULE_BUFFERS, forget_last_reader},
    {"(1) weights overwritten while they go up", FULL("roundpipe", 2, 2, 2, 0, TRUE, TRUE),
     RP_TASK_PARAMETER_UPLOAD, RP_TASK_PARAMETER_COPY, RP_RULE_WEIGHT_INTEGRITY,
     forget_weight_integrity},
    {"(2) weights uploaded before they are written", FULL("roundpipe", 2, 2, 2, 0, TRUE, TRUE),
     RP_TASK_PARAMETER_COPY, RP_TASK_PARAMETER_UPLOAD, RP_RULE_TORN_WEIGHTS, forget_torn_weights},
    {"(3) a step before its gradients", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_OPTIMIZER_STEP, RP_RULE_INCOMPLETE_GRADIENTS,
     forget_gradients},
    {"(4) gradients overwritten before the step", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE),
     RP_TASK_OPTIMIZER_STEP, RP_TASK_GRADIENT_DOWNLOAD, RP_RULE_GRADIENT_INTEGRITY,
     forget_gradient_integrity},
    {"(5) the next step before the copy", FULL("roundpipe", 2, 2, 2, 0, TRUE, TRUE),
     RP_TASK_PARAMETER_COPY, RP_TASK_OPTIMIZER_STEP, RP_RULE_OPTIMIZER_ORDER, step_before_copy},
    {"rounds summed before they arrive", FULL("roundpipe", 2, 2, 4, 2, TRUE, FALSE),
     RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS, forget_sum},
    {"a sum without its first round", FUSED(4), RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_TRANSFERS,
     leave_first_round_out},
    {"a first round added to the last iteration's", FUSED(4), RP_N_TASK_KINDS,
     RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS, begin_with_what_is_there},
    {"rounds lost by a sum that begins again", FULL("roundpipe", 2, 2, 4, 2, TRUE, FALSE),
     RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS, begin_again},
    {"a sum without a round in its middle", FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE,
     RP_RULE_TRANSFERS, leave_middle_round_out},
    {"a sum of nothing", FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS,
     add_no_round},
    {"a round read instead of another", FUSED(4), RP_TASK_GRADIENT_DOWNLOAD,
     RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS, read_a_round_twice},
    {"a round added twice", FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE,
     RP_RULE_TRANSFERS, add_a_round_twice},
    {"rounds added out of their order", FUSED(4), RP_TASK_GRADIENT_DOWNLOAD,
     RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS, add_rounds_out_of_order},
    {"a round that is read and not added", FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE,
     RP_RULE_TRANSFERS, add_what_is_no_staging},
    {"a round added by two tasks", FUSED(4), RP_TASK_GRADIENT_ACCUMULATE,
     RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS, sum_a_round_in_two_tasks},
    {"rounds of another stage", FULL("roundpipe", 8, 1, 24, 8, FALSE, FALSE),
     RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS,
     add_rounds_of_another_stage},
    {"rounds overwritten instead of added to", KEPT(4), RP_N_TASK_KINDS, RP_TASK_FUSED,
     RP_RULE_TRANSFERS, overwrite_kept_rounds},
    {"a first round that is added to the last iteration", KEPT(4), RP_N_TASK_KINDS, RP_TASK_FUSED,
     RP_RULE_TRANSFERS, add_the_first_round_to_what_was_there},
    {"rounds that stay for ever", KEPT(4), RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_TRANSFERS,
     forget_kept_rounds},
    {"a round that leaves and stays", KEPT(4), RP_TASK_FUSED, RP_TASK_GRADIENT_DOWNLOAD,
     RP_RULE_TRANSFERS, send_a_kept_round},
    {"rounds that stay, called one", KEPT(4), RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS,
     call_rounds_one},
    {"rounds that leave, called one", FUSED(4), RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS,
     call_rounds_one},
    {"asynchronous early steps", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_N_TASK_KINDS, RP_RULE_OPTIMIZER_ORDER, step_early},
    {"blocking steps at once", BLOCKING, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_OPTIMIZER_ORDER,
     step_at_once},
    {"a round added to those of another stage", KEPT_APART(3), RP_N_TASK_KINDS, RP_TASK_BACKWARD,
     RP_RULE_ARENA, add_to_rounds_of_another_stage},
    {"a step without one of the rounds", APART, RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_OPTIMIZER_STEP,
     RP_RULE_INCOMPLETE_GRADIENTS, step_without_a_round},
    {"a norm without one of the rounds", APART, RP_N_TASK_KINDS, RP_TASK_NORM, RP_RULE_DECISION,
     norm_without_a_round},
    {"a round that comes home over another", APART, RP_TASK_GRADIENT_DOWNLOAD,
     RP_TASK_OPTIMIZER_STEP, RP_RULE_BUFFERS, send_home_over_another_round},
    {"rounds in each other's places", APART, RP_N_TASK_KINDS, RP_TASK_GRADIENT_DOWNLOAD,
     RP_RULE_OPERANDS, exchange_rounds},
    {"a sum that is kept apart", APART, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS,
     keep_a_sum_apart},
    {"staleness 0", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_TASK_OPTIMIZER_STEP,
     RP_TASK_PARAMETER_UPLOAD, RP_RULE_STALENESS, read_fresh_weights},
    {"staleness 2", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_PARAMETER_UPLOAD, RP_RULE_STALENESS, read_stale_weights},
    {"two stages' parameters overlap", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_N_TASK_KINDS, RP_RULE_BUFFERS, overlap_parameters},
    {"a buffer that does not exist", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_TASK_FORWARD, RP_RULE_ARENA, leave_the_arena},
    {"bytes that never travel", FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE), RP_N_TASK_KINDS,
     RP_N_TASK_KINDS, RP_RULE_TRANSFERS, shrink_segment},
    {"a backward before its forward", COMPUTE("1f1b", 2, 2, 2), RP_TASK_FORWARD, RP_TASK_BACKWARD,
     RP_RULE_ACTIONS, backward_before_forward},
    {"a forward that waits for a later backward", COMPUTE("1f1b", 2, 2, 4), RP_TASK_BACKWARD,
     RP_TASK_FORWARD, RP_RULE_DEADLOCK, wait_for_the_future},
};

static void
check_named(const Mutation *mutation, const RpPlan *plan, RpTaskId task, RpTaskKind kind,
            const RpViolation *violation)
{
    if (kind == RP_N_TASK_KINDS)
        return;
    if (task == RP_TASK_NONE || rp_plan_task(plan, task)->kind != kind)
        fail_msg("%s: a %s should be named: %s", mutation->name, rp_task_kind_name(kind),
                 violation->message);
    char *description = rp_task_describe(plan, task);
    if (strstr(violation->message, description) == NULL)
        fail_msg("%s: %s is not described in: %s", mutation->name, description, violation->message);
    g_free(description);
}

static void
names_the_broken_rule_and_the_two_tasks(void **state)
{
    for (guint i = 0; i < G_N_ELEMENTS(mutations); i++) {
        const Mutation *mutation = &mutations[i];
        RpPlanDraft *draft = rp_test_draft(&mutation->plan);
        RpViolation violation;
        RpPlan *plan;

        assert_non_null(draft);
        assert_true(rp_plan_draft_verify(draft, &violation));
        mutation->mutate(draft);
        plan = rp_plan_draft_build(draft);
        if (rp_verify_plan(plan, &violation))
            fail_msg("%s: proved", mutation->name);
        if (violation.rule != mutation->rule)
            fail_msg("%s: rule %s expected: %s", mutation->name, rp_rule_name(mutation->rule),
                     violation.message);
        check_named(mutation, plan, violation.first, mutation->from, &violation);
        check_named(mutation, plan, violation.second, mutation->to, &violation);
        rp_violation_clear(&violation);
        rp_plan_free(plan);
        rp_plan_draft_free(draft);
    }
}

/* While a plan grows, some sums of its last iteration are yet to come, but none before another. */
static void
names_a_sum_that_leaves_a_round_out_while_the_plan_grows(void **state)
{
    const RpTestPlan test = FULL("roundpipe", 2, 0, 20, 2, TRUE, FALSE);
    g_autoptr(RpProfile) profile = rp_test_profile(rp_test_n_layers(&test), test.token_bytes);
    g_autoptr(RpPlanner) planner = rp_test_planner(&test, profile);
    const guint32 last = test.iterations - 1;
    RpViolation violation;

    (void)state;
    assert_non_null(planner);
    g_autoptr(RpPlanDraft) draft = rp_plan_draft_new(rp_planner_plan(planner));
    const guint first = rp_plan_draft_find(draft, RP_TASK_GRADIENT_ACCUMULATE, last, 0);
    const guint second = rp_plan_draft_find(draft, RP_TASK_GRADIENT_ACCUMULATE, last, 1);
    assert_int_not_equal(second, RP_NONE);
    assert_int_equal(rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, last, 0), RP_NONE);
    if (!rp_plan_draft_verify(draft, &violation))
        fail_msg("the plan: %s", violation.message);
    rp_plan_draft_task(draft, first)->dropped = TRUE;
    assert_false(rp_plan_draft_verify(draft, &violation));
    assert_int_equal(violation.rule, RP_RULE_TRANSFERS);
    assert_int_equal(violation.second, second - 1);
    rp_violation_clear(&violation);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_broken_rule_and_the_two_tasks),
        cmocka_unit_test(names_a_sum_that_leaves_a_round_out_while_the_plan_grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
