/**
 * A run in the caller's program: what `roundpipe train` does, without a command line.
 *
 *   rp_run_file_parse()   ->  rp_session_new()  ->  rp_session_train()       steps and checkpoints
 *   keys of docs/train.md     model, data, layer     or rp_session_trainer() a loop of one's own
 *                             times, plan, proof     or nothing              a prediction
 */
#pragma once

#include "run/train/job.h"

typedef struct _RpSession RpSession;

typedef enum {
    RP_SESSION_PREDICT, /* nothing is run: of the model config.json will do, or a name of the
                           catalogue, and with `profile: rtx4090` no GPU need be here */
    RP_SESSION_LOOP,    /* rp_session_trainer(): the output directory is left alone */
    RP_SESSION_TRAIN,   /* rp_session_train(), from the first step */
    RP_SESSION_RESUME   /* the same, from the last checkpoint in the output directory */
} RpSessionKind;

/**
 * rp_session_new:
 * @run: (transfer full): freed if this fails, too
 * @events: (nullable): copied; of its functions any may be %NULL
 *
 * Opens model and data, measures or reads the layers' times, divides the model into stages, plans,
 * simulates and proves. Unless it only predicts, it locks the output directory. Takes no memory for
 * training yet.
 *
 * Errors: RP_RUN_ERROR_VALUE, RP_RUN_ERROR_BUSY, RP_RUN_ERROR_CHECKPOINT,
 *   RP_RUN_ERROR_NO_CHECKPOINT, RP_TRAINER_ERROR_MEMORY, RP_SCHEDULE_ERROR_SHAPE, those of the files
 */
RpSession *rp_session_new(RpRunSpec *run, RpSessionKind kind, const RpRunEvents *events,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_session_free(RpSession *session);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpSession, rp_session_free)

/* All borrowed of the session. */
typedef struct {
    const RpProfile
        *profile;         /* layer times that the run was planned with: a timing file, once saved */
    const RpPlan *plan;   /* of a few iterations, proved */
    const RpTrace *trace; /* that plan in virtual time */
    RpSteady step;        /* its iteration_ns is the time of a step */
    guint64 tokens;       /* of a step, if no sequence is padded */
} RpSessionPrediction;

/* The prediction that the session was made with. */
RpSessionPrediction rp_session_predict(const RpSession *session);

/**
 * rp_session_train:
 * @checkpoint: (out) (optional) (nullable): directory of the last checkpoint, to be freed
 *
 * Trains to the last step, or until RpRunEvents.stop; once. metrics.jsonl, run.yaml, profile.json and
 * checkpoints are written into the output directory.
 *
 * Errors: RP_ENGINE_ERROR_TASK, RP_CHECKPOINT_ERROR_WRITE, those of the data; what the last checkpoint is
 *   stands in the message
 */
gboolean rp_session_train(RpSession *session, char **checkpoint,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_session_trainer:
 *
 * Takes the memory and starts the devices, for a loop of one's own:
 *
 *   while (rp_batcher_next(batcher, batch, &error) &&
 *          rp_trainer_forward_backward(trainer, batch, &loss, &error) &&
 *          rp_trainer_step(trainer, &error))
 *
 * Returns: (transfer full): free it before the session
 * Errors: RP_TRAINER_ERROR_MEMORY, RP_ENGINE_ERROR_SYSTEM
 */
RpTrainer *rp_session_trainer(RpSession *session, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Batches of the run's data in their order, from the first on; (transfer full): free it before the
 * session. Errors: RP_DATASET_ERROR_BATCH */
RpBatcher *rp_session_batcher(RpSession *session, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* An empty batch for rp_batcher_next(). (transfer full) */
RpTokenBatch *rp_session_batch(const RpSession *session);
