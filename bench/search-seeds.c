/*
 * Measures how much the search for dispatched partitions depends on chance: for the shipped
 * profiles of RTX 4090, the iterations that it finds on 8 GPUs with each of N seeds of its random
 * numbers.
 *
 *   search-seeds [SEEDS [M]]     default 15 seeds, M = 16
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "core/base/units.h"
#include "core/schedules/schedule.h"
#include "sim/search/dispatched.h"

#define GPUS 8

static double
processor_ms(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec * 1e3 + (double)usage.ru_utime.tv_usec / 1e3;
}

static void
print_row(const RpProfile *profile, gboolean async, RpFusedForward fused, guint micro_batches,
          guint seeds)
{
    g_autofree gint64 *found_ns = g_new0(gint64, seeds);
    const double begin_ms = processor_ms();
    gint64 least_ns = G_MAXINT64, most_ns = 0;
    guint best = 0;

    for (guint i = 0; i < seeds; i++) {
        const RpDispatchedSearch search = {
            .profile = profile,
            .options =
                {
                    .schedule = rp_schedule_find("roundpipe", NULL),
                    .gpus = GPUS,
                    .micro_batches = micro_batches,
                    .async = async,
                    .fused_forward = fused,
                },
            .memory_bytes = profile->gpu_memory_bytes,
            .least_slots = 1,
            .seed = i + 1,
        };
        g_autoptr(GPtrArray) found = rp_search_dispatched(&search, 1);

        found_ns[i] = ((RpFinding *)g_ptr_array_index(found, 0))->cost_ns;
        least_ns = MIN(least_ns, found_ns[i]);
        most_ns = MAX(most_ns, found_ns[i]);
    }
    for (guint i = 0; i < seeds; i++)
        best += found_ns[i] == least_ns;
    printf("| %s | %s | %s | %.1f | %u of %u | %.1f | %.0f |", profile->model,
           async ? "async" : "sync", fused == RP_FUSED_PHYSICAL ? "physical" : "published",
           rp_ms_from_ns(least_ns), best, seeds, rp_ms_from_ns(most_ns),
           (processor_ms() - begin_ms) / seeds);
    for (guint i = 0; i < seeds; i++)
        printf(" %.1f", rp_ms_from_ns(found_ns[i]));
    printf(" |\n");
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    static const char *const models[] = {"qwen3-1.7b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-32b",
                                         "qwen3-235b-a22b"};
    static const RpFusedForward rules[] = {RP_FUSED_PHYSICAL, RP_FUSED_PUBLISHED};
    const guint seeds = argc > 1 ? (guint)MAX(1, atoi(argv[1])) : 15;
    const guint micro_batches = argc > 2 ? (guint)MAX(1, atoi(argv[2])) : 16;

    printf("| model | | fused forward | best, ms | found by | worst, ms | processor ms a search | "
           "seed 1, 2, ... |\n|---|---|---|---|---|---|---|---|\n");
    for (gsize m = 0; m < G_N_ELEMENTS(models); m++) {
        g_autofree char *path = g_strdup_printf("%s/%s.json", RP_BENCH_PROFILES, models[m]);
        g_autoptr(GError) error = NULL;
        g_autoptr(RpProfile) profile = rp_profile_load(path, &error);

        if (profile == NULL) {
            fprintf(stderr, "%s\n", error->message);
            return EXIT_FAILURE;
        }
        for (guint async = 0; async < 2; async++)
            for (gsize r = 0; r < G_N_ELEMENTS(rules); r++)
                print_row(profile, async != 0, rules[r], micro_batches, seeds);
    }
    return EXIT_SUCCESS;
}
