#include "paper-figs/paper.h"

#include <math.h>
#include <string.h>

#include "core/catalogue/catalogue.h"
#include "plots/table.h"

static void
free_row(gpointer data)
{
    RpMeasured *row = data;

    g_free(row->model);
    g_free(row->title);
    g_free(row->schedule);
    g_free(row->mode);
    g_free(row->consistency);
    g_free(row->device_memory);
    g_free(row->device);
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
refuse(const char *file, guint index, const char *column, const char *expected, const char *found,
       GError **error)
{
    g_set_error(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
                "%s: row %u, column %s: expected %s, found \"%s\"", file, index + 1, column,
                expected, found != NULL ? found : "no such column");
    return FALSE;
}

typedef struct {
    const RpTable *table;
    const char *file;
    guint index;
} Place;

static gboolean
read_text(const Place *place, const char *column, char **value, GError **error)
{
    const char *text = rp_table_text(place->table, place->index, column);

    if (text == NULL || (*text == '\0' && strcmp(column, "device_memory") != 0))
        return refuse(place->file, place->index, column, "a text", text, error);
    *value = g_strdup(text);
    return TRUE;
}

static gboolean
read_number(const Place *place, const char *column, double *value, GError **error)
{
    const char *text = rp_table_text(place->table, place->index, column);

    *value = rp_table_number(place->table, place->index, column);
    if (!isfinite(*value) || *value <= 0)
        return refuse(place->file, place->index, column, "a positive number", text, error);
    return TRUE;
}

static gboolean
read_count(const Place *place, const char *column, guint *value, GError **error)
{
    const char *text = rp_table_text(place->table, place->index, column);
    guint64 number = 0;

    if (text == NULL || !g_ascii_string_to_unsigned(text, 10, 1, G_MAXUINT, &number, NULL))
        return refuse(place->file, place->index, column, "a whole number from 1", text, error);
    *value = (guint)number;
    return TRUE;
}

static gboolean
read_row(const Place *place, RpMeasured *row, GError **error)
{
    if (!read_text(place, "model", &row->model, error) ||
        !read_text(place, "schedule", &row->schedule, error) ||
        !read_text(place, "mode", &row->mode, error) ||
        !read_text(place, "consistency", &row->consistency, error) ||
        !read_text(place, "device_memory", &row->device_memory, error) ||
        !read_text(place, "device", &row->device, error) ||
        !read_count(place, "gpus", &row->gpus, error) ||
        !read_count(place, "sequence", &row->sequence, error) ||
        !read_count(place, "micro_batch", &row->micro_batch, error) ||
        !read_count(place, "micro_batches", &row->micro_batches, error) ||
        !read_number(place, "tokens_per_step", &row->tokens, error) ||
        !read_number(place, "tokens_per_s", &row->tokens_per_s, error))
        return FALSE;
    row->title = model_title(row->model);
    row->predicted_tokens_per_s =
        rp_table_number(place->table, place->index, "predicted_tokens_per_s");
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

    if (table == NULL) {
        g_prefix_error(error, "%s: ", file);
        return NULL;
    }
    for (guint i = 0; i < rp_table_n_rows(table); i++) {
        const Place place = {table, file, i};
        RpMeasured *row = g_new0(RpMeasured, 1);

        if (!read_row(&place, row, error)) {
            free_row(row);
            return NULL;
        }
        add(rows, row);
    }
    if (rows->len > 0)
        return g_steal_pointer(&rows);
    g_set_error(error, RP_PLOT_ERROR, RP_PLOT_ERROR_EMPTY,
                "%s has no measured rows yet: paper-figs/measure adds them (docs/figures.md)",
                file);
    return NULL;
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
