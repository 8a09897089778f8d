/* roundpipe plan: the answer in short. One sentence, then a line for each thing that people ask
 * next: how fast, what for, how long, how much disk, what it waits for, what was assumed. */
#include <math.h>
#include <string.h>

#include "cli/plan/plan.h"
#include "cli/reports/reports.h"
#include "core/base/fp8.h"
#include "core/base/units.h"

#define LABEL_WIDTH 10
#define DEFAULT_KEEP 3 /* a run file's checkpoint.keep */

/* "21.0", "159" */
static char *
gib(guint64 bytes)
{
    double value = (double)bytes / (double)RP_GIB;

    return g_strdup_printf(value < 100 ? "%.1f" : "%.0f", value);
}

/* ---- the sentence ---- */

/* The whole card where the catalogue has it, as people know it. */
static guint64
card_bytes(const RpPlanQuestion *question)
{
    const RpAdviseQuery *query = &question->query;

    return query->gpu != NULL && question->args->gpu_memory == NULL ? query->gpu->memory_bytes
                                                                    : query->gpu_bytes;
}

static char *
of_limit(guint64 bytes, guint64 limit)
{
    g_autofree char *used = gib(bytes);
    g_autofree char *of = gib(limit);

    return limit != 0 ? g_strdup_printf("%s of %s GiB", used, of) : g_strdup_printf("%s GiB", used);
}

static char *
describe_run(const RpPlanQuestion *question, const RpAdviseRun *run)
{
    g_autofree char *speed = rp_text_thousands(run->tokens_per_s);
    g_autofree char *gpu = of_limit(run->gpu.total, card_bytes(question));
    g_autofree char *host = of_limit(run->host.total, question->query.host_bytes);

    if (question->served.servers > 1) {
        g_autofree char *all = rp_text_thousands(question->served.tokens_per_s);

        return g_strdup_printf("%s tokens/s on %u servers, %s a card, %s of host memory each", all,
                               question->served.servers, gpu, host);
    }
    return g_strdup_printf("%s tokens/s, %s a card, %s of host memory", speed, gpu, host);
}

/* "2.2 GiB a card and 12 GiB of host memory" */
static char *
describe_missing(const RpAdviseRun *run)
{
    g_autofree char *gpu = gib(run->gpu_over_bytes);
    g_autofree char *host = gib(run->host_over_bytes);

    if (run->gpu_over_bytes > 0 && run->host_over_bytes > 0)
        return g_strdup_printf("%s GiB a card and %s GiB of host memory are missing", gpu, host);
    if (run->gpu_over_bytes > 0)
        return g_strdup_printf("%s GiB a card are missing", gpu);
    if (run->host_over_bytes > 0)
        return g_strdup_printf("%s GiB of host memory are missing", host);
    return g_strdup(run->problem);
}

static void
say_sentence(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question)
{
    const RpAdviseRun *run = rp_plan_shown_run(advice);
    g_autofree char *figures = describe_run(question, run);
    g_autofree char *missing = describe_missing(advice->best != NULL ? run : advice->nearest);

    if (advice->best != NULL && advice->query.gpus < advice->gpus_asked)
        rp_report_say(report, "Yes, on %u of the %u cards: %s.", advice->query.gpus,
                      advice->gpus_asked, figures);
    else if (advice->best != NULL)
        rp_report_say(report, "Yes: %s.", figures);
    else if (advice->instead == NULL)
        rp_report_say(report, "No: %s for the plan that needs least.", missing);
    else if (advice->instead->options.schedule->dispatched)
        rp_report_say(report, "Yes, with --sync: %s. As asked, %s.", figures, missing);
    else
        rp_report_say(report, "Yes, with schedule %s: %s. With RoundPipe %s.",
                      advice->instead->options.schedule->name, figures, missing);
}

/* ---- several servers: members of JSON, and lines for people ---- */

static void
say_network(RpReport *report, const RpAdviseServed *served, const RpServerNetwork *network,
            const char *bound)
{
    g_autofree char *sent = rp_cli_format_bytes(served->sent_bytes);

    rp_report_line(report, "servers", "%u, replicas of one plan; each steps 1/%u of every layer",
                   served->servers, served->servers);
    rp_report_line(report, "network", "%s: %s each way a step and server, %.2f s at %.2f GB/s%s",
                   network->name, sent, (double)served->exchange_ns / (double)RP_NS_PER_S,
                   served->bytes_per_s / 1e9,
                   served->host_limits ? ", which host memory allows" : "");
    rp_report_line(report, "binds", "%s; %.2f s a step if the network took no time", bound,
                   (double)served->alone_ns / (double)RP_NS_PER_S);
    if (served->hiding_batch > 0)
        rp_report_line(report, "", "about --batch %u would hide it", served->hiding_batch);
    rp_report_line(report, "", "below: one of them, beside the others");
}

static void
report_servers(RpReport *report, const RpPlanQuestion *question, const RpAdvice *advice)
{
    const RpAdviseServed *served = &question->served;
    const RpServerNetwork *network = question->network_between;
    const RpAdviseRun *run = rp_plan_shown_run(advice);

    if (served->servers <= 1)
        return;
    const char *bound = served->network ? "network" : rp_plan_waits[run->waits].binds;

    say_network(report, served, network, bound);
    rp_report_object(report, "servers", NULL);
    rp_report_count(report, "servers", served->servers, NULL);
    rp_report_text(report, "network", network->name, NULL);
    rp_report_real(report, "gbit_per_s", network->gbit_per_s, 6, NULL);
    rp_report_real(report, "latency_us", network->latency_us, 6, NULL);
    rp_report_real(report, "efficiency", network->efficiency, 6, NULL);
    rp_report_rate(report, "bytes_per_s", served->bytes_per_s, NULL);
    rp_report_count(report, "batch", (gint64)advice->query.batch * served->servers, NULL);
    rp_report_rate(report, "tokens_per_s", served->tokens_per_s, NULL);
    rp_report_ms(report, "step_ms", served->step_ns, NULL);
    rp_report_ms(report, "alone_ms", served->alone_ns, NULL);
    rp_report_ms(report, "exchange_ms", served->exchange_ns, NULL);
    rp_report_bytes(report, "sent_bytes", served->sent_bytes, NULL);
    rp_report_bytes(report, "host_peak_bytes", run->host.total, NULL);
    rp_report_text(report, "binds", bound, NULL);
    if (served->hiding_batch > 0)
        rp_report_count(report, "hiding_batch", served->hiding_batch, NULL);
    rp_report_end(report);
}

/* ---- what it is about ---- */

/* Says what `matmul: fp8` means, and which rate of the card's data sheet is not counted. */
static void
say_fp8(RpReport *report, const RpAdviseQuery *query)
{
    const RpGpu *gpu = query->gpu;
    const gboolean half_sums = strcmp(query->accumulate, "fp16") == 0;

    rp_report_line(report, "", "matmuls of blocks%s in fp8: `matmul: %s` in the run file",
                   query->fp8_head ? " and the head" : "",
                   rp_fp8_name(query->fp8, query->fp8_head));
    if (gpu == NULL || !half_sums)
        return;
    if (gpu->fp8_fp16_accumulate_tflops > gpu->fp8_tflops)
        rp_report_line(
            report, "",
            "predicted at the card's %g TFLOP/s with fp32 sums: cuBLASLt has no fp8 with "
            "fp16 sums, for which the data sheet has %g",
            gpu->fp8_tflops, gpu->fp8_fp16_accumulate_tflops);
    if (query->lora_rank > 0 && strcmp(query->dtype, "fp16") == 0 &&
        gpu->fp16_accumulate_tflops >= gpu->fp8_tflops)
        rp_report_line(report, "",
                       "without `matmul: %s` it is faster: fp16 with fp16 sums has the same rate, "
                       "and needs no quantization",
                       rp_fp8_name(query->fp8, query->fp8_head));
}

/* If a plan that takes more host memory was faster; of several servers the network may set the speed. */
static void
say_faster(RpReport *report, const RpAdvice *advice)
{
    if (advice->faster == NULL || advice->query.servers > 1 ||
        advice->faster->host.total <= advice->best->host.total)
        return;
    g_autofree char *speed = rp_text_thousands(advice->faster->tokens_per_s);
    g_autofree char *host = gib(advice->faster->host.total);

    rp_report_line(report, "faster", "%s tokens/s with %s GiB of host memory", speed, host);
}

static void
say_subject(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question)
{
    const RpAdviseQuery *query = &advice->query;
    guint64 parameters, trained;

    rp_plan_count_parameters(advice->profile, &parameters, &trained);
    g_autofree char *rank = query->lora_rank > 0
                                ? g_strdup_printf("LoRA of rank %u", query->lora_rank)
                                : g_strdup("all trained");

    rp_report_say(report, " ");
    rp_report_line(report, "model", "%s, %.*f billion parameters, %s, %s with %s sums",
                   question->name, parameters < 10000000000 ? 2 : 1, (double)parameters / 1e9, rank,
                   query->dtype, strcmp(query->dtype, "fp16") == 0 ? query->accumulate : "fp32");
    if (question->reference_why != NULL)
        rp_report_line(report, "objective", "%s, reference: %s (%s)",
                       rp_objective_info(query->preference.objective)->name,
                       rp_reference_name(query->preference.reference), question->reference_why);
    if (query->fp8)
        say_fp8(report, query);
    if (query->base != NULL)
        rp_report_line(report, "",
                       "frozen weights in %s: packed on the host and on the links, expanded once a "
                       "slot",
                       query->base);
    if (question->network == NULL && query->profile == NULL)
        rp_report_line(report, "",
                       "`roundpipe train` has no such architecture yet: no run can follow this "
                       "prediction");
    rp_report_line(report, "cards", query->cards != NULL ? "%u: %s" : "%u x %s", query->gpus,
                   rp_plan_device_name(query));
    if (query->gpus < advice->gpus_asked && advice->fewer_faster)
        rp_report_line(
            report, "",
            "more would be no faster: there are too few stages and micro-batches for all %u",
            advice->gpus_asked);
    else if (query->gpus < advice->gpus_asked)
        rp_report_line(
            report, "", "%u micro-batches keep only so many of %u busy; --batch %u would use all",
            query->gpus, advice->gpus_asked, advice->gpus_asked * MAX(1, query->micro_batch));
    rp_report_line(report, "step", "%u sequences of %u tokens", query->batch,
                   query->tokens_per_sequence);
    if (query->servers > 1)
        rp_report_line(report, "", "on each server, %u on all %u", query->batch * query->servers,
                       query->servers);
    if (query->sample_tokens > 0)
        rp_report_line(report, "", "samples share them: attention as of samples of %u tokens",
                       query->sample_tokens);
    if (query->batch != advice->batch_asked)
        rp_report_line(report, "",
                       "not %u, which divides into one round of that many micro-batches only",
                       advice->batch_asked);
    if (query->model != NULL && query->tokens_per_sequence > query->model->max_positions)
        rp_report_line(report, "", "%u tokens are beyond the model's %u positions",
                       query->tokens_per_sequence, query->model->max_positions);
}

/* ---- how long ---- */

static void
say_duration(RpReport *report, const RpPlanQuestion *question, const RpAdvice *advice,
             const RpAdviseRun *run)
{
    const RpAdviseServed *served = &question->served;
    const gboolean several = served->servers > 1;
    double step_s = (double)(several ? served->step_ns : run->step_ns) / (double)RP_NS_PER_S;
    double tokens_per_s = several ? served->tokens_per_s : run->tokens_per_s;
    double a_day = tokens_per_s * 86400;
    double per_step =
        (double)advice->query.batch * advice->query.tokens_per_sequence * MAX(served->servers, 1);

    rp_report_line(report, "time", "%.2f s a step, %.*f million tokens a day", step_s,
                   a_day < 1e7 ? 1 : 0, a_day / 1e6);
    if (question->tokens == 0 || tokens_per_s <= 0)
        return;
    g_autofree char *tokens = rp_text_thousands((double)question->tokens);
    g_autofree char *steps = rp_text_thousands(ceil((double)question->tokens / per_step));
    double hours = (double)question->tokens / tokens_per_s / 3600;

    rp_report_line(report, "", "%.*f hours for %s tokens, %s steps", hours < 10 ? 2 : 1, hours,
                   tokens, steps);
}

/* The batch whose compute takes as long as the optimizer's steps; 0 if @run's does. */
static guint
batch_to_hide(const RpAdviseRun *run, guint batch)
{
    double compute_ns = (double)run->step_ns * (1 - run->bubble_ratio);
    double times = compute_ns > 0 ? (double)run->optimizer_ns / compute_ns : 0;
    guint gpus = run->options.gpus;
    guint unit = gpus * run->sequences;

    if (times <= 1 || times * batch > G_MAXINT)
        return 0;
    return ((guint)(times * batch) / unit + 1) * unit;
}

static void
say_waits(RpReport *report, const RpAdviseRun *run, guint batch, gboolean sync)
{
    const char *cause = rp_plan_waits[run->waits].cause;
    guint larger = batch_to_hide(run, batch);

    if (cause == NULL)
        return;
    rp_report_line(report, "waits", "the cards wait %.*f %% of the time for %s",
                   (int)rp_percent_decimals(100 * run->bubble_ratio, 0), 100 * run->bubble_ratio,
                   cause);
    if (run->waits != RP_ADVISE_WAITS_OPTIMIZER)
        return;
    rp_report_line(report, "", "its %.2f s a step are the same for any batch",
                   (double)run->optimizer_ns / (double)RP_NS_PER_S);
    if (run->options.async && larger > batch)
        rp_report_line(report, "", "about --batch %u would hide them", larger);
    else if (!run->options.async)
        rp_report_line(report, "", "a larger batch makes them a smaller part%s",
                       sync ? "; without --sync they run beside" : "");
}

static void
say_disk(RpReport *report, const RpAdvice *advice, const RpAdviseRun *run)
{
    guint64 bytes = rp_plan_checkpoint_bytes(advice->profile, &run->options);
    g_autofree char *one = rp_cli_format_bytes(bytes);
    g_autofree char *all = rp_cli_format_bytes((DEFAULT_KEEP + 1) * bytes);

    rp_report_line(
        report, "disk",
        "%s: %d checkpoints of %s (checkpoint.keep) and one being written; one more with "
        "eval.keep_best",
        all, DEFAULT_KEEP, one);
}

/* ---- what it rests on ---- */

/* A share of the speed: nobody measures more for less. */
#define LITTLE_RANGE 0.01

static void
say_range(RpReport *report, const RpAdviseRange *range)
{
    const RpUnknownInfo *most = rp_unknown_info(range->most);
    const RpAdviseEnds *alone = &range->of[range->most].ends;
    g_autofree char *slow = rp_text_thousands(range->all.slow);
    g_autofree char *fast = rp_text_thousands(range->all.fast);
    g_autofree char *slow_alone = rp_text_thousands(alone->slow);
    g_autofree char *fast_alone = rp_text_thousands(alone->fast);
    g_autofree char *ends = rp_plan_unknown_ends(range, range->most);

    if (range->all.fast - range->all.slow < LITTLE_RANGE * range->all.slow) {
        rp_report_line(report, "range", "between %s and %s tokens/s: nothing unknown changes it",
                       slow, fast);
        return;
    }
    rp_report_line(report, "range", "between %s and %s tokens/s: `%s` on the machine settles %s",
                   slow, fast, most->command, most->settles);
    rp_report_line(report, "", "most of it: %s, %s: %s to %s alone", most->name, ends, slow_alone,
                   fast_alone);
}

static void
say_assumed(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question,
            const RpAdviseRange *range)
{
    const RpPlanOptions *options = &rp_plan_shown_run(advice)->options;
    const RpAdviseQuery *query = &advice->query;
    const RpLinks *links = &advice->profile->links;
    const RpGpu *gpu = query->gpu;

    if (query->profile != NULL)
        rp_report_line(report, "times", "%s, of the file: %s", query->profile->source,
                       query->profile->device);
    else if (gpu != NULL && gpu->measured)
        rp_report_line(report, "times", "of layers measured %s", gpu->basis);
    else if (gpu != NULL && gpu->foreign)
        rp_report_line(report, "times", "of layers from %s", gpu->basis);
    else if (gpu != NULL)
        rp_report_line(report, "times",
                       "of layers derived from %s: nobody has measured this project on this card",
                       gpu->basis);
    if (range->all.slow > 0)
        say_range(report, range);
    g_autofree char *root =
        links->gpus_per_root > 0 && links->root_bytes_per_s > 0
            ? g_strdup_printf(", %.0f for %u cards together", links->root_bytes_per_s / 1e9,
                              links->gpus_per_root)
            : g_strdup("");

    g_autofree char *both =
        links->both_bytes_per_s > 0
            ? g_strdup_printf(", %.0f both ways at once", links->both_bytes_per_s / 1e9)
            : g_strdup("");

    rp_report_line(report, query->known & (1u << RP_UNKNOWN_BOTH) ? "measured" : "assumed",
                   "PCIe %.0f GB/s up and %.0f down%s%s; host memory %.0f GB/s;",
                   links->h2d_bytes_per_s / 1e9, links->d2h_bytes_per_s / 1e9, both, root,
                   links->host_bytes_per_s / 1e9);
    /* gradients and weights in 16 bits, which the fused step writes into a second buffer */
    const double bytes = (options->async && options->optimizer == RP_OPTIMIZER_FUSED ? 6 : 4) +
                         (double)rp_optimizer_state_bytes(rp_planner_form(advice->profile, options),
                                                          RP_MOMENT_BLOCK) /
                             RP_MOMENT_BLOCK / MAX(options->servers, 1);

    rp_report_line(report, "",
                   "%s on the host, %.1f billion parameters/s, %.4g bytes a parameter, %s",
                   options->form.rule == RP_UPDATE_LION ? "Lion" : "AdamW",
                   advice->profile->optimizer_parameters_per_s / 1e9, bytes,
                   options->async ? "asynchronous" : "synchronous");
    if (question->dtype_assumed)
        rp_report_line(report, "",
                       "weights are fp32, planned as bf16: `dtype: bf16` in the run file");
}

/* Options that were left out and have a figure in the answer. */
static void
say_not_given(RpReport *report, const RpAdvice *advice, const RpArgs *args)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(GString) text = g_string_new(NULL);

    if (args->run.plan.gpus == 0 && !rp_box_has_counts(&args->box))
        g_string_append(text, " --gpus 1");
    if (args->box.sequence == 0 && args->profile == NULL)
        g_string_append_printf(text, " --sequence %u", query->tokens_per_sequence);
    if (args->batch == 0 && !(args->box.micro_batch != 0 && args->run.plan.micro_batches != 0))
        g_string_append_printf(text, " --batch %u", query->batch);
    if (text->len > 0)
        rp_report_line(report, "not given", "taken as%s", text->str);
    if (query->host_bytes == 0)
        rp_report_line(report, text->len > 0 ? "" : "not given",
                       "--host-memory: what the plan takes is told, not checked");
}

/* ---- what would help ---- */

static void
say_remedies(RpReport *report, const RpAdvice *advice)
{
    if (advice->best != NULL)
        return;
    rp_report_head(report, "%s would fit with one of these (each was planned)",
                   advice->instead != NULL ? "RoundPipe as asked" : "It");
    gboolean adapters = FALSE;

    for (guint i = 0; i < advice->remedies->len; i++) {
        const RpAdviseRemedy *remedy = g_ptr_array_index(advice->remedies, i);
        g_autofree char *words = rp_plan_remedy_words(remedy);
        g_autofree char *speed = rp_text_thousands(remedy->tokens_per_s);
        g_autofree char *gpu = gib(remedy->gpu_total);
        g_autofree char *host = gib(remedy->host_total);

        if (!adapters && remedy->changes & RP_ADVISE_CHANGE_ADAPTERS) {
            adapters = TRUE;
            rp_report_head(report, "%s adapters alone", i > 0 ? "Or train" : "Train");
        }
        rp_report_say(report, "  %-58s %s%s%s GiB a card, %s GiB of host memory", words,
                      remedy->tokens_per_s > 0 ? speed : "",
                      remedy->tokens_per_s > 0 ? " tokens/s, " : "", gpu, host);
    }
    if (advice->remedies->len == 0)
        rp_report_say(report, "  none that was tried: choose a smaller model");
}

void
rp_plan_say_answer(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question,
                   const RpAdviseRange *range)
{
    const RpAdviseRun *run = rp_plan_shown_run(advice);

    report->label_width = LABEL_WIDTH;
    say_sentence(report, advice, question);
    say_subject(report, advice, question);
    if (run->simulated) {
        say_duration(report, question, advice, run);
        report_servers(report, question, advice);
        say_faster(report, advice);
        say_waits(report, run, advice->query.batch, advice->query.sync);
        say_disk(report, advice, run);
    }
    say_assumed(report, advice, question, range);
    say_not_given(report, advice, question->args);
    say_remedies(report, advice);
}

/* ---- how ---- */

static void
say_saved(RpReport *report, const RpAdvice *advice, const RpAdviseRun *run)
{
    if (run->saved_bytes == 0)
        return;
    g_autofree char *bytes = rp_cli_format_bytes(run->saved_bytes);
    g_autofree char *what = rp_plan_saved_words(advice, run);
    g_autofree char *otherwise =
        run->recomputed_tokens_per_s > 0
            ? g_strdup_printf("; %.0f tokens/s%s where everything is recomputed",
                              run->recomputed_tokens_per_s,
                              run->options.replicas > 1 ? " in one group" : "")
            : g_strdup("");

    rp_report_line(report, "saved", "%s: %s a micro-batch in host memory%s", what, bytes,
                   otherwise);
}

void
rp_plan_say_recommendation(RpReport *report, const RpAdvice *advice)
{
    const RpAdviseRun *run = advice->best;
    const RpPlanOptions *options = &run->options;
    const RpPartition *partition = run->partition;
    const guint rounds = options->micro_batches / options->round;
    g_autofree char *forward =
        rp_cli_stage_list(advice->profile, partition->forward, partition->n_forward);
    g_autofree char *backward =
        rp_cli_stage_list(advice->profile, partition->backward, partition->n_backward);

    rp_report_head(report, "How (roundpipe, %s optimizer)",
                   options->async ? "asynchronous" : "synchronous");
    rp_report_line(report, "micro-batch", "%u sequence%s, %u micro-batches, %u round%s of M_R = %u",
                   run->sequences, run->sequences == 1 ? "" : "s", options->micro_batches, rounds,
                   rounds == 1 ? "" : "s", options->round);
    if (options->replicas > 1)
        rp_report_line(
            report, "replicas",
            "%u groups of %u cards, which take rounds in turn; %.0f tokens/s in one group",
            options->replicas, rp_plan_group_gpus(options), run->one_group_tokens_per_s);
    rp_report_line(report, "forward stages", "%s", forward);
    rp_report_line(report, "backward stages", "%s", backward);
    rp_report_line(
        report, "predicted", "%.0f tokens/s, %.3f s a step, bubble ratio %.2f %% (steady state)",
        run->tokens_per_s, (double)run->step_ns / (double)RP_NS_PER_S, 100 * run->bubble_ratio);
    if (run->resident_bytes > 0) {
        g_autofree char *stays = rp_cli_format_bytes(run->resident_bytes);

        g_autofree char *streamed =
            run->streamed_tokens_per_s > 0
                ? g_strdup_printf("%.0f tokens/s%s", run->streamed_tokens_per_s,
                                  options->replicas > 1 ? " in one group" : "")
                : g_strdup("nothing fits");

        rp_report_line(report, "resident",
                       "%s of frozen weights a card, uploaded once; %s with uploads in each round",
                       stays, streamed);
    }
    say_saved(report, advice, run);
    if (run->bound_tokens_per_s > 0)
        rp_report_line(report, "against",
                       "%.0f tokens/s in compute fidelity: no transfer, no optimizer",
                       run->bound_tokens_per_s);
    if (run->simulated_micro_batches < options->micro_batches)
        rp_report_line(report, "simulated", "from %u of %u micro-batches, scaled",
                       run->simulated_micro_batches, options->micro_batches);
}
