/*
 * Linear layers, and the low-rank adapters beside their matrices: two thin matmuls, to whose result the
 * wide one adds. Nothing of an adapter is kept: h = x A^T is made anew by the backward, in scratch that
 * is free again behind each layer. So is the input with elements dropped.
 */
#include "exec/network/private.h"

/* Of a linear layer's matrix. Of others the embedding's, which no layer has beside one. */
static const RpWeightKind biases[RP_N_WEIGHT_KINDS] = {
    [RP_WEIGHT_Q] = RP_WEIGHT_Q_BIAS,       [RP_WEIGHT_K] = RP_WEIGHT_K_BIAS,
    [RP_WEIGHT_V] = RP_WEIGHT_V_BIAS,       [RP_WEIGHT_O] = RP_WEIGHT_O_BIAS,
    [RP_WEIGHT_GATE] = RP_WEIGHT_GATE_BIAS, [RP_WEIGHT_UP] = RP_WEIGHT_UP_BIAS,
    [RP_WEIGHT_DOWN] = RP_WEIGHT_DOWN_BIAS, [RP_WEIGHT_ROUTER] = RP_WEIGHT_ROUTER_BIAS,
};

/* A as @x, rows or turned, and B as the weight are in codes. */
static void
set_codes(RpMatmulArgs *args, const RpOperand *a, const guint8 *a_codes, const guint8 *b_codes,
          const float *b_scale)
{
    args->form = RP_MATMUL_NT;
    args->a = a_codes;
    args->a_dtype = a->code;
    args->a_scale = a->scale;
    args->b = b_codes;
    args->b_dtype = RP_DTYPE_E4M3;
    args->b_scale = b_scale;
}

/* @turned: the weight's */
static void
set_codes_of_weight(const RpPass *pass, RpWeightKind kind, const RpOperand *a, gboolean turned,
                    RpMatmulArgs *args)
{
    const RpWeightPlace *place = &pass->layout->place[kind];
    const guint8 *codes = rp_pass_weight(pass, kind);

    if (place->has_codes)
        set_codes(args, a, a->codes, codes + (turned ? rp_codes_turned_byte(place) : 0),
                  (const float *)(const void *)(codes + rp_codes_cells_byte(place)) +
                      RP_CELL_SCALE);
}

/* y = x W^T: [rows,in], [out,in], [rows,out]. */
static RpMatmulArgs
forward_args(const RpPass *pass, RpWeightKind kind, const RpOperand *x, void *y)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];
    RpMatmulArgs args = {.form = RP_MATMUL_NT,
                         .m = x->rows,
                         .n = place->shape[0],
                         .k = place->shape[1],
                         .a = x->x,
                         .b = rp_pass_weight(pass, kind),
                         .c = y,
                         .a_dtype = dtype,
                         .b_dtype = place->storage,
                         .c_dtype = dtype,
                         .a_stride = x->stride};

    set_codes_of_weight(pass, kind, x, FALSE, &args);
    return args;
}

/* dx = dy W. */
static RpMatmulArgs
input_args(const RpPass *pass, RpWeightKind kind, const RpOperand *dy, void *dx)
{
    RpMatmulArgs args = forward_args(pass, kind, dy, dx);

    args.form = RP_MATMUL_NN;
    args.n = pass->layout->place[kind].shape[1];
    args.k = pass->layout->place[kind].shape[0];
    set_codes_of_weight(pass, kind, dy, TRUE, &args);
    return args;
}

gboolean
rp_linear_writes_sums(RpWeightKind kind)
{
    kind %= RP_N_BASE_KINDS;
    return biases[kind] != 0 || kind == RP_WEIGHT_HEAD;
}

/* dW += scale dy^T x, or = where the sum begins. @scale: 0: 1. @more: rows of the matrix behind it */
static void
add_sums(RpPass *pass, RpWeightKind kind, size_t more, const RpOperand *x, const RpOperand *dy,
         float scale)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];
    RpMatmulArgs args = {.form = RP_MATMUL_TN,
                         .m = place->shape[0] + more,
                         .n = place->shape[1],
                         .k = x->rows,
                         .a = dy->x,
                         .b = x->x,
                         .c = rp_pass_sum(pass, kind),
                         .a_dtype = dtype,
                         .b_dtype = dtype,
                         .c_dtype = RP_DTYPE_FP32,
                         .accumulate = pass->sums_begun || rp_pass_adds(pass),
                         .scale = scale};

    if (place->has_codes)
        set_codes(&args, dy, dy->turned, x->turned, x->scale);
    rp_pass_matmul(pass, args);
}

/* @x as the layer's adapters see it: with elements dropped, in scratch; or as it is. */
static RpOperand
seen(RpPass *pass, const RpPassAdapters *adapters, const RpOperand *x)
{
    const size_t in = pass->layout->place[adapters->a].shape[1];

    if (!rp_pass_drops(pass))
        return rp_pass_plain(x->rows, x->x);
    void *y = rp_pass_take(pass, &pass->scratch, x->rows * in);

    rp_pass_dropout(pass, adapters->a,
                    (RpDropoutArgs){.rows = x->rows, .n = in, .x = x->x, .y = y});
    return rp_pass_plain(x->rows, y);
}

/* y = s h B^T, which the wide matmul adds to: it reads y as it stores it, and a thin one behind it would
 * read and write all of y once more. */
static void
begin_with_adapters(RpPass *pass, const RpPassAdapters *adapters, const RpOperand *x,
                    const void *residual, void *y)
{
    const gsize before = pass->scratch.used;
    void *h = rp_pass_take(pass, &pass->scratch, x->rows * adapters->rank);
    const RpOperand h_of = rp_pass_plain(x->rows, h), x_of = seen(pass, adapters, x);
    RpMatmulArgs thin = forward_args(pass, adapters->b, &h_of, y);

    rp_pass_matmul(pass, forward_args(pass, adapters->a, &x_of, h));
    thin.scale = pass->layout->place[adapters->b].scale;
    thin.residual = residual;
    rp_pass_matmul(pass, thin);
    pass->scratch.used = before;
}

void
rp_pass_linear(RpPass *pass, RpWeightKind kind, const RpOperand *x, void *y)
{
    rp_pass_linear_onto(pass, kind, x, NULL, y);
}

void
rp_pass_linear_onto(RpPass *pass, RpWeightKind kind, const RpOperand *x, const void *residual,
                    void *y)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 0);
    RpMatmulArgs wide = forward_args(pass, kind, x, y);

    wide.residual = residual;
    if (adapters.rank > 0) {
        begin_with_adapters(pass, &adapters, x, residual, y);
        wide.residual = NULL;
        wide.accumulate = TRUE;
    }
    if (rp_pass_has(pass, biases[kind]))
        wide.bias = rp_pass_weight(pass, biases[kind]);
    rp_pass_matmul(pass, wide);
}

/* g, in scratch; %NULL without adapters. */
static void *
thin_gradient(RpPass *pass, RpWeightKind kind, const RpOperand *dy)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 0);

    if (adapters.rank == 0)
        return NULL;
    void *g = rp_pass_take(pass, &pass->scratch, dy->rows * adapters.rank);
    RpMatmulArgs args = input_args(pass, adapters.b, dy, g);

    args.scale = pass->layout->place[adapters.b].scale;
    rp_pass_matmul(pass, args);
    return g;
}

static void
linear_sums(RpPass *pass, RpWeightKind kind, const RpOperand *x, const RpOperand *dy, const void *g)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 0);
    const gsize before = pass->scratch.used;

    if (rp_pass_trains(pass, biases[kind]))
        rp_pass_bias_sums(pass, biases[kind], dy->rows, dy->x);
    if (rp_pass_trains(pass, kind))
        add_sums(pass, kind, 0, x, dy, 0);
    if (adapters.rank == 0)
        return;
    void *h = rp_pass_take(pass, &pass->scratch, x->rows * adapters.rank);
    const RpOperand dropped = seen(pass, &adapters, x), h_of = rp_pass_plain(x->rows, h);
    const RpOperand g_of = rp_pass_plain(x->rows, g);

    rp_pass_matmul(pass, forward_args(pass, adapters.a, &dropped, h));
    add_sums(pass, adapters.b, 0, &h_of, dy, pass->layout->place[adapters.b].scale);
    add_sums(pass, adapters.a, 0, &dropped, &g_of, 0);
    pass->scratch.used = before;
}

/* dx = or += g A, without what was dropped of x. */
static void
thin_input(RpPass *pass, const RpPassAdapters *adapters, size_t rows, const void *g, void *dx,
           gboolean accumulate)
{
    const RpOperand g_of = rp_pass_plain(rows, g);
    const size_t in = pass->layout->place[adapters->a].shape[1];
    const gsize before = pass->scratch.used;
    const gboolean drops = rp_pass_drops(pass);
    void *to = drops ? rp_pass_take(pass, &pass->scratch, rows * in) : dx;
    RpMatmulArgs args = input_args(pass, adapters->a, &g_of, to);

    args.accumulate = accumulate && !drops;
    rp_pass_matmul(pass, args);
    if (drops)
        rp_pass_dropout(
            pass, adapters->a,
            (RpDropoutArgs){.rows = rows, .n = in, .accumulate = accumulate, .x = to, .y = dx});
    pass->scratch.used = before;
}

static void
linear_input(RpPass *pass, RpWeightKind kind, const RpOperand *dy, const void *g, void *dx,
             gboolean accumulate)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 0);
    RpMatmulArgs args = input_args(pass, kind, dy, dx);

    if (adapters.rank > 0)
        thin_input(pass, &adapters, dy->rows, g, dx, accumulate);
    args.accumulate = accumulate || adapters.rank > 0;
    rp_pass_matmul(pass, args);
}

void
rp_pass_linear_sums(RpPass *pass, RpWeightKind kind, const RpOperand *x, const RpOperand *dy)
{
    const gsize before = pass->scratch.used;

    linear_sums(pass, kind, x, dy, thin_gradient(pass, kind, dy));
    pass->scratch.used = before;
}

void
rp_pass_linear_input(RpPass *pass, RpWeightKind kind, const RpOperand *dy, void *dx,
                     gboolean accumulate)
{
    const gsize before = pass->scratch.used;

    linear_input(pass, kind, dy, thin_gradient(pass, kind, dy), dx, accumulate);
    pass->scratch.used = before;
}

void
rp_pass_linear_backward(RpPass *pass, RpWeightKind kind, const RpOperand *x, const RpOperand *dy,
                        void *dx, gboolean accumulate)
{
    const gsize before = pass->scratch.used;
    const void *g = thin_gradient(pass, kind, dy);

    linear_sums(pass, kind, x, dy, g);
    linear_input(pass, kind, dy, g, dx, accumulate);
    pass->scratch.used = before;
}

/* ---- joined ---- */

/* Whether it is nothing but a matrix, of which codes can be made with others. */
static gboolean
is_plain(const RpPass *pass, RpWeightKind kind)
{
    const RpWeightPlace *place = &pass->layout->place[kind];

    return rp_pass_has(pass, kind) && !(place->has_codes && place->is_packed) &&
           !rp_pass_has(pass, biases[kind]) && rp_pass_adapters(pass, kind, 0).rank == 0;
}

/* Whether @next lies behind @kind, here and as it goes up, and so does the sum of its gradient. */
static gboolean
are_neighbours(const RpPass *pass, RpWeightKind kind, RpWeightKind next)
{
    const RpWeightPlace *a = &pass->layout->place[kind], *b = &pass->layout->place[next];
    const guint64 elements = a->shape[0] * a->shape[1];
    const guint64 bytes = elements * rp_dtype_size(a->storage);

    return is_plain(pass, kind) && is_plain(pass, next) && a->storage == b->storage &&
           a->has_codes == b->has_codes && a->shape[1] == b->shape[1] &&
           (a->has_codes
                ? b->byte == a->byte + rp_layout_byte_room(a) && b->upload == a->upload + bytes
                : b->byte == a->byte + bytes) &&
           rp_pass_trains(pass, kind) == rp_pass_trains(pass, next) &&
           (!rp_pass_trains(pass, kind) || b->element == a->element + elements);
}

gboolean
rp_pass_may_join(const RpPass *pass, RpJoint joint)
{
    guint i = 1;

    while (i < joint.n && are_neighbours(pass, joint.kinds[i - 1], joint.kinds[i]))
        i++;
    return i == joint.n;
}

gboolean
rp_pass_joins(const RpPass *pass, RpJoint joint)
{
    const RpWeightPlace *first = &pass->layout->place[joint.kinds[0]];

    return first->has_codes ? first->code_rows > first->shape[0] : rp_pass_may_join(pass, joint);
}

/* Rows of the matrices behind the first. */
static size_t
more_rows(const RpPass *pass, RpJoint joint)
{
    size_t rows = 0;

    for (guint i = 1; i < joint.n; i++)
        rows += pass->layout->place[joint.kinds[i]].shape[0];
    return rows;
}

void
rp_pass_joined(RpPass *pass, RpJoint joint, const RpOperand *x, void *y)
{
    RpMatmulArgs args = forward_args(pass, joint.kinds[0], x, y);

    args.n += more_rows(pass, joint);
    rp_pass_matmul(pass, args);
}

void
rp_pass_joined_sums(RpPass *pass, RpJoint joint, const RpOperand *x, const RpOperand *dy)
{
    if (rp_pass_trains(pass, joint.kinds[0]))
        add_sums(pass, joint.kinds[0], more_rows(pass, joint), x, dy, 0);
}

void
rp_pass_joined_backward(RpPass *pass, RpJoint joint, const RpOperand *x, const RpOperand *dy,
                        void *dx)
{
    RpMatmulArgs args = input_args(pass, joint.kinds[0], dy, dx);

    rp_pass_joined_sums(pass, joint, x, dy);
    args.k += more_rows(pass, joint);
    rp_pass_matmul(pass, args);
}
