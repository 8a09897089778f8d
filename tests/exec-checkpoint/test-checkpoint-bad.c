/* Files that differ from the saved ones, or are of another run, are named in the error. */
#include "tests/exec-checkpoint/checkpoint-fixture.h"

#include <glib/gstdio.h>

/* Restores f->path into a new trainer, which must refuse it untouched. */
static void
expect_refusal(CheckpointFixture *f, RpTrainer *trainer, RpCheckpointError code, const char *part)
{
    RpDataState data;

    g_clear_pointer(&f->other, fake_trainer_free);
    f->other = trainer;
    g_clear_error(&f->error);
    assert_false(rp_checkpoint_restore(f->path, f->other, NULL, &data, NULL, &f->error));
    assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, (gint)code));
    rp_assert_error_message_contains(f->error, part);
    assert_null(strchr(f->error->message, '\n'));
    assert_true(fake_trainer_is_new(f->other));
}

static RpTrainer *
same_trainer(void)
{
    RpModel config = checkpoint_config(TRUE);

    return fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
}

/* The refusal of @f->path, in which the folder of the test is @T. (transfer full) */
static char *
refusal(CheckpointFixture *f)
{
    RpDataState data;
    GString *text = g_string_new(NULL);

    g_clear_pointer(&f->other, fake_trainer_free);
    f->other = same_trainer();
    if (rp_checkpoint_restore(f->path, f->other, NULL, &data, NULL, &f->error))
        return NULL;
    assert_true(fake_trainer_is_new(f->other));
    g_autofree char *line = rp_test_refusal(&f->error);

    g_string_assign(text, line);
    g_string_replace(text, f->output, "@T", 0);
    return g_string_free(text, FALSE);
}

RP_TEST_OF(names_a_file_that_changed, CheckpointFixture *f)
{
    static const char *const names[] = {"config.json",      "model.safetensors",
                                        "next.safetensors", "optimizer.safetensors",
                                        "tokenizer.json",   "trainer_state.json"};

    checkpoint_write_text(f->model_dir, "tokenizer.json", "{\"a\": 1}");
    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        assert_true(checkpoint_save_step(f, 4));
        checkpoint_load(f, f->path);
        GBytes *bytes = g_hash_table_lookup(f->files, names[i]);
        gsize length = g_bytes_get_size(bytes);
        g_autofree char *text = g_memdup2(g_bytes_get_data(bytes, NULL), length);
        g_autofree char *path = g_build_filename(f->path, names[i], NULL);
        g_autofree char *expected = g_strdup_printf("%s: expected ", path);

        text[length / 2] ^= 1; /* one bit */
        assert_true(g_file_set_contents(path, text, (gssize)length, NULL));
        expect_refusal(f, same_trainer(), RP_CHECKPOINT_ERROR_CORRUPT, expected);
        rp_assert_error_message_contains(f->error, "SHA-256");
        assert_true(g_file_set_contents(path, text, (gssize)length - 1, NULL));
        expect_refusal(f, same_trainer(), RP_CHECKPOINT_ERROR_CORRUPT, expected);
        rp_assert_error_message_contains(f->error, "bytes, as its manifest has it");
        g_remove(path);
        expect_refusal(f, same_trainer(), RP_CHECKPOINT_ERROR_CORRUPT, path);
        rp_assert_error_message_contains(f->error, "No such file");
    }
}

static char *
refusal_of_manifest(const char *text, gpointer data)
{
    CheckpointFixture *f = data;

    checkpoint_write_text(f->path, "manifest.json", text);
    assert_null(rp_checkpoint_find_last(f->output, NULL, NULL));
    return refusal(f);
}

RP_TEST(refuses_a_broken_manifest)
{
    assert_true(checkpoint_save_step(*state, 4));
    rp_test_lines("tests/exec-checkpoint/messages.txt", "checkpoint-bad: manifests",
                  refusal_of_manifest, *state);
}

/* Writes @text as trainer_state.json, with a manifest that agrees. */
static void
forge_state(CheckpointFixture *f, const char *text)
{
    g_autofree char *before = NULL;
    g_autofree char *path = g_build_filename(f->path, "manifest.json", NULL);
    g_autofree char *sha256 = g_compute_checksum_for_string(G_CHECKSUM_SHA256, text, -1);

    checkpoint_write_text(f->path, "trainer_state.json", text);
    assert_true(g_file_get_contents(path, &before, NULL, NULL));
    char *entry = strstr(before, "\"trainer_state.json\"");
    assert_non_null(entry);
    *entry = '\0'; /* it is the last one */
    g_autofree char *after =
        g_strdup_printf("%s\"trainer_state.json\": {\"bytes\": %zu, \"sha256\": \"%s\"}}}", before,
                        strlen(text), sha256);
    checkpoint_write_text(f->path, "manifest.json", after);
}

/* Writes a state with "PART -> OTHER" replaced. */
static char *
refusal_of_state(const char *words, gpointer data)
{
    CheckpointFixture *f = data;
    g_auto(GStrv) change = g_strsplit(words, " -> ", 2);

    assert_true(checkpoint_save_step(f, 4));
    g_autofree char *path = g_build_filename(f->path, "trainer_state.json", NULL);
    g_clear_pointer(&f->text, g_free);
    assert_true(g_file_get_contents(path, &f->text, NULL, NULL));
    g_auto(GStrv) parts = g_strsplit(f->text, change[0], 2);
    assert_int_equal(g_strv_length(parts), 2);
    g_autofree char *text = g_strjoinv(change[1], parts);
    forge_state(f, text);
    assert_true(rp_checkpoint_verify(f->path, &f->error));
    return refusal(f);
}

RP_TEST(refuses_a_broken_state)
{
    rp_test_lines("tests/exec-checkpoint/messages.txt", "checkpoint-bad: states", refusal_of_state,
                  *state);
}

RP_TEST_OF(takes_a_state_of_before_rounds_were_told, CheckpointFixture *f)
{
    RpDataState data;
    char *note = NULL;

    assert_true(checkpoint_save_step(f, 4));
    g_autofree char *path = g_build_filename(f->path, "trainer_state.json", NULL);
    assert_true(g_file_get_contents(path, &f->text, NULL, NULL));
    g_auto(GStrv) parts = g_strsplit(f->text, "  \"rounds\": 1,\n", 2);
    assert_int_equal(g_strv_length(parts), 2);
    g_autofree char *text = g_strjoinv("", parts);
    forge_state(f, text);
    f->other = same_trainer();
    fake_trainer_set_rounds(f->other, 3);
    assert_true(rp_checkpoint_restore(f->path, f->other, NULL, &data, &note, &f->error));
    assert_null(note);
}

RP_TEST_OF(refuses_another_model, CheckpointFixture *f)
{
    RpModel config;

    assert_true(checkpoint_save_step(f, 4));
    config = checkpoint_config(TRUE);
    config.intermediate = 32;
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "config.json: intermediate_size: expected 32, as the model has it, found 24");
    config = checkpoint_config(TRUE);
    config.blocks = 3;
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "num_hidden_layers: expected 3");
    config = checkpoint_config(FALSE);
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "tie_word_embeddings: expected false, as the model has it, found true");
    config = checkpoint_config(TRUE);
    config.architecture = RP_ARCHITECTURE_LLAMA;
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "architectures: expected LlamaForCausalLM");
}

/* Each case changes the arithmetic and no tensor's shape. */
RP_TEST_OF(refuses_a_model_that_computes_something_else, CheckpointFixture *f)
{
    static const struct {
        gsize offset;
        gsize size;
        RpModel other;
        const char *part;
    } cases[] = {
#define CASE(member, value, message)                                                               \
    {G_STRUCT_OFFSET(RpModel, member), sizeof(((RpModel *)0)->member), {.member = value}, message}
        CASE(rms_norm_eps, 1e-5, "rms_norm_eps: expected 1e-05, as the model has it, found 1e-06"),
        CASE(rope.theta, 5e5, "rope_theta: expected 5e+05, as the model has it, found 1e+06"),
        CASE(rope.type, RP_ROPE_LLAMA3,
             "rope_scaling: expected an object, as the model has it, found null"),
        CASE(pad_id, 3, "pad_token_id: expected 3, as the model has it, found null"),
#undef CASE
    };

    assert_true(checkpoint_save_step(f, 4));
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        RpModel config = checkpoint_config(TRUE);
        memcpy((char *)&config + cases[i].offset, (const char *)&cases[i].other + cases[i].offset,
               cases[i].size);
        expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE),
                       RP_CHECKPOINT_ERROR_MISMATCH, cases[i].part);
    }
}

RP_TEST_OF(refuses_another_factor_of_the_rope, CheckpointFixture *f)
{
    RpModel config = checkpoint_config(TRUE);

    config.rope = (RpRope){.type = RP_ROPE_LLAMA3,
                           .theta = 1e6,
                           .factor = 8,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_max_positions = 32};
    g_clear_pointer(&f->trainer, fake_trainer_free);
    f->trainer = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
    assert_true(checkpoint_save_step(f, 4));
    config.rope.factor = 16;
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "factor: expected 16.0, as the model has it, found 8.0");
    config.rope.factor = 8;
    config.rope.original_max_positions = 64;
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "original_max_position_embeddings: expected 64, as the model has");
}

RP_TEST_OF(refuses_another_mode_or_dtype, CheckpointFixture *f)
{
    RpModel config = checkpoint_config(TRUE);

    assert_true(checkpoint_save_step(f, 4));
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_BF16, FALSE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "(async: true would continue it)");
    expect_refusal(f, fake_trainer_new(&config, RP_DTYPE_FP16, TRUE), RP_CHECKPOINT_ERROR_MISMATCH,
                   "found bf16, which would continue it");
    g_clear_pointer(&f->trainer, fake_trainer_free);
    f->trainer = fake_trainer_new(&config, RP_DTYPE_BF16, FALSE);
    assert_true(checkpoint_save_step(f, 5));
    expect_refusal(f, same_trainer(), RP_CHECKPOINT_ERROR_MISMATCH,
                   "(async: false would continue it)");
}

RP_TEST_OF(passes_on_what_the_trainer_refuses, CheckpointFixture *f)
{
    RpTrainer *trainer = same_trainer();

    assert_true(checkpoint_save_step(f, 4));
    fake_trainer_refuse(trainer);
    expect_refusal(f, trainer, RP_CHECKPOINT_ERROR_MISMATCH,
                   "checkpoint-4: model.embed_tokens.weight: refused");
}

RP_TEST_OF(does_not_save_in_the_place_of_a_file, CheckpointFixture *f)
{
    assert_true(checkpoint_save_step(f, 4));
    checkpoint_write_text(f->output, "checkpoint-5", "mine");
    assert_false(checkpoint_save_step(f, 5));
    assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_WRITE));
    rp_assert_error_message_contains(f->error, "Not a directory");
    f->text = checkpoint_list(f->output);
    assert_string_equal(f->text, "checkpoint-4 checkpoint-5");
    g_autofree char *below = g_build_filename(f->output, "checkpoint-5", "run", NULL);
    f->options.output = below;
    assert_false(checkpoint_save_step(f, 6));
    assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_WRITE));
}

RP_TEST_FIXTURE(checkpoint_setup, checkpoint_teardown)
