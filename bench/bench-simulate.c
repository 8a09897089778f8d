/*
 * Tasks per second of the simulator, on plans made by the planner from a made-up profile.
 *
 * Figures to hold (design.md §9): >= 10 M `compute` tasks/s and >= 1 M `full` tasks/s on one core,
 * and time linear in the number of tasks.
 *
 * Times are of the processor. Every case runs in a process of its own, so that its peak memory (plan and trace) is
 * known.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "sim/simulate.h"

#define LEAST_RUNS 3
#define LEAST_US 200000 /* the fastest run within that time counts */
#define CLOCKED_TASKS 100000
#define LEAST_BLOCKS 96

typedef struct {
    RpFidelity fidelity;
    guint gpus;
    guint micro_batches;
    gboolean large;
} Size;

static const char *const schedules[] = {"gpipe", "1f1b", "interleaved-1f1b", "roundpipe"};

static const Size sizes[] = {
    {RP_FIDELITY_COMPUTE, 8, 16, FALSE},      {RP_FIDELITY_COMPUTE, 8, 256, FALSE},
    {RP_FIDELITY_COMPUTE, 8, 4096, FALSE},    {RP_FIDELITY_COMPUTE, 8, 32768, FALSE},
    {RP_FIDELITY_COMPUTE, 64, 4096, FALSE},   {RP_FIDELITY_COMPUTE, 256, 4096, FALSE},
    {RP_FIDELITY_COMPUTE, 1000, 10000, TRUE}, {RP_FIDELITY_FULL, 8, 16, FALSE},
    {RP_FIDELITY_FULL, 8, 256, FALSE},        {RP_FIDELITY_FULL, 8, 4096, FALSE},
    {RP_FIDELITY_FULL, 64, 512, FALSE},       {RP_FIDELITY_FULL, 1000, 1000, TRUE},
};

/* Embedding, @n_blocks equal blocks, head; sizes and times like Qwen3-1.7B on an RTX 4090. */
static RpProfile *
make_profile(guint n_blocks)
{
    RpProfile *profile = rp_profile_new(n_blocks + 2);

    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        const gboolean block = i > 0 && i <= n_blocks;

        layer->forward_ns = block ? 7429000 : i == 0 ? 0 : 22065500;
        layer->backward_ns = block ? 15831000 : i == 0 ? 0 : 43707000;
        layer->recompute_ns = layer->forward_ns;
        layer->weight_gradient_ns = layer->backward_ns / 2;
        layer->parameter_bytes = block ? 100667904 : 622329856;
        layer->gradient_bytes = layer->parameter_bytes;
        layer->input_bytes = i == 0 ? 32768 : 33554432;
        layer->output_bytes = 33554432;
    }
    profile->layers[0].kind = RP_LAYER_EMBEDDING;
    profile->layers[n_blocks + 1].kind = RP_LAYER_HEAD;
    profile->has_sizes = TRUE;
    profile->optimizer_parameters_per_s = 3e9;
    profile->links = (RpLinks){
        .hop_ns = 1600000,
        .copy_latency_ns = 10000,
        .h2d_bytes_per_s = 25e9,
        .d2h_bytes_per_s = 25e9,
        .host_bytes_per_s = 150e9,
        .root_bytes_per_s = 50e9,
        .gpus_per_root = 4,
    };
    return profile;
}

static RpPartition *
make_partition(const RpProfile *profile, const RpScheduleOps *schedule, const Size *size,
               GError **error)
{
    /* rounds of N micro-batches */
    if (schedule->dispatched)
        return rp_partition_paper(profile, size->gpus, size->gpus, 0, error);
    return rp_partition_min_max(profile, size->gpus * (schedule->looped ? 2 : 1), error);
}

/* Counts this process alone: other programs on a shared machine must not count. */
static gint64
processor_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* One simulation; -1 on error. Short ones are run many times over, for the clock's sake. */
static double
fastest_us(const RpPlan *plan, const RpMachine *machine, GError **error)
{
    const guint repeat = 1 + (guint)(CLOCKED_TASKS / (rp_plan_end_id(plan) + 1));
    const gint64 first = processor_us();
    gint64 fastest = G_MAXINT64;
    guint runs = 0;

    do {
        const gint64 start = processor_us();
        for (guint i = 0; i < repeat; i++) {
            g_autoptr(RpTrace) trace = rp_simulate(plan, machine, error);
            if (trace == NULL)
                return -1;
        }
        fastest = MIN(fastest, processor_us() - start);
        runs++;
    } while (runs < LEAST_RUNS || processor_us() - first < LEAST_US);
    return (double)fastest / repeat;
}

static const char *
fidelity_name(RpFidelity fidelity)
{
    return fidelity == RP_FIDELITY_COMPUTE ? "compute" : "full";
}

static gboolean
run_case(const char *name, const Size *size, GError **error)
{
    const RpScheduleOps *schedule = rp_schedule_find(name, error);
    if (schedule == NULL)
        return FALSE;
    g_autoptr(RpProfile) profile = make_profile(MAX(LEAST_BLOCKS, 2 * size->gpus));
    g_autoptr(RpPartition) partition = make_partition(profile, schedule, size, error);
    if (partition == NULL)
        return FALSE;
    const RpPlanOptions options = {
        .schedule = schedule,
        .gpus = size->gpus,
        .micro_batches = size->micro_batches,
        .round = schedule->dispatched ? size->gpus : 0,
        .fidelity = size->fidelity,
    };
    const RpMachine machine = rp_machine_from_profile(profile);

    const gint64 start = processor_us();
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 1, error);
    if (plan == NULL)
        return FALSE;
    const gint64 plan_us = processor_us() - start;
    const double simulate_us = fastest_us(plan, &machine, error);
    if (simulate_us < 0)
        return FALSE;

    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%-18s %-8s %5u %13u %10" G_GUINT64_FORMAT " %11.3f %12.3f %12.0f %13.1f\n", name,
           fidelity_name(size->fidelity), size->gpus, size->micro_batches, rp_plan_end_id(plan),
           (double)plan_us / 1e3, simulate_us / 1e3,
           (double)rp_plan_end_id(plan) / simulate_us * 1e6, (double)usage.ru_maxrss / 1024);
    return TRUE;
}

/* Returns: whether it could be run; says why not otherwise */
static gboolean
run_case_in_child(const char *name, const Size *size)
{
    int status = 0;

    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        g_autoptr(GError) error = NULL;
        const gboolean done = run_case(name, size, &error);

        if (!done)
            fprintf(stderr, "%s, %u gpus, %u micro-batches: %s\n", name, size->gpus,
                    size->micro_batches, error->message);
        fflush(NULL);
        _exit(done ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

int
main(int argc, char **argv)
{
    gboolean large = FALSE, all_done = TRUE, any = FALSE;
    gint gpus = 0;
    g_autofree char *fidelity = NULL, *schedule = NULL;
    const GOptionEntry entries[] = {
        {"large", 0, 0, G_OPTION_ARG_NONE, &large, "Up to 1,000 devices; needs 8 GiB", NULL},
        {"gpus", 0, 0, G_OPTION_ARG_INT, &gpus, "Only with so many devices", "N"},
        {"fidelity", 0, 0, G_OPTION_ARG_STRING, &fidelity, "Only `compute` or `full`", "NAME"},
        {"schedule", 0, 0, G_OPTION_ARG_STRING, &schedule, "Only this one", "NAME"},
        {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL},
    };
    g_autoptr(GOptionContext) context = g_option_context_new("- how fast the simulator is");
    g_autoptr(GError) error = NULL;

    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error)) {
        fprintf(stderr, "%s\n", error->message);
        return 2;
    }
    printf("%-18s %-8s %5s %13s %10s %11s %12s %12s %13s\n", "schedule", "fidelity", "gpus",
           "micro-batches", "tasks", "plan ms", "simulate ms", "tasks/s", "peak RSS MiB");
    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
        for (guint k = 0; k < G_N_ELEMENTS(schedules); k++)
            if ((large || !sizes[i].large) && (gpus == 0 || (guint)gpus == sizes[i].gpus) &&
                (fidelity == NULL || g_str_equal(fidelity, fidelity_name(sizes[i].fidelity))) &&
                (schedule == NULL || g_str_equal(schedule, schedules[k]))) {
                all_done = run_case_in_child(schedules[k], &sizes[i]) && all_done;
                any = TRUE;
            }
    if (!any) {
        fprintf(stderr, "no case has these devices, fidelity and schedule\n");
        return 2;
    }
    return all_done ? 0 : 1;
}
