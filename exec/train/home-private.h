/**
 * What the home's files share.
 *
 *   home.c          life, places, weights in and out
 *   home-update.c   tasks of the host lanes: sums of rounds, norm, steps, copies
 */
#pragma once

#include "exec/optim/number.h"
#include "exec/train/home.h"

#define RP_HOME_NOWHERE G_MAXUINT64

/* A planned buffer of the host arena. */
typedef struct {
    guint64 offset; /* RP_HOME_NOWHERE: there is none */
    guint64 bytes;
} RpHomePlace;

typedef struct {
    guint64 own;     /* parameters that live here, gaps included */
    guint64 tied;    /* those behind them that live in another layer */
    guint tied_to;   /* which; RP_NONE */
    guint tied_from; /* layer whose last gradients are added to this one's; RP_NONE */
    RpHomePlace weight_place[2];
    RpHomePlace gradient_place;
    RpHomePlace optimizer_place;
    RpHomePlace copied_place;
    /* since rp_home_attach() */
    guint8 *weights[2]; /* [1]: NULL with a single version */
    guint8 *gradients;
    float *copied; /* blocking: the same in fp32; or NULL */
    float *master;
    RpOptimizerLayer *state;
} RpHomeLayer;

/* An iteration on its way. The caller's thread writes reference and targets before the tasks are
 * handed over that read them; the barrier writes the rest. */
typedef struct {
    guint64 reference;
    guint64 targets;
    gboolean decided;
    double multiplier; /* of the gradients as stored */
    RpUpdateReport report;
} RpHomeIteration;

struct _RpHome {
    const RpNetwork *network;
    RpUpdateOptions options;
    RpNumber number; /* storage of weights and gradients */
    gsize element_bytes;
    gboolean async;
    guint n_versions;
    guint n_layers;
    RpHomeLayer *layers;
    guint n_stages;
    RpInterval *stages;
    guint8 *memory;
    RpPool *pool;            /* of the optimizer's lane; NULL: its own thread alone */
    RpPool *accumulate_pool; /* of the other lane, which runs beside it */
    RpOptimizer *optimizer;
    double *sums;       /* [n_layers] of squares */
    guint rounds;       /* of an iteration */
    const void **added; /* [rounds]: the accumulate lane's: where the rounds of its task stand */
    RpHomeIteration ring[RP_HOME_RING];
    float scales[RP_HOME_RING]; /* loss scale of each iteration */
    RpUpdateState state;
    guint64 next_iteration;  /* to be decided */
    guint64 first_iteration; /* of the plan */
    guint64 steps_before;    /* it */
};

static inline RpHomeIteration *
rp_home_iteration(RpHome *home, guint64 iteration)
{
    return &home->ring[iteration % RP_HOME_RING];
}

/* Sets the loss scale of the iterations that the last update decides on. */
void rp_home_set_scale(RpHome *home, guint64 iteration, float scale);
/* Rounds a layer's full-precision weights into @published. */
void rp_home_publish(RpHome *home, guint layer, void *published);
