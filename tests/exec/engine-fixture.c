#include "tests/exec/engine-fixture.h"

#include "exec/replay/replay.h"

#define MIB (G_GUINT64_CONSTANT(1) << 20)

int
set_up(void **state)
{
    *state = g_new0(Fixture, 1);
    return 0;
}

void
clear(Fixture *f)
{
    if (f->engine != NULL)
        assert_true(rp_engine_stop(f->engine));
    rp_engine_free(f->engine);
    manual_free(f->manual);
    rp_replay_free(f->replay);
    rp_trace_free(f->trace);
    rp_plan_free(f->plan);
    rp_planner_free(f->planner);
    if (f->partition != NULL)
        rp_partition_free(f->partition);
    if (f->profile != NULL)
        rp_profile_free(f->profile);
    rp_violation_clear(&f->violation);
    g_clear_error(&f->error);
    *f = (Fixture){0};
}

int
tear_down(void **state)
{
    clear(*state);
    g_free(*state);
    return 0;
}

void
begin(Fixture *f, guint gpus)
{
    clear(f);
    f->plan = rp_plan_new(gpus, RP_FIDELITY_COMPUTE, 1, 1);
    /* all lanes are in use */
    rp_plan_tables(f->plan)->modes.servers = 2;
    f->manual = manual_new();
}

static RpPlan *
plan_of(const Fixture *f)
{
    return f->plan != NULL ? f->plan : rp_planner_plan(f->planner);
}

void
start_engine(Fixture *f, const RpEngineOptions *options)
{
    f->engine = rp_must(rp_engine_new, plan_of(f),
                        f->replay != NULL ? f->replay : manual_backend(f->manual), options);
}

void
append_batch(Fixture *f)
{
    gboolean done = rp_must(rp_engine_append, f->engine);

    assert_true(done);
}

void
finish(Fixture *f)
{
    gboolean done = rp_must(rp_engine_finish, f->engine);

    assert_true(done);
    rp_trace_free(f->trace);
    f->trace = rp_engine_steal_trace(f->engine);
    assert_non_null(f->trace);
    if (!rp_verify_trace(plan_of(f), f->trace, &f->violation))
        fail_msg("%s", f->violation.message);
}

RpTaskId
add(Fixture *f, RpTaskKind kind, guint32 lane, gint64 lead_ns, const RpDependency *dependencies,
    gsize n)
{
    RpTask task = {
        .kind = (guint8)kind,
        .lane = lane,
        .lead_ns = lead_ns,
        .duration_ns = 10 + lead_ns,
        .micro_batch = RP_NONE,
        .stage = RP_NONE,
        .layer = RP_NONE,
        .chunk = RP_NONE,
    };

    return rp_plan_append(f->plan, &task, dependencies, (guint)n, NULL, 0);
}

void
add_random_tasks(Fixture *f, GRand *random, guint n)
{
    static const RpTaskKind kinds[RP_LANES_PER_DEVICE + RP_HOST_LANES] = {
        RP_TASK_BACKWARD,
        RP_TASK_ACTIVATION_UPLOAD,
        RP_TASK_ACTIVATION_DOWNLOAD,
        RP_TASK_PARAMETER_UPLOAD,
        RP_TASK_GRADIENT_DOWNLOAD,
        RP_TASK_OPTIMIZER_STEP,
        RP_TASK_GRADIENT_ACCUMULATE,
        RP_TASK_GATHER};
    const gint32 n_lanes = (gint32)rp_plan_n_lanes(f->plan);

    for (guint i = 0; i < n; i++) {
        const guint32 lane = (guint32)g_rand_int_range(random, 0, n_lanes);
        const guint kind = rp_plan_lane_kind(f->plan, lane);
        const RpTaskId end = rp_plan_end_id(f->plan);
        RpDependency dependencies[4];
        gsize count = 0;

        while (end > 0 && count < G_N_ELEMENTS(dependencies) && g_rand_boolean(random)) {
            const guint64 back = (guint64)g_rand_int_range(random, 1, (gint32)MIN(end, 3 * n) + 1);

            dependencies[count++] = (RpDependency){.task = end - back,
                                                   .phase = g_rand_boolean(random) ? 1 : 0,
                                                   .hop_ns = g_rand_boolean(random) ? 5 : 0};
        }
        add(f, kinds[kind], lane, kind == RP_LANE_COMPUTE && g_rand_boolean(random) ? 5 : 0,
            dependencies, count);
    }
}

static RpProfile *
make_profile(guint blocks)
{
    RpProfile *profile = rp_profile_new(blocks + 2);

    profile->layers[0].kind = RP_LAYER_EMBEDDING;
    profile->layers[blocks + 1].kind = RP_LAYER_HEAD;
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->forward_ns = 1000;
        layer->backward_ns = 2000;
        layer->recompute_ns = 1000;
        layer->weight_gradient_ns = 1000;
        layer->parameter_bytes = MIB;
        layer->gradient_bytes = MIB;
        layer->input_bytes = MIB / 4;
        layer->output_bytes = MIB / 4;
    }
    profile->has_sizes = TRUE;
    profile->links = (RpLinks){.hop_ns = 10, .h2d_bytes_per_s = 1e9, .d2h_bytes_per_s = 1e9};
    profile->optimizer_parameters_per_s = 1e9;
    return profile;
}

static RpPartition *
make_partition(const Fixture *f, const RpPlanOptions *options, guint blocks)
{
    const RpScheduleOps *schedule = options->schedule;
    const guint forward[] = {blocks / 2, blocks - blocks / 2};
    const guint backward[] = {0, blocks / 3, blocks / 3, blocks - 2 * (blocks / 3)};
    const guint per_gpu = schedule->stages_per_gpu > 0 ? schedule->stages_per_gpu
                          : schedule->looped           ? 2
                                                       : 1;
    GError *error = NULL;
    RpPartition *partition =
        schedule->dispatched
            ? rp_partition_from_dispatched_blocks(f->profile, forward, G_N_ELEMENTS(forward),
                                                  backward, G_N_ELEMENTS(backward), &error)
            : rp_partition_min_max(f->profile, per_gpu * options->gpus, &error);

    rp_assert_no_error(error);
    return partition;
}

gboolean
make_planner(Fixture *f, const RpPlanOptions *options, guint blocks)
{
    clear(f);
    f->profile = make_profile(blocks);
    f->partition = make_partition(f, options, blocks);
    f->planner = rp_planner_new(f->profile, f->partition, options, &f->error);
    if (f->planner != NULL)
        return TRUE;
    g_clear_error(&f->error);
    return FALSE;
}

void
plan_iteration(Fixture *f)
{
    gboolean done = rp_must(rp_planner_append_iteration, f->planner);

    assert_true(done);
}

const RpTraceRecord *
record_of(const Fixture *f, RpTaskId id)
{
    const RpTraceRecord *records = rp_trace_records(f->trace);

    for (gsize i = 0; i < rp_trace_n_records(f->trace); i++)
        if (records[i].task == id)
            return &records[i];
    fail_msg("the trace has no task %" G_GUINT64_FORMAT, id);
    return NULL;
}
