/**
 * The steps of a training run, as its metrics.jsonl has them.
 */
#pragma once

#include <glib.h>

#include "run/train/train.h"

typedef struct {
    char *title;   /* what the run is called: its directory */
    GArray *lines; /* RpTrainLine, of steps and evaluations */
} RpCliSteps;

void rp_cli_steps_clear(RpCliSteps *steps);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCliSteps, rp_cli_steps_clear)

#define RP_CLI_METRICS "metrics.jsonl"

/**
 * rp_cli_steps_read:
 * @word: the output directory of a run, or its metrics.jsonl
 * @steps: (out): set on success
 *
 * Errors: G_FILE_ERROR naming the file, also of one without a line
 */
gboolean rp_cli_steps_read(const char *word, RpCliSteps *steps,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The line is of an evaluation, not of a step. */
gboolean rp_cli_is_evaluation(const RpTrainLine *line);
/* NAN where it is not known. */
double rp_cli_tokens_per_s(const RpTrainLine *line);
