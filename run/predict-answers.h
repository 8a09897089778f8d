/**
 * Answers to a file of prompts on GPUs that need not be here: memory as a generator takes it, times by the cost model
 * (core/catalogue/cost/decode.h).
 */
#pragma once

#include "core/catalogue/cost/decode.h"
#include "exec/generate/generator.h"

/* Borrowed. */
typedef struct {
    const RpModel *config;
    const RpGpu *gpu;
    guint devices;        /* of its kind, which share the prompts; > 0 */
    guint slots;          /* answers at once on each, at most; 0 = as many as there may be */
    guint64 memory_bytes; /* limit of each; 0 = the card's */
    gboolean samples;
    const RpDecodeLengths *lengths;
    guint n; /* prompts, > 0 */
} RpAnswersQuestion;

typedef struct {
    RpDecodePrediction decode;
    RpGeneratorSizes sizes; /* of each device; this build's kernels: without CUDA the host's */
    guint64 cache_bytes;
    guint64 memory_bytes; /* that a device has */
    double tokens_per_s;  /* of all devices */
    guint at_once;        /* the longest answers that have a slot and space */
} RpAnswersPrediction;

/* As rp_gpu_open(); %NULL: the first GPU here. Errors: those; RP_RUN_ERROR_USAGE: there is none */
RpGpu *rp_run_find_gpu(const char *word, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Errors: RP_RUN_ERROR_VALUE: numbers whose times are not predicted; RP_GENERATE_ERROR_MEMORY */
gboolean rp_run_predict_answers(const RpAnswersQuestion *question, RpAnswersPrediction *prediction,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
