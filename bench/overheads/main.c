/*
 * Measures each mechanism by itself; docs/lab/overheads.md explains the rows.
 *
 *   bench-cuda-overheads
 *
 * Medians with p10 and p90. A part that fails prints its error, and the next one runs. Without a
 * GPU the exit status is 77.
 */
#include "bench/overheads/overheads.h"

#include <string.h>

#include "exec/cuda/runtime/device.h"

#define NO_GPU 77 /* Meson: skipped */

typedef struct {
    const char *name;
    gboolean (*run)(const RpOverheads *overheads, GError **error);
} Part;

static const Part parts[] = {
    {"dispatch", rp_overheads_dispatch},
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
    return middle;
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

int
main(void)
{
    RpOverheads overheads = {.gpus = 0};
    gboolean failed = FALSE;

    print_devices(&overheads);
    if (overheads.gpus == 0)
        return NO_GPU;
    printf("%-9s %-58s %6s %11s %11s %11s  %-10s %s\n", "part", "what", "n", "p10", "median", "p90",
           "unit", "note");
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autoptr(GError) error = NULL;

        overheads.part = parts[i].name;
        if (parts[i].run(&overheads, &error))
            continue;
        fflush(stdout);
        fprintf(stderr, "bench-cuda-overheads: %s: %s\n", parts[i].name, error->message);
        failed = TRUE;
    }
    return failed;
}
