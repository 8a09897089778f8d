/*
 * roundpipe profile: how what was measured is printed.
 */
#include "cli/reports/profile.h"

#include <stdio.h>

#include "core/base/units.h"

/* Neighbours that are alike: blocks. Returns: how many, from @first on */
static guint
count_alike(const RpProfile *profile, guint first)
{
    guint n = 1;

    while (profile->layers[first].kind == RP_LAYER_BLOCK && first + n < profile->n_layers &&
           profile->layers[first + n].kind == RP_LAYER_BLOCK)
        n++;
    return n;
}

/* Of a backward stage that ends with @layer. */
static double
recompute_last_ms(const RpLayer *layer)
{
    return rp_ms_from_ns(layer->recompute_ns - rp_layer_saving_ns(layer));
}

static void
json_layers(RpJsonWriter *json, const RpProfile *profile)
{
    rp_json_array(json, "layers");
    for (guint l = 0, n; l < profile->n_layers; l += n) {
        const RpLayer *layer = &profile->layers[l];

        n = count_alike(profile, l);
        rp_json_object(json, NULL);
        rp_json_string(json, "kind", rp_layer_kind_name(layer->kind));
        rp_json_int(json, "count", n);
        rp_json_double(json, "forward_ms", rp_ms_from_ns(layer->forward_ns), 6);
        rp_json_double(json, "recompute_ms", rp_ms_from_ns(layer->recompute_ns), 6);
        rp_json_double(json, "recompute_last_ms", recompute_last_ms(layer), 6);
        rp_json_double(json, "backward_ms", rp_ms_from_ns(layer->backward_ns), 6);
        rp_json_double(json, "forward_spread_ms", rp_ms_from_ns(layer->forward_spread_ns), 6);
        rp_json_double(json, "recompute_spread_ms", rp_ms_from_ns(layer->recompute_spread_ns), 6);
        rp_json_double(json, "backward_spread_ms", rp_ms_from_ns(layer->backward_spread_ns), 6);
        rp_json_int(json, "parameter_bytes", (gint64)layer->parameter_bytes);
        rp_json_end(json);
    }
    rp_json_end(json);
}

/* Of copies at once, where they were measured. */
static void
json_sums(RpJsonWriter *json, const RpLinks *links)
{
    if (links->both_bytes_per_s > 0)
        rp_json_double(json, "both_gb_per_s", links->both_bytes_per_s / 1e9, 3);
    if (!(links->all_both_bytes_per_s > 0))
        return;
    rp_json_double(json, "all_h2d_gb_per_s", links->all_h2d_bytes_per_s / 1e9, 3);
    rp_json_double(json, "all_d2h_gb_per_s", links->all_d2h_bytes_per_s / 1e9, 3);
    rp_json_double(json, "all_both_gb_per_s", links->all_both_bytes_per_s / 1e9, 3);
}

void
rp_profile_print_json(const RpProfileReport *report)
{
    const RpProfile *profile = report->profile;
    const RpLinks *links = &profile->links;
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "model", profile->model);
    rp_json_string(json, "output", report->output);
    rp_json_string(json, "device", profile->device);
    rp_json_int(json, "devices", profile->gpus);
    rp_json_int(json, "processors", profile->processors);
    rp_json_string(json, "weights", report->given_weights ? "given" : "random");
    rp_json_string(json, "dtype", profile->dtype);
    rp_json_string(json, "accumulate", profile->accumulate);
    rp_json_string(json, "attention", profile->attention);
    rp_json_int(json, "head_chunk", profile->head_chunk);
    rp_json_int(json, "micro_batch_size", profile->sequences);
    rp_json_int(json, "sequence_length", profile->tokens_per_sequence);
    json_layers(json, profile);
    rp_json_double(json, "h2d_gb_per_s", links->h2d_bytes_per_s / 1e9, 3);
    rp_json_double(json, "d2h_gb_per_s", links->d2h_bytes_per_s / 1e9, 3);
    json_sums(json, links);
    if (links->gpus_per_root > 0) {
        rp_json_double(json, "root_gb_per_s", links->root_bytes_per_s / 1e9, 3);
        rp_json_int(json, "gpus_per_root", links->gpus_per_root);
    }
    rp_json_double(json, "copy_latency_ms", rp_ms_from_ns(links->copy_latency_ns), 6);
    rp_json_double(json, "host_gb_per_s", links->host_bytes_per_s / 1e9, 3);
    if (links->beside_optimizer_bytes_per_s > 0)
        rp_json_double(json, "beside_optimizer_gb_per_s", links->beside_optimizer_bytes_per_s / 1e9,
                       3);
    rp_json_int(json, "optimizer_threads", report->optimizer_threads);
    rp_json_double(json, "optimizer_parameters_per_s", profile->optimizer_parameters_per_s, 0);
    rp_json_double(json, "norm_parameters_per_s", profile->norm_parameters_per_s, 0);
    rp_json_double(json, "sum_parameters_per_s", profile->sum_parameters_per_s, 0);
    rp_json_double(json, "gradient_copy_parameters_per_s", profile->gradient_copy_parameters_per_s,
                   0);
    rp_json_double(json, "parameter_copy_parameters_per_s",
                   profile->parameter_copy_parameters_per_s, 0);
    if (profile->gpu_memory_bytes > 0)
        rp_json_int(json, "gpu_memory_bytes", (gint64)profile->gpu_memory_bytes);
    rp_json_end(json);
    rp_cli_print_json(json);
}

static void
print_rates(const RpProfileReport *report)
{
    const RpProfile *profile = report->profile;
    const RpLinks *links = &profile->links;

    printf("copies: %.1f GB/s up, %.1f GB/s down, ", links->h2d_bytes_per_s / 1e9,
           links->d2h_bytes_per_s / 1e9);
    if (links->both_bytes_per_s > 0)
        printf("%.1f GB/s both ways at once, ", links->both_bytes_per_s / 1e9);
    printf("alone; %.1f GB/s host memory; %.0f ns the smallest\n", links->host_bytes_per_s / 1e9,
           (double)links->copy_latency_ns);
    if (links->all_both_bytes_per_s > 0)
        printf("%u devices at once: %.1f GB/s up, %.1f GB/s down, %.1f GB/s both ways, together\n",
               profile->gpus, links->all_h2d_bytes_per_s / 1e9, links->all_d2h_bytes_per_s / 1e9,
               links->all_both_bytes_per_s / 1e9);
    if (links->gpus_per_root > 0)
        printf("%u devices share %.1f GB/s in each direction\n", links->gpus_per_root,
               links->root_bytes_per_s / 1e9);
    if (links->beside_optimizer_bytes_per_s > 0)
        printf("%.1f GB/s up, all together, beside the optimizer\n",
               links->beside_optimizer_bytes_per_s / 1e9);
    printf("optimizer: %.0f x 10^6 parameters/s, their norm %.0f, sums of rounds %.0f, copies of "
           "gradients %.0f, of weights %.0f, on %u thread%s; %u device%s",
           profile->optimizer_parameters_per_s / 1e6, profile->norm_parameters_per_s / 1e6,
           profile->sum_parameters_per_s / 1e6, profile->gradient_copy_parameters_per_s / 1e6,
           profile->parameter_copy_parameters_per_s / 1e6, report->optimizer_threads,
           report->optimizer_threads == 1 ? "" : "s", profile->gpus, profile->gpus == 1 ? "" : "s");
    if (profile->processors > 0)
        printf(" on %u processor%s\n", profile->processors, profile->processors == 1 ? "" : "s");
    else
        printf(" with %.1f GB each\n", (double)profile->gpu_memory_bytes / 1e9);
}

void
rp_profile_print(const RpProfileReport *report)
{
    const RpProfile *profile = report->profile;
    static const char *const columns[] = {"<layer", "count",   "forward ms",  "+-", "recompute ms",
                                          "+-",     "last ms", "backward ms", "+-", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    printf("%s, %s, sums in %s, %s attention, %u x %u tokens, %s weights: measured on one %s, "
           "alone\n",
           profile->model, profile->dtype, profile->accumulate, profile->attention,
           profile->sequences, profile->tokens_per_sequence,
           report->given_weights ? "given" : "random",
           report->host_memory ? "thread" : profile->device);
    for (guint l = 0, n; l < profile->n_layers; l += n) {
        const RpLayer *layer = &profile->layers[l];

        n = count_alike(profile, l);
        rp_cli_table_add(table, "%s", rp_layer_kind_name(layer->kind));
        rp_cli_table_add(table, "%u", n);
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(layer->forward_ns));
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(layer->forward_spread_ns));
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(layer->recompute_ns));
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(layer->recompute_spread_ns));
        rp_cli_table_add(table, "%.3f", recompute_last_ms(layer));
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(layer->backward_ns));
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(layer->backward_spread_ns));
    }
    rp_cli_table_print(table);
    printf("+-: half the range from the 10th to the 90th percentile; last: recompute of a stage's "
           "last block\n");
    print_rates(report);
    printf("written to %s\n", report->output);
}
