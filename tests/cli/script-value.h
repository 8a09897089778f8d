/**
 * Results of commands in a script, and expressions of them: `2 * plan:recommendation.tokens_per_s`.
 */
#pragma once

#include "tests/cli/run-cli.h"

/* A command that has run, or a file that was read as if it had been printed. */
typedef struct {
    char *name; /* `it` if the script gives none */
    RpCliRun run;
    RpTree *tree; /* of its output, once that was asked for */
} RpScriptResult;

void rp_script_result_free(RpScriptResult *result);

/* The last result of @name; fails if there is none. */
RpScriptResult *rp_script_find(GPtrArray *results, const char *name);

/**
 * rp_script_number:
 * @text: numbers, KiB, MiB, GiB, paths of JSON (`rows.0.bubble_ratio` of the last result, `plan:rows.0` of the one
 *   called plan), + - * / and parentheses, abs(), ceil(), min(,), max(,), len() of an object or array. A minus between
 *   two paths has a space behind it.
 *
 * Returns: the value of @text, of which nothing may be left; a text as the number that it begins with, true as 1
 */
double rp_script_number(GPtrArray *results, const char *text);

/* The value at @path as it is printed, an array's joined by commas. (transfer full) */
char *rp_script_text(GPtrArray *results, const char *path);
/* Whether there is a value at @path. */
gboolean rp_script_has(GPtrArray *results, const char *path);
