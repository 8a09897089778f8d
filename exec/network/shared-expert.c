/*
 * The expert of a mixture that every token has beside those that it chooses. n = norm(s).
 *
 *   forward    g, u = n Wg, n Wu;  c = n Ws, a number for each token;  y = s + p Wd,  p = sigmoid(c) (silu(g) u)
 *   kept       g, u [T,m], c [T]. The product is made anew.
 *   backward   e = dy Wd^T;  dWd += p^T dy;  sigmoid(c) e reaches silu(g) u, and so g and u;  dc is a sum over the row
 *              dn += dg Wg^T + du Wu^T + dc Ws^T
 *
 * The gate multiplies the input of the last linear layer instead of its output, which is the same number and narrower:
 * no output is kept for the gate's gradient. Matrices are multiplied in 16 bits where others are in fp8, as experts' are.
 */
#include "exec/network/private.h"

static const RpWeightKind kinds[] = {RP_WEIGHT_SHARED_GATE, RP_WEIGHT_SHARED_UP,
                                     RP_WEIGHT_SHARED_SCORE};
static const RpJoint inputs = {kinds, G_N_ELEMENTS(kinds)};

static size_t
width_of(const RpPass *pass)
{
    return pass->network->model->shared_intermediate;
}

gboolean
rp_shared_expert_exists(const RpPass *pass)
{
    return width_of(pass) > 0;
}

RpSharedExpert
rp_shared_expert_take(RpPass *pass, RpSpace *space, size_t T)
{
    RpSharedExpert e;

    e.gate = rp_pass_take(pass, space, T * width_of(pass));
    e.up = rp_pass_take(pass, space, T * width_of(pass));
    e.score = rp_pass_take(pass, space, T);
    return e;
}

/* silu(g) u, in scratch */
static void *
make_product(RpPass *pass, size_t T, const RpSharedExpert *e)
{
    const size_t n = T * width_of(pass);
    void *product = rp_pass_take(pass, &pass->scratch, n);

    rp_pass_swiglu(pass, n, 0, e->gate, e->up, product, NULL);
    return product;
}

void
rp_shared_expert_forward(RpPass *pass, size_t T, const RpSharedExpert *e, const void *s,
                         const void *normed, void *y)
{
    const gsize before = pass->scratch.used;
    const RpMatmulOperand n = rp_pass_plain(T, normed);

    rp_pass_beside(pass, inputs, &n, (void *[]){e->gate, e->up, e->score});
    if (y == NULL)
        return;
    void *product = make_product(pass, T, e);
    const RpMatmulOperand p = rp_pass_plain(T, product);

    rp_pass_row_gate(
        pass, (RpRowGateArgs){
                  .rows = T, .n = width_of(pass), .x = product, .gate = e->score, .y = product});
    rp_pass_linear_onto(pass, RP_WEIGHT_SHARED_DOWN, &p, s, y);
    pass->scratch.used = before;
}

/* g, u and c become their gradients. */
static void
differentiate_product(RpPass *pass, size_t T, const RpSharedExpert *e, const void *dy)
{
    float *const none[] = {NULL, NULL, NULL};
    const size_t m = width_of(pass);
    const gsize before = pass->scratch.used;
    void *product = make_product(pass, T, e);
    void *gradient = rp_pass_take(pass, &pass->scratch, T * m);
    const RpMatmulOperand d = rp_pass_plain(T, dy), p = rp_pass_plain(T, product);

    rp_pass_linear_input(pass, RP_WEIGHT_SHARED_DOWN, &d, gradient, FALSE);
    rp_pass_row_gate_backward(pass, (RpRowGateArgs){.rows = T,
                                                    .n = m,
                                                    .x = product,
                                                    .gate = e->score,
                                                    .y = product,
                                                    .dy = gradient,
                                                    .dx = gradient,
                                                    .d_gate = e->score});
    rp_pass_linear_sums(pass, RP_WEIGHT_SHARED_DOWN, &p, &d);
    rp_pass_swiglu_backward(pass, T * m, 0, e->gate, e->up, gradient, none);
    pass->scratch.used = before;
}

void
rp_shared_expert_backward(RpPass *pass, size_t T, const RpSharedExpert *e, const void *dy,
                          const void *normed, void *ds)
{
    const RpMatmulOperand n = rp_pass_plain(T, normed);

    differentiate_product(pass, T, e, dy);
    rp_pass_beside_backward(pass, inputs, &n, (const void *[]){e->gate, e->up, e->score}, NULL,
                            TRUE, ds, TRUE);
}
