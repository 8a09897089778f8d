#include "cli/cli.h"
#include "core/catalogue/catalogue.h"

static void
add_gpu(RpReport *report, const RpGpu *gpu)
{
    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "name", gpu->name, "<name");
    rp_report_text(report, "title", gpu->title, "<GPU");
    rp_report_bytes(report, "memory_bytes", gpu->memory_bytes, "memory");
    rp_report_line(report, "TFLOP/s", "%g", gpu->fp32_accumulate_tflops);
    rp_report_real(report, "fp16_accumulate_tflops", gpu->fp16_accumulate_tflops, 3, "fp16 acc.");
    rp_report_real(report, "fp32_accumulate_tflops", gpu->fp32_accumulate_tflops, 3, NULL);
    rp_report_real(report, "fp8_tflops", gpu->fp8_tflops, 5, "fp8");
    if (gpu->fp8_tflops <= 0)
        rp_report_show(report, "-");
    rp_report_real(report, "fp8_fp16_accumulate_tflops", gpu->fp8_fp16_accumulate_tflops, 5,
                   "fp8 fp16 acc.");
    if (gpu->fp8_tflops <= 0)
        rp_report_show(report, "-");
    rp_report_real(report, "memory_gb_per_s", gpu->memory_gb_per_s, 3, "GB/s");
    rp_report_text(report, "interconnect", gpu->interconnect, "<links");
    rp_report_real(report, "interconnect_gb_per_s", gpu->interconnect_gb_per_s, 3, NULL);
    rp_report_real(report, "h2d_gb_per_s", gpu->h2d_gb_per_s, 3, "host GB/s u/d");
    rp_report_show(report, "%g/%g", gpu->h2d_gb_per_s, gpu->d2h_gb_per_s);
    rp_report_real(report, "d2h_gb_per_s", gpu->d2h_gb_per_s, 3, NULL);
    rp_report_count(report, "gpus_per_root", gpu->gpus_per_root, "root u/d");
    rp_report_show(report, "%u x %g", gpu->gpus_per_root, gpu->root_gb_per_s);
    rp_report_real(report, "root_gb_per_s", gpu->root_gb_per_s, 3, NULL);
    rp_report_real(report, "host_gb_per_s", gpu->host_gb_per_s, 3, "server");
    rp_report_real(report, "matmul_efficiency", gpu->matmul_efficiency, 4, NULL);
    rp_report_real(report, "attention_efficiency", gpu->attention_efficiency, 4, NULL);
    rp_report_real(report, "attention_backward_efficiency", gpu->attention_backward_efficiency, 4,
                   NULL);
    rp_report_real(report, "memory_efficiency", gpu->memory_efficiency, 4, NULL);
    rp_report_count(report, "expert_ns", gpu->expert_ns, NULL);
    rp_report_real(report, "optimizer_parameters_per_s", gpu->optimizer_parameters_per_s, 3, NULL);
    rp_report_text(report, "rates_source", gpu->rates_source, NULL);
    if (gpu->rates_shown != NULL)
        rp_report_text(report, "rates_shown", gpu->rates_shown, NULL);
    rp_report_real(report, "copy_gb_per_s", gpu->copy_gb_per_s, 5, NULL);
    rp_report_bool(report, "scaled", gpu->scaled, NULL);
    rp_report_bool(report, "measured", gpu->measured, NULL);
    rp_report_real(report, "grouped_efficiency", gpu->grouped_efficiency, 4, NULL);
    rp_report_real(report, "l2_mib", gpu->l2_mib, 1, NULL);
    rp_report_count(report, "processors", gpu->processors, NULL);
    rp_report_real(report, "clock_ghz", gpu->clock_ghz, 3, NULL);
    rp_report_bool(report, "foreign", gpu->foreign, NULL);
    rp_report_text(report, "basis", gpu->basis, "<times of layers");
    rp_report_show(report, "%s %s", gpu->measured ? "measured" : "derived from", gpu->basis);
    rp_report_end(report);
}

static gboolean
add_gpus(RpReport *report, char **words, GError **error)
{
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; *words == NULL && i < n; i++)
        add_gpu(report, &gpus[i]);
    for (char **word = words; *word != NULL; word++) {
        g_autoptr(RpGpu) gpu = rp_gpu_open(*word, error);

        if (gpu == NULL)
            return FALSE;
        add_gpu(report, gpu);
    }
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    rp_report_table(
        report, NULL,
        "fp8 fp16 acc.,links,times of layers,server,root u/d,fp8,fp16 acc.,host GB/s u/d", 0);
    if (!add_gpus(report, words, error))
        return FALSE;
    rp_report_end(report);
    rp_report_say(report,
                  "\nTFLOP/s: dense 16-bit matmul, fp32 accumulation, and with fp16 accumulation; "
                  "fp8: the same of 8 bits, as\ndata sheets have them: which rates users have "
                  "shown, and sources: --json; GB/s: device memory;\nhost: one GPU alone, up/down; "
                  "root: GPUs that share a "
                  "root complex x GB/s a direction;\nserver: host memory, all copies and the "
                  "optimizer together. Sources: core/catalogue/gpus.c");
    return TRUE;
}

const RpCommand rp_command_gpus = {
    .name = "gpus",
    .summary = "list the GPUs of the catalogue",
    .words = "[CARD...]",
    .help =
        "Lists the GPUs of the catalogue and the servers they usually stand in, or those named.\n"
        "CARD is a name or a card's FILE.json: an object of `roundpipe gpus --json`, changed.\n\n"
        "Example:\n  roundpipe gpus --json",
    .run = run,
};
