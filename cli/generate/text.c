/* An answer to a prompt of text, printed as it comes. */
#include <stdio.h>
#include <string.h>

#include "cli/generate/model.h"

#define DEFAULT_NEW_TOKENS 256
#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

typedef struct {
    const RpTokenizer *tokenizer;
    RpGeneratorOptions options;
    gboolean prints;
    GArray *ids; /* of the prompt */
    GArray *answer;
    GString *text; /* of the answer */
    gsize printed; /* bytes */
    guint most_tokens;
    double seconds;
} Talk;

static void
talk_clear(Talk *talk)
{
    g_array_unref(talk->ids);
    g_array_unref(talk->answer);
    g_string_free(talk->text, TRUE);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Talk, talk_clear)

/* Prints what is new. Half a character waits for its other half. */
static gboolean
show_token(gpointer user_data, guint index, const RpAnswer *answer)
{
    Talk *talk = user_data;

    g_string_truncate(talk->text, 0);
    if (!rp_tokenizer_decode(talk->tokenizer, (const guint32 *)(const void *)answer->answer,
                             answer->n_answer, RP_DECODE_SKIP_SPECIAL, talk->text, NULL))
        return TRUE; /* an id that the tokenizer has not; the end tells */
    if (!talk->prints || talk->text->len <= talk->printed ||
        g_str_has_suffix(talk->text->str, REPLACEMENT))
        return TRUE;
    fwrite(talk->text->str + talk->printed, 1, talk->text->len - talk->printed, stdout);
    talk->printed = talk->text->len;
    return fflush(stdout) == 0;
}

static gboolean
read_prompt(Talk *talk, const char *prompt, GError **error)
{
    if (!rp_tokenizer_encode(talk->tokenizer, prompt, strlen(prompt), RP_ENCODE_TEMPLATE, talk->ids,
                             NULL, error)) {
        g_prefix_error(error, "PROMPT: ");
        return FALSE;
    }
    return talk->ids->len > 0 || rp_cli_refuse(error, "PROMPT: expected a text, found none");
}

static gboolean
choose_length(Talk *talk, const RpGenerateArgs *args, const RpModel *config, GError **error)
{
    const guint room = config->max_positions - MIN(config->max_positions, talk->ids->len);

    talk->most_tokens =
        args->new_tokens > 0 ? (guint)args->new_tokens : MIN(DEFAULT_NEW_TOKENS, MAX(room, 1));
    talk->options.sequences = 1;
    talk->options.tokens = talk->ids->len + talk->most_tokens;
    if (talk->most_tokens <= room)
        return TRUE;
    return rp_cli_refuse(error,
                         "--max-new-tokens: expected at most %u, which the model's %u positions "
                         "leave after a prompt of %u tokens, found %u",
                         room, config->max_positions, talk->ids->len, talk->most_tokens);
}

static gboolean
answer(Talk *talk, const RpGenerateArgs *args, const RpCliModel *model, GError **error)
{
    const RpSampling sampling = rp_generate_sampling(args);
    const gint64 begin_us = g_get_monotonic_time();
    g_autoptr(RpGenerator) generator = rp_generator_new(
        &model->config, model->weights, model->kernels, model->probe, &talk->options, error);

    if (generator == NULL)
        return FALSE;
    g_array_set_size(talk->answer, talk->most_tokens);
    RpAnswer one = {.prompt = (const gint32 *)(const void *)talk->ids->data,
                    .n_prompt = talk->ids->len,
                    .answer = (gint32 *)(void *)talk->answer->data};
    const gboolean good = rp_generator_answer(generator, &one, 1, talk->most_tokens, &sampling,
                                              show_token, talk, error);

    g_array_set_size(talk->answer, one.n_answer);
    talk->seconds = (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC;
    if (talk->prints) {
        fwrite(talk->text->str + talk->printed, 1, talk->text->len - talk->printed, stdout);
        fputc('\n', stdout);
    }
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

gboolean
rp_generate_text(const RpGenerateArgs *args, const char *word, const char *prompt, RpReport *report,
                 GError **error)
{
    g_auto(RpCliModel) model = {0};
    g_autoptr(RpTokenizer) tokenizer = NULL;
    g_auto(Talk) talk = {.prints = report->form != RP_REPORT_JSON,
                         .ids = g_array_new(FALSE, FALSE, sizeof(guint32)),
                         .answer = g_array_new(FALSE, FALSE, sizeof(gint32)),
                         .text = g_string_new(NULL)};

    if (!rp_cli_model_open(&model, word, args->adapter, args->devices, error) ||
        (tokenizer = rp_cli_model_tokenizer(&model, error)) == NULL ||
        !rp_cli_model_ends(&model, &talk.options, error))
        return FALSE;
    talk.tokenizer = tokenizer;
    if (!read_prompt(&talk, prompt, error) || !choose_length(&talk, args, &model.config, error) ||
        !answer(&talk, args, &model, error))
        return FALSE;
    report_ids(report, "prompt", talk.ids);
    report_ids(report, "answer", talk.answer);
    rp_report_text(report, "text", talk.text->str, NULL);
    rp_report_bool(report, "ended", talk.answer->len < talk.most_tokens, NULL);
    rp_report_real(report, "seconds", talk.seconds, 3, NULL);
    return TRUE;
}
