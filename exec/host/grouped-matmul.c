/*
 * A matmul for each expert (matmul.c), over the rows that offsets give it: fp32 sums, whose order
 * follows from the number of its rows, n, and k or m.
 */
#include "exec/host/host-private.h"

/* Expert @expert's matmul, of @rows rows from row @first on. */
static RpMatmulArgs
args_of(const RpGroupedMatmulArgs *args, size_t expert, size_t first, size_t rows)
{
    const gboolean sums_rows = args->form == RP_MATMUL_TN;
    RpMatmulArgs of = {.form = args->form,
                       .m = sums_rows ? args->m : rows,
                       .n = args->n,
                       .k = sums_rows ? rows : args->k,
                       .a_dtype = args->a_dtype,
                       .b_dtype = args->b_dtype,
                       .c_dtype = args->c_dtype,
                       .accumulate = args->accumulate,
                       .scale = args->scale,
                       .workspace = args->workspace};
    const size_t b_at = sums_rows ? first * args->n : expert * args->n * args->k;
    const size_t c_at = sums_rows ? expert * args->m * args->n : first * args->n;

    of.a = rp_host_at(args->a_dtype, args->a, first * (sums_rows ? args->m : args->k));
    of.b = rp_host_at(args->b_dtype, args->b, b_at);
    of.c = (void *)rp_host_at(args->c_dtype, args->c, c_at);
    if (args->bias != NULL)
        of.bias = rp_host_at(args->c_dtype, args->bias, expert * args->n);
    return of;
}

/* All rows may be one expert's. */
size_t
rp_host_grouped_matmul_workspace(const RpGroupedMatmulArgs *args)
{
    RpMatmulArgs all = {.form = args->form,
                        .m = args->form == RP_MATMUL_TN ? args->m : args->rows,
                        .n = args->n,
                        .k = args->form == RP_MATMUL_TN ? args->rows : args->k,
                        .a_dtype = args->a_dtype,
                        .b_dtype = args->b_dtype,
                        .c_dtype = args->c_dtype};

    return rp_host_matmul_workspace(&all);
}

void
rp_host_grouped_matmul(RpKernelStream *stream, const RpGroupedMatmulArgs *args)
{
    g_assert(!(args->bias && args->form == RP_MATMUL_TN));
    for (size_t expert = 0; expert < args->experts; expert++) {
        const size_t first = (size_t)args->offsets[expert];
        const size_t rows = (size_t)args->offsets[expert + 1] - first;
        const RpMatmulArgs of = args_of(args, expert, first, rows);

        if (rows > 0 || (args->form == RP_MATMUL_TN && !args->accumulate))
            rp_host_matmul(stream, &of);
    }
}
