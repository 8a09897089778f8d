/* The delta rule's kernels without a GPU (soft-warps.h), against the host's in fp32. */
#include "tests/exec-host/host-fixture.h"

#include "tests/exec-cuda/soft-warps.h"

enum { QKV, B, A, LOG, BIAS, D_OUT, INPUTS };
enum { OUT, D_QKV, D_B, D_A, D_LOG, D_BIAS, OUTPUTS };

static double *
values_of(Array array)
{
    double *values = host_doubles(array.n);

    for (size_t i = 0; i < array.n; i++)
        values[i] = host_value(array, i);
    return values;
}

/* Arguments over arrays of @dtype: inputs converted to it, outputs not written yet. */
static RpDeltaArgs
arguments_of(const RpDeltaArgs *sizes, RpDtype dtype, const Array *inputs, Array *outputs)
{
    const size_t H = sizes->value_heads, gates = sizes->tokens * H;
    const size_t lengths[OUTPUTS] = {inputs[D_OUT].n, inputs[QKV].n, gates, gates, H, H};
    void *data[INPUTS];
    RpDeltaArgs args = *sizes;

    for (guint i = 0; i < INPUTS; i++) {
        data[i] = inputs[i].data;
        if (dtype != RP_DTYPE_FP32)
            continue;
        data[i] = host_bytes(inputs[i].n * sizeof(float));
        rp_dtype_to_float(inputs[i].dtype, inputs[i].data, data[i], inputs[i].n);
    }
    for (guint i = 0; i < OUTPUTS; i++)
        outputs[i] =
            i < D_LOG ? host_output(dtype, lengths[i]) : host_random(RP_DTYPE_FP32, lengths[i], 0);
    args.dtype = dtype;
    args.gate_row = H;
    args.qkv = data[QKV];
    args.b = data[B];
    args.a = data[A];
    args.log = data[LOG];
    args.bias = data[BIAS];
    args.d_out = data[D_OUT];
    args.out = outputs[OUT].data;
    args.d_qkv = outputs[D_QKV].data;
    args.d_b = outputs[D_B].data;
    args.d_a = outputs[D_A].data;
    args.d_log = outputs[D_LOG].data;
    args.d_bias = outputs[D_BIAS].data;
    return args;
}

static void
check_rule(void (*rule)(const RpDeltaArgs *args, bool trains, bool backwards), RpDtype dtype,
           RpDeltaArgs sizes, const gint32 *starts)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t T = (size_t)starts[sizes.sequences], H = sizes.value_heads, gates = T * H;
    const Array inputs[INPUTS] = {host_random(dtype, T * rp_delta_columns(&sizes), 1),
                                  host_random(dtype, gates, 2),
                                  host_random(dtype, gates, 2),
                                  host_random(dtype, H, 1),
                                  host_random(dtype, H, 1),
                                  host_random(dtype, gates * sizes.value_dim, 1)};
    Array want[OUTPUTS], got[2][OUTPUTS];

    sizes.tokens = T;
    sizes.starts = starts;
    for (size_t s = 0; s < sizes.sequences; s++)
        sizes.max_length = MAX(sizes.max_length, (size_t)(starts[s + 1] - starts[s]));
    /* the first head forgets so little that states of earlier chunks matter */
    rp_dtype_from_float(dtype, &(float){-6}, inputs[LOG].data, 1);

    RpDeltaArgs args = arguments_of(&sizes, RP_DTYPE_FP32, inputs, want);

    args.workspace = host_workspace(kernels->delta_forward_workspace(&args));
    kernels->delta_forward(NULL, &args);
    args.workspace = host_workspace(kernels->delta_backward_workspace(&args));
    kernels->delta_backward(NULL, &args);
    for (guint order = 0; order < 2; order++) {
        args = arguments_of(&sizes, dtype, inputs, got[order]);
        rule(&args, FALSE, order == 1);
        rule(&args, TRUE, order == 1);
    }
    for (guint i = 0; i < OUTPUTS; i++) {
        /* as exact as sums of fp32, but for the last rounding */
        host_assert_close(got[0][i], values_of(want[i]), 64 * sizes.key_dim * (i < D_LOG ? 1 : T),
                          0);
        host_assert_same(got[0][i], got[1][i]);
    }
}

RP_TEST(computes_the_delta_rule_of_heads_of_128)
{
    static const gint32 one[] = {0, 230}, packed[] = {0, 3, 150, 150, 152};
    RpDeltaArgs sizes = {
        .sequences = 4, .key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128};

    check_rule(soft_delta, RP_DTYPE_BF16, sizes, packed);
    sizes.sequences = sizes.value_heads = 1;
    if (!RP_TEST_FEW)
        check_rule(soft_delta, RP_DTYPE_BF16, sizes, one);
}

RP_TEST(computes_the_delta_rule_of_any_shape)
{
    static const gint32 packed[] = {0, 3, 70, 70, 74};
    RpDeltaArgs sizes = {
        .sequences = 4, .key_heads = 1, .value_heads = 2, .key_dim = 37, .value_dim = 70};

    check_rule(soft_delta_walk, RP_DTYPE_FP32, sizes, packed);
    sizes.key_dim = sizes.value_dim = 6;
    if (!RP_TEST_FEW)
        check_rule(soft_delta_walk, RP_DTYPE_BF16, sizes, packed);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
