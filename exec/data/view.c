/* Some samples of a dataset, in an order of their own, each once or several times. */
#include "exec/data/dataset-private.h"

#include "core/base/hash.h"

typedef struct {
    RpDataset *base;
    guint64 *indices;
} View;

static gboolean
view_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const View *view = source;

    return rp_dataset_read(view->base, view->indices[index], sample, error);
}

static char *
view_locate(gconstpointer source, guint64 index)
{
    const View *view = source;

    return rp_dataset_locate(view->base, view->indices[index]);
}

static const RpDataBytes *
view_bytes(gconstpointer source)
{
    return rp_dataset_bytes(((const View *)source)->base);
}

static void
view_free(gpointer source)
{
    View *view = source;

    rp_dataset_free(view->base);
    g_free(view->indices);
    g_free(view);
}

/* Where all have been read once. */
static guint64
view_length(gconstpointer source, guint64 index)
{
    const View *view = source;

    return rp_dataset_known_length(view->base, view->indices[index]);
}

RpDataset *
rp_dataset_new_view(RpDataset *base, const guint64 *indices, guint64 n)
{
    static const RpDatasetOps ops = {view_read, view_locate, view_bytes, view_free, NULL, NULL};
    static const RpDatasetOps known = {view_read, view_locate, view_bytes,
                                       view_free, view_length, NULL};

    g_return_val_if_fail(base != NULL && indices != NULL && n > 0, NULL);

    View *view = g_new0(View, 1);
    const RpFingerprints before = rp_dataset_fingerprint(base);
    const RpFingerprints prints = {rp_hash64(indices, n * sizeof *indices, before.all),
                                   rp_hash64(indices, n * sizeof *indices, before.sampled)};

    view->base = rp_dataset_ref(base);
    view->indices = g_memdup2(indices, n * sizeof *indices);
    return rp_dataset_new(rp_dataset_known_length(base, 0) > 0 ? &known : &ops, view,
                          rp_dataset_name(base), n, rp_dataset_vocabulary(base), &prints);
}
