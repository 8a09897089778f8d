/**
 * Tensors in files, in the format of Hugging Face safetensors, one file or several with an index.
 *
 *   | u64 n | n bytes of JSON, padded with spaces | the data of all tensors, end to end |
 *           {"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}, ...}
 *
 * Files are mapped, never copied: RpSafetensor.data points into the page cache. A file that is
 * truncated by somebody while it is mapped ends the process with SIGBUS, as with any mapping; our
 * own writer replaces files and never changes one in place.
 */
#pragma once

#include <glib.h>

#include "core/base/dtype.h"

typedef enum {
    RP_SAFETENSORS_ERROR_HEADER,    /* not a safetensors header, or not JSON */
    RP_SAFETENSORS_ERROR_TENSOR,    /* a tensor of impossible type, shape or place */
    RP_SAFETENSORS_ERROR_INDEX,     /* index and shards disagree */
    RP_SAFETENSORS_ERROR_INCOMPLETE /* the writer was not given all data */
} RpSafetensorsError;

#define RP_SAFETENSORS_ERROR (rp_safetensors_error_quark())
GQuark rp_safetensors_error_quark(void);

#define RP_SAFETENSORS_MAX_HEADER_BYTES 100000000 /* as the reference implementation has it */
#define RP_SAFETENSORS_MAX_RANK 8

typedef struct {
    const char *name;
    const char *file;       /* file that it stands in */
    const char *dtype_name; /* as in the file: "BF16", "F8_E4M3", ... */
    gboolean supported;     /* whether it is one of RpDtype */
    RpDtype dtype;          /* if it is */
    guint rank;             /* 0 = a scalar */
    guint64 shape[RP_SAFETENSORS_MAX_RANK];
    guint64 elements;
    guint64 bytes;
    const void *data; /* @bytes, mapped; in files of other writers at any address */
} RpSafetensor;

typedef struct _RpSafetensors RpSafetensors;

/**
 * rp_safetensors_open:
 * @path: a `.safetensors` file, a `.safetensors.index.json`, or a directory with
 *   `model.safetensors` or else `model.safetensors.index.json`
 *
 * Checked before anything is returned: the header is JSON and lies in the file; each type is one
 * of the format's; shape x size = end - begin; the data are covered without gap or overlap, to the
 * last byte; no name twice; `__metadata__` holds strings. With an index: each shard is a file
 * beside it, and shards and index name the same tensors in the same files.
 *
 * Errors: G_FILE_ERROR, RP_SAFETENSORS_ERROR_*, one line: `FILE: tensor "NAME": expected ...,
 *   found ...`
 */
RpSafetensors *rp_safetensors_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for one file in memory, which must outlive the result; @name for messages. */
RpSafetensors *rp_safetensors_parse(const char *name, const void *bytes, gsize length,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

void rp_safetensors_free(RpSafetensors *tensors);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpSafetensors, rp_safetensors_free)

/* The path that was opened: a file or an index. */
const char *rp_safetensors_path(const RpSafetensors *tensors);

guint rp_safetensors_count(const RpSafetensors *tensors);
/* Tensors are in file order, shard after shard in the order of their names. */
const RpSafetensor *rp_safetensors_nth(const RpSafetensors *tensors, guint index);
/* Returns: (nullable) */
const RpSafetensor *rp_safetensors_find(const RpSafetensors *tensors, const char *name);

/* "BF16 [1024, 4096]". (transfer full) */
char *rp_safetensor_describe(const char *dtype_name, const guint64 *shape, guint rank);

/**
 * Writing: declare every tensor, begin, give each tensor its bytes in pieces, finish.
 *
 * The files are made beside their names and renamed by finish, after a sync; until then, and after
 * any error, older files stay there. The same calls make the same bytes. Headers are padded to 8
 * bytes; wider types stand first, so that every tensor is aligned.
 */
typedef struct _RpSafetensorsWriter RpSafetensorsWriter;

/**
 * rp_safetensors_writer_new:
 * @path: `DIR/STEM.safetensors`
 * @max_shard_bytes: of data in a file; 0 = one file. If all do not fit into one, they go into
 *   `DIR/STEM-00001-of-00003.safetensors` ... and `DIR/STEM.safetensors.index.json`. A tensor that
 *   is larger gets a shard of its own.
 */
RpSafetensorsWriter *rp_safetensors_writer_new(const char *path, guint64 max_shard_bytes);
/* Before finish: removes the files written so far. */
void rp_safetensors_writer_free(RpSafetensorsWriter *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpSafetensorsWriter, rp_safetensors_writer_free)

/* Declares a tensor of a new @name. Returns: its number, from 0 up */
guint rp_safetensors_writer_add(RpSafetensorsWriter *writer, const char *name, RpDtype dtype,
                                const guint64 *shape, guint rank);

/* The same for any type of the format of whole bytes: "U8", "F8_E4M3". @type: must stay. */
guint rp_safetensors_writer_add_type(RpSafetensorsWriter *writer, const char *name,
                                     const char *type, const guint64 *shape, guint rank);

/**
 * rp_safetensors_writer_begin:
 *
 * Divides the tensors into shards, allocates their space on the disk and writes the headers.
 *
 * Errors: G_FILE_ERROR; G_FILE_ERROR_NOSPC with the bytes that are needed and free
 */
gboolean rp_safetensors_writer_begin(RpSafetensorsWriter *writer,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_safetensors_writer_write:
 * @tensor: as _add() returned; any order, and different tensors in different threads at a time
 * @data: the next @bytes of that tensor
 *
 * Errors: G_FILE_ERROR naming the file
 */
gboolean rp_safetensors_writer_write(RpSafetensorsWriter *writer, guint tensor, const void *data,
                                     gsize bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_safetensors_writer_finish:
 *
 * Syncs and renames: one file at once; shards first and their index last, an old index being
 * removed before, so that a mixture of two checkpoints is never taken for one.
 *
 * Errors: G_FILE_ERROR, RP_SAFETENSORS_ERROR_INCOMPLETE
 */
gboolean rp_safetensors_writer_finish(RpSafetensorsWriter *writer,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
