/* The table of which server's files have which elements of a weight. */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <string.h>

#include "core/base/quote.h"

/* Errors of checkpoints. */

G_DEFINE_QUARK(rp_checkpoint_error, rp_checkpoint_error)

gboolean
rp_checkpoint_fail(GError **error, RpCheckpointError code, const char *path, const char *format,
                   ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail_in(error, path, RP_CHECKPOINT_ERROR, code, "%s", message);
}

gboolean
rp_checkpoint_fail_errno(GError **error, const char *verb, const char *path, int number)
{
    g_autofree char *shown = rp_display_name(path);

    return rp_fail(error, RP_CHECKPOINT_ERROR,
                   number == ENOSPC || number == EDQUOT ? RP_CHECKPOINT_ERROR_NO_SPACE
                                                        : RP_CHECKPOINT_ERROR_WRITE,
                   "cannot %s \"%s\": %s", verb, shown, g_strerror(number));
}

gboolean
rp_checkpoint_fail_as(GError **error, RpCheckpointError code, GError *cause)
{
    g_set_error_literal(error, RP_CHECKPOINT_ERROR, code, cause->message);
    g_error_free(cause);
    return FALSE;
}

#define SUFFIX ".safetensors"

/* A row of the table has three numbers: server, first element, end. */
#define NUMBERS 3

void
rp_checkpoint_parts_clear(RpCheckpointParts *parts)
{
    g_clear_pointer(&parts->parts, g_hash_table_unref);
}

/* "-server-2-of-4": behind a file's stem. (transfer full) */
static char *
server_mark(guint server, guint n_servers)
{
    return g_strdup_printf("-server-%u-of-%u", server, n_servers);
}

char *
rp_checkpoint_server_file(const char *name, guint server, guint n_servers)
{
    g_autofree char *mark = server_mark(server, n_servers);
    g_autofree char *stem = g_strndup(name, strlen(name) - strlen(SUFFIX));

    return n_servers == 1 ? g_strdup(name) : g_strconcat(stem, mark, SUFFIX, NULL);
}

gboolean
rp_checkpoint_is_server_file(const char *name, guint server, guint n_servers)
{
    g_autofree char *mark = server_mark(server, n_servers);
    const char *at = strstr(name, mark);

    return at != NULL && (at[strlen(mark)] == '.' || at[strlen(mark)] == '-');
}

RpWeight
rp_checkpoint_part_weight(const RpWeight *weight, guint n_servers, guint64 n)
{
    RpWeight part = *weight;

    if (n_servers > 1) {
        part.rank = 1;
        part.shape[0] = part.elements = n;
    }
    return part;
}

/* ---- the table ---- */

void
rp_checkpoint_parts_write(const RpCheckpointImage *image, RpJsonWriter *json)
{
    rp_json_object(json, "parts");
    for (guint i = 0; i < rp_weights_count(image->weights); i++) {
        if (!rp_weight_has_state(rp_weights_nth(image->weights, i)))
            continue;
        rp_json_array(json, rp_weights_nth(image->weights, i)->name);
        for (guint r = 0; r < image->n_servers; r++) {
            const RpShard part = rp_checkpoint_image_share(image, i, r);

            if (part.n == 0)
                continue;
            rp_json_array(json, NULL);
            rp_json_uint(json, NULL, r);
            rp_json_uint(json, NULL, part.first);
            rp_json_uint(json, NULL, part.first + part.n);
            rp_json_end(json);
        }
        rp_json_end(json);
    }
    rp_json_end(json);
}

static gboolean
read_part(RpJsonPull *pull, RpCheckpointPart *part)
{
    guint64 numbers[NUMBERS] = {0};
    guint n = 0;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    for (; rp_json_pull_next_element(pull); n++)
        if (n == NUMBERS || !rp_json_pull_whole(pull, &numbers[n]) || numbers[0] > G_MAXUINT)
            return rp_json_pull_fail_value(pull, "a server, its first element and the one behind "
                                                 "its last");
    *part = (RpCheckpointPart){(guint)numbers[0], numbers[1], numbers[2]};
    return !pull->failed && (n == NUMBERS || rp_json_pull_fail_value(pull, "three numbers"));
}

gboolean
rp_checkpoint_parts_read(RpJsonPull *pull, const RpJsonField *field, gpointer table)
{
    GHashTable *parts = *(GHashTable **)table;
    GArray *of = g_array_new(FALSE, FALSE, sizeof(RpCheckpointPart));

    if (!g_hash_table_insert(parts, g_strdup(pull->key), of))
        return rp_json_pull_fail_value(pull, "each weight once");
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        RpCheckpointPart part;
        if (!read_part(pull, &part))
            return FALSE;
        g_array_append_val(of, part);
    }
    return !pull->failed;
}

static GArray *
fail_parts(const char *path, const RpWeight *weight, GError **error)
{
    g_autofree char *manifest = g_build_filename(path, RP_CHECKPOINT_MANIFEST, NULL);

    return rp_null(rp_checkpoint_fail(
        error, RP_CHECKPOINT_ERROR_CORRUPT, manifest,
        "parts: %s: expected parts of its servers that end where the next begins, "
        "%" G_GUINT64_FORMAT " elements in all, found others",
        weight->name, weight->elements));
}

GArray *
rp_checkpoint_parts_of(const RpCheckpointParts *parts, const char *path, const RpWeight *weight,
                       GError **error)
{
    const RpCheckpointPart all = {0, 0, weight->elements};
    g_autoptr(GArray) of = NULL;
    guint64 at = 0;

    if (parts->n_servers == 1) {
        of = g_array_new(FALSE, FALSE, sizeof all);
        g_array_append_val(of, all);
        return g_steal_pointer(&of);
    }
    of = g_hash_table_lookup(parts->parts, weight->name);
    if (of == NULL)
        return fail_parts(path, weight, error);
    g_array_ref(of);
    for (guint i = 0; i < of->len; i++) {
        const RpCheckpointPart *part = &g_array_index(of, RpCheckpointPart, i);

        if (part->server >= parts->n_servers || part->first != at || part->end <= at)
            return fail_parts(path, weight, error);
        at = part->end;
    }
    return at == weight->elements ? g_steal_pointer(&of) : fail_parts(path, weight, error);
}

RpShard
rp_checkpoint_image_share(const RpCheckpointImage *image, guint index, guint server)
{
    return image->parts != NULL ? image->parts[(gsize)index * image->n_servers + server]
                                : (RpShard){0, rp_weights_nth(image->weights, index)->elements};
}

RpWeight
rp_checkpoint_image_part(const RpCheckpointImage *image, guint index)
{
    return rp_checkpoint_part_weight(rp_weights_nth(image->weights, index), image->n_servers,
                                     rp_checkpoint_image_share(image, index, image->server).n);
}
