/**
 * Advice: what will happen if a model is trained on these GPUs with this host memory, sequence
 * length and batch. Every number is a plan's: its arenas for memory, its simulation in `full`
 * fidelity for time. Each part has a file of its own, sim/advise/.
 */
#pragma once

#include <glib.h>

#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/preference.h"
#include "core/catalogue/server-network.h"
#include "core/plan/planner.h"
#include "core/profile/box.h"
#include "core/schedules/schedule.h"
#include "sim/draws.h"

#define RP_ADVISE_ERROR (rp_advise_error_quark())
GQuark rp_advise_error_quark(void);

typedef enum {
    RP_ADVISE_ERROR_QUERY /* numbers that do not go together; names both */
} RpAdviseError;

/* Sequence lengths are tried in steps of so many tokens. */
#define RP_ADVISE_SEQUENCE_STEP 64

/**
 * RpAdviseSizes:
 * @make: (transfer full): sizes of micro-batches of @sequences of @tokens; times are not read
 * @most_tokens: of a sequence, that @make takes
 * @max_positions: of the model
 * @host_devices: devices are threads, their arenas count in host memory
 *
 * Sizes of the program that will run, in place of the cost model's.
 */
typedef struct {
    RpProfile *(*make)(guint sequences, guint tokens, gpointer user_data);
    gpointer user_data;
    guint most_tokens;
    guint max_positions;
    gboolean host_devices;
} RpAdviseSizes;

/* The question. Everything is borrowed. */
typedef struct {
    const RpModel *model; /* with @gpu; %NULL with @profile */
    const RpGpu *gpu;
    const RpGpu *const
        *cards;               /* (nullable): where there are several kinds, @gpu being that with the
                                  least memory */
    const guint *card_of;     /* [gpus] index into @cards */
    const char *box;          /* these in words: "2 x RTX 4090 + 2 x RTX 3090" */
    const RpProfile *profile; /* measured or published times; fixes the micro-batch */
    const RpProfile *measured_box; /* (nullable): whose links, host and optimizer stand in for those
                                      that come with @gpu */
    guint known;                   /* bits, 1 << RpUnknown: what somebody measured or gave */
    const RpAdviseSizes *sizes;    /* %NULL = the profile's, or the cost model's */
    guint gpus;
    guint64 gpu_bytes;              /* that a plan may use on each device; 0 = not checked */
    guint64 host_bytes;             /* 0 = not checked */
    guint tokens_per_sequence;      /* with @profile: the file's */
    guint sample_tokens;            /* as RpWorkload; not with @profile */
    guint batch;                    /* sequences of an iteration, of one server */
    guint servers;                  /* that step a share of each layer each; 0 = 1 */
    const RpServerNetwork *network; /* between them; %NULL: as @profile has it */
    guint micro_batch;              /* sequences; 0 = chosen */
    guint micro_batches;            /* 0 = chosen */
    guint round;                    /* M_R; 0 = chosen */
    gboolean sync;
    const char *dtype; /* as RpWorkload */
    const char *accumulate;
    gboolean fp8, fp8_head; /* as RpWorkload */
    guint lora_rank;
    char **lora_targets;
    const char *base;
    RpCostEstimate estimate; /* of the cost model's times */
    RpOptimizerMode optimizer;
    RpStateFormat form;
    RpResidentChoice resident;
    RpSaveChoice save;
    RpPreference preference; /* all places have a target; sft: none is learned */
    RpSavedChoice saved;     /* set by the advisor */
    gboolean quick;          /* the speed that it has at least is enough, not its last percent */
} RpAdviseQuery;

/* An arena, or what it would have to be. */
typedef struct {
    guint64 total;
    guint64 categories[RP_N_BUFFER_CATEGORIES];
} RpAdviseBytes;

/* The resource that devices wait for, if any. */
typedef enum {
    RP_ADVISE_WAITS_LITTLE,    /* at most 3 % of the time */
    RP_ADVISE_WAITS_OPTIMIZER, /* the host's steps take as long as an iteration, or end it */
    RP_ADVISE_WAITS_SUMS,      /* the same of the sums of rounds' gradients */
    RP_ADVISE_WAITS_UPLOADS,   /* a device's link is busy all the time */
    RP_ADVISE_WAITS_DOWNLOADS,
    RP_ADVISE_WAITS_NETWORK, /* between servers */
    RP_ADVISE_WAITS_STAGES   /* for each other: uneven stages, first and last micro-batches */
} RpAdviseWaits;

/* One way to train, fitting or not. */
typedef struct {
    RpPlanOptions options;  /* full fidelity; round is definite */
    guint sequences;        /* of a micro-batch */
    RpSavedChoice saved;    /* by its forwards */
    gboolean scored;        /* a reference scores the batches of each step */
    RpPartition *partition; /* %NULL: none was found, or the schedule refuses */
    RpAdviseBytes gpu;      /* the fullest device */
    RpAdviseBytes host;
    guint64 gpu_over_bytes; /* by how much it exceeds the limit; 0 = fits or not checked */
    guint64 host_over_bytes;
    guint64 resident_bytes; /* frozen weights that stay on the fullest GPU */
    double
        streamed_tokens_per_s; /* of a recommendation with any: the fastest without; 0 = unknown, or
                                     nothing fits */
    guint64 saved_bytes;       /* of a micro-batch, what forwards save */
    double
        recomputed_tokens_per_s; /* of a recommendation with any: the fastest without; 0 = unknown */
    double one_group_tokens_per_s; /* of a recommendation in several groups: of the best in one */
    gboolean weights_too_large;    /* a smaller micro-batch would not help */
    char *problem;                 /* why it does not run; %NULL: it does */
    double gap;         /* by how much its bound is too fast, as a search found; 0 = unknown */
    gboolean finished;  /* its partition was searched longer */
    gboolean simulated; /* the figures below are set */
    guint simulated_micro_batches; /* fewer than there are: a long iteration was cut, and scaled */
    gint64 step_ns;                /* one iteration, in steady state */
    gint64 floor_ns;               /* what the busiest resource has to do meanwhile; 0 = unknown */
    double bubble_ratio;
    double tokens_per_s; /* 0 if the profile gives no tokens */
    double
        bound_tokens_per_s; /* without any transfer (`compute` fidelity), before a simulation at most; 0 =
                                  unknown */
    RpAdviseWaits waits;   /* of a simulated run */
    gint64 optimizer_ns;   /* of a simulated iteration: the host's steps */
    gint64 network_ns;     /* the same: what servers send each other, ... */
    guint64 network_bytes; /* ... each of them */
} RpAdviseRun;

void rp_advise_run_free(RpAdviseRun *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpAdviseRun, rp_advise_run_free)

/* The changes of a remedy, a bit each. */
typedef enum {
    RP_ADVISE_CHANGE_ROUND = 1 << 0,
    RP_ADVISE_CHANGE_MICRO_BATCH = 1 << 1, /* to 1 sequence */
    RP_ADVISE_CHANGE_LEAN = 1 << 2,        /* one version of the weights in host memory */
    RP_ADVISE_CHANGE_SYNC = 1 << 3,        /* synchronous steps: that, and one round's stash */
    RP_ADVISE_CHANGE_STATES = 1 << 4,      /* int8 moments and bf16 masters */
    RP_ADVISE_CHANGE_BATCH = 1 << 5,
    RP_ADVISE_CHANGE_SEQUENCE = 1 << 6,
    RP_ADVISE_CHANGE_HOST_MEMORY = 1 << 7, /* in whole GiB */
    RP_ADVISE_CHANGE_GPU = 1 << 8,
    RP_ADVISE_CHANGE_ADAPTERS = 1 << 9,  /* trained in place of all weights; has other sizes, which
                                           the caller of rp_advise() knows */
    RP_ADVISE_CHANGE_BASE = 1 << 10,     /* the same; frozen weights in NF4 */
    RP_ADVISE_CHANGE_REFERENCE = 1 << 11 /* scored before the first step, without a copy */
} RpAdviseChange;

/* Changes that together make a query fit, and of which none can be left out; planned, not
 * guessed. */
typedef struct {
    guint changes;       /* RpAdviseChange */
    RpAdviseQuery query; /* with the changes; not where other sizes are needed */
    double tokens_per_s; /* of the plan that is recommended then; 0 = unknown */
    guint64 gpu_total;   /* bytes, of this plan; or of the one that needs least */
    guint64 host_total;
} RpAdviseRemedy;

/* The longest sequence at micro-batch 1. */
typedef struct {
    gboolean known;     /* FALSE with a timing file, which has sizes for one length only */
    guint tokens;       /* 0: not even one step fits */
    gboolean unlimited; /* stopped at the longest that the sizes are known of */
    guint max_positions;
    gboolean host_limited;    /* one step more: host memory (else device memory) is too small */
    RpBufferCategory largest; /* largest category of the arena that is too small then */
    RpAdviseBytes gpu;        /* at @tokens */
    RpAdviseBytes host;
    guint micro_batches;     /* M = M_R that @host is for */
    GArray *forward_blocks;  /* (element-type guint) of each stage, at @tokens; or %NULL */
    GArray *backward_blocks; /* the fused stage first */
} RpAdviseLongest;

void rp_advise_longest_clear(RpAdviseLongest *longest);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpAdviseLongest, rp_advise_longest_clear)

typedef struct {
    RpAdviseQuery query;   /* as planned: @gpus may be fewer than asked for */
    guint gpus_asked;      /* > query.gpus: the others would not help */
    gboolean fewer_faster; /* because fewer are as fast; else the batch has too few micro-batches */
    guint batch_asked;     /* < query.batch: it divides into one long round only */
    RpProfile *profile;    /* of @best, or of @nearest */
    GPtrArray *finalists;  /* (element-type RpAdviseRun) all that were simulated and fit */
    GPtrArray *candidates; /* (element-type RpAdviseRun) roundpipe by micro-batch, ascending */
    guint untried;         /* micro-batches that fit but are slower before any transfer */
    const RpAdviseRun *best; /* of @candidates; %NULL: nothing fits */
    const RpAdviseRun
        *faster;          /* of @finalists, but no more than RP_ADVISE_AS_FAST says; or %NULL */
    RpAdviseRun *nearest; /* without @best: the plan with the least memory */
    GPtrArray *schedules; /* (element-type RpAdviseRun) bound schedules, roundpipe sync and async */
    const RpAdviseRun *instead; /* without @best: the fastest of @schedules that fits; or %NULL */
    GPtrArray *remedies;        /* (element-type RpAdviseRemedy) without @best */
    RpAdviseLongest longest;
} RpAdvice;

void rp_advice_free(RpAdvice *advice);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpAdvice, rp_advice_free)

/**
 * rp_advise:
 * @schedules: (array zero-terminated=1): rows of the table of schedules
 *
 * Recommends the micro-batch, M_R and partition with which roundpipe trains fastest within the
 * memory there is, and sets every schedule beside it. Not fitting is an answer, not an error.
 *
 * Returns: (transfer full)
 * Errors: RP_ADVISE_ERROR_QUERY, RP_COST_MODEL_ERROR_WORKLOAD, RP_PROFILE_ERROR_FIDELITY
 */
RpAdvice *rp_advise(const RpAdviseQuery *query, const RpScheduleOps *const *schedules,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_advise_price_remedies:
 *
 * Plans the speed of @advice's first remedies, which takes as long as an answer for each, and sorts all
 * by it.
 *
 * Errors: as rp_advise()
 */
gboolean rp_advise_price_remedies(RpAdvice *advice, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_advise_longest:
 * @query: micro-batch and sequence length are not read; with sizes nor model and GPU
 * @longest: (out): to be cleared
 *
 * The most tokens of a sequence, a multiple of RP_ADVISE_SEQUENCE_STEP, whose exact arenas fit at
 * micro-batch 1 and @query's batch, or without one at M = M_R = N (or @query's round). The
 * positions that the model was made for are no limit here.
 *
 * Errors: RP_COST_MODEL_ERROR_WORKLOAD
 */
gboolean rp_advise_longest(const RpAdviseQuery *query, RpAdviseLongest *longest,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- one plan at a time ---- */

/* The profile of @query at @sequences a micro-batch: the file's, or the cost model's times with the
 * sizes of the program that will run. */
RpProfile *rp_advise_profile(const RpAdviseQuery *query, guint sequences,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether there are times of micro-batches of @sequences: a timing file has some, the cost model all. */
gboolean rp_advise_has_times(const RpAdviseQuery *query, guint sequences);

/* A run that has not been planned yet. */
RpAdviseRun *rp_advise_run_new(const RpAdviseQuery *query, const RpScheduleOps *schedule,
                               guint sequences, guint micro_batches, guint round);

/**
 * rp_advise_measure:
 *
 * Plans @run's partition in full fidelity and fills in its memory: exact arenas, by category. (The
 * functions below fill in totals only.)
 *
 * Returns: whether it fits; if not, @run->problem says why
 */
gboolean rp_advise_measure(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run);

/* The largest part of an arena. */
RpBufferCategory rp_advise_largest_category(const RpAdviseBytes *bytes);

/**
 * rp_advise_fit_least:
 *
 * Gives @run (roundpipe) the first that fits of: rp_partition_least(), then 2, 3 ... blocks a stage
 * (rp_partition_even()), which stash less in host memory. If none fits: of those that fit the
 * device, the one that exceeds host memory least.
 */
gboolean rp_advise_fit_least(const RpAdviseQuery *query, const RpProfile *profile,
                             RpAdviseRun *run);

/**
 * rp_advise_fit:
 *
 * Gives @run (roundpipe) rp_partition_paper() under the largest limit per stage whose plan fits as
 * a whole, or else what rp_advise_fit_least() finds, and measures it.
 */
gboolean rp_advise_fit(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run);

/* Improves a fitting @run's partition by simulated time, `compute` fidelity, @max_candidates. */
void rp_advise_improve(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                       guint max_candidates);

/* The same for a bound schedule, from nothing: number of stages and partition; measures it. */
gboolean rp_advise_fit_bound(const RpAdviseQuery *query, const RpProfile *profile,
                             RpAdviseRun *run);

/* Simulates @run in full fidelity until steady. */
gboolean rp_advise_simulate(const RpProfile *profile, RpAdviseRun *run,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_advise_draw:
 * @run: simulated
 * @draws: > 0
 * @step_ns: (out): of times drawn from @profile's spreads (sim/draws.h), as run->step_ns is of its
 *   times
 * @bubble_ratio: (out): the same
 */
gboolean rp_advise_draw(const RpProfile *profile, const RpAdviseRun *run, guint draws, guint64 seed,
                        RpDrawn *step_ns, RpDrawn *bubble_ratio,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Each is something that is not known of a machine (the table stands in sim/advise/range.c). */
typedef struct {
    const char *key;     /* "both" */
    const char *name;    /* "PCIe both ways at once" */
    const char *unit;    /* 1e9 of a profile's: "GB/s"; %NULL: its ends are no single number */
    const char *command; /* that measures it */
    const char *settles; /* and all that it measures with it: "the links" */
    const char *source;  /* of both ends */
} RpUnknownInfo;

const RpUnknownInfo *rp_unknown_info(RpUnknown unknown);

/* Tokens/s of the same plan at the slow and the fast end of an unknown, or of all. */
typedef struct {
    double slow, fast;
} RpAdviseEnds;

typedef struct {
    RpAdviseEnds all; /* 0: there is no range */
    struct {
        gboolean open;    /* nobody has settled it */
        double low, high; /* in the profile's unit */
        RpAdviseEnds ends;
    } of[RP_N_UNKNOWNS];
    RpUnknown most; /* the one whose ends are the furthest apart */
} RpAdviseRange;

/**
 * rp_advise_range:
 * @run: simulated, of @query, which has a GPU
 * @range: (out): of each unknown that @query does not know, the others as expected; and of all at
 *   their slow, or their fast, ends
 */
gboolean rp_advise_range(const RpAdviseQuery *query, const RpAdviseRun *run, RpAdviseRange *range,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
