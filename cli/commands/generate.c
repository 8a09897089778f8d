/* roundpipe generate: answers to prompts of token ids, and how many of them are those expected. */
#include "cli/cli.h"

#include <string.h>

#include "cli/progress.h"
#include "cli/train/train.h"
#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/generate/greedy.h"
#include "exec/host/kernels.h"

/* Of answers to prompts that come with none. */
#define DEFAULT_NEW_TOKENS 64

typedef struct {
    char *prompts;
    char *output;
    char *adapter;
    int new_tokens;
} GenerateArgs;

/* A line of the prompts' file. */
typedef struct {
    gint32 *ids; /* prompt, then the expected answer */
    guint n_prompt;
    guint n_expected; /* 0: none is known */
    gint32 *answer;
    guint n_answer;
} Prompt;

typedef struct {
    RpModel config;
    RpSafetensors *checkpoint;
    RpSafetensors *adapters; /* or NULL */
    RpWeights *weights;
    GArray *prompts; /* Prompt */
    guint longest_prompt;
    guint new_tokens;
    guint n_expected; /* prompts with an answer that is known */
    guint n_right;
    double seconds;
} Generation;

static void
prompt_clear(gpointer data)
{
    Prompt *prompt = data;

    g_free(prompt->ids);
    g_free(prompt->answer);
}

static void
generation_clear(Generation *generation)
{
    g_clear_pointer(&generation->prompts, g_array_unref);
    g_clear_pointer(&generation->weights, rp_weights_free);
    g_clear_pointer(&generation->adapters, rp_safetensors_free);
    g_clear_pointer(&generation->checkpoint, rp_safetensors_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Generation, generation_clear)

static Prompt *
nth(const Generation *generation, guint i)
{
    return &g_array_index(generation->prompts, Prompt, i);
}

static gboolean
open_model(Generation *generation, const char *path, const char *adapter, GError **error)
{
    g_autofree char *tensors =
        adapter != NULL ? g_build_filename(adapter, RP_ADAPTER_TENSORS, NULL) : NULL;
    g_auto(RpLora) lora = {0};

    if (!rp_hf_config_load(path, &generation->config, error))
        return FALSE;
    generation->checkpoint = rp_safetensors_open(path, error);
    if (generation->checkpoint == NULL)
        return FALSE;
    if (adapter != NULL && !rp_adapter_config_load(adapter, &lora, error))
        return FALSE;
    if (adapter != NULL && (!rp_lora_check(&lora, &generation->config, error) ||
                            (generation->adapters = rp_safetensors_open(tensors, error)) == NULL))
        return FALSE;
    lora.dropout = 0; /* of training alone */
    generation->weights = rp_weights_new_adapted(&generation->config, &lora);
    for (guint i = 0; i < rp_weights_count(generation->weights) && adapter == NULL; i++)
        rp_weights_freeze(generation->weights, i, RP_DTYPE_FP32); /* may be packed, then */
    if (!rp_weights_adopt(generation->weights, generation->checkpoint, error) ||
        !rp_weights_bind(generation->weights, generation->checkpoint, error))
        return FALSE;
    return adapter == NULL || (rp_checkpoint_check_base(adapter, generation->weights, error) &&
                               rp_adapter_bind(generation->weights, generation->adapters, error));
}

/* As training data have them: the tokens that are learned, from the first on, are the answer. A
 * sample without labels, whose first token is learned, is a prompt alone. */
static void
divide(const RpSample *sample, Prompt *prompt)
{
    const guint n = (guint)sample->n_tokens;
    guint first = 0, end = n;

    while (first < n && sample->labels[first] == RP_LABEL_MASKED)
        first++;
    if (first == 0 || first == n) {
        prompt->n_prompt = n;
        return;
    }
    while (sample->labels[end - 1] == RP_LABEL_MASKED)
        end--;
    prompt->n_prompt = first;
    prompt->n_expected = end - first;
}

static gboolean
read_prompts(Generation *generation, const char *path, GError **error)
{
    const guint most = generation->config.max_positions;
    g_autofree gint32 *labels = g_new(gint32, most);
    g_autoptr(RpDataset) dataset = NULL;

    if (!rp_train_check_regular("--prompts: ", path, G_MAXUINT64, error))
        return FALSE;
    dataset = rp_dataset_open_jsonl(path, generation->config.vocab, error);
    if (dataset == NULL)
        return FALSE;
    for (guint64 i = 0; i < rp_dataset_n_samples(dataset); i++) {
        Prompt prompt = {.ids = g_new(gint32, most)};
        RpSample sample = {.input_ids = prompt.ids, .labels = labels, .capacity = most};

        g_array_append_val(generation->prompts, prompt); /* frees it */
        if (!rp_dataset_read(dataset, i, &sample, error))
            return FALSE;
        if (sample.n_tokens > most) {
            g_autofree char *place = rp_dataset_locate(dataset, i);

            g_set_error(
                error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                "%s: %s: expected at most the model's %u positions, found %" G_GUINT64_FORMAT
                " tokens",
                path, place, most, sample.n_tokens);
            return FALSE;
        }
        divide(&sample, nth(generation, (guint)i));
    }
    return TRUE;
}

/* How long answers may become: as asked for, or as long as the longest that is expected. */
static gboolean
choose_length(Generation *generation, const GenerateArgs *args, GError **error)
{
    guint expected = 0;
    gboolean all = TRUE;

    for (guint i = 0; i < generation->prompts->len; i++) {
        const Prompt *prompt = nth(generation, i);

        generation->longest_prompt = MAX(generation->longest_prompt, prompt->n_prompt);
        expected = MAX(expected, prompt->n_expected);
        all = all && prompt->n_expected > 0;
    }

    const guint room = generation->config.max_positions - generation->longest_prompt;

    generation->new_tokens = args->new_tokens > 0 ? (guint)args->new_tokens
                             : all                ? expected
                                                  : MIN(DEFAULT_NEW_TOKENS, room);
    if (room > 0 && generation->new_tokens <= room)
        return TRUE;
    return rp_cli_refuse(
        error,
        "--max-new-tokens: expected at most %u, which the model's %u positions leave after "
        "the longest prompt, found %u",
        room, generation->config.max_positions, generation->new_tokens);
}

static void
judge(Generation *generation, Prompt *prompt)
{
    if (prompt->n_expected == 0)
        return;
    generation->n_expected++;
    if (prompt->n_answer == prompt->n_expected &&
        memcmp(prompt->answer, prompt->ids + prompt->n_prompt,
               prompt->n_answer * sizeof *prompt->answer) == 0)
        generation->n_right++;
}

static gboolean
answer_all(Generation *generation, GError **error)
{
    const guint total = generation->prompts->len;
    const guint sequences = MIN(total, RP_GREEDY_MAX_SEQUENCES);
    RpProgress progress = rp_progress_begin("answering", 0);
    guint n_multiply;

    if (!rp_host_reserve_matmul(1, &n_multiply, error))
        return FALSE;
    if (n_multiply == 0) {
        g_set_error(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_MEMORY,
                    "matmuls need %zu bytes of address space, which there are not: raise the limit "
                    "(ulimit -v) or free some memory",
                    RP_HOST_MATMUL_BUFFER_BYTES);
        return FALSE;
    }
    g_autoptr(RpGreedy) greedy =
        rp_greedy_new(&generation->config, generation->weights, rp_host_kernels(), sequences,
                      generation->longest_prompt + generation->new_tokens, error);

    if (greedy == NULL)
        return FALSE;
    for (guint first = 0; first < total; first += sequences) {
        const guint n = MIN(sequences, total - first);
        RpAnswer answers[RP_GREEDY_MAX_SEQUENCES];

        for (guint i = 0; i < n; i++) {
            Prompt *prompt = nth(generation, first + i);

            prompt->answer = g_new(gint32, generation->new_tokens);
            answers[i] = (RpAnswer){
                .prompt = prompt->ids, .n_prompt = prompt->n_prompt, .answer = prompt->answer};
        }
        rp_greedy_answer(greedy, answers, n, generation->new_tokens);
        for (guint i = 0; i < n; i++) {
            nth(generation, first + i)->n_answer = answers[i].n_answer;
            judge(generation, nth(generation, first + i));
        }
        rp_progress_show(&progress, first + n, total);
    }
    rp_progress_clear();
    generation->seconds = (double)(g_get_monotonic_time() - progress.begin_us) / G_USEC_PER_SEC;
    return TRUE;
}

static void
append_ids(GString *line, const char *key, const gint32 *ids, guint n)
{
    g_string_append_printf(line, "\"%s\":[", key);
    for (guint i = 0; i < n; i++)
        g_string_append_printf(line, "%s%d", i > 0 ? "," : "", ids[i]);
    g_string_append_c(line, ']');
}

/* One line of JSON a prompt. */
static gboolean
write_answers(GOutputStream *stream, gpointer data, GError **error)
{
    const Generation *generation = data;
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < generation->prompts->len; i++) {
        const Prompt *prompt = nth(generation, i);

        g_string_append_c(text, '{');
        append_ids(text, "prompt", prompt->ids, prompt->n_prompt);
        g_string_append_c(text, ',');
        append_ids(text, "answer", prompt->answer, prompt->n_answer);
        if (prompt->n_expected > 0) {
            g_string_append_c(text, ',');
            append_ids(text, "expected", prompt->ids + prompt->n_prompt, prompt->n_expected);
        }
        g_string_append(text, "}\n");
    }
    return g_output_stream_write_all(stream, text->str, text->len, NULL, NULL, error);
}

static void
report_answers(RpReport *report, const Generation *generation, const GenerateArgs *args)
{
    const guint n = generation->prompts->len;

    rp_report_count(report, "prompts", n, NULL);
    rp_report_count(report, "expected", generation->n_expected, NULL);
    rp_report_count(report, "right", generation->n_right, NULL);
    rp_report_count(report, "max_new_tokens", generation->new_tokens, NULL);
    rp_report_real(report, "seconds", generation->seconds, 3, NULL);
    if (generation->n_expected > 0)
        rp_report_say(report, "%u of %u answers are right, to the last token (%.1f s)",
                      generation->n_right, generation->n_expected, generation->seconds);
    else
        rp_report_say(report, "%u prompts answered; no answer was known before (%.1f s)", n,
                      generation->seconds);
    if (strcmp(args->output, "-") != 0)
        rp_report_say(report, "answers: %s", args->output);
}

static gboolean
check_args(const GenerateArgs *args, const char *model, gboolean json, GError **error)
{
    if (args->prompts == NULL || args->output == NULL)
        return rp_cli_refuse(error, "--%s: expected a file, found nothing; see --help",
                             args->prompts == NULL ? "prompts" : "output");
    g_autofree char *weights = g_build_filename(model, "model.safetensors", NULL);
    const RpCliFile files[] = {
        {"--prompts", args->prompts, RP_CLI_READ},
        {"MODEL_DIR", weights, RP_CLI_READ},
        {"--output", args->output, json ? RP_CLI_WRITTEN : RP_CLI_PRINTED},
    };

    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const GenerateArgs *args = user_args;
    g_auto(Generation) generation = {.prompts = g_array_new(FALSE, TRUE, sizeof(Prompt))};

    g_array_set_clear_func(generation.prompts, prompt_clear);
    if (!check_args(args, words[0], report->form == RP_REPORT_JSON, error) ||
        !open_model(&generation, words[0], args->adapter, error) ||
        !read_prompts(&generation, args->prompts, error) ||
        !choose_length(&generation, args, error) || !answer_all(&generation, error) ||
        !rp_cli_write_file(args->output, write_answers, &generation, error))
        return FALSE;
    report_answers(report, &generation, args);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"prompts", 0, RP_FILE(GenerateArgs, prompts),
     "prompts as training data; where labels tell an answer, it is compared", "FILE.jsonl"},
    {"output", 'o', RP_FILE(GenerateArgs, output),
     "where answers go, a line of JSON each; - prints them", "FILE.jsonl"},
    {"adapter", 0, RP_FILE(GenerateArgs, adapter),
     "adapters of the model: a checkpoint of them, or a directory of peft's", "DIR"},
    {"max-new-tokens", 0, RP_COUNT(GenerateArgs, new_tokens),
     "tokens of an answer at most (default: of the longest expected one, else 64)", "N"},
    {0},
};

const RpCommand rp_command_generate = {
    .name = "generate",
    .summary = "answer prompts of token ids with a trained model",
    .words = "MODEL_DIR",
    .help = "Answers prompts of token ids with a model or a checkpoint, on the processors:\n"
            "the likeliest token each time.\n\n"
            "Example:\n  roundpipe generate run/checkpoint-200 --prompts test.jsonl "
            "-o answers.jsonl",
    .options = options,
    .args_size = sizeof(GenerateArgs),
    .run = run,
};
