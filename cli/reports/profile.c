/* Reports of measured layers, links and rates of the host, and of the build and GPUs that were measured. */
#include "cli/reports/reports.h"

#include "exec/cuda/runtime/device.h"
#include "plots/gnuplot.h"

/* (transfer full) (nullable) */
static char *
driver_version(void)
{
    char *text = NULL;

    if (g_file_get_contents("/sys/module/nvidia/version", &text, NULL, NULL))
        g_strstrip(text);
    return text;
}

void
rp_report_built(RpReport *report, const RpDeviceOps *gpus)
{
    const gboolean cudnn = gpus != NULL && gpus->kernels()->has_attention(RP_ATTENTION_CUDNN);
    const gboolean draws = rp_gnuplot_check_formats(RP_PICTURE_PNG, NULL);
    g_autofree char *driver = driver_version();

    rp_report_text(report, "gpu_code", rp_cuda_built_text(), "GPU code");
    rp_report_bool(report, "cudnn", cudnn, "cuDNN attention");
    rp_report_text(report, "driver", driver, "GPU driver");
    rp_report_bool(report, "gnuplot", draws, "gnuplot");
}

void
rp_report_gpus(RpReport *report, guint n, GPtrArray *problems)
{
    rp_report_table(report, "gpus", NULL, 0);
    for (guint g = 0; g < n; g++) {
        g_autoptr(GError) error = NULL;
        RpCudaDeviceInfo info;

        if (!rp_cuda_device_info(g, &info, &error)) {
            g_ptr_array_add(problems, g_strdup_printf("GPU %u: %s", g, error->message));
            continue;
        }
        rp_report_object(report, NULL, NULL);
        rp_report_count(report, "gpu", g, "GPU");
        rp_report_text(report, "name", info.name, "<name");
        rp_report_bytes(report, "memory_bytes", info.memory_bytes, "memory");
        rp_report_bytes(report, "free_bytes", info.free_bytes, "free");
        rp_report_count(report, "compute_capability", info.sm, "compute capability");
        rp_report_end(report);
    }
    rp_report_end(report);
}

/* Layers of one class have the times of its first. Returns: how many there are, or 0 of one that is
 * not the first */
static guint
count_alike(const RpProfile *profile, guint layer)
{
    const RpLayer *layers = profile->layers, *one = &layers[layer];
    guint n = 0;

    for (guint l = 0; l < profile->n_layers; l++)
        if (layers[l].kind == one->kind && layers[l].forward_ns == one->forward_ns &&
            layers[l].backward_ns == one->backward_ns && n++ == 0 && l < layer)
            return 0;
    return n;
}

void
rp_report_profile_layers(RpReport *report, const RpProfile *profile)
{
    rp_report_table(report, "layers", "+-,last ms,count", 0);
    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];
        const guint n = count_alike(profile, l);

        if (n == 0)
            continue;
        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "kind", rp_layer_kind_name(layer->kind), "<layer");
        rp_report_count(report, "count", n, "count");
        rp_report_ms(report, "forward_ms", layer->forward_ns, "forward ms");
        rp_report_ms(report, NULL, layer->forward_spread_ns, "+-");
        rp_report_ms(report, "recompute_ms", layer->recompute_ns, "recompute ms");
        rp_report_ms(report, NULL, layer->recompute_spread_ns, "+-");
        /* of a backward stage that ends with the layer */
        rp_report_ms(report, "recompute_last_ms", layer->recompute_ns - rp_layer_saving_ns(layer),
                     "last ms");
        rp_report_ms(report, "backward_ms", layer->backward_ns, "backward ms");
        rp_report_ms(report, "forward_spread_ms", layer->forward_spread_ns, NULL);
        rp_report_ms(report, "recompute_spread_ms", layer->recompute_spread_ns, NULL);
        rp_report_ms(report, "backward_spread_ms", layer->backward_spread_ns, "+-");
        rp_report_count(report, "parameter_bytes", (gint64)layer->parameter_bytes, NULL);
        if (layer->upload_bytes > 0) {
            rp_report_count(report, "upload_bytes", (gint64)layer->upload_bytes, NULL);
            rp_report_ms(report, "expand_ms", layer->expand_ns, "expand ms");
        }
        rp_report_end(report);
    }
    rp_report_end(report);
    if (profile->alone_speed > 0)
        rp_report_real(report, "alone_speed", profile->alone_speed, 4, "faster alone");
    rp_report_say(report, "+-: half the range from the 10th to the 90th percentile; last: "
                          "recompute of a stage's last block");
}

static void
add_gb(RpReport *report, const char *key, double bytes_per_s, const char *label)
{
    rp_report_real(report, key, bytes_per_s / 1e9, 3, label);
    rp_report_show(report, "%.1f GB/s", bytes_per_s / 1e9);
}

/* Rates of copies at once, if they were measured. */
void
rp_report_profile_links(RpReport *report, const RpLinks *links)
{
    add_gb(report, "h2d_gb_per_s", links->h2d_bytes_per_s, "copies up");
    add_gb(report, "d2h_gb_per_s", links->d2h_bytes_per_s, "copies down");
    if (links->both_bytes_per_s > 0)
        add_gb(report, "both_gb_per_s", links->both_bytes_per_s, "both ways at once");
    if (links->all_both_bytes_per_s > 0) {
        add_gb(report, "all_h2d_gb_per_s", links->all_h2d_bytes_per_s, "all devices, up");
        add_gb(report, "all_d2h_gb_per_s", links->all_d2h_bytes_per_s, "all devices, down");
        add_gb(report, "all_both_gb_per_s", links->all_both_bytes_per_s, "all, both ways");
    }
    if (links->gpus_per_root > 0) {
        add_gb(report, "root_gb_per_s", links->root_bytes_per_s, "shared");
        rp_report_count(report, "gpus_per_root", links->gpus_per_root, "  by devices");
    }
    rp_report_ms(report, "copy_latency_ms", links->copy_latency_ns, "smallest copy");
    rp_report_show(report, "%.0f ns", (double)links->copy_latency_ns);
    add_gb(report, "host_gb_per_s", links->host_bytes_per_s, "host memory");
    if (links->beside_optimizer_bytes_per_s > 0)
        add_gb(report, "beside_optimizer_gb_per_s", links->beside_optimizer_bytes_per_s,
               "beside optimizer");
}

void
rp_report_profile_optimizer(RpReport *report, const RpProfile *profile, guint threads)
{
    const struct {
        const char *key;
        double parameters_per_s;
        const char *label;
    } rates[] = {
        {"optimizer_parameters_per_s", profile->optimizer_parameters_per_s, "optimizer"},
        {"norm_parameters_per_s", profile->norm_parameters_per_s, "norm"},
        {"sum_parameters_per_s", profile->sum_parameters_per_s, "sums of rounds"},
        {"gradient_copy_parameters_per_s", profile->gradient_copy_parameters_per_s,
         "gradient copies"},
        {"parameter_copy_parameters_per_s", profile->parameter_copy_parameters_per_s,
         "weight copies"},
    };

    rp_report_count(report, "optimizer_threads", threads, "threads");
    for (guint i = 0; i < G_N_ELEMENTS(rates); i++) {
        rp_report_real(report, rates[i].key, rates[i].parameters_per_s, 0, rates[i].label);
        rp_report_show(report, "%.0f x 10^6 parameters/s", rates[i].parameters_per_s / 1e6);
    }
    if (profile->gpu_memory_bytes > 0)
        rp_report_bytes(report, "gpu_memory_bytes", profile->gpu_memory_bytes, "GPU memory");
}

void
rp_report_profile_subject(RpReport *report, const RpProfile *profile, const char *output,
                          const char *weights)
{
    rp_report_text(report, "model", profile->model, NULL);
    rp_report_text(report, "output", output, NULL);
    rp_report_text(report, "device", profile->device, NULL);
    rp_report_count(report, "devices", profile->gpus, "devices");
    rp_report_count(report, "processors", profile->processors, "processors");
    rp_report_text(report, "weights", weights, NULL);
    rp_report_text(report, "dtype", profile->dtype, NULL);
    rp_report_text(report, "accumulate", profile->accumulate, NULL);
    rp_report_text(report, "attention", profile->attention, NULL);
    rp_report_count(report, "head_chunk", profile->head_chunk, NULL);
    rp_report_count(report, "micro_batch_size", profile->sequences, NULL);
    rp_report_count(report, "sequence_length", profile->tokens_per_sequence, NULL);
}
