/* Launchers of regression.c's layers: a thread computes one output, in the order of the host's loops.
 *
 *   nvcc -diag-suppress 1217 -c regression.cu $(pkg-config --cflags-only-I roundpipe)
 *   cc regression.c regression.o $(pkg-config --cflags --libs roundpipe) -lcudart -lm -lstdc++ */
#include <cuda_runtime.h>

#include <roundpipe.h>

#define THREADS 128
#define LABELS 2

static __device__ size_t
place()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __global__ void
linear(size_t rows, size_t out, size_t in, const float *x, size_t stride, const float *w, const float *b,
       const float *residual, bool rectify, float *y)
{
    const size_t at = place(), r = at / out, o = at % out;

    if (r >= rows)
        return;
    float sum = b[o];
    for (size_t i = 0; i < in; i++)
        sum += x[r * stride + i] * w[o * in + i];
    if (residual != NULL)
        sum += residual[at];
    y[at] = rectify ? fmaxf(sum, 0) : sum;
}

static __global__ void
linear_input(size_t rows, size_t out, size_t in, const float *dy, const float *w, const float *rectified,
             const float *residual, float *dx)
{
    const size_t at = place(), r = at / in, i = at % in;

    if (r >= rows)
        return;
    float sum = residual != NULL ? residual[at] : 0;
    for (size_t o = 0; o < out; o++)
        sum += dy[r * out + o] * w[o * in + i];
    dx[at] = rectified != NULL && rectified[at] <= 0 ? 0 : sum;
}

/* Column @in of the threads' matrix is the bias. */
static __global__ void
linear_sums(size_t rows, size_t out, size_t in, const float *x, size_t stride, const float *dy, float *dw,
            float *db)
{
    const size_t at = place(), o = at / (in + 1), i = at % (in + 1);

    if (o >= out || (i == in ? db == NULL : dw == NULL))
        return;
    float sum = 0;
    for (size_t r = 0; r < rows; r++)
        sum += dy[r * out + o] * (i == in ? 1 : x[r * stride + i]);
    if (i == in)
        db[o] += sum;
    else
        dw[o * in + i] += sum;
}

static __global__ void
squared_error(size_t rows, size_t width, float *values, const gint32 *labels, size_t stride, float scale,
              bool gradient, double *loss)
{
    /* one thread: the order of the sum is that of the rows */
    for (size_t at = 0; at < rows * width; at++) {
        const gint32 word = labels[at / width * stride + at % width];
        const float error = word != RP_LABEL_MASKED ? values[at] - __int_as_float(word) : 0;

        *loss += (double)error * error;
        if (gradient)
            values[at] = 2 * scale * error;
    }
}

static unsigned
blocks(size_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

static int
launch_linear(size_t rows, size_t out, size_t in, const void *x, size_t stride, const void *w, const void *b,
              const void *residual, bool rectify, void *y, void *stream)
{
    linear<<<blocks(rows * out), THREADS, 0, (cudaStream_t)stream>>>(
        rows, out, in, (const float *)x, stride, (const float *)w, (const float *)b,
        (const float *)residual, rectify, (float *)y);
    return cudaGetLastError();
}

static int
launch_input(size_t rows, size_t out, size_t in, const void *dy, const void *w, const void *rectified,
             const void *residual, void *dx, void *stream)
{
    linear_input<<<blocks(rows * in), THREADS, 0, (cudaStream_t)stream>>>(
        rows, out, in, (const float *)dy, (const float *)w, (const float *)rectified,
        (const float *)residual, (float *)dx);
    return cudaGetLastError();
}

static int
launch_sums(size_t rows, size_t out, size_t in, const void *x, size_t stride, const void *dy, float *dw,
            float *db, void *stream)
{
    linear_sums<<<blocks(out * (in + 1)), THREADS, 0, (cudaStream_t)stream>>>(
        rows, out, in, (const float *)x, stride, (const float *)dy, dw, db);
    return cudaGetLastError();
}

extern "C" int
input_forward_cuda(const RpCustomCall *c, void *stream)
{
    return launch_linear(c->shape.samples, c->shape.hidden, c->shape.words - LABELS, c->input, c->shape.words,
                         c->weights[0], c->weights[1], NULL, false, c->output, stream);
}

extern "C" int
input_backward_cuda(const RpCustomCall *c, void *stream)
{
    return launch_sums(c->shape.samples, c->shape.hidden, c->shape.words - LABELS, c->input, c->shape.words,
                       c->d_output, c->sums[0], c->sums[1], stream);
}

extern "C" int
block_forward_cuda(const RpCustomCall *c, void *stream)
{
    const size_t B = c->shape.samples, C = c->shape.hidden, m = c->shape.inner;
    const int first = launch_linear(B, m, C, c->input, C, c->weights[0], c->weights[1], NULL, true, c->kept,
                                    stream);

    return first != 0 ? first
                      : launch_linear(B, C, m, c->kept, m, c->weights[2], c->weights[3], c->input, false,
                                      c->output, stream);
}

extern "C" int
block_backward_cuda(const RpCustomCall *c, void *stream)
{
    const size_t B = c->shape.samples, C = c->shape.hidden, m = c->shape.inner;
    int status = launch_sums(B, C, m, c->kept, m, c->d_output, c->sums[2], c->sums[3], stream);

    if (status == 0)
        status = launch_input(B, C, m, c->d_output, c->weights[2], c->kept, NULL, c->workspace, stream);
    if (status == 0)
        status = launch_sums(B, m, C, c->input, C, c->workspace, c->sums[0], c->sums[1], stream);
    if (status == 0 && c->d_input != NULL)
        status = launch_input(B, m, C, c->workspace, c->weights[0], NULL, c->d_output, c->d_input, stream);
    return status;
}

extern "C" int
output_forward_cuda(const RpCustomCall *c, void *stream)
{
    const size_t C = c->shape.hidden;

    return launch_linear(c->shape.samples, c->shape.outputs, C, c->input, C, c->weights[0], c->weights[1],
                         NULL, false, c->output, stream);
}

extern "C" int
output_backward_cuda(const RpCustomCall *c, void *stream)
{
    const size_t B = c->shape.samples, C = c->shape.hidden, out = c->shape.outputs;
    int status = launch_sums(B, out, C, c->input, C, c->d_output, c->sums[0], c->sums[1], stream);

    if (status == 0 && c->d_input != NULL)
        status = launch_input(B, out, C, c->d_output, c->weights[0], NULL, NULL, c->d_input, stream);
    return status;
}

extern "C" int
squared_error_cuda(const RpLossCall *c, void *stream)
{
    squared_error<<<1, 1, 0, (cudaStream_t)stream>>>(c->rows, c->width, (float *)c->values, c->labels,
                                                     c->label_stride, c->scale, c->gradient, c->loss);
    return cudaGetLastError();
}
