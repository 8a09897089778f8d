#include "exec/train/targets.h"

#include "exec/model/kernels.h"

#define LEAST_SHARE 16

guint
rp_targets_pack(const gint32 *targets, guint n, gint32 *packed, gint32 *rows)
{
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
    return n_packed;
}
