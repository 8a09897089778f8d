/* roundpipe generate: a model answers, a prompt of text or a file of ids. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/generate/generate.h"
#include "core/base/quote.h"
#include "exec/data/dataset.h"
#include "run/devices.h"
#include "run/predict-answers.h"
#include "run/train/train.h"
#include "run/trained.h"

/* ---- a file of prompts: answers to it, and how many of them are those expected ---- */

/* Number of tokens of answers to prompts that come with none. */
#define DEFAULT_NEW_TOKENS 64

/* A line of the prompts' file. */
typedef struct {
    gint32 *ids; /* prompt, then the expected answer */
    guint n_prompt;
    guint n_expected; /* 0: none is known */
    gint32 *answer;
    guint n_answer;
} Prompt;

typedef struct {
    RpTrained model;
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
    rp_trained_clear(&generation->model);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Generation, generation_clear)

static Prompt *
nth(const Generation *generation, guint i)
{
    return &g_array_index(generation->prompts, Prompt, i);
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

/* Ids as they stand; of chats and texts samples as training would make them, of which the last answer
 * is expected. */
static gboolean
open_prompts(const RpTrained *model, const char *path, RpRunSamples *samples, GError **error)
{
    RpProgress progress = {0};
    const RpRunEvents events = {.progress = rp_progress_event, .user_data = &progress};
    const RpRunSpec run = {.data = (char *)path,
                           .sequence_length = rp_model_positions(&model->config),
                           .train_on = RP_TRAIN_ON_LAST};
    const RpSamplesSource source = {&run, "--prompts",
                                    rp_trained_directory(model, "tokenizer.json"), &model->config};
    const gboolean good = rp_run_samples_open(&source, &events, samples, error);

    rp_progress_clear();
    return good;
}

static gboolean
read_prompts(Generation *generation, const char *path, GError **error)
{
    const guint most = rp_model_positions(&generation->model.config);
    g_autofree gint32 *labels = g_new(gint32, most);
    g_auto(RpRunSamples) samples = {0};

    if (!rp_train_check_regular("--prompts: ", path, G_MAXUINT64, error) ||
        !open_prompts(&generation->model, path, &samples, error))
        return FALSE;
    const RpDataset *dataset = samples.train;

    for (guint64 i = 0; i < rp_dataset_n_samples(dataset); i++) {
        Prompt prompt = {.ids = g_new(gint32, most)};
        RpSample sample = {.input_ids = prompt.ids, .labels = labels, .capacity = most};

        g_array_append_val(generation->prompts, prompt); /* frees it */
        if (!rp_dataset_read(dataset, i, &sample, error))
            return FALSE;
        if (sample.n_tokens > most) {
            g_autofree char *place = rp_dataset_locate(dataset, i);

            return rp_fail(
                error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                "%s: %s: expected at most the model's %u positions, found %" G_GUINT64_FORMAT
                " tokens",
                path, place, most, sample.n_tokens);
        }
        divide(&sample, nth(generation, (guint)i));
    }
    return TRUE;
}

/* How long answers may become: as asked for, or as long as the longest that is expected. */
static gboolean
choose_length(Generation *generation, const RpArgs *args, GError **error)
{
    guint expected = 0;
    gboolean all = TRUE;

    for (guint i = 0; i < generation->prompts->len; i++) {
        const Prompt *prompt = nth(generation, i);

        generation->longest_prompt = MAX(generation->longest_prompt, prompt->n_prompt);
        expected = MAX(expected, prompt->n_expected);
        all = all && prompt->n_expected > 0;
    }

    const guint positions = rp_model_positions(&generation->model.config);
    const guint space = positions - generation->longest_prompt;

    generation->new_tokens = args->new_tokens > 0 ? (guint)args->new_tokens
                             : all                ? expected
                                                  : MIN(DEFAULT_NEW_TOKENS, space);
    if (space > 0 && generation->new_tokens <= space)
        return TRUE;
    return rp_cli_refuse(
        error,
        "--max-new-tokens: expected at most %u, which the model's %u positions leave after "
        "the longest prompt, found %u",
        space, positions, generation->new_tokens);
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

typedef struct {
    Generation *generation;
    RpProgress progress;
    guint n_ended;
} Answering;

static gboolean
show_answer(gpointer user_data, guint index, const RpAnswer *answer)
{
    Answering *answering = user_data;

    if (answer->n_answer == 1)
        rp_progress_show(&answering->progress, ++answering->n_ended,
                         answering->generation->prompts->len);
    return TRUE;
}

/* Answers all prompts. */
static gboolean
answer_by(Generation *generation, GPtrArray *generators, const RpSampling *sampling, GError **error)
{
    const guint total = generation->prompts->len;
    g_autofree RpAnswer *answers = g_new0(RpAnswer, total);
    Answering answering = {generation, rp_progress_begin("answering", 0), 0};

    for (guint i = 0; i < total; i++) {
        Prompt *prompt = nth(generation, i);

        prompt->answer = g_new(gint32, generation->new_tokens);
        answers[i] = (RpAnswer){.prompt = prompt->ids,
                                .n_prompt = prompt->n_prompt,
                                .answer = prompt->answer,
                                .number = i};
    }
    const gboolean good = rp_generators_answer(
        (RpGenerator *const *)generators->pdata, generators->len, answers, total,
        generation->new_tokens, sampling, show_answer, &answering, error);

    rp_progress_clear();
    generation->seconds =
        (double)(g_get_monotonic_time() - answering.progress.begin_us) / G_USEC_PER_SEC;
    for (guint i = 0; i < total && good; i++) {
        nth(generation, i)->n_answer = answers[i].n_answer;
        judge(generation, nth(generation, i));
    }
    return good;
}

static gboolean
answer_all(Generation *generation, const RpArgs *args, GError **error)
{
    g_autoptr(GPtrArray) generators =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_generator_free);
    const RpSampling sampling = rp_generate_sampling(args);

    return rp_generate_open(&generation->model, args, generation->prompts->len,
                            generation->longest_prompt + generation->new_tokens, generators,
                            error) &&
           answer_by(generation, generators, &sampling, error);
}

/* ---- its prediction ---- */

/* @done: answers have their lengths; else they become as long as is expected, or as they may */
static gboolean
predict(const Generation *generation, const RpArgs *args, const RpGpu *gpu, guint devices,
        gboolean done, RpAnswersPrediction *predicted, GError **error)
{
    const guint n = generation->prompts->len;
    g_autofree RpDecodeLengths *lengths = g_new(RpDecodeLengths, n);
    const RpAnswersQuestion question = {.config = &generation->model.config,
                                        .gpu = gpu,
                                        .devices = devices,
                                        .slots = (guint)args->batch,
                                        .memory_bytes = args->run.device_memory_bytes,
                                        .samples = args->temperature > 0,
                                        .lengths = lengths,
                                        .n = n};

    for (guint i = 0; i < n; i++) {
        const Prompt *prompt = nth(generation, i);

        lengths[i] =
            (RpDecodeLengths){prompt->n_prompt, done                     ? prompt->n_answer
                                                : prompt->n_expected > 0 ? prompt->n_expected
                                                                         : generation->new_tokens};
    }
    return rp_run_predict_answers(&question, predicted, error);
}

/* The rate, and on a card of the catalogue the predicted one. */
static void
report_rate(RpReport *report, const Generation *generation, const RpArgs *args)
{
    const RpTrained *model = &generation->model;
    const gboolean host = model->probe->ops->is_host;
    g_autoptr(RpGpu) gpu = host ? NULL : rp_run_find_gpu(NULL, NULL);
    RpAnswersPrediction predicted;
    double tokens = 0;

    for (guint i = 0; i < generation->prompts->len; i++)
        tokens += nth(generation, i)->n_answer;
    const double rate = tokens / MAX(generation->seconds, 1e-6);

    rp_report_rate(report, "tokens_per_s", rate, NULL);
    if (gpu == NULL || !predict(generation, args, gpu, model->n_probes, TRUE, &predicted, NULL))
        return;
    rp_report_say(report, "measured %.0f tokens/s, predicted %.0f", rate, predicted.tokens_per_s);
    rp_report_rate(report, "predicted_tokens_per_s", predicted.tokens_per_s, NULL);
}

static void
write_ids(RpJsonWriter *json, const char *key, const gint32 *ids, guint n)
{
    rp_json_array(json, key);
    for (guint i = 0; i < n; i++)
        rp_json_int(json, NULL, ids[i]);
    rp_json_end(json);
}

/* One line of JSON a prompt. */
static gboolean
write_answers(const Generation *generation, const char *path, GError **error)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    for (guint i = 0; i < generation->prompts->len; i++) {
        const Prompt *prompt = nth(generation, i);

        rp_json_object(json, NULL);
        write_ids(json, "prompt", prompt->ids, prompt->n_prompt);
        write_ids(json, "answer", prompt->answer, prompt->n_answer);
        if (prompt->n_expected > 0)
            write_ids(json, "expected", prompt->ids + prompt->n_prompt, prompt->n_expected);
        rp_json_end(json);
        g_string_append_c(rp_json_writer_text(json), '\n');
    }
    return rp_cli_write_text(path, rp_json_writer_text(json)->str, error);
}

static void
report_answers(RpReport *report, const Generation *generation, const RpArgs *args)
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
    report_rate(report, generation, args);
    if (strcmp(args->output, "-") != 0)
        rp_report_say(report, "answers: %s", args->output);
}

static gboolean
check_args(const RpArgs *args, const char *model, gboolean json, GError **error)
{
    if (args->prompts == NULL)
        return rp_cli_refuse(error,
                             "PROMPT: expected a text, --chat or --prompts FILE; see --help");
    if (args->output == NULL)
        return rp_cli_refuse(error, "--output: expected a file, found nothing; see --help");
    g_autofree char *weights = g_build_filename(model, "model.safetensors", NULL);
    const RpCliFile files[] = {
        {"--prompts", args->prompts, RP_CLI_READ},
        {"MODEL_DIR", weights, RP_CLI_READ},
        {"--output", args->output, json ? RP_CLI_WRITTEN : RP_CLI_PRINTED},
    };

    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

static gboolean
answer_prompts(const RpArgs *args, const char *word, RpReport *report, GError **error)
{
    g_auto(Generation) generation = {.prompts = g_array_new(FALSE, TRUE, sizeof(Prompt))};

    g_array_set_clear_func(generation.prompts, prompt_clear);
    generation.model.any_base = args->run.lora.any_base;
    generation.model.most_devices = RP_RUN_MAX_DEVICES;
    if (!check_args(args, word, report->form == RP_REPORT_JSON, error) ||
        !rp_trained_open(&generation.model, word, args->adapter, args->run.devices, error) ||
        !read_prompts(&generation, args->prompts, error) ||
        !choose_length(&generation, args, error) || !answer_all(&generation, args, error) ||
        !write_answers(&generation, args->output, error))
        return FALSE;
    report_answers(report, &generation, args);
    return TRUE;
}

/* The same without answers, devices and weights. */
static gboolean
predict_prompts(const RpArgs *args, const char *word, RpReport *report, GError **error)
{
    g_auto(Generation) generation = {.prompts = g_array_new(FALSE, TRUE, sizeof(Prompt))};
    const char *devices = args->run.devices != NULL ? args->run.devices : "cuda:1";
    g_autoptr(RpGpu) gpu = rp_run_find_gpu(args->box.gpu, error);
    RpAnswersPrediction predicted;
    const RpDeviceOps *unused;
    guint n;

    g_array_set_clear_func(generation.prompts, prompt_clear);
    if (gpu == NULL)
        return FALSE;
    if (!rp_run_predicted_devices(devices, &unused, &n, error))
        return rp_prefix_error(error, "--devices: ");
    if (!rp_trained_find(&generation.model, word, args->adapter, error) ||
        !read_prompts(&generation, args->prompts, error) ||
        !choose_length(&generation, args, error) ||
        !predict(&generation, args, gpu, n, FALSE, &predicted, error))
        return FALSE;
    rp_report_say(
        report, "predicted %.0f tokens/s on %u x %s: %u prompts, answers of %u tokens at most",
        predicted.tokens_per_s, n, gpu->title, generation.prompts->len, generation.new_tokens);
    rp_report_rate(report, "predicted_tokens_per_s", predicted.tokens_per_s, NULL);
    rp_report_real(report, "seconds", predicted.decode.seconds, 6, "seconds");
    rp_report_real(report, "prefill_seconds", predicted.decode.prefill_seconds, 6, "of prompts");
    rp_report_real(report, "step_ms", predicted.decode.step_ms, 6, "step, ms");
    rp_report_count(report, "at_once", predicted.at_once, "at once");
    rp_report_bytes(report, "weight_bytes", predicted.sizes.weight_bytes, "weights");
    rp_report_bytes(report, "streamed_bytes", predicted.sizes.streamed_bytes,
                    predicted.sizes.streamed_bytes > 0 ? "of these copied for every token" : NULL);
    rp_report_bytes(report, "workspace_bytes", predicted.sizes.workspace_bytes, "workspace");
    rp_report_bytes(report, "cache_bytes", predicted.cache_bytes, "caches");
    rp_report_bytes(report, "gpu_memory_bytes", predicted.memory_bytes, "GPU memory");
    return TRUE;
}

/* ---- text ---- */

/* Answers to text, printed as they come: to a prompt, to a question as a chat has it, or to one question
 * after the other from standard input. */

static gboolean
print_text(gpointer user_data, const char *text, gsize length)
{
    fwrite(text, 1, length, stdout);
    return fflush(stdout) == 0;
}

static gboolean
ask(RpTalk *talk, const RpArgs *args, const char *prompt, gboolean prints, RpTalkAnswer *answer,
    GError **error)
{
    const RpSampling sampling = rp_generate_sampling(args);
    const gboolean good = rp_talk_answer(talk, prompt, (guint)args->new_tokens, &sampling,
                                         prints ? print_text : NULL, NULL, answer, error);

    if (good && prints) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    return good;
}

/* One question a line, until there are no more. */
static gboolean
converse(RpTalk *talk, const RpArgs *args, GError **error)
{
    const gboolean terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    g_autofree char *line = NULL;
    size_t space = 0;
    RpTalkAnswer answer = {.text = NULL};
    gboolean good = TRUE;

    while (good) {
        if (terminal)
            fputs("> ", stderr);
        const ssize_t length = getline(&line, &space, stdin);

        if (length < 0)
            break;
        if (length > 0 && line[length - 1] == '\n')
            line[length - 1] = '\0';
        if (*line == '\0')
            continue;
        const gboolean first = answer.text == NULL;

        good = ask(talk, args, line, TRUE, &answer, error);
        if (good && first)
            rp_generate_note_streamed(answer.streamed, answer.layers);
    }
    free(g_steal_pointer(&line));
    return good;
}

/* @prompt: %NULL: of args->chat: lines of standard input, a question each */
static gboolean
answer_text(const RpArgs *args, const char *word, const char *prompt, RpReport *report,
            GError **error)
{
    const gboolean prints = report->form != RP_REPORT_JSON;
    const RpTalkOptions options = {.model = word,
                                   .adapter = args->adapter,
                                   .any_base = args->run.lora.any_base,
                                   .device = args->run.devices,
                                   .device_memory_bytes = args->run.device_memory_bytes,
                                   .chat = args->chat,
                                   .system = args->system,
                                   .converses = prompt == NULL};

    if (prompt == NULL && !prints)
        return rp_cli_refuse(error, "--json: expected a PROMPT beside it");
    g_autoptr(RpTalk) talk = rp_talk_new(&options, error);
    if (talk == NULL)
        return FALSE;
    if (prompt == NULL)
        return converse(talk, args, error);
    RpTalkAnswer answer;

    if (!ask(talk, args, prompt, prints, &answer, error))
        return FALSE;
    rp_generate_note_streamed(answer.streamed, answer.layers);
    rp_report_counts(report, "prompt", (const gint32 *)(void *)answer.prompt->data,
                     answer.prompt->len);
    rp_report_counts(report, "answer", (const gint32 *)(void *)answer.ids->data, answer.ids->len);
    rp_report_text(report, "text", answer.text, NULL);
    rp_report_bool(report, "ended", answer.ended, NULL);
    rp_report_real(report, "seconds", answer.seconds, 3, NULL);
    return TRUE;
}

/* Options of a server say nothing elsewhere, and of others nothing to a server. */
static gboolean
check_serve(const RpArgs *args, const char *prompt, GError **error)
{
    static const char *const serves[] = {"bind", "token-file", "requests", "sequence", NULL};
    static const char *const others[] = {"chat", "system", "prompts", "output", NULL};
    const char *const *names = args->serve != NULL ? others : serves;

    if (args->serve != NULL && prompt != NULL)
        return rp_cli_refuse(error, "--serve: expected no PROMPT beside it");
    for (guint i = 0; names[i] != NULL; i++)
        if (rp_args_has(args, names[i]))
            return rp_cli_refuse(error, "--%s: expected %s--serve beside it", names[i],
                                 args->serve != NULL ? "no " : "");
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *prompt = words[1];

    if (!rp_generate_check_sampling(args, error) || !check_serve(args, prompt, error))
        return FALSE;
    if (args->dry_run && args->prompts != NULL && prompt == NULL && !args->chat)
        return predict_prompts(args, words[0], report, error);
    if (args->dry_run || args->box.gpu != NULL)
        return rp_cli_refuse(error, "--%s beside it",
                             args->dry_run ? "dry-run: expected --prompts alone"
                                           : "gpu: expected --dry-run");
    if (args->serve != NULL)
        return rp_generate_serve(args, words[0], report, error);
    if (args->system != NULL && !args->chat)
        return rp_cli_refuse(error, "--system: expected --chat beside it");
    if (prompt == NULL && !args->chat)
        return answer_prompts(args, words[0], report, error);
    if (args->prompts != NULL || args->output != NULL)
        return rp_cli_refuse(error, "--%s: expected no %s beside it",
                             args->prompts != NULL ? "prompts" : "output",
                             args->chat ? "--chat" : "PROMPT");
    return answer_text(args, words[0], prompt, report, error);
}

static const RpUse uses[] = {
    {"chat system adapter any-base"},
    {"devices",
     "host, cuda:N, or cuda: all GPUs, which share --prompts or requests; else the first (default: "
     "host)",
     "DEVICE"},
    {"device-memory",
     "limit of each device; layers that do not fit are copied there for every token (default: all "
     "that is free)"},
    {"max-new-tokens"},
    {"temperature",
     "what logits are divided by before dice are thrown (default: 0: the likeliest token)"},
    {"top-p top-k"},
    {"seed", "of the dice (default: 0)", "N"},
    {"prompts"},
    {"batch",
     "--prompts, --serve: answers in progress at once, on each device (default: as many as fit, to "
     "256)",
     "N"},
    {"serve bind token-file requests"},
    {"sequence", "--serve: tokens of a prompt and its answer, at most (default: 4096)", "T"},
    {"dry-run", "--prompts: predict tokens/s and memory, and answer nothing"},
    {"gpu", "--dry-run: a card's name, see `roundpipe gpus`, or its FILE.json (default: this one)"},
    {"output", "where answers to --prompts go, a line of JSON each; - prints them", "FILE.jsonl"},
    {0},
};

static const RpArgs defaults = {.top_p = 1};

const RpCommand rp_command_generate = {
    .name = "generate",
    .summary = "let a trained model answer a prompt",
    .words = "MODEL_DIR [PROMPT]",
    .help =
        "Continues a text, or answers a file of prompts of token ids, with a model, a checkpoint\n"
        "or the output of a run: its best checkpoint, else its last.\n\n"
        "Examples:\n  roundpipe generate models/qwen3-0.6b 'The capital of France is'\n"
        "  roundpipe generate run --chat 'Who are you?'\n"
        "  roundpipe generate run/checkpoint-200 --prompts test.jsonl -o answers.jsonl\n"
        "  roundpipe generate run --serve 8000",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
