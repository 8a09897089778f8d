/* Every schedule beside the recommendation. */
#include "sim/advise/private.h"

#include "core/base/threads.h"

/* Smaller micro-batches that are tried for a bound schedule that does not fit. */
#define MAX_SMALLER 3

/* A bound schedule at the recommended micro-batch, or if it does not fit at a smaller one. */
static RpAdviseRun *
bound_row(const RpAdviseQuery *query, const RpScheduleOps *schedule, guint sequences,
          GError **error)
{
    RpAdviseQuery bound = *query;
    RpAdviseRun *run = NULL;
    guint smaller = 0;

    bound.saved.groups = 0;
    query = &bound;

    for (guint b = sequences; b >= 1 && smaller <= MAX_SMALLER; b--) {
        if (query->batch % b != 0 || !rp_advise_has_times(query, b))
            continue;
        g_autoptr(RpProfile) profile = rp_advise_profile(query, b, error);
        g_autoptr(RpAdviseRun) other = run; /* the larger micro-batch's, unless it is kept */

        if (profile == NULL)
            return NULL;
        run = rp_advise_run_new(query, schedule, b, query->batch / b, 0);
        if (rp_advise_fit_bound(query, profile, run)) {
            if (!run->simulated && !rp_advise_simulate(profile, run, error))
                g_clear_pointer(&run, rp_advise_run_free);
            return run;
        }
        if (run->weights_too_large || query->micro_batch != 0)
            break;
        smaller++;
    }
    return run;
}

/* The recommendation for the other kind of optimizer step; %NULL if nothing fits then either. */
static RpAdviseRun *
recommended_row(const RpAdvice *advice, gboolean sync)
{
    g_autoptr(RpAdvice) other = g_new0(RpAdvice, 1);

    other->query = advice->query;
    other->query.sync = sync;
    return rp_advise_choose(other, NULL) && other->best != NULL ? rp_advise_run_copy(other->best)
                                                                : NULL;
}

/* @schedule's run with the numbers of the recommended one, in one group: what goes to all groups at once is a
 * round. */
static RpAdviseRun *
dispatched_row(const RpAdvice *advice, const RpScheduleOps *schedule, gboolean sync, GError **error)
{
    const RpAdviseRun *model = advice->best != NULL ? advice->best : advice->nearest;
    RpAdviseQuery query = advice->query;
    const guint
        round = /* groups of the model take rounds in turn: without groups a round has theirs together */
        query.round != 0
            ? query.round
            : rp_advise_next_round(&query, model->options.micro_batches,
                                   model->options.round * MAX(1, model->options.replicas));

    query.sync = sync;
    g_autoptr(RpAdviseRun) run =
        rp_advise_run_new(&query, schedule, model->sequences, model->options.micro_batches, round);
    if (rp_advise_fit(&query, advice->profile, run)) {
        rp_advise_improve(&query, advice->profile, run, RP_ADVISE_CANDIDATES);
        if (!rp_advise_simulate(advice->profile, run, error))
            return NULL;
        rp_advise_measure(&query, advice->profile, run);
    } else if (run->partition != NULL) {
        rp_advise_measure(&query, advice->profile, run);
    }
    return g_steal_pointer(&run);
}

/* Roundpipe with the other kind of optimizer step than the recommendation's. */
static RpAdviseRun *
roundpipe_row(const RpAdvice *advice, gboolean sync, GError **error)
{
    RpAdviseQuery query = advice->query;
    const RpAdviseRun *model = advice->best != NULL ? advice->best : advice->nearest;

    if (query.sync == sync)
        return rp_advise_run_copy(model);
    if (advice->best == NULL) {
        RpAdviseRun *recommended = recommended_row(advice, sync);

        if (recommended != NULL)
            return recommended;
    }
    return dispatched_row(advice, model->options.schedule, sync, error);
}

/* A row of the comparison. */
typedef struct {
    const RpAdvice *advice;
    const RpScheduleOps *schedule;
    gboolean sync;
    RpAdviseRun *run;
} Row;

static gboolean
make_row(guint i, gpointer rows, GError **error)
{
    Row *row = &((Row *)rows)[i];
    const RpAdvice *advice = row->advice;
    const RpAdviseRun *model = advice->best != NULL ? advice->best : advice->nearest;

    if (!row->schedule->dispatched)
        row->run = bound_row(&advice->query, row->schedule, model->sequences, error);
    else if (rp_schedule_is_trained(row->schedule))
        row->run = roundpipe_row(advice, row->sync, error);
    else
        row->run = dispatched_row(advice, row->schedule, row->sync, error);
    return row->run != NULL;
}

/* The rows of @schedules: one each, and a second where the optimizer may step beside an iteration. */
static GArray *
list_rows(const RpAdvice *advice, const RpScheduleOps *const *schedules)
{
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(Row));

    for (; *schedules != NULL; schedules++) {
        Row row = {.advice = advice, .schedule = *schedules, .sync = TRUE};

        g_array_append_val(rows, row);
        row.sync = FALSE;
        if (row.schedule->dispatched && rp_schedule_is_trained(row.schedule))
            g_array_append_val(rows, row);
    }
    return rows;
}

gboolean
rp_advise_compare(RpAdvice *advice, const RpScheduleOps *const *schedules, GError **error)
{
    g_autoptr(GArray) rows = list_rows(advice, schedules);
    const gboolean made = rp_run_pieces(rows->len, make_row, rows->data, error);

    advice->schedules = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    for (guint i = 0; i < rows->len; i++)
        if (g_array_index(rows, Row, i).run != NULL)
            g_ptr_array_add(advice->schedules, g_array_index(rows, Row, i).run);
    return made;
}
