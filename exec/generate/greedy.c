#include "exec/generate/greedy.h"

#include <string.h>

#include "core/base/units.h"
#include "exec/system/memory-limit.h"

G_DEFINE_QUARK(rp_generate_error, rp_generate_error)

#define ALIGNMENT 256

struct _RpGreedy {
    RpModel config;
    RpNetwork *network;
    RpWeights *weights; /* a list of our own, unbound */
    guint sequences;
    guint tokens; /* of a sequence */
    guint8 *parameters;
    guint8 *constants;
    guint8 *workspace;
    gint32 *ids;   /* [sequences][tokens] */
    gint32 *rows;  /* [sequences]: of the last token of each */
    float *logits; /* [vocabulary], of a row */
};

static guint8 *
aligned(guint64 bytes)
{
    return g_aligned_alloc0((gsize)MAX(1, bytes), 1, ALIGNMENT);
}

/* As the planner has it: two hidden states and the largest scratch of a layer. */
static guint64
workspace_bytes(const RpGreedy *greedy)
{
    g_autoptr(RpProfile) sizes = rp_network_profile(greedy->network);
    guint64 scratch = 0;

    for (guint l = 0; l < sizes->n_layers; l++)
        scratch = MAX(scratch, sizes->layers[l].forward_workspace_bytes);
    return scratch + 2 * rp_align_up(rp_network_hidden_bytes(greedy->network), ALIGNMENT);
}

/* Elements that are read at a time. */
#define PIECE ((guint64)65536)

/* Adapters may be stored wider than what they run in, experts packed. */
static void
store(const RpWeights *weights, guint index, RpDtype storage, guint8 *at)
{
    const guint64 n = rp_weights_nth(weights, index)->elements;
    g_autofree float *wide = g_new(float, PIECE);

    for (guint64 first = 0; first < n; first += PIECE) {
        const gsize some = (gsize)MIN(PIECE, n - first);

        rp_weights_read(weights, index, first, wide, some);
        rp_dtype_from_float(storage, wide, at + first * rp_dtype_size(storage), some);
    }
}

/* All of what is packed as one: of a stack the first stands for it. */
static void
expand(const RpWeights *weights, guint index, const RpWeightPlace *place, guint8 *at)
{
    const gsize bytes = rp_lowbit_layout(place->format, place->packed_shape).total;
    void *packed = g_aligned_alloc(1, bytes, RP_LOWBIT_ALIGNMENT);

    rp_lowbit_source_load(rp_weights_packed(weights, index), packed, NULL);
    rp_lowbit_expand(place->format, place->packed_shape, packed, place->storage, 0,
                     rp_lowbit_elements(place->packed_shape), at);
    g_aligned_free(packed);
}

/* Each weight to its place: a tied head has a copy of its own. */
static void
load(RpGreedy *greedy, const RpWeights *weights)
{
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpLayerLayout *layout = rp_network_layout(greedy->network, weight->layer);
        const RpWeightPlace place = rp_layout_place(layout, weight);

        guint8 *at = greedy->parameters + layout->first_byte + place.byte;

        if (!place.is_packed)
            store(weights, i, place.storage, at);
        else if (weight->offset == 0)
            expand(weights, i, &place, at);
    }
}

static gboolean
check_memory(guint64 bytes, GError **error)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (bytes < limit.bytes)
        return TRUE;
    g_autofree char *what = rp_memory_limit_describe(&limit);

    g_set_error(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_MEMORY,
                "host memory: the model and its workspace need %" G_GUINT64_FORMAT
                " bytes, there are %" G_GUINT64_FORMAT
                ": use a machine with more memory; the limit is %s",
                bytes, limit.bytes, what);
    return FALSE;
}

RpGreedy *
rp_greedy_new(const RpModel *config, const RpWeights *weights, const RpKernels *kernels,
              guint sequences, guint tokens, GError **error)
{
    g_return_val_if_fail(sequences > 0 && sequences <= RP_GREEDY_MAX_SEQUENCES && tokens > 0, NULL);

    const RpNetworkOptions options = {.dtype = rp_weights_dtype(weights),
                                      .sequences = sequences,
                                      .tokens = tokens,
                                      .attention = RP_ATTENTION_BUILTIN};
    g_autoptr(RpGreedy) greedy = g_new0(RpGreedy, 1);

    greedy->config = *config;
    greedy->sequences = sequences;
    greedy->tokens = tokens;
    greedy->weights = rp_weights_copy(weights);
    rp_weights_store_base(greedy->weights, options.dtype);
    greedy->network = rp_network_new(greedy->weights, kernels, &options);

    const RpInterval all = {0, rp_network_n_layers(greedy->network)};
    const guint64 parameters = rp_network_weight_bytes(greedy->network, all);
    const guint64 constants = rp_network_constant_bytes(greedy->network);
    const guint64 workspace = workspace_bytes(greedy);

    if (!check_memory(parameters + constants + workspace, error))
        return NULL;
    greedy->parameters = aligned(parameters);
    greedy->constants = aligned(constants);
    greedy->workspace = aligned(workspace);
    greedy->ids = g_new0(gint32, (gsize)sequences * tokens);
    greedy->rows = g_new0(gint32, sequences);
    greedy->logits = g_new(float, config->vocab);
    rp_network_fill_constants(greedy->network, greedy->constants);
    load(greedy, weights);
    return g_steal_pointer(&greedy);
}

void
rp_greedy_free(RpGreedy *greedy)
{
    if (greedy == NULL)
        return;
    g_aligned_free(greedy->parameters);
    g_aligned_free(greedy->constants);
    g_aligned_free(greedy->workspace);
    g_free(greedy->ids);
    g_free(greedy->rows);
    g_free(greedy->logits);
    rp_network_free(greedy->network);
    rp_weights_free(greedy->weights);
    g_free(greedy);
}

static gboolean
is_end(const RpModel *config, gint32 id)
{
    for (guint i = 0; i < config->n_eos; i++)
        if (config->eos_ids[i] == id)
            return TRUE;
    return FALSE;
}

static gint32
likeliest(const RpGreedy *greedy, const void *logits, guint row)
{
    const RpDtype dtype = rp_network_options(greedy->network)->dtype;
    const guint vocab = greedy->config.vocab;
    guint best = 0;

    rp_dtype_to_float(dtype, (const guint8 *)logits + (gsize)row * vocab * rp_dtype_size(dtype),
                      greedy->logits, vocab);
    for (guint v = 1; v < vocab; v++)
        if (greedy->logits[v] > greedy->logits[best])
            best = v;
    return (gint32)best;
}

/* Whether @answer is at its end. */
static gboolean
is_over(const RpGreedy *greedy, const RpAnswer *answer, guint most_tokens)
{
    return answer->n_answer >= most_tokens ||
           (answer->n_answer > 0 && is_end(&greedy->config, answer->answer[answer->n_answer - 1]));
}

static const void *
forward(RpGreedy *greedy, guint n)
{
    const RpStageCall call = {.layers = {0, rp_network_n_layers(greedy->network)},
                              .constants = greedy->constants,
                              .parameters = greedy->parameters,
                              .input = greedy->ids,
                              .workspace = greedy->workspace,
                              .rows = greedy->rows,
                              .n_rows = n};

    return rp_network_logits(greedy->network, &call);
}

/* One more token of each answer that is not over. Returns: how many were not */
static guint
step(RpGreedy *greedy, RpAnswer *answers, guint n, guint most_tokens)
{
    guint left = 0;

    for (guint i = 0; i < n; i++) {
        greedy->rows[i] =
            (gint32)(i * greedy->tokens + answers[i].n_prompt + answers[i].n_answer - 1);
        left += !is_over(greedy, &answers[i], most_tokens);
    }
    if (left == 0)
        return 0;

    const void *logits = forward(greedy, n);

    for (guint i = 0; i < n; i++) {
        RpAnswer *answer = &answers[i];

        if (is_over(greedy, answer, most_tokens))
            continue;
        answer->answer[answer->n_answer] = likeliest(greedy, logits, i);
        if (answer->n_prompt + answer->n_answer < greedy->tokens)
            greedy->ids[greedy->rows[i] + 1] = answer->answer[answer->n_answer];
        answer->n_answer++;
    }
    return left;
}

void
rp_greedy_answer(RpGreedy *greedy, RpAnswer *answers, guint n, guint most_tokens)
{
    g_return_if_fail(n <= greedy->sequences);

    memset(greedy->ids, 0, (gsize)greedy->sequences * greedy->tokens * sizeof *greedy->ids);
    for (guint i = 0; i < n; i++) {
        g_return_if_fail(answers[i].n_prompt > 0 &&
                         answers[i].n_prompt + most_tokens <= greedy->tokens);
        answers[i].n_answer = 0;
        memcpy(greedy->ids + (gsize)i * greedy->tokens, answers[i].prompt,
               answers[i].n_prompt * sizeof *greedy->ids);
    }
    while (step(greedy, answers, n, most_tokens) > 0)
        continue;
}
