/**
 * Parts of weights' state, each in the files of the server that had it.
 *
 *   layer      | norm |            q            |     k     | ...
 *   servers    |--------- 0 ---------|------- 1 -------|--- 2 ...      (core/base/shard.h)
 *   parts      norm: 0   q: 0, 1     k: 1, 2
 *
 * With one server each weight is one part and there is no table; readers use the same functions.
 */
#pragma once

#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/checkpoint/files.h"

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
