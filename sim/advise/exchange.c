/* The exchange's model: two lanes, and the shortest period at which nothing comes too late. */
#include "sim/advise/exchange.h"

/* Iterations until lanes are steady, once each has time for its work. */
#define ITERATIONS 8

gint64
rp_exchange_busy_ns(const RpExchange *exchange)
{
    gint64 busy_ns = exchange->norm_ns;

    for (guint l = 0; l < exchange->n_layers; l++)
        busy_ns += exchange->layers[l].reduce_ns + exchange->layers[l].gather_ns;
    return busy_ns;
}

/* A run of ITERATIONS at a period. Jobs of iteration t have index t x n + i. */
typedef struct {
    const RpExchange *exchange;
    gint64 period_ns;
    gint64 longer_ns;
    const guint *order; /* layers that are exchanged, by ready_ns */
    guint n_reduces;    /* of an iteration */
    gint64 *reduced_ns; /* of each layer of each iteration; -1: not yet */
    guint next_reduce;
    guint next_step;
    GArray *gathers; /* (element-type Gather), as steps end */
    guint next_gather;
    gint64 network_ns;
    gint64 optimizer_ns;
} Lanes;

typedef struct {
    guint iteration;
    guint layer;
    gint64 ready_ns;
} Gather;

/* When all that the step reads is reduced; -1: not yet. */
static gint64
reads_from(const Lanes *lanes, guint iteration, guint layer)
{
    const RpExchange *exchange = lanes->exchange;
    const gint64 *reduced_ns = lanes->reduced_ns + (gsize)iteration * exchange->n_layers;
    gint64 from_ns = 0;

    if (layer != RP_EXCHANGE_ALL)
        return exchange->layers[layer].reduce_ns > 0 ? reduced_ns[layer] : 0;
    for (guint i = 0; i < lanes->n_reduces; i++) {
        if (reduced_ns[lanes->order[i]] < 0)
            return -1;
        from_ns = MAX(from_ns, reduced_ns[lanes->order[i]]);
    }
    return from_ns + exchange->norm_ns;
}

/* The optimizer, as far as gradients are reduced. */
static void
run_steps(Lanes *lanes)
{
    const RpExchange *exchange = lanes->exchange;

    for (; lanes->next_step < ITERATIONS * exchange->n_steps; lanes->next_step++) {
        const guint t = lanes->next_step / exchange->n_steps;
        const RpExchangeStep *step = &exchange->steps[lanes->next_step % exchange->n_steps];
        const gint64 from_ns = reads_from(lanes, t, step->layer);
        const gint64 start_ns = t * lanes->period_ns + step->start_ns + lanes->longer_ns;

        if (from_ns < 0)
            return;
        lanes->optimizer_ns = MAX(MAX(lanes->optimizer_ns, start_ns), from_ns) + step->duration_ns;
        if (!step->writes || step->layer == RP_EXCHANGE_ALL ||
            exchange->layers[step->layer].gather_ns == 0)
            continue;
        const Gather gather = {t, step->layer, lanes->optimizer_ns};

        g_array_append_val(lanes->gathers, gather);
    }
}

/* The last iterations', by which lanes are steady, else all. */
static gboolean
is_in_time(gboolean known, gint64 end_ns, gint64 limit_ns)
{
    return !known || end_ns <= limit_ns;
}

static gboolean
reduce(Lanes *lanes)
{
    const RpExchange *exchange = lanes->exchange;
    const guint t = lanes->next_reduce / lanes->n_reduces;
    const guint l = lanes->order[lanes->next_reduce++ % lanes->n_reduces];
    const RpExchangeLayer *layer = &exchange->layers[l];
    const gint64 ready_ns = t * lanes->period_ns + layer->ready_ns + lanes->longer_ns;

    lanes->network_ns = MAX(lanes->network_ns, ready_ns) + layer->reduce_ns;
    lanes->reduced_ns[(gsize)t * exchange->n_layers + l] = lanes->network_ns;
    return is_in_time(layer->reused, lanes->network_ns,
                      (t + 1) * lanes->period_ns + layer->reuse_ns +
                          (exchange->reuse_moves ? lanes->longer_ns : 0));
}

static gboolean
gather(Lanes *lanes)
{
    const Gather *next = &g_array_index(lanes->gathers, Gather, lanes->next_gather++);
    const RpExchangeLayer *layer = &lanes->exchange->layers[next->layer];

    lanes->network_ns = MAX(lanes->network_ns, next->ready_ns) + layer->gather_ns;
    return is_in_time(layer->needed, lanes->network_ns,
                      (next->iteration + lanes->exchange->lag) * lanes->period_ns + layer->need_ns);
}

/* Whether a gather has waited longer than the next gradients. */
static gboolean
gathers_next(const Lanes *lanes)
{
    if (lanes->next_gather == lanes->gathers->len)
        return FALSE;
    if (lanes->next_reduce == ITERATIONS * lanes->n_reduces)
        return TRUE;
    const guint l = lanes->order[lanes->next_reduce % lanes->n_reduces];

    return g_array_index(lanes->gathers, Gather, lanes->next_gather).ready_ns <=
           lanes->next_reduce / lanes->n_reduces * lanes->period_ns +
               lanes->exchange->layers[l].ready_ns + lanes->longer_ns;
}

static gboolean
works(const RpExchange *exchange, const guint *order, guint n_reduces, gint64 period_ns,
      gint64 longer_ns)
{
    const gsize n = (gsize)ITERATIONS * exchange->n_layers;
    g_autoptr(GArray) gathers = g_array_new(FALSE, FALSE, sizeof(Gather));
    g_autofree gint64 *reduced_ns = g_new(gint64, n);
    Lanes lanes = {.exchange = exchange,
                   .period_ns = period_ns,
                   .longer_ns = longer_ns,
                   .order = order,
                   .n_reduces = n_reduces,
                   .reduced_ns = reduced_ns,
                   .gathers = gathers};

    for (gsize i = 0; i < n; i++)
        reduced_ns[i] = -1;
    for (;;) {
        run_steps(&lanes);
        if (gathers_next(&lanes)) {
            if (!gather(&lanes))
                return FALSE;
        } else if (lanes.next_reduce == ITERATIONS * n_reduces) {
            return TRUE;
        } else if (!reduce(&lanes)) {
            return FALSE;
        }
    }
}

static gint
compare_ready(gconstpointer a, gconstpointer b, gpointer layers)
{
    const RpExchangeLayer *of = layers;
    const guint i = *(const guint *)a, j = *(const guint *)b;

    return of[i].ready_ns != of[j].ready_ns ? (of[i].ready_ns < of[j].ready_ns ? -1 : 1)
           : i < j                          ? 1
                                            : -1; /* backwards end with the first layer */
}

gint64
rp_exchange_period(const RpExchange *exchange, gint64 alone_ns, gint64 longer_ns)
{
    g_autofree guint *order = g_new(guint, MAX(exchange->n_layers, 1));
    gint64 least_ns = MAX(alone_ns, rp_exchange_busy_ns(exchange)), steps_ns = 0;
    guint n = 0;

    for (guint l = 0; l < exchange->n_layers; l++)
        if (exchange->layers[l].reduce_ns > 0)
            order[n++] = l;
    if (n == 0)
        return alone_ns;
    g_qsort_with_data(order, (gint)n, sizeof *order, compare_ready, (gpointer)exchange->layers);
    for (guint i = 0; i < exchange->n_steps; i++)
        steps_ns += exchange->steps[i].duration_ns;
    least_ns = MAX(least_ns, steps_ns);
    if (works(exchange, order, n, least_ns, longer_ns))
        return least_ns;
    gint64 too_short_ns = least_ns, most_ns = 2 * MAX(least_ns, 1);

    while (!works(exchange, order, n, most_ns, longer_ns)) {
        too_short_ns = most_ns;
        most_ns *= 2;
    }
    while (most_ns - too_short_ns > 1) {
        const gint64 middle_ns = too_short_ns + (most_ns - too_short_ns) / 2;

        if (works(exchange, order, n, middle_ns, longer_ns))
            most_ns = middle_ns;
        else
            too_short_ns = middle_ns;
    }
    return most_ns;
}
