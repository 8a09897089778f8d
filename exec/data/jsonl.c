/* JSON lines as Hugging Face datasets write them.
 *
 *   {"input_ids":[1,2,3],"attention_mask":[1,1,1],"labels":[-100,2,3]}\n
 *   ^offsets[0]                                                         ^offsets[1]
 *
 * The index is built once; a line is parsed each time it is read, which takes microseconds.
 */
#include "exec/data/dataset.h"

#include <string.h>

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
new_from(RpDataBytes *bytes, guint vocabulary, GError **error)
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

    return new_from(rp_data_bytes_new(name, text), vocabulary, error);
}

RpDataset *
rp_dataset_open_jsonl(const char *path, guint vocabulary, GError **error)
{
    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    RpDataBytes *bytes = rp_data_bytes_open(path, error);
    return bytes != NULL ? new_from(bytes, vocabulary, error) : NULL;
}
