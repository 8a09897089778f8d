/* roundpipe generate: a model answers, a prompt of text or a file of ids. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/train/train.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/data/dataset.h"
#include "run/devices.h"
#include "run/serve/service.h"
#include "run/train/train.h"
#include "run/trained.h"

static RpSampling
sampling_of(const RpArgs *args)
{
    return (RpSampling){.temperature = args->temperature,
                        .top_p = args->top_p,
                        .top_k = (guint)args->top_k,
                        .seed = (guint64)args->seed};
}

static gboolean
check_sampling(const RpArgs *args, GError **error)
{
    if (!(args->temperature >= 0 && args->temperature <= 100))
        return rp_cli_refuse(error, "--temperature: expected a number from 0 to 100, found %g",
                             args->temperature);
    if (!(args->top_p > 0 && args->top_p <= 1))
        return rp_cli_refuse(error, "--top-p: expected a number above 0, at most 1, found %g",
                             args->top_p);
    if (args->temperature == 0 && (args->top_p < 1 || args->top_k > 0))
        return rp_cli_refuse(error, "--top-%c: expected a --temperature above 0 beside it",
                             args->top_k > 0 ? 'k' : 'p');
    return TRUE;
}

static void
note_streamed(guint streamed, guint n_layers)
{
    if (streamed > 0)
        rp_cli_note("note",
                    "%u of %u layers do not fit into the device's memory: they are copied there "
                    "for every token",
                    streamed, n_layers);
}

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

/* A generator on each device, with as many answers at once as are its share of @n, or as were asked for. */
static gboolean
open_generators(const RpTrained *model, const RpArgs *args, guint n, guint tokens,
                GPtrArray *generators, GError **error)
{
    const guint share = (n + model->n_probes - 1) / model->n_probes;
    const guint most = args->batch > 0 ? (guint)args->batch : RP_GENERATOR_MAX_SLOTS;
    RpGeneratorOptions options = {
        .slots = MIN(share, most), .tokens = tokens, .memory_bytes = args->run.device_memory_bytes};
    guint streamed = 0, n_layers = 0;

    if (!rp_trained_ends(model, &options, error))
        return FALSE;
    for (guint d = 0; d < model->n_probes; d++) {
        RpGenerator *generator = rp_generator_new(&model->config, model->weights, model->kernels,
                                                  model->probes[d], &options, error);

        if (generator == NULL)
            return FALSE;
        g_ptr_array_add(generators, generator);
        streamed = MAX(streamed, rp_generator_streamed(generator, &n_layers));
        options.beside = generator;
    }
    note_streamed(streamed, n_layers);
    return TRUE;
}

static gboolean
answer_all(Generation *generation, const RpArgs *args, GError **error)
{
    g_autoptr(GPtrArray) generators =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_generator_free);
    const RpSampling sampling = sampling_of(args);

    return open_generators(&generation->model, args, generation->prompts->len,
                           generation->longest_prompt + generation->new_tokens, generators,
                           error) &&
           answer_by(generation, generators, &sampling, error);
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
    const RpSampling sampling = sampling_of(args);
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
            note_streamed(answer.streamed, answer.layers);
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
    note_streamed(answer.streamed, answer.layers);
    rp_report_counts(report, "prompt", (const gint32 *)(void *)answer.prompt->data,
                     answer.prompt->len);
    rp_report_counts(report, "answer", (const gint32 *)(void *)answer.ids->data, answer.ids->len);
    rp_report_text(report, "text", answer.text, NULL);
    rp_report_bool(report, "ended", answer.ended, NULL);
    rp_report_real(report, "seconds", answer.seconds, 3, NULL);
    return TRUE;
}

/* ---- a server ---- */

#define DEFAULT_REQUESTS 64
#define MAX_REQUESTS 4096
#define CLIENT_MS 30000
#define GRACE_MS 30000
#define LOOK_US (G_USEC_PER_SEC / 20)
#define LEAST_TOKEN 16
#define MOST_TOKEN 4096

typedef struct {
    gboolean quiet;
    guint n_answered, n_refused, n_left;
    guint64 n_prompt, n_answer; /* tokens */
} Served;

/* A line a request. */
static void
log_request(gpointer user_data, const RpServiceRecord *record)
{
    Served *served = user_data;

    served->n_left += record->left;
    served->n_answered += !record->left && record->status < 400;
    served->n_refused += !record->left && record->status >= 400;
    served->n_prompt += record->n_prompt;
    served->n_answer += record->n_answer;
    if (served->quiet)
        return;
    g_autofree char *path = rp_display_name(record->path);

    fprintf(stderr, "%s %s %s %u: %u + %u tokens, %.3f s%s\n", record->client, record->method, path,
            record->status, record->n_prompt, record->n_answer, record->seconds,
            record->left ? ", client left" : "");
}

static gboolean
read_port(const RpArgs *args, guint16 *port, GError **error)
{
    guint64 number;

    if (!g_ascii_string_to_unsigned(args->serve, 10, 0, G_MAXUINT16, &number, NULL))
        return rp_cli_refuse(error, "--serve: expected a port from 0 to 65535, found %s",
                             args->serve);
    *port = (guint16)number;
    return TRUE;
}

/* @token: (out) (transfer full): %NULL: none is needed */
static gboolean
read_token(const RpArgs *args, char **token, GError **error)
{
    gsize length;

    *token = NULL;
    if (args->bind != NULL && args->token_file == NULL)
        return rp_cli_refuse(
            error, "--bind: expected --token-file beside it: who knows its token may ask");
    if (args->token_file == NULL)
        return TRUE;
    g_autofree char *text = rp_file_read(args->token_file, MOST_TOKEN, &length, error);

    if (text == NULL)
        return FALSE;
    g_strchomp(text);
    for (length = 0; g_ascii_isgraph(text[length]); length++)
        continue;
    if (length < LEAST_TOKEN || text[length] != '\0')
        return rp_cli_refuse(error,
                             "--token-file: %s: expected a line of %d letters or more, without "
                             "spaces, found another text",
                             args->token_file, LEAST_TOKEN);
    *token = g_steal_pointer(&text);
    return TRUE;
}

/* Tokens of a prompt and its answer at most. */
static gboolean
choose_positions(const RpArgs *args, const RpModel *config, guint *positions, GError **error)
{
    const guint most = rp_model_positions(config);
    const guint asked = (guint)args->box.sequence;

    if (asked > most)
        return rp_cli_refuse(
            error, "--sequence: expected at most the model's %u positions, found %u", most, asked);
    *positions = asked > 0 ? asked : MIN(most, RP_TALK_CONVERSATION);
    if (args->new_tokens < (int)*positions)
        return TRUE;
    return rp_cli_refuse(error,
                         "--max-new-tokens: expected less than the %u tokens of --sequence, "
                         "found %d",
                         *positions, args->new_tokens);
}

static void
report_served(RpReport *report, const Served *served, double seconds)
{
    rp_report_count(report, "answered", served->n_answered, NULL);
    rp_report_count(report, "refused", served->n_refused, NULL);
    rp_report_count(report, "left", served->n_left, NULL);
    rp_report_count(report, "prompt_tokens", served->n_prompt, NULL);
    rp_report_count(report, "answer_tokens", served->n_answer, NULL);
    rp_report_real(report, "seconds", seconds, 3, NULL);
    rp_report_say(report, "%u requests answered, %u refused; clients of %u left before (%.0f s)",
                  served->n_answered, served->n_refused, served->n_left, seconds);
}

/* Answers until a signal comes. */
static gboolean
serve_with(const RpServiceOptions *options, Served *served, RpReport *report, GError **error)
{
    const char *address = options->address != NULL ? options->address : RP_SERVICE_ADDRESS;
    const gint64 begin_us = g_get_monotonic_time();
    RpService *service = rp_service_new(options, error);

    if (service == NULL)
        return FALSE;
    const char *open = strchr(address, ':') != NULL ? "[" : "";

    rp_train_catch_stop(FALSE);
    rp_cli_note("note", "%s listens at http://%s%s%s:%u/v1; Ctrl-C ends it", options->model, open,
                address, *open != '\0' ? "]" : "", rp_service_port(service));
    while (rp_train_stop_signal() == 0 && !rp_service_has_failed(service))
        g_usleep(LOOK_US);
    const gboolean good = rp_service_stop(service, error);

    rp_train_release_stop();
    if (good)
        report_served(report, served, (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC);
    return good;
}

static gboolean
serve(const RpArgs *args, const char *word, RpReport *report, GError **error)
{
    Served served = {.quiet = report->form == RP_REPORT_JSON};
    g_auto(RpTrained)
        model = {.any_base = args->run.lora.any_base, .most_devices = RP_RUN_MAX_DEVICES};
    g_auto(RpModelText) text = {0};
    g_autoptr(GPtrArray) generators =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_generator_free);
    g_autofree char *token = NULL;
    g_autofree char *full = g_canonicalize_filename(word, NULL);
    g_autofree char *name = g_path_get_basename(full);
    RpServiceOptions options = {.model = name,
                                .text = &text,
                                .most_tokens = (guint)args->new_tokens,
                                .sampling = sampling_of(args),
                                .address = args->bind,
                                .requests =
                                    args->requests > 0 ? (guint)args->requests : DEFAULT_REQUESTS,
                                .client_ms = CLIENT_MS,
                                .grace_ms = GRACE_MS,
                                .log = log_request,
                                .user_data = &served};

    if (options.requests > MAX_REQUESTS)
        return rp_cli_refuse(error, "--requests: expected at most %d, found %u", MAX_REQUESTS,
                             options.requests);
    if (!read_port(args, &options.port, error) || !read_token(args, &token, error) ||
        !rp_trained_open(&model, word, args->adapter, args->run.devices, error) ||
        !rp_trained_text(&model, TRUE, &text, error) ||
        !choose_positions(args, &model.config, &options.positions, error) ||
        !open_generators(&model, args, options.requests, options.positions, generators, error))
        return FALSE;
    options.generators = (RpGenerator *const *)generators->pdata;
    options.n_generators = generators->len;
    options.token = token;
    return serve_with(&options, &served, report, error);
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

    if (!check_sampling(args, error) || !check_serve(args, prompt, error))
        return FALSE;
    if (args->serve != NULL)
        return serve(args, words[0], report, error);
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
