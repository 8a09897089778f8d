/* roundpipe tokenize: the ids of a text, and the text of ids. */
#include "cli/cli.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "text/tokenizer/tokenizer.h"

#define STANDARD_INPUT "/dev/stdin"
#define MAX_FILE_BYTES G_MAXINT32

/* The ids of a file, or of one line of it. */
typedef struct {
    const char *text; /* of the first byte */
    GArray *ids;
    GArray *spans;
} Part;

/* A file, as it is read: ids of its text, or texts of its ids. */
typedef struct {
    const RpArgs *args;
    RpTokenizer *tokenizer;
    const char *name; /* the file, for messages */
    char *text;       /* all of it */
    guint64 line;     /* that is read */
    GArray *parts;    /* Part */
    GArray *ids;      /* of a text that is made */
    GPtrArray *texts; /* GString */
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
free_string(gpointer data)
{
    g_string_free(data, TRUE);
}

static void
tokens_clear(Tokens *tokens)
{
    g_clear_pointer(&tokens->tokenizer, rp_tokenizer_free);
    g_array_unref(tokens->parts);
    g_array_unref(tokens->ids);
    g_ptr_array_unref(tokens->texts);
    g_free(tokens->text);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Tokens, tokens_clear)

/* Takes a part of the text. */
typedef gboolean (*Take)(Tokens *tokens, const char *text, gsize length, GError **error);

/* All of a file, or each line of it without its end. */
static gboolean
read_parts(Tokens *tokens, const char *path, gsize most, Take take, GError **error)
{
    const gboolean piped = path == NULL || strcmp(path, "-") == 0;
    gsize length = 0;

    tokens->name = piped ? "standard input" : path;
    tokens->line = 1;
    tokens->text = rp_file_read(piped ? STANDARD_INPUT : path, most, &length, error);
    if (tokens->text == NULL)
        return FALSE;
    if (!tokens->args->lines)
        return take(tokens, tokens->text, length, error);
    for (gsize start = 0; start < length; tokens->line++) {
        const char *end = memchr(tokens->text + start, '\n', length - start);
        const gsize n = end != NULL ? (gsize)(end - tokens->text) - start : length - start;

        if (!take(tokens, tokens->text + start, n, error))
            return FALSE;
        start += n + 1;
    }
    return TRUE;
}

static gboolean
encode_part(Tokens *tokens, const char *text, gsize length, GError **error)
{
    const RpArgs *args = tokens->args;
    const Part part = {text, g_array_new(FALSE, FALSE, sizeof(guint32)),
                       g_array_new(FALSE, FALSE, sizeof(RpTokenSpan))};
    const RpEncodeFlags flags =
        (args->no_template ? 0 : RP_ENCODE_TEMPLATE) | (args->no_special ? RP_ENCODE_PLAIN : 0);

    g_array_append_val(tokens->parts, part);
    if (!rp_tokenizer_encode(tokens->tokenizer, part.text, length, flags, part.ids,
                             args->text ? part.spans : NULL, error)) {
        if (args->lines)
            g_prefix_error(error, "%s: line %u: ", tokens->name, tokens->parts->len);
        else
            g_prefix_error(error, "%s: ", tokens->name);
        return FALSE;
    }
    tokens->n_tokens += part.ids->len;
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
write_ids(const Tokens *tokens, GError **error)
{
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
    return rp_cli_write_text("-", out->str, error);
}

static void
report_parts(RpReport *report, const Tokens *tokens)
{
    const RpArgs *args = tokens->args;

    rp_report_count(report, "vocabulary", rp_tokenizer_size(tokens->tokenizer), NULL);
    rp_report_count(report, "tokens", (gint64)tokens->n_tokens, NULL);
    if (args->count)
        rp_report_say(report, "%" G_GUINT64_FORMAT, tokens->n_tokens);
    rp_report_list(report, "texts");
    for (guint p = 0; p < tokens->parts->len && !args->count; p++) {
        const Part *part = &g_array_index(tokens->parts, Part, p);

        rp_report_object(report, NULL, NULL);
        rp_report_counts(report, "ids", (const gint32 *)(void *)part->ids->data, part->ids->len);
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

/* Reads numbers that spaces, commas or brackets separate. */
static gboolean
read_ids(Tokens *tokens, const char *text, gsize length, GError **error)
{
    const char *line_start = text;

    g_array_set_size(tokens->ids, 0);
    for (const char *p = text; p < text + length;) {
        guint64 id = 0;
        const char *start = p;

        if (*p == '\n') {
            tokens->line++;
            line_start = p + 1;
        }
        if (*p != '\0' && strchr(" \t\r\n,[]", *p) != NULL) {
            p++;
            continue;
        }
        for (; p < text + length && g_ascii_isdigit(*p) && id <= G_MAXUINT32; p++)
            id = 10 * id + (guint64)(*p - '0');
        const guint32 narrow = (guint32)id;

        if (p == start || id > G_MAXUINT32 || rp_tokenizer_token(tokens->tokenizer, narrow) == NULL)
            return rp_fail(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_ID,
                           "%s: line %" G_GUINT64_FORMAT ", column %" G_GSIZE_FORMAT
                           ": expected the id of a token, at most %u, found %.*s",
                           tokens->name, tokens->line, (gsize)(start - line_start) + 1,
                           rp_tokenizer_size(tokens->tokenizer) - 1,
                           p == start ? 9 : (int)(p - start), p == start ? "no number" : start);
        g_array_append_val(tokens->ids, narrow);
    }
    tokens->n_tokens += tokens->ids->len;
    return TRUE;
}

static gboolean
decode_part(Tokens *tokens, const char *text, gsize length, GError **error)
{
    GString *out = g_string_new(NULL);

    g_ptr_array_add(tokens->texts, out);
    return read_ids(tokens, text, length, error) &&
           rp_tokenizer_decode(tokens->tokenizer, (const guint32 *)(const void *)tokens->ids->data,
                               tokens->ids->len,
                               tokens->args->no_special ? RP_DECODE_SKIP_SPECIAL : RP_DECODE_ALL,
                               out, error);
}

static gboolean
write_texts(GOutputStream *stream, gpointer data, GError **error)
{
    const Tokens *tokens = data;

    for (guint i = 0; i < tokens->texts->len; i++) {
        GString *text = g_ptr_array_index(tokens->texts, i);

        if (tokens->args->lines)
            g_string_append_c(text, '\n');
        if (!g_output_stream_write_all(stream, text->str, text->len, NULL, NULL, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
decode(Tokens *tokens, const char *path, RpReport *report, GError **error)
{
    if (!read_parts(tokens, path, MAX_FILE_BYTES, decode_part, error))
        return FALSE;
    if (report->form != RP_REPORT_JSON)
        return rp_cli_write_file("-", write_texts, tokens, error);
    rp_report_count(report, "tokens", (gint64)tokens->n_tokens, NULL);
    rp_report_list(report, "texts");
    for (guint i = 0; i < tokens->texts->len; i++)
        rp_report_whole_text(report, NULL, g_ptr_array_index(tokens->texts, i), NULL);
    rp_report_end(report);
    return TRUE;
}

static gboolean
encode(Tokens *tokens, const char *path, RpReport *report, GError **error)
{
    if (!read_parts(tokens, path, RP_TOKENIZER_MAX_TEXT, encode_part, error))
        return FALSE;
    if (report->form != RP_REPORT_JSON && !tokens->args->count)
        return write_ids(tokens, error);
    report_parts(report, tokens);
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    g_auto(Tokens) tokens = {.args = args,
                             .parts = g_array_new(FALSE, TRUE, sizeof(Part)),
                             .ids = g_array_new(FALSE, FALSE, sizeof(guint32)),
                             .texts = g_ptr_array_new_with_free_func(free_string)};

    g_array_set_clear_func(tokens.parts, part_clear);
    if (args->decode && (args->text || args->count || args->no_template))
        return rp_cli_refuse(error, "--decode: expected neither --text, --count nor --no-template");
    if (args->text && args->count)
        return rp_cli_refuse(error, "expected --text or --count, found both");
    g_autofree char *path = rp_model_path(words[0]);

    tokens.tokenizer = rp_tokenizer_open(path, error);
    if (tokens.tokenizer == NULL)
        return FALSE;
    return args->decode ? decode(&tokens, words[1], report, error)
                        : encode(&tokens, words[1], report, error);
}

static const RpUse uses[] = {
    {"decode lines text count no-special no-template"},
    {0},
};

const RpCommand rp_command_tokenize = {
    .name = "tokenize",
    .summary = "turn a text into token ids, and back",
    .words = "TOKENIZER [FILE]",
    .help =
        "Prints the ids of a text, from a file or standard input, as tokenizer.json of a\n"
        "model says. TOKENIZER is that file, or the model's directory.\n"
        "With --decode, prints the text of ids: numbers that spaces, commas or brackets separate.\n"
        "Bytes that are not UTF-8 print as U+FFFD.\n\n"
        "Examples:\n  echo -n 'Hello world' | roundpipe tokenize models/qwen3-1.7b\n"
        "  echo 9707 1879 | roundpipe tokenize --decode models/qwen3-1.7b",
    .uses = uses,
    .run = run,
};
