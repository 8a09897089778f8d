/*
 * Linear layers, and the low-rank adapters beside their matrices: two thin matmuls, to whose result the
 * wide one adds. Nothing of an adapter is kept: h = x A^T is made anew by the backward, in scratch that
 * is free again behind each layer. So is the input with elements dropped.
 *
 * Layers of the same input are one where their matrices stand one behind the other. Their adapters'
 * A do, too, [all r,in]: h and g, [rows,all r], are one matmul's result or operand, and so is dx. Where only
 * these do, the layers are apart: each has an output and wide matmuls of its own.
 */
#include "exec/network/private.h"

/* The bias of each linear layer's matrix. Other kinds are 0, the embedding's, as no layer has a
 * bias beside that. */
static const RpWeightKind biases[RP_N_WEIGHT_KINDS] = {
    [RP_WEIGHT_Q] = RP_WEIGHT_Q_BIAS,       [RP_WEIGHT_K] = RP_WEIGHT_K_BIAS,
    [RP_WEIGHT_V] = RP_WEIGHT_V_BIAS,       [RP_WEIGHT_O] = RP_WEIGHT_O_BIAS,
    [RP_WEIGHT_GATE] = RP_WEIGHT_GATE_BIAS, [RP_WEIGHT_UP] = RP_WEIGHT_UP_BIAS,
    [RP_WEIGHT_DOWN] = RP_WEIGHT_DOWN_BIAS, [RP_WEIGHT_ROUTER] = RP_WEIGHT_ROUTER_BIAS,
};

/* A is @x, by rows or transposed, and B is the weight, both in fp8. */
static void
set_fp8(RpMatmulArgs *args, const RpMatmulOperand *a, const guint8 *a_fp8, const guint8 *b_fp8,
        const float *b_scale)
{
    args->form = RP_MATMUL_NT;
    args->a = a_fp8;
    args->a_dtype = a->code;
    args->a_scale = a->scale;
    args->b = b_fp8;
    args->b_dtype = RP_DTYPE_E4M3;
    args->b_scale = b_scale;
}

/* @transposed: the weight's */
static void
set_fp8_of_weight(const RpPass *pass, RpWeightKind kind, const RpMatmulOperand *a,
                  gboolean transposed, RpMatmulArgs *args)
{
    const RpWeightPlace *place = &pass->layout->place[kind];
    const guint8 *quantized = rp_pass_weight(pass, kind);

    if (place->has_fp8)
        set_fp8(args, a, a->quantized, quantized + (transposed ? rp_fp8_transposed_byte(place) : 0),
                (const float *)(const void *)(quantized + rp_fp8_scales_byte(place)) +
                    RP_SCALE_SLOT_SCALE);
}

/* y = x W^T: [rows,in], [out,in], [rows,out]. */
static RpMatmulArgs
forward_args(const RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x, void *y)
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

    set_fp8_of_weight(pass, kind, x, FALSE, &args);
    return args;
}

/* dx = dy W. */
static RpMatmulArgs
input_args(const RpPass *pass, RpWeightKind kind, const RpMatmulOperand *dy, void *dx)
{
    RpMatmulArgs args = forward_args(pass, kind, dy, dx);

    args.form = RP_MATMUL_NN;
    args.n = pass->layout->place[kind].shape[1];
    args.k = pass->layout->place[kind].shape[0];
    set_fp8_of_weight(pass, kind, dy, TRUE, &args);
    return args;
}

gboolean
rp_linear_writes_sums(RpWeightKind kind)
{
    kind %= RP_N_BASE_KINDS;
    return biases[kind] != 0 || kind == RP_WEIGHT_HEAD ||
           (kind >= RP_WEIGHT_DELTA_QKV && kind <= RP_WEIGHT_DELTA_OUT) ||
           rp_weight_is_shared(kind);
}

/* dW += scale dy^T x, or = where the sum begins. @scale: 0: 1. @rows: of the matrix, and of those behind it */
static void
add_sums(RpPass *pass, RpWeightKind kind, size_t rows, const RpMatmulOperand *x,
         const RpMatmulOperand *dy, float scale)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];
    RpMatmulArgs args = {.form = RP_MATMUL_TN,
                         .m = rows,
                         .n = place->shape[1],
                         .k = x->rows,
                         .a = dy->x,
                         .b = x->x,
                         .c = rp_pass_sum(pass, kind),
                         .a_dtype = dtype,
                         .b_dtype = dtype,
                         .c_dtype = RP_DTYPE_FP32,
                         .a_stride = dy->stride,
                         .b_stride = x->stride,
                         .accumulate = pass->sums_begun || rp_pass_adds(pass),
                         .scale = scale};

    if (place->has_fp8)
        set_fp8(&args, dy, dy->transposed, x->transposed, x->scale);
    rp_pass_matmul(pass, args);
}

/* ---- adapters ---- */

/* Layers of one input, or one layer: rows of their matrices, and of their adapters' A. */
typedef struct {
    RpJoint joint;
    gboolean apart;   /* each has an output of its own; else they are one */
    size_t out, rank; /* sums over all; rank 0: no adapters */
    RpWeightKind a;   /* the first one's A */
} Layers;

static Layers
layers_of(const RpPass *pass, RpJoint joint, gboolean apart)
{
    Layers layers = {
        .joint = joint, .apart = apart, .a = rp_weight_adapter(joint.kinds[0], RP_ADAPTER_A)};

    for (guint i = 0; i < joint.n; i++) {
        layers.out += pass->layout->place[joint.kinds[i]].shape[0];
        layers.rank += rp_pass_adapters(pass, joint.kinds[i], 0).rank;
    }
    return layers;
}

/* Columns from @first on of [rows,columns] */
static RpMatmulOperand
columns_of(const RpPass *pass, const Layers *layers, const void *x, size_t rows, size_t first,
           size_t columns)
{
    const gsize element = rp_dtype_size(pass->network->options.dtype);

    return (RpMatmulOperand){.x = (const void *)((guintptr)x + first * element),
                             .rows = rows,
                             .stride = layers->joint.n > 1 ? columns : 0};
}

/* One layer's B, and its columns of y or dy, and of h or g, which stand beside those of others. */
typedef struct {
    RpWeightKind b;
    float scale;
    RpMatmulOperand y, h;
} Part;

/* @y: of all, or of each where they are apart; @first: (inout): columns of the parts before, of y and h */
static Part
next_part(const RpPass *pass, const Layers *layers, guint i, const RpMatmulOperand *y,
          const void *h, size_t first[2])
{
    const RpWeightKind kind = layers->joint.kinds[i];
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 0);
    const Part part = {
        .b = adapters.b,
        .scale = pass->layout->place[adapters.b].scale,
        .y = layers->apart ? y[i] : columns_of(pass, layers, y->x, y->rows, first[0], layers->out),
        .h = columns_of(pass, layers, h, y->rows, first[1], layers->rank)};

    first[0] += pass->layout->place[kind].shape[0];
    first[1] += adapters.rank;
    return part;
}

/* @x as adapters see it: with elements dropped, in scratch; or as it is. */
static RpMatmulOperand
seen(RpPass *pass, const Layers *layers, const RpMatmulOperand *x)
{
    const size_t in = pass->layout->place[layers->a].shape[1];

    if (!rp_pass_drops(pass))
        return (RpMatmulOperand){.x = x->x, .rows = x->rows, .stride = x->stride};
    void *y = rp_pass_take(pass, &pass->scratch, x->rows * in);

    rp_pass_dropout(pass, layers->a, (RpDropoutArgs){.rows = x->rows, .n = in, .x = x->x, .y = y});
    return rp_pass_plain(x->rows, y);
}

/* h of all, in scratch. @x: as adapters see it */
static void *
thin_input(RpPass *pass, const Layers *layers, const RpMatmulOperand *x)
{
    void *h = rp_pass_take(pass, &pass->scratch, x->rows * layers->rank);
    RpMatmulArgs args = forward_args(pass, layers->a, x, h);

    args.n = layers->rank;
    rp_pass_matmul(pass, args);
    return h;
}

/* y = s h B^T, which the wide matmul adds to: it reads y while it multiplies, where a thin one behind it
 * would do nothing else. */
static void
begin_output(RpPass *pass, const Layers *layers, const RpMatmulOperand *x, const void *residual,
             const RpMatmulOperand *y)
{
    const gsize before = pass->scratch.used;
    const RpMatmulOperand x_of = seen(pass, layers, x);
    const void *h = thin_input(pass, layers, &x_of);
    size_t first[2] = {0, 0};

    for (guint i = 0; i < layers->joint.n; i++) {
        const Part part = next_part(pass, layers, i, y, h, first);
        RpMatmulArgs args = forward_args(pass, part.b, &part.h, (void *)part.y.x);

        args.c_stride = part.y.stride;
        args.scale = part.scale;
        args.residual = residual;
        rp_pass_matmul(pass, args);
    }
    pass->scratch.used = before;
}

/* g of all, in scratch; %NULL without adapters. */
static void *
thin_gradient(RpPass *pass, const Layers *layers, const RpMatmulOperand *dy)
{
    size_t first[2] = {0, 0};

    if (layers->rank == 0)
        return NULL;
    void *g = rp_pass_take(pass, &pass->scratch, dy->rows * layers->rank);

    for (guint i = 0; i < layers->joint.n; i++) {
        const Part part = next_part(pass, layers, i, dy, g, first);
        RpMatmulArgs args = input_args(pass, part.b, &part.y, (void *)part.h.x);

        args.c_stride = part.h.stride;
        args.scale = part.scale;
        rp_pass_matmul(pass, args);
    }
    return g;
}

static void
adapter_sums(RpPass *pass, const Layers *layers, const RpMatmulOperand *x,
             const RpMatmulOperand *dy, const void *g)
{
    const gsize before = pass->scratch.used;
    const RpMatmulOperand x_of = seen(pass, layers, x), g_of = rp_pass_plain(x->rows, g);
    const void *h = thin_input(pass, layers, &x_of);
    size_t first[2] = {0, 0};

    for (guint i = 0; i < layers->joint.n; i++) {
        const Part part = next_part(pass, layers, i, dy, h, first);

        add_sums(pass, part.b, pass->layout->place[part.b].shape[0], &part.h, &part.y, part.scale);
    }
    add_sums(pass, layers->a, layers->rank, &x_of, &g_of, 0);
    pass->scratch.used = before;
}

/* dx = or += g A, without the dropped elements of x. */
static void
begin_input_gradient(RpPass *pass, const Layers *layers, size_t rows, const void *g, void *dx,
                     gboolean accumulate)
{
    const RpMatmulOperand g_of = rp_pass_plain(rows, g);
    const size_t in = pass->layout->place[layers->a].shape[1];
    const gsize before = pass->scratch.used;
    const gboolean drops = rp_pass_drops(pass);
    void *to = drops ? rp_pass_take(pass, &pass->scratch, rows * in) : dx;
    RpMatmulArgs args = input_args(pass, layers->a, &g_of, to);

    args.k = layers->rank;
    args.accumulate = accumulate && !drops;
    rp_pass_matmul(pass, args);
    if (drops)
        rp_pass_dropout(
            pass, layers->a,
            (RpDropoutArgs){.rows = rows, .n = in, .accumulate = accumulate, .x = to, .y = dx});
    pass->scratch.used = before;
}

/* ---- layers ---- */

/* Wide matmuls: one a layer that is apart, or one of all. */
static guint
n_wide(const Layers *layers)
{
    return layers->apart ? layers->joint.n : 1;
}

/* Rows of the matrix of wide matmul @i. */
static size_t
wide_rows(const RpPass *pass, const Layers *layers, guint i)
{
    return layers->apart ? pass->layout->place[layers->joint.kinds[i]].shape[0] : layers->out;
}

/* @residual: (nullable): of one layer; @y: as of next_part() */
static void
forward(RpPass *pass, const Layers *layers, const RpMatmulOperand *x, const void *residual,
        const RpMatmulOperand *y)
{
    const gboolean begins = layers->rank > 0 && rp_pass_adapts(pass);

    if (begins)
        begin_output(pass, layers, x, residual, y);
    for (guint i = 0; i < n_wide(layers); i++) {
        const RpWeightKind kind = layers->joint.kinds[i];
        RpMatmulArgs wide = forward_args(pass, kind, x, (void *)y[i].x);

        wide.n = wide_rows(pass, layers, i);
        wide.residual = begins ? NULL : residual;
        wide.accumulate = begins;
        if (rp_pass_has(pass, biases[kind]))
            wide.bias = rp_pass_weight(pass, biases[kind]);
        rp_pass_matmul(pass, wide);
    }
}

static void
sums(RpPass *pass, const Layers *layers, const RpMatmulOperand *x, const RpMatmulOperand *dy,
     const void *g)
{
    for (guint i = 0; i < n_wide(layers); i++) {
        const RpWeightKind kind = layers->joint.kinds[i];

        if (rp_pass_trains(pass, biases[kind]))
            rp_pass_bias_sums(pass, biases[kind], dy[i].rows, dy[i].x);
        if (rp_pass_trains(pass, kind))
            add_sums(pass, kind, wide_rows(pass, layers, i), x, &dy[i], 0);
    }
    if (layers->rank > 0)
        adapter_sums(pass, layers, x, dy, g);
}

static void
input_gradient(RpPass *pass, const Layers *layers, const RpMatmulOperand *dy, const void *g,
               void *dx, gboolean accumulate)
{
    if (layers->rank > 0)
        begin_input_gradient(pass, layers, dy->rows, g, dx, accumulate);
    for (guint i = 0; i < n_wide(layers); i++) {
        RpMatmulArgs args = input_args(pass, layers->joint.kinds[i], &dy[i], dx);

        args.k = wide_rows(pass, layers, i);
        args.accumulate = accumulate || layers->rank > 0 || i > 0;
        rp_pass_matmul(pass, args);
    }
}

/* @x: (nullable): sums are not wanted; @dy: as of next_part(); @wanted: dx is */
static void
backward(RpPass *pass, const Layers *layers, const RpMatmulOperand *x, const RpMatmulOperand *dy,
         gboolean wanted, void *dx, gboolean accumulate)
{
    const gsize before = pass->scratch.used;
    const void *g = thin_gradient(pass, layers, dy);

    if (x != NULL)
        sums(pass, layers, x, dy, g);
    if (wanted)
        input_gradient(pass, layers, dy, g, dx, accumulate);
    pass->scratch.used = before;
}

static void
backward_of_one(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x,
                const RpMatmulOperand *dy, gboolean wanted, void *dx, gboolean accumulate)
{
    const Layers layers = layers_of(pass, (RpJoint){&kind, 1}, FALSE);

    backward(pass, &layers, x, dy, wanted, dx, accumulate);
}

void
rp_pass_linear(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x, void *y)
{
    rp_pass_linear_onto(pass, kind, x, NULL, y);
}

void
rp_pass_linear_onto(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x, const void *residual,
                    void *y)
{
    const Layers layers = layers_of(pass, (RpJoint){&kind, 1}, FALSE);
    const RpMatmulOperand output = rp_pass_plain(x->rows, y);

    forward(pass, &layers, x, residual, &output);
}

void
rp_pass_linear_sums(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x,
                    const RpMatmulOperand *dy)
{
    backward_of_one(pass, kind, x, dy, FALSE, NULL, FALSE);
}

void
rp_pass_linear_input(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *dy, void *dx,
                     gboolean accumulate)
{
    backward_of_one(pass, kind, NULL, dy, TRUE, dx, accumulate);
}

void
rp_pass_linear_backward(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x,
                        const RpMatmulOperand *dy, void *dx, gboolean accumulate)
{
    backward_of_one(pass, kind, x, dy, TRUE, dx, accumulate);
}

/* ---- fused layers ---- */

/* Whether it is only a matrix and its adapters, and may be fused with others in fp8. */
static gboolean
is_plain(const RpPass *pass, RpWeightKind kind)
{
    const RpWeightPlace *place = &pass->layout->place[kind];

    return rp_pass_has(pass, kind) && !(place->has_fp8 && place->is_packed) &&
           !rp_pass_has(pass, biases[kind]);
}

/* Whether @next lies behind @kind, here and as it goes up, and so does the sum of its gradient. */
static gboolean
follows(const RpPass *pass, RpWeightKind kind, RpWeightKind next)
{
    const RpWeightPlace *a = &pass->layout->place[kind], *b = &pass->layout->place[next];
    const guint64 elements = a->shape[0] * a->shape[1];
    const guint64 bytes = elements * rp_dtype_size(a->storage);

    return a->storage == b->storage && a->has_fp8 == b->has_fp8 && a->shape[1] == b->shape[1] &&
           (a->has_fp8
                ? b->byte == a->byte + rp_layout_byte_capacity(a) && b->upload == a->upload + bytes
                : b->byte == a->byte + bytes) &&
           rp_pass_trains(pass, kind) == rp_pass_trains(pass, next) &&
           (!rp_pass_trains(pass, kind) || b->element == a->element + elements);
}

/* Whether neither has adapters; or both have, without fp8, and see the same elements of the input. */
static gboolean
adapters_follow(const RpPass *pass, RpWeightKind kind, RpWeightKind next)
{
    const RpPassAdapters a = rp_pass_adapters(pass, kind, 0), b = rp_pass_adapters(pass, next, 0);

    if (a.rank == 0 || b.rank == 0)
        return a.rank == b.rank;
    return !pass->layout->has_fp8 && pass->network->dropout == 0 && follows(pass, a.a, b.a);
}

gboolean
rp_pass_may_join(const RpPass *pass, RpJoint joint)
{
    for (guint i = 0; i < joint.n; i++)
        if (!is_plain(pass, joint.kinds[i]) ||
            (i > 0 && !(follows(pass, joint.kinds[i - 1], joint.kinds[i]) &&
                        adapters_follow(pass, joint.kinds[i - 1], joint.kinds[i]))))
            return FALSE;
    return TRUE;
}

gboolean
rp_pass_joins(const RpPass *pass, RpJoint joint)
{
    const RpWeightPlace *first = &pass->layout->place[joint.kinds[0]];

    return first->has_fp8 ? first->code_rows > first->shape[0] : rp_pass_may_join(pass, joint);
}

void
rp_pass_fused(RpPass *pass, RpJoint joint, const RpMatmulOperand *x, void *y)
{
    const Layers layers = layers_of(pass, joint, FALSE);
    const RpMatmulOperand output = rp_pass_plain(x->rows, y);

    forward(pass, &layers, x, NULL, &output);
}

void
rp_pass_fused_backward(RpPass *pass, RpJoint joint, const RpMatmulOperand *x,
                       const RpMatmulOperand *dy, gboolean wanted, void *dx, gboolean accumulate)
{
    const Layers layers = layers_of(pass, joint, FALSE);

    backward(pass, &layers, x, dy, wanted, dx, accumulate);
}

/* ---- layers beside each other ---- */

/* The first of @joint's layers, and those behind it whose adapters are one with its own. */
static RpJoint
next_layers(const RpPass *pass, RpJoint joint)
{
    RpJoint run = {joint.kinds, 1};

    while (run.n < joint.n && rp_pass_adapters(pass, joint.kinds[run.n - 1], 0).rank > 0 &&
           adapters_follow(pass, joint.kinds[run.n - 1], joint.kinds[run.n]))
        run.n++;
    return run;
}

void
rp_pass_beside(RpPass *pass, RpJoint joint, const RpMatmulOperand *x, void *const *y)
{
    for (guint i = 0; i < joint.n;) {
        const RpJoint run = next_layers(pass, (RpJoint){joint.kinds + i, joint.n - i});
        const Layers layers = layers_of(pass, run, TRUE);
        RpMatmulOperand outputs[RP_JOINT_MOST];

        for (guint j = 0; j < run.n; j++)
            outputs[j] = rp_pass_plain(x->rows, y[i + j]);
        forward(pass, &layers, x, NULL, outputs);
        i += run.n;
    }
}

void
rp_pass_beside_backward(RpPass *pass, RpJoint joint, const RpMatmulOperand *x,
                        const void *const *dy, float *const *amax, gboolean wanted, void *dx,
                        gboolean accumulate)
{
    const gsize before = pass->scratch.used;

    for (guint i = 0; i < joint.n;) {
        const RpJoint run = next_layers(pass, (RpJoint){joint.kinds + i, joint.n - i});
        const Layers layers = layers_of(pass, run, TRUE);
        RpMatmulOperand gradients[RP_JOINT_MOST];

        for (guint j = 0; j < run.n; j++)
            gradients[j] = rp_pass_operand(pass, run.kinds[j], x->rows, dy[i + j],
                                           RP_OPERAND_GRADIENT, amax != NULL ? amax[i + j] : NULL);
        backward(pass, &layers, x, gradients, wanted, dx, accumulate || i > 0);
        pass->scratch.used = before;
        i += run.n;
    }
}
