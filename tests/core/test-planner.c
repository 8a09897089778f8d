#include "tests/rp-test.h"

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/verify/verify.h"

/* Embedding, eight blocks and a head with every size. */
static RpProfile *
new_profile(void)
{
    RpProfile *profile = rp_profile_new(10);

    profile->layers[0].kind = RP_LAYER_EMBEDDING;
    profile->layers[9].kind = RP_LAYER_HEAD;
    for (guint l = 0; l < 10; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->forward_ns = 1000;
        layer->recompute_ns = 1000;
        layer->backward_ns = 2000;
        layer->weight_gradient_ns = 1000;
        layer->parameter_bytes = 1 << 20;
        layer->gradient_bytes = 1 << 20;
        layer->input_bytes = 1 << 16;
        layer->output_bytes = 1 << 16;
        layer->forward_workspace_bytes = 1 << 14;
        layer->backward_workspace_bytes = 1 << 15;
        layer->activation_bytes = 1 << 18;
    }
    profile->has_sizes = TRUE;
    profile->links.h2d_bytes_per_s = 1e12;
    profile->links.d2h_bytes_per_s = 1e12;
    profile->optimizer_parameters_per_s = 1e9;
    return profile;
}

static RpPartition *
new_dispatched(const RpProfile *profile)
{
    const guint forward[] = {3, 3, 2};
    const guint backward[] = {0, 2, 2, 2, 2};
    return rp_must(rp_partition_from_dispatched_blocks, profile, forward, 3, backward, 5);
}

static RpPlanOptions
full_options(const char *schedule, guint gpus, guint micro_batches)
{
    GError *error = NULL;
    RpPlanOptions options = {.schedule = rp_schedule_find(schedule, &error),
                             .gpus = gpus,
                             .micro_batches = micro_batches,
                             .sum_rounds = TRUE,
                             .fidelity = RP_FIDELITY_FULL};

    rp_assert_no_error(error);
    return options;
}

static RpPlan *
make(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
     guint iterations)
{
    return rp_must(rp_plan_make, profile, partition, options, iterations);
}

static guint64
sum_bytes(const RpPlan *plan, RpTaskKind kind, guint iteration)
{
    guint64 bytes = 0;

    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);

        if (task->kind == kind && task->iteration == iteration)
            bytes += task->bytes;
    }
    return bytes;
}

RP_TEST(uploads_every_forward_and_backward_stage_once_a_round)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    options.round = 4;
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
    /* forward: embedding and 8 blocks, fused: head, backward: 9; each of 1 MiB, in two rounds */
    assert_int_equal(sum_bytes(plan, RP_TASK_PARAMETER_UPLOAD, 1), 2 * 19 * RP_MIB);
    /* all ten layers once a round */
    assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_DOWNLOAD, 1), 2 * 10 * RP_MIB);
    /* 2 bytes of each round are read, 4 are written and, for the second round, read */
    assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_ACCUMULATE, 1), (3 + 5) * 10 * RP_MIB);
    /* 30 bytes for each 2 bytes of 16-bit gradient: 28, and 2 more that are read */
    assert_int_equal(sum_bytes(plan, RP_TASK_OPTIMIZER_STEP, 1), 15 * 10 * RP_MIB);
}

static guint
count_tasks(const RpPlan *plan, RpTaskKind kind)
{
    guint n = 0;

    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++)
        n += rp_plan_task(plan, id)->kind == kind;
    return n;
}

/* Whether the last action of a round adds its sum to that of the rounds before. */
static guint
count_kept(const RpPlan *plan)
{
    guint n = 0;

    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const RpAccess *accesses = rp_plan_accesses(plan, task);

        for (guint i = 0; i < task->access_count; i++)
            n += accesses[i].role == RP_ROLE_LEAVING && rp_task_is_compute(task) &&
                 accesses[i].mode == (RP_ACCESS_READ | RP_ACCESS_WRITE);
    }
    return n;
}

/* Bytes of the largest gradients of a backward stage, in 16 bits. */
static guint64
largest_gradients(const RpProfile *profile, const RpPartition *partition)
{
    guint64 largest = 0;

    for (guint s = 0; s < partition->n_backward; s++) {
        const RpInterval *stage = &partition->backward[s];
        guint64 bytes = 0;

        for (guint l = stage->first; l < stage->first + stage->count; l++)
            bytes += profile->layers[l].gradient_bytes;
        largest = MAX(largest, bytes);
    }
    return largest;
}

/* Sums stay where the next backward slot of the device is the same stage: then gradients travel
 * once an iteration, and nothing is staged. Sums that stay are fp32: twice the bytes. */
RP_TEST(sums_stay_on_a_device_to_which_their_stage_returns)
{
    static const struct {
        guint n_forward, n_backward, forward[3], backward[3], gpus;
        gboolean stays;
    } cases[] = {
        {0, 1, {0}, {8}, 1, TRUE},       /* one stage, one device */
        {0, 1, {0}, {8}, 2, FALSE},      /* the next round is another device's */
        {1, 2, {8}, {0, 8}, 3, TRUE},    /* three slots on three devices */
        {1, 2, {8}, {0, 8}, 1, FALSE},   /* two backward stages on one */
        {2, 2, {4, 2}, {2, 6}, 4, TRUE}, /* four slots on four */
        {2, 2, {4, 2}, {2, 6}, 2, TRUE}, /* two of them on each of two, one a backward */
        {2, 2, {4, 2}, {2, 6}, 3, FALSE},
        {1, 3, {6}, {2, 2, 4}, 2, FALSE}, /* two backward stages on one device */
    };
    g_autoptr(RpProfile) profile = new_profile();

    for (guint i = 0; i < G_N_ELEMENTS(cases) * 4; i++) {
        const guint c = i / 4, rounds = 3;
        GError *error = NULL;
        g_autoptr(RpPartition) partition =
            rp_partition_from_dispatched_blocks(profile, cases[c].forward, cases[c].n_forward,
                                                cases[c].backward, cases[c].n_backward, &error);
        RpPlanOptions options = full_options("roundpipe", cases[c].gpus, 12);
        RpViolation violation;

        rp_assert_no_error(error);
        options.round = i & 1 ? 4 : 12;
        options.calls = i & 1 ? 1 : rounds;
        options.async = (i & 2) != 0;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
        if (!rp_verify_plan(plan, &violation))
            fail_msg("case %u: %s", c, violation.message);
        const guint64 gradients = 10 * RP_MIB; /* resident sums are fp32 */
        assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_DOWNLOAD, 1),
                         cases[c].stays ? 2 * gradients : rounds * gradients);
        assert_true(rp_modes_sum(rp_plan_modes(plan)));
        assert_int_equal(rp_plan_modes(plan)->gradients == RP_GRADIENTS_KEPT, cases[c].stays);
        assert_int_equal(rp_plan_arena_bytes(plan, 0),
                         rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, cases[c].gpus) +
                             (cases[c].stays ? largest_gradients(profile, partition) : 0));
        assert_int_equal(count_kept(plan),
                         cases[c].stays ? 3 * (rounds - 1) * cases[c].n_backward : 0);
        assert_true((count_tasks(plan, RP_TASK_GRADIENT_ACCUMULATE) > 0) == !cases[c].stays);
        assert_true((rp_plan_category_bytes(plan, cases[c].gpus, RP_BUFFER_STAGING) > 0) ==
                    !cases[c].stays);
    }
}

/* One round is as it was: 16 bits leave, and are on the host. */
RP_TEST(gradients_of_one_round_are_16_bit)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);
    guint64 bytes[2];

    for (guint several = 0; several < 2; several++) {
        options.round = several ? 4 : 8;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
        assert_int_equal(rp_modes_sum(rp_plan_modes(plan)), several);
        bytes[several] = rp_plan_category_bytes(plan, 2, RP_BUFFER_GRADIENTS);
        assert_int_equal(rp_plan_category_bytes(plan, 0, RP_BUFFER_GRADIENTS), 3 * RP_MIB);
        assert_int_equal(rp_plan_arena_bytes(plan, 0),
                         rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, 2));
    }
    assert_int_equal(bytes[0], 10 * RP_MIB);
    assert_int_equal(bytes[1], 2 * bytes[0]);
}

/* Few rounds are kept apart where that takes no more host memory than their sum and its staging
 * buffers; the norm and the steps read all of them, and nothing is summed between. */
RP_TEST(rounds_are_kept_apart_where_that_takes_no_more_memory)
{
    static const struct {
        guint n_forward, n_backward, forward[3], backward[5];
    } lists[] = {{0, 1, {0}, {8}}, {1, 2, {8}, {0, 8}}, {3, 5, {3, 3, 2}, {0, 2, 2, 2, 2}}};
    g_autoptr(RpProfile) profile = new_profile();
    guint n_apart[6] = {0}, n_summed[6] = {0};

    for (guint i = 0; i < G_N_ELEMENTS(lists) * 3 * 4 * 2; i++) {
        const guint l = i / 24, gpus = 1 + i / 8 % 3, rounds = 2 + i / 2 % 4;
        GError *error = NULL;
        g_autoptr(RpPartition) partition =
            rp_partition_from_dispatched_blocks(profile, lists[l].forward, lists[l].n_forward,
                                                lists[l].backward, lists[l].n_backward, &error);
        RpPlanOptions options = full_options("roundpipe", gpus, 4 * rounds);
        RpViolation violation;

        rp_assert_no_error(error);
        options.round = 4;
        options.async = i % 2 == 0;
        g_autoptr(RpPlan) summed = make(profile, partition, &options, 3);
        options.sum_rounds = FALSE;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
        if (!rp_verify_plan(plan, &violation))
            fail_msg("lists %u, %u devices, %u rounds: %s", l, gpus, rounds, violation.message);
        assert_true(rp_plan_arena_bytes(plan, gpus) <= rp_plan_arena_bytes(summed, gpus));
        if (rp_plan_modes(plan)->gradients != RP_GRADIENTS_APART) {
            assert_int_equal(rp_plan_arena_bytes(plan, gpus), rp_plan_arena_bytes(summed, gpus));
            assert_int_equal(rp_plan_end_id(plan), rp_plan_end_id(summed));
            n_summed[rounds] += rp_plan_modes(summed)->gradients != RP_GRADIENTS_KEPT;
            continue;
        }
        n_apart[rounds]++;
        assert_false(rp_modes_sum(rp_plan_modes(plan)));
        assert_int_equal(count_tasks(plan, RP_TASK_GRADIENT_ACCUMULATE), 0);
        assert_int_equal(rp_plan_category_bytes(plan, gpus, RP_BUFFER_STAGING), 0);
        assert_int_equal(rp_plan_category_bytes(plan, gpus, RP_BUFFER_GRADIENTS),
                         rounds * 10 * RP_MIB);
        assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_DOWNLOAD, 1), rounds * 10 * RP_MIB);
        /* 26 bytes of state and weight for each 2 bytes of 16-bit gradient, and all of these */
        assert_int_equal(sum_bytes(plan, RP_TASK_OPTIMIZER_STEP, 1), (13 + rounds) * 10 * RP_MIB);
    }
    assert_int_equal(n_summed[2], 0);
    assert_true(n_apart[2] > 0 && n_apart[3] > 0 && n_apart[4] > 0 && n_apart[5] == 0);
    assert_true(n_summed[3] > 0 && n_summed[4] > 0 && n_summed[5] > 0);
}

/* How many rounds a sum adds: it reads as many staging buffers, no two of them the same. */
static guint
n_added(const RpPlan *plan, const RpTask *sum)
{
    const RpAccess *accesses = rp_plan_accesses(plan, sum);
    guint n = 0;

    while (accesses[n].role == RP_ROLE_STAGING) {
        assert_int_equal(accesses[n].mode, RP_ACCESS_READ);
        for (guint i = 0; i < n; i++)
            assert_int_not_equal(accesses[i].buffer, accesses[n].buffer);
        n++;
    }
    for (guint i = n; i < sum->access_count; i++)
        assert_int_not_equal(accesses[i].role, RP_ROLE_STAGING);
    return n;
}

/* Layers in the order of the uploads that wait for them where one stage has all; else those first
 * whose gradients the running iteration overwrites first. */
RP_TEST(steps_layers_in_the_order_in_which_they_are_waited_for)
{
    const guint blocks[] = {8}, halves[] = {0, 4, 4};
    g_autoptr(RpProfile) profile = new_profile();

    for (guint one = 0; one < 2; one++) {
        GError *error = NULL;
        g_autoptr(RpPartition) partition =
            one ? rp_partition_from_dispatched_blocks(profile, blocks, 0, blocks, 1, &error)
                : rp_partition_from_dispatched_blocks(profile, blocks, 1, halves, 3, &error);
        RpPlanOptions options = full_options("roundpipe", 2, 4);
        guint n = 0;

        rp_assert_no_error(error);
        options.round = 2;
        options.async = TRUE;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
        for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
            const RpTask *task = rp_plan_task(plan, id);

            if (task->kind != RP_TASK_OPTIMIZER_STEP || task->iteration != 0)
                continue;
            assert_int_equal(task->layer, one ? n : 9 - n);
            n++;
        }
        assert_int_equal(n, 10);
    }
}

/* With few stages, rounds of one stage leave several devices at once. */
RP_TEST(rounds_of_a_stage_are_summed_in_order_on_any_devices)
{
    static const struct {
        guint n_forward, n_backward, forward[3], backward[3];
    } lists[] = {
        {0, 1, {0}, {8}}, {1, 2, {8}, {0, 8}}, {2, 3, {4, 4}, {0, 4, 4}}, {1, 3, {6}, {2, 2, 4}}};
    g_autoptr(RpProfile) profile = new_profile();
    guint n_merged = 0, n_single = 0;

    for (guint i = 0; i < G_N_ELEMENTS(lists) * 8 * 8; i++) {
        const guint l = i / 64, gpus = 1 + i / 8 % 8, rounds = 2 + i / 2 % 4;
        GError *error = NULL;
        g_autoptr(RpPartition) partition =
            rp_partition_from_dispatched_blocks(profile, lists[l].forward, lists[l].n_forward,
                                                lists[l].backward, lists[l].n_backward, &error);
        RpPlanOptions options = full_options("roundpipe", gpus, 8 * rounds);
        RpViolation violation;
        guint next[8][2] = {{0}};
        const guint n_slots = lists[l].n_backward + lists[l].n_forward;
        const gboolean stays = n_slots % gpus == 0 && lists[l].n_backward <= gpus;

        rp_assert_no_error(error);
        options.round = 8;
        options.async = i % 2 == 0;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
        if (!rp_verify_plan(plan, &violation))
            fail_msg("lists %u, %u devices, %u rounds: %s", l, gpus, rounds, violation.message);
        for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
            const RpTask *task = rp_plan_task(plan, id);

            if (task->kind != RP_TASK_GRADIENT_ACCUMULATE)
                continue;
            const guint n = n_added(plan, task);
            assert_in_range(n, 1, gpus);
            assert_int_equal(task->round + 1, next[task->stage][task->iteration] + n);
            next[task->stage][task->iteration] = task->round + 1;
            /* each is read, the sum is written once and, unless it begins, read */
            assert_int_equal(task->bytes, (n + (task->round + 1U == n ? 2 : 4)) *
                                              rp_plan_stage(plan, task->stage)->gradient_bytes);
            n_merged += n > 1;
            n_single += n == 1;
        }
        for (guint s = 0; s < rp_plan_n_stages(plan); s++)
            for (guint t = 0; t < 2 && rp_plan_stage(plan, s)->gradients.n_chunks > 0; t++)
                assert_int_equal(next[s][t], stays ? 0 : rounds);
    }
    assert_true(n_merged > 100);
    assert_true(n_single > 100);
}

typedef struct {
    guint gpus, rounds;
    gboolean async;
    RpConsistency consistency;
    const char *sums; /* rounds that each task of an iteration adds, in order */
} TogetherCase;

static char *
list_sums(const RpPlan *plan, guint iteration)
{
    GString *text = g_string_new(NULL);

    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);

        if (task->kind == RP_TASK_GRADIENT_ACCUMULATE && task->iteration == iteration)
            g_string_append_printf(text, "%s%u-%u", text->len > 0 ? " " : "",
                                   task->round + 1 - n_added(plan, task), task->round);
    }
    return g_string_free(text, FALSE);
}

/* One fused stage. As many devices as rounds: all rounds are added at once, whenever they leave.
 * Half as many: round r has left its device when round r + N is to leave there, whose staging
 * buffer then is needed. */
RP_TEST(rounds_that_leave_together_are_added_in_one_pass)
{
    static const TogetherCase cases[] = {
        {4, 4, FALSE, RP_CONSISTENCY_EVENTS, "0-3"},
        {4, 4, TRUE, RP_CONSISTENCY_EVENTS, "0-3"},
        {4, 4, FALSE, RP_CONSISTENCY_BLOCKING, "0-3"},
        {4, 4, TRUE, RP_CONSISTENCY_BLOCKING, "0-3"},
        {2, 4, FALSE, RP_CONSISTENCY_EVENTS, "0-1 2-3"},
        {2, 4, FALSE, RP_CONSISTENCY_BLOCKING, "0-1 2-3"},
        {2, 4, TRUE, RP_CONSISTENCY_BLOCKING, "0-1 2-3"},
        {2, 4, TRUE, RP_CONSISTENCY_EVENTS, "0-1 2-3"},
        {64, 64, FALSE, RP_CONSISTENCY_EVENTS, "0-63"},
    };
    g_autoptr(RpProfile) profile = new_profile();
    const guint none = 0, all = 8;
    g_autoptr(RpPartition) partition =
        rp_must(rp_partition_from_dispatched_blocks, profile, &none, 0, &all, 1);

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        const TogetherCase *test = &cases[i];
        RpPlanOptions options = full_options("roundpipe", test->gpus, test->rounds * test->gpus);
        RpViolation violation;

        options.round = test->gpus;
        options.async = test->async;
        options.consistency = test->consistency;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
        if (!rp_verify_plan(plan, &violation))
            fail_msg("case %u: %s", i, violation.message);
        for (guint t = 0; t < 3; t++) {
            g_autofree char *sums = list_sums(plan, t);

            assert_string_equal(sums, test->sums);
        }
    }
}

/* Tasks of the host count in bytes that the optimizer moves, 28 a parameter at its rate: bytes
 * moved at another rate count as many as take that long. */
RP_TEST(passes_of_the_host_take_the_time_that_was_measured)
{
    const guint64 parameters = 10 * RP_MIB / 2;
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    options.round = 4;
    options.consistency = RP_CONSISTENCY_BLOCKING;
    for (int measured = 0; measured < 2; measured++) {
        profile->norm_parameters_per_s = measured ? 8e9 : 0;
        profile->sum_parameters_per_s = measured ? 7e9 : 0;
        profile->gradient_copy_parameters_per_s = measured ? 4e9 : 0;
        profile->parameter_copy_parameters_per_s = measured ? 2e9 : 0;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
        /* without: 2 read and 4 written, and 4 more read for the second round; 4 and 4 bytes, 2 and
         * 4. Measured: adding, of 10 bytes; norm and copies of 16 bits, of 2 and 6 */
        assert_int_equal(sum_bytes(plan, RP_TASK_NORM, 0), measured ? parameters * 28 / 8 * 2 : 0);
        const guint64 sums = measured ? parameters * 28 * 16 / 70 : parameters * 16;
        assert_in_range(sum_bytes(plan, RP_TASK_GRADIENT_ACCUMULATE, 0), sums - 2 * 9, sums);
        assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_COPY, 0),
                         measured ? parameters * 28 / 3 / 10 * 10 : parameters * 8);
        assert_int_equal(sum_bytes(plan, RP_TASK_PARAMETER_COPY, 0),
                         measured ? parameters * 28 / 2 : parameters * 6);
    }
}

/* Twelve bytes a parameter for four rounds, ten for the one that was measured. */
RP_TEST(a_measured_rate_counts_for_the_bytes_of_one_sum)
{
    const guint64 parameters = 10 * RP_MIB / 2;
    g_autoptr(RpProfile) profile = new_profile();
    const guint none = 0, all = 8;
    GError *error = NULL;
    g_autoptr(RpPartition) partition =
        rp_partition_from_dispatched_blocks(profile, &none, 0, &all, 1, &error);
    RpPlanOptions options = full_options("roundpipe", 4, 16);

    rp_assert_no_error(error);
    options.round = 4;
    profile->sum_parameters_per_s = 7e9;
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 1);
    /* 28 bytes a parameter at the optimizer's rate, 1e9 */
    const guint64 expected = parameters * 28 * 12 / (7 * 10);
    assert_in_range(sum_bytes(plan, RP_TASK_GRADIENT_ACCUMULATE, 0), expected, expected + 1);
}

/* Moments of 8 bits: 16 bytes a parameter and scales, unless processors take as long as memory does for 28
 * bytes at a tenth of the optimizer's rate. */
RP_TEST(steps_that_processors_bind_take_their_time)
{
    const guint64 parameters = 10 * RP_MIB / 2;
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);
    double *rate = &profile->cached_parameters_per_s[RP_UPDATE_ADAMW][RP_MOMENTS_INT8][0];

    options.form.moments = RP_MOMENTS_INT8;
    options.async = TRUE;
    for (guint i = 0; i < 3; i++) {
        *rate = i == 0 ? 0 : i == 1 ? 1e12 : profile->optimizer_parameters_per_s / 10;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
        const guint64 moved = sum_bytes(plan, RP_TASK_OPTIMIZER_STEP, 0);

        if (i < 2)
            assert_in_range(moved, 16 * parameters, 17 * parameters);
        else
            assert_in_range(moved, 280 * parameters - 10, 280 * parameters);
    }
    /* all in fp32 the optimizer's rate has both in it */
    profile->cached_parameters_per_s[RP_UPDATE_ADAMW][RP_MOMENTS_FP32][0] = *rate;
    options.form = RP_STATE_FORMAT_FP32;
    g_autoptr(RpPlan) fp32 = make(profile, partition, &options, 2);
    assert_int_equal(sum_bytes(fp32, RP_TASK_OPTIMIZER_STEP, 0), 28 * parameters);
}

RP_TEST(bound_weights_travel_once_an_iteration)
{
    const guint blocks[] = {2, 2, 2, 2};
    GError *error = NULL;
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = rp_partition_from_blocks(profile, blocks, 4, &error);
    RpPlanOptions options = full_options("1f1b", 4, 8);

    rp_assert_no_error(error);
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
    assert_int_equal(sum_bytes(plan, RP_TASK_PARAMETER_UPLOAD, 0), 10 * RP_MIB);
    assert_int_equal(sum_bytes(plan, RP_TASK_PARAMETER_UPLOAD, 1), 10 * RP_MIB);
    assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_DOWNLOAD, 1), 10 * RP_MIB);
}

/* The packed form of a block is a quarter of it; nothing of it is trained but 64 KiB. */
static void
pack_blocks(RpProfile *profile)
{
    for (guint l = 1; l < 9; l++) {
        profile->layers[l].upload_bytes = RP_MIB / 4;
        profile->layers[l].gradient_bytes = 1 << 16;
        profile->layers[l].expand_ns = 500;
    }
}

RP_TEST(packed_weights_are_expanded_once_a_slot)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);
    RpViolation violation;

    options.round = 4;
    const guint64 plain = rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, 2);
    pack_blocks(profile);
    const guint64 packed = rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, 2);
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
    if (!rp_verify_plan(plan, &violation))
        fail_msg("%s", violation.message);
    /* 3 forward stages and 5 backward ones, two rounds, two iterations */
    assert_int_equal(count_tasks(plan, RP_TASK_EXPAND), 8 * 2 * 2);
    /* blocks travel packed; embedding and head as they are */
    assert_int_equal(sum_bytes(plan, RP_TASK_PARAMETER_UPLOAD, 1),
                     2 * (2 * 8 * RP_MIB / 4 + 3 * RP_MIB));
    assert_int_equal(rp_plan_arena_bytes(plan, 0), packed);
    assert_true(packed < plain);
    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);

        if (task->kind == RP_TASK_EXPAND)
            assert_int_equal(
                task->duration_ns,
                500 * (rp_plan_stage(plan, task->stage)->upload_bytes % RP_MIB / (RP_MIB / 4)));
    }
    /* the host holds them packed too, and state for trained weights alone */
    assert_int_equal(rp_plan_category_bytes(plan, 2, RP_BUFFER_PARAMETERS),
                     2 * RP_MIB + 8 * RP_MIB / 4);
    options.fidelity = RP_FIDELITY_COMPUTE;
    options.fused_forward = RP_FUSED_PHYSICAL;
    g_autoptr(RpPlan) compute = make(profile, partition, &options, 2);
    assert_int_equal(count_tasks(compute, RP_TASK_EXPAND), 0);
}

/* All of the blocks is frozen but 64 KiB, and embedding and head are. */
RP_TEST(frozen_weights_that_stay_go_up_once)
{
    for (guint packed = 0; packed < 2; packed++) {
        g_autoptr(RpProfile) profile = new_profile();
        g_autoptr(RpPartition) partition = new_dispatched(profile);
        RpPlanOptions options = full_options("roundpipe", 2, 8);
        guint64 frozen = 0;
        RpViolation violation;

        options.round = 4;
        profile->constant_bytes = 1000;
        for (guint l = 0; l < 10; l++) {
            profile->layers[l].upload_bytes = packed && l % 9 > 0 ? RP_MIB / 4 : 0;
            profile->layers[l].gradient_bytes = l % 9 > 0 ? 1 << 16 : 0;
            frozen += rp_layer_host_bytes(&profile->layers[l]) - profile->layers[l].gradient_bytes;
        }
        g_autoptr(RpPlan) streamed = make(profile, partition, &options, 2);
        const guint64 least = rp_plan_arena_bytes(streamed, 0);
        guint64 stays = 0, arena = 0;

        /* the more memory, the more is resident; all of it in no more than there is */
        for (guint64 limit = least - RP_MIB; limit <= least + frozen; limit += RP_MIB / 4) {
            options.resident_limit = limit;
            g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
            const guint64 before = stays;

            if (!rp_verify_plan(plan, &violation))
                fail_msg("%s", violation.message);
            stays = rp_plan_resident_bytes(plan, 0);
            arena = rp_plan_arena_bytes(plan, 0);
            assert_true(stays >= before && arena <= MAX(limit, least));
            assert_true(stays > 0 || arena == least);
            /* 8 stages on 2 devices, each always on the same one; 10 layers go up forward or back */
            assert_int_equal(sum_bytes(plan, RP_TASK_RESIDENT_UPLOAD, 0),
                             stays + rp_plan_resident_bytes(plan, 1));
            assert_int_equal(sum_bytes(plan, RP_TASK_RESIDENT_UPLOAD, 1), 0);
            assert_int_equal(rp_plan_arena_bytes(plan, 2), rp_plan_arena_bytes(streamed, 2));
        }
        g_autoptr(RpPlan) all = make(profile, partition, &options, 2);
        /* trained weights, in each round */
        assert_int_equal(
            sum_bytes(all, RP_TASK_PARAMETER_UPLOAD, 1),
            sum_bytes(streamed, RP_TASK_PARAMETER_UPLOAD, 1) > 0 ? 2 * 16 * (guint64)(1 << 16) : 0);
        assert_true(stays > 0 && stays <= frozen);
        assert_int_equal(count_tasks(all, RP_TASK_EXPAND), packed ? 8 * 2 * 2 : 0);
        options.fidelity = RP_FIDELITY_COMPUTE;
        options.fused_forward = RP_FUSED_PHYSICAL;
        g_autoptr(RpPlan) compute = make(profile, partition, &options, 2);
        assert_int_equal(count_tasks(compute, RP_TASK_RESIDENT_UPLOAD), 0);
    }
}

/* Blocks of 64 KiB each, 7 of which are not fused; one of them has nothing to save. */
RP_TEST(what_forwards_save_goes_down_and_up_once)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);
    const guint64 saved = 1 << 16;
    RpViolation violation;

    options.round = 4;
    options.recompute = RP_RECOMPUTE_EARLY;
    for (guint l = 1; l < 9; l++)
        profile->layers[l].saved[RP_SAVED_ATTENTION] = (RpSavedTensors){l == 3 ? 0 : saved, 300};
    g_autoptr(RpPlan) full = make(profile, partition, &options, 2);
    assert_int_equal(count_tasks(full, RP_TASK_SAVED_DOWNLOAD), 0);
    options.saved.groups = RP_SAVED(ATTENTION) | RP_SAVED(MLP);
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
    if (!rp_verify_plan(plan, &violation))
        fail_msg("%s", violation.message);
    assert_int_equal(sum_bytes(plan, RP_TASK_SAVED_DOWNLOAD, 1), 7 * 8 * saved);
    assert_int_equal(sum_bytes(plan, RP_TASK_SAVED_UPLOAD, 1), 7 * 8 * saved);
    /* the host holds one copy of four micro-batches, and two of the first two blocks, whose
     * backward slot ends a round; a device has buffers for three blocks of two actions, and as much
     * less workspace as a backward stage of two blocks saves */
    assert_int_equal(rp_plan_arena_bytes(plan, 2),
                     rp_plan_arena_bytes(full, 2) + 4 * (7 + 2) * saved);
    assert_int_equal(rp_plan_category_bytes(plan, 0, RP_BUFFER_ACTIVATIONS),
                     rp_plan_category_bytes(full, 0, RP_BUFFER_ACTIVATIONS) + 2 * 3 * saved);
    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);

        if (task->kind == RP_TASK_BACKWARD && task->stage == 4) /* blocks 6 and 7 */
            assert_int_equal(task->lead_ns, 2 * 1000 - 2 * 300);
        if (task->kind == RP_TASK_BACKWARD && task->stage == 6) /* 2 and 3 */
            assert_int_equal(task->lead_ns, 2 * 1000 - 300);
    }
    /* later blocks only */
    options.saved.first = 6;
    g_autoptr(RpPlan) some = make(profile, partition, &options, 2);
    assert_int_equal(sum_bytes(some, RP_TASK_SAVED_UPLOAD, 1), 3 * 8 * saved);
    options.saved.first = 0;
    /* a threshold leaves out tensors that save less time */
    options.saved.least_ns = 300 * 16 + 1;
    g_autoptr(RpPlan) least = make(profile, partition, &options, 2);
    assert_int_equal(count_tasks(least, RP_TASK_SAVED_DOWNLOAD), 0);
    assert_int_equal(rp_plan_arena_bytes(least, 0), rp_plan_arena_bytes(full, 0));
}

/* Trained weights, and weights tied to trained ones, are never resident. */
RP_TEST(trained_weights_do_not_stay)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    options.resident_limit = G_MAXUINT64;
    g_autoptr(RpPlan) trained = make(profile, partition, &options, 2);
    assert_int_equal(rp_plan_resident_bytes(trained, 0), 0);
    assert_int_equal(count_tasks(trained, RP_TASK_RESIDENT_UPLOAD), 0);
    profile->layers[9].gradient_bytes = 0;
    profile->layers[9].tied_bytes = profile->layers[0].parameter_bytes;
    g_autoptr(RpPlan) tied = make(profile, partition, &options, 2);
    assert_int_equal(rp_plan_resident_bytes(tied, 0) + rp_plan_resident_bytes(tied, 1), 0);
    profile->layers[0].gradient_bytes = 0;
    g_autoptr(RpPlan) frozen = make(profile, partition, &options, 2);
    assert_true(rp_plan_resident_bytes(frozen, 0) + rp_plan_resident_bytes(frozen, 1) > 0);
}

/* A device has one buffer for packed weights, however many stages are bound to it. */
RP_TEST(bound_weights_are_expanded_once_an_iteration)
{
    const guint blocks[] = {2, 2, 2, 2};
    GError *error = NULL;
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = rp_partition_from_blocks(profile, blocks, 4, &error);
    RpPlanOptions options = full_options("interleaved-1f1b", 2, 4);
    RpViolation violation;

    rp_assert_no_error(error);
    pack_blocks(profile);
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
    if (!rp_verify_plan(plan, &violation))
        fail_msg("%s", violation.message);
    assert_int_equal(count_tasks(plan, RP_TASK_EXPAND), 4 * 2);
    /* device 0: stages e 0 1 and 4 5, expanded, and the larger of them packed */
    assert_int_equal(rp_plan_category_bytes(plan, 0, RP_BUFFER_PARAMETERS),
                     5 * RP_MIB + RP_MIB + RP_MIB / 2);
}

RP_TEST(host_holds_18_bytes_a_parameter_fused_and_16_lean)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);
    const guint64 parameters = 10 * RP_MIB / 2;

    options.async = TRUE;
    for (guint mode = 0; mode < 2; mode++) {
        options.optimizer = mode == 0 ? RP_OPTIMIZER_FUSED : RP_OPTIMIZER_LEAN;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 1);
        guint64 state_bytes = rp_plan_category_bytes(plan, 2, RP_BUFFER_PARAMETERS) +
                              rp_plan_category_bytes(plan, 2, RP_BUFFER_GRADIENTS) +
                              rp_plan_category_bytes(plan, 2, RP_BUFFER_OPTIMIZER);

        assert_int_equal(state_bytes, (mode == 0 ? 18 : 16) * parameters + 2 * RP_BUFFER_ALIGNMENT);
    }
}

RP_TEST(categories_of_an_arena_add_up_to_its_size)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 3, 9);

    /* long forward stages beside short backward ones: sums and workspace move into the slots */
    for (guint workspace = 0; workspace < 3; workspace++) {
        for (guint l = 0; l < 10; l++)
            profile->layers[l].activation_bytes = (guint64)1 << (8 + 6 * workspace);
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
        for (guint a = 0; a < 4; a++) {
            guint64 sum = 0;

            for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
                sum += rp_plan_category_bytes(plan, a, (RpBufferCategory)c);
            /* a gap may be between buffers of one region, where the smaller direction needs less */
            assert_true(sum <= rp_plan_arena_bytes(plan, a));
            assert_true(sum + 4 * RP_MIB >= rp_plan_arena_bytes(plan, a));
        }
        for (guint a = 0; a < 3; a++)
            assert_int_equal(rp_plan_arena_bytes(plan, a),
                             rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, 3));
    }
}

/* Synchronous, with as many GPUs as slots: nothing can arrive beside the slot that runs. */
RP_TEST(a_device_of_one_slot_an_iteration_has_room_for_one)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);

    for (guint gpus = 7; gpus <= 9; gpus++) { /* three forward stages, five backward ones */
        for (guint async = 0; async < 2; async++) {
            RpPlanOptions options = full_options("roundpipe", gpus, gpus);
            const gboolean one = gpus >= 8 && !async;
            RpViolation violation;

            options.async = async;
            g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
            if (!rp_verify_plan(plan, &violation))
                fail_msg("%u devices: %s", gpus, violation.message);
            for (guint g = 0; g < gpus; g++) {
                const guint64 bytes = rp_plan_arena_bytes(plan, g);
                const guint64 two = rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, gpus);

                /* the embedding and three blocks, once */
                assert_int_equal(
                    rp_plan_category_bytes(plan, g, RP_BUFFER_PARAMETERS) == 4 * RP_MIB, one);
                assert_int_equal(bytes < two, one);
                assert_true(bytes <= two);
            }
        }
    }
}

RP_TEST(gradient_sums_use_the_room_that_only_a_forward_stage_fills)
{
    const guint forward[] = {
        4, 4}; /* neighbours, and long ones: there is nothing to share between them */
    const guint backward[] = {0, 1, 1, 1, 1, 1, 1, 1, 1};
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition =
        rp_partition_from_dispatched_blocks(profile, forward, 2, backward, 9, NULL);
    RpPlanOptions options = full_options("roundpipe", 1, 8);
    gboolean shared = FALSE;

    g_autoptr(RpPlan) plan = make(profile, partition, &options, 1);
    for (guint a = 0; a < rp_plan_n_buffers(plan); a++) {
        for (guint b = a + 1; b < rp_plan_n_buffers(plan); b++) {
            const RpBuffer *x = rp_plan_buffer(plan, a);
            const RpBuffer *y = rp_plan_buffer(plan, b);

            if (x->arena == y->arena && x->offset < y->offset + y->bytes &&
                y->offset < x->offset + x->bytes && x->category != y->category)
                shared = TRUE;
        }
    }
    assert_true(shared);
}

/* Uploads of stages, MiB: 4, 3, 2 forward, 1, 2, 2, 2, 3 backward. On one device the row goes round: 3 before 4
 * are the most. On two each stage is followed by the one after the next: 4 and 2 (forward), 2 and 4. */
RP_TEST(slots_have_room_for_any_two_that_follow_each_other)
{
    static const guint64 most[] = {7, 6};
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);

    for (guint gpus = 1; gpus <= 2; gpus++)
        for (guint i = 0; i < 8; i++) {
            RpPlanOptions options = full_options("roundpipe", gpus, 4 * gpus);
            RpViolation violation;

            options.round = i & 1 ? 2 * gpus : 4 * gpus;
            options.async = (i & 2) != 0;
            options.forward_only = (i & 4) != 0;
            g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
            if (!rp_verify_plan(plan, &violation))
                fail_msg("%u devices, case %u: %s", gpus, i, violation.message);
            assert_int_equal(rp_plan_category_bytes(plan, 0, RP_BUFFER_PARAMETERS),
                             most[gpus - 1] * RP_MIB);
        }
}

/* Chunks of gradients of the first iteration that were appended with the one before, without an action between. */
static guint
count_together(const RpPlan *plan)
{
    guint n = 0;

    for (RpTaskId id = 1; id < rp_plan_end_id(plan); id++) {
        const RpTask *before = rp_plan_task(plan, id - 1), *task = rp_plan_task(plan, id);

        n += before->kind == RP_TASK_GRADIENT_DOWNLOAD && task->kind == before->kind &&
             task->iteration == 0 && before->iteration == 0;
    }
    return n;
}

RP_TEST(gradients_of_one_device_leave_window_by_window)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);

    for (guint gpus = 1; gpus <= 2; gpus++) {
        RpPlanOptions options = full_options("roundpipe", gpus, 8);

        options.async = TRUE;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
        assert_true(count_tasks(plan, RP_TASK_GRADIENT_DOWNLOAD) >
                    3 * 5); /* more chunks than stages */
        assert_int_equal(count_together(plan) > 0, gpus > 1);
    }
}

RP_TEST(arenas_stay_as_they_are_after_the_second_iteration)
{
    static const char *const names[] = {"gpipe",      "1f1b",       "interleaved-1f1b",
                                        "looped-bfs", "zb-h1",      "interleaved-zb",
                                        "zb-v",       "dualpipe-v", "mobius"};
    g_autoptr(RpProfile) profile = new_profile();

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        RpPlanOptions options = full_options(names[i], 2, 8);
        guint v = options.schedule->stages_per_gpu != 0 ? options.schedule->stages_per_gpu : 2;
        g_autoptr(RpPartition) partition = rp_must(rp_partition_min_max, profile, 2 * v);

        options.async = TRUE;
        g_autoptr(RpPlan) two = make(profile, partition, &options, 2);
        g_autoptr(RpPlan) five = make(profile, partition, &options, 5);
        for (guint a = 0; a <= 2; a++)
            assert_int_equal(rp_plan_arena_bytes(two, a), rp_plan_arena_bytes(five, a));
    }
}

RP_TEST(a_plan_that_does_not_fit_names_category_excess_and_remedy)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);
    RpShortage shortage;

    g_autoptr(RpPlan) plan = make(profile, partition, &options, 1);
    guint64 need = rp_plan_arena_bytes(plan, 0);
    guint64 host = rp_plan_arena_bytes(plan, 2);
    assert_false(rp_plan_find_shortage(plan, need, 0, FALSE, &shortage));
    assert_true(rp_plan_find_shortage(plan, need - 1, 0, FALSE, &shortage));
    assert_int_equal(shortage.need_bytes - shortage.limit_bytes, 1);
    assert_false(shortage.host);
    g_autofree char *gpu = rp_shortage_describe(&shortage);
    assert_non_null(strstr(gpu, "gpu 0: the plan needs "));
    assert_non_null(strstr(gpu, " 1 more than"));
    assert_true(rp_plan_find_shortage(plan, 0, 1 << 20, FALSE, &shortage));
    assert_true(shortage.host);
    assert_int_equal(shortage.largest, RP_BUFFER_OPTIMIZER);
    assert_int_equal(shortage.remedy, RP_REMEDY_LEAN_OPTIMIZER);
    /* arenas of devices that are threads come out of host memory */
    assert_false(rp_plan_find_shortage(plan, 0, host, FALSE, &shortage));
    assert_true(rp_plan_find_shortage(plan, 0, host + 2 * need - 1, TRUE, &shortage));
    assert_int_equal(shortage.need_bytes - shortage.limit_bytes, 1);
    assert_true(rp_plan_find_shortage(plan, 0, 2 * need, TRUE, &shortage));
    assert_int_equal(shortage.remedy, RP_REMEDY_FEWER_DEVICES);
}

RP_TEST(frozen_layers_cost_no_gradient_and_no_optimizer)
{
    g_autoptr(RpProfile) profile = new_profile();
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    for (guint l = 0; l < 10; l++)
        profile->layers[l].gradient_bytes = l == 4 ? 4096 : 0;
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 2);
    assert_int_equal(sum_bytes(plan, RP_TASK_GRADIENT_DOWNLOAD, 1), 4096);
    assert_int_equal(sum_bytes(plan, RP_TASK_OPTIMIZER_STEP, 1), 14 * 4096);
    assert_int_equal(rp_plan_category_bytes(plan, 2, RP_BUFFER_OPTIMIZER),
                     6 * 4096 + RP_BUFFER_ALIGNMENT);
}

/* Without clipping: how many gradient downloads of the iteration stand behind its first step, and
 * where its norm stands. */
RP_TEST(a_layer_that_needs_no_norm_steps_as_soon_as_its_gradient_is_home)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);

    for (guint mode = 0; mode < 8; mode++) {
        RpPlanOptions options = full_options("roundpipe", 2, 8);

        options.round = 4;
        options.step_at_once = (mode & 1) != 0;
        options.async = (mode & 2) != 0;
        options.optimizer = mode & 4 ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED;
        g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
        guint behind = 0, steps = 0, norms = 0;

        for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
            const RpTask *task = rp_plan_task(plan, id);

            if (task->iteration != 1)
                continue;
            behind += task->kind == RP_TASK_GRADIENT_DOWNLOAD && steps > 0;
            if (task->kind == RP_TASK_NORM)
                assert_int_equal(steps, options.step_at_once ? 10 : 0);
            norms += task->kind == RP_TASK_NORM;
            steps += task->kind == RP_TASK_OPTIMIZER_STEP;
        }
        assert_int_equal(norms, 1);
        assert_int_equal(steps, 10);
        assert_int_equal(behind > 0, options.step_at_once);
    }
}

RP_TEST(refuses_a_partition_of_the_wrong_kind)
{
    const guint blocks[] = {4, 4};
    g_autoptr(RpProfile) profile = new_profile();
    GError *error = NULL;
    g_autoptr(RpPartition) bound = rp_partition_from_blocks(profile, blocks, 2, &error);
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    rp_assert_no_error(error);
    rp_refuses("needs forward and backward stages", rp_plan_make, profile, bound, &options, 1);
}

RP_TEST(full_fidelity_refuses_the_published_fused_forward)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    options.fused_forward = RP_FUSED_PUBLISHED;
    rp_refuses("compute fidelity only", rp_plan_make, profile, partition, &options, 1);
}

RP_TEST(retired_tasks_leave_the_rest_as_it_was)
{
    g_autoptr(RpProfile) profile = new_profile();
    g_autoptr(RpPartition) partition = new_dispatched(profile);
    RpPlanOptions options = full_options("roundpipe", 2, 8);

    g_autoptr(RpPlan) whole = make(profile, partition, &options, 3);
    g_autoptr(RpPlan) plan = make(profile, partition, &options, 3);
    RpTaskId cut = rp_plan_end_id(plan) / 2;
    rp_plan_retire(plan, cut);
    assert_int_equal(rp_plan_first_id(plan), cut);
    assert_int_equal(rp_plan_end_id(plan), rp_plan_end_id(whole));
    for (RpTaskId id = cut; id < rp_plan_end_id(plan); id++) {
        const RpTask *a = rp_plan_task(plan, id);
        const RpTask *b = rp_plan_task(whole, id);

        assert_memory_equal(a, b, sizeof *a);
        assert_memory_equal(rp_plan_dependencies(plan, a), rp_plan_dependencies(whole, b),
                            a->dependency_count * sizeof(RpDependency));
        assert_memory_equal(rp_plan_accesses(plan, a), rp_plan_accesses(whole, b),
                            a->access_count * sizeof(RpAccess));
    }
}
