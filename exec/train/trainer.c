#include "exec/train/trainer-private.h"

#include "core/base/quote.h"
#include "core/verify/verify.h"
#include "exec/device/batch-feed.h"
#include "exec/system/memory-limit.h"

/* Iterations that a plan needs until its arenas have their size. */
#define SIZING_ITERATIONS 3

static gboolean
check_preference(const RpTrainerOptions *options, GError **error)
{
    const RpPreference *preference = &options->network.preference;
    const RpLora *lora = rp_weights_lora(options->weights);
    const char *problem = NULL;

    if (!rp_preference_is_used(preference))
        return TRUE;
    const RpObjectiveInfo *objective = rp_objective_info(preference->objective);

    if (options->network.loss != NULL || rp_weights_model(options->weights)->custom != NULL)
        problem = "has a loss of its own, and no layers or loss of a program";
    else if (options->network.packed_tokens == 0)
        problem = "has two documents in a row, which needs packing";
    else if (objective->has_reference != (preference->reference != RP_REFERENCE_NONE))
        problem = objective->has_reference ? "needs a reference" : "has no reference";
    else if (preference->reference == RP_REFERENCE_ADAPTERS && lora == NULL)
        problem = "has a reference of adapters that are switched off, and the run has none: take "
                  "copy or precomputed";
    else if (preference->reference == RP_REFERENCE_ADAPTERS && lora->saved != NULL)
        problem = "has a reference of adapters that are switched off, but the run trains whole "
                  "modules, too: take copy or precomputed";
    if (problem == NULL)
        return TRUE;
    return rp_fail(error, RP_TRAINER_ERROR, RP_TRAINER_ERROR_OPTIONS, "objective %s %s",
                   objective->name, problem);
}

static gboolean
check_options(const RpTrainerOptions *options, GError **error)
{
    const RpScheduleOps *schedule = options->plan.schedule;

    if (!rp_schedule_is_trained(schedule)) {
        g_autofree char *names = rp_schedule_names(rp_schedule_is_trained);

        return rp_fail(
            error, RP_TRAINER_ERROR, RP_TRAINER_ERROR_OPTIONS,
            "schedule %s splits backward into two actions, which training does not: use %s",
            schedule->name, names);
    }
    return check_preference(options, error);
}

gboolean
rp_trainer_check_memory(const RpDeviceOps *devices, const RpPlan *plan, guint64 device_bytes,
                        guint64 host_bytes, gboolean dry, RpRemedy *remedy, GError **error)
{
    g_auto(RpMemoryLimit) limit = dry ? (RpMemoryLimit){0} : rp_memory_limit("", host_bytes > 0);
    const gboolean limited = limit.name != NULL && (host_bytes == 0 || limit.bytes < host_bytes);
    RpShortage shortage;

    if (!rp_plan_find_shortage(plan, device_bytes, limited ? MAX(1, limit.bytes) : host_bytes,
                               devices->host_memory, &shortage))
        return TRUE;
    g_autofree char *what = rp_shortage_describe(&shortage);
    g_autofree char *whose = limited && shortage.host ? rp_memory_limit_describe(&limit) : NULL;

    g_set_error(error, RP_TRAINER_ERROR, RP_TRAINER_ERROR_MEMORY, "%s%s%s", what,
                whose != NULL ? "; the limit is " : "", whose != NULL ? whose : "");
    if (remedy != NULL)
        *remedy = shortage.remedy;
    return FALSE;
}

/* Learns the sizes of the arenas from a few iterations, and proves them. */
static gboolean
size_arenas(RpTrainer *trainer, const RpTrainerOptions *options, const RpPlanOptions *plan_options,
            GError **error)
{
    g_autoptr(RpPlan) own = NULL;
    const RpPlan *plan = options->checked;

    if (plan == NULL) {
        plan = own = rp_plan_make(trainer->profile, trainer->partition, plan_options,
                                  SIZING_ITERATIONS, error);
        if (plan == NULL ||
            !rp_trainer_check_memory(trainer->devices, plan, options->device_memory_bytes,
                                     options->host_memory_bytes, FALSE, NULL, error) ||
            !rp_trainer_prove(plan, error))
            return FALSE;
    }
    trainer->arena_bytes = g_new(guint64, (gsize)trainer->gpus + 1);
    for (guint32 a = 0; a <= trainer->gpus; a++)
        trainer->arena_bytes[a] = rp_plan_arena_bytes(plan, a);
    return TRUE;
}

/* Whether resident weights stand in the same places: then each plan finds them as it left them. */
static gboolean
stays_alike(const RpPlan *a, const RpPlan *b)
{
    for (guint g = 0; g < rp_plan_gpus(a); g++)
        for (guint l = 0; l < rp_plan_n_layers(a); l++) {
            const guint32 x = rp_plan_resident(a, g, l), y = rp_plan_resident(b, g, l);

            if ((x == RP_NONE) != (y == RP_NONE) ||
                (x != RP_NONE && rp_plan_buffer(a, x)->offset != rp_plan_buffer(b, y)->offset))
                return FALSE;
        }
    return TRUE;
}

static gboolean
start(RpTrainer *trainer, const RpTrainerOptions *options, const RpPlanOptions *plan_options,
      GError **error)
{
    const RpDeviceOptions device_options = {.memory_bytes = options->device_memory_bytes,
                                            .slow = options->slow};
    RpEngineOptions engine_options = {
        .retire = TRUE,
        .keep_trace = options->keep_trace,
        .done = rp_trainer_note_batch,
        .user_data = trainer,
        .arena_bytes = trainer->arena_bytes,
    };

    trainer->planner = rp_planner_new(trainer->profile, trainer->partition, plan_options, error);
    if (trainer->planner == NULL)
        return FALSE;
    const RpPlan *plan = rp_planner_plan(trainer->planner);
    g_assert(trainer->evaluator == NULL ||
             stays_alike(plan, rp_planner_plan(trainer->evaluator->planner)));
    trainer->verifier = rp_verifier_new(plan);
    trainer->host_state = rp_host_state_new(trainer->network, plan, &options->update, error);
    if (trainer->host_state == NULL)
        return FALSE;
    trainer->feed = rp_batch_feed_new(plan_options->micro_batches, trainer->calls);
    if (trainer->servers > 1)
        rp_host_state_set_numbers(trainer->host_state,
                                  rp_trainer_n_numbers(trainer) * rp_plan_micro_batches(plan),
                                  rp_trainer_tell_losses, trainer);
    trainer->backend = trainer->devices->backend_new(plan, trainer->network, trainer->host_state,
                                                     trainer->feed, &device_options, error);
    if (trainer->backend == NULL ||
        !trainer->backend->ops->open_arenas(trainer->backend, trainer->arena_bytes,
                                            trainer->gpus + 1, error))
        return FALSE;
    rp_host_state_load(trainer->host_state, options->weights);
    trainer->engine =
        rp_engine_new(rp_planner_plan(trainer->planner), trainer->backend, &engine_options, error);
    return trainer->engine != NULL;
}

RpTrainer *
rp_trainer_new(const RpTrainerOptions *options, GError **error)
{
    g_autoptr(RpTrainer) trainer = g_new0(RpTrainer, 1);
    RpPlanOptions plan_options = options->plan;

    g_return_val_if_fail(options->plan.schedule != NULL, NULL);
    if (!check_options(options, error))
        return NULL;
    trainer->gpus = options->plan.gpus;
    trainer->calls = MAX(1, options->plan.calls);
    trainer->servers =
        options->update.servers != NULL ? rp_servers_count(options->update.servers) : 1;
    trainer->joined = options->update.servers;
    trainer->done = options->done;
    trainer->user_data = options->user_data;
    trainer->ends_ns = g_new(gint64, RP_HOST_STATE_RING * (gsize)trainer->gpus);
    trainer->last_ends_ns = g_new(gint64, trainer->gpus);
    rp_trainer_stand_still(trainer);
    /* hashes the bound weights: the copy has it then */
    (void)rp_weights_base_hash(options->weights);
    trainer->weights = rp_weights_copy(options->weights);
    trainer->devices = options->devices != NULL ? options->devices : rp_host_devices();
    trainer->network =
        rp_network_new(trainer->weights, trainer->devices->kernels(), &options->network);
    trainer->profile = rp_profile_copy(options->profile);
    trainer->partition = rp_partition_copy(options->partition);
    plan_options.fidelity = RP_FIDELITY_FULL;
    plan_options.fused_forward = RP_FUSED_PHYSICAL;
    plan_options.calls = trainer->calls;
    plan_options.servers = trainer->servers;
    plan_options.step_at_once = rp_update_steps_at_once(&options->update);
    plan_options.form = options->update.adamw.form;
    plan_options.reference_copy = options->network.preference.reference == RP_REFERENCE_COPY;
    if (!size_arenas(trainer, options, &plan_options, error) ||
        ((options->evaluates || options->network.preference.reference != RP_REFERENCE_NONE) &&
         !rp_trainer_make_evaluator(trainer, &plan_options, options->keep_trace, error)) ||
        !start(trainer, options, &plan_options, error))
        return NULL;
    return g_steal_pointer(&trainer);
}

gboolean
rp_trainer_free(RpTrainer *trainer)
{
    if (trainer == NULL)
        return TRUE;
    if (trainer->engine != NULL && !rp_engine_stop(trainer->engine))
        return FALSE;
    rp_engine_free(trainer->engine);
    if (trainer->backend != NULL)
        trainer->devices->backend_free(trainer->backend);
    rp_trainer_clear_restored(trainer);
    rp_batch_feed_free(trainer->feed);
    rp_host_state_free(trainer->host_state);
    rp_trainer_free_evaluator(trainer);
    rp_verifier_free(trainer->verifier);
    rp_planner_free(trainer->planner);
    rp_partition_free(trainer->partition);
    rp_profile_free(trainer->profile);
    rp_network_free(trainer->network);
    rp_weights_free(trainer->weights);
    g_free(trainer->ends_ns);
    g_free(trainer->last_ends_ns);
    g_free(trainer->arena_bytes);
    g_free(trainer);
    return TRUE;
}

const RpNetwork *
rp_trainer_network(const RpTrainer *trainer)
{
    return trainer->network;
}

gboolean
rp_trainer_is_async(const RpTrainer *trainer)
{
    return rp_trainer_staleness(trainer) > 0;
}

guint
rp_trainer_rounds(const RpTrainer *trainer)
{
    return rp_plan_rounds(rp_planner_plan(trainer->planner)) * trainer->servers;
}

guint64
rp_trainer_n_steps(const RpTrainer *trainer)
{
    return trainer->steps_before + trainer->iteration - trainer->first_iteration;
}

RpHostState *
rp_trainer_host_state(RpTrainer *trainer)
{
    return trainer->host_state;
}

RpTrace *
rp_trainer_steal_trace(RpTrainer *trainer)
{
    return rp_engine_steal_trace(trainer->engine);
}

RpEngineCost
rp_trainer_cost(const RpTrainer *trainer)
{
    return rp_engine_cost(trainer->engine);
}

RpProofCost
rp_trainer_proof_cost(const RpTrainer *trainer)
{
    return trainer->proof;
}

guint64
rp_trainer_arena_bytes(const RpTrainer *trainer, guint32 arena)
{
    return trainer->arena_bytes[arena];
}

RpActionTime
rp_trainer_action_time(const RpTrainer *trainer)
{
    const RpDeviceOps *devices = trainer->devices;

    return devices->action_time != NULL ? devices->action_time(trainer->backend)
                                        : (RpActionTime){0};
}

RpPinnedMemory
rp_trainer_pinned(const RpTrainer *trainer)
{
    const RpDeviceOps *devices = trainer->devices;

    return devices->pinned != NULL ? devices->pinned(trainer->backend)
                                   : (RpPinnedMemory){.threads = 0};
}
