/* The plan, and what it is expected to take. */
#include "run/train/private.h"

#include "exec/train/trainer.h"

/* What the run asks for. @round: 0 = chosen with the partition */
static RpAsk
make_ask(const RpTrainJob *job, gint64 round)
{
    const RpRunFile *run = job->run;

    return (RpAsk){
        .options = {.schedule = rp_schedule_find(run->schedule, NULL),
                    .gpus = run->n_devices,
                    .micro_batches = (guint)run->micro_batches,
                    .round = (guint)round,
                    .async = run->async,
                    .fidelity = RP_FIDELITY_FULL,
                    .recompute = (RpRecompute)run->recompute_choice,
                    .transfers = (RpTransfers)run->transfers,
                    .consistency = (RpConsistency)run->consistency,
                    .optimizer = (RpOptimizerMode)run->optimizer.mode,
                    .step_at_once = run->optimizer.max_grad_norm <= 0 &&
                                    job->network.dtype != RP_DTYPE_FP16 &&
                                    run->consistency != RP_CONSISTENCY_BLOCKING},
        .stages = run->stages,
        .forward_stages = run->forward_stages,
        .backward_stages = run->backward_stages,
        .objective = (RpObjective)run->partition_choice,
        .calls = (guint)run->gradient_accumulation_steps,
        .settle = TRUE,
        .as_keys = TRUE,
    };
}

gboolean
rp_train_check_least_size(const RpTrainJob *job, GError **error)
{
    const RpAsk ask = make_ask(job, job->run->round);

    return rp_ask_check_size(&ask, error);
}

/*
 * In bound schedules the head does not run when its stage goes forward: the loss and its gradient
 * are computed at once, at the beginning of the backward action.
 *
 *   planned   [ F: blocks, head ]  ...  [ B: recompute, head, blocks ]
 *   run       [ F: blocks ]        ...  [ B: recompute, head forward and back, blocks ]
 *
 * So all of the head's time is planned there. RoundPipe runs it in the fused stage, where both
 * stand together anyway.
 */
static void
place_head(RpTrainJob *job)
{
    RpLayer *head = &job->profile->layers[job->profile->n_layers - 1];

    if (rp_schedule_find(job->run->schedule, NULL)->dispatched || head->kind != RP_LAYER_HEAD)
        return;
    head->backward_ns += head->forward_ns;
    head->backward_spread_ns += head->forward_spread_ns;
    head->forward_ns = 0;
    head->forward_spread_ns = 0;
}

/* All micro-batches in one round is the default, because its bits do not depend on devices or on
 * what was measured; where other rounds are faster, say so. */
static void
consider_rounds(RpTrainJob *job)
{
    RpAsk ask = make_ask(job, 0);
    g_auto(RpRequest) other = {0};
    g_autoptr(RpPlan) plan = NULL;
    g_autoptr(RpTrace) trace = NULL;
    RpShortage shortage;

    if (job->run->round_choice != RP_RUN_ROUND_ALL || job->run->n_devices == 1 ||
        !job->request.options.schedule->dispatched)
        return;
    ask.options.constant_bytes = job->request.options.constant_bytes;
    if (!rp_request_resolve(&ask, job->profile, &other, NULL) ||
        other.options.round == job->request.options.round)
        return;
    trace = rp_request_simulate(&other, job->profile, &plan, NULL);
    if (trace == NULL || rp_plan_find_shortage(plan, job->device_memory_bytes, 0, FALSE, &shortage))
        return;
    const RpSteady steady = rp_report_steady(trace, other.window.first, other.window.end);

    job->other_round = other.options.round;
    job->other_gain = (double)job->steady.iteration_ns / (double)steady.iteration_ns - 1;
}

gboolean
rp_train_predict(RpTrainJob *job, const RpNetwork *network, gboolean dry, GError **error)
{
    const RpRunFile *run = job->run;
    RpAsk ask = make_ask(job, run->round);
    RpRequest steady;

    ask.options.constant_bytes = rp_network_constant_bytes(network);
    place_head(job);
    if (!rp_request_resolve(&ask, job->profile, &job->request, error))
        return FALSE;
    job->trace = rp_request_simulate(&job->request, job->profile, &job->plan, error);
    if (job->trace == NULL ||
        !rp_trainer_check_memory(run->device_ops, job->plan, job->device_memory_bytes,
                                 run->host_memory_bytes, dry, &job->remedy, error))
        return FALSE;
    job->steady = rp_report_steady(job->trace, job->request.window.first, job->request.window.end);
    consider_rounds(job);
    steady = job->request; /* borrowed. Synchronous steps count from steady ones, too */
    steady.steady = TRUE;
    return rp_request_spread(&steady, job->profile, &job->least_ns, &job->most_ns, error);
}
