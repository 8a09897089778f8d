/**
 * Keys and values of a run file before they have types. Private to cli/run-file/.
 */
#pragma once

#include <cyaml/cyaml.h>
#include <glib.h>

/* A key of the schema, and what it is set to. */
typedef struct {
    char *key;         /* "optimizer.learning_rate" */
    char *text;        /* as written; %NULL = not given */
    char *place;       /* of the value: "RUN.yaml: line 3, column 9" or "--set"; %NULL: a default */
    gboolean from_set; /* the command line is to blame */
    const cyaml_schema_field_t *field; /* never a mapping */
    gsize offset;                      /* of the value in the struct */
} RpRunEntry;

typedef struct {
    GPtrArray *entries; /* (element-type RpRunEntry): every key, in the schema's order */
} RpRunEntries;

/* All keys of @fields, and of the groups in it; none is set. */
RpRunEntries *rp_run_entries_new(const cyaml_schema_field_t *fields);
void rp_run_entries_free(RpRunEntries *entries);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRunEntries, rp_run_entries_free)

/* Returns: (nullable) */
RpRunEntry *rp_run_entries_find(const RpRunEntries *entries, const char *key);

/* Whether @key is that of a group: a mapping, and no value. */
gboolean rp_run_entries_is_group(const RpRunEntries *entries, const char *key);

/* "PLACE: no key KEY; did you mean ...?" */
void rp_run_entries_fail_unknown(const RpRunEntries *entries, const char *place, const char *key,
                                 GQuark domain, int code, GError **error);

/* What YAML calls nothing, where it is not quoted. */
gboolean rp_run_text_is_null(const char *text);

/* Sets @entry; @text and @place are copied. */
void rp_run_entry_set(RpRunEntry *entry, const char *text, const char *place, gboolean from_set);

/* Sets what YAML @text sets; null is "not given". @name: for messages; %NULL: defaults.
 * Errors: RP_RUN_FILE_ERROR_SYNTAX, RP_RUN_FILE_ERROR_KEY, RP_RUN_FILE_ERROR_VALUE */
gboolean rp_run_entries_read(RpRunEntries *entries, const char *name, const char *text,
                             gsize length, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Sets what one `key=value` of the command line sets. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_run_entries_set(RpRunEntries *entries, const char *word,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What is set, as YAML. @lines: (out) (optional) (transfer container): the entry of each line, or
 * %NULL for a group's. */
char *rp_run_entries_to_yaml(const RpRunEntries *entries, GPtrArray **lines);

/* Blames the file or the command line: "PLACE: KEY: MESSAGE". @code: RpRunFileError */
void rp_run_entry_fail(const RpRunEntry *entry, GError **error, int code, const char *format, ...)
    G_GNUC_PRINTF(4, 5);
