#include "tests/exec-cuda/cuda-fixture.h"

static const RpLowbitShape shapes[] = {
    {1, 1, 1},   {1, 1, 7},     {1, 1, 8},      {3, 5, 13},     {1, 2, 37},
    {2, 3, 129}, {2, 130, 260}, {1, 300, 2880}, {4, 257, 1040}, {1, 4100, 8192},
};

typedef struct {
    RpLowbit format;
    RpLowbitShape shape;
    guint8 *packed;
    Array want; /* by core/lowbit */
} Inputs;

/* Not close: the same bits. */
static void
compute(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const gsize bytes = rp_lowbit_layout(inputs->format, inputs->shape).total;
    const Array want = inputs->want;
    const RpExpandArgs args = {
        .format = inputs->format,
        .dtype = want.dtype,
        .shape = inputs->shape,
        .packed =
            cuda_copy_in(side, inputs->packed, bytes / RP_LOWBIT_ALIGNMENT, RP_LOWBIT_ALIGNMENT),
        .y = cuda_out(side, want.dtype, want.n),
    };

    side->kernels->expand(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, want.dtype, want.n, args.y);
    outputs->terms[0] = 1;
    host_assert_same(outputs->arrays[0], want);
}

/* Random weights of many magnitudes, a block of zeros among them. */
RP_TEST(expands_every_format_to_the_bits_of_the_host)
{
    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++) {
            const guint mark = host_mark();
            const gsize n = rp_lowbit_elements(shapes[s]);
            const Array source = cuda_random(RP_DTYPE_BF16, n, 1);
            Inputs inputs = {(RpLowbit)f,
                             shapes[s],
                             host_bytes(rp_lowbit_layout((RpLowbit)f, shapes[s]).total),
                             {0}};
            float *scales =
                host_bytes(rp_lowbit_pack_scales((RpLowbit)f, shapes[s]) * sizeof *scales);

            for (gsize i = 0; i < n; i++)
                ((guint16 *)source.data)[i] -= (guint16)(i / 640 % 6 << 7); /* powers of two */
            memset(source.data, 0, MIN(n, 200) * sizeof(guint16));
            assert_true(rp_lowbit_pack((RpLowbit)f, shapes[s], RP_DTYPE_BF16, source.data, 0,
                                       rp_lowbit_strips((RpLowbit)f, shapes[s]), inputs.packed,
                                       scales) == RP_LOWBIT_NONE);
            rp_lowbit_pack_end((RpLowbit)f, shapes[s], scales, inputs.packed);
            for (guint d = 0; d < RP_N_DTYPES; d++) {
                inputs.want = host_output((RpDtype)d, n);
                rp_lowbit_expand((RpLowbit)f, shapes[s], inputs.packed, (RpDtype)d, 0, n,
                                 inputs.want.data);
                cuda_hold_to_host(compute, &inputs, TRUE);
            }
            host_free_since(mark);
        }
    }
}

/* Every scale and code of one byte: subnormal, largest and NaN. */
RP_TEST(expands_every_scale_of_mxfp4_and_code_of_fp8)
{
    const RpLowbitShape many = {1, 255, 64}, quantized = {1, 2, 128};
    const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_MXFP4, many);
    Inputs inputs = {RP_LOWBIT_MXFP4, many, host_bytes(layout.total), {0}};

    for (gsize i = 0; i < layout.bytes[RP_LOWBIT_QUANTIZED]; i++)
        inputs.packed[i] = (guint8)(i * 37);
    for (gsize i = 0; i < layout.bytes[RP_LOWBIT_SCALES]; i++)
        inputs.packed[layout.at[RP_LOWBIT_SCALES] + i] = (guint8)(i / 2);
    for (guint d = 0; d < RP_N_DTYPES; d++) {
        inputs.want = host_output((RpDtype)d, 255 * 64);
        rp_lowbit_expand(RP_LOWBIT_MXFP4, many, inputs.packed, (RpDtype)d, 0, 255 * 64,
                         inputs.want.data);
        cuda_hold_to_host(compute, &inputs, TRUE);
    }

    const RpLowbitLayout small = rp_lowbit_layout(RP_LOWBIT_FP8, quantized);
    const float scale = 0.3f;
    inputs.format = RP_LOWBIT_FP8;
    inputs.shape = quantized;
    inputs.packed = host_bytes(small.total);
    for (guint i = 0; i < 256; i++)
        inputs.packed[i] = (guint8)(i % 128 == 127 ? 0 : i); /* NaNs have no common bits */
    memcpy(inputs.packed + small.at[RP_LOWBIT_SCALES], &scale, sizeof scale);
    for (guint d = 0; d < RP_N_DTYPES; d++) {
        inputs.want = host_output((RpDtype)d, 256);
        rp_lowbit_expand(RP_LOWBIT_FP8, quantized, inputs.packed, (RpDtype)d, 0, 256,
                         inputs.want.data);
        cuda_hold_to_host(compute, &inputs, TRUE);
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
