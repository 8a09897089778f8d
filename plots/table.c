#include "plots/table.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

#include "plots-resources.h"
#include "plots/gnuplot.h"

struct _RpTable {
    GStrv titles;
    GPtrArray *rows; /* GStrv, as long as titles */
};

GStrv
rp_table_split_line(const char *line)
{
    g_autoptr(GStrvBuilder) fields = g_strv_builder_new();
    g_autoptr(GString) field = g_string_new(NULL);
    gboolean quoted = FALSE;

    for (const char *c = line; *c && (quoted || *c != '\r'); c++) {
        if (*c == '"' && quoted && c[1] == '"') {
            g_string_append_c(field, '"');
            c++;
        } else if (*c == '"') {
            quoted = !quoted;
        } else if (*c == ',' && !quoted) {
            g_strv_builder_add(fields, field->str);
            g_string_truncate(field, 0);
        } else {
            g_string_append_c(field, *c);
        }
    }
    g_strv_builder_add(fields, field->str);
    return quoted ? NULL : g_strv_builder_end(fields);
}

RpTable *
rp_table_parse(const char *text, GError **error)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autoptr(RpTable) table = g_new0(RpTable, 1);

    table->rows = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
    for (guint i = 0; lines[i] != NULL; i++) {
        if (*lines[i] == '#' || *lines[i] == '\r' || *lines[i] == '\0')
            continue;
        g_auto(GStrv) fields = rp_table_split_line(lines[i]);
        if (fields == NULL ||
            (table->titles != NULL && g_strv_length(fields) != g_strv_length(table->titles)))
            return rp_null(rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
                                   "line %u: expected %u fields with closed quotes, found \"%s\"",
                                   i + 1, table->titles != NULL ? g_strv_length(table->titles) : 1,
                                   lines[i]));
        if (table->titles != NULL)
            g_ptr_array_add(table->rows, g_steal_pointer(&fields));
        else
            table->titles = g_steal_pointer(&fields);
    }
    if (table->titles == NULL)
        return rp_null(rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
                               "expected a line of column titles, found nothing"));
    return g_steal_pointer(&table);
}

/* GLib registers them at their first use: a second thread that comes meanwhile would find none. */
static GResource *
built_in_files(void)
{
    static gsize files;

    if (g_once_init_enter(&files))
        g_once_init_leave(&files, (gsize)rp_plots_get_resource());
    return (GResource *)files;
}

char *
rp_table_built_in(const char *file)
{
    g_autofree char *path = g_strconcat("/roundpipe/", file, NULL);
    g_autoptr(GBytes) bytes =
        g_resource_lookup_data(built_in_files(), path, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);

    g_assert(bytes != NULL);
    gsize length = 0;
    const char *data = g_bytes_get_data(bytes, &length);
    return g_strndup(data, length);
}

RpTable *
rp_table_published(const char *file)
{
    g_autofree char *text = rp_table_built_in(file);
    RpTable *table = rp_table_parse(text, NULL);

    g_assert(table != NULL);
    return table;
}

void
rp_table_free(RpTable *table)
{
    if (table == NULL)
        return;
    g_strfreev(table->titles);
    g_ptr_array_unref(table->rows);
    g_free(table);
}

guint
rp_table_n_rows(const RpTable *table)
{
    return table->rows->len;
}

const char *
rp_table_text(const RpTable *table, guint row, const char *column)
{
    g_return_val_if_fail(row < table->rows->len, NULL);
    const GStrv fields = g_ptr_array_index(table->rows, row);

    for (guint i = 0; table->titles[i] != NULL; i++)
        if (strcmp(table->titles[i], column) == 0)
            return fields[i];
    return NULL;
}

double
rp_table_number(const RpTable *table, guint row, const char *column)
{
    const char *text = rp_table_text(table, row, column);
    char *end = NULL;

    if (text == NULL)
        return NAN;
    double value = g_ascii_strtod(text, &end);
    return end != text && *end == '\0' ? value : NAN;
}

guint
rp_table_find(const RpTable *table, const char *column1, const char *value1, const char *column2,
              const char *value2)
{
    for (guint row = 0; row < table->rows->len; row++)
        if (g_strcmp0(rp_table_text(table, row, column1), value1) == 0 &&
            g_strcmp0(rp_table_text(table, row, column2), value2) == 0)
            return row;
    return RP_TABLE_NONE;
}
