#include "plots/page/page-private.h"

#include <math.h>
#include <string.h>

#include "core/base/quote.h"
#include "plots/figure.h"
#include "plots/table.h"

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

char *
rp_page_escape(const char *text)
{
    g_autofree char *valid = g_utf8_make_valid(text, -1);

    return g_markup_escape_text(valid, -1);
}

static void
add_element(RpPage *page, const char *name, const char *text)
{
    g_autofree char *escaped = rp_page_escape(text);

    g_string_append_printf(page->body, "<%s>%s</%s>\n", name, escaped, name);
}

void
rp_page_head(RpPage *page, const char *text)
{
    add_element(page, "h2", text);
}

void
rp_page_say(RpPage *page, const char *format, ...)
{
    g_autofree char *text = NULL;
    va_list arguments;

    va_start(arguments, format);
    text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    add_element(page, "p", text);
}

static void
begin_details(RpPage *page, const char *summary)
{
    if (summary == NULL)
        return;
    g_string_append(page->body, "<details>");
    add_element(page, "summary", summary);
}

void
rp_page_quote(RpPage *page, const char *summary, const char *text)
{
    begin_details(page, summary);
    add_element(page, "pre", text);
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
    for (guint i = 0; i < n; i++) {
        g_autofree char *escaped = rp_page_escape(cells[i] != NULL ? cells[i] : "");

        g_string_append_printf(page->body, "<%s>%s</%s>", name, escaped, name);
    }
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
        g_autofree char *escaped = rp_page_escape(heading);

        page->curves = rp_json_writer_new(RP_JSON_COMPACT);
        rp_json_array(page->curves, NULL);
        g_string_append_printf(page->body, "<section id=\"steps\"><h2>%s</h2></section>\n",
                               escaped);
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
        rp_json_uint(kinds, "colour", rp_colour_of_task((RpTaskKind)kind));
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
    g_autofree char *title = rp_page_escape(page->title);

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
