/* The model card of a checkpoint: README.md, as Hugging Face's hub reads it. */
#include "run/train/private.h"

#include <math.h>

/* Rows of its table of losses at most, and the steps that it has where nothing is evaluated. */
#define MOST_ROWS 20
#define STEPS_SHOWN 10

/* In YAML's double quotes. */
static void
add_quoted(GString *card, const char *text)
{
    g_string_append_c(card, '"');
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            g_string_append_c(card, '\\');
        g_string_append_c(card, g_ascii_iscntrl(*p) ? ' ' : *p);
    }
    g_string_append_c(card, '"');
}

/* The name of a file or directory, without the place where it lies on this machine; text that Markdown leaves alone.
 * (transfer full) */
static char *
bare_name(const char *path)
{
    g_autofree char *base = g_path_get_basename(path);
    g_autofree char *valid = g_utf8_make_valid(rp_model_is_hub_name(path) ? path : base, -1);

    g_strdelimit(valid, "`|\n\r", ' ');
    return g_steal_pointer(&valid);
}

static void
add_head(GString *card, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    g_autofree char *base = rp_model_hub_name(run->model, NULL);

    g_string_append(card, "---\n");
    if (base != NULL) {
        g_string_append(card, "base_model: ");
        add_quoted(card, base);
        g_string_append_c(card, '\n');
    }
    g_string_append_printf(card,
                           "library_name: %s\npipeline_tag: text-generation\n"
                           "tags:\n- roundpipe\n%s---\n\n",
                           run->lora.rank > 0 ? "peft" : "transformers",
                           run->lora.rank > 0 ? "- lora\n" : "");
}

static void add_row(GString *card, const char *name, const char *format, ...) G_GNUC_PRINTF(3, 4);

static void
add_row(GString *card, const char *name, const char *format, ...)
{
    va_list values;

    g_string_append_printf(card, "| %s | ", name);
    va_start(values, format);
    g_string_append_vprintf(card, format, values);
    va_end(values);
    g_string_append(card, " |\n");
}

static void
add_settings(GString *card, const RpTrainJob *job, guint64 step)
{
    const RpRunSpec *run = job->run;
    const RpLora *lora = rp_weights_lora(job->weights);
    g_autofree char *model = bare_name(run->model);
    g_autofree char *data = bare_name(run->data);

    g_string_append_printf(card, "# %s, fine-tuned\n\n| | |\n| --- | --- |\n", model);
    add_row(card, "base", "`%s`", model);
    add_row(card, "data", "`%s`, %" G_GUINT64_FORMAT " samples", data,
            rp_dataset_n_samples(job->dataset));
    if (lora != NULL)
        add_row(card, "adapters", "LoRA, rank %u, alpha %g, dropout %g", lora->rank, lora->alpha,
                lora->dropout);
    if (run->objective != RP_OBJECTIVE_SFT)
        add_row(card, "objective", "%s, beta %g",
                rp_objective_info((RpObjective)run->objective)->name, run->preference.beta);
    add_row(card, "steps", "%" G_GUINT64_FORMAT " of %" G_GINT64_FORMAT, step, run->steps);
    add_row(card, "batch", "%" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT " tokens",
            run->micro_batch_size * run->micro_batches * MAX(1, run->gradient_accumulation_steps),
            run->sequence_length);
    add_row(card, "learning rate", "%g", run->optimizer.learning_rate);
    add_row(card, "seed", "%" G_GINT64_FORMAT, run->seed);
}

static void
add_number(GString *card, double value)
{
    if (isfinite(value))
        g_string_append_printf(card, " | %.4f", value);
    else
        g_string_append(card, " | ");
}

/* A row for each evaluation, or for some steps. */
static void
add_losses(GString *card, const GArray *lines, guint64 step)
{
    const guint64 every = MAX(1, step / STEPS_SHOWN);
    double loss = NAN;
    gboolean evaluated = FALSE, paired = FALSE;
    guint n = 0;

    for (guint i = 0; i < lines->len; i++) {
        evaluated |= isfinite(g_array_index(lines, RpTrainLine, i).eval_loss);
        paired |= isfinite(g_array_index(lines, RpTrainLine, i).eval_accuracy);
    }
    g_string_append_printf(card, "\n| step | training loss%s%s |\n| --: | --:%s%s |\n",
                           evaluated ? " | validation loss" : "",
                           paired ? " | accuracy of preferences" : "", evaluated ? " | --:" : "",
                           paired ? " | --:" : "");
    for (guint i = 0; i < lines->len && n < MOST_ROWS; i++) {
        const RpTrainLine *line = &g_array_index(lines, RpTrainLine, i);
        const guint64 at = (guint64)line->step;

        if (isfinite(line->loss))
            loss = line->loss;
        if (at > step || (evaluated ? !isfinite(line->eval_loss) : at % every != 0 && at != step))
            continue;
        g_string_append_printf(card, "| %" G_GUINT64_FORMAT, at);
        add_number(card, loss);
        if (evaluated)
            add_number(card, line->eval_loss);
        if (paired)
            add_number(card, line->eval_accuracy);
        g_string_append(card, " |\n");
        n++;
    }
}

char *
rp_train_card(const RpTrainJob *job, guint64 step)
{
    GString *card = g_string_new(NULL);
    g_autofree char *path = g_build_filename(job->run->output, "metrics.jsonl", NULL);
    g_autoptr(GArray) lines = rp_train_metrics_read(path, NULL);

    add_head(card, job);
    add_settings(card, job, step);
    if (lines != NULL && lines->len > 0)
        add_losses(card, lines, step);
    g_string_append(card, "\nTrained with RoundPipe in C.\n");
    return g_string_free(card, FALSE);
}
