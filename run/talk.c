#include "run/talk.h"

#include <string.h>

#include "core/json/json-write.h"
#include "text/chat/chat.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* One side's turn. */
typedef struct {
    const char *role;
    char *content;
} Message;

struct _RpTalk {
    RpTrained model;
    RpTokenizer *tokenizer;
    RpChat *chat;     /* or %NULL: a prompt is continued */
    GArray *messages; /* Message */
    gboolean converses;
    RpGeneratorOptions options;
    RpGenerator *generator;
    GArray *ids; /* of the prompt */
    GArray *answer;
    GArray *known; /* guint32: its ids that are tokens */
    GString *text; /* of the answer */
    gsize shown;   /* bytes */
    guint most_tokens;
    RpTalkText show; /* or %NULL */
    gpointer user_data;
};

static void
message_clear(gpointer data)
{
    g_free(((Message *)data)->content);
}

void
rp_talk_free(RpTalk *talk)
{
    if (talk == NULL)
        return;
    g_clear_pointer(&talk->generator, rp_generator_free);
    g_clear_pointer(&talk->chat, rp_chat_free);
    g_clear_pointer(&talk->tokenizer, rp_tokenizer_free);
    rp_trained_clear(&talk->model);
    g_array_unref(talk->messages);
    g_array_unref(talk->ids);
    g_array_unref(talk->answer);
    g_array_unref(talk->known);
    g_string_free(talk->text, TRUE);
    g_free(talk);
}

static void
say(RpTalk *talk, const char *role, const char *content)
{
    const Message message = {role, g_strdup(content)};

    g_array_append_val(talk->messages, message);
}

/* A checkpoint's template, or none is asked for. */
static gboolean
open_chat(RpTalk *talk, const RpTalkOptions *options, GError **error)
{
    const RpChatOptions how = {.train_on = RP_TRAIN_ON_ASSISTANT};

    if (!options->chat)
        return TRUE;
    talk->chat = rp_chat_open(rp_trained_directory(&talk->model, "tokenizer_config.json"),
                              talk->tokenizer, &how, error);
    if (options->system != NULL)
        say(talk, "system", options->system);
    return talk->chat != NULL;
}

RpTalk *
rp_talk_new(const RpTalkOptions *options, GError **error)
{
    g_autoptr(RpTalk) talk = g_new0(RpTalk, 1);

    talk->messages = g_array_new(FALSE, FALSE, sizeof(Message));
    g_array_set_clear_func(talk->messages, message_clear);
    talk->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    talk->answer = g_array_new(FALSE, FALSE, sizeof(gint32));
    talk->known = g_array_new(FALSE, FALSE, sizeof(guint32));
    talk->text = g_string_new(NULL);
    talk->converses = options->converses;
    talk->model.any_base = options->any_base;
    if (!rp_trained_open(&talk->model, options->model, options->adapter, options->device, error) ||
        (talk->tokenizer = rp_trained_tokenizer(&talk->model, error)) == NULL ||
        !rp_trained_ends(&talk->model, &talk->options, error) || !open_chat(talk, options, error))
        return NULL;
    return g_steal_pointer(&talk);
}

/* The conversation as the model's template writes it, up to the answer. (transfer full) */
static char *
render(const RpTalk *talk, GError **error)
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

/* Shows what is new, up to byte @end. */
static gboolean
show_text(RpTalk *talk, gsize end)
{
    const gsize begin = talk->shown;

    talk->shown = MAX(begin, end);
    return talk->show == NULL || end <= begin ||
           talk->show(talk->user_data, talk->text->str + begin, end - begin);
}

/* Half a character waits for its other half. */
static gboolean
take_token(gpointer user_data, guint index, const RpAnswer *answer)
{
    RpTalk *talk = user_data;

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
    return g_str_has_suffix(talk->text->str, REPLACEMENT) || show_text(talk, talk->text->len);
}

static gboolean
read_prompt(RpTalk *talk, const char *prompt, GError **error)
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
    if (talk->ids->len > 0)
        return TRUE;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE, "PROMPT: expected a text, found none");
}

/* @tokens: that there may be at most */
static gboolean
choose_length(RpTalk *talk, guint tokens, guint asked, GError **error)
{
    const guint space = tokens - MIN(tokens, talk->ids->len);

    talk->most_tokens = asked > 0 ? asked : MIN(RP_TALK_TOKENS, MAX(space, 1));
    if (talk->most_tokens <= space)
        return TRUE;
    return rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
        "max_new_tokens: expected at most %u, which %u positions leave after a prompt of %u "
        "tokens, found %u",
        space, tokens, talk->ids->len, talk->most_tokens);
}

/* Loads the model, for as many @tokens; of a conversation once. */
static gboolean
make_generator(RpTalk *talk, guint tokens, GError **error)
{
    const RpTrained *model = &talk->model;

    if (talk->converses && talk->generator != NULL)
        return TRUE;
    g_clear_pointer(&talk->generator, rp_generator_free);
    talk->options.sequences = 1;
    talk->options.tokens = tokens;
    talk->generator = rp_generator_new(&model->config, model->weights, model->kernels, model->probe,
                                       &talk->options, error);
    return talk->generator != NULL;
}

static gboolean
generate(RpTalk *talk, const RpSampling *sampling, double *seconds, GError **error)
{
    const gint64 begin_us = g_get_monotonic_time();

    talk->shown = 0;
    g_string_truncate(talk->text, 0);
    g_array_set_size(talk->answer, talk->most_tokens);
    RpAnswer one = {.prompt = (const gint32 *)(const void *)talk->ids->data,
                    .n_prompt = talk->ids->len,
                    .answer = (gint32 *)(void *)talk->answer->data,
                    .number = talk->messages->len};
    const gboolean good = rp_generator_answer(talk->generator, &one, 1, talk->most_tokens, sampling,
                                              take_token, talk, error);

    g_array_set_size(talk->answer, one.n_answer);
    *seconds = (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC;
    (void)show_text(talk, talk->text->len);
    return good;
}

gboolean
rp_talk_answer(RpTalk *talk, const char *prompt, guint most_tokens, const RpSampling *sampling,
               RpTalkText show, gpointer user_data, RpTalkAnswer *answer, GError **error)
{
    const guint positions = rp_model_positions(&talk->model.config);
    const guint tokens = talk->converses ? MIN(positions, RP_TALK_CONVERSATION) : positions;
    double seconds;

    talk->show = show;
    talk->user_data = user_data;
    say(talk, "user", prompt);
    if (!read_prompt(talk, prompt, error) || !choose_length(talk, tokens, most_tokens, error) ||
        !make_generator(talk, talk->converses ? tokens : talk->ids->len + talk->most_tokens,
                        error) ||
        !generate(talk, sampling, &seconds, error)) {
        g_array_set_size(talk->messages, talk->messages->len - 1); /* was not answered */
        return FALSE;
    }
    say(talk, "assistant", talk->text->str);
    *answer = (RpTalkAnswer){.text = talk->text->str,
                             .prompt = talk->ids,
                             .ids = talk->answer,
                             .ended = talk->answer->len < talk->most_tokens,
                             .seconds = seconds};
    return TRUE;
}
