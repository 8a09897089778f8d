/* One memory model: `plan`, `simulate` of its stages, `plan --profile` of the exported times, and `train --dry-run` plan the
 * same bytes; and what fits is said alike. */
#include "tests/cli/train-files.h"

#include <glib/gstdio.h>
#include <string.h>

#include "core/base/units.h"
#include "core/profile/profile.h"

/* A model of @architecture with @more members. */
#define CONFIG(architecture, type, more)                                                           \
    "{\"architectures\":[\"" architecture "\"],\"model_type\":\"" type "\",\"hidden_size\":64,"    \
    "\"num_hidden_layers\":6,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16," \
    "\"intermediate_size\":160,\"vocab_size\":512,\"max_position_embeddings\":4096,"               \
    "\"torch_dtype\":\"bfloat16\"," more "}"

static const struct {
    const char *name, *config;
} models[] = {
    {"dense", CONFIG("Qwen3ForCausalLM", "qwen3", "\"tie_word_embeddings\":false")},
    {"tied", CONFIG("Qwen3ForCausalLM", "qwen3", "\"tie_word_embeddings\":true")},
    {"experts", CONFIG("Qwen3MoeForCausalLM", "qwen3_moe",
                       "\"moe_intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":2")},
};

/* A run in words of each command; those of times are asked of what exports them. */
typedef struct {
    const char *model;
    const char *times;    /* of `plan` and `export` */
    const char *plan;     /* of `plan`, with and without times */
    const char *simulate; /* the same of `simulate` */
    const char *train;    /* of `train`; %NULL: it would need several servers */
    gboolean bound;
} Run;

#define ADAPTED "--set lora.rank=8 "

static const Run runs[] = {
    {"dense", "", "", "--async", "", FALSE},
    {"tied", "", "", "--async", "", FALSE},
    {"dense", "", "--sync", "", "--set async=false", FALSE},
    {"dense", "--matmul fp8", "", "--async", "--set matmul=fp8", FALSE},
    {"experts", "", "", "--async", "", FALSE},
    {"tied", "--lora-rank 8", "", "--async", ADAPTED, FALSE},
    {"dense", "--lora-rank 8 --base nf4", "--resident on", "--async --resident on",
     ADAPTED "--set base=nf4 --set resident=on", FALSE},
    {"dense", "--lora-rank 8 --base mxfp4", "--recompute qkv,residual",
     "--async --recompute qkv,residual",
     ADAPTED "--set base=mxfp4 --set recompute=qkv,residual --set resident=auto", FALSE},
    {"dense", "", "--optimizer-state int8", "--async --optimizer-state int8",
     "--set optimizer.state=int8", FALSE},
    {"dense", "", "", "", "--set schedule=1f1b", TRUE},
    {"dense", "", "--servers 2 --network 25GbE", "--async --servers 2 --network 25GbE", NULL,
     FALSE},
};

static int
set_up(void **state)
{
    if (rp_train_files_setup(state) != 0)
        return -1;
    for (gsize i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autofree char *directory = rp_cli_temporary(models[i].name);
        g_autofree char *file = g_strconcat(models[i].name, "/config.json", NULL);

        if (g_mkdir(directory, 0777) != 0)
            return -1;
        rp_cli_write(file, models[i].config);
    }
    rp_cli_write("sizes.yaml", "model: unset\ndata: unset\noutput: unset\ndevices: host:2\n"
                               "sequence_length: 128\nmicro_batch_size: 2\nsteps: 2\n");
    return 0;
}

static RpTree *
ask(const char *line)
{
    g_auto(RpCliRun) run = rp_cli_run("%s", line);

    if (run.code != 0)
        fail_msg("%s: exit code %d: %s", line, run.code, run.err);
    return rp_cli_json(&run);
}

static char *
stage_list(const RpTree *found, const char *key)
{
    char *list = rp_cli_list(found, key);

    if (*list != '\0')
        return list;
    g_free(list);
    return g_strdup("none");
}

/* The part of a plan that is @run's: the recommendation, or the only bound schedule. */
static const RpTree *
found_in(const RpTree *plan, const Run *run)
{
    return rp_cli_member(plan, run->bound ? "schedules.0" : "recommendation");
}

static RpTree *
plan(const Run *run, const char *of)
{
    g_autofree char *line =
        g_strdup_printf("plan %s --gpus 2 --batch 16 --host-memory 64 --json --schedules %s %s%s%s",
                        of, run->bound ? "1f1b" : "roundpipe", run->plan,
                        strstr(run->plan, "--recompute") != NULL ? "" : " --recompute full",
                        strstr(run->plan, "--resident") != NULL ? "" : " --resident off");

    return ask(line);
}

static RpTree *
simulate(const Run *run, const RpTree *found, const char *stages)
{
    g_autofree char *line = g_strdup_printf(
        "simulate @T/exported.json --gpus 2 --fidelity full --json --schedule %s --micro-batches "
        "%.0f "
        "%s %s%s%s",
        run->bound ? "1f1b" : "roundpipe", rp_cli_number(found, "micro_batches"), stages,
        run->simulate, strstr(run->simulate, "--recompute") != NULL ? "" : " --recompute full",
        strstr(run->simulate, "--resident") != NULL ? "" : " --resident off");

    return ask(line);
}

/* @options: "--round 4 --forward-stages none --backward-stages 6". In words of a run file. */
static RpTree *
train(const Run *run, const RpTree *found, const char *options)
{
    g_auto(GStrv) words = g_strsplit(options, " ", -1);
    g_autoptr(GString) line = g_string_new(NULL);

    g_string_printf(
        line,
        "train @T/sizes.yaml --dry-run --json --set model=@T/%s --set data=@T/none.jsonl "
        "--set output=@T/none --set profile=@T/exported.json --set micro_batches=%.0f %s%s%s",
        run->model, rp_cli_number(found, "micro_batches"), run->train,
        strstr(run->train, "recompute") != NULL ? "" : " --set recompute=full",
        strstr(run->train, "resident") != NULL ? "" : " --set resident=off");
    for (guint i = 0; words[i] != NULL; i += 2) {
        g_autofree char *key = g_strdelimit(g_strdup(words[i] + strlen("--")), "-", '_');

        g_string_append_printf(line, " --set %s=%s", key, words[i + 1]);
    }
    return ask(line->str);
}

static void
assert_alike(const Run *run, const char *command, const RpTree *plan, double gpu_bytes,
             double host_bytes)
{
    const double gpu = rp_cli_number(plan, "gpu_peak_bytes");
    const double host = rp_cli_number(plan, "host_peak_bytes");

    if (gpu != gpu_bytes || host != host_bytes)
        fail_msg("%s %s %s: plan has %.0f and %.0f bytes, %s %.0f and %.0f", run->model, run->times,
                 run->plan, gpu, host, command, gpu_bytes, host_bytes);
}

static void
check_run(const Run *run)
{
    g_autofree char *of =
        g_strdup_printf("@T/%s --gpu rtx4090 --micro-batch 2 --sequence 128 --devices host %s",
                        run->model, run->times);
    g_autofree char *export =
        g_strdup_printf("export --gpus 2 -o @T/exported.json --profile %s", of);
    g_autoptr(RpTree) planned = plan(run, of);
    const RpTree *found = found_in(planned, run);
    g_autofree char *forward = stage_list(found, "forward_stages");

    rp_cli_must_run("%s", export);
    g_autofree char *backward = run->bound ? g_strdup("") : stage_list(found, "backward_stages");
    g_autofree char *stages =
        run->bound ? g_strdup_printf("--stages %s", forward)
                   : g_strdup_printf("--round %.0f --forward-stages %s --backward-stages %s",
                                     rp_cli_number(found, "round"), forward, backward);
    g_autoptr(RpTree) simulated = simulate(run, found, stages);
    g_autoptr(RpTree) of_times = plan(run, "--profile @T/exported.json");
    const RpTree *again = found_in(of_times, run);
    g_autofree char *forward_again = stage_list(again, "forward_stages");

    assert_string_equal(forward_again, forward);
    assert_alike(run, "plan --profile", found, rp_cli_number(again, "gpu_peak_bytes"),
                 rp_cli_number(again, "host_peak_bytes"));
    assert_alike(run, "simulate", found, rp_cli_number(simulated, "gpu_peak_bytes"),
                 rp_cli_number(simulated, "host_peak_bytes"));
    if (run->train == NULL)
        return;
    g_autoptr(RpTree) trained = train(run, found, stages);

    assert_alike(run, "train --dry-run", found,
                 MAX(rp_cli_number(trained, "predicted.device_bytes.0"),
                     rp_cli_number(trained, "predicted.device_bytes.1")),
                 rp_cli_number(trained, "predicted.host_bytes"));
}

RP_TEST(all_commands_plan_the_same_bytes)
{
    for (gsize i = 0; i < G_N_ELEMENTS(runs); i++)
        check_run(&runs[i]);
}

/* ---- what fits ---- */

/* Writes @T/limited.json: @T/exported.json of a card, or of a device that was measured, with so much memory. */
static void
limit_memory(const char *source, guint64 bytes)
{
    g_autofree char *text = rp_cli_read("exported.json");
    g_autoptr(RpProfile) profile = rp_profile_parse("exported.json", text, strlen(text), NULL);

    rp_profile_take(&profile->source, g_strdup(source));
    profile->gpu_memory_bytes = bytes;
    g_autofree char *limited = rp_profile_to_json(profile);

    rp_cli_write("limited.json", limited);
}

#define STAGES "--forward-stages 14*2 --backward-stages 0,14*2"
#define WORDS "@T/limited.json --gpus 2 --micro-batches 4 --fidelity full --json "

static gboolean
fits(const char *line, const char *key)
{
    g_autoptr(RpTree) found = ask(line);

    return rp_cli_member(found, key)->number != 0;
}

/* Plans leave 0.9 GiB of a card, and nothing of what a measurement found free. */
RP_TEST(simulations_fit_where_plans_do)
{
    static const struct {
        const char *source;
        guint64 left;
    } cases[] = {{"predicted", RP_GPU_RESERVE_BYTES}, {"measured", 0}};

    rp_cli_must_run(
        "export --profile qwen3-1.7b --gpu rtx4090 --gpus 2 --micro-batch 1 --devices host "
        "-o @T/exported.json");
    limit_memory("measured", 64 * RP_GIB);
    g_autoptr(RpTree) free = ask("simulate " WORDS "--schedule roundpipe --recompute full " STAGES);
    const guint64 need = (guint64)rp_cli_number(free, "gpu_peak_bytes");

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        for (guint less = 0; less < 2; less++) {
            limit_memory(cases[i].source, need + cases[i].left - less);
            g_autoptr(RpTree) planned =
                ask("plan --profile @T/limited.json --gpus 2 --batch 4 --recompute full --json "
                    "--schedules roundpipe");

            assert_true(rp_cli_number(planned, "gpu.limit") == (double)(need - less));
            assert_int_equal(fits("simulate " WORDS "--schedule roundpipe --recompute full " STAGES,
                                  "fits_gpu_memory"),
                             !less);
        }
    limit_memory("predicted", need);
    g_autoptr(RpTree) rows = ask("compare " WORDS "--schedules roundpipe,1f1b");

    assert_true(rp_cli_number(rows, "rows.0.gpu_peak_bytes") <=
                (double)(need - RP_GPU_RESERVE_BYTES));
}

/* ---- dry runs ---- */

static RpTree *
train_limited(guint devices, gboolean async, double device_bytes, const char *more)
{
    g_autofree char *line = g_strdup_printf(
        "train @T/run.yaml --json --set output=@T/run-%u-%d --set devices=host:%u --set async=%s "
        "--set device_memory=%.0fB --set steps=2 %s",
        devices, async, devices, async ? "true" : "false", device_bytes, more);

    return ask(line);
}

static void
assert_same_list(const RpTree *dry, const char *path, const RpTree *run, const char *path_of_run)
{
    g_autofree char *planned = rp_cli_list(dry, path), *ran = rp_cli_list(run, path_of_run);

    assert_string_equal(planned, ran);
}

/* The memory is less than what the fastest stages take: others are planned. */
RP_TEST(a_dry_run_plans_what_the_run_plans)
{
    for (guint devices = 2; devices <= 4; devices += 2)
        for (guint async = 0; async < 2; async++) {
            g_autoptr(RpTree) free = train_limited(devices, async, 1e9, "--dry-run");
            const double bytes = rp_cli_number(free, "predicted.device_bytes.0") - 1;
            g_autoptr(RpTree) dry = train_limited(devices, async, bytes, "--dry-run");
            g_autoptr(RpTree) run = train_limited(devices, async, bytes, "");

            assert_true(rp_cli_number(dry, "predicted.device_bytes.0") <= bytes);
            assert_same_list(dry, "forward_stages", run, "forward_stages");
            assert_same_list(dry, "backward_stages", run, "backward_stages");
            assert_same_list(dry, "predicted.device_bytes", run, "measured.device_bytes");
            assert_true(rp_cli_number(dry, "predicted.host_bytes") ==
                        rp_cli_number(run, "measured.host_bytes"));
        }
}

RP_TEST_GROUP(set_up, rp_cli_teardown)
