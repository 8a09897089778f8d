/**
 * Run files: what `roundpipe train` is to do, in YAML (docs/train.md has every key).
 *
 *   defaults  <-  RUN.yaml  <-  --set key=value         the later one wins, key by key
 *
 * The table of settings (run/settings.c) says what each key takes.
 */
#pragma once

#include "run/settings.h"
#include "run/spec.h"

/**
 * rp_run_file_load:
 * @sets: (nullable) (array zero-terminated=1): `key=value` words, later ones win
 *
 * Returns: (transfer full): the run, or %NULL
 * Errors: G_FILE_ERROR; RP_RUN_ERROR_*, one line: `RUN.yaml: line 3, column 9: steps: expected
 *   ..., found ...`; RP_RUN_ERROR_USAGE if it is one of @sets that is wrong;
 *   RP_SCHEDULE_ERROR_SHAPE if rounds do not suit micro-batches and devices
 */
RpRunSpec *rp_run_file_load(const char *path, const char *const *sets,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for text in memory. @name: for messages */
RpRunSpec *rp_run_file_parse(const char *name, const char *text, gsize length,
                             const char *const *sets, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The run as YAML: every key that has a value, one a line, by default or given, and choices as they were made. (transfer
 * full) */
char *rp_run_file_of(const RpRunSpec *run);

/* The reason why a given `reference` does not suit @run; %NULL: it does. */
const char *rp_run_reference_problem(const RpRunSpec *run);

/**
 * rp_run_choose_reference:
 * @run: whose objective, adapters and `reference` count
 * @epochs: how often the run sees each sample; 0 = unknown
 * @why: (out) (optional): the reason, in words
 *
 * Where the log-probabilities of the reference come from that costs least time over the run's steps: adapters that
 * can be switched off; else each sample is scored once, unless the steps see fewer samples than there are: a copy
 * scores those alone.
 */
RpReference rp_run_choose_reference(const RpRunSpec *run, double epochs, const char **why);

void rp_run_spec_free(RpRunSpec *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRunSpec, rp_run_spec_free)
