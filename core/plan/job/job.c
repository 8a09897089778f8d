#include "core/plan/job/job.h"

#include <string.h>

#include "core/plan/device-layout.h"
#include "core/plan/planner.h"
#include "core/plan/resident.h"
#include "core/plan/transfer.h"
#include "core/profile/cards.h"

/* Default options become definite ones. */
static void
resolve_options(RpPlanOptions *options, const RpProfile *profile)
{
    const gboolean dispatched = options->schedule->dispatched;

    options->calls = MAX(1, options->calls);
    if (!dispatched)
        options->replicas = 1;
    options->slices = rp_plan_slices(options);
    options->micro_batches *= options->slices;
    if (options->round == 0 || !dispatched)
        options->round = MAX(1, rp_plan_whole_round(options));
    else
        options->round *= options->slices;
    if (!rp_profile_is_mixed(profile))
        options->dispatch = RP_DISPATCH_ROTATION;
    if (options->dispatch == RP_DISPATCH_FREE)
        options->resident_limit = 0; /* no stage has a device of its own */
}

/* Few rounds are not worth a sum in memory of its own, unless that takes less of it. Traffic, bytes
 * a parameter of k rounds in 16 bits, and of a sum that takes p passes:
 *
 *   summed   download 2 k | sum 2 k + 8 p - 4 | norm 4   | step 4
 *   apart    download 2 k |                   | norm 2 k | step 2 k
 */
static gboolean
are_apart(const RpPlanJob *job, guint rounds)
{
    guint64 gradients = 0, staging;

    if (job->options.fidelity != RP_FIDELITY_FULL || job->options.sum_rounds || rounds < 2 ||
        rounds > RP_MOST_ROUNDS_APART)
        return FALSE;
    for (guint l = 0; l < job->profile->n_layers; l++)
        gradients += job->profile->layers[l].gradient_bytes;
    staging = job->options.gpus * rp_largest_dispatched(job->profile, job->partition, 0).gradients;
    return rounds * gradients <= rp_profile_sum_bytes(job->profile, gradients) + staging;
}

/* Synchronous, no device has two slots in an iteration: the next one's weights cannot come before those
 * slots have run in which they are made. */
static gboolean
is_single_slot(const RpPlanJob *job)
{
    const RpPlanOptions *options = &job->options;

    return options->fidelity == RP_FIDELITY_FULL && options->schedule->dispatched &&
           options->dispatch == RP_DISPATCH_ROTATION && !options->async &&
           !rp_profile_is_packed(job->profile) &&
           job->n_stages * job->rounds * options->calls <= options->gpus;
}

/* Whether a training plan of these options goes layer by layer. One that only runs forward does not, but
 * has the same chunks: it runs beside that on one backend. */
static gboolean
trains_layerwise(const RpPlanJob *job)
{
    return is_single_slot(job) && job->n_stages == 1 &&
           rp_plan_copies(&job->options) != RP_COPIES_BLOCKING &&
           job->options.transfers == RP_TRANSFERS_WINDOWS && job->profile->n_layers > 1;
}

static RpWeightPath
weight_path(const RpPlanJob *job)
{
    const RpPlanOptions *options = &job->options;
    const RpScheduleOps *schedule = options->schedule;
    const gboolean packed =
        options->fidelity == RP_FIDELITY_FULL && rp_profile_is_packed(job->profile);

    if (!schedule->dispatched && !schedule->offloads_weights)
        return packed ? RP_WEIGHTS_PER_ITERATION_PACKED : RP_WEIGHTS_PER_ITERATION;
    if (packed)
        return RP_WEIGHTS_PER_SLOT_PACKED;
    return trains_layerwise(job) && !options->forward_only ? RP_WEIGHTS_PER_LAYER
                                                           : RP_WEIGHTS_PER_SLOT;
}

static RpGradientPath
gradient_path(const RpPlanJob *job, guint rounds)
{
    const RpPlanOptions *options = &job->options;

    if (rounds == 1)
        return RP_GRADIENTS_ONE_ROUND;
    if (options->replicas <= 1 && options->dispatch == RP_DISPATCH_ROTATION &&
        rp_partition_keeps_sums(job->partition, options->gpus))
        return RP_GRADIENTS_KEPT;
    return are_apart(job, rounds) ? RP_GRADIENTS_APART : RP_GRADIENTS_SUMMED;
}

static RpStepPolicy
step_policy(const RpPlanJob *job)
{
    const RpPlanOptions *options = &job->options;
    const RpHostCopies copies = rp_plan_copies(options);

    if (options->step_at_once && copies != RP_COPIES_BLOCKING)
        return RP_STEP_AT_ONCE;
    if (options->step_at_once || options->async || options->forward_only || options->servers > 1 ||
        options->fidelity != RP_FIDELITY_FULL || copies != RP_COPIES_FUSED)
        return RP_STEP_AFTER_NORM;
    return options->early_steps == RP_EARLY_ON || (options->early_steps == RP_EARLY_AUTO &&
                                                   job->profile->optimizer_parameters_per_s > 0)
               ? RP_STEP_EARLY
               : RP_STEP_AFTER_NORM;
}

static void
set_modes(RpPlanJob *job)
{
    const RpPlanOptions *options = &job->options;
    const gboolean full = options->fidelity == RP_FIDELITY_FULL;
    const gboolean dispatched = options->schedule->dispatched;
    const guint rounds = job->rounds * (dispatched ? options->calls : 1);
    RpPlanTables *tables = rp_plan_tables(job->plan);
    const RpPlanModes modes = {
        .weights = weight_path(job),
        .gradients = gradient_path(job, rounds),
        .step = step_policy(job),
        .copies = rp_plan_copies(options),
        .keeps = rp_plan_keeps(options),
        .published = options->recompute == RP_RECOMPUTE_EARLY &&
                     options->fused_forward == RP_FUSED_PUBLISHED,
        .staleness = options->async ? 1 : 0,
        .rounds = rounds,
        .slices = options->slices,
        .servers = full ? MAX(1, options->servers) : 1,
    };
    const RpPlanStorage storage = {
        .element_bytes = rp_profile_element_bytes(job->profile),
        .form = rp_planner_form(job->profile, options),
        .constant_bytes = full ? job->profile->constant_bytes : 0,
    };

    tables->modes = modes;
    tables->storage = storage;
    tables->first_iteration = options->first_iteration;
    tables->evaluation = options->forward_only ? job->rounds : 0;
    job->modes = &tables->modes;
    job->storage = &tables->storage;
    job->backwards = options->round * (dispatched ? 1 : options->calls);
    job->one_slot = is_single_slot(job);
}

/* The parameters, or the gradients that leave, as the chunks of their transfers. */
static RpChunks
cut_chunks(const RpPlanJob *job, RpInterval layers, RpChunksOf of, guint n_windows)
{
    const gboolean whole =
        job->options.transfers == RP_TRANSFERS_NAIVE || rp_modes_upload_once(job->modes);

    if (trains_layerwise(job))
        return rp_chunks_by_layer(job->profile, layers, of, of != RP_CHUNKS_PARAMETERS);
    return rp_chunks_pack(job->profile, layers, of, whole ? 1 : n_windows, 0);
}

/* A forward of @stage sends on the input of the layer behind it, and inside it the inputs of
 * backward stages. */
static void
find_boundaries(const RpPlanJob *job, RpPlanStage *stage)
{
    const RpPartition *partition = job->partition;
    const guint end = stage->layers.first + stage->layers.count;

    if (!stage->runs_forward || end == job->profile->n_layers)
        return;
    stage->boundaries = g_new(guint, 1 + partition->n_backward);
    stage->boundaries[stage->n_boundaries++] = end;
    for (guint b = 0; b < partition->n_backward; b++)
        if (partition->backward[b].first > stage->layers.first &&
            partition->backward[b].first < end)
            stage->boundaries[stage->n_boundaries++] = partition->backward[b].first;
}

static void
set_times(const RpPlanJob *job, RpStageTimes *times, const RpProfile *card, RpInterval layers,
          RpPhase phase)
{
    times->forward_ns = rp_stage_time_ns(card, layers, RP_PHASE_FORWARD, NULL);
    times->attention = job->options.even_slices ? 0 : rp_stage_attention(card, layers);
    times->weight_ns = rp_stage_weight_gradient_ns(card, layers);
    if (phase != RP_PHASE_FORWARD)
        times->backward_ns = rp_stage_time_ns(card, layers, phase, &times->lead_ns);
}

static void
add_stage(RpPlanJob *job, RpInterval layers, RpPhase phase)
{
    const RpProfile *profile = job->profile;
    const gboolean bound = !job->partition->dispatched;
    const guint windows = job->shape.round;
    const guint s = rp_plan_n_stages(job->plan);
    const RpDirection direction =
        bound || phase != RP_PHASE_FORWARD ? RP_DIRECTION_BACKWARD : RP_DIRECTION_FORWARD;
    RpPlanStage stage = {
        .layers = layers,
        .runs_forward = bound || phase != RP_PHASE_BACKWARD,
        .runs_backward = direction == RP_DIRECTION_BACKWARD,
        .bound = bound,
        .mirrored = job->options.schedule->mirrored,
        .device = bound ? rp_schedule_gpu(job->options.schedule, &job->shape, s, 0) : RP_NONE,
    };
    RpLargest needs = rp_largest_new(profile);

    needs.keeps = job->modes->keeps;
    rp_largest_note(&needs, profile, job->partition, layers, stage.runs_forward,
                    stage.runs_backward);
    stage.parameter_bytes = needs.parameters[direction];
    stage.upload_bytes = needs.is_packed ? needs.packed : stage.parameter_bytes;
    stage.gradient_bytes = rp_job_leaving_bytes(job, needs.gradients);
    stage.workspace_bytes = needs.workspace[direction];
    stage.kept_bytes = needs.activations;
    for (guint c = 0; c < MAX(1, profile->n_cards); c++)
        set_times(job, &job->times[c * job->n_stages + s],
                  profile->n_cards > 0 ? profile->cards[c] : profile, layers, phase);
    if (job->options.fidelity == RP_FIDELITY_FULL) {
        stage.parameters = cut_chunks(job, layers, RP_CHUNKS_PARAMETERS, windows);
        /* the next slot's last action makes leaving gradients of its own sums: by then the bytes
         * before must be gone, so they have one window less */
        if (stage.gradient_bytes > 0)
            stage.gradients = cut_chunks(
                job, layers,
                job->modes->gradients == RP_GRADIENTS_KEPT ? RP_CHUNKS_SUMS : RP_CHUNKS_GRADIENTS,
                MAX(2, windows) - 1);
        find_boundaries(job, &stage);
    }
    rp_plan_add_stage(job->plan, &stage);
}

/* A plan's choices for its layers are written to a copy of the profile, never to the caller's. */
static void
own_profile(RpPlanJob *job)
{
    if (job->own_profile == NULL)
        job->profile = job->own_profile = rp_profile_copy(job->profile);
}

guint
rp_save_groups(RpSaveChoice choice)
{
    return (guint)choice & (RP_SAVE_NOTHING - 1);
}

RpProfile *
rp_plan_saving_profile(const RpProfile *profile, const RpPlanOptions *options)
{
    const gboolean dispatched = options->schedule->dispatched;

    if (options->saved.groups == 0 && (dispatched || !rp_profile_saves(profile)))
        return NULL;
    RpProfile *saving = rp_profile_copy(profile);

    if (rp_plan_keeps(options))
        rp_profile_keep_activations(saving);
    else
        rp_profile_choose_saved(saving, &options->saved);
    return saving;
}

static void
choose_saved(RpPlanJob *job)
{
    RpProfile *saving = rp_plan_saving_profile(job->profile, &job->options);

    if (saving != NULL)
        job->profile = job->own_profile = saving;
}

/* Frozen weights that stay on devices. */
static void
choose_residents(RpPlanJob *job)
{
    const RpPlanOptions *options = &job->options;

    if (options->resident_limit == 0 || options->fidelity != RP_FIDELITY_FULL ||
        !rp_profile_has_frozen(job->profile) ||
        (!options->schedule->dispatched && job->modes->weights != RP_WEIGHTS_PER_ITERATION))
        return;
    own_profile(job);
    job->has_residents = TRUE;
    if (!options->schedule->dispatched) /* they are there anyway */
        rp_resident_all(job->own_profile);
    else
        rp_resident_choose(job->own_profile, job->partition, options,
                           job->modes->gradients == RP_GRADIENTS_KEPT);
}

static void
add_stages(RpPlanJob *job)
{
    const RpPartition *partition = job->partition;

    job->times = RP_JOB_NEW(job, RpStageTimes, MAX(1, job->profile->n_cards) * job->n_stages);
    for (guint s = 0; s < partition->n_forward; s++)
        add_stage(job, partition->forward[s],
                  partition->dispatched ? RP_PHASE_FORWARD : RP_PHASE_BACKWARD);
    for (guint b = 0; b < partition->n_backward; b++)
        add_stage(job, partition->backward[b], b == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD);
}

gboolean
rp_job_init(RpPlanJob *job, const RpProfile *profile, const RpPartition *partition,
            const RpPlanOptions *options, GError **error)
{
    job->memory = g_ptr_array_new_with_free_func(g_free);
    job->arrays = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
    job->profile = profile;
    job->partition = rp_partition_copy(partition);
    job->options = *options;
    if (!rp_job_check_dispatch(options, error))
        return FALSE;
    resolve_options(&job->options, profile);
    if (!rp_job_check_partition(job, error))
        return FALSE;
    job->n_stages = partition->n_forward + partition->n_backward;
    job->shape = (RpShape){
        .gpus = options->gpus,
        .micro_batches = job->options.micro_batches,
        .stages = job->n_stages,
        .round = job->options.round,
        .forward_slots = partition->dispatched ? partition->n_forward : 0,
        .group = options->group,
        .live = options->live,
        .reverse_backward = options->reverse_backward,
        .gpus_per_root = profile->links.gpus_per_root,
        .replicas = job->options.replicas,
        .slices = job->options.slices,
        .forward_only = options->forward_only,
    };
    if (!rp_schedule_check(options->schedule, &job->shape, error) ||
        !rp_job_check_calls(job, error))
        return FALSE;
    job->rounds = job->options.micro_batches / job->options.round;
    job->iteration = options->first_iteration;
    job->plan = rp_plan_new(options->gpus, options->fidelity, profile->n_layers,
                            job->options.micro_batches * rp_job_calls(job));
    job->builder = rp_builder_new(job->plan);
    choose_saved(job);
    set_modes(job);
    choose_residents(job);
    add_stages(job);
    if (options->forward_only && partition->dispatched) {
        /* where weights stay, stages go to the devices that they go to otherwise */
        job->shape.turn = job->has_residents ? job->n_stages : 0;
        job->shape.stages = partition->n_forward + 1; /* the fused stage is the last */
    }
    return TRUE;
}

void
rp_job_set_first_iteration(RpPlanJob *job, guint iteration)
{
    job->options.first_iteration = iteration;
    job->iteration = iteration;
    rp_plan_tables(job->plan)->first_iteration = iteration;
}

void
rp_job_clear(RpPlanJob *job)
{
    rp_builder_free(job->builder);
    rp_plan_free(job->plan);
    rp_partition_free(job->partition);
    rp_profile_free(job->own_profile);
    g_clear_pointer(&job->memory, g_ptr_array_unref);
    g_clear_pointer(&job->arrays, g_ptr_array_unref);
}

gpointer
rp_job_alloc(const RpPlanJob *job, gsize n, gsize size, gint fill)
{
    gpointer memory = g_malloc_n(MAX(1, n), size);

    g_ptr_array_add(job->memory, memory);
    return memset(memory, fill, n * size);
}

GArray *
rp_job_array(const RpPlanJob *job, guint element_size)
{
    GArray *array = g_array_new(FALSE, FALSE, element_size);

    g_ptr_array_add(job->arrays, array);
    return array;
}

/* Tasks count micro-batches over all calls of the iteration. */
static guint32
micro_batch_of_iteration(const RpPlanJob *job, guint32 micro_batch)
{
    return job->call * job->shape.micro_batches + micro_batch;
}

RpTask *
rp_job_begin_task(const RpPlanJob *job, RpTaskKind kind, guint device, guint32 stage,
                  guint32 micro_batch)
{
    RpTask *task = rp_builder_begin(job->builder, kind, device, stage, job->iteration);

    task->micro_batch = micro_batch_of_iteration(job, micro_batch);
    task->round = (guint16)rp_job_round(job, micro_batch);
    return task;
}

RpTask *
rp_job_begin_layer_task(const RpPlanJob *job, RpTaskKind kind, guint32 layer, guint32 iteration)
{
    RpTask *task = rp_builder_begin(job->builder, kind, 0, RP_NONE, iteration);

    task->layer = layer;
    return task;
}

/* A slice takes a part of its micro-batch's time; in the fused stage of the part that its forward
 * leaves. */
static void
slice_times(const RpPlanJob *job, const RpAction *action, const RpStageTimes *times,
            gint64 *duration_ns, gint64 *lead_ns)
{
    const guint K = job->shape.slices, j = action->micro_batch % K;

    *duration_ns = rp_slice_time_ns(*duration_ns, times->attention, j, K);
    if (action->kind == RP_ACTION_BACKWARD && rp_job_is_fused(job, action->stage))
        *duration_ns -= rp_slice_time_ns(times->forward_ns, times->attention, j, K);
    *lead_ns = MIN(*duration_ns, rp_slice_time_ns(*lead_ns, times->attention, j, K));
}

void
rp_job_action_times(const RpPlanJob *job, guint device, const RpAction *action, gint64 *duration_ns,
                    gint64 *lead_ns)
{
    const RpStageTimes *all = &job->times[rp_profile_card(job->profile, device) * job->n_stages];
    const RpStageTimes *times = &all[action->stage];

    *duration_ns = rp_action_time_ns((RpActionKind)action->kind, times,
                                     &all[rp_action_backward_stage(action)]);
    *lead_ns = rp_job_leads(job, action)                                  ? times->lead_ns
               : action->kind == RP_ACTION_FUSED && job->modes->published ? times->forward_ns
                                                                          : 0;
    slice_times(job, action, times, duration_ns, lead_ns);
}

void
rp_job_begin_action(const RpPlanJob *job, guint device, const RpAction *action)
{
    RpTask *task = rp_job_begin_task(job, (RpTaskKind)action->kind, device, action->stage,
                                     action->micro_batch);

    task->iteration -= action->late;
    rp_job_action_times(job, device, action, &task->duration_ns, &task->lead_ns);
    if (action->kind == RP_ACTION_OVERLAP) {
        task->backward_stage = action->backward_stage;
        task->backward_micro_batch = micro_batch_of_iteration(job, action->backward_micro_batch);
    }
}

void
rp_job_begin_piece(const RpPlanJob *job, guint device, const RpAction *action, guint first_step,
                   guint end_step)
{
    const RpInterval layers = rp_plan_stage(job->plan, action->stage)->layers;
    RpTask *task =
        rp_job_begin_task(job, RP_TASK_FUSED, device, action->stage, action->micro_batch);

    task->first_step = first_step;
    task->end_step = end_step;
    const RpInterval up = rp_task_upward(task, layers), down = rp_task_downward(task, layers);

    const RpLayer *times = rp_profile_of(job->profile, device)->layers;

    for (guint i = 0; i < up.count; i++)
        task->duration_ns += times[up.first + i].forward_ns;
    for (guint i = 0; i < down.count; i++)
        task->duration_ns += times[down.first + i].backward_ns;
}
