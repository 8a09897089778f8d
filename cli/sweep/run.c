#include "cli/sweep/sweep.h"

#include <math.h>

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "core/base/units.h"

#define S_PER_HOUR 3600.0
#define BILLION 1e9

/* Rows in the making: workers take one after the other. */
typedef struct {
    const RpSweepGrid *grid;
    RpSweepRows *rows;
    const double *prices;
    RpProgress progress;
    guint64 total;
    guint n_threads;
    guint64 memory_bytes; /* for all of them, before they began */
    gint done;            /* atomic */
} Sweep;

static char *
text_real(double value, guint decimals)
{
    char format[16], text[G_ASCII_DTOSTR_BUF_SIZE];

    g_snprintf(format, sizeof format, "%%.%uf", decimals);
    return g_strdup(g_ascii_formatd(text, sizeof text, format, value));
}

/* The price of the row's card; 0: none was given. */
static double
price_of(const Sweep *sweep, guint i)
{
    if (sweep->prices == NULL)
        return 0;
    for (guint a = 0; a < sweep->grid->axes->len; a++)
        if (g_str_equal(rp_sweep_axis_name(&g_array_index(sweep->grid->axes, RpSweepAxis, a)),
                        "gpu"))
            return sweep->prices[rp_sweep_grid_place(sweep->grid, i, a)];
    return sweep->prices[0];
}

static void
tell(const Sweep *sweep, guint i, const RpProfile *profile, const RpRequest *request,
     const RpResult *result, char **texts)
{
    const RpBubble *bubble = &result->bubble;
    const double price = price_of(sweep, i) * request->options.gpus;

    texts[RP_SWEEP_DEVICE] = g_strdup(profile->device);
    texts[RP_SWEEP_ITERATION_MS] = text_real(rp_ms_from_ns(result->iteration_ns), 6);
    texts[RP_SWEEP_BUBBLE_PCT] = text_real(100 * bubble->ratio, 6);
    texts[RP_SWEEP_FILL_PCT] = text_real(100 * bubble->fill, 6);
    texts[RP_SWEEP_SWITCH_PCT] = text_real(100 * bubble->switch_, 6);
    texts[RP_SWEEP_DRAIN_PCT] = text_real(100 * bubble->drain, 6);
    texts[RP_SWEEP_INTRA_PCT] = text_real(100 * bubble->intra, 6);
    if (result->tokens_per_s > 0)
        texts[RP_SWEEP_TOKENS_PER_S] = text_real(result->tokens_per_s, 3);
    if (result->gpu_peak_bytes > 0) {
        texts[RP_SWEEP_GPU_GIB] = text_real((double)result->gpu_peak_bytes / (double)RP_GIB, 6);
        texts[RP_SWEEP_HOST_GIB] = text_real((double)result->host_peak_bytes / (double)RP_GIB, 6);
        texts[RP_SWEEP_FITS] = g_strdup(result->memory_problem == NULL ? "yes" : "no");
    }
    if (price > 0 && result->tokens_per_s > 0)
        texts[RP_SWEEP_DOLLARS] = text_real(price / S_PER_HOUR * BILLION / result->tokens_per_s, 6);
}

static gboolean
run_row(const Sweep *sweep, guint i, char **texts, GError **error)
{
    const RpSweepAxis *models = &g_array_index(sweep->grid->axes, RpSweepAxis, 0);
    RpArgs args;
    g_auto(RpRequest) request = {0};
    g_auto(RpResult) result = {0};
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpPlan) plan = NULL;

    rp_sweep_grid_args(sweep->grid, i, &args);
    args.run.beside = sweep->n_threads;
    args.run.memory_bytes = sweep->memory_bytes;
    if (!rp_request_load(&args, models->values[rp_sweep_grid_place(sweep->grid, i, 0)], &profile,
                         &request, error))
        return FALSE;
    g_autoptr(RpTrace) trace = rp_request_simulate(&request, profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&request, profile, plan, trace, &result);
    if (request.options.fidelity == RP_FIDELITY_COMPUTE)
        rp_result_plan_memory(&request, profile, &result);
    tell(sweep, i, profile, &request, &result, texts);
    return TRUE;
}

static void
run_in_thread(gpointer place, gpointer user_data)
{
    Sweep *sweep = user_data;
    const guint i = GPOINTER_TO_UINT(place) - 1;
    g_autoptr(GError) error = NULL;
    char *texts[RP_SWEEP_N_RESULTS] = {NULL};

    if (!run_row(sweep, i, texts, &error))
        texts[RP_SWEEP_ERROR] = rp_cli_message(error, FALSE);
    rp_sweep_rows_add(sweep->rows, i, (const char *const *)texts);
    for (guint r = 0; r < RP_SWEEP_N_RESULTS; r++)
        g_free(texts[r]);
    g_atomic_int_inc(&sweep->done);
}

gboolean
rp_sweep_run(const RpSweepGrid *grid, const double *prices, RpSweepRows *rows, guint *done,
             GError **error)
{
    Sweep sweep = {.grid = grid, .rows = rows, .prices = prices};
    g_autoptr(GArray) missing = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < grid->n; i++)
        if (rp_sweep_rows_cells(rows, i) == NULL)
            g_array_append_val(missing, i);
    *done = missing->len;
    if (missing->len == 0)
        return TRUE;
    sweep.n_threads = MAX(1, MIN(g_get_num_processors(), missing->len));
    sweep.memory_bytes = rp_run_memory_now();
    GThreadPool *pool = g_thread_pool_new(run_in_thread, &sweep, (int)sweep.n_threads, TRUE, error);

    if (pool == NULL)
        return FALSE;
    sweep.progress = rp_progress_begin("simulating", 0);
    for (guint m = 0; m < missing->len; m++)
        g_thread_pool_push(pool, GUINT_TO_POINTER(g_array_index(missing, guint, m) + 1), NULL);
    while ((guint)g_atomic_int_get(&sweep.done) < missing->len) {
        rp_progress_show(&sweep.progress, (guint64)g_atomic_int_get(&sweep.done), missing->len);
        g_usleep(20000);
    }
    rp_progress_clear();
    g_thread_pool_free(pool, FALSE, TRUE);
    return rp_sweep_rows_finish(rows, error);
}
