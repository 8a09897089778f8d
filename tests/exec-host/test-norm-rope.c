/* q/k norm and rope in one against both, one after the other, and against doubles. */
#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include "exec/model/rope-table.h"

#define POSITIONS 40
#define T 23
#define HEADS 3
#define EPSILON 1e-5

/* One head size, one storage. */
typedef struct {
    size_t n, head_size;
    int32_t positions[T];
    double *frequencies;
    Array weight, x, dy, d_weight;
    RpNormRopeArgs args; /* but for inputs or outputs */
} Case;

static Case
new_case(RpDtype dtype, guint head_size)
{
    const RpRope rope = {.type = RP_ROPE_DEFAULT, .theta = 10000};
    const size_t n = T * HEADS * head_size;
    float *frequencies = host_bytes(head_size / 2 * sizeof(float));
    float *cosines = host_bytes(POSITIONS * head_size / 2 * sizeof(float));
    float *sines = host_bytes(POSITIONS * head_size / 2 * sizeof(float));
    Case c = {.n = n,
              .head_size = head_size,
              .frequencies = host_doubles(head_size / 2),
              .weight = host_random(dtype, head_size, 1),
              .x = host_random(dtype, n, 2),
              .dy = host_random(dtype, n, 1),
              .d_weight = host_random(RP_DTYPE_FP32, head_size, 1),
              .args = {.dtype = dtype,
                       .tokens = T,
                       .heads = HEADS,
                       .head_size = head_size,
                       .epsilon = (float)EPSILON,
                       .cosines = cosines,
                       .sines = sines}};

    rp_rope_frequencies(&rope, head_size, POSITIONS, frequencies);
    rp_rope_table(frequencies, head_size, POSITIONS, 1, cosines, sines);
    for (size_t i = 0; i < head_size / 2; i++)
        c.frequencies[i] = (double)frequencies[i];
    for (size_t t = 0; t < T; t++)
        c.positions[t] = host_random_below(POSITIONS);
    return c;
}

static Array
forward(const Case *c, gboolean in_place, Array rstd)
{
    const Array y = in_place ? host_copy(c->x) : host_output(c->x.dtype, c->n);
    RpNormRopeArgs args = c->args;

    args.positions = c->positions;
    args.x = in_place ? y.data : c->x.data;
    args.weight = c->weight.data;
    args.y = y.data;
    args.rstd = rstd.data;
    rp_host_kernels()->norm_rope_forward(NULL, &args);
    return y;
}

static Array
backward(const Case *c, gboolean in_place, Array rstd, Array d_weight)
{
    const Array dx = in_place ? host_copy(c->dy) : host_output(c->x.dtype, c->n);
    RpNormRopeArgs args = c->args;

    args.positions = c->positions;
    args.x = c->x.data;
    args.weight = c->weight.data;
    args.rstd = rstd.data;
    args.dy = in_place ? dx.data : c->dy.data;
    args.dx = dx.data;
    args.d_weight = d_weight.data;
    args.workspace = host_workspace(rp_host_kernels()->norm_rope_backward_workspace(&args));
    rp_host_kernels()->norm_rope_backward(NULL, &args);
    return dx;
}

static RpRopeArgs
rope_of(const Case *c, Array array)
{
    return (RpRopeArgs){.dtype = array.dtype,
                        .tokens = T,
                        .heads = HEADS,
                        .head_size = c->head_size,
                        .positions = c->positions,
                        .cosines = c->args.cosines,
                        .sines = c->args.sines,
                        .x = array.data,
                        .y = array.data};
}

static void
check_bits(RpDtype dtype, guint head_size, gboolean in_place)
{
    const RpKernels *kernels = rp_host_kernels();
    const Case c = new_case(dtype, head_size);
    const Array y = host_output(dtype, c.n);
    const Array d = host_copy(c.dy);
    const Array rstd = host_output(RP_DTYPE_FP32, T * HEADS);
    const Array fused_rstd = host_output(RP_DTYPE_FP32, T * HEADS);
    const Array fused_d_weight = host_copy(c.d_weight);
    RpRmsnormArgs norm = {.dtype = dtype,
                          .rows = T * HEADS,
                          .n = head_size,
                          .epsilon = (float)EPSILON,
                          .x = c.x.data,
                          .weight = c.weight.data,
                          .y = y.data,
                          .rstd = rstd.data,
                          .dy = d.data,
                          .dx = d.data,
                          .d_weight = c.d_weight.data};
    const RpRopeArgs turn = rope_of(&c, y);
    const RpRopeArgs turn_back = rope_of(&c, d);
    Array fused_y, fused_d;

    norm.workspace = host_workspace(kernels->rmsnorm_backward_workspace(&norm));
    kernels->rmsnorm_forward(NULL, &norm);
    kernels->rope_forward(NULL, &turn);
    kernels->rope_backward(NULL, &turn_back);
    kernels->rmsnorm_backward(NULL, &norm);
    fused_y = forward(&c, in_place, fused_rstd);
    fused_d = backward(&c, in_place, rstd, fused_d_weight);
    host_assert_same(fused_y, y);
    host_assert_same(fused_rstd, rstd);
    host_assert_same(fused_d, d);
    host_assert_same(fused_d_weight, c.d_weight);
}

RP_TEST(gives_the_bits_of_both_one_after_the_other)
{
    static const guint head_sizes[] = {2, 6, 34, 128, 1030};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(head_sizes); i++)
            for (gboolean in_place = FALSE; in_place <= TRUE; in_place++)
                check_bits((RpDtype)dtype, head_sizes[i], in_place);
}

/* fp32 alone: other storages round between the two. */
RP_TEST(equals_the_formulas)
{
    static const guint head_sizes[] = {2, 34, 128};

    for (size_t i = 0; i < G_N_ELEMENTS(head_sizes); i++) {
        const guint D = head_sizes[i];
        const Case c = new_case(RP_DTYPE_FP32, D);
        const Array rstd = host_output(RP_DTYPE_FP32, T * HEADS);
        double *between = host_doubles(c.n);
        double *want = host_doubles(c.n);
        double *d_weight = host_doubles(D);

        reference_rmsnorm(T * HEADS, D, EPSILON, c.x.values, c.weight.values, between);
        reference_rope(T, HEADS, D, c.positions, c.frequencies, 1, between, want);
        host_assert_close(forward(&c, FALSE, rstd), want, 41 * 41, 0); /* as test-rope.c */
        reference_rope(T, HEADS, D, c.positions, c.frequencies, -1, c.dy.values, between);
        reference_rmsnorm_backward(T * HEADS, D, EPSILON, c.x.values, c.weight.values, between,
                                   want, d_weight);
        for (size_t j = 0; j < D; j++)
            d_weight[j] += c.d_weight.values[j];
        host_assert_close(backward(&c, FALSE, rstd, c.d_weight), want, 41 * 41, 0);
        host_assert_close(c.d_weight, d_weight, 41 * 41, 0);
    }
}

/* Columns of rows that are wider by @GAP heads. */
#define GAP 2

static Array
with_gaps(Array array, size_t head_size)
{
    const Array wide = host_random(array.dtype, T * (HEADS + GAP) * head_size, 1);
    const size_t head = head_size * rp_dtype_size(array.dtype);

    for (size_t t = 0; t < T; t++)
        memcpy((char *)wide.data + t * (HEADS + GAP) * head,
               (const char *)array.data + t * HEADS * head, HEADS * head);
    return wide;
}

/* A case's x and dy as columns give the same bits, and the values between them stay. */
RP_TEST(gives_the_same_bits_of_columns)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (guint D = 8; D <= 128; D += 120) {
            Case c = new_case((RpDtype)dtype, D);
            const Array rstd = host_output(RP_DTYPE_FP32, T * HEADS);
            const Array wide_rstd = host_output(RP_DTYPE_FP32, T * HEADS);
            const Array sums = host_copy(c.d_weight), wide_sums = host_copy(c.d_weight);
            const Array y = forward(&c, FALSE, rstd), dx = backward(&c, FALSE, rstd, sums);
            const Array d = with_gaps(c.dy, D);
            Array want = host_copy(d);

            c.x = with_gaps(c.x, D);
            c.dy = d;
            c.args.row_heads = HEADS + GAP;

            const Array columns_y = forward(&c, FALSE, wide_rstd);

            host_assert_same(columns_y, y);
            host_assert_same(wide_rstd, rstd);
            for (size_t t = 0; t < T; t++)
                memcpy((char *)want.data + t * (HEADS + GAP) * D * rp_dtype_size(c.x.dtype),
                       (char *)dx.data + t * HEADS * D * rp_dtype_size(c.x.dtype),
                       HEADS * D * rp_dtype_size(c.x.dtype));
            const Array columns_dx = backward(&c, TRUE, wide_rstd, wide_sums);

            host_assert_same(columns_dx, want);
            host_assert_same(wide_sums, sums);
        }
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
