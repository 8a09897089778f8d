/* Checkpoints while it runs, and the output directory that they go to. */
#include "run/train/private.h"

#include "core/base/units.h"
#include "exec/system/memory-limit.h"

/* How often the output directory is looked after. */
#define WATCH_INTERVAL_US G_USEC_PER_SEC

/* As transformers divides checkpoints. */
#define SHARD_BYTES G_GUINT64_CONSTANT(5000000000)

/* checkpoint.beside */
enum { AUTO, NEVER, ALWAYS = RP_RUN_BESIDE_ALWAYS };

/* That a copy leaves free unless it was asked for: page tables, caches of the files it goes to. */
#define MARGIN_BYTES ((guint64)256 << 20)
#define MARGIN_SHARE 16 /* and one part in so many of the copy */

/* ---- beside training: from a copy of weights and optimizer state ---- */

static guint64
copy_bytes(const RpTrainJob *job)
{
    return rp_checkpoint_copy_bytes(job->weights, job->network.dtype, job->request.options.form,
                                    job->request.options.async, rp_train_n_servers(job));
}

/* That training takes of the host's memory. */
static guint64
training_bytes(const RpTrainJob *job)
{
    const guint host = job->run->n_devices;
    guint64 sum = rp_plan_arena_bytes(job->plan, host);

    for (guint g = 0; job->run->device_ops->host_memory && g < host; g++)
        sum += rp_plan_arena_bytes(job->plan, g);
    return sum;
}

/* Memory within the limits of the run file and the system, beside training. @taken: training has taken
 * its memory. @limit: (out): the system's, if that is the lower one */
static guint64
space_bytes(const RpTrainJob *job, gboolean taken, RpMemoryLimit *limit)
{
    const guint64 asked = job->run->host_memory_bytes;
    const guint64 training = training_bytes(job);
    const guint64 left = asked > 0 ? asked - MIN(asked, training) : G_MAXUINT64;

    *limit = rp_memory_limit("", FALSE);
    guint64 system = limit->bytes;
    if (!taken && system < G_MAXUINT64)
        system -= MIN(system, training);
    if (left < system)
        rp_memory_limit_clear(limit);
    return MIN(left, system);
}

/* An automatic choice takes no more than there is. */
static gboolean
has_space(const RpTrainJob *job, gboolean taken)
{
    g_auto(RpMemoryLimit) limit = {0};
    const guint64 bytes = copy_bytes(job);

    return bytes + bytes / MARGIN_SHARE + MARGIN_BYTES <= space_bytes(job, taken, &limit);
}

gboolean
rp_train_saves_beside(const RpTrainJob *job, guint64 *bytes)
{
    const int beside = job->run->checkpoint.beside;

    *bytes = copy_bytes(job);
    return beside == ALWAYS || (beside == AUTO && job->servers == NULL && has_space(job, FALSE));
}

gboolean
rp_train_loop_check_beside(const RpTrainLoop *loop, GError **error)
{
    g_auto(RpMemoryLimit) limit = {0};
    const guint64 bytes = copy_bytes(loop->job);

    if (loop->job->run->checkpoint.beside != ALWAYS)
        return TRUE;
    guint64 space = space_bytes(loop->job, FALSE, &limit);
    if (bytes <= space)
        return TRUE;
    g_autofree char *what = limit.file != NULL ? rp_memory_limit_describe(&limit) : NULL;

    return rp_fail(
        error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_MEMORY,
        "checkpoint.beside: a copy of weights and optimizer state needs %" G_GUINT64_FORMAT
        " bytes of host memory, beside training there are %" G_GUINT64_FORMAT
        "; the limit is %s: use checkpoint.beside: auto or false",
        bytes, space, what != NULL ? what : "host_memory");
}

gboolean
rp_train_loop_take_beside(RpTrainLoop *loop, GError **error)
{
    if (loop->job->run->checkpoint.beside != ALWAYS)
        return TRUE;
    loop->beside = rp_checkpoint_beside_new(copy_bytes(loop->job), error);
    return loop->beside != NULL || rp_prefix_error(error, "checkpoint.beside: ");
}

/* Once a checkpoint is due and training has what it needs. */
static gboolean
find_space(RpTrainLoop *loop)
{
    if (loop->beside == NULL && loop->job->run->checkpoint.beside == AUTO &&
        has_space(loop->job, TRUE))
        loop->beside = rp_checkpoint_beside_new(copy_bytes(loop->job), NULL);
    return loop->beside != NULL;
}

/* Copies the state of a flushed trainer, when no write is in progress. Returns: %FALSE: it is to be written in place */
static gboolean
begin_beside(RpTrainLoop *loop, const RpCheckpointOptions *options, const RpDataState *state)
{
    const gboolean alone = loop->job->servers == NULL; /* who finds room by itself */

    return !loop->ending && (alone ? find_space(loop) : loop->beside != NULL) &&
           rp_checkpoint_beside_begin(loop->beside, options, loop->trainer, state);
}

/* ---- what became of it ---- */

/* At the end, what was learned is kept at least. Returns: (transfer full) (nullable): where */
static char *
save_weights(const RpTrainLoop *loop, const RpCheckpointOptions *options, const GError *problem)
{
    if (!loop->ending ||
        !g_error_matches(problem, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE))
        return NULL;
    return rp_checkpoint_save_weights(options, loop->trainer, NULL);
}

static void
warn_unsaved(const RpTrainLoop *loop, guint64 step, GError *problem, gboolean beside,
             const char *weights)
{
    const char *last = loop->outcome->checkpoint;
    const gboolean full =
        g_error_matches(problem, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE);
    g_autofree char *what_follows =
        !loop->ending ? g_strdup("training goes on")
        : beside
            ? g_strdup(step < loop->outcome->last_step ? "training went on" : "another try follows")
            : g_strdup_printf(
                  "%s%s%sthe last one is %s",
                  weights != NULL ? "its weights alone, from which no run goes on, are in " : "",
                  weights != NULL ? weights : "", weights != NULL ? "; " : "",
                  last != NULL ? last : "none");

    rp_run_say(loop->job->events, "warning",
               "no checkpoint of step %" G_GUINT64_FORMAT ": %s%s; %s", step, problem->message,
               full ? "; make room or lower checkpoint.keep" : "", what_follows);
}

/* Keeps the outcome of a checkpoint for the report, and reports an error. @beside: it was
 * written beside training. @weights: (nullable): where its weights alone were saved */
static void
note_saved(RpTrainLoop *loop, RpCheckpointWritten *written, gboolean beside, const char *weights)
{
    loop->outcome->n_saved += written->path != NULL;
    loop->outcome->unsaved = written->path == NULL;
    if (written->removed != NULL)
        rp_run_say(loop->job->events, "warning",
                   "the disk is full: %s made room for that of step "
                   "%" G_GUINT64_FORMAT,
                   written->removed, written->step);
    if (written->path == NULL) {
        warn_unsaved(loop, written->step, written->error, beside, weights);
        return;
    }
    g_free(loop->outcome->checkpoint);
    loop->outcome->checkpoint = g_steal_pointer(&written->path);
    loop->saved_step = written->step;
}

/* A server is gone: no matter of this checkpoint alone. */
static gboolean
is_lost(const GError *error)
{
    return error != NULL && error->domain == RP_SERVERS_ERROR;
}

void
rp_train_loop_settle(RpTrainLoop *loop, gboolean wait)
{
    g_auto(RpCheckpointWritten) written = {0};

    if (loop->beside == NULL || !rp_checkpoint_beside_is_writing(loop->beside) ||
        (!wait && !rp_checkpoint_beside_is_over(loop->beside)))
        return;
    rp_checkpoint_beside_end(loop->beside, &written);
    if (!loop->files || is_lost(written.error)) /* the next exchange of the steps tells it */
        return;
    loop->outcome->n_beside += written.path != NULL;
    loop->outcome->beside_seconds += written.seconds;
    note_saved(loop, &written, TRUE, NULL);
}

/* Once: the data is not what was checked and is not what a resume will ask for. */
static void
warn_changed(RpTrainLoop *loop)
{
    g_autoptr(GError) change = NULL;

    if (loop->changed || rp_dataset_check_unchanged(loop->job->dataset, &change))
        return;
    loop->changed = TRUE;
    rp_run_say(loop->job->events, "warning", "data: %s", change->message);
}

/* An output directory that was removed is made anew, and that is said. Errors: it cannot be */
static gboolean
hold_output(RpTrainLoop *loop, guint64 step, GError **error)
{
    const RpRunSpec *run = loop->job->run;
    g_autofree char *metrics = g_build_filename(run->output, "metrics.jsonl", NULL);

    loop->seen_us = g_get_monotonic_time();
    if (rp_train_output_is_there(run, loop->how))
        return TRUE;
    rp_train_loop_settle(loop, TRUE); /* it went to the old one */
    if (!rp_train_renew_output(loop->job, loop->how, error) ||
        !rp_train_metrics_open(loop->metrics, metrics, 0, error))
        return rp_prefix_error(error, "the output directory was removed or replaced: ");
    g_clear_pointer(&loop->outcome->checkpoint, g_free);
    loop->saved_step = G_MAXUINT64;
    loop->lost = FALSE;
    rp_run_say(loop->job->events, "warning",
               "output: %s was removed or replaced before step "
               "%" G_GUINT64_FORMAT " was over, with its metrics and checkpoints; it is made anew",
               run->output, step + 1);
    return TRUE;
}

void
rp_train_loop_watch_output(RpTrainLoop *loop, guint64 step)
{
    g_autoptr(GError) problem = NULL;

    if (loop->lost || !loop->files || g_get_monotonic_time() - loop->seen_us < WATCH_INTERVAL_US ||
        hold_output(loop, step, &problem))
        return;
    loop->lost = TRUE;
    rp_run_say(loop->job->events, "warning", "%s; nothing can be saved there", problem->message);
}

/* Since @begin_us nothing was trained. */
static void
note_pause(RpTrainLoop *loop, gint64 begin_us)
{
    const gint64 now_us = g_get_monotonic_time();
    const double seconds = (double)(now_us - begin_us) / G_USEC_PER_SEC;

    rp_train_metrics_pause(loop->metrics, seconds);
    loop->outcome->saving_seconds += seconds;
}

void
rp_train_loop_wait(RpTrainLoop *loop)
{
    const gint64 begin_us = g_get_monotonic_time();

    rp_train_loop_settle(loop, TRUE);
    note_pause(loop, begin_us);
}

/* While training stands still; at the end, where there is no room for more, the weights alone. */
static void
save_in_place(RpTrainLoop *loop, const RpCheckpointOptions *options, const RpDataState *state,
              RpCheckpointWritten *written, char **weights)
{
    written->path =
        rp_checkpoint_save(options, loop->trainer, state, &written->removed, &written->error);
    if (written->path == NULL)
        *weights = save_weights(loop, options, written->error);
}

/* Whether all write, as server 0 knows: the checkpoint of the step is not there, and its place is. */
static gboolean
agree_to_save(const RpTrainLoop *loop, gboolean *save, GError **error)
{
    RpTrainWish wish = {.save = *save};

    if (loop->job->servers != NULL && !rp_train_agree_step(loop->job, &wish, error))
        return FALSE;
    *save = wish.save;
    return TRUE;
}

gboolean
rp_train_loop_save(RpTrainLoop *loop, guint64 step, GError **error)
{
    const RpRunSpec *run = loop->job->run;
    RpCheckpointOptions options = {
        .output = run->output,
        .model_dir = loop->job->model_dir,
        .base = rp_model_is_hub_name(run->model) ? run->model : NULL,
        .keep = (guint)run->checkpoint.keep,
        .max_shard_bytes = SHARD_BYTES,
        .servers = loop->job->servers,
        .best = loop->best,
        .reference = loop->reference,
    };
    const RpDataState state = loop->data;
    g_auto(RpCheckpointWritten) written = {.step = step};
    g_autofree char *weights = NULL, *card = NULL;
    gboolean begun = FALSE, due, save;

    if (!rp_trainer_flush(loop->trainer, error))
        return FALSE;
    gint64 begin_us = g_get_monotonic_time();
    options.card = card = loop->files ? rp_train_card(loop->job, step) : NULL;
    rp_train_loop_settle(loop, TRUE);
    due = save = step != loop->saved_step;
    if (loop->files && due) {
        warn_changed(loop);
        save = hold_output(loop, step, &written.error);
    }
    if (!agree_to_save(loop, &save, error))
        return FALSE;
    if (save)
        begun = begin_beside(loop, &options, &state);
    if (save && !begun)
        save_in_place(loop, &options, &state, &written, &weights);
    if (due)
        loop->saved_us = g_get_monotonic_time();
    note_pause(loop, begin_us);
    if (is_lost(written.error))
        return rp_propagate_error(error, g_steal_pointer(&written.error));
    if (due && !begun && loop->files)
        note_saved(loop, &written, FALSE, weights);
    return TRUE;
}

gboolean
rp_train_loop_save_before(RpTrainLoop *loop, GError *problem, GError **error)
{
    guint64 step = loop->outcome->last_step;

    loop->ending = TRUE;
    if (problem->domain == RP_SERVERS_ERROR) /* the others are gone; of data they have all heard */
        g_propagate_error(error, problem);
    else if (!rp_train_loop_save(loop, step, error))
        g_error_free(problem); /* a step before it failed */
    else
        g_propagate_error(error, problem);
    return FALSE;
}

gboolean
rp_train_loop_is_due(const RpTrainLoop *loop, guint64 step)
{
    const RpRunCheckpoint *checkpoint = &loop->job->run->checkpoint;
    const RpRunEvents *events = loop->job->events;
    const gboolean asked = events->save != NULL && events->save();
    const double minutes =
        (double)(g_get_monotonic_time() - loop->saved_us) / (60.0 * G_USEC_PER_SEC);

    return asked || (checkpoint->every > 0 && step % (guint64)checkpoint->every == 0) ||
           (checkpoint->minutes > 0 && minutes >= checkpoint->minutes);
}
