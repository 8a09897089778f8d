/* `roundpipe report` of recordings by other programs: figures of each device. */
#include "cli/cli.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/recording/recording.h"
#include "text/samples/samples.h"

#define MAX_KINDS_BYTES (1 << 20)
#define MAX_UNPACKED_BYTES ((gsize)2 << 30)
#define PIECE_BYTES ((gsize)1 << 20)
#define HEAD_BYTES 256 /* hold the first key */

/* Files of Nsight Systems that it alone can read, and those that it exports. */
static const char *const own_suffixes[] = {".nsys-rep", ".qdrep", ".qdstrm"};
static const char *const sqlite_suffixes[] = {".sqlite", ".sqlite3", ".db"};

/* ---- files ---- */

static gboolean
has_suffix(const char *path, const char *const *suffixes, guint n)
{
    for (guint i = 0; i < n; i++)
        if (g_str_has_suffix(path, suffixes[i]))
            return TRUE;
    return FALSE;
}

/* Recordings are told from traces of roundpipe by the first key; one that is compressed is no trace. */
static gboolean
is_recording(const char *path)
{
    if (g_str_has_suffix(path, ".gz") ||
        has_suffix(path, own_suffixes, G_N_ELEMENTS(own_suffixes)) ||
        has_suffix(path, sqlite_suffixes, G_N_ELEMENTS(sqlite_suffixes)))
        return TRUE;
    if (!g_str_has_suffix(path, ".json"))
        return FALSE;
    g_autoptr(GMappedFile) file = rp_file_map(path, NULL);

    return file != NULL && g_mapped_file_get_length(file) > 0 &&
           rp_kineto_is(g_mapped_file_get_contents(file),
                        MIN(g_mapped_file_get_length(file), HEAD_BYTES));
}

gboolean
rp_cli_are_recordings(const RpArgs *args, char *const *paths)
{
    gboolean any = args->kinds != NULL;

    for (char *const *path = paths; *path != NULL; path++)
        any |= is_recording(*path);
    return any;
}

/* (transfer full) (nullable): the bytes of a compressed file */
static GString *
unpack(const char *path, GError **error)
{
    g_autoptr(RpInflate) inflate = rp_inflate_open(path, error);
    g_autoptr(GString) text = g_string_new(NULL);
    gsize n = 1;

    if (inflate == NULL)
        return NULL;
    while (n > 0) {
        const gsize before = text->len;

        g_string_set_size(text, before + PIECE_BYTES);
        if (!rp_inflate_read(inflate, text->str + before, PIECE_BYTES, &n, error))
            return NULL;
        g_string_set_size(text, before + n);
        if (text->len > MAX_UNPACKED_BYTES) {
            g_autofree char *shown = rp_display_name(path);

            (void)rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                          "%s: expected at most 2 GiB when unpacked, found more; unpack it", shown);
            return NULL;
        }
    }
    return g_steal_pointer(&text);
}

static RpRecording *
load(const char *path, const RpWorkPatterns *patterns, GError **error)
{
    if (g_str_has_suffix(path, ".gz")) {
        g_autoptr(GString) text = unpack(path, error);

        return text != NULL ? rp_kineto_parse(path, text->str, text->len, patterns, error) : NULL;
    }
    if (has_suffix(path, own_suffixes, G_N_ELEMENTS(own_suffixes))) {
        g_autofree char *shown = rp_display_name(path);

        (void)rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                      "%s: expected a SQLite file, found a report that only nsys reads; export it: "
                      "nsys export --type sqlite %s",
                      shown, shown);
        return NULL;
    }
    g_autoptr(GMappedFile) file = rp_file_map(path, error);

    if (file == NULL)
        return NULL;
    const char *text = g_mapped_file_get_contents(file);
    const gsize length = g_mapped_file_get_length(file);

    return has_suffix(path, sqlite_suffixes, G_N_ELEMENTS(sqlite_suffixes))
               ? rp_nsight_parse(path, text, length, patterns, error)
               : rp_kineto_parse(path, text, length, patterns, error);
}

static RpWorkPatterns *
load_patterns(const char *path, GError **error)
{
    g_autoptr(RpWorkPatterns) patterns = rp_work_patterns_new();
    gsize length;

    if (path == NULL)
        return g_steal_pointer(&patterns);
    g_autofree char *text = rp_file_read(path, MAX_KINDS_BYTES, &length, error);

    return text != NULL && rp_work_patterns_add(patterns, path, text, length, error)
               ? g_steal_pointer(&patterns)
               : NULL;
}

/* (element-type RpRecording) (nullable) */
static GPtrArray *
load_all(const RpArgs *args, char *const *paths, GError **error)
{
    g_autoptr(GPtrArray) recordings =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_recording_free);
    g_autoptr(RpWorkPatterns) patterns = load_patterns(args->kinds, error);

    for (char *const *path = paths; patterns != NULL && *path != NULL; path++) {
        RpRecording *recording = load(*path, patterns, error);

        if (recording == NULL)
            return NULL;
        g_ptr_array_add(recordings, recording);
    }
    return patterns != NULL ? g_steal_pointer(&recordings) : NULL;
}

/* ---- the report ---- */

/* Ratios are of the window; times of kinds count each moment once. @row: of the table for people */
static void
report_figures(RpReport *report, const RpRecordedFigures *figures, gboolean row)
{
    const struct {
        const char *key;
        gint64 ns;
        const char *label;
    } parts[] = {
        {"idle_start", figures->idle_start_ns, "idle at start"},
        {"idle_between", figures->idle_between_ns, "between"},
        {"idle_end", figures->idle_end_ns, "at end"},
        {"collectives", figures->only_collectives_ns, "collectives"},
        {"copies", figures->only_copies_ns, "copies"},
        {"collectives_and_copies", figures->both_ns, "both"},
    };
    const struct {
        const char *key;
        gint64 ns;
        const char *label;
    } times[] = {
        {"collectives_ms", figures->total_ns[RP_WORK_COLLECTIVE], "collectives ms"},
        {"collectives_exposed_ms", figures->only_collectives_ns, "exposed ms"},
        {"copies_ms", figures->total_ns[RP_WORK_COPY], "copies ms"},
        {"copies_exposed_ms", figures->only_copies_ns, "exposed ms"},
    };

    rp_report_count(report, "events", (gint64)figures->events, NULL);
    rp_report_ms(report, "busy_ms", figures->busy_ns, row ? "busy ms" : NULL);
    rp_report_ratio(report, "bubble_ratio",
                    rp_recorded_share(figures, figures->window_ns - figures->busy_ns),
                    row ? "bubble %" : NULL);
    rp_report_object(report, "bubble", NULL);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        rp_report_ratio(report, parts[i].key, rp_recorded_share(figures, parts[i].ns),
                        row ? parts[i].label : NULL);
    rp_report_end(report);
    for (guint i = 0; i < G_N_ELEMENTS(times); i++)
        rp_report_ms(report, times[i].key, times[i].ns, row ? times[i].label : NULL);
}

static void
report_device(RpReport *report, const RpRecording *recording, guint file,
              const RpRecordedDevice *device, const RpRecordedFigures *figures)
{
    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "file", recording->file, NULL);
    if (recording->has_rank)
        rp_report_count(report, "rank", (gint64)recording->rank, NULL);
    rp_report_count(report, "device", (gint64)device->number, NULL);
    rp_report_line(report, "<device", "%s %" G_GUINT64_FORMAT ", gpu %" G_GUINT64_FORMAT,
                   recording->has_rank ? "rank" : "file",
                   recording->has_rank ? recording->rank : file + 1, device->number);
    report_figures(report, figures, TRUE);
    rp_report_end(report);
}

static void
report_devices(RpReport *report, const GPtrArray *recordings, const RpRecordedWindow *window)
{
    RpRecordedFigures all = {0};
    guint n = 0;

    rp_report_table(report, "devices", NULL, 0);
    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++, n++) {
            const RpRecordedDevice *device =
                &g_array_index(recording->devices, RpRecordedDevice, d);
            const RpRecordedFigures figures = rp_recorded_figures(device, window);

            report_device(report, recording, i, device, &figures);
            rp_recorded_figures_add(&all, &figures);
        }
    }
    rp_report_end(report);
    rp_report_object(report, "all", NULL);
    rp_report_count(report, "devices", n, NULL);
    rp_report_ms(report, "window_ms", all.window_ns, NULL);
    report_figures(report, &all, FALSE);
    rp_report_end(report);
    rp_report_say(report, "\nall: %.3f %% bubble",
                  100 * rp_recorded_share(&all, all.window_ns - all.busy_ns));
}

static void
report_head(RpReport *report, const GPtrArray *recordings, RpRecordedClock clock, guint64 step,
            const RpRecordedWindow *window)
{
    static const char *const clocks[] = {"own", "common", "step"};
    const gint64 length_ns = window->end_ns - window->start_ns;
    g_autofree char *how =
        clock == RP_CLOCK_OWN ? g_strdup("one file")
        : clock == RP_CLOCK_COMMON
            ? g_strdup_printf("%u files, joined by their clocks", recordings->len)
            : g_strdup_printf("%u files, joined at the start of step "
                              "%" G_GUINT64_FORMAT,
                              recordings->len, step);

    rp_report_say(report, "%s; the window is %.3f ms", how, rp_ms_from_ns(length_ns));
    rp_report_text(report, "clock", clocks[clock], NULL);
    if (clock == RP_CLOCK_STEP)
        rp_report_count(report, "joined_at_step", (gint64)step, NULL);
    rp_report_ms(report, "window_ms", length_ns, NULL);
    rp_report_say(report, "bubble = idle + what runs without compute: collectives, copies, both\n");
}

static gboolean
check(const RpArgs *args, char *const *paths, GError **error)
{
    if (args->output != NULL)
        return rp_cli_refuse(error,
                             "--output: expected none; recordings have figures, but no page");
    if (args->kinds != NULL) {
        const RpCliFile kinds = {"--kinds", args->kinds, RP_CLI_READ};

        if (!rp_cli_check_files(&kinds, 1, error))
            return FALSE;
    }
    for (char *const *path = paths; *path != NULL; path++) {
        const RpCliFile file = {"FILE", *path, RP_CLI_READ};

        if (!rp_cli_check_files(&file, 1, error))
            return FALSE;
        if (args->kinds == NULL && !is_recording(*path)) {
            g_autofree char *shown = rp_display_name(*path);

            return rp_cli_refuse(
                error, "FILE: expected recordings of torch.profiler or nsys alone, found %s",
                shown);
        }
    }
    return TRUE;
}

gboolean
rp_cli_recordings(const RpArgs *args, char *const *paths, RpReport *report, GError **error)
{
    guint64 first = 0, end = 0, step = 0;
    RpRecordedWindow window;
    RpRecordedClock clock;

    if (!check(args, paths, error) ||
        (args->range != NULL &&
         !rp_cli_parse_range("iterations", args->range, &first, &end, error)))
        return FALSE;
    g_autoptr(GPtrArray) recordings = load_all(args, paths, error);

    if (recordings == NULL || !rp_recordings_join(recordings, &clock, &step, error))
        return FALSE;
    if (!rp_recorded_window(recordings, first, end, &window, error)) {
        if (args->range != NULL)
            g_prefix_error(error, "--iterations: ");
        return FALSE;
    }
    report_head(report, recordings, clock, step, &window);
    report_devices(report, recordings, &window);
    return TRUE;
}
