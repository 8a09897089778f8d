/**
 * Orders: which actions each rank runs, one after the other, read from a PyTorch pipeline CSV, a
 * plan or a trace; and the plan that runs an order.
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"
#include "core/schedules/schedule.h"
#include "core/trace/trace.h"

#define RP_PYTORCH_MAX_ROWS 65536u
#define RP_PYTORCH_MAX_CELLS (1u << 24)
#define RP_PYTORCH_MAX_INDEX (1u << 24) /* a stage or a micro-batch is below it */

#define RP_IMPORT_ERROR (rp_import_error_quark())
GQuark rp_import_error_quark(void);

typedef enum {
    RP_IMPORT_ERROR_SYNTAX, /* a cell that is not an action */
    RP_IMPORT_ERROR_LIMIT,  /* too many rows or cells, too large a number */
    RP_IMPORT_ERROR_ORDER   /* an action twice or missing, a stage on two ranks, costs that do not
                               suit */
} RpImportError;

/* Cells that do not compute. */
typedef enum {
    RP_COMMUNICATION_SEND_F,
    RP_COMMUNICATION_RECV_F,
    RP_COMMUNICATION_SEND_B,
    RP_COMMUNICATION_RECV_B,
    RP_COMMUNICATION_UNSHARD,
    RP_COMMUNICATION_RESHARD,
    RP_COMMUNICATION_REDUCE_GRAD,
    RP_N_COMMUNICATIONS
} RpCommunicationKind;

typedef struct {
    guint32 stage;
    guint32 micro_batch; /* RP_NONE: the whole stage */
    guint32 cell;        /* in its row, from 1 */
    guint32 position;    /* actions of the row that stand before it */
    guint8 kind;         /* RpCommunicationKind */
} RpCommunication;

/* One row of actions for each rank. */
typedef struct {
    char *name; /* for messages: the file */
    guint n_ranks;
    GArray **ranks; /* (element-type RpAction) */
    GArray **cells; /* (element-type guint32): the cell of each action in its row, from 1 */
    guint32 *lines; /* a schedule file's, [rank], its cells are columns; %NULL: a CSV's rows */
    GArray **communications; /* (element-type RpCommunication): the other cells of each row */
    guint n_stages;          /* highest stage of an action + 1 */
    guint micro_batches;     /* highest micro-batch of an action + 1 */
} RpOrders;

RpOrders *rp_orders_new(const char *name, guint n_ranks);
void rp_orders_free(RpOrders *orders);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpOrders, rp_orders_free)

void rp_orders_append(RpOrders *orders, guint rank, const RpAction *action, guint32 cell);
/* Whether both run the same actions in the same order; names and cells do not matter. */
gboolean rp_orders_equal(const RpOrders *a, const RpOrders *b);
guint64 rp_orders_n_actions(const RpOrders *orders);
guint64 rp_orders_n_communications(const RpOrders *orders);
/* "3F0", "(0F7;7B3)OVERLAP_F_B" (transfer none, into @text) */
void rp_action_format(GString *text, const RpAction *action);
static inline const RpAction *
rp_orders_action(const RpOrders *orders, guint rank, guint i)
{
    return &g_array_index(orders->ranks[rank], RpAction, i);
}
/* As the file has it (transfer none, into @text). */
void rp_orders_format(const RpOrders *orders, GString *text, const RpAction *action);
/* "`3B0` (row 2, cell 7)", "`B3.0` (line 2, column 7)" (transfer full) */
char *rp_orders_describe(const RpOrders *orders, guint rank, guint i);
/* "0SEND_F1", "3UNSHARD" (transfer none, into @text) */
void rp_communication_format(GString *text, const RpCommunication *communication);

/* The compute actions of one iteration. */
RpOrders *rp_orders_from_plan(const RpPlan *plan, guint iteration);
RpOrders *rp_orders_from_trace(const RpTrace *trace, guint iteration);

typedef enum {
    /* Files of older PyTorch: B is the input gradient, BW the full backward, and there is no I. */
    RP_PYTORCH_OLD_NAMES = 1
} RpPytorchFlags;

/* Guesses the flags from the text: a W without any I means that the names are the older ones. */
guint rp_pytorch_flags_of(const char *text, gsize length);

/**
 * rp_orders_import_pytorch:
 * @name: file name for messages
 * @text: @length bytes; lines end in LF or CRLF
 * @flags: RpPytorchFlags, or 0
 *
 * Row r is rank r; a cell is `<stage><action><micro-batch>`, or empty (idle); spaces around a cell
 * do not matter. UNSHARD, RESHARD, REDUCE_GRAD, SEND_F, RECV_F, SEND_B and RECV_B are kept as
 * communications, for rp_orders_check_communications(). An overlap of the forward and backward of
 * one stage and micro-batch is a fused action.
 *
 * Errors: RP_IMPORT_ERROR_SYNTAX, RP_IMPORT_ERROR_LIMIT, with file, row, cell, the expected
 * and the found text
 */
RpOrders *rp_orders_import_pytorch(const char *name, const char *text, gsize length, guint flags,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Times of a stage's actions. */
typedef struct {
    gint64 forward_ns;
    gint64 backward_ns;       /* recompute included */
    gint64 input_gradient_ns; /* recompute included */
    gint64 weight_gradient_ns;
    gint64
        recompute_ns; /* leading part of B and I that does not wait for the gradient; 0 = gated */
} RpStageCost;

typedef struct {
    const RpStageCost *stages;
    guint n_stages;    /* 1 = every stage costs the same */
    guint32 hop_ns;    /* between different ranks */
    gint64 overlap_ns; /* an F and B as one action; 0 = the sum of the two */
} RpOrderCosts;

/**
 * rp_plan_from_orders:
 *
 * A plan in `compute` fidelity with one iteration. F(s,m) waits for F(s-1,m); B or I(s,m) for its
 * own F and for B or I(s+1,m); W for its I; plus a hop between different ranks.
 *
 * With fused actions the order is a dispatched one (RoundPipe): stages are slots, those before the
 * fused stage forward and those behind it backward, and B(s,m) waits for slot s-1. A fused action
 * takes forward_ns + backward_ns - recompute_ns. The layers of the slots are not in the order:
 * every forward slot is given as many layers as there are backward slots behind the fused one, and
 * the opposite, so that both sides hold the same number. Rounds are the longest equal
 * runs of micro-batches in which no slot moves to another rank.
 *
 * Every stage from 0 on must run every micro-batch from 0 on: one F, and one B or one I and one W
 * unless the whole order is forward only. Without fused actions all of a stage runs on one rank.
 * The verifier proves the plan correct, except a forward-only one, which it takes for incomplete.
 *
 * Errors: RP_IMPORT_ERROR_ORDER with row and cell, RP_SCHEDULE_ERROR_DEADLOCK naming two actions
 * that wait for each other
 */
RpPlan *rp_plan_from_orders(const RpOrders *orders, const RpOrderCosts *costs,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The result of checking an order's communications. */
typedef struct {
    guint64 transfers; /* pairs of a send and a receive */
    guint rank_pairs;  /* ranks that send to each other */
    guint64 unshards;
    guint reductions;
} RpCommunicationProof;

/**
 * rp_orders_check_communications:
 * @orders: orders for which rp_plan_from_orders() made a plan
 * @proof: (out): set on success only; all 0 if the order has no communications, which PyTorch then
 *   adds itself
 *
 * Where there is one SEND or RECV, there must be all: for each F(s,m) whose next stage is on
 * another rank a SEND_F(s,m) behind it and a RECV_F(s+1,m) before F(s+1,m), and backward as well.
 * The k-th transfer of one rank with another is the k-th of the other with the one: a pair of ranks
 * has one channel, which keeps its order. A receive is over after its send; sends do not wait. So
 * run, every row must come to its end.
 *
 * Where there is one UNSHARD or RESHARD, every action of a stage stands between an UNSHARD and a
 * RESHARD of it; both alternate, with an action between. Where there is one REDUCE_GRAD, each
 * stage has one, behind its last backward.
 *
 * Errors: RP_IMPORT_ERROR_ORDER with row and cell, RP_SCHEDULE_ERROR_DEADLOCK naming the transfers
 * that wait for each other
 * Source: torch.distributed.pipelining.schedules, `_simulate_comms_compute` and the checks of
 * `_PipelineScheduleRuntime`
 */
gboolean rp_orders_check_communications(const RpOrders *orders, RpCommunicationProof *proof,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
