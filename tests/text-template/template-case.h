/**
 * One line of fixtures/templates.jsonl: a template, its variables, and the text Python gave.
 */
#pragma once

#include "core/json/json-pull.h"

/* Renders @line, as on 2024-07-04 15:05:09. Returns: (transfer full): NULL, or the difference */
char *rp_template_case_check(const char *line, gsize length);
