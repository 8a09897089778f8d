/* Losses and gradients that are not finite: noted, named, and when they end the run. */
#include <float.h>
#include <math.h>

#include "exec/device/home-private.h"

gboolean
rp_home_skips(const RpHome *home)
{
    return home->options.scale_loss;
}

/* "in the output of layer 1 (model.layers.0)" (transfer full) */
static char *
describe_place(const RpHome *home, gint32 broken_layer)
{
    g_autofree char *layer = NULL;

    if (broken_layer == G_MAXINT32)
        return g_strdup("in the head (lm_head)");
    layer = rp_home_describe_layer(home->network, (guint)broken_layer);
    return g_strdup_printf("in the output of %s", layer);
}

gboolean
rp_home_take_loss(RpHome *home, guint64 iteration, guint32 micro_batch, double loss,
                  gint32 broken_layer, GError **error)
{
    const guint64 step = rp_home_step(home, iteration);
    RpHomeOverflow *last = &home->overflow;

    if (isfinite(loss))
        return TRUE;
    if (home->options.scale_loss) {
        g_mutex_lock(&home->overflow_lock);
        if (step > last->step || (step == last->step && micro_batch < last->micro_batch))
            *last = (RpHomeOverflow){step, micro_batch, broken_layer};
        g_mutex_unlock(&home->overflow_lock);
        return TRUE;
    }
    g_autofree char *place = describe_place(home, broken_layer);
    g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_LOSS,
                "step %" G_GUINT64_FORMAT ": the loss is not a number (micro-batch %u); it "
                "appeared first %s; a lower optimizer.learning_rate or clipping "
                "(optimizer.max_grad_norm) may avoid it",
                step, micro_batch, place);
    return FALSE;
}

static guint
first_broken(const RpHome *home, const double *sums)
{
    guint layer = 0;

    while (layer + 1 < home->n_layers && isfinite(sums[layer]))
        layer++;
    return layer;
}

gboolean
rp_home_fail_gradient(const RpHome *home, guint layer, GError **error)
{
    g_autofree char *name = rp_home_describe_layer(home->network, layer);

    g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_GRADIENT,
                "step %" G_GUINT64_FORMAT ": the gradient of %s is not finite; "
                "a lower learning rate or clipping may avoid it",
                home->state.n_iterations + 1, name);
    return FALSE;
}

/* No scale makes a forward fit: then the remedy is another. */
static gboolean
give_up(RpHome *home, guint64 step, const double *sums, GError **error)
{
    RpHomeOverflow last;

    g_mutex_lock(&home->overflow_lock);
    last = home->overflow;
    g_mutex_unlock(&home->overflow_lock);
    if (last.step + home->n_skipped > step) { /* that of @step itself may not be told yet */
        g_autofree char *place = describe_place(home, last.broken_layer);

        g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_LOSS,
                    "step %" G_GUINT64_FORMAT ": %u steps in a row overflowed fp16 and were "
                    "skipped; the loss was not finite last in step %" G_GUINT64_FORMAT
                    ", micro-batch %u, first %s: use dtype: bf16 or a lower "
                    "optimizer.learning_rate, or wait longer (loss_scale.max_skipped)",
                    step, home->n_skipped, last.step, last.micro_batch, place);
        return FALSE;
    }
    g_autofree char *name = rp_home_describe_layer(home->network, first_broken(home, sums));
    g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_GRADIENT,
                "step %" G_GUINT64_FORMAT ": %u steps in a row overflowed fp16 and were skipped; "
                "the gradient of %s is not finite although the loss scale is down to %g: use "
                "dtype: bf16, a lower "
                "loss_scale.initial or a lower optimizer.learning_rate, or wait longer "
                "(loss_scale.max_skipped)",
                step, home->n_skipped, name, home->state.loss_scale.scale);
    return FALSE;
}

gboolean
rp_home_note_finite(RpHome *home, gboolean finite, const double *sums, GError **error)
{
    const RpLossScaleOptions *options = &home->options.loss_scale;
    const guint64 step = home->state.n_iterations + 1;

    if (home->options.scale_loss)
        (void)rp_loss_scale_update(&home->state.loss_scale, options, finite);
    home->n_skipped = finite ? 0 : home->n_skipped + 1;
    if (finite)
        return TRUE;
    if (!home->options.scale_loss)
        return rp_home_fail_gradient(home, first_broken(home, sums), error);
    /* a scale that small has lost what it was to keep */
    if (home->state.loss_scale.scale < FLT_MIN ||
        (options->max_skipped > 0 && home->n_skipped >= options->max_skipped))
        return give_up(home, step, sums, error);
    return TRUE;
}
