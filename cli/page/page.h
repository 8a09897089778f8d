/**
 * `roundpipe report`: the files of one run and its prediction (sources.c), and what the
 * page says of them (commands/report.c). The pictures: plots/page/.
 */
#pragma once

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "core/trace/diff.h"
#include "plots/page/page.h"

#define RP_CLI_PAGE_TRACES RP_N_TRACE_SIDES

/* The sources of a page. Zero-initialise. */
typedef struct {
    guint n;                         /* traces */
    char *files[RP_CLI_PAGE_TRACES]; /* to be shown */
    RpTrace *traces[RP_CLI_PAGE_TRACES];
    const RpPlan *plans[RP_CLI_PAGE_TRACES]; /* (nullable): of the job */
    /* (nullable) (element-type GArray<RpMemoryStep>): of each device, then of the host */
    GPtrArray *memory[RP_CLI_PAGE_TRACES];
    RpBubble steady;   /* of the iterations that are shown; makespan_ns 0: they are not steady */
    RpTraceDiff *diff; /* of two, or of one of which a part is shown */
    /* of a run's directory or a run file */
    const char *run_word; /* %NULL: there is none */
    char *run_path;       /* its run file */
    char *run_text;
    RpCliSteps steps; /* lines are %NULL: none are known */
    RpRunSpec *run_file;
    RpTrainJob job; /* its plan is %NULL: not known, because of */
    char *problem;
} RpCliPage;

void rp_cli_page_clear(RpCliPage *page);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCliPage, rp_cli_page_clear)

/**
 * rp_cli_page_read:
 * @words: (array zero-terminated=1): traces, and at most one run: a directory of `train`, its metrics, or
 *   a run file
 * @iterations: (nullable): "A:B", those that are shown
 *
 * Errors: RP_CLI_ERROR_USAGE; those of the files; traces that do not belong together
 */
gboolean rp_cli_page_read(RpCliPage *page, char *const *words, const char *iterations,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
