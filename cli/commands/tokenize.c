/* roundpipe tokenize: the ids of a text. */
#include "cli/cli.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "text/tokenizer/tokenizer.h"

#define STANDARD_INPUT "/dev/stdin"

typedef struct {
    gboolean lines;
    gboolean text;
    gboolean count;
    gboolean no_special;
    gboolean no_template;
} TokenizeArgs;

/* The ids of a file, or of one line of it. */
typedef struct {
    const char *text; /* of the first byte */
    GArray *ids;
    GArray *spans;
} Part;

typedef struct {
    const TokenizeArgs *args;
    RpTokenizer *tokenizer;
    char *text;
    GArray *parts;
    guint64 n_tokens;
} Tokens;

static void
part_clear(gpointer data)
{
    Part *part = data;

    g_array_unref(part->ids);
    g_array_unref(part->spans);
}

static void
tokens_clear(Tokens *tokens)
{
    g_clear_pointer(&tokens->tokenizer, rp_tokenizer_free);
    g_clear_pointer(&tokens->parts, g_array_unref);
    g_clear_pointer(&tokens->text, g_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Tokens, tokens_clear)

static gboolean
encode_part(Tokens *tokens, const char *name, gsize start, gsize length, GError **error)
{
    const TokenizeArgs *args = tokens->args;
    const Part part = {tokens->text + start, g_array_new(FALSE, FALSE, sizeof(guint32)),
                       g_array_new(FALSE, FALSE, sizeof(RpTokenSpan))};
    const RpEncodeFlags flags =
        (args->no_template ? 0 : RP_ENCODE_TEMPLATE) | (args->no_special ? RP_ENCODE_PLAIN : 0);

    g_array_append_val(tokens->parts, part);
    if (!rp_tokenizer_encode(tokens->tokenizer, part.text, length, flags, part.ids,
                             args->text ? part.spans : NULL, error)) {
        if (args->lines)
            g_prefix_error(error, "%s: line %u: ", name, tokens->parts->len);
        else
            g_prefix_error(error, "%s: ", name);
        return FALSE;
    }
    tokens->n_tokens += part.ids->len;
    return TRUE;
}

static gboolean
encode(Tokens *tokens, const char *path, GError **error)
{
    const gboolean piped = path == NULL || strcmp(path, "-") == 0;
    const char *name = piped ? "standard input" : path;
    gsize length = 0;

    tokens->text =
        rp_file_read(piped ? STANDARD_INPUT : path, RP_TOKENIZER_MAX_TEXT, &length, error);
    if (tokens->text == NULL)
        return FALSE;
    if (!tokens->args->lines)
        return encode_part(tokens, name, 0, length, error);
    for (gsize start = 0; start < length;) {
        const char *end = memchr(tokens->text + start, '\n', length - start);
        const gsize n = end != NULL ? (gsize)(end - tokens->text) - start : length - start;

        if (!encode_part(tokens, name, start, n, error))
            return FALSE;
        start += n + 1;
    }
    return TRUE;
}

static void
append_pieces(GString *out, const Tokens *tokens, const Part *part)
{
    for (guint i = 0; i < part->ids->len; i++) {
        const guint32 id = g_array_index(part->ids, guint32, i);
        const RpTokenSpan *span = &g_array_index(part->spans, RpTokenSpan, i);
        g_autofree char *token = rp_display_name(rp_tokenizer_token(tokens->tokenizer, id));

        g_string_append_printf(out, "%8u  %8u %8u  %s\n", id, span->start, span->end, token);
    }
}

static gboolean
write_ids(GOutputStream *stream, gpointer data, GError **error)
{
    const Tokens *tokens = data;
    g_autoptr(GString) out = g_string_new(NULL);

    for (guint p = 0; p < tokens->parts->len; p++) {
        const Part *part = &g_array_index(tokens->parts, Part, p);

        if (tokens->args->text) {
            append_pieces(out, tokens, part);
            continue;
        }
        for (guint i = 0; i < part->ids->len; i++)
            g_string_append_printf(out, "%s%u", i > 0 ? " " : "",
                                   g_array_index(part->ids, guint32, i));
        g_string_append_c(out, '\n');
    }
    return g_output_stream_write_all(stream, out->str, out->len, NULL, NULL, error);
}

static void
report_parts(RpReport *report, const Tokens *tokens)
{
    const TokenizeArgs *args = tokens->args;

    rp_report_count(report, "vocabulary", rp_tokenizer_size(tokens->tokenizer), NULL);
    rp_report_count(report, "tokens", (gint64)tokens->n_tokens, NULL);
    if (args->count)
        rp_report_say(report, "%" G_GUINT64_FORMAT, tokens->n_tokens);
    rp_report_list(report, "texts");
    for (guint p = 0; p < tokens->parts->len && !args->count; p++) {
        const Part *part = &g_array_index(tokens->parts, Part, p);

        rp_report_object(report, NULL, NULL);
        rp_report_list(report, "ids");
        for (guint i = 0; i < part->ids->len; i++)
            rp_report_count(report, NULL, g_array_index(part->ids, guint32, i), NULL);
        rp_report_end(report);
        if (args->text) {
            rp_report_list(report, "tokens");
            for (guint i = 0; i < part->ids->len; i++) {
                const guint32 id = g_array_index(part->ids, guint32, i);

                rp_report_text(report, NULL, rp_tokenizer_token(tokens->tokenizer, id), NULL);
            }
            rp_report_end(report);
            rp_report_list(report, "starts");
            for (guint i = 0; i < part->spans->len; i++)
                rp_report_count(report, NULL, g_array_index(part->spans, RpTokenSpan, i).start,
                                NULL);
            rp_report_end(report);
        }
        rp_report_end(report);
    }
    rp_report_end(report);
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const TokenizeArgs *args = user_args;
    g_auto(Tokens) tokens = {.args = args, .parts = g_array_new(FALSE, TRUE, sizeof(Part))};

    g_array_set_clear_func(tokens.parts, part_clear);
    if (args->text && args->count)
        return rp_cli_refuse(error, "expected --text or --count, found both");
    tokens.tokenizer = rp_tokenizer_open(words[0], error);
    if (tokens.tokenizer == NULL || !encode(&tokens, words[1], error))
        return FALSE;
    if (report->form != RP_REPORT_JSON && !args->count)
        return rp_cli_write_file("-", write_ids, &tokens, error);
    report_parts(report, &tokens);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"lines", 0, RP_FLAG(TokenizeArgs, lines), "each line is a text of its own, without its end",
     NULL},
    {"text", 0, RP_FLAG(TokenizeArgs, text),
     "a line each token: id, first byte, byte behind it, as the file writes it", NULL},
    {"count", 0, RP_FLAG(TokenizeArgs, count), "only how many tokens there are", NULL},
    {"no-special", 0, RP_FLAG(TokenizeArgs, no_special),
     "words of special tokens are text like any other", NULL},
    {"no-template", 0, RP_FLAG(TokenizeArgs, no_template),
     "without the tokens that the file puts around a text, such as bos", NULL},
    {0},
};

const RpCommand rp_command_tokenize = {
    .name = "tokenize",
    .summary = "turn a text into token ids",
    .words = "TOKENIZER [FILE]",
    .help = "Prints the ids of a text, from a file or standard input, as tokenizer.json of a\n"
            "model says. TOKENIZER is that file, or the model's directory.\n\n"
            "Example:\n  echo -n 'Hello world' | roundpipe tokenize models/qwen3-1.7b",
    .options = options,
    .args_size = sizeof(TokenizeArgs),
    .run = run,
};
