/**
 * A page: one HTML file that shows runs, without network and without other files: words and tables are
 * there for every reader, pictures are drawn from its numbers by its own scripts (page.css, *.js, built
 * in). Text of files is escaped everywhere; the page forbids itself to load anything. The same input
 * gives the same bytes.
 */
#pragma once

#include "core/recording/recording.h"
#include "core/trace/diff.h"
#include "core/trace/report.h"

typedef struct _RpPage RpPage;

RpPage *rp_page_new(const char *title);
void rp_page_free(RpPage *page);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPage, rp_page_free)

/* ---- words: all are escaped ---- */

void rp_page_head(RpPage *page, const char *text);
void rp_page_say(RpPage *page, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Text of a file or a command, as it is. @summary: (nullable): hidden behind that */
void rp_page_quote(RpPage *page, const char *summary, const char *text);
/* Rows follow, each of as many cells; the first row has titles. @summary: as above */
void rp_page_begin_table(RpPage *page, const char *summary);
void rp_page_row(RpPage *page, const char *const *cells, guint n);
void rp_page_end_table(RpPage *page);

/* ---- traces ---- */

typedef struct {
    const char *name; /* "predicted" */
    const char *file;
    const RpTrace *trace;
    const RpPlan *plan; /* (nullable): the trace's */
    /* (nullable): the bubble of the iterations shown, steady ones, up to the next one's start */
    const RpBubble *steady;
    /* (nullable) (element-type GArray<RpMemoryStep>): each device's, then the host's */
    GPtrArray *memory;
} RpPageTrace;

/**
 * rp_page_add_traces:
 * @traces: (array length=n): one, or two of one run on a common axis of time, the predicted one first
 * @pairs: (nullable) (array length=n_pairs): tasks that both have, their records those of @traces
 *
 * Makespan and parts of the bubble, use of devices, the timeline, and memory where it is known.
 */
void rp_page_add_traces(RpPage *page, const RpPageTrace *traces, guint n, const RpTaskPair *pairs,
                        gsize n_pairs);

/**
 * rp_page_add_recordings:
 * @recordings: (element-type RpRecording): joined
 * @titles: (array zero-terminated=1): of all devices, those of the first recording first
 *
 * The timeline of a window of recordings, in place of traces.
 */
void rp_page_add_recordings(RpPage *page, const GPtrArray *recordings, const char *const *titles,
                            const RpRecordedWindow *window);

/* ---- curves over steps ---- */

/* A picture below the others: a point for each step, NAN: a gap. If there are more than
 * RP_PAGE_MOST_POINTS points neighbours are drawn as their mean. The first call begins the section
 * @heading. */
#define RP_PAGE_MOST_POINTS 2000
void rp_page_add_curve(RpPage *page, const char *heading, const char *title, const double *step,
                       const double *value, guint n);

/* ---- the file ---- */

/* (transfer full) */
char *rp_page_finish(RpPage *page);
