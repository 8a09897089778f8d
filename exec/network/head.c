/*
 * The head: final RMSNorm, LM head and loss, in chunks of tokens, so that the logits of a chunk are
 * all that exist at once. For each chunk, n of its tokens, V vocabulary, C hidden size:
 *
 *   h = norm(x)  [n,C]         logits = h W^T  [n,V]    loss += cross entropy, logits -> gradient
 *   dW += logits^T h           dh = logits W            dx = norm backward of dh
 *
 * Each row of dx is the same whatever the chunk; dW adds up chunk by chunk, the first of a slot writes it.
 *
 * Where the call names rows, they alone are gathered, chunk by chunk, and dx is scattered back to
 * where they were; it is 0 for the others, whose targets are masked:
 *
 *   x      a b c d e f      rows 1 3 4      normed  b d e      dx   0 . 0 . . 0
 *
 * With a preference (core/catalogue/preference.h) the chunks run twice: run_preference().
 *
 * In fp8 (operand.c) each chunk's h and gradient of logits have a scale of their own.
 *
 * Rows whose targets are masked may be among them, to make n one of few sizes (train/targets.h):
 * their gradients of logits are 0, and so is all that comes of them, a 0 added to each sum.
 */
#include "exec/network/private.h"

typedef struct {
    void *normed; /* [n,C] */
    float *rstd;  /* [n] */
    void *logits; /* [n,V] */
    void *dh;     /* [n,C]: of gathered rows */
} Chunk;

/* Rows of a chunk. */
typedef struct {
    size_t n;
    const int32_t *targets; /* of the first of them */
    /* or NULL; else rows of @x, which are gathered, and @dx is that of all tokens */
    const int32_t *rows;
    const void *x; /* of the first of them */
    void *dx;      /* likewise, or NULL */
} Rows;

/* Rows that the head computes. */
static size_t
count_rows(const RpPass *pass)
{
    return !pass->measuring && pass->call->rows != NULL ? pass->call->n_rows
                                                        : pass->network->tokens;
}

/* @x, @dx: of all tokens */
static Rows
rows_from(const RpPass *pass, size_t first, size_t largest, const void *x, void *dx)
{
    const RpStageCall *call = pass->call;
    const size_t n = MIN(largest, count_rows(pass) - first);

    if (!pass->measuring && call->rows != NULL)
        return (Rows){n, call->targets + first, call->rows + first, x, dx};
    return (Rows){.n = n,
                  .targets = pass->measuring ? NULL : call->targets + first,
                  .x = rp_pass_row(pass, x, first),
                  .dx = dx != NULL ? rp_pass_row(pass, dx, first) : NULL};
}

/* Operand of the gradient of rows of logits. Its amax need not be looked for: a softmax less its target is at most
 * 1, and all are times the call's scale, or times @weights. */
static RpMatmulOperand
gradient_operand(RpPass *pass, size_t n, const void *logits, const float *weights)
{
    float *most = rp_pass_scale_slot(pass);
    const RpFillArgs fill = {.dtype = RP_DTYPE_FP32,
                             .n = 1,
                             .x = most,
                             .value = pass->measuring ? 0 : pass->call->scale};
    const RpLargestArgs largest = {.dtype = RP_DTYPE_FP32, .n = n, .x = weights, .largest = most};

    if (most != NULL && weights != NULL)
        RUN(pass, largest, &largest);
    else if (most != NULL)
        RUN(pass, fill, &fill);
    return rp_pass_operand(pass, RP_WEIGHT_HEAD, n, logits, RP_OPERAND_GRADIENT, most);
}

static RpRmsnormArgs
norm_of(const Chunk *chunk, const Rows *rows)
{
    return (RpRmsnormArgs){.rows = rows->n,
                           .x = rows->rows != NULL ? chunk->normed : rows->x,
                           .y = chunk->normed,
                           .rstd = chunk->rstd};
}

/* Makes the chunk's logits. Returns: their input, which may stand in scratch */
static RpMatmulOperand
make_logits(RpPass *pass, const Chunk *chunk, const Rows *rows, RpOperandUse use)
{
    rp_pass_begin_fp8(pass);
    RpRmsnormArgs norm = norm_of(chunk, rows);

    norm.n = pass->network->model->hidden;
    norm.largest = rp_pass_scale_slot(pass);
    if (rows->rows != NULL)
        rp_pass_gather(pass, rows->n, rows->rows, rows->x, chunk->normed);
    rp_pass_norm(pass, RP_WEIGHT_FINAL_NORM, norm);
    const RpMatmulOperand x_of =
        rp_pass_operand(pass, RP_WEIGHT_HEAD, rows->n, chunk->normed, use, norm.largest);

    rp_pass_linear(pass, RP_WEIGHT_HEAD, &x_of, chunk->logits);
    return x_of;
}

/* The gradient of the logits, which stands in their place, becomes that of the head's input; the scratch is used up to
 * @before then. @weights: of rows, or NULL */
static void
go_back(RpPass *pass, const Chunk *chunk, const Rows *rows, const RpMatmulOperand *x_of,
        const float *weights, gsize before)
{
    void *dh = rows->rows != NULL ? chunk->dh : rows->dx;
    const RpMatmulOperand d_of = gradient_operand(pass, rows->n, chunk->logits, weights);
    RpRmsnormArgs norm = norm_of(chunk, rows);

    rp_pass_linear_backward(pass, RP_WEIGHT_HEAD, x_of, &d_of, dh, FALSE);
    pass->scratch.used = before;
    pass->sums_begun = TRUE;
    if (rows->rows != NULL)
        rp_pass_gather(pass, rows->n, rows->rows, rows->x, chunk->normed); /* normed in place */
    norm.n = pass->network->model->hidden;
    norm.dy = dh;
    norm.dx = dh;
    rp_pass_norm_backward(pass, RP_WEIGHT_FINAL_NORM, norm);
    if (rows->rows != NULL)
        rp_pass_scatter(pass, rows->n, rows->rows, dh, rows->dx);
}

/* The loss of a chunk, and its backward with rows->dx. */
static void
run_chunk(RpPass *pass, const Chunk *chunk, const Rows *rows)
{
    const RpNetworkOptions *options = &pass->network->options;
    const gboolean gradient = rows->dx != NULL;
    const gsize before = pass->scratch.used;
    const RpMatmulOperand x_of =
        make_logits(pass, chunk, rows, gradient ? RP_OPERAND_BOTH : RP_OPERAND_INPUT);
    RpCrossEntropyArgs loss = {.tokens = rows->n,
                               .logits = chunk->logits,
                               .labels = rows->targets,
                               .gradient = gradient,
                               /* only the loss itself is looked at */
                               .smoothing = gradient ? (float)options->label_smoothing : 0};

    if (!pass->measuring) {
        loss.scale = pass->call->scale;
        loss.loss = pass->call->loss;
    }
    if (options->loss != NULL)
        rp_pass_custom_loss(pass, (RpLossCall){.rows = rows->n,
                                               .width = pass->network->model->vocab,
                                               .values = chunk->logits,
                                               .labels = rows->targets,
                                               .label_stride = 1,
                                               .gradient = gradient});
    else
        rp_pass_cross_entropy(pass, loss);
    if (gradient)
        go_back(pass, chunk, rows, &x_of, NULL, before);
    pass->scratch.used = before;
}

/*
 * A preference: log-probabilities of all rows, losses of documents, then the gradient, which is that of cross entropy
 * times a weight a row. Logits of more than one chunk are made twice, for they are not kept.
 */
static void
run_preference(RpPass *pass, const Chunk *chunk, size_t largest, const void *x, void *dx)
{
    const size_t n = count_rows(pass);
    const gboolean once = n <= largest && dx != NULL;
    float *losses = rp_pass_take_floats(&pass->scratch, pass->network->tokens);
    float *weights = dx != NULL ? rp_pass_take_floats(&pass->scratch, pass->network->tokens) : NULL;
    const gsize before = pass->scratch.used;
    RpMatmulOperand x_of = {0};

    for (size_t first = 0; first < n; first += largest) {
        const Rows rows = rows_from(pass, first, largest, x, dx);

        pass->scratch.used = before;
        x_of = make_logits(pass, chunk, &rows, once ? RP_OPERAND_BOTH : RP_OPERAND_INPUT);
        rp_pass_cross_entropy(pass, (RpCrossEntropyArgs){.tokens = rows.n,
                                                         .logits = chunk->logits,
                                                         .labels = rows.targets,
                                                         .losses = losses + first});
    }
    rp_pass_preference(pass, (RpPreferenceArgs){.tokens = n, .losses = losses, .weights = weights});
    for (size_t first = 0; dx != NULL && first < n; first += largest) {
        const Rows rows = rows_from(pass, first, largest, x, dx);

        if (!once) {
            pass->scratch.used = before;
            x_of = make_logits(pass, chunk, &rows, RP_OPERAND_BOTH);
        }
        rp_pass_cross_entropy(pass, (RpCrossEntropyArgs){.tokens = rows.n,
                                                         .logits = chunk->logits,
                                                         .labels = rows.targets,
                                                         .scale = 1,
                                                         .gradient = TRUE,
                                                         .weights = weights + first});
        go_back(pass, chunk, &rows, &x_of, weights + first, before);
    }
    pass->scratch.used = before;
}

static size_t
largest_chunk(const RpNetwork *network)
{
    return MIN(network->options.head_chunk, network->tokens);
}

/* @backward: space for gradients of gathered rows, too */
static Chunk
take_chunk(RpPass *pass, gboolean backward)
{
    const RpNetwork *network = pass->network;
    const size_t largest = largest_chunk(network);

    return (Chunk){.normed = rp_pass_take(pass, &pass->scratch, largest * network->model->hidden),
                   .rstd = rp_pass_take_floats(&pass->scratch, largest),
                   .logits = rp_pass_take(pass, &pass->scratch, largest * network->model->vocab),
                   .dh = backward
                             ? rp_pass_take(pass, &pass->scratch, largest * network->model->hidden)
                             : NULL};
}

const void *
rp_head_logits(RpPass *pass, const void *x)
{
    const RpModel *model = pass->network->model;
    const size_t n = pass->call->n_rows;
    const Chunk chunk = take_chunk(pass, FALSE);
    const RpMatmulOperand normed = rp_pass_plain(n, chunk.normed);

    g_return_val_if_fail(n <= largest_chunk(pass->network) && !pass->layout->has_fp8, NULL);
    rp_pass_gather(pass, n, pass->call->rows, x, chunk.normed);
    rp_pass_norm(pass, RP_WEIGHT_FINAL_NORM,
                 (RpRmsnormArgs){.rows = n,
                                 .n = model->hidden,
                                 .x = chunk.normed,
                                 .y = chunk.normed,
                                 .rstd = chunk.rstd});
    rp_pass_linear(pass, RP_WEIGHT_HEAD, &normed, chunk.logits);
    return chunk.logits;
}

/* Loss of the head's input, and with @dx its gradient and those of the weights. */
static void
run(RpPass *pass, const void *x, void *dx)
{
    const RpNetwork *network = pass->network;
    const size_t largest = largest_chunk(network);
    const Chunk chunk = take_chunk(pass, dx != NULL);

    rp_balance_loss(pass, x, dx);
    if (dx != NULL && !pass->measuring && pass->call->rows != NULL)
        rp_pass_clear_hidden(pass, dx);
    if (rp_preference_is_used(&network->options.preference) &&
        (pass->measuring || pass->call->documents.first != NULL)) {
        run_preference(pass, &chunk, largest, x, dx);
        return;
    }
    for (size_t first = 0; first < count_rows(pass); first += largest) {
        const Rows rows = rows_from(pass, first, largest, x, dx);

        run_chunk(pass, &chunk, &rows);
    }
}

static void
forward(RpPass *pass, const void *x, RpSpace *kept, void *y)
{
    run(pass, x, NULL);
}

static void
backward(RpPass *pass, const void *x, RpSpace *kept, const void *dy, void *dx)
{
    run(pass, x, dx);
}

const RpLayerOps rp_head_ops = {.keeps_input = TRUE, .forward = forward, .backward = backward};
