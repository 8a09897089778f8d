/*
 * The table of docs/results.md: for each shipped profile of RTX 4090, synchronous and asynchronous,
 * and M = 16, 128 and 1,024 on 8 GPUs, the iteration that the search finds, the one that it finds
 * with EFFORT times the effort, and the lower bound of all partitions. Physical fused forward.
 *
 *   search-table [EFFORT]     default 20: about five minutes
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/units.h"
#include "core/schedules/schedule.h"
#include "sim/search/partition-bound.h"
#include "sim/search/partition-cost.h"
#include "sim/steady-window.h"

#define GPUS 8
#define DEFAULT_ACTIONS (G_GUINT64_CONSTANT(250) * 1000 * 1000)

/* Returns the time of the partition that a command chooses when none is given. */
static gint64
chosen_ns(const RpDispatchedSearch *search)
{
    RpPlanOptions options = search->options;
    g_autoptr(GError) error = NULL;
    g_autoptr(RpPartition) partition =
        rp_partition_choose(search->profile, &options, RP_OBJECTIVE_SIMULATED, 0,
                            search->memory_bytes, &options.round, &error);
    if (partition == NULL)
        return 0;
    g_autoptr(RpRecurrence) recurrence = rp_recurrence_new(search->profile, &options);
    g_autoptr(RpCut) cut = rp_cut_new(search->profile->n_layers);
    RpSpan span = {.micro_batches = options.micro_batches, .round = options.round};

    rp_cut_read(cut, partition);
    if (options.async) {
        const RpSteadyWindow window =
            rp_steady_window(GPUS, rp_cut_slots(cut) * (options.micro_batches / options.round));

        span.first = window.first;
        span.end = window.end;
    }
    return rp_recurrence_time_ns(recurrence, cut, &span, G_MAXINT64);
}

static gint64
searched_ns(const RpDispatchedSearch *given, guint effort)
{
    RpDispatchedSearch search = *given;

    search.actions = effort * DEFAULT_ACTIONS;
    g_autoptr(GPtrArray) found = rp_search_dispatched(&search, 1);
    return found->len > 0 ? ((RpFinding *)g_ptr_array_index(found, 0))->cost_ns : G_MAXINT64;
}

static void
print_row(const RpProfile *profile, gboolean async, guint micro_batches, guint effort)
{
    const RpDispatchedSearch search = {
        .profile = profile,
        .options =
            {
                .schedule = rp_schedule_find("roundpipe", NULL),
                .gpus = GPUS,
                .micro_batches = micro_batches,
                .async = async,
                .fused_forward = RP_FUSED_PHYSICAL,
            },
        .memory_bytes = profile->gpu_memory_bytes,
        .least_slots = 1,
    };
    const gint64 found_ns = chosen_ns(&search);
    const gint64 long_ns = MIN(found_ns, searched_ns(&search, effort));
    const gint64 bound_ns = rp_dispatched_bound_ns(&search);

    printf("| %s | %s | %u | %.1f | %.1f | %.1f | %.2f %% | %.2f %% |\n", profile->model,
           async ? "async" : "sync", micro_batches, rp_ms_from_ns(found_ns), rp_ms_from_ns(long_ns),
           rp_ms_from_ns(bound_ns), 100 * ((double)found_ns / (double)long_ns - 1),
           100 * ((double)found_ns / (double)bound_ns - 1));
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    static const char *const models[] = {"qwen3-1.7b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-32b",
                                         "qwen3-235b-a22b"};
    static const guint micro_batches[] = {16, 128, 1024};
    const guint effort = argc > 1 ? (guint)MAX(1, atoi(argv[1])) : 20;

    printf(
        "| model | | M | found, ms | with %u times the effort, ms | bound, ms | found above that "
        "| found above the bound |\n|---|---|---|---|---|---|---|---|\n",
        effort);
    for (gsize m = 0; m < G_N_ELEMENTS(models); m++) {
        g_autofree char *path = g_strdup_printf("%s/%s.json", RP_BENCH_PROFILES, models[m]);
        g_autoptr(GError) error = NULL;
        g_autoptr(RpProfile) profile = rp_profile_load(path, &error);

        if (profile == NULL) {
            fprintf(stderr, "%s\n", error->message);
            return EXIT_FAILURE;
        }
        for (guint async = 0; async < 2; async++)
            for (gsize i = 0; i < G_N_ELEMENTS(micro_batches); i++)
                print_row(profile, async != 0, micro_batches[i], effort);
    }
    return EXIT_SUCCESS;
}
