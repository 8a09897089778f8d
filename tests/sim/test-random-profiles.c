/* Timing files made at random over the documented keys: what the reader takes, every schedule plans
 * so that the proof holds and the simulation ends; what it refuses, it refuses by file and key. */
#include "tests/rp-test.h"

#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/schedules/schedule.h"
#include "core/verify/verify.h"
#include "sim/simulate.h"

#define N_FILES 600
#define LARGEST (G_GUINT64_CONSTANT(1) << 50)

static const guint64 sizes[] = {0, 1, 2, 3, 4, 6, 7, 1000, 4096, 100001, 1u << 26, LARGEST};

static guint64
any_size(GRand *rand)
{
    return sizes[g_rand_int_range(rand, 0, G_N_ELEMENTS(sizes))];
}

/* @agreed, which goes with the rest of the file, but for one in @odds. */
static void
add_size(GString *text, GRand *rand, const char *key, guint64 agreed, gint32 odds)
{
    g_string_append_printf(text, ", \"%s\": %" G_GUINT64_FORMAT, key,
                           g_rand_int_range(rand, 0, odds) == 0 ? any_size(rand) : agreed);
}

/* Values that the layers of a file agree on. */
typedef struct {
    guint64 hidden;
    guint64 parameters;
    gint32 odds; /* of an exception */
} Agreed;

static void
add_layer(GString *text, GRand *rand, const char *kind, const Agreed *agreed)
{
    const gboolean head = strcmp(kind, "head") == 0;

    g_string_append_printf(text, "{ \"kind\": \"%s\", \"forward_ms\": %d, \"backward_ms\": %d",
                           kind, g_rand_int_range(rand, 0, 4), g_rand_int_range(rand, 0, 4));
    add_size(text, rand, "parameter_bytes", agreed->parameters, agreed->odds);
    add_size(text, rand, "gradient_bytes",
             g_rand_int_range(rand, 0, 6) == 0 ? 0 : agreed->parameters, agreed->odds);
    add_size(text, rand, "input_bytes", agreed->hidden, agreed->odds);
    add_size(text, rand, "output_bytes", head ? 0 : agreed->hidden, agreed->odds);
    if (g_rand_boolean(rand)) {
        add_size(text, rand, "forward_workspace_bytes", 0, 2);
        add_size(text, rand, "backward_workspace_bytes", 0, 2);
        /* blocks that say how much they keep do not keep nothing */
        g_string_append_printf(text, ", \"activation_bytes\": %" G_GUINT64_FORMAT,
                               1 + (g_rand_boolean(rand) ? any_size(rand) : 0));
    }
    if (head ? g_rand_boolean(rand) : g_rand_int_range(rand, 0, agreed->odds) == 0)
        add_size(text, rand, "tied_bytes", agreed->parameters, 4);
    g_string_append(text, " }");
}

static char *
random_file(GRand *rand)
{
    static const char *const dtypes[] = {"fp16", "bf16", "fp32"};
    const gboolean embedding = g_rand_int_range(rand, 0, 6) > 0;
    const guint blocks = 4 + 2 * (guint)g_rand_int_range(rand, 0, 3);
    const Agreed agreed = {
        .hidden = 1 + any_size(rand) / 2,
        .parameters = 4 * (any_size(rand) / 16),
        .odds = g_rand_boolean(rand) ? 16 : 512,
    };
    GString *text = g_string_new("{ \"format\": \"roundpipe-profile/1\"");

    g_string_append_printf(text,
                           ", \"dtype\": \"%s\", \"links\": { \"h2d_gb_per_s\": 1e6, "
                           "\"d2h_gb_per_s\": 1e6 }, \"layers\": [ ",
                           dtypes[g_rand_int_range(rand, 0, G_N_ELEMENTS(dtypes))]);
    if (embedding)
        add_layer(text, rand, "embedding", &agreed);
    for (guint b = 0; b < blocks; b++) {
        g_string_append(text, b > 0 || embedding ? ", " : "");
        add_layer(text, rand, "block", &agreed);
    }
    if (g_rand_int_range(rand, 0, 6) > 0) {
        g_string_append(text, ", ");
        add_layer(text, rand, "head", &agreed);
    }
    g_string_append(text, " ] }");
    return g_string_free(text, FALSE);
}

/* FALSE where the schedule does not suit so few layers. */
static gboolean
prove(const RpProfile *profile, const RpScheduleOps *schedule, guint file)
{
    const guint stages = 2 * MAX(1, schedule->stages_per_gpu);
    g_autoptr(RpPartition) partition = schedule->dispatched
                                           ? rp_partition_even(profile, 1 + file % 3)
                                           : rp_partition_min_max(profile, stages, NULL);
    RpPlanOptions options = {
        .schedule = schedule,
        .gpus = 2,
        .micro_batches = 4,
        .slices = 1,
        .fidelity = RP_FIDELITY_FULL,
        .async = schedule->dispatched && file % 2 == 1,
        .consistency = file / 2 % 2 == 1 ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
        .optimizer = file / 4 % 2 == 1 ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED,
        .transfers = file / 8 % 2 == 1 ? RP_TRANSFERS_NAIVE : RP_TRANSFERS_WINDOWS,
    };
    const RpMachine machine = rp_machine_from_profile(profile);
    RpViolation violation;
    g_autoptr(GError) error = NULL;

    if (partition == NULL)
        return FALSE;
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 2, &error);
    if (plan == NULL && g_error_matches(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE))
        return FALSE;
    if (plan == NULL)
        fail_msg("file %u, %s: %s", file, schedule->name, error->message);
    if (!rp_verify_plan(plan, &violation))
        fail_msg("file %u, %s: %s", file, schedule->name, violation.message);
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, &error);
    if (trace == NULL)
        fail_msg("file %u, %s: %s", file, schedule->name, error->message);
    return TRUE;
}

static void
test_what_is_read_is_proved(void **state G_GNUC_UNUSED)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(33);
    guint taken = 0, refused = 0, proved = 0;

    for (guint i = 0; i < N_FILES; i++) {
        g_autofree char *text = random_file(rand);
        g_autoptr(GError) error = NULL;
        g_autoptr(RpProfile) profile = rp_profile_parse("x.json", text, strlen(text), &error);

        if (profile == NULL) {
            refused++;
            assert_true(g_error_matches(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_VALUE));
            rp_assert_error_message_contains(error, ": layers");
            continue;
        }
        taken++;
        for (guint s = 0; rp_schedules()[s] != NULL; s++)
            proved += !rp_schedules()[s]->mirrored && prove(profile, rp_schedules()[s], i);
    }
    print_message("%u files taken, %u refused, %u plans proved\n", taken, refused, proved);
    assert_true(taken > N_FILES / 4 && proved > 4 * taken);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_read_is_proved)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
