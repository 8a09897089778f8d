/*
 * The embedding, and kernels over rows of hidden states and of logits, with their operands filled in, as pass.c does.
 */
#include <math.h>

#include "exec/network/private.h"

static RpEmbeddingArgs
embedding_args(const RpPass *pass, const void *ids)
{
    const RpNetwork *network = pass->network;

    return (RpEmbeddingArgs){.dtype = network->options.dtype,
                             .tokens = network->tokens,
                             .n = network->model->hidden,
                             .vocabulary = network->model->vocab,
                             .ids = ids,
                             .padding_id = (int32_t)network->model->pad_id,
                             .workspace = pass->kernel_workspace};
}

/* NEFTune (Jain et al., 2023): uniform noise of alpha / sqrt(S C), S tokens of the longest sequence of the
 * micro-batch, to which trl pads the others. */
static void
add_noise(RpPass *pass, void *y)
{
    const RpNetwork *network = pass->network;
    const guint padded = pass->measuring ? 0 : pass->call->padded;
    const double places =
        (double)(padded > 0 ? padded : network->options.tokens) * network->model->hidden;
    RpNoiseArgs args = {.dtype = network->options.dtype,
                        .rows = network->tokens,
                        .n = network->model->hidden,
                        .key = network->options.noise_seed,
                        .magnitude = (float)(network->options.noise / sqrt(places)),
                        .y = y};

    if (network->options.noise <= 0 || (!pass->measuring && !pass->call->drops))
        return;
    if (!pass->measuring) {
        args.step = pass->call->step;
        args.row = pass->call->first_token;
    }
    RUN(pass, noise, &args);
}

static void
embedding_forward(RpPass *pass, const void *ids, RpSpace *kept, void *y)
{
    RpEmbeddingArgs args = embedding_args(pass, ids);

    args.weight = rp_pass_weight(pass, RP_WEIGHT_EMBEDDING);
    args.y = y;
    if (y == NULL)
        return;
    RUN(pass, embedding_forward, &args);
    add_noise(pass, y);
    rp_balance_begin(pass, y);
}

static void
embedding_backward(RpPass *pass, const void *ids, RpSpace *kept, const void *dy, void *dx)
{
    RpEmbeddingArgs args = embedding_args(pass, ids);

    args.dy = dy;
    args.d_weight = rp_pass_sum(pass, RP_WEIGHT_EMBEDDING);
    if (rp_pass_trains(pass, RP_WEIGHT_EMBEDDING))
        RUN_IN_WORKSPACE(pass, embedding_backward, &args);
}

const RpLayerOps rp_embedding_ops = {.forward = embedding_forward, .backward = embedding_backward};

void
rp_pass_cross_entropy(RpPass *pass, RpCrossEntropyArgs args)
{
    args.dtype = pass->network->options.dtype;
    args.vocabulary = pass->network->model->vocab;
    args.workspace = pass->kernel_workspace;
    RUN_IN_WORKSPACE(pass, cross_entropy, &args);
}

void
rp_pass_preference(RpPass *pass, RpPreferenceArgs args)
{
    args.preference = pass->network->options.preference;
    args.documents = pass->network->tokens; /* most */
    args.workspace = pass->kernel_workspace;
    if (!pass->measuring) {
        const RpStageCall *call = pass->call;

        args.labels = call->targets;
        args.documents = call->documents.n;
        args.first = call->documents.first;
        args.answers = call->documents.answers;
        args.references = call->documents.references;
        args.nll_scale = call->documents.nll_scale;
        args.logps = call->documents.logps;
        args.scale = (double)call->scale;
        args.loss = call->loss;
        args.sums = rp_stage_sums(call->loss);
    }
    RUN_IN_WORKSPACE(pass, preference, &args);
}

void
rp_pass_gather(RpPass *pass, size_t n, const int32_t *rows, const void *hidden, void *packed)
{
    const RpEmbeddingArgs args = {.dtype = pass->network->options.dtype,
                                  .tokens = n,
                                  .n = pass->network->model->hidden,
                                  .vocabulary = pass->network->tokens,
                                  .ids = rows,
                                  .weight = hidden,
                                  .y = packed,
                                  .padding_id = -1};

    RUN(pass, embedding_forward, &args);
}

void
rp_pass_scatter(RpPass *pass, size_t n, const int32_t *rows, const void *packed, void *hidden)
{
    const RpScatterArgs args = {.dtype = pass->network->options.dtype,
                                .n = n,
                                .columns = pass->network->model->hidden,
                                .rows = rows,
                                .x = packed,
                                .y = hidden};

    RUN(pass, scatter, &args);
}

void
rp_pass_clear_hidden(RpPass *pass, void *hidden)
{
    const RpNetwork *network = pass->network;
    const RpFillArgs args = {.dtype = network->options.dtype,
                             .n = network->tokens * network->model->hidden,
                             .x = hidden};

    RUN(pass, fill, &args);
}
