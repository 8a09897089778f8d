/**
 * Shared by generate's two halves: text, and a file of prompts.
 */
#pragma once

#include "cli/cli.h"
#include "run/trained.h"

RpSampling rp_generate_sampling(const RpArgs *args);
/* Errors: RP_CLI_ERROR_USAGE */
gboolean rp_generate_check_sampling(const RpArgs *args, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- prompts.c: a file of ids, answers to a file ---- */

gboolean rp_generate_prompts(const RpArgs *args, const char *word, RpReport *report,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
