#include "cli/plan/plan.h"
#include "core/catalogue/catalogue.h"
#include "core/schedules/schedule.h"

#define BYTES_16BIT 2

/* ---- what training needs ---- */

/* The card with the least memory that takes @bytes of a plan; or %NULL. */
static const RpGpu *
least_card(guint64 bytes)
{
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n), *least = NULL;

    for (guint i = 0; i < n; i++)
        if (!gpus[i].foreign && rp_gpu_plan_bytes(gpus[i].memory_bytes) >= bytes &&
            (least == NULL || gpus[i].memory_bytes < least->memory_bytes))
            least = &gpus[i];
    return least;
}

/* Ways to train, and their members and cells. */
typedef struct {
    guint lora_rank;
    const char *gpu, *card, *host;
    const char *card_label, *host_label;
} Way;

static const Way ways[] = {
    {RP_PLAN_ADAPTER_RANK, "adapters_gpu_bytes", "adapters_card", "adapters_host_bytes",
     "<adapters on", "adapters, host"},
    {0, "full_gpu_bytes", "full_card", "full_host_bytes", "<all on", "all, host"},
};

/* The least card, and the plan that needs least of the host there. */
static gboolean
add_needs(const RpArgs *args, const RpModel *model, const Way *way, RpReport *report,
          GError **error)
{
    RpArgs words = *args;
    g_auto(RpPlanQuestion) question = {0};
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpAdviseRun) run = NULL;
    const RpScheduleOps *schedule = rp_schedule_find("roundpipe", error);

    words.model = (char *)model->name;
    words.box.gpu = (char *)rp_gpu_list(&(guint){0})->name; /* its times are not read */
    words.run.lora.rank = (int)way->lora_rank;
    if (schedule == NULL || !rp_plan_question_read(&words, NULL, &question, error))
        return FALSE;
    RpAdviseQuery *query = &question.query;

    query->gpu_bytes = 0; /* as much as it takes */
    profile = rp_advise_profile(query, 1, error);
    if (profile == NULL)
        return FALSE;
    run = rp_advise_run_new(query, schedule, 1, query->batch, query->batch);
    run->options.resident_limit = 0;
    if (!rp_advise_fit_least(query, profile, run))
        return rp_cli_refuse(error, "%s: %s", model->name, run->problem);
    const RpGpu *card = least_card(run->gpu.total);

    if (card != NULL) {
        query->gpu_bytes = rp_gpu_plan_bytes(card->memory_bytes);
        query->host_bytes = 1;
        rp_advise_fit_least(query, profile, run);
    }
    rp_report_bytes(report, way->gpu, run->gpu.total, NULL);
    rp_report_text(report, way->card, card != NULL ? card->title : NULL, way->card_label);
    rp_report_bytes(report, way->host, run->host.total, way->host_label);
    return TRUE;
}

/* ---- rows ---- */

static gboolean
add_model(const RpArgs *args, RpReport *report, const RpModel *model, GError **error)
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
    for (gsize w = 0; args->cards && w < G_N_ELEMENTS(ways); w++)
        if (!add_needs(args, model, &ways[w], report, error))
            return FALSE;
    rp_report_end(report);
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    guint n;
    const RpModel *models = rp_model_list(&n);

    rp_report_table(report, NULL,
                    "Hugging Face,tied,vocabulary,hidden,positions,MLP,16-bit,experts,heads", 0);
    for (guint i = 0; words[0] == NULL && i < n; i++)
        if (!add_model(args, report, &models[i], error))
            return FALSE;
    for (char **word = words; *word != NULL; word++) {
        const RpModel *model = rp_model_find(*word, error);

        if (model == NULL || !add_model(args, report, model, error))
            return FALSE;
    }
    rp_report_end(report);
    rp_report_say(report, "\nheads: queries/keys x size; MLP: of one expert; tied: the head "
                          "multiplies with the embedding matrix");
    if (args->cards)
        rp_report_say(report,
                      "adapters on, all on: the card with the least memory that trains adapters of "
                      "rank %d, or all weights,\nalone, 16 sequences of 2,048 tokens a step; host: "
                      "memory that this takes",
                      RP_PLAN_ADAPTER_RANK);
    return TRUE;
}

static const RpUse uses[] = {{"cards"}, {0}};

const RpCommand rp_command_models = {
    .name = "models",
    .summary = "list the models of the catalogue",
    .words = "[MODEL...]",
    .help = "Lists the models of the catalogue, smallest first, or those named.\n\n"
            "Example:\n  roundpipe models --cards",
    .uses = uses,
    .run = run,
};
