/* Packs and checks by all threads of a pool. The first fault in order is reported, whichever thread
 * finds one first. */
#include <math.h>
#include <stdatomic.h>

#include "core/base/quote.h"
#include "exec/lowbit/lowbit-file.h"

G_DEFINE_QUARK(rp_lowbit_error, rp_lowbit_error)

#define GRANULE_STRIPS 64
#define GRANULE_ELEMENTS ((gsize)1 << 16)

typedef struct {
    RpLowbit format;
    RpLowbitShape shape;
    RpDtype dtype;
    const void *source; /* NULL: look at @packed */
    void *packed;
    float *scales;
    atomic_size_t broken; /* the first so far */
} Work;

static void
note(Work *work, gsize broken)
{
    gsize first = atomic_load(&work->broken);

    while (broken < first && !atomic_compare_exchange_weak(&work->broken, &first, broken))
        ;
}

static void
pack_some(gsize first, gsize n, gpointer data)
{
    Work *work = data;

    note(work, rp_lowbit_pack(work->format, work->shape, work->dtype, work->source, first, n,
                              work->packed, work->scales));
}

static void
look_at_some(gsize first, gsize n, gpointer data)
{
    Work *work = data;

    note(work,
         rp_lowbit_find_broken(work->format, work->shape, work->packed, work->dtype, first, n));
}

RpLowbitShape
rp_lowbit_shape_of(const guint64 *shape, guint rank)
{
    RpLowbitShape result = {1, 1, 1};

    for (guint i = 0; i < rank; i++)
        if (i + 1 == rank)
            result.columns = shape[i];
        else if (i + 2 == rank)
            result.rows = shape[i];
        else
            result.matrices *= shape[i];
    return result;
}

/* "3, 17" */
static char *
place_of(gsize index, const guint64 *shape, guint rank)
{
    g_autoptr(GString) text = g_string_new(NULL);
    gsize left = index;

    for (guint i = rank; i-- > 0; left /= shape[i]) {
        g_autofree char *one =
            g_strdup_printf("%" G_GSIZE_FORMAT "%s", left % shape[i], i + 1 < rank ? ", " : "");
        g_string_prepend(text, one);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static gboolean
fail(const char *file, const char *name, RpDtype dtype, gsize index, const guint64 *shape,
     guint rank, GError **error)
{
    g_autofree char *quoted = rp_quote(name);
    g_autofree char *place = place_of(index, shape, rank);

    return rp_fail_in(
        error, file, RP_LOWBIT_ERROR, RP_LOWBIT_ERROR_VALUE,
        "tensor %s: expected finite values in %s, found one that is infinite or NaN at [%s]",
        quoted, rp_dtype_name(dtype), place);
}

gboolean
rp_lowbit_source_check(const RpLowbitSource *source, const void *packed, RpDtype dtype,
                       RpPool *pool, GError **error)
{
    g_return_val_if_fail(source && source->is_packed && packed, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    Work work = {source->format, rp_lowbit_shape_of(source->shape, source->rank), dtype,
                 .packed = (gpointer)(guintptr)packed};
    atomic_init(&work.broken, RP_LOWBIT_NONE);
    rp_pool_run(pool, 0, rp_lowbit_elements(work.shape), GRANULE_ELEMENTS, look_at_some, &work);
    const gsize broken = atomic_load(&work.broken);
    return broken == RP_LOWBIT_NONE || fail(source->tensor->file, source->tensor->name, dtype,
                                            broken, source->shape, source->rank, error);
}

/* The sum of large scales may be beyond fp32's range. */
static gboolean
check_offset(RpLowbit format, const RpSafetensor *tensor, const void *packed, GError **error)
{
    const RpLowbitLayout layout =
        rp_lowbit_layout(format, rp_lowbit_shape_of(tensor->shape, tensor->rank));
    float offset = 0;

    if (layout.bytes[RP_LOWBIT_OFFSET] > 0)
        memcpy(&offset, (const guint8 *)packed + layout.at[RP_LOWBIT_OFFSET], sizeof offset);
    if (isfinite(offset))
        return TRUE;
    g_autofree char *quoted = rp_quote(tensor->name);
    return rp_fail_in(
        error, tensor->file, RP_LOWBIT_ERROR, RP_LOWBIT_ERROR_VALUE,
        "tensor %s: expected values that %s can hold, found ones whose scales have an "
        "infinite sum",
        quoted, rp_lowbit_name(format));
}

gboolean
rp_lowbit_pack_tensor(RpLowbit format, const RpSafetensor *tensor, void *packed, RpPool *pool,
                      GError **error)
{
    g_return_val_if_fail(tensor && tensor->supported && tensor->elements > 0 && packed, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    const RpLowbitShape shape = rp_lowbit_shape_of(tensor->shape, tensor->rank);
    g_autofree float *scales = g_new(float, rp_lowbit_pack_scales(format, shape));
    Work work = {format, shape, tensor->dtype, tensor->data, packed, scales};

    memset(packed, 0, rp_lowbit_layout(format, shape).total); /* gaps are zeros */
    atomic_init(&work.broken, RP_LOWBIT_NONE);
    rp_pool_run(pool, 0, rp_lowbit_strips(format, shape), GRANULE_STRIPS, pack_some, &work);
    const gsize broken = atomic_load(&work.broken);
    if (broken != RP_LOWBIT_NONE)
        return fail(tensor->file, tensor->name, tensor->dtype, broken, tensor->shape, tensor->rank,
                    error);
    rp_lowbit_pack_end(format, shape, scales, packed);
    return check_offset(format, tensor, packed, error);
}
