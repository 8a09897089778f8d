/* Flat token files: little-endian uint32, nothing else, cut into sequences of one length.
 *
 *   | t0 t1 … t(s-1) | t(s) … t(2s-1) | … | left over |
 *     sample 0         sample 1             of no sample
 */
#include "exec/data/dataset.h"

#include <string.h>

#include "exec/data/dataset-private.h"

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
new_from(RpDataBytes *bytes, guint vocabulary, guint sequence_tokens, GError **error)
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
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    return new_from(rp_data_bytes_new(name, bytes), vocabulary, sequence_tokens, error);
}

RpDataset *
rp_dataset_open_tokens(const char *path, guint vocabulary, guint sequence_tokens, GError **error)
{
    g_return_val_if_fail(path && sequence_tokens > 0, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    RpDataBytes *bytes = rp_data_bytes_open(path, error);
    return bytes != NULL ? new_from(bytes, vocabulary, sequence_tokens, error) : NULL;
}
