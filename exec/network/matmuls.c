/*
 * Lists the shapes of matmuls in a network's calls, which are few, each with its kernel variant: the one that was timed
 * as the fastest, or the backend's first. The head's last chunk is listed; a call of fewer rows (packed ones, fewer
 * targets) has shapes that are not.
 */
#include "exec/network/private.h"

static RpMatmulVariant
shape_of(const RpMatmulArgs *args)
{
    return (RpMatmulVariant){.form = args->form,
                             .a = args->a_dtype,
                             .b = args->b_dtype,
                             .c = args->c_dtype,
                             .m = args->m,
                             .n = args->n,
                             .k = args->k,
                             .a_stride = args->a_stride != args->k ? args->a_stride : 0,
                             .bias = args->bias != NULL};
}

/* Thin matmuls of adapters that are fused have columns of wider matrices, and take the first variant. */
static gboolean
is_listed(const RpMatmulArgs *args)
{
    return args->b_stride == 0 && args->c_stride == 0 &&
           (args->a_stride == 0 || args->form == RP_MATMUL_NT);
}

static const RpMatmulVariant *
find(const RpMatmulVariant *variants, guint n, const RpMatmulVariant *shape)
{
    for (guint i = 0; i < n; i++)
        if (rp_matmul_variant_is_of(&variants[i], shape))
            return &variants[i];
    return NULL;
}

void
rp_matmuls_open(RpNetwork *network)
{
    RpNetworkOptions *options = &network->options;

    options->matmul_library = g_strdup(options->matmul_library);
    options->matmul_variants =
        g_memdup2(options->matmul_variants, options->n_matmul_variants * sizeof(RpMatmulVariant));
    network->matmuls = g_array_new(FALSE, FALSE, sizeof(RpMatmulVariant));
}

void
rp_matmuls_close(RpNetwork *network)
{
    g_free((gpointer)network->options.matmul_library);
    g_free((gpointer)network->options.matmul_variants);
    g_array_unref(network->matmuls);
}

const RpMatmulVariant *
rp_network_matmuls(const RpNetwork *network, guint *n)
{
    g_return_val_if_fail(network != NULL && n != NULL, NULL);

    *n = network->matmuls->len;
    return (const RpMatmulVariant *)(void *)network->matmuls->data;
}

void
rp_matmuls_note(const RpNetwork *network, const RpMatmulArgs *args)
{
    const RpMatmulVariant shape = shape_of(args);
    guint n;
    const RpMatmulVariant *known = rp_network_matmuls(network, &n);

    if (is_listed(args) && find(known, n, &shape) == NULL)
        g_array_append_val(network->matmuls, shape);
}

guint8
rp_matmuls_variant(const RpNetwork *network, const RpMatmulArgs *args)
{
    const RpNetworkOptions *options = &network->options;

    if (options->n_matmul_variants == 0 || !is_listed(args))
        return 0;
    const RpMatmulVariant shape = shape_of(args);
    const RpMatmulVariant *variant =
        find(options->matmul_variants, options->n_matmul_variants, &shape);

    return variant != NULL ? (guint8)variant->variant : 0;
}
