#include "exec/data/order.h"

#define GOLDEN G_GUINT64_CONSTANT(0x9e3779b97f4a7c15)

/* The finaliser of SplitMix64: one to one, each bit of @x in each bit of the result. */
static guint64
mix(guint64 x)
{
    x = (x ^ (x >> 30)) * G_GUINT64_CONSTANT(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * G_GUINT64_CONSTANT(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void
rp_order_init(RpOrder *order, guint64 n_samples, gboolean shuffle, guint64 seed, guint64 epoch)
{
    g_return_if_fail(order && n_samples > 0 && n_samples <= RP_ORDER_MAX_SAMPLES);

    *order = (RpOrder){n_samples, seed, epoch, shuffle};
    /* mixed in turn: seed 1 of epoch 2 is not seed 2 of epoch 1 */
    guint64 state = mix(mix(seed + GOLDEN) ^ (epoch + GOLDEN));
    for (guint i = 0; i < RP_ORDER_ROUNDS; i++) {
        state += GOLDEN;
        order->pairs[i] = mix(state) % n_samples;
        state += GOLDEN;
        order->bits[i] = mix(state);
    }
}

guint64
rp_order_sample(const RpOrder *order, guint64 position)
{
    g_return_val_if_fail(order && position < order->n_samples, 0);

    guint64 x = position;
    for (guint i = 0; order->shuffle && i < RP_ORDER_ROUNDS; i++) {
        guint64 k = order->pairs[i];
        guint64 partner = x <= k ? k - x : k + (order->n_samples - x);
        /* the same of both, so that they change places or neither does */
        guint64 name = MAX(x, partner);
        if (mix((name + 1) * GOLDEN ^ order->bits[i]) >> 63)
            x = partner;
    }
    return x;
}
