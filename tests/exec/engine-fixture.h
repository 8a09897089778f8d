/**
 * Shared by the engine's tests: a fixture that owns a plan and its engine, small profiles, and
 * one-line tasks.
 */
#pragma once

#include "tests/rp-test.h"

#include "core/plan/planner.h"
#include "core/schedules/schedule.h"
#include "core/verify/verify.h"
#include "exec/engine/engine.h"
#include "tests/exec/manual-backend.h"

typedef struct {
    RpPlan *plan; /* made by hand; %NULL with a planner */
    RpProfile *profile;
    RpPartition *partition;
    RpPlanner *planner;
    ManualBackend *manual;
    RpBackend *replay;
    RpEngine *engine;
    RpTrace *trace;
    RpViolation violation;
    GError *error;
} Fixture;

int set_up(void **state);
int tear_down(void **state);
/* Frees everything but the fixture itself. */
void clear(Fixture *f);

/* An empty plan and a manual backend. */
void begin(Fixture *f, guint gpus);
void start_engine(Fixture *f, const RpEngineOptions *options);
void append_batch(Fixture *f);
/* Runs all appended tasks to their end, takes the trace, verifies it. */
void finish(Fixture *f);

/* Appends a task. */
#define AFTER(...)                                                                                 \
    (const RpDependency[]){__VA_ARGS__},                                                           \
        sizeof((const RpDependency[]){__VA_ARGS__}) / sizeof(RpDependency)
#define AT_ONCE NULL, 0
RpTaskId add(Fixture *f, RpTaskKind kind, guint32 lane, gint64 lead_ns,
             const RpDependency *dependencies, gsize n);

/* Random tasks on random lanes, with random edges to earlier ones. */
void add_random_tasks(Fixture *f, GRand *random, guint n);

/* A planner for @blocks equal blocks. @rounds > 1: only roundpipe. FALSE: the schedule refuses the
 * shape. */
gboolean make_planner(Fixture *f, const RpPlanOptions *options, guint blocks);
void plan_iteration(Fixture *f);

const RpTraceRecord *record_of(const Fixture *f, RpTaskId id);
