#include "exec/generate/generator.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "exec/kernels/philox.h"
#include "exec/system/memory-limit.h"

G_DEFINE_QUARK(rp_generate_error, rp_generate_error)

#define ALIGNMENT 256

/* Elements that are read at a time. */
#define PIECE ((guint64)1 << 20)

/* Adapters may be stored in a wider type than they run in, and experts packed. */
static gboolean
store(RpProbe *probe, const RpWeights *weights, guint index, RpDtype storage, guint8 *at,
      GError **error)
{
    const guint64 n = rp_weights_nth(weights, index)->elements;
    g_autofree float *wide = g_new(float, PIECE);
    g_autofree guint8 *stored = g_malloc(PIECE * rp_dtype_size(storage));

    for (guint64 first = 0; first < n; first += PIECE) {
        const gsize some = (gsize)MIN(PIECE, n - first);

        rp_weights_read(weights, index, first, wide, some);
        rp_dtype_from_float(storage, wide, stored, some);
        if (!probe->ops->upload(probe, at + first * rp_dtype_size(storage), stored,
                                some * rp_dtype_size(storage), error))
            return FALSE;
    }
    return TRUE;
}

/* All tensors that are packed as one: in a stack the first stands for all. */
static gboolean
expand(RpProbe *probe, const RpWeights *weights, guint index, const RpWeightPlace *place,
       guint8 *at, GError **error)
{
    const guint64 n = rp_lowbit_elements(place->packed_shape);
    const gsize packed_bytes = rp_lowbit_layout(place->format, place->packed_shape).total;
    const gsize bytes = n * rp_dtype_size(place->storage);
    void *packed = g_aligned_alloc(1, packed_bytes, RP_LOWBIT_ALIGNMENT);
    g_autofree guint8 *expanded = g_malloc(bytes);

    rp_lowbit_source_load(rp_weights_packed(weights, index), packed, NULL);
    rp_lowbit_expand(place->format, place->packed_shape, packed, place->storage, 0, n, expanded);
    g_aligned_free(packed);
    return probe->ops->upload(probe, at, expanded, bytes, error);
}

/* Each weight to its place: a tied head has a copy of its own. */
static gboolean
load(const RpNetwork *network, const RpWeights *weights, RpProbe *probe, guint8 *parameters,
     GError **error)
{
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpLayerLayout *layout = rp_network_layout(network, weight->layer);
        const RpWeightPlace place = rp_layout_place(layout, weight);
        guint8 *at = parameters + layout->first_byte + place.byte;

        if (!place.is_packed && !store(probe, weights, i, place.storage, at, error))
            return FALSE;
        if (place.is_packed && weight->offset == 0 && !expand(probe, weights, i, &place, at, error))
            return FALSE;
    }
    return TRUE;
}

/* Checks that the host has @bytes free; a GPU's memory is checked by its runtime. */
static gboolean
check_memory(const RpProbe *probe, guint64 bytes, GError **error)
{
    if (strcmp(probe->ops->name, "host") != 0)
        return TRUE;
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

/* @weights: bound; those of @network are stored as it computes. Packed ones are expanded.
 * Returns: memory of @probe's device. Errors: %RP_GENERATE_ERROR_MEMORY; the backend's own */
static void *
load_weights(const RpNetwork *network, const RpWeights *weights, RpProbe *probe, GError **error)
{
    const RpInterval all = {0, rp_network_n_layers(network)};
    const guint64 bytes = rp_network_weight_bytes(network, all);
    void *parameters =
        check_memory(probe, bytes, error) ? probe->ops->take(probe, bytes, error) : NULL;

    if (parameters == NULL || load(network, weights, probe, parameters, error))
        return parameters;
    probe->ops->give(probe, parameters);
    return NULL;
}

/* Workspace of a forward, as the planner counts it: two hidden states and the largest scratch
 * buffer of a layer. */
static guint64
workspace_bytes(const RpNetwork *network)
{
    g_autoptr(RpProfile) sizes = rp_network_profile(network);
    guint64 scratch = 0;

    for (guint l = 0; l < sizes->n_layers; l++)
        scratch = MAX(scratch, sizes->layers[l].forward_workspace_bytes);
    return scratch + 2 * rp_align_up(rp_network_hidden_bytes(network), ALIGNMENT);
}

typedef struct {
    float logit;
    gint32 id;
} Candidate;

static int
compare(gconstpointer a, gconstpointer b)
{
    const Candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static gint32
likeliest(const float *logits, guint n)
{
    guint best = 0;

    for (guint v = 1; v < n; v++)
        if (logits[v] > logits[best])
            best = v;
    return (gint32)best;
}

/* Returns a random number in [0,1). */
static double
drawn(const RpSampling *sampling, guint64 prompt, guint token)
{
    uint32_t words[4] = {token, (uint32_t)prompt, (uint32_t)(prompt >> 32), 0};

    rp_philox_stir(words, sampling->seed);
    return ldexp((double)(words[0] >> 5), -27) + ldexp((double)(words[1] >> 6), -53);
}

gint32
rp_sample(const RpSampling *sampling, const float *logits, guint n, guint64 prompt, guint token)
{
    if (sampling->temperature <= 0 || sampling->top_k == 1)
        return likeliest(logits, n);
    g_autofree Candidate *candidates = g_new(Candidate, n);
    g_autofree double *odds = g_new(double, n);
    guint kept = sampling->top_k > 0 ? MIN(sampling->top_k, n) : n;
    double sum = 0, reached = 0;

    for (guint v = 0; v < n; v++)
        candidates[v] = (Candidate){logits[v], (gint32)v};
    qsort(candidates, n, sizeof *candidates, compare);
    for (guint i = 0; i < kept; i++)
        sum += odds[i] = exp(((double)candidates[i].logit - (double)candidates[0].logit) /
                             sampling->temperature);
    for (guint i = 0; i < kept; i++) { /* the one that reaches P is among them */
        reached += odds[i];
        if (reached >= sampling->top_p * sum)
            kept = i + 1;
    }
    double rest = drawn(sampling, prompt, token) * reached;
    guint chosen = 0;

    while (chosen + 1 < kept && rest >= odds[chosen])
        rest -= odds[chosen++];
    return candidates[chosen].id;
}

struct _RpGenerator {
    RpModel config;
    RpGeneratorOptions options;
    RpNetworkOptions network;
    const RpKernels *kernels;
    RpProbe *probe;
    RpWeights *weights; /* a list of our own, unbound */
    void *parameters;   /* parameters on the device */
    void *cache;
    guint8 *row; /* logits of one, as they come */
    float *logits;
};

/* The network for some tokens of each sequence, with the device memory of its calls. */
typedef struct {
    RpGenerator *generator;
    RpNetwork *network;
    guint8 *constants;
    void *workspace;
    gint32 *ids;       /* [sequences][tokens] */
    gint32 *rows;      /* [sequences]: of the last token of each */
    guint rope_tokens; /* tokens that the constants are for */
} Shape;

/* ---- shapes ---- */

static void
shape_clear(Shape *shape)
{
    RpProbe *probe = shape->generator->probe;

    probe->ops->give(probe, shape->constants);
    probe->ops->give(probe, shape->workspace);
    probe->ops->give(probe, shape->ids);
    probe->ops->give(probe, shape->rows);
    g_clear_pointer(&shape->network, rp_network_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Shape, shape_clear)

/* Fills the constants, for ropes of sequences of @rope_tokens. */
static gboolean
set_constants(Shape *shape, guint rope_tokens, GError **error)
{
    RpProbe *probe = shape->generator->probe;
    const gsize bytes = rp_network_constant_bytes(shape->network);
    guint8 *constants = g_aligned_alloc0(MAX(bytes, 1), 1, ALIGNMENT);

    shape->rope_tokens = rope_tokens;
    rp_network_set_rope_tokens(shape->network, rope_tokens);
    rp_network_fill_constants(shape->network, constants);
    const gboolean set = probe->ops->upload(probe, shape->constants, constants, bytes, error);

    g_aligned_free(constants);
    return set;
}

static RpNetwork *
network_of(const RpGenerator *generator, guint tokens)
{
    RpNetworkOptions options = generator->network;

    options.tokens = tokens;
    return rp_network_new(generator->weights, generator->kernels, &options);
}

static gboolean
shape_open(RpGenerator *generator, guint tokens, guint rope_tokens, Shape *shape, GError **error)
{
    RpProbe *probe = generator->probe;
    const RpProbeOps *ops = probe->ops;
    const guint sequences = generator->options.sequences;

    shape->network = network_of(generator, tokens);
    const gsize constant_bytes = rp_network_constant_bytes(shape->network);
    const guint64 bytes = workspace_bytes(shape->network);

    return check_memory(probe, bytes, error) &&
           (shape->constants = ops->take(probe, constant_bytes, error)) != NULL &&
           (shape->workspace = ops->take(probe, bytes, error)) != NULL &&
           (shape->ids = ops->take(probe, (gsize)sequences * tokens * sizeof(gint32), error)) !=
               NULL &&
           (shape->rows = ops->take(probe, sequences * sizeof(gint32), error)) != NULL &&
           set_constants(shape, rope_tokens, error);
}

/* ---- the generator ---- */

RpGenerator *
rp_generator_new(const RpModel *config, const RpWeights *weights, const RpKernels *kernels,
                 RpProbe *probe, const RpGeneratorOptions *options, GError **error)
{
    g_return_val_if_fail(options->sequences > 0 && options->tokens > 0 &&
                             options->sequences <= RP_GENERATOR_MAX_SEQUENCES,
                         NULL);

    g_autoptr(RpGenerator) generator = g_new0(RpGenerator, 1);

    generator->config = *config;
    generator->options = *options;
    generator->kernels = kernels;
    generator->probe = probe;
    generator->network = (RpNetworkOptions){.dtype = rp_weights_dtype(weights),
                                            .sequences = options->sequences,
                                            .cache_tokens = options->tokens,
                                            .attention = RP_ATTENTION_BUILTIN};
    generator->weights = rp_weights_copy(weights);
    rp_weights_store_base(generator->weights, generator->network.dtype);

    g_autoptr(RpNetwork) network = network_of(generator, 1);
    const guint64 cache = rp_network_cache_bytes(network);

    generator->parameters = load_weights(network, weights, probe, error);
    if (generator->parameters == NULL || !check_memory(probe, cache, error) ||
        (generator->cache = probe->ops->take(probe, cache, error)) == NULL)
        return NULL;
    generator->row = g_malloc((gsize)config->vocab * rp_dtype_size(generator->network.dtype));
    generator->logits = g_new(float, config->vocab);
    return g_steal_pointer(&generator);
}

void
rp_generator_free(RpGenerator *generator)
{
    if (generator == NULL)
        return;
    generator->probe->ops->give(generator->probe, generator->parameters);
    generator->probe->ops->give(generator->probe, generator->cache);
    g_free(generator->row);
    g_free(generator->logits);
    rp_weights_free(generator->weights);
    g_free(generator);
}

/* ---- answering ---- */

typedef struct {
    RpGenerator *generator;
    RpAnswer *answers;
    guint n;
    guint most_tokens;
    guint first_length; /* length of the longest prompt */
    const RpSampling *sampling;
    RpGeneratorToken on_token;
    gpointer user_data;
    gboolean stopped;
} Answering;

static gboolean
is_end(const RpGeneratorOptions *options, gint32 id)
{
    for (guint i = 0; i < options->n_ends; i++)
        if (options->ends[i] == id)
            return TRUE;
    return FALSE;
}

/* Whether @answer is at its end. */
static gboolean
is_over(const Answering *answering, const RpAnswer *answer)
{
    return answering->stopped || answer->n_answer >= answering->most_tokens ||
           (answer->n_answer > 0 &&
            is_end(&answering->generator->options, answer->answer[answer->n_answer - 1]));
}

/* Runs the model on @ids, and chooses the next token of each answer that is not over. @cached:
 * (nullable): tokens behind which those come */
static gboolean
step(Answering *answering, Shape *shape, const gint32 *ids, const gint32 *rows,
     const gint32 *cached, GError **error)
{
    RpGenerator *generator = answering->generator;
    RpProbe *probe = generator->probe;
    const guint sequences = generator->options.sequences;
    const gsize row_bytes =
        (gsize)generator->config.vocab * rp_dtype_size(generator->network.dtype);
    const RpStageCall call = {.stream = probe->ops->stream(probe),
                              .layers = {0, rp_network_n_layers(shape->network)},
                              .constants = shape->constants,
                              .parameters = generator->parameters,
                              .input = shape->ids,
                              .workspace = shape->workspace,
                              .cache = generator->cache,
                              .cached = cached,
                              .rows = shape->rows,
                              .n_rows = answering->n};

    if (!probe->ops->upload(
            probe, shape->ids, ids,
            (gsize)sequences * rp_network_options(shape->network)->tokens * sizeof *ids, error) ||
        !probe->ops->upload(probe, shape->rows, rows, sequences * sizeof *rows, error) ||
        (cached != NULL &&
         !probe->ops->upload(probe, shape->constants + rp_network_places_byte(shape->network),
                             cached, sequences * sizeof *cached, error)))
        return FALSE;

    const guint8 *logits = rp_network_logits(shape->network, &call);

    for (guint i = 0; i < answering->n; i++) {
        RpAnswer *answer = &answering->answers[i];

        if (is_over(answering, answer))
            continue;
        if (!probe->ops->download(probe, generator->row, logits + i * row_bytes, row_bytes, error))
            return FALSE;
        rp_dtype_to_float(generator->network.dtype, generator->row, generator->logits,
                          generator->config.vocab);
        answer->answer[answer->n_answer] =
            rp_sample(answering->sampling, generator->logits, generator->config.vocab,
                      answer->number, answer->n_answer);
        answer->n_answer++;
        if (answering->on_token != NULL && !answering->on_token(answering->user_data, i, answer))
            answering->stopped = TRUE;
    }
    return TRUE;
}

/* Tokens of the longest sequence that the next step makes: of its prompt, and its answer so far. */
static guint
longest_of(const Answering *answering)
{
    guint longest = 0;

    for (guint i = 0; i < answering->n; i++) {
        const RpAnswer *answer = &answering->answers[i];

        if (!is_over(answering, answer))
            longest = MAX(longest, answer->n_prompt + answer->n_answer);
    }
    return longest;
}

/* Runs all prompts at once, with their answers so far: shorter ones are followed by tokens that nothing attends to. */
static gboolean
begin(Answering *answering, GError **error)
{
    const guint sequences = answering->generator->options.sequences;
    g_autofree gint32 *rows = g_new0(gint32, sequences);
    guint longest = 0;

    for (guint i = 0; i < answering->n; i++)
        longest = MAX(longest, answering->answers[i].n_prompt + answering->answers[i].n_answer);
    g_autofree gint32 *ids = g_new0(gint32, (gsize)sequences * longest);

    for (guint i = 0; i < answering->n; i++) {
        const RpAnswer *answer = &answering->answers[i];

        memcpy(ids + (gsize)i * longest, answer->prompt, answer->n_prompt * sizeof *ids);
        memcpy(ids + (gsize)i * longest + answer->n_prompt, answer->answer,
               answer->n_answer * sizeof *ids);
        rows[i] = (gint32)(i * longest + answer->n_prompt + answer->n_answer - 1);
    }
    g_auto(Shape) shape = {.generator = answering->generator};

    return shape_open(answering->generator, longest, longest_of(answering), &shape, error) &&
           step(answering, &shape, ids, rows, NULL, error);
}

/* Constants for as long a sequence as the next step makes, as transformers turns each step. @again: (out): a
 * longrope has come to its long factors, and all keys must be made with them */
static gboolean
turn(const Answering *answering, Shape *shape, gboolean *again, GError **error)
{
    const RpRope *rope = &answering->generator->config.rope;
    const guint length = longest_of(answering);
    const gboolean longrope = rope->type == RP_ROPE_LONGROPE;

    *again = FALSE;
    if (!rp_rope_stretches(rope, length) ||
        (longrope && rp_rope_stretches(rope, shape->rope_tokens)))
        return TRUE;
    *again = longrope;
    return set_constants(shape, length, error);
}

/* One token more of each answer, as long as one is not over. An answer that is over continues at
 * its last place, and its tokens are dropped. */
static gboolean
go_on(Answering *answering, GError **error)
{
    const guint sequences = answering->generator->options.sequences;
    g_autofree gint32 *ids = g_new0(gint32, sequences);
    g_autofree gint32 *rows = g_new0(gint32, sequences);
    g_autofree gint32 *cached = g_new0(gint32, sequences);
    g_auto(Shape) shape = {.generator = answering->generator};

    if (!shape_open(answering->generator, 1, answering->first_length, &shape, error))
        return FALSE;
    for (guint left = 1; left > 0;) {
        gboolean again;

        if (!turn(answering, &shape, &again, error) || (again && !begin(answering, error)))
            return FALSE;
        left = 0;
        for (guint i = 0; i < answering->n; i++) {
            const RpAnswer *answer = &answering->answers[i];

            rows[i] = (gint32)i;
            ids[i] = answer->answer[answer->n_answer - 1];
            cached[i] = (gint32)(answer->n_prompt + answer->n_answer - 1);
            left += !is_over(answering, answer);
        }
        if (left > 0 && !step(answering, &shape, ids, rows, cached, error))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_generator_answer(RpGenerator *generator, RpAnswer *answers, guint n, guint most_tokens,
                    const RpSampling *sampling, RpGeneratorToken on_token, gpointer user_data,
                    GError **error)
{
    Answering answering = {.generator = generator,
                           .answers = answers,
                           .n = n,
                           .most_tokens = most_tokens,
                           .sampling = sampling,
                           .on_token = on_token,
                           .user_data = user_data};

    g_return_val_if_fail(n > 0 && n <= generator->options.sequences && most_tokens > 0, FALSE);
    for (guint i = 0; i < n; i++) {
        g_return_val_if_fail(answers[i].n_prompt > 0 &&
                                 answers[i].n_prompt + most_tokens <= generator->options.tokens,
                             FALSE);
        answers[i].n_answer = 0;
    }
    answering.first_length = longest_of(&answering);
    return begin(&answering, error) && go_on(&answering, error);
}
