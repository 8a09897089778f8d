/* A run file of what was recommended: each key with the setting's own line of help. */
#include <string.h>

#include "cli/plan/plan.h"
#include "core/base/fp8.h"
#include "run/settings.h"

/* Where people begin; adapters take larger steps than whole models. */
#define LEARNING_RATE "1e-5"
#define ADAPTERS_LEARNING_RATE "2e-4"
#define PREFERENCE_LEARNING_RATE "1e-6"
#define ADAPTERS_PREFERENCE_LEARNING_RATE "1e-5"
#define WARMUP_RATIO "0.05"

static gboolean
is_plain(const char *value)
{
    return *value != '\0' && strchr("-.~'\"", *value) == NULL &&
           strspn(value, G_CSET_A_2_Z G_CSET_a_2_z G_CSET_DIGITS "/._-:@+") == strlen(value) &&
           !g_str_has_suffix(value, ":");
}

/* Anything else in double quotes, in which YAML has the escapes that C has, but octal ones. */
static void
append_value(GString *text, const char *value)
{
    if (is_plain(value)) {
        g_string_append(text, value);
        return;
    }
    g_string_append_c(text, '"');
    for (; *value != '\0'; value++)
        if ((guchar)*value < 0x20 || *value == 0x7f)
            g_string_append_printf(text, "\\x%02x", (guchar)*value);
        else
            g_string_append_printf(text, strchr("\"\\", *value) != NULL ? "\\%c" : "%c", *value);
    g_string_append_c(text, '"');
}

/* "lora.rank" stands in the mapping `lora`, whose keys come one after the other. */
static void G_GNUC_PRINTF(3, 4) add(GString *text, const char *key, const char *format, ...)
{
    const char *dot = strchr(key, '.');
    const char *word = dot != NULL ? dot + 1 : key;
    g_autofree char *group = g_strndup(key, (gsize)(word - key));
    g_autofree char *heading =
        dot != NULL ? g_strdup_printf("\n%.*s:\n", (int)(dot - key), key) : NULL;
    const char *margin = dot != NULL ? "  " : "";
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *value = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    if (heading != NULL && strstr(text->str, heading) == NULL)
        g_string_append(text, heading);
    g_string_append_printf(text, "%s# %s\n%s%s: ", margin, rp_setting_find(key)->help, margin,
                           word);
    append_value(text, value);
    g_string_append_c(text, '\n');
}

static void
add_sizes(GString *text, const RpAdviseQuery *query, const RpAdviseRun *run)
{
    const RpPlanOptions *options = &run->options;

    add(text, "sequence_length", "%u", query->tokens_per_sequence);
    add(text, "micro_batch_size", "%u", run->sequences);
    add(text, "micro_batches", "%u", options->micro_batches);
    if (strcmp(options->schedule->name, rp_setting_find("schedule")->initial) != 0)
        add(text, "schedule", "%s", options->schedule->name);
    if (options->schedule->dispatched && options->round < options->micro_batches)
        add(text, "round", "%u", options->round);
    if (options->schedule->dispatched && !options->async)
        add(text, "async", "false");
    if (options->dispatch == RP_DISPATCH_FREE)
        add(text, "dispatch", "free");
    if (options->replicas > 1)
        add(text, "replicas", "%u", options->replicas);
}

/* A share of the data is validated; the rest, as comments, holds without #. */
static void
add_validation(GString *text)
{
    static const char *const values[][2] = {{"eval.keep_best", "true"}, {"eval.patience", "3"}};

    add(text, "eval.split", "%g", RP_PLAN_VALIDATED);
    for (gsize i = 0; i < G_N_ELEMENTS(values); i++)
        g_string_append_printf(text, "  # # %s\n  # %s: %s\n", rp_setting_find(values[i][0])->help,
                               strchr(values[i][0], '.') + 1, values[i][1]);
}

/* Keys of a preference, with the numbers that hold anyway. */
static void
add_objective(GString *text, RpObjective objective, RpReference reference)
{
    const RpObjectiveInfo *info = rp_objective_info(objective);

    if (objective == RP_OBJECTIVE_SFT)
        return;
    add(text, "objective", "%s", info->name);
    add(text, "beta", "%g", info->beta);
    if (objective == RP_OBJECTIVE_SIMPO)
        add(text, "simpo_gamma", "%g", info->gamma);
    if (info->has_reference)
        add(text, "reference", "%s", rp_reference_name(reference));
}

/* Where people begin: preferences take smaller steps than imitation. */
static const char *
learning_rate(RpObjective objective, gboolean adapts)
{
    if (objective == RP_OBJECTIVE_SFT)
        return adapts ? ADAPTERS_LEARNING_RATE : LEARNING_RATE;
    return adapts ? ADAPTERS_PREFERENCE_LEARNING_RATE : PREFERENCE_LEARNING_RATE;
}

/* A run file of the recommended run, with comments. @words: model, data, output and devices, which the
 * advice does not have. (transfer full) */
static char *
make_text(const RpPlanQuestion *question, const RpAdvice *advice, const RpRunSpec *words)
{
    const RpAdviseRun *run = rp_plan_shown_run(advice);
    const RpAdviseQuery *query = &advice->query;
    const gboolean adapts = query->lora_rank > 0;
    const RpObjective objective = query->preference.objective;
    const char *recompute = rp_run_spec_given(&question->args->run, "recompute");
    g_autofree char *targets =
        question->lora_targets != NULL ? g_strjoinv(",", question->lora_targets) : NULL;
    GString *text = g_string_new("# What `roundpipe train` is to do. All keys: roundpipe train "
                                 "--keys. The plan alone: roundpipe train --dry-run\n\n");

    add(text, "model", "%s", words->model);
    add(text, "data", "%s", words->data);
    add_objective(text, objective, query->preference.reference);
    add(text, "output", "%s", words->output);
    g_string_append_c(text, '\n');
    add(text, "devices", "%s", words->devices);
    if (question->dtype_assumed)
        add(text, "dtype", "%s", query->dtype);
    if (strcmp(query->accumulate, "fp16") == 0)
        add(text, "accumulate", "fp16");
    if (query->fp8)
        add(text, "matmul", "%s", rp_fp8_name(query->fp8, query->fp8_head));
    if (adapts && query->base != NULL)
        add(text, "base", "%s", query->base);
    add_sizes(text, query, run);
    if (recompute != NULL)
        add(text, "recompute", "%s", recompute);
    add(text, "epochs", "%d", RP_PLAN_EPOCHS);
    add(text, "optimizer.learning_rate", "%s", learning_rate(objective, adapts));
    add(text, "optimizer.schedule", "cosine");
    add(text, "optimizer.warmup_ratio", WARMUP_RATIO);
    if (query->optimizer == RP_OPTIMIZER_LEAN)
        add(text, "optimizer.mode", "lean");
    for (guint i = 0; i < RP_CLI_FORM_PARTS; i++) {
        const char *setting, *name = rp_cli_form_name(&query->form, i, &setting);

        if (name != NULL)
            add(text, setting, "%s", name);
    }
    if (adapts) {
        add(text, "lora.rank", "%u", query->lora_rank);
        add(text, "lora.alpha", "%u", 2 * query->lora_rank);
        add(text, "lora.targets", "%s", targets != NULL ? targets : RP_LORA_ALL_LINEAR);
    }
    add(text, "checkpoint.keep", "%s", rp_setting_find("checkpoint.keep")->initial);
    add_validation(text);
    return g_string_free(text, FALSE);
}

gboolean
rp_plan_write_run(const char *path, const RpPlanQuestion *question, const RpAdvice *advice,
                  const RpRunSpec *words, GError **error)
{
    g_autofree char *text = make_text(question, advice, words);
    /* the devices may be another machine's */
    g_autofree char *devices = g_strdup_printf("devices=host:%u", advice->query.gpus);
    const char *const here[] = {devices, NULL};
    g_autoptr(RpRunSpec) run = rp_run_file_parse(path, text, strlen(text), here, error);

    return run != NULL && rp_cli_write_text(path, text, error);
}

void
rp_plan_report_form(RpReport *report, const RpStateFormat *form)
{
    for (guint i = 0; i < RP_CLI_FORM_PARTS; i++) {
        const char *setting, *name = rp_cli_form_name(form, i, &setting);
        g_autofree char *key = g_strdelimit(g_strdup(setting), ".", '_');

        if (name != NULL)
            rp_report_text(report, key, name, NULL);
    }
}

void
rp_plan_say_optimizer(RpReport *report, const RpAdviseQuery *query)
{
    g_autoptr(GString) words = g_string_new(NULL);

    if (query->optimizer == RP_OPTIMIZER_LEAN)
        g_string_append(words, "mode: lean");
    for (guint i = 0; i < RP_CLI_FORM_PARTS; i++) {
        const char *setting, *name = rp_cli_form_name(&query->form, i, &setting);

        if (name != NULL)
            g_string_append_printf(words, "%s%s: %s", words->len > 0 ? ", " : "",
                                   strchr(setting, '.') + 1, name);
    }
    if (words->len > 0)
        rp_report_say(report, "  optimizer: {%s}", words->str);
}
