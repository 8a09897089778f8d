/* Whether this machine can train, and what it has for that. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "core/base/units.h"
#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/kernels/kernels.h"
#include "exec/measure/profile.h"
#include "exec/system/memory-limit.h"
#include "exec/system/pcie.h"
#include "run/devices.h"

/* Less is too little for the smallest run. */
#define LEAST_MEMORY_BYTES (512 * RP_MIB)
#define LEAST_DISK_BYTES RP_GIB
#define LOCK_BYTES RP_GIB /* pinned memory of a small run */

/* A line each. */
typedef struct {
    RpReport *report;
    GPtrArray *problems; /* none: `train` can run */
    GPtrArray *warnings; /* it will be slower than it might be */
} Findings;

static void G_GNUC_PRINTF(2, 3) note(GPtrArray *lines, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_ptr_array_add(lines, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

/* Copies of all @n devices, as runs measure them; with @path the optimizer, too, into a box's file. */
static gboolean
report_links(Findings *findings, const RpDeviceOps *devices, guint n, const char *path,
             GError **error)
{
    RpReport *report = findings->report;
    RpProgress progress = rp_progress_begin("measuring", 0);
    const guint threads =
        devices->host_memory ? rp_usable_processors() : rp_run_optimizer_threads(devices, n);
    const RpMeasureOptions options = {.devices = n,
                                      .optimizer_threads = path != NULL ? threads : 0,
                                      .progress = rp_progress_counted_on,
                                      .user_data = &progress};
    g_autoptr(GError) problem = NULL;
    g_autoptr(RpProbe) probe = devices->probe_new(0, &problem);
    g_autoptr(RpProfile) box = probe != NULL ? rp_measure_box(probe, &options, &problem) : NULL;

    rp_progress_clear();
    if (box == NULL) {
        note(findings->problems, "%s devices: %s", devices->name, problem->message);
        return TRUE;
    }
    rp_report_object(report, "links", NULL);
    rp_report_profile_links(report, &box->links);
    rp_report_end(report);
    if (path == NULL)
        return TRUE;
    rp_report_profile_optimizer(report, box, threads);
    rp_report_text(report, "box", path, "box");
    if (devices->host_memory) /* threads have no links */
        box->links = (RpLinks){.host_bytes_per_s = box->links.host_bytes_per_s};
    return rp_profile_save(box, path, error);
}

/* How cards are plugged in. @woken: they have just worked */
static void
report_slots(Findings *findings, guint n, gboolean woken)
{
    RpReport *report = findings->report;
    guint translated = 0;

    rp_report_list(report, "slots");
    for (guint g = 0; g < n; g++) {
        RpCudaDeviceInfo info;
        RpPcieLink link;

        if (!rp_cuda_device_info(g, &info, NULL))
            continue;
        g_autofree char *iommu = rp_pcie_iommu(RP_PCIE_DEVICES, info.pci_address);

        translated += iommu != NULL && g_str_has_prefix(iommu, "DMA");
        if (!rp_pcie_read_link(RP_PCIE_DEVICES, info.pci_address, &link))
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
        rp_report_text(report, "iommu", iommu, NULL);
        rp_report_end(report);
        rp_report_line(report, label, "%s: %u lanes at %g GT/s%s; the card has %u, the slot %u",
                       info.pci_address, link.now.width, link.now.gt_per_s, woken ? "" : " (idle)",
                       link.card.width, link.slot.width);
        if (fault != NULL)
            note(findings->warnings, "GPU %u (%s) runs below its slot: %s", g, info.pci_address,
                 fault);
        if (link.slot.width < link.card.width)
            note(findings->warnings,
                 "GPU %u (%s) stands in a narrow slot: %u of the card's %u lanes; copies are as "
                 "much slower (`roundpipe plan --box`)",
                 g, info.pci_address, link.slot.width, link.card.width);
    }
    rp_report_end(report);
    if (translated > 0)
        note(
            findings->warnings,
            "an IOMMU translates the copies of %u GPU%s, which makes them slower (peer copies of "
            "GeForce cards lose data under one; roundpipe makes none): boot with iommu=pt, or turn "
            "it off in the firmware",
            translated, translated > 1 ? "s" : "");
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
        note(findings->problems, "memory: expected at least 512 MiB available: end other programs");
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
        note(findings->problems, "--output: %s: %s", path, g_strerror(errno));
        return;
    }
    const guint64 free_bytes = (guint64)disk.f_bavail * disk.f_frsize;

    rp_report_bytes(findings->report, "disk_free_bytes", free_bytes, "disk");
    g_autofree char *size = rp_cli_format_bytes(free_bytes);
    rp_report_show(findings->report, "%s free at %s", size, path);
    if (free_bytes < LEAST_DISK_BYTES)
        note(findings->problems,
             "disk: %s has %s free, and checkpoints need more: make room, or name "
             "another directory with --output",
             path, size);
    if (access(path, W_OK) != 0)
        note(findings->problems, "--output: %s: %s", path, g_strerror(errno));
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
    note(findings->problems, "no GPUs: %s", problem != NULL ? problem : "CUDA finds no device");
    return NULL;
}

static void
report_verdict(const Findings *findings, const RpDeviceOps *devices, guint n)
{
    RpReport *report = findings->report;
    const gboolean trains = findings->problems->len == 0;

    report->exit = trains ? RP_EXIT_OK : RP_EXIT_FAILED;
    rp_report_bool(report, "trains", trains, NULL);
    rp_report_text(report, "devices", devices != NULL ? devices->name : NULL, NULL);
    rp_report_texts(report, "problems", findings->problems);
    rp_report_texts(report, "warnings", findings->warnings);
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
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    static const char *const names[] = {"cuda", "host", NULL};
    g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) warnings = g_ptr_array_new_with_free_func(g_free);
    Findings findings = {report, problems, warnings};
    const RpCliFile file = {"--box", args->box.file, RP_CLI_WRITTEN};

    if (args->run.devices != NULL && rp_cli_choice("devices", args->run.devices, names, error) < 0)
        return FALSE;
    if (args->box.file != NULL && args->quick)
        return rp_cli_refuse(error, "--box: expected no --quick beside it, which measures nothing");
    if (!rp_cli_check_files(&file, 1, error))
        return FALSE;
    const RpDeviceOps *gpus = rp_cuda_devices();
    const guint n_gpus = gpus != NULL ? rp_cuda_device_count() : 0;
    const RpDeviceOps *devices = choose_devices(&findings, args->run.devices, gpus, n_gpus);

    report->label_width = 17;
    rp_report_built(report, gpus);
    if (n_gpus == 0)
        rp_report_line(report, "GPUs", "none: %s",
                       gpus == NULL ? rp_cuda_missing_text() : rp_cuda_no_device_text());
    rp_report_gpus(report, n_gpus, problems);
    report_memory(&findings, devices == gpus);
    report_disk(&findings, args->output != NULL ? args->output : ".");
    if (devices != NULL && !args->quick &&
        !report_links(&findings, devices, devices == gpus ? n_gpus : 1, args->box.file, error))
        return FALSE;
    report_slots(&findings, n_gpus, devices == gpus && !args->quick);
    report_verdict(&findings, devices, n_gpus);
    return TRUE;
}

static const RpUse uses[] = {
    {"devices", "cuda or host: that train is to run on (default: cuda where there are GPUs)",
     "NAME"},
    {"output", "directory whose disk checkpoints would fill (default: this one)"},
    {"box",
     "measure the optimizer, too, and write all that `plan --box FILE` takes: links of all cards "
     "up, "
     "down and both ways at once, host memory, the optimizer's rate"},
    {"quick"},
    {0},
};

const RpCommand rp_command_doctor = {
    .name = "doctor",
    .summary = "whether this machine can train, and what it has for that",
    .help =
        "Tells whether `roundpipe train` can run here: GPU code, driver, cards, links as "
        "measured,\nslots, memory, lock limit, disk, and what was built in. Warns of a card that "
        "runs below its slot,\nstands in a "
        "narrow one, or has its copies translated by an IOMMU. --box writes a file for `plan "
        "--box`.\n\n"
        "Examples:\n  roundpipe doctor && roundpipe train run.yaml\n"
        "  roundpipe doctor --box box.json\n\n"
        "Exit codes: 0 train can run, 1 it cannot, 2 wrong usage.",
    .uses = uses,
    .run = run,
};
