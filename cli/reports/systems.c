#include "cli/reports/reports.h"

#include <math.h>
#include <string.h>

#include "core/base/threads.h"
#include "core/base/units.h"

/* Profiles that are compared: those that are named, or all of a directory, small models first. */

void
rp_cli_entry_free(gpointer data)
{
    RpCliEntry *entry = data;

    g_free(entry->path);
    g_free(entry->name);
    rp_profile_free(entry->profile);
    g_free(entry);
}

static gboolean
load_entry(const char *path, const RpArgs *args, GPtrArray *entries, GError **error)
{
    RpProfile *profile = rp_cli_load_profile(path, &args->box, args->run.plan.gpus, error);

    if (profile == NULL)
        return FALSE;
    RpCliEntry *entry = g_new0(RpCliEntry, 1);

    entry->profile = profile;
    entry->path = rp_cli_profile_path(path);
    entry->name = g_path_get_basename(path);
    if (g_str_has_suffix(entry->name, ".json"))
        entry->name[strlen(entry->name) - strlen(".json")] = '\0';
    g_ptr_array_add(entries, entry);
    return TRUE;
}

static gint64
model_time_ns(const RpProfile *profile)
{
    gint64 time_ns = 0;

    for (guint l = 0; l < profile->n_layers; l++)
        time_ns += profile->layers[l].forward_ns + profile->layers[l].backward_ns;
    return time_ns;
}

/* Small models first. */
static gint
compare_entries(gconstpointer a, gconstpointer b)
{
    const RpCliEntry *first = *(RpCliEntry *const *)a, *second = *(RpCliEntry *const *)b;
    gint64 first_ns = model_time_ns(first->profile), second_ns = model_time_ns(second->profile);

    if (first_ns != second_ns)
        return first_ns < second_ns ? -1 : 1;
    return strcmp(first->name, second->name);
}

static gboolean
load_directory(const char *directory, const RpArgs *args, GPtrArray *entries, GError **error)
{
    g_autoptr(GDir) files = g_dir_open(directory, 0, error);
    const char *name;

    if (files == NULL)
        return FALSE;
    while ((name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(directory, name, NULL);

        if (g_str_has_suffix(name, ".json") && !load_entry(path, args, entries, error))
            return FALSE;
    }
    if (entries->len == 0)
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                       "%s: expected profiles (*.json), found none", directory);
    g_ptr_array_sort(entries, compare_entries);
    return TRUE;
}

gboolean
rp_cli_load_entries(char **paths, const char *profiles_dir, const RpArgs *args, GPtrArray *entries,
                    GError **error)
{
    g_autofree char *shipped = rp_cli_shipped_profiles("rtx4090");
    const char *directory = g_getenv("ROUNDPIPE_PROFILES");

    if (*paths != NULL && profiles_dir != NULL)
        return rp_cli_refuse(error, "--profiles: expected either a directory or files, found both");
    for (char **path = paths; *path != NULL; path++)
        if (!load_entry(*path, args, entries, error))
            return FALSE;
    if (entries->len > 0)
        return TRUE;
    if (profiles_dir != NULL)
        directory = profiles_dir;
    else if (directory == NULL || *directory == '\0')
        directory = shipped;
    return load_directory(directory, args, entries, error);
}

#define CSV_COLUMNS                                                                                \
    "profile,system,micro_batch,micro_batches,gpu_bytes,host_bytes,fits_gpu_memory,step_ms,"       \
    "compute_ms,wait_ms,collectives_ms,copies_ms,optimizer_ms,tokens_per_s,"                       \
    "dollars_per_billion_tokens,longest_sequence,error"
#define ALL "all"
#define S_PER_HOUR 3600
#define BILLION 1e9

typedef struct {
    const RpCliEntry *entry;
    const RpSystem *system;
    RpSystemPrediction prediction;
    guint longest; /* tokens; G_MAXUINT: no limit is known */
    char *problem; /* why it cannot run; %NULL if it can */
    gboolean fastest;
} Row;

typedef struct {
    const RpPlanOptions *options;
    const RpGpu *card; /* (nullable): that profiles were made for */
    gboolean chunked_head;
    GArray *rows; /* (element-type Row): the answers */
} Question;

static void
clear_row(gpointer row)
{
    g_free(((Row *)row)->problem);
}

/* ---- the command line ---- */

void
rp_cli_list_systems(RpReport *report)
{
    rp_report_head(report, "Systems:");
    for (const RpSystem *const *s = rp_systems(); *s != NULL; s++)
        rp_report_line(report, (*s)->name, "%s", (*s)->summary);
}

gboolean
rp_cli_check_no_systems(const RpArgs *args, GError **error)
{
    if (args->price == NULL && !args->chunked_head)
        return TRUE;
    return rp_cli_refuse(error, "%s: expected --systems beside it",
                         args->price != NULL ? "--price" : "--chunked-head");
}

/* @price: (out): 0: none is given */
static gboolean
read_price(const char *text, double *price, GError **error)
{
    *price = text != NULL ? rp_cli_parse_positive(text) : 0;
    return text == NULL || *price > 0 ||
           rp_cli_refuse(error, "--price: expected dollars an hour, as 2.32, found \"%s\"", text);
}

static gboolean
add_row(const RpCliEntry *entry, const char *name, GArray *rows, GError **error)
{
    g_autoptr(GPtrArray) known = g_ptr_array_new();

    for (const RpSystem *const *s = rp_systems(); *s != NULL; s++)
        g_ptr_array_add(known, (gpointer)(*s)->name);
    g_ptr_array_add(known, NULL);
    const int chosen = rp_cli_choice("systems", name, (const char *const *)known->pdata, error);

    if (chosen < 0)
        return FALSE;
    const Row row = {.entry = entry, .system = rp_systems()[chosen]};
    g_array_append_val(rows, row);
    return TRUE;
}

static gboolean
add_rows(const char *list, const RpCliEntry *entry, GArray *rows, GError **error)
{
    g_auto(GStrv) names = g_strsplit(list, ",", -1);

    if (*names == NULL)
        return rp_cli_refuse(error, "--systems: expected names separated by commas, found nothing");
    for (char **name = names; *name != NULL; name++) {
        if (!g_str_equal(g_strstrip(*name), ALL)) {
            if (!add_row(entry, *name, rows, error))
                return FALSE;
            continue;
        }
        for (const RpSystem *const *s = rp_systems(); *s != NULL; s++)
            if (!add_row(entry, (*s)->name, rows, error))
                return FALSE;
    }
    return TRUE;
}

/* ---- running ---- */

static gboolean
run_row(const Question *question, Row *row, GError **error)
{
    const RpProfile *profile = row->entry->profile;
    RpSystemServer server = rp_system_server(profile, question->options->gpus);
    RpSystemModel model;

    if (question->card != NULL)
        rp_system_server_take(&server, profile, question->card);
    if (!rp_system_model_read(profile, &model, error))
        return FALSE;
    const RpSystemJob job = {
        .model = &model,
        .server = &server,
        .batch = (guint64)question->options->micro_batches * profile->sequences,
        .tokens = profile->tokens_per_sequence,
        .chunked_head = question->chunked_head,
    };

    return rp_system_longest(row->system, &job, &row->longest, error) &&
           rp_system_predict(row->system, &job, &row->prediction, error);
}

/* Plans of large models stand last: they come first. */
static gboolean
run_piece(guint i, gpointer data, GError **error)
{
    const Question *question = data;
    Row *row = &g_array_index(question->rows, Row, question->rows->len - 1 - i);
    g_autoptr(GError) problem = NULL;

    if (!run_row(question, row, &problem))
        row->problem = rp_cli_message(problem, FALSE);
    return TRUE;
}

/* The fastest of a profile that fit. */
static void
mark_fastest(GArray *rows)
{
    for (guint i = 0; i < rows->len; i++) {
        Row *row = &g_array_index(rows, Row, i);

        row->fastest = row->problem == NULL && row->prediction.fits;
        for (guint j = 0; j < rows->len && row->fastest; j++) {
            const Row *other = &g_array_index(rows, Row, j);

            row->fastest = other->entry != row->entry || other->problem != NULL ||
                           !other->prediction.fits ||
                           other->prediction.tokens_per_s <= row->prediction.tokens_per_s;
        }
    }
}

/* ---- the report ---- */

static gint64
ns_of(double s)
{
    return (gint64)llround(s * (double)RP_NS_PER_S);
}

/* Seconds for people; "-" for none. */
static void
report_seconds(RpReport *report, const char *key, double s, const char *label)
{
    rp_report_ms(report, key, ns_of(s), label);
    if (s > 0)
        rp_report_show(report, "%.2f", s);
    else
        rp_report_show(report, "-");
}

static void
report_gib(RpReport *report, const char *key, double bytes, const char *label, char mark)
{
    rp_report_bytes(report, key, (guint64)bytes, label);
    if (label != NULL && bytes > 0)
        rp_report_show(report, "%.1f%c", bytes / (double)RP_GIB, mark);
    else if (label != NULL)
        rp_report_show(report, "-%c", mark);
}

static void
report_longest(RpReport *report, guint tokens)
{
    if (tokens == G_MAXUINT) {
        rp_report_line(report, "longest", "-");
        return;
    }
    rp_report_count(report, "longest_sequence", tokens, "longest");
}

static void
report_figures(RpReport *report, const Row *row, double price)
{
    const RpSystemPrediction *is = &row->prediction;
    const RpSystemTime *time = &is->time;

    rp_report_count(report, "micro_batch", is->sequences, "seqs");
    rp_report_count(report, "micro_batches", is->in_turn, "turns");
    report_gib(report, "gpu_bytes", is->memory.gpu, "GPU GiB ", is->fits ? ' ' : '!');
    report_gib(report, "gpu_state_bytes", is->memory.state, NULL, ' ');
    report_gib(report, "gpu_activation_bytes", is->memory.activations, NULL, ' ');
    report_gib(report, "host_bytes", is->memory.host, "host GiB ", ' ');
    rp_report_bool(report, "fits_gpu_memory", is->fits, NULL);
    report_seconds(report, "compute_ms", time->compute, "compute s");
    report_seconds(report, "wait_ms", time->wait, "waits s");
    report_seconds(report, "collectives_ms", time->collectives, "collectives s");
    report_seconds(report, "copies_ms", time->copies, "copies s");
    report_seconds(report, "optimizer_ms", time->optimizer, "Adam s");
    report_seconds(report, "step_ms", time->step, "step s");
    rp_report_real(report, "collective_bytes", time->link_bytes, 0, NULL);
    rp_report_rate(report, "tokens_per_s", is->tokens_per_s, "tokens/s ");
    rp_report_show(report, "%.0f%c", is->tokens_per_s, row->fastest ? '*' : ' ');
    if (price > 0) {
        const double dollars = price / S_PER_HOUR * BILLION / is->tokens_per_s;

        rp_report_real(report, "dollars_per_billion_tokens", dollars, 6, "$/billion");
        rp_report_show(report, "%.2f", dollars);
    }
    report_longest(report, row->longest);
    rp_report_bool(report, "fastest", row->fastest, NULL);
}

static void
report_row(RpReport *report, const Row *row, double price)
{
    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "profile", row->entry->name, "<profile");
    rp_report_text(report, "model", row->entry->profile->model, NULL);
    rp_report_text(report, "system", row->system->name, "<system");
    rp_report_text(report, "title", row->system->title, NULL);
    if (row->problem != NULL) {
        rp_report_text(report, "error", row->problem, NULL);
        rp_report_span(report, "cannot run: %s", row->problem);
    } else {
        report_figures(report, row, price);
    }
    rp_report_end(report);
}

static void
report_rows(RpReport *report, const Question *question, double price, const GArray *rows)
{
    rp_report_say(report, "%u GPUs, steps of %u micro-batches of the profile's size; predicted; %s",
                  question->options->gpus, question->options->micro_batches,
                  question->chunked_head ? "baselines' heads in chunks, fused loss"
                                         : "baselines' heads hold all logits");
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_count(report, "gpus", question->options->gpus, NULL);
    rp_report_count(report, "micro_batches", question->options->micro_batches, NULL);
    rp_report_bool(report, "chunked_head", question->chunked_head, NULL);
    if (price > 0)
        rp_report_real(report, "dollars_per_hour", price, 6, NULL);
    rp_report_table(report, "rows",
                    "copies s,Adam s,collectives s,waits s,compute s,turns,seqs,host GiB ,step s",
                    0);
    for (guint i = 0; i < rows->len; i++)
        report_row(report, &g_array_index(rows, Row, i), price);
    rp_report_end(report);
    rp_report_say(report,
                  "\n* fastest of the profile that fits. ! = more than a GPU has. seqs: sequences "
                  "of a micro-batch; turns: micro-batches after each other.");
    rp_report_say(report,
                  "  collectives, copies and Adam (of the host): what nothing hides; waits: of "
                  "pipelines, for each other; longest: tokens of a sequence at micro-batch 1.");
    rp_report_say(report, "  Formulas and constants: docs/results.md.");
}

gboolean
rp_cli_compare_systems(const RpArgs *args, const GPtrArray *entries, RpReport *report,
                       GError **error)
{
    g_autoptr(GArray) rows = g_array_new(FALSE, TRUE, sizeof(Row));
    g_autoptr(RpGpu) card = NULL;
    Question question = {.options = &args->run.plan, .chunked_head = args->chunked_head};
    double price;

    g_array_set_clear_func(rows, clear_row);
    if (!read_price(args->price, &price, error))
        return FALSE;
    if (args->box.file != NULL)
        return rp_cli_refuse(error, "--box: expected --pcie and --host-bandwidth beside --systems, "
                                    "whose formulas have no more of a machine");
    if (args->box.gpu != NULL) {
        question.card = card = rp_box_open(&args->box, NULL, error);
        if (card == NULL)
            return FALSE;
    }
    for (guint i = 0; i < entries->len; i++)
        if (!add_rows(args->systems, g_ptr_array_index(entries, i), rows, error))
            return FALSE;
    question.rows = rows;
    (void)rp_run_pieces(rows->len, run_piece, &question, NULL);
    mark_fastest(rows);
    report_rows(report, &question, price, rows);
    return rp_cli_write_csv(args->csv, report, CSV_COLUMNS, error);
}
