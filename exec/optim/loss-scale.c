#include "exec/optim/loss-scale.h"

#include <math.h>

gboolean
rp_loss_scale_update(RpLossScale *loss_scale, const RpLossScaleOptions *options, gboolean finite)
{
    if (!finite) {
        loss_scale->scale = (float)(loss_scale->scale * options->backoff_factor);
        loss_scale->good_steps = 0;
    } else if (++loss_scale->good_steps == options->growth_interval) {
        const float grown = (float)(loss_scale->scale * options->growth_factor);
        if (isfinite(grown))
            loss_scale->scale = grown;
        loss_scale->good_steps = 0;
    }
    return finite;
}
