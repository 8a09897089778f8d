/**
 * Answers to prompts of token ids: the likeliest token each time, until one that ends.
 *
 *   prompt   7 4 + 5 8 =            forward -> 2
 *            7 4 + 5 8 = 2          forward -> 3
 *            7 4 + 5 8 = 2 3        forward -> 1
 *            7 4 + 5 8 = 2 3 1      forward -> the end
 *
 * Plain: every token computes all those before it again, with the same kernels as training; nothing
 * is kept between them.
 */
#pragma once

#include "exec/network/network.h"

#define RP_GENERATE_ERROR (rp_generate_error_quark())
GQuark rp_generate_error_quark(void);
typedef enum {
    RP_GENERATE_ERROR_MEMORY /* the model does not fit into what there is */
} RpGenerateError;

/* Sequences that are answered at once, at most. */
#define RP_GREEDY_MAX_SEQUENCES 64

typedef struct _RpGreedy RpGreedy;

/* A prompt and its answer. */
typedef struct {
    const gint32 *prompt; /* ids below the vocabulary */
    guint n_prompt;       /* > 0 */
    gint32 *answer;       /* room for most_tokens of them */
    guint n_answer;       /* (out): the id that ends it included */
} RpAnswer;

/**
 * rp_greedy_new:
 * @weights: bound; borrowed until this returns
 * @kernels: of the host
 * @sequences: answered at once, 1 to %RP_GREEDY_MAX_SEQUENCES
 * @tokens: of the longest prompt and its answer together
 *
 * Errors: %RP_GENERATE_ERROR_MEMORY
 */
RpGreedy *rp_greedy_new(const RpModel *config, const RpWeights *weights, const RpKernels *kernels,
                        guint sequences, guint tokens, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_greedy_free(RpGreedy *greedy);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpGreedy, rp_greedy_free)

/* Answers @n prompts, as many as `sequences` at most, each until one of the config's ends or with
 * @most_tokens. Of equal logits the lower id is taken. */
void rp_greedy_answer(RpGreedy *greedy, RpAnswer *answers, guint n, guint most_tokens);
