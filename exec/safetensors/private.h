/**
 * Shared by safetensors*.c.
 */
#pragma once

#include "core/base/file.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/safetensors/safetensors.h"

#define RP_SAFETENSORS_SINGLE "model.safetensors"
#define RP_SAFETENSORS_INDEX_SUFFIX ".index.json"
#define RP_SAFETENSORS_LENGTH_BYTES 8 /* the number before the header */
#define RP_SAFETENSORS_ALIGNMENT 8

struct _RpSafetensors {
    char *path;
    GPtrArray *files;    /* (element-type utf8): display names, owned */
    GPtrArray *maps;     /* (element-type GMappedFile) */
    GStringChunk *names; /* text that the tensors point to */
    GArray *tensors;     /* (element-type RpSafetensor) */
    GHashTable *by_name; /* name -> index + 1 */
};

/* Adds the tensors of one file. Errors: RP_SAFETENSORS_ERROR_HEADER, _TENSOR */
gboolean rp_safetensors_read_file(RpSafetensors *tensors, const char *name, const void *bytes,
                                  gsize length, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A tensor's name in a file as that of the module in transformers, which renames text parts of larger models so when it
 * reads them, and reads either. (transfer full) */
char *rp_safetensors_module_name(const char *name);

/* `weight_map` of an index: name -> shard, both owned by the table. Errors:
 * RP_SAFETENSORS_ERROR_INDEX */
GHashTable *rp_safetensors_parse_index(const char *name, const char *text, gsize length,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Bits of an element of a type of the format; 0: there is no such type. */
guint rp_safetensors_type_bits(const char *type);
