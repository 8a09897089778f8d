/**
 * Shared by import-order.c and import-order-check.c.
 *
 * Actions are counted by their products: for a stage and a micro-batch the activations (F), the
 * gradient of the input (B, I) and that of the weights (B, W).
 */
#pragma once

#include "core/formats/import-pytorch.h"

enum {
    RP_PRODUCT_ACTIVATION,
    RP_PRODUCT_INPUT_GRADIENT,
    RP_PRODUCT_WEIGHT_GRADIENT,
    RP_N_PRODUCTS
};

#define RP_PRODUCT_ABSENT (RP_TASK_NONE - 1) /* no action makes it; RP_TASK_NONE: not made yet */
#define RP_MAX_PRODUCTS 4

typedef struct {
    const RpOrders *orders;
    const RpOrderCosts *costs;
    guint n_stages;
    guint micro_batches;
    guint round;         /* M_R: micro-batches of a round */
    gboolean backward;   /* there are backward actions at all */
    guint32 fused_stage; /* dispatched: forward before it, backward behind it; else RP_NONE */
    RpTaskId *products;  /* n_stages x micro_batches x RP_N_PRODUCTS */
    guint32 *rank_of;    /* [stage] */
    RpPlan *plan;
    guint *next;           /* [rank] its next action */
    guint32 *next_waiting; /* [rank] another that waits for the same */
    GHashTable *waiting;   /* RpTaskId *product -> first rank that waits for it, + 1 */
    GQueue ready;          /* ranks, + 1 */
    GError **error;
} RpOrderMerge;

static inline RpTaskId *
rp_order_product(const RpOrderMerge *merge, guint32 stage, guint32 micro_batch, guint what)
{
    return &merge->products[((gsize)stage * merge->micro_batches + micro_batch) * RP_N_PRODUCTS +
                            what];
}

/* Finds the products of an action. Returns: their number */
guint rp_order_products_of(const RpOrderMerge *merge, const RpAction *action,
                           RpTaskId *made[RP_MAX_PRODUCTS]);

/* No more stages x micro-batches than actions to run them; costs of all stages, none negative. */
gboolean rp_order_check_input(const RpOrderMerge *merge);

/* Records every action's products, checks that nothing is missing and finds the rounds. */
gboolean rp_order_register(RpOrderMerge *merge);
