/* Kinds of work by the names of kernels. */
#include "core/recording/recording.h"

#include <string.h>

#include "core/base/quote.h"

G_DEFINE_QUARK(rp - recording - error - quark, rp_recording_error)

#define KINDS "compute, collective, copy or ignore"

static const char *const kind_names[RP_N_WORK_KINDS + 1] = {"compute", "collective", "copy",
                                                            "ignore"};

/* The first that matches decides. Work that none matches is of the kind that its category says: a
 * kernel computes, gpu_memcpy and gpu_memset copy. */
static const struct {
    const char *pattern;
    RpWorkKind kind;
} table[] = {
    {"nccl*", RP_WORK_COLLECTIVE}, /* NCCL, and RCCL, which kept the names */
    {"mscclpp*", RP_WORK_COLLECTIVE},
    {"nvshmem*", RP_WORK_COLLECTIVE},
    {"*multimem_all_*", RP_WORK_COLLECTIVE}, /* PyTorch's own, over symmetric memory */
    {"*one_shot_all_reduce*", RP_WORK_COLLECTIVE},
    {"*two_shot_all_reduce*", RP_WORK_COLLECTIVE},
    {"Memcpy*", RP_WORK_COPY},
    {"Memset*", RP_WORK_COPY},
};

typedef struct {
    GPatternSpec *spec;
    RpWorkKind kind;
} Row;

struct _RpWorkPatterns {
    GArray *rows; /* (element-type Row): added ones first */
};

static void
clear_row(gpointer row)
{
    g_pattern_spec_free(((Row *)row)->spec);
}

static GArray *
rows_new(void)
{
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(Row));

    g_array_set_clear_func(rows, clear_row);
    return rows;
}

const char *
rp_work_kind_name(RpWorkKind kind)
{
    return kind_names[kind];
}

RpWorkPatterns *
rp_work_patterns_new(void)
{
    RpWorkPatterns *patterns = g_new(RpWorkPatterns, 1);

    patterns->rows = rows_new();
    for (gsize i = 0; i < G_N_ELEMENTS(table); i++) {
        const Row row = {g_pattern_spec_new(table[i].pattern), table[i].kind};

        g_array_append_val(patterns->rows, row);
    }
    return patterns;
}

void
rp_work_patterns_free(RpWorkPatterns *patterns)
{
    if (patterns == NULL)
        return;
    g_array_unref(patterns->rows);
    g_free(patterns);
}

/* Adds the row of a line, if it has one. Kernels' names have spaces: the last word is the kind. */
static gboolean
add_line(GArray *rows, const char *name, guint number, char *line, GError **error)
{
    g_strstrip(line);
    if (*line == '\0' || *line == '#')
        return TRUE;
    char *word = line + strlen(line);

    while (word > line && !g_ascii_isspace(word[-1]))
        word--;
    for (guint kind = 0; kind < G_N_ELEMENTS(kind_names) && word > line; kind++) {
        if (strcmp(word, kind_names[kind]) != 0)
            continue;
        word[-1] = '\0';
        const Row row = {g_pattern_spec_new(g_strchomp(line)), (RpWorkKind)kind};

        g_array_append_val(rows, row);
        return TRUE;
    }
    g_autofree char *found = rp_quote(line);
    return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_KINDS,
                   "%s: line %u: expected PATTERN KIND, where KIND is " KINDS ", found %s", name,
                   number, found);
}

gboolean
rp_work_patterns_add(RpWorkPatterns *patterns, const char *name, const char *text, gsize length,
                     GError **error)
{
    g_autofree char *shown = rp_display_name(name);
    g_autoptr(GArray) rows = rows_new();

    if (!g_utf8_validate_len(text, length, NULL))
        return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_KINDS,
                       "%s: expected text of lines PATTERN KIND, found bytes that are not UTF-8",
                       shown);
    g_autofree char *copy = g_strndup(text, length);
    g_auto(GStrv) lines = g_strsplit(copy, "\n", -1);

    for (guint i = 0; lines[i] != NULL; i++)
        if (!add_line(rows, shown, i + 1, lines[i], error))
            return FALSE;
    g_array_set_clear_func(rows, NULL); /* the rows move */
    g_array_prepend_vals(patterns->rows, rows->data, rows->len);
    return TRUE;
}

RpWorkKind
rp_work_patterns_match(const RpWorkPatterns *patterns, const char *name, RpWorkKind other)
{
    const gsize length = strlen(name);

    for (guint i = 0; i < patterns->rows->len; i++) {
        const Row *row = &g_array_index(patterns->rows, Row, i);

        if (g_pattern_spec_match(row->spec, length, name, NULL))
            return row->kind;
    }
    return other;
}
