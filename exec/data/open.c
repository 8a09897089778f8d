/* Chooses the source that reads a file. */
#include "core/base/quote.h"
#include "exec/data/dataset-private.h"

RpDataset *
rp_dataset_open(const char *path, guint vocabulary, guint sequence_tokens, GError **error)
{
    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (g_str_has_suffix(path, ".jsonl"))
        return rp_dataset_open_jsonl(path, vocabulary, error);
    if (g_str_has_suffix(path, ".bin"))
        return rp_dataset_open_tokens(path, vocabulary, sequence_tokens, error);
    g_autofree char *name = rp_display_name(path);
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                "%s: expected a name that ends in .jsonl or .bin, found another", name);
    return NULL;
}
