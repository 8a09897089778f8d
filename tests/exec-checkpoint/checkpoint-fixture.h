/**
 * A trainer that holds numbers and trains nothing: the functions of exec/train and of a network
 * that rp_checkpoint_*() use are implemented here, so that faults can be put in without a training.
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/checkpoint/checkpoint.h"

typedef struct {
    char *directory; /* the test's directory */
    char *output;
    char *model_dir;
    RpTrainer *trainer;
    RpTrainer *other; /* a trainer that the test made; may be NULL */
    RpCheckpointOptions options;
    RpDataState data;
    GError *error;
    char *path;
    char *text;
    GHashTable *files; /* files seen by checkpoint_load() */
} CheckpointFixture;

int checkpoint_setup(void **state);
int checkpoint_teardown(void **state);

/* A Qwen3 of two blocks and a few thousand parameters. */
RpModel checkpoint_config(gboolean tied);

RpTrainer *fake_trainer_new(const RpModel *config, RpDtype dtype, gboolean async);
void fake_trainer_free(RpTrainer *trainer);
/* Every number of the trainer becomes a function of @step. */
void fake_trainer_go_to(RpTrainer *trainer, guint64 step);
/* Whether all that a checkpoint keeps is the same, bit for bit. */
gboolean fake_trainer_equal(const RpTrainer *a, const RpTrainer *b);
/* Whether it is as new: nothing restored. */
gboolean fake_trainer_is_new(const RpTrainer *trainer);
/* From now on it has a part of each weight, as one of several. */
void fake_trainer_set_server(RpTrainer *trainer, guint server, guint n_servers);
void fake_trainer_set_rounds(RpTrainer *trainer, guint rounds);
/* Makes rp_trainer_restore_weight() refuse. */
void fake_trainer_refuse(RpTrainer *trainer);
RpUpdateState *fake_trainer_update(RpTrainer *trainer);

/* Data state that belongs to @step. */
RpDataState checkpoint_data(guint64 step);

/* Goes to @step and saves with the fixture's options; replaces f->path, f->error. */
gboolean checkpoint_save_step(CheckpointFixture *f, guint64 step);
/* The same without a check of the fixture's: for children. Returns: whether it was saved */
gboolean checkpoint_try_save(CheckpointFixture *f, guint64 step, GError **error);
/* Whether @path verifies, and holds exactly the data that checkpoint_save_step(@step) puts in. */
gboolean checkpoint_holds(CheckpointFixture *f, const char *path, guint64 step);

/* Names in @path, hidden ones too, sorted, joined by spaces. (transfer full) */
char *checkpoint_list(const char *path);
/* name -> GBytes of every file of the directory @path. Replaces f->files. */
void checkpoint_load(CheckpointFixture *f, const char *path);
void checkpoint_write_text(const char *directory, const char *name, const char *text);
void checkpoint_remove_tree(const char *path);
