/*
 * `roundpipe train` on GPUs that fail, are missing, full or busy, and runs on them that signals
 * end: one line that says what, where and what to do about it, an exit code, no hang, and a
 * checkpoint that leads to the bits of a run that was never disturbed.
 *
 *   whole   |=1= ... =30[c]= ...                  ... =300[c]|
 *   parts   |=1= ... =30[c]= X
 *                          |=31= ... =60[c]=   ...    =300[c]|
 *
 * Exits 77 without a GPU. $CUDA_FAULT_LIBRARY: cuda-fault.c, built; $TAKE_GPU_MEMORY:
 * take-gpu-memory.c, built.
 */
#include "tests/cli/train-files.h"

#include <math.h>
#include <sys/stat.h>

#define CONFIG                                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","                          \
    "\"hidden_size\":32,\"num_hidden_layers\":4,"                                                  \
    "\"num_attention_heads\":4,\"intermediate_size\":48,\"vocab_size\":64}"

#define STEPS 300
#define EVERY 30
#define LAST "checkpoint-" G_STRINGIFY(STEPS)

/* Longer than any run here takes. */
#define NO_HANG "timeout -k 5 100 "

#define TRAIN                                                                                      \
    "$ROUNDPIPE train @T/run.yaml --set model=@T/gpu-model --set steps=" G_STRINGIFY(              \
        STEPS) " --set checkpoint.every=" G_STRINGIFY(EVERY) " --set output=@T/"
/* Wide enough to fill a card with few tokens. */
#define WIDE_CONFIG                                                                                \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":1024,"     \
    "\"num_hidden_layers\":4,\"num_attention_heads\":16,\"intermediate_size\":2816,"               \
    "\"vocab_size\":64}"
#define WIDE                                                                                       \
    "$ROUNDPIPE train @T/run.yaml --set model=@T/wide-model --set steps=2 --set "                  \
    "checkpoint.final=false --set devices=cuda:1 --set output=@T/"
/* The exit code of the program, not of `timeout`. */
#define FAULT NO_HANG "env LD_PRELOAD=$CUDA_FAULT_LIBRARY CUDA_FAULT"

/* Arenas of this one are larger than LEFT_BYTES. */
#define LARGE " --set micro_batch_size=65536"
#define LEFT_BYTES "2147483648"

static guint n_gpus;
static guint64 n_matmuls; /* of an undisturbed run on one GPU */
static char *whole_out;   /* what it printed */

/* Runs @line to its end; nothing is expected on stderr. */
static void
succeed(const char *line)
{
    g_auto(RpCliRun) run = rp_cli_shell("%s", line);

    if (run.code != 0)
        fail_msg("%s: exit code %d: %s", line, run.code, run.err);
    if (*run.err != '\0')
        fail_msg("%s: expected no word, found: %s", line, run.err);
}

/* A run that fails: its exit code, and one line on stderr with all of @parts, NULL at the end. */
static void
refuse(const char *line, int code, const char *const *parts)
{
    g_auto(RpCliRun) run = rp_cli_shell("%s", line);

    if (run.code != code)
        fail_msg("%s: exit code %d, expected %d: %s", line, run.code, code, run.err);
    if (!g_str_has_prefix(run.err, "roundpipe train: ") ||
        strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
        fail_msg("%s: expected one line, found: %s", line, run.err);
    print_message("           %s", run.err);
    for (; *parts != NULL; parts++)
        if (strstr(run.err, *parts) == NULL)
            fail_msg("%s: expected \"%s\" in: %s", line, *parts, run.err);
}

#define REFUSE(line, code, ...) refuse(line, code, (const char *const[]){__VA_ARGS__, NULL})

/* Goes on with @output to its end, as if nothing had happened. */
static void
assert_goes_on(const char *output, const char *devices)
{
    g_autofree char *line =
        g_strdup_printf(NO_HANG TRAIN "%s --set devices=%s --resume", output, devices);
    g_autofree char *last = g_build_filename(output, LAST, NULL);

    succeed(line);

    g_autofree char *expected = rp_train_files_learned("whole");
    g_autofree char *found = rp_train_files_learned(output);

    rp_train_files_assert_same("whole/" LAST, last);
    assert_string_equal(found, expected);
}

/* ---- before and after ---- */

/* Asks for more GPUs than there are. */
static guint
count_gpus(void)
{
    g_auto(RpCliRun) run =
        rp_cli_shell("$ROUNDPIPE train @T/run.yaml --set devices=cuda:4096 --dry-run");
    const char *found = strstr(run.err, "CUDA finds ");

    return found == NULL ? 0 : (guint)g_ascii_strtoull(found + strlen("CUDA finds "), NULL, 10);
}

static int
setup(void **state)
{
    int code = rp_train_files_setup(state);

    if (code != 0)
        return code;
    n_gpus = count_gpus();
    if (n_gpus == 0)
        return 0;
    rp_cli_write("gpu.json", CONFIG);
    g_auto(RpCliRun) init = rp_cli_run("init @T/gpu.json -o @T/gpu-model --seed 1");
    rp_cli_write("wide.json", WIDE_CONFIG);
    g_auto(RpCliRun) wide = rp_cli_run("init @T/wide.json -o @T/wide-model --seed 1");
    g_auto(RpCliRun) whole =
        rp_cli_shell(FAULT "_COUNT=@T/matmuls " TRAIN "whole --set devices=cuda:1");
    if (init.code != 0 || wide.code != 0 || whole.code != 0) {
        print_error("%s%s%s", init.err, wide.err, whole.err);
        return 1;
    }
    whole_out = g_strdup(whole.out);
    g_autofree char *text = rp_cli_read("matmuls");
    n_matmuls = g_ascii_strtoull(text, NULL, 10);
    if (n_matmuls < STEPS)
        print_error("%" G_GUINT64_FORMAT " matmuls counted: is cublasLt linked dynamically?\n",
                    n_matmuls);
    return n_matmuls < STEPS;
}

/* ---- signals ---- */

/* Starts a run, waits for the file @when of the run (a shell pattern), does @act and ends the run
 * with @signal. Returns: the exit code */
static int
interrupt(const char *output, const char *devices, const char *when, const char *act,
          const char *signal)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        TRAIN "%s --set devices=%s $(ls -d @T/%s/checkpoint-* >/dev/null 2>&1 && echo --resume) "
              ">/dev/null & pid=$!; n=0; "
              "until ls -d @T/%s/%s >/dev/null 2>&1 || [ $n -gt 10000 ]; do "
              "n=$((n + 1)); sleep 0.005; done; %s; kill -%s $pid; wait $pid",
        output, devices, output, output, when, act, signal);

    return run.code;
}

static guint
count_steps(const char *output)
{
    g_autofree char *learned = rp_train_files_learned(output);
    g_auto(GStrv) lines = g_strsplit(learned, "\n", -1);

    return g_strv_length(lines) - 1;
}

RP_TEST(saves_at_sigterm_and_goes_on_to_the_same_bits)
{
    const int code =
        interrupt("term", n_gpus > 1 ? "cuda:2" : "cuda:1", "checkpoint-30", "sleep 0.02", "TERM");
    const guint steps = count_steps("term");
    g_autofree char *names = rp_train_files_list("term");
    g_autofree char *last = g_strdup_printf("checkpoint-%u ", steps);

    assert_int_equal(code, 143);
    assert_in_range(steps, EVERY, STEPS - 1);
    print_message("           saved at step %u\n", steps);
    assert_non_null(strstr(names, last));
    assert_null(strstr(names, ".tmp"));
    assert_goes_on("term", "cuda:1");
}

RP_TEST(goes_on_to_the_same_bits_after_every_sigkill)
{
    const char *devices = n_gpus > 1 ? "cuda:2" : "cuda:1";
    int code;

    assert_int_equal(interrupt("kill", "cuda:1", "checkpoint-30", "sleep 0.01", "KILL"), 137);
    assert_int_equal(interrupt("kill", devices, "checkpoint-90", "sleep 0.03", "KILL"), 137);
    /* while a checkpoint is being written; it may be over before that is seen */
    code = interrupt("kill", "cuda:1", "checkpoint-150",
                     "for i in $(seq 1000); do ls -A @T/kill | grep -q '^[.]checkpoint-' && break; "
                     "done",
                     "KILL");
    assert_true(code == 137 || code == 0);
    assert_goes_on("kill", "cuda:1");
}

/* ---- missing, busy, full ---- */

RP_TEST(says_how_many_gpus_there_are)
{
    g_autofree char *found = g_strdup_printf("expected 99 GPUs, CUDA finds %u: ", n_gpus);

    REFUSE(NO_HANG TRAIN "none --set devices=cuda:99", 2, "devices", found, "CUDA_VISIBLE_DEVICES");
    REFUSE("CUDA_VISIBLE_DEVICES= " NO_HANG TRAIN "none --set devices=cuda", 2, "devices",
           "expected 1 GPU, CUDA finds 0, ", "no CUDA-capable device");
}

/* CUDA's answer to the second program on a device in exclusive mode. */
RP_TEST(says_that_a_gpu_is_busy)
{
    REFUSE(FAULT "=busy " TRAIN "busy --set devices=cuda:1", 1,
           "device 0: ", "busy or unavailable (cudaErrorDevicesUnavailable)", "nvidia-smi");
}

/* Has the first GPU's memory but @left_bytes. */
static GSubprocess *
take_memory(const char *left_bytes)
{
    GSubprocess *taker =
        g_subprocess_new(G_SUBPROCESS_FLAGS_STDIN_PIPE | G_SUBPROCESS_FLAGS_STDOUT_PIPE, NULL,
                         g_getenv("TAKE_GPU_MEMORY"), left_bytes, NULL);
    char answer[8] = "";
    gsize n = 0;

    if (taker == NULL)
        fail_msg("cannot start $TAKE_GPU_MEMORY");
    if (!g_input_stream_read_all(g_subprocess_get_stdout_pipe(taker), answer, strlen("taken\n"), &n,
                                 NULL, NULL) ||
        strcmp(answer, "taken\n") != 0)
        fail_msg("$TAKE_GPU_MEMORY has not taken any");
    return taker;
}

static void
give_memory(GSubprocess *taker)
{
    assert_true(g_output_stream_close(g_subprocess_get_stdin_pipe(taker), NULL, NULL));
    assert_true(g_subprocess_wait(taker, NULL, NULL));
    g_object_unref(taker);
}

RP_TEST(says_how_much_memory_is_wanted_and_free_and_keeps_the_checkpoint)
{
    assert_int_equal(interrupt("full", "cuda:1", "checkpoint-30", "true", "TERM"), 143);
    GSubprocess *taker = take_memory(LEFT_BYTES);
    g_autofree char *before = rp_train_files_list("full");

    REFUSE(NO_HANG TRAIN "full --set devices=cuda:1 --resume" LARGE, 1, "needs ", " bytes");
    g_autofree char *after = rp_train_files_list("full");
    assert_string_equal(after, before);
    give_memory(taker);
    assert_goes_on("full", "cuda:1");
}

/* Nor do CUDA's own structures fit. */
RP_TEST(says_that_nothing_at_all_is_free)
{
    GSubprocess *taker = take_memory("0");

    REFUSE(NO_HANG TRAIN "nothing --set devices=cuda:1", 1, "device 0: ", "out of memory",
           "free the device, nvidia-smi");
    give_memory(taker);
}

/* The arena is as large as the memory that is left allows, within 3 % of the micro-batch: so large
 * a run is accepted, and then it runs. @refused: sequences that do not fit */
static guint
largest_accepted(const char *how, guint refused)
{
    guint accepted = 0;

    while (refused - accepted > MAX(1, refused / 32)) {
        const guint size = accepted + (refused - accepted) / 2;
        g_auto(RpCliRun) run =
            rp_cli_shell(NO_HANG WIDE "dry --dry-run %s --set micro_batch_size=%u", how, size);

        if (run.code == 0)
            accepted = size;
        else if (strstr(run.err, "device 0: ") != NULL || strstr(run.err, "CUDA") != NULL)
            fail_msg("micro_batch_size %u: expected a plan's refusal, found: %s", size, run.err);
        else
            refused = size;
    }
    return accepted;
}

RP_TEST(fits_what_is_left_of_a_card)
{
    static const struct {
        const char *bytes;
        guint refused;
    } left[] = {{"2147483648", 4096}, {"8589934592", 16384}, {"25339887616", 49152}};
    static const char *const ways[] = {"--set async=false", "--set async=true"};

    for (guint l = 0; l < G_N_ELEMENTS(left); l++) {
        GSubprocess *taker = take_memory(left[l].bytes);

        for (guint w = 0; w < G_N_ELEMENTS(ways); w++) {
            const guint size = largest_accepted(ways[w], left[l].refused);
            g_autofree char *file = g_strdup_printf(NO_HANG WIDE "small-%u-%u %s --set "
                                                                 "micro_batch_size=%u",
                                                    l, w, ways[w], size);
            g_autofree char *measured = g_strdup_printf(
                NO_HANG WIDE "auto-%u-%u %s --set profile=auto --set micro_batch_size=%u", l, w,
                ways[w], size - size / 32);

            print_message("           %s bytes left, %s: micro_batch_size %u\n", left[l].bytes,
                          ways[w], size);
            assert_true(size > 0);
            succeed(file);
            succeed(measured);
        }
        give_memory(taker);
    }
}

/* A line before the first step, and members of the JSON at the end. */
RP_TEST(tells_what_pinning_took)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(NO_HANG TRAIN "pinned --set devices=cuda:1 --set steps=2 --json");
    const char *line = strstr(whole_out, "  pinned memory    ");
    const char *comparison = strstr(whole_out, "difference");

    if (line == NULL || comparison == NULL || line > comparison || strstr(line, " thread") == NULL)
        fail_msg("expected a line of pinned memory before the first step, found:\n%s", whole_out);
    print_message("           %.*s\n", (int)strcspn(line, "\n"), line);
    if (run.code != 0 || strstr(run.out, "\"pinned\"") == NULL)
        fail_msg("expected JSON with what was pinned, found:\n%s%s", run.out, run.err);

    g_autoptr(RpTree) root = rp_cli_json(&run);
    const double bytes = rp_cli_number(root, "measured.pinned.bytes");
    const double seconds = rp_cli_number(root, "measured.pinned.seconds");
    const double each = rp_cli_number(root, "measured.pinned.seconds_per_100_gib");

    assert_true(bytes > 0 && bytes <= rp_cli_number(root, "measured.host_bytes") + 65536);
    assert_true(seconds > 0);
    assert_true(rp_cli_number(root, "measured.pinned.threads") >= 1);
    /* both are rounded */
    assert_true(fabs(each / (seconds * 100 * (1 << 30) / bytes) - 1) < 0.01);
}

/* ---- failures in the middle ---- */

/* The GPU works no more. */
RP_TEST(names_the_task_of_an_illegal_access_and_keeps_the_checkpoint)
{
    g_autofree char *line = g_strdup_printf(FAULT "=pointer:%" G_GUINT64_FORMAT ":0 " TRAIN
                                                  "illegal --set devices=cuda:1",
                                            n_matmuls * 6 / 10);

    REFUSE(line, 1, " lane: ", "device 0: ", "an illegal memory access was encountered",
           "the last good checkpoint is ", "illegal/checkpoint-");
    assert_goes_on("illegal", "cuda:1");
}

/* The GPU would work on. */
RP_TEST(names_the_matmul_that_is_not_issued_and_keeps_the_checkpoint)
{
    g_autofree char *line = g_strdup_printf(FAULT "=status:%" G_GUINT64_FORMAT ":0 " TRAIN
                                                  "refused --set devices=cuda:1",
                                            n_matmuls * 6 / 10);

    REFUSE(line, 1, "gpu 0, compute lane: ", "device 0: matmul ", "the last good checkpoint is ",
           "refused/checkpoint-");
    assert_goes_on("refused", "cuda:1");
}

/* The other one waits for what never comes. */
RP_TEST(names_the_one_of_two_gpus_that_fails_and_keeps_the_checkpoint)
{
    if (n_gpus < 2)
        skip();
    g_autofree char *line = g_strdup_printf(FAULT "=pointer:%" G_GUINT64_FORMAT ":1 " TRAIN
                                                  "second --set devices=cuda:2",
                                            n_matmuls / 4);

    REFUSE(line, 1, " lane: ", "device 1: ", "an illegal memory access was encountered",
           "the last good checkpoint is ", "second/checkpoint-");
    assert_goes_on("second", "cuda:2");
}

static double
time_of(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    struct stat status;

    if (stat(path, &status) != 0)
        fail_msg("%s is not there", path);
    return (double)status.st_mtim.tv_sec + (double)status.st_mtim.tv_nsec / 1e9;
}

/* In the middle of launches, anywhere: the other one's worker may be inside a full queue. Its
 * matmul stands behind what was issued before, which takes a moment of its own. */
RP_TEST(tells_at_once_that_one_of_two_gpus_fails_and_ends_soon)
{
    if (n_gpus < 2)
        skip();
    for (guint i = 1; i <= 10; i++) {
        g_autofree char *name = g_strdup_printf("soon-%u", i);
        g_auto(RpCliRun) run =
            rp_cli_shell(NO_HANG "env LD_PRELOAD=$CUDA_FAULT_LIBRARY CUDA_FAULT_DONE=@T/failed "
                                 "CUDA_FAULT=pointer:%" G_GUINT64_FORMAT ":1 " TRAIN
                                 "%s --set devices=cuda:2 --set micro_batches=64 2>@T/told; "
                                 "code=$?; touch @T/ended; exit $code",
                         n_matmuls * i / 40, name);
        const double failed = time_of("failed");

        print_message("           told after %.2f s, ended after %.2f s\n",
                      time_of("told") - failed, time_of("ended") - failed);
        assert_int_equal(run.code, 1);
        assert_true(time_of("told") - failed < 2);
        assert_true(time_of("ended") - failed < 10);
    }
}

/* cmocka counts a group's setup that fails as a failure, so whether there is a GPU is asked first.
 */
static gboolean
has_gpu(void)
{
    void *state = NULL;
    gboolean found = rp_train_files_setup(&state) == 0 && count_gpus() > 0;

    (void)rp_cli_teardown(&state);
    return found;
}

RP_TEST_GROUP(setup, rp_cli_teardown)
RP_TEST_NEEDS(has_gpu())
