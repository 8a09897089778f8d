/**
 * Manual pages and completions, made when the project is built: from the commands, their options
 * and the settings of run files.
 */
#pragma once

#include "cli/cli.h"

/* roff of roundpipe(1), of a command's page in section 1, and of roundpipe-run(5). */
void rp_manual_overview(GString *page, const RpCommand *const *commands);
void rp_manual_command(GString *page, const RpCommand *command);
void rp_manual_run_file(GString *page);

/* Scripts of bash, zsh and fish. */
void rp_completion_bash(GString *script, const RpCommand *const *commands);
void rp_completion_zsh(GString *script, const RpCommand *const *commands);
void rp_completion_fish(GString *script, const RpCommand *const *commands);
