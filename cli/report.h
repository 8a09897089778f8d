/**
 * The answer of a command: a tree of {key, value, unit, label}. A command says each thing once:
 *
 *   JSON   all that has a key
 *   text   all that has a label, a line or a table's cell each, and the sentences between
 *   CSV    rows of a table, by the keys that are asked for
 *
 * A figure without a key is for people only, one without a label for machines only. Text fits the
 * terminal: tables lose the columns that they can do without, lines are broken between words.
 */
#pragma once

#include "core/json/json-write.h"

typedef enum {
    RP_REPORT_TEXT,
    RP_REPORT_WIDE, /* text of any width */
    RP_REPORT_JSON
} RpReportForm;

typedef struct {
    RpReportForm form;
    int exit;          /* the command's exit code, where it did its work */
    gboolean muted;    /* no text is printed */
    guint label_width; /* columns that labels of lines take, from here on */
    gboolean sign;     /* times and ratios are differences, from here on: +1.5 */
    guint printed;     /* nodes */
    RpJsonWriter *json;
    GArray *nodes; /* RpNode (report.c) */
    GArray *open;  /* guint: nodes that are not ended */
} RpReport;

RpReport *rp_report_new(RpReportForm form);
void rp_report_free(RpReport *report);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpReport, rp_report_free)

/* Prints lines, each ended; descriptions of options continue below their beginning. */
void rp_report_print_help(const char *help);
/* Prints the text that is there, before long work; JSON waits for the end. */
void rp_report_flush(RpReport *report);
/* The JSON so far, whatever the form: rp_json_writer_so_far(). (transfer full) */
char *rp_report_to_json(const RpReport *report, const char *unfinished);
/* Prints the rest, or all of the JSON; a second time nothing. */
void rp_report_finish(RpReport *report);

/* ---- figures: key, value, unit, label ---- */

/* @value: %NULL: null */
void rp_report_text(RpReport *report, const char *key, const char *value, const char *label);
/* Text that may have a NUL in it, of which JSON has all. */
void rp_report_whole_text(RpReport *report, const char *key, const GString *value,
                          const char *label);
void rp_report_bool(RpReport *report, const char *key, gboolean value, const char *label);
void rp_report_count(RpReport *report, const char *key, gint64 value, const char *label);
/* For people "21.0 GiB". */
void rp_report_bytes(RpReport *report, const char *key, guint64 value, const char *label);
/* In JSON milliseconds of six decimals, for people of three. */
void rp_report_ms(RpReport *report, const char *key, gint64 ns, const char *label);
/* In JSON nine decimals, for people percent. */
void rp_report_ratio(RpReport *report, const char *key, double value, const char *label);
/* @digits: decimals in JSON; for people as many as it has */
void rp_report_real(RpReport *report, const char *key, double value, guint digits,
                    const char *label);

/* In JSON three decimals, for people whole; "-" for 0. */
void rp_report_rate(RpReport *report, const char *key, double value, const char *label);

/* Text for people instead of the value before it. */
void rp_report_show(RpReport *report, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* The same: @percent with @least decimals, or so many more that its first digit shows
 * (rp_percent_decimals()). */
void rp_report_show_percent(RpReport *report, double percent, guint least);
/* ---- for people only ---- */

typedef enum {
    RP_NODE_OBJECT,
    RP_NODE_LIST,
    RP_NODE_TABLE,
    RP_NODE_COLUMNS,
    RP_NODE_END,
    RP_NODE_FIGURE,
    RP_NODE_SAY,
    RP_NODE_HEAD,
    RP_NODE_SPAN,
} RpNodeKind;

void rp_report_words(RpReport *report, RpNodeKind kind, const char *label, const char *format, ...)
    G_GNUC_PRINTF(4, 5);
/* "  label  text", or a cell. */
#define rp_report_line(report, label, ...)                                                         \
    rp_report_words(report, RP_NODE_FIGURE, label, __VA_ARGS__)
/* The same of rp_report_show_percent(). */
void rp_report_percent(RpReport *report, const char *label, double percent, guint least);
/* A sentence, a line of its own. */
#define rp_report_say(report, ...) rp_report_words(report, RP_NODE_SAY, NULL, __VA_ARGS__)
/* The same as a heading, behind an empty line. */
#define rp_report_head(report, ...) rp_report_words(report, RP_NODE_HEAD, NULL, __VA_ARGS__)
/* The rest of a table's row. */
#define rp_report_span(report, ...) rp_report_words(report, RP_NODE_SPAN, NULL, __VA_ARGS__)

/* ---- the tree; each ends with rp_report_end() ---- */

/* @label: of a table's row its section, a heading; of columns the column's heading */
void rp_report_object(RpReport *report, const char *key, const char *label);
/* For machines, of objects or values. */
void rp_report_list(RpReport *report, const char *key);
/* All of such a list: numbers, or texts (element-type utf8). */
void rp_report_counts(RpReport *report, const char *key, const gint32 *values, gsize n);
void rp_report_texts(RpReport *report, const char *key, const GPtrArray *texts);

/**
 * rp_report_table:
 * @key: %NULL: for people only; of the first node: the report is this list, as that of
 *   rp_report_list() is
 * @drop: (nullable): labels with commas between: columns that a narrow terminal does without, the
 *   first to go first
 * @most: rows for people; 0: all
 *
 * A list of objects; their labelled figures, at any depth, are the cells. A label that begins with
 * '<' is aligned left.
 */
void rp_report_table(RpReport *report, const char *key, const char *drop, guint most);

/* Objects side by side, a column each, and a row for each label. @key: %NULL: they are members of
 * the object around */
void rp_report_columns(RpReport *report, const char *key, const char *heading);
void rp_report_end(RpReport *report);

/* ---- CSV ---- */

/* Rows of the table @key. @columns: keys of figures with commas between, each with "=HEADING" behind
 * it where that is another; ratios are in percent. (transfer full) */
char *rp_report_to_csv(const RpReport *report, const char *key, const char *columns);
/* One cell, in quotes where it needs them. */
void rp_report_append_cell(GString *csv, const char *text);
