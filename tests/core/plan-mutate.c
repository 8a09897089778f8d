#include "tests/core/plan-mutate.h"

#include <string.h>

static void
free_task(gpointer data)
{
    RpDraftTask *task = data;

    g_array_unref(task->dependencies);
    g_array_unref(task->accesses);
    g_free(task);
}

static RpChunks
copy_chunks(const RpChunks *chunks)
{
    RpChunks copy = {.n_chunks = chunks->n_chunks};

    if (chunks->n_chunks == 0)
        return copy;
    copy.first_segment = g_memdup2(chunks->first_segment, (chunks->n_chunks + 1) * sizeof(guint));
    copy.chunk_bytes = g_memdup2(chunks->chunk_bytes, chunks->n_chunks * sizeof(guint64));
    copy.segments =
        g_memdup2(chunks->segments, chunks->first_segment[chunks->n_chunks] * sizeof(RpSegment));
    return copy;
}

static RpPlanStage
copy_stage(const RpPlanStage *stage)
{
    RpPlanStage copy = *stage;

    copy.parameters = copy_chunks(&stage->parameters);
    copy.gradients = copy_chunks(&stage->gradients);
    copy.boundaries = g_memdup2(stage->boundaries, stage->n_boundaries * sizeof(guint));
    return copy;
}

static void
clear_stage(gpointer data)
{
    RpPlanStage *stage = data;

    rp_chunks_clear(&stage->parameters);
    rp_chunks_clear(&stage->gradients);
    g_free(stage->boundaries);
}

RpPlanDraft *
rp_plan_draft_new(RpPlan *plan)
{
    RpPlanDraft *draft = g_new0(RpPlanDraft, 1);

    g_assert(rp_plan_first_id(plan) == 0);
    draft->gpus = rp_plan_gpus(plan);
    draft->n_layers = rp_plan_n_layers(plan);
    draft->micro_batches = rp_plan_micro_batches(plan);
    draft->fidelity = rp_plan_fidelity(plan);
    draft->stages = g_array_new(FALSE, FALSE, sizeof(RpPlanStage));
    g_array_set_clear_func(draft->stages, clear_stage);
    draft->buffers = g_array_new(FALSE, FALSE, sizeof(RpBuffer));
    draft->tasks = g_ptr_array_new_with_free_func(free_task);
    draft->order = g_array_new(FALSE, FALSE, sizeof(guint));
    for (guint s = 0; s < rp_plan_n_stages(plan); s++) {
        RpPlanStage stage = copy_stage(rp_plan_stage(plan, s));

        g_array_append_val(draft->stages, stage);
    }
    draft->tables = *rp_plan_tables(plan);
    draft->tables.layers = g_memdup2(draft->tables.layers, draft->n_layers * sizeof(RpPlanLayer));
    draft->tables.constants = g_memdup2(draft->tables.constants, draft->gpus * sizeof(guint32));
    draft->tables.slot_layers = g_memdup2(
        draft->tables.slot_layers, (gsize)draft->gpus * draft->n_layers * sizeof(RpPlanSlotLayer));
    for (guint b = 0; b < rp_plan_n_buffers(plan); b++)
        g_array_append_vals(draft->buffers, rp_plan_buffer(plan, b), 1);
    for (guint i = 0; i < rp_plan_end_id(plan); i++) {
        RpDraftTask *task = g_new0(RpDraftTask, 1);

        task->task = *rp_plan_task(plan, i);
        task->dependencies = g_array_new(FALSE, FALSE, sizeof(RpDependency));
        task->accesses = g_array_new(FALSE, FALSE, sizeof(RpAccess));
        if (task->task.dependency_count > 0)
            g_array_append_vals(task->dependencies, rp_plan_dependencies(plan, &task->task),
                                task->task.dependency_count);
        if (task->task.access_count > 0)
            g_array_append_vals(task->accesses, rp_plan_accesses(plan, &task->task),
                                task->task.access_count);
        g_ptr_array_add(draft->tasks, task);
        g_array_append_val(draft->order, i);
    }
    return draft;
}

void
rp_plan_draft_free(RpPlanDraft *draft)
{
    if (draft == NULL)
        return;
    g_array_unref(draft->stages);
    g_array_unref(draft->buffers);
    g_free(draft->tables.layers);
    g_free(draft->tables.constants);
    g_free(draft->tables.slot_layers);
    g_ptr_array_unref(draft->tasks);
    g_array_unref(draft->order);
    g_free(draft);
}

RpDraftTask *
rp_plan_draft_task(const RpPlanDraft *draft, guint index)
{
    g_assert(index < draft->tasks->len);
    return g_ptr_array_index(draft->tasks, index);
}

RpPlanStage *
rp_plan_draft_stage(const RpPlanDraft *draft, guint stage)
{
    return &g_array_index(draft->stages, RpPlanStage, stage);
}

RpDependency *
rp_plan_draft_dependency(const RpPlanDraft *draft, guint index, guint which)
{
    return &g_array_index(rp_plan_draft_task(draft, index)->dependencies, RpDependency, which);
}

RpAccess *
rp_plan_draft_access(const RpPlanDraft *draft, guint index, guint which)
{
    return &g_array_index(rp_plan_draft_task(draft, index)->accesses, RpAccess, which);
}

static void
append_task(const RpPlanDraft *draft, RpPlan *plan, const RpDraftTask *task, const RpTaskId *ids)
{
    g_autoptr(GArray) dependencies = g_array_new(FALSE, FALSE, sizeof(RpDependency));

    for (guint k = 0; k < task->dependencies->len; k++) {
        RpDependency dependency = g_array_index(task->dependencies, RpDependency, k);

        if (dependency.task < draft->tasks->len) {
            if (rp_plan_draft_task(draft, (guint)dependency.task)->dropped)
                continue;
            dependency.task = ids[dependency.task];
        }
        g_array_append_val(dependencies, dependency);
    }
    rp_plan_append(plan, &task->task, (const RpDependency *)(const void *)dependencies->data,
                   dependencies->len, (const RpAccess *)(const void *)task->accesses->data,
                   task->accesses->len);
}

RpPlan *
rp_plan_draft_build(const RpPlanDraft *draft)
{
    RpPlan *plan = rp_plan_new(draft->gpus, draft->fidelity, draft->n_layers, draft->micro_batches);
    g_autofree RpTaskId *ids = g_new(RpTaskId, draft->tasks->len + 1);
    RpTaskId next = 0;

    RpPlanTables *tables = rp_plan_tables(plan);
    const RpPlanTables made = *tables;

    *tables = draft->tables;
    tables->layers = made.layers;
    tables->constants = made.constants;
    tables->slot_layers = made.slot_layers;
    memcpy(made.layers, draft->tables.layers, draft->n_layers * sizeof *made.layers);
    memcpy(made.constants, draft->tables.constants, draft->gpus * sizeof *made.constants);
    memcpy(made.slot_layers, draft->tables.slot_layers,
           (gsize)draft->gpus * draft->n_layers * sizeof *made.slot_layers);
    for (guint s = 0; s < draft->stages->len; s++) {
        RpPlanStage stage = copy_stage(rp_plan_draft_stage(draft, s));

        rp_plan_add_stage(plan, &stage);
    }
    for (guint b = 0; b < draft->buffers->len; b++)
        rp_plan_place_buffer(plan, &g_array_index(draft->buffers, RpBuffer, b));
    for (guint i = 0; i < draft->order->len; i++) {
        guint index = g_array_index(draft->order, guint, i);

        if (!rp_plan_draft_task(draft, index)->dropped)
            ids[index] = next++;
    }
    for (guint i = 0; i < draft->order->len; i++) {
        const RpDraftTask *task = rp_plan_draft_task(draft, g_array_index(draft->order, guint, i));

        if (!task->dropped)
            append_task(draft, plan, task, ids);
    }
    return plan;
}

gboolean
rp_plan_draft_verify(const RpPlanDraft *draft, RpViolation *violation)
{
    RpPlan *plan = rp_plan_draft_build(draft);
    gboolean proved = rp_verify_plan(plan, violation);

    rp_plan_free(plan);
    return proved;
}

static gboolean
overlap(const RpPlanDraft *draft, guint32 a, guint32 b)
{
    const RpBuffer *x = &g_array_index(draft->buffers, RpBuffer, a);
    const RpBuffer *y = &g_array_index(draft->buffers, RpBuffer, b);

    return x->arena == y->arena && x->offset < y->offset + y->bytes &&
           y->offset < x->offset + x->bytes;
}

gboolean
rp_plan_draft_conflict(const RpPlanDraft *draft, guint a, guint b)
{
    const GArray *x = rp_plan_draft_task(draft, a)->accesses;
    const GArray *y = rp_plan_draft_task(draft, b)->accesses;

    for (guint i = 0; i < x->len; i++)
        for (guint k = 0; k < y->len; k++)
            if (overlap(draft, g_array_index(x, RpAccess, i).buffer,
                        g_array_index(y, RpAccess, k).buffer) &&
                ((g_array_index(x, RpAccess, i).mode | g_array_index(y, RpAccess, k).mode) &
                 RP_ACCESS_WRITE) != 0)
                return TRUE;
    return FALSE;
}

static guint
place_of(const RpPlanDraft *draft, guint index)
{
    guint place = 0;

    while (g_array_index(draft->order, guint, place) != index)
        place++;
    return place;
}

void
rp_plan_draft_swap(RpPlanDraft *draft, guint a, guint b)
{
    guint at_a = place_of(draft, a), at_b = place_of(draft, b);

    g_array_index(draft->order, guint, at_a) = b;
    g_array_index(draft->order, guint, at_b) = a;
}

void
rp_plan_draft_move_behind(RpPlanDraft *draft, guint task, guint other)
{
    g_array_remove_index(draft->order, place_of(draft, task));
    g_array_insert_val(draft->order, place_of(draft, other) + 1, task);
}

guint
rp_plan_draft_duplicate(RpPlanDraft *draft, guint index)
{
    const RpDraftTask *from = rp_plan_draft_task(draft, index);
    RpDraftTask *copy = g_new0(RpDraftTask, 1);
    guint fresh = draft->tasks->len;

    copy->task = from->task;
    copy->dependencies = g_array_copy(from->dependencies);
    copy->accesses = g_array_copy(from->accesses);
    g_ptr_array_add(draft->tasks, copy);
    g_array_insert_val(draft->order, place_of(draft, index) + 1, fresh);
    return fresh;
}

guint
rp_plan_draft_find(const RpPlanDraft *draft, RpTaskKind kind, guint32 iteration, guint nth)
{
    for (guint i = 0; i < draft->tasks->len; i++) {
        const RpTask *task = &rp_plan_draft_task(draft, i)->task;

        if (task->kind == kind && task->iteration == iteration && nth-- == 0)
            return i;
    }
    return RP_NONE;
}

guint
rp_plan_draft_find_access(const RpPlanDraft *draft, guint index, guint32 mode,
                          RpBufferCategory category, gboolean host)
{
    const GArray *accesses = rp_plan_draft_task(draft, index)->accesses;

    for (guint i = 0; i < accesses->len; i++) {
        const RpAccess *access = &g_array_index(accesses, RpAccess, i);
        const RpBuffer *buffer = &g_array_index(draft->buffers, RpBuffer, access->buffer);

        if ((access->mode & mode) == mode && buffer->category == (guint32)category &&
            (buffer->arena == draft->gpus) == host)
            return i;
    }
    return RP_NONE;
}

RpProfile *
rp_test_profile(guint n_layers, guint64 token_bytes)
{
    RpProfile *profile = rp_profile_new(n_layers);

    profile->links.hop_ns = 10;
    profile->links.h2d_bytes_per_s = 1e9;
    profile->links.d2h_bytes_per_s = 1e9;
    profile->has_sizes = TRUE;
    profile->constant_bytes = 640;
    for (guint i = 0; i < n_layers; i++) {
        RpLayer *layer = &profile->layers[i];

        layer->kind = i == 0              ? RP_LAYER_EMBEDDING
                      : i + 1 == n_layers ? RP_LAYER_HEAD
                                          : RP_LAYER_BLOCK;
        layer->forward_ns = 100 + i;
        layer->backward_ns = 200 + i;
        layer->recompute_ns = layer->kind == RP_LAYER_BLOCK ? layer->forward_ns : 0;
        layer->weight_gradient_ns = 90;
        layer->parameter_bytes = 4096 + 1024 * (i % 3);
        layer->gradient_bytes = layer->parameter_bytes;
        layer->input_bytes = i == 0 ? token_bytes : 2048 + 512 * (i % 2);
        layer->output_bytes = 2048 + 512 * ((i + 1) % 2);
        layer->activation_bytes = 4096;
        layer->forward_workspace_bytes = 512;
        layer->backward_workspace_bytes = 1024;
    }
    return profile;
}

void
rp_test_tie(RpProfile *profile, RpTestTied tied)
{
    RpLayer *head = &profile->layers[profile->n_layers - 1];

    head->tied_bytes = profile->layers[0].parameter_bytes;
    head->parameter_bytes = head->tied_bytes + 1024;
    if (tied == RP_TEST_TIED_FROZEN)
        profile->layers[0].gradient_bytes = 0;
    head->tied_gradient_bytes = profile->layers[0].gradient_bytes;
    head->gradient_bytes = head->tied_gradient_bytes + (tied == RP_TEST_TIED_ALONE ? 0 : 1024);
}

void
rp_test_pack(RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        if (layer->kind != RP_LAYER_BLOCK)
            continue;
        layer->upload_bytes = layer->parameter_bytes;
        layer->parameter_bytes *= 3;
        layer->expand_ns = 40;
        layer->gradient_bytes = 1024;
    }
}

void
rp_test_freeze(RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        profile->layers[l].gradient_bytes = profile->layers[l].kind == RP_LAYER_BLOCK ? 1024 : 0;
        profile->layers[l].tied_gradient_bytes = 0;
    }
}

void
rp_test_save(RpProfile *profile)
{
    for (guint l = 1; l + 1 < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        if (l % 3 != 0)
            layer->saved[RP_SAVED_ATTENTION] = (RpSavedTensors){1024, 30};
        layer->saved[RP_SAVED_MLP] = (RpSavedTensors){l % 2 * 1024, 20};
    }
}

static void
split_layers(RpInterval *stages, guint n_stages, guint first, guint count)
{
    for (guint i = 0; i < n_stages; i++) {
        guint share = count / n_stages + (i < count % n_stages ? 1 : 0);

        stages[i] = (RpInterval){.first = first, .count = share};
        first += share;
    }
}

/* Dispatched: the head and the block before it are fused; backward has one stage more. */
static RpPartition *
make_partition(const RpTestPlan *test, const RpScheduleOps *schedule, guint n_layers)
{
    g_autofree RpInterval *forward = g_new(RpInterval, test->stages);
    g_autofree RpInterval *upwards = g_new(RpInterval, test->stages + 1);
    g_autofree RpInterval *backward = g_new(RpInterval, test->stages + 2);

    if (test->stages == 0) {
        backward[0] = (RpInterval){.first = 0, .count = n_layers};
        return rp_partition_new_dispatched(NULL, 0, backward, 1);
    }
    if (!schedule->dispatched) {
        split_layers(forward, test->stages, 0, n_layers);
        return rp_partition_new_bound(forward, test->stages);
    }
    split_layers(forward, test->stages, 0, n_layers - 2);
    split_layers(upwards, test->stages + 1, 0, n_layers - 2);
    backward[0] = (RpInterval){.first = n_layers - 2, .count = 2};
    for (guint i = 0; i <= test->stages; i++)
        backward[i + 1] = upwards[test->stages - i];
    return rp_partition_new_dispatched(forward, test->stages, backward, test->stages + 2);
}

guint
rp_test_n_layers(const RpTestPlan *test)
{
    return test->stages + (test->saved != 0 ? 5 : 3);
}

RpPlanner *
rp_test_planner(const RpTestPlan *test, const RpProfile *profile)
{
    const RpScheduleOps *schedule = rp_schedule_find(test->schedule, NULL);
    g_autoptr(RpPartition) partition = make_partition(test, schedule, profile->n_layers);
    RpPlanOptions options = {
        .schedule = schedule,
        .gpus = test->gpus,
        .micro_batches = test->micro_batches,
        .calls = test->calls,
        .first_iteration = test->resumed ? 1 : 0,
        .round = test->round,
        .step_at_once = test->at_once,
        .early_steps = test->early_steps ? RP_EARLY_ON : RP_EARLY_OFF,
        .forward_only = test->forward,
        .sum_rounds = !test->apart,
        .resident_limit = test->resident,
        .saved = {.groups = test->saved},
        .servers = test->servers,
        .async = test->async,
        .fidelity = test->fidelity,
        .recompute = test->early ? RP_RECOMPUTE_EARLY : RP_RECOMPUTE_GATED,
        .transfers = test->naive ? RP_TRANSFERS_NAIVE : RP_TRANSFERS_WINDOWS,
        .consistency = test->blocking ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
        .optimizer = test->lean ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED,
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, &options, &error);

    for (guint i = 0; i < test->iterations && planner != NULL; i++)
        if (!rp_planner_append_iteration(planner, &error))
            return NULL;
    return g_steal_pointer(&planner);
}

RpProfile *
rp_test_profile_of(const RpTestPlan *test)
{
    RpProfile *profile = rp_test_profile(rp_test_n_layers(test), test->token_bytes);

    if (test->tied != RP_TEST_UNTIED)
        rp_test_tie(profile, test->tied);
    if (test->packed)
        rp_test_pack(profile);
    if (test->resident > 0)
        rp_test_freeze(profile);
    if (test->saved != 0)
        rp_test_save(profile);
    return profile;
}

RpPlan *
rp_test_plan(const RpTestPlan *test)
{
    RpProfile *profile = rp_test_profile_of(test);
    RpPlanner *planner = rp_test_planner(test, profile);
    RpPlan *plan = NULL;

    if (planner != NULL) {
        rp_planner_finish(planner);
        plan = rp_planner_steal_plan(planner);
        rp_planner_free(planner);
    }
    rp_profile_free(profile);
    return plan;
}

RpPlanDraft *
rp_test_draft(const RpTestPlan *test)
{
    RpPlan *plan = rp_test_plan(test);
    RpPlanDraft *draft = plan != NULL ? rp_plan_draft_new(plan) : NULL;

    rp_plan_free(plan);
    return draft;
}

/* Task i has two points: its start, number 2i, and its end, number 2i + 1. */
typedef struct {
    const RpPlan *plan;
    guint8 *seen;
    GArray *stack; /* guint */
} Walk;

static void
push(Walk *walk, RpTaskId task, gboolean end)
{
    guint point = (guint)task * 2 + (end ? 1 : 0);

    if (walk->seen[point])
        return;
    walk->seen[point] = 1;
    g_array_append_val(walk->stack, point);
}

static RpTaskId
lane_predecessor(const RpPlan *plan, RpTaskId task)
{
    guint32 lane = rp_plan_task(plan, task)->lane;

    while (task-- > 0)
        if (rp_plan_task(plan, task)->lane == lane)
            return task;
    return RP_TASK_NONE;
}

static void
push_before(Walk *walk, RpTaskId id, gboolean end, guint without)
{
    const RpTask *task = rp_plan_task(walk->plan, id);
    const RpDependency *dependencies = rp_plan_dependencies(walk->plan, task);

    for (guint k = 0; k < task->dependency_count; k++)
        if (k != without && (dependencies[k].phase > 0) == end)
            push(walk, dependencies[k].task, TRUE);
    if (end) {
        push(walk, id, FALSE);
    } else {
        RpTaskId before = lane_predecessor(walk->plan, id);

        if (before != RP_TASK_NONE)
            push(walk, before, TRUE);
    }
}

gboolean
rp_test_reaches(const RpPlan *plan, RpTaskId task, RpTaskId other, gboolean late, guint without)
{
    gsize n = (gsize)rp_plan_end_id(plan) * 2;
    Walk walk = {.plan = plan, .seen = g_malloc0(n)};
    gboolean found;

    walk.stack = g_array_new(FALSE, FALSE, sizeof(guint));
    push(&walk, other, late);
    while (walk.stack->len > 0) {
        guint point = g_array_index(walk.stack, guint, walk.stack->len - 1);

        g_array_set_size(walk.stack, walk.stack->len - 1);
        push_before(&walk, point / 2, point % 2 == 1, point / 2 == other ? without : RP_NONE);
    }
    found = walk.seen[task * 2 + 1];
    g_array_unref(walk.stack);
    g_free(walk.seen);
    return found;
}

/* All that has ended with @before is known to have ended too. */
static void
inherit(guint8 *reach, gsize n, RpTaskId before, RpTaskId task, guint8 how)
{
    for (gsize i = 0; i < n; i++)
        if (reach[i * n + before] != 0)
            reach[i * n + task] |= how;
    reach[before * n + task] |= how;
}

guint8 *
rp_test_reach_matrix(const RpPlan *plan)
{
    gsize n = (gsize)rp_plan_end_id(plan);
    guint8 *reach = g_malloc0(n * n);

    for (RpTaskId id = 0; id < n; id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const RpDependency *dependencies = rp_plan_dependencies(plan, task);
        RpTaskId before = lane_predecessor(plan, id);

        if (before != RP_TASK_NONE)
            inherit(reach, n, before, id, 3);
        for (guint k = 0; k < task->dependency_count; k++)
            inherit(reach, n, dependencies[k].task, id, dependencies[k].phase > 0 ? 2 : 3);
    }
    return reach;
}
