/* JSON lines as Hugging Face datasets write them.
 *
 *   {"input_ids":[1,2,3],"attention_mask":[1,1,1],"labels":[-100,2,3]}\n
 *   ^offsets[0]                                                         ^offsets[1]
 *
 * The index is built once; a line is parsed each time it is read, which takes microseconds.
 */
#include "exec/data/dataset.h"

#include <string.h>

#include "core/base/quote.h"
#include "exec/data/dataset-private.h"

#define INDEX_PIECE_BYTES ((gsize)1 << 22)

typedef struct {
    RpDataBytes *bytes;
    const char *name;
    guint64 *offsets; /* n_lines + 1: where lines start; the last as if all ended in a newline */
    guint64 n_lines;
    RpIdsReader reader;
} Jsonl;

static gboolean
jsonl_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const Jsonl *jsonl = source;
    guint64 length = jsonl->offsets[index + 1] - jsonl->offsets[index] - 1;
    g_autofree guint8 *scratch = NULL;
    RpJsonPull pull;

    if (length > RP_JSONL_MAX_LINE_BYTES) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                    "%s: line %" G_GUINT64_FORMAT ", column 1: expected at most %" G_GSIZE_FORMAT
                    " bytes in a line, found %" G_GUINT64_FORMAT,
                    jsonl->name, index + 1, RP_JSONL_MAX_LINE_BYTES, length);
        return FALSE;
    }
    const char *text = (const char *)rp_data_bytes_get(jsonl->bytes, jsonl->offsets[index],
                                                       (gsize)length, &scratch, error);
    return text != NULL &&
           rp_json_pull_init_line(&pull, jsonl->name, index, text, (gsize)length, RP_DATASET_ERROR,
                                  RP_DATASET_ERROR_SAMPLE, error) &&
           rp_ids_read(&jsonl->reader, &pull, sample);
}

static char *
jsonl_locate(gconstpointer source, guint64 index)
{
    return g_strdup_printf("line %" G_GUINT64_FORMAT, index + 1);
}

static const RpDataBytes *
jsonl_bytes(gconstpointer source)
{
    return ((const Jsonl *)source)->bytes;
}

static void
jsonl_free(gpointer source)
{
    Jsonl *jsonl = source;

    g_free(jsonl->offsets);
    rp_ids_reader_clear(&jsonl->reader);
    rp_data_bytes_free(jsonl->bytes);
    g_free(jsonl);
}

static const RpDatasetOps jsonl_ops = {jsonl_read, jsonl_locate, jsonl_bytes, jsonl_free};

static void
add_offset(Jsonl *jsonl, gsize *capacity, guint64 offset)
{
    if (jsonl->n_lines + 1 == *capacity) {
        *capacity *= 2;
        jsonl->offsets = g_renew(guint64, jsonl->offsets, *capacity);
    }
    jsonl->offsets[++jsonl->n_lines] = offset;
}

/* Piece by piece: the file may be larger than memory. */
static gboolean
build_index(Jsonl *jsonl, GError **error)
{
    const guint64 length = rp_data_bytes_length(jsonl->bytes);
    gsize capacity = 1024;

    jsonl->offsets = g_new0(guint64, capacity);
    for (guint64 first = 0; first < length; first += INDEX_PIECE_BYTES) {
        g_autofree guint8 *scratch = NULL;
        gsize n = (gsize)MIN(INDEX_PIECE_BYTES, length - first);
        const guint8 *piece = rp_data_bytes_get(jsonl->bytes, first, n, &scratch, error);
        if (piece == NULL)
            return FALSE;
        const guint8 *at = piece;
        while ((at = memchr(at, '\n', n - (gsize)(at - piece))) != NULL)
            add_offset(jsonl, &capacity, first + (guint64)(++at - piece));
    }
    if (jsonl->offsets[jsonl->n_lines] < length) /* a last line without its newline */
        add_offset(jsonl, &capacity, length + 1);
    jsonl->offsets = g_renew(guint64, jsonl->offsets, jsonl->n_lines + 1);
    return TRUE;
}

/* @bytes: (transfer full) */
static RpDataset *
jsonl_from(RpDataBytes *bytes, guint vocabulary, GError **error)
{
    RpFingerprints fingerprints;
    Jsonl *jsonl = g_new0(Jsonl, 1);

    jsonl->bytes = bytes;
    jsonl->name = rp_data_bytes_name(bytes);
    rp_ids_reader_init(&jsonl->reader, vocabulary);
    if (rp_data_bytes_length(bytes) == 0) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                    "%s: expected at least one line, found an empty file", jsonl->name);
    } else if (build_index(jsonl, error) &&
               rp_dataset_fingerprints("jsonl/1", jsonl->n_lines, bytes, &fingerprints, error)) {
        return rp_dataset_new(&jsonl_ops, jsonl, jsonl->name, jsonl->n_lines, vocabulary,
                              &fingerprints);
    }
    jsonl_free(jsonl);
    return NULL;
}

RpDataset *
rp_dataset_new_jsonl(const char *name, GBytes *text, guint vocabulary, GError **error)
{
    g_return_val_if_fail(name && text, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    return jsonl_from(rp_data_bytes_new(name, text), vocabulary, error);
}

RpDataset *
rp_dataset_open_jsonl(const char *path, guint vocabulary, GError **error)
{
    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    RpDataBytes *bytes = rp_data_bytes_open(path, error);
    return bytes != NULL ? jsonl_from(bytes, vocabulary, error) : NULL;
}

/* Flat token files: little-endian uint32, nothing else, cut into sequences of one length.
 *
 *   | t0 t1 … t(s-1) | t(s) … t(2s-1) | … | left over |
 *     sample 0         sample 1             of no sample
 */

#define TOKEN_BYTES 4

typedef struct {
    RpDataBytes *bytes;
    const char *name;
    guint vocabulary;
    guint sequence_tokens;
} Tokens;

/* Reads a token at any address, on a machine of any byte order. */
static guint32
token_at(const guint8 *tokens, guint index)
{
    guint32 little;

    memcpy(&little, tokens + (gsize)index * TOKEN_BYTES, sizeof little);
    return GUINT32_FROM_LE(little);
}

static gboolean
tokens_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const Tokens *tokens = source;
    guint64 first = index * tokens->sequence_tokens;
    g_autofree guint8 *scratch = NULL;
    const guint8 *sequence =
        rp_data_bytes_get(tokens->bytes, first * TOKEN_BYTES,
                          (gsize)tokens->sequence_tokens * TOKEN_BYTES, &scratch, error);

    if (sequence == NULL)
        return FALSE;
    for (guint i = 0; i < tokens->sequence_tokens; i++) {
        guint32 id = token_at(sequence, i);
        if (id >= tokens->vocabulary) {
            g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                        "%s: token %" G_GUINT64_FORMAT " at byte %" G_GUINT64_FORMAT
                        ": expected an id from 0 to %u, found %u",
                        tokens->name, first + i, (first + i) * TOKEN_BYTES, tokens->vocabulary - 1,
                        id);
            return FALSE;
        }
        if (i < sample->capacity) {
            sample->input_ids[i] = (gint32)id;
            sample->labels[i] = (gint32)id;
        }
    }
    sample->n_tokens = tokens->sequence_tokens;
    return TRUE;
}

static char *
tokens_locate(gconstpointer source, guint64 index)
{
    const Tokens *tokens = source;
    guint64 first = index * tokens->sequence_tokens;

    return g_strdup_printf("tokens %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT, first,
                           first + tokens->sequence_tokens - 1);
}

static const RpDataBytes *
tokens_bytes(gconstpointer source)
{
    return ((const Tokens *)source)->bytes;
}

static void
tokens_free(gpointer source)
{
    Tokens *tokens = source;

    rp_data_bytes_free(tokens->bytes);
    g_free(tokens);
}

static const RpDatasetOps tokens_ops = {tokens_read, tokens_locate, tokens_bytes, tokens_free};

static gboolean
check_length(const RpDataBytes *bytes, guint sequence_tokens, GError **error)
{
    const guint64 length = rp_data_bytes_length(bytes);

    if (length % TOKEN_BYTES != 0) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                    "%s: expected a length that is a multiple of 4 bytes, found %" G_GUINT64_FORMAT
                    " bytes",
                    rp_data_bytes_name(bytes), length);
        return FALSE;
    }
    if (length / TOKEN_BYTES < sequence_tokens) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                    "%s: expected at least one sequence of %u tokens, found %" G_GUINT64_FORMAT
                    " tokens",
                    rp_data_bytes_name(bytes), sequence_tokens, length / TOKEN_BYTES);
        return FALSE;
    }
    return TRUE;
}

/* @bytes: (transfer full) */
static RpDataset *
tokens_bin_from(RpDataBytes *bytes, guint vocabulary, guint sequence_tokens, GError **error)
{
    RpFingerprints fingerprints;

    if (!check_length(bytes, sequence_tokens, error) ||
        !rp_dataset_fingerprints("tokens/1", sequence_tokens, bytes, &fingerprints, error)) {
        rp_data_bytes_free(bytes);
        return NULL;
    }
    Tokens *tokens = g_new0(Tokens, 1);
    tokens->bytes = bytes;
    tokens->name = rp_data_bytes_name(bytes);
    tokens->vocabulary = vocabulary;
    tokens->sequence_tokens = sequence_tokens;
    return rp_dataset_new(&tokens_ops, tokens, tokens->name,
                          rp_data_bytes_length(bytes) / TOKEN_BYTES / sequence_tokens, vocabulary,
                          &fingerprints);
}

RpDataset *
rp_dataset_new_tokens(const char *name, GBytes *bytes, guint vocabulary, guint sequence_tokens,
                      GError **error)
{
    g_return_val_if_fail(name && bytes && sequence_tokens > 0, NULL);
    g_return_val_if_fail(vocabulary > 0, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    return tokens_bin_from(rp_data_bytes_new(name, bytes), vocabulary, sequence_tokens, error);
}

RpDataset *
rp_dataset_open_tokens(const char *path, guint vocabulary, guint sequence_tokens, GError **error)
{
    g_return_val_if_fail(path && sequence_tokens > 0, NULL);
    g_return_val_if_fail(vocabulary > 0, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    RpDataBytes *bytes = rp_data_bytes_open(path, error);
    return bytes != NULL ? tokens_bin_from(bytes, vocabulary, sequence_tokens, error) : NULL;
}

/* Chooses the source that reads a file. */

RpDataset *
rp_dataset_open(const char *path, guint vocabulary, guint sequence_tokens, GError **error)
{
    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (g_str_has_suffix(path, ".jsonl"))
        return rp_dataset_open_jsonl(path, MIN(vocabulary, RP_DATASET_MAX_VOCABULARY), error);
    if (g_str_has_suffix(path, ".bin"))
        return rp_dataset_open_tokens(path, vocabulary, sequence_tokens, error);
    g_autofree char *name = rp_display_name(path);
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                "%s: expected a name that ends in .jsonl or .bin, found another", name);
    return NULL;
}
