/**
 * Chooses the samples of an iteration and their places in its sequences.
 *
 *   not packed   a sequence has one sample, the next of the order
 *   packed       first-fit: the next sample goes into the first sequence that has space for it. One
 *                that fits nowhere is held for the next iteration, where it comes first; once
 *                RP_DATA_MOST_HELD are held, or all is full, the iteration is over
 *
 *   order        a(5) b(4) c(2) d(6) e(1) f(3) ...       two sequences of 8 tokens
 *   sequence 0   a a a a a c c e
 *   sequence 1   b b b b f f f .                         held: d
 *
 * Packing depends on lengths alone and takes whole samples, each once an epoch. Where all samples
 * fill a sequence both give the same.
 */
#pragma once

#include <glib.h>

#include "core/json/json-record.h"
#include "exec/data/dataset.h"

/*
 * A place in the training data, as a checkpoint keeps it.
 *
 * As text one line of JSON, `roundpipe-data/2`. Checked strictly when it is read; whether it fits
 * a dataset is for rp_batcher_restore() to say.
 */

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

/*
 * In which order samples are trained on: a permutation for each epoch, position by position.
 *
 * No list is shuffled: position -> sample is computed from (seed, epoch, number of samples) alone,
 * so that a place in training is two numbers, and the order has nothing to do with devices.
 *
 * A swap-or-not shuffle: in each of RP_ORDER_ROUNDS rounds x is paired with K - x (mod n) and a
 * hashed bit of the pair says whether the two change places. It works on any n without walking,
 * and on small n too. It is for training order, not for secrets.
 *
 * Source: Hoang, Morris and Rogaway, "An enciphering scheme based on a card shuffle", CRYPTO 2012,
 *   figure 1; the hash is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)
 */

#define RP_ORDER_ROUNDS 128
#define RP_ORDER_MAX_SAMPLES ((guint64)G_MAXINT64)

/* One epoch's order. A plain value; fields belong to the functions. */
typedef struct {
    guint64 n_samples;
    guint64 seed;
    guint64 epoch;
    gboolean shuffle;
    guint64 pairs[RP_ORDER_ROUNDS]; /* the K of each round, less than n_samples */
    guint64 bits[RP_ORDER_ROUNDS];  /* start of each round's hash */
} RpOrder;

/**
 * rp_order_init:
 * @order: (out)
 * @n_samples: from 1 to RP_ORDER_MAX_SAMPLES
 * @shuffle: or in the order of the file, each epoch
 */
void rp_order_init(RpOrder *order, guint64 n_samples, gboolean shuffle, guint64 seed,
                   guint64 epoch);

/**
 * rp_order_sample:
 * @position: in the epoch, less than the number of samples
 *
 * Returns: the sample's index: over all positions, each once
 */
guint64 rp_order_sample(const RpOrder *order, guint64 position);

/* Treatment of samples that do not fill an iteration at an epoch's end. */
typedef enum {
    RP_EPOCH_END_CONTINUE, /* the iteration continues with the next epoch's first samples */
    RP_EPOCH_END_DROP      /* they are left out, others in each epoch if shuffled; not if packed */
} RpEpochEnd;

typedef struct {
    guint micro_batches; /* M of an iteration */
    guint sequences;     /* b of a micro-batch */
    guint tokens;        /* s of a sequence */
    gboolean preference; /* samples are two documents each; they are packed */
    double shared;       /* tokens of samples that both documents share, of all; for surveys */
    guint labels;  /* words at the end of a sample that are learned; 0: all that have labels */
    gint32 pad_id; /* an id of the vocabulary; where it stands nothing is learned */
    gboolean shuffle;
    guint64 seed;
    RpEpochEnd epoch_end;
    gboolean packing;   /* short samples share a sequence */
    gboolean drop_long; /* samples of more than s tokens are left out, not cut */
    guint64 epochs;     /* samples end after these; 0: never */
    guint parts;        /* with several servers, batches are a part of the micro-batches; 0: all */
    guint part;         /* number of the part; parts are equal */
} RpBatcherOptions;

/* A sample in an iteration. */
typedef struct {
    guint64 sample; /* index in the dataset */
    gsize row;      /* its sequence: m x b + i */
    guint32 at;     /* its first token's place */
    guint32 length; /* tokens, cut to s; of one that has a sequence to itself perhaps s */
} RpPackPlace;

typedef struct _RpPacker RpPacker;

/* @dataset: must outlive it */
RpPacker *rp_packer_new(const RpDataset *dataset, const RpBatcherOptions *options);
void rp_packer_free(RpPacker *packer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPacker, rp_packer_free)

/**
 * rp_packer_next:
 * @state: moves behind the samples that are taken
 * @epoch: (out) (optional): that the iteration begins in
 *
 * Returns: (element-type RpPackPlace) (transfer none): by row, within a row by place; valid until the
 *   next call. None: the epochs are over
 * Errors: those of rp_dataset_length(); %RP_DATASET_ERROR_BATCH if every sample is too long
 */
const GArray *rp_packer_next(RpPacker *packer, RpDataState *state, guint64 *epoch,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Properties of the iterations from @state on. */
typedef struct {
    guint64 iterations;   /* iterations that were looked at */
    gboolean ended;       /* the epochs were over then */
    double useful;        /* tokens of samples, of all places */
    guint typical_tokens; /* were all samples so long, attention would take as many steps */
} RpPackingSurvey;

/**
 * rp_packer_survey:
 * @most: iterations; with %G_MAXUINT64 all until the epochs are over, else no more than a million
 *   samples
 *
 * Errors: as rp_packer_next()
 */
gboolean rp_packer_survey(RpPacker *packer, const RpDataState *state, guint64 most,
                          RpPackingSurvey *survey, GError **error) G_GNUC_WARN_UNUSED_RESULT;
