/* Layers and a loss of one's own: a residual MLP learns two functions of eight numbers.
 *
 *   regression FOLDER train|resume [KEY=VALUE ..]
 *
 *   x [B,8] -> h = x W^T + b -> h += W2 relu(W1 h + b1) + b2, so many blocks -> y = h W^T + b [B,2]
 *   loss = mean (y - label)^2
 *
 * FOLDER gets config.json, records and the run's output. With regression.cu it runs on GPUs, too. */
#include <math.h>
#include <stdio.h>

#include <roundpipe.h>

#define FEATURES 8
#define LABELS 2
#define RECORDS 4096

static const char config[] =
    "{\"architectures\": [\"residual-mlp\"], \"hidden_size\": 48, \"intermediate_size\": 64,\n"
    " \"num_hidden_layers\": 6, \"vocab_size\": 2, \"max_position_embeddings\": 10}\n";

static const char run_file[] =
    "micro_batches: 4\n"
    "micro_batch_size: 32\n"
    "sequence_length: 10\n"
    "dtype: fp32\n"
    "seed: 1\n"
    "checkpoint: {every: 20}\n"
    "eval: {split: 0.1, every: 100}\n"
    "optimizer: {learning_rate: 3e-3, warmup_steps: 10, weight_decay: 0}\n";

/* ---- y = x W^T + b, on the host; regression.cu has the same for GPUs ---- */

/* x of rows @stride elements apart; @residual: (nullable); @rectify: y = max(y, 0) */
static void
linear(guint rows, guint out, guint in, const float *x, guint stride, const float *w,
       const float *b, const float *residual, gboolean rectify, float *y)
{
    for (guint r = 0; r < rows; r++) {
        for (guint o = 0; o < out; o++) {
            float sum = b[o];

            for (guint i = 0; i < in; i++)
                sum += x[r * stride + i] * w[o * in + i];
            if (residual != NULL)
                sum += residual[r * out + o];
            y[r * out + o] = rectify ? fmaxf(sum, 0) : sum;
        }
    }
}

/* dx = dy W, where @rectified is above 0, + @residual; both (nullable). */
static void
linear_input(guint rows, guint out, guint in, const float *dy, const float *w,
             const float *rectified, const float *residual, float *dx)
{
    for (guint r = 0; r < rows; r++) {
        for (guint i = 0; i < in; i++) {
            float sum = residual != NULL ? residual[r * in + i] : 0;

            for (guint o = 0; o < out; o++)
                sum += dy[r * out + o] * w[o * in + i];
            dx[r * in + i] = rectified != NULL && rectified[r * in + i] <= 0 ? 0 : sum;
        }
    }
}

/* dW += dy^T x, db += the sum of dy; nothing of a frozen one */
static void
linear_sums(guint rows, guint out, guint in, const float *x, guint stride, const float *dy,
            float *dw, float *db)
{
    for (guint o = 0; o < out && dw != NULL; o++) {
        for (guint i = 0; i < in; i++) {
            float sum = 0;

            for (guint r = 0; r < rows; r++)
                sum += dy[r * out + o] * x[r * stride + i];
            dw[o * in + i] += sum;
        }
    }
    for (guint o = 0; o < out && db != NULL; o++) {
        float sum = 0;

        for (guint r = 0; r < rows; r++)
            sum += dy[r * out + o];
        db[o] += sum;
    }
}

/* ---- layers ---- */

/* A matrix [out,in] that begins as He et al. propose, and its bias. */
static void
add_linear(RpCustomTensor *tensors, const char *weight, const char *bias, guint out, guint in)
{
    tensors[0] =
        (RpCustomTensor){.name = weight, .rank = 2, .dims = {out, in}, .deviation = sqrt(1.0 / in)};
    tensors[1] = (RpCustomTensor){.name = bias, .rank = 1, .dims = {out}};
}

static guint
input_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    add_linear(tensors, "weight", "bias", shape->hidden, shape->words - LABELS);
    return 2;
}

static void
input_forward(const RpCustomCall *c)
{
    linear(c->shape.samples, c->shape.hidden, c->shape.words - LABELS, c->input, c->shape.words,
           c->weights[0], c->weights[1], NULL, FALSE, c->output);
}

static void
input_backward(const RpCustomCall *c)
{
    linear_sums(c->shape.samples, c->shape.hidden, c->shape.words - LABELS, c->input,
                c->shape.words, c->d_output, c->sums[0], c->sums[1]);
}

static guint
block_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    add_linear(tensors, "up.weight", "up.bias", shape->inner, shape->hidden);
    add_linear(tensors + 2, "down.weight", "down.bias", shape->hidden, shape->inner);
    return 4;
}

/* Values between the two matrices, and their gradient. */
static gsize
inner_bytes(const RpCustomShape *shape)
{
    return (gsize)shape->samples * shape->inner * sizeof(float);
}

static void
block_forward(const RpCustomCall *c)
{
    const guint C = c->shape.hidden, m = c->shape.inner;

    linear(c->shape.samples, m, C, c->input, C, c->weights[0], c->weights[1], NULL, TRUE, c->kept);
    linear(c->shape.samples, C, m, c->kept, m, c->weights[2], c->weights[3], c->input, FALSE,
           c->output);
}

static void
block_backward(const RpCustomCall *c)
{
    const guint C = c->shape.hidden, m = c->shape.inner;

    linear_sums(c->shape.samples, C, m, c->kept, m, c->d_output, c->sums[2], c->sums[3]);
    linear_input(c->shape.samples, C, m, c->d_output, c->weights[2], c->kept, NULL, c->workspace);
    linear_sums(c->shape.samples, m, C, c->input, C, c->workspace, c->sums[0], c->sums[1]);
    if (c->d_input != NULL)
        linear_input(c->shape.samples, m, C, c->workspace, c->weights[0], NULL, c->d_output,
                     c->d_input);
}

static guint
output_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    add_linear(tensors, "weight", "bias", shape->outputs, shape->hidden);
    return 2;
}

static void
output_forward(const RpCustomCall *c)
{
    linear(c->shape.samples, c->shape.outputs, c->shape.hidden, c->input, c->shape.hidden,
           c->weights[0], c->weights[1], NULL, FALSE, c->output);
}

static void
output_backward(const RpCustomCall *c)
{
    const guint C = c->shape.hidden;

    linear_sums(c->shape.samples, c->shape.outputs, C, c->input, C, c->d_output, c->sums[0],
                c->sums[1]);
    if (c->d_input != NULL)
        linear_input(c->shape.samples, c->shape.outputs, C, c->d_output, c->weights[0], NULL, NULL,
                     c->d_input);
}

static void
squared_error(const RpLossCall *c)
{
    float *values = c->values;

    for (gsize r = 0; r < c->rows; r++) {
        for (gsize i = 0; i < c->width; i++) {
            const gint32 *word = &c->labels[r * c->label_stride + i];
            const gboolean there = *word != RP_LABEL_MASKED; /* no float has these bits */
            float label, *value = &values[r * c->width + i];

            memcpy(&label, word, sizeof label);
            const float error = there ? *value - label : 0;

            *c->loss += (double)error * error;
            if (c->gradient)
                *value = 2 * c->scale * error;
        }
    }
}

/* Without regression.cu these are NULL: the program then runs on the host alone. */
extern int input_forward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int input_backward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int block_forward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int block_backward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int output_forward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int output_backward_cuda(const RpCustomCall *, void *) __attribute__((weak));
extern int squared_error_cuda(const RpLossCall *, void *) __attribute__((weak));

/* ---- the program ---- */

static gboolean
write_records(const char *path, GError **error)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(7);
    g_autofree float *records = g_new(float, RECORDS *(FEATURES + LABELS));

    for (gsize i = 0; i < RECORDS; i++) {
        float *x = records + i * (FEATURES + LABELS);

        for (guint f = 0; f < FEATURES; f++)
            x[f] = (float)g_rand_double_range(random, -1, 1);
        x[FEATURES] = x[0] * x[1] + sinf(3 * x[2]);
        x[FEATURES + 1] = fabsf(x[3] - x[4]) - x[5] * x[6] * x[7];
    }
    return g_file_set_contents(path, (const char *)records,
                               (gssize)(sizeof *records * RECORDS * (FEATURES + LABELS)), error);
}

static void
stepped(gpointer user_data, const RpStepReport *report, double step_ns)
{
    if (report->step % 50 == 0)
        printf("step %" G_GUINT64_FORMAT ": loss %.5f\n", report->step, report->loss);
}

static int
fail(const GError *error)
{
    fprintf(stderr, "regression: %s\n", error->message);
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
                                 .kept_bytes = inner_bytes,
                                 .workspace_bytes = inner_bytes,
                                 .forward = block_forward,
                                 .backward = block_backward,
                                 .forward_cuda = block_forward_cuda,
                                 .backward_cuda = block_backward_cuda};
    const RpCustomLayer output = {.tensors = output_tensors,
                                  .forward = output_forward,
                                  .backward = output_backward,
                                  .forward_cuda = output_forward_cuda,
                                  .backward_cuda = output_backward_cuda};
    const RpLoss loss = {
        .name = "squared-error", .host = squared_error, .cuda = squared_error_cuda};
    const RpCustomArchitecture architecture = {.name = "residual-mlp",
                                               .input = &input,
                                               .block = &block,
                                               .output = &output,
                                               .loss = &loss,
                                               .labels = LABELS,
                                               .dtypes = 1 << RP_DTYPE_FP32};
    const RpRunEvents events = {.stepped = stepped};
    GError *error = NULL;

    if (argc < 3 || (!g_str_equal(argv[2], "train") && !g_str_equal(argv[2], "resume"))) {
        fprintf(stderr, "usage: regression FOLDER train|resume [KEY=VALUE ..]\n");
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
    RpRunSpec *run = rp_run_file_parse("regression", run_file, sizeof run_file - 1,
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
