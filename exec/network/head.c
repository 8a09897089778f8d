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

/* Operand of the gradient of @n rows of logits. Its amax need not be looked for: a softmax less its target is at most
 * 1, and all are times the call's scale. */
static RpMatmulOperand
gradient_operand(RpPass *pass, size_t n, const void *logits)
{
    float *most = rp_pass_scale_slot(pass);
    const RpFillArgs fill = {.dtype = RP_DTYPE_FP32,
                             .n = 1,
                             .x = most,
                             .value = pass->measuring ? 0 : pass->call->scale};

    if (most != NULL)
        RUN(pass, fill, &fill);
    return rp_pass_operand(pass, RP_WEIGHT_HEAD, n, logits, RP_OPERAND_GRADIENT, most);
}

/* @n tokens; @x, @targets and @dx (or NULL) begin with the first of them. @rows: or NULL; else rows
 * of @x, which are gathered, and @dx is that of all tokens */
static void
run_chunk(RpPass *pass, const Chunk *chunk, size_t n, const void *x, const int32_t *targets,
          const int32_t *rows, void *dx)
{
    const RpModel *model = pass->network->model;
    const gsize before = pass->scratch.used;
    void *dh = rows != NULL ? chunk->dh : dx;

    rp_pass_begin_fp8(pass);
    float *amax = rp_pass_scale_slot(pass);
    RpRmsnormArgs norm = {.rows = n,
                          .n = model->hidden,
                          .x = rows != NULL ? chunk->normed : x,
                          .y = chunk->normed,
                          .rstd = chunk->rstd,
                          .largest = amax};
    RpCrossEntropyArgs loss = {.tokens = n,
                               .logits = chunk->logits,
                               .labels = targets,
                               .gradient = dx != NULL,
                               /* only the loss itself is looked at */
                               .smoothing =
                                   dx != NULL ? (float)pass->network->options.label_smoothing : 0};

    if (!pass->measuring) {
        loss.scale = pass->call->scale;
        loss.loss = pass->call->loss;
    }
    if (rows != NULL)
        rp_pass_gather(pass, n, rows, x, chunk->normed);
    rp_pass_norm(pass, RP_WEIGHT_FINAL_NORM, norm);
    const RpMatmulOperand x_of =
        rp_pass_operand(pass, RP_WEIGHT_HEAD, n, chunk->normed,
                        dx != NULL ? RP_OPERAND_BOTH : RP_OPERAND_INPUT, amax);

    rp_pass_linear(pass, RP_WEIGHT_HEAD, &x_of, chunk->logits);
    if (pass->network->options.loss != NULL)
        rp_pass_custom_loss(pass, (RpLossCall){.rows = n,
                                               .width = model->vocab,
                                               .values = chunk->logits,
                                               .labels = targets,
                                               .label_stride = 1,
                                               .gradient = dx != NULL});
    else
        rp_pass_cross_entropy(pass, loss);
    if (dx == NULL) {
        pass->scratch.used = before;
        return;
    }
    const RpMatmulOperand d_of = gradient_operand(pass, n, chunk->logits);

    rp_pass_linear_backward(pass, RP_WEIGHT_HEAD, &x_of, &d_of, dh, FALSE);
    pass->scratch.used = before;
    pass->sums_begun = TRUE;
    if (rows != NULL)
        rp_pass_gather(pass, n, rows, x, chunk->normed); /* it was normed in place */
    norm.dy = dh;
    norm.dx = dh;
    norm.largest = NULL;
    rp_pass_norm_backward(pass, RP_WEIGHT_FINAL_NORM, norm);
    if (rows != NULL)
        rp_pass_scatter(pass, n, rows, dh, dx);
}

static void
run_rows(RpPass *pass, const Chunk *chunk, size_t largest, const void *x, void *dx)
{
    const RpStageCall *call = pass->call;

    if (dx != NULL)
        rp_pass_clear_hidden(pass, dx);
    for (size_t first = 0; first < call->n_rows; first += largest)
        run_chunk(pass, chunk, MIN(largest, call->n_rows - first), x, call->targets + first,
                  call->rows + first, dx);
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
    if (!pass->measuring && pass->call->rows != NULL) {
        run_rows(pass, &chunk, largest, x, dx);
        return;
    }
    for (size_t first = 0; first < network->tokens; first += largest) {
        const size_t n = MIN(largest, network->tokens - first);

        run_chunk(pass, &chunk, n, rp_pass_row(pass, x, first),
                  pass->measuring ? NULL : pass->call->targets + first, NULL,
                  dx != NULL ? rp_pass_row(pass, dx, first) : NULL);
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
