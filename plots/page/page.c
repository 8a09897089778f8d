#include "plots/page/page.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "core/json/json-write.h"
#include "plots/figure.h"
#include "plots/page/pack.h"
#include "plots/table.h"

struct _RpPage {
    char *title;
    GString *body;        /* HTML */
    gboolean titles;      /* the next row of the table has them */
    gboolean more;        /* the table is hidden behind a summary */
    GString *traces;      /* JSON, an object each with commas between */
    gboolean servers;     /* one of them has tasks of the network */
    gboolean recorded;    /* they are recordings */
    RpJsonWriter *curves; /* the open array of curves; %NULL: none yet */
};

static const char *const scripts[] = {"decode.js",   "view.js",   "words.js",
                                      "timeline.js", "curves.js", "main.js"};

RpPage *
rp_page_new(const char *title)
{
    RpPage *page = g_new0(RpPage, 1);

    page->title = g_strdup(title);
    page->body = g_string_new(NULL);
    page->traces = g_string_new(NULL);
    return page;
}

void
rp_page_free(RpPage *page)
{
    if (page == NULL)
        return;
    g_free(page->title);
    g_string_free(page->body, TRUE);
    g_string_free(page->traces, TRUE);
    g_clear_pointer(&page->curves, rp_json_writer_free);
    g_free(page);
}

/* @text for HTML; invalid UTF-8 is replaced. (transfer full) */
static char *
escape(const char *text)
{
    g_autofree char *valid = g_utf8_make_valid(text, -1);

    return g_markup_escape_text(valid, -1);
}

static void
add_element(RpPage *page, const char *name, const char *text, const char *end)
{
    g_autofree char *escaped = escape(text);

    g_string_append_printf(page->body, "<%s>%s</%s>%s", name, escaped, name, end);
}

void
rp_page_head(RpPage *page, const char *text)
{
    add_element(page, "h2", text, "\n");
}

void
rp_page_say(RpPage *page, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    add_element(page, "p", text, "\n");
}

static void
begin_details(RpPage *page, const char *summary)
{
    if (summary == NULL)
        return;
    g_string_append(page->body, "<details>");
    add_element(page, "summary", summary, "\n");
}

void
rp_page_quote(RpPage *page, const char *summary, const char *text)
{
    begin_details(page, summary);
    add_element(page, "pre", text, "\n");
    g_string_append(page->body, summary != NULL ? "</details>\n" : "");
}

void
rp_page_begin_table(RpPage *page, const char *summary)
{
    begin_details(page, summary);
    g_string_append(page->body, "<div class=\"scroll\"><table>\n");
    page->titles = TRUE;
    page->more = summary != NULL;
}

void
rp_page_row(RpPage *page, const char *const *cells, guint n)
{
    const char *name = page->titles ? "th" : "td";

    g_string_append(page->body, "<tr>");
    for (guint i = 0; i < n; i++)
        add_element(page, name, cells[i] != NULL ? cells[i] : "", "");
    g_string_append(page->body, "</tr>\n");
    page->titles = FALSE;
}

void
rp_page_end_table(RpPage *page)
{
    g_string_append(page->body, "</table></div>\n");
    if (page->more)
        g_string_append(page->body, "</details>\n");
}

/* ---- curves ---- */

/* A JSON number of enough digits for a picture. */
static void
add_number(RpJsonWriter *json, double value)
{
    if (isfinite(value))
        rp_json_double(json, NULL, value, fabs(value) < 1e-3 ? 9 : fabs(value) < 100 ? 6 : 2);
    else
        rp_json_null(json, NULL);
}

/* @values, or means of @most of them or fewer. */
static void
add_means(RpJsonWriter *json, const char *key, const double *values, guint n)
{
    const guint together = (n + RP_PAGE_MOST_POINTS - 1) / RP_PAGE_MOST_POINTS;

    rp_json_array(json, key);
    for (guint from = 0; from < n; from += together) {
        double sum = 0;
        guint count = 0;

        for (guint i = from; i < MIN(from + together, n); i++)
            if (isfinite(values[i])) {
                sum += values[i];
                count++;
            }
        add_number(json, count > 0 ? sum / count : NAN);
    }
    rp_json_end(json);
}

void
rp_page_add_curve(RpPage *page, const char *heading, const char *title, const double *step,
                  const double *value, guint n)
{
    g_return_if_fail(n > 0);

    if (page->curves == NULL) {
        page->curves = rp_json_writer_new(RP_JSON_COMPACT);
        rp_json_array(page->curves, NULL);
        g_string_append(page->body, "<section id=\"steps\">");
        add_element(page, "h2", heading, "</section>\n");
    }
    g_autofree char *valid = g_utf8_make_valid(title, -1);

    rp_json_object(page->curves, NULL);
    rp_json_string(page->curves, "title", valid);
    add_means(page->curves, "x", step, n);
    add_means(page->curves, "y", value, n);
    rp_json_end(page->curves);
}

/* ---- the file ---- */

static void
add_resource(GString *html, const char *name)
{
    g_autofree char *path = g_strconcat("page/", name, NULL);
    g_autofree char *text = rp_table_built_in(path);

    g_string_append(html, text);
}

/* Rows of a recording's work, and its colours. */
static const struct {
    const char *lane;
    RpColour colour;
} work_kinds[RP_N_WORK_KINDS] = {
    [RP_WORK_COMPUTE] = {"compute", RP_COLOUR_BLUE},
    [RP_WORK_COLLECTIVE] = {"collectives", RP_COLOUR_ORANGE},
    [RP_WORK_COPY] = {"copies", RP_COLOUR_SKY},
};

static void
add_work_tables(GString *json)
{
    g_autoptr(RpJsonWriter) kinds = rp_json_writer_new(RP_JSON_COMPACT);
    g_autoptr(RpJsonWriter) lanes = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_array(kinds, NULL);
    rp_json_array(lanes, NULL);
    for (guint kind = 0; kind < RP_N_WORK_KINDS; kind++) {
        rp_json_object(kinds, NULL);
        rp_json_string(kinds, "name", rp_work_kind_name((RpWorkKind)kind));
        rp_json_uint(kinds, "colour", work_kinds[kind].colour);
        rp_json_end(kinds);
        rp_json_string(lanes, NULL, work_kinds[kind].lane);
    }
    rp_json_end(kinds);
    rp_json_end(lanes);
    g_string_append_printf(json, "\"lanes_per_device\":%d,\n\"lane_names\":%s,\n\"kinds\":%s,\n",
                           RP_N_WORK_KINDS, rp_json_writer_text(lanes)->str,
                           rp_json_writer_text(kinds)->str);
}

/* Adds the words and colours of tasks and lanes that the scripts need. */
static void
add_tables(GString *json, gboolean servers)
{
    g_autoptr(RpJsonWriter) kinds = rp_json_writer_new(RP_JSON_COMPACT);
    g_autoptr(RpJsonWriter) lanes = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_array(kinds, NULL);
    for (guint kind = 0; kind < (servers ? RP_N_TASK_KINDS : RP_TASK_REDUCE); kind++) {
        rp_json_object(kinds, NULL);
        rp_json_string(kinds, "name", rp_task_kind_name((RpTaskKind)kind));
        rp_json_uint(kinds, "colour", rp_task_kind((RpTaskKind)kind)->colour);
        rp_json_bool(kinds, "action", kind <= RP_TASK_OVERLAP);
        rp_json_end(kinds);
    }
    rp_json_end(kinds);
    rp_json_array(lanes, NULL);
    for (guint kind = 0;
         kind < RP_LANES_PER_DEVICE + (servers ? RP_HOST_LANES : RP_HOST_LANE_NETWORK); kind++)
        rp_json_string(lanes, NULL, rp_lane_name(kind));
    rp_json_end(lanes);
    g_string_append_printf(json, "\"lanes_per_device\":%d,\n\"lane_names\":%s,\n\"kinds\":%s,\n",
                           RP_LANES_PER_DEVICE, rp_json_writer_text(lanes)->str,
                           rp_json_writer_text(kinds)->str);
}

static void
add_data(RpPage *page, GString *html)
{
    g_autoptr(GString) json = g_string_new("{");

    if (page->curves != NULL)
        rp_json_end(page->curves);
    if (page->recorded)
        add_work_tables(json);
    else
        add_tables(json, page->servers);
    g_string_append_printf(json, "\"curves\":%s,\n\"traces\":[\n%s]}\n",
                           page->curves != NULL ? rp_json_writer_text(page->curves)->str : "[]",
                           page->traces->str);
    g_string_replace(json, "<", "\\u003c", 0); /* no text ends the element */
    g_string_append_printf(html, "<script type=\"application/json\" id=\"data\">%s</script>\n",
                           json->str);
}

char *
rp_page_finish(RpPage *page)
{
    GString *html =
        g_string_new("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    g_autofree char *title = escape(page->title);

    g_string_append(html,
                    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width\">\n");
    g_string_append_printf(html, "<title>%s</title>\n<style>\n", title);
    add_resource(html, "page.css");
    g_string_append_printf(html,
                           "</style>\n</head>\n<body>\n<button id=\"theme\">light / dark</button>\n"
                           "<h1>%s</h1>\n<div id=\"tip\" role=\"tooltip\" hidden></div>\n",
                           title);
    g_string_append(html, page->body->str);
    g_string_append(html, "<noscript><p>Pictures need JavaScript; words and tables do not.</p>"
                          "</noscript>\n");
    add_data(page, html);
    g_string_append(html, "<script>\n\"use strict\";\n");
    for (guint i = 0; i < G_N_ELEMENTS(scripts); i++)
        add_resource(html, scripts[i]);
    g_string_append(html, "</script>\n</body>\n</html>\n");
    return g_string_free(html, FALSE);
}

/* ---- traces: their description in words, and the places of their pictures ---- */

#define MOST_COLUMNS 3 /* the prediction, and two traces */

/* ---- the bubble ---- */

typedef struct {
    const char *title;
    gsize offset; /* in RpBubble, of a double */
    RpColour colour;
} Part;

static const Part parts[] = {
    {"fill", G_STRUCT_OFFSET(RpBubble, fill), RP_COLOUR_SKY},
    {"switch", G_STRUCT_OFFSET(RpBubble, switch_), RP_COLOUR_ORANGE},
    {"drain", G_STRUCT_OFFSET(RpBubble, drain), RP_COLOUR_BLUE},
    {"intra", G_STRUCT_OFFSET(RpBubble, intra), RP_COLOUR_PURPLE},
};

static double
part_of(const RpBubble *bubble, guint i)
{
    return G_STRUCT_MEMBER(double, bubble, parts[i].offset);
}

/* @cells: texts, freed */
static void
add_row(RpPage *page, const char *title, char **cells, guint n)
{
    const char *row[MOST_COLUMNS] = {title};

    for (guint i = 0; i < n; i++)
        row[i + 1] = cells[i];
    rp_page_row(page, row, n + 1);
    for (guint i = 0; i < n; i++)
        g_free(cells[i]);
}

/* The trace may have a part of a run's iterations. */
static guint
count_iterations(const RpTrace *trace, guint *first)
{
    guint most = 0;

    *first = G_MAXUINT;
    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        most = MAX(most, rp_trace_records(trace)[i].iteration);
        *first = MIN(*first, rp_trace_records(trace)[i].iteration);
    }
    return most + 1 - *first;
}

static char *
text_iterations(const RpTrace *trace)
{
    guint first;
    const guint n = count_iterations(trace, &first);

    return first == 0 ? g_strdup_printf("%u", n) : g_strdup_printf("%u, from %u on", n, first);
}

/* (transfer full): of a step; %NULL: the trace is not of steady ones */
static char *
text_step(const RpPageTrace *trace)
{
    guint first;

    return trace->steady == NULL
               ? NULL
               : rp_text_time(trace->steady->makespan_ns / count_iterations(trace->trace, &first));
}

static void
add_bubble_bar(RpPage *page, const RpBubble *bubble, const char *title)
{
    g_string_append_printf(page->body, "<div class=\"bar\" title=\"parts of the %s bubble\">",
                           title);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        char text[G_ASCII_DTOSTR_BUF_SIZE];

        g_autofree char *width =
            g_strdup(g_ascii_formatd(text, sizeof text, "%.3f", 100 * part_of(bubble, i)));
        g_string_append_printf(page->body, "<span style=\"width:%s%%;background:#%06x\"></span>",
                               width, parts[i].colour);
    }
    g_string_append(page->body, "</div>\n");
}

static void
add_bubble_key(RpPage *page)
{
    g_string_append(page->body, "<p class=\"soft\">");
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        g_string_append_printf(page->body,
                               "<span class=\"key\" style=\"background:#%06x\"></span>%s",
                               parts[i].colour, parts[i].title);
    g_string_append(page->body, ": shares of all devices' time; what is left is work</p>\n");
}

static void
add_totals(RpPage *page, const RpPageTrace *traces, guint n)
{
    RpBubble bubbles[MOST_COLUMNS - 1];
    char *cells[MOST_COLUMNS - 1];
    const char *titles[MOST_COLUMNS] = {""};
    gboolean steady = FALSE;

    for (guint i = 0; i < n; i++) {
        bubbles[i] =
            traces[i].steady != NULL ? *traces[i].steady : rp_report_bubble(traces[i].trace);
        titles[i + 1] = traces[i].name;
        steady |= traces[i].steady != NULL;
    }
    rp_page_head(page, "Time and bubble");
    rp_page_begin_table(page, NULL);
    rp_page_row(page, titles, n + 1);
    for (guint i = 0; i < n; i++)
        cells[i] = g_strdup(traces[i].file);
    add_row(page, "file", cells, n);
    for (guint i = 0; i < n; i++)
        cells[i] = g_strdup_printf("%u", rp_trace_gpus(traces[i].trace));
    add_row(page, "devices", cells, n);
    for (guint i = 0; i < n; i++)
        cells[i] = text_iterations(traces[i].trace);
    add_row(page, "iterations", cells, n);
    for (guint i = 0; i < n; i++)
        cells[i] = g_strdup_printf("%" G_GSIZE_FORMAT, rp_trace_n_records(traces[i].trace));
    add_row(page, "tasks", cells, n);
    for (guint i = 0; i < n; i++)
        cells[i] = text_step(&traces[i]);
    if (steady)
        add_row(page, "a step, steady", cells, n);
    for (guint i = 0; i < n; i++)
        cells[i] = rp_text_time(rp_trace_makespan_ns(traces[i].trace));
    add_row(page, steady ? "makespan of the iterations" : "makespan", cells, n);
    for (guint i = 0; i < n; i++)
        cells[i] = rp_text_percent(bubbles[i].ratio);
    add_row(page, steady ? "bubble ratio, steady" : "bubble ratio", cells, n);
    for (guint part = 0; part < G_N_ELEMENTS(parts); part++) {
        for (guint i = 0; i < n; i++)
            cells[i] = rp_text_percent(part_of(&bubbles[i], part));
        add_row(page, parts[part].title, cells, n);
    }
    for (guint i = 0; i < n; i++)
        cells[i] = rp_text_percent(bubbles[i].comm_exposed);
    add_row(page, "exposed transfers, a slice of these", cells, n);
    rp_page_end_table(page);
    for (guint i = 0; i < n; i++)
        add_bubble_bar(page, &bubbles[i], traces[i].name);
    add_bubble_key(page);
}

/* ---- devices ---- */

static char *
text_bytes(guint64 bytes)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    if (bytes == 0)
        return g_strdup("-");
    return g_strconcat(g_ascii_formatd(text, sizeof text, "%.2f", (double)bytes / (double)RP_GIB),
                       " GiB", NULL);
}

static guint64
peak_bytes(const RpPageTrace *trace, guint arena)
{
    guint64 most = 0;

    if (trace->memory == NULL || arena >= trace->memory->len)
        return 0;
    const GArray *steps = g_ptr_array_index(trace->memory, arena);

    for (guint i = 0; i < steps->len; i++)
        most = MAX(most, g_array_index(steps, RpMemoryStep, i).bytes);
    return most;
}

static void
add_devices(RpPage *page, const RpPageTrace *trace)
{
    static const char *const titles[] = {"",   "work", "of the makespan", "actions",
                                         "up", "down", "most memory"};
    g_autoptr(GArray) use = rp_report_device_use(trace->trace);
    const gint64 makespan_ns = rp_trace_makespan_ns(trace->trace);
    g_autofree char *summary = g_strdup_printf("Devices, %s", trace->name);

    rp_page_begin_table(page, summary);
    rp_page_row(page, titles, G_N_ELEMENTS(titles));
    for (guint g = 0; g <= use->len; g++) {
        const gboolean host = g == use->len;
        const RpDeviceUse *device = host ? NULL : &g_array_index(use, RpDeviceUse, g);
        const gint64 busy_ns = host ? 0 : device->busy_ns[RP_LANE_COMPUTE];
        g_autofree char *name = host ? g_strdup("host") : g_strdup_printf("GPU %u", g);
        g_autofree char *busy = host ? g_strdup("-") : rp_text_time(busy_ns);
        g_autofree char *share = host || makespan_ns <= 0
                                     ? g_strdup("-")
                                     : rp_text_percent((double)busy_ns / (double)makespan_ns);
        g_autofree char *actions = host ? g_strdup("-") : g_strdup_printf("%u", device->actions);
        g_autofree char *up = text_bytes(host ? 0 : device->bytes_up);
        g_autofree char *down = text_bytes(host ? 0 : device->bytes_down);
        g_autofree char *memory = text_bytes(peak_bytes(trace, g));

        rp_page_row(page, (const char *const[]){name, busy, share, actions, up, down, memory},
                    G_N_ELEMENTS(titles));
    }
    rp_page_end_table(page);
}

/* ---- pictures ---- */

/* A colour for each title of tasks that the traces have. */
static void
add_task_key(RpPage *page, const RpPageTrace *traces, guint n)
{
    gboolean there[RP_N_TASK_KINDS] = {FALSE};

    for (guint t = 0; t < n; t++)
        for (gsize i = 0; i < rp_trace_n_records(traces[t].trace); i++)
            there[rp_trace_records(traces[t].trace)[i].kind] = TRUE;
    g_string_append(page->body, "<p class=\"soft\">");
    for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        const char *title = rp_task_kind((RpTaskKind)kind)->title;
        gboolean said = FALSE;

        for (guint before = 0; before < kind; before++)
            said |= there[before] && g_str_equal(rp_task_kind((RpTaskKind)before)->title, title);
        if (there[kind] && !said)
            g_string_append_printf(page->body,
                                   "<span class=\"key\" style=\"background:#%06x\"></span>%s",
                                   rp_task_kind((RpTaskKind)kind)->colour, title);
    }
    g_string_append(page->body, "</p>\n");
}

/* The timeline ends with the last task, which is behind the steps that the tables tell of. */
static void
say_length(RpPage *page, const RpPageTrace *trace)
{
    const gint64 makespan_ns = rp_trace_makespan_ns(trace->trace);
    const gint64 end_ns = rp_trace_end_ns(trace->trace);
    guint first;
    const guint n = count_iterations(trace->trace, &first);
    g_autofree char *step = text_step(trace);
    g_autofree char *last = rp_text_time(makespan_ns);
    g_autofree char *end = rp_text_time(end_ns);
    g_autofree char *steps =
        step != NULL ? g_strdup_printf(" with a steady step of %s", step) : g_strdup("");
    g_autofree char *behind =
        end_ns > makespan_ns
            ? g_strdup_printf("; copies and the optimizer's steps continue to %s", end)
            : g_strdup("");

    rp_page_say(page, "The timeline, %s, has %u iteration%s%s. The last action ends at %s%s.",
                trace->name, n, n == 1 ? "" : "s", steps, last, behind);
}

/* Keys, buttons and the picture's place. @box: what it is in words; @keys, @buttons: those that others lack */
static void
end_timeline(RpPage *page, const char *box, const char *keys, const char *buttons)
{
    g_string_append_printf(
        page->body,
        "<p class=\"soft\">In a box: %s. Ctrl and wheel zooms, dragging moves, a click keeps a "
        "task "
        "below. Keys: arrows go from task to task, %s; + and - zoom, 0 shows all, Page Up and Page "
        "Down move.</p>\n"
        "<div class=\"tools\"><button data-key=\"+\">+</button><button data-key=\"-\">-</button>"
        "<button data-key=\"0\">all</button>%s</div>\n",
        box, keys, buttons);
    g_string_append(
        page->body,
        "<div class=\"view\"><div class=\"tall\"></div><canvas tabindex=\"0\" role=\"application\" "
        "aria-label=\"Timeline: arrow keys go from task to task, which is told below\"></canvas>"
        "</div>\n<div class=\"detail\" aria-live=\"polite\"></div></section>\n");
}

static void
add_pictures(RpPage *page, const RpPageTrace *traces, guint n)
{
    gboolean memory = FALSE;

    g_string_append(page->body, "<section id=\"timeline\"><h2>Timeline</h2>\n");
    for (guint t = 0; t < n; t++)
        say_length(page, &traces[t]);
    end_timeline(page, "stage·micro-batch",
                 "w to the one that it waits for, Enter zooms to it, n and p show the next and the "
                 "previous iteration",
                 "<button data-key=\"p\">previous iteration</button>"
                 "<button data-key=\"n\">next iteration</button>"
                 "<label><input type=\"checkbox\" data-lanes=\"0\" checked> compute</label>"
                 "<label><input type=\"checkbox\" data-lanes=\"1\" checked> copies</label>"
                 "<label><input type=\"checkbox\" data-lanes=\"2\" checked> host</label>");
    add_task_key(page, traces, n);
    for (guint t = 0; t < n; t++)
        for (guint arena = 0; traces[t].memory != NULL && arena < traces[t].memory->len; arena++)
            memory |= ((const GArray *)g_ptr_array_index(traces[t].memory, arena))->len > 0;
    if (memory)
        g_string_append(page->body, "<section id=\"memory\"><h2>Memory in use</h2></section>\n");
}

/* By record of one trace where the same task stands in the other, and 1 more. */
static guint32 *
find_twins(const RpPageTrace *traces, guint side, const guint32 *places, const RpTaskPair *pairs,
           gsize n_pairs)
{
    const RpTraceRecord *own = rp_trace_records(traces[side].trace);
    const RpTraceRecord *others = rp_trace_records(traces[1 - side].trace);
    guint32 *twins = g_new0(guint32, rp_trace_n_records(traces[side].trace) + 1);

    for (gsize i = 0; i < n_pairs; i++)
        twins[pairs[i].record[side] - own] = places[pairs[i].record[1 - side] - others] + 1;
    return twins;
}

/* @json: (transfer full) */
static void
add_packed(RpPage *page, char *json)
{
    if (page->traces->len > 0)
        g_string_append(page->traces, ",\n");
    g_string_append(page->traces, json);
    g_free(json);
}

void
rp_page_add_recordings(RpPage *page, const GPtrArray *recordings, const char *const *titles,
                       const RpRecordedWindow *window)
{
    page->recorded = TRUE;
    g_string_append(page->body, "<section id=\"timeline\"><h2>Timeline</h2>\n");
    end_timeline(
        page, "the name of a kernel", "Enter zooms to it",
        "<label><input type=\"checkbox\" data-lanes=\"0\" checked> compute</label>"
        "<label><input type=\"checkbox\" data-lanes=\"1\" checked> collectives, copies</label>");
    g_string_append(page->body, "<p class=\"soft\">");
    for (guint kind = 0; kind < RP_N_WORK_KINDS; kind++)
        g_string_append_printf(page->body,
                               "<span class=\"key\" style=\"background:#%06x\"></span>%s",
                               work_kinds[kind].colour, rp_work_kind_name((RpWorkKind)kind));
    g_string_append(page->body, "</p>\n");
    add_packed(page, rp_pack_recordings(recordings, titles, window));
}

void
rp_page_add_traces(RpPage *page, const RpPageTrace *traces, guint n, const RpTaskPair *pairs,
                   gsize n_pairs)
{
    guint32 *places[MOST_COLUMNS - 1] = {NULL};

    g_return_if_fail(n >= 1 && n < MOST_COLUMNS);

    add_totals(page, traces, n);
    for (guint i = 0; i < n; i++)
        add_devices(page, &traces[i]);
    add_pictures(page, traces, n);
    for (guint t = 0; t < n; t++)
        for (gsize i = 0; i < rp_trace_n_records(traces[t].trace); i++)
            page->servers |= rp_trace_records(traces[t].trace)[i].kind >= RP_TASK_REDUCE;
    for (guint i = 0; i < n; i++)
        places[i] = rp_pack_places(traces[i].trace);
    for (guint i = 0; i < n; i++) {
        g_autofree guint32 *twins =
            pairs != NULL && n == 2 ? find_twins(traces, i, places[1 - i], pairs, n_pairs) : NULL;

        add_packed(page, rp_pack_trace(&traces[i], places[i], twins));
    }
    for (guint i = 0; i < n; i++)
        g_free(places[i]);
}
