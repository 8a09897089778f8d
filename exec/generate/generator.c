#include "exec/generate/generator.h"

#include <string.h>

#include "exec/generate/load.h"

#define ALIGNMENT 256

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
    const guint64 bytes = rp_load_workspace_bytes(shape->network);

    return rp_load_check_memory(probe, bytes, error) &&
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

    generator->parameters = rp_load_weights(network, weights, probe, error);
    if (generator->parameters == NULL || !rp_load_check_memory(probe, cache, error) ||
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
