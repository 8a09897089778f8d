/* roundpipe detokenize: the text of ids. */
#include "cli/cli.h"

#include <string.h>

#include "core/base/file.h"
#include "text/tokenizer/tokenizer.h"

#define STANDARD_INPUT "/dev/stdin"
#define MAX_FILE_BYTES G_MAXINT32

typedef struct {
    gboolean lines;
    gboolean no_special;
} DetokenizeArgs;

typedef struct {
    const DetokenizeArgs *args;
    RpTokenizer *tokenizer;
    GArray *ids;
    GPtrArray *texts; /* GString */
    guint64 n_tokens;
    const char *name; /* of what is read */
} Texts;

static void
free_string(gpointer data)
{
    g_string_free(data, TRUE);
}

static void
texts_clear(Texts *texts)
{
    g_clear_pointer(&texts->tokenizer, rp_tokenizer_free);
    g_array_unref(texts->ids);
    g_ptr_array_unref(texts->texts);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Texts, texts_clear)

/* Numbers with space, commas or brackets between. @line: counted from 1 */
static gboolean
read_ids(Texts *texts, const char *text, gsize length, guint64 *line, GError **error)
{
    const char *line_start = text;

    g_array_set_size(texts->ids, 0);
    for (const char *p = text; p < text + length;) {
        guint64 id = 0;
        const char *start = p;

        if (*p == '\n') {
            ++*line;
            line_start = p + 1;
        }
        if (*p != '\0' && strchr(" \t\r\n,[]", *p) != NULL) {
            p++;
            continue;
        }
        for (; p < text + length && g_ascii_isdigit(*p) && id <= G_MAXUINT32; p++)
            id = 10 * id + (guint64)(*p - '0');
        const guint32 narrow = (guint32)id;

        if (p == start || id > G_MAXUINT32 ||
            rp_tokenizer_token(texts->tokenizer, narrow) == NULL) {
            g_set_error(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_ID,
                        "%s: line %" G_GUINT64_FORMAT ", column %" G_GSIZE_FORMAT
                        ": expected the id of a token, at most %u, found %.*s",
                        texts->name, *line, (gsize)(start - line_start) + 1,
                        rp_tokenizer_size(texts->tokenizer) - 1, p == start ? 9 : (int)(p - start),
                        p == start ? "no number" : start);
            return FALSE;
        }
        g_array_append_val(texts->ids, narrow);
    }
    texts->n_tokens += texts->ids->len;
    return TRUE;
}

static gboolean
decode_part(Texts *texts, const char *text, gsize length, guint64 *line, GError **error)
{
    GString *out = g_string_new(NULL);

    g_ptr_array_add(texts->texts, out);
    return read_ids(texts, text, length, line, error) &&
           rp_tokenizer_decode(
               texts->tokenizer, (const guint32 *)(const void *)texts->ids->data, texts->ids->len,
               texts->args->no_special ? RP_DECODE_SKIP_SPECIAL : RP_DECODE_ALL, out, error);
}

static gboolean
decode(Texts *texts, const char *path, GError **error)
{
    const gboolean piped = path == NULL || strcmp(path, "-") == 0;
    guint64 line = 1;
    gsize length = 0;

    texts->name = piped ? "standard input" : path;
    g_autofree char *text =
        rp_file_read(piped ? STANDARD_INPUT : path, MAX_FILE_BYTES, &length, error);

    if (text == NULL)
        return FALSE;
    if (!texts->args->lines)
        return decode_part(texts, text, length, &line, error);
    for (gsize start = 0; start < length; line++) {
        const char *end = memchr(text + start, '\n', length - start);
        const gsize n = end != NULL ? (gsize)(end - text) - start : length - start;

        if (!decode_part(texts, text + start, n, &line, error))
            return FALSE;
        start += n + 1;
    }
    return TRUE;
}

static gboolean
write_texts(GOutputStream *stream, gpointer data, GError **error)
{
    const Texts *texts = data;

    for (guint i = 0; i < texts->texts->len; i++) {
        GString *text = g_ptr_array_index(texts->texts, i);

        if (texts->args->lines)
            g_string_append_c(text, '\n');
        if (!g_output_stream_write_all(stream, text->str, text->len, NULL, NULL, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    g_auto(Texts) texts = {.args = user_args,
                           .ids = g_array_new(FALSE, FALSE, sizeof(guint32)),
                           .texts = g_ptr_array_new_with_free_func(free_string)};

    texts.tokenizer = rp_tokenizer_open(words[0], error);
    if (texts.tokenizer == NULL || !decode(&texts, words[1], error))
        return FALSE;
    if (report->form != RP_REPORT_JSON)
        return rp_cli_write_file("-", write_texts, &texts, error);
    rp_report_count(report, "tokens", (gint64)texts.n_tokens, NULL);
    rp_report_list(report, "texts");
    for (guint i = 0; i < texts.texts->len; i++)
        rp_report_whole_text(report, NULL, g_ptr_array_index(texts.texts, i), NULL);
    rp_report_end(report);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"lines", 0, RP_FLAG(DetokenizeArgs, lines), "each line of ids is a text, and a line", NULL},
    {"no-special", 0, RP_FLAG(DetokenizeArgs, no_special), "leave special tokens out", NULL},
    {0},
};

const RpCommand rp_command_detokenize = {
    .name = "detokenize",
    .summary = "turn token ids into a text",
    .words = "TOKENIZER [FILE]",
    .help = "Prints the text of ids, from a file or standard input: numbers with space, commas or\n"
            "brackets between. TOKENIZER is tokenizer.json, or the model's directory. Bytes that\n"
            "are not UTF-8 print as U+FFFD.\n\n"
            "Example:\n  echo 9707 1879 | roundpipe detokenize models/qwen3-1.7b",
    .options = options,
    .args_size = sizeof(DetokenizeArgs),
    .run = run,
};
