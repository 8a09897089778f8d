/* Failures of `roundpipe train`: exit code, one line that says what, where and what to do
 * about it, and nothing lost. */
#include "tests/cli/train-files.h"

#include <sys/mount.h>

#define TRAIN "train @T/run.yaml --set output=@T/"
#define BF16_NAN 0x7fc0
#define BF16_65536 0x4780
#define BF16_LARGEST 0x7f7f

/* A run that fails: its exit code, and one line on stderr with all of @parts, NULL at the end. */
static void
refuse(const char *line, int code, const char *const *parts)
{
    g_auto(RpCliRun) run = rp_cli_run("%s", line);

    if (run.code != code)
        fail_msg("%s: exit code %d, expected %d: %s", line, run.code, code, run.err);
    if (!g_str_has_prefix(run.err, "roundpipe train: ") ||
        strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
        fail_msg("%s: expected one line, found: %s", line, run.err);
    for (; *parts != NULL; parts++)
        if (strstr(run.err, *parts) == NULL)
            fail_msg("%s: expected \"%s\" in: %s", line, *parts, run.err);
}

#define REFUSE(line, code, ...) refuse(line, code, (const char *const[]){__VA_ARGS__, NULL})

/* Runs @line to its end; stderr is expected to be empty, or to have @part. */
static void
succeed(const char *line, const char *part)
{
    g_auto(RpCliRun) run = rp_cli_run("%s", line);

    if (run.code != 0)
        fail_msg("%s: exit code %d: %s", line, run.code, run.err);
    if (part == NULL ? *run.err != '\0' : strstr(run.err, part) == NULL)
        fail_msg("%s: expected %s, found: %s", line, part == NULL ? "no word" : part, run.err);
}

/* Fails unless a run and another, stopped and resumed, end alike. */
static void
assert_same_run(const char *whole, const char *parts, const char *step)
{
    g_autofree char *a = g_build_filename(whole, step, NULL);
    g_autofree char *b = g_build_filename(parts, step, NULL);
    g_autofree char *expected = rp_train_files_learned(whole);
    g_autofree char *found = rp_train_files_learned(parts);

    rp_train_files_assert_same(a, b);
    assert_string_equal(expected, found);
}

/* ---- data that changes ---- */

/* Starts TRAIN with @options in the background, waits for @steps lines of metrics, runs @change,
 * and waits for the end; what it wrote and its exit code are in @T/changed.err. (transfer full) */
static char *
change_while_training(const char *output, const char *options, const char *change)
{
    g_autofree char *line = g_strdup_printf(
        "\"$ROUNDPIPE\" train @T/run.yaml --set output=@T/%s %s >/dev/null 2>@T/changed.err & "
        "pid=$!; "
        "for i in $(seq 600); do [ -s @T/%s/metrics.jsonl ] && break; sleep 0.05; done; "
        "%s; wait $pid; echo \"code $?\" >>@T/changed.err",
        output, options, output, change);
    gsize length;

    rp_cli_must_shell("%s", line);
    return rp_cli_read_bytes("changed.err", &length);
}

RP_TEST(a_data_file_that_is_cut_short_ends_the_run_with_a_message)
{
    rp_cli_must_shell("cp @T/data.jsonl @T/cut.jsonl");
    g_autofree char *said = change_while_training(
        "cut", "--set data=@T/cut.jsonl --set steps=1000000", "truncate -s 300 @T/cut.jsonl");
    assert_non_null(strstr(said, "bytes, as there were at the start, found "));
    assert_non_null(strstr(said, "the file was cut short while it was read; the last good"));
    assert_non_null(strstr(said, "/cut/checkpoint-"));
    assert_non_null(strstr(said, "code 1\n"));
}

RP_TEST(a_data_file_that_is_written_to_is_told_at_the_next_checkpoint)
{
    rp_cli_must_shell("cp @T/data.jsonl @T/appended.jsonl");
    g_autofree char *said =
        change_while_training("appended", "--set data=@T/appended.jsonl --set steps=1000000",
                              "echo >>@T/appended.jsonl; kill -USR1 $pid; "
                              "for i in $(seq 600); do ls -d @T/appended/checkpoint-* >/dev/null "
                              "2>&1 && break; sleep 0.05; "
                              "done; kill -TERM $pid");
    const char *warning = strstr(said, "warning: data: ");
    assert_non_null(warning);
    assert_non_null(strstr(warning, "expected the file as it was at the start, found it grown"));
    assert_null(strstr(warning + 1, "warning: data: ")); /* once */
    assert_non_null(strstr(said, "code 143\n"));
}

/* ---- numbers that are none ---- */

/* Where the data of tensor @name begins in a safetensors file. */
static gsize
tensor_start(const char *data, const char *name)
{
    g_autofree char *key = g_strdup_printf("\"%s\":{", name);
    guint64 header = 0;
    const char *at;

    memcpy(&header, data, sizeof header);
    at = g_strstr_len(data + 8, (gssize)header, key);
    assert_non_null(at);
    at = strstr(at, "\"data_offsets\":[");
    assert_non_null(at);
    return 8 + (gsize)header + g_ascii_strtoull(at + strlen("\"data_offsets\":["), NULL, 10);
}

/* A copy of the model in @T/@to. */
static void
copy_model(const char *to)
{
    g_autofree char *line = g_strdup_printf("rm -rf @T/%s; cp -r @T/model @T/%s", to, to);

    rp_cli_must_shell("%s", line);
}

/* Sets @n values of @tensor in @T/@model, from number @first on. */
static void
set_values(const char *model, const char *tensor, guint first, guint n, guint16 bits)
{
    g_autofree char *file = g_strdup_printf("%s/model.safetensors", model);
    gsize length;
    g_autofree char *data = rp_cli_read_bytes(file, &length);

    for (guint i = first; i < first + n; i++)
        memcpy(data + tensor_start(data, tensor) + i * sizeof bits, &bits, sizeof bits);
    rp_cli_write_bytes(file, data, (gssize)length);
}

/* In a row of the embedding that no token of the data has: training would not notice. */
RP_TEST(refuses_a_weight_that_is_no_number_before_the_first_step)
{
    copy_model("nan");
    set_values("nan", "model.embed_tokens.weight", 32 * 16 + 3, 1, BF16_NAN);
    REFUSE(TRAIN "nan --set model=@T/nan", 1,
           "model.safetensors: tensor \"model.embed_tokens.weight\": expected finite values in "
           "bf16, found nan at [32, 3]");
    copy_model("big");
    set_values("big", "model.layers.1.mlp.up_proj.weight", 16, 1, BF16_65536);
    REFUSE(TRAIN "big --set model=@T/big --set dtype=fp16", 1,
           "tensor \"model.layers.1.mlp.up_proj.weight\": expected finite values in fp16, found "
           "65536, which is infinite there, at [1, 0]");
}

RP_TEST(names_the_layer_that_makes_the_loss_no_number)
{
    copy_model("huge");
    set_values("huge", "model.layers.2.mlp.up_proj.weight", 0, 16, BF16_LARGEST);
    set_values("huge", "model.layers.2.mlp.gate_proj.weight", 0, 16, BF16_LARGEST);
    REFUSE(TRAIN "huge-sync --set model=@T/huge --set async=false --set checkpoint.every=1", 1,
           "step 1: the loss is not ", "(micro-batch 0)", "layer 3 (model.layers.2)",
           "no checkpoint was saved before");
    /* two steps begin at once */
    REFUSE(TRAIN "huge-async --set model=@T/huge --set checkpoint.every=1 --set devices=host:4", 1,
           ": the loss is not ", "layer 3 (model.layers.2)", "no checkpoint was saved before");
}

/* The path behind "checkpoint is " in a message. (transfer full) */
static char *
named_checkpoint(const char *message)
{
    static const char words[] = "the last good checkpoint is ";
    const char *at = strstr(message, words);

    if (at == NULL)
        fail_msg("no checkpoint is named: %s", message);
    return g_strchomp(g_strdup(at + strlen(words)));
}

RP_TEST(names_the_step_where_training_blew_up_and_the_last_good_checkpoint)
{
    static const char line[] = "--set optimizer.learning_rate=1000 --set steps=200 "
                               "--set checkpoint.every=1 --set checkpoint.keep=0 "
                               "--set optimizer.max_grad_norm=0 --set async=false";
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "blown %s", line);
    g_autofree char *path = named_checkpoint(run.err);
    g_autofree char *learned = rp_train_files_learned("blown");
    const char *at = strstr(run.err, ": step ");

    assert_int_equal(run.code, 1);
    assert_non_null(at);
    assert_non_null(strstr(run.err, " not "));
    assert_non_null(strstr(run.err, " layer "));
    guint64 step = g_ascii_strtoull(at + strlen(": step "), NULL, 10);
    /* every step before has its line, and none that broke */
    g_autofree char *last = g_strdup_printf("step %" G_GUINT64_FORMAT " loss ", step - 1);
    g_autofree char *broken = g_strdup_printf("step %" G_GUINT64_FORMAT " loss ", step);
    assert_non_null(strstr(learned, last));
    assert_null(strstr(learned, broken));
    /* the checkpoint can be gone on from, and leads to the same end */
    rp_cli_must_run(TRAIN
                    "again %s --set optimizer.learning_rate=1e-5 --set steps=%" G_GUINT64_FORMAT
                    " --resume=%s",
                    line, step - 1, path);
}

/* A weight that no token of the data reads: decay blows it up, and no loss tells. */
RP_TEST(saves_no_weights_that_are_not_finite)
{
    const guint16 huge = 0x7eff; /* half of the largest number of bf16 */
    gsize length;

    copy_model("huge");
    g_autofree char *data = rp_cli_read_bytes("huge/model.safetensors", &length);
    gsize row = tensor_start(data, "model.embed_tokens.weight") + sizeof huge * 32 * 16;
    memcpy(data + row, &huge, sizeof huge);
    rp_cli_write_bytes("huge/model.safetensors", data, (gssize)length);
    rp_cli_write("few.jsonl", "{\"input_ids\":[1,2,3,4]}\n");
    g_auto(RpCliRun) run = rp_cli_run(
        TRAIN "huge-out --set model=@T/huge --set data=@T/few.jsonl --set steps=3 "
              "--set checkpoint.every=1 --set async=false --set optimizer.schedule=constant "
              "--set optimizer.weight_decay=0.625 --set optimizer.learning_rate=4");

    assert_int_equal(run.code, 1);
    /* times -1.5 a step */
    assert_non_null(strstr(run.err, "model.embed_tokens.weight: expected finite weights in bf16"));
    assert_null(strstr(run.err, "no checkpoint of step 1: "));
    assert_non_null(strstr(run.err, "huge-out/checkpoint-1"));
}

/* ---- no space ---- */

static gboolean
mount_small(const char *path, const char *size)
{
    g_autofree char *options = g_strdup_printf("size=%s", size);

    return mount("tmpfs", path, "tmpfs", 0, options) == 0;
}

RP_TEST(goes_on_when_the_disk_is_full_and_keeps_what_there_is)
{
    g_autofree char *path = rp_cli_temporary("small");

    rp_cli_must_shell("mkdir @T/small");
    if (!mount_small(path, "640k")) {
        print_message("           not allowed to mount\n");
        g_clear_pointer(&path, g_free); /* skip() jumps */
        skip();
    }
    g_auto(RpCliRun) full = rp_cli_run(TRAIN "small/out --set steps=12 --set checkpoint.every=2 "
                                             "--set checkpoint.keep=0");
    g_autofree char *names = rp_train_files_list("small/out");
    rp_cli_must_shell("cp -r @T/small/out @T/full");
    (void)umount2(path, MNT_DETACH);

    assert_int_equal(full.code, 1);
    assert_non_null(strstr(full.err, "warning: no checkpoint of step 8: "));
    assert_non_null(strstr(full.err, "no space left: expected "));
    assert_non_null(strstr(full.err, "training goes on"));
    assert_non_null(strstr(full.err, "warning: no checkpoint of step 12: "));
    assert_non_null(strstr(full.err, "the last one is "));
    assert_true(g_str_has_prefix(names, "checkpoint-2 "));
    /* all 12 steps were done; what was saved leads there again */
    g_autofree char *learned = rp_train_files_learned("full");
    succeed(TRAIN "full --set steps=12 --resume", NULL);
    g_autofree char *resumed = rp_train_files_learned("full");
    assert_string_equal(learned, resumed);
    succeed(TRAIN "roomy --set steps=12", NULL);
    assert_same_run("roomy", "full", "checkpoint-12");
}

/* Trains on a disk of @size with @options; the names there afterwards in @names. Skips where
 * nothing may be mounted. */
static RpCliRun
train_on_disk(const char *size, const char *options, char **names)
{
    g_autofree char *path = rp_cli_temporary("tight");

    rp_cli_must_shell("rm -rf @T/tight; mkdir @T/tight");
    if (!mount_small(path, size)) {
        print_message("           not allowed to mount\n");
        g_clear_pointer(&path, g_free); /* skip() jumps */
        skip();
    }
    RpCliRun run = rp_cli_run(TRAIN "tight/out %s", options);

    *names = rp_train_files_list("tight/out");
    (void)umount2(path, MNT_DETACH);
    return run;
}

RP_TEST(the_oldest_checkpoint_makes_room_for_the_newest)
{
    g_autofree char *names = NULL;
    g_auto(RpCliRun) run = train_on_disk(
        "520k", "--set steps=8 --set checkpoint.every=2 --set checkpoint.keep=3", &names);

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.err, "warning: the disk is full: checkpoint-"));
    assert_non_null(strstr(run.err, " made room for that of step 8\n"));
    assert_true(g_str_has_prefix(names, "checkpoint-6 checkpoint-8 metrics.jsonl"));
}

RP_TEST(keeps_the_weights_where_the_last_checkpoint_has_no_room)
{
    g_autofree char *names = NULL;
    g_auto(RpCliRun) run = train_on_disk("340k", "--set steps=4 --set checkpoint.every=2", &names);

    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 4: "));
    assert_non_null(strstr(run.err, "; its weights alone, from which no run goes on, are in "));
    assert_non_null(strstr(run.err, "/tight/out/weights-4; the last one is "));
    assert_true(g_str_has_prefix(names, "checkpoint-2 metrics.jsonl"));
    assert_true(g_str_has_suffix(names, " weights-4"));
}

RP_TEST(keeps_the_last_checkpoint_when_files_may_not_grow)
{
    succeed(TRAIN "grown --set steps=3 --set checkpoint.keep=1", NULL);
    g_auto(RpCliRun) stuck =
        rp_cli_shell("ulimit -f 8; exec $ROUNDPIPE " TRAIN
                     "grown --set checkpoint.keep=1 --set checkpoint.every=1 --resume");
    g_autofree char *names = rp_train_files_list("grown");

    assert_int_equal(stuck.code, 1);
    assert_non_null(strstr(stuck.err, "warning: no checkpoint of step 4: "));
    assert_non_null(strstr(stuck.err, "warning: no checkpoint of step 5: "));
    assert_non_null(strstr(stuck.err, "the last one is "));
    assert_true(g_str_has_prefix(names, "checkpoint-3 metrics.jsonl"));
    succeed(TRAIN "grown --set checkpoint.keep=1 --resume", NULL);
    g_autofree char *found = rp_train_files_list("grown");
    assert_true(g_str_has_prefix(found, "checkpoint-5 metrics.jsonl"));
}

/* ---- what is refused before training ---- */

RP_TEST(refuses_memory_that_is_too_small)
{
    g_autofree char *output = rp_cli_temporary("memory");

    REFUSE(TRAIN "memory --set host_memory=1KiB", 1, "host memory: ", "there are 1024",
           "use fewer devices");
    REFUSE(TRAIN "memory --set host_memory=400KiB", 1,
           "host memory: ", "the largest part is optimizer state with ", "more host memory");
    REFUSE(TRAIN "memory --set device_memory=1KiB", 1, "device memory", "the limit is 1024 bytes");
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
}

RP_TEST(refuses_kernels_that_the_devices_do_not_have)
{
    REFUSE(TRAIN "kernels --set attention=cudnn", 1, "attention: expected builtin or auto",
           "found cudnn, which host devices do not have");
    REFUSE(TRAIN "kernels --set dtype=bf16 --set accumulate=fp16", 1,
           "accumulate: expected fp32 with dtype bf16, found fp16");
}

RP_TEST(refuses_weights_that_are_not_those_of_the_config)
{
    gsize length;

    copy_model("other");
    rp_cli_must_shell(
        "sed -i 's/\"intermediate_size\": *24/\"intermediate_size\": 32/' @T/other/config.json");
    REFUSE(TRAIN "x --set model=@T/other", 1, "other/model.safetensors: tensor ",
           "mlp.gate_proj.weight", "expected ", "[32, 16]", "found ", "[24, 16]");
    /* tests/exec-model has every header that lies */
    copy_model("lie");
    g_autofree char *data = rp_cli_read_bytes("lie/model.safetensors", &length);
    rp_cli_write_bytes("lie/model.safetensors", data, (gssize)length - 3);
    REFUSE(TRAIN "x --set model=@T/lie", 1, "lie/model.safetensors: ", "expected ", "found ");
}

RP_TEST(refuses_tokens_and_labels_that_cannot_be_learned)
{
    static const guint32 tokens[] = {1, 2, 33, 3, 4, 5, 6, 7};

    rp_cli_write("large.jsonl", "{\"input_ids\":[1,2]}\n{\"input_ids\":[1,33]}\n");
    REFUSE(TRAIN "x --set data=@T/large.jsonl", 1, "large.jsonl: line 2, column ", "expected ",
           "33");
    rp_cli_write_bytes("large.bin", (const char *)tokens, sizeof tokens);
    REFUSE(TRAIN "x --set data=@T/large.bin --set sequence_length=4", 1,
           "large.bin: token 2 at byte 8: expected an id from 0 to 32, found 33");
    /* nothing but the first label counts, and it has nothing before it */
    rp_cli_write("masked.jsonl", "{\"input_ids\":[1,2,3],\"labels\":[1,-100,-100]}\n"
                                 "{\"input_ids\":[1,2,4],\"labels\":[-100,-100,-100]}\n");
    REFUSE(TRAIN "masked --set data=@T/masked.jsonl", 1,
           "masked.jsonl: ", "expected at least one label that is not masked",
           "found none in line 1, line 2");
    /* one that has a target among those that have none is enough */
    rp_cli_write("partly.jsonl", "{\"input_ids\":[1,2,3],\"labels\":[1,-100,-100]}\n"
                                 "{\"input_ids\":[1,2,4],\"labels\":[-100,2,-100]}\n");
    succeed(TRAIN "partly --set data=@T/partly.jsonl", NULL);
}

/* A batch without targets in the middle of a run: what was learned until then is not lost. */
RP_TEST(names_the_last_checkpoint_when_a_batch_has_no_targets)
{
    g_autoptr(GString) data = g_string_new(NULL);

    for (guint i = 0; i < 16; i++)
        g_string_append_printf(data, "{\"input_ids\":[1,2,%u],\"labels\":[1,2,%d]}\n", i + 3,
                               i < 12 ? (int)i + 3 : -100);
    g_string_replace(data, "\"labels\":[1,2,-100]", "\"labels\":[1,-100,-100]", 0);
    rp_cli_write("late.jsonl", data->str);
    REFUSE(TRAIN "late --set data=@T/late.jsonl --set shuffle=false --set packing=false "
                 "--set checkpoint.every=1",
           1, "iteration 4", "expected at least one label that is not masked",
           "the last good checkpoint is ", "late/checkpoint-3");
}

/* ---- going on ---- */

RP_TEST(goes_on_from_the_one_before_when_the_last_checkpoint_is_damaged)
{
    static const char *const damages[] = {
        /* sizes stay as they are */
        "printf '\\001' | dd of=@T/hurt/checkpoint-6/optimizer.safetensors bs=1 seek=9001 "
        "conv=notrunc 2>/dev/null",
        "truncate -s -1 @T/hurt/checkpoint-6/model.safetensors",
        "rm @T/hurt/checkpoint-6/next.safetensors",
        "rm @T/hurt/checkpoint-6/manifest.json",
        "echo >> @T/hurt/checkpoint-6/trainer_state.json",
    };

    succeed(TRAIN "sound --set steps=8 --set checkpoint.every=2 --set checkpoint.keep=0", NULL);
    for (guint i = 0; i < G_N_ELEMENTS(damages); i++) {
        rp_cli_must_shell("rm -rf @T/hurt; cp -r @T/sound @T/hurt; rm -r @T/hurt/checkpoint-8");
        rp_cli_must_shell("%s", damages[i]);
        succeed(TRAIN "hurt --set steps=8 --set checkpoint.every=2 --resume",
                "note: passed over: ");
        assert_same_run("sound", "hurt", "checkpoint-8");
    }
    rp_cli_must_shell(
        "rm -rf @T/hurt; cp -r @T/sound @T/hurt; rm @T/hurt/checkpoint-*/manifest.json");
    g_auto(RpCliRun) none = rp_cli_run(TRAIN "hurt --resume");
    assert_int_equal(none.code, 1);
    assert_non_null(
        strstr(none.err, "expected a complete checkpoint, found none but damaged ones"));
    /* which the run would be refused for again */
    assert_null(strstr(none.err, "begin without --resume"));
    assert_non_null(strstr(none.err, "or move it away"));
}

RP_TEST(refuses_to_go_on_with_another_run)
{
    rp_cli_must_shell(
        "sed 's/\\[1,/[2,/' @T/data.jsonl > @T/changed.jsonl; "
        "head -n 20 @T/data.jsonl > @T/short.jsonl; "
        "sed 's/\"intermediate_size\":24/\"intermediate_size\":32/' @T/tiny.json > @T/wide.json; "
        "$ROUNDPIPE init @T/wide.json -o @T/wide --seed 1 >/dev/null");
    succeed(TRAIN "mine --set steps=3", NULL);
    rp_cli_must_shell("cp -r @T/mine @T/before");
    rp_cli_must_refuse_all("train-faults: another run");
    rp_train_files_assert_same("before/checkpoint-3", "mine/checkpoint-3");
    g_autofree char *before = rp_train_files_learned("before");
    g_autofree char *after = rp_train_files_learned("mine");
    assert_string_equal(before, after);
}

/* Batches of another shape go on with the next sample. */
RP_TEST(goes_on_with_batches_of_another_shape)
{
    succeed(TRAIN "shape --set packing=false --set steps=3", NULL);
    succeed(
        TRAIN "shape --resume --set packing=false --set micro_batches=8 --set round=8 --set "
              "sequence_length=12 "
              "--set gradient_accumulation_steps=2 --set optimizer.mode=lean",
        "note: --resume: gradients of a step are summed in 2 rounds, in the checkpoint's run in 1");

    g_autofree char *text = rp_cli_read("shape/checkpoint-5/trainer_state.json");
    /* 3 x 4 samples, then 2 x 2 x 8, of 40 */
    assert_non_null(strstr(text, "\"epoch\":1,\"position\":4,"));
}

#define CONSTANT " --set optimizer.schedule=constant --set checkpoint.keep=1"

RP_TEST(goes_on_behind_the_last_step_when_there_are_more)
{
    g_autofree char *names = NULL;

    succeed(TRAIN "ten --set steps=10" CONSTANT, NULL);
    succeed(TRAIN "five --set steps=5" CONSTANT, NULL);
    succeed(TRAIN "five --set steps=10 --set checkpoint.every=2 --resume" CONSTANT, NULL);
    assert_same_run("ten", "five", "checkpoint-10");
    names = rp_train_files_list("five");
    assert_true(g_str_has_prefix(names, "checkpoint-10 metrics.jsonl"));
    /* nothing is left to be done: nothing changes */
    succeed(TRAIN "five --set steps=10 --resume" CONSTANT, NULL);
    assert_same_run("ten", "five", "checkpoint-10");
}

/* ---- signals ---- */

/* Steps that a run has done. */
static guint
count_steps(const char *output)
{
    g_autofree char *learned = rp_train_files_learned(output);
    g_auto(GStrv) lines = g_strsplit(learned, "\n", -1);

    return g_strv_length(lines) - 1;
}

/* Runs on until a checkpoint is being written, does @act, and says what became of the process. */
#define WITHIN_A_CHECKPOINT(output, more, act)                                                     \
    "$ROUNDPIPE " TRAIN output " --set steps=2000 --set checkpoint.every=1 " more                  \
    " >/dev/null & pid=$!; until ls -A @T/" output                                                 \
    " 2>/dev/null | grep -q '^[.]checkpoint-[0-9]*[.]tmp'; do :; done; " act "; wait $pid"

RP_TEST(ends_after_a_checkpoint_that_a_signal_fell_into)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(WITHIN_A_CHECKPOINT("term", "--set gradient_accumulation_steps=2", //
                                         "kill -TERM $pid"));

    assert_int_equal(run.code, 143);
    assert_true(g_str_has_prefix(run.err, "roundpipe train: note: finishing step "));
    assert_null(strstr(strchr(run.err, '\n'), "roundpipe"));
    guint steps = count_steps("term");
    g_autofree char *names = rp_train_files_list("term");
    g_autofree char *last = g_strdup_printf("checkpoint-%u ", steps);
    g_autofree char *file = g_strdup_printf("term/checkpoint-%u/trainer_state.json", steps);
    g_autofree char *saved = rp_cli_read(file);
    g_autofree char *calls = g_strdup_printf(",\"iterations\":%u,\"tokens\":", 2 * steps);
    assert_in_range(steps, 1, 1999);
    assert_non_null(strstr(names, last));
    assert_null(strstr(names, ".tmp"));
    /* both calls of the step are in the checkpoint, and no other */
    assert_non_null(strstr(saved, calls));
}

RP_TEST(lets_a_second_interrupt_end_it_at_once_and_loses_no_checkpoint)
{
    g_auto(RpCliRun) run = rp_cli_shell(WITHIN_A_CHECKPOINT(
        "int", "--set checkpoint.keep=0", "kill -INT $pid; sleep 0.002; kill -INT $pid"));

    /* by the signal, or, if that came too late, after its last checkpoint: both are 130 here */
    assert_int_equal(run.code, 130);
    rp_cli_must_run(TRAIN "int --set steps=2000 --resume --dry-run");
}

RP_TEST(stands_a_storm_of_requests_to_save)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        WITHIN_A_CHECKPOINT("storm", "--set optimizer.schedule=constant",
                            "for i in $(seq 200); do kill -USR1 $pid; sleep 0.001; done; "
                            "kill -TERM $pid"));
    guint steps = count_steps("storm");
    g_autofree char *calm =
        g_strdup_printf(TRAIN "calm --set steps=%u --set optimizer.schedule=constant", steps);
    g_autofree char *last = g_strdup_printf("checkpoint-%u", steps);
    g_autofree char *names = rp_train_files_list("storm");

    assert_int_equal(run.code, 143);
    assert_true(g_str_has_prefix(run.err, "roundpipe train: note: finishing step "));
    assert_null(strstr(strchr(run.err, '\n'), "roundpipe"));
    assert_null(strstr(names, ".tmp"));
    succeed(calm, NULL);
    assert_same_run("calm", "storm", last);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
