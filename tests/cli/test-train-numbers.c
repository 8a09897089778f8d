/* Failures of `roundpipe train`, beside train-faults.script: weights that are no numbers, disks that are full. */
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

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
