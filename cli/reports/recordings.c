/* `roundpipe report` of recordings by other programs: figures of each device. */
#include "cli/cli.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/recording/recording.h"
#include "plots/page/page.h"
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
gboolean
rp_cli_is_recording(const char *path)
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
rp_cli_are_compared(char *const *words)
{
    guint n = 1;

    if (words[0] == NULL || words[1] == NULL || !g_str_has_suffix(words[0], ".json") ||
        rp_cli_is_recording(words[0]))
        return FALSE;
    while (words[n] != NULL && rp_cli_is_recording(words[n]))
        n++;
    return words[n] == NULL;
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
        if (text->len > MAX_UNPACKED_BYTES)
            return rp_null(
                rp_fail_in(error, path, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                           "expected at most 2 GiB when unpacked, found more; unpack it"));
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

        return rp_null(
            rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                    "%s: expected a SQLite file, found a report that only nsys reads; export it: "
                    "nsys export --type sqlite %s",
                    shown, shown));
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

/* Parts of the bubble. */
static const struct {
    const char *key;
    gsize offset; /* in RpRecordedFigures */
    const char *label;
} parts[] = {
    {"idle_start", G_STRUCT_OFFSET(RpRecordedFigures, idle_start_ns), "idle at start"},
    {"idle_between", G_STRUCT_OFFSET(RpRecordedFigures, idle_between_ns), "between"},
    {"idle_end", G_STRUCT_OFFSET(RpRecordedFigures, idle_end_ns), "at end"},
    {"collectives", G_STRUCT_OFFSET(RpRecordedFigures, only_collectives_ns), "collectives"},
    {"copies", G_STRUCT_OFFSET(RpRecordedFigures, only_copies_ns), "copies"},
    {"collectives_and_copies", G_STRUCT_OFFSET(RpRecordedFigures, both_ns), "both"},
};

static double
part_of(const RpRecordedFigures *figures, guint part)
{
    return rp_recorded_share(figures, G_STRUCT_MEMBER(gint64, figures, parts[part].offset));
}

static double
bubble_of(const RpRecordedFigures *figures)
{
    return rp_recorded_share(figures, figures->window_ns - figures->busy_ns);
}

/* Ratios are of the window; times of kinds count each moment once. @row: of the table for people */
static void
report_figures(RpReport *report, const RpRecordedFigures *figures, gboolean row)
{
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
    rp_report_ratio(report, "bubble_ratio", bubble_of(figures), row ? "bubble %" : NULL);
    rp_report_object(report, "bubble", NULL);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        rp_report_ratio(report, parts[i].key, part_of(figures, i), row ? parts[i].label : NULL);
    rp_report_end(report);
    for (guint i = 0; i < G_N_ELEMENTS(times); i++)
        rp_report_ms(report, times[i].key, times[i].ns, row ? times[i].label : NULL);
}

/* (transfer full) */
static char *
title_of(const RpRecording *recording, guint file, const RpRecordedDevice *device)
{
    return g_strdup_printf("%s %" G_GUINT64_FORMAT ", gpu %" G_GUINT64_FORMAT,
                           recording->has_rank ? "rank" : "file",
                           recording->has_rank ? recording->rank : file + 1, device->number);
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
    g_autofree char *title = title_of(recording, file, device);

    rp_report_line(report, "<device", "%s", title);
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
    rp_report_say(report, "\nall: %.3f %% bubble", 100 * bubble_of(&all));
}

/* (transfer full) */
static char *
clock_text(guint files, RpRecordedClock clock, guint64 step)
{
    return clock == RP_CLOCK_OWN      ? g_strdup("one file")
           : clock == RP_CLOCK_COMMON ? g_strdup_printf("%u files, joined by their clocks", files)
                                      : g_strdup_printf("%u files, joined at the start of step "
                                                        "%" G_GUINT64_FORMAT,
                                                        files, step);
}

static void
report_head(RpReport *report, const char *how, RpRecordedClock clock, guint64 step,
            const RpRecordedWindow *window)
{
    static const char *const clocks[] = {"own", "common", "step"};
    const gint64 length_ns = window->end_ns - window->start_ns;

    rp_report_say(report, "%s; the window is %.3f ms", how, rp_ms_from_ns(length_ns));
    rp_report_text(report, "clock", clocks[clock], NULL);
    if (clock == RP_CLOCK_STEP)
        rp_report_count(report, "joined_at_step", (gint64)step, NULL);
    rp_report_ms(report, "window_ms", length_ns, NULL);
    rp_report_say(report, "bubble = idle + what runs without compute: collectives, copies, both\n");
}

/* ---- the page ---- */

/* "rank 0, gpu 1" of all devices, those of the first file first. (transfer full) */
static char **
titles_of(const GPtrArray *recordings)
{
    g_autoptr(GPtrArray) titles = g_ptr_array_new();

    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++)
            g_ptr_array_add(
                titles,
                title_of(recording, i, &g_array_index(recording->devices, RpRecordedDevice, d)));
    }
    g_ptr_array_add(titles, NULL);
    return (char **)g_ptr_array_free(g_steal_pointer(&titles), FALSE);
}

/* A row of a device, or with no @figures the titles. */
static void
add_device_row(RpPage *page, const char *title, const RpRecordedFigures *figures)
{
    g_autoptr(GPtrArray) cells = g_ptr_array_new_with_free_func(g_free);

    g_ptr_array_add(cells, g_strdup(title));
    g_ptr_array_add(cells, figures == NULL
                               ? g_strdup("busy, ms")
                               : g_strdup_printf("%.3f", rp_ms_from_ns(figures->busy_ns)));
    g_ptr_array_add(cells, figures == NULL ? g_strdup("bubble ratio")
                                           : rp_text_percent(bubble_of(figures)));
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        g_ptr_array_add(cells, figures == NULL ? g_strdup(parts[i].label)
                                               : rp_text_percent(part_of(figures, i)));
    rp_page_row(page, (const char *const *)cells->pdata, cells->len);
}

static void
add_devices(RpPage *page, const GPtrArray *recordings, char *const *titles,
            const RpRecordedWindow *window)
{
    RpRecordedFigures all = {0};
    guint n = 0;

    rp_page_begin_table(page, NULL);
    add_device_row(page, "", NULL);
    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++) {
            const RpRecordedFigures figures = rp_recorded_figures(
                &g_array_index(recording->devices, RpRecordedDevice, d), window);

            add_device_row(page, titles[n++], &figures);
            rp_recorded_figures_add(&all, &figures);
        }
    }
    add_device_row(page, "all", &all);
    rp_page_end_table(page);
}

static gboolean
write_page(const RpArgs *args, const char *command, const GPtrArray *recordings, const char *how,
           const RpRecordedWindow *window, RpReport *report, GError **error)
{
    const RpRecording *first = g_ptr_array_index(recordings, 0);
    g_autofree char *name = g_path_get_basename(first->file);
    g_autofree char *title = g_strdup_printf("%s: a recording", name);
    g_auto(GStrv) titles = titles_of(recordings);
    g_autoptr(RpPage) page = rp_page_new(title);

    rp_page_head(page, "Time and bubble");
    rp_page_say(
        page,
        "%s; the window is %.3f ms. The bubble is all but busy: idle time, and work without "
        "compute beside it.",
        how, rp_ms_from_ns(window->end_ns - window->start_ns));
    add_devices(page, recordings, titles, window);
    rp_page_add_recordings(page, recordings, (const char *const *)titles, window);
    rp_page_head(page, "Commands");
    rp_page_quote(page, NULL, command);
    g_autofree char *html = rp_page_finish(page);

    if (!rp_cli_write_text(args->output, html, error))
        return FALSE;
    rp_report_say(report, "\npage: %s", args->output);
    rp_report_text(report, "report", args->output, NULL);
    rp_report_bytes(report, "bytes", strlen(html), NULL);
    return TRUE;
}

static gboolean
check(const RpArgs *args, char *const *paths, GError **error)
{
    if (args->kinds != NULL) {
        const RpCliFile kinds = {"--kinds", args->kinds, RP_CLI_READ};

        if (!rp_cli_check_files(&kinds, 1, error))
            return FALSE;
    }
    for (char *const *path = paths; *path != NULL; path++) {
        const RpCliFile files[] = {{"FILE", *path, RP_CLI_READ},
                                   {"--output", args->output, RP_CLI_WRITTEN}};

        if (!rp_cli_check_files(files, args->output != NULL ? 2 : 1, error))
            return FALSE;
        if (args->kinds == NULL && !rp_cli_is_recording(*path)) {
            g_autofree char *shown = rp_display_name(*path);

            return rp_cli_refuse(
                error, "FILE: expected recordings of torch.profiler or nsys alone, found %s",
                shown);
        }
    }
    return TRUE;
}

gboolean
rp_cli_recordings(const RpArgs *args, char *const *paths, const char *command, RpReport *report,
                  GError **error)
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
    g_autofree char *how = clock_text(recordings->len, clock, step);

    report_head(report, how, clock, step, &window);
    report_devices(report, recordings, &window);
    return args->output == NULL ||
           write_page(args, command, recordings, how, &window, report, error);
}

char *
rp_cli_recordings_name(char *const *paths)
{
    const guint more = g_strv_length((char **)paths) - 1;
    char *first = rp_display_name(paths[0]);

    if (more == 0)
        return first;
    g_autofree char *alone = first;

    return g_strdup_printf("%s and %u more", alone, more);
}

RpTrace *
rp_cli_recordings_trace(const RpArgs *args, char *const *paths, GError **error)
{
    g_autoptr(GPtrArray) recordings = load_all(args, paths, error);
    RpRecordedClock clock;
    guint64 step;

    return recordings != NULL && rp_recordings_join(recordings, &clock, &step, error)
               ? rp_recordings_trace(recordings, error)
               : NULL;
}
