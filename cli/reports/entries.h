/**
 * Profiles that are compared.
 */
#pragma once

#include "cli/cli.h"

typedef struct {
    char *path;
    char *name; /* of the file, without .json */
    RpProfile *profile;
} RpCliEntry;

/* A GDestroyNotify. */
void rp_cli_entry_free(gpointer entry);

/**
 * rp_cli_load_entries:
 * @paths: %NULL-terminated
 * @profiles_dir: (nullable): without @paths all of it; %NULL: $ROUNDPIPE_PROFILES, or the shipped ones
 * @args: its box and GPUs as for rp_cli_load_profile()
 * @entries: (element-type RpCliEntry): appended to; those of a directory by size
 *
 * Errors: RP_CLI_ERROR_USAGE, G_FILE_ERROR, RP_PROFILE_ERROR_*
 */
gboolean rp_cli_load_entries(char **paths, const char *profiles_dir, const RpArgs *args,
                             GPtrArray *entries, GError **error) G_GNUC_WARN_UNUSED_RESULT;
