/* A command's answer: JSON is written as it comes, text is kept as nodes until it is printed. */
#include "cli/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "core/base/units.h"

typedef struct {
    RpNodeKind kind;
    gboolean hidden; /* from JSON */
    guint end;       /* of what rp_report_end() ends: the node that does */
    guint most;      /* rows of a table; 0: all */
    char *key;
    char *label; /* of a table: columns that it may lose; of columns: heading of the labels */
    char *text;
    char *csv;
    guint label_width;
} RpNode;

static inline RpNode *
node_of(const RpReport *report, guint i)
{
    return &g_array_index(report->nodes, RpNode, i);
}

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
    return node_of(report, report->nodes->len - 1);
}

/* In JSON stands what has a key, or is an item of a list that does, or all of it. @text, @csv:
 * (transfer full) */
static gboolean
add(RpReport *report, RpNodeKind kind, const char *key, const char *label, char *text, char *csv)
{
    const guint depth = report->open->len;
    const RpNode *around =
        depth > 0 ? node_of(report, g_array_index(report->open, guint, depth - 1)) : NULL;
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

    if (!node_of(report, begin)->hidden)
        rp_json_end(report->json);
    node_of(report, begin)->end = report->nodes->len;
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

/* A report for people: lines, sentences and tables that fit the terminal.
 *
 *   name     GPU        memory  TFLOP/s        of 60 columns the least important are left out,
 *   rtx4090  RTX 4090  24.0 GiB   165.2        and named below
 *   (left out: fp16 acc., server; --wide shows them)
 */

#define BOLD "\033[1m"
#define GREEN "\033[32m"
#define RED "\033[31m"
#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

#define DEFAULT_WIDTH 80
#define LEAST_WRAPPED 24 /* columns; text in fewer is not broken */
#define GAP 2            /* between columns */

typedef struct {
    glong width; /* 0: any */
    gboolean colour;
} Page;

static const Page unlimited;

/* As git and ls: $COLUMNS, else the terminal's; whoever reads a pipe has no width. */
static Page
page_of(RpReportForm form)
{
    const char *columns = g_getenv("COLUMNS");
    const gboolean terminal = isatty(STDOUT_FILENO) == 1;
    struct winsize size = {0};
    guint64 width = 0;
    Page page = {.colour = rp_cli_has_colour(STDOUT_FILENO)};

    if (form == RP_REPORT_WIDE)
        return page;
    if (columns != NULL && g_ascii_string_to_unsigned(columns, 10, 1, 10000, &width, NULL))
        page.width = (glong)width;
    else if (terminal)
        page.width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0
                         ? size.ws_col
                         : DEFAULT_WIDTH;
    return page;
}

/* ---- lines ---- */

/* Appends @text to @line, of which @at columns are taken; further lines begin with @indent. */
static void
append_wrapped(GString *line, const char *text, glong at, glong indent, const Page *page)
{
    const glong begin = at;

    if (page->width == 0 || page->width - indent < LEAST_WRAPPED) {
        g_string_append(line, text);
        return;
    }
    while (*text != '\0') {
        const char *end = text + strspn(text, " ");

        end += strcspn(end, " ");
        glong length = g_utf8_strlen(text, end - text);
        if (at > begin && at + length > page->width) {
            g_string_append_printf(line, "\n%*s", (int)indent, "");
            text += strspn(text, " ");
            length = g_utf8_strlen(text, end - text);
            at = indent;
        }
        g_string_append_len(line, text, end - text);
        at += length;
        text = end;
    }
}

static void
print_line(const char *text, glong at, glong indent, const Page *page)
{
    g_autoptr(GString) line = g_string_new(NULL);

    append_wrapped(line, text, at, indent, page);
    puts(g_strchomp(line->str));
}

/* Each line by itself, on under its own beginning. */
static void
print_sentence(const char *text, const Page *page)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (char **line = lines; *line != NULL; line++)
        print_line(*line, 0, (glong)strspn(*line, " ") + 2, page);
}

void
rp_report_print_help(const char *help)
{
    const Page page = page_of(RP_REPORT_TEXT);
    g_auto(GStrv) lines = g_strsplit(help, "\n", -1);
    const guint n = g_strv_length(lines);

    for (guint i = 0; i + 1 < n; i++) { /* nothing follows the last end of a line */
        const char *line = lines[i];
        const char *gap = g_str_has_prefix(line, "  -") ? strstr(line + 2, "  ") : NULL;
        const glong at = gap != NULL ? g_utf8_strlen(line, gap + strspn(gap, " ") - line) : 0;

        if (gap != NULL) {
            printf("%.*s", (int)(gap + strspn(gap, " ") - line), line);
            print_line(gap + strspn(gap, " "), at, at, &page);
        } else if (*line == ' ') {
            puts(line); /* a command to copy */
        } else {
            g_autoptr(GString) whole = g_string_new(line);

            while (page.width > 0 && *line != '\0' && g_ascii_isalnum(*lines[i + 1])) {
                g_string_append_printf(whole, " %s", lines[i + 1]);
                i++;
            }
            print_line(whole->str, 0, 0, &page);
        }
    }
}

static void
print_head(const char *text, const Page *page)
{
    fputs(page->colour ? BOLD : "", stdout);
    print_sentence(text, page);
    fputs(page->colour ? PLAIN : "", stdout);
}

static void
print_figure(const RpNode *node, const Page *page)
{
    const int width = (int)node->label_width;
    const gboolean colour = page->colour && strcmp(node->label, "warning") == 0;

    fputs(colour ? YELLOW : "", stdout);
    printf("  %s%*s ", node->label, MAX(0, width - (int)g_utf8_strlen(node->label, -1)), "");
    print_line(node->text, width + 3, width + 3, page);
    fputs(colour ? PLAIN : "", stdout);
}

/* ---- tables ---- */

#define MOST_COLUMNS 24

typedef struct {
    const char *cells[MOST_COLUMNS]; /* %NULL: none */
    guint n;
    const char *span; /* behind the last, or %NULL */
} Row;

typedef struct {
    const char *headings[MOST_COLUMNS]; /* one that begins with '<' is aligned left */
    glong widths[MOST_COLUMNS];         /* 0: left out */
    guint n;
    GArray *rows; /* Row */
} Grid;

static Row *
add_row(Grid *grid)
{
    g_array_set_size(grid->rows, grid->rows->len + 1);
    return &g_array_index(grid->rows, Row, grid->rows->len - 1);
}

/* A cell of the next column so headed. */
static void
set_cell(Grid *grid, Row *row, const char *heading, const char *text)
{
    guint c = row->n;

    while (c < grid->n && strcmp(grid->headings[c], heading) != 0)
        c++;
    g_assert(c < MOST_COLUMNS);
    if (c == grid->n)
        grid->headings[grid->n++] = heading;
    row->cells[c] = text;
    row->n = c + 1;
}

static const char *
plain(const char *heading)
{
    return heading + (heading[0] == '<' ? 1 : 0);
}

static void
measure(Grid *grid)
{
    for (guint c = 0; c < grid->n; c++) {
        grid->widths[c] = MAX(1, g_utf8_strlen(plain(grid->headings[c]), -1));
        for (guint r = 0; r < grid->rows->len; r++) {
            const char *text = g_array_index(grid->rows, Row, r).cells[c];

            grid->widths[c] = MAX(grid->widths[c], text != NULL ? g_utf8_strlen(text, -1) : 0);
        }
    }
}

/* The longest word of a column. */
static glong
longest_word(const Grid *grid, guint column)
{
    glong longest = 0;

    for (guint r = 0; r < grid->rows->len; r++)
        for (const char *text = g_array_index(grid->rows, Row, r).cells[column];
             text != NULL && *text != '\0'; text += strspn(text, " ")) {
            const gsize bytes = strcspn(text, " ");

            longest = MAX(longest, g_utf8_strlen(text, (gssize)bytes));
            text += bytes;
        }
    return longest;
}

/* Width of the columns that are left; the last, if it is aligned left, may be broken. */
static glong
least_width(const Grid *grid)
{
    glong whole = 0;
    guint last = grid->n;

    while (last > 0 && grid->widths[last - 1] == 0)
        last--;
    for (guint c = 0; c < last; c++)
        whole += grid->widths[c] > 0 ? grid->widths[c] + GAP : 0;
    whole -= GAP;
    if (last > 0 && grid->headings[last - 1][0] == '<')
        whole -= grid->widths[last - 1] -
                 MIN(grid->widths[last - 1], MAX(LEAST_WRAPPED, longest_word(grid, last - 1)));
    return whole;
}

/* Leaves out columns of @drop until the rest fits. Returns: their names */
static char *
fit(Grid *grid, const char *drop, const Page *page)
{
    g_auto(GStrv) names = g_strsplit(drop != NULL ? drop : "", ",", -1);
    GString *dropped = g_string_new(NULL);

    measure(grid);
    for (char **name = names; *name != NULL && page->width > 0 && least_width(grid) > page->width;
         name++)
        for (guint c = 0; c < grid->n; c++) {
            g_autofree char *heading = g_strchomp(g_strdup(plain(grid->headings[c])));

            if (strcmp(heading, *name) != 0)
                continue;
            grid->widths[c] = 0;
            g_string_append_printf(dropped, "%s%s", dropped->len > 0 ? ", " : "", *name);
        }
    return g_string_free(dropped, FALSE);
}

/* @row: %NULL: the headings */
static void
print_row(const Grid *grid, const Row *row, const Page *page)
{
    const char *const *cells = row != NULL ? row->cells : grid->headings;
    g_autoptr(GString) line = g_string_new(NULL);
    guint end = row != NULL ? row->n : grid->n;
    glong at = 0;

    while (end > 0 && grid->widths[end - 1] == 0)
        end--;
    for (guint c = 0; c < end; c++) {
        const char *text = cells[c] != NULL ? cells[c] : "";
        const gboolean left = grid->headings[c][0] == '<';
        const char mark = left || *text == '\0' ? ' ' : text[strlen(text) - 1];
        const char *colour = !page->colour || row == NULL ? ""
                             : mark == '*'                ? GREEN
                             : mark == '!'                ? RED
                                                          : "";

        if (grid->widths[c] == 0)
            continue;
        text = row == NULL ? plain(text) : text;
        const int padding = (int)(grid->widths[c] - g_utf8_strlen(text, -1));

        g_string_append_printf(line, "%*s%s", left ? 0 : padding, "", colour);
        append_wrapped(line, text, at, at, c + 1 == end ? page : &unlimited);
        g_string_append_printf(line, "%s%*s", *colour != '\0' ? PLAIN : "",
                               (left ? padding : 0) + GAP, "");
        at += grid->widths[c] + GAP;
    }
    if (row != NULL && row->span != NULL)
        append_wrapped(line, row->span, at, at, page);
    if (row == NULL && page->colour)
        printf(BOLD "%s" PLAIN "\n", g_strchomp(line->str));
    else
        puts(g_strchomp(line->str));
}

static void
print_grid(Grid *grid, const char *drop, const Page *page)
{
    g_autofree char *dropped = fit(grid, drop, page);

    if (grid->n > 0)
        print_row(grid, NULL, page);
    for (guint r = 0; r < grid->rows->len && grid->n > 0; r++)
        print_row(grid, &g_array_index(grid->rows, Row, r), page);
    if (*dropped != '\0') {
        g_autofree char *note = g_strdup_printf("  (left out: %s; --wide shows them)", dropped);

        print_sentence(note, page);
    }
    g_array_unref(grid->rows);
}

/* Rows of the table at node @table, a table for each run of one section. */
static void
print_table(const RpReport *report, guint table, const Page *page)
{
    const RpNode *node = node_of(report, table);
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint first = table + 1; first < node->end; first = node_of(report, first)->end + 1) {
        const char *section = node_of(report, first)->label;
        Grid grid = {.rows = g_array_new(FALSE, TRUE, sizeof(Row))};

        if (!g_hash_table_add(seen, (gpointer)(section != NULL ? section : ""))) {
            g_array_unref(grid.rows);
            continue;
        }
        for (guint o = first; o < node->end && (node->most == 0 || grid.rows->len < node->most);
             o = node_of(report, o)->end + 1) {
            if (g_strcmp0(node_of(report, o)->label, section) != 0)
                continue;
            Row *row = add_row(&grid);

            for (guint i = o + 1; i < node_of(report, o)->end; i++) {
                const RpNode *figure = node_of(report, i);

                if (figure->kind == RP_NODE_SPAN)
                    row->span = figure->text;
                else if (figure->kind == RP_NODE_FIGURE && figure->label != NULL)
                    set_cell(&grid, row, figure->label, figure->text);
            }
        }
        if (section != NULL) {
            putchar('\n');
            print_head(section, page);
        }
        print_grid(&grid, node->label, page);
    }
}

/* A column for each object, a row for each label. */
static void
print_columns(const RpReport *report, guint columns, const Page *page)
{
    const RpNode *node = node_of(report, columns);
    g_autofree char *heading = g_strconcat("<", node->label, NULL);
    Grid grid = {.rows = g_array_new(FALSE, TRUE, sizeof(Row)), .headings = {heading}, .n = 1};

    for (guint o = columns + 1; o < node->end; o = node_of(report, o)->end + 1) {
        grid.headings[grid.n++] = node_of(report, o)->label;
        for (guint i = o + 1; i < node_of(report, o)->end; i++) {
            const RpNode *figure = node_of(report, i);
            guint r = 0;

            if (figure->kind != RP_NODE_FIGURE || figure->label == NULL)
                continue;
            while (r < grid.rows->len &&
                   strcmp(g_array_index(grid.rows, Row, r).cells[0], figure->label) != 0)
                r++;
            Row *row = r < grid.rows->len ? &g_array_index(grid.rows, Row, r) : add_row(&grid);

            row->cells[0] = figure->label;
            row->cells[grid.n - 1] = figure->text;
            row->n = grid.n;
        }
    }
    print_grid(&grid, NULL, page);
}

static void
print_text(RpReport *report)
{
    const Page page = page_of(report->form);

    for (guint i = report->printed; i < report->nodes->len; i++) {
        const RpNode *node = node_of(report, i);

        if (node->kind == RP_NODE_SAY) {
            print_sentence(node->text, &page);
        } else if (node->kind == RP_NODE_HEAD) {
            fputs(i > 0 ? "\n" : "", stdout);
            print_head(node->text, &page);
        } else if (node->kind == RP_NODE_FIGURE && node->label != NULL) {
            print_figure(node, &page);
        } else if (node->kind == RP_NODE_TABLE) {
            print_table(report, i, &page);
            i = node->end;
        } else if (node->kind == RP_NODE_COLUMNS) {
            print_columns(report, i, &page);
            i = node->end;
        }
    }
}

/* ---- printing ---- */

void
rp_report_flush(RpReport *report)
{
    if (report->form == RP_REPORT_JSON || report->muted)
        return;
    print_text(report);
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

void
rp_report_append_cell(GString *csv, const char *text)
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
    while (g_strcmp0(node_of(report, table)->key, key) != 0)
        table++;
    for (guint row = table + 1; row < node_of(report, table)->end;
         row = node_of(report, row)->end + 1)
        for (char **name = names; *name != NULL; name++) {
            g_string_append_c(csv, name > names ? ',' : '\n');
            for (guint i = row; i < node_of(report, row)->end; i++)
                if (g_strcmp0(node_of(report, i)->key, *name) == 0 &&
                    node_of(report, i)->csv != NULL)
                    rp_report_append_cell(csv, node_of(report, i)->csv);
        }
    g_string_append_c(csv, '\n');
    return g_string_free(csv, FALSE);
}
