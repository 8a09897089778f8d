/*
 * A generator: the model's weights on a device, the cache, and calls of the network. A call has one of few shapes, and
 * rows that pad it go to block 0 and slot 0 of the cache, which nothing reads:
 *
 *   begin   T tokens in a row, 16 to begin_tokens   |prompt a|prompt b|0 0 0|     logits of each last token
 *   step    one token of each of N sequences        |a|b|c|0|
 *
 * Memory: layers (layers.c), workspace of the largest calls, arrays of a call; states of slots, and as many blocks as are
 * needed or as there is memory left for. If not all layers fit beside the blocks of one sequence, blocks come first: a
 * call takes as long as its copies, however many answers it continues.
 */
#include "exec/generate/private.h"

#include <string.h>

#include "core/base/units.h"
#include "exec/model/rope-table.h"
#include "exec/system/memory-limit.h"

#define ALIGNMENT 256
#define SHORTER ", or ask for shorter answers"

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

/* ---- shapes ---- */

/* The network of calls of one shape. */
typedef struct {
    RpNetwork *network;
    guint n; /* tokens of a call */
    gpointer recorded
        [RP_GENERATOR_RECORDS]; /* calls that the device repeats, by the parts of the longest sequence */
    gboolean has_run[RP_GENERATOR_RECORDS];
} Shape;

/* Tokens of calls that begin sequences, at least, and at most if prompts are shorter. */
#define LEAST_TOKENS 16
#define PIECE_TOKENS 128 /* longer ones are multiples of these */
#define MOST_TOKENS 2048
#define MOST_HOST_TOKENS 256

static guint
rounded_up(guint n)
{
    guint power = 1;

    while (power < n)
        power *= 2;
    return power;
}

/* Tokens of a call: of few sizes, without much padding. begin_tokens is one of them. */
static guint
padded(guint tokens)
{
    return tokens > PIECE_TOKENS ? (guint)rp_align_up(tokens, PIECE_TOKENS)
                                 : MAX(LEAST_TOKENS, rounded_up(tokens));
}

/* @tokens: of a call that begins sequences; 0: a step of @sequences */
static RpNetwork *
network_of(const RpGenerator *generator, guint tokens, guint sequences)
{
    RpNetworkOptions options = generator->network;

    options.sequences = tokens > 0 ? 1 : sequences;
    options.tokens = tokens > 0 ? tokens : 1;
    options.packed_tokens = tokens;
    options.head_chunk = generator->options.slots;
    return rp_network_new(generator->weights, generator->kernels, &options);
}

static Shape *
shape_of(RpGenerator *generator, guint tokens, guint sequences)
{
    const gpointer key = GUINT_TO_POINTER(tokens > 0 ? tokens : G_MAXUINT32 - sequences);
    Shape *shape = g_hash_table_lookup(generator->shapes, key);

    if (shape == NULL) {
        shape = g_new0(Shape, 1);
        shape->network = network_of(generator, tokens, sequences);
        shape->n = tokens > 0 ? tokens : sequences;
        g_hash_table_insert(generator->shapes, key, shape);
    }
    return shape;
}

/* Fills the constants, for ropes of sequences of @rope_tokens. */
static gboolean
set_constants(RpGenerator *generator, RpNetwork *network, guint rope_tokens, GError **error)
{
    RpProbe *probe = generator->probe;
    const gsize bytes = rp_network_constant_bytes(network);
    guint8 *constants = g_aligned_alloc0(MAX(bytes, 1), 1, ALIGNMENT);

    generator->rope_tokens = rope_tokens;
    rp_network_set_rope_tokens(network, rope_tokens);
    rp_network_fill_constants(network, constants);
    const gboolean set = probe->ops->upload(probe, generator->constants, constants, bytes, error);

    g_aligned_free(constants);
    return set;
}

/* ---- the generator ---- */

guint
rp_generator_streamed(const RpGenerator *generator, guint *n_layers)
{
    *n_layers = rp_network_n_layers(generator->layers.network);
    return generator->layers.n_streamed;
}

static gsize
most_places_bytes(const RpGenerator *generator)
{
    const gsize slots = generator->options.slots, tokens = generator->begin_tokens;
    const gsize rows = tokens + slots * RP_CACHE_BLOCK;
    const gsize numbers = 3 * (tokens + 2) + 2 * rows + slots * (4 + generator->most_blocks);

    return numbers * sizeof(gint32) + slots * sizeof(RpSampleChoice) + 16 * ALIGNMENT;
}

/* Calls' shapes: slots, and tokens at most of those that begin. */
static void
choose_shapes(RpGenerator *generator, gboolean host)
{
    RpGeneratorOptions *options = &generator->options;

    if (options->slots == 0)
        options->slots = RP_GENERATOR_MAX_SLOTS;
    if (rp_rope_stretches(&generator->config.rope, options->tokens))
        options->slots = 1; /* else a neighbour's length would matter */
    const guint wanted =
        MIN(host ? MOST_HOST_TOKENS : MOST_TOKENS, (guint64)options->slots * options->tokens);

    generator->begin_tokens = padded(MAX(MAX(options->tokens, wanted), options->slots));
    generator->most_blocks = (options->tokens + RP_CACHE_BLOCK - 1) / RP_CACHE_BLOCK;
}

/* ---- memory ---- */

static gsize
workspace_of_all(RpGenerator *generator)
{
    return MAX(workspace_bytes(shape_of(generator, generator->begin_tokens, 0)->network),
               workspace_bytes(shape_of(generator, 0, generator->options.slots)->network));
}

/* Chooses how many layers are resident and how many blocks there are. */
static void
divide(const RpGenerator *generator, const RpNetwork *network, gboolean streams, guint64 left,
       RpGeneratorSizes *sizes)
{
    const RpGeneratorOptions *options = &generator->options;
    const guint n = rp_network_n_layers(network);
    const guint64 block = sizes->block_bytes, fixed = sizes->workspace_bytes + sizes->state_bytes;
    const guint64 rest = fixed + (sizes->blocks_each + 1) * block;
    const guint64 most =
        options->blocks > 0 ? options->blocks : (guint64)sizes->slots * sizes->blocks_each;
    guint64 layers = rp_layers_bytes(network, n, NULL);

    for (guint r = 0; r < n && streams && layers + rest > left; r++)
        layers = MIN(layers, rp_layers_bytes(network, r, NULL));
    sizes->least_bytes = layers + rest;
    if (sizes->least_bytes > left)
        return;
    sizes->blocks =
        (guint)MIN(MIN(most, (left - layers - fixed) / block - 1), G_MAXINT32 / RP_CACHE_BLOCK - 1);
    sizes->n_resident = n;
    while (rp_layers_bytes(network, sizes->n_resident, &sizes->streamed_bytes) + fixed +
               (sizes->blocks + 1) * block >
           left)
        sizes->n_resident--;
}

/* Sizes of what is resolved by choose_shapes(). */
static RpGeneratorSizes
find_sizes(RpGenerator *generator, gboolean streams, guint64 left)
{
    const guint slots = generator->options.slots;
    const RpNetwork *begin = shape_of(generator, generator->begin_tokens, 0)->network;
    const RpNetwork *step = shape_of(generator, 0, slots)->network;
    RpGeneratorSizes sizes = {
        .slots = slots,
        .begin_tokens = generator->begin_tokens,
        .blocks_each = generator->most_blocks,
        .weight_bytes = rp_network_weight_bytes(step, (RpInterval){0, rp_network_n_layers(step)}),
        .workspace_bytes = workspace_of_all(generator) + rp_network_constant_bytes(begin) +
                           most_places_bytes(generator) + slots * sizeof(gint32),
        .state_bytes = rp_network_cache_bytes(begin, 0, slots + 1),
        .block_bytes = MAX(rp_network_cache_bytes(begin, 1, 0), 1),
    };

    divide(generator, begin, streams, left, &sizes);
    return sizes;
}

/* Memory that the device has left. */
static guint64
bytes_left(const RpGenerator *generator, const RpNetwork *network)
{
    RpProbe *probe = generator->probe;
    const guint64 limit_bytes =
        generator->options.memory_bytes > 0 ? generator->options.memory_bytes : G_MAXUINT64;

    if (probe->ops->is_host) {
        g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

        return MIN(limit.bytes, limit_bytes);
    }
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    profile->gpus = 1;
    probe->ops->describe(probe, profile);
    return MIN(profile->gpu_memory_bytes, limit_bytes);
}

/* Whether it has memory of its own, so that layers in memory of the host leave it free. */
static gboolean
can_stream(const RpGenerator *generator)
{
    return generator->options.memory_bytes > 0 || !generator->probe->ops->is_host;
}

/* Takes what calls need beside layers. */
static gboolean
take_memory(RpGenerator *generator, GError **error)
{
    RpProbe *probe = generator->probe;
    const guint slots = generator->options.slots;
    RpNetwork *begin = shape_of(generator, generator->begin_tokens, 0)->network;

    generator->host_places = g_malloc0(generator->places_bytes);
    generator->ids = g_new0(gint32, slots);
    return (generator->workspace = probe->ops->take(probe, workspace_of_all(generator), error)) !=
               NULL &&
           (generator->places = probe->ops->take(probe, generator->places_bytes, error)) != NULL &&
           (generator->sampled = probe->ops->take(probe, slots * sizeof(gint32), error)) != NULL &&
           (generator->constants =
                probe->ops->take(probe, rp_network_constant_bytes(begin), error)) != NULL &&
           set_constants(generator, begin, generator->options.tokens, error) &&
           (generator->cache = probe->ops->take(
                probe, rp_network_cache_bytes(begin, generator->blocks, slots + 1), error)) != NULL;
}

static gboolean
open_memory(RpGenerator *generator, const RpWeights *weights, GError **error)
{
    const RpGenerator *beside = generator->options.beside;
    const RpNetwork *step = shape_of(generator, 0, generator->options.slots)->network;
    const gboolean streams = can_stream(generator);
    const guint64 left =
        bytes_left(generator, shape_of(generator, generator->begin_tokens, 0)->network);
    const RpGeneratorSizes sizes = find_sizes(generator, streams, left);

    if (sizes.blocks == 0)
        return rp_layers_refuse(
            "layers, workspace and the cache of a sequence", sizes.least_bytes, left,
            !streams                                  ? NULL
            : left == generator->options.memory_bytes ? "raise its limit" SHORTER
                                                      : "use a GPU with more memory" SHORTER,
            error);
    generator->places_bytes = most_places_bytes(generator);
    generator->blocks = sizes.blocks + 1;
    return rp_layers_open(&generator->layers, step, weights, generator->probe, sizes.n_resident,
                          beside != NULL ? beside->layers.host : NULL, error) &&
           take_memory(generator, error);
}

static void
shape_free(gpointer data)
{
    Shape *shape = data;

    rp_network_free(shape->network);
    g_free(shape);
}

/* One without a device. */
static RpGenerator *
generator_of(const RpModel *config, const RpWeights *weights, RpDtype dtype,
             const RpKernels *kernels, gboolean host, const RpGeneratorOptions *options)
{
    RpGenerator *generator = g_new0(RpGenerator, 1);

    generator->config = *config;
    generator->options = *options;
    generator->kernels = kernels;
    generator->network = (RpNetworkOptions){
        .dtype = dtype, .cache_tokens = options->tokens, .attention = RP_ATTENTION_BUILTIN};
    generator->weights = rp_weights_copy(weights);
    generator->shapes = g_hash_table_new_full(NULL, NULL, NULL, shape_free);
    rp_weights_store_base(generator->weights, dtype);
    choose_shapes(generator, host);
    return generator;
}

RpGeneratorSizes
rp_generator_sizes(const RpModel *config, const RpWeights *weights, RpDtype dtype,
                   const RpKernels *kernels, const RpGeneratorOptions *options)
{
    g_autoptr(RpGenerator) generator =
        generator_of(config, weights, dtype, kernels, FALSE, options);

    return find_sizes(generator, TRUE, options->memory_bytes);
}

/* Runs each call of decoding, and records it, so that no answer waits while kernels are loaded or calls recorded. */
static gboolean
warm_up(RpGenerator *generator, GError **error)
{
    const guint slots = generator->options.slots, tokens = generator->options.tokens;
    g_autofree gint32 *zeros = g_new0(gint32, tokens);
    RpTicket ticket = {.request = {.prompt = zeros, .n_prompt = 1}};
    RpSequence sequence = {.ticket = &ticket, .blocks = zeros, .n_blocks = generator->most_blocks};
    RpSequence *sequences[RP_GENERATOR_MAX_SLOTS];
    gboolean good;

    if (generator->probe->ops->record == NULL || generator->layers.n_streamed > 0)
        return TRUE;
    for (guint i = 0; i < slots; i++)
        sequences[i] = &sequence;
    good = rp_generator_begin(generator, sequences, 1, error);
    for (guint n = 1, last = 0; n != last && good; last = n, n = MIN(2 * n, slots))
        for (guint record = 0, longest = 0;
             record < RP_GENERATOR_RECORDS && longest < tokens && good; record++) {
            longest = (guint)MIN((guint64)RP_CACHE_PART << 2 * record, tokens);
            ticket.request.n_prompt = longest;
            good = rp_generator_step(generator, sequences, n, error) &&
                   rp_generator_step(generator, sequences, n, error);
        }
    return good;
}

RpGenerator *
rp_generator_new(const RpModel *config, const RpWeights *weights, const RpKernels *kernels,
                 RpProbe *probe, const RpGeneratorOptions *options, GError **error)
{
    g_return_val_if_fail(options->tokens > 0 && options->slots <= RP_GENERATOR_MAX_SLOTS, NULL);

    g_autoptr(RpGenerator) generator = generator_of(config, weights, rp_weights_dtype(weights),
                                                    kernels, probe->ops->is_host, options);

    generator->probe = probe;
    return open_memory(generator, weights, error) && warm_up(generator, error)
               ? g_steal_pointer(&generator)
               : NULL;
}

static void
forget_calls(RpGenerator *generator)
{
    GHashTableIter iter;
    gpointer shape;

    g_hash_table_iter_init(&iter, generator->shapes);
    while (g_hash_table_iter_next(&iter, NULL, &shape))
        for (guint i = 0; i < RP_GENERATOR_RECORDS; i++)
            if (((Shape *)shape)->recorded[i] != NULL)
                generator->probe->ops->forget(generator->probe, ((Shape *)shape)->recorded[i]);
}

void
rp_generator_free(RpGenerator *generator)
{
    if (generator == NULL)
        return;
    void *const taken[] = {generator->cache, generator->constants, generator->workspace,
                           generator->sampled, generator->places};

    forget_calls(generator);
    rp_layers_close(&generator->layers, generator->probe);
    for (guint i = 0; i < G_N_ELEMENTS(taken); i++)
        if (taken[i] != NULL)
            generator->probe->ops->give(generator->probe, taken[i]);
    g_free(generator->host_places);
    g_free(generator->ids);
    g_hash_table_unref(generator->shapes);
    rp_weights_free(generator->weights);
    g_free(generator);
}

/* ---- calls ---- */

/* A call of the network, and the arrays that it reads, which go to the device as one. */
typedef struct {
    RpGenerator *generator;
    Shape *shape;
    gsize used; /* bytes of the arrays */
    RpCacheCall cache;
    RpStageCall stage;
    RpSampleArgs sample;
} Call;

/* Takes space for an array; @device: (out): its address there. Returns: the host's, zeroed */
static void *
take_array(Call *call, gsize bytes, gconstpointer *device)
{
    const gsize at = rp_align_up(call->used, 64);

    g_assert(at + bytes <= call->generator->places_bytes);
    memset(call->generator->host_places + call->used, 0, at + bytes - call->used);
    call->used = at + bytes;
    *device = call->generator->places + at;
    return call->generator->host_places + at;
}

static gint32 *
take_numbers(Call *call, gsize n, const gint32 **device)
{
    return take_array(call, n * sizeof(gint32), (gconstpointer *)device);
}

static void
take_choices(Call *call, RpSequence *const *sequences, guint n, guint rows)
{
    RpSampleChoice *choices =
        take_array(call, rows * sizeof(RpSampleChoice), (gconstpointer *)&call->sample.choices);

    call->sample.rows = rows;
    for (guint i = 0; i < n; i++) {
        const RpTicket *ticket = sequences[i]->ticket;
        const RpSampling *sampling = &ticket->request.sampling;

        choices[i] = (RpSampleChoice){.temperature = sampling->temperature,
                                      .top_p = sampling->top_p,
                                      .top_k = sampling->top_k,
                                      .seed = sampling->seed,
                                      .number = ticket->request.number,
                                      .token = ticket->n_answer};
    }
}

static Call
call_of(RpGenerator *generator, Shape *shape)
{
    return (Call){.generator = generator,
                  .shape = shape,
                  .cache = {.n_blocks = generator->blocks,
                            .n_slots = generator->options.slots + 1,
                            .memory = generator->cache},
                  .stage = {.stream = generator->probe->ops->stream(generator->probe),
                            .layers = {0, rp_network_n_layers(shape->network)},
                            .constants = generator->constants,
                            .parameters = generator->layers.memory,
                            .workspace = generator->workspace},
                  .sample = {.dtype = generator->network.dtype,
                             .vocabulary = generator->config.vocab,
                             .ids = generator->sampled}};
}

static void
issue(gpointer data)
{
    Call *call = data;

    call->stage.cache = &call->cache;
    call->sample.logits = rp_network_logits(call->shape->network, &call->stage);
    call->generator->kernels->sample(call->stage.stream, &call->sample);
}

/* Issues the call layer by layer, each when its weights have come. */
static gboolean
issue_streamed(Call *call, GError **error)
{
    RpGenerator *generator = call->generator;
    RpProbe *probe = generator->probe;
    const RpNetwork *network = call->shape->network;
    const guint n = rp_network_n_layers(network);
    const guint64 hidden = rp_align_up(rp_network_hidden_bytes(network), ALIGNMENT);
    guint8 *spare = call->stage.workspace;
    guint next = 1;
    RpStageCall stage = call->stage;

    stage.cache = &call->cache;
    stage.workspace = spare + 2 * hidden;
    stage.boundaries = &next;
    stage.n_boundaries = 1;
    for (guint layer = 0; layer < n; layer++, next++) {
        stage.layers = (RpInterval){layer, 1};
        stage.output = spare + layer % 2 * hidden;
        stage.parameters = rp_layers_begin(&generator->layers, probe, layer, error);
        if (stage.parameters == NULL)
            return FALSE;
        if (next == n)
            call->sample.logits = rp_network_logits(network, &stage);
        else
            rp_network_forward(network, &stage);
        if (!rp_layers_end(&generator->layers, probe, layer, error))
            return FALSE;
        stage.input = stage.output;
    }
    generator->kernels->sample(stage.stream, &call->sample);
    return TRUE;
}

/* Issues the call; from its third time on as the device has recorded it, if it can. */
static gboolean
issue_again(Call *call, guint record, GError **error)
{
    RpProbe *probe = call->generator->probe;
    Shape *shape = call->shape;

    if (call->generator->layers.n_streamed > 0)
        return issue_streamed(call, error);
    if (probe->ops->record == NULL || record >= RP_GENERATOR_RECORDS || !shape->has_run[record]) {
        issue(call);
        shape->has_run[MIN(record, RP_GENERATOR_RECORDS - 1)] = TRUE;
        return TRUE;
    }
    if (shape->recorded[record] == NULL)
        shape->recorded[record] = probe->ops->record(probe, issue, call, error);
    return shape->recorded[record] != NULL &&
           probe->ops->replay(probe, shape->recorded[record], error);
}

/* Runs the call, and takes the ids of its first @n rows. @record: of calls that are the same but for arrays */
static gboolean
run(Call *call, guint n, guint record, GError **error)
{
    RpGenerator *generator = call->generator;
    RpProbe *probe = generator->probe;

    return probe->ops->upload(probe, generator->places, generator->host_places, call->used,
                              error) &&
           issue_again(call, record, error) &&
           probe->ops->download(probe, generator->ids, generator->sampled, n * sizeof(gint32),
                                error);
}

static guint
length_of(const RpSequence *sequence)
{
    return sequence->ticket->request.n_prompt + sequence->ticket->n_answer;
}

static gint32
token_of(const RpSequence *sequence, guint t)
{
    const RpTicket *ticket = sequence->ticket;
    const guint n_prompt = ticket->request.n_prompt;

    return t < n_prompt ? ticket->request.prompt[t] : ticket->answer[t - n_prompt];
}

static gint32
row_of(const RpSequence *sequence, guint t)
{
    return sequence->blocks[t / RP_CACHE_BLOCK] * RP_CACHE_BLOCK + (gint32)(t % RP_CACHE_BLOCK);
}

/* Tokens of a call that begins @sequences, and rows of the cache that it fills. */
static void
count_tokens(RpSequence *const *sequences, guint n, guint *tokens, guint *rows)
{
    *tokens = *rows = 0;
    for (guint i = 0; i < n; i++) {
        const guint length = length_of(sequences[i]);

        if (sequences[i]->begins_with == i)
            *tokens += length;
        *rows += length - MIN(length, sequences[i]->n_shared * RP_CACHE_BLOCK);
    }
}

/* Arrays of the prompts of @sequences, one behind the other. @first: (out): [n]: first tokens */
static void
lay_out_tokens(Call *call, RpSequence *const *sequences, guint n, guint tokens, gint32 *first)
{
    const guint T = call->shape->n;
    gint32 *ids = take_numbers(call, T, (const gint32 **)&call->stage.input);
    gint32 *positions = take_numbers(call, T, &call->cache.positions);
    gint32 *starts = take_numbers(call, T + 2, &call->cache.starts);
    gint32 at = 0;

    call->stage.longest = T - tokens;
    for (guint i = 0; i < n; i++) {
        const guint length = length_of(sequences[i]);

        first[i] = at;
        if (sequences[i]->begins_with != i) {
            first[i] = first[sequences[i]->begins_with];
            continue;
        }
        starts[call->stage.n_samples++] = at;
        call->stage.longest = MAX(call->stage.longest, length);
        for (guint t = 0; t < length; t++, at++) {
            ids[at] = token_of(sequences[i], t);
            positions[at] = (gint32)t;
        }
    }
    if (tokens < T)
        starts[call->stage.n_samples++] = at;
    starts[call->stage.n_samples] = (gint32)T;
}

/* Places of keys in the cache, of states, and the tokens whose logits are wanted. */
static void
lay_out_places(Call *call, RpSequence *const *sequences, guint n, const gint32 *first, guint n_rows)
{
    RpCacheCall *cache = &call->cache;
    gint32 *tokens = take_numbers(call, n_rows, &cache->tokens);
    gint32 *rows = take_numbers(call, n_rows, &cache->rows);
    gint32 *firsts = take_numbers(call, n, &cache->firsts);
    gint32 *ends = take_numbers(call, n, &cache->ends);
    gint32 *slots = take_numbers(call, n, &cache->slots);
    gint32 *last = take_numbers(call, n, &call->stage.rows);

    cache->n_ranges = call->stage.n_rows = n;
    for (guint i = 0; i < n; i++) {
        const guint length = length_of(sequences[i]);

        for (guint t = sequences[i]->n_shared * RP_CACHE_BLOCK; t < length; t++) {
            tokens[cache->n_rows] = first[i] + (gint32)t;
            rows[cache->n_rows++] = row_of(sequences[i], t);
        }
        firsts[i] = first[i];
        ends[i] = first[i] + (gint32)length;
        slots[i] = (gint32)sequences[i]->slot;
        last[i] = ends[i] - 1;
    }
}

gboolean
rp_generator_begin(RpGenerator *generator, RpSequence *const *sequences, guint n, GError **error)
{
    g_autofree gint32 *first = g_new(gint32, n);
    guint tokens, rows;

    count_tokens(sequences, n, &tokens, &rows);
    Call call = call_of(generator, shape_of(generator, padded(MAX(tokens, n)), 0));

    lay_out_tokens(&call, sequences, n, tokens, first);
    lay_out_places(&call, sequences, n, first, rows);
    take_choices(&call, sequences, n, n);
    return run(&call, n, RP_GENERATOR_RECORDS, error);
}

/* Arrays of one token of each sequence; the shape's rows behind these are of block 0 and slot 0. */
static void
lay_out_step(Call *call, RpSequence *const *sequences, guint n)
{
    const guint N = call->shape->n, most_blocks = call->generator->most_blocks;
    RpCacheCall *cache = &call->cache;
    gint32 *ids = take_numbers(call, N, (const gint32 **)&call->stage.input);
    gint32 *positions = take_numbers(call, N, &cache->positions);
    gint32 *tokens = take_numbers(call, N, &cache->tokens);
    gint32 *ends = take_numbers(call, N, &cache->ends);
    gint32 *rows = take_numbers(call, N, &cache->rows);
    gint32 *slots = take_numbers(call, N, &cache->slots);
    gint32 *tables = take_numbers(call, (gsize)N * most_blocks, &cache->tables);

    cache->firsts = call->stage.rows = cache->tokens;
    cache->n_rows = cache->n_ranges = call->stage.n_rows = N;
    cache->most_blocks = most_blocks;
    for (guint i = 0; i < N; i++) {
        tokens[i] = (gint32)i;
        ends[i] = (gint32)i + 1;
        if (i >= n)
            continue;
        const guint place = length_of(sequences[i]) - 1;

        ids[i] = token_of(sequences[i], place);
        positions[i] = (gint32)place;
        rows[i] = row_of(sequences[i], place);
        slots[i] = (gint32)sequences[i]->slot;
        memcpy(tables + (gsize)i * most_blocks, sequences[i]->blocks,
               sequences[i]->n_blocks * sizeof *tables);
        cache->longest = MAX(cache->longest, place + 1);
    }
}

gboolean
rp_generator_step(RpGenerator *generator, RpSequence *const *sequences, guint n, GError **error)
{
    const guint N = MIN(rounded_up(n), generator->options.slots);
    Call call = call_of(generator, shape_of(generator, 0, N));
    guint record = 0;

    lay_out_step(&call, sequences, n);
    /* sequences that fit into the same number of parts, 1, 4, 16 ..., are calls alike */
    while ((guint64)RP_CACHE_PART << 2 * record < call.cache.longest)
        record++;
    call.cache.longest =
        (guint)MIN((guint64)RP_CACHE_PART << 2 * record, generator->options.tokens);
    take_choices(&call, sequences, n, N);
    return run(&call, n, record, error);
}

/* As transformers turns each step. A longrope that has come to its long factors stays there, and all keys must be made with
 * them. */
gboolean
rp_generator_turn(RpGenerator *generator, guint length, gboolean first, gboolean *again,
                  GError **error)
{
    const RpRope *rope = &generator->config.rope;
    const gboolean longrope = rope->type == RP_ROPE_LONGROPE;

    *again = FALSE;
    if (!rp_rope_stretches(rope, generator->options.tokens) ||
        (!first && (!rp_rope_stretches(rope, length) ||
                    (longrope && rp_rope_stretches(rope, generator->rope_tokens)))))
        return TRUE;
    *again = longrope && !first;
    return set_constants(generator, shape_of(generator, generator->begin_tokens, 0)->network,
                         length, error);
}
