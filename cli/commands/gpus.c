#include "cli/cli.h"

#include <stdio.h>

#include "core/catalogue/catalogue.h"

static void
json_gpu(RpJsonWriter *json, const RpGpu *gpu)
{
    rp_json_object(json, NULL);
    rp_json_string(json, "name", gpu->name);
    rp_json_string(json, "title", gpu->title);
    rp_json_int(json, "memory_bytes", (gint64)gpu->memory_bytes);
    rp_json_double(json, "fp16_accumulate_tflops", gpu->fp16_accumulate_tflops, 3);
    rp_json_double(json, "fp32_accumulate_tflops", gpu->fp32_accumulate_tflops, 3);
    rp_json_double(json, "memory_gb_per_s", gpu->memory_gb_per_s, 3);
    rp_json_string(json, "interconnect", gpu->interconnect);
    rp_json_double(json, "interconnect_gb_per_s", gpu->interconnect_gb_per_s, 3);
    rp_json_double(json, "h2d_gb_per_s", gpu->h2d_gb_per_s, 3);
    rp_json_double(json, "d2h_gb_per_s", gpu->d2h_gb_per_s, 3);
    rp_json_int(json, "gpus_per_root", gpu->gpus_per_root);
    rp_json_double(json, "root_gb_per_s", gpu->root_gb_per_s, 3);
    rp_json_double(json, "host_gb_per_s", gpu->host_gb_per_s, 3);
    rp_json_double(json, "matmul_efficiency", gpu->matmul_efficiency, 4);
    rp_json_double(json, "attention_efficiency", gpu->attention_efficiency, 4);
    rp_json_double(json, "attention_backward_efficiency", gpu->attention_backward_efficiency, 4);
    rp_json_double(json, "memory_efficiency", gpu->memory_efficiency, 4);
    rp_json_int(json, "expert_ns", gpu->expert_ns);
    rp_json_double(json, "optimizer_parameters_per_s", gpu->optimizer_parameters_per_s, 3);
    rp_json_bool(json, "measured", gpu->measured);
    rp_json_string(json, "basis", gpu->basis);
    rp_json_end(json);
}

static void
json_gpus(RpJsonWriter *json)
{
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++)
        json_gpu(json, &gpus[i]);
}

static void
add_row(RpCliTable *table, const RpGpu *gpu)
{
    g_autofree char *memory = rp_cli_format_bytes(gpu->memory_bytes);

    rp_cli_table_add(table, "%s", gpu->name);
    rp_cli_table_add(table, "%s", gpu->title);
    rp_cli_table_add(table, "%s", memory);
    rp_cli_table_add(table, "%g", gpu->fp32_accumulate_tflops);
    rp_cli_table_add(table, "%g", gpu->fp16_accumulate_tflops);
    rp_cli_table_add(table, "%g", gpu->memory_gb_per_s);
    rp_cli_table_add(table, "%s", gpu->interconnect);
    rp_cli_table_add(table, "%g/%g", gpu->h2d_gb_per_s, gpu->d2h_gb_per_s);
    rp_cli_table_add(table, "%u x %g", gpu->gpus_per_root, gpu->root_gb_per_s);
    rp_cli_table_add(table, "%g", gpu->host_gb_per_s);
    rp_cli_table_add(table, "%s %s", gpu->measured ? "measured" : "derived from", gpu->basis);
}

static void
print_table(void)
{
    static const char *const columns[] = {
        "<name",  "<GPU",          "memory",   "TFLOP/s", "fp16 acc.",        "GB/s",
        "<links", "host GB/s u/d", "root u/d", "server",  "<times of layers", NULL,
    };
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++)
        add_row(table, &gpus[i]);
    rp_cli_table_print(table);
    puts("\nTFLOP/s: dense 16-bit matmul, fp32 accumulation, and with fp16 accumulation; GB/s: "
         "device memory;\nhost: one GPU alone, up/down; root: GPUs that share a root complex x "
         "GB/s a direction;\nserver: host memory, all copies and the optimizer together. Sources: "
         "core/catalogue/gpus.c");
}

int
rp_cmd_gpus(int argc, char **argv)
{
    return rp_cli_list_catalogue(
        "gpus",
        "Lists the GPUs of the catalogue and the servers they usually stand in.\n\n"
        "Example:\n  roundpipe gpus --json",
        print_table, json_gpus, argc, argv);
}
