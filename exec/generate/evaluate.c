#include "exec/generate/evaluate.h"

#include <gio/gio.h>

#include "exec/generate/load.h"

#define ALIGNMENT 256

typedef struct {
    RpProbe *probe;
    RpWeights *weights; /* a list of our own, unbound */
    RpNetwork *network;
    void *parameters; /* these and all below: of the device */
    guint8 *constants;
    void *workspace;
    gint32 *ids, *targets;
    double *loss;
    gint32 *places; /* of the host */
    RpTokenBatch *batch;
    RpBatcher *batcher;
    double sum; /* of losses */
} Evaluation;

static void
evaluation_clear(Evaluation *e)
{
    void *taken[] = {e->parameters, e->constants, e->workspace, e->ids, e->targets, e->loss};

    for (gsize i = 0; i < G_N_ELEMENTS(taken); i++)
        e->probe->ops->give(e->probe, taken[i]);
    g_free(e->places);
    g_clear_pointer(&e->batch, rp_token_batch_free);
    g_clear_pointer(&e->batcher, rp_batcher_free);
    g_clear_pointer(&e->network, rp_network_free);
    g_clear_pointer(&e->weights, rp_weights_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Evaluation, evaluation_clear)

static gboolean
take_memory(Evaluation *e, guint tokens, GError **error)
{
    const RpProbeOps *ops = e->probe->ops;
    const gsize constant_bytes = rp_network_constant_bytes(e->network);
    const guint64 bytes = rp_load_workspace_bytes(e->network);
    const gsize id_bytes = tokens * sizeof(gint32);
    guint8 *constants = g_aligned_alloc0(constant_bytes, 1, ALIGNMENT);

    rp_network_fill_constants(e->network, constants);
    const gboolean good = rp_load_check_memory(e->probe, bytes, error) &&
                          (e->constants = ops->take(e->probe, constant_bytes, error)) != NULL &&
                          (e->workspace = ops->take(e->probe, bytes, error)) != NULL &&
                          (e->ids = ops->take(e->probe, id_bytes, error)) != NULL &&
                          (e->targets = ops->take(e->probe, id_bytes, error)) != NULL &&
                          (e->loss = ops->take(e->probe, sizeof *e->loss, error)) != NULL &&
                          ops->upload(e->probe, e->constants, constants, constant_bytes, error);

    g_aligned_free(constants);
    e->places = g_new(gint32, 2 * (gsize)tokens + 1);
    return good;
}

static gboolean
begin(Evaluation *e, const RpWeights *weights, const RpKernels *kernels, const RpDataset *dataset,
      guint tokens, gint32 pad_id, GError **error)
{
    const RpNetworkOptions network = {.dtype = rp_weights_dtype(weights),
                                      .sequences = 1,
                                      .tokens = tokens,
                                      .packed_tokens = tokens,
                                      .attention = RP_ATTENTION_BUILTIN};
    const RpBatcherOptions batches = {.micro_batches = 1,
                                      .sequences = 1,
                                      .tokens = tokens,
                                      .pad_id = pad_id,
                                      .packing = TRUE,
                                      .epochs = 1,
                                      .untargeted = TRUE};

    e->batch = rp_token_batch_new(&batches);
    e->batcher = rp_batcher_new(dataset, &batches, error);
    if (e->batcher == NULL)
        return FALSE;
    e->weights = rp_weights_copy(weights);
    rp_weights_store_base(e->weights, network.dtype);
    e->network = rp_network_new(e->weights, kernels, &network);
    e->parameters = rp_load_weights(e->network, weights, e->probe, error);
    return e->parameters != NULL && take_memory(e, tokens, error);
}

/* Adds the loss of the batch to e->sum. */
static gboolean
run_batch(Evaluation *e, GError **error)
{
    const RpProbeOps *ops = e->probe->ops;
    const RpTokenBatch *batch = e->batch;
    const gsize bytes = batch->tokens * sizeof(gint32);
    const guint n_samples = batch->n_starts[0];
    const gsize n_places =
        rp_network_places(e->network, rp_token_batch_starts(batch, 0), n_samples, e->places);
    const double zero = 0;
    double loss;
    const RpStageCall call = {.stream = ops->stream(e->probe),
                              .layers = {0, rp_network_n_layers(e->network)},
                              .constants = e->constants,
                              .parameters = e->parameters,
                              .input = e->ids,
                              .n_samples = n_samples,
                              .longest = batch->longest[0],
                              .workspace = e->workspace,
                              .targets = e->targets,
                              .loss = e->loss};

    if (!ops->upload(e->probe, e->ids, rp_token_batch_input_ids(batch, 0), bytes, error) ||
        !ops->upload(e->probe, e->targets, rp_token_batch_targets(batch, 0), bytes, error) ||
        !ops->upload(e->probe, e->loss, &zero, sizeof zero, error) ||
        !ops->upload(e->probe, e->constants + rp_network_places_byte(e->network), e->places,
                     n_places * sizeof *e->places, error))
        return FALSE;
    rp_network_forward(e->network, &call);
    if (!ops->download(e->probe, &loss, e->loss, sizeof loss, error))
        return FALSE;
    e->sum += loss;
    return TRUE;
}

gboolean
rp_evaluate_model(const RpWeights *weights, const RpKernels *kernels, RpProbe *probe,
                  const RpDataset *dataset, guint tokens, gint32 pad_id,
                  RpEvaluateProgress progress, gpointer user_data, RpEvaluated *evaluated,
                  GError **error)
{
    g_auto(Evaluation) e = {.probe = probe};
    RpEvaluated result = {0};

    if (!begin(&e, weights, kernels, dataset, tokens, pad_id, error))
        return FALSE;
    for (;;) {
        if (!rp_batcher_next(e.batcher, e.batch, error))
            return FALSE;
        if (e.batch->n_samples == 0)
            break;
        if (e.batch->n_targets > 0 && !run_batch(&e, error))
            return FALSE;
        result.n_samples += e.batch->n_samples;
        result.n_targets += e.batch->n_targets;
        result.n_tokens += e.batch->n_tokens;
        result.n_truncated += e.batch->n_truncated;
        if (progress != NULL &&
            !progress(result.n_samples, rp_dataset_n_samples(dataset), user_data)) {
            g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "stopped");
            return FALSE;
        }
    }
    if (result.n_targets == 0) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                    "expected a token to learn, found none in %" G_GUINT64_FORMAT " samples",
                    result.n_samples);
        return FALSE;
    }
    result.loss = e.sum / (double)result.n_targets;
    *evaluated = result;
    return TRUE;
}
