/* A report for people: lines, sentences and tables that fit the terminal.
 *
 *   name     GPU        memory  TFLOP/s        of 60 columns the least important are left out,
 *   rtx4090  RTX 4090  24.0 GiB   165.2        and named below
 *   (left out: fp16 acc., server; --wide shows them)
 */
#include "cli/cli.h"
#include "cli/report-private.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

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
        glong length;

        end += strcspn(end, " ");
        length = g_utf8_strlen(text, end - text);
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
    const RpNode *node = rp_report_node(report, table);
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint first = table + 1; first < node->end;
         first = rp_report_node(report, first)->end + 1) {
        const char *section = rp_report_node(report, first)->label;
        Grid grid = {.rows = g_array_new(FALSE, TRUE, sizeof(Row))};

        if (!g_hash_table_add(seen, (gpointer)(section != NULL ? section : ""))) {
            g_array_unref(grid.rows);
            continue;
        }
        for (guint o = first; o < node->end && (node->most == 0 || grid.rows->len < node->most);
             o = rp_report_node(report, o)->end + 1) {
            if (g_strcmp0(rp_report_node(report, o)->label, section) != 0)
                continue;
            Row *row = add_row(&grid);

            for (guint i = o + 1; i < rp_report_node(report, o)->end; i++) {
                const RpNode *figure = rp_report_node(report, i);

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
    const RpNode *node = rp_report_node(report, columns);
    g_autofree char *heading = g_strconcat("<", node->label, NULL);
    Grid grid = {.rows = g_array_new(FALSE, TRUE, sizeof(Row)), .headings = {heading}, .n = 1};

    for (guint o = columns + 1; o < node->end; o = rp_report_node(report, o)->end + 1) {
        grid.headings[grid.n++] = rp_report_node(report, o)->label;
        for (guint i = o + 1; i < rp_report_node(report, o)->end; i++) {
            const RpNode *figure = rp_report_node(report, i);
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

void
rp_report_print_text(RpReport *report)
{
    const Page page = page_of(report->form);

    for (guint i = report->printed; i < report->nodes->len; i++) {
        const RpNode *node = rp_report_node(report, i);

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
