/*
 * NF4: 16 values, blocks of 64 of the flat tensor.
 *
 *   scale = largest |x| of the block;  code = number of bounds below x / scale, so that a tie takes
 *   the lower code; bounds are the means of neighbouring values.
 *
 * A whole block is multiplied by 1 / max(scale, 1e-38), the last one, if it is not whole, divided by
 * max(scale, 1e-38), which is then its scale: so does bitsandbytes, and other bits would follow.
 *
 * Double quantisation: offset = mean of all scales, summed as torch does on one thread (AVX2). A
 * scale minus the offset, over the largest magnitude of its 256, is put on a grid of 65,536 steps
 * from -1 to 1 and then takes the nearest of 256 values, of two equally near the lower one.
 * Source: bitsandbytes 0.50 backends/default/ops.py (quantize_4bit), csrc/cpu_ops.cpp
 *   (quantize_cpu); torch aten/src/ATen/native/cpu/SumKernel.cpp (cascade sum)
 */
#include "core/lowbit/private.h"

#include "core/lowbit/lowbit.h"

/* The signed 8-bit dynamic map of bitsandbytes 0.50, create_dynamic_map(). */

/* clang-format off */
static const float dynamic_map[RP_NF4_MAP] = {
    -0.992968738f, -0.978906274f, -0.96484375f, -0.950781226f, -0.936718762f, -0.922656238f,
    -0.908593774f, -0.89453125f, -0.880468726f, -0.866406262f, -0.852343738f, -0.838281274f,
    -0.82421875f, -0.810156226f, -0.796093762f, -0.782031238f, -0.767968774f, -0.75390625f,
    -0.739843726f, -0.725781262f, -0.711718798f, -0.697656274f, -0.68359375f, -0.669531226f,
    -0.655468762f, -0.641406298f, -0.627343774f, -0.61328125f, -0.599218726f, -0.585156262f,
    -0.571093798f, -0.557031274f, -0.54296875f, -0.528906226f, -0.514843702f, -0.500781238f,
    -0.486718714f, -0.47265625f, -0.458593726f, -0.444531262f, -0.430468738f, -0.416406244f,
    -0.40234375f, -0.388281226f, -0.374218762f, -0.360156238f, -0.346093744f, -0.33203125f,
    -0.317968726f, -0.303906262f, -0.289843738f, -0.275781274f, -0.26171875f, -0.247656241f,
    -0.233593747f, -0.219531253f, -0.205468744f, -0.19140625f, -0.177343756f, -0.163281247f,
    -0.149218753f, -0.135156244f, -0.12109375f, -0.107031256f, -0.0985937491f, -0.0957812592f,
    -0.0929687545f, -0.0901562497f, -0.0873437524f, -0.0845312476f, -0.0817187577f, -0.078906253f,
    -0.0760937482f, -0.0732812509f, -0.0704687461f, -0.0676562563f, -0.0648437515f, -0.0620312504f,
    -0.0592187531f, -0.0564062484f, -0.053593751f, -0.05078125f, -0.047968749f, -0.0451562516f,
    -0.0423437469f, -0.0395312496f, -0.0367187522f, -0.0339062512f, -0.0310937501f, -0.028281251f,
    -0.0254687499f, -0.0226562507f, -0.0198437516f, -0.0170312505f, -0.0142187504f, -0.0114062503f,
    -0.00971874967f, -0.00915624946f, -0.00859375019f, -0.00803124998f, -0.00746874977f, -0.00690625003f,
    -0.00634374982f, -0.00578125007f, -0.00521875033f, -0.00465624966f, -0.00409374991f, -0.00353124971f,
    -0.00296874996f, -0.00240624999f, -0.00184375001f, -0.00128124992f, -0.000943750085f, -0.000831249985f,
    -0.00071875006f, -0.000606250076f, -0.000493750034f, -0.000381250022f, -0.000268750038f, -0.000156250011f,
    -8.87499991e-05f, -6.62500024e-05f, -4.37499984e-05f, -2.12499981e-05f, -7.7499999e-06f, -3.25000019e-06f,
    -5.50000038e-07f, 0.0f, 5.50000038e-07f, 3.25000019e-06f, 7.7499999e-06f, 2.12499981e-05f,
    4.37499984e-05f, 6.62500024e-05f, 8.87499991e-05f, 0.000156250011f, 0.000268750038f, 0.000381250022f,
    0.000493750034f, 0.000606250076f, 0.00071875006f, 0.000831249985f, 0.000943750085f, 0.00128124992f,
    0.00184375001f, 0.00240624999f, 0.00296874996f, 0.00353124971f, 0.00409374991f, 0.00465624966f,
    0.00521875033f, 0.00578125007f, 0.00634374982f, 0.00690625003f, 0.00746874977f, 0.00803124998f,
    0.00859375019f, 0.00915624946f, 0.00971874967f, 0.0114062503f, 0.0142187504f, 0.0170312505f,
    0.0198437516f, 0.0226562507f, 0.0254687499f, 0.028281251f, 0.0310937501f, 0.0339062512f,
    0.0367187522f, 0.0395312496f, 0.0423437469f, 0.0451562516f, 0.047968749f, 0.05078125f,
    0.053593751f, 0.0564062484f, 0.0592187531f, 0.0620312504f, 0.0648437515f, 0.0676562563f,
    0.0704687461f, 0.0732812509f, 0.0760937482f, 0.078906253f, 0.0817187577f, 0.0845312476f,
    0.0873437524f, 0.0901562497f, 0.0929687545f, 0.0957812592f, 0.0985937491f, 0.107031256f,
    0.12109375f, 0.135156244f, 0.149218753f, 0.163281247f, 0.177343756f, 0.19140625f,
    0.205468744f, 0.219531253f, 0.233593747f, 0.247656241f, 0.26171875f, 0.275781274f,
    0.289843738f, 0.303906262f, 0.317968726f, 0.33203125f, 0.346093744f, 0.360156238f,
    0.374218762f, 0.388281226f, 0.40234375f, 0.416406244f, 0.430468738f, 0.444531262f,
    0.458593726f, 0.47265625f, 0.486718714f, 0.500781238f, 0.514843702f, 0.528906226f,
    0.54296875f, 0.557031274f, 0.571093798f, 0.585156262f, 0.599218726f, 0.61328125f,
    0.627343774f, 0.641406298f, 0.655468762f, 0.669531226f, 0.68359375f, 0.697656274f,
    0.711718798f, 0.725781262f, 0.739843726f, 0.75390625f, 0.767968774f, 0.782031238f,
    0.796093762f, 0.810156226f, 0.82421875f, 0.838281274f, 0.852343738f, 0.866406262f,
    0.880468726f, 0.89453125f, 0.908593774f, 0.922656238f, 0.936718762f, 0.950781226f,
    0.96484375f, 0.978906274f, 0.992968738f, 1.0f,
};
/* clang-format on */

const float *
rp_nf4_map(void)
{
    return dynamic_map;
}

#define LEAST_SCALE 1e-38f

static const float nf4_values[16] = {RP_NF4_VALUES};

static void
sizes_single(RpLowbitShape shape, size_t bytes[RP_N_LOWBIT_PARTS])
{
    bytes[RP_LOWBIT_QUANTIZED] = rp_lowbit_blocks(shape.columns, 2);
    bytes[RP_LOWBIT_SCALES] = rp_lowbit_blocks(shape.columns, RP_NF4_BLOCK) * sizeof(float);
}

static void
sizes_double(RpLowbitShape shape, size_t bytes[RP_N_LOWBIT_PARTS])
{
    const size_t blocks = rp_lowbit_blocks(shape.columns, RP_NF4_BLOCK);

    bytes[RP_LOWBIT_QUANTIZED] = rp_lowbit_blocks(shape.columns, 2);
    bytes[RP_LOWBIT_SCALES] = blocks;
    bytes[RP_LOWBIT_NESTED_SCALES] = rp_lowbit_blocks(blocks, RP_NF4_NESTED_BLOCK) * sizeof(float);
    bytes[RP_LOWBIT_NESTED_MAP] = RP_NF4_MAP * sizeof(float);
    bytes[RP_LOWBIT_OFFSET] = sizeof(float);
}

static void
expand_block(const unsigned char *quantized, size_t n, float scale, float *values)
{
    float at_scale[16];

    for (size_t i = 0; i < 16; i++)
        at_scale[i] = nf4_values[i] * scale;
    for (size_t i = 0; i < n / 2; i++) {
        values[2 * i] = at_scale[quantized[i] >> 4];
        values[2 * i + 1] = at_scale[quantized[i] & 15];
    }
    if (n % 2 != 0)
        values[n - 1] = at_scale[quantized[n / 2] >> 4];
}

static void
expand_single(RpLowbitShape shape, const RpLowbitTensor *tensor, size_t row, size_t column,
              size_t n, float *values)
{
    const float *scales = (const float *)tensor->part[RP_LOWBIT_SCALES] + column / RP_NF4_BLOCK;

    for (size_t i = 0; i < n; i += RP_NF4_BLOCK)
        expand_block(tensor->part[RP_LOWBIT_QUANTIZED] + (column + i) / 2,
                     n - i < RP_NF4_BLOCK ? n - i : RP_NF4_BLOCK, scales[i / RP_NF4_BLOCK],
                     values + i);
}

static void
expand_double(RpLowbitShape shape, const RpLowbitTensor *tensor, size_t row, size_t column,
              size_t n, float *values)
{
    const unsigned char *scales = tensor->part[RP_LOWBIT_SCALES];
    const float *nested = (const float *)tensor->part[RP_LOWBIT_NESTED_SCALES];
    const float *map = (const float *)tensor->part[RP_LOWBIT_NESTED_MAP];
    const float offset = *(const float *)tensor->part[RP_LOWBIT_OFFSET];

    for (size_t i = 0; i < n; i += RP_NF4_BLOCK) {
        const size_t block = (column + i) / RP_NF4_BLOCK;
        const float product = map[scales[block]] * nested[block / RP_NF4_NESTED_BLOCK];

        expand_block(tensor->part[RP_LOWBIT_QUANTIZED] + (column + i) / 2,
                     n - i < RP_NF4_BLOCK ? n - i : RP_NF4_BLOCK, product + offset, values + i);
    }
}

/* The codes of one block, each in a byte. */
static void
find_quantized(const float values[RP_NF4_BLOCK], unsigned char quantized[RP_NF4_BLOCK])
{
    int32_t counts[RP_NF4_BLOCK] = {0};

    for (size_t k = 0; k < 15; k++) {
        const float bound = (nf4_values[k] + nf4_values[k + 1]) / 2;

        for (size_t i = 0; i < RP_NF4_BLOCK; i++)
            counts[i] += values[i] > bound;
    }
    for (size_t i = 0; i < RP_NF4_BLOCK; i++)
        quantized[i] = (unsigned char)counts[i];
}

static size_t
pack_block(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t strip,
           const RpLowbitTensor *tensor, float *scale)
{
    const size_t first = strip * RP_NF4_BLOCK;
    const size_t left = shape.columns - first;
    const size_t n = left < RP_NF4_BLOCK ? left : RP_NF4_BLOCK;
    float values[RP_NF4_BLOCK] = {0};
    unsigned char quantized[RP_NF4_BLOCK];

    rp_dtype_to_float(dtype, source + first * rp_dtype_size(dtype), values, n);
    size_t broken = rp_lowbit_first_broken(values, n);
    if (broken < n)
        return first + broken;
    const float largest = rp_lowbit_largest(values, n);
    const float divisor = largest > LEAST_SCALE ? largest : LEAST_SCALE;
    if (n == RP_NF4_BLOCK) {
        const float factor = 1.0f / divisor;

        for (size_t i = 0; i < RP_NF4_BLOCK; i++)
            values[i] *= factor;
    } else {
        for (size_t i = 0; i < RP_NF4_BLOCK; i++)
            values[i] /= divisor;
    }
    *scale = n == RP_NF4_BLOCK ? largest : divisor;
    find_quantized(values, quantized);
    for (size_t i = 0; i < n; i += 2)
        tensor->part[RP_LOWBIT_QUANTIZED][(first + i) / 2] =
            (unsigned char)(quantized[i] << 4 | quantized[i + 1]);
    return RP_LOWBIT_NONE;
}

static size_t
pack_single(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t strip,
            const RpLowbitTensor *tensor, float *scales)
{
    return pack_block(shape, dtype, source, strip, tensor,
                      (float *)tensor->part[RP_LOWBIT_SCALES] + strip);
}

static size_t
pack_double(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t strip,
            const RpLowbitTensor *tensor, float *scales)
{
    return pack_block(shape, dtype, source, strip, tensor, scales + strip);
}

#define VECTOR 8 /* floats of an AVX2 register */
#define ROWS 4   /* added side by side */
#define LEVELS 4

/* Sum of @n values in the order of torch's cascade: rows of 4 vectors go into the first of four
 * levels; every 2^power rows a level goes into the next. */
static float
add_up(const float *x, size_t n)
{
    const size_t vectors = n / VECTOR, rows = vectors / ROWS;
    float level[LEVELS][ROWS * VECTOR] = {{0}};
    float sum = 0;
    unsigned power = 0;

    while (((size_t)1 << power) < rows)
        power++;
    power = power / LEVELS > 4 ? power / LEVELS : 4;
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < ROWS * VECTOR; k++)
            level[0][k] += x[i * ROWS * VECTOR + k];
        for (unsigned j = 1; j < LEVELS && ((i + 1) & (((size_t)1 << j * power) - 1)) == 0; j++)
            for (size_t k = 0; k < ROWS * VECTOR; k++) {
                level[j][k] += level[j - 1][k];
                level[j - 1][k] = 0;
            }
    }
    for (unsigned j = 1; j < LEVELS; j++)
        for (size_t k = 0; k < ROWS * VECTOR; k++)
            level[0][k] += level[j][k];
    for (size_t i = rows * ROWS; i < vectors; i++)
        for (size_t k = 0; k < VECTOR; k++)
            level[0][k] += x[i * VECTOR + k];
    for (size_t row = 1; row < ROWS; row++)
        for (size_t k = 0; k < VECTOR; k++)
            level[0][k] += level[0][row * VECTOR + k];
    for (size_t i = vectors * VECTOR; i < n; i++)
        sum += x[i];
    for (size_t k = 0; k < VECTOR; k++)
        sum += level[0][k];
    return sum;
}

/* Number of bounds of the map below @value, 0 to 255. */
static unsigned char
nearest(const float *map, float value)
{
    unsigned at = 0;

    for (unsigned step = 128; step > 0; step /= 2)
        if (0.5f * (map[at + step - 1] + map[at + step]) < value)
            at += step;
    return (unsigned char)at;
}

void
rp_nf4_pack_scales(RpLowbitShape shape, float *scales, const RpLowbitTensor *tensor)
{
    const size_t blocks = rp_lowbit_blocks(shape.columns, RP_NF4_BLOCK);
    const float offset = add_up(scales, blocks) / (float)blocks;
    const float *map = rp_nf4_map();
    unsigned char *quantized = tensor->part[RP_LOWBIT_SCALES];
    float *nested = (float *)tensor->part[RP_LOWBIT_NESTED_SCALES];

    memcpy(tensor->part[RP_LOWBIT_NESTED_MAP], map, RP_NF4_MAP * sizeof *map);
    memcpy(tensor->part[RP_LOWBIT_OFFSET], &offset, sizeof offset);
    for (size_t first = 0; first < blocks; first += RP_NF4_NESTED_BLOCK) {
        const size_t left = blocks - first;
        const size_t n = left < RP_NF4_NESTED_BLOCK ? left : RP_NF4_NESTED_BLOCK;
        float *x = scales + first;

        for (size_t i = 0; i < n; i++)
            x[i] -= offset;
        const float largest = rp_lowbit_largest(x, n);
        nested[first / RP_NF4_NESTED_BLOCK] = largest;
        for (size_t i = 0; i < n; i++) {
            float ratio = largest > 0 ? x[i] * (1.0f / largest) : -1.0f;

            ratio = ratio > 1 ? 1 : ratio;
            ratio = ratio >= -1 ? ratio : -1; /* also NaN, of 0 times infinity */
            const int grid = (int)((ratio + 1.0f) * 0.5f * 65535.0f + 0.5f);
            quantized[first + i] =
                largest > 0 ? nearest(map, -1.0f + 2.0f * (float)grid / 65535.0f) : 0;
        }
    }
}

const RpLowbitFormat rp_lowbit_nf4 = {
    .name = "nf4",
    .flat = true,
    .nested = true,
    .strip_columns = RP_NF4_BLOCK,
    .sizes = sizes_double,
    .expand = expand_double,
    .pack = pack_double,
};

const RpLowbitFormat rp_lowbit_nf4_single = {
    .name = "nf4-single",
    .flat = true,
    .strip_columns = RP_NF4_BLOCK,
    .sizes = sizes_single,
    .expand = expand_single,
    .pack = pack_single,
};
