/**
 * Shared by checkpoint*.c: names, the manifest, the state, and directories that are complete or not
 * there.
 */
#pragma once

#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/safetensors/safetensors.h"

#define RP_CHECKPOINT_CARD "README.md"
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
    guint64 reference; /* 0: none */
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

/* ---- image.c ---- */

/* Numbers of a weight, in the network's layout order; all are %NULL for a tied head. */
typedef struct {
    /* a weight that is not trained: all else is %NULL; %NULL beside adapters */
    const guint8 *frozen;
    RpOptimizerState state; /* state of the part that is here, with several servers */
    const guint8 *next;     /* the same part, as the next forward reads it; %NULL: synchronous */
} RpCheckpointNumbers;

/* All data that a checkpoint is written from. */
typedef struct {
    RpServers *servers; /* %NULL: there is one */
    guint n_servers;
    guint server;             /* this one */
    RpShard *parts;           /* [weights][n_servers]: elements of each; %NULL of one server */
    const RpNetwork *network; /* borrowed, and so are the next two */
    const RpWeights *weights;
    RpDtype dtype;
    RpCheckpointState state;
    RpCheckpointNumbers *numbers; /* one for each weight: the trainer's own, or a copy of them */
} RpCheckpointImage;

/* @image: (out): of a flushed @trainer, valid until it continues. @servers: (nullable). @data:
 * %NULL: weights alone */
void rp_checkpoint_image_take(RpCheckpointImage *image, RpTrainer *trainer, RpServers *servers,
                              const RpDataState *data);
/* The part of weight @index that is here, as a weight. */
RpWeight rp_checkpoint_image_part(const RpCheckpointImage *image, guint index);
/* The elements of weight @index that server @server has. */
RpShard rp_checkpoint_image_share(const RpCheckpointImage *image, guint index, guint server);
void rp_checkpoint_image_clear(RpCheckpointImage *image);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCheckpointImage, rp_checkpoint_image_clear)
/* Weights that a step has blown up, perhaps in rounding, would replace the last good ones. @path: for
 * messages. @wide: [n], scratch */
gboolean rp_checkpoint_check_finite(const char *path, const RpWeight *weight, RpDtype dtype,
                                    const guint8 *values, gsize n, float *wide, GError **error);

/* ---- space.c ---- */

guint64 rp_checkpoint_needed_bytes(const RpCheckpointOptions *options,
                                   const RpCheckpointImage *image, gboolean weights_only);

/* Removes the oldest complete checkpoint but the last, if with all that may go there would be space
 * enough, and adds its name to @gone; none where all are to be kept. Returns: whether one went */
gboolean rp_checkpoint_make_space(const RpCheckpointOptions *options,
                                  const RpCheckpointImage *image, GString *gone);

/* ---- image.c: the small files ---- */

/* config.json, of adapters theirs, and the tokenizer's files into @directory. Errors: G_FILE_ERROR,
 * RP_CHECKPOINT_ERROR_* */
gboolean rp_checkpoint_write_small(const RpCheckpointOptions *options,
                                   const RpCheckpointImage *image, const char *directory,
                                   GError **error);
/* trainer_state.json, with the evaluations of @options. */
gboolean rp_checkpoint_write_state(const RpCheckpointOptions *options,
                                   const RpCheckpointImage *image, const char *directory,
                                   GError **error);

/* ---- manifest.c ---- */

/* Writes the manifest of all files of the directory at @path, synced. @told: with several servers,
 * the list that each has sent of its own files, %NULL behind the last; these files must be there.
 * Errors: as of writing */
gboolean rp_checkpoint_manifest_write(const char *path, const RpCheckpointImage *image,
                                      char *const *told, GError **error);
/* Size and checksum of the files of @path that server @server of @n_servers has written there, a line
 * each. (transfer full). Errors: as of writing */
char *rp_checkpoint_manifest_own(const char *path, guint server, guint n_servers, GError **error);

/* ---- save.c ---- */

typedef struct {
    const RpCheckpointOptions *options;
    const RpCheckpointImage *image;
    const RpWeights *weights; /* the image's */
    gboolean adapters;        /* only adapters are saved, and modules trained whole */
    RpDtype dtype;
    RpDtype model_dtype; /* type in the model's file; fp32 for adapters */
    gboolean weights_only;
    char *path;
    char *temporary;
    guint64 needed_bytes;
    /* files of this server: */
    RpSafetensorsWriter *model;     /* %NULL: of several servers another than the first */
    RpSafetensorsWriter *optimizer; /* %NULL: weights alone */
    RpSafetensorsWriter *next;      /* %NULL if synchronous */
    RpSafetensors *base;            /* with other parts of a larger model; or %NULL */
    guint first_other;
} RpCheckpointSave;

/* rp_checkpoint_save() of an image. */
char *rp_checkpoint_save_image(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                               char **removed, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Checks that the disk has space, and makes the temporary directory. */
gboolean rp_checkpoint_save_begin(RpCheckpointSave *save, GError **error);
/* Turns an error of other layers into one of a checkpoint; the files written so far are gone by
 * now. */
void rp_checkpoint_save_explain(const RpCheckpointSave *save, const GError *cause, GError **error);

/* ---- save-tensors.c ---- */

/* Elements that are widened and rounded at a time. */
#define RP_CHECKPOINT_PIECE ((guint64)1 << 18)

/* Memory for a piece of a tensor, in fp32 and in the network's dtype. */
typedef struct {
    float *wide;
    guint8 *rounded;
} RpCheckpointPiece;

/* Files have their space before the first tensor is written. */
gboolean rp_checkpoint_begin_model(RpCheckpointSave *save, GError **error);
gboolean rp_checkpoint_begin_state(RpCheckpointSave *save, GError **error);
/* Ends the model's file: tensors of other parts of a larger model come last. */
gboolean rp_checkpoint_finish_model(RpCheckpointSave *save, GError **error);
/* All tensors of the files that were begun, in several threads; and ends these. */
gboolean rp_checkpoint_write_tensors(RpCheckpointSave *save, GError **error);
/* One of the model's file: all of a weight's numbers. @form: whether they are in fp32 */
gboolean rp_checkpoint_write_rounded(const RpCheckpointSave *save, const RpWeight *weight,
                                     guint tensor, const void *values, RpDtype dtype,
                                     const RpCheckpointPiece *piece, GError **error);
/* One that is not trained. */
gboolean rp_checkpoint_write_frozen(const RpCheckpointSave *save, guint index, guint tensor,
                                    GError **error);

/* ---- save-servers.c ---- */

/* All servers do: the checkpoint under its temporary name, and the name. On error nothing is left of
 * it. Errors: the same on all servers; RP_SERVERS_ERROR_* */
gboolean rp_checkpoint_save_together(RpCheckpointSave *save, GError **error);
/* @yes: (inout): as server 0 has it. Errors: RP_SERVERS_ERROR_* */
gboolean rp_checkpoint_as_first(const RpCheckpointImage *image, gboolean *yes, GError **error);

/*
 * Parts of weights' state, each in the files of the server that had it.
 *
 *   layer      | norm |            q            |     k     | ...
 *   servers    |--------- 0 ---------|------- 1 -------|--- 2 ...      (core/base/shard.h)
 *   parts      norm: 0   q: 0, 1     k: 1, 2
 *
 * With one server each weight is one part and there is no table; readers use the same functions.
 */

/* Elements of a weight whose state is in the files of one server. */
typedef struct {
    guint server;
    guint64 first;
    guint64 end;
} RpCheckpointPart;

/* The parts of all weights, as the manifest lists them. */
typedef struct {
    guint n_servers;   /* 1: of each weight one part, and no table */
    GHashTable *parts; /* name -> GArray of RpCheckpointPart */
} RpCheckpointParts;

void rp_checkpoint_parts_clear(RpCheckpointParts *parts);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCheckpointParts, rp_checkpoint_parts_clear)

/* "optimizer.safetensors", of several servers "optimizer-server-2-of-4.safetensors". (transfer full) */
char *rp_checkpoint_server_file(const char *name, guint server, guint n_servers);
/* Whether @name is such a file, or its index, or one of those that it was divided into. */
gboolean rp_checkpoint_is_server_file(const char *name, guint server, guint n_servers);

/* The table of an @image of several servers, as a key of an object. */
void rp_checkpoint_parts_write(const RpCheckpointImage *image, RpJsonWriter *json);
/* RpJsonRead of RpCheckpointParts.parts: a row of the table. */
gboolean rp_checkpoint_parts_read(RpJsonPull *pull, const RpJsonField *field, gpointer table);
/* Reads the table of the checkpoint at @path. Errors: RP_CHECKPOINT_ERROR_CORRUPT */
gboolean rp_checkpoint_parts_load(const char *path, RpCheckpointParts *parts, GError **error);

/**
 * rp_checkpoint_parts_of:
 * @path: of the checkpoint, for messages
 *
 * Lists the parts of @weight, from its first element to its last. (transfer full)
 *
 * Errors: RP_CHECKPOINT_ERROR_CORRUPT: there are none, or gaps, or overlaps, or servers that are none
 */
GArray *rp_checkpoint_parts_of(const RpCheckpointParts *parts, const char *path,
                               const RpWeight *weight, GError **error);

/* @n elements of @weight as a weight of one dimension; all of one server are as they are. */
RpWeight rp_checkpoint_part_weight(const RpWeight *weight, guint n_servers, guint64 n);
