#include "exec/device/targets.h"

#include "exec/kernels/kernels.h"

#define LEAST_SHARE 16
#define MOST_STEP 128 /* rows: a tile of a matmul */

/* At most n / LEAST_SHARE; at least as many are masked, so that there are enough to fill up with. */
static guint
step_of(guint n)
{
    guint step = 1;

    while (step < MOST_STEP && 2 * step <= n / LEAST_SHARE)
        step *= 2;
    return step;
}

double
rp_targets_share(double share)
{
    return share > 1 - 1.0 / LEAST_SHARE ? 1 : share;
}

guint
rp_targets_pack(const gint32 *targets, guint n, gint32 *packed, gint32 *rows)
{
    const guint step = step_of(n);
    guint n_masked = 0, n_packed = 0;

    for (guint i = 0; i < n; i++)
        n_masked += targets[i] == RP_LABEL_MASKED;
    if (n_masked == 0 || n_masked < n / LEAST_SHARE)
        return RP_TARGETS_ALL;
    for (guint i = 0; i < n; i++) {
        if (targets[i] == RP_LABEL_MASKED)
            continue;
        packed[n_packed] = targets[i];
        rows[n_packed++] = (gint32)i;
    }
    for (guint i = 0; n_packed % step != 0; i++) {
        g_assert(i < n);
        if (targets[i] != RP_LABEL_MASKED)
            continue;
        packed[n_packed] = RP_LABEL_MASKED;
        rows[n_packed++] = (gint32)i;
    }
    return n_packed;
}
