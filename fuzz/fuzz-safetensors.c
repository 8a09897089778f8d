/**
 * Reading a safetensors file, its index or a config neither crashes nor leaks, whatever the bytes;
 * a refusal is one line; accepted tensors cover the data without gap or overlap. Packed weights are
 * loaded and looked through.
 *
 * Text that starts with `{` goes to the readers of JSON files, anything else to that of tensors.
 */
#include "fuzz/harness.h"

#include "exec/lowbit/lowbit-file.h"
#include "exec/model/hf-config.h"
#include "exec/model/weights.h"
#include "exec/safetensors/private.h"

#define MAX_BLOCKS 64 /* larger configs' weights are not listed: nothing to gain from more */

/* The weight that @tensor may be a part of: the name up to one of the suffixes. */
static void
check_packed(const RpSafetensors *tensors, const RpSafetensor *tensor)
{
    static const char *const suffixes[] = {"", "_blocks", ".quant_state.bitsandbytes__nf4"};

    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GError) broken = NULL;
        RpLowbitSource source;

        if (!g_str_has_suffix(tensor->name, suffixes[i]))
            continue;
        g_autofree char *name = g_strndup(tensor->name, strlen(tensor->name) - strlen(suffixes[i]));
        const gboolean taken = rp_lowbit_source_find(tensors, name, &source, &error);
        if (!was_taken(taken, error) || !source.is_packed)
            continue;
        const RpLowbitShape shape = rp_lowbit_shape_of(source.shape, source.rank);
        const RpLowbitLayout layout = rp_lowbit_layout(source.format, shape);
        g_autofree guint8 *packed = g_malloc(layout.total);

        rp_lowbit_source_load(&source, packed, NULL);
        const gboolean sound =
            rp_lowbit_source_check(&source, packed, RP_DTYPE_FP16, NULL, &broken);
        (void)was_taken(sound, broken);
    }
}

static void
check_tensors(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RpSafetensors) tensors = rp_safetensors_parse("fuzz", data, size, &error);
    const guint8 *at = NULL;
    guint64 sum = 0;

    (void)was_taken(tensors != NULL, error);
    for (guint i = 0; tensors != NULL && i < rp_safetensors_count(tensors); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(tensors, i);
        const guint8 *bytes = tensor->data;
        g_assert(rp_safetensors_find(tensors, tensor->name) == tensor);
        g_assert(bytes >= data && bytes + tensor->bytes <= data + size);
        g_assert(at == NULL || bytes == at);
        at = bytes + tensor->bytes;
        for (guint64 j = 0; j < tensor->bytes; j++)
            sum += bytes[j];
        g_autofree char *text =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
        g_assert(text != NULL);
        check_packed(tensors, tensor);
    }
    g_assert(at == NULL || at == data + size);
    g_assert(sum <= 255 * (guint64)size);
}

static void
check_index(const char *text, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GHashTable) shards = rp_safetensors_parse_index("fuzz", text, size, &error);

    (void)was_taken(shards != NULL, error);
}

static void
check_config(const char *text, size_t size)
{
    g_autoptr(GError) error = NULL;
    RpModel config;
    RpModel again;
    gboolean taken = rp_hf_config_parse("fuzz", text, size, &config, &error);

    if (!was_taken(taken, error))
        return;
    g_autofree char *json = rp_hf_config_to_json(&config);
    taken = rp_hf_config_parse("again", json, strlen(json), &again, &error);
    g_assert_no_error(error);
    g_assert(taken);
    g_autofree char *same = rp_hf_config_to_json(&again);
    g_assert_cmpstr(json, ==, same);
    if (config.blocks <= MAX_BLOCKS) {
        g_autoptr(RpWeights) weights = rp_weights_new(&config);
        g_assert(rp_weights_elements(weights) > 0);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == '{') {
        check_index((const char *)data, size);
        check_config((const char *)data, size);
    } else {
        check_tensors(data, size);
    }
    return 0;
}
