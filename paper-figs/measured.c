#include "paper-figs/paper.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/catalogue/catalogue.h"
#include "plots/table.h"

/* Columns by the type of their member. */
static const struct {
    const char *column;
    enum { TEXT, COUNT, NUMBER } type;
    gsize offset;
} columns[] = {
    {"model", TEXT, offsetof(RpMeasured, model)},
    {"schedule", TEXT, offsetof(RpMeasured, schedule)},
    {"mode", TEXT, offsetof(RpMeasured, mode)},
    {"consistency", TEXT, offsetof(RpMeasured, consistency)},
    {"device_memory", TEXT, offsetof(RpMeasured, device_memory)},
    {"device", TEXT, offsetof(RpMeasured, device)},
    {"gpus", COUNT, offsetof(RpMeasured, gpus)},
    {"sequence", COUNT, offsetof(RpMeasured, sequence)},
    {"micro_batch", COUNT, offsetof(RpMeasured, micro_batch)},
    {"micro_batches", COUNT, offsetof(RpMeasured, micro_batches)},
    {"tokens_per_step", NUMBER, offsetof(RpMeasured, tokens)},
    {"tokens_per_s", NUMBER, offsetof(RpMeasured, tokens_per_s)},
};

static void
free_row(gpointer data)
{
    RpMeasured *row = data;

    for (guint c = 0; c < G_N_ELEMENTS(columns) && columns[c].type == TEXT; c++)
        g_free(G_STRUCT_MEMBER(char *, row, columns[c].offset));
    g_free(row->title);
    g_free(row);
}

/* As Hugging Face calls it, without the owner; a model that the catalogue lacks keeps its name. */
static char *
model_title(const char *name)
{
    const RpModel *model = rp_model_find(name, NULL);
    const char *slash = model != NULL ? strrchr(model->hf_name, '/') : NULL;

    return g_strdup(slash != NULL ? slash + 1 : name);
}

static gboolean
read_row(const RpTable *table, const char *file, guint index, RpMeasured *row, GError **error)
{
    static const char *const expected[] = {"a text", "a whole number from 1", "a positive number"};

    for (guint c = 0; c < G_N_ELEMENTS(columns); c++) {
        const char *column = columns[c].column, *text = rp_table_text(table, index, column);
        const double value = rp_table_number(table, index, column);
        gpointer member = G_STRUCT_MEMBER_P(row, columns[c].offset);
        guint64 number = 0;
        gboolean good = text != NULL;

        if (columns[c].type == TEXT) {
            good = good && (*text != '\0' || strcmp(column, "device_memory") == 0);
            *(char **)member = g_strdup(text);
        } else if (columns[c].type == COUNT) {
            good = good && g_ascii_string_to_unsigned(text, 10, 1, G_MAXUINT, &number, NULL);
            *(guint *)member = (guint)number;
        } else {
            good = isfinite(value) && value > 0;
            *(double *)member = value;
        }
        if (good)
            continue;
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
                       "%s: row %u, column %s: expected %s, found \"%s\"", file, index + 1, column,
                       expected[columns[c].type], text != NULL ? text : "no such column");
    }
    row->title = model_title(row->model);
    row->predicted_tokens_per_s = rp_table_number(table, index, "predicted_tokens_per_s");
    return TRUE;
}

gboolean
rp_measured_alike(const RpMeasured *a, const RpMeasured *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->schedule, b->schedule) == 0 &&
           strcmp(a->mode, b->mode) == 0 && strcmp(a->device_memory, b->device_memory) == 0 &&
           strcmp(a->device, b->device) == 0;
}

static gboolean
same_configuration(const RpMeasured *a, const RpMeasured *b)
{
    return rp_measured_alike(a, b) && strcmp(a->consistency, b->consistency) == 0 &&
           a->gpus == b->gpus && a->sequence == b->sequence && a->micro_batch == b->micro_batch &&
           a->micro_batches == b->micro_batches;
}

/* Takes @row, in place of an earlier one with the same configuration. */
static void
add(GPtrArray *rows, RpMeasured *row)
{
    for (guint i = 0; i < rows->len; i++) {
        if (!same_configuration(g_ptr_array_index(rows, i), row))
            continue;
        free_row(g_ptr_array_index(rows, i));
        g_ptr_array_index(rows, i) = row;
        return;
    }
    g_ptr_array_add(rows, row);
}

GPtrArray *
rp_measured_parse(const char *text, const char *file, GError **error)
{
    g_autoptr(RpTable) table = rp_table_parse(text, error);
    g_autoptr(GPtrArray) rows = g_ptr_array_new_with_free_func(free_row);

    if (table == NULL)
        return rp_null(rp_prefix_error(error, "%s: ", file));
    for (guint i = 0; i < rp_table_n_rows(table); i++) {
        RpMeasured *row = g_new0(RpMeasured, 1);

        if (!read_row(table, file, i, row, error)) {
            free_row(row);
            return NULL;
        }
        add(rows, row);
    }
    if (rows->len > 0)
        return g_steal_pointer(&rows);
    return rp_null(rp_fail(
        error, RP_PLOT_ERROR, RP_PLOT_ERROR_EMPTY,
        "%s has no measured rows yet: paper-figs/measure adds them (docs/figures.md)", file));
}

char *
rp_measured_title(const RpMeasured *row, gboolean several_devices)
{
    GString *title = g_string_new(row->title);

    g_string_append(title, ", ");
    if (strcmp(row->schedule, "roundpipe") != 0)
        g_string_append_printf(title, "%s ", row->schedule);
    g_string_append(title, row->mode);
    if (*row->device_memory != '\0')
        g_string_append_printf(title, ", %s", row->device_memory);
    if (several_devices)
        g_string_append_printf(title, ", %s", row->device);
    return g_string_free(title, FALSE);
}

double
rp_measured_seconds(const RpMeasured *row)
{
    return row->tokens / row->tokens_per_s;
}

double
rp_measured_predicted_seconds(const RpMeasured *row)
{
    return row->tokens / row->predicted_tokens_per_s;
}

const char *
rp_measured_one_device(const GPtrArray *rows)
{
    const RpMeasured *first = g_ptr_array_index(rows, 0);

    for (guint i = 1; i < rows->len; i++) {
        const RpMeasured *row = g_ptr_array_index(rows, i);

        if (strcmp(row->device, first->device) != 0)
            return NULL;
    }
    return first->device;
}
