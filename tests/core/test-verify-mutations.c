/*
 * The verifier is proved by breaking plans: each test takes plans that it accepts, changes one
 * thing, and gives the verifier's right answer.
 */
#include "tests/rp-test.h"

#include "tests/core/plan-mutate.h"

/* One task of how many is changed, of each plan from another one on. */
#define EVERY RP_TEST_EVERY(3, 7)

/* Small plans of every kind: each lane, each protocol, rounds, split and overlapped backward. */
static const RpTestPlan plans[] = {
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_COMPUTE, TRUE, TRUE, 0, 0, 0, 512, 3},
    {"roundpipe", 2, 2, 2, 0, RP_FIDELITY_COMPUTE, FALSE, TRUE, 0, 0, 0, 512, 2},
    {"1f1b", 3, 3, 4, 0, RP_FIDELITY_COMPUTE, FALSE, TRUE, 0, 0, 0, 512, 2},
    {"zb-v", 2, 4, 3, 0, RP_FIDELITY_COMPUTE, FALSE, FALSE, 0, 0, 0, 512, 2},
    {"roundpipe", 2, 2, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, FALSE, FALSE, TRUE, FALSE, 512, 3},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, TRUE, FALSE, TRUE, 512, 3},
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, FALSE, FALSE, FALSE, 512, 2},
    {"roundpipe", 1, 1, 2, 1, RP_FIDELITY_FULL, FALSE, TRUE, TRUE, TRUE, FALSE, 512, 2},
    /* rounds 1 and 2 are summed by one task */
    {"roundpipe", 3, 0, 9, 3, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 2},
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, FALSE, FALSE, FALSE, 512, 2},
    {"looped-bfs", 2, 4, 2, 0, RP_FIDELITY_FULL, TRUE, FALSE, FALSE, TRUE, FALSE, 512, 3},
    {"mobius", 2, 4, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, FALSE, FALSE, FALSE, 512, 2},
    {"zb-h1", 2, 2, 3, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3},
    {"zb-v", 2, 4, 3, 0, RP_FIDELITY_FULL, FALSE, FALSE, FALSE, FALSE, FALSE, 512, 2},
    {"dualpipe-v", 2, 4, 4, 0, RP_FIDELITY_FULL, FALSE, FALSE, FALSE, FALSE, FALSE, 512, 2},
    /* layers that step one by one */
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3, 1, FALSE,
     FALSE, TRUE},
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, TRUE, FALSE, 512, 3, 1, TRUE,
     FALSE, TRUE},
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, FALSE, FALSE, FALSE, 512, 2, 1, FALSE,
     FALSE, TRUE},
    /* rounds that the norm and the steps add */
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 3, 1, TRUE,
     FALSE, FALSE, TRUE},
    {"roundpipe", 3, 0, 9, 3, RP_FIDELITY_FULL, FALSE, TRUE, TRUE, FALSE, FALSE, 512, 2, 1, FALSE,
     FALSE, FALSE, TRUE},
    /* weights that are written before the norm is known */
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .tied = RP_TEST_TIED, .early_steps = TRUE},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 3,
     .apart = TRUE, .early_steps = TRUE},
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .early_steps = TRUE},
    /* tied head: the matrix alone is trained, or all but the matrix */
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 3,
     .tied = RP_TEST_TIED_ALONE},
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .tied = RP_TEST_TIED_FROZEN, .early_steps = TRUE},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .apart = TRUE, .tied = RP_TEST_TIED_ALONE, .servers = 2},
    /* pieces of actions, layer by layer */
    {"roundpipe", 1, 0, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .tied = RP_TEST_TIED, .early_steps = TRUE},
    {"roundpipe", 1, 0, 1, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2},
    {"roundpipe", 2, 0, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .apart = TRUE, .at_once = TRUE},
    {"roundpipe", 3, 0, 9, 3, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2},
    /* packed weights */
    {"roundpipe", 3, 1, 3, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 3,
     .packed = TRUE},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .lean = TRUE, .token_bytes = 512,
     .iterations = 2, .tied = RP_TEST_TIED, .packed = TRUE},
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .packed = TRUE},
    {"mobius", 2, 4, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 2,
     .packed = TRUE},
    {"dualpipe-v", 2, 4, 4, 0, RP_FIDELITY_FULL, FALSE, FALSE, .token_bytes = 512, .iterations = 2,
     .packed = TRUE},
    /* frozen weights that stay */
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .resident = G_MAXUINT64},
    {"dualpipe-v", 2, 4, 4, 0, RP_FIDELITY_FULL, FALSE, FALSE, .token_bytes = 512, .iterations = 2,
     .resident = G_MAXUINT64},
    {"roundpipe", 3, 1, 3, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 3,
     .resident = G_MAXUINT64},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .lean = TRUE, .token_bytes = 512,
     .iterations = 2, .tied = RP_TEST_TIED, .packed = TRUE, .resident = G_MAXUINT64},
    /* values that forwards keep on the device */
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .saved = RP_SAVED(ATTENTION)},
    {"zb-h1", 2, 2, 3, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 3,
     .saved = RP_SAVED(ATTENTION)},
    {"dualpipe-v", 2, 4, 4, 0, RP_FIDELITY_FULL, FALSE, FALSE, .token_bytes = 512, .iterations = 2,
     .saved = RP_SAVED(ATTENTION)},
    /* tensors that forwards save */
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 2,
     .saved = RP_SAVED(ATTENTION) | RP_SAVED(MLP)},
    {"roundpipe", 3, 2, 3, 0, RP_FIDELITY_FULL, FALSE, FALSE, .lean = TRUE, .token_bytes = 512,
     .iterations = 2, .saved = RP_SAVED(ATTENTION)},
    /* several servers: each protocol, copies with steps and late ones, rounds apart and summed */
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 3,
     .tied = RP_TEST_TIED, .servers = 3},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, .lean = TRUE, .token_bytes = 512,
     .iterations = 3, .servers = 2},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .apart = TRUE, .tied = RP_TEST_TIED, .servers = 2},
    {"roundpipe", 2, 0, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .lean = TRUE, .token_bytes = 512,
     .iterations = 2, .servers = 4},
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .at_once = TRUE, .servers = 2},
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, .lean = TRUE, .token_bytes = 512,
     .iterations = 3, .tied = RP_TEST_TIED, .at_once = TRUE, .servers = 2},
    /* layers with a buffer of gradients in common */
    {"roundpipe", 1, 4, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 2,
     .servers = 2},
};

static void
assert_refused(const RpPlanDraft *draft, const RpTestPlan *test, guint task, const char *change)
{
    RpViolation violation;

    if (rp_plan_draft_verify(draft, &violation)) {
        RpPlan *plan = rp_plan_draft_build(draft);
        char *name = rp_task_describe(plan, task);

        fail_msg("%s, %u gpus, %u stages, %u micro-batches: proved in spite of: %s: %s",
                 test->schedule, test->gpus, test->stages, test->micro_batches, change, name);
    }
    if (strchr(violation.message, '\n') != NULL || violation.rule == RP_RULE_NONE)
        fail_msg("not a violation: %s", violation.message);
    rp_violation_clear(&violation);
}

/* Whether the edge may be needed only after a recompute: a gradient for a backward, or under the
 * published convention the input of the fused stage. */
static gboolean
may_be_late(const RpPlanDraft *draft, guint from, guint to)
{
    RpTaskKind a = (RpTaskKind)rp_plan_draft_task(draft, from)->task.kind;
    RpTaskKind b = (RpTaskKind)rp_plan_draft_task(draft, to)->task.kind;
    gboolean backward = b == RP_TASK_BACKWARD || b == RP_TASK_INPUT_GRADIENT;

    if (draft->fidelity == RP_FIDELITY_FULL)
        return a == RP_TASK_ACTGRAD_UPLOAD && backward;
    if (draft->tables.modes.published && b == RP_TASK_FUSED)
        return a == RP_TASK_FORWARD;
    return backward && (a == RP_TASK_BACKWARD || a == RP_TASK_INPUT_GRADIENT || a == RP_TASK_FUSED);
}

/* The edges of a flush are needed together: whether some forward of @iteration no longer comes
 * after some backward of the one before. */
static gboolean
flush_is_broken(const RpPlanDraft *draft, const RpPlan *plan, guint32 iteration)
{
    gboolean broken = FALSE;

    for (guint i = 0; i < draft->tasks->len && !broken; i++) {
        const RpTask *maker = &rp_plan_draft_task(draft, i)->task;

        if (maker->iteration + 1 != iteration || maker->kind == RP_TASK_FORWARD ||
            !rp_task_is_compute(maker))
            continue;
        for (guint k = 0; k < draft->tasks->len && !broken; k++) {
            const RpTask *reader = &rp_plan_draft_task(draft, k)->task;

            broken = reader->iteration == iteration &&
                     (reader->kind == RP_TASK_FORWARD || reader->kind == RP_TASK_FUSED) &&
                     !rp_test_reaches(plan, i, k, FALSE, RP_NONE);
        }
    }
    return broken;
}

/* Whether correctness needs the edge, not just the pace of windows or of a blocking optimizer:
 * `compute` plans have no others, nor have full ones between tasks that share a buffer. */
static gboolean
is_needed(const RpPlanDraft *draft, guint from, guint to)
{
    return draft->fidelity == RP_FIDELITY_COMPUTE || rp_plan_draft_conflict(draft, from, to);
}

static gboolean
is_barrier(const RpPlanDraft *draft, guint index)
{
    return rp_plan_draft_task(draft, index)->task.kind == RP_TASK_BARRIER;
}

/* Every step needs the norm of all gradients: whether the first one no longer waits for @from,
 * whose id in @plan is @id. */
static gboolean
norm_is_broken(const RpPlanDraft *draft, const RpPlan *plan, guint from, RpTaskId id)
{
    const RpTask *gradient = &rp_plan_draft_task(draft, from)->task;
    guint step = rp_plan_draft_find(draft, RP_TASK_OPTIMIZER_STEP, gradient->iteration, 0);

    return (gradient->kind == RP_TASK_GRADIENT_DOWNLOAD ||
            gradient->kind == RP_TASK_GRADIENT_ACCUMULATE) &&
           step != RP_NONE && !rp_test_reaches(plan, id, step, FALSE, RP_NONE);
}

/* A barrier joins lanes, so that one edge may serve many: whether some two tasks that share a
 * buffer are no longer ordered. */
static gboolean
some_conflict_is_open(const RpPlanDraft *draft, const RpPlan *plan)
{
    for (guint i = 0; i < draft->tasks->len; i++)
        for (guint k = i + 1; k < draft->tasks->len; k++)
            if (rp_plan_draft_conflict(draft, i, k) &&
                !rp_test_reaches(plan, i, k, may_be_late(draft, i, k), RP_NONE))
                return TRUE;
    return FALSE;
}

static gboolean
barrier_edge_is_needed(const RpPlanDraft *draft, guint from, guint to)
{
    RpPlan *plan = rp_plan_draft_build(draft);
    gboolean needed;

    if (draft->fidelity == RP_FIDELITY_FULL)
        needed = norm_is_broken(draft, plan, from, from) || some_conflict_is_open(draft, plan);
    else
        needed = flush_is_broken(draft, plan, rp_plan_task(plan, to)->iteration);
    rp_plan_free(plan);
    return needed;
}

/* Rules that the loss of an edge may break, by the tasks at its two sides. */
static gboolean
rule_fits(RpTaskKind from, RpTaskKind to, RpRule rule)
{
    if (rule == RP_RULE_BUFFERS)
        return TRUE;
    if (from == RP_TASK_RESIDENT_UPLOAD)
        return rule == RP_RULE_TRANSFERS;
    if (to == RP_TASK_PARAMETER_UPLOAD)
        return rule == RP_RULE_TORN_WEIGHTS;
    if (from == RP_TASK_PARAMETER_UPLOAD)
        return rule == (to <= RP_TASK_OVERLAP || to == RP_TASK_EXPAND ? RP_RULE_TRANSFERS
                                                                      : RP_RULE_WEIGHT_INTEGRITY);
    if (to == RP_TASK_GRADIENT_DOWNLOAD && from == RP_TASK_REDUCE)
        return rule == RP_RULE_GRADIENT_INTEGRITY;
    if (from == RP_TASK_REDUCE)
        return rule == RP_RULE_INCOMPLETE_GRADIENTS || rule == RP_RULE_OPTIMIZER_ORDER;
    if (from == RP_TASK_AGREE || to == RP_TASK_AGREE)
        return rule == RP_RULE_DECISION;
    if (from == RP_TASK_GATHER || to == RP_TASK_GATHER)
        return rule == RP_RULE_OPTIMIZER_ORDER || rule == RP_RULE_TORN_WEIGHTS;
    if (from == RP_TASK_GRADIENT_DOWNLOAD || from == RP_TASK_GRADIENT_ACCUMULATE)
        return rule == (to == RP_TASK_GRADIENT_ACCUMULATE ? RP_RULE_TRANSFERS
                                                          : RP_RULE_INCOMPLETE_GRADIENTS);
    if (to == RP_TASK_GRADIENT_DOWNLOAD)
        return rule == (from <= RP_TASK_OVERLAP ? RP_RULE_TRANSFERS : RP_RULE_GRADIENT_INTEGRITY);
    return rule == RP_RULE_ACTIONS || rule == RP_RULE_STALENESS;
}

typedef struct {
    guint dropped;
    guint redundant;
    guint pace;
    guint exact; /* the violation names the two tasks of the edge */
} EdgeCount;

static void
drop_edge(RpPlanDraft *draft, const RpTestPlan *test, const RpPlan *plan, guint to, guint which,
          EdgeCount *count)
{
    GArray *edges = rp_plan_draft_task(draft, to)->dependencies;
    RpDependency edge = g_array_index(edges, RpDependency, which);
    guint from = (guint)edge.task;
    RpViolation violation;
    gboolean redundant = rp_test_reaches(plan, from, to, edge.phase > 0, which);
    gboolean proved, needed;

    g_array_remove_index(edges, which);
    proved = rp_plan_draft_verify(draft, &violation);
    needed = is_barrier(draft, from) || is_barrier(draft, to)
                 ? barrier_edge_is_needed(draft, from, to)
                 : is_needed(draft, from, to);
    g_array_insert_val(edges, which, edge);
    count->dropped++;
    count->redundant += redundant;
    if (redundant || !needed) {
        count->pace += !redundant;
        if (!proved)
            fail_msg("refused without an edge it does not need: %s", violation.message);
        return;
    }
    if (proved) {
        char *a = rp_task_describe(plan, from), *b = rp_task_describe(plan, to);

        fail_msg("%s, full=%d, async=%d: proved without the edge from %s to %s", test->schedule,
                 test->fidelity, test->async, a, b);
    }
    RpTaskKind from_kind = (RpTaskKind)rp_plan_draft_task(draft, from)->task.kind;
    RpTaskKind to_kind = (RpTaskKind)rp_plan_draft_task(draft, to)->task.kind;
    if (!rule_fits(from_kind, to_kind, violation.rule) || violation.second == RP_TASK_NONE)
        fail_msg("%s to %s: wrong rule: %s", rp_task_kind_name(from_kind),
                 rp_task_kind_name(to_kind), violation.message);
    count->exact += violation.first == from && violation.second == to;
    rp_violation_clear(&violation);
}

RP_TEST(every_edge_is_redundant_or_missed)
{
    EdgeCount count = {0};

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlan *plan = rp_test_plan(&plans[p]);
        RpPlanDraft *draft = rp_plan_draft_new(plan);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY)
            for (guint k = 0; k < rp_plan_draft_task(draft, i)->dependencies->len; k++)
                drop_edge(draft, &plans[p], plan, i, k, &count);
        rp_plan_draft_free(draft);
        rp_plan_free(plan);
    }
    print_message("%u edges dropped: %u redundant, %u for pace, %u named exactly\n", count.dropped,
                  count.redundant, count.pace, count.exact);
    assert_true(count.dropped > 2000 / EVERY);
    assert_true(count.exact * 2 > count.dropped - count.redundant - count.pace);
}

RP_TEST(an_edge_needed_at_the_start_may_not_come_late)
{
    guint late = 0, refused = 0;

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlan *plan = rp_test_plan(&plans[p]);
        RpPlanDraft *draft = rp_plan_draft_new(plan);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            for (guint k = 0; k < rp_plan_draft_task(draft, i)->dependencies->len; k++) {
                RpDependency *edge = rp_plan_draft_dependency(draft, i, k);
                guint from = (guint)edge->task;
                RpViolation violation;

                if (edge->phase > 0 || rp_test_reaches(plan, from, i, FALSE, k) ||
                    !is_needed(draft, from, i) || is_barrier(draft, from) || is_barrier(draft, i))
                    continue;
                edge->phase = 1;
                if (rp_plan_draft_verify(draft, &violation)) {
                    /* another value may hang on the same edge: then it is refused, rightly */
                    if (!may_be_late(draft, from, i))
                        fail_msg("%s: proved with a late edge from %s to %s", plans[p].schedule,
                                 rp_task_describe(plan, from), rp_task_describe(plan, i));
                    late++;
                } else {
                    refused++;
                    rp_violation_clear(&violation);
                }
                edge->phase = 0;
            }
        }
        rp_plan_draft_free(draft);
        rp_plan_free(plan);
    }
    assert_true(late > 20 / EVERY);
    assert_true(refused > 1000 / EVERY);
}

/* Barriers set the pace; their edges show why they are needed. */
static gboolean
is_work(const RpPlanDraft *draft, guint index)
{
    return rp_plan_draft_task(draft, index)->task.kind != RP_TASK_BARRIER;
}

RP_TEST(no_task_may_be_dropped)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            RpDraftTask *task = rp_plan_draft_task(draft, i);
            gboolean tokens = (task->task.kind == RP_TASK_ACTIVATION_UPLOAD ||
                               task->task.kind == RP_TASK_STASH_UPLOAD) &&
                              task->task.layer == 0;

            if (!is_work(draft, i) || (tokens && !rp_plan_draft_stage(draft, 0)->bound))
                continue;
            task->dropped = TRUE;
            assert_refused(draft, &plans[p], MIN(i, draft->tasks->len - 2), "a task dropped");
            task->dropped = FALSE;
        }
        rp_plan_draft_free(draft);
    }
}

RP_TEST(no_task_may_run_twice)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);
        guint n = draft->tasks->len;

        for (guint i = 0; i < n; i++) {
            guint copy;

            if (!is_work(draft, i))
                continue;
            copy = rp_plan_draft_duplicate(draft, i);
            assert_refused(draft, &plans[p], i, "a task run twice");
            rp_plan_draft_task(draft, copy)->dropped = TRUE;
        }
        rp_plan_draft_free(draft);
    }
}

RP_TEST(no_task_may_work_on_something_else)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            RpTask *task = &rp_plan_draft_task(draft, i)->task;
            RpTask before = *task;
            gboolean chunked =
                task->kind == RP_TASK_PARAMETER_UPLOAD || task->kind == RP_TASK_GRADIENT_DOWNLOAD;
            gboolean sums =
                task->kind == RP_TASK_GRADIENT_ACCUMULATE || task->kind == RP_TASK_EXPAND;
            gboolean carries =
                task->kind >= RP_TASK_ACTIVATION_DOWNLOAD && task->kind <= RP_TASK_SAVED_UPLOAD;

            if (!is_work(draft, i))
                continue;
            if (task->micro_batch != RP_NONE && draft->micro_batches > 1) {
                task->micro_batch = (task->micro_batch + 1) % draft->micro_batches;
                assert_refused(draft, &plans[p], i, "another micro-batch");
            }
            *task = before;
            if ((rp_task_is_compute(task) || chunked || sums || carries) &&
                draft->stages->len > 1) {
                task->stage = (task->stage + 1) % draft->stages->len;
                assert_refused(draft, &plans[p], i, "another stage");
            }
            *task = before;
            if ((chunked || sums) && draft->tables.modes.rounds > 1) {
                task->round = (guint16)((task->round + 1) % draft->tables.modes.rounds);
                assert_refused(draft, &plans[p], i, "another round");
            }
            *task = before;
            if (chunked) {
                guint n = task->kind == RP_TASK_PARAMETER_UPLOAD
                              ? rp_plan_draft_stage(draft, task->stage)->parameters.n_chunks
                              : rp_plan_draft_stage(draft, task->stage)->gradients.n_chunks;

                task->chunk = (task->chunk + 1) % n;
                if (n > 1)
                    assert_refused(draft, &plans[p], i, "another chunk");
            }
            *task = before;
            if (!rp_task_is_compute(task) && !chunked && task->layer != RP_NONE) {
                task->layer = (task->layer + 1) % draft->n_layers;
                assert_refused(draft, &plans[p], i, "another layer");
            }
            *task = before;
            if (draft->gpus > 1 && task->lane < draft->gpus * RP_LANES_PER_DEVICE) {
                task->lane =
                    (task->lane + RP_LANES_PER_DEVICE) % (draft->gpus * RP_LANES_PER_DEVICE);
                assert_refused(draft, &plans[p], i, "another gpu");
            }
            *task = before;
            task->iteration ^= 1;
            if (task->iteration < plans[p].iterations)
                assert_refused(draft, &plans[p], i, "another iteration");
            *task = before;
        }
        rp_plan_draft_free(draft);
    }
}

/* Scratch may lie anywhere where it disturbs nobody. */
static gboolean
carries_something(const RpPlanDraft *draft, guint index, const RpAccess *access)
{
    const RpBuffer *buffer = &g_array_index(draft->buffers, RpBuffer, access->buffer);

    return buffer->category != RP_BUFFER_WORKSPACE ||
           (rp_plan_draft_task(draft, index)->task.kind == RP_TASK_WEIGHT_GRADIENT &&
            access->mode == RP_ACCESS_READ);
}

RP_TEST(no_access_may_go_elsewhere)
{
    guint redirected = 0;

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            for (guint k = 0; k < rp_plan_draft_task(draft, i)->accesses->len; k++) {
                RpAccess *access = rp_plan_draft_access(draft, i, k);
                RpBuffer from = g_array_index(draft->buffers, RpBuffer, access->buffer);
                guint32 right = access->buffer;
                char change[80];

                if (!carries_something(draft, i, access))
                    continue;
                for (guint32 b = 0; b < draft->buffers->len; b++) {
                    const RpBuffer *to = &g_array_index(draft->buffers, RpBuffer, b);

                    if (b == right || to->arena != from.arena || to->category != from.category)
                        continue;
                    access->buffer = b;
                    g_snprintf(change, sizeof change, "mode %u of %s in buffer %u instead of %u",
                               access->mode,
                               rp_buffer_category_name((RpBufferCategory)from.category), b, right);
                    assert_refused(draft, &plans[p], i, change);
                    redirected++;
                    if (redirected % 3 == 0) /* not each of the many host buffers */
                        break;
                }
                access->buffer = right;
            }
        }
        rp_plan_draft_free(draft);
    }
    assert_true(redirected > 2000 / EVERY);
}

RP_TEST(no_access_may_be_forgotten)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            GArray *accesses = rp_plan_draft_task(draft, i)->accesses;

            for (guint k = 0; k < accesses->len; k++) {
                RpAccess access = g_array_index(accesses, RpAccess, k);
                guint32 category = g_array_index(draft->buffers, RpBuffer, access.buffer).category;
                char change[80];

                g_array_remove_index(accesses, k);
                g_snprintf(change, sizeof change, "an access to buffer %u (%s, mode %u) left out",
                           access.buffer, rp_buffer_category_name((RpBufferCategory)category),
                           access.mode);
                assert_refused(draft, &plans[p], i, change);
                g_array_insert_val(accesses, k, access);
            }
        }
        rp_plan_draft_free(draft);
    }
}

RP_TEST(no_access_may_have_another_role_or_mode)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            for (guint k = 0; k < rp_plan_draft_task(draft, i)->accesses->len; k++) {
                RpAccess *access = rp_plan_draft_access(draft, i, k);
                const RpAccess right = *access;
                char change[80];

                access->role = (guint16)((right.role + 1 + (i + k) % (RP_N_ACCESS_ROLES - 1)) %
                                         RP_N_ACCESS_ROLES);
                g_snprintf(change, sizeof change, "%s called %s",
                           rp_access_role_name((RpAccessRole)right.role),
                           rp_access_role_name((RpAccessRole)access->role));
                assert_refused(draft, &plans[p], i, change);
                *access = right;
                access->mode = (guint16)(1 + (right.mode + (i + k) % 2) % 3);
                g_snprintf(change, sizeof change, "mode %u instead of %u", access->mode,
                           right.mode);
                assert_refused(draft, &plans[p], i, change);
                *access = right;
            }
        }
        rp_plan_draft_free(draft);
    }
}

/* Any two accesses of one task that exchange their roles. */
RP_TEST(no_two_roles_may_be_exchanged)
{
    guint exchanged = 0;

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = p % EVERY; i < draft->tasks->len; i += EVERY) {
            const guint n = rp_plan_draft_task(draft, i)->accesses->len;

            for (guint k = 0; k + 1 < n; k++) {
                RpAccess *a = rp_plan_draft_access(draft, i, k);
                RpAccess *b = rp_plan_draft_access(draft, i, k + 1);
                const guint16 role = a->role;

                if (role == b->role)
                    continue;
                a->role = b->role;
                b->role = role;
                assert_refused(draft, &plans[p], i, "two roles exchanged");
                b->role = a->role;
                a->role = role;
                exchanged++;
            }
        }
        rp_plan_draft_free(draft);
    }
    assert_true(exchanged > 1000 / EVERY);
}

/* Token ids take no more. */
static gboolean
holds_only_tokens(const RpPlanDraft *draft, const RpTask *task)
{
    return (task->kind == RP_TASK_ACTIVATION_UPLOAD && task->layer == 0) ||
           (rp_task_is_compute(task) &&
            (rp_plan_draft_stage(draft, task->stage)->layers.first == 0 ||
             (task->kind == RP_TASK_OVERLAP &&
              rp_plan_draft_stage(draft, task->backward_stage)->layers.first == 0)));
}

/* Whether a task needs more than token ids take of the buffer. */
static gboolean
is_needed_whole(const RpPlanDraft *draft, guint32 buffer)
{
    for (guint i = 0; i < draft->tasks->len; i++)
        for (guint k = 0; k < rp_plan_draft_task(draft, i)->accesses->len; k++)
            if (rp_plan_draft_access(draft, i, k)->buffer == buffer &&
                (rp_plan_draft_access(draft, i, k)->role != RP_ROLE_INPUT ||
                 !holds_only_tokens(draft, &rp_plan_draft_task(draft, i)->task)))
                return TRUE;
    return FALSE;
}

RP_TEST(no_buffer_may_be_cut)
{
    guint cut = 0;

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint32 b = 0; b < draft->buffers->len; b++) {
            RpBuffer *buffer = &g_array_index(draft->buffers, RpBuffer, b);
            const guint64 bytes = buffer->bytes;
            char change[80];

            /* pools keep a spare one that small plans do not come to need */
            if (bytes <= RP_BUFFER_ALIGNMENT || !is_needed_whole(draft, b))
                continue;
            buffer->bytes = RP_BUFFER_ALIGNMENT;
            g_snprintf(change, sizeof change, "buffer %u (%s) of 512 bytes", b,
                       rp_buffer_category_name((RpBufferCategory)buffer->category));
            assert_refused(draft, &plans[p], 0, change);
            buffer->bytes = bytes;
            cut++;
        }
        rp_plan_draft_free(draft);
    }
    assert_true(cut > 300);
}

/* The buffers of a row, in the order of its fields. */
static guint32 *
place_of_row(RpPlanLayer *row, guint field)
{
    guint32 *const places[] = {&row->frozen,       &row->weights[0],   &row->weights[1],
                               &row->gradients[0], &row->gradients[1], &row->optimizer,
                               &row->copied,       &row->reduced};

    return field < G_N_ELEMENTS(places) ? places[field] : NULL;
}

RP_TEST(no_two_rows_of_the_layers_may_be_exchanged)
{
    guint exchanged = 0;

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint l = 0; l + 1 < draft->n_layers; l++) {
            RpPlanLayer *rows[2];

            /* every third layer is of the same size */
            rows[0] = &draft->tables.layers[l];
            rows[1] = &draft->tables.layers[(l + 3) % draft->n_layers];
            for (guint field = 0; place_of_row(rows[0], field) != NULL; field++) {
                guint32 *a = place_of_row(rows[0], field), *b = place_of_row(rows[1], field);
                const guint32 x = *a, y = *b;

                if (x == y)
                    continue;
                *a = y;
                *b = x;
                assert_refused(draft, &plans[p], 0, "two rows exchanged");
                *b = y;
                assert_refused(draft, &plans[p], 0, "one buffer in two rows");
                *a = x;
                exchanged++;
            }
        }
        rp_plan_draft_free(draft);
    }
    assert_true(exchanged > 100);
}

/* A buffer that is for good lies under no other, before or behind. */
RP_TEST(constants_decisions_and_layers_lie_under_nothing)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);
        guint32 fixed[3];

        if (draft->fidelity == RP_FIDELITY_COMPUTE) {
            rp_plan_draft_free(draft);
            continue;
        }
        fixed[0] = draft->tables.constants[0];
        fixed[1] = draft->tables.decisions[draft->tables.n_decisions - 1];
        fixed[2] = draft->tables.layers[1].optimizer;
        for (guint i = 0; i < G_N_ELEMENTS(fixed); i++) {
            RpBuffer *under = &g_array_index(draft->buffers, RpBuffer, fixed[i]);
            const RpBuffer right = *under;

            for (guint32 b = 0; b < draft->buffers->len; b++) {
                const RpBuffer *over = &g_array_index(draft->buffers, RpBuffer, b);

                if (b == fixed[i] || over->arena != right.arena)
                    continue;
                under->offset = over->offset;
                assert_refused(draft, &plans[p], 0, "a fixed buffer under another");
                under->offset = over->offset + over->bytes - RP_BUFFER_ALIGNMENT;
                assert_refused(draft, &plans[p], 0, "a fixed buffer under the end of another");
                *under = right;
            }
        }
        draft->tables.constants[0] = RP_NONE;
        assert_refused(draft, &plans[p], 0, "no constants");
        rp_plan_draft_free(draft);
    }
}

/* Two tasks that may access one buffer in either order: chunks of one upload or download. */
static gboolean
are_siblings(const RpPlanDraft *draft, guint a, guint b)
{
    const RpTask *x = &rp_plan_draft_task(draft, a)->task;
    const RpTask *y = &rp_plan_draft_task(draft, b)->task;

    return x->kind == y->kind && x->stage == y->stage && x->iteration == y->iteration &&
           x->round == y->round &&
           (x->kind == RP_TASK_PARAMETER_UPLOAD || x->kind == RP_TASK_GRADIENT_DOWNLOAD);
}

typedef enum { KEPT, TURNED, OPEN } Histories;

/* The effect of a swap on the order of accesses: none, some round is reversed, or some order is
 * undecided. */
static Histories
compare_histories(const RpPlanDraft *draft, const RpPlan *plan)
{
    guint8 *reach = rp_test_reach_matrix(plan);
    gsize n = (gsize)rp_plan_end_id(plan);
    Histories found = KEPT;

    for (gsize i = 0; i < n && found != OPEN; i++) {
        for (gsize k = i + 1; k < n && found != OPEN; k++) {
            guint a = g_array_index(draft->order, guint, i);
            guint b = g_array_index(draft->order, guint, k);
            guint8 late = may_be_late(draft, a, b) ? 3 : 1;

            if (!rp_plan_draft_conflict(draft, a, b))
                continue;
            if ((reach[i * n + k] & late) == 0)
                found = OPEN;
            else if (a > b && !are_siblings(draft, a, b))
                found = TURNED;
        }
    }
    g_free(reach);
    return found;
}

/* Neighbours in a lane change places. A change that the verifier then accepts must leave every
 * buffer's history as it was, or reverse only accesses that may be reversed: a sum's terms,
 * scratch. */
RP_TEST(a_lane_may_not_be_reordered_at_will)
{
    guint n_open = 0, n_turned = 0, n_kept = 0, n_proved = 0;

    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);

        for (guint i = 0; i < draft->tasks->len && draft->fidelity == RP_FIDELITY_FULL; i++) {
            guint next = i + 1;
            RpViolation violation;
            RpPlan *plan;
            gboolean proved, forward = FALSE;

            while (next < draft->tasks->len && rp_plan_draft_task(draft, next)->task.lane !=
                                                   rp_plan_draft_task(draft, i)->task.lane)
                next++;
            if (next == draft->tasks->len)
                continue;
            rp_plan_draft_swap(draft, i, next);
            plan = rp_plan_draft_build(draft);
            for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
                const RpTask *task = rp_plan_task(plan, id);

                for (guint k = 0; k < task->dependency_count; k++)
                    forward = forward || rp_plan_dependencies(plan, task)[k].task >= id;
            }
            proved = rp_verify_plan(plan, &violation);
            if (forward) {
                assert_int_equal(violation.rule, RP_RULE_DEADLOCK);
            } else {
                Histories histories = compare_histories(draft, plan);

                n_open += histories == OPEN;
                n_turned += histories == TURNED;
                n_kept += histories == KEPT;
                n_proved += proved;
                /* the norm waits for the last sum of its lane */
                if (histories == OPEN
                        ? proved
                        : histories == KEPT && !proved && !norm_is_broken(draft, plan, i, next))
                    fail_msg("%s: tasks %u and %u swapped: %s", plans[p].schedule, i, next,
                             proved ? "proved" : violation.message);
            }
            rp_violation_clear(&violation);
            rp_plan_free(plan);
            rp_plan_draft_swap(draft, i, next);
        }
        rp_plan_draft_free(draft);
    }
    print_message("swaps: %u histories open, %u turned, %u kept; %u proved\n", n_open, n_turned,
                  n_kept, n_proved);
}

RP_TEST(drafts_are_faithful)
{
    for (guint p = 0; p < G_N_ELEMENTS(plans); p++) {
        RpPlanDraft *draft = rp_test_draft(&plans[p]);
        RpViolation violation;

        assert_non_null(draft);
        if (!rp_plan_draft_verify(draft, &violation))
            fail_msg("plan %u (%s): %s", p, plans[p].schedule, violation.message);
        rp_plan_draft_free(draft);
    }
}
