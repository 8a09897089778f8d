/* roundpipe inspect: what samples a file of data becomes, and how they fill sequences. */
#include "cli/cli.h"

#include <glib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/reports/reports.h"
#include "core/base/units.h"
#include "exec/data/batch.h"
#include "exec/model/hf-config.h"
#include "plots/charts/charts.h"
#include "run/train/train.h"
#include "text/tokenizer/tokenizer.h"

#define SHOWN_ENDS 2000 /* characters of a long part */

#define LEARNED_COLOUR "\033[32m"
#define OTHER_COLOUR "\033[2m"
#define NO_COLOUR "\033[0m"

/* Nothing in it moves the cursor. (transfer full) */
static char *
without_controls(const char *text)
{
    GString *out = g_string_new(NULL);

    for (const char *at = text; *at != '\0'; at = g_utf8_next_char(at)) {
        const gunichar c = g_utf8_get_char(at);

        g_string_append_unichar(out, g_unichar_iscntrl(c) && c != '\n' && c != '\t' ? 0xfffd : c);
    }
    return g_string_free(out, FALSE);
}

/* Shortens a text that would fill the screen to its beginning and end. (transfer full) (nullable): it is short */
static char *
cut_middle(const char *text)
{
    const glong n = g_utf8_strlen(text, -1);

    if (n <= 2 * SHOWN_ENDS)
        return NULL;
    g_autofree char *start = g_utf8_substring(text, 0, SHOWN_ENDS);

    return g_strdup_printf("%s [%ld more characters] %s", start, n - 2 * SHOWN_ENDS,
                           g_utf8_offset_to_pointer(text, n - SHOWN_ENDS));
}

/* A part that is learned, or is not: in a colour, or each line behind a + or a |. The middle of a long
 * one is left out. */
static void
append_part(GString *shown, const char *text, gboolean learned, gboolean colour)
{
    g_autofree char *cut = cut_middle(text);

    text = cut != NULL ? cut : text;
    if (colour) {
        g_string_append_printf(shown, "%s%s%s", learned ? LEARNED_COLOUR : OTHER_COLOUR, text,
                               NO_COLOUR);
        return;
    }
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (guint i = 0; lines[i] != NULL; i++)
        g_string_append_printf(shown, "%s  %c %s", shown->len > 0 ? "\n" : "", learned ? '+' : '|',
                               lines[i]);
}

/* Sequences that are filled at once, and how often, to see how full they become. */
#define SURVEYED_AT_ONCE 64
#define SURVEYED 64

#define BINS_OF_A_SEQUENCE 8
#define MOST_BINS 40
#define BAR_WIDTH 40

/* Lengths from @from up to, but not with, @to. */
typedef struct {
    guint64 from, to, n;
} Bin;

typedef struct {
    const RpArgs *args;
    RpModel config;
    RpTokenizer *tokenizer; /* %NULL: ids are shown */
    RpRunSamples samples;
    RpDatasetSummary summary;
    GArray *lengths;     /* guint64, ascending */
    guint64 n_learned;   /* tokens */
    guint64 n_shared;    /* tokens of preferences that both of their documents have */
    guint64 n_unlearned; /* samples without any */
    double useful, useful_unpacked;
    guint typical_tokens;
    Bin bins[MOST_BINS];
    guint n_bins;
} Inspected;

static void
inspected_clear(Inspected *inspected)
{
    rp_run_samples_clear(&inspected->samples);
    g_clear_pointer(&inspected->tokenizer, rp_tokenizer_free);
    g_clear_pointer(&inspected->lengths, g_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Inspected, inspected_clear)

/* ---- figures ---- */

/* The length that @share of the samples do not reach beyond. */
static guint64
quantile(const Inspected *inspected, double share)
{
    const guint n = inspected->lengths->len;

    return g_array_index(inspected->lengths, guint64, MIN(n - 1, (guint)(share * n)));
}

/* Reads all samples once. */
static gboolean
count(Inspected *inspected, GError **error)
{
    const RpDataset *dataset = inspected->samples.train;
    g_autofree gint32 *ids = NULL, *labels = NULL;
    gsize space = 0;

    inspected->lengths = g_array_new(FALSE, FALSE, sizeof(guint64));
    for (guint64 i = 0; i < rp_dataset_n_samples(dataset); i++) {
        RpSample sample = {.capacity = 0};
        guint64 length, n_learned = 0;

        if (!rp_dataset_length(dataset, i, &length, error))
            return FALSE;
        if (length > space) {
            space = 2 * (gsize)length;
            ids = g_renew(gint32, ids, space);
            labels = g_renew(gint32, labels, space);
        }
        sample = (RpSample){.input_ids = ids, .labels = labels, .capacity = (gsize)length};
        if (!rp_dataset_read(dataset, i, &sample, error))
            return FALSE;
        for (gsize t = 1; t < length; t++) /* the first is no target */
            n_learned += labels[t] != RP_LABEL_MASKED;
        inspected->n_learned += n_learned;
        inspected->n_shared += sample.split.shared;
        inspected->n_unlearned += n_learned == 0;
        g_array_append_val(inspected->lengths, length);
    }
    g_array_sort(inspected->lengths, rp_compare_uint64);
    return TRUE;
}

static gboolean
survey(Inspected *inspected, GError **error)
{
    const RpDatasetSummary *data = &inspected->summary;
    const guint s = (guint)inspected->args->run.sequence_length;
    const gboolean drop = inspected->args->drop;
    const RpBatcherOptions options = {
        .micro_batches = 1,
        .sequences = SURVEYED_AT_ONCE,
        .tokens = s,
        .shuffle = TRUE,
        .packing = TRUE,
        .preference = inspected->args->run.objective != RP_OBJECTIVE_SFT,
        .shared = (double)inspected->n_shared / (double)data->n_tokens,
        .drop_long = drop};
    const RpDataState start = {.n_samples = data->n_samples};
    const guint64 n = data->n_samples - (drop ? data->n_truncated_samples : 0);
    const guint64 tokens = data->n_tokens - data->n_truncated_tokens -
                           (drop ? data->n_truncated_samples * (guint64)s : 0);
    RpPackingSurvey packed;

    if (n == 0)
        return rp_fail(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                       "--drop: expected a sample of at most %u tokens, found longer ones alone",
                       s);
    g_autoptr(RpPacker) packer = rp_packer_new(inspected->samples.train, &options);
    if (!rp_packer_survey(packer, &start, SURVEYED, &packed, error))
        return FALSE;
    inspected->useful = packed.useful;
    inspected->typical_tokens = packed.typical_tokens;
    inspected->useful_unpacked = (double)tokens / ((double)n * s);
    return TRUE;
}

/* Eighths of a sequence; behind it twice as long each. */
static void
fill_bins(Inspected *inspected)
{
    const guint64 s = (guint64)inspected->args->run.sequence_length;
    const guint64 step = MAX(1, s / BINS_OF_A_SEQUENCE);
    const guint64 longest = quantile(inspected, 1);
    guint64 from = 1;

    while (from <= longest && inspected->n_bins < MOST_BINS) {
        const guint64 width = from <= s ? step : from - 1;
        const guint64 end = from <= s ? MIN(from + width, s + 1) : from + width;

        inspected->bins[inspected->n_bins++] = (Bin){.from = from, .to = end};
        from = end;
    }
    for (guint i = 0, b = 0; i < inspected->lengths->len; i++) {
        while (b + 1 < inspected->n_bins &&
               g_array_index(inspected->lengths, guint64, i) >= inspected->bins[b].to)
            b++;
        inspected->bins[b].n++;
    }
}

/* ---- text ---- */

/* Tokens from @from to @to as text; as ids without a tokenizer. (transfer full) */
static GString *
text_of(const Inspected *inspected, const gint32 *ids, gsize from, gsize to)
{
    GString *text = g_string_new(NULL);

    if (inspected->tokenizer != NULL &&
        rp_tokenizer_decode(inspected->tokenizer, (const guint32 *)(const void *)ids + from,
                            to - from, RP_DECODE_ALL, text, NULL))
        return text;
    g_string_truncate(text, 0);
    for (gsize t = from; t < to; t++)
        g_string_append_printf(text, "%s%d", t > from ? " " : "", ids[t]);
    return text;
}

/* Names of a preference's documents, by RpAnswerKind. */
static const char *const answer_names[] = {NULL,        "chosen",      "rejected",
                                           "desirable", "undesirable", "of the KL term"};

/* The name of the document that token @at is in; %NULL: the sample is one document. */
static const char *
answer_of(const RpSample *sample, gsize at)
{
    const RpAnswerKind first = sample->split.answer;

    return sample->split.tokens == 0   ? NULL
           : at < sample->split.tokens ? answer_names[first]
           : first == RP_ANSWER_CHOSEN ? answer_names[RP_ANSWER_REJECTED]
                                       : answer_names[RP_ANSWER_KL];
}

/* The end of the tokens that stay of the document that token @at is in. */
static gsize
end_of(const Inspected *inspected, const RpSample *sample, gsize at)
{
    const guint32 most = (guint32)inspected->args->run.sequence_length;
    const guint32 split = sample->split.tokens;

    if (split == 0)
        return most;
    const guint32 first = rp_batch_cut_first(sample->split, sample->n_tokens, most);

    return at < split ? first
                      : split + sample->split.shared + (MIN(most, sample->n_tokens) - first);
}

/* Gives a sample's second document the tokens that it stands without. */
static void
complete_second(RpSample *sample)
{
    const gsize at = sample->split.tokens, shared = sample->split.shared;
    const gsize rest = (gsize)sample->n_tokens - at;
    gint32 *const arrays[] = {sample->input_ids, sample->labels};

    for (guint i = 0; i < G_N_ELEMENTS(arrays); i++) {
        memmove(arrays[i] + at + shared, arrays[i] + at, rest * sizeof(gint32));
        memcpy(arrays[i] + at, arrays[i], shared * sizeof(gint32));
    }
}

/* The text that is trained on, to the letter, and its ids. */
static void
report_part(const Inspected *inspected, RpReport *report, const RpSample *sample, gsize from,
            gsize to, const GString *text)
{
    const gsize end = end_of(inspected, sample, from);
    const char *answer = answer_of(sample, from);

    rp_report_object(report, NULL, NULL);
    if (answer != NULL)
        rp_report_text(report, "answer", answer, NULL);
    rp_report_bool(report, "learned", sample->labels[from] != RP_LABEL_MASKED, NULL);
    rp_report_count(report, "tokens", (gint64)(to - from), NULL);
    rp_report_count(report, "cut_tokens", (gint64)(to - MIN(to, MAX(from, end))), NULL);
    rp_report_whole_text(report, "text", text, NULL);
    rp_report_counts(report, "ids", sample->input_ids + from, to - from);
    rp_report_end(report);
}

static gboolean
show_sample(const Inspected *inspected, RpReport *report, guint64 index, GError **error)
{
    const RpDataset *dataset = inspected->samples.train;
    const gboolean colour = report->form != RP_REPORT_JSON && rp_cli_has_colour(STDOUT_FILENO);
    g_autofree char *place = rp_dataset_locate(dataset, index);
    g_autoptr(GString) shown = g_string_new(NULL);
    guint64 length;

    if (!rp_dataset_length(dataset, index, &length, error))
        return FALSE;
    g_autofree gint32 *ids = g_new(gint32, 2 * length), *labels = g_new(gint32, 2 * length);
    RpSample sample = {.input_ids = ids, .labels = labels, .capacity = (gsize)length};

    if (!rp_dataset_read(dataset, index, &sample, error))
        return FALSE;
    const gsize n_shown = (gsize)length + sample.split.shared;

    complete_second(&sample);
    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "place", place, NULL);
    rp_report_count(report, "tokens", (gint64)length, NULL);
    rp_report_list(report, "parts");
    for (gsize from = 0, to; from < n_shown; from = to) {
        const gboolean learned = labels[from] != RP_LABEL_MASKED;
        const char *answer = answer_of(&sample, from);

        for (to = from + 1; to < n_shown && (labels[to] != RP_LABEL_MASKED) == learned &&
                            to != sample.split.tokens;
             to++)
            ;
        if (answer != NULL && (from == 0 || from == sample.split.tokens))
            g_string_append_printf(shown, "%s %s:%s", from > 0 ? "\n" : "", answer,
                                   colour ? "\n" : "");
        g_autoptr(GString) text = text_of(inspected, ids, from, to);
        g_autofree char *harmless = without_controls(text->str);

        report_part(inspected, report, &sample, from, to, text);
        append_part(shown, harmless, learned, colour);
    }
    rp_report_end(report);
    rp_report_end(report);
    if (report->form != RP_REPORT_JSON) /* as it is: lines are not filled, colours have no width */
        printf("\n%s, %" G_GUINT64_FORMAT " tokens\n%s\n", place, length, shown->str);
    return TRUE;
}

/* ---- the report ---- */

static void
report_lengths(const Inspected *inspected, RpReport *report)
{
    const guint64 median = quantile(inspected, 0.5), most = quantile(inspected, 0.95);
    const double mean = (double)inspected->summary.n_tokens / (double)inspected->summary.n_samples;

    rp_report_object(report, "lengths", NULL);
    rp_report_count(report, "least", (gint64)quantile(inspected, 0), "lengths");
    rp_report_show(report,
                   "%" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT " tokens, mean %.1f, median "
                   "%" G_GUINT64_FORMAT ", 95 %% up to %" G_GUINT64_FORMAT,
                   quantile(inspected, 0), quantile(inspected, 1), mean, median, most);
    rp_report_count(report, "median", (gint64)median, NULL);
    rp_report_real(report, "mean", mean, 3, NULL);
    rp_report_count(report, "p95", (gint64)most, NULL);
    rp_report_count(report, "most", (gint64)quantile(inspected, 1), NULL);
    rp_report_end(report);
}

static void
report_counts(const Inspected *inspected, RpReport *report)
{
    const RpDatasetSummary *data = &inspected->summary;
    const RpCacheHeader *header = &inspected->samples.header;
    const int s = (int)inspected->args->run.sequence_length;

    rp_report_count(report, "samples", (gint64)data->n_samples, "samples");
    rp_report_show(report, "%" G_GUINT64_FORMAT, data->n_samples);
    rp_report_count(report, "tokens", (gint64)data->n_tokens, "tokens");
    rp_report_show(report, "%" G_GUINT64_FORMAT ", %.1f %% of them learned", data->n_tokens,
                   100 * (double)inspected->n_learned / (double)data->n_tokens);
    rp_report_count(report, "learned_tokens", (gint64)inspected->n_learned, NULL);
    rp_report_count(report, "unlearned_samples", (gint64)inspected->n_unlearned,
                    inspected->n_unlearned > 0 ? "nothing learned" : NULL);
    if (inspected->n_unlearned > 0)
        rp_report_show(report, "of %" G_GUINT64_FORMAT " samples", inspected->n_unlearned);
    rp_report_count(report, "bad_records", (gint64)header->n_skipped,
                    header->n_skipped > 0 ? "left out" : NULL);
    if (header->n_skipped > 0)
        rp_report_show(report, "%" G_GUINT64_FORMAT " bad records%s%s", header->n_skipped,
                       inspected->samples.bad != NULL ? "; the first: " : "",
                       inspected->samples.bad != NULL ? inspected->samples.bad : "");
    report_lengths(inspected, report);
    rp_report_count(report, "sequence_length", s, NULL);
    rp_report_count(report, "longer_samples", (gint64)data->n_truncated_samples,
                    data->n_truncated_samples > 0 ? "longer" : NULL);
    if (data->n_truncated_samples > 0)
        rp_report_show(report,
                       "%" G_GUINT64_FORMAT
                       " samples are longer than %d tokens, by %" G_GUINT64_FORMAT " in all",
                       data->n_truncated_samples, s, data->n_truncated_tokens);
    rp_report_ratio(report, "useful_ratio", inspected->useful, "useful");
    rp_report_show(report,
                   "%.1f %% of sequences of %d tokens where samples are packed, %.1f %% where they "
                   "are not",
                   100 * inspected->useful, s, 100 * inspected->useful_unpacked);
    rp_report_ratio(report, "useful_ratio_unpacked", inspected->useful_unpacked, NULL);
    rp_report_count(report, "typical_tokens", inspected->typical_tokens, "attention");
    rp_report_show(report, "packed as of samples of %u tokens (plan --packed %u)",
                   inspected->typical_tokens, inspected->typical_tokens);
}

static void
report_bins(const Inspected *inspected, RpReport *report)
{
    guint64 most = 1;

    for (guint b = 0; b < inspected->n_bins; b++)
        most = MAX(most, inspected->bins[b].n);
    rp_report_table(report, "histogram", NULL, 0);
    for (guint b = 0; b < inspected->n_bins; b++) {
        const Bin *bin = &inspected->bins[b];
        g_autofree char *bar = g_strnfill((gsize)((bin->n * BAR_WIDTH + most - 1) / most), '#');

        rp_report_object(report, NULL, NULL);
        rp_report_count(report, "from", (gint64)bin->from, "tokens");
        rp_report_show(report, "%" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT, bin->from,
                       bin->to - 1);
        rp_report_count(report, "to", (gint64)bin->to - 1, NULL);
        rp_report_count(report, "samples", (gint64)bin->n, "samples");
        rp_report_line(report, "<", "%s", bar);
        rp_report_end(report);
    }
    rp_report_end(report);
}

static gboolean
draw(const Inspected *inspected, const char *data, GError **error)
{
    static const RpBarPart part = {.title = NULL, .colour = RP_COLOUR_BLUE};
    g_autofree char *name = g_path_get_basename(data);
    g_autofree char *title = g_strdup_printf("Lengths of samples: %s", name);
    g_autofree char *subtitle = g_strdup_printf(
        "%" G_GUINT64_FORMAT " samples; sequences of %d tokens: %.1f %% useful packed, %.1f %% not",
        inspected->summary.n_samples, (int)inspected->args->run.sequence_length,
        100 * inspected->useful, 100 * inspected->useful_unpacked);
    g_autoptr(RpBarChart) chart = rp_bar_chart_new("lengths", title, "samples", 0, &part, 1);

    rp_bar_chart_set_subtitle(chart, subtitle);
    for (guint b = 0; b < inspected->n_bins; b++) {
        const Bin *bin = &inspected->bins[b];
        g_autofree char *label = g_strdup_printf(
            "%" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT " tokens", bin->from, bin->to - 1);

        rp_bar_chart_add(chart,
                         &(RpBarRow){.label = label, .values = {(double)bin->n}, .marker = NAN});
    }
    g_autoptr(RpFigure) figure = rp_bar_chart_figure(chart);
    return rp_cli_picture_write(figure, inspected->args->picture, error);
}

static gboolean
open_data(Inspected *inspected, const char *data, GError **error)
{
    const RpArgs *args = inspected->args;
    RpProgress progress = {0};
    const RpRunEvents events = {.progress = rp_progress_event, .user_data = &progress};
    RpRunSpec run = args->run;
    g_autofree char *model = args->model != NULL ? rp_model_path(args->model) : NULL;
    const RpSamplesSource source = {&run, "DATA", model, &inspected->config};

    run.data = (char *)data;
    inspected->config.vocab = RP_DATASET_MAX_VOCABULARY;
    if (model != NULL) {
        if (!rp_hf_config_load(model, &inspected->config, error))
            return rp_prefix_error(error, "--model: ");
        inspected->tokenizer = rp_tokenizer_open(model, NULL);
    }
    return rp_run_samples_open(&source, &events, &inspected->samples, error) &&
           rp_dataset_check(inspected->samples.train, (guint)args->run.sequence_length, NULL, NULL,
                            &inspected->summary, error);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const RpCliFile files[] = {{"--picture", args->picture, RP_CLI_DRAWN}};
    g_auto(Inspected) inspected = {.args = args};
    g_autofree char *data = g_strjoinv(",", words);

    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    if (!open_data(&inspected, data, error) || !count(&inspected, error) ||
        !survey(&inspected, error))
        return FALSE;
    fill_bins(&inspected);
    report_counts(&inspected, report);
    report_bins(&inspected, report);
    rp_report_flush(report);
    rp_report_list(report, "examples");
    for (guint64 i = 0; i < MIN((guint64)args->samples, inspected.summary.n_samples); i++)
        if (!show_sample(&inspected, report, i, error))
            return FALSE;
    rp_report_end(report);
    return args->picture == NULL || draw(&inspected, data, error);
}

static const RpUse uses[] = {
    {"model", "directory with config.json and tokenizer.json; texts need it", "DIR"},
    {"sequence-length", "tokens of a sequence (default: 2048)", "N"},
    {"samples drop train-on chat-template skip-bad-samples data-cache"},
    {"objective",
     "what is learned: sft, or a preference: dpo, ipo, orpo, simpo, kto (default: sft)"},
    {"picture", "draw the lengths: .png, .svg, .pdf or .tex (needs gnuplot)"},
    {0},
};

static const RpArgs defaults = {.run = {.sequence_length = 2048, .router_aux_loss = -1},
                                .samples = 3};

const RpCommand rp_command_inspect = {
    .name = "inspect",
    .summary = "show samples of data, and how they fill sequences",
    .words = "DATA...",
    .help = "Prints how many samples there are, how long they are, how full sequences become with\n"
            "and without packing, and the first samples: learned text in colour, or without a\n"
            "terminal behind a +, other text behind a |.\n\n"
            "Example:\n  roundpipe inspect chats.jsonl --model models/qwen3-1.7b",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
