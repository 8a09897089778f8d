/**
 * Reading adapters neither crashes nor leaks, whatever the bytes; a refusal is one line. Text up to
 * the first NUL is adapter_config.json; the rest is adapter_model.safetensors, for a tiny mixture
 * of experts. Accepted adapters have finite sizes and can be read to their last element, and the
 * config that is written of them is read again.
 */
#include "fuzz/harness.h"

#include "exec/adapter/adapter.h"
#include "exec/safetensors/private.h"

#define CONFIG                                                                                     \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", "               \
    "\"dtype\": \"float32\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "                       \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "                    \
    "\"intermediate_size\": 8, \"moe_intermediate_size\": 4, \"num_experts\": 2, "                 \
    "\"num_experts_per_tok\": 1, \"norm_topk_prob\": true, \"vocab_size\": 16, "                   \
    "\"max_position_embeddings\": 16}"
#define MOST_RANK 64 /* adapters made are no larger: nothing to gain from more */

typedef struct {
    RpModel config;
    GByteArray *file;
    RpSafetensors *tensors;
} Base;

/* A model of zeros, as a file. */
static const Base *
get_base(void)
{
    static Base base;
    g_autoptr(GError) error = NULL;
    guint64 at = 0;

    if (base.tensors != NULL)
        return &base;
    g_assert(rp_hf_config_parse("fuzz", CONFIG, strlen(CONFIG), &base.config, &error));
    g_autoptr(RpWeights) weights = rp_weights_new(&base.config);
    g_autoptr(GString) header = g_string_new("{");

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const guint64 end = at + 4 * weight->elements;

        g_string_append_printf(header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", i > 0 ? "," : "",
                               weight->name);
        for (guint d = 0; d < weight->rank; d++)
            g_string_append_printf(header, "%s%" G_GUINT64_FORMAT, d > 0 ? "," : "",
                                   weight->shape[d]);
        g_string_append_printf(
            header, "],\"data_offsets\":[%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT "]}", at, end);
        at = end;
    }
    g_string_append_c(header, '}');
    while (header->len % 8 != 0)
        g_string_append_c(header, ' ');
    const guint64 length = GUINT64_TO_LE((guint64)header->len);

    base.file = g_byte_array_new();
    g_byte_array_append(base.file, (const guint8 *)&length, sizeof length);
    g_byte_array_append(base.file, (const guint8 *)header->str, (guint)header->len);
    const guint before = base.file->len;

    g_byte_array_set_size(base.file, before + (guint)at);
    memset(base.file->data + before, 0, at);
    base.tensors = rp_safetensors_parse("base", base.file->data, base.file->len, &error);
    g_assert_no_error(error);
    return &base;
}

static void
check_config(const RpWeights *weights)
{
    g_autofree char *text = rp_adapter_config_text(weights, "base");
    g_autoptr(GError) error = NULL;
    RpLora again;

    g_assert(rp_adapter_config_parse("again", text, strlen(text), &again, &error));
    rp_lora_clear(&again);
}

static void
check_tensors(RpWeights *weights, const guint8 *data, gsize size)
{
    g_autoptr(GError) error = NULL, unbound = NULL;
    g_autoptr(RpSafetensors) file = rp_safetensors_parse("fuzz", data, size, &error);

    if (!was_taken(file != NULL, error))
        return;
    const gboolean bound = rp_adapter_bind(weights, file, &unbound);

    for (guint i = 0; was_taken(bound, unbound) && i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        g_autofree float *values = g_new(float, weight->elements);

        rp_weights_read(weights, i, 0, values, (gsize)weight->elements);
        rp_weights_read(weights, i, weight->elements - 1, values, 1);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const Base *base = get_base();
    const gsize n_config = strnlen((const char *)data, size);
    g_autofree char *config = g_strndup((const char *)data, n_config);
    g_autoptr(GError) error = NULL;
    RpLora lora;
    const gboolean taken = rp_adapter_config_parse("fuzz", config, n_config, &lora, &error);

    if (!was_taken(taken, error)) {
        g_assert(g_str_has_prefix(error->message, "fuzz"));
        return 0;
    }
    if (lora.rank <= MOST_RANK) {
        g_autoptr(RpWeights) weights = rp_weights_new_adapted(&base->config, &lora);

        g_assert(rp_weights_bind(weights, base->tensors, &error));
        check_config(weights);
        if (n_config < size)
            check_tensors(weights, data + n_config + 1, size - n_config - 1);
    }
    rp_lora_clear(&lora);
    return 0;
}
