/**
 * Shared by the verifier's files. Private to core/verify/.
 *
 *   verify.c              entry, violations, which task belongs to which iteration
 *   rules/stages.c        the table of stages and their chunks
 *   grow.c                a plan that is proved as it grows
 *   reach.c               rule 3, then clocks: the order of any two tasks
 *   rules/buffers.c       rule 2, and which write each read sees
 *   rules/atoms.c         arenas cut at the borders of their buffers
 *   flow.c                the fate of a value
 *   rules/dataflow.c      rule 1: actions and transfers, each once
 *   rules/dataflow-values.c  rule 1: the values that travel between them
 *   rules/parameters.c    rule 4: parameters to the devices
 *   rules/residents.c     rule 4: parameters that stay on them
 *   rules/gradients.c     rule 4: gradients from them
 *   rules/layers.c        rules 1 and 4 where actions go in pieces
 *   rules/consistency.c   rule 5: the optimizer protocol
 *   rules/consistency-transfers.c  rule 5: uploads, downloads and sums
 *   rules/decision.c      rule 5: the norm, and who follows its decision
 *   rules/tables.c        rule 2: where layers, decisions and constants live
 *   expect.c              rule 2: accesses of each kind of task
 *   expect-saved.c        rule 2: the same of tensors that layers save
 *   expect-exchange.c     rule 2: the same of exchanges between servers
 *   rules/operands.c      rule 2: that it does
 *   rules/staleness.c     rule 5 in `compute` fidelity, where only actions are planned
 *   trace.c               traces
 *
 * Tasks are named by index: id - first_id.
 */
#pragma once

#include "core/verify/verify.h"

#define RP_NO_TASK G_MAXUINT32
/* A task that a growing plan has left behind: it was there, and is older than all that are held. */
#define RP_OLD_TASK (G_MAXUINT32 - 1)

/* Generations that one access found and left in its buffer: see rules/buffers.c. */
typedef struct {
    guint32 seen;   /* generation that a read finds */
    guint32 made;   /* generation that a write leaves */
    guint32 writer; /* last task that wrote before, RP_NO_TASK if none */
} RpContent;

typedef struct _RpSweep RpSweep;

/* A task that has left the window, but is the last that touched some buffer: tasks to come may wait
 * for it. */
typedef struct {
    RpTaskId id;
    guint32 lane;
    guint32 position;
    guint32 end_row;
} RpOldTask;

struct _RpVerifier {
    const RpPlan *plan;
    const RpPlanPromises *promises;
    RpViolation *violation;
    guint64 clock_bytes;
    RpTaskId first_id;
    const RpTask *tasks; /* the plan's; they lie one after the other */
    guint32 n_tasks;
    guint n_stages;
    guint n_layers;
    guint micro_batches;
    guint rounds;
    gboolean full;
    gboolean whole; /* nothing was retired, or all that was is known */

    /* a plan that grows: grow.c. Otherwise zeros: everything is new */
    const RpPlan *source; /* the plan that grows; `plan` holds its last iterations */
    RpPlan *window;       /* the same as `plan`, owned */
    guint32 first_new;    /* tasks before it have been seen one by one */
    guint32 first_dirty;  /* relative: iterations before it have been seen as a whole */
    guint32 first_flow;   /* the same, of actions and the values between them */
    guint pending;        /* 1: the optimizer of the last iteration is yet to be appended */
    GArray *old;          /* RpOldTask, by id */
    gboolean open;        /* calls of the last iteration are yet to be appended */
    guint32 open_iteration;

    /* iterations: tasks of iteration first_iteration + i are by_iteration[iteration_start[i]...] */
    guint32 first_iteration;
    guint32 n_iterations;
    guint32 complete_from; /* relative: first iteration of which nothing can have been retired */
    guint32 *iteration_start;
    guint32 *by_iteration;

    /* reachability */
    guint n_lanes;      /* lanes that hold a task; growing: all */
    gsize stride;       /* guint32 per clock */
    gsize max_tasks;    /* capacity of the tables of tasks */
    guint32 *dense;     /* [lane of the plan] index */
    guint32 *length;    /* [lane of the plan] tasks so far */
    guint32 *lane_row;  /* [dense lane] clock of its last task when it ends */
    guint32 *lane;      /* [task] dense index */
    guint32 *position;  /* [task] in its lane, from 1 */
    guint32 *start_row; /* [task] clock when it starts */
    guint32 *end_row;   /* [task] ... when it ends */
    guint32 *clocks;    /* [row * stride + lane] highest position that has ended */
    gsize n_rows;
    gsize max_rows;

    /* stages: which one runs a layer; [layer] */
    guint32 *forward_of;
    guint32 *backward_of;
    gboolean *trainable;
    guint64 *parameter_bytes; /* as the stages' chunks have them */
    guint64 *gradient_bytes;
    gboolean *claimed; /* [buffer] a table names it */
    guint n_claimed;   /* buffers there were then */

    /* contents: [access - first access of the plan] */
    guint64 first_access;
    gsize max_contents;
    RpContent *contents;
    RpSweep *sweep;
    RpRule race; /* a violation of rule 2, reported if no other rule says it better */
    guint32 race_first, race_second;
    char *race_text;
};

/* Whether a step writes weights of the layer's own. */
static inline gboolean
rp_verifier_is_stepped(const RpVerifier *verifier, guint layer)
{
    return rp_plan_layer(verifier->plan, layer)->weights[0] != RP_NONE;
}

static inline const RpTask *
rp_verifier_task(const RpVerifier *verifier, guint32 task)
{
    return &verifier->tasks[task];
}

static inline guint32
rp_verifier_device(const RpVerifier *verifier, guint32 task)
{
    return rp_plan_lane_device(verifier->plan, rp_verifier_task(verifier, task)->lane);
}

/* The content that access number @access of @task found and left. */
static inline const RpContent *
rp_verifier_content(const RpVerifier *verifier, const RpTask *task, guint access)
{
    return &verifier->contents[task->first_access - verifier->first_access + access];
}

/* @n times RP_NO_TASK, or RP_NONE; to be freed */
guint32 *rp_verify_new_table(gsize n);
void rp_verify_clear_table(guint32 *table, gsize n);

/* Whether gradients that come down are to be added up, on the host. */
static inline gboolean
rp_verifier_stages(const RpVerifier *verifier)
{
    return verifier->promises->wide_gradients && !verifier->promises->kept_sums;
}

/* Bytes of a gradient as it is downloaded. */
static inline guint64
rp_verifier_leaving_element(const RpVerifier *verifier)
{
    return verifier->promises->kept_sums ? sizeof(float) : verifier->promises->element_bytes;
}

/* Bytes of a micro-batch that cross the boundary before @layer. */
static inline guint64
rp_verifier_input_bytes(const RpVerifier *verifier, guint layer)
{
    return rp_plan_layer(verifier->plan, layer)->input_bytes;
}

/* Whether @first has ended whenever @second starts. */
static inline gboolean
rp_verifier_before(const RpVerifier *verifier, guint32 first, guint32 second)
{
    guint32 lane = verifier->lane[first];

    if (lane == verifier->lane[second])
        return verifier->position[first] < verifier->position[second];
    return verifier->clocks[verifier->start_row[second] * verifier->stride + lane] >=
           verifier->position[first];
}

/* Whether @first has ended whenever @second passes phase 1: its part after the recompute. */
static inline gboolean
rp_verifier_before_late(const RpVerifier *verifier, guint32 first, guint32 second)
{
    guint32 lane = verifier->lane[first];

    if (lane == verifier->lane[second])
        return verifier->position[first] < verifier->position[second];
    return verifier->clocks[verifier->end_row[second] * verifier->stride + lane] >=
           verifier->position[first];
}

/* Whether all that belongs to an iteration must be there: another has followed it. */
static inline gboolean
rp_verifier_is_past(const RpVerifier *verifier, guint32 iteration)
{
    return iteration + 1 + verifier->pending < verifier->n_iterations;
}

/* First iteration that is looked at as a whole. */
static inline guint32
rp_verifier_first_to_check(const RpVerifier *verifier)
{
    return MAX(verifier->complete_from, verifier->first_dirty);
}

/* The parts of an action: OVERLAP has two. */
typedef struct {
    guint32 stage;
    guint32 micro_batch;
    gboolean forward;  /* F, FB */
    gboolean backward; /* B, FB, I */
    gboolean weights;  /* makes weight gradients: B, FB, W */
    gboolean top;      /* runs the backward of the stage's last layer, if any */
    gboolean begins;   /* the first piece of the action; usually both begins and ends */
    gboolean ends;
} RpActionPart;

/* Returns: how many of @parts are filled in, 0 if @task is not an action */
guint rp_action_parts(const RpVerifier *verifier, const RpTask *task, RpActionPart parts[2]);

/* Whether the head's loss is made in the action: its backward, at once with its forward. */
gboolean rp_verifier_makes_loss(const RpVerifier *verifier, const RpTask *task);

/* An access that a task must have, or may. */
typedef struct {
    guint32 buffer; /* this one; RP_NONE: any that fits */
    guint16 role;
    guint16 mode;    /* RpAccessMode, or RP_MAY_ADD */
    gboolean device; /* in the task's device's arena, or the host's */
    gboolean optional;
    gboolean seen;
    guint categories; /* bits */
    guint64 bytes;
} RpExpected;
#define RP_MAY_ADD 4 /* writes, or reads and writes */

/* Fills @expected (RpExpected) for @task. */
void rp_verifier_expect(const RpVerifier *verifier, const RpTask *task, GArray *expected);
/* Adds its accesses to tensors that layers save. */
void rp_verifier_expect_saved(const RpVerifier *verifier, const RpTask *task, GArray *expected);
/* Adds the accesses that it has because there are several servers. */
void rp_verifier_expect_exchange(const RpVerifier *verifier, const RpTask *task, GArray *expected);
/* Whether layers may share a buffer of gradients: with several servers, where one's are reduced
 * before the other's arrive (rules/consistency-transfers.c proves it). */
static inline gboolean
rp_verifier_may_share(const RpVerifier *verifier)
{
    return verifier->promises->servers > 1 && !verifier->promises->async &&
           verifier->promises->rounds == 1;
}

/* Buffers of a layer's gradients that the norm and the steps read: none with several servers, but
 * the layer's share of their sum. */
static inline guint
rp_verifier_local_gradients(const RpVerifier *verifier)
{
    return verifier->promises->servers > 1 ? 0 : rp_plan_gradient_buffers(verifier->promises);
}

/* Sets the violation. The tasks are described and placed after the text. Returns: %FALSE */
gboolean rp_verifier_fail(RpVerifier *verifier, RpRule rule, guint32 first, guint32 second,
                          const char *format, ...) G_GNUC_PRINTF(5, 6);

/* Categories of buffers in which each kind of value travels, as bits. */
enum {
    RP_CARRY_ACTIVATIONS =
        1 << RP_BUFFER_ACTIVATIONS | 1 << RP_BUFFER_STASH | 1 << RP_BUFFER_WORKSPACE,
    RP_CARRY_PARAMETERS = 1 << RP_BUFFER_PARAMETERS,
    RP_CARRY_SUMS = 1 << RP_BUFFER_ACCUMULATORS,
    RP_CARRY_GRADIENTS =
        1 << RP_BUFFER_GRADIENTS | 1 << RP_BUFFER_ACCUMULATORS | 1 << RP_BUFFER_STAGING,
    RP_CARRY_OPTIMIZER = 1 << RP_BUFFER_OPTIMIZER
};

/* How many of the activation buffers that @producer wrote still hold it when @a or @b reads them.
 */
guint rp_verifier_outputs(const RpVerifier *verifier, guint32 producer, guint32 a, guint32 b);
/* A transported value: the role in which it is written, the role in which it is read, and its
 * categories. */
typedef struct {
    RpAccessRole from;
    RpAccessRole to;
    guint categories;
} RpCarriage;

/* Fails unless one reaches @consumer, saying where it was lost; @value: its name in words. */
gboolean rp_verifier_check_flow(RpVerifier *verifier, RpRule rule, guint32 producer,
                                guint32 consumer, RpCarriage carriage, const char *value);
/* The same of the value that access number @access of @consumer reads. */
gboolean rp_verifier_check_flow_into(RpVerifier *verifier, RpRule rule, guint32 producer,
                                     guint32 consumer, guint32 access, RpCarriage carriage,
                                     const char *value);

/* The old task of that id; %NULL: nothing is known of it. */
const RpOldTask *rp_verifier_old(const RpVerifier *verifier, RpTaskId id);

/* Forgets the first @n tasks. */
void rp_verifier_forget_clocks(RpVerifier *verifier, guint32 n);
void rp_verifier_forget_contents(RpVerifier *verifier, guint32 n);
/* @task after the first @n were forgotten. */
static inline guint32
rp_verifier_moved(guint32 task, guint32 n)
{
    if (task == RP_NO_TASK)
        return RP_NO_TASK;
    return task == RP_OLD_TASK || task < n ? RP_OLD_TASK : task - n;
}

void rp_verifier_free_sweep(RpSweep *sweep);
/* Frees everything but the verifier itself. */
void rp_verifier_clear(RpVerifier *verifier);
/* All steps of the proof. */
gboolean rp_verifier_prove(RpVerifier *verifier);

/* The steps of the proof, in order. */
gboolean rp_verify_deadlock(RpVerifier *verifier);
gboolean rp_verify_make_clocks(RpVerifier *verifier);
gboolean rp_verify_stages(RpVerifier *verifier);
gboolean rp_verify_places(RpVerifier *verifier);
gboolean rp_verify_accesses(RpVerifier *verifier);
gboolean rp_verify_dataflow(RpVerifier *verifier);
gboolean rp_verify_pieces(RpVerifier *verifier);
gboolean rp_verify_parameters(RpVerifier *verifier);
gboolean rp_verify_consistency(RpVerifier *verifier);
gboolean rp_verify_decisions(RpVerifier *verifier);
gboolean rp_verify_staleness(RpVerifier *verifier);
gboolean rp_verify_tables(RpVerifier *verifier);
gboolean rp_verify_operands(RpVerifier *verifier);
