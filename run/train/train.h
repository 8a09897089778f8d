/**
 * A training run: files that are read (files.c), the output directory (output.c), the loop
 * (loop.c), its checkpoints (save.c), and what is written of it (metrics.c).
 */
#pragma once

#include "core/catalogue/model.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/data/dataset.h"
#include "exec/train/trainer.h"
#include "run/train/job.h"
#include "text/chat/chat.h"

/* ---- metrics.c ---- */

/* Figures of steps that are over. */
typedef struct _RpTrainMetrics RpTrainMetrics;

/* Means over steady steps: not the first two, nor the two after a pause. */
typedef struct {
    guint64 steps;
    double step_ns;
    double bubble_ratio; /* of their whole time */
    double tokens;       /* of a step, without padding */
    guint64
        clipped_steps; /* whose weights waited for the norm, as gradients before had been clipped */
} RpTrainMeans;

/* The predicted step of those that were measured, some of them behind clipped gradients. */
RpSteady rp_train_expected(const RpTrainJob *job, const RpTrainMeans *means);

/* @scaled: lines also have the loss scale. @balanced: and the auxiliary loss. @tensorboard: an event
 * file beside them has the same. @together: steps whose batches are scored before the first of them, in its time: means
 * are over whole groups of these */
RpTrainMetrics *rp_train_metrics_new(gboolean scaled, gboolean balanced, gboolean tensorboard,
                                     guint together, const RpRunEvents *events);
void rp_train_metrics_free(RpTrainMetrics *metrics);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTrainMetrics, rp_train_metrics_free)

/**
 * rp_train_metrics_open:
 * @path: `metrics.jsonl`
 * @keep_steps: lines up to this step stay, later ones are removed; 0 = a new file
 *
 * From now on every step writes its line. Errors: G_FILE_ERROR
 */
gboolean rp_train_metrics_open(RpTrainMetrics *metrics, const char *path, guint64 keep_steps,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A line of metrics.jsonl; NAN: null, or not there. */
typedef struct {
    double step;
    double loss;
    double learning_rate;
    double grad_norm;
    double tokens;
    double step_ms;
    double bubble_ratio;
    double eval_loss;
    double eval_runtime;  /* there in lines of evaluations, and in no others */
    double eval_accuracy; /* of pairs */
} RpTrainLine;

/* All lines of a metrics.jsonl (element-type RpTrainLine); a last one that is torn is passed over.
 * (transfer full). Errors: G_FILE_ERROR */
GArray *rp_train_metrics_read(const char *path, GError **error);
/* RpStepDone: one line of the file, and whoever looks is told. @metrics is RpTrainMetrics. */
void rp_train_metrics_add(gpointer metrics, const RpStepReport *report);
/* The pipeline ran empty: the next two steps are not steady. @seconds: what then took so long, in
 * which nothing was trained; the next step's line tells it */
void rp_train_metrics_pause(RpTrainMetrics *metrics, double seconds);
/* The last report. Returns: (nullable): none yet */
const RpStepReport *rp_train_metrics_last(const RpTrainMetrics *metrics);
RpTrainMeans rp_train_metrics_means(const RpTrainMetrics *metrics);
/* Why lines could not be written, or %NULL. */
const GError *rp_train_metrics_error(const RpTrainMetrics *metrics);

/* A line of its own, with the step after which it was made; the steps that follow begin with an
 * empty pipeline. */
void rp_train_metrics_add_evaluation(RpTrainMetrics *metrics, guint64 step,
                                     const RpEvaluation *evaluation);

/* An event file, `events.out.tfevents.SECONDS.HOST`. */
typedef struct _RpTensorboard RpTensorboard;

typedef struct {
    const char *tag; /* "train/loss" */
    double value;
} RpTensorboardValue;

/**
 * rp_tensorboard_new:
 * @directory: exists
 * @next_step: more than 1: a run that is resumed, whose earlier files have values of that step and
 *   later ones which TensorBoard is to forget
 *
 * Errors: G_FILE_ERROR
 */
RpTensorboard *rp_tensorboard_new(const char *directory, guint64 next_step,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_tensorboard_free(RpTensorboard *board);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTensorboard, rp_tensorboard_free)

/* One event with all values, in the file when this returns. Returns: whether it is */
gboolean rp_tensorboard_add(RpTensorboard *board, guint64 step, const RpTensorboardValue *values,
                            guint n);

/* CRC-32C (Castagnoli) of @n bytes. */
guint32 rp_tensorboard_crc(const void *bytes, gsize n);

/* ---- evaluate.c ---- */

/* Evaluations of a run that does not say how often. */
#define RP_TRAIN_EVALUATIONS 10

/* Steps from one evaluation to the next. */
gint64 rp_train_evaluation_every(const RpRunSpec *run);
/* Evaluations of a run that has data for them: the last step has one, too. */
gint64 rp_train_n_evaluations(const RpRunSpec *run);

/* ---- how ---- */

typedef struct {
    const char *run_file; /* its path */
    gboolean resume;
    char *checkpoint; /* to go on from; found if it is not given */
    gboolean keep_trace;
    const char *save_gradients; /* %NULL: train */
    const RpRunEvents *events;
    int lock; /* of the output directory, to be closed; -1 = not locked yet */
} RpTrainHow;

/* ---- servers.c: of several servers, all of which call ---- */

/* That servers send each other at most, at once, to see how fast they are. */
#define RP_TRAIN_MEASURED_BYTES ((gsize)64 << 20)

/* The program, the run file and what it is run with are the same. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_agree_start(RpServers *servers, const RpRunSpec *run, const RpTrainHow *how,
                              gboolean dry, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The output directory is one that all see, and write to: each writes its part of a checkpoint. Nothing of
 * it stays. Errors: RP_SERVERS_ERROR_DIFFERS: the first server that does not; RP_SERVERS_ERROR_* */
gboolean rp_train_check_shared(RpServers *servers, const RpRunSpec *run,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* how->checkpoint becomes what server 0 has found. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_share_checkpoint(RpServers *servers, RpTrainHow *how,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Says of each server what it has, and how fast the network is. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_tell_servers(const RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_train_next_batch:
 * @servers: (nullable)
 *
 * This server's part of the next batch, with the numbers of all parts. Errors: those of rp_batcher_next(),
 * of others behind the server's name, on all; RP_SERVERS_ERROR_*. The batcher may have moved
 */
gboolean rp_train_next_batch(RpServers *servers, RpBatcher *batcher, RpTokenBatch *batch,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Actions after a step. */
typedef struct {
    gint32 signal; /* 0: none; of any server */
    gint32 save;   /* of server 0 */
} RpTrainWish;
/* @wish: (inout). Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_agree_step(const RpTrainJob *job, RpTrainWish *wish,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The others are told of @problem, unless they know; afterwards nothing can be exchanged. Returns:
 * whether this server is to tell people: server 0 is, and others what that does not know */
gboolean rp_train_fail_servers(RpServers *servers, const GError *problem);

/* ---- files.c ---- */

/* A file that reading would wait for, or never come to the end of, is refused. What is not there,
 * or a directory, is for the reader to tell. @what: for messages. Errors: G_FILE_ERROR_INVAL */
gboolean rp_train_check_regular(const char *what, const char *path, guint64 most_bytes,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether `profile` can be read, or is a card's name and the run is @dry: before anything else is done.
 * Errors: RP_RUN_ERROR_VALUE, those of rp_train_check_regular() */
gboolean rp_train_check_profile(const RpRunSpec *run, gboolean dry,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A @path (nullable) that @option would write is none of the files that the run reads.
 * Errors: G_FILE_ERROR_EXIST */
gboolean rp_train_check_no_input(const char *option, const char *path, const RpRunSpec *run,
                                 const RpTrainHow *how, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- output.c ---- */

/* A @path (nullable) that @option would write is none of the files that the run writes into the
 * output directory. Errors: G_FILE_ERROR_EXIST */
gboolean rp_train_check_no_output(const char *option, const char *path, const RpRunSpec *run,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Finds the checkpoint to go on from (how->checkpoint, (transfer full)), or sees that nothing is in
 * the way of a new run; that the output directory is there or can be made, and be written to; and
 * that no other run writes there. Errors: G_FILE_ERROR_EXIST with the remedy, G_FILE_ERROR_AGAIN,
 * G_FILE_ERROR, RP_CHECKPOINT_ERROR_* */
gboolean rp_train_find_checkpoint(const RpRunSpec *run, RpTrainHow *how,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether the output directory is still the one that the run locked, with its lock in it. */
gboolean rp_train_output_is_there(const RpRunSpec *run, const RpTrainHow *how);

/* Makes one that is not there any more anew, with run.yaml and profile.json, and locks it.
 * Errors: G_FILE_ERROR; G_FILE_ERROR_EXIST, G_FILE_ERROR_AGAIN: something else is there now */
gboolean rp_train_renew_output(const RpTrainJob *job, RpTrainHow *how,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Makes and locks the output directory, sets checkpoints behind @step aside, and writes run.yaml
 * and profile.json. Errors: G_FILE_ERROR */
gboolean rp_train_begin_output(const RpTrainJob *job, RpTrainHow *how, guint64 step,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- save.c ---- */

/* Whether checkpoints will be written beside training, by the memory that there is now. @bytes: (out):
 * of the copy that they are written from */
gboolean rp_train_saves_beside(const RpTrainJob *job, guint64 *bytes);

/* ---- loop.c ---- */

/* How training went. Zero-initialise. */
typedef struct {
    guint64 first_step;  /* done before: 0, or of the checkpoint */
    guint64 last_step;   /* done now */
    RpStepReport last;   /* valid if last_step > first_step */
    RpTrainMeans means;  /* measured */
    GArray *arena_bytes; /* (element-type guint64): of each device, then the host: as opened */
    RpPinnedMemory pinned;
    RpProofCost proof;
    RpActionTime action_time; /* of devices that are threads */
    guint n_evaluations;
    RpEvaluation evaluation;   /* the last of them */
    RpCheckpointBest best;     /* of all of the run; its step is 0: none */
    gboolean stopped_early;    /* by eval.patience */
    RpTrace *evaluation_trace; /* as below */
    RpTrace *trace;            /* measured, also of a run that broke off; %NULL: not kept */
    char *checkpoint;          /* the last that was saved, or %NULL */
    char *loss_picture;        /* for who draws it; %NULL: nobody did */
    guint n_saved;             /* checkpoints */
    double saving_seconds;     /* in which nothing was trained; failed attempts count, too */
    guint n_beside;            /* of the checkpoints, written beside training */
    double beside_seconds;     /* that writing took there, failed attempts included */
    gboolean unsaved;          /* the last attempt failed */
    gboolean resuming;         /* a checkpoint is read: an error is of it */
    gboolean left;             /* a thread that a device's driver holds is left */
    int signal;                /* that ended it, or 0 */
} RpTrainOutcome;

void rp_train_outcome_clear(RpTrainOutcome *outcome);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainOutcome, rp_train_outcome_clear)

/* Trains. If data cannot be read on, what was learned until then is saved. Errors: those of the
 * trainer and the data, with the last checkpoint's path */
gboolean rp_train_run(const RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One step that changes nothing; its gradients into a file. */
gboolean rp_train_save_gradients(const RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * The data that a run names: files, folders and patterns become one dataset. Records of text become a
 * cache of samples first, which is used again as long as nothing of it changes.
 */

/* A run whose data are read: its keys data, data_weights, sequence_length, data_cache, skip_bad_samples, train_on,
 * chat_template, objective, eval.split and seed count. */
typedef struct {
    const RpRunSpec *run;
    const char *key;   /* for messages, where data is named */
    const char *model; /* directory with a tokenizer, if texts are read; %NULL: none are */
    const RpModel *config;
} RpSamplesSource;

typedef struct {
    RpDataset *train;
    RpDataset *validation; /* %NULL without a split */
    char *cache;           /* file; %NULL: none was needed */
    gboolean reused;
    RpCacheHeader header; /* of the cache */
    char *bad;            /* what was wrong with the first record that was left out; or %NULL */
} RpRunSamples;

void rp_run_samples_clear(RpRunSamples *samples);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpRunSamples, rp_run_samples_clear)

/* Files that @data names: those of a folder and of a pattern, sorted. (transfer full)
 * Errors: G_FILE_ERROR, RP_RUN_ERROR_VALUE */
char **rp_run_data_files(const char *data, GArray *groups,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @samples: (out): set on success only. Errors: those of the data, RP_RUN_ERROR_VALUE */
gboolean rp_run_samples_open(const RpSamplesSource *source, const RpRunEvents *events,
                             RpRunSamples *samples, GError **error) G_GNUC_WARN_UNUSED_RESULT;
