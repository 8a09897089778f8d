/**
 * Resolve, plan, predict: what a plan is asked for; what that comes to once a profile is known; and
 * its plan in virtual time.
 */
#pragma once

#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/profile/cards.h"
#include "core/trace/trace.h"
#include "run/spec.h"
#include "sim/draws.h"
#include "sim/search/partition-cost.h"
#include "sim/steady-window.h"

/* More compute actions than this in one run are refused: they would take tens of gigabytes. */
#define RP_RUN_MAX_ACTIONS 50000000
#define RP_RUN_MAX_FULL_ACTIONS 5000000

/* Everything that a plan needs. */
typedef struct {
    RpPlanOptions options;
    RpPartition *partition;
    const char *partition_source; /* "given", "paper" or "simulated" */
    guint iterations;
    guint beside;           /* as in RpRunSpec */
    guint64 memory_bytes;   /* the same */
    gboolean steady;        /* asynchronous or `full`, with enough iterations: report the window */
    RpSteadyWindow window;  /* iterations that are needed for that, and which count */
    guint64 resident_bytes; /* frozen weights that stay on the device with the most of them */
    gint64 resident_ns;     /* with any: time of an iteration, and without them */
    gint64 streamed_ns;     /* 0: that does not fit */
    guint64 saved_bytes;    /* of a micro-batch, what forwards save */
    char *saved;            /* that, in words, or %NULL */
    gint64 saved_ns;        /* where that was chosen: time of an iteration, and without it */
    gint64 recomputed_ns;
    RpScheduleOps *given; /* the schedule, where it is a file's and this request's own; or %NULL */
    double noise;         /* of draws: sigma of log-normal times; 0 = the profile's spreads */
    RpSlow *slow;         /* of each device, or %NULL: the plan does not know of it, ... */
    RpProfile *slowed; /* ... unless it is made from this: dispatch to the GPU that is free first */
} RpRequest;
void rp_request_clear(RpRequest *request);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpRequest, rp_request_clear)

/* ---- what is too large (request/size.c). Errors: RP_RUN_ERROR_USAGE ---- */

/* Before there is a profile: that its prediction is not too large. */
gboolean rp_run_check_size(const RpRunSpec *run, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Memory that this process may still take: for RpRunSpec.memory_bytes, so that rows do not count each other twice. */
guint64 rp_run_memory_now(void);

/* Whether plan and trace of @request fit into the memory that there is: without it the system ends
 * the program without a word. */
gboolean rp_request_check_memory(const RpRequest *request,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- requests ---- */

/**
 * rp_request_resolve:
 * @profile: whose layers are divided
 *
 * Picks the partition and the round where none is given, checks everything.
 * Errors: RP_RUN_ERROR_USAGE, RP_PARTITION_ERROR_*, RP_SCHEDULE_ERROR_*, RP_PROFILE_ERROR_*
 */
gboolean rp_request_resolve(const RpRunSpec *run, const RpProfile *profile, RpRequest *request,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for a @request that has @run's options, of which nothing is chosen that forwards save. */
gboolean rp_request_resolve_plain(const RpRunSpec *run, const RpProfile *profile,
                                  RpRequest *request, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Frozen weights stay on devices where an iteration is predicted to take no longer. */
gboolean rp_request_choose_resident(const RpRunSpec *run, const RpProfile *profile,
                                    RpRequest *request, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The numbers that the request's schedule is made from. */
RpShape rp_request_shape(const RpRequest *request);

/* How many iterations it takes to see an asynchronous one, or a synchronous one with its optimizer, and
 * which of them count: options.async, iterations, window and steady. */
void rp_request_time(RpRequest *request, gboolean async);

/* The mean period of steady iterations, or of all, with the last task. */
gint64 rp_request_iteration_ns(const RpRequest *request, const RpTrace *trace);

/* "early" or "gated": when recompute may begin; "none": nothing is made again. */
const char *rp_request_recompute(const RpRequest *request);

/* Plans and simulates a request. @plan: (out) (optional). */
RpTrace *rp_request_simulate(const RpRequest *request, const RpProfile *profile, RpPlan **plan,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_request_spread:
 * @least_ns: (out): time of an iteration, steady if the request is, with every layer's time less its
 *   spread; 0: the profile has no spreads
 * @most_ns: (out): the same with that more
 *
 * Between the two lies the predicted time, as far as the profile's measurements go.
 * Errors: those of rp_request_simulate()
 */
gboolean rp_request_spread(const RpRequest *request, const RpProfile *profile, gint64 *least_ns,
                           gint64 *most_ns, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* How times of a run are distributed, over draws of the profile's spreads (sim/draws.h). */
typedef struct {
    guint draws;
    guint64 seed;
    RpDrawn makespan_ns;
    RpDrawn iteration_ns; /* steady if the request is */
    RpDrawn bubble_ratio; /* the same */
} RpRequestDrawn;

/**
 * rp_request_draw:
 * @draws: > 0
 * @drawn: (out): set on success
 *
 * One plan, simulated @draws times, with other times of its actions each time.
 * Errors: those of rp_request_simulate()
 */
gboolean rp_request_draw(const RpRequest *request, const RpProfile *profile, guint draws,
                         guint64 seed, RpRequestDrawn *drawn,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
