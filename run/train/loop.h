/**
 * The loop's own parts, for loop.c, save.c, beside.c and gradients.c.
 */
#pragma once

#include "exec/checkpoint/checkpoint.h"
#include "run/train/train.h"

typedef struct {
    const RpTrainJob *job;
    RpTrainHow *how;
    RpTrainOutcome *outcome;
    RpTrainMetrics *metrics;
    RpTrainer *trainer;
    RpBatcher *batcher;
    RpTokenBatch **batches; /* of the calls of a step; the trainer has copied them after each */
    guint n_batches;
    RpCheckpointBeside *beside; /* %NULL: no copy to write from */
    guint64 saved_step;
    gint64 saved_us;  /* of the last attempt, or of the start */
    gint64 seen_us;   /* when the output directory was there last */
    gboolean lost;    /* it is gone for good, and that was told */
    gboolean files;   /* OUTPUT is written to */
    gboolean ending;  /* no step follows */
    gboolean changed; /* the data file, and it was said */
} RpTrainLoop;

void rp_train_loop_clear(RpTrainLoop *loop);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainLoop, rp_train_loop_clear)

/* ---- loop.c ---- */

/* Data, batches, trainer and output: all that is ready before the first step. */
gboolean rp_train_loop_start(RpTrainLoop *loop, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The batches of all calls of a step; on error the batcher stays before the first. */
gboolean rp_train_loop_next_batches(RpTrainLoop *loop, RpTokenBatch **batches, guint calls,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One iteration's calls and its step. */
gboolean rp_train_loop_run_step(RpTrainLoop *loop, RpTokenBatch **batches,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- save.c ---- */

/* Whether @step is saved: somebody asked, so many steps are over, or so many minutes. */
gboolean rp_train_loop_is_due(const RpTrainLoop *loop, guint64 step);

/* Saves after @step, once a write that is under way is over; beside training if that can be. What
 * goes wrong with the disk is told, and training goes on. */
gboolean rp_train_loop_save(RpTrainLoop *loop, guint64 step,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What was learned before the data's @problem is not lost. (transfer full): @problem */
gboolean rp_train_loop_save_before(RpTrainLoop *loop, GError *problem,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits for the write under way, with nothing left to train. */
void rp_train_loop_wait(RpTrainLoop *loop);

/* What became of a checkpoint is kept for the report; what went wrong is told. @beside: it was
 * written beside training. @weights: (nullable): where its weights alone were saved */
void rp_train_loop_note_saved(RpTrainLoop *loop, RpCheckpointWritten *written, gboolean beside,
                              const char *weights);

/* Looks after the output directory now and then, and tells once that it is gone for good. */
void rp_train_loop_watch_output(RpTrainLoop *loop, guint64 step);

/* ---- beside.c ---- */

/* Before training takes its memory: that there will be some for a copy, if one was asked for.
 * Errors: RP_CHECKPOINT_ERROR_MEMORY with the bytes that are needed and free */
gboolean rp_train_loop_check_beside(const RpTrainLoop *loop,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* And after it: takes the copy's memory, if one was asked for. Errors: as above */
gboolean rp_train_loop_take_beside(RpTrainLoop *loop, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Of a flushed trainer, when no write is under way. Returns: %FALSE: it is to be written in place
 */
gboolean rp_train_loop_begin_beside(RpTrainLoop *loop, const RpCheckpointOptions *options,
                                    const RpDataState *state);

/* Notes what became of the write under way, if it is over, or @wait. */
void rp_train_loop_settle(RpTrainLoop *loop, gboolean wait);
