/**
 * Checkpoints of a run: `OUTPUT/checkpoint-STEP/`, each complete or not there.
 *
 *   config.json, model.safetensors (or shards)   as Hugging Face transformers loads them
 *   adapter_config.json, adapter_model.safetensors   of a run that trains adapters, as peft loads
 *                            them, instead of the model, whose config.json is here all the same
 *   tokenizer files of the model's directory     copied, if there are any
 *   optimizer.safetensors    fp32 master weights and moments: NAME.master, NAME.exp_avg, ...
 *   next.safetensors         asynchronous: the weights that the next forward reads
 *                            (each in shards of 1 GB at most, or of max_shard_bytes if less; of
 *                            several servers optimizer-server-1-of-4.safetensors ..., its parts)
 *   trainer_state.json       step, update state, data state, settings of the run (roundpipe-state/1)
 *   manifest.json            size and SHA-256 of every file above; written last
 *   README.md                the model card, which people may edit
 *
 * OUTPUT/best is a link to the checkpoint of the lowest validation loss, where that is kept.
 *
 * Written beside as `.checkpoint-STEP.tmp`, synced, renamed; the parent synced. Older ones are
 * removed after that. The next attempt removes the leftovers of an interrupted one.
 */
#pragma once

#include "exec/data/pack.h"
#include "exec/train/trainer.h"

#define RP_CHECKPOINT_ERROR (rp_checkpoint_error_quark())
GQuark rp_checkpoint_error_quark(void);
typedef enum {
    RP_CHECKPOINT_ERROR_NO_SPACE, /* the disk cannot hold it: the run can continue */
    RP_CHECKPOINT_ERROR_WRITE,
    RP_CHECKPOINT_ERROR_MEMORY,  /* no copy to write from beside training */
    RP_CHECKPOINT_ERROR_CORRUPT, /* a file missing, of another size or checksum */
    RP_CHECKPOINT_ERROR_MISMATCH /* another model, dtype or mode */
} RpCheckpointError;

/* The validation so far: the best is of the highest accuracy of pairs or, without these, of the lowest loss. */
typedef struct {
    guint64 step;    /* step of the best; 0: there is none */
    double loss;     /* the loss at that step */
    double accuracy; /* of pairs, which comes before the loss; 0: there are none */
    guint64 n_worse; /* evaluations since, none of which was better */
    gboolean kept;   /* the checkpoint of that step is linked as OUTPUT/best, and stays */
} RpCheckpointBest;

typedef struct {
    const char *output;    /* directory; made if missing */
    const char *model_dir; /* tokenizer files come from here; may be %NULL */
    const char *base;      /* the name of the model for adapters; %NULL: model_dir */
    const char *card;      /* text of README.md; %NULL: there is none */
    guint keep;            /* checkpoints that are kept, the newest; 0 = all */
    guint64 max_shard_bytes;
    /* servers that train together: all call, and each writes its part; %NULL: one */
    RpServers *servers;
    RpCheckpointBest best;
    guint64 reference; /* hash of a preference's reference; 0: none */
} RpCheckpointOptions;

/**
 * rp_checkpoint_save:
 * @trainer: flushed
 *
 * @removed: (out) (optional) (transfer full) (nullable): names of checkpoints that made space
 *
 * Weights that are not finite are not saved: the last checkpoint stays a good one. Where the disk
 * is full, the oldest complete checkpoints make space, one by one, if that can help and not all are
 * to be kept; the last one never does.
 *
 * Returns: (transfer full): the directory's path. On error every checkpoint that was there is
 * there still, but for @removed. Errors: RP_CHECKPOINT_ERROR_*, G_FILE_ERROR
 */
char *rp_checkpoint_save(const RpCheckpointOptions *options, RpTrainer *trainer,
                         const RpDataState *data, char **removed,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_checkpoint_save_weights:
 * @trainer: flushed
 *
 * `OUTPUT/weights-STEP/`, a model's directory and no more: where a checkpoint, six to eight times
 * as large, has no space, the training is not lost. No run can resume from there.
 *
 * Returns: (transfer full): the directory's path. Errors: as above
 */
char *rp_checkpoint_save_weights(const RpCheckpointOptions *options, RpTrainer *trainer,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Disk space that a checkpoint, or its weights alone, takes at most, bytes. @async: with the
 * weights that the next step reads. @model_dir: as in RpCheckpointOptions */
guint64 rp_checkpoint_bytes(const RpWeights *weights, RpDtype dtype, RpStateFormat form,
                            gboolean async, gboolean weights_only, const char *model_dir);

/* ---- beside training ---- */

/**
 * Checkpoints written from a copy, in a thread of their own, while the trainer trains on: one at a
 * time. Files are those of rp_checkpoint_save(), byte for byte. The functions are for one thread.
 */
typedef struct _RpCheckpointBeside RpCheckpointBeside;

/* Outcome of one checkpoint. */
typedef struct {
    guint64 step;
    char *path;     /* %NULL: @error */
    char *removed;  /* as of rp_checkpoint_save() */
    GError *error;  /* as of rp_checkpoint_save() */
    double seconds; /* time that writing took */
} RpCheckpointWritten;

void rp_checkpoint_written_clear(RpCheckpointWritten *written);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCheckpointWritten, rp_checkpoint_written_clear)

/* Bytes of the copy: 12 a parameter, and with @async the next weights; of several servers at most, of
 * the one with most. */
guint64 rp_checkpoint_copy_bytes(const RpWeights *weights, RpDtype dtype, RpStateFormat form,
                                 gboolean async, guint n_servers);

/* Takes the memory of a copy of @bytes, every page of it, until it is freed. Errors:
 * RP_CHECKPOINT_ERROR_MEMORY */
RpCheckpointBeside *rp_checkpoint_beside_new(guint64 bytes,
                                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Waits for a write that is under way. */
void rp_checkpoint_beside_free(RpCheckpointBeside *beside);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpCheckpointBeside, rp_checkpoint_beside_free)

/**
 * rp_checkpoint_beside_begin:
 * @options: copied
 * @trainer: flushed; copied, but for its network, which is to outlive the write
 *
 * Copies, and begins to write when no write is under way. Signals go to other threads.
 *
 * Returns: %FALSE if there is no thread to be had: nothing was begun
 */
gboolean rp_checkpoint_beside_begin(RpCheckpointBeside *beside, const RpCheckpointOptions *options,
                                    RpTrainer *trainer,
                                    const RpDataState *data) G_GNUC_WARN_UNUSED_RESULT;
/* Whether one was begun and not ended. */
gboolean rp_checkpoint_beside_is_writing(const RpCheckpointBeside *beside);
/* Whether to end it would not wait. */
gboolean rp_checkpoint_beside_is_over(const RpCheckpointBeside *beside);
/* Waits for the write that is under way. @written: (out) */
void rp_checkpoint_beside_end(RpCheckpointBeside *beside, RpCheckpointWritten *written);

/* Copied from the model's directory, so that the checkpoint is a model's directory too.
 * %NULL-terminated */
extern const char *const rp_checkpoint_copied_files[];

/* ---- finding and reading ---- */

/**
 * rp_checkpoint_check_base:
 * @path: a directory with adapters
 * @weights: bound, with adapters
 *
 * Whether the directory is no checkpoint of ours, or one of adapters for this base. Errors:
 * RP_CHECKPOINT_ERROR_CORRUPT, RP_CHECKPOINT_ERROR_MISMATCH
 */
gboolean rp_checkpoint_check_base(const char *path, const RpWeights *weights,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Path of the newest complete checkpoint of @output; %NULL without error if there is none.
 * Damaged ones (no manifest, wrong size or checksum) are passed over; @skipped: (out) (optional)
 * (transfer full) (nullable): a line saying which and why. */
char *rp_checkpoint_find_last(const char *output, char **skipped, GError **error);

/* @best: (out): as the checkpoint has it; of one from before there were evaluations: none. Errors:
 * RP_CHECKPOINT_ERROR_CORRUPT */
gboolean rp_checkpoint_read_best(const char *path, RpCheckpointBest *best,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @reference: (out): RpCheckpointOptions.reference. Errors: as above */
gboolean rp_checkpoint_read_reference(const char *path, guint64 *reference,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* OUTPUT/best becomes a link to the checkpoint of @step if that is complete; else it is removed. It
 * stays if it is no link. Errors: RP_CHECKPOINT_ERROR_WRITE, _NO_SPACE */
gboolean rp_checkpoint_link_best(const char *output, guint64 step, GError **error);

/* Verifies sizes and checksums of all files. Errors: RP_CHECKPOINT_ERROR_CORRUPT naming the file */
gboolean rp_checkpoint_verify(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same of a model's or adapters' tensors in @path alone, which are read without the state of a
 * run; a directory without a manifest is no checkpoint of ours and passes. Errors:
 * RP_CHECKPOINT_ERROR_CORRUPT */
gboolean rp_checkpoint_verify_model(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_checkpoint_restore:
 * @trainer: new, of the same model; devices, schedule, partition and number of servers may differ
 * @servers: (nullable): of the trainer: all call, and each compares the checksums of some of the files
 * @data: (out)
 * @note: (out) (optional) (transfer full) (nullable): a line for the user, where the steps that
 *   follow will not have the bits of a run that never stopped
 *
 * Errors: RP_CHECKPOINT_ERROR_CORRUPT, RP_CHECKPOINT_ERROR_MISMATCH, RP_SERVERS_ERROR_*
 */
gboolean rp_checkpoint_restore(const char *path, RpTrainer *trainer, RpServers *servers,
                               RpDataState *data, char **note,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A file, a link, or a directory with all that is in it; links are not followed. Returns: whether
 * nothing is left */
gboolean rp_checkpoint_remove_tree(const char *path);
