/* One way to break each rule, and the answer it must get: the rule by name, and the two tasks. */
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
#define ASYNC FULL("roundpipe", 2, 2, 2, 0, TRUE, FALSE)
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

/* Fails unless the plan is proved, and with the mutation refused by the rule and with both tasks. */
static void
check(const Mutation *mutation)
{
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

/* A test whose body breaks a proved plan, `draft`: the verifier names the rule and both tasks. */
#define BREAKS(name, plan, from, to, rule)                                                         \
    static void name##_draft(RpPlanDraft *draft);                                                  \
    RP_TEST(name)                                                                                  \
    {                                                                                              \
        const Mutation mutation = {#name, plan, from, to, rule, name##_draft};                     \
        check(&mutation);                                                                          \
    }                                                                                              \
    static void name##_draft(RpPlanDraft *draft)

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

BREAKS(forget_activation_download, ASYNC, RP_TASK_ACTIVATION_DOWNLOAD, RP_TASK_ACTIVATION_UPLOAD,
       RP_RULE_ACTIONS)
{
    drop_edges(draft, RP_TASK_ACTIVATION_DOWNLOAD, RP_TASK_ACTIVATION_UPLOAD, 0);
}

BREAKS(forget_parameters, ASYNC, RP_TASK_PARAMETER_UPLOAD, RP_TASK_FORWARD, RP_RULE_TRANSFERS)
{
    drop_edges(draft, RP_TASK_PARAMETER_UPLOAD, RP_TASK_FORWARD, 0);
}

BREAKS(expand_too_early, PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_PARAMETER_UPLOAD, RP_TASK_EXPAND,
       RP_RULE_TRANSFERS)
{
    drop_edges(draft, RP_TASK_PARAMETER_UPLOAD, RP_TASK_EXPAND, 0);
}

BREAKS(upload_over_packed, PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND,
       RP_TASK_PARAMETER_UPLOAD, RP_RULE_BUFFERS)
{
    drop_edges(draft, RP_TASK_EXPAND, RP_TASK_PARAMETER_UPLOAD, 0);
}

BREAKS(forget_to_expand, PACKED("roundpipe", 2, 2, 2, 0), RP_N_TASK_KINDS, RP_TASK_FORWARD,
       RP_RULE_TRANSFERS)
{
    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0))->dropped = TRUE;
}

BREAKS(expand_twice, PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND, RP_TASK_EXPAND,
       RP_RULE_TRANSFERS)
{
    (void)rp_plan_draft_duplicate(draft, rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0));
}

BREAKS(expand_behind_the_action, PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND, RP_TASK_FORWARD,
       RP_RULE_TRANSFERS)
{
    rp_plan_draft_move_behind(draft, rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0),
                              rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0));
}

BREAKS(expand_into_what_is_packed, PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_EXPAND, RP_TASK_FORWARD,
       RP_RULE_TRANSFERS)
{
    const guint expand = rp_plan_draft_find(draft, RP_TASK_EXPAND, 0, 0);

    rp_plan_draft_access(draft, expand, 1)->buffer = rp_plan_draft_access(draft, expand, 0)->buffer;
}

BREAKS(upload_past_the_packed, PACKED("roundpipe", 2, 2, 2, 0), RP_TASK_PARAMETER_UPLOAD,
       RP_TASK_EXPAND, RP_RULE_TRANSFERS)
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

BREAKS(exchange_what_two_layers_save, SAVED, RP_TASK_FORWARD, RP_TASK_SAVED_DOWNLOAD,
       RP_RULE_ACTIONS)
{
    exchange_saved(draft, RP_TASK_FORWARD);
}

BREAKS(exchange_what_two_layers_saved, SAVED, RP_TASK_SAVED_UPLOAD, RP_TASK_BACKWARD,
       RP_RULE_ACTIONS)
{
    exchange_saved(draft, RP_TASK_BACKWARD);
}

BREAKS(forget_what_is_saved, SAVED, RP_TASK_FORWARD, RP_TASK_BACKWARD, RP_RULE_ACTIONS)
{
    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_SAVED_DOWNLOAD, 0, 0))->dropped =
        TRUE;
}

BREAKS(bring_back_over_what_is_leaving, SAVED, RP_TASK_SAVED_DOWNLOAD, RP_TASK_SAVED_UPLOAD,
       RP_RULE_BUFFERS)
{
    drop_edges(draft, RP_TASK_SAVED_DOWNLOAD, RP_TASK_SAVED_UPLOAD, 0);
}

BREAKS(recompute_before_it_is_back, SAVED, RP_N_TASK_KINDS, RP_TASK_BACKWARD, RP_RULE_ACTIONS)
{
    drop_edges(draft, RP_TASK_SAVED_UPLOAD, RP_TASK_BACKWARD, 0);
}

BREAKS(save_over_what_is_leaving, SAVED, RP_N_TASK_KINDS, RP_TASK_FORWARD, RP_RULE_BUFFERS)
{
    drop_edges(draft, RP_TASK_SAVED_DOWNLOAD, RP_TASK_FORWARD, 0);
}

BREAKS(save_in_part, SAVED, RP_N_TASK_KINDS, RP_TASK_SAVED_DOWNLOAD, RP_RULE_OPERANDS)
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

BREAKS(forget_what_stays, RESIDENT(FALSE), RP_N_TASK_KINDS, RP_TASK_FORWARD, RP_RULE_TRANSFERS)
{
    rp_plan_draft_task(draft, first_resident(draft))->dropped = TRUE;
}

BREAKS(packed_weights_that_stay_and_never_came, RESIDENT(TRUE), RP_N_TASK_KINDS, RP_TASK_EXPAND,
       RP_RULE_TRANSFERS)
{
    forget_what_stays_draft(draft);
}

BREAKS(upload_twice_what_stays, RESIDENT(FALSE), RP_TASK_RESIDENT_UPLOAD, RP_TASK_RESIDENT_UPLOAD,
       RP_RULE_TRANSFERS)
{
    (void)rp_plan_draft_duplicate(draft, first_resident(draft));
}

BREAKS(upload_behind_the_action_what_stays, RESIDENT(FALSE), RP_N_TASK_KINDS, RP_TASK_FORWARD,
       RP_RULE_TRANSFERS)
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

BREAKS(lay_what_stays_into_a_slot, RESIDENT(FALSE), RP_N_TASK_KINDS, RP_N_TASK_KINDS,
       RP_RULE_BUFFERS)
{
    const guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 1, 0);
    const guint at =
        rp_plan_draft_find_access(draft, forward, RP_ACCESS_WRITE, RP_BUFFER_WORKSPACE, FALSE);

    g_array_index(draft->buffers, RpBuffer, *place_of_first_resident(draft)).offset =
        g_array_index(draft->buffers, RpBuffer, rp_plan_draft_access(draft, forward, at)->buffer)
            .offset;
}

BREAKS(forget_the_place_of_what_stays, RESIDENT(FALSE), RP_N_TASK_KINDS, RP_TASK_RESIDENT_UPLOAD,
       RP_RULE_TRANSFERS)
{
    *place_of_first_resident(draft) = RP_NONE;
}

BREAKS(train_what_stays, RESIDENT(FALSE), RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TABLES)
{
    const guint layer = rp_plan_draft_task(draft, first_resident(draft))->task.layer;

    for (guint i = 0; i < draft->tasks->len; i++) {
        RpTask *task = &rp_plan_draft_task(draft, i)->task;

        if (task->kind == RP_TASK_RESIDENT_UPLOAD && task->layer == layer)
            task->bytes += 512;
    }
    row(draft, layer)->resident_bytes += 512;
}

BREAKS(save_in_the_fused_stage, SAVED, RP_TASK_FUSED, RP_N_TASK_KINDS, RP_RULE_ACTIONS)
{
    row(draft, draft->n_layers - 2)->saved_bytes = 512;
}

BREAKS(forget_last_reader, FULL("roundpipe", 2, 2, 4, 0, TRUE, FALSE), RP_TASK_FORWARD,
       RP_TASK_ACTIVATION_UPLOAD, RP_RULE_BUFFERS)
{
    drop_edges(draft, RP_TASK_FORWARD, RP_TASK_ACTIVATION_UPLOAD, 0);
}

BREAKS(forget_weight_integrity, FULL("roundpipe", 2, 2, 2, 0, TRUE, TRUE), RP_TASK_PARAMETER_UPLOAD,
       RP_TASK_PARAMETER_COPY, RP_RULE_WEIGHT_INTEGRITY)
{
    drop_edges(draft, RP_TASK_PARAMETER_UPLOAD, RP_TASK_PARAMETER_COPY, 1);
}

BREAKS(forget_torn_weights, FULL("roundpipe", 2, 2, 2, 0, TRUE, TRUE), RP_TASK_PARAMETER_COPY,
       RP_TASK_PARAMETER_UPLOAD, RP_RULE_TORN_WEIGHTS)
{
    drop_edges(draft, RP_TASK_PARAMETER_COPY, RP_TASK_PARAMETER_UPLOAD, 2);
}

BREAKS(forget_gradient_integrity, ASYNC, RP_TASK_OPTIMIZER_STEP, RP_TASK_GRADIENT_DOWNLOAD,
       RP_RULE_GRADIENT_INTEGRITY)
{
    drop_edges(draft, RP_TASK_OPTIMIZER_STEP, RP_TASK_GRADIENT_DOWNLOAD, 1);
}

BREAKS(forget_sum, FULL("roundpipe", 2, 2, 4, 2, TRUE, FALSE), RP_TASK_GRADIENT_DOWNLOAD,
       RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS)
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

BREAKS(leave_first_round_out, FUSED(4), RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_TRANSFERS)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);

    g_array_remove_index(accesses, 0);
    add_to_sum(accesses);
}

/* The buffer then still holds the sum of the iteration before. */
BREAKS(begin_with_what_is_there, FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE,
       RP_RULE_TRANSFERS)
{
    add_to_sum(accesses_of_sum(draft, 4, NULL));
}

/* A later sum: earlier terms are lost. */
BREAKS(begin_again, FULL("roundpipe", 2, 2, 4, 2, TRUE, FALSE), RP_N_TASK_KINDS,
       RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS)
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

BREAKS(leave_middle_round_out, FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE,
       RP_RULE_TRANSFERS)
{
    g_array_remove_index(accesses_of_sum(draft, 4, NULL), 1);
}

BREAKS(add_no_round, FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS)
{
    g_array_remove_range(accesses_of_sum(draft, 4, NULL), 0, 4);
}

BREAKS(read_a_round_twice, FUSED(4), RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_GRADIENT_ACCUMULATE,
       RP_RULE_TRANSFERS)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);

    g_array_index(accesses, RpAccess, 1).buffer = g_array_index(accesses, RpAccess, 2).buffer;
}

BREAKS(add_a_round_twice, FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);
    const RpAccess again = g_array_index(accesses, RpAccess, 2);

    g_array_insert_val(accesses, 3, again);
}

BREAKS(add_rounds_out_of_order, FUSED(4), RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_GRADIENT_ACCUMULATE,
       RP_RULE_TRANSFERS)
{
    GArray *accesses = accesses_of_sum(draft, 4, NULL);
    const RpAccess first = g_array_index(accesses, RpAccess, 0);

    g_array_index(accesses, RpAccess, 0) = g_array_index(accesses, RpAccess, 1);
    g_array_index(accesses, RpAccess, 1) = first;
}

BREAKS(add_what_is_no_staging, FUSED(4), RP_N_TASK_KINDS, RP_TASK_GRADIENT_ACCUMULATE,
       RP_RULE_TRANSFERS)
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
BREAKS(add_rounds_of_another_stage, FULL("roundpipe", 8, 1, 24, 8, FALSE, FALSE),
       RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS)
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
BREAKS(sum_a_round_in_two_tasks, FUSED(4), RP_TASK_GRADIENT_ACCUMULATE, RP_TASK_GRADIENT_ACCUMULATE,
       RP_RULE_TRANSFERS)
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

/* By which the first action of @kind that has the mode @from adds to its slot's sum. */
static void
change_mode_of_sum(RpPlanDraft *draft, RpTaskKind kind, guint16 from, guint16 to)
{
    for (guint nth = 0;; nth++) {
        const guint index = rp_plan_draft_find(draft, kind, 0, nth);

        assert_int_not_equal(index, RP_NONE);
        for (guint i = 0; i < rp_plan_draft_task(draft, index)->accesses->len; i++) {
            RpAccess *access = rp_plan_draft_access(draft, index, i);

            if (access->role != RP_ROLE_SUM || access->mode != from)
                continue;
            access->mode = to;
            return;
        }
    }
}

BREAKS(overwrite_the_sum_of_a_slot, ASYNC, RP_N_TASK_KINDS, RP_TASK_BACKWARD, RP_RULE_TRANSFERS)
{
    change_mode_of_sum(draft, RP_TASK_BACKWARD, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ACCESS_WRITE);
}

BREAKS(begin_a_sum_with_what_is_there, ASYNC, RP_N_TASK_KINDS, RP_TASK_BACKWARD, RP_RULE_TRANSFERS)
{
    change_mode_of_sum(draft, RP_TASK_BACKWARD, RP_ACCESS_WRITE, RP_ACCESS_READ | RP_ACCESS_WRITE);
}

BREAKS(overwrite_the_sum_of_pieces, KEPT(1), RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_TRANSFERS)
{
    change_mode_of_sum(draft, RP_TASK_FUSED, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ACCESS_WRITE);
}

BREAKS(run_slices_layer_by_layer, KEPT(1), RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_ACTIONS)
{
    draft->tables.modes.slices = 2;
}

/* Its first stage runs forward alone. */
BREAKS(sum_what_has_no_gradients, FULL("roundpipe", 2, 2, 4, 2, TRUE, FALSE), RP_N_TASK_KINDS,
       RP_TASK_GRADIENT_ACCUMULATE, RP_RULE_TRANSFERS)
{
    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_GRADIENT_ACCUMULATE, 0, 0))
        ->task.stage = 0;
}

BREAKS(overwrite_kept_rounds, KEPT(4), RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_TRANSFERS)
{
    kept_access(draft, 2)->mode = RP_ACCESS_WRITE;
}

BREAKS(add_the_first_round_to_what_was_there, KEPT(4), RP_N_TASK_KINDS, RP_TASK_FUSED,
       RP_RULE_TRANSFERS)
{
    kept_access(draft, 0)->mode = RP_ACCESS_READ | RP_ACCESS_WRITE;
}

BREAKS(forget_kept_rounds, KEPT(4), RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_TRANSFERS)
{
    for (guint nth = 0;; nth++) {
        const guint index = rp_plan_draft_find(draft, RP_TASK_GRADIENT_DOWNLOAD, 1, nth);

        if (index == RP_NONE)
            return;
        rp_plan_draft_task(draft, index)->dropped = TRUE;
    }
}

/* The sum of the rounds before then reaches the host twice. */
BREAKS(send_a_kept_round, KEPT(4), RP_TASK_FUSED, RP_TASK_GRADIENT_DOWNLOAD, RP_RULE_TRANSFERS)
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

BREAKS(call_rounds_one, KEPT(4), RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS)
{
    draft->tables.modes.gradients = RP_GRADIENTS_ONE_ROUND;
}

BREAKS(rounds_that_leave_called_one, FUSED(4), RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS)
{
    call_rounds_one_draft(draft);
}

BREAKS(step_early, ASYNC, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_OPTIMIZER_ORDER)
{
    draft->tables.modes.step = RP_STEP_EARLY;
}

BREAKS(step_at_once, BLOCKING, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_OPTIMIZER_ORDER)
{
    draft->tables.modes.step = RP_STEP_AT_ONCE;
}

/* A backward stage's last round is added to those of the fused stage, on another device. */
BREAKS(add_to_rounds_of_another_stage, KEPT_APART(3), RP_N_TASK_KINDS, RP_TASK_BACKWARD,
       RP_RULE_ARENA)
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

BREAKS(forget_gradients, ASYNC, RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_OPTIMIZER_STEP,
       RP_RULE_INCOMPLETE_GRADIENTS)
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

BREAKS(step_before_copy, FULL("roundpipe", 2, 2, 2, 0, TRUE, TRUE), RP_TASK_PARAMETER_COPY,
       RP_TASK_OPTIMIZER_STEP, RP_RULE_OPTIMIZER_ORDER)
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
BREAKS(read_fresh_weights, ASYNC, RP_TASK_OPTIMIZER_STEP, RP_TASK_PARAMETER_UPLOAD,
       RP_RULE_STALENESS)
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
BREAKS(read_stale_weights, ASYNC, RP_N_TASK_KINDS, RP_TASK_PARAMETER_UPLOAD, RP_RULE_STALENESS)
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

BREAKS(overlap_parameters, ASYNC, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_BUFFERS)
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

BREAKS(leave_the_arena, ASYNC, RP_N_TASK_KINDS, RP_TASK_FORWARD, RP_RULE_ARENA)
{
    guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);

    rp_plan_draft_access(draft, forward, 0)->buffer = draft->buffers->len;
}

BREAKS(shrink_segment, ASYNC, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS)
{
    rp_plan_draft_stage(draft, 0)->parameters.segments[0].bytes -= 512;
}

BREAKS(late_stash, ASYNC, RP_TASK_STASH_UPLOAD, RP_TASK_BACKWARD, RP_RULE_ACTIONS)
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

BREAKS(backward_before_forward, COMPUTE("1f1b", 2, 2, 2), RP_TASK_FORWARD, RP_TASK_BACKWARD,
       RP_RULE_ACTIONS)
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

BREAKS(wait_for_the_future, COMPUTE("1f1b", 2, 2, 4), RP_TASK_BACKWARD, RP_TASK_FORWARD,
       RP_RULE_DEADLOCK)
{
    RpDependency edge = {.task = rp_plan_draft_find(draft, RP_TASK_BACKWARD, 0, 3)};
    guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);

    g_array_append_val(rp_plan_draft_task(draft, forward)->dependencies, edge);
}

/* Nothing but its lane orders it. */
BREAKS(norm_waits_for_nothing, ASYNC, RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_NORM,
       RP_RULE_INCOMPLETE_GRADIENTS)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    g_array_set_size(rp_plan_draft_task(draft, norm)->dependencies, 0);
}

BREAKS(drop_norm, ASYNC, RP_N_TASK_KINDS, RP_TASK_OPTIMIZER_STEP, RP_RULE_DECISION)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    rp_plan_draft_task(draft, norm)->dropped = TRUE;
}

BREAKS(norm_leaves_a_layer_out, ASYNC, RP_N_TASK_KINDS, RP_TASK_NORM, RP_RULE_DECISION)
{
    guint norm = rp_plan_draft_find(draft, RP_TASK_NORM, 0, 0);

    g_array_remove_index(rp_plan_draft_task(draft, norm)->accesses, 1);
}

/* The norm is a barrier, as it was: it orders all, and nobody reads its result. */
BREAKS(step_without_decision, ASYNC, RP_N_TASK_KINDS, RP_TASK_OPTIMIZER_STEP, RP_RULE_DECISION)
{
    guint step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, 0, 1);
    GArray *accesses = rp_plan_draft_task(draft, step)->accesses;

    for (guint i = accesses->len; i-- > 0;)
        if (g_array_index(accesses, RpAccess, i).role == RP_ROLE_DECISION)
            g_array_remove_index(accesses, i);
}

/* The head of iteration 2 reads the decision on 1, of which it may be too early to hear. */
BREAKS(head_reads_another_decision, ASYNC, RP_N_TASK_KINDS, RP_TASK_FUSED, RP_RULE_DECISION)
{
    guint head = rp_plan_draft_find(draft, RP_TASK_FUSED, 2, 0);
    GArray *accesses = rp_plan_draft_task(draft, head)->accesses;

    for (guint i = 0; i < accesses->len; i++)
        if (g_array_index(accesses, RpAccess, i).role == RP_ROLE_DECISION)
            g_array_index(accesses, RpAccess, i).buffer = draft->tables.decisions[1];
}

BREAKS(exchange_input_and_gradient, ASYNC, RP_TASK_ACTGRAD_UPLOAD, RP_TASK_BACKWARD,
       RP_RULE_ACTIONS)
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

BREAKS(cut_device_buffers, ASYNC, RP_N_TASK_KINDS, RP_TASK_PARAMETER_UPLOAD, RP_RULE_OPERANDS)
{
    for (guint b = 0; b < draft->buffers->len; b++) {
        RpBuffer *buffer = &g_array_index(draft->buffers, RpBuffer, b);

        if (buffer->arena < draft->gpus && b != draft->tables.constants[buffer->arena])
            buffer->bytes = MIN(buffer->bytes, RP_BUFFER_ALIGNMENT);
    }
}

BREAKS(exchange_weights, ASYNC, RP_N_TASK_KINDS, RP_TASK_PARAMETER_UPLOAD, RP_RULE_OPERANDS)
{
    const guint32 first = row(draft, 0)->weights[0];

    row(draft, 0)->weights[0] = row(draft, 3)->weights[0];
    row(draft, 3)->weights[0] = first;
}

BREAKS(exchange_gradients, ASYNC, RP_N_TASK_KINDS, RP_TASK_GRADIENT_DOWNLOAD, RP_RULE_OPERANDS)
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

BREAKS(step_without_a_round, APART, RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_OPTIMIZER_STEP,
       RP_RULE_INCOMPLETE_GRADIENTS)
{
    leave_a_round_out(draft, RP_TASK_OPTIMIZER_STEP);
}

BREAKS(norm_without_a_round, APART, RP_N_TASK_KINDS, RP_TASK_NORM, RP_RULE_DECISION)
{
    leave_a_round_out(draft, RP_TASK_NORM);
}

/* The second round of layer 0 where its first one is. */
BREAKS(send_home_over_another_round, APART, RP_TASK_GRADIENT_DOWNLOAD, RP_TASK_OPTIMIZER_STEP,
       RP_RULE_BUFFERS)
{
    RpAccess *access = NULL;
    guint at;

    for (guint nth = 0; access == NULL; nth++)
        access = access_of_round(
            draft, rp_plan_draft_find(draft, RP_TASK_GRADIENT_DOWNLOAD, 1, nth), 0, &at);
    access->buffer = row(draft, 0)->gradients[0];
}

/* Each still has one, and all are read. */
BREAKS(exchange_rounds, APART, RP_N_TASK_KINDS, RP_TASK_GRADIENT_DOWNLOAD, RP_RULE_OPERANDS)
{
    const guint32 first = row(draft, 0)->gradients[0];

    row(draft, 0)->gradients[0] = row(draft, 0)->gradients[1];
    row(draft, 0)->gradients[1] = first;
}

BREAKS(keep_a_sum_apart, APART, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TRANSFERS)
{
    draft->tables.modes.gradients = RP_GRADIENTS_SUMMED;
}

BREAKS(share_optimizer_state, ASYNC, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TABLES)
{
    row(draft, 0)->optimizer = row(draft, 3)->optimizer;
}

BREAKS(lay_constants_under_a_buffer, ASYNC, RP_N_TASK_KINDS, RP_N_TASK_KINDS, RP_RULE_TABLES)
{
    const RpBuffer *other = &g_array_index(
        draft->buffers, RpBuffer,
        rp_plan_draft_access(draft, rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0), 0)->buffer);

    g_array_index(draft->buffers, RpBuffer, draft->tables.constants[0]).offset = other->offset;
}

BREAKS(use_constants_as_workspace, ASYNC, RP_N_TASK_KINDS, RP_TASK_FORWARD, RP_RULE_OPERANDS)
{
    guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 0);
    guint at =
        rp_plan_draft_find_access(draft, forward, RP_ACCESS_WRITE, RP_BUFFER_WORKSPACE, FALSE);

    rp_plan_draft_access(draft, forward, at)->buffer =
        draft->tables
            .constants[rp_plan_draft_task(draft, forward)->task.lane / RP_LANES_PER_DEVICE];
}

BREAKS(transfer_fewer_bytes, ASYNC, RP_N_TASK_KINDS, RP_TASK_ACTGRAD_DOWNLOAD, RP_RULE_OPERANDS)
{
    for (guint i = 0; i < draft->tasks->len; i++) {
        RpTask *task = &rp_plan_draft_task(draft, i)->task;

        if (task->layer == 2 &&
            (task->kind == RP_TASK_ACTGRAD_DOWNLOAD || task->kind == RP_TASK_ACTGRAD_UPLOAD))
            task->bytes -= 512;
    }
}

/* While a plan grows, some sums of its last iteration are yet to come, but none before another. */
RP_TEST(names_a_sum_that_leaves_a_round_out_while_the_plan_grows)
{
    const RpTestPlan test = FULL("roundpipe", 2, 0, 20, 2, TRUE, FALSE);
    g_autoptr(RpProfile) profile = rp_test_profile(rp_test_n_layers(&test), test.token_bytes);
    g_autoptr(RpPlanner) planner = rp_test_planner(&test, profile);
    const guint32 last = test.iterations - 1;
    RpViolation violation;

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
