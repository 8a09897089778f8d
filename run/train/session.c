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

RpSession *
rp_session_new(RpRunSpec *run, RpSessionKind kind, const RpRunEvents *events, GError **error)
{
    g_return_val_if_fail(run != NULL, NULL);

    g_autoptr(RpSession) session = g_new0(RpSession, 1);
    const gboolean dry = kind == RP_SESSION_PREDICT;

    session->kind = kind;
    session->run = run;
    session->events = events != NULL ? *events : (RpRunEvents){0};
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

RpSessionPrediction
rp_session_predict(const RpSession *session)
{
    const RpTrainJob *job = &session->job;

    return (RpSessionPrediction){.profile = job->profile,
                                 .plan = job->plan,
                                 .trace = job->trace,
                                 .step = job->steady,
                                 .tokens = rp_train_job_step_tokens(job)};
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
