/**
 * The parts of `roundpipe generate` that answers to files, texts and programs share.
 */
#pragma once

#include "cli/cli.h"
#include "exec/generate/generator.h"
#include "run/trained.h"

RpSampling rp_generate_sampling(const RpArgs *args);

/* Errors: numbers that rp_generate_sampling() may not have */
gboolean rp_generate_check_sampling(const RpArgs *args, GError **error);

/* Says on standard error that @streamed of @n_layers are copied for every token, if any are. */
void rp_generate_note_streamed(guint streamed, guint n_layers);

/**
 * rp_generate_open:
 * @n: prompts that wait at once
 * @tokens: of a prompt and its answer at most
 * @generators: (out): empty before: one of each device, with as many answers at once as are its share of @n, or as were
 *   asked for
 *
 * Errors: rp_generator_new()'s
 */
gboolean rp_generate_open(const RpTrained *model, const RpArgs *args, guint n, guint tokens,
                          GPtrArray *generators, GError **error);

/**
 * rp_generate_serve:
 * @word: of the model
 *
 * Answers requests (run/serve/service.h) until SIGINT or SIGTERM.
 *
 * Errors: of options and files; a port that is taken
 */
gboolean rp_generate_serve(const RpArgs *args, const char *word, RpReport *report, GError **error);
