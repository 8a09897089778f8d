/**
 * One JSON object of a file and how to name it in messages. The readers below leave their output
 * alone when the key is absent (so it keeps its default) or wrong, and then set a one-line error
 * such as `file: layers[2].forward_ms: expected milliseconds from 0 to 1e9, found -1`.
 */
#pragma once

#include <json-glib/json-glib.h>

#include "core/profile/profile.h"

#define RP_PROFILE_MAX_STRING 4096

typedef struct {
    const char *file;
    char *place; /* "layers[2]"; "" for the whole file */
    JsonObject *object;
    GError **error;
} RpSection;

void rp_section_clear(RpSection *section);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpSection, rp_section_clear)

/* Opens the object @key as @inner; @found is FALSE if it is not there. */
gboolean rp_section_open(const RpSection *section, const char *key, RpSection *inner,
                         gboolean *found);

/* "layers[2].forward_ms"; "the file" for a NULL @key of the outermost object. (transfer full) */
char *rp_section_place(const RpSection *section, const char *key);

/* Set the error, return FALSE for the caller to pass on; @key may be NULL for the object itself. */
gboolean rp_section_fail(const RpSection *section, RpProfileError code, const char *key,
                         const char *expected, const char *found);
gboolean rp_section_fail_value(const RpSection *section, const char *key, const char *expected);

/* Every key of the object is one of @known; the error suggests the nearest. */
gboolean rp_section_check_keys(const RpSection *section, const char *const *known);

gboolean rp_section_number(const RpSection *section, const char *key, double min, double max,
                           const char *expected, double *value);
/* Milliseconds of 0 to 1e9, to nanoseconds. */
gboolean rp_section_time(const RpSection *section, const char *key, gint64 *time_ns);
/* Whole bytes of 0 to 2^50. */
gboolean rp_section_size(const RpSection *section, const char *key, guint64 *bytes);
/* A whole number of 1 to @max. */
gboolean rp_section_count(const RpSection *section, const char *key, guint max, guint *count);
/* One line of at most @max_length bytes. Frees and replaces *@text. */
gboolean rp_section_string(const RpSection *section, const char *key, gsize max_length,
                           char **text);
gboolean rp_section_choice(const RpSection *section, const char *key, const char *const *choices,
                           char **text);
gboolean rp_section_date(const RpSection *section, const char *key, char **date);

/* Whether @node is whole bytes of 0 to 2^50. */
gboolean rp_json_node_size(JsonNode *node, guint64 *bytes);
/* What @node is, for "found …"; @node may be NULL. (transfer full) */
char *rp_json_node_describe(JsonNode *node);
