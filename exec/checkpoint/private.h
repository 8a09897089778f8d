/**
 * Shared by checkpoint*.c: names, the manifest, the state, and directories that are complete or not
 * there.
 */
#pragma once

#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"

#define RP_CHECKPOINT_CONFIG "config.json"
#define RP_CHECKPOINT_MODEL "model.safetensors"
#define RP_CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define RP_CHECKPOINT_NEXT "next.safetensors"
#define RP_CHECKPOINT_STATE "trainer_state.json"
#define RP_CHECKPOINT_MANIFEST "manifest.json"
#define RP_CHECKPOINT_INDEX_SUFFIX ".index.json"

#define RP_CHECKPOINT_MANIFEST_FORMAT "roundpipe-checkpoint/1"
#define RP_CHECKPOINT_SERVERS_FORMAT "roundpipe-checkpoint/2" /* several servers */
#define RP_CHECKPOINT_STATE_FORMAT "roundpipe-state/1"

/* Sets `PATH: MESSAGE`. Returns: FALSE */
gboolean rp_checkpoint_fail(GError **error, RpCheckpointError code, const char *path,
                            const char *format, ...) G_GNUC_PRINTF(4, 5);
/* `cannot VERB "PATH": MESSAGE OF @number`; full disks are RP_CHECKPOINT_ERROR_NO_SPACE, all else
 * is RP_CHECKPOINT_ERROR_WRITE. Returns: FALSE */
gboolean rp_checkpoint_fail_errno(GError **error, const char *verb, const char *path, int number);

/* @cause's message. @cause: (transfer full). Returns: FALSE */
gboolean rp_checkpoint_fail_as(GError **error, RpCheckpointError code, GError *cause);

/* ---- directory.c ---- */

/* OUTPUT/checkpoint-STEP, OUTPUT/weights-STEP. (transfer full) */
char *rp_checkpoint_path(const char *output, guint64 step);
char *rp_checkpoint_weights_path(const char *output, guint64 step);
/* Hidden name of a @path from above: OUTPUT/.checkpoint-STEP.tmp or OUTPUT/.weights-STEP.tmp.
 * (transfer full) */
char *rp_checkpoint_temporary_path(const char *path, const char *suffix);

/* Steps of the directories that are named as checkpoints, highest first; of an @output that is not
 * there: none. (element-type guint64) (transfer full). Errors: G_FILE_ERROR */
GArray *rp_checkpoint_list(const char *output, GError **error);

/* Makes @output and puts its name on the disk. Errors: RP_CHECKPOINT_ERROR_WRITE, _NO_SPACE */
gboolean rp_checkpoint_make_output(const char *output, GError **error);
/* Removes leftovers of interrupted attempts in @output. Files that cannot be removed stay. */
void rp_checkpoint_remove_leftovers(const char *output);

/* @temporary gets the name @path, on the disk; a directory of that name is replaced in one step and
 * removed. Errors: RP_CHECKPOINT_ERROR_WRITE, _NO_SPACE */
gboolean rp_checkpoint_publish(const char *output, const char *temporary, const char *path,
                               GError **error);
/* A checkpoint loses its name, on the disk, and then its files. Returns: whether it is gone */
gboolean rp_checkpoint_discard(const char *output, const char *path);

/* The step that OUTPUT/best is linked to; 0: none. */
guint64 rp_checkpoint_best_step(const char *output);

/* Removes complete checkpoints but those of the @keep highest steps, that of @saved and the best; 0
 * = none. Files that cannot be removed stay. */
void rp_checkpoint_prune(const char *output, guint keep, guint64 saved);

/* ---- digests.c ---- */

#define RP_CHECKPOINT_SHA256 64 /* digits */

typedef struct {
    char *name; /* in its directory */
    guint64 bytes;
    char sha256[RP_CHECKPOINT_SHA256 + 1];
} RpCheckpointFile;

/* (element-type RpCheckpointFile) */
GArray *rp_checkpoint_files_new(void);

static inline RpCheckpointFile *
rp_checkpoint_file(const GArray *files, guint i)
{
    return &g_array_index(files, RpCheckpointFile, i);
}

typedef struct {
    char (*sha256)[RP_CHECKPOINT_SHA256 + 1]; /* one for each file */
    int *number;                              /* errno of each file, or 0 */
} RpCheckpointDigests;

/* Computes the digests of @files in @directory, largest files first. */
RpCheckpointDigests rp_checkpoint_digest(const char *directory, GArray *files);
void rp_checkpoint_digests_clear(RpCheckpointDigests *digests);

/* ---- manifest.c ---- */

/* Whether @path has a manifest and every file in it has its size. Errors:
 * RP_CHECKPOINT_ERROR_CORRUPT */
gboolean rp_checkpoint_is_complete(const char *path, GError **error);

/* rp_checkpoint_verify() of one of @n_servers files, the largest first, from the @server-th on: of several
 * servers each verifies others. */
gboolean rp_checkpoint_verify_some(const char *path, guint server, guint n_servers, GError **error);

/* ---- state.c ---- */

/* trainer_state.json */
typedef struct {
    guint64 step;
    gboolean async;
    RpDtype dtype;
    RpStateFormat form;
    RpUpdateState update;
    guint rounds;      /* rp_trainer_rounds(); 0: unknown, as old checkpoints lack the key */
    char *base;        /* with adapters: hash of the model that they are for; or %NULL */
    char *base_format; /* rp_weights_base_format(); %NULL of a checkpoint from before it was kept */
    char *base_values; /* rp_weights_base_values(); %NULL of a checkpoint from before they were */
    char *base_layers; /* then of each layer's bytes; or %NULL */
    GArray *layer_steps; /* (element-type guint64): steps that each layer's optimizer has done */
    RpCheckpointBest best;
    RpDataState data;
} RpCheckpointState;

void rp_checkpoint_state_clear(RpCheckpointState *state);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCheckpointState, rp_checkpoint_state_clear)

/* @state: (out): of a flushed trainer */
void rp_checkpoint_state_take(RpCheckpointState *state, RpTrainer *trainer,
                              const RpDataState *data);

/* (transfer full). The same state gives the same bytes; floats come back bit for bit. */
char *rp_checkpoint_state_to_json(const RpCheckpointState *state);

/* Reads the state of the checkpoint at @path. Errors: RP_CHECKPOINT_ERROR_CORRUPT */
gboolean rp_checkpoint_state_load(const char *path, RpCheckpointState *state, GError **error);

/* @state: (out): set on success only. Errors: RP_CHECKPOINT_ERROR_CORRUPT, one line with file,
 * line, column, expected and found */
gboolean rp_checkpoint_state_parse(const char *name, const char *text, gsize length,
                                   RpCheckpointState *state, GError **error);

/* ---- state-tensors.c ---- */

/* One of those that a weight's state takes in RP_CHECKPOINT_OPTIMIZER. */
typedef struct {
    const char *suffix; /* behind the weight's name */
    const char *type;   /* as safetensors spell it */
    guint64 shape[RP_WEIGHT_MAX_RANK];
    guint rank;
    gsize bytes;
    gsize member; /* offset in RpOptimizerState of the data's pointer */
} RpCheckpointTensor;

/* A part of RpStateFormat, as trainer_state.json and the run's settings call it. */
typedef struct {
    const char *key;          /* in trainer_state.json, unless it is the first of its words */
    const char *setting;      /* "optimizer.state" */
    const char *const *words; /* by value, up to NULL */
    const char *expected;     /* all of them */
    gsize member;             /* offset in RpStateFormat */
} RpCheckpointProperty;

#define RP_CHECKPOINT_PROPERTIES 3
extern const RpCheckpointProperty rp_checkpoint_properties[RP_CHECKPOINT_PROPERTIES];
guint rp_checkpoint_property(const RpCheckpointProperty *property, const RpStateFormat *form);
guint rp_checkpoint_n_state_tensors(RpStateFormat form);
/* @first: parameter of its layer with which the weight begins */
RpCheckpointTensor rp_checkpoint_state_tensor(const RpWeight *weight, RpStateFormat form,
                                              guint64 first, guint index);
const void *rp_checkpoint_state_data(const RpCheckpointTensor *tensor,
                                     const RpOptimizerState *state);
void rp_checkpoint_state_set_data(const RpCheckpointTensor *tensor, RpOptimizerState *state,
                                  const void *data);
/* At most, wherever the weight begins. */
guint64 rp_checkpoint_state_bytes(const RpWeight *weight, RpStateFormat form, guint index);

/* Whether the weight stands in the model's file: trained, or frozen where no adapters are saved. */
static inline gboolean
rp_checkpoint_has_weight(const RpWeights *weights, const RpWeight *weight)
{
    return rp_weight_has_state(weight) || (rp_weights_lora(weights) == NULL && !weight->tied);
}

/* ---- restore-adapters.c ---- */

/* Whether the checkpoint's config.json is @model's, but for keys that change neither the loss nor its gradient.
 * Errors: as below */
gboolean rp_checkpoint_check_config(const char *directory, const RpModel *model,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Adapters of the checkpoint at @path are those of the run, or neither has any. Errors:
 * RP_CHECKPOINT_ERROR_CORRUPT, RP_CHECKPOINT_ERROR_MISMATCH */
gboolean rp_checkpoint_check_adapters(const char *path, const RpWeights *weights,
                                      const RpCheckpointState *state,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
