/**
 * A record of token ids: an object with `input_ids` and perhaps `labels`. Rules: docs/data.md.
 */
#pragma once

#include "core/json/json-record.h"

/* A label that is no target, as PyTorch's cross entropy and Hugging Face have it. */
#define RP_LABEL_MASKED (-100)

/* Where a sample is read to: memory of the caller. */
typedef struct {
    gint32 *input_ids; /* @capacity places; (nullable) if that is 0 */
    gint32 *labels;    /* @capacity labels of the same token, not of the next; the ids themselves if
                          the sample has none */
    gsize capacity;    /* tokens; longer samples are checked and counted, not stored */
    guint64 n_tokens;  /* (out): tokens of the whole sample, at least 1 */
} RpSample;

typedef struct {
    guint vocabulary;
    char *expected_id; /* for messages */
    char *expected_label;
} RpIdsReader;

/* @vocabulary: ids are less than this */
void rp_ids_reader_init(RpIdsReader *reader, guint vocabulary);
void rp_ids_reader_clear(RpIdsReader *reader);

/* The object that is all of @pull's text. Errors: those of @pull */
gboolean rp_ids_read(const RpIdsReader *reader, RpJsonPull *pull, RpSample *sample);
