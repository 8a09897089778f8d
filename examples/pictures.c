/* A convolution stack on small pictures: circles, squares, crosses and triangles of 12 x 12 points, in noise.
 *
 *   pictures FOLDER train|resume [KEY=VALUE ..]
 *
 *   x [B,12,12] -> conv 3x3 -> [B,C,12,12], then so many blocks y = x + conv 3x3 (relu(x)) -> y = relu(x) W^T + b
 *   [B,4]        loss = cross entropy
 *
 * With pictures.cu it runs on GPUs, too. regression.c explains the rest. */
#include <math.h>
#include <stdio.h>

#include <roundpipe.h>

#define SIDE 12
#define POINTS (SIDE * SIDE)
#define KINDS 4
#define RECORDS 2048

static const char config[] =
    "{\"architectures\": [\"conv-stack\"], \"hidden_size\": 576, \"num_hidden_layers\": 3,\n"
    " \"vocab_size\": 4, \"max_position_embeddings\": 145}\n";

static const char run_file[] =
    "micro_batches: 4\n"
    "micro_batch_size: 16\n"
    "sequence_length: 145\n"
    "dtype: fp32\n"
    "seed: 1\n"
    "checkpoint: {every: 20}\n"
    "eval: {split: 0.1, every: 1000}\n"
    "optimizer: {learning_rate: 3e-3, warmup_steps: 5, weight_decay: 0}\n";

/* ---- convolutions of 3 x 3, zeros around: w [out,in,3,3] ---- */

/* Value of channel @x at (row, column); 0 outside. @rectify: not below 0 */
static float
value_at(const float *x, int row, int column, gboolean rectify)
{
    if (row < 0 || row >= SIDE || column < 0 || column >= SIDE)
        return 0;
    const float value = x[row * SIDE + column];

    return rectify ? fmaxf(value, 0) : value;
}

/* @stride: elements from a sample of x to the next; @residual: (nullable) */
static void
conv(guint samples, guint out, guint in, const float *x, guint stride, gboolean rectify,
     const float *w, const float *b, const float *residual, float *y)
{
    for (guint s = 0; s < samples; s++)
        for (guint o = 0; o < out; o++)
            for (int p = 0; p < POINTS; p++) {
                const gsize at = ((gsize)s * out + o) * POINTS + (gsize)p;
                float sum = b[o];

                for (guint i = 0; i < in; i++)
                    for (int k = 0; k < 9; k++)
                        sum += w[(o * in + i) * 9 + (guint)k] *
                               value_at(x + (gsize)s * stride + i * POINTS, p / SIDE + k / 3 - 1,
                                        p % SIDE + k % 3 - 1, rectify);
                y[at] = residual != NULL ? residual[at] + sum : sum;
            }
}

/* dx = dy + (gradient that reaches x through the convolution of relu(x)) */
static void
conv_input(guint samples, guint channels, const float *x, const float *w, const float *dy,
           float *dx)
{
    for (guint s = 0; s < samples; s++)
        for (guint i = 0; i < channels; i++)
            for (int p = 0; p < POINTS; p++) {
                const gsize at = ((gsize)s * channels + i) * POINTS + (gsize)p;
                float sum = 0;

                for (guint o = 0; o < channels; o++)
                    for (int k = 0; k < 9; k++)
                        sum += w[(o * channels + i) * 9 + (guint)k] *
                               value_at(dy + ((gsize)s * channels + o) * POINTS,
                                        p / SIDE - k / 3 + 1, p % SIDE - k % 3 + 1, FALSE);
                dx[at] = dy[at] + (x[at] > 0 ? sum : 0);
            }
}

static void
conv_sums(guint samples, guint out, guint in, const float *x, guint stride, gboolean rectify,
          const float *dy, float *dw, float *db)
{
    for (guint o = 0; o < out; o++) {
        for (guint i = 0; i < in; i++)
            for (int k = 0; k < 9; k++) {
                float sum = 0;

                for (guint s = 0; s < samples; s++)
                    for (int p = 0; p < POINTS; p++)
                        sum += dy[((gsize)s * out + o) * POINTS + (gsize)p] *
                               value_at(x + (gsize)s * stride + i * POINTS, p / SIDE + k / 3 - 1,
                                        p % SIDE + k % 3 - 1, rectify);
                dw[(o * in + i) * 9 + (guint)k] += sum;
            }
        float sum = 0;
        for (guint s = 0; s < samples; s++)
            for (int p = 0; p < POINTS; p++)
                sum += dy[((gsize)s * out + o) * POINTS + (gsize)p];
        db[o] += sum;
    }
}

/* ---- layers ---- */

static guint
conv_tensors(RpCustomTensor *tensors, guint out, guint in)
{
    tensors[0] = (RpCustomTensor){
        .name = "weight", .rank = 3, .dims = {out, in, 9}, .deviation = sqrt(1.0 / (9 * in))};
    tensors[1] = (RpCustomTensor){.name = "bias", .rank = 1, .dims = {out}};
    return 2;
}

static guint
input_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    return conv_tensors(tensors, shape->hidden / POINTS, 1);
}

static void
input_forward(const RpCustomCall *c)
{
    conv(c->shape.samples, c->shape.hidden / POINTS, 1, c->input, c->shape.words, FALSE,
         c->weights[0], c->weights[1], NULL, c->output);
}

static void
input_backward(const RpCustomCall *c)
{
    conv_sums(c->shape.samples, c->shape.hidden / POINTS, 1, c->input, c->shape.words, FALSE,
              c->d_output, c->sums[0], c->sums[1]);
}

static guint
block_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    return conv_tensors(tensors, shape->hidden / POINTS, shape->hidden / POINTS);
}

static void
block_forward(const RpCustomCall *c)
{
    const guint channels = c->shape.hidden / POINTS;

    conv(c->shape.samples, channels, channels, c->input, c->shape.hidden, TRUE, c->weights[0],
         c->weights[1], c->input, c->output);
}

static void
block_backward(const RpCustomCall *c)
{
    const guint channels = c->shape.hidden / POINTS;

    conv_sums(c->shape.samples, channels, channels, c->input, c->shape.hidden, TRUE, c->d_output,
              c->sums[0], c->sums[1]);
    if (c->d_input != NULL)
        conv_input(c->shape.samples, channels, c->input, c->weights[0], c->d_output, c->d_input);
}

static guint
output_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    tensors[0] = (RpCustomTensor){.name = "weight",
                                  .rank = 2,
                                  .dims = {shape->outputs, shape->hidden},
                                  .deviation = sqrt(1.0 / shape->hidden)};
    tensors[1] = (RpCustomTensor){.name = "bias", .rank = 1, .dims = {shape->outputs}};
    return 2;
}

static void
output_forward(const RpCustomCall *c)
{
    const guint C = c->shape.hidden, outputs = c->shape.outputs;
    const float *w = c->weights[0], *b = c->weights[1];
    float *y = c->output;

    for (guint i = 0; i < c->shape.samples * outputs; i++) {
        const float *x = (const float *)c->input + (gsize)(i / outputs) * C;

        y[i] = b[i % outputs];
        for (guint h = 0; h < C; h++)
            y[i] += fmaxf(x[h], 0) * w[i % outputs * C + h];
    }
}

static void
output_backward(const RpCustomCall *c)
{
    const guint C = c->shape.hidden, outputs = c->shape.outputs;
    const float *x = c->input, *w = c->weights[0], *dy = c->d_output;
    float *dx = c->d_input;

    for (guint o = 0; o < outputs; o++)
        for (guint s = 0; s < c->shape.samples; s++) {
            for (guint h = 0; h < C; h++)
                c->sums[0][o * C + h] += dy[s * outputs + o] * fmaxf(x[(gsize)s * C + h], 0);
            c->sums[1][o] += dy[s * outputs + o];
        }
    for (gsize i = 0; dx != NULL && i < (gsize)c->shape.samples * C; i++) {
        dx[i] = 0;
        for (guint o = 0; o < outputs && x[i] > 0; o++)
            dx[i] += dy[i / C * outputs + o] * w[o * C + i % C];
    }
}

static void
softmax_loss(const RpLossCall *c)
{
    for (gsize r = 0; r < c->rows; r++) {
        const gint32 label = c->labels[r * c->label_stride];
        float *values = (float *)c->values + r * c->width, most = values[0];
        double sum = 0;

        for (gsize i = 1; i < c->width; i++)
            most = fmaxf(most, values[i]);
        for (gsize i = 0; i < c->width; i++)
            sum += exp((double)values[i] - most);
        if (label != RP_LABEL_MASKED)
            *c->loss += log(sum) + most - values[label];
        for (gsize i = 0; i < c->width && c->gradient; i++)
            values[i] =
                label == RP_LABEL_MASKED
                    ? 0
                    : c->scale * (float)(exp((double)values[i] - most) / sum - (i == (gsize)label));
    }
}

/* Without pictures.cu these are NULL. */
extern int input_forward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int input_backward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int block_forward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int block_backward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int output_forward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int output_backward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int softmax_loss_cuda(const RpLossCall *, void *) __attribute__((weak));

/* ---- the program ---- */

/* Whether (x, y), from the middle of the shape, is a point of it. */
static gboolean
is_of_shape(guint kind, int x, int y)
{
    const int size = 4;

    switch (kind) {
    case 0: /* a circle */
        return abs(x * x + y * y - size * size) < size;
    case 1: /* a square */
        return MAX(abs(x), abs(y)) == size - 1;
    case 2: /* a cross */
        return MIN(abs(x), abs(y)) == 0 && MAX(abs(x), abs(y)) < size;
    default: /* a triangle */
        return (y == size - 1 && abs(x) < size) || (abs(2 * x) == y + size - 1);
    }
}

static gboolean
write_records(const char *path, GError **error)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(11);
    g_autofree float *records = g_new(float, RECORDS *(POINTS + 1));

    for (gsize i = 0; i < RECORDS; i++) {
        const gint32 kind = (gint32)(i % KINDS);
        const int x0 = g_rand_int_range(random, 5, 8), y0 = g_rand_int_range(random, 5, 8);
        float *record = records + i * (POINTS + 1);

        for (int p = 0; p < POINTS; p++)
            record[p] = (float)is_of_shape((guint)kind, p % SIDE - x0, p / SIDE - y0) +
                        (float)g_rand_double_range(random, -0.3, 0.3);
        memcpy(record + POINTS, &kind, sizeof kind);
    }
    return g_file_set_contents(path, (const char *)records,
                               (gssize)(sizeof *records * RECORDS * (POINTS + 1)), error);
}

static void
stepped(gpointer user_data, const RpStepReport *report, double step_ns)
{
    if (report->step % 10 == 0)
        printf("step %" G_GUINT64_FORMAT ": loss %.5f\n", report->step, report->loss);
}

static int
fail(const GError *error)
{
    fprintf(stderr, "pictures: %s\n", error->message);
    return 1;
}

int
main(int argc, char **argv)
{
    const RpCustomLayer input = {.tensors = input_tensors,
                                 .forward = input_forward,
                                 .backward = input_backward,
                                 .forward_cuda = input_forward_cuda,
                                 .backward_cuda = input_backward_cuda};
    const RpCustomLayer block = {.tensors = block_tensors,
                                 .forward = block_forward,
                                 .backward = block_backward,
                                 .forward_cuda = block_forward_cuda,
                                 .backward_cuda = block_backward_cuda};
    const RpCustomLayer output = {.tensors = output_tensors,
                                  .forward = output_forward,
                                  .backward = output_backward,
                                  .forward_cuda = output_forward_cuda,
                                  .backward_cuda = output_backward_cuda};
    const RpLoss loss = {.name = "softmax", .host = softmax_loss, .cuda = softmax_loss_cuda};
    const RpCustomArchitecture architecture = {.name = "conv-stack",
                                               .input = &input,
                                               .block = &block,
                                               .output = &output,
                                               .loss = &loss,
                                               .labels = 1,
                                               .dtypes = 1 << RP_DTYPE_FP32};
    const RpRunEvents events = {.stepped = stepped};
    GError *error = NULL;

    if (argc < 3 || (!g_str_equal(argv[2], "train") && !g_str_equal(argv[2], "resume"))) {
        fprintf(stderr, "usage: pictures FOLDER train|resume [KEY=VALUE ..]\n");
        return 2;
    }
    g_autofree char *config_path = g_build_filename(argv[1], "config.json", NULL);
    g_autofree char *data_path = g_build_filename(argv[1], "records.bin", NULL);
    g_autofree char *model = g_strdup_printf("model=random:%s", argv[1]);
    g_autofree char *data = g_strdup_printf("data=%s", data_path);
    g_autofree char *results = g_strdup_printf("output=%s/output", argv[1]);
    g_autofree char *checkpoint = NULL;
    g_autoptr(GPtrArray) sets = g_ptr_array_new();
    const gboolean resumes = g_str_equal(argv[2], "resume");

    g_ptr_array_add(sets, model);
    g_ptr_array_add(sets, data);
    g_ptr_array_add(sets, results);
    for (int i = 3; i <= argc; i++)
        g_ptr_array_add(sets, argv[i]); /* NULL is the last */
    if (!rp_architecture_add(&architecture, &error) ||
        !g_file_set_contents(config_path, config, -1, &error) ||
        (!g_file_test(data_path, G_FILE_TEST_EXISTS) && !write_records(data_path, &error)))
        return fail(error);
    RpRunSpec *run = rp_run_file_parse("pictures", run_file, sizeof run_file - 1,
                                       (const char *const *)sets->pdata, &error);
    g_autoptr(RpSession) session =
        run != NULL
            ? rp_session_new(run, resumes ? RP_SESSION_RESUME : RP_SESSION_TRAIN, &events, &error)
            : NULL;

    if (session == NULL || !rp_session_train(session, &checkpoint, &error))
        return fail(error);
    printf("saved: %s\n", checkpoint);
    return 0;
}
