/**
 * One of several servers' shares of the layers: it steps those parameters, and keeps their state.
 *
 *   layer of n parameters   |--------|--------|--------|-----|     whole blocks (core/base/shard.h)
 *   server                      0        1        2       3
 *
 *   reduce   16-bit gradients of the other shares to their owners; those of the own share are added up
 *            in fp32, server by server and round by round: the sum that one server has of all rounds
 *   gather   new 16-bit weights of the own share to all others
 *
 * Blocks are those that sums of squares are made of: the norm has the same bits on any number of servers.
 * A tied matrix follows the shares of the layer that it belongs to.
 *
 * With no other servers a share is the whole layer, and nothing is sent.
 */
#pragma once

#include "core/base/shard.h"
#include "exec/optim/optimizer.h"
#include "exec/servers/servers.h"

/* Parameters of a layer that is trained. */
typedef struct {
    guint64 own;  /* parameters that live here, gaps included */
    guint64 tied; /* behind them in its gradients: those of layer @tied_to */
    guint tied_to;
} RpShareLayer;

typedef struct {
    RpServers *servers;
    guint n_layers;
    const RpShareLayer *layers; /* copied */
    guint n_rounds;             /* arrays that a gradient consists of */
    RpDtype gradient_dtype;     /* type of these; fp32 is rounded to @dtype before it is sent */
    RpDtype dtype;              /* type of weights, and of messages */
    guint n_numbers;            /* rp_shares_agree() */
} RpSharesOptions;

typedef struct _RpShares RpShares;

RpShares *rp_shares_new(const RpSharesOptions *options);
void rp_shares_free(RpShares *shares);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpShares, rp_shares_free)

/**
 * rp_shares_attach:
 * @reduced: [n_layers]: of each layer rp_shard_most() of its own parameters and as many of its tied ones;
 *   or %NULL
 * @squares: one for each block of all layers' own parameters, one layer after the other
 * @space: buffer for sent and received messages
 *
 * Sets the plan's memory, once, before anything is exchanged. All outlive the shares; not called
 * with one server.
 */
void rp_shares_attach(RpShares *shares, float *const *reduced, double *squares, void *space,
                      gsize space_bytes);

/* Floats of a layer's place in @reduced. */
guint64 rp_shares_reduced(const RpShares *shares, guint layer);

/* The share of server @rank of a layer's own parameters, and the own one. */
RpShard rp_shares_of(const RpShares *shares, guint layer, guint rank);
RpShard rp_shares_own(const RpShares *shares, guint layer);

/* Cuts spans of all of the layer's own parameters to the own share. (element-type RpParameterSpan)
 * (transfer full) */
GArray *rp_shares_cut_spans(const RpShares *shares, guint layer, const GArray *spans);

/**
 * rp_shares_reduce:
 * @optimizer: its variant of sums
 * @pool: (nullable): threads to use
 * @rounds: [n_rounds]: the layer's gradients of this server, tied ones behind the own
 *
 * All servers, for the same layers in the same order. Errors: those of rp_servers_exchange()
 */
gboolean rp_shares_reduce(RpShares *shares, RpOptimizer *optimizer, RpPool *pool, guint layer,
                          const void *const *rounds, RpServersChannel channel,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The sum of the own share, in fp32, until the layer is reduced again; @tied: that of the tied matrix. */
const float *rp_shares_sum(const RpShares *shares, guint layer, gboolean tied);

/**
 * rp_shares_gather_sum:
 * @values: (out): [n]: of the layer's own parameters [first, first + n) the sum of all servers, with that of
 *   a matrix that is tied to them
 *
 * All servers, of a layer that has been reduced; not of one server. Errors: those of rp_servers_exchange()
 */
gboolean rp_shares_gather_sum(RpShares *shares, guint layer, guint64 first, guint64 n,
                              RpServersChannel channel, float *values,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Sums of squares of the own share's blocks, of a layer that has been reduced, and the layer tied to it. */
void rp_shares_square(RpShares *shares, RpOptimizer *optimizer, guint layer);
/* Their sum: not finite if one of the share's gradients is not. */
double rp_shares_own_squares(const RpShares *shares, guint layer);

/**
 * rp_shares_agree:
 * @numbers: [n_numbers]: of this server, for all: any
 * @sums: (out): [n_layers]: of squares of all gradients, of which each server has made those of its share
 * @all: (out): [servers][n_numbers]
 *
 * Errors: those of rp_servers_exchange()
 */
gboolean rp_shares_agree(RpShares *shares, const double *numbers, RpServersChannel channel,
                         double *sums, double *all, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @weights: of the layer, from its first own parameter on. Errors: those of rp_servers_exchange() */
gboolean rp_shares_gather_weights(RpShares *shares, guint layer, void *weights,
                                  RpServersChannel channel,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The own share of a whole layer's state. */
RpOptimizerState rp_shares_cut(const RpShares *shares, guint layer, const RpOptimizerState *whole);
