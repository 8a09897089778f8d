#include "exec/optim/clip.h"

#include <math.h>

RpClip
rp_clip_by_norm(const double *sum_squares, gsize n_layers, double unscale, double max_norm)
{
    RpClip clip = {.coefficient = 1};
    double sum = 0;

    for (gsize i = 0; i < n_layers; i++)
        sum += sum_squares[i];
    clip.norm = sqrt(sum) * unscale;
    clip.finite = isfinite(clip.norm);
    if (max_norm > 0)
        clip.coefficient = fmin(1, max_norm / (clip.norm + 1e-6));
    return clip;
}
