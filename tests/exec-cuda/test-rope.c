#include "tests/exec-cuda/cuda-fixture.h"

#include "exec/model/rope-table.h"

typedef struct {
    size_t tokens, heads, head_size;
    const int32_t *positions;
    size_t table; /* its elements */
    const float *cosines, *sines;
    gboolean in_place;
    Array x;
} Inputs;

static void
compute(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    void *x = cuda_in(side, inputs->x);
    RpRopeArgs args = {.dtype = dtype,
                       .tokens = inputs->tokens,
                       .heads = inputs->heads,
                       .head_size = inputs->head_size,
                       .positions =
                           cuda_copy_in(side, inputs->positions, inputs->tokens, sizeof(int32_t)),
                       .cosines = cuda_copy_in(side, inputs->cosines, inputs->table, sizeof(float)),
                       .sines = cuda_copy_in(side, inputs->sines, inputs->table, sizeof(float)),
                       .x = x,
                       .y = inputs->in_place ? x : cuda_out(side, dtype, inputs->x.n)};

    side->kernels->rope_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, args.y);
    outputs->terms[0] = 2;
    if (inputs->in_place) /* not the values rounded before */
        args.x = args.y = cuda_in(side, inputs->x);
    side->kernels->rope_backward(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, dtype, inputs->x.n, args.y);
    outputs->terms[1] = 2;

    /* all but the last head of each token are columns */
    args.row_heads = args.heads--;
    if (args.heads == 0)
        return;
    args.x = args.y = cuda_in(side, inputs->x);
    side->kernels->rope_backward(side->stream, &args);
    outputs->arrays[2] = cuda_result(side, dtype, inputs->x.n, args.y);
    outputs->terms[2] = 2;
    args.x = cuda_in(side, inputs->x);
    args.y = cuda_out(side, dtype, args.tokens * args.heads * args.head_size);
    side->kernels->rope_forward(side->stream, &args);
    outputs->arrays[3] =
        cuda_result(side, dtype, args.tokens * args.heads * args.head_size, args.y);
    outputs->terms[3] = 2;
}

static void
check_size(RpDtype dtype, size_t tokens, size_t heads, size_t head_size, gboolean in_place)
{
    const guint rows = 97;
    const size_t half = head_size / 2;
    float *frequencies = host_bytes(half * sizeof *frequencies);
    float *cosines = host_bytes(rows * half * sizeof *cosines);
    float *sines = host_bytes(rows * half * sizeof *sines);
    int32_t *positions = host_bytes(tokens * sizeof *positions);
    Inputs inputs = {tokens,    heads,       head_size,
                     positions, rows * half, cosines,
                     sines,     in_place,    cuda_random(dtype, tokens * heads * head_size, 1)};

    for (size_t i = 0; i < half; i++)
        frequencies[i] = 1.0f / (float)(i + 1);
    rp_rope_table(frequencies, (guint)head_size, rows, 1, cosines, sines);
    for (size_t t = 0; t < tokens; t++)
        positions[t] = host_random_below((gint32)rows);
    cuda_hold_to_host(compute, &inputs, TRUE);
}

RP_TEST(turns_heads_of_every_size_in_place_or_not)
{
    static const size_t sizes[] = {2, 6, 16, 34, 64, 80, 128, 256, 4098};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
            for (gboolean in_place = FALSE; in_place <= TRUE; in_place++)
                check_size((RpDtype)dtype, 29, 1 + s, sizes[s], in_place);
}

RP_TEST(turns_a_real_model)
{
    check_size(RP_DTYPE_BF16, 2048, 16, 128, TRUE);
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
