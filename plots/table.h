/**
 * The published figures that are drawn beside ours: paper-figs/published-*.csv, built into the
 * library.
 */
#pragma once

#include <glib.h>

typedef struct _RpTable RpTable;

/**
 * rp_table_parse:
 * @text: comma-separated values, first line column titles; fields may be quoted; # starts a comment
 *
 * Errors: RP_PLOT_ERROR_DATA naming the line
 */
RpTable *rp_table_parse(const char *text, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Fields of one line. Returns: (transfer full); %NULL when a quote is not closed */
GStrv rp_table_split_line(const char *line);
/* The text of a file of paper-figs/ or plots/ that is built in. It is a bug if there is none. (transfer full) */
char *rp_table_built_in(const char *file);
/* One of the files named above, e.g. "published-schedules.csv". It is a bug if it cannot be read.
 */
RpTable *rp_table_published(const char *file);
void rp_table_free(RpTable *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTable, rp_table_free)

guint rp_table_n_rows(const RpTable *table);
/* %NULL if there is no such column. */
const char *rp_table_text(const RpTable *table, guint row, const char *column);
/* NAN if there is no such column or its text is no number ("OOM"). */
double rp_table_number(const RpTable *table, guint row, const char *column);

/**
 * rp_table_find:
 * @column1, @value1: the first row that has this value …
 * @column2, @value2: … and this one
 *
 * Returns: its index, or RP_TABLE_NONE
 */
#define RP_TABLE_NONE G_MAXUINT
guint rp_table_find(const RpTable *table, const char *column1, const char *value1,
                    const char *column2, const char *value2);
