#include "core/schedules/waves/wave.h"

#include "core/schedules/order.h"

typedef struct {
    guint64 at;
    guint stage;
    guint micro_batch;
    RpActionKind kind;
} Timed;

GArray *
rp_wave_new(void)
{
    return g_array_new(FALSE, FALSE, sizeof(Timed));
}

void
rp_wave_add(GArray *wave, guint stage, guint n_stages, guint unit, guint first, guint count)
{
    const guint64 S = n_stages;

    for (guint i = 0; i < count; i++) {
        const guint64 start = 2 * S * (i / unit) + 2 * (guint64)(i % unit);
        const Timed forward = {start + stage, stage, first + i, RP_ACTION_FORWARD};
        const Timed backward = {start + 2 * S - 1 - stage, stage, first + i, RP_ACTION_BACKWARD};

        g_array_append_val(wave, forward);
        g_array_append_val(wave, backward);
    }
}

static gint
compare_times(gconstpointer a, gconstpointer b)
{
    const Timed *x = a, *y = b;

    return (x->at > y->at) - (x->at < y->at);
}

void
rp_wave_push(GArray *wave, GArray *order)
{
    g_array_sort(wave, compare_times);
    for (guint i = 0; i < wave->len; i++) {
        const Timed *timed = &g_array_index(wave, Timed, i);

        rp_order_push(order, timed->kind, timed->stage, timed->micro_batch);
    }
    g_array_unref(wave);
}
