/*
 * The MLP of a mixture of E experts, k of which each token chooses. n = norm(s), R = T k rows, sorted
 * by expert on the device (exec/kernels/expert-args.h); no host reads which row is whose.
 *
 *   forward    logits = n Wr;  chosen, w = route(logits);  x[r] = n[token of r]
 *              z = x Wgu of the row's expert;  y[t] = s[t] + sum over its rows of w[r] (glu(z[r]) Wd)
 *
 *   kept       logits [T,E], w, chosen and the order of rows; z [R,2m]. x and glu(z) are made anew, and
 *              the output of Wd is needed by no gradient.
 *
 *   backward   u[r] = dy[token of r];  g = u Wd^T;  z becomes dz, g becomes w glu(z)
 *              dWd += u^T (w glu(z));  dWgu += dz^T x;  dn[t] = router's + sum over its rows of dz Wgu
 *
 * Stacks stand as [E,out,in], or transposed (GPT-OSS): then forms of matmuls change places. Adapters of
 * a stack, A [E,r,in] and B [E,out,r], are part of its matmul, as those of a matrix are (linear.c).
 */
#include "exec/network/private.h"

/* Values kept from forward to backward. */
typedef struct {
    void *logits;      /* [T,E]; backward: their gradient */
    void *weights;     /* [T,k] */
    int32_t *chosen;   /* [T,k] */
    int32_t *rows;     /* [T,k] */
    int32_t *assigned; /* [R] */
    int32_t *offsets;  /* [E+1] */
    void *z;           /* [R,2m]; backward: its gradient */
} Kept;

/* R rows of E experts. */
typedef struct {
    size_t E, k, R;
} Sizes;

static Sizes
sizes_of(const RpPass *pass)
{
    const RpModel *model = pass->network->model;

    return (Sizes){.E = model->experts,
                   .k = model->active_experts,
                   .R = pass->network->tokens * model->active_experts};
}

static Kept
take_kept(const RpPass *pass, RpSpace *space, const RpBlockShape *b, const Sizes *n)
{
    Kept kept;

    kept.logits = rp_pass_take(pass, space, b->T * n->E);
    kept.weights = rp_pass_take(pass, space, n->R);
    kept.chosen = rp_pass_take_ints(space, n->R);
    kept.rows = rp_pass_take_ints(space, n->R);
    kept.assigned = rp_pass_take_ints(space, n->R);
    kept.offsets = rp_pass_take_ints(space, n->E + 1);
    kept.z = rp_pass_take(pass, space, n->R * 2 * b->m);
    return kept;
}

/* ---- kernels ---- */

/* Whether a token's weights are a softmax of its choices' logits; else they are parts of one over all. */
static gboolean
weighs_among_chosen(const RpModel *model)
{
    return model->norm_topk || model->architecture == RP_ARCHITECTURE_GPT_OSS;
}

static void
route(RpPass *pass, const Sizes *n, const Kept *kept)
{
    const RpModel *model = pass->network->model;
    const RpRouteArgs route = {.dtype = pass->network->options.dtype,
                               .tokens = pass->network->tokens,
                               .experts = n->E,
                               .choices = n->k,
                               .among_chosen = weighs_among_chosen(model),
                               .logits = kept->logits,
                               .chosen = kept->chosen,
                               .weights = kept->weights};
    const RpSortRowsArgs sort = {.tokens = pass->network->tokens,
                                 .experts = n->E,
                                 .choices = n->k,
                                 .chosen = kept->chosen,
                                 .offsets = kept->offsets,
                                 .rows = kept->rows,
                                 .assigned = kept->assigned,
                                 .workspace = pass->kernel_workspace};

    RUN(pass, route_forward, &route);
    RUN_IN_WORKSPACE(pass, sort_rows, &sort);
    rp_balance_add(pass, kept->logits, kept->chosen);
}

/* Works in place: logits become their gradient. */
static void
route_backward(RpPass *pass, const Sizes *n, const Kept *kept, const float *d_weights,
               const void *dy)
{
    RpRouteArgs args = {.dtype = pass->network->options.dtype,
                        .tokens = pass->network->tokens,
                        .experts = n->E,
                        .choices = n->k,
                        .among_chosen = weighs_among_chosen(pass->network->model),
                        .logits = kept->logits,
                        .chosen = kept->chosen,
                        .d_weights = d_weights,
                        .d_logits = kept->logits};

    rp_balance_backward(pass, dy, &args);
    RUN(pass, route_backward, &args);
}

/* @y[r] = @x[token of r]; [R,C], [T,C] */
static void
gather(RpPass *pass, const Sizes *n, const Kept *kept, const void *x, void *y)
{
    const RpGatherRowsArgs args = {.dtype = pass->network->options.dtype,
                                   .tokens = pass->network->tokens,
                                   .choices = n->k,
                                   .n = pass->network->model->hidden,
                                   .rows = kept->rows,
                                   .x = x,
                                   .y = y};

    RUN(pass, gather_rows, &args);
}

/* @y[t] = @residual[t] + sum over the token's rows of weight @x[r]; @weights: (nullable): ones */
static void
combine(RpPass *pass, const Sizes *n, const Kept *kept, const void *x, const void *weights,
        const void *residual, void *y)
{
    const RpCombineRowsArgs args = {.dtype = pass->network->options.dtype,
                                    .tokens = pass->network->tokens,
                                    .choices = n->k,
                                    .n = pass->network->model->hidden,
                                    .rows = kept->rows,
                                    .x = x,
                                    .weights = weights,
                                    .residual = residual,
                                    .y = y};

    RUN(pass, combine_rows, &args);
}

static void
grouped_matmul(RpPass *pass, RpGroupedMatmulArgs args)
{
    args.half_sums = pass->network->options.half_sums;
    args.alone = rp_pass_has_cache(pass) && args.form != RP_MATMUL_TN;
    args.workspace = pass->kernel_workspace;
    RUN_IN_WORKSPACE(pass, grouped_matmul, &args);
}

/* @y[r] (+)= @scale @x[r] W^T of the row's expert, W [E,out,in] of @kind, or @x[r] W if @back. */
static void
thin(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *x, void *y,
     float scale, gboolean back, gboolean accumulate)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];

    grouped_matmul(pass, (RpGroupedMatmulArgs){.form = back ? RP_MATMUL_NN : RP_MATMUL_NT,
                                               .rows = n->R,
                                               .experts = n->E,
                                               .n = place->shape[back ? 2 : 1],
                                               .k = place->shape[back ? 1 : 2],
                                               .offsets = kept->offsets,
                                               .a = x,
                                               .b = rp_pass_weight(pass, kind),
                                               .c = y,
                                               .a_dtype = dtype,
                                               .b_dtype = place->storage,
                                               .c_dtype = dtype,
                                               .scale = scale,
                                               .accumulate = accumulate});
}

/* s @dy[r] B, [R,r] in scratch; %NULL without adapters. */
static void *
thin_gradient(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *dy)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 1);

    if (adapters.rank == 0)
        return NULL;
    void *g = rp_pass_take(pass, &pass->scratch, n->R * adapters.rank);

    thin(pass, adapters.b, n, kept, dy, g, pass->layout->place[adapters.b].scale, TRUE, FALSE);
    return g;
}

/* W alone: y[r] = x[r] W^T + bias of the row's expert, or dx[r] = dy[r] W if @back. */
static void
wide(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *x, void *y,
     gboolean back)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];
    const RpWeightKind bias = kind == RP_WEIGHT_DOWN ? RP_WEIGHT_DOWN_BIAS : RP_WEIGHT_GATE_UP_BIAS;
    const gboolean plain = (back != 0) == (place->transposed != 0); /* W as [E,out,in] of y */

    grouped_matmul(pass, (RpGroupedMatmulArgs){.form = plain ? RP_MATMUL_NT : RP_MATMUL_NN,
                                               .rows = n->R,
                                               .experts = n->E,
                                               .n = place->shape[plain ? 1 : 2],
                                               .k = place->shape[plain ? 2 : 1],
                                               .offsets = kept->offsets,
                                               .a = x,
                                               .b = rp_pass_weight(pass, kind),
                                               .c = y,
                                               .bias = !back && rp_pass_has(pass, bias)
                                                           ? rp_pass_weight(pass, bias)
                                                           : NULL,
                                               .a_dtype = dtype,
                                               .b_dtype = place->storage,
                                               .c_dtype = dtype});
}

/* y[r] = x[r] (W + s B A)^T + bias. */
static void
linear(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *x, void *y)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 1);
    const gsize before = pass->scratch.used;

    wide(pass, kind, n, kept, x, y, FALSE);
    if (adapters.rank == 0 || !rp_pass_adapts(pass))
        return;
    void *h = rp_pass_take(pass, &pass->scratch, n->R * adapters.rank);

    thin(pass, adapters.a, n, kept, x, h, 0, FALSE, FALSE);
    thin(pass, adapters.b, n, kept, h, y, pass->layout->place[adapters.b].scale, FALSE, TRUE);
    pass->scratch.used = before;
}

/* dx[r] = dy[r] (W + s B A). @g: thin_gradient() */
static void
linear_input(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *dy,
             const void *g, void *dx)
{
    wide(pass, kind, n, kept, dy, dx, TRUE);
    if (g != NULL)
        thin(pass, rp_pass_adapters(pass, kind, 1).a, n, kept, g, dx, 0, TRUE, TRUE);
}

/* Sums of @kind =, or +=, @scale dy^T x over each expert's rows; @scale: 0: 1 */
static void
add_thin_sums(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *x,
              const void *dy, float scale)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];

    grouped_matmul(pass, (RpGroupedMatmulArgs){.form = RP_MATMUL_TN,
                                               .rows = n->R,
                                               .experts = n->E,
                                               .m = place->shape[1],
                                               .n = place->shape[2],
                                               .offsets = kept->offsets,
                                               .a = dy,
                                               .b = x,
                                               .c = rp_pass_sum(pass, kind),
                                               .a_dtype = dtype,
                                               .b_dtype = dtype,
                                               .c_dtype = RP_DTYPE_FP32,
                                               .scale = scale,
                                               .accumulate = rp_pass_adds(pass)});
}

/* dB, dA = or += s dy^T (x A^T), g^T x. @g: thin_gradient() */
static void
add_adapter_sums(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *x,
                 const void *dy, const void *g)
{
    const RpPassAdapters adapters = rp_pass_adapters(pass, kind, 1);
    const gsize before = pass->scratch.used;

    if (adapters.rank == 0)
        return;
    void *h = rp_pass_take(pass, &pass->scratch, n->R * adapters.rank);

    thin(pass, adapters.a, n, kept, x, h, 0, FALSE, FALSE);
    add_thin_sums(pass, adapters.b, n, kept, h, dy, pass->layout->place[adapters.b].scale);
    add_thin_sums(pass, adapters.a, n, kept, x, g, 0);
    pass->scratch.used = before;
}

/* Whether sums need the input of a stack's matmul. */
static gboolean
needs_input(const RpPass *pass, RpWeightKind kind)
{
    return rp_pass_trains(pass, kind) || rp_pass_adapters(pass, kind, 1).rank > 0;
}

/* dW = or += dy^T x over each expert's rows, if it is trained; and sums of its adapters. */
static void
add_sums(RpPass *pass, RpWeightKind kind, const Sizes *n, const Kept *kept, const void *x,
         const void *dy, const void *g)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpWeightPlace *place = &pass->layout->place[kind];

    add_adapter_sums(pass, kind, n, kept, x, dy, g);
    if (!rp_pass_trains(pass, kind))
        return;
    grouped_matmul(pass, (RpGroupedMatmulArgs){.form = RP_MATMUL_TN,
                                               .rows = n->R,
                                               .experts = n->E,
                                               .m = place->shape[1],
                                               .n = place->shape[2],
                                               .offsets = kept->offsets,
                                               .a = place->transposed ? x : dy,
                                               .b = place->transposed ? dy : x,
                                               .c = rp_pass_sum(pass, kind),
                                               .a_dtype = dtype,
                                               .b_dtype = dtype,
                                               .c_dtype = RP_DTYPE_FP32,
                                               .accumulate = rp_pass_adds(pass)});
}

/* The same of a stack of biases, [E,n]; @weights: (nullable): of rows, by assignment */
static void
add_bias_sums(RpPass *pass, RpWeightKind bias, const Sizes *n, const Kept *kept, const void *dy,
              const void *weights)
{
    if (!rp_pass_trains(pass, bias))
        return;
    const RpExpertBiasArgs args = {.dtype = pass->network->options.dtype,
                                   .rows = n->R,
                                   .experts = n->E,
                                   .n = pass->layout->place[bias].shape[1],
                                   .offsets = kept->offsets,
                                   .dy = dy,
                                   .weights = weights,
                                   .assigned = kept->assigned,
                                   .d_bias = rp_pass_sum(pass, bias),
                                   .workspace = pass->kernel_workspace};

    RUN_IN_WORKSPACE(pass, expert_bias_backward, &args);
}

static RpExpertGluArgs
glu_args(const RpPass *pass, const Sizes *n, const Kept *kept)
{
    const RpModel *model = pass->network->model;
    const gboolean clamped = rp_architectures[model->architecture].clamped_swiglu;

    return (RpExpertGluArgs){.dtype = pass->network->options.dtype,
                             .rows = n->R,
                             .m = model->intermediate,
                             .form = clamped ? RP_EXPERT_CLAMPED : RP_EXPERT_SILU,
                             .alpha = (float)model->swiglu_alpha,
                             .limit = (float)model->swiglu_limit,
                             .z = kept->z};
}

static void
glu(RpPass *pass, const Sizes *n, const Kept *kept, void *act)
{
    RpExpertGluArgs args = glu_args(pass, n, kept);

    args.act = act;
    RUN(pass, expert_glu_forward, &args);
}

/* In place: z becomes its gradient, and @g, that of act of rows of weight 1, weight x act. */
static void
glu_backward(RpPass *pass, const Sizes *n, const Kept *kept, const void *dy, void *g,
             float *d_weights)
{
    RpExpertGluArgs args = glu_args(pass, n, kept);

    args.choices = n->k;
    args.n = pass->network->model->hidden;
    args.assigned = kept->assigned;
    args.weights = kept->weights;
    args.g = g;
    if (rp_pass_has(pass, RP_WEIGHT_DOWN_BIAS)) {
        args.chosen = kept->chosen;
        args.bias = rp_pass_weight(pass, RP_WEIGHT_DOWN_BIAS);
        args.dy = dy;
    }
    args.dz = kept->z;
    args.product = needs_input(pass, RP_WEIGHT_DOWN) ? g : NULL;
    args.d_weights = d_weights;
    RUN(pass, expert_glu_backward, &args);
}

/* ---- the layer ---- */

static void
experts_forward(RpPass *pass, const RpBlockShape *b, const void *s, const void *normed,
                RpSpace *kept_space, void *y)
{
    RpSpace *scratch = &pass->scratch;
    const Sizes n = sizes_of(pass);
    const Kept kept = take_kept(pass, kept_space != NULL ? kept_space : scratch, b, &n);
    void *x = rp_pass_take(pass, scratch, n.R * b->C); /* the experts' input, then their output */
    void *act;

    const RpMatmulOperand routed = rp_pass_plain(b->T, normed);

    rp_pass_linear(pass, RP_WEIGHT_ROUTER, &routed, kept.logits);
    route(pass, &n, &kept);
    gather(pass, &n, &kept, normed, x);
    linear(pass, RP_WEIGHT_GATE_UP, &n, &kept, x, kept.z);
    if (rp_shared_expert_exists(pass)) {
        const RpSharedExpert shared =
            rp_shared_expert_take(pass, kept_space != NULL ? kept_space : scratch, b->T);

        rp_shared_expert_forward(pass, b->T, &shared, s, normed, y);
        s = y;
    }
    if (y == NULL)
        return;
    act = rp_pass_take(pass, scratch, n.R * b->m);
    glu(pass, &n, &kept, act);
    linear(pass, RP_WEIGHT_DOWN, &n, &kept, act, x);
    combine(pass, &n, &kept, x, kept.weights, s, y);
}

static void
experts_backward(RpPass *pass, const RpBlockShape *b, const void *s, RpSpace *kept_space,
                 const void *dy, void *normed, float *rstd, void *ds)
{
    RpSpace *scratch = &pass->scratch;
    const Sizes n = sizes_of(pass);
    const Kept kept = take_kept(pass, kept_space, b, &n);
    RpSharedExpert shared = {0};

    if (rp_shared_expert_exists(pass))
        shared = rp_shared_expert_take(pass, kept_space, b->T);
    void *u = rp_pass_take(pass, scratch, n.R * b->C); /* rows of dy, of normed, of its gradient */
    void *g = rp_pass_take(pass, scratch, n.R * b->m);
    float *d_weights = rp_pass_take_floats(scratch, n.R);

    const gsize before = scratch->used;
    const void *thin_g;

    gather(pass, &n, &kept, dy, u);
    thin_g = thin_gradient(pass, RP_WEIGHT_DOWN, &n, &kept, u);
    linear_input(pass, RP_WEIGHT_DOWN, &n, &kept, u, thin_g, g);
    glu_backward(pass, &n, &kept, dy, g, d_weights);
    add_sums(pass, RP_WEIGHT_DOWN, &n, &kept, g, u, thin_g);
    scratch->used = before;
    add_bias_sums(pass, RP_WEIGHT_DOWN_BIAS, &n, &kept, u, kept.weights);
    add_bias_sums(pass, RP_WEIGHT_GATE_UP_BIAS, &n, &kept, kept.z, NULL);

    rp_pass_block_norm(pass, RP_WEIGHT_POST_NORM, b->T, s, normed, rstd);
    thin_g = thin_gradient(pass, RP_WEIGHT_GATE_UP, &n, &kept, kept.z);
    if (needs_input(pass, RP_WEIGHT_GATE_UP)) {
        gather(pass, &n, &kept, normed, u);
        add_sums(pass, RP_WEIGHT_GATE_UP, &n, &kept, u, kept.z, thin_g);
    }
    linear_input(pass, RP_WEIGHT_GATE_UP, &n, &kept, kept.z, thin_g, u);
    scratch->used = before;
    route_backward(pass, &n, &kept, d_weights, dy);
    const RpMatmulOperand routed = rp_pass_plain(b->T, normed),
                          d = rp_pass_plain(b->T, kept.logits);

    rp_pass_linear_backward(pass, RP_WEIGHT_ROUTER, &routed, &d, ds, FALSE);
    combine(pass, &n, &kept, u, NULL, ds, ds);
    if (rp_shared_expert_exists(pass))
        rp_shared_expert_backward(pass, b->T, &shared, dy, normed, ds);
    pass->amax = rp_pass_scale_slot(pass);
    rp_pass_block_norm_backward(pass, RP_WEIGHT_POST_NORM, b->T, s, rstd, dy, ds, pass->amax);
}

const RpMlpOps rp_experts_mlp_ops = {.forward = experts_forward, .backward = experts_backward};
