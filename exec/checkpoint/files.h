/**
 * A checkpoint being written: its data, and which function writes which file.
 */
#pragma once

#include "exec/checkpoint/private.h"
#include "exec/safetensors/safetensors.h"

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

/* ---- save-files.c ---- */

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
