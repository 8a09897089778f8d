/**
 * A directory for a test, safetensors bytes put together by hand, and an error to look at.
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/safetensors/safetensors.h"

typedef struct {
    char *directory;
    GError *error;
    GBytes *bytes;          /* a file in memory */
    RpSafetensors *tensors; /* may point into @bytes */
    RpSafetensorsWriter *writer;
    char *text;
} TensorFixture;

int tensor_setup(void **state);
int tensor_teardown(void **state);

/* `name` in the fixture's directory. (transfer full) */
char *tensor_path(const TensorFixture *f, const char *name);

/* A file of @header and @data_bytes bytes 0, 1, 2, ...; replaces f->bytes. */
void tensor_make(TensorFixture *f, const char *header, gsize data_bytes);
/* Writes f->bytes to `name`. */
void tensor_save(const TensorFixture *f, const char *name);
void tensor_save_text(const TensorFixture *f, const char *name, const char *text);

/* Parses f->bytes as "FILE". Returns: whether it was taken; the error is checked to be one line. */
gboolean tensor_parse(TensorFixture *f);
/* The whole of `name`. (transfer full) */
GBytes *tensor_load(const TensorFixture *f, const char *name);
/* Names in the directory, sorted, joined by spaces. (transfer full) */
char *tensor_list(const TensorFixture *f);
