/**
 * Random weights, the same for a seed whatever the order, the threads or the machine.
 *
 * Each value is a function of (seed, tensor's name, position in the tensor): Philox4x32-10 with
 * the seed as key and (position / 4, hash of the name) as counter, its 32-bit words taken through
 * the normal distribution's inverse. All by operations that IEEE 754 defines to the bit: no
 * logarithm or cosine of a C library.
 */
#pragma once

#include "exec/model/weights.h"

/* @done and @total in elements. One call at a time, from any thread of the run. */
typedef void (*RpInitProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    guint64 seed;
    guint64 max_shard_bytes; /* 0 = one file */
    guint threads;           /* 0 = one a processor that may be used; the bytes are the same */
    RpInitProgress progress; /* (nullable) */
    gpointer user_data;
} RpInitOptions;

/**
 * rp_philox:
 * @counter, @key: 128 and 64 bits
 * @words: (out): 128 random bits
 *
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11: Philox4x32-10
 */
void rp_philox(const guint32 counter[4], const guint32 key[2], guint32 words[4]);

/**
 * rp_init_normal:
 * @p: of 0 to 1, both exclusive
 *
 * The value below which a standard normal variable stays with probability @p; relative error
 * under 2e-7.
 *
 * Source: Wichura, Algorithm AS 241, Applied Statistics 37 (1988): PPND7
 */
double rp_init_normal(double p);

/**
 * rp_init_normals:
 * @stream: hash of a tensor's name
 * @first: position in the tensor of the first value
 * @values: (out): @n of them
 *
 * Value i is @deviation x rp_init_normal((word + 1/2) / 2^32), in doubles, rounded once, where word
 * is number i mod 4 of rp_philox() at counter (i / 4, @stream).
 */
void rp_init_normals(guint64 seed, guint64 stream, double deviation, guint64 first, float *values,
                     gsize n);

/**
 * rp_init_fill:
 * @first: position in the tensor of the first value
 * @values: (out): @n of them
 *
 * As transformers initialises: matrices normal(0, initializer_range), with the padding token's row
 * of the embedding 0; norms 1; biases 0; sinks and biases of routers as matrices. Adapters as peft
 * does: A uniform between -1/sqrt(in) and 1/sqrt(in) (He's with a = sqrt(5)), B 0.
 */
void rp_init_fill(const RpModel *config, const RpWeight *weight, guint64 seed, guint64 first,
                  float *values, gsize n);

/**
 * rp_init_write:
 * @config: its dtype is that of the weights
 * @directory: exists
 *
 * Writes model.safetensors, or shards with their index, and then config.json. If the weights cannot
 * be written, all files stay as they were.
 *
 * Errors: G_FILE_ERROR
 */
gboolean rp_init_write(const RpModel *config, const char *directory, const RpInitOptions *options,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
