/* Launchers of pictures.c's layers: a thread computes one value, in the order of the host's loops. They are compiled as
 * regression.cu says. */
#include <cuda_runtime.h>

#include <roundpipe.h>

#define THREADS 128
#define SIDE 12
#define POINTS (SIDE * SIDE)

static __device__ size_t
place()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ float
value_at(const float *x, int row, int column, bool rectify)
{
    if (row < 0 || row >= SIDE || column < 0 || column >= SIDE)
        return 0;
    const float value = x[row * SIDE + column];

    return rectify ? fmaxf(value, 0) : value;
}

static __global__ void
conv(size_t samples, size_t out, size_t in, const float *x, size_t stride, bool rectify, const float *w,
     const float *b, const float *residual, float *y)
{
    const size_t at = place(), s = at / POINTS / out, o = at / POINTS % out;
    const int p = (int)(at % POINTS);

    if (s >= samples)
        return;
    float sum = b[o];
    for (size_t i = 0; i < in; i++)
        for (int k = 0; k < 9; k++)
            sum += w[(o * in + i) * 9 + k] * value_at(x + s * stride + i * POINTS, p / SIDE + k / 3 - 1,
                                                      p % SIDE + k % 3 - 1, rectify);
    y[at] = residual != NULL ? residual[at] + sum : sum;
}

static __global__ void
conv_input(size_t samples, size_t channels, const float *x, const float *w, const float *dy, float *dx)
{
    const size_t at = place(), s = at / POINTS / channels, i = at / POINTS % channels;
    const int p = (int)(at % POINTS);

    if (s >= samples)
        return;
    float sum = 0;
    for (size_t o = 0; o < channels; o++)
        for (int k = 0; k < 9; k++)
            sum += w[(o * channels + i) * 9 + k] * value_at(dy + (s * channels + o) * POINTS,
                                                            p / SIDE - k / 3 + 1, p % SIDE - k % 3 + 1, false);
    dx[at] = dy[at] + (x[at] > 0 ? sum : 0);
}

/* Weight @in x 9 of the threads' row is the bias. */
static __global__ void
conv_sums(size_t samples, size_t out, size_t in, const float *x, size_t stride, bool rectify, const float *dy,
          float *dw, float *db)
{
    const size_t columns = in * 9 + 1, at = place(), o = at / columns, column = at % columns;
    const bool bias = column == in * 9;
    const size_t i = column / 9;
    const int k = (int)(column % 9);
    float sum = 0;

    if (o >= out)
        return;
    for (size_t s = 0; s < samples; s++)
        for (int p = 0; p < POINTS; p++)
            sum += dy[(s * out + o) * POINTS + p] *
                   (bias ? 1 : value_at(x + s * stride + i * POINTS, p / SIDE + k / 3 - 1,
                                        p % SIDE + k % 3 - 1, rectify));
    if (bias)
        db[o] += sum;
    else
        dw[(o * in + i) * 9 + k] += sum;
}

static __global__ void
classify(size_t samples, size_t outputs, size_t C, const float *x, const float *w, const float *b, float *y)
{
    const size_t at = place(), s = at / outputs, o = at % outputs;

    if (s >= samples)
        return;
    y[at] = b[o];
    for (size_t h = 0; h < C; h++)
        y[at] += fmaxf(x[s * C + h], 0) * w[o * C + h];
}

static __global__ void
classify_sums(size_t samples, size_t outputs, size_t C, const float *x, const float *dy, float *dw, float *db)
{
    const size_t at = place(), o = at / (C + 1), h = at % (C + 1);

    if (o >= outputs)
        return;
    for (size_t s = 0; s < samples; s++)
        if (h == C)
            db[o] += dy[s * outputs + o];
        else
            dw[o * C + h] += dy[s * outputs + o] * fmaxf(x[s * C + h], 0);
}

static __global__ void
classify_input(size_t samples, size_t outputs, size_t C, const float *x, const float *w, const float *dy,
               float *dx)
{
    const size_t at = place();

    if (at >= samples * C)
        return;
    dx[at] = 0;
    for (size_t o = 0; o < outputs && x[at] > 0; o++)
        dx[at] += dy[at / C * outputs + o] * w[o * C + at % C];
}

static __global__ void
softmax_loss(size_t rows, size_t width, float *values, const gint32 *labels, size_t stride, float scale,
             bool gradient, double *loss)
{
    /* one thread: the order of the sum is that of the rows */
    for (size_t r = 0; r < rows; r++) {
        const gint32 label = labels[r * stride];
        float *row = values + r * width, most = row[0];
        double sum = 0;

        for (size_t i = 1; i < width; i++)
            most = fmaxf(most, row[i]);
        for (size_t i = 0; i < width; i++)
            sum += exp((double)row[i] - most);
        if (label != RP_LABEL_MASKED)
            *loss += log(sum) + most - row[label];
        for (size_t i = 0; i < width && gradient; i++)
            row[i] = label == RP_LABEL_MASKED
                         ? 0
                         : scale * (float)(exp((double)row[i] - most) / sum - (i == (size_t)label));
    }
}

static unsigned
blocks(size_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

static int
launch_conv(const RpCustomCall *c, size_t in, size_t stride, bool rectify, const void *residual, void *stream)
{
    const size_t out = c->shape.hidden / POINTS;

    conv<<<blocks((size_t)c->shape.samples * c->shape.hidden), THREADS, 0, (cudaStream_t)stream>>>(
        c->shape.samples, out, in, (const float *)c->input, stride, rectify, (const float *)c->weights[0],
        (const float *)c->weights[1], (const float *)residual, (float *)c->output);
    return cudaGetLastError();
}

static int
launch_sums(const RpCustomCall *c, size_t in, size_t stride, bool rectify, void *stream)
{
    const size_t out = c->shape.hidden / POINTS;

    conv_sums<<<blocks(out * (in * 9 + 1)), THREADS, 0, (cudaStream_t)stream>>>(
        c->shape.samples, out, in, (const float *)c->input, stride, rectify, (const float *)c->d_output,
        c->sums[0], c->sums[1]);
    return cudaGetLastError();
}

extern "C" int
input_forward_cuda(const RpCustomCall *c, void *stream)
{
    return launch_conv(c, 1, c->shape.words, false, NULL, stream);
}

extern "C" int
input_backward_cuda(const RpCustomCall *c, void *stream)
{
    return launch_sums(c, 1, c->shape.words, false, stream);
}

extern "C" int
block_forward_cuda(const RpCustomCall *c, void *stream)
{
    return launch_conv(c, c->shape.hidden / POINTS, c->shape.hidden, true, c->input, stream);
}

extern "C" int
block_backward_cuda(const RpCustomCall *c, void *stream)
{
    const size_t channels = c->shape.hidden / POINTS;
    const int status = launch_sums(c, channels, c->shape.hidden, true, stream);

    if (status != 0 || c->d_input == NULL)
        return status;
    conv_input<<<blocks((size_t)c->shape.samples * c->shape.hidden), THREADS, 0, (cudaStream_t)stream>>>(
        c->shape.samples, channels, (const float *)c->input, (const float *)c->weights[0],
        (const float *)c->d_output, (float *)c->d_input);
    return cudaGetLastError();
}

extern "C" int
output_forward_cuda(const RpCustomCall *c, void *stream)
{
    classify<<<blocks((size_t)c->shape.samples * c->shape.outputs), THREADS, 0, (cudaStream_t)stream>>>(
        c->shape.samples, c->shape.outputs, c->shape.hidden, (const float *)c->input,
        (const float *)c->weights[0], (const float *)c->weights[1], (float *)c->output);
    return cudaGetLastError();
}

extern "C" int
output_backward_cuda(const RpCustomCall *c, void *stream)
{
    const size_t B = c->shape.samples, C = c->shape.hidden, outputs = c->shape.outputs;
    const float *x = (const float *)c->input, *dy = (const float *)c->d_output;

    classify_sums<<<blocks(outputs * (C + 1)), THREADS, 0, (cudaStream_t)stream>>>(B, outputs, C, x, dy,
                                                                                  c->sums[0], c->sums[1]);
    if (c->d_input != NULL)
        classify_input<<<blocks(B * C), THREADS, 0, (cudaStream_t)stream>>>(
            B, outputs, C, x, (const float *)c->weights[0], dy, (float *)c->d_input);
    return cudaGetLastError();
}

extern "C" int
softmax_loss_cuda(const RpLossCall *c, void *stream)
{
    softmax_loss<<<1, 1, 0, (cudaStream_t)stream>>>(c->rows, c->width, (float *)c->values, c->labels,
                                                    c->label_stride, c->scale, c->gradient, c->loss);
    return cudaGetLastError();
}
