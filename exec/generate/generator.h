/**
 * Answers to prompts of token ids, on one device: each token is chosen by the model's logits, until
 * an end-of-sequence token.
 *
 *   prompt   7 4 + 5 8 =      all of it goes through the model; keys and values are kept -> 2
 *            2                one token more, which attends to them                      -> 3
 *            3                                                                           -> the end
 *
 * Several prompts are answered at once, of any lengths, with the kernels of training.
 */
#pragma once

#include <glib.h>

#include "exec/measure/probe.h"
#include "exec/network/network.h"

#define RP_GENERATE_ERROR (rp_generate_error_quark())
GQuark rp_generate_error_quark(void);
typedef enum {
    RP_GENERATE_ERROR_MEMORY /* the model does not fit into the memory */
} RpGenerateError;

/* Sequences that are answered at once, at most; tokens that end an answer. */
#define RP_GENERATOR_MAX_SEQUENCES 64
#define RP_GENERATOR_MAX_ENDS 64

/* Chooses the next token by the logits of all tokens, as transformers does: temperature, then the
 * likeliest K, then the likeliest that together have P of the probability, then sampling. */
typedef struct {
    double temperature; /* 0: the likeliest token; of equal ones the lower id */
    double top_p;       /* (0,1]; 1 = all */
    guint top_k;        /* 0 = all */
    guint64 seed;
} RpSampling;

typedef struct _RpGenerator RpGenerator;

typedef struct {
    guint sequences; /* answered at once, 1 to RP_GENERATOR_MAX_SEQUENCES */
    guint tokens;    /* length of the longest prompt and its answer together */
    gint32 ends[RP_GENERATOR_MAX_ENDS];
    guint n_ends;
} RpGeneratorOptions;

/* A prompt and its answer. */
typedef struct {
    const gint32 *prompt; /* ids below the vocabulary */
    guint n_prompt;       /* > 0 */
    gint32 *answer;       /* space for most_tokens of them */
    guint n_answer;       /* (out): the id that ends it included */
    guint64 number;       /* number of the prompt, for sampling */
} RpAnswer;

/* After each token of answers[@index]. Returns: whether it may continue */
typedef gboolean (*RpGeneratorToken)(gpointer user_data, guint index, const RpAnswer *answer);

/**
 * rp_generator_new:
 * @weights: bound; borrowed until this returns
 * @kernels: of @probe's backend
 * @probe: the device; borrowed
 *
 * Errors: %RP_GENERATE_ERROR_MEMORY; the backend's own
 */
RpGenerator *rp_generator_new(const RpModel *config, const RpWeights *weights,
                              const RpKernels *kernels, RpProbe *probe,
                              const RpGeneratorOptions *options,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_generator_free(RpGenerator *generator);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpGenerator, rp_generator_free)

/**
 * rp_generator_answer:
 * @n: as many as `sequences` at most
 * @most_tokens: of an answer; with the longest prompt at most `tokens`
 * @sampling: how tokens are chosen
 * @on_token: (nullable)
 *
 * Errors: %RP_GENERATE_ERROR_MEMORY; the backend's own
 */
gboolean rp_generator_answer(RpGenerator *generator, RpAnswer *answers, guint n, guint most_tokens,
                             const RpSampling *sampling, RpGeneratorToken on_token,
                             gpointer user_data, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_sample:
 * @logits: [n]
 * @prompt, @token: number of the prompt, and of the answer's token: sampling depends on seed,
 *   prompt and token alone
 */
gint32 rp_sample(const RpSampling *sampling, const float *logits, guint n, guint64 prompt,
                 guint token);
