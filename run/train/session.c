#include "run/train/session.h"

#include <unistd.h>

#include "run/train/private.h"

struct _RpSession {
    RpSessionKind kind;
    RpRunSpec *run;
    RpRunEvents events;
    RpTrainHow how;
    RpTrainJob job;
};

/* ---- events that the caller does not follow ---- */

static void
ignore_text(gpointer user_data, const char *kind, const char *text)
{
}

static void
ignore_progress(gpointer user_data, const char *what, guint64 done, guint64 total)
{
}

static void
ignore_note(gpointer user_data, const char *note)
{
}

static void
ignore_scale(gpointer user_data, double first, double last)
{
}

static void
ignore_memory(gpointer user_data, const RpPinnedMemory *pinned)
{
}

static gboolean
begin_always(gpointer user_data, guint64 step, guint64 saved)
{
    return TRUE;
}

static void
ignore_step(gpointer user_data, const RpStepReport *report, double step_ns)
{
}

static void
ignore(gpointer user_data)
{
}

static void
ignore_error(gpointer user_data, GError **error)
{
}

static void
ignore_end(gpointer user_data, gboolean stuck)
{
}

static int
never_stop(void)
{
    return 0;
}

static gboolean
never_save(void)
{
    return FALSE;
}

static RpRunEvents
complete(const RpRunEvents *events)
{
    const RpRunEvents of = events != NULL ? *events : (RpRunEvents){0};

    return (RpRunEvents){
        .say = of.say != NULL ? of.say : ignore_text,
        .progress = of.progress != NULL ? of.progress : ignore_progress,
        .resumed = of.resumed != NULL ? of.resumed : ignore_note,
        .rescaled = of.rescaled != NULL ? of.rescaled : ignore_scale,
        .started = of.started != NULL ? of.started : ignore_memory,
        .begin = of.begin != NULL ? of.begin : begin_always,
        .stepped = of.stepped != NULL ? of.stepped : ignore_step,
        .stopped = of.stopped != NULL ? of.stopped : ignore,
        .failed = of.failed != NULL ? of.failed : ignore_error,
        .ended = of.ended != NULL ? of.ended : ignore_end,
        .stop = of.stop != NULL ? of.stop : never_stop,
        .save = of.save != NULL ? of.save : never_save,
        .user_data = of.user_data,
    };
}

/* ---- sessions ---- */

RpSession *
rp_session_new(RpRunSpec *run, RpSessionKind kind, const RpRunEvents *events, GError **error)
{
    g_return_val_if_fail(run != NULL, NULL);

    g_autoptr(RpSession) session = g_new0(RpSession, 1);
    const gboolean dry = kind == RP_SESSION_PREDICT;

    session->kind = kind;
    session->run = run;
    session->events = complete(events);
    session->how = (RpTrainHow){.run_file = "",
                                .resume = kind == RP_SESSION_RESUME,
                                .events = &session->events,
                                .lock = -1};
    if (!rp_train_check_profile(run, dry, error) ||
        (kind >= RP_SESSION_TRAIN && !rp_train_find_checkpoint(run, &session->how, error)) ||
        !rp_train_job_prepare(&session->job, run, session->how.resume ? run->output : NULL, dry,
                              &session->events, error))
        return NULL;
    return g_steal_pointer(&session);
}

void
rp_session_free(RpSession *session)
{
    if (session == NULL)
        return;
    rp_train_job_clear(&session->job);
    if (session->how.lock >= 0)
        close(session->how.lock);
    g_free(session->how.checkpoint);
    rp_run_spec_free(session->run);
    g_free(session);
}

const RpProfile *
rp_session_profile(const RpSession *session)
{
    return session->job.profile;
}

const RpPlan *
rp_session_plan(const RpSession *session)
{
    return session->job.plan;
}

const RpTrace *
rp_session_trace(const RpSession *session)
{
    return session->job.trace;
}

RpSteady
rp_session_predicted(const RpSession *session)
{
    return session->job.steady;
}

guint64
rp_session_step_tokens(const RpSession *session)
{
    return rp_train_job_step_tokens(&session->job);
}

gboolean
rp_session_train(RpSession *session, char **checkpoint, GError **error)
{
    g_auto(RpTrainOutcome) outcome = {0};

    g_return_val_if_fail(session->kind >= RP_SESSION_TRAIN, FALSE);

    if (!rp_train_run(&session->job, &session->how, &outcome, error))
        return FALSE;
    if (checkpoint != NULL)
        *checkpoint = g_steal_pointer(&outcome.checkpoint);
    return TRUE;
}

RpTrainer *
rp_session_trainer(RpSession *session, GError **error)
{
    g_return_val_if_fail(session->kind != RP_SESSION_PREDICT, NULL);

    return rp_train_make_trainer(&session->job, FALSE, NULL, error);
}

RpBatcher *
rp_session_batcher(RpSession *session, GError **error)
{
    g_return_val_if_fail(session->job.dataset != NULL, NULL);

    return rp_batcher_new(session->job.dataset, &session->job.batcher, error);
}

RpTokenBatch *
rp_session_batch(const RpSession *session)
{
    return rp_token_batch_new(&session->job.batcher);
}
