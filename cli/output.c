/* Tables and CSV. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

struct _RpCliTable {
    guint n_columns;
    gboolean *left;
    GPtrArray *cells; /* headings first, row by row */
};

RpCliTable *
rp_cli_table_new(const char *const *columns)
{
    RpCliTable *table = g_new0(RpCliTable, 1);

    table->n_columns = g_strv_length((char **)columns);
    table->left = g_new0(gboolean, table->n_columns);
    table->cells = g_ptr_array_new_with_free_func(g_free);
    for (guint i = 0; i < table->n_columns; i++) {
        table->left[i] = columns[i][0] == '<';
        g_ptr_array_add(table->cells, g_strdup(columns[i] + (table->left[i] ? 1 : 0)));
    }
    return table;
}

void
rp_cli_table_free(RpCliTable *table)
{
    if (table == NULL)
        return;
    g_ptr_array_unref(table->cells);
    g_free(table->left);
    g_free(table);
}

void
rp_cli_table_add(RpCliTable *table, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_ptr_array_add(table->cells, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

/* %NULL cells belong to the text before them. */
void
rp_cli_table_span(RpCliTable *table, const char *text)
{
    g_ptr_array_add(table->cells, g_strdup(text));
    while (table->cells->len % table->n_columns != 0)
        g_ptr_array_add(table->cells, NULL);
}

static gboolean
spans(const RpCliTable *table, guint cell)
{
    return (cell + 1) % table->n_columns != 0 && cell + 1 < table->cells->len &&
           g_ptr_array_index(table->cells, cell + 1) == NULL;
}

static void
append_cell(const RpCliTable *table, guint cell, long width, GString *line)
{
    guint column = cell % table->n_columns;
    const char *text = g_ptr_array_index(table->cells, cell);
    int padding = spans(table, cell) ? 0 : (int)(width - g_utf8_strlen(text, -1));

    if (table->left[column])
        g_string_append_printf(line, "%s%*s", text, padding, "");
    else
        g_string_append_printf(line, "%*s%s", padding, "", text);
    g_string_append(line, "  ");
}

void
rp_cli_table_print(const RpCliTable *table)
{
    g_autofree long *widths = g_new0(long, table->n_columns);
    g_autoptr(GString) line = g_string_new(NULL);

    for (guint i = 0; i < table->cells->len; i++) {
        long *width = &widths[i % table->n_columns];
        const char *text = g_ptr_array_index(table->cells, i);

        if (text != NULL && !spans(table, i))
            *width = MAX(*width, g_utf8_strlen(text, -1));
    }
    for (guint i = 0; i < table->cells->len; i++) {
        if (g_ptr_array_index(table->cells, i) != NULL)
            append_cell(table, i, widths[i % table->n_columns], line);
        if ((i + 1) % table->n_columns == 0) {
            puts(g_strchomp(line->str));
            g_string_truncate(line, 0);
        }
    }
}

void
rp_csv_append(GString *csv, gboolean last, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    if (strpbrk(text, ",\"\r\n") == NULL) {
        g_string_append(csv, text);
    } else {
        g_auto(GStrv) parts = g_strsplit(text, "\"", -1);
        g_autofree char *doubled = g_strjoinv("\"\"", parts);

        g_string_append_printf(csv, "\"%s\"", doubled);
    }
    g_string_append_c(csv, last ? '\n' : ',');
}

void
rp_cli_print_json(RpJsonWriter *json)
{
    fputs(rp_json_writer_text(json)->str, stdout);
}

void
rp_json_blocks(RpJsonWriter *json, const char *key, const GArray *blocks)
{
    rp_json_array(json, key);
    for (guint i = 0; i < blocks->len; i++)
        rp_json_int(json, NULL, g_array_index(blocks, guint, i));
    rp_json_end(json);
}

void
rp_json_counts(RpJsonWriter *json, const char *key, const RpProfile *profile,
               const RpInterval *stages, guint n)
{
    g_autoptr(GArray) counts = rp_partition_block_counts(profile, stages, n);

    rp_json_blocks(json, key, counts);
}

int
rp_cli_list_catalogue(const char *command, const char *summary, void (*print_table)(void),
                      void (*add_objects)(RpJsonWriter *json), int argc, char **argv)
{
    gboolean as_json = FALSE;
    const GOptionEntry entries[] = {
        {"json", 0, 0, G_OPTION_ARG_NONE, &as_json, "print JSON, with every fact", NULL},
        {0},
    };
    GError *error = NULL;

    if (!rp_cli_parse(NULL, summary, entries, NULL, 0, 0, &argc, &argv, &error))
        return rp_cli_fail(command, error);
    if (!as_json) {
        print_table();
        return RP_EXIT_OK;
    }
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_array(json, NULL);
    add_objects(json);
    rp_json_end(json);
    rp_cli_print_json(json);
    return RP_EXIT_OK;
}
