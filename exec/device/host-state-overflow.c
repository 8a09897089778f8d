/* Records and names losses and gradients that are not finite, and decides when they end the run. */
#include <float.h>
#include <math.h>

#include "core/base/quote.h"

#include "exec/device/host-state-private.h"

gboolean
rp_host_state_skips(const RpHostState *host_state)
{
    return host_state->options.scale_loss;
}

/* "in the output of layer 1 (model.layers.0), sequence 0, token 5" (transfer full) */
static char *
describe_place(const RpHostState *host_state, RpBrokenOutput broken)
{
    const guint tokens = rp_network_options(host_state->network)->tokens;
    g_autofree char *layer = NULL;

    if (broken.layer == G_MAXINT32)
        return g_strdup("in the head (lm_head)");
    layer = rp_host_state_describe_layer(host_state->network, (guint)broken.layer);
    return g_strdup_printf("in the output of %s, sequence %u, token %u", layer,
                           broken.token / tokens, broken.token % tokens);
}

gboolean
rp_host_state_take_loss(RpHostState *host_state, guint64 iteration, guint32 micro_batch,
                        double loss, RpBrokenOutput broken, GError **error)
{
    const guint64 step = rp_host_state_step(host_state, iteration);
    RpHostStateOverflow *last = &host_state->overflow;

    if (isfinite(loss) || host_state->evaluates)
        return TRUE;
    if (host_state->options.scale_loss) {
        g_mutex_lock(&host_state->overflow_lock);
        if (step > last->step || (step == last->step && micro_batch < last->micro_batch))
            *last = (RpHostStateOverflow){step, micro_batch, broken};
        g_mutex_unlock(&host_state->overflow_lock);
        return TRUE;
    }
    g_autofree char *place = describe_place(host_state, broken);
    return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_LOSS,
                   "step %" G_GUINT64_FORMAT ": the loss is not a number (micro-batch %u); it "
                   "appeared first %s; a lower optimizer.learning_rate or clipping "
                   "(optimizer.max_grad_norm) may avoid it",
                   step, micro_batch, place);
}

static guint
first_broken(const RpHostState *host_state, const double *sums)
{
    guint layer = 0;

    while (layer + 1 < host_state->n_layers && isfinite(sums[layer]))
        layer++;
    return layer;
}

gboolean
rp_host_state_fail_gradient(const RpHostState *host_state, guint layer, GError **error)
{
    g_autofree char *name = rp_host_state_describe_layer(host_state->network, layer);

    return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_GRADIENT,
                   "step %" G_GUINT64_FORMAT ": the gradient of %s is not finite; "
                   "a lower learning rate or clipping may avoid it",
                   host_state->state.n_iterations + 1, name);
}

/* No scale makes a forward fit: then the remedy is another. */
static gboolean
give_up(RpHostState *host_state, guint64 step, const double *sums, GError **error)
{
    g_mutex_lock(&host_state->overflow_lock);
    RpHostStateOverflow last = host_state->overflow;
    g_mutex_unlock(&host_state->overflow_lock);
    if (last.step + host_state->n_skipped > step) { /* @step's own decision may not be there yet */
        g_autofree char *place = describe_place(host_state, last.broken);

        return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_LOSS,
                       "step %" G_GUINT64_FORMAT ": %u steps in a row overflowed fp16 and were "
                       "skipped; the loss was not finite last in step %" G_GUINT64_FORMAT
                       ", micro-batch %u, first %s: use dtype: bf16 or a lower "
                       "optimizer.learning_rate, or wait longer (loss_scale.max_skipped)",
                       step, host_state->n_skipped, last.step, last.micro_batch, place);
    }
    g_autofree char *name =
        rp_host_state_describe_layer(host_state->network, first_broken(host_state, sums));
    return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_GRADIENT,
                   "step %" G_GUINT64_FORMAT
                   ": %u steps in a row overflowed fp16 and were skipped; "
                   "the gradient of %s is not finite although the loss scale is down to %g: use "
                   "dtype: bf16, a lower "
                   "loss_scale.initial or a lower optimizer.learning_rate, or wait longer "
                   "(loss_scale.max_skipped)",
                   step, host_state->n_skipped, name, host_state->state.loss_scale.scale);
}

gboolean
rp_host_state_note_finite(RpHostState *host_state, gboolean finite, const double *sums,
                          GError **error)
{
    const RpLossScaleOptions *options = &host_state->options.loss_scale;
    const guint64 step = host_state->state.n_iterations + 1;

    if (host_state->options.scale_loss)
        (void)rp_loss_scale_update(&host_state->state.loss_scale, options, finite);
    host_state->n_skipped = finite ? 0 : host_state->n_skipped + 1;
    if (finite)
        return TRUE;
    if (!host_state->options.scale_loss)
        return rp_host_state_fail_gradient(host_state, first_broken(host_state, sums), error);
    /* a scale that small no longer prevents underflow */
    if (host_state->state.loss_scale.scale < FLT_MIN ||
        (options->max_skipped > 0 && host_state->n_skipped >= options->max_skipped))
        return give_up(host_state, step, sums, error);
    return TRUE;
}
