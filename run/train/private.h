/**
 * The state before the first step, shared by job.c, data.c and times.c.
 */
#pragma once

#include "exec/checkpoint/checkpoint.h"
#include "run/train/job.h"
#include "run/train/train.h"

/* Opens the job's data and reads them once; says how batches are made of them, the network's
 * packed_tokens, and @run's steps if it has epochs. Errors: RP_RUN_ERROR_VALUE, those of rp_dataset_open() and rp_dataset_check() */
gboolean rp_train_open_data(RpTrainJob *job, RpRunSpec *run,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* RpEvaluationProgress of an RpTrainJob: tells its events of it, and asks them. */
gboolean rp_train_evaluation_progress(gpointer job, guint64 n_samples);

/* Once there is a prediction of steps: adds the scoring of their batches by a reference, where a step needs it. */
gboolean rp_train_predict_scoring(RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Once there is a plan: how long an evaluation takes, by a plan that only runs forward. */
gboolean rp_train_predict_evaluation(RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- servers.c: nothing of one server ---- */

/* Refuses what several servers cannot do; @run's round becomes that of each. Errors:
 * RP_RUN_ERROR_VALUE */
gboolean rp_train_divide(const RpTrainJob *job, RpRunSpec *run,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @bytes: (inout): of a limit, the least of all servers; 0: there is none. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_least(const RpTrainJob *job, guint64 *bytes,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Sets the job's speeds, and its profile's network: the slowest of all. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_measure_servers(RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Model and data are the same on all. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_agree_inputs(const RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* And the plan. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_agree_plan(const RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Sets the job's profile, and what follows from it: whose attention, the head's chunk, the memory
 * that there is. @earlier_run: as rp_train_job_prepare() */
gboolean rp_train_find_times(RpTrainJob *job, const char *earlier_run,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * A loop under way, for loop.c and its checkpoints in save.c.
 */

typedef struct {
    const RpTrainJob *job;
    RpTrainHow *how;
    RpTrainOutcome *outcome;
    RpTrainMetrics *metrics;
    RpTrainer *trainer;
    RpBatcher *batcher;
    RpTokenBatch *
        *batches;       /* of the calls of steps that are read together; the trainer copies them */
    RpDataState *after; /* [of these steps]: the place in the data behind each */
    guint most_read;    /* steps that are read together: several if a reference scores them */
    guint n_read, next; /* that are read; of them the one that comes next */
    gboolean scored;
    RpDataState data;           /* the place behind the last step */
    RpCheckpointBeside *beside; /* %NULL: no copy to write from */
    guint64 saved_step;
    guint64 evaluated_step;
    RpCheckpointBest best;
    guint64 reference; /* rp_train_reference_hash() */
    gint64 saved_us;   /* of the last attempt, or of the start */
    gint64 seen_us;    /* when the output directory was there last */
    gboolean lost;     /* it is gone for good, and that was told */
    gboolean files;    /* OUTPUT is written to */
    RpTrainWish wish;  /* of several servers, after the last step */
    gboolean ending;   /* no step follows */
    gboolean changed;  /* the data file, and it was said */
} RpTrainLoop;

/* @metrics: (nullable): are told of each step */
RpTrainer *rp_train_make_trainer(const RpTrainJob *job, gboolean keep_trace,
                                 RpTrainMetrics *metrics, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- reference.c ---- */

/* Hash of the weights that the reference of a preference is, if these are held or have scored the data: of the model
 * and of adapters that the run begins with; 0: others. Errors: G_FILE_ERROR */
gboolean rp_train_reference_hash(const RpTrainJob *job, guint64 *hash,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Before a checkpoint is restored: precomputed log-probabilities are read, or made by the weights as they are now.
 * Errors: those of rp_trainer_score() and the data, G_IO_ERROR_CANCELLED */
gboolean rp_train_loop_find_references(RpTrainLoop *loop, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Chooses the reference: the one that @earlier_run (nullable) has, so that its bits stay; else that which costs
 * least. */
void rp_train_choose_reference(RpTrainJob *job, RpRunSpec *run, const char *earlier_run);
void rp_train_take_reference(RpTrainJob *job, RpRunSpec *run, RpReference reference,
                             const char *why);
/* Puts a choice among @run's keys: a run that continues finds it in its output. */
void rp_train_keep_reference(const RpTrainJob *job, RpRunSpec *run);
/* The factor of the routers' auxiliary loss: the run's, or else the model's. */
double rp_train_aux_loss(const RpRunSpec *run, const RpModel *model);
/* Whether batches are scored by the reference before each step. */
gboolean rp_train_scores(const RpTrainJob *job);
/* Steps whose batches are read, and scored, together; 1 where nothing is scored. */
guint rp_train_steps_together(const RpTrainJob *job);
/* Before a step: the reference scores its batches, and those that were read with them. Errors: those of
 * rp_trainer_score() */
gboolean rp_train_loop_score(RpTrainLoop *loop, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether the checkpoint is of a run with this reference. Errors: RP_CHECKPOINT_ERROR_MISMATCH, _CORRUPT */
gboolean rp_train_loop_check_reference(const RpTrainLoop *loop, const char *checkpoint,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* README.md of the checkpoint after @step: base, data, settings and losses. (transfer full) */
char *rp_train_card(const RpTrainJob *job, guint64 step);

/* Whether @step is saved: somebody asked, so many steps are over, or so many minutes. */
gboolean rp_train_loop_is_due(const RpTrainLoop *loop, guint64 step);

/* Evaluates after @step, if that is due, and tells. Errors: those of rp_trainer_evaluate() */
gboolean rp_train_loop_evaluate(RpTrainLoop *loop, guint64 step,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same before the first step: of a new run, and of one that was stopped when it was to evaluate. */
gboolean rp_train_loop_evaluate_first(RpTrainLoop *loop, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether the checkpoint of @step is one to keep. */
gboolean rp_train_loop_is_best(const RpTrainLoop *loop, guint64 step);
/* Whether the run's patience is over: told once. */
gboolean rp_train_loop_is_useless(RpTrainLoop *loop);

/* Saves after @step, once a write that is under way is over; beside training if that can be. What
 * goes wrong with the disk is told, and training goes on. */
gboolean rp_train_loop_save(RpTrainLoop *loop, guint64 step,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Saves the progress before the data's @problem. (transfer full): @problem */
gboolean rp_train_loop_save_before(RpTrainLoop *loop, GError *problem,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits for the write under way, with nothing left to train. */
void rp_train_loop_wait(RpTrainLoop *loop);

/* Looks after the output directory now and then, and tells once that it is gone for good. */
void rp_train_loop_watch_output(RpTrainLoop *loop, guint64 step);

/* Before training takes its memory: that there will be some for a copy, if one was asked for.
 * Errors: RP_CHECKPOINT_ERROR_MEMORY with the bytes that are needed and free */
gboolean rp_train_loop_check_beside(const RpTrainLoop *loop,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* And after it: takes the copy's memory, if one was asked for. Errors: as above */
gboolean rp_train_loop_take_beside(RpTrainLoop *loop, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Notes what became of the write under way, if it is over, or @wait. */
void rp_train_loop_settle(RpTrainLoop *loop, gboolean wait);
