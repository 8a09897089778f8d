/* Checkpoints that several servers write together, each its part: threads of this process. */
#include <glib/gstdio.h>
#include <math.h>

#include "tests/exec-checkpoint/checkpoint-fixture.h"
#include "tests/exec-servers/threads-transport.h"

#define MOST 4

typedef struct {
    CheckpointFixture *f;
    RpModel config;
    guint64 step;
    gboolean async;
    gboolean beside;
    gboolean weights_only;
    guint broken;  /* a server whose numbers are not finite; MOST: none */
    gboolean next; /* the weights to be read next, not the masters */
    char *path[MOST];
    GError *error[MOST];
} Saving;

static RpTrainer *
new_trainer(const Saving *saving, guint server, guint n_servers)
{
    RpTrainer *trainer = fake_trainer_new(&saving->config, RP_DTYPE_BF16, saving->async);

    fake_trainer_go_to(trainer, saving->step);
    fake_trainer_set_server(trainer, server, n_servers);
    return trainer;
}

/* One of the server's own: bf16 and fp32 are not finite with these bits. */
static void
break_numbers(const Saving *saving, RpTrainer *trainer, guint server)
{
    const RpShard part = rp_trainer_weight_part(trainer, 0, server);

    g_assert(part.n > 0);
    if (saving->next)
        ((guint16 *)rp_trainer_next_weight(trainer, 0))[part.first] = 0x7f80;
    else
        ((float *)rp_trainer_weight(trainer, 0))[part.first] = INFINITY;
}

static char *
save_beside(const RpCheckpointOptions *options, RpTrainer *trainer, guint n,
            const RpDataState *data, GError **error)
{
    const RpNetwork *network = rp_trainer_network(trainer);
    g_auto(RpCheckpointWritten) written = {0};
    g_autoptr(RpCheckpointBeside) beside = rp_checkpoint_beside_new(
        rp_checkpoint_copy_bytes(rp_network_weights(network), rp_network_options(network)->dtype,
                                 RP_STATE_FORMAT_FP32, rp_trainer_is_async(trainer), n),
        error);

    g_assert(beside != NULL && rp_checkpoint_beside_begin(beside, options, trainer, data));
    fake_trainer_go_to(trainer, 1000); /* the copy was made before */
    rp_checkpoint_beside_end(beside, &written);
    if (written.error != NULL)
        g_propagate_error(error, g_steal_pointer(&written.error));
    return g_steal_pointer(&written.path);
}

static void
save(RpServers *servers, gpointer user_data)
{
    Saving *saving = user_data;
    const guint server = rp_servers_rank(servers), n = rp_servers_count(servers);
    RpTrainer *trainer = new_trainer(saving, server, n);
    RpCheckpointOptions options = saving->f->options;
    const RpDataState data = checkpoint_data(saving->step);
    GError **error = &saving->error[server];

    options.servers = servers;
    if (server == saving->broken)
        break_numbers(saving, trainer, server);
    saving->path[server] =
        saving->weights_only ? rp_checkpoint_save_weights(&options, trainer, error)
        : saving->beside     ? save_beside(&options, trainer, n, &data, error)
                             : rp_checkpoint_save(&options, trainer, &data, NULL, error);
    g_assert((saving->path[server] == NULL) == (*error != NULL));
    fake_trainer_free(trainer);
}

/* All servers get the same error. */
static gboolean
save_on(Saving *saving, guint n)
{
    ThreadsNet *net = threads_net_new(n);
    CheckpointFixture *f = saving->f;

    threads_run(net, n, NULL, save, saving);
    threads_net_free(net);
    g_clear_pointer(&f->path, g_free);
    g_clear_error(&f->error);
    f->path = saving->path[0];
    f->error = saving->error[0];
    for (guint r = 1; r < n; r++) {
        assert_int_equal(g_strcmp0(saving->path[r], f->path), 0);
        assert_int_equal(saving->error[r] != NULL, f->error != NULL);
        if (f->error != NULL)
            assert_string_equal(saving->error[r]->message, f->error->message);
        g_free(saving->path[r]);
        g_clear_error(&saving->error[r]);
    }
    return f->path != NULL;
}

static Saving
saving_of(CheckpointFixture *f, guint64 step)
{
    return (Saving){
        .f = f, .config = checkpoint_config(TRUE), .step = step, .async = TRUE, .broken = MOST};
}

/* Restores f->path on one server, and compares all that was saved. */
static void
assert_restored(const Saving *saving)
{
    CheckpointFixture *f = saving->f;
    RpTrainer *expected = new_trainer(saving, 0, 1);
    RpDataState data = {0};

    g_clear_pointer(&f->other, fake_trainer_free);
    f->other = fake_trainer_new(&saving->config, RP_DTYPE_BF16, saving->async);
    const gboolean good = rp_checkpoint_restore(f->path, f->other, NULL, &data, NULL, &f->error) &&
                          fake_trainer_equal(expected, f->other);

    fake_trainer_free(expected);
    assert_null(f->error);
    assert_true(good);
    assert_int_equal(data.n_iterations, saving->step);
}

static void
expect_refusal(CheckpointFixture *f, const char *file, const char *part)
{
    const RpModel config = checkpoint_config(TRUE);
    RpDataState data;

    g_clear_pointer(&f->other, fake_trainer_free);
    f->other = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
    g_clear_error(&f->error);
    assert_false(rp_checkpoint_restore(f->path, f->other, NULL, &data, NULL, &f->error));
    assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT));
    rp_assert_error_message_contains(f->error, file);
    rp_assert_error_message_contains(f->error, part);
    assert_null(strchr(f->error->message, '\n'));
    assert_true(fake_trainer_is_new(f->other));
}

/* ---- tests ---- */

/* The files that one server writes, but for those that are divided. */
RP_TEST_OF(come_back_on_one, CheckpointFixture *f)
{
    for (guint n = 2; n <= MOST; n++)
        for (guint async = 0; async < 2; async++) {
            Saving saving = saving_of(f, 10 * n + async);
            RpTrainer *one;

            saving.async = async;
            f->options.max_shard_bytes = n == 3 ? 1000 : 0;
            one = new_trainer(&saving, 0, 1);
            f->data = checkpoint_data(saving.step);
            g_free(f->path);
            f->path = rp_checkpoint_save(&f->options, one, &f->data, NULL, &f->error);
            fake_trainer_free(one);
            assert_non_null(f->path);
            checkpoint_load(f, f->path);
            g_autoptr(GHashTable) expected = g_steal_pointer(&f->files);

            assert_true(save_on(&saving, n)); /* in its place */
            assert_restored(&saving);
            checkpoint_load(f, f->path);
            GHashTableIter iter;
            gpointer name, bytes;
            guint same = 0;

            g_hash_table_iter_init(&iter, expected);
            while (g_hash_table_iter_next(&iter, &name, &bytes)) {
                if (g_str_has_prefix(name, "optimizer") || g_str_has_prefix(name, "next") ||
                    strcmp(name, "manifest.json") == 0)
                    continue;
                assert_non_null(g_hash_table_lookup(f->files, name));
                assert_true(g_bytes_equal(bytes, g_hash_table_lookup(f->files, name)));
                same++;
            }
            assert_true(same >= 3);
        }
}

RP_TEST_OF(have_a_file_of_each_server, CheckpointFixture *f)
{
    Saving saving = saving_of(f, 7);

    assert_true(save_on(&saving, 2));
    f->text = checkpoint_list(f->path);
    assert_string_equal(
        f->text, "config.json manifest.json model.safetensors next-server-0-of-2.safetensors "
                 "next-server-1-of-2.safetensors optimizer-server-0-of-2.safetensors "
                 "optimizer-server-1-of-2.safetensors trainer_state.json");
    g_free(f->text);
    f->text = checkpoint_list(f->output);
    assert_string_equal(f->text, "checkpoint-7");
    checkpoint_load(f, f->path);
    GBytes *manifest = g_hash_table_lookup(f->files, "manifest.json");
    g_autofree char *text = g_strndup(g_bytes_get_data(manifest, NULL), g_bytes_get_size(manifest));

    assert_non_null(strstr(text, "\"format\": \"roundpipe-checkpoint/2\",\n  \"servers\": 2,\n"));
    assert_non_null(strstr(text, "    \"model.embed_tokens.weight\": [\n      [0, 0, 321],\n"
                                 "      [1, 321, 640]\n    ],\n"));
    assert_non_null(strstr(text, "    \"model.norm.weight\": [\n      [0, 0, 16]\n    ]\n  },\n"));
}

RP_TEST_OF(are_written_beside_training, CheckpointFixture *f)
{
    for (guint n = 2; n <= MOST; n++) {
        Saving saving = saving_of(f, n);

        saving.beside = TRUE;
        assert_true(save_on(&saving, n));
        assert_restored(&saving);
    }
}

/* While one looks at its files others rename theirs. */
RP_TEST_OF(do_not_get_in_each_others_way, CheckpointFixture *f)
{
    for (guint step = 1; step <= (RP_TEST_FEW ? 10 : 50); step++) {
        Saving saving = saving_of(f, step);

        f->options.keep = 1;
        f->options.max_shard_bytes = 500;
        if (!save_on(&saving, MOST))
            fail_msg("step %u: %s", step, f->error->message);
    }
}

RP_TEST_OF(are_weights_alone_too, CheckpointFixture *f)
{
    Saving saving = saving_of(f, 3);

    saving.weights_only = TRUE;
    assert_true(save_on(&saving, 3));
    f->text = checkpoint_list(f->path);
    assert_string_equal(f->text, "config.json model.safetensors");
}

/* Server 1 finds it in its own part, or the first in the messages: nothing is left, and all get the
 * error. */
RP_TEST_OF(are_not_there_if_one_server_fails, CheckpointFixture *f)
{
    Saving good = saving_of(f, 4);

    assert_true(save_on(&good, 3));
    for (guint broken = 0; broken < 2; broken++)
        for (guint next = 0; next < 2; next++) {
            Saving saving = saving_of(f, 5);

            saving.broken = broken;
            saving.next = next;
            assert_false(save_on(&saving, 3));
            assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_WRITE));
            rp_assert_error_message_contains(f->error, "expected finite weights");
            assert_int_equal(strstr(f->error->message, "server 1 (") != NULL, broken == 1 && next);
            g_autofree char *names = checkpoint_list(f->output);
            assert_string_equal(names, "checkpoint-4");
        }
    g_clear_pointer(&f->path, g_free);
    g_clear_error(&f->error);
    f->path = rp_checkpoint_find_last(f->output, NULL, &f->error);
    assert_restored(&good);
}

RP_TEST_OF(name_a_part_that_is_missing_or_of_another_save, CheckpointFixture *f)
{
    static const char *const names[] = {"optimizer-server-1-of-3.safetensors",
                                        "next-server-2-of-3.safetensors"};

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        Saving other = saving_of(f, 5), saving = saving_of(f, 6);

        assert_true(save_on(&other, 3));
        checkpoint_load(f, f->path);
        g_autoptr(GBytes) bytes = g_bytes_ref(g_hash_table_lookup(f->files, names[i]));
        const char *data = g_bytes_get_data(bytes, NULL);
        const gssize length = (gssize)g_bytes_get_size(bytes);

        assert_true(save_on(&saving, 3));
        g_autofree char *path = g_build_filename(f->path, names[i], NULL);

        assert_true(g_file_set_contents(path, data, length, NULL));
        expect_refusal(f, path, "expected SHA-256");
        assert_true(g_file_set_contents(path, data, length - 1, NULL));
        expect_refusal(f, path, "bytes, as its manifest has it");
        g_remove(path);
        expect_refusal(f, path, "No such file");
        rp_assert_error_message_contains(
            f->error, "a server's part of this checkpoint; put it back, or resume from another");
    }
}

typedef struct {
    CheckpointFixture *f;
    GError *error[MOST];
} Restoring;

static void
restore_one(RpServers *servers, gpointer user_data)
{
    Restoring *restoring = user_data;
    const guint server = rp_servers_rank(servers);
    const RpModel config = checkpoint_config(TRUE);
    RpTrainer *trainer = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
    RpDataState data;

    fake_trainer_set_server(trainer, server, rp_servers_count(servers));
    g_assert(rp_checkpoint_restore(restoring->f->path, trainer, servers, &data, NULL,
                                   &restoring->error[server]) != fake_trainer_is_new(trainer));
    fake_trainer_free(trainer);
}

/* Each reads some files; a fault that one finds is reported to all. */
RP_TEST_OF(are_compared_by_all_together, CheckpointFixture *f)
{
    Saving saving = saving_of(f, 7);
    Restoring restoring = {.f = f};

    assert_true(save_on(&saving, 2));
    checkpoint_load(f, f->path);
    GHashTableIter iter;
    gpointer name, bytes;

    g_hash_table_iter_init(&iter, f->files);
    while (g_hash_table_iter_next(&iter, &name, &bytes)) {
        const gsize length = g_bytes_get_size(bytes);
        g_autofree char *text = g_memdup2(g_bytes_get_data(bytes, NULL), length);
        g_autofree char *path = g_build_filename(f->path, name, NULL);
        ThreadsNet *net = threads_net_new(3);

        text[length / 2] ^= strcmp(name, "manifest.json") == 0 ? 0 : 1;
        assert_true(g_file_set_contents(path, text, (gssize)length, NULL));
        threads_run(net, 3, NULL, restore_one, &restoring);
        threads_net_free(net);
        for (guint r = 0; r < 3; r++) {
            if (strcmp(name, "manifest.json") == 0)
                assert_null(restoring.error[r]);
            else
                rp_assert_error_message_contains(restoring.error[r], path);
            g_clear_error(&restoring.error[r]);
        }
        text[length / 2] ^= strcmp(name, "manifest.json") == 0 ? 0 : 1;
        assert_true(g_file_set_contents(path, text, (gssize)length, NULL));
    }
}

/* With sizes and checksums that agree. */
RP_TEST_OF(are_refused_if_their_table_has_gaps, CheckpointFixture *f)
{
    static const char *const rows[] = {
        "[[0, 0, 321], [1, 322, 640]]", "[[0, 0, 322], [1, 321, 640]]", "[[0, 0, 321]]",
        "[[0, 0, 321], [2, 321, 640]]", "[[0, 0, 321], [1, 321, 641]]", "[]"};
    Saving saving = saving_of(f, 7);

    assert_true(save_on(&saving, 2));
    g_autofree char *path = g_build_filename(f->path, "manifest.json", NULL);
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) halves =
        g_strsplit(text, "[\n      [0, 0, 321],\n      [1, 321, 640]\n    ]", -1);

    assert_int_equal(g_strv_length(halves), 2);
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *forged = g_strconcat(halves[0], rows[i], halves[1], NULL);

        checkpoint_write_text(f->path, "manifest.json", forged);
        expect_refusal(f, path, "parts: model.embed_tokens.weight: expected parts of its servers");
    }
    /* and of a size that the file does not have */
    g_autofree char *moved =
        g_strconcat(halves[0], "[[0, 0, 320], [1, 320, 640]]", halves[1], NULL);

    checkpoint_write_text(f->path, "manifest.json", moved);
    expect_refusal(f, "optimizer-server-0-of-2.safetensors",
                   "tensor \"model.embed_tokens.weight.master\": expected F32 [320]");
}

RP_TEST_FIXTURE(checkpoint_setup, checkpoint_teardown)
