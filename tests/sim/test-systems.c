/* Baseline systems: closed forms against the reference's checks (tests/sim/fixtures), published points, small
 * cases by hand, and what is refused. */
#include "tests/rp-test.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "sim/systems/pipeline.h"

/* ---- rows of the fixtures ---- */

typedef enum { SYSTEM, SERVER, MODEL } KeyColumn;

static GPtrArray *
read_rows(const char *file)
{
    g_autofree char *path =
        g_build_filename(RP_SOURCE_ROOT, "tests", "sim", "fixtures", file, NULL);
    g_autofree char *text = NULL;
    GPtrArray *rows = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(g_strchomp(text), "\n", -1);
    for (guint i = 1; lines[i] != NULL; i++)
        g_ptr_array_add(rows, g_strsplit(g_strchomp(lines[i]), ",", -1));
    return rows;
}

static double
number(char **row, guint column)
{
    return g_ascii_strtod(row[column], NULL);
}

static const RpSystem *
find_system(const char *name)
{
    const RpSystem *const *system = rp_systems();

    while (*system != NULL && !g_str_equal((*system)->name, name))
        system++;
    return *system;
}

/* "deepspeed-zero2" is our "zero-2". */
static const RpSystem *
system_of(char **row)
{
    const char *name = g_str_equal(row[SYSTEM], "deepspeed-zero2")           ? "zero-2"
                       : g_str_equal(row[SYSTEM], "deepspeed-zero-infinity") ? "zero-infinity"
                                                                             : row[SYSTEM];
    const RpSystem *system = find_system(name);

    assert_non_null(system);
    return system;
}

/* ---- models on servers ---- */

typedef struct {
    RpProfile *profile;
    RpSystemModel model;
    RpSystemServer server;
} Rig;

static void
rig_clear(Rig *rig)
{
    rp_profile_free(rig->profile);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Rig, rig_clear)

static void
set_text(char **text, const char *value)
{
    rp_profile_take(text, g_strdup(value));
}

static void
rig_read(Rig *rig, guint gpus)
{
    GError *error = NULL;

    if (!rp_system_model_read(rig->profile, &rig->model, &error))
        fail_msg("%s", error->message);
    rig->server = rp_system_server(rig->profile, gpus);
}

/* @server: "8x4090" or "8xA800", with the published layer times of the 4090 */
static Rig
rig_of(const char *model, const char *server)
{
    Rig rig = {0};
    const char *lora = "qwen3-235b-lora";
    g_autofree char *file =
        g_strdup_printf("%s.json", g_str_equal(model, lora) ? "qwen3-235b-a22b" : model);
    g_autofree char *path = g_build_filename(RP_SOURCE_ROOT, "profiles", "rtx4090", file, NULL);

    rig.profile = rp_must(rp_profile_load, path);
    if (g_str_equal(server, "8xA800")) {
        set_text(&rig.profile->device, "A800 80GB SXM");
        rig.profile->gpu_memory_bytes = 80 * RP_GIB;
    }
    rig_read(&rig, 8);
    return rig;
}

static guint
batch_of(const char *model)
{
    static const struct {
        const char *model;
        guint batch;
    } batches[] = {{"qwen3-1.7b", 512},
                   {"llama-3.1-8b", 256},
                   {"gpt-oss-20b", 128},
                   {"qwen3-32b", 128},
                   {"qwen3-235b-lora", 64}};

    for (guint i = 0; i < G_N_ELEMENTS(batches); i++)
        if (g_str_equal(batches[i].model, model))
            return batches[i].batch;
    fail_msg("no batch of %s", model);
    return 0;
}

static RpSystemJob
job_of(const Rig *rig, guint batch, guint sequences)
{
    return (RpSystemJob){.model = &rig->model,
                         .server = &rig->server,
                         .batch = batch,
                         .sequences = sequences,
                         .tokens = 2048};
}

static RpSystemPrediction
predict(const RpSystem *system, const RpSystemJob *job)
{
    RpSystemPrediction prediction = {0};
    GError *error = NULL;

    if (!rp_system_predict(system, job, &prediction, &error))
        fail_msg("%s: %s", system->name, error->message);
    return prediction;
}

static void
assert_near(double value, double expected, double share, const char *what, char **row)
{
    if (!(fabs(value - expected) <= share * expected))
        fail_msg("%s %s %s: %s %.6g, expected %.6g", row[SYSTEM], row[SERVER], row[MODEL], what,
                 value, expected);
}

static void
assert_same(double value, double expected, double most)
{
    if (!(fabs(value - expected) <= most))
        fail_msg("%.9g, expected %.9g", value, expected);
}

/* ---- time ---- */

enum { TOKENS = 3, COMPUTE, VOLUME, BANDWIDTH, STEP, PREDICTED, PUBLISHED };

/* Sequences on a GPU at once, in the runs of the check. */
static guint
sequences_of(char **row)
{
    const gboolean tensor = g_str_equal(row[SYSTEM], "megatron-tp");
    const gboolean small = g_str_equal(row[MODEL], "qwen3-1.7b");

    if (tensor)
        return small ? 16 : 8;
    return g_str_equal(row[MODEL], "qwen3-32b") ? 1 : 2;
}

static RpSystemJob
checked_job(const Rig *rig, char **row)
{
    return job_of(rig, (guint)(number(row, TOKENS) / 2048), sequences_of(row));
}

RP_TEST(closed_forms_of_time_are_those_of_the_check)
{
    g_autoptr(GPtrArray) rows = read_rows("baseline-step-time-check.csv");

    assert_int_equal(rows->len, 9);
    for (guint i = 0; i < rows->len; i++) {
        char **row = g_ptr_array_index(rows, i);
        g_auto(Rig) rig = rig_of(row[MODEL], row[SERVER]);

        rig.server.deepspeed_bytes_per_s = rig.server.nccl_bytes_per_s =
            number(row, BANDWIDTH) * 1e9;
        const RpSystemJob job = checked_job(&rig, row);
        const RpSystemPrediction prediction = predict(system_of(row), &job);
        const RpSystemTime *time = &prediction.time;

        assert_near(time->compute, number(row, COMPUTE), 0.004, "compute", row);
        assert_near(time->link_bytes / 1e9, number(row, VOLUME), 0.002, "volume", row);
        assert_near(time->compute + time->collectives, number(row, STEP), 0.002, "step", row);
    }
}

RP_TEST(nine_published_points_are_within_ten_percent)
{
    g_autoptr(GPtrArray) rows = read_rows("baseline-step-time-check.csv");

    for (guint i = 0; i < rows->len; i++) {
        char **row = g_ptr_array_index(rows, i);
        g_auto(Rig) rig = rig_of(row[MODEL], row[SERVER]);
        const RpSystemJob job = checked_job(&rig, row);

        assert_near(predict(system_of(row), &job).tokens_per_s, number(row, PUBLISHED), 0.1,
                    "tokens/s", row);
    }
}

/* A ring's volume by hand: 4 GPUs, 1,000 weights, 2 turns. */
static RpProfile *
tiny_profile(guint blocks)
{
    RpProfile *profile = rp_profile_new(blocks + 2);

    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        const gboolean block = i > 0 && i <= blocks;

        layer->kind = i == 0 ? RP_LAYER_EMBEDDING : block ? RP_LAYER_BLOCK : RP_LAYER_HEAD;
        layer->forward_ns = layer->recompute_ns = block ? 10 * RP_NS_PER_MS : 0;
        layer->backward_ns = 2 * layer->forward_ns;
        layer->weight_gradient_ns = layer->forward_ns;
        layer->parameter_bytes = layer->gradient_bytes = block ? 400 : 200;
        layer->input_bytes = layer->output_bytes = 2 * 16 * 10; /* 16 tokens, 10 hidden */
    }
    set_text(&profile->model, "tiny");
    profile->has_sizes = TRUE;
    profile->sequences = 2;
    profile->tokens_per_sequence = 8;
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = RP_SYSTEM_PCIE4;
    profile->optimizer_parameters_per_s = 1e9;
    return profile;
}

static Rig
tiny_rig(guint blocks, guint gpus)
{
    Rig rig = {.profile = tiny_profile(blocks)};

    rig_read(&rig, gpus);
    return rig;
}

static RpSystemJob
tiny_job(const Rig *rig, guint batch, guint sequences)
{
    RpSystemJob job = job_of(rig, batch, sequences);

    job.tokens = 8;
    return job;
}

RP_TEST(small_cases_are_as_by_hand)
{
    /* 4 blocks of 200 weights, 100 each in embedding and head: P = 1,000; h = 10, V = 10 */
    static const struct {
        const char *name;
        double bytes; /* of a ring, before (N - 1) / N */
        double gpu_state, host;
    } cases[] = {
        {"zero-2", (2 * 4 + 2) * 1000.0, 2000 + 14000 / 4.0, 0},
        {"fsdp", (2 * 4 + 2) * 1000.0, 16000 / 4.0 + 2 * (3 * 200 + 200) + 2000, 0},
        {"zero-infinity", 2 * 6 * 1000.0, 2 * (2 * 200 + 200), 18000},
        {"megatron-tp", 16 * 8 * 2.0 * 10 * 4 * 12, 18000 / 4.0, 0},
    };
    g_auto(Rig) rig = tiny_rig(4, 4);
    const RpSystemJob job = tiny_job(&rig, 16, 2); /* 2 turns of 2 sequences on 4 GPUs */

    assert_same(rig.model.parameters, 1000, 0);
    assert_int_equal(rig.model.hidden, 10);
    assert_int_equal(rig.model.vocab, 10);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        const RpSystem *system = find_system(cases[i].name);
        const RpSystemPrediction is = predict(system, &job);
        const double share = g_str_equal(cases[i].name, "megatron-tp") ? 4 : 1;
        const double tokens = 16; /* of a micro-batch */

        /* 8 micro-batches of the profile's, 4 x 40 ms each, on 4 GPUs */
        assert_same(is.time.compute, 8 * 4 * 0.040 / 4, 1e-12);
        assert_same(is.time.link_bytes, cases[i].bytes * 3 / 4, 1e-9);
        assert_same(is.memory.state, cases[i].gpu_state, 1e-9);
        assert_same(is.memory.host, cases[i].host, 1e-9);
        assert_same(is.memory.activations,
                    tokens * (10 * (2 * 4 + 34) + 10 * system->logit_bytes) / share, 1e-9);
    }
}

RP_TEST(a_uniform_pipeline_takes_its_closed_form)
{
    g_auto(Rig) rig = tiny_rig(6, 4); /* stages of 2, 1, 1, 2 */
    g_auto(Rig) even = tiny_rig(4, 2);
    guint stages[4];

    rp_system_stages(6, 4, stages);
    assert_int_equal(stages[0] + stages[1] + stages[2] + stages[3], 6);
    /* 2 stages of 2 blocks, (M + N - 1)(F + B) with M = 8 micro-batches of the profile's */
    const RpSystemJob job = tiny_job(&even, 16, 2);
    const RpSystemPrediction pipeline = predict(&rp_system_megatron_pp, &job);

    assert_same(pipeline.time.step, (8 + 2 - 1) * 2 * 0.040, 1e-9);
    assert_same(pipeline.time.compute, 8 * 2 * 0.040, 1e-9);
    /* Mobius: 2 passes of 4 micro-batches over 2 stages a GPU, (v M + N - 1)(F + B) each, and 800 + 200
     * parameters to step */
    const RpSystemPrediction mobius = predict(&rp_system_mobius, &job);

    assert_same(mobius.time.step, 2 * (2 * 4 + 2 - 1) * 0.040 + 1e-6, 1e-9);
    assert_same(mobius.memory.state, 2 * 2 * 200, 1e-9);
}

RP_TEST(stages_are_dealt_out_as_megatron_does)
{
    static const struct {
        guint blocks, first, middle, last;
    } cases[] = {{28, 2, 4, 2}, {32, 1, 5, 1}, {24, 3, 3, 3}, {64, 5, 9, 5}, {94, 11, 12, 11}};

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        guint stages[8];

        rp_system_stages(cases[i].blocks, 8, stages);
        assert_int_equal(stages[0], cases[i].first);
        for (guint r = 1; r < 7; r++)
            assert_int_equal(stages[r], cases[i].middle);
        assert_int_equal(stages[7], cases[i].last);
    }
    for (guint gpus = 1; gpus <= 16; gpus++)
        for (guint blocks = gpus; blocks <= 100; blocks++) {
            guint stages[16], sum = 0;

            rp_system_stages(blocks, gpus, stages);
            for (guint r = 0; r < gpus; r++) {
                assert_true(stages[r] >= 1);
                sum += stages[r];
            }
            assert_int_equal(sum, blocks);
        }
}

/* ---- memory ---- */

enum { SEQUENCES = 3, STATE_GB, ACTIVATIONS_GB, TOTAL_GB, CHECKED, CELL };

/* FSDP ran these without accumulation; those that never ran count as such. */
static guint
batch_of_cell(char **row)
{
    const guint all = (guint)number(row, SEQUENCES) * 8;
    const gboolean fsdp = g_str_equal(row[SYSTEM], "fsdp");
    const gboolean eight = g_str_equal(row[MODEL], "llama-3.1-8b");
    const gboolean small = g_str_equal(row[MODEL], "qwen3-1.7b");

    if (fsdp && !small && !(eight && g_str_equal(row[SERVER], "8xA800")))
        return all;
    return batch_of(row[MODEL]);
}

/* The check counts adapters of 6.6e9 parameters for the last model, our profile 7.8e9. */
static double
tolerance(char **row)
{
    return g_str_equal(row[MODEL], "qwen3-235b-lora") ? 0.08 : 0.01;
}

/* @logit_bytes: 0: the row's own. Returns: whether the cell is as published */
static gboolean
check_cell(char **row, double logit_bytes, gboolean *fits)
{
    const RpSystem *system = system_of(row);
    g_auto(Rig) rig = rig_of(row[MODEL], row[SERVER]);
    const RpSystemJob job = job_of(&rig, batch_of_cell(row), (guint)number(row, SEQUENCES));
    const RpSystemMemory memory =
        system->memory(&job, logit_bytes > 0 ? logit_bytes : system->logit_bytes);

    *fits = memory.state + memory.activations <= (double)rig.server.gpu_bytes;
    if (logit_bytes > 0) {
        /* the check is rounded to 0.1 GB */
        const double slack = 0.051e9;

        assert_true(fabs(memory.state - number(row, STATE_GB) * 1e9) <=
                    slack + tolerance(row) * memory.state);
        assert_true(fabs(memory.activations - number(row, ACTIVATIONS_GB) * 1e9) <=
                    slack + tolerance(row) * memory.activations);
    }
    return *fits == g_str_equal(row[CELL], "fits");
}

RP_TEST(closed_forms_of_memory_are_those_of_the_check)
{
    g_autoptr(GPtrArray) rows = read_rows("baseline-memory-check.csv");
    guint right = 0;

    assert_int_equal(rows->len, 48);
    for (guint i = 0; i < rows->len; i++) {
        char **row = g_ptr_array_index(rows, i);
        gboolean fits;

        right += check_cell(row, 8, &fits);
        if (fits != g_str_equal(row[CHECKED], "fits"))
            fail_msg("%s %s %s: not as in the check", row[SYSTEM], row[SERVER], row[MODEL]);
    }
    assert_int_equal(right, 44);
}

RP_TEST(out_of_memory_is_where_it_was_published)
{
    g_autoptr(GPtrArray) rows = read_rows("baseline-memory-check.csv");
    g_autoptr(GString) wrong = g_string_new(NULL);
    gboolean fits;

    for (guint i = 0; i < rows->len; i++) {
        char **row = g_ptr_array_index(rows, i);

        if (!check_cell(row, 0, &fits))
            g_string_append_printf(wrong, "%s %s %s;", row[SYSTEM], row[SERVER], row[MODEL]);
    }
    assert_string_equal(wrong->str, "deepspeed-zero-infinity 8x4090 qwen3-235b-lora;"
                                    "fsdp 8x4090 llama-3.1-8b;"
                                    "megatron-pp 8xA800 qwen3-32b;");
}

RP_TEST(the_micro_batch_is_the_largest_that_fits)
{
    g_auto(Rig) rig = rig_of("qwen3-1.7b", "8x4090");

    for (const RpSystem *const *s = rp_systems(); *s != NULL; s++) {
        RpSystemJob job = job_of(&rig, 512, 0);
        const RpSystemPrediction chosen = predict(*s, &job);

        assert_true(chosen.fits);
        assert_int_equal(512 % chosen.sequences, 0);
        if ((*s)->memory == NULL)
            continue;
        job.sequences = 2 * chosen.sequences;
        const RpSystemMemory twice = rp_system_memory(*s, &job);

        assert_true(chosen.sequences == 64 / MAX(1, (*s)->least_turns) ||
                    twice.gpu > (double)rig.server.gpu_bytes);
    }
}

RP_TEST(a_chunked_head_leaves_room_for_larger_micro_batches)
{
    g_auto(Rig) rig = rig_of("qwen3-1.7b", "8x4090");
    RpSystemJob job = job_of(&rig, 512, 0);
    const RpSystemPrediction whole = predict(&rp_system_fsdp, &job);

    job.chunked_head = TRUE;
    const RpSystemPrediction chunked = predict(&rp_system_fsdp, &job);

    assert_true(chunked.fits);
    assert_true(chunked.sequences >= 4 * whole.sequences);
    assert_true(chunked.tokens_per_s > 2 * whole.tokens_per_s);
    /* a pipeline keeps 4 micro-batches a GPU */
    assert_int_equal(predict(&rp_system_megatron_pp, &job).in_turn, 32);
}

RP_TEST(the_longest_sequence_is_the_last_that_fits)
{
    static const char *const models[] = {"qwen3-1.7b", "qwen3-32b", "qwen3-235b-lora"};

    for (guint m = 0; m < G_N_ELEMENTS(models); m++) {
        g_auto(Rig) rig = rig_of(models[m], "8xA800");

        for (const RpSystem *const *s = rp_systems(); *s != NULL; s++) {
            RpSystemJob job = job_of(&rig, 8, 1);
            guint tokens;

            if (!rp_system_longest(*s, &job, &tokens, NULL)) {
                assert_ptr_equal(*s, &rp_system_megatron_tp);
                continue;
            }
            if ((*s)->memory == NULL) {
                assert_true(tokens > 50000);
                continue;
            }
            for (guint more = 0; more < 2; more++) {
                job.tokens = MAX(1, tokens) + more * RP_SYSTEM_STEP;
                const RpSystemMemory memory = rp_system_memory(*s, &job);

                assert_int_equal(memory.gpu <= (double)rig.server.gpu_bytes,
                                 more == 0 && tokens > 0);
            }
        }
    }
}

/* ---- RoundPipe ---- */

RP_TEST(roundpipe_is_planned_and_simulated)
{
    g_auto(Rig) rig = rig_of("qwen3-1.7b", "8x4090");
    const RpSystemJob job = job_of(&rig, 64, 0);
    const RpSystemPrediction sync = predict(&rp_system_roundpipe_sync, &job);
    const RpSystemPrediction async = predict(&rp_system_roundpipe, &job);

    assert_int_equal(async.sequences, 4);
    assert_int_equal(async.in_turn, 16);
    assert_true(async.tokens_per_s > sync.tokens_per_s);
    /* its GPUs compute less than a backward that recomputes all, and no less than without any */
    assert_true(async.time.compute < rp_system_compute_s(&job));
    assert_true(sync.time.wait > async.time.wait);
    assert_true(async.memory.host > 16 * rig.model.parameters);
    assert_true(async.memory.gpu > 0 && async.fits && sync.fits);
}

/* ---- what is refused ---- */

RP_TEST(refuses_models_that_a_system_cannot_take)
{
    g_auto(Rig) experts = rig_of("qwen3-235b-lora", "8xA800");
    g_auto(Rig) tiny = tiny_rig(4, 8);
    RpSystemJob job = job_of(&experts, 64, 1);
    RpSystemPrediction unused;
    g_autoptr(GError) heads = NULL;
    g_autoptr(GError) blocks = NULL;
    g_autoptr(GError) batch = NULL;

    assert_false(rp_system_predict(&rp_system_megatron_tp, &job, &unused, &heads));
    assert_string_equal(
        heads->message,
        "qwen3-235b-a22b has 4 heads of keys and values, which 8 GPUs cannot share out "
        "evenly: use a number of GPUs that divides 4");
    job = tiny_job(&tiny, 16, 1);
    assert_false(rp_system_predict(&rp_system_megatron_pp, &job, &unused, &blocks));
    assert_non_null(strstr(blocks->message, "4 blocks are fewer than 8 GPUs"));
    job.batch = 12;
    assert_false(rp_system_predict(&rp_system_zero_2, &job, &unused, &batch));
    assert_string_equal(batch->message, "a step of 12 sequences does not divide into micro-batches "
                                        "of 1 on every GPU");
}

RP_TEST(refuses_profiles_without_sizes_or_blocks)
{
    g_autoptr(RpProfile) sizeless = tiny_profile(4);
    g_autoptr(RpProfile) tokenless = tiny_profile(4);
    RpSystemModel unused;
    g_autoptr(GError) sizes = NULL;
    g_autoptr(GError) tokens = NULL;

    sizeless->has_sizes = FALSE;
    tokenless->sequences = 0;
    assert_false(rp_system_model_read(sizeless, &unused, &sizes));
    assert_true(g_error_matches(sizes, RP_PROFILE_ERROR, RP_PROFILE_ERROR_FIDELITY));
    assert_false(rp_system_model_read(tokenless, &unused, &tokens));
    assert_non_null(strstr(tokens->message, "found no \"micro_batch\""));
}
