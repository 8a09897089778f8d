/* Several servers: what one server's trace says of gradients, steps and uploads, and what the network
 * makes of it. */
#include "sim/advise/servers.h"

#include <math.h>

#include "core/base/shard.h"
#include "sim/advise/exchange.h"
#include "sim/advise/private.h"
#include "sim/simulate.h"

/* Batches up to so many times as large are tried. */
#define MOST_TIMES 4096
#define HIDDEN 1.03

/* A trace as the exchange sees it. */
typedef struct {
    RpExchangeLayer *layers;
    GArray *steps;    /* (element-type RpExchangeStep) */
    guint beside;     /* iterations that run at once: each of them is longer by what so many are */
    gint64 period_ns; /* of the trace */
    guint64 bytes;    /* of the largest shares of a step: gradients, and as many of weights */
    guint element_bytes;
    RpExchange exchange;
} View;

static void
view_clear(View *view)
{
    g_free(view->layers);
    g_clear_pointer(&view->steps, g_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(View, view_clear)

/* Layers of host buffers of weights, RP_NONE for others. */
static guint32 *
map_weights(const RpPlan *plan)
{
    const guint n = rp_plan_n_buffers(plan);
    guint32 *layers = g_new(guint32, MAX(n, 1));

    for (guint b = 0; b < n; b++)
        layers[b] = RP_NONE;
    for (guint l = 0; l < rp_plan_n_layers(plan); l++)
        for (guint i = 0; i < G_N_ELEMENTS(rp_plan_layer(plan, l)->weights); i++)
            if (rp_plan_layer(plan, l)->weights[i] != RP_NONE)
                layers[rp_plan_layer(plan, l)->weights[i]] = l;
    return layers;
}

/* The layer of the task's stage whose gradients stand in @buffer, which layers of other stages may have, too. */
static guint32
layer_of(const RpPlan *plan, const RpTask *task, guint32 buffer)
{
    const RpInterval layers = rp_plan_stage(plan, task->stage)->layers;

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        for (guint i = 0; i < RP_MOST_ROUNDS_APART; i++)
            if (rp_plan_layer(plan, l)->gradients[i] == buffer)
                return l;
    return RP_NONE;
}

/* Gradients of @first that arrive, and those of the iteration behind it that come in their place. */
static void
note_gradients(View *view, const RpPlan *plan, const RpTraceRecord *record, guint first,
               const gint64 *from_ns)
{
    const RpTask *task = rp_plan_task(plan, record->task);
    const RpAccess *accesses = rp_plan_accesses(plan, task);

    for (guint a = 0; a < task->access_count; a++) {
        const guint32 l = layer_of(plan, task, accesses[a].buffer);

        if (l == RP_NONE || (accesses[a].mode & RP_ACCESS_WRITE) == 0)
            continue;
        const guint32 tied = rp_plan_layer(plan, l)->tied_to;

        for (guint i = 0; i < (tied != RP_NONE ? 2 : 1); i++) {
            RpExchangeLayer *layer = &view->layers[i == 0 ? l : tied];
            const gint64 start_ns = record->start_ns - from_ns[1];

            if (record->iteration == first) {
                layer->ready_ns = MAX(layer->ready_ns, record->end_ns - from_ns[0]);
            } else if (!layer->reused || start_ns < layer->reuse_ns) {
                layer->reused = TRUE;
                layer->reuse_ns = start_ns;
            }
        }
    }
}

static void
note_upload(View *view, const RpPlan *plan, const RpTraceRecord *record, const guint32 *layers,
            gint64 from_ns)
{
    const RpTask *task = rp_plan_task(plan, record->task);
    const RpAccess *accesses = rp_plan_accesses(plan, task);

    for (guint a = 0; a < task->access_count; a++) {
        const guint32 l = layers[accesses[a].buffer];

        if (l == RP_NONE ||
            (view->layers[l].needed && record->start_ns - from_ns >= view->layers[l].need_ns))
            continue;
        view->layers[l].needed = TRUE;
        view->layers[l].need_ns = record->start_ns - from_ns;
    }
}

static void
note_step(View *view, const RpPlan *plan, const RpTraceRecord *record, gint64 from_ns)
{
    const gboolean all = record->kind == RP_TASK_NORM;
    const gboolean early =
        !all && record->layer != RP_NONE && rp_plan_layer(plan, record->layer)->early;
    const RpExchangeStep step = {
        .start_ns = record->start_ns - from_ns,
        .duration_ns = record->end_ns - record->start_ns,
        .layer = all ? RP_EXCHANGE_ALL : record->layer,
        .writes = record->kind == RP_TASK_PARAMETER_COPY ||
                  (record->kind == RP_TASK_EARLY_STEP && early) ||
                  (record->kind == RP_TASK_OPTIMIZER_STEP && !early &&
                   rp_plan_modes(plan)->copies == RP_COPIES_FUSED),
    };

    if (all || record->layer != RP_NONE)
        g_array_append_val(view->steps, step);
}

static void
read_trace(View *view, const RpPlan *plan, const RpTrace *trace, guint first, guint lag,
           const gint64 *from_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    const guint optimizer = RP_LANES_PER_DEVICE + RP_HOST_LANE_OPTIMIZER;
    g_autofree guint32 *weights = map_weights(plan);

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        const RpTraceRecord *record = &records[i];
        const guint t = record->iteration;

        if (record->kind == RP_TASK_PARAMETER_UPLOAD && t == first + lag)
            note_upload(view, plan, record, weights, from_ns[lag]);
        else if ((t == first || t == first + 1) && (record->kind == RP_TASK_GRADIENT_DOWNLOAD ||
                                                    record->kind == RP_TASK_GRADIENT_ACCUMULATE))
            note_gradients(view, plan, record, first, from_ns);
        else if (t == first && rp_plan_lane_kind(plan, record->lane) == optimizer)
            note_step(view, plan, record, from_ns[0]);
    }
}

/* Bytes of the largest share: whole blocks (core/base/shard.h). */
static guint64
share_bytes(const View *view, guint64 bytes, guint servers)
{
    return rp_shard_most(bytes / view->element_bytes, servers) * view->element_bytes;
}

/* Pairs of servers send each other their shares: (R - 1) (latency + n / rate), of n bytes. */
static gint64
exchange_ns(guint64 bytes, guint servers, const RpServerNetwork *network, double bytes_per_s)
{
    return llround((double)(servers - 1) *
                   (network->latency_us * 1e3 + (double)bytes / bytes_per_s * 1e9));
}

static void
time_exchange(View *view, const RpProfile *profile, const RpServerNetwork *network,
              const RpAdviseServed *served)
{
    const guint n = served->servers;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];
        const guint64 weights = share_bytes(view, rp_layer_own_gradient_bytes(layer), n);
        const guint64 gradients =
            weights +
            share_bytes(view, layer->gradient_bytes - rp_layer_own_gradient_bytes(layer), n);

        view->bytes += gradients + weights;
        if (gradients == 0)
            continue;
        view->layers[l].reduce_ns = exchange_ns(gradients, n, network, served->bytes_per_s);
        view->layers[l].gather_ns = exchange_ns(weights, n, network, served->bytes_per_s);
    }
    view->exchange.norm_ns = llround(2 * ceil(log2(n)) * network->latency_us * 1e3);
}

static gboolean
view_trace(const RpProfile *profile, const RpAdviseRun *run, View *view, GError **error)
{
    const RpMachine machine = rp_machine_from_profile(profile);
    const guint lag = run->options.async ? 2 : 1;
    RpPlanOptions options = run->options;

    options.micro_batches = run->simulated_micro_batches;
    if (!options.schedule->dispatched)
        options.round = options.micro_batches;
    const RpSteadyWindow window = rp_advise_window(run->partition, &options, RP_ADVISE_WARM_UP);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, run->partition, &options, window.iterations, error);
    g_autoptr(RpTrace) trace = plan != NULL ? rp_simulate(plan, &machine, error) : NULL;
    gint64 from_ns[3] = {0}, end_ns = 0, unused_ns;

    if (trace == NULL)
        return FALSE;
    for (guint i = 0; i <= lag; i++)
        (void)rp_report_iteration_span(trace, window.first + i, &from_ns[i],
                                       i == 0 ? &end_ns : &unused_ns);
    view->element_bytes = rp_plan_storage(plan)->element_bytes;
    view->layers = g_new0(RpExchangeLayer, profile->n_layers);
    view->steps = g_array_new(FALSE, FALSE, sizeof(RpExchangeStep));
    view->period_ns = rp_report_steady(trace, window.first, window.end).iteration_ns;
    view->beside =
        (guint)MAX(1, llround((double)(end_ns - from_ns[0]) / (double)MAX(view->period_ns, 1)));
    read_trace(view, plan, trace, window.first, lag, from_ns);
    view->exchange = (RpExchange){.n_layers = profile->n_layers,
                                  .layers = view->layers,
                                  .n_steps = view->steps->len,
                                  .steps = (const RpExchangeStep *)(void *)view->steps->data,
                                  .reuse_moves = options.round == options.micro_batches,
                                  .lag = lag};
    return TRUE;
}

/* A step of @times the batch, without the network: cards compute longer, the optimizer does not. */
static gint64
alone_ns(const RpAdviseRun *run, double times)
{
    const double step = (double)run->step_ns, busy = step * (1 - run->bubble_ratio);

    return llround(run->options.async ? MAX(step, times * busy) : step + (times - 1) * busy);
}

static gboolean
hides(const View *view, const RpAdviseRun *run, double times)
{
    const gint64 alone = alone_ns(run, times);

    return (double)rp_exchange_period(&view->exchange, alone,
                                      view->beside * (alone - view->period_ns)) <=
           HIDDEN * (double)alone;
}

/* In whole micro-batches a card. */
static guint
find_hiding_batch(const View *view, const RpAdviseRun *run, guint servers)
{
    const guint units = MAX(1, run->options.micro_batches / run->options.gpus);
    const guint64 unit = (guint64)run->options.gpus * run->sequences * servers;
    guint64 small = units, large = 2 * (guint64)units;

    while (!hides(view, run, (double)large / units)) {
        small = large;
        large *= 2;
        if (large > (guint64)MOST_TIMES * units)
            return 0;
    }
    while (large - small > 1) {
        const guint64 middle = (small + large) / 2;

        if (hides(view, run, (double)middle / units))
            large = middle;
        else
            small = middle;
    }
    return large * unit <= G_MAXINT ? (guint)(large * unit) : 0;
}

/* How fast the network is to gradients, whose exchange touches host memory most. */
static void
find_rate(const RpProfile *profile, RpAdviseServed *served)
{
    served->bytes_per_s = rp_network_bytes_per_s(&profile->links, RP_REDUCE_TOUCHES);
    served->host_limits = served->bytes_per_s < profile->links.network_bytes_per_s;
}

/* By the closed model: the step of @run, which is so long without the network; and, if @hiding, the batch
 * that hides it. */
static gboolean
model(const RpAdviseQuery *query, const RpAdviseRun *run, RpAdviseServed *served, guint *hiding,
      GError **error)
{
    RpAdviseQuery without = *query;
    g_auto(View) view = {0};
    without.network = NULL;
    g_autoptr(RpProfile) profile = rp_advise_profile(&without, run->sequences, error);
    g_autoptr(RpAdviseRun) alone = rp_advise_run_copy(run);

    if (profile == NULL || !rp_advise_simulate(profile, alone, error) ||
        !view_trace(profile, run, &view, error))
        return FALSE;
    time_exchange(&view, profile, query->network, served);
    if (hiding != NULL)
        *hiding = find_hiding_batch(&view, alone, served->servers);
    else
        served->model_ns = rp_exchange_period(&view.exchange, alone->step_ns,
                                              view.beside * (alone->step_ns - view.period_ns));
    served->sent_bytes = view.bytes * (served->servers - 1);
    return TRUE;
}

gboolean
rp_advise_serve(const RpAdviseQuery *query, const RpAdviseRun *run, const RpAdviseRun *alone,
                RpAdviseServed *served, GError **error)
{
    const guint servers = run->options.servers;
    g_return_val_if_fail(run->simulated && servers > 1 && query->network != NULL, FALSE);
    g_autoptr(RpProfile) profile = rp_advise_profile(query, run->sequences, error);

    if (profile == NULL)
        return FALSE;
    *served = (RpAdviseServed){.servers = servers,
                               .step_ns = run->step_ns,
                               .alone_ns = alone->step_ns,
                               .exchange_ns = run->network_ns,
                               .tokens_per_s = run->tokens_per_s * servers};
    find_rate(profile, served);
    served->network = (double)served->step_ns > HIDDEN * (double)alone->step_ns;
    return model(query, run, served, NULL, error) &&
           (!served->network || model(query, alone, served, &served->hiding_batch, error));
}
