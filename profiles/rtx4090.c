#include "profiles/rtx4090.h"

#include <gio/gio.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"

#define HEADER                                                                                     \
    "model,hf_name,block_count,block_forward_ms,block_backward_ms,head_forward_ms,"                \
    "head_backward_ms,hop_ms,micro_batch_tokens"
#define DATE "2026-04-29"
#define GPUS 8
/* Memory of the card, as the search for the published partitions took it. */
#define CARD_BYTES (24564 * RP_MIB)
#define SEQUENCES 4

enum {
    COLUMN_MODEL,
    COLUMN_HF_NAME,
    COLUMN_BLOCKS,
    COLUMN_BLOCK_FORWARD,
    COLUMN_BLOCK_BACKWARD,
    COLUMN_HEAD_FORWARD,
    COLUMN_HEAD_BACKWARD,
    COLUMN_HOP,
    COLUMN_TOKENS,
    N_COLUMNS
};

static gboolean
read_number(char **columns, guint column, double *value, GError **error)
{
    char *end = NULL;

    *value = g_ascii_strtod(columns[column], &end);
    if (end != columns[column] && *end == '\0' && isfinite(*value) && *value >= 0)
        return TRUE;
    g_set_error(error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
                "column %u: expected a number, found \"%s\"", column + 1, columns[column]);
    return FALSE;
}

static void
set_times(RpLayer *layer, double forward_ms, double backward_ms, gboolean lora)
{
    layer->forward_ns = rp_ns_from_ms(forward_ms);
    layer->recompute_ns = layer->forward_ns;
    layer->backward_ns = rp_ns_from_ms(backward_ms);
    layer->weight_gradient_ns = lora ? 0 : layer->backward_ns / 2;
}

static void
set_text(char **text, char *value)
{
    g_free(*text);
    *text = value;
}

/* Replaces the cost model's predictions by published times. */
static void
publish(RpProfile *profile, const char *hf_name, const double *values, gboolean lora)
{
    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];

        if (layer->kind == RP_LAYER_BLOCK)
            set_times(layer, values[COLUMN_BLOCK_FORWARD], values[COLUMN_BLOCK_BACKWARD], lora);
        else if (layer->kind == RP_LAYER_HEAD)
            set_times(layer, values[COLUMN_HEAD_FORWARD], values[COLUMN_HEAD_BACKWARD], lora);
        else
            set_times(layer, 0, 0, lora);
    }
    profile->links.hop_ns = rp_ns_from_ms(values[COLUMN_HOP]);
    set_text(&profile->source, g_strdup("published"));
    set_text(&profile->origin,
             g_strdup_printf("times and hop: RoundPipe's published layer times of %s on 8 x RTX "
                             "4090; sizes, links and memory: catalogue",
                             hf_name));
    set_text(&profile->date, g_strdup(DATE));
}

static RpProfile *
profile_from_columns(char **columns, GError **error)
{
    double values[N_COLUMNS] = {0};
    guint rank = 0;

    for (guint i = COLUMN_BLOCKS; i < N_COLUMNS; i++)
        if (!read_number(columns, i, &values[i], error))
            return NULL;
    const char *lora = strstr(columns[COLUMN_HF_NAME], "(LoRA r=");
    if (lora != NULL && sscanf(lora, "(LoRA r=%u)", &rank) != 1)
        return rp_null(rp_fail(error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA, "LoRA without a rank"));
    const RpModel *model = rp_model_find(columns[COLUMN_MODEL], error);
    const RpGpu *gpu = model != NULL ? rp_gpu_find("rtx4090", error) : NULL;
    if (gpu == NULL)
        return NULL;
    if (values[COLUMN_BLOCKS] != model->blocks)
        return rp_null(rp_fail(error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
                               "block_count: expected %u blocks for %s, found %g", model->blocks,
                               model->name, values[COLUMN_BLOCKS]));
    RpWorkload workload = {.sequences = SEQUENCES,
                           .tokens_per_sequence = (guint)(values[COLUMN_TOKENS] / SEQUENCES),
                           .dtype = "fp16",
                           .accumulate = "fp16",
                           .lora_rank = rank,
                           .gpus = GPUS,
                           .kernels = RP_COST_KERNELS_PYTORCH};
    RpProfile *profile = rp_cost_model_profile(model, gpu, &workload, error);
    if (profile != NULL) {
        publish(profile, columns[COLUMN_HF_NAME], values, rank > 0);
        profile->gpu_memory_bytes = CARD_BYTES;
    }
    return profile;
}

GPtrArray *
rp_rtx4090_profiles(const char *csv_path, GError **error)
{
    g_autofree char *text = NULL;

    if (!g_file_get_contents(csv_path, &text, NULL, error))
        return NULL;
    g_auto(GStrv) lines = g_strsplit(g_strchomp(text), "\n", -1);
    if (strcmp(g_strchomp(lines[0]), HEADER) != 0)
        return rp_null(rp_fail(error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
                               "%s: line 1: expected %s", csv_path, HEADER));
    g_autoptr(GPtrArray) profiles = g_ptr_array_new_with_free_func((GDestroyNotify)rp_profile_free);
    for (guint i = 1; lines[i] != NULL; i++) {
        g_auto(GStrv) columns = g_strsplit(g_strchomp(lines[i]), ",", -1);
        if (g_strv_length(columns) != N_COLUMNS)
            return rp_null(rp_fail(error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
                                   "%s: line %u: expected %d columns, found %u", csv_path, i + 1,
                                   N_COLUMNS, g_strv_length(columns)));
        RpProfile *profile = profile_from_columns(columns, error);
        if (profile == NULL)
            return rp_null(rp_prefix_error(error, "%s: line %u: ", csv_path, i + 1));
        g_ptr_array_add(profiles, profile);
    }
    return g_steal_pointer(&profiles);
}
