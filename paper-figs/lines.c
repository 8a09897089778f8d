/**
 * Throughput: against the number of GPUs (Figure 13) and the sequence length (Figure 14), predicted
 * lines beside published points.
 */
#include <math.h>

#include "core/base/units.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"
#include "paper-figs/paper.h"
#include "plots/table.h"

/* Figure 14: the tokens of an iteration, and of a micro-batch unless one sequence has more. */
#define ITERATION_TOKENS (512 * 2048)
#define MICRO_BATCH_TOKENS 8192
/* M_R of both figures: the published one is not known. */
#define MACHINE_ROUND 16

/* The partition that docs/results.md predicts with: published where there is one, else by the
 * paper's rule, as --partition paper finds it: a whole plan fits the card. */
static RpPartition *
partition_of(const RpProfile *profile, const char *model, const RpPlanOptions *options,
             GError **error)
{
    g_autoptr(RpTable) table = rp_table_published("published-schedules.csv");
    const guint row = rp_table_find(table, "schedule", "roundpipe", "model", model);

    if (row != RP_TABLE_NONE)
        return rp_paper_parse_partition(profile, rp_table_text(table, row, "partition"), error);
    return rp_partition_choose(profile, options, RP_PARTITION_PAPER, 0,
                               rp_profile_plan_bytes(profile), NULL, error);
}

/* Tokens per second in steady state, in rounds of 16. 0 = error. */
static double
throughput(const RpProfile *profile, const char *model, const char *file, guint gpus,
           guint micro_batches, RpFidelity fidelity, GPtrArray *commands, GError **error)
{
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", error),
        .gpus = gpus,
        .micro_batches = micro_batches,
        .round = MACHINE_ROUND,
        .async = TRUE,
        .fidelity = fidelity,
    };

    if (options.schedule == NULL)
        return 0;
    g_autoptr(RpPartition) partition = partition_of(profile, model, &options, error);
    if (partition == NULL)
        return 0;
    g_autoptr(RpPaperRun) run = rp_paper_simulate(profile, file, partition, &options, 0, error);
    if (run == NULL)
        return 0;
    if (commands != NULL)
        g_ptr_array_add(commands, g_strdup(run->command));
    return (double)micro_batches * (double)rp_profile_micro_batch_tokens(profile) *
           (double)RP_NS_PER_S / (double)run->steady.iteration_ns;
}

static double
published_throughput(const RpTable *table, const char *column, guint gpus)
{
    g_autofree char *server = g_strdup_printf("%ux4090", gpus);
    guint row = rp_table_find(table, "system", "roundpipe", "server", server);

    return row == RP_TABLE_NONE ? NAN : rp_table_number(table, row, column);
}

gboolean
rp_paper_figure_13(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    g_autoptr(RpTable) table = rp_table_published("published-throughput.csv");
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(RpLineChart) chart =
        rp_line_chart_new(name, "Figure 13: RoundPipe's throughput on 1 to 8 RTX 4090", "GPUs",
                          "throughput, tokens/s");
    double gpus[RP_PAPER_GPUS];
    double full[RP_PAPER_GPUS];
    double published[RP_PAPER_GPUS];
    double compute, apart = 0; /* the two fidelities' */

    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpPaperModel *model = &rp_paper_models[m];
        g_autofree char *file = rp_paper_profile_path(paper, model->name);
        const RpProfile *profile = rp_paper_profile(paper, model->name, error);

        if (profile == NULL)
            return FALSE;
        guint micro_batches = model->global_batch / profile->sequences;
        RpColour colour = rp_colour_of_model(model->name);
        for (guint n = 1; n <= RP_PAPER_GPUS; n++) {
            guint i = n - 1;

            gpus[i] = n;
            published[i] = published_throughput(table, model->column, n);
            full[i] = throughput(profile, model->name, file, n, micro_batches, RP_FIDELITY_FULL,
                                 commands, error);
            compute = full[i] <= 0 ? 0
                                   : throughput(profile, model->name, file, n, micro_batches,
                                                RP_FIDELITY_COMPUTE, commands, error);
            if (compute <= 0)
                return FALSE;
            apart = fmax(apart, fabs(full[i] / compute - 1));
        }
        rp_line_chart_add(chart, model->trained, colour, RP_LINE_SOLID, gpus, full, RP_PAPER_GPUS);
        rp_line_chart_add(chart, NULL, colour, RP_LINE_POINTS, gpus, published, RP_PAPER_GPUS);
    }
    rp_line_chart_explain(chart, "predicted", RP_LINE_SOLID);
    rp_line_chart_explain(chart, "published", RP_LINE_POINTS);
    rp_line_chart_set_log(chart, 2, 10);
    rp_line_chart_set_x_range(chart, 0.93, 8.6);
    rp_line_chart_set_y_range(chart, 300, 100000);
    rp_line_chart_set_tics_at_points(chart);
    rp_line_chart_set_subtitle(chart, "asynchronous; sequence length 2048, global batches of §5.1 "
                                      "in micro-batches of 4 sequences");
    g_autofree char *caption = g_strdup_printf(
        "Lines: predicted by our simulator in steady state, published partitions where there are "
        "any and else by the paper's rule, rounds of 16: the figures of docs/results.md. "
        "Full "
        "fidelity, with every transfer over links and host memory as the profile has them and "
        "the CPU optimizer; in compute fidelity, a fixed time per hop and nothing else, no point "
        "is "
        "more than %.1f %% away. "
        "Circles: published. Global batches 512, 256, 128, 128 and 64 sequences; the published "
        "runs' micro-batch sizes are not known, ours are 4 sequences.",
        100 * apart);
    rp_paper_add_lines(paper, figures, chart, caption, commands);
    return TRUE;
}

gboolean
rp_paper_figure_14(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    g_autoptr(RpTable) table = rp_table_published("published-sequence-sensitivity.csv");
    guint n = rp_table_n_rows(table);
    g_autofree double *lengths = g_new(double, n);
    g_autofree double *published = g_new(double, n);
    g_autofree double *predicted = g_new(double, n);
    const RpModel *model = rp_model_find("qwen3-1.7b", error);
    const RpGpu *gpu = model != NULL ? rp_gpu_find("rtx4090", error) : NULL;

    if (gpu == NULL)
        return FALSE;
    for (guint i = 0; i < n; i++) {
        lengths[i] = rp_table_number(table, i, "sequence_length");
        published[i] = rp_table_number(table, i, "tokens_per_s");
        guint tokens = (guint)lengths[i];
        RpWorkload workload = {.sequences = MAX(1, MICRO_BATCH_TOKENS / tokens),
                               .tokens_per_sequence = tokens,
                               .dtype = "fp16",
                               .accumulate = "fp16",
                               .gpus = RP_PAPER_GPUS,
                               .kernels = RP_COST_KERNELS_PYTORCH};
        g_autoptr(RpProfile) profile = rp_cost_model_profile(model, gpu, &workload, error);
        if (profile == NULL)
            return FALSE;
        predicted[i] = throughput(profile, model->name, "", RP_PAPER_GPUS,
                                  ITERATION_TOKENS / (workload.sequences * tokens),
                                  RP_FIDELITY_FULL, NULL, error);
        if (predicted[i] <= 0)
            return FALSE;
    }
    g_autoptr(RpLineChart) chart =
        rp_line_chart_new(name, "Figure 14: RoundPipe's throughput against sequence length",
                          "sequence length, "
                          "tokens",
                          "throughput, tokens/s");
    rp_line_chart_add(chart, "predicted", rp_colour_of_model(model->name), RP_LINE_SOLID, lengths,
                      predicted, n);
    rp_line_chart_add(chart, "published", rp_colour_of_model(model->name), RP_LINE_POINTS, lengths,
                      published, n);
    rp_line_chart_set_log(chart, 2, 0);
    rp_line_chart_set_tics_at_points(chart);
    rp_line_chart_set_x_range(chart, 420, 80000);
    rp_line_chart_set_subtitle(chart, "Qwen3-1.7B on 8 x RTX 4090, asynchronous");
    rp_paper_add_lines(
        paper, figures, chart,
        "Line: predicted, layer times from our cost model of the RTX 4090 (not from "
        "measured layers), simulated in steady state at full fidelity with 2^20 tokens per "
        "iteration, the published partition, rounds of 16, "
        "micro-batches of 8192 tokens or one sequence if it is longer. Points: published; "
        "their micro-batch sizes are not known.",
        NULL);
    return TRUE;
}
