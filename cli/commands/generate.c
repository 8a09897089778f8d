/* roundpipe generate: a model answers, a prompt of text or a file of ids. */
#include "cli/generate/model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/json/json-write.h"
#include "text/chat/chat.h"

/* Answers to text, printed as they come: to a prompt, to a question as a chat has it, or to one question
 * after the other from standard input. */

#define DEFAULT_NEW_TOKENS 256
/* Most tokens of a conversation, or as many as the model has positions for. */
#define CONVERSATION_TOKENS 4096
#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* One side's turn. */
typedef struct {
    const char *role;
    char *content;
} Message;

typedef struct {
    const RpArgs *args;
    RpCliModel model;
    RpTokenizer *tokenizer;
    RpChat *chat;     /* or %NULL: a prompt is continued */
    GArray *messages; /* Message */
    RpGeneratorOptions options;
    RpGenerator *generator;
    gboolean prints;
    GArray *ids; /* of the prompt */
    GArray *answer;
    GArray *known; /* guint32: its ids that are tokens */
    GString *text; /* of the answer */
    gsize printed; /* bytes */
    guint most_tokens;
    double seconds;
} Talk;

static void
message_clear(gpointer data)
{
    g_free(((Message *)data)->content);
}

static void
talk_clear(Talk *talk)
{
    g_clear_pointer(&talk->generator, rp_generator_free);
    g_clear_pointer(&talk->chat, rp_chat_free);
    g_clear_pointer(&talk->tokenizer, rp_tokenizer_free);
    rp_cli_model_clear(&talk->model);
    g_array_unref(talk->messages);
    g_array_unref(talk->ids);
    g_array_unref(talk->answer);
    g_array_unref(talk->known);
    g_string_free(talk->text, TRUE);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Talk, talk_clear)

static void
say(Talk *talk, const char *role, const char *content)
{
    const Message message = {role, g_strdup(content)};

    g_array_append_val(talk->messages, message);
}

/* The conversation as the model's template writes it, up to the answer. (transfer full) */
static char *
render(const Talk *talk, GError **error)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_array(json, "messages");
    for (guint i = 0; i < talk->messages->len; i++) {
        const Message *message = &g_array_index(talk->messages, Message, i);

        rp_json_object(json, NULL);
        rp_json_string(json, "role", message->role);
        rp_json_string(json, "content", message->content);
        rp_json_end(json);
    }
    rp_json_end(json);
    rp_json_end(json);
    const GString *record = rp_json_writer_text(json);
    GString *text = rp_chat_prompt(talk->chat, "PROMPT", 1, record->str, record->len, error);

    return text != NULL ? g_string_free(text, FALSE) : NULL;
}

/* Prints what is new. Half a character waits for its other half. */
static gboolean
show_token(gpointer user_data, guint index, const RpAnswer *answer)
{
    Talk *talk = user_data;

    /* a model may have more ids than its tokenizer has tokens */
    const guint32 last = (guint32)answer->answer[answer->n_answer - 1];

    if (answer->n_answer == 1)
        g_array_set_size(talk->known, 0);
    if (rp_tokenizer_token(talk->tokenizer, last) != NULL)
        g_array_append_val(talk->known, last);
    g_string_truncate(talk->text, 0);
    const gboolean good =
        rp_tokenizer_decode(talk->tokenizer, (const guint32 *)(const void *)talk->known->data,
                            talk->known->len, RP_DECODE_SKIP_SPECIAL, talk->text, NULL);

    g_assert(good);
    if (!talk->prints || talk->text->len <= talk->printed ||
        g_str_has_suffix(talk->text->str, REPLACEMENT))
        return TRUE;
    fwrite(talk->text->str + talk->printed, 1, talk->text->len - talk->printed, stdout);
    talk->printed = talk->text->len;
    return fflush(stdout) == 0;
}

/* @prompt: (nullable): of a chat: its messages */
static gboolean
read_prompt(Talk *talk, const char *prompt, GError **error)
{
    g_autofree char *rendered = talk->chat != NULL ? render(talk, error) : NULL;
    const char *text = talk->chat != NULL ? rendered : prompt;
    const RpEncodeFlags flags = talk->chat != NULL ? RP_ENCODE_TEXT : RP_ENCODE_TEMPLATE;

    if (text == NULL)
        return FALSE;
    g_array_set_size(talk->ids, 0);
    if (!rp_tokenizer_encode(talk->tokenizer, text, strlen(text), flags, talk->ids, NULL, error)) {
        g_prefix_error(error, "PROMPT: ");
        return FALSE;
    }
    return talk->ids->len > 0 || rp_cli_refuse(error, "PROMPT: expected a text, found none");
}

/* @tokens: that there may be at most */
static gboolean
choose_length(Talk *talk, guint tokens, GError **error)
{
    const guint space = tokens - MIN(tokens, talk->ids->len);
    const guint asked = (guint)talk->args->new_tokens;

    talk->most_tokens = asked > 0 ? asked : MIN(DEFAULT_NEW_TOKENS, MAX(space, 1));
    if (talk->most_tokens <= space)
        return TRUE;
    return rp_cli_refuse(error,
                         "--max-new-tokens: expected at most %u, which %u positions leave after a "
                         "prompt of %u tokens, found %u",
                         space, tokens, talk->ids->len, talk->most_tokens);
}

/* Loads the model, for as many @tokens. */
static gboolean
make_generator(Talk *talk, guint tokens, GError **error)
{
    const RpCliModel *model = &talk->model;

    talk->options.sequences = 1;
    talk->options.tokens = tokens;
    talk->generator = rp_generator_new(&model->config, model->weights, model->kernels, model->probe,
                                       &talk->options, error);
    return talk->generator != NULL;
}

static gboolean
answer(Talk *talk, GError **error)
{
    const RpSampling sampling = rp_generate_sampling(talk->args);
    const gint64 begin_us = g_get_monotonic_time();

    talk->printed = 0;
    g_array_set_size(talk->answer, talk->most_tokens);
    RpAnswer one = {.prompt = (const gint32 *)(const void *)talk->ids->data,
                    .n_prompt = talk->ids->len,
                    .answer = (gint32 *)(void *)talk->answer->data,
                    .number = talk->messages->len};
    const gboolean good = rp_generator_answer(talk->generator, &one, 1, talk->most_tokens,
                                              &sampling, show_token, talk, error);

    g_array_set_size(talk->answer, one.n_answer);
    talk->seconds = (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC;
    if (talk->prints) {
        fwrite(talk->text->str + talk->printed, 1, talk->text->len - talk->printed, stdout);
        fputc('\n', stdout);
        fflush(stdout);
    }
    return good;
}

/* One question a line, until there are no more. */
static gboolean
converse(Talk *talk, GError **error)
{
    const guint tokens = MIN(rp_model_positions(&talk->model.config), CONVERSATION_TOKENS);
    const gboolean terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    g_autofree char *line = NULL;
    size_t space = 0;
    ssize_t length = 0;
    gboolean good = make_generator(talk, tokens, error);

    while (good) {
        if (terminal)
            fputs("> ", stderr);
        length = getline(&line, &space, stdin);
        if (length < 0)
            break;
        if (length > 0 && line[length - 1] == '\n')
            line[--length] = '\0';
        if (length == 0)
            continue;
        say(talk, "user", line);
        good = read_prompt(talk, NULL, error) && choose_length(talk, tokens, error) &&
               answer(talk, error);
        say(talk, "assistant", talk->text->str);
    }
    free(g_steal_pointer(&line));
    return good;
}

static void
report_ids(RpReport *report, const char *key, const GArray *ids)
{
    rp_report_list(report, key);
    for (guint i = 0; i < ids->len; i++)
        rp_report_count(report, NULL, g_array_index(ids, guint32, i), NULL);
    rp_report_end(report);
}

/* A checkpoint's template, or none is asked for. */
static gboolean
open_chat(Talk *talk, GError **error)
{
    const RpChatOptions options = {.train_on = RP_TRAIN_ON_ASSISTANT};

    if (!talk->args->chat)
        return TRUE;
    talk->chat = rp_chat_open(rp_cli_model_directory(&talk->model, "tokenizer_config.json"),
                              talk->tokenizer, &options, error);
    if (talk->args->system != NULL)
        say(talk, "system", talk->args->system);
    return talk->chat != NULL;
}

/* @prompt: %NULL: of args->chat: lines of standard input, a question each */
static gboolean
answer_text(const RpArgs *args, const char *word, const char *prompt, RpReport *report,
            GError **error)
{
    g_auto(Talk) talk = {.args = args,
                         .messages = g_array_new(FALSE, FALSE, sizeof(Message)),
                         .prints = report->form != RP_REPORT_JSON,
                         .ids = g_array_new(FALSE, FALSE, sizeof(guint32)),
                         .answer = g_array_new(FALSE, FALSE, sizeof(gint32)),
                         .known = g_array_new(FALSE, FALSE, sizeof(guint32)),
                         .text = g_string_new(NULL)};

    g_array_set_clear_func(talk.messages, message_clear);
    if (prompt == NULL && !talk.prints)
        return rp_cli_refuse(error, "--json: expected a PROMPT beside it");
    talk.model.any_base = args->run.lora.any_base;
    if (!rp_cli_model_open(&talk.model, word, args->adapter, args->run.devices, error) ||
        (talk.tokenizer = rp_cli_model_tokenizer(&talk.model, error)) == NULL ||
        !rp_cli_model_ends(&talk.model, &talk.options, error) || !open_chat(&talk, error))
        return FALSE;
    if (prompt == NULL)
        return converse(&talk, error);
    say(&talk, "user", prompt);
    if (!read_prompt(&talk, prompt, error) ||
        !choose_length(&talk, rp_model_positions(&talk.model.config), error) ||
        !make_generator(&talk, talk.ids->len + talk.most_tokens, error) || !answer(&talk, error))
        return FALSE;
    report_ids(report, "prompt", talk.ids);
    report_ids(report, "answer", talk.answer);
    rp_report_text(report, "text", talk.text->str, NULL);
    rp_report_bool(report, "ended", talk.answer->len < talk.most_tokens, NULL);
    rp_report_real(report, "seconds", talk.seconds, 3, NULL);
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *prompt = words[1];

    if (!rp_generate_check_sampling(args, error))
        return FALSE;
    if (args->system != NULL && !args->chat)
        return rp_cli_refuse(error, "--system: expected --chat beside it");
    if (prompt == NULL && !args->chat)
        return rp_generate_prompts(args, words[0], report, error);
    if (args->prompts != NULL || args->output != NULL)
        return rp_cli_refuse(error, "--%s: expected no %s beside it",
                             args->prompts != NULL ? "prompts" : "output",
                             args->chat ? "--chat" : "PROMPT");
    return answer_text(args, words[0], prompt, report, error);
}

static const RpUse uses[] = {
    {"chat system adapter any-base"},
    {"devices", "host, or cuda: the first GPU (default: host)", "DEVICE"},
    {"max-new-tokens"},
    {"temperature",
     "what logits are divided by before dice are thrown (default: 0: the likeliest token)"},
    {"top-p top-k"},
    {"seed", "of the dice (default: 0)", "N"},
    {"prompts"},
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
        "  roundpipe generate run/checkpoint-200 --prompts test.jsonl -o answers.jsonl",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
