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
    char *name;
    GBytes *bytes;
    const guint8 *tokens;
    guint vocabulary;
    guint sequence_tokens;
} Tokens;

/* At any address, on a machine of any byte order. */
static guint32
token_at(const Tokens *tokens, guint64 index)
{
    guint32 little;

    memcpy(&little, tokens->tokens + index * TOKEN_BYTES, sizeof little);
    return GUINT32_FROM_LE(little);
}

static gboolean
tokens_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const Tokens *tokens = source;
    guint64 first = index * tokens->sequence_tokens;

    for (guint i = 0; i < tokens->sequence_tokens; i++) {
        guint32 id = token_at(tokens, first + i);
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

static void
tokens_free(gpointer source)
{
    Tokens *tokens = source;

    g_free(tokens->name);
    g_bytes_unref(tokens->bytes);
    g_free(tokens);
}

static const RpDatasetOps tokens_ops = {tokens_read, tokens_locate, tokens_free};

RpDataset *
rp_dataset_new_tokens(const char *name, GBytes *bytes, guint vocabulary, guint sequence_tokens,
                      GError **error)
{
    gsize length;

    g_return_val_if_fail(name && bytes && sequence_tokens > 0, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    const guint8 *start = g_bytes_get_data(bytes, &length);
    guint64 n_tokens = length / TOKEN_BYTES;
    if (length % TOKEN_BYTES != 0) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                    "%s: expected a length that is a multiple of 4 bytes, found %" G_GSIZE_FORMAT
                    " bytes",
                    name, length);
        return NULL;
    }
    if (n_tokens < sequence_tokens) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                    "%s: expected at least one sequence of %u tokens, found %" G_GUINT64_FORMAT
                    " tokens",
                    name, sequence_tokens, n_tokens);
        return NULL;
    }
    Tokens *tokens = g_new0(Tokens, 1);
    tokens->name = g_strdup(name);
    tokens->bytes = g_bytes_ref(bytes);
    tokens->tokens = start;
    tokens->vocabulary = vocabulary;
    tokens->sequence_tokens = sequence_tokens;
    return rp_dataset_new(&tokens_ops, tokens, name, n_tokens / sequence_tokens, vocabulary,
                          rp_dataset_hash("tokens/1", sequence_tokens, start, length));
}

RpDataset *
rp_dataset_open_tokens(const char *path, guint vocabulary, guint sequence_tokens, GError **error)
{
    g_autofree char *name = NULL;
    g_autoptr(GBytes) bytes = NULL;

    g_return_val_if_fail(path && sequence_tokens > 0, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    bytes = rp_dataset_map(path, &name, error);
    return bytes ? rp_dataset_new_tokens(name, bytes, vocabulary, sequence_tokens, error) : NULL;
}
