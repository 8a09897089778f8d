/**
 * The verifier: proves that a plan can only run correctly, whatever the timing, or names the rule
 * that it breaks and the two tasks that break it (design.md §3, docs/verifier.md).
 *
 * The proof is by reachability: task a happens before task b if the order of lanes and the
 * dependencies force a to end before b starts. No order is sampled, no time is looked at.
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"
#include "core/trace/trace.h"

/* The rules of design.md §3; RP_RULE_WEIGHT_INTEGRITY ... are the parts of rule 5 (§4.3.1). */
typedef enum {
    RP_RULE_NONE,                 /* proved, or not decided: the message says why */
    RP_RULE_ACTIONS,              /* 1: every action once, after its inputs were written */
    RP_RULE_BUFFERS,              /* 2: no buffer is reused while something may still read it */
    RP_RULE_ARENA,                /* 2: buffers lie within the arena of the task's device or host */
    RP_RULE_TABLES,               /* 2: named buffers are large enough and share no byte */
    RP_RULE_OPERANDS,             /* 2: a task accesses the buffers that its kind must, no more */
    RP_RULE_DEADLOCK,             /* 3: in-order lanes can run every task */
    RP_RULE_TRANSFERS,            /* 4: parameters before the first action, gradients once */
    RP_RULE_WEIGHT_INTEGRITY,     /* 5 (1): no weight is overwritten while it is uploaded */
    RP_RULE_TORN_WEIGHTS,         /* 5 (2): no weight is uploaded before it is written */
    RP_RULE_INCOMPLETE_GRADIENTS, /* 5 (3): the optimizer reads gradients that are complete */
    RP_RULE_GRADIENT_INTEGRITY,   /* 5 (4): no gradient is overwritten before it is read */
    RP_RULE_OPTIMIZER_ORDER,      /* 5 (5): copies stand between the two steps they belong to */
    RP_RULE_DECISION,             /* 5: steps and heads follow the decision that is for them */
    RP_RULE_STALENESS,            /* 5: weights are one iteration old (async) or fresh (sync) */
    RP_RULE_TRACE,                /* a trace that does not follow its plan */
    RP_N_RULES
} RpRule;

/* A broken rule. @message is one line; the two tasks are RP_TASK_NONE where one is missing. */
typedef struct {
    RpRule rule;
    RpTaskId first;  /* the one that must come first, or that is missing */
    RpTaskId second; /* the one that comes too early, twice or wrongly */
    char *message;
} RpViolation;

/* Frees the message. */
void rp_violation_clear(RpViolation *violation);

/* "actions", "torn weights", ...; and the number in design.md §3, 1 to 5, or 0. */
const char *rp_rule_name(RpRule rule);
guint rp_rule_number(RpRule rule);

/* Limits the bytes of clocks; a plan that needs more is not decided. */
#define RP_VERIFY_CLOCK_BYTES (G_GUINT64_CONSTANT(4) << 30)

/**
 * rp_verify_plan:
 * @violation: (out) (optional): the broken rule; zeroed on success
 *
 * A plan from which tasks were retired is proved from the first iteration that is wholly held;
 * retired tasks count as done. The end of a plan may lack the optimizer tasks of its last
 * iteration.
 *
 * Returns: %TRUE if the plan is proved correct; %FALSE with RP_RULE_NONE if it is too large to
 *   decide, with another rule if it is wrong
 */
gboolean rp_verify_plan(const RpPlan *plan, RpViolation *violation);

/* The same with another limit than RP_VERIFY_CLOCK_BYTES. */
gboolean rp_verify_plan_within(const RpPlan *plan, guint64 clock_bytes, RpViolation *violation);

/* Proves a plan while it grows: each task once, with all that is known of those before it. */
typedef struct _RpVerifier RpVerifier;

/* How far a growing plan's last iteration has got. */
typedef enum {
    RP_GROWN_PART,  /* some of its calls are appended */
    RP_GROWN_CALLS, /* all calls, not its step */
    RP_GROWN_STEP   /* rp_planner_append_step(), a flush or the end */
} RpGrown;

/**
 * rp_verifier_new:
 * @plan: borrowed; nothing may have been appended yet
 *
 * It keeps copies of the last few iterations' tasks, so that @plan may retire any tasks once it
 * has been proved. Older tasks are remembered by their places in their lanes and the buffers that
 * they wrote, and never taken for done.
 */
RpVerifier *rp_verifier_new(const RpPlan *plan);
void rp_verifier_free(RpVerifier *verifier);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpVerifier, rp_verifier_free)

/**
 * rp_verifier_extend:
 * @violation: (out) (optional): as of rp_verify_plan(); afterwards @verifier can only be freed
 *
 * Proves what was appended since the last call, against all that was before. An iteration is seen
 * as a whole when its calls are complete, and its gradients and steps when the next one's are.
 *
 * Returns: %TRUE if the plan as it now stands is proved
 */
gboolean rp_verifier_extend(RpVerifier *verifier, RpGrown grown, RpViolation *violation);
/* Tasks that it holds. */
guint rp_verifier_n_held(const RpVerifier *verifier);

/* Two clocks of one machine may disagree by so much in a measured trace. */
#define RP_VERIFY_CLOCK_SLACK_NS 2000

/**
 * rp_verify_trace:
 * @plan: the plan that ran; need not be correct itself
 * @trace: predicted or measured
 * @violation: (out) (optional): as above, always RP_RULE_TRACE
 *
 * Each task of the plan once, none before its dependencies (hops and recompute leads counted in a
 * predicted trace; RP_VERIFY_CLOCK_SLACK_NS forgiven in a measured one), lanes in order and one
 * task at a time, no negative durations, predicted actions at least as long as the plan says
 * (longer ones shared processors).
 */
gboolean rp_verify_trace(const RpPlan *plan, const RpTrace *trace, RpViolation *violation);
