/**
 * Tiny plans by hand: a fixture that owns a plan, its trace and its machine, and one-line tasks.
 */
#pragma once

#include "tests/rp-test.h"

#include "sim/simulate.h"

#define BYTE_PER_NS 1e9

typedef struct {
    RpPlan *plan;
    RpTrace *trace;
    RpMachine machine;
    GError *error;
} Fixture;

/* Dependencies of a task: AFTER({.task = a}, {.task = b, .hop_ns = 5}), or AT_ONCE. */
#define AFTER(...)                                                                                 \
    (const RpDependency[]){__VA_ARGS__},                                                           \
        sizeof((const RpDependency[]){__VA_ARGS__}) / sizeof(RpDependency)
#define AT_ONCE NULL, 0

int set_up(void **state);
int tear_down(void **state);

/* Makes an empty plan; what the fixture held is freed. */
void begin(Fixture *f, guint gpus, RpFidelity fidelity);
/* A full plan on a machine of one byte per nanosecond and direction, no other limit. */
void begin_full(Fixture *f, guint gpus);

/* A task that is part of nothing: no stage, no micro-batch. */
RpTask make_task(RpTaskKind kind, guint32 lane);

RpTaskId compute(Fixture *f, guint device, gint64 duration_ns, const RpDependency *after, gsize n);
/* A backward whose first @lead_ns are recompute. */
RpTaskId backward(Fixture *f, guint device, gint64 duration_ns, gint64 lead_ns,
                  const RpDependency *after, gsize n);
/* A transfer of the lane's usual kind. */
RpTaskId copy(Fixture *f, guint device, RpLaneKind kind, guint64 bytes, const RpDependency *after,
              gsize n);
RpTaskId host(Fixture *f, RpTaskKind kind, guint64 bytes, const RpDependency *after, gsize n);

/* Simulates the plan on the machine, which must work. */
void simulate(Fixture *f);
/* The simulation must end in a deadlock; its message must contain @part. */
void assert_deadlock(Fixture *f, const char *part);

const RpTraceRecord *record_of(const Fixture *f, RpTaskId id);
void assert_same_records(const RpTrace *a, const RpTrace *b);

#define assert_times(f, id, start, end)                                                            \
    do {                                                                                           \
        assert_int_equal(record_of((f), (id))->task, (id));                                        \
        assert_int_equal(record_of((f), (id))->start_ns, (start));                                 \
        assert_int_equal(record_of((f), (id))->end_ns, (end));                                     \
    } while (0)
