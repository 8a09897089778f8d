/**
 * A place in the training data, as a checkpoint keeps it.
 *
 * As text one line of JSON, `roundpipe-data/2`. Checked strictly when it is read; whether it fits
 * a dataset is for rp_batcher_restore() to say.
 */
#pragma once

#include "core/json/json-record.h"

/* The second has a fingerprint of 256 places of the file instead of all of it: read, not written.
 */
#define RP_DATA_STATE_FORMAT "roundpipe-data/2"
#define RP_DATA_STATE_OLD_FORMAT "roundpipe-data/1"

#define RP_DATA_MOST_HELD 64

typedef struct {
    /* the data that the place is in */
    guint64 n_samples;
    guint64 fingerprint;
    guint64 seed;
    gboolean shuffle;
    gboolean sampled; /* @fingerprint is of 256 places: of the old format */
    /* the place */
    guint64 epoch;
    guint64 position; /* in the epoch, at most n_samples */
    guint n_held;     /* samples before it that are still to come, oldest first: packing */
    guint64 held[RP_DATA_MOST_HELD];
    /* sums since the first iteration */
    guint64 n_iterations;
    guint64 n_tokens;    /* without padding */
    guint64 n_targets;   /* unmasked */
    guint64 n_truncated; /* sequences that were cut */
    guint64 n_cut_tokens;
    guint64 n_dropped;  /* samples left out at ends of epochs */
    guint64 n_left_out; /* longer than a sequence */
} RpDataState;

/* (transfer full), without a newline. The same state gives the same bytes. */
char *rp_data_state_to_json(const RpDataState *state);

/* RpJsonRead, of the object in a checkpoint: @value is an RpDataState. */
gboolean rp_data_state_read(RpJsonPull *pull, const RpJsonField *field, gpointer value);

/**
 * rp_data_state_parse:
 * @name: for messages: where the text is from
 * @state: (out): set on success only
 *
 * Errors: %RP_DATASET_ERROR_STATE: not JSON, a key missing, unknown or twice, another format, a
 *   number that is no whole one of 64 bits, a position behind the last sample
 */
gboolean rp_data_state_parse(const char *name, const char *text, gsize length, RpDataState *state,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
