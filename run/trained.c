#include "run/trained.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"
#include "run/devices.h"

#define MAX_CONFIG_BYTES (1 << 20)
#define GENERATION_CONFIG "generation_config.json"

void
rp_trained_clear(RpTrained *model)
{
    for (guint d = 0; d < model->n_probes; d++)
        rp_probe_free(model->probes[d]);
    g_clear_pointer(&model->probes, g_free);
    model->n_probes = 0;
    model->probe = NULL;
    g_clear_pointer(&model->weights, rp_weights_free);
    g_clear_pointer(&model->adapters, rp_safetensors_free);
    g_clear_pointer(&model->checkpoint, rp_safetensors_free);
    g_clear_pointer(&model->path, g_free);
    g_clear_pointer(&model->adapter, g_free);
}

static gboolean
has_file(const char *directory, const char *name)
{
    g_autofree char *path = g_build_filename(directory, name, NULL);

    return g_file_test(path, G_FILE_TEST_EXISTS);
}

/* ---- what a word stands for ---- */

/* @base as it is, or in the hub's cache; else from a folder above the adapters on, as where a run was begun; or there
 * by its last part, as where model and run were moved together. (transfer full) */
static char *
find_base(const char *base, const char *adapter)
{
    g_autofree char *name = g_path_get_basename(base);
    g_autofree char *at = g_canonicalize_filename(adapter, NULL);

    g_autofree char *given = rp_model_path(base);

    if (has_file(given, "config.json"))
        return g_steal_pointer(&given);
    while (strcmp(at, "/") != 0) {
        char *above = g_path_get_dirname(at);
        g_autofree char *path =
            g_build_filename(above, g_path_is_absolute(base) ? name : base, NULL);

        g_free(at);
        at = above;
        if (has_file(path, "config.json"))
            return g_steal_pointer(&path);
    }
    return NULL;
}

/* The base, as adapter_config.json names it. */
typedef struct {
    char *name;
    char *revision; /* (nullable): of the hub */
} Base;

static void
base_clear(Base *base)
{
    g_free(base->name);
    g_free(base->revision);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Base, base_clear)

/* The base that adapter_config.json names. (transfer full) */
static char *
read_base(const char *adapter, GError **error)
{
    static const RpJsonField rows[] = {
        {"base_model_name_or_path", rp_json_read_string, .offset = offsetof(Base, name),
         .null_is_absent = TRUE},
        {"revision", rp_json_read_string, .offset = offsetof(Base, revision),
         .null_is_absent = TRUE},
        {NULL, rp_json_read_ignored},
    };
    g_autofree char *path = g_build_filename(adapter, RP_ADAPTER_CONFIG, NULL);
    g_autofree char *shown = rp_display_name(path);
    g_auto(Base) read = {0};
    gsize length = 0;
    g_autofree char *text = rp_file_read(path, MAX_CONFIG_BYTES, &length, error);
    RpJsonPull pull;

    if (text == NULL ||
        !rp_json_pull_init(&pull, shown, text, length, RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_SYNTAX,
                           error) ||
        !rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows), &read, NULL))
        return NULL;
    g_autofree char *base =
        read.name != NULL && read.revision != NULL && rp_model_is_hub_name(read.name)
            ? g_strconcat(read.name, "@", read.revision, NULL)
            : g_strdup(read.name);
    char *path_of_base = base != NULL && *base != '\0' ? find_base(base, adapter) : NULL;
    if (path_of_base != NULL)
        return path_of_base;
    g_autofree char *found = base != NULL ? rp_quote(base) : g_strdup("none");

    return rp_null(rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
        "%s: base_model_name_or_path: expected the directory of a model, or a name that the "
        "hub's cache has, found %s: name it instead, with --adapter %s",
        shown, found, adapter));
}

char *
rp_trained_checkpoint(const char *word)
{
    g_autofree char *path = rp_model_path(word);
    g_autofree char *best = g_build_filename(path, "best", NULL);

    if (has_file(path, "config.json") || has_file(path, RP_ADAPTER_CONFIG) ||
        !g_file_test(path, G_FILE_TEST_IS_DIR))
        return g_steal_pointer(&path);
    if (g_file_test(best, G_FILE_TEST_IS_DIR))
        return g_steal_pointer(&best);
    g_autoptr(GError) local = NULL;
    g_autofree char *last = rp_checkpoint_find_last(path, NULL, &local);

    return last != NULL ? g_steal_pointer(&last)
                        : g_steal_pointer(&path); /* has no config.json, then */
}

/* Sets the paths of model and adapters. */
static gboolean
resolve(RpTrained *model, const char *word, const char *adapter, GError **error)
{
    g_autofree char *path = rp_trained_checkpoint(word);

    model->adapter = adapter != NULL ? rp_trained_checkpoint(adapter) : NULL;
    if (adapter != NULL || !has_file(path, RP_ADAPTER_CONFIG)) {
        model->path = g_steal_pointer(&path);
        return TRUE;
    }
    model->adapter = g_steal_pointer(&path);
    model->path = read_base(model->adapter, error);
    return model->path != NULL;
}

/* ---- weights and device ---- */

static gboolean
open_weights(RpTrained *model, GError **error)
{
    const char *adapter = model->adapter;
    g_autofree char *tensors =
        adapter != NULL ? g_build_filename(adapter, RP_ADAPTER_TENSORS, NULL) : NULL;
    g_auto(RpLora) lora = {0};

    model->checkpoint = rp_safetensors_open(model->path, error);
    if (model->checkpoint == NULL)
        return FALSE;
    if (adapter != NULL && !rp_adapter_config_load(adapter, &lora, error))
        return FALSE;
    if (adapter != NULL && (!rp_lora_check(&lora, &model->config, error) ||
                            (model->adapters = rp_safetensors_open(tensors, error)) == NULL))
        return FALSE;
    lora.dropout = 0; /* of training alone */
    model->weights = rp_weights_new_adapted(&model->config, &lora);
    for (guint i = 0; i < rp_weights_count(model->weights) && adapter == NULL; i++)
        rp_weights_freeze(model->weights, i, RP_DTYPE_FP32); /* may be packed, then */
    if (!rp_weights_adopt(model->weights, model->checkpoint, error) ||
        !rp_weights_bind(model->weights, model->checkpoint, error))
        return FALSE;
    return adapter == NULL ||
           ((model->any_base || rp_checkpoint_check_base(adapter, model->weights, error)) &&
            rp_adapter_bind(model->weights, model->adapters, error));
}

static gboolean
open_devices(RpTrained *model, const char *device, GError **error)
{
    const RpDeviceOps *devices;
    guint n;

    if (!rp_run_parse_devices(device != NULL ? device : "host", NULL, &devices, &n, error))
        return rp_prefix_error(error, "devices: ");
    if (n != 1 && model->most_devices == 0 && (device == NULL || strcmp(device, "cuda") != 0))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "devices: expected one device, found %u", n);
    n = MIN(n, MAX(model->most_devices, 1));
    model->kernels = devices->kernels();
    model->probes = g_new0(RpProbe *, n);
    for (guint d = 0; d < n; d++) {
        model->probes[d] = devices->probe_new(d, error);
        if (model->probes[d] == NULL)
            return FALSE;
        model->n_probes++;
    }
    model->probe = model->probes[0];
    return TRUE;
}

gboolean
rp_trained_find(RpTrained *model, const char *word, const char *adapter, GError **error)
{
    return resolve(model, word, adapter, error) && rp_checkpoint_verify_model(model->path, error) &&
           (model->adapter == NULL || rp_checkpoint_verify_model(model->adapter, error)) &&
           rp_hf_config_load(model->path, &model->config, error);
}

gboolean
rp_trained_open_weights(RpTrained *model, const char *word, const char *adapter, GError **error)
{
    return rp_trained_find(model, word, adapter, error) && open_weights(model, error);
}

gboolean
rp_trained_open(RpTrained *model, const char *word, const char *adapter, const char *device,
                GError **error)
{
    return rp_trained_open_weights(model, word, adapter, error) &&
           open_devices(model, device, error);
}

/* ---- files beside ---- */

const char *
rp_trained_directory(const RpTrained *model, const char *name)
{
    return model->adapter != NULL && has_file(model->adapter, name) ? model->adapter : model->path;
}

static gboolean
open_tokenizer(const RpTrained *model, RpModelText *text, GError **error)
{
    text->tokenizer = rp_tokenizer_open(rp_trained_directory(model, "tokenizer.json"), error);
    if (text->tokenizer == NULL || rp_tokenizer_size(text->tokenizer) <= model->config.vocab)
        return text->tokenizer != NULL;
    return rp_fail(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_FILE,
                   "%s: tokenizer.json: expected ids below the model's vocabulary of %u, found %u",
                   model->path, model->config.vocab, rp_tokenizer_size(text->tokenizer) - 1);
}

gboolean
rp_trained_text(const RpTrained *model, gboolean chat, RpModelText *text, GError **error)
{
    const RpChatOptions how = {.train_on = RP_TRAIN_ON_ASSISTANT};

    *text = (RpModelText){0};
    if (!open_tokenizer(model, text, error))
        return FALSE;
    if (chat)
        text->chat = rp_chat_open(rp_trained_directory(model, "tokenizer_config.json"),
                                  text->tokenizer, &how, error);
    return !chat || text->chat != NULL;
}

/* An id, or an array of them. */
static gboolean
read_ends(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpGeneratorOptions *options = value;
    const gboolean is_array = rp_json_pull_peek(pull) == RP_JSON_ARRAY;
    guint64 id;

    options->n_ends = 0;
    if (is_array && !rp_json_pull_enter_array(pull))
        return FALSE;
    while (is_array ? rp_json_pull_next_element(pull) : options->n_ends == 0) {
        if (!rp_json_pull_whole(pull, &id))
            return FALSE;
        if (id > G_MAXINT32 || options->n_ends == RP_GENERATOR_MAX_ENDS)
            return rp_json_pull_fail_value(pull, "at most 64 ids of tokens");
        options->ends[options->n_ends++] = (gint32)id;
    }
    return !pull->failed;
}

gboolean
rp_trained_ends(const RpTrained *model, RpGeneratorOptions *options, GError **error)
{
    static const RpJsonField rows[] = {
        {"eos_token_id", read_ends, .null_is_absent = TRUE},
        {NULL, rp_json_read_ignored},
    };
    g_autofree char *path =
        g_build_filename(rp_trained_directory(model, GENERATION_CONFIG), GENERATION_CONFIG, NULL);
    g_autofree char *shown = rp_display_name(path);
    gsize length = 0;
    RpJsonPull pull;

    options->n_ends = model->config.n_eos;
    for (guint i = 0; i < model->config.n_eos; i++)
        options->ends[i] = model->config.eos_ids[i];
    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return TRUE;
    g_autofree char *text = rp_file_read(path, MAX_CONFIG_BYTES, &length, error);

    return text != NULL &&
           rp_json_pull_init(&pull, shown, text, length, RP_HF_CONFIG_ERROR,
                             RP_HF_CONFIG_ERROR_SYNTAX, error) &&
           rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows), options, NULL) &&
           rp_json_pull_end(&pull);
}

/* ---- answers to text ---- */

/* One side's turn. */
typedef struct {
    const char *role;
    char *content;
} Message;

struct _RpTalk {
    RpTrained model;
    RpModelText words; /* with a chat, or a prompt is continued */
    GArray *messages;  /* Message */
    gboolean converses;
    RpGeneratorOptions options;
    RpGenerator *generator;
    GArray *ids; /* of the prompt */
    GArray *answer;
    RpAnswerText text;
    gsize shown; /* bytes */
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
    rp_answer_text_clear(&talk->text);
    rp_model_text_clear(&talk->words);
    rp_trained_clear(&talk->model);
    g_array_unref(talk->messages);
    g_array_unref(talk->ids);
    g_array_unref(talk->answer);
    g_free(talk);
}

static void
say(RpTalk *talk, const char *role, const char *content)
{
    const Message message = {role, g_strdup(content)};

    g_array_append_val(talk->messages, message);
}

RpTalk *
rp_talk_new(const RpTalkOptions *options, GError **error)
{
    g_autoptr(RpTalk) talk = g_new0(RpTalk, 1);

    talk->messages = g_array_new(FALSE, FALSE, sizeof(Message));
    g_array_set_clear_func(talk->messages, message_clear);
    talk->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    talk->answer = g_array_new(FALSE, FALSE, sizeof(gint32));
    talk->converses = options->converses;
    talk->options.memory_bytes = options->device_memory_bytes;
    talk->model.any_base = options->any_base;
    if (!rp_trained_open(&talk->model, options->model, options->adapter, options->device, error) ||
        !rp_trained_text(&talk->model, options->chat, &talk->words, error) ||
        !rp_trained_ends(&talk->model, &talk->options, error))
        return NULL;
    rp_answer_text_init(&talk->text, talk->words.tokenizer);
    if (options->chat && options->system != NULL)
        say(talk, "system", options->system);
    return g_steal_pointer(&talk);
}

/* The conversation as a record. (transfer full) */
static RpJsonWriter *
write_messages(const RpTalk *talk)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);

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
    return json;
}

/* Shows what is new, up to byte @end. */
static gboolean
show_text(RpTalk *talk, gsize end)
{
    const gsize begin = talk->shown;

    talk->shown = MAX(begin, end);
    return talk->show == NULL || end <= begin ||
           talk->show(talk->user_data, talk->text.text->str + begin, end - begin);
}

static gboolean
take_token(gpointer user_data, guint index, const RpAnswer *answer)
{
    RpTalk *talk = user_data;

    rp_answer_text_add(&talk->text, answer->answer + answer->n_answer - 1, 1);
    return show_text(talk, talk->text.whole);
}

static gboolean
read_prompt(RpTalk *talk, const char *prompt, GError **error)
{
    if (talk->words.chat == NULL)
        return rp_model_text_encode(&talk->words, "PROMPT", prompt, strlen(prompt),
                                    RP_ENCODE_TEMPLATE, talk->ids, error);
    g_autoptr(RpJsonWriter) json = write_messages(talk);
    const GString *record = rp_json_writer_text(json);

    return rp_model_text_chat(&talk->words, "PROMPT", record->str, record->len, talk->ids, error);
}

/* Loads the model, for as many @tokens; of a conversation once. */
static gboolean
make_generator(RpTalk *talk, guint tokens, GError **error)
{
    const RpTrained *model = &talk->model;

    if (talk->converses && talk->generator != NULL)
        return TRUE;
    g_clear_pointer(&talk->generator, rp_generator_free);
    talk->options.slots = 1;
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
    rp_answer_text_restart(&talk->text);
    g_array_set_size(talk->answer, talk->most_tokens);
    RpAnswer one = {.prompt = (const gint32 *)(const void *)talk->ids->data,
                    .n_prompt = talk->ids->len,
                    .answer = (gint32 *)(void *)talk->answer->data,
                    .number = talk->messages->len};
    const gboolean good = rp_generator_answer(talk->generator, &one, 1, talk->most_tokens, sampling,
                                              take_token, talk, error);

    g_array_set_size(talk->answer, one.n_answer);
    *seconds = (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC;
    (void)show_text(talk, talk->text.text->len);
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
    if (!read_prompt(talk, prompt, error) ||
        !rp_answer_length("max_new_tokens", tokens, talk->ids->len, most_tokens, &talk->most_tokens,
                          error) ||
        !make_generator(talk, talk->converses ? tokens : talk->ids->len + talk->most_tokens,
                        error) ||
        !generate(talk, sampling, &seconds, error)) {
        g_array_set_size(talk->messages, talk->messages->len - 1); /* was not answered */
        return FALSE;
    }
    say(talk, "assistant", talk->text.text->str);
    *answer = (RpTalkAnswer){.text = talk->text.text->str,
                             .prompt = talk->ids,
                             .ids = talk->answer,
                             .ended = talk->answer->len < talk->most_tokens,
                             .seconds = seconds};
    answer->streamed = rp_generator_streamed(talk->generator, &answer->layers);
    return TRUE;
}
