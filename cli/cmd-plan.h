/**
 * What `roundpipe plan` prints, on stdout as text or JSON.
 */
#pragma once

#include "cli/cli.h"
#include "sim/advise.h"

/* What --optimizer takes, %NULL-terminated. */
extern const char *const rp_cmd_plan_optimizers[];

void rp_cmd_plan_print(const RpAdvice *advice, gboolean as_json);

/* `--max-sequence`: the longest sequence alone. */
void rp_cmd_plan_print_longest(const RpAdviseQuery *query, const RpAdviseLongest *longest,
                               gboolean as_json);
