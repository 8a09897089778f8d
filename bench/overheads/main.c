/*
 * Measures each mechanism by itself; docs/lab/overheads.md explains the rows.
 *
 *   bench-cuda-overheads [--csv FILE] [--only PART]
 *
 * Medians with p10 and p90. A part that fails prints its error, and the next one runs. Without a
 * GPU the exit status is 77.
 */
#include "bench/overheads/overheads.h"

#include <errno.h>
#include <string.h>

#include "exec/cuda/runtime/device.h"

#define NO_GPU 77 /* Meson: skipped */

typedef struct {
    const char *name;
    gboolean (*run)(const RpOverheads *overheads, GError **error);
} Part;

static const Part parts[] = {
    {"dispatch", rp_overheads_dispatch},
    {"waiting", rp_overheads_waiting},
    {"handover", rp_overheads_handover},
};

static int
compare(gconstpointer a, gconstpointer b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
percentile(const GArray *values, guint percent)
{
    return g_array_index(values, double, (values->len - 1) * percent / 100);
}

double
rp_overheads_add(const RpOverheads *overheads, const char *what, const char *unit, GArray *values,
                 const char *note)
{
    if (values->len == 0) {
        printf("%-9s %-58s nothing measured\n", overheads->part, what);
        return 0;
    }
    g_array_sort(values, compare);
    const double low = percentile(values, 10), middle = percentile(values, 50);
    const double high = percentile(values, 90);

    printf("%-9s %-58s %6u %11.3f %11.3f %11.3f  %-10s %s\n", overheads->part, what, values->len,
           low, middle, high, unit, note != NULL ? note : "");
    (void)fflush(stdout);
    if (overheads->csv != NULL)
        fprintf(overheads->csv, "%s,\"%s\",%u,%.4f,%.4f,%.4f,%s,\"%s\"\n", overheads->part, what,
                values->len, low, middle, high, unit, note != NULL ? note : "");
    return middle;
}

static gboolean
is_part(const char *name)
{
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if (strcmp(parts[i].name, name) == 0)
            return TRUE;
    fprintf(stderr, "bench-cuda-overheads: --only: no part \"%s\"; there are", name);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        fprintf(stderr, " %s", parts[i].name);
    fprintf(stderr, "\n");
    return FALSE;
}

static void
print_devices(RpOverheads *overheads)
{
    overheads->gpus = rp_cuda_device_count();
    for (guint g = 0; g < overheads->gpus; g++) {
        g_autoptr(GError) error = NULL;
        RpCudaDeviceInfo info;

        if (rp_cuda_device_info(g, &info, &error))
            printf("gpu %u: %s\n", g, info.name);
        else
            fprintf(stderr, "gpu %u: %s\n", g, error->message);
    }
    printf("%u processors\n\n", g_get_num_processors());
}

/* Returns: exit status */
static int
run(RpOverheads *overheads, const char *only)
{
    gboolean failed = FALSE;

    print_devices(overheads);
    if (overheads->gpus == 0)
        return NO_GPU;
    printf("%-9s %-58s %6s %11s %11s %11s  %-10s %s\n", "part", "what", "n", "p10", "median", "p90",
           "unit", "note");
    if (overheads->csv != NULL)
        fprintf(overheads->csv, "part,what,n,p10,median,p90,unit,note\n");
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autoptr(GError) error = NULL;

        if (only != NULL && strcmp(parts[i].name, only) != 0)
            continue;
        overheads->part = parts[i].name;
        if (parts[i].run(overheads, &error))
            continue;
        fflush(stdout);
        fprintf(stderr, "bench-cuda-overheads: %s: %s\n", parts[i].name, error->message);
        failed = TRUE;
    }
    return failed ? 1 : 0;
}

int
main(int argc, char **argv)
{
    RpOverheads overheads = {.gpus = 0};
    g_autofree char *csv = NULL, *only = NULL;
    const GOptionEntry entries[] = {
        {"csv", 0, 0, G_OPTION_ARG_FILENAME, &csv, "Also write comma-separated values", "FILE"},
        {"only", 0, 0, G_OPTION_ARG_STRING, &only, "Run one part", "PART"},
        {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL},
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GError) error = NULL;

    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error)) {
        fprintf(stderr, "bench-cuda-overheads: %s\n", error->message);
        return 2;
    }
    if (argc > 1) {
        fprintf(stderr, "bench-cuda-overheads: expected options only\n");
        return 2;
    }
    if (only != NULL && !is_part(only))
        return 2;
    if (csv != NULL && (overheads.csv = fopen(csv, "w")) == NULL) {
        fprintf(stderr, "bench-cuda-overheads: cannot write \"%s\": %s\n", csv, g_strerror(errno));
        return 1;
    }
    const int status = run(&overheads, only);
    if (overheads.csv != NULL && fclose(overheads.csv) != 0) {
        fprintf(stderr, "bench-cuda-overheads: cannot write \"%s\": %s\n", csv, g_strerror(errno));
        return 1;
    }
    return status;
}
