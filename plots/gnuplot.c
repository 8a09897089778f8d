#include "plots/gnuplot.h"

#include <errno.h>
#include <gio/gio.h>
#include <glib/gstdio.h>
#include <locale.h>
#include <string.h>

/* More than any picture takes; $ROUNDPIPE_GNUPLOT_SECONDS: another number. */
#define MOST_SECONDS 60

G_DEFINE_QUARK(rp_plot_error, rp_plot_error)

static const struct {
    const char *name;
    const char *terminal;
    RpPictureFormat format;
} picture_formats[] = {
    {"png", "pngcairo", RP_PICTURE_PNG},
    {"svg", "svg", RP_PICTURE_SVG},
    {"pdf", "pdfcairo", RP_PICTURE_PDF},
    {"tex", "cairolatex", RP_PICTURE_TEX},
};

gboolean
rp_picture_formats_parse(const char *text, RpPictureFormat *formats, GError **error)
{
    g_auto(GStrv) words = g_strsplit(text, ",", -1);
    guint found = 0;

    for (guint w = 0; words[w] != NULL; w++) {
        guint flag = strcmp(g_strstrip(words[w]), "all") == 0 ? RP_PICTURE_ALL : 0;

        for (guint i = 0; i < G_N_ELEMENTS(picture_formats); i++)
            if (strcmp(words[w], picture_formats[i].name) == 0)
                flag = picture_formats[i].format;
        if (flag == 0)
            return rp_fail(
                error, RP_PLOT_ERROR, RP_PLOT_ERROR_FORMAT,
                "unknown picture format \"%s\": png, svg, pdf, tex or all, separated by commas",
                words[w]);
        found |= flag;
    }
    if (found == 0)
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_FORMAT,
                       "no picture format given: png, svg, pdf, tex or all");
    *formats = (RpPictureFormat)found;
    return TRUE;
}

guint
rp_picture_format_of(const char *path)
{
    const char *dot = strrchr(path, '.');

    for (guint i = 0; i < G_N_ELEMENTS(picture_formats) && dot != NULL; i++)
        if (strcmp(picture_formats[i].name, dot + 1) == 0)
            return picture_formats[i].format;
    return 0;
}

const char *
rp_picture_format_name(RpPictureFormat format)
{
    guint i = 0;

    while (picture_formats[i].format != format)
        i++;
    return picture_formats[i].name;
}

gboolean
rp_gnuplot_check(GError **error)
{
    g_autofree char *path = g_find_program_in_path("gnuplot");

    if (path != NULL)
        return TRUE;
    return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_GNUPLOT,
                   "gnuplot not found in PATH: install the Debian package gnuplot-nox");
}

/* Whether @problem is but that @process ended, without success, before it had read everything. */
static gboolean
ended_early(GSubprocess *process, const GError *problem)
{
    return g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_BROKEN_PIPE) &&
           g_subprocess_wait(process, NULL, NULL) && !g_subprocess_get_successful(process);
}

/* Reports a @process that did not succeed; @text is its output, or %NULL. Returns: %FALSE */
static gboolean
fail(GSubprocess *process, char *text, GError **error)
{
    const char *said = text != NULL && *g_strstrip(text) ? text : NULL;

    if (!g_subprocess_get_if_signaled(process))
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW, "gnuplot failed: %s",
                       said != NULL ? said : "no message");
    const int number = g_subprocess_get_term_sig(process);

    return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW,
                   "gnuplot was ended by signal %d (%s)%s%s", number, g_strsignal(number),
                   said != NULL ? ": " : "", said != NULL ? said : "");
}

/* Ends a process that gives no answer. */
typedef struct {
    GMutex lock;
    GCond over;
    GSubprocess *process;
    guint seconds;
    gboolean answered;
    gboolean ended;
} Watch;

static gpointer
watch(gpointer data)
{
    Watch *watch = data;
    const gint64 end_us = g_get_monotonic_time() + watch->seconds * G_USEC_PER_SEC;

    g_mutex_lock(&watch->lock);
    while (!watch->answered && !watch->ended)
        if (!g_cond_wait_until(&watch->over, &watch->lock, end_us)) {
            watch->ended = TRUE;
            g_subprocess_force_exit(watch->process);
        }
    g_mutex_unlock(&watch->lock);
    return NULL;
}

/* As g_subprocess_communicate_utf8(). @hung: (out): whether it was ended for giving no answer */
static gboolean
communicate(GSubprocess *process, const char *commands, guint seconds, char **text, gboolean *hung,
            GError **error)
{
    Watch state = {.process = process, .seconds = seconds};

    g_mutex_init(&state.lock);
    g_cond_init(&state.over);
    GThread *thread = g_thread_new("gnuplot", watch, &state);
    gboolean done = g_subprocess_communicate_utf8(process, commands, NULL, NULL, text, error);
    g_mutex_lock(&state.lock);
    state.answered = TRUE;
    g_cond_signal(&state.over);
    g_mutex_unlock(&state.lock);
    g_thread_join(thread);
    *hung = state.ended;
    g_mutex_clear(&state.lock);
    g_cond_clear(&state.over);
    return done;
}

/* Runs gnuplot on @commands; @messages gets its stderr, where `print` writes too. */
static gboolean
run(const char *directory, const char *commands, char **messages, GError **error)
{
    g_autoptr(GSubprocessLauncher) launcher = g_subprocess_launcher_new(
        G_SUBPROCESS_FLAGS_STDIN_PIPE | G_SUBPROCESS_FLAGS_STDOUT_SILENCE |
        G_SUBPROCESS_FLAGS_STDERR_PIPE);
    g_autoptr(GError) local = NULL;
    g_autofree char *text = NULL;
    gboolean hung = FALSE;
    const char *given = g_getenv("ROUNDPIPE_GNUPLOT_SECONDS");
    guint64 most = MOST_SECONDS;

    if (given != NULL)
        (void)g_ascii_string_to_unsigned(given, 10, 1, 86400, &most, NULL);
    const guint seconds = (guint)most;

    if (!rp_gnuplot_check(error))
        return FALSE;
    if (directory != NULL)
        g_subprocess_launcher_set_cwd(launcher, directory);
    g_subprocess_launcher_setenv(launcher, "LC_ALL", "C.UTF-8", TRUE);
    /* or it would ask for a display */
    g_subprocess_launcher_setenv(launcher, "GNUTERM", "unknown", TRUE);
    g_autoptr(GSubprocess) process =
        g_subprocess_launcher_spawn(launcher, &local, "gnuplot", "--default-settings", "-", NULL);
    const gboolean answered =
        process != NULL && communicate(process, commands, seconds, &text, &hung, &local);

    if (hung)
        return rp_fail(
            error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW,
            "gnuplot gave no answer for %d s and was ended: try it by hand, or draw less",
            (int)seconds);
    if (!answered && !(process != NULL && ended_early(process, local)))
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW, "cannot run gnuplot: %s",
                       local->message);
    if (!g_subprocess_get_successful(process))
        return fail(process, text, error);
    *messages = g_steal_pointer(&text);
    return TRUE;
}

gboolean
rp_gnuplot_check_formats(RpPictureFormat formats, GError **error)
{
    g_autofree char *terminals = NULL;

    if (!run(NULL, "print GPVAL_TERMINALS\n", &terminals, error))
        return FALSE;
    g_auto(GStrv) words = g_strsplit_set(terminals, " \n", -1);
    for (guint i = 0; i < G_N_ELEMENTS(picture_formats); i++) {
        if (!((guint)formats & (guint)picture_formats[i].format) ||
            g_strv_contains((const char *const *)words, picture_formats[i].terminal))
            continue;
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_GNUPLOT,
                       "this gnuplot cannot draw %s (it has no terminal %s): install the Debian "
                       "package gnuplot-nox",
                       picture_formats[i].name, picture_formats[i].terminal);
    }
    return TRUE;
}

gboolean
rp_output_directory_check(const char *directory, GError **error)
{
    if (g_mkdir_with_parents(directory, 0777) != 0)
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DIRECTORY,
                       "cannot make the output directory %s: %s", directory, g_strerror(errno));
    g_autofree char *probe = g_build_filename(directory, ".roundpipe-XXXXXX", NULL);
    int fd = g_mkstemp(probe);
    if (fd < 0)
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DIRECTORY,
                       "cannot write to the output directory %s: %s", directory, g_strerror(errno));
    (void)g_close(fd, NULL);
    (void)g_unlink(probe);
    return TRUE;
}

/* Font set-up of a bare machine complains without harm to the picture, and so does a legend of one
 * column that is wider than the plot above it. */
static gboolean
is_harmless(const char *line)
{
    return *line == '\0' || g_str_has_prefix(line, "Fontconfig") ||
           strstr(line, "Pango-WARNING") != NULL ||
           strstr(line, "difficulty fitting plot titles into key") != NULL;
}

gboolean
rp_gnuplot_run(const char *directory, const char *commands, GError **error)
{
    g_autofree char *messages = NULL;

    if (!run(directory, commands, &messages, error))
        return FALSE;
    g_auto(GStrv) lines = g_strsplit(messages != NULL ? messages : "", "\n", -1);
    for (guint i = 0; lines[i] != NULL; i++) {
        if (is_harmless(g_strstrip(lines[i])))
            continue;
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW, "gnuplot complains: %s",
                       g_strstrip(messages));
    }
    return TRUE;
}

char *
rp_gnuplot_quote(const char *text)
{
    GString *quoted = g_string_new(NULL);

    for (; *text == '\''; text++) /* gnuplot reads an empty text first in '''a' */
        g_string_append(quoted, "\"'\".");
    g_string_append_c(quoted, '\'');
    for (const char *c = text; *c; c++)
        if (*c == '\'')
            g_string_append(quoted, "''");
        else if (*c == '\n')
            g_string_append(quoted, "'.\"\\n\".'");
        else
            g_string_append_c(quoted, (guchar)*c < 0x20 ? ' ' : *c);
    return g_string_free(g_string_append_c(quoted, '\''), FALSE);
}

char *
rp_gnuplot_quote_datum(const char *text)
{
    GString *quoted = g_string_new("\"");

    for (const char *c = text; *c; c++)
        if (*c == '"')
            g_string_append_c(quoted, '\'');
        else if (*c == '\\')
            g_string_append_c(quoted, '/');
        else
            g_string_append_c(quoted, (guchar)*c < 0x20 ? ' ' : *c);
    return g_string_free(g_string_append_c(quoted, '"'), FALSE);
}

void
rp_text_append(GString *text, const char *format, ...)
{
    static gsize once = 0;
    static locale_t plain = (locale_t)0;
    va_list arguments;

    if (g_once_init_enter(&once)) {
        plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
        g_once_init_leave(&once, 1);
    }
    locale_t before = plain != NULL ? uselocale(plain) : (locale_t)0;
    va_start(arguments, format);
    g_string_append_vprintf(text, format, arguments);
    va_end(arguments);
    if (before != NULL)
        uselocale(before);
}
