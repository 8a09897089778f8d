#include "core/schedules/schedules.h"

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

/*
 * Schedules of two stages a device in a V that repeat one building block every six units of time.
 *
 *   N = 2, offsets 1 1 1 1, turns 1 1 1: where the block of one micro-batch stands
 *
 *   gpu 0  |0F |   |   |3F |3I |3W |   |0I |0W |
 *   gpu 1      |1F |2F |   |   |2I |1I |2W |1W |
 *
 * The activations of a micro-batch live from F to W, so the offsets alone decide how many do.
 *
 * Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, §3.
 */

#define PERIOD 6

enum { DOWN_F, UP_F, UP_I, DOWN_I, UP_W, DOWN_W, PASSES };

/* The first unit behind @from that is unit @at of a period. */
static guint64
next_unit(guint64 from, guint at)
{
    return from + 1 + (at + PERIOD - (from + 1) % PERIOD) % PERIOD;
}

/* The two units of the period that nothing has taken, to W of each stage so that both come soon. */
static void
place_weights(guint64 starts[PASSES])
{
    guint taken = 0, open[2] = {0, 0}, n = 0;

    for (guint p = 0; p < UP_W; p++)
        taken |= 1u << starts[p] % PERIOD;
    for (guint unit = 0; unit < PERIOD && n < 2; unit++)
        if ((taken & 1u << unit) == 0)
            open[n++] = unit;

    const guint64 straight[2] = {next_unit(starts[UP_I], open[0]),
                                 next_unit(starts[DOWN_I], open[1])};
    const guint64 crossed[2] = {next_unit(starts[UP_I], open[1]),
                                next_unit(starts[DOWN_I], open[0])};
    const guint64 sums[2] = {straight[0] + straight[1], crossed[0] + crossed[1]};
    const gboolean cross = sums[1] < sums[0] || (sums[1] == sums[0] && crossed[0] < straight[0]);

    starts[UP_W] = cross ? crossed[0] : straight[0];
    starts[DOWN_W] = cross ? crossed[1] : straight[1];
}

void
rp_order_v_block(const RpShape *shape, guint gpu, const RpVBlock *block, GArray *order)
{
    static const RpActionKind kinds[PASSES] = {
        RP_ACTION_FORWARD,        RP_ACTION_FORWARD,         RP_ACTION_INPUT_GRADIENT,
        RP_ACTION_INPUT_GRADIENT, RP_ACTION_WEIGHT_GRADIENT, RP_ACTION_WEIGHT_GRADIENT};
    const guint64 M = shape->micro_batches, last = shape->gpus - 1;
    guint64 starts[PASSES], turned = 0; /* when the path has come to the next turn */

    for (guint p = DOWN_F; p <= DOWN_I; p++) {
        const guint64 way = p % 2 == 0 ? gpu : last - gpu; /* to this device, since that turn */

        starts[p] = turned + block->offsets[p] * way;
        turned += block->offsets[p] * last + (p < DOWN_I ? block->turns[p] : 0);
    }
    place_weights(starts);
    for (guint64 unit = 0, done = 0; done < PASSES * M; unit++) {
        for (guint p = 0; p < PASSES; p++) {
            const gboolean up = p == UP_F || p == UP_I || p == UP_W;

            if (unit < starts[p] || (unit - starts[p]) % PERIOD != 0 ||
                (unit - starts[p]) / PERIOD >= M)
                continue;
            rp_order_push(order, kinds[p], up ? (guint)(2 * last + 1) - gpu : gpu,
                          (guint)((unit - starts[p]) / PERIOD));
            done++;
        }
    }
}
