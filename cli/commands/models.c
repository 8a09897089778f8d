#include "cli/cli.h"
#include "core/catalogue/catalogue.h"

#define BYTES_16BIT 2

static void
add_model(RpReport *report, const RpModel *model)
{
    const RpArchitectureRow *row = &rp_architectures[model->architecture];
    const guint64 parameters = rp_model_parameters(model);

    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "name", model->name, "<model");
    rp_report_text(report, "hf_name", model->hf_name, NULL);
    rp_report_count(report, "parameters", parameters, "10^9 parameters");
    rp_report_show(report, "%.2f", (double)parameters / 1e9);
    rp_report_bytes(report, NULL, parameters * BYTES_16BIT, "16-bit");
    rp_report_count(report, "embedding_parameters", rp_model_layer_parameters(model, 0), NULL);
    rp_report_count(report, "block_parameters", rp_model_layer_parameters(model, 1), NULL);
    rp_report_count(report, "head_parameters", rp_model_layer_parameters(model, model->blocks + 1),
                    NULL);
    rp_report_count(report, "blocks", model->blocks, "blocks");
    rp_report_count(report, "hidden", model->hidden, "hidden");
    rp_report_count(report, "heads", model->heads, "heads");
    rp_report_show(report, "%u/%u x %u", model->heads, model->kv_heads, model->head_dim);
    rp_report_count(report, "kv_heads", model->kv_heads, NULL);
    rp_report_count(report, "head_size", model->head_dim, NULL);
    rp_report_count(report, "intermediate", model->intermediate, "MLP");
    rp_report_count(report, "experts", model->experts, "experts");
    if (model->experts > 1)
        rp_report_show(report, "%u of %u", model->active_experts, model->experts);
    else
        rp_report_show(report, "-");
    rp_report_count(report, "active_experts", model->active_experts, NULL);
    rp_report_bool(report, "fused_experts", row->fused_experts, NULL);
    rp_report_count(report, "vocabulary", model->vocab, "vocabulary");
    rp_report_bool(report, "tied", model->tied, "tied");
    rp_report_bool(report, "qk_norm", row->qk_norm, NULL);
    rp_report_bool(report, "attention_bias", model->attention_bias, NULL);
    rp_report_bool(report, "mlp_bias", model->mlp_bias, NULL);
    rp_report_bool(report, "sinks", row->sinks, NULL);
    rp_report_bool(report, "clamped_swiglu", row->clamped_swiglu, NULL);
    rp_report_count(report, "sliding_window", model->sliding_window, NULL);
    rp_report_count(report, "sliding_period", model->sliding_period, NULL);
    rp_report_text(report, "dtype", rp_dtype_name(model->dtype), NULL);
    rp_report_count(report, "max_positions", model->max_positions, "positions");
    rp_report_text(report, NULL, model->hf_name, "<Hugging Face");
    rp_report_end(report);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    guint n;
    const RpModel *models = rp_model_list(&n);

    rp_report_table(report, NULL,
                    "Hugging Face,tied,vocabulary,hidden,positions,MLP,16-bit,experts,heads", 0);
    for (guint i = 0; i < n; i++)
        add_model(report, &models[i]);
    rp_report_end(report);
    rp_report_say(report, "\nheads: queries/keys x size; MLP: of one expert; tied: the head "
                          "multiplies with the embedding matrix");
    return TRUE;
}

const RpCommand rp_command_models = {
    .name = "models",
    .summary = "list the models of the catalogue",
    .help = "Lists the models of the catalogue, smallest first.\n\n"
            "Example:\n  roundpipe models --json",
    .run = run,
};
