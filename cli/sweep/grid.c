#include "cli/sweep/sweep.h"

#include <math.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/schedules/schedule.h"

#define USUAL_MODEL "qwen3-1.7b"
/* Most values of one option; a longer range is a typing error. */
#define MOST_VALUES 1000

/* Defaults of a sweep, those of `compare`. */
static const struct {
    const char *option, *value;
} usual[] = {{"schedule", "roundpipe"}, {"gpus", "8"}, {"micro-batches", "16"}};

static void
clear_axis(gpointer data)
{
    g_strfreev(((RpSweepAxis *)data)->values);
}

void
rp_sweep_grid_clear(RpSweepGrid *grid)
{
    g_clear_pointer(&grid->axes, g_array_unref);
}

const char *
rp_sweep_axis_name(const RpSweepAxis *axis)
{
    return axis->option != NULL ? axis->option->name : "model";
}

/* ---- lists and ranges ---- */

/* A number of which k is 1024. Returns: NAN: it is none */
static double
read_number(const char *text)
{
    char *end = NULL;
    double value = g_ascii_strtod(text, &end);

    if (end == text || !g_ascii_isdigit(*text))
        return NAN;
    if (*end == 'k' || *end == 'K') {
        value *= 1024;
        end++;
    }
    return *end == '\0' ? value : NAN;
}

static char *
text_number(double value)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    return g_strdup(g_ascii_formatd(text, sizeof text, "%.12g", value));
}

/* "A..B" doubles, "A..B+S" adds. @texts: appended to. Returns: FALSE: it is no range */
static gboolean
add_range(const char *text, GPtrArray *texts)
{
    const char *dots = strstr(text, "..");
    const char *plus = dots != NULL ? strchr(dots, '+') : NULL;

    if (dots == NULL)
        return FALSE;
    g_autofree char *low = g_strndup(text, (gsize)(dots - text));
    g_autofree char *high =
        plus != NULL ? g_strndup(dots + 2, (gsize)(plus - dots - 2)) : g_strdup(dots + 2);
    const double from = read_number(low), to = read_number(high);
    const double step = plus != NULL ? read_number(plus + 1) : 0;

    if (!(from > 0) || !(to >= from) || (plus != NULL && !(step > 0)))
        return FALSE;
    for (double at = from; at <= to && texts->len <= MOST_VALUES;
         at = step > 0 ? at + step : 2 * at)
        g_ptr_array_add(texts, text_number(at));
    return TRUE;
}

static gboolean
is_one_of(const GPtrArray *texts, const char *text)
{
    for (guint i = 0; i < texts->len; i++)
        if (g_str_equal(g_ptr_array_index(texts, i), text))
            return TRUE;
    return FALSE;
}

static void
add_schedules(GPtrArray *texts)
{
    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
        g_ptr_array_add(texts, g_strdup((*s)->name));
}

static gboolean
is_flag(const RpOption *option)
{
    return option->kind == RP_OPTION_FLAG;
}

/* The values of an option, each once. */
static gboolean
read_values(const RpOption *option, const char *given, RpSweepAxis *axis, GError **error)
{
    /* stage lists have commas of their own */
    const char *between = g_strcmp0(option->value, "LIST") == 0 ? ";" : ",";
    const char *text = is_flag(option) && *given == '\0' ? "yes" : given;
    g_auto(GStrv) words = g_strsplit(text, between, -1);
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) values = g_ptr_array_new_with_free_func(g_free);

    for (char **word = words; *word != NULL; word++) {
        const double number = read_number(g_strstrip(*word));

        if (g_str_equal(option->name, "schedule") && g_str_equal(*word, "all"))
            add_schedules(found);
        else if (!add_range(*word, found))
            g_ptr_array_add(found, isnan(number) ? g_strdup(*word) : text_number(number));
    }
    for (guint i = 0; i < found->len; i++)
        if (!is_one_of(values, g_ptr_array_index(found, i)))
            g_ptr_array_add(values, g_strdup(g_ptr_array_index(found, i)));
    if (values->len == 0 || values->len > MOST_VALUES) {
        g_autofree char *shown = rp_quote(given);

        return rp_cli_refuse(error, "--%s: expected 1 to %d values, found %s", option->name,
                             MOST_VALUES, shown);
    }
    *axis = (RpSweepAxis){.option = option, .n = values->len};
    g_ptr_array_add(values, NULL);
    axis->values = (char **)g_ptr_array_steal(values, NULL);
    return TRUE;
}

/* ---- values into options ---- */

/* Every value alone, before any is simulated: a wrong word is not a row that fails. */
static gboolean
check_values(const RpSweepAxis *axis, GError **error)
{
    for (guint i = 0; i < axis->n && axis->option != NULL; i++) {
        RpArgs args = {0};
        RpRunSpec run;

        rp_run_spec_init(&args.run);
        args.run.plan.gpus = args.run.plan.micro_batches = 1;
        if (!rp_option_store(axis->option, axis->values[i], &args, error) ||
            !rp_schedule_args_read(&args, &run, error))
            return FALSE;
        if (args.schedule != NULL && rp_schedule_find(args.schedule, error) == NULL) {
            g_prefix_error(error, "--schedule: ");
            return FALSE;
        }
    }
    return TRUE;
}

static const char *
usual_value(const char *option)
{
    for (guint i = 0; i < G_N_ELEMENTS(usual); i++)
        if (g_str_equal(usual[i].option, option))
            return usual[i].value;
    return NULL;
}

/* A schedule's file has its own numbers, or those that are given. */
static gboolean
has_file(char *const *texts)
{
    for (guint i = 0; rp_schedule_options()[i].name != NULL; i++)
        if (g_str_equal(rp_schedule_options()[i].name, "schedule-file"))
            return texts[i] != NULL;
    return FALSE;
}

static void
add_models(RpSweepGrid *grid, char *const *models)
{
    static char *const usual_models[] = {(char *)USUAL_MODEL, NULL};
    char *const *words = models != NULL && *models != NULL ? models : usual_models;
    const RpSweepAxis axis = {NULL, g_strdupv((char **)words), g_strv_length((char **)words)};

    g_array_append_val(grid->axes, axis);
}

gboolean
rp_sweep_grid_make(RpSweepGrid *grid, char *const *models, char *const *texts, GError **error)
{
    guint64 n;

    grid->axes = g_array_new(FALSE, FALSE, sizeof(RpSweepAxis));
    g_array_set_clear_func(grid->axes, clear_axis);
    add_models(grid, models);
    n = g_array_index(grid->axes, RpSweepAxis, 0).n;
    for (guint i = 0; rp_schedule_options()[i].name != NULL; i++) {
        const RpOption *option = &rp_schedule_options()[i];
        const char *text =
            texts[i] != NULL || has_file(texts) ? texts[i] : usual_value(option->name);
        RpSweepAxis axis;

        if (text == NULL)
            continue;
        if (!read_values(option, text, &axis, error))
            return FALSE;
        g_array_append_val(grid->axes, axis);
        n *= axis.n;
        if (!check_values(&axis, error))
            return FALSE;
        if (n > RP_SWEEP_MOST_ROWS)
            return rp_cli_refuse(
                error, "expected at most %d combinations, found %" G_GUINT64_FORMAT " up to --%s",
                RP_SWEEP_MOST_ROWS, n, option->name);
    }
    grid->n = (guint)n;
    return TRUE;
}

/* ---- combinations ---- */

guint
rp_sweep_grid_place(const RpSweepGrid *grid, guint i, guint axis)
{
    for (guint behind = grid->axes->len - 1; behind > axis; behind--)
        i /= g_array_index(grid->axes, RpSweepAxis, behind).n;
    return i % g_array_index(grid->axes, RpSweepAxis, axis).n;
}

void
rp_sweep_grid_args(const RpSweepGrid *grid, guint i, RpArgs *args)
{
    *args = (RpArgs){0};
    rp_run_spec_init(&args->run);
    for (guint a = 1; a < grid->axes->len; a++) {
        const RpSweepAxis *axis = &g_array_index(grid->axes, RpSweepAxis, a);
        const gboolean set = rp_option_store(
            axis->option, axis->values[rp_sweep_grid_place(grid, i, a)], args, NULL);

        g_assert(set); /* check_values() */
    }
}
