#include "cli/cli.h"

#include <stdio.h>

#include "core/catalogue/catalogue.h"

#define BYTES_16BIT 2

static void
json_model(RpJsonWriter *json, const RpModel *model)
{
    const RpArchitectureRow *row = &rp_architectures[model->architecture];

    rp_json_object(json, NULL);
    rp_json_string(json, "name", model->name);
    rp_json_string(json, "hf_name", model->hf_name);
    rp_json_int(json, "parameters", (gint64)rp_model_parameters(model));
    rp_json_int(json, "embedding_parameters", (gint64)rp_model_layer_parameters(model, 0));
    rp_json_int(json, "block_parameters", (gint64)rp_model_layer_parameters(model, 1));
    rp_json_int(json, "head_parameters",
                (gint64)rp_model_layer_parameters(model, model->blocks + 1));
    rp_json_int(json, "blocks", model->blocks);
    rp_json_int(json, "hidden", model->hidden);
    rp_json_int(json, "heads", model->heads);
    rp_json_int(json, "kv_heads", model->kv_heads);
    rp_json_int(json, "head_size", model->head_dim);
    rp_json_int(json, "intermediate", model->intermediate);
    rp_json_int(json, "experts", model->experts);
    rp_json_int(json, "active_experts", model->active_experts);
    rp_json_bool(json, "fused_experts", row->fused_experts);
    rp_json_int(json, "vocabulary", model->vocab);
    rp_json_bool(json, "tied", model->tied);
    rp_json_bool(json, "qk_norm", row->qk_norm);
    rp_json_bool(json, "attention_bias", model->attention_bias);
    rp_json_bool(json, "mlp_bias", model->mlp_bias);
    rp_json_bool(json, "sinks", row->sinks);
    rp_json_bool(json, "clamped_swiglu", row->clamped_swiglu);
    rp_json_int(json, "sliding_window", model->sliding_window);
    rp_json_int(json, "sliding_period", model->sliding_period);
    rp_json_string(json, "dtype", rp_dtype_name(model->dtype));
    rp_json_int(json, "max_positions", model->max_positions);
    rp_json_end(json);
}

static void
json_models(RpJsonWriter *json)
{
    guint n;
    const RpModel *models = rp_model_list(&n);

    for (guint i = 0; i < n; i++)
        json_model(json, &models[i]);
}

static void
add_row(RpCliTable *table, const RpModel *model)
{
    guint64 parameters = rp_model_parameters(model);
    g_autofree char *bytes = rp_cli_format_bytes(parameters * BYTES_16BIT);

    rp_cli_table_add(table, "%s", model->name);
    rp_cli_table_add(table, "%.2f", (double)parameters / 1e9);
    rp_cli_table_add(table, "%s", bytes);
    rp_cli_table_add(table, "%u", model->blocks);
    rp_cli_table_add(table, "%u", model->hidden);
    rp_cli_table_add(table, "%u/%u x %u", model->heads, model->kv_heads, model->head_dim);
    rp_cli_table_add(table, "%u", model->intermediate);
    if (model->experts > 1)
        rp_cli_table_add(table, "%u of %u", model->active_experts, model->experts);
    else
        rp_cli_table_add(table, "-");
    rp_cli_table_add(table, "%u", model->vocab);
    rp_cli_table_add(table, "%s", model->tied ? "yes" : "no");
    rp_cli_table_add(table, "%u", model->max_positions);
    rp_cli_table_add(table, "%s", model->hf_name);
}

static void
print_table(void)
{
    static const char *const columns[] = {
        "<model",  "10^9 parameters", "16-bit", "blocks",    "hidden",        "heads", "MLP",
        "experts", "vocabulary",      "tied",   "positions", "<Hugging Face", NULL,
    };
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);
    guint n;
    const RpModel *models = rp_model_list(&n);

    for (guint i = 0; i < n; i++)
        add_row(table, &models[i]);
    rp_cli_table_print(table);
    puts("\nheads: queries/keys x size; MLP: of one expert; tied: the head multiplies with the "
         "embedding matrix");
}

int
rp_cmd_models(int argc, char **argv)
{
    return rp_cli_list_catalogue("models",
                                 "Lists the models of the catalogue, smallest first.\n\n"
                                 "Example:\n  roundpipe models --json",
                                 print_table, json_models, argc, argv);
}
