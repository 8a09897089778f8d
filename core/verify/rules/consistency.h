/**
 * Shared by the files of rule 5's protocol: the tasks of the optimizer by iteration and layer.
 */
#pragma once

#include "core/verify/private.h"

/* The first of them in the order of their kinds of tasks. */
enum {
    RP_HOST_EARLY_STEP,
    RP_HOST_GRADIENT_COPY,
    RP_HOST_STEP,
    RP_HOST_PARAMETER_COPY,
    RP_HOST_LATE_STEP,
    RP_HOST_REDUCE,
    RP_HOST_GATHER,
    RP_N_HOST_KINDS
};

typedef struct {
    RpVerifier *verifier;
    gboolean has[RP_N_HOST_KINDS]; /* kinds that the plan uses at all */
    guint32 *host;                 /* [(iteration * n_layers + layer) * RP_N_HOST_KINDS + kind] */
    gboolean *has_norm;            /* [iteration] */
    guint32 *owner;                /* [buffer] layer whose weights or gradients it holds; RP_NONE */
    guint32 last_actions;          /* last iteration that has actions */
} RpProtocol;

static inline guint32 *
rp_protocol_task(const RpProtocol *protocol, guint32 iteration, guint32 layer, guint kind)
{
    gsize row = (gsize)iteration * protocol->verifier->n_layers + layer;

    return &protocol->host[row * RP_N_HOST_KINDS + kind];
}

/* Whether such tasks work on the layer: gradients are copied and reduced also where all of them are those
 * of a tied matrix, which another layer's step reads. */
static inline gboolean
rp_protocol_has_kind(const RpProtocol *protocol, guint layer, guint kind)
{
    const RpVerifier *verifier = protocol->verifier;

    return kind == RP_HOST_GRADIENT_COPY || kind == RP_HOST_REDUCE
               ? verifier->trainable[layer]
               : rp_verifier_is_stepped(verifier, layer);
}

/* Whether an early step of the layer writes weights. */
static inline gboolean
rp_protocol_is_early(const RpProtocol *protocol, guint layer)
{
    return protocol->has[RP_HOST_EARLY_STEP] &&
           rp_plan_layer(protocol->verifier->plan, layer)->early;
}

/* The first of the layer's tasks that reads gradients as they have arrived, and the last. */
static inline guint
rp_protocol_first_reader(const RpProtocol *protocol)
{
    return protocol->has[RP_HOST_REDUCE]          ? RP_HOST_REDUCE
           : protocol->has[RP_HOST_EARLY_STEP]    ? RP_HOST_EARLY_STEP
           : protocol->has[RP_HOST_GRADIENT_COPY] ? RP_HOST_GRADIENT_COPY
                                                  : RP_HOST_STEP;
}
static inline guint
rp_protocol_last_reader(const RpProtocol *protocol, guint layer)
{
    return protocol->has[RP_HOST_REDUCE]           ? RP_HOST_REDUCE
           : rp_protocol_is_early(protocol, layer) ? RP_HOST_LATE_STEP
           : protocol->has[RP_HOST_GRADIENT_COPY]  ? RP_HOST_GRADIENT_COPY
                                                   : RP_HOST_STEP;
}

/* W(iteration): with several servers, of this one's share of the weights. */
static inline guint32
rp_protocol_weight_writer(const RpProtocol *protocol, guint32 iteration, guint32 layer)
{
    return *rp_protocol_task(protocol, iteration, layer,
                             protocol->has[RP_HOST_PARAMETER_COPY] ? RP_HOST_PARAMETER_COPY
                                                                   : RP_HOST_STEP);
}

/* The task after which all of the new weights are there. */
static inline guint32
rp_protocol_publisher(const RpProtocol *protocol, guint32 iteration, guint32 layer)
{
    return protocol->has[RP_HOST_GATHER]
               ? *rp_protocol_task(protocol, iteration, layer, RP_HOST_GATHER)
               : rp_protocol_weight_writer(protocol, iteration, layer);
}

/* The layer that holds the matrix to which @layer is tied; RP_NONE. */
static inline guint
rp_protocol_tied_to(const RpVerifier *verifier, guint layer)
{
    return layer < verifier->n_layers ? rp_plan_layer(verifier->plan, layer)->tied_to : RP_NONE;
}

/* Fails if both tasks are there and @second may start before @first has ended. */
gboolean rp_protocol_check_follows(RpVerifier *verifier, RpRule rule, guint32 first, guint32 second,
                                   const char *text);

/* (1) to (4) and staleness, of uploads, downloads and sums. */
gboolean rp_protocol_check_transfers(RpProtocol *protocol);
