#include "tests/exec-checkpoint/checkpoint-fixture.h"

#include <glib/gstdio.h>
#include <unistd.h>

RP_TEST_OF(gives_back_every_bit, CheckpointFixture *f)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};

    for (guint i = 0; i < 12; i++) {
        RpModel config = checkpoint_config(i & 1);
        g_clear_pointer(&f->trainer, fake_trainer_free);
        f->trainer = fake_trainer_new(&config, dtypes[i / 4], (i & 2) != 0);
        assert_true(checkpoint_save_step(f, 7 + i));
        assert_true(checkpoint_holds(f, f->path, 7 + i));
        assert_false(checkpoint_holds(f, f->path, 6));
    }
}

RP_TEST_OF(gives_back_the_scales_bit_for_bit, CheckpointFixture *f)
{
    static const float scales[] = {1e-45f, G_MINFLOAT, 0.1f, 65536.0f, G_MAXFLOAT, 1 / 3.0f};
    RpModel config = checkpoint_config(TRUE);

    for (gsize i = 0; i < G_N_ELEMENTS(scales); i++) {
        RpDataState data;
        fake_trainer_go_to(f->trainer, 5);
        fake_trainer_update(f->trainer)->loss_scale.scale = scales[i];
        fake_trainer_update(f->trainer)->next_scale = scales[G_N_ELEMENTS(scales) - 1 - i];
        f->data = checkpoint_data(5);
        g_clear_pointer(&f->path, g_free);
        f->path = rp_must(rp_checkpoint_save, &f->options, f->trainer, &f->data, NULL);
        g_clear_pointer(&f->other, fake_trainer_free);
        f->other = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
        assert_true(rp_checkpoint_restore(f->path, f->other, NULL, &data, NULL, &f->error));
        assert_true(fake_trainer_equal(f->trainer, f->other));
    }
}

RP_TEST_OF(tells_when_gradients_are_summed_in_other_rounds, CheckpointFixture *f)
{
    RpModel config = checkpoint_config(TRUE);

    fake_trainer_set_rounds(f->trainer, 4);
    assert_true(checkpoint_save_step(f, 5));
    for (guint rounds = 1; rounds <= 4; rounds += 3) {
        RpDataState data;
        g_clear_pointer(&f->other, fake_trainer_free);
        g_clear_pointer(&f->text, g_free);
        f->other = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
        fake_trainer_set_rounds(f->other, rounds);
        assert_true(rp_checkpoint_restore(f->path, f->other, NULL, &data, &f->text, &f->error));
        assert_true((f->text == NULL) == (rounds == 4));
        if (f->text != NULL)
            assert_non_null(
                strstr(f->text, "are summed in 1 round, in the checkpoint's run in 4:"));
    }
}

RP_TEST_OF(writes_the_same_bytes_for_the_same_state, CheckpointFixture *f)
{
    GHashTableIter iter;
    gpointer name, bytes;

    checkpoint_write_text(f->model_dir, "tokenizer.json", "{}");
    assert_true(checkpoint_save_step(f, 3));
    checkpoint_load(f, f->path);
    GHashTable *first = g_steal_pointer(&f->files);
    assert_true(checkpoint_save_step(f, 3));
    checkpoint_load(f, f->path);
    gboolean same = g_hash_table_size(first) == g_hash_table_size(f->files);
    g_hash_table_iter_init(&iter, first);
    while (g_hash_table_iter_next(&iter, &name, &bytes)) {
        GBytes *again = g_hash_table_lookup(f->files, name);
        same = same && again != NULL && g_bytes_equal(bytes, again);
    }
    g_hash_table_unref(first);
    assert_true(same);
}

RP_TEST_OF(holds_a_model_as_transformers_has_it, CheckpointFixture *f)
{
    RpModel config;

    assert_true(checkpoint_save_step(f, 4));
    assert_true(rp_hf_config_load(f->path, &config, &f->error));
    assert_true(config.has_dtype && config.dtype == RP_DTYPE_BF16);
    RpWeights *weights = rp_weights_new(&config);
    RpSafetensors *tensors = rp_safetensors_open(f->path, &f->error);
    gboolean bound = tensors != NULL && rp_weights_bind(weights, tensors, &f->error);
    gboolean same = bound;
    for (guint i = 0; same && i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        if (weight->tied)
            continue;
        g_autofree guint16 *rounded = g_new(guint16, weight->elements);
        rp_dtype_from_float(RP_DTYPE_BF16, rp_trainer_weight(f->trainer, i), rounded,
                            weight->elements);
        same = memcmp(rounded, rp_weights_source(weights, i)->data, weight->elements * 2) == 0;
    }
    gboolean has_head = tensors != NULL && rp_safetensors_find(tensors, "lm_head.weight") != NULL;
    rp_safetensors_free(tensors);
    rp_weights_free(weights);
    rp_assert_no_error(f->error);
    assert_true(same);
    assert_false(has_head);
}

RP_TEST_OF(names_its_files, CheckpointFixture *f)
{
    RpModel config = checkpoint_config(TRUE);

    checkpoint_write_text(f->model_dir, "tokenizer.json", "{\"a\": 1}");
    checkpoint_write_text(f->model_dir, "merges.txt", "");
    checkpoint_write_text(f->model_dir, "README.md", "not copied");
    assert_true(checkpoint_save_step(f, 4));
    f->text = checkpoint_list(f->path);
    assert_string_equal(f->text, "config.json manifest.json merges.txt model.safetensors "
                                 "next.safetensors optimizer.safetensors tokenizer.json "
                                 "trainer_state.json");
    checkpoint_load(f, f->path);
    GBytes *copy = g_hash_table_lookup(f->files, "tokenizer.json");
    assert_int_equal(g_bytes_get_size(copy), 8);

    g_clear_pointer(&f->trainer, fake_trainer_free);
    f->trainer = fake_trainer_new(&config, RP_DTYPE_BF16, FALSE);
    f->options.model_dir = NULL;
    assert_true(checkpoint_save_step(f, 5));
    g_free(f->text);
    f->text = checkpoint_list(f->path);
    assert_string_equal(f->text, "config.json manifest.json model.safetensors "
                                 "optimizer.safetensors trainer_state.json");
}

RP_TEST_OF(divides_large_files, CheckpointFixture *f)
{
    f->options.max_shard_bytes = 3000;
    assert_true(checkpoint_save_step(f, 4));
    f->text = checkpoint_list(f->path);
    assert_non_null(strstr(f->text, "model.safetensors.index.json"));
    assert_non_null(strstr(f->text, "optimizer.safetensors.index.json"));
    assert_non_null(strstr(f->text, "next-00001-of-"));
    assert_true(checkpoint_holds(f, f->path, 4));
    f->options.max_shard_bytes = 0;
    assert_true(checkpoint_save_step(f, 4));
    assert_true(checkpoint_holds(f, f->path, 4));
    g_free(f->text);
    f->text = checkpoint_list(f->path);
    assert_null(strstr(f->text, "index"));
}

static void
expect_output(CheckpointFixture *f, const char *expected)
{
    g_free(f->text);
    f->text = checkpoint_list(f->output);
    assert_string_equal(f->text, expected);
}

RP_TEST_OF(keeps_the_last_ones, CheckpointFixture *f)
{
    for (guint64 step = 8; step <= 10; step++)
        assert_true(checkpoint_save_step(f, step));
    expect_output(f, "checkpoint-10 checkpoint-8 checkpoint-9");
    f->options.keep = 2;
    assert_true(checkpoint_save_step(f, 11));
    expect_output(f, "checkpoint-10 checkpoint-11");
    f->options.keep = 1;
    assert_true(checkpoint_save_step(f, 12));
    expect_output(f, "checkpoint-12");
    assert_true(checkpoint_holds(f, f->path, 12));
}

RP_TEST_OF(keeps_what_it_has_just_saved, CheckpointFixture *f)
{
    f->options.keep = 1;
    assert_true(checkpoint_save_step(f, 20));
    assert_true(checkpoint_save_step(f, 5));
    expect_output(f, "checkpoint-20 checkpoint-5");
    assert_true(checkpoint_save_step(f, 6));
    expect_output(f, "checkpoint-20 checkpoint-6");
    assert_true(checkpoint_holds(f, f->path, 6));
}

RP_TEST_OF(leaves_what_is_not_its_own, CheckpointFixture *f)
{
    g_autofree char *foreign = g_build_filename(f->output, "checkpoint-3", NULL);
    g_autofree char *hidden = g_build_filename(f->output, ".checkpoint-best.tmp", NULL);

    f->options.keep = 1;
    assert_int_equal(g_mkdir_with_parents(foreign, 0777), 0);
    assert_int_equal(g_mkdir(hidden, 0777), 0);
    checkpoint_write_text(foreign, "model.safetensors", "of another program");
    checkpoint_write_text(f->output, "checkpoint-9", "a file");
    checkpoint_write_text(f->output, "checkpoint-007", "a file");
    assert_true(checkpoint_save_step(f, 4));
    assert_true(checkpoint_save_step(f, 5));
    expect_output(f, ".checkpoint-best.tmp checkpoint-007 checkpoint-3 checkpoint-5 checkpoint-9");
}

RP_TEST_OF(does_not_follow_links_when_it_removes, CheckpointFixture *f)
{
    g_autofree char *moved = g_build_filename(f->directory, "elsewhere", NULL);

    assert_true(checkpoint_save_step(f, 1));
    assert_int_equal(rename(f->path, moved), 0);
    assert_int_equal(symlink(moved, f->path), 0);
    assert_true(checkpoint_holds(f, f->path, 1));
    f->options.keep = 1;
    assert_true(checkpoint_save_step(f, 2));
    expect_output(f, "checkpoint-2");
    assert_true(checkpoint_holds(f, moved, 1));
}

RP_TEST_OF(removes_what_an_interrupted_attempt_left, CheckpointFixture *f)
{
    static const char *const names[] = {".checkpoint-4.tmp", ".checkpoint-900.tmp",
                                        ".checkpoint-3.old.tmp"};

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(f->output, names[i], "inner", NULL);
        assert_int_equal(g_mkdir_with_parents(path, 0777), 0);
        checkpoint_write_text(path, "manifest.json", "{}");
    }
    assert_true(checkpoint_save_step(f, 4));
    expect_output(f, "checkpoint-4");
    assert_true(checkpoint_holds(f, f->path, 4));
}

RP_TEST_OF(replaces_a_checkpoint_of_the_same_step, CheckpointFixture *f)
{
    assert_true(checkpoint_save_step(f, 4));
    checkpoint_write_text(f->path, "notes.txt", "of the old one");
    fake_trainer_go_to(f->trainer, 5);
    fake_trainer_update(f->trainer)->n_iterations = 4;
    f->data = checkpoint_data(5);
    g_clear_pointer(&f->path, g_free);
    f->path = rp_must(rp_checkpoint_save, &f->options, f->trainer, &f->data, NULL);
    expect_output(f, "checkpoint-4");
    g_free(f->text);
    f->text = checkpoint_list(f->path);
    assert_null(strstr(f->text, "notes.txt"));
    assert_true(rp_checkpoint_verify(f->path, &f->error));
    assert_false(checkpoint_holds(f, f->path, 4));
}

RP_TEST_OF(finds_the_last_complete_one, CheckpointFixture *f)
{
    char *skipped = NULL;

    assert_null(rp_checkpoint_find_last(f->output, &skipped, &f->error));
    rp_assert_no_error(f->error);
    assert_null(skipped);
    assert_true(checkpoint_save_step(f, 9));
    assert_true(checkpoint_save_step(f, 100));
    g_autofree char *broken = g_build_filename(f->output, "checkpoint-200", NULL);
    assert_int_equal(g_mkdir(broken, 0777), 0);
    checkpoint_write_text(f->output, "checkpoint-300", "");
    char *found = rp_must(rp_checkpoint_find_last, f->output, &skipped);
    assert_string_equal(found, f->path);
    assert_non_null(strstr(skipped, "checkpoint-200/manifest.json"));
    assert_null(strchr(skipped, '\n'));
    g_free(found);
    g_free(skipped);

    checkpoint_write_text(f->path, "config.json", "{}");
    found = rp_checkpoint_find_last(f->output, &skipped, &f->error);
    assert_true(g_str_has_suffix(found, "/checkpoint-9"));
    assert_non_null(strstr(skipped, "checkpoint-100/config.json: expected "));
    g_free(found);
    g_free(skipped);
    found = rp_checkpoint_find_last(f->output, NULL, &f->error);
    assert_true(g_str_has_suffix(found, "/checkpoint-9"));
    g_free(found);
}

RP_TEST_FIXTURE(checkpoint_setup, checkpoint_teardown)
