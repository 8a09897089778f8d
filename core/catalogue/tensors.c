/**
 * The weight tensors of each layer kind, named as in Hugging Face files.
 *
 * h hidden, a heads, k key-value heads, d head size, m intermediate, E experts, V vocabulary.
 */
#include "core/catalogue/catalogue.h"

#include <string.h>

typedef struct {
    GArray *tensors;
    guint lora_rank;
} List;

static void
add(List *list, const char *name, guint matrices, guint rows, guint columns)
{
    RpTensor tensor = {.name = g_intern_string(name),
                       .matrices = matrices,
                       .rows = rows,
                       .columns = columns,
                       .elements = (guint64)matrices * rows * columns,
                       .trained = list->lora_rank == 0};

    g_array_append_val(list->tensors, tensor);
}

static void
add_vector(List *list, const char *name, guint length)
{
    add(list, name, 1, length, 1);
}

/* `<name>.weight` of a linear layer, and `<name>.bias`. */
static void
add_linear(List *list, const char *name, guint rows, guint columns, gboolean bias)
{
    g_autofree char *weight = g_strconcat(name, ".weight", NULL);

    add(list, weight, 1, rows, columns);
    if (bias) {
        g_autofree char *bias_name = g_strconcat(name, ".bias", NULL);
        add_vector(list, bias_name, rows);
    }
}

static void
add_attention(List *list, const RpModel *model)
{
    guint h = model->hidden;
    guint ad = model->heads * model->head_size;
    guint kd = model->kv_heads * model->head_size;
    gboolean bias = model->attention_bias;

    add_linear(list, "self_attn.q_proj", ad, h, bias);
    add_linear(list, "self_attn.k_proj", kd, h, bias);
    add_linear(list, "self_attn.v_proj", kd, h, bias);
    add_linear(list, "self_attn.o_proj", h, ad, bias);
    if (model->qk_norm) {
        add_vector(list, "self_attn.q_norm.weight", model->head_size);
        add_vector(list, "self_attn.k_norm.weight", model->head_size);
    }
    if (model->sinks)
        add_vector(list, "self_attn.sinks", model->heads);
}

static void
add_fused_experts(List *list, const RpModel *model)
{
    guint h = model->hidden;
    guint m = model->intermediate;
    guint experts = model->experts;

    add_linear(list, "mlp.router", experts, h, model->mlp_bias);
    add(list, "mlp.experts.gate_up_proj", experts, h, 2 * m);
    if (model->mlp_bias)
        add(list, "mlp.experts.gate_up_proj_bias", experts, 2 * m, 1);
    add(list, "mlp.experts.down_proj", experts, m, h);
    if (model->mlp_bias)
        add(list, "mlp.experts.down_proj_bias", experts, h, 1);
}

static void
add_mlp(List *list, const RpModel *model)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};

    if (model->fused_experts) {
        add_fused_experts(list, model);
        return;
    }
    if (model->experts > 1)
        add_linear(list, "mlp.gate", model->experts, model->hidden, model->mlp_bias);
    for (guint i = 0; i < model->experts; i++) {
        for (guint j = 0; j < G_N_ELEMENTS(names); j++) {
            gboolean down = j == 2;
            g_autofree char *name = model->experts > 1
                                        ? g_strdup_printf("mlp.experts.%u.%s", i, names[j])
                                        : g_strdup_printf("mlp.%s", names[j]);
            add_linear(list, name, down ? model->hidden : model->intermediate,
                       down ? model->intermediate : model->hidden, model->mlp_bias);
        }
    }
}

/* Adapters of the linear layers listed so far. */
static void
add_adapters(List *list, const RpModel *model)
{
    guint n_base = list->tensors->len;
    guint rank = list->lora_rank;

    list->lora_rank = 0; /* what is added from here on is trained */
    for (guint i = 0; i < n_base; i++) {
        RpTensor base = g_array_index(list->tensors, RpTensor, i);
        gboolean attention = g_str_has_prefix(base.name, "self_attn.");

        if (!g_str_has_suffix(base.name, "_proj.weight") || (model->experts > 1 && !attention))
            continue;
        g_autofree char *stem = g_strndup(base.name, strlen(base.name) - strlen(".weight"));
        g_autofree char *a_name = g_strconcat(stem, ".lora_A.weight", NULL);
        g_autofree char *b_name = g_strconcat(stem, ".lora_B.weight", NULL);
        add(list, a_name, 1, rank, base.columns);
        add(list, b_name, 1, base.rows, rank);
    }
}

GArray *
rp_model_tensors(const RpModel *model, RpLayerKind kind, guint lora_rank)
{
    g_return_val_if_fail(model, NULL);

    List list = {g_array_new(FALSE, FALSE, sizeof(RpTensor)), lora_rank};
    switch (kind) {
    case RP_LAYER_EMBEDDING:
        add_linear(&list, "embed_tokens", model->vocabulary, model->hidden, FALSE);
        break;
    case RP_LAYER_BLOCK:
        add_vector(&list, "input_layernorm.weight", model->hidden);
        add_attention(&list, model);
        add_vector(&list, "post_attention_layernorm.weight", model->hidden);
        add_mlp(&list, model);
        if (lora_rank > 0)
            add_adapters(&list, model);
        break;
    case RP_LAYER_HEAD:
        add_vector(&list, "norm.weight", model->hidden);
        add_linear(&list, "lm_head", model->vocabulary, model->hidden, FALSE);
        break;
    }
    return list.tensors;
}

guint64
rp_model_layer_parameters(const RpModel *model, RpLayerKind kind)
{
    g_autoptr(GArray) tensors = rp_model_tensors(model, kind, 0);
    guint64 sum = 0;

    for (guint i = 0; i < tensors->len; i++)
        sum += g_array_index(tensors, RpTensor, i).elements;
    return sum;
}

guint64
rp_model_parameters(const RpModel *model)
{
    guint64 sum = rp_model_layer_parameters(model, RP_LAYER_EMBEDDING) +
                  model->blocks * rp_model_layer_parameters(model, RP_LAYER_BLOCK) +
                  rp_model_layer_parameters(model, RP_LAYER_HEAD);

    return model->tied ? sum - (guint64)model->vocabulary * model->hidden : sum;
}
