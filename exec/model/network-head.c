/*
 * The head: final RMSNorm, LM head and loss, in chunks of tokens, so that the logits of a chunk are
 * all that exist at once. For each chunk, n of its tokens, V vocabulary, C hidden size:
 *
 *   h = norm(x)  [n,C]         logits = h W^T  [n,V]    loss += cross entropy, logits -> gradient
 *   dW += logits^T h           dh = logits W            dx = norm backward of dh
 *
 * Each row of dx is the same whatever the chunk; dW adds up chunk by chunk.
 */
#include "exec/model/network-private.h"

typedef struct {
    void *normed; /* [n,C] */
    float *rstd;  /* [n] */
    void *logits; /* [n,V] */
} Chunk;

/* Row @first of a hidden state; when measuring, of one that stands anywhere. */
static void *
row(const RpNetwork *network, const void *hidden, size_t first)
{
    const gsize bytes = network->config.hidden * rp_dtype_size(network->options.dtype);

    return (void *)((guintptr)hidden + first * bytes);
}

/* @n tokens; @x, @targets and @dx (or NULL) begin with the first of them. */
static void
run_chunk(RpPass *pass, const Chunk *chunk, size_t n, const void *x, const int32_t *targets,
          void *dx)
{
    const RpModelConfig *config = &pass->network->config;
    /* no head has a bias: the kind is one that its layout lacks */
    const RpLinear linear = {RP_WEIGHT_HEAD, RP_WEIGHT_DOWN_BIAS, config->hidden, config->vocab};
    RpRmsnormArgs norm = {
        .rows = n, .n = config->hidden, .x = x, .y = chunk->normed, .rstd = chunk->rstd};
    RpCrossEntropyArgs loss = {
        .tokens = n, .logits = chunk->logits, .labels = targets, .gradient = dx != NULL};

    if (!pass->measuring) {
        loss.scale = pass->call->scale;
        loss.loss = pass->call->loss;
    }
    rp_pass_norm(pass, RP_WEIGHT_FINAL_NORM, norm);
    rp_pass_linear(pass, &linear, n, chunk->normed, chunk->logits);
    rp_pass_cross_entropy(pass, loss);
    if (!dx)
        return;
    rp_pass_linear_backward(pass, &linear, n, chunk->normed, chunk->logits, dx, FALSE);
    norm.dy = dx;
    norm.dx = dx;
    rp_pass_norm_backward(pass, RP_WEIGHT_FINAL_NORM, norm);
}

void
rp_head_run(RpPass *pass, const void *x, void *dx)
{
    const RpNetwork *network = pass->network;
    const size_t largest = MIN(network->options.head_chunk, network->tokens);
    const Chunk chunk = {
        .normed = rp_pass_take(pass, &pass->scratch, largest * network->config.hidden),
        .rstd = rp_pass_take_floats(&pass->scratch, largest),
        .logits = rp_pass_take(pass, &pass->scratch, largest * network->config.vocab)};

    for (size_t first = 0; first < network->tokens; first += largest) {
        const size_t n = MIN(largest, network->tokens - first);

        run_chunk(pass, &chunk, n, row(network, x, first),
                  pass->measuring ? NULL : pass->call->targets + first,
                  dx ? row(network, dx, first) : NULL);
    }
}
