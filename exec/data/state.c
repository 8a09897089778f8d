#include "exec/data/state.h"

#include <string.h>

#include "core/json/json-pull.h"
#include "core/json/json-write.h"
#include "exec/data/dataset.h"

typedef struct {
    const char *key;
    gsize offset;
} Field;

static const Field fields[] = {
    {"samples", G_STRUCT_OFFSET(RpDataState, n_samples)},
    {"fingerprint", G_STRUCT_OFFSET(RpDataState, fingerprint)},
    {"seed", G_STRUCT_OFFSET(RpDataState, seed)},
    {"epoch", G_STRUCT_OFFSET(RpDataState, epoch)},
    {"position", G_STRUCT_OFFSET(RpDataState, position)},
    {"iterations", G_STRUCT_OFFSET(RpDataState, n_iterations)},
    {"tokens", G_STRUCT_OFFSET(RpDataState, n_tokens)},
    {"targets", G_STRUCT_OFFSET(RpDataState, n_targets)},
    {"truncated", G_STRUCT_OFFSET(RpDataState, n_truncated)},
    {"cut_tokens", G_STRUCT_OFFSET(RpDataState, n_cut_tokens)},
    {"dropped", G_STRUCT_OFFSET(RpDataState, n_dropped)},
};

/* Bits of what was read: one a field, then these. */
#define SEEN_FORMAT (1u << G_N_ELEMENTS(fields))
#define SEEN_SHUFFLE (2u << G_N_ELEMENTS(fields))
#define SEEN_ALL ((4u << G_N_ELEMENTS(fields)) - 1)

char *
rp_data_state_to_json(const RpDataState *state)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_string(json, "format",
                   state->sampled ? RP_DATA_STATE_OLD_FORMAT : RP_DATA_STATE_FORMAT);
    rp_json_bool(json, "shuffle", state->shuffle);
    for (gsize i = 0; i < G_N_ELEMENTS(fields); i++)
        rp_json_uint(json, fields[i].key, G_STRUCT_MEMBER(guint64, state, fields[i].offset));
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

static gboolean
read_format(RpJsonPull *pull, GString *scratch, gboolean *sampled)
{
    if (!rp_json_pull_string(pull, scratch))
        return FALSE;
    *sampled = strcmp(scratch->str, RP_DATA_STATE_OLD_FORMAT) == 0;
    return *sampled || strcmp(scratch->str, RP_DATA_STATE_FORMAT) == 0 ||
           rp_json_pull_fail_value(pull, "\"" RP_DATA_STATE_FORMAT "\"");
}

/* The value of @key; sets its bit of @seen. */
static gboolean
read_member(RpJsonPull *pull, GString *key, RpDataState *state, guint *seen)
{
    guint bit = 0;
    gsize i = 0;

    if (strcmp(key->str, "format") == 0)
        bit = SEEN_FORMAT;
    else if (strcmp(key->str, "shuffle") == 0)
        bit = SEEN_SHUFFLE;
    for (; bit == 0 && i < G_N_ELEMENTS(fields); i++) {
        if (strcmp(key->str, fields[i].key) == 0) {
            bit = 1u << i;
            break;
        }
    }
    if (bit == 0)
        return rp_json_pull_fail_value(pull, "a key of " RP_DATA_STATE_FORMAT);
    if (*seen & bit)
        return rp_json_pull_fail_value(pull, "each key once");
    *seen |= bit;
    if (bit == SEEN_FORMAT)
        return read_format(pull, key, &state->sampled);
    if (bit == SEEN_SHUFFLE)
        return rp_json_pull_boolean(pull, &state->shuffle);
    return rp_json_pull_whole(pull, &G_STRUCT_MEMBER(guint64, state, fields[i].offset));
}

static gboolean
fail_missing(RpJsonPull *pull, guint seen)
{
    const char *missing = seen & SEEN_FORMAT ? "shuffle" : "format";

    for (gsize i = 0; i < G_N_ELEMENTS(fields); i++) {
        if (!(seen & (1u << i)))
            missing = fields[i].key;
    }
    g_autofree char *expected = g_strdup_printf("the key \"%s\" too", missing);
    return rp_json_pull_fail(pull, expected);
}

gboolean
rp_data_state_parse(const char *name, const char *text, gsize length, RpDataState *state,
                    GError **error)
{
    g_autoptr(GString) key = g_string_new(NULL);
    RpDataState read = {0};
    RpJsonPull pull;
    guint seen = 0;

    g_return_val_if_fail(name && (text || length == 0) && state, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    if (!rp_json_pull_init(&pull, name, text, length, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE,
                           error) ||
        !rp_json_pull_enter_object(&pull))
        return FALSE;
    while (rp_json_pull_next_key(&pull, key)) {
        if (!read_member(&pull, key, &read, &seen))
            return FALSE;
    }
    if (pull.failed || !rp_json_pull_end(&pull))
        return FALSE;
    if (seen != SEEN_ALL)
        return fail_missing(&pull, seen);
    if (read.n_samples == 0 || read.n_samples > G_MAXINT64 || read.position > read.n_samples) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE,
                    "%s: expected a position of at most the number of samples, "
                    "found %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT,
                    name, read.position, read.n_samples);
        return FALSE;
    }
    *state = read;
    return TRUE;
}
