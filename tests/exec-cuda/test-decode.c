/* Kernels that generate: close to the host's, and each row the same whatever others there are. */
#include "tests/exec-cuda/cuda-fixture.h"

#include <string.h>

/* ---- matmuls ---- */

typedef struct {
    size_t m, n, k;
    gboolean adds;
    Array x, w, residual;
} Matmul;

static void
compute_rows(const Side *side, const void *data, Outputs *outputs)
{
    const Matmul *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    RpMatmulArgs args = {.form = RP_MATMUL_NT,
                         .m = inputs->m,
                         .n = inputs->n,
                         .k = inputs->k,
                         .alone = TRUE,
                         .a = cuda_in(side, inputs->x),
                         .b = cuda_in(side, inputs->w),
                         .c = cuda_out(side, dtype, inputs->m * inputs->n),
                         .residual = inputs->adds ? cuda_in(side, inputs->residual) : NULL,
                         .a_dtype = dtype,
                         .b_dtype = dtype,
                         .c_dtype = dtype};

    args.workspace = cuda_workspace(side, side->kernels->matmul_workspace(&args));
    side->kernels->matmul(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->m * inputs->n, args.c);
    outputs->terms[0] = inputs->k;
}

static Matmul
make_matmul(RpDtype dtype, size_t m, size_t n, size_t k, gboolean adds)
{
    return (Matmul){.m = m,
                    .n = n,
                    .k = k,
                    .adds = adds,
                    .x = cuda_random(dtype, m * k, 1),
                    .w = cuda_random(dtype, n * k, 0.1),
                    .residual = cuda_random(dtype, m * n, 1)};
}

RP_TEST(multiplies_few_rows)
{
    static const size_t shapes[][3] = {{1, 16, 32},     {3, 33, 40},    {8, 200, 264},
                                       {11, 64, 72},    {16, 48, 1000}, {31, 130, 512},
                                       {64, 80, 2048},  {65, 257, 96},  {200, 8192, 64},
                                       {130, 4100, 72}, {7, 19, 13},    {40, 6000, 24}};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
            const guint mark = host_mark();
            const Matmul inputs =
                make_matmul((RpDtype)dtype, shapes[i][0], shapes[i][1], shapes[i][2], i % 2 == 1);

            cuda_hold_to_host(compute_rows, &inputs, FALSE);
            host_free_since(mark);
        }
}

/* Every number of rows up to more than a block has, at shapes that take each kind of block. */
RP_TEST(multiplies_each_row_as_if_it_were_alone)
{
    static const size_t rows[] = {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 130, 300};
    static const size_t shapes[][2] = {{64, 4096}, {4096, 520}, {16000, 104}, {33, 77}};
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    const size_t most = 300;

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t s = 0; s < G_N_ELEMENTS(shapes); s++) {
            const guint mark = host_mark();
            const size_t n = shapes[s][0], row = n * rp_dtype_size((RpDtype)dtype);
            Matmul inputs = make_matmul((RpDtype)dtype, most, n, shapes[s][1], TRUE);
            Outputs all = {0};

            compute_rows(&side, &inputs, &all);
            for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
                Outputs some = {0};

                inputs.m = inputs.residual.n = rows[i];
                inputs.x.n = rows[i] * inputs.k;
                inputs.residual.n = rows[i] * n;
                compute_rows(&side, &inputs, &some);
                assert_memory_equal(some.arrays[0].data, all.arrays[0].data, rows[i] * row);
            }
            host_free_since(mark);
        }
}

/* ---- attention ---- */

#define BLOCKS 40

typedef struct {
    size_t n, heads, kv_heads, head_size, window, most_blocks, longest;
    const int32_t *positions, *tables;
    Array q, keys, values;
} Attention;

static void
compute_attention(const Side *side, const void *data, Outputs *outputs)
{
    const Attention *inputs = data;
    const RpDtype dtype = inputs->q.dtype;
    RpCachedAttentionArgs args = {
        .dtype = dtype,
        .queries = inputs->n,
        .heads = inputs->heads,
        .kv_heads = inputs->kv_heads,
        .head_size = inputs->head_size,
        .window = inputs->window,
        .longest = inputs->longest,
        .most_blocks = inputs->most_blocks,
        .scale = 0.3f,
        .positions = cuda_copy_in(side, inputs->positions, inputs->n, sizeof(int32_t)),
        .tables =
            cuda_copy_in(side, inputs->tables, inputs->n * inputs->most_blocks, sizeof(int32_t)),
        .q = cuda_in(side, inputs->q),
        .keys = cuda_in(side, inputs->keys),
        .values = cuda_in(side, inputs->values),
        .out = cuda_out(side, dtype, inputs->q.n),
        .lse = cuda_out(side, RP_DTYPE_FP32, inputs->n * inputs->heads)};

    args.workspace = cuda_workspace(side, side->kernels->attention_cached_workspace(&args));
    side->kernels->attention_cached(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->q.n, args.out);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->n * inputs->heads, args.lse);
    outputs->terms[0] = outputs->terms[1] = inputs->longest;
    outputs->slack[0] = outputs->slack[1] = dtype == RP_DTYPE_FP32 ? 1e-5 : 1e-4;
}

RP_TEST(attends_to_blocks_of_a_cache)
{
    enum { N = 5, MOST = 14 };
    static const int32_t positions[N] = {0, 63, 300, 800, 130};
    static const size_t sizes[][3] = {{4, 2, 16},  {4, 4, 64},  {8, 1, 128},
                                      {6, 2, 128}, {8, 2, 256}, {3, 1, 80}};
    int32_t tables[N * MOST];

    for (guint i = 0; i < N * MOST; i++)
        tables[i] = (int32_t)((i * 17 + 3) % BLOCKS);
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(sizes) * 2; i++) {
            const guint mark = host_mark();
            const size_t *of = sizes[i / 2];
            const size_t cache = BLOCKS * RP_CACHE_BLOCK * of[1] * of[2];
            Attention inputs = {.n = N,
                                .heads = of[0],
                                .kv_heads = of[1],
                                .head_size = of[2],
                                .window = i % 2 == 1 ? 100 : 0,
                                .most_blocks = MOST,
                                .longest = 801,
                                .positions = positions,
                                .tables = tables,
                                .q = cuda_random((RpDtype)dtype, N * of[0] * of[2], 1),
                                .keys = cuda_random((RpDtype)dtype, cache, 1),
                                .values = cuda_random((RpDtype)dtype, cache, 1)};

            cuda_hold_to_host(compute_attention, &inputs, TRUE);
            /* fewer sequences, and a launch of other parts */
            const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
            Outputs all = {0}, some = {0};

            compute_attention(&side, &inputs, &all);
            inputs.n = 2;
            inputs.longest = 64;
            inputs.q.n = 2 * of[0] * of[2];
            compute_attention(&side, &inputs, &some);
            assert_memory_equal(all.arrays[0].data, some.arrays[0].data,
                                inputs.q.n * rp_dtype_size((RpDtype)dtype));
            host_free_since(mark);
        }
}

/* ---- DeltaNet ---- */

#define RANGES 3
#define TOKENS 150
#define SLOTS 5

typedef struct {
    size_t key_dim, value_dim, kernel;
    gboolean begins;
    Array x, taps, qkv, b, a, log, bias, conv_states, states;
} States;

static const int32_t firsts[RANGES] = {0, 1, 70}, ends[RANGES] = {1, 70, TOKENS},
                     slots[RANGES] = {3, 1, 4};

static void
compute_states(const Side *side, const void *data, Outputs *outputs)
{
    enum { HEADS = 4, KEY_HEADS = 2 };
    const States *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    const RpConvStepArgs conv = {.dtype = dtype,
                                 .ranges = RANGES,
                                 .n = inputs->x.n / TOKENS,
                                 .kernel = inputs->kernel,
                                 .begins = inputs->begins,
                                 .firsts = cuda_copy_in(side, firsts, RANGES, sizeof(int32_t)),
                                 .ends = cuda_copy_in(side, ends, RANGES, sizeof(int32_t)),
                                 .slots = cuda_copy_in(side, slots, RANGES, sizeof(int32_t)),
                                 .x = cuda_in(side, inputs->x),
                                 .weight = cuda_in(side, inputs->taps),
                                 .y = cuda_out(side, dtype, inputs->x.n),
                                 .states = cuda_in(side, inputs->conv_states)};
    const RpDeltaStepArgs delta = {.dtype = dtype,
                                   .ranges = RANGES,
                                   .key_heads = KEY_HEADS,
                                   .value_heads = HEADS,
                                   .key_dim = inputs->key_dim,
                                   .value_dim = inputs->value_dim,
                                   .begins = inputs->begins,
                                   .firsts = conv.firsts,
                                   .ends = conv.ends,
                                   .slots = conv.slots,
                                   .qkv = cuda_in(side, inputs->qkv),
                                   .b = cuda_in(side, inputs->b),
                                   .a = cuda_in(side, inputs->a),
                                   .log = cuda_in(side, inputs->log),
                                   .bias = cuda_in(side, inputs->bias),
                                   .out = cuda_out(side, dtype, TOKENS * HEADS * inputs->value_dim),
                                   .states = cuda_in(side, inputs->states)};

    side->kernels->conv_step(side->stream, &conv);
    side->kernels->delta_step(side->stream, &delta);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, conv.y);
    outputs->arrays[1] = cuda_result(side, dtype, inputs->conv_states.n, conv.states);
    outputs->arrays[2] = cuda_result(side, dtype, TOKENS * HEADS * inputs->value_dim, delta.out);
    outputs->arrays[3] = cuda_result(side, RP_DTYPE_FP32, inputs->states.n, delta.states);
    for (guint i = 0; i < 4; i++) {
        outputs->terms[i] = TOKENS + inputs->key_dim;
        outputs->slack[i] = 2e-5;
    }
}

RP_TEST(continues_the_delta_rule_from_states)
{
    static const size_t dims[][2] = {{8, 8}, {64, 40}, {128, 128}, {200, 33}};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(dims) * 2; i++) {
            const guint mark = host_mark();
            const size_t Dk = dims[i / 2][0], Dv = dims[i / 2][1], n = 4 * Dk + 4 * Dv;
            const size_t kernel = i / 2 == 1 ? 7 : 4;
            const RpDtype of = (RpDtype)dtype;
            const States inputs = {.key_dim = Dk,
                                   .value_dim = Dv,
                                   .kernel = kernel,
                                   .begins = i % 2 == 0,
                                   .x = cuda_random(of, TOKENS * n, 1),
                                   .taps = cuda_random(of, n * kernel, 0.5),
                                   .qkv = cuda_random(of, TOKENS * n, 1),
                                   .b = cuda_random(of, TOKENS * 4, 1),
                                   .a = cuda_random(of, TOKENS * 4, 1),
                                   .log = cuda_random(of, 4, 1),
                                   .bias = cuda_random(of, 4, 1),
                                   .conv_states = cuda_random(of, SLOTS * (kernel - 1) * n, 1),
                                   .states = cuda_random(RP_DTYPE_FP32, SLOTS * 4 * Dk * Dv, 0.1)};

            cuda_hold_to_host(compute_states, &inputs, TRUE);
            host_free_since(mark);
        }
}

/* ---- sampling ---- */

static void
check_samples(const Side *side, RpDtype dtype, size_t n, RpSampleChoice like, double spread)
{
    enum { ROWS = 40 };
    const guint mark = host_mark();
    const Array logits = cuda_random(dtype, ROWS * n, spread);
    RpSampleChoice choices[ROWS];
    int32_t want[ROWS], got[ROWS];
    RpSampleArgs args = {.dtype = dtype,
                         .rows = ROWS,
                         .vocabulary = n,
                         .logits = logits.data,
                         .choices = choices,
                         .ids = want};

    for (guint i = 0; i < ROWS; i++) {
        choices[i] = like;
        choices[i].number = i;
        choices[i].token = 3 * i;
    }
    rp_host_kernels()->sample(NULL, &args);
    args.logits = cuda_in(side, logits);
    args.choices = cuda_copy_in(side, choices, ROWS, sizeof *choices);
    args.ids = cuda_scratch(side, ROWS, sizeof *args.ids);
    side->kernels->sample(side->stream, &args);
    cuda_copy_out(side, args.ids, got, sizeof got);
    assert_memory_equal(got, want, sizeof got);
    host_free_since(mark);
}

RP_TEST(chooses_the_tokens_of_the_host)
{
    static const RpSampleChoice choices[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1, .top_p = 1, .seed = 5},
        {.temperature = 0.7, .top_p = 0.9, .seed = 5},
        {.temperature = 1.5, .top_p = 1, .top_k = 50, .seed = 6},
        {.temperature = 5, .top_p = 0.5, .top_k = 1000, .seed = 7},
        {.temperature = 1, .top_p = 0.3, .top_k = 3, .seed = 8},
        {.temperature = 100, .top_p = 0.95, .seed = 9},
        {.temperature = 0.01, .top_p = 1, .seed = 9},
        {.temperature = 1, .top_p = 1, .top_k = 1},
    };
    static const size_t sizes[] = {1, 2, 33, 1000, 5003, 151936};
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
            for (size_t i = 0; i < G_N_ELEMENTS(choices); i++) {
                if (sizes[s] > 10000 && i % RP_N_DTYPES != dtype)
                    continue; /* the host sorts them */
                check_samples(&side, (RpDtype)dtype, sizes[s], choices[i], 3);
                check_samples(&side, (RpDtype)dtype, sizes[s], choices[i], 0.001);
            }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
