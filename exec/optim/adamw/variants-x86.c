#include "exec/optim/adamw/adamw-private.h"

const RpAdamwOps *const *
rp_adamw_variants(void)
{
    static const RpAdamwOps *const variants[] = {&rp_adamw_avx512, &rp_adamw_avx2, &rp_adamw_plain,
                                                 NULL};
    return variants;
}
