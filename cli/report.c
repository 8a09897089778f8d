/* A command's answer: JSON is written as it comes, text is kept as nodes until it is printed. */
#include "cli/report-private.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/units.h"

#define LABEL_WIDTH 17

static void
node_clear(gpointer data)
{
    RpNode *node = data;

    g_free(node->key);
    g_free(node->label);
    g_free(node->text);
    g_free(node->csv);
}

RpReport *
rp_report_new(RpReportForm form)
{
    RpReport *report = g_new0(RpReport, 1);

    report->form = form;
    report->label_width = LABEL_WIDTH;
    report->json = rp_json_writer_new(RP_JSON_LINES);
    report->nodes = g_array_new(FALSE, TRUE, sizeof(RpNode));
    report->open = g_array_new(FALSE, FALSE, sizeof(guint));
    g_array_set_clear_func(report->nodes, node_clear);
    return report;
}

void
rp_report_free(RpReport *report)
{
    g_array_unref(report->nodes);
    g_array_unref(report->open);
    rp_json_writer_free(report->json);
    g_free(report);
}

/* ---- nodes ---- */

static RpNode *
last(RpReport *report)
{
    return rp_report_node(report, report->nodes->len - 1);
}

/* In JSON stands what has a key, or is an item of a list that does, or all of it. @text, @csv:
 * (transfer full) */
static gboolean
add(RpReport *report, RpNodeKind kind, const char *key, const char *label, char *text, char *csv)
{
    const guint depth = report->open->len;
    const RpNode *around =
        depth > 0 ? rp_report_node(report, g_array_index(report->open, guint, depth - 1)) : NULL;
    const gboolean list = kind == RP_NODE_LIST || kind == RP_NODE_TABLE;
    const gboolean item = around != NULL ? around->kind != RP_NODE_OBJECT && !around->hidden
                                         : list && report->nodes->len == 0;
    RpNode node = {
        .kind = kind,
        .hidden = key == NULL && !item,
        .key = g_strdup(key),
        .label = g_strdup(label),
        .text = text,
        .csv = csv,
        .label_width = report->label_width,
    };

    if (report->nodes->len == 0 && !(list && key == NULL))
        rp_json_object(report->json, NULL);
    g_array_append_val(report->nodes, node);
    return !node.hidden;
}

static void
begin(RpReport *report, RpNodeKind kind, const char *key, const char *label)
{
    const guint i = report->nodes->len;

    if (add(report, kind, key, label, NULL, NULL)) {
        if (kind == RP_NODE_OBJECT)
            rp_json_object(report->json, key);
        else
            rp_json_array(report->json, key);
    }
    g_array_append_val(report->open, i);
}

void
rp_report_end(RpReport *report)
{
    const guint begin = g_array_index(report->open, guint, report->open->len - 1);

    if (!rp_report_node(report, begin)->hidden)
        rp_json_end(report->json);
    rp_report_node(report, begin)->end = report->nodes->len;
    g_array_set_size(report->open, report->open->len - 1);
    (void)add(report, RP_NODE_END, NULL, NULL, NULL, NULL);
}

void
rp_report_object(RpReport *report, const char *key, const char *label)
{
    begin(report, RP_NODE_OBJECT, key, label);
}

void
rp_report_list(RpReport *report, const char *key)
{
    begin(report, RP_NODE_LIST, key, NULL);
}

void
rp_report_counts(RpReport *report, const char *key, const gint32 *values, gsize n)
{
    rp_report_list(report, key);
    for (gsize i = 0; i < n; i++)
        rp_report_count(report, NULL, values[i], NULL);
    rp_report_end(report);
}

void
rp_report_texts(RpReport *report, const char *key, const GPtrArray *texts)
{
    rp_report_list(report, key);
    for (guint i = 0; i < texts->len; i++)
        rp_report_text(report, NULL, g_ptr_array_index(texts, i), NULL);
    rp_report_end(report);
}

void
rp_report_table(RpReport *report, const char *key, const char *drop, guint most)
{
    begin(report, RP_NODE_TABLE, key, drop);
    last(report)->most = most;
}

void
rp_report_columns(RpReport *report, const char *key, const char *heading)
{
    begin(report, RP_NODE_COLUMNS, key, heading);
}

/* ---- figures ---- */

void
rp_report_text(RpReport *report, const char *key, const char *value, const char *label)
{
    if (add(report, RP_NODE_FIGURE, key, label, g_strdup(value != NULL ? value : "-"),
            g_strdup(value)))
        rp_json_string(report->json, key, value);
}

void
rp_report_whole_text(RpReport *report, const char *key, const GString *value, const char *label)
{
    if (add(report, RP_NODE_FIGURE, key, label, g_strdup(value->str), g_strdup(value->str)))
        rp_json_bytes(report->json, key, value->str, value->len);
}

void
rp_report_bool(RpReport *report, const char *key, gboolean value, const char *label)
{
    if (add(report, RP_NODE_FIGURE, key, label, g_strdup(value ? "yes" : "no"),
            g_strdup(value ? "1" : "0")))
        rp_json_bool(report->json, key, value);
}

void
rp_report_count(RpReport *report, const char *key, gint64 value, const char *label)
{
    char *text = g_strdup_printf("%" G_GINT64_FORMAT, value);

    if (add(report, RP_NODE_FIGURE, key, label, text, g_strdup(text)))
        rp_json_int(report->json, key, value);
}

void
rp_report_bytes(RpReport *report, const char *key, guint64 value, const char *label)
{
    if (add(report, RP_NODE_FIGURE, key, label,
            value > 0 ? rp_cli_format_bytes(value) : g_strdup("-"),
            g_strdup_printf("%" G_GUINT64_FORMAT, value)))
        rp_json_int(report->json, key, (gint64)value);
}

/* @factor: of the value for people and in CSV */
static void
add_decimal(RpReport *report, const char *key, double value, guint digits, const char *label,
            double factor, const char *format)
{
    if (add(report, RP_NODE_FIGURE, key, label, g_strdup_printf(format, factor * value),
            g_strdup_printf("%.*f", (int)MIN(digits, 6), factor * value)))
        rp_json_double(report->json, key, value, digits);
}

void
rp_report_ms(RpReport *report, const char *key, gint64 ns, const char *label)
{
    add_decimal(report, key, rp_ms_from_ns(ns), 6, label, 1, report->sign ? "%+.3f" : "%.3f");
}

void
rp_report_ratio(RpReport *report, const char *key, double value, const char *label)
{
    add_decimal(report, key, value, 9, label, 100, report->sign ? "%+.3f" : "%.3f");
}

void
rp_report_rate(RpReport *report, const char *key, double value, const char *label)
{
    add_decimal(report, key, value, 3, label, 1, value > 0 ? "%.0f" : "-");
}

void
rp_report_real(RpReport *report, const char *key, double value, guint digits, const char *label)
{
    add_decimal(report, key, value, digits, label, 1, "%g");
}

/* ---- for people ---- */

void
rp_report_show(RpReport *report, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_free(last(report)->text);
    last(report)->text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
}

void
rp_report_show_percent(RpReport *report, double percent, guint least)
{
    rp_report_show(report, "%.*f", (int)rp_percent_decimals(percent, least), percent);
}

void
rp_report_percent(RpReport *report, const char *label, double percent, guint least)
{
    rp_report_line(report, label, "%.*f", (int)rp_percent_decimals(percent, least), percent);
}

void
rp_report_words(RpReport *report, RpNodeKind kind, const char *label, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)add(report, kind, NULL, label, g_strdup_vprintf(format, arguments), NULL);
    va_end(arguments);
}

/* ---- printing ---- */

void
rp_report_flush(RpReport *report)
{
    if (report->form == RP_REPORT_JSON || report->muted)
        return;
    rp_report_print_text(report);
    report->printed = report->nodes->len;
    (void)fflush(stdout);
}

char *
rp_report_to_json(const RpReport *report, const char *unfinished)
{
    return rp_json_writer_so_far(report->json, unfinished);
}

void
rp_report_finish(RpReport *report)
{
    rp_report_flush(report);
    if (report->form != RP_REPORT_JSON || report->printed == report->nodes->len)
        return;
    g_autofree char *json = rp_report_to_json(report, NULL);

    fputs(json, stdout);
    report->printed = report->nodes->len;
    (void)fflush(stdout);
}

/* ---- CSV ---- */

static void
append_field(GString *csv, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        g_string_append(csv, text);
        return;
    }
    g_auto(GStrv) parts = g_strsplit(text, "\"", -1);
    g_autofree char *doubled = g_strjoinv("\"\"", parts);

    g_string_append_printf(csv, "\"%s\"", doubled);
}

char *
rp_report_to_csv(const RpReport *report, const char *key, const char *columns)
{
    g_auto(GStrv) names = g_strsplit(columns, ",", -1);
    GString *csv = g_string_new(NULL);
    guint table = 0;

    for (char **name = names; *name != NULL; name++) {
        char *equal = strchr(*name, '=');

        g_string_append_printf(csv, "%s%s", name > names ? "," : "",
                               equal != NULL ? equal + 1 : *name);
        if (equal != NULL)
            *equal = '\0';
    }
    while (g_strcmp0(rp_report_node(report, table)->key, key) != 0)
        table++;
    for (guint row = table + 1; row < rp_report_node(report, table)->end;
         row = rp_report_node(report, row)->end + 1)
        for (char **name = names; *name != NULL; name++) {
            g_string_append_c(csv, name > names ? ',' : '\n');
            for (guint i = row; i < rp_report_node(report, row)->end; i++)
                if (g_strcmp0(rp_report_node(report, i)->key, *name) == 0 &&
                    rp_report_node(report, i)->csv != NULL)
                    append_field(csv, rp_report_node(report, i)->csv);
        }
    g_string_append_c(csv, '\n');
    return g_string_free(csv, FALSE);
}
