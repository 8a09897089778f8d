/**
 * Plans to be broken: a plan taken apart into plain values, changed, and put together again through
 * rp_plan_append().
 *
 * Dependencies in a draft name draft tasks by index, so that tasks may be moved, dropped or
 * doubled: a dependency follows the task it names, and one on a dropped task is left out.
 */
#pragma once

#include "core/plan/planner.h"
#include "core/verify/verify.h"

typedef struct {
    RpTask task;
    GArray *dependencies; /* RpDependency; .task is an index into RpPlanDraft.tasks */
    GArray *accesses;     /* RpAccess */
    gboolean dropped;
} RpDraftTask;

typedef struct {
    guint gpus;
    guint n_layers;
    guint micro_batches;
    RpFidelity fidelity;
    RpPlanTables tables; /* owned */
    GArray *stages;      /* RpPlanStage, owning their chunk tables */
    GArray *buffers;     /* RpBuffer */
    GPtrArray *tasks;    /* RpDraftTask */
    GArray *order;       /* guint: in which order they are appended */
} RpPlanDraft;

/* @plan: nothing of it retired */
RpPlanDraft *rp_plan_draft_new(RpPlan *plan);
void rp_plan_draft_free(RpPlanDraft *draft);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPlanDraft, rp_plan_draft_free)

/* The plan as it now stands. */
RpPlan *rp_plan_draft_build(const RpPlanDraft *draft);

/* Verifies the plan as it now stands. */
gboolean rp_plan_draft_verify(const RpPlanDraft *draft, RpViolation *violation);

RpDraftTask *rp_plan_draft_task(const RpPlanDraft *draft, guint index);
RpPlanStage *rp_plan_draft_stage(const RpPlanDraft *draft, guint stage);
RpDependency *rp_plan_draft_dependency(const RpPlanDraft *draft, guint index, guint which);
RpAccess *rp_plan_draft_access(const RpPlanDraft *draft, guint index, guint which);

/* The two change places; tasks between them stay. */
void rp_plan_draft_swap(RpPlanDraft *draft, guint a, guint b);
/* @task is appended right behind @other. */
void rp_plan_draft_move_behind(RpPlanDraft *draft, guint task, guint other);
/* Appends a copy right behind @index. Returns: its index */
guint rp_plan_draft_duplicate(RpPlanDraft *draft, guint index);

/* The @nth task (from 0) of @kind in @iteration; RP_NONE if there are fewer. */
guint rp_plan_draft_find(const RpPlanDraft *draft, RpTaskKind kind, guint32 iteration, guint nth);
/* The first access of @index with all of @mode to a buffer of @category in a device's (or the
 * host's) arena; RP_NONE. */
guint rp_plan_draft_find_access(const RpPlanDraft *draft, guint index, guint32 mode,
                                RpBufferCategory category, gboolean host);

/* Whether the two tasks access a buffer in common that one of them writes. */
gboolean rp_plan_draft_conflict(const RpPlanDraft *draft, guint a, guint b);

/* Whether the head's matrix is the embedding's; then all of the head is trained, that matrix alone, or all
 * but it. */
typedef enum { RP_TEST_UNTIED, RP_TEST_TIED, RP_TEST_TIED_ALONE, RP_TEST_TIED_FROZEN } RpTestTied;

/* A test's request to the planner. */
typedef struct {
    const char *schedule;
    guint gpus;
    guint stages; /* bound: stages of all devices; dispatched: forward stages, and backward ones +
                     1; 0 = one fused stage of all layers */
    guint micro_batches;
    guint round; /* 0 = micro_batches */
    RpFidelity fidelity;
    gboolean async;
    gboolean early;
    gboolean blocking;
    gboolean lean;
    gboolean naive;
    guint64 token_bytes; /* input of layer 0 */
    guint iterations;    /* 0: only the planner, nothing appended */
    guint calls;         /* in an iteration; 0 = 1 */
    RpTestTied tied;
    gboolean resumed;     /* older weights than the first iteration's exist */
    gboolean at_once;     /* a layer steps as soon as its gradient is on the host */
    gboolean apart;       /* rounds are kept apart on the host where that is cheaper */
    gboolean forward;     /* forward alone */
    gboolean packed;      /* blocks are uploaded in few bits */
    gboolean early_steps; /* synchronous: weights are written before the norm is known */
    guint64 resident;     /* limit up to which frozen weights stay; all but 1024 bytes a block is */
    guint saved;          /* groups of tensors that forwards save */
    guint servers;        /* 0 = 1 */
} RpTestPlan;

/* A profile with small sizes, of which no two layers are alike. */
RpProfile *rp_test_profile(guint n_layers, guint64 token_bytes);
/* Makes the head's matrix the embedding's; the head keeps 1024 bytes of its own. */
void rp_test_tie(RpProfile *profile, RpTestTied tied);
/* Makes the blocks packed, and their own bytes frozen but for 1024. */
void rp_test_pack(RpProfile *profile);
/* All of the layers is frozen but 1024 bytes of each block. */
void rp_test_freeze(RpProfile *profile);
/* Sets the tensors that blocks may save: attention of all but every third, gate and up of some. */
void rp_test_save(RpProfile *profile);
/* rp_test_profile() with everything that @test sets. */
RpProfile *rp_test_profile_of(const RpTestPlan *test);
/* Layers that make every stage of @test hold at least one. */
guint rp_test_n_layers(const RpTestPlan *test);
/* NULL if the schedule does not take the shape. @profile must outlive it. */
RpPlanner *rp_test_planner(const RpTestPlan *test, const RpProfile *profile);
/* NULL if the schedule does not take the shape. */
RpPlan *rp_test_plan(const RpTestPlan *test);

RpPlanDraft *rp_test_draft(const RpTestPlan *test);

/* [first * n + second] = whether the first of n tasks has ended when the second starts (1) or ends
 * (2). Every dependency must name an earlier task. (transfer full) */
guint8 *rp_test_reach_matrix(const RpPlan *plan);

/* Whether @task happens before @other starts (@late: ends), by walking back along the edges, one of
 * which, number @without of @other, is thought away (RP_NONE: none). Slow, and written without a
 * look at the verifier. */
gboolean rp_test_reaches(const RpPlan *plan, RpTaskId task, RpTaskId other, gboolean late,
                         guint without);
