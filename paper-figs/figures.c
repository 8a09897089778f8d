#include "paper-figs/figures.h"

#include <string.h>

#include "core/base/quote.h"
#include "paper-figs/paper.h"

#define MOST_AT_ONCE 8 /* figures that are made at the same time: each takes memory of its own */

static const struct {
    const char *name;
    RpPaperRecipe *make;
} recipes[] = {
    {"figure-1", rp_paper_figure_1},         {"figure-2", rp_paper_figure_2},
    {"figure-3", rp_paper_figure_3},         {"figure-4", rp_paper_figure_4},
    {"figure-5", rp_paper_figure_5},         {"figure-6", rp_paper_overlap},
    {"figure-7", rp_paper_overlap},          {"figure-8", rp_paper_figure_8},
    {"figure-9", rp_paper_systems},          {"figure-10", rp_paper_systems},
    {"figure-11", rp_paper_systems},         {"figure-12", rp_paper_systems},
    {"figure-13", rp_paper_figure_13},       {"figure-13-measured", rp_paper_figure_13_measured},
    {"figure-14", rp_paper_figure_14},       {"figure-14-measured", rp_paper_figure_14_measured},
    {"figure-15", rp_paper_figure_15},       {"figure-15-published", rp_paper_figure_15_published},
    {"figure-15-early", rp_paper_figure_15}, {"figure-15-measured", rp_paper_figure_15_measured},
    {"figure-16", rp_paper_figure_16},       {"figure-16-measured", rp_paper_figure_16_measured},
    {"figure-17", rp_paper_figure_17},       {"fit", rp_paper_fit},
    {"timelines", rp_paper_timelines},       {"memory", rp_paper_memory},
    {"balance", rp_paper_balance},
};

const char *const *
rp_figures_names(void)
{
    static const char *names[G_N_ELEMENTS(recipes) + 1];

    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++)
        names[i] = recipes[i].name;
    return names;
}

static gboolean
check_names(const char *const *names, GError **error)
{
    for (guint i = 0; names != NULL && names[i] != NULL; i++) {
        if (g_strv_contains(rp_figures_names(), names[i]))
            continue;
        g_autofree char *list = g_strjoinv(", ", (char **)rp_figures_names());
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA, "no figure \"%s\"; there are: %s",
                       names[i], list);
    }
    return TRUE;
}

static void
append_to_index(GString *index, const RpFigure *figure)
{
    g_string_append_printf(index, "%s: %s\n\n%s\n\n%s\n\n", rp_figure_name(figure),
                           rp_figure_title(figure), rp_figure_caption(figure),
                           rp_figure_commands(figure));
}

static gboolean
make_one(RpPaper *paper, guint recipe, const RpFiguresRequest *request, GString *index,
         GError **error)
{
    g_autoptr(GPtrArray) figures = g_ptr_array_new_with_free_func((GDestroyNotify)rp_figure_free);

    if (!recipes[recipe].make(paper, recipes[recipe].name, figures, error))
        return FALSE;
    for (guint i = 0; i < figures->len; i++) {
        RpFigure *figure = g_ptr_array_index(figures, i);

        rp_figure_set_style(figure, &request->style);
        if (!rp_figure_write(figure, request->output_dir, request->formats, error))
            return FALSE;
        append_to_index(index, figure);
    }
    return TRUE;
}

/* Some figures need measurements that may not exist yet. */
static void
leave_out(const char *name, const char *reason, GString *index, GPtrArray *left_out)
{
    g_string_append_printf(index, "%s: not drawn\n\n%s\n\n", name, reason);
    if (left_out != NULL)
        g_ptr_array_add(left_out, g_strdup_printf("%s: %s", name, reason));
}

/* A recipe's outcome. */
typedef struct {
    guint recipe;
    GString *index;
    GError *problem;
} Made;

typedef struct {
    RpPaper *paper;
    const RpFiguresRequest *request;
    guint done, total;
    GMutex lock; /* over done, and the caller's progress */
} Work;

static void
clear_made(gpointer data)
{
    Made *made = data;

    g_string_free(made->index, TRUE);
    g_clear_error(&made->problem);
}

static void
show_progress(Work *work, const char *name, guint done)
{
    g_mutex_lock(&work->lock);
    work->done += done;
    if (work->request->progress != NULL)
        work->request->progress(name, work->done, work->total, work->request->user_data);
    g_mutex_unlock(&work->lock);
}

static void
make_in_thread(gpointer data, gpointer user_data)
{
    Made *made = data;
    Work *work = user_data;
    const char *name = recipes[made->recipe].name;

    show_progress(work, name, 0);
    (void)make_one(work->paper, made->recipe, work->request, made->index, &made->problem);
    show_progress(work, name, 1);
}

/* Figures know nothing of each other, but for partitions that several have: as many at once as there are
 * processors. */
static gboolean
make_at_once(Work *work, GArray *all, GError **error)
{
    const int n_threads = (int)CLAMP(g_get_num_processors(), 1, MOST_AT_ONCE);
    GThreadPool *pool = g_thread_pool_new(make_in_thread, work, n_threads, TRUE, error);

    if (pool == NULL)
        return FALSE;
    for (guint i = 0; i < all->len; i++)
        g_thread_pool_push(pool, &g_array_index(all, Made, i), NULL);
    g_thread_pool_free(pool, FALSE, TRUE);
    return TRUE;
}

static gboolean
make_all(RpPaper *paper, const RpFiguresRequest *request, GString *index, GPtrArray *left_out,
         GError **error)
{
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(Made));
    Work work = {.paper = paper, .request = request};

    g_array_set_clear_func(all, clear_made);
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        const Made made = {.recipe = i, .index = NULL};

        if (request->names != NULL && !g_strv_contains(request->names, recipes[i].name))
            continue;
        g_array_append_val(all, made);
        g_array_index(all, Made, all->len - 1).index = g_string_new(NULL);
    }
    work.total = all->len;
    const gboolean ran = make_at_once(&work, all, error);

    g_mutex_clear(&work.lock);
    for (guint i = 0; ran && i < all->len; i++) {
        Made *made = &g_array_index(all, Made, i);
        const char *name = recipes[made->recipe].name;

        if (made->problem == NULL) {
            g_string_append(index, made->index->str);
        } else if (request->names == NULL &&
                   g_error_matches(made->problem, RP_PLOT_ERROR, RP_PLOT_ERROR_EMPTY)) {
            leave_out(name, made->problem->message, index, left_out);
        } else {
            g_propagate_prefixed_error(error, g_steal_pointer(&made->problem), "%s: ", name);
            return FALSE;
        }
    }
    return ran;
}

#define INDEX "index.txt"
#define INDEX_HEAD "Figures, with what they show and the commands that give their numbers.\n"

/* Whether the file is one of a requested figure, by its name up to a dot or a hyphen. */
static gboolean
is_of_figures(const RpFiguresRequest *request, const char *file)
{
    if (strcmp(file, INDEX) == 0)
        return TRUE;
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        const char *name = recipes[i].name;

        if ((request->names == NULL || g_strv_contains(request->names, name)) &&
            g_str_has_prefix(file, name) && strchr(".-", file[strlen(name)]) != NULL)
            return TRUE;
    }
    return FALSE;
}

/* Files of such names are written over where figures were made before, which the index says. */
static gboolean
check_foreign(const RpFiguresRequest *request, const char *index, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GDir) directory = g_dir_open(request->output_dir, 0, NULL);
    const char *file;

    if (directory == NULL ||
        (g_file_get_contents(index, &text, NULL, NULL) && g_str_has_prefix(text, INDEX_HEAD)))
        return TRUE;
    while ((file = g_dir_read_name(directory)) != NULL) {
        if (!is_of_figures(request, file))
            continue;
        return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DIRECTORY,
                       "%s: expected no %s there, which these figures would replace: take another "
                       "directory, or move it",
                       request->output_dir, file);
    }
    return TRUE;
}

static gboolean
write_index(const char *path, const char *text, GError **error)
{
    g_autoptr(GError) local = NULL;

    if (g_file_set_contents(path, text, -1, &local))
        return TRUE;
    return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DIRECTORY, "cannot write %s: %s", path,
                   local->message);
}

gboolean
rp_figures_make(const RpFiguresRequest *request, GPtrArray *left_out, GError **error)
{
    g_autofree char *index_path = g_build_filename(request->output_dir, INDEX, NULL);
    g_autoptr(GString) index = g_string_new(NULL);

    if (!check_names(request->names, error) || !rp_gnuplot_check_formats(request->formats, error) ||
        !rp_output_directory_check(request->output_dir, error) ||
        !check_foreign(request, index_path, error))
        return FALSE;
    /* first: if drawing breaks off, the index shows that the files left over are figures */
    if (!write_index(index_path, INDEX_HEAD, error))
        return FALSE;
    g_autoptr(RpPaper) paper = rp_paper_new(request->profiles_dir, request->measured_dir);

    rp_paper_set_style(paper, &request->style);
    g_string_printf(index, INDEX_HEAD "All of them: roundpipe figures -o DIR\n\n");
    if (!make_all(paper, request, index, left_out, error))
        return FALSE;
    return write_index(index_path, index->str, error);
}
