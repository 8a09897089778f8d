/* Whether this machine can train, and what it has for that. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/reports/profile.h"
#include "core/base/units.h"
#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/cuda/toolkit/toolkit.h"
#include "exec/kernels/kernels.h"
#include "exec/measure/profile.h"
#include "exec/system/available-memory.h"
#include "exec/system/pcie.h"
#include "run/devices.h"

/* Less is too little for the smallest run. */
#define LEAST_MEMORY_BYTES (512 * RP_MIB)
#define LEAST_DISK_BYTES RP_GIB
#define LOCK_BYTES RP_GIB /* pinned memory of a small run */

typedef struct {
    char *devices;
    char *output;
    gboolean quick;
} DoctorArgs;

/* A line each. */
typedef struct {
    RpReport *report;
    GPtrArray *problems; /* none: `train` can run */
    GPtrArray *warnings; /* it will be slower than it might be */
} Findings;

static void G_GNUC_PRINTF(2, 3) note_problem(Findings *findings, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_ptr_array_add(findings->problems, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

/* Copies of all @n devices, as runs measure them. */
static void
report_links(Findings *findings, const RpDeviceOps *devices, guint n)
{
    RpReport *report = findings->report;
    g_autoptr(GError) error = NULL;
    g_autoptr(RpProbe) probe = devices->probe_new(0, &error);
    RpLinks links;

    if (probe == NULL || !rp_measure_links(probe, n, &links, &error)) {
        note_problem(findings, "%s devices: %s", devices->name, error->message);
        return;
    }
    rp_report_object(report, "links", NULL);
    rp_report_real(report, "h2d_gb_per_s", links.h2d_bytes_per_s / 1e9, 3, NULL);
    rp_report_real(report, "d2h_gb_per_s", links.d2h_bytes_per_s / 1e9, 3, NULL);
    rp_report_line(report, devices->host_memory ? "copies" : "links",
                   "%.1f GB/s up, %.1f GB/s down, one alone (measured)",
                   links.h2d_bytes_per_s / 1e9, links.d2h_bytes_per_s / 1e9);
    rp_report_real(report, "host_gb_per_s", links.host_bytes_per_s / 1e9, 3, NULL);
    rp_report_line(report, "host memory", "%.1f GB/s, all copies together (measured)",
                   links.host_bytes_per_s / 1e9);
    rp_report_end(report);
}

/* How cards are plugged in. @woken: they have just worked */
static void
report_slots(Findings *findings, guint n, gboolean woken)
{
    RpReport *report = findings->report;

    rp_report_list(report, "slots");
    for (guint g = 0; g < n; g++) {
        RpCudaDeviceInfo info;
        RpPcieLink link;

        if (!rp_cuda_device_info(g, &info, NULL) ||
            !rp_pcie_read_link(RP_PCIE_DEVICES, info.pci_address, &link))
            continue;
        g_autofree char *fault = rp_pcie_fault(&link, woken);
        g_autofree char *label = g_strdup_printf("slot of GPU %u", g);

        rp_report_object(report, NULL, NULL);
        rp_report_count(report, "gpu", g, NULL);
        rp_report_text(report, "address", info.pci_address, NULL);
        rp_report_count(report, "width", link.now.width, NULL);
        rp_report_real(report, "gt_per_s", link.now.gt_per_s, 3, NULL);
        rp_report_count(report, "card_width", link.card.width, NULL);
        rp_report_real(report, "card_gt_per_s", link.card.gt_per_s, 3, NULL);
        rp_report_count(report, "slot_width", link.slot.width, NULL);
        rp_report_real(report, "slot_gt_per_s", link.slot.gt_per_s, 3, NULL);
        rp_report_end(report);
        rp_report_line(report, label, "%s: %u lanes at %g GT/s%s; the card has %u, the slot %u",
                       info.pci_address, link.now.width, link.now.gt_per_s, woken ? "" : " (idle)",
                       link.card.width, link.slot.width);
        if (fault != NULL)
            g_ptr_array_add(
                findings->warnings,
                g_strdup_printf("GPU %u (%s) runs below its slot: %s", g, info.pci_address, fault));
    }
    rp_report_end(report);
}

static void
report_memory(Findings *findings, gboolean pins)
{
    RpReport *report = findings->report;
    const guint64 all = (guint64)sysconf(_SC_PHYS_PAGES) * (guint64)sysconf(_SC_PAGESIZE);
    const guint64 available = rp_available_memory();
    struct rlimit lock;

    rp_report_count(report, "processors", rp_usable_processors(), "processors");
    rp_report_bytes(report, "memory_bytes", all, "memory");
    rp_report_bytes(report, "available_bytes", available, "available");
    if (available != 0 && available < LEAST_MEMORY_BYTES)
        note_problem(findings, "memory: expected at least 512 MiB available: end other programs");
    if (getrlimit(RLIMIT_MEMLOCK, &lock) != 0)
        return;
    if (lock.rlim_cur == RLIM_INFINITY) {
        rp_report_text(report, "lock_limit_bytes", NULL, "lock limit");
        rp_report_show(report, "none");
        return;
    }
    rp_report_bytes(report, "lock_limit_bytes", lock.rlim_cur, "lock limit");
    if (pins && lock.rlim_cur < LOCK_BYTES && geteuid() != 0)
        rp_report_show(report,
                       "%" G_GUINT64_FORMAT " KiB: some systems let GPUs pin no more; raise "
                       "it with `ulimit -l unlimited` if pinning fails",
                       (guint64)lock.rlim_cur / 1024);
}

static void
report_disk(Findings *findings, const char *path)
{
    struct statvfs disk;

    if (statvfs(path, &disk) != 0) {
        note_problem(findings, "--output: %s: %s", path, g_strerror(errno));
        return;
    }
    const guint64 free_bytes = (guint64)disk.f_bavail * disk.f_frsize;

    rp_report_bytes(findings->report, "disk_free_bytes", free_bytes, "disk");
    g_autofree char *size = rp_cli_format_bytes(free_bytes);
    rp_report_show(findings->report, "%s free at %s", size, path);
    if (free_bytes < LEAST_DISK_BYTES)
        note_problem(findings,
                     "disk: %s has %s free, and checkpoints need more: make room, or name "
                     "another directory with --output",
                     path, size);
    if (access(path, W_OK) != 0)
        note_problem(findings, "--output: %s: %s", path, g_strerror(errno));
}

/* The devices that a run would have; %NULL: those that are asked for are not there. */
static const RpDeviceOps *
choose_devices(Findings *findings, const char *asked, const RpDeviceOps *gpus, guint n_gpus)
{
    const gboolean host = asked != NULL ? strcmp(asked, "host") == 0 : n_gpus == 0;
    const char *problem = gpus == NULL ? rp_cuda_missing_text() : rp_cuda_no_device_text();

    if (host)
        return rp_host_devices();
    if (n_gpus > 0)
        return gpus;
    note_problem(findings, "no GPUs: %s", problem != NULL ? problem : "CUDA finds no device");
    return NULL;
}

static void
report_lines(RpReport *report, const char *key, const GPtrArray *lines)
{
    rp_report_list(report, key);
    for (guint i = 0; i < lines->len; i++)
        rp_report_text(report, NULL, g_ptr_array_index(lines, i), NULL);
    rp_report_end(report);
}

static void
report_verdict(const Findings *findings, const RpDeviceOps *devices, guint n)
{
    RpReport *report = findings->report;
    const gboolean trains = findings->problems->len == 0;

    report->exit = trains ? RP_EXIT_OK : RP_EXIT_FAILED;
    rp_report_bool(report, "trains", trains, NULL);
    rp_report_text(report, "devices", devices != NULL ? devices->name : NULL, NULL);
    report_lines(report, "problems", findings->problems);
    report_lines(report, "warnings", findings->warnings);
    rp_report_say(report, " ");
    for (guint i = 0; i < findings->warnings->len; i++)
        rp_report_say(report, "warning: %s",
                      (const char *)g_ptr_array_index(findings->warnings, i));
    for (guint i = 0; i < findings->problems->len; i++)
        rp_report_say(report, "! %s", (const char *)g_ptr_array_index(findings->problems, i));
    if (trains && devices->host_memory)
        rp_report_say(report,
                      "train can run on processor threads (devices: host:N); no GPU is used.");
    else if (trains)
        rp_report_say(report, "train can run on %u GPU%s (devices: cuda:%u).", n, n > 1 ? "s" : "",
                      n);
    else
        rp_report_say(report, "train cannot run.");
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    static const char *const names[] = {"cuda", "host", NULL};
    const DoctorArgs *args = user_args;
    g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) warnings = g_ptr_array_new_with_free_func(g_free);
    Findings findings = {report, problems, warnings};

    if (args->devices != NULL && rp_cli_choice("devices", args->devices, names, error) < 0)
        return FALSE;
    const RpDeviceOps *gpus = rp_cuda_devices();
    const guint n_gpus = gpus != NULL ? rp_cuda_device_count() : 0;
    const RpDeviceOps *devices = choose_devices(&findings, args->devices, gpus, n_gpus);

    report->label_width = 17;
    rp_report_built(report, gpus);
    if (n_gpus == 0)
        rp_report_line(report, "GPUs", "none: %s",
                       gpus == NULL ? rp_cuda_missing_text() : rp_cuda_no_device_text());
    rp_report_gpus(report, n_gpus, problems);
    report_memory(&findings, devices == gpus);
    report_disk(&findings, args->output != NULL ? args->output : ".");
    if (devices != NULL && !args->quick)
        report_links(&findings, devices, devices == gpus ? n_gpus : 1);
    report_slots(&findings, n_gpus, devices == gpus && !args->quick);
    report_verdict(&findings, devices, n_gpus);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"devices", 0, RP_WORD(DoctorArgs, devices),
     "cuda or host: that train is to run on (default: cuda where there are GPUs)", "NAME"},
    {"output", 'o', RP_FILE(DoctorArgs, output),
     "directory whose disk checkpoints would fill (default: this one)", "DIR"},
    {"quick", 0, RP_FLAG(DoctorArgs, quick), "measure no links", NULL},
    {0},
};

const RpCommand rp_command_doctor = {
    .name = "doctor",
    .summary = "whether this machine can train, and what it has for that",
    .help =
        "Tells whether `roundpipe train` can run here: GPU code, driver, cards, links as "
        "measured,\nslots, memory, lock limit, disk, and what was built in. Warns of a card that "
        "runs below its slot.\n\n"
        "Example:\n  roundpipe doctor && roundpipe train run.yaml\n\n"
        "Exit codes: 0 train can run, 1 it cannot, 2 wrong usage.",
    .options = options,
    .args_size = sizeof(DoctorArgs),
    .run = run,
};
