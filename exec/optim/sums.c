/* One loop for each storage, so that a compiler can vectorise them. */
#include "exec/optim/sums.h"

G_ALWAYS_INLINE static inline void
add_loop(const void *restrict a, const void *restrict b, RpNumber number, float *restrict sum,
         gsize n)
{
    for (gsize i = 0; i < n; i++)
        sum[i] = rp_number_get(number, a, i) + rp_number_get(number, b, i);
}

void
rp_sums_add(const void *a, const void *b, RpNumber number, float *sum, gsize n)
{
    switch (number) {
    case RP_NUMBER_FP32:
        add_loop(a, b, RP_NUMBER_FP32, sum, n);
        break;
    case RP_NUMBER_BF16:
        add_loop(a, b, RP_NUMBER_BF16, sum, n);
        break;
    case RP_NUMBER_FP16:
        add_loop(a, b, RP_NUMBER_FP16, sum, n);
        break;
    }
}

G_ALWAYS_INLINE static inline void
accumulate_loop(void *restrict a, const void *restrict b, RpNumber number, gsize n)
{
    for (gsize i = 0; i < n; i++)
        rp_number_set(number, a, i, rp_number_get(number, a, i) + rp_number_get(number, b, i));
}

void
rp_sums_accumulate(void *a, const void *b, RpNumber number, gsize n)
{
    switch (number) {
    case RP_NUMBER_FP32:
        accumulate_loop(a, b, RP_NUMBER_FP32, n);
        break;
    case RP_NUMBER_BF16:
        accumulate_loop(a, b, RP_NUMBER_BF16, n);
        break;
    case RP_NUMBER_FP16:
        accumulate_loop(a, b, RP_NUMBER_FP16, n);
        break;
    }
}

G_ALWAYS_INLINE static inline void
widen_loop(const void *restrict a, RpNumber number, float *restrict y, gsize n)
{
    for (gsize i = 0; i < n; i++)
        y[i] = rp_number_get(number, a, i);
}

void
rp_sums_widen(const void *a, RpNumber number, float *y, gsize n)
{
    switch (number) {
    case RP_NUMBER_FP32:
        widen_loop(a, RP_NUMBER_FP32, y, n);
        break;
    case RP_NUMBER_BF16:
        widen_loop(a, RP_NUMBER_BF16, y, n);
        break;
    case RP_NUMBER_FP16:
        widen_loop(a, RP_NUMBER_FP16, y, n);
        break;
    }
}
