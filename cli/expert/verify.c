#include "cli/cli.h"

#include "core/base/file.h"
#include "core/formats/export.h"
#include "core/formats/import-pytorch.h"
#include "core/verify/verify.h"

/* Limits a proof: 13 iterations of a large model prove nothing that these do not. */
#define MAX_CSV_BYTES ((gsize)64 << 20)
#define ASYNC_ITERATIONS 4

/* Counts of the proofs of one plan. */
typedef struct {
    const char *what; /* "compute", "full", ... */
    guint64 tasks;
    guint64 edges; /* dependencies and neighbours on a lane */
    guint64 kinds[RP_N_TASK_KINDS];
    guint64 actions;
    guint64 accesses;
    guint buffers;
    guint lanes;
    guint layers;
    guint iterations;
    gboolean full;
    gboolean async;
    gboolean trace;                      /* a trace was checked against the plan, too */
    RpCommunicationProof communications; /* of a PyTorch CSV */
    gint64 time_us;
} Proof;

static void
count_plan(const RpPlan *plan, Proof *proof)
{
    RpTaskId first = rp_plan_first_id(plan), end = rp_plan_end_id(plan);
    g_autofree gboolean *used = g_new0(gboolean, rp_plan_n_lanes(plan));

    proof->tasks = end - first;
    for (RpTaskId id = first; id < end; id++) {
        const RpTask *task = rp_plan_task(plan, id);

        proof->edges += task->dependency_count + (used[task->lane] ? 1u : 0u);
        proof->accesses += task->access_count;
        proof->kinds[task->kind]++;
        proof->actions += rp_task_is_compute(task);
        proof->iterations = MAX(proof->iterations, task->iteration + 1);
        proof->lanes += !used[task->lane];
        used[task->lane] = TRUE;
    }
    proof->buffers = rp_plan_n_buffers(plan);
    proof->layers = rp_plan_n_layers(plan);
    proof->full = rp_plan_fidelity(plan) == RP_FIDELITY_FULL;
    proof->async = rp_plan_modes(plan)->staleness > 0;
}

/* The message has the rule and the two tasks. */
static void
set_broken(GError **error, const char *what, const RpViolation *violation)
{
    g_set_error(error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA, "%s: %s%s", what,
                violation->rule == RP_RULE_NONE ? "not decided: " : "", violation->message);
}

static gboolean
prove(const char *what, const RpPlan *plan, const RpTrace *trace, GArray *proofs, GError **error)
{
    RpViolation violation = {0};
    Proof proof = {.what = what, .trace = trace != NULL};
    gint64 begin_us = g_get_monotonic_time();
    gboolean proved = rp_verify_plan(plan, &violation);

    if (proved && trace != NULL)
        proved = rp_verify_trace(plan, trace, &violation);
    proof.time_us = g_get_monotonic_time() - begin_us;
    if (!proved) {
        set_broken(error, what, &violation);
        rp_violation_clear(&violation);
        return FALSE;
    }
    count_plan(plan, &proof);
    g_array_append_val(proofs, proof);
    return TRUE;
}

static gboolean
verify_profile(const RpArgs *args, const char *path, GArray *proofs, GError **error)
{
    static const char *const fidelities[] = {"compute", "full"};
    g_autoptr(RpTrace) trace = NULL;
    gboolean both = args->fidelity == NULL && args->trace == NULL, has_full = TRUE;

    if (args->trace != NULL) {
        trace = rp_trace_load_chrome(args->trace, error);
        if (trace == NULL)
            return FALSE;
    }
    for (guint i = 0; i < (both ? 2 : 1) && has_full; i++) {
        RpArgs own = *args;
        g_auto(RpRequest) request = {0};
        g_autoptr(RpProfile) profile = NULL;

        if (both) {
            own.fidelity = (char *)fidelities[i];
            if (i == 0) { /* of the full plan */
                static const char *const full[] = {"transfers", "consistency", "optimizer",
                                                   "early-steps", "no-clip"};

                for (gsize k = 0; k < G_N_ELEMENTS(full); k++)
                    rp_args_set(&own, full[k], NULL);
            }
        }
        if (!rp_request_load(&own, path, &profile, &request, error))
            return FALSE;
        has_full = rp_planner_has_full(&request.options);
        if (args->run.iterations == 0 && trace == NULL && request.iterations > ASYNC_ITERATIONS)
            request.iterations = ASYNC_ITERATIONS;
        g_autoptr(RpPlan) plan =
            rp_plan_make(profile, request.partition, &request.options, request.iterations, error);

        if (plan == NULL ||
            !prove(request.options.fidelity == RP_FIDELITY_FULL ? "full" : "compute", plan, trace,
                   proofs, error))
            return FALSE;
    }
    return TRUE;
}

/* The file says nothing about times: a unit for each action proves the same. */
static gboolean
verify_pytorch(const RpArgs *args, GArray *proofs, GError **error)
{
    const RpStageCost unit = {
        .forward_ns = 1, .backward_ns = 2, .input_gradient_ns = 1, .weight_gradient_ns = 1};
    const RpOrderCosts costs = {.stages = &unit, .n_stages = 1};
    gsize length;

    g_autofree char *text = rp_file_read(args->pytorch_csv, MAX_CSV_BYTES, &length, error);
    if (text == NULL)
        return FALSE;
    g_autoptr(RpOrders) orders = rp_orders_import_pytorch(
        args->pytorch_csv, text, length, args->old_names ? RP_PYTORCH_OLD_NAMES : 0, error);

    g_autoptr(RpPlan) plan = orders != NULL ? rp_plan_from_orders(orders, &costs, error) : NULL;

    if (plan == NULL) {
        g_autofree char *problem = (*error)->message;
        const gboolean named = g_str_has_prefix(problem, args->pytorch_csv);

        (*error)->message = g_strconcat(
            named ? "" : args->pytorch_csv, named ? "" : ": ", problem,
            !args->old_names && rp_pytorch_flags_of(text, length) != 0
                ? "; there are W and no I: files of older PyTorch are read with --old-names"
                : NULL,
            NULL);
        return FALSE;
    }
    RpCommunicationProof communications;

    if (!rp_orders_check_communications(orders, &communications, error) ||
        !prove(args->pytorch_csv, plan, NULL, proofs, error))
        return FALSE;
    g_array_index(proofs, Proof, proofs->len - 1).communications = communications;
    return TRUE;
}

/* ---- the report ---- */

static guint64
transfers(const Proof *proof)
{
    return proof->kinds[RP_TASK_PARAMETER_UPLOAD] + proof->kinds[RP_TASK_GRADIENT_DOWNLOAD];
}

static guint64
updates(const Proof *proof)
{
    return proof->kinds[RP_TASK_OPTIMIZER_STEP] + proof->kinds[RP_TASK_GRADIENT_COPY] +
           proof->kinds[RP_TASK_PARAMETER_COPY] + proof->kinds[RP_TASK_GRADIENT_ACCUMULATE] +
           proof->kinds[RP_TASK_EARLY_STEP] + proof->kinds[RP_TASK_LATE_STEP];
}

static void
report_communications(RpReport *report, const RpCommunicationProof *proof)
{
    rp_report_count(report, "sends", (gint64)proof->transfers, NULL);
    rp_report_count(report, "unshards", (gint64)proof->unshards, NULL);
    rp_report_count(report, "reductions", proof->reductions, NULL);
    if (proof->transfers > 0)
        rp_report_line(report, "sends",
                       "%" G_GUINT64_FORMAT " sends and their receives, in one order on %u pair%s "
                       "of ranks; none waits for ever",
                       proof->transfers, proof->rank_pairs, proof->rank_pairs == 1 ? "" : "s");
    if (proof->unshards > 0)
        rp_report_line(report, "shards",
                       "%" G_GUINT64_FORMAT " times a stage is unsharded, used and resharded",
                       proof->unshards);
    if (proof->reductions > 0)
        rp_report_line(report, "reductions", "%u stages, each after its last backward",
                       proof->reductions);
}

/* Rules 2, 4 and 5, which need transfers and buffers. */
static void
report_full(RpReport *report, const Proof *proof)
{
    rp_report_count(report, "buffers", proof->buffers, NULL);
    rp_report_count(report, "accesses", (gint64)proof->accesses, proof->full ? "2 buffers" : NULL);
    rp_report_show(report,
                   "%" G_GUINT64_FORMAT " accesses to %u buffers never collide, all within their "
                   "arenas",
                   proof->accesses, proof->buffers);
    rp_report_line(report, "3 deadlock", "%u lanes can run their tasks in order", proof->lanes);
    rp_report_count(report, "transfers", (gint64)transfers(proof),
                    proof->full ? "4 transfers" : "rules 2, 4, 5");
    if (proof->full)
        rp_report_show(report,
                       "%" G_GUINT64_FORMAT " parameter and gradient transfers: each stage "
                       "complete before it runs, gradients once a round",
                       transfers(proof));
    else
        rp_report_show(report, "need transfers and buffers: --fidelity full");
    rp_report_count(report, "optimizer_tasks", (gint64)updates(proof),
                    proof->full ? "5 consistency" : NULL);
    rp_report_show(report,
                   "%" G_GUINT64_FORMAT " optimizer tasks on %u layers keep the five rules; "
                   "weights are %s",
                   updates(proof), proof->layers,
                   proof->async ? "one iteration old" : "fresh in every iteration");
    if (proof->kinds[RP_TASK_REDUCE] > 0) {
        rp_report_count(report, "reduces", (gint64)proof->kinds[RP_TASK_REDUCE], "  servers");
        rp_report_show(report,
                       "%" G_GUINT64_FORMAT " reduces of complete gradients, %" G_GUINT64_FORMAT
                       " gathers of stepped weights, one order on all servers",
                       proof->kinds[RP_TASK_REDUCE], proof->kinds[RP_TASK_GATHER]);
        rp_report_count(report, "gathers", (gint64)proof->kinds[RP_TASK_GATHER], NULL);
    }
    rp_report_list(report, "rules");
    for (gint64 rule = 1; rule <= 5; rule++)
        if (proof->full || rule == 1 || rule == 3)
            rp_report_count(report, NULL, rule, NULL);
    rp_report_end(report);
}

static void
report_proof(RpReport *report, const Proof *proof)
{
    rp_report_object(report, NULL, NULL);
    rp_report_say(report,
                  "%s: proved in %.1f ms: %" G_GUINT64_FORMAT " tasks, %" G_GUINT64_FORMAT
                  " edges, %u iteration%s",
                  proof->what, (double)proof->time_us / 1000, proof->tasks, proof->edges,
                  proof->iterations, proof->iterations == 1 ? "" : "s");
    rp_report_text(report, "plan", proof->what, NULL);
    rp_report_bool(report, "proved", TRUE, NULL);
    rp_report_count(report, "tasks", (gint64)proof->tasks, NULL);
    rp_report_count(report, "edges", (gint64)proof->edges, NULL);
    rp_report_count(report, "iterations", proof->iterations, NULL);
    rp_report_count(report, "actions", (gint64)proof->actions, "1 actions");
    rp_report_show(report,
                   "%" G_GUINT64_FORMAT " actions run once each, after what they read was written",
                   proof->actions);
    rp_report_count(report, "lanes", proof->lanes, NULL);
    report_full(report, proof);
    report_communications(report, &proof->communications);
    rp_report_bool(report, "trace", proof->trace, proof->trace ? "trace" : NULL);
    rp_report_show(report, "every task once, in lane order, none before what it depends on, with "
                           "the plan's bytes");
    rp_report_ms(report, "verify_ms", proof->time_us * 1000, NULL);
    rp_report_end(report);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *path = words[0];
    g_autoptr(GArray) proofs = g_array_new(FALSE, TRUE, sizeof(Proof));
    const char *problem = NULL;

    if (path == NULL && args->pytorch_csv == NULL)
        problem = "something is missing: expected PROFILE.json or --pytorch-csv FILE; see --help";
    else if (path != NULL && args->pytorch_csv != NULL)
        problem = "--pytorch-csv: expected no PROFILE.json beside it";
    else if (path == NULL && args->trace != NULL)
        problem = "--trace: expected the PROFILE.json that the trace was made from";
    else if (args->pytorch_csv == NULL && args->old_names)
        problem = "--old-names: expected --pytorch-csv beside it";
    if (problem != NULL)
        return rp_cli_refuse(error, "%s", problem);
    if (path != NULL ? !verify_profile(args, path, proofs, error)
                     : !verify_pytorch(args, proofs, error))
        return FALSE;
    rp_report_list(report, NULL);
    report->label_width = 14;
    for (guint i = 0; i < proofs->len; i++)
        report_proof(report, &g_array_index(proofs, Proof, i));
    rp_report_end(report);
    return TRUE;
}

static const RpUse uses[] = {
    {"pytorch-csv", "verify the order in a PyTorch pipeline CSV instead"},
    {"old-names"},
    {"trace", "check a trace (simulate --trace) against the plan of these options"},
    {0},
};

const RpCommand rp_command_verify = {
    .name = "verify",
    .summary = "prove that a plan is correct, or name the rule it breaks",
    .expert = TRUE,
    .words = "[PROFILE.json]",
    .help = "Proves that a plan can only run correctly, or names the rule that it breaks and the "
            "two\ntasks. Without --fidelity both plans are proved.\n\n"
            "Examples:\n"
            "  roundpipe verify profiles/rtx4090/qwen3-1.7b.json \\\n"
            "    --schedule roundpipe --gpus 8 --micro-batches 16 --async\n"
            "  roundpipe verify --pytorch-csv order.csv",
    .requests = RP_REQUEST,
    .uses = uses,
    .run = run,
};
