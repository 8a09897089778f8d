/**
 * A closed model of what servers send each other in an iteration, behind one server's own trace
 * (docs/servers.md). Two lanes serve one job after the other: the network, first come first served,
 * and the optimizer in the order of the trace.
 *
 *   ready   |reduce 7|reduce 6| ...                  |gather 0|gather 1| ...       network
 *                             ... |norm|step 0|step 1| ...                         optimizer
 *
 * A step starts no sooner than in the trace, and when the gradients that it reads are reduced; the
 * norm when all are. A gather follows its step. Gradients must be reduced before the next iteration
 * writes theirs in their place, and weights be there when they are first uploaded; else every
 * iteration starts later.
 */
#pragma once

#include <glib.h>

/* Times from the iteration's start. */
typedef struct {
    gint64 ready_ns;  /* its gradients are complete */
    gint64 reuse_ns;  /* from its own iteration's start, the next one writes its gradients */
    gint64 need_ns;   /* the iteration that reads its new weights uploads them */
    gint64 reduce_ns; /* on the network; 0 and gather_ns 0: nothing of it is trained */
    gint64 gather_ns;
    gboolean reused; /* reuse_ns is known */
    gboolean needed; /* need_ns is known */
} RpExchangeLayer;

#define RP_EXCHANGE_ALL G_MAXUINT

/* A task of the optimizer's lane. */
typedef struct {
    gint64 start_ns;
    gint64 duration_ns;
    guint layer;     /* whose gradients it reads; RP_EXCHANGE_ALL: all, the norm */
    gboolean writes; /* the weights that are gathered */
} RpExchangeStep;

typedef struct {
    guint n_layers;
    const RpExchangeLayer *layers;
    guint n_steps;
    const RpExchangeStep *steps; /* in the order of the lane */
    gint64 norm_ns;              /* of the norm on the network */
    gboolean reuse_moves; /* gradients come once an iteration: in a longer one all come later */
    guint lag;            /* iterations from gradients to the iteration that reads their weights */
} RpExchange;

/* The network's time of all that is exchanged in an iteration. */
gint64 rp_exchange_busy_ns(const RpExchange *exchange);

/**
 * rp_exchange_period:
 * @alone_ns: of an iteration of one server without the network
 * @longer_ns: by so much iterations are longer than the trace's: gradients and steps come later
 *
 * Returns: ns from one iteration to the next, >= @alone_ns
 */
gint64 rp_exchange_period(const RpExchange *exchange, gint64 alone_ns, gint64 longer_ns);
