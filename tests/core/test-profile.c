#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/formats/export.h"
#include "core/profile/box.h"
#include "core/profile/profile.h"

/* A directory, a profile, an error and a text that a test may leave behind. */
typedef struct {
    char *directory;
    RpProfile *profile;
    RpProfile *other;
    GError *error;
    char *text;
    char *path;
} Fixture;

static void
setup(Fixture *f)
{
    f->directory = g_dir_make_tmp("rp-profile-XXXXXX", NULL);
    f->path = g_build_filename(f->directory, "profile.json", NULL);
    assert_true(f->directory != NULL);
}

static void
teardown(Fixture *f)
{
    g_autoptr(GDir) dir = g_dir_open(f->directory, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(f->directory, name, NULL);
        g_remove(path);
    }
    g_rmdir(f->directory);
    rp_profile_free(f->profile);
    rp_profile_free(f->other);
    g_clear_error(&f->error);
    g_free(f->text);
    g_free(f->path);
    g_free(f->directory);
}

#define BLOCK "{\"kind\":\"block\",\"forward_ms\":1,\"backward_ms\":2}"
#define WITH_LAYERS(layers) "{\"format\":\"roundpipe-profile/1\",\"layers\":[" layers "]}"
#define WITH_KEY(key) "{\"format\":\"roundpipe-profile/1\"," key ",\"layers\":[" BLOCK "]}"
#define WITH_LAYER_KEY(key)                                                                        \
    WITH_LAYERS("{\"kind\":\"block\",\"forward_ms\":1,\"backward_ms\":2," key "}")

static const char full_text[] =
    "{\n"
    "  \"format\": \"roundpipe-profile/1\",\n"
    "  \"model\": \"qwen3-1.7b\",\n"
    "  \"device\": \"RTX 4090\",\n"
    "  \"gpus\": 8,\n"
    "  \"processors\": 6,\n"
    "  \"dtype\": \"fp16\",\n"
    "  \"accumulate\": \"fp32\",\n"
    "  \"source\": \"measured\",\n"
    "  \"origin\": \"a \\\"test\\\" with \\\\ and ü\",\n"
    "  \"date\": \"2026-04-29\",\n"
    "  \"micro_batch\": { \"sequences\": 4, \"tokens_per_sequence\": 2048 },\n"
    "  \"links\": { \"hop_ms\": 1.6, \"copy_latency_ms\": 0.012, \"h2d_gb_per_s\": 25.0, "
    "\"d2h_gb_per_s\": 24.5, \"both_gb_per_s\": 43.25, \"all_h2d_gb_per_s\": 100.0, "
    "\"all_d2h_gb_per_s\": 99.5, \"all_both_gb_per_s\": 149.0, "
    "\"host_gb_per_s\": 150.0, \"root_gb_per_s\": 50.0, "
    "\"gpus_per_root\": 4 },\n"
    "  \"gpu_memory_bytes\": 25757220864,\n"
    "  \"constant_bytes\": 4096,\n"
    "  \"optimizer\": { \"parameters_per_s\": 3.0e9 },\n"
    "  \"layers\": [\n"
    "    { \"kind\": \"embedding\", \"name\": \"embed\",\n"
    "      \"forward_ms\": 0.0, \"backward_ms\": 0.0,\n"
    "      \"parameter_bytes\": 100, \"gradient_bytes\": 0, \"input_bytes\": 4, "
    "\"output_bytes\": 8,\n"
    "      \"tensor_bytes\": [60, 40] },\n"
    "    { \"kind\": \"block\", \"name\": \"block\", \"count\": 28,\n"
    "      \"forward_ms\": 7.429, \"backward_ms\": 15.831001, \"recompute_ms\": 7.5, "
    "\"recompute_last_ms\": 7.25, "
    "\"weight_gradient_ms\": 7.0, \"forward_spread_ms\": 0.001, \"recompute_spread_ms\": 0.002, "
    "\"backward_spread_ms\": 0.000001,\n"
    "      \"parameter_bytes\": 281474976710656, \"gradient_bytes\": 2, \"input_bytes\": 8, "
    "\"output_bytes\": 8,\n"
    "      \"forward_workspace_bytes\": 5, \"backward_workspace_bytes\": 6, "
    "\"activation_bytes\": 7 },\n"
    "    { \"kind\": \"block\", \"name\": \"wide\",\n"
    "      \"forward_ms\": 8.0, \"backward_ms\": 16.0, \"expand_ms\": 0.25,\n"
    "      \"parameter_bytes\": 4, \"upload_bytes\": 3, \"gradient_bytes\": 2, \"input_bytes\": 8, "
    "\"output_bytes\": 10 },\n"
    "    { \"kind\": \"head\", \"name\": \"head\",\n"
    "      \"forward_ms\": 22.0655, \"backward_ms\": 43.707,\n"
    "      \"parameter_bytes\": 0, \"gradient_bytes\": 0, \"input_bytes\": 10, "
    "\"output_bytes\": 0 }\n"
    "  ]\n"
    "}\n";

RP_TEST_OF(reads_every_key, Fixture *f)
{
    f->profile = rp_must(rp_profile_parse, "t", full_text, strlen(full_text));
    const RpProfile *p = f->profile;
    assert_string_equal(p->model, "qwen3-1.7b");
    assert_string_equal(p->origin, "a \"test\" with \\ and ü");
    assert_string_equal(p->date, "2026-04-29");
    assert_int_equal(p->gpus, 8);
    assert_int_equal(p->processors, 6);
    assert_int_equal(rp_profile_micro_batch_tokens(p), 8192);
    assert_int_equal(p->links.hop_ns, 1600000);
    assert_int_equal(p->links.copy_latency_ns, 12000);
    assert_true(p->links.d2h_bytes_per_s == 24.5e9);
    assert_true(p->links.both_bytes_per_s == 43.25e9);
    assert_true(p->links.all_h2d_bytes_per_s == 100e9);
    assert_true(p->links.all_d2h_bytes_per_s == 99.5e9);
    assert_true(p->links.all_both_bytes_per_s == 149e9);
    assert_int_equal(p->links.gpus_per_root, 4);
    assert_true(p->optimizer_parameters_per_s == 3e9);
    assert_int_equal(p->n_layers, 31);
    assert_int_equal(rp_profile_n_blocks(p), 29);
    assert_int_equal(rp_profile_first_block(p), 1);
    assert_true(p->has_sizes);
    assert_int_equal(p->layers[0].n_tensors, 2);
    assert_int_equal(p->layers[0].tensor_bytes[1], 40);
    assert_int_equal(p->layers[28].forward_ns, 7429000);
    assert_int_equal(p->layers[28].backward_ns, 15831001);
    assert_int_equal(p->layers[28].recompute_ns, 7500000);
    assert_int_equal(p->layers[28].recompute_last_ns, 7250000);
    assert_int_equal(rp_layer_saving_ns(&p->layers[28]), 250000);
    assert_int_equal(p->layers[28].weight_gradient_ns, 7000000);
    assert_int_equal(p->layers[28].forward_spread_ns, 1000);
    assert_int_equal(p->layers[28].recompute_spread_ns, 2000);
    assert_int_equal(p->layers[28].backward_spread_ns, 1);
    assert_int_equal(p->layers[29].recompute_spread_ns, 0);
    assert_int_equal(p->layers[29].expand_ns, 250000);
    assert_int_equal(rp_layer_upload_bytes(&p->layers[29]), 3);
    assert_int_equal(rp_layer_upload_bytes(&p->layers[28]), p->layers[28].parameter_bytes);
    assert_int_equal(p->layers[28].parameter_bytes, G_GUINT64_CONSTANT(1) << 48);
    assert_int_equal(p->layers[29].recompute_ns, 8000000);
    assert_int_equal(rp_layer_saving_ns(&p->layers[29]), 0);
    assert_int_equal(p->layers[29].weight_gradient_ns, 8000000);
    assert_int_equal(p->layers[30].kind, RP_LAYER_HEAD);
    assert_true(rp_profile_check_full(p, &f->error));
}

RP_TEST_OF(writes_exactly_what_it_read, Fixture *f)
{
    f->profile = rp_must(rp_profile_parse, "t", full_text, strlen(full_text));
    f->text = rp_profile_to_json(f->profile);
    assert_string_equal(f->text, full_text);
}

RP_TEST_OF(copies_everything, Fixture *f)
{
    f->profile = rp_must(rp_profile_parse, "t", full_text, strlen(full_text));
    f->other = rp_profile_copy(f->profile);
    rp_profile_free(f->profile);
    f->profile = NULL;
    f->text = rp_profile_to_json(f->other);
    assert_string_equal(f->text, full_text);
}

RP_TEST_OF(reads_the_smallest_profile, Fixture *f)
{
    const char *text = WITH_LAYERS(BLOCK);

    f->profile = rp_must(rp_profile_parse, "t", text, strlen(text));
    assert_false(f->profile->has_sizes);
    assert_string_equal(f->profile->missing, "layers[0].parameter_bytes");
    assert_string_equal(f->profile->model, "");
    assert_string_equal(f->profile->layers[0].name, "block");
    assert_int_equal(f->profile->layers[0].weight_gradient_ns, 1000000);
    assert_false(rp_profile_check_full(f->profile, &f->error));
    assert_true(g_error_matches(f->error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_FIDELITY));
    rp_assert_error_message_contains(f->error, "layers[0].parameter_bytes");
    rp_assert_error_message_contains(f->error, "compute");
}

RP_TEST_OF(names_the_missing_link_for_full_fidelity, Fixture *f)
{
    const char *text = WITH_LAYER_KEY("\"parameter_bytes\":2,\"gradient_bytes\":2,"
                                      "\"input_bytes\":1,\"output_bytes\":1");

    f->profile = rp_must(rp_profile_parse, "t", text, strlen(text));
    rp_refuses("links.h2d_gb_per_s", rp_profile_check_full, f->profile);
}

RP_TEST_OF(takes_whole_numbers_and_fractions_alike, Fixture *f)
{
    const char *text = WITH_LAYERS("{\"kind\":\"block\",\"count\":2.0,\"forward_ms\":1e0,"
                                   "\"backward_ms\":2.50,\"input_bytes\":1e9}");

    f->profile = rp_must(rp_profile_parse, "t", text, strlen(text));
    assert_int_equal(f->profile->n_layers, 2);
    assert_int_equal(f->profile->layers[1].backward_ns, 2500000);
    assert_int_equal(f->profile->layers[1].input_bytes, 1000000000);
}

/* The refusal of @text as a profile. (transfer full) */
static char *
refusal(const char *text, gpointer data)
{
    GError *error = NULL;

    (void)data;
    rp_profile_free(rp_profile_parse("bad.json", text, strlen(text), &error));
    return rp_test_refusal(&error);
}

RP_TEST(refuses_bad_input_naming_the_place)
{
    rp_test_lines("tests/core/messages.txt", "profile: bad input", refusal, NULL);
}

RP_TEST_OF(refuses_a_byte_of_zero, Fixture *f)
{
    static const char text[] = "{\"a\0b\":1}";

    rp_refuses("byte 0x00", rp_profile_parse, "t", text, sizeof text - 1);
}

RP_TEST_OF(refuses_deep_nesting_without_recursing, Fixture *f)
{
    const gsize n = 100000;

    f->text = g_malloc(n);
    memset(f->text, '[', n);
    rp_refuses("expected at most 64 levels", rp_profile_parse, "t", f->text, n);
}

RP_TEST_OF(refuses_a_million_layers, Fixture *f)
{
    GString *text = g_string_new("{\"format\":\"roundpipe-profile/1\",\"layers\":[" BLOCK);

    for (guint i = 1; i < 1000000; i++)
        g_string_append(text, "," BLOCK);
    g_string_append(text, "]}");
    f->text = g_string_free(text, FALSE);
    rp_refuses("expected at most", rp_profile_parse, "t", f->text, strlen(f->text));
}

RP_TEST_OF(refuses_too_large_a_file, Fixture *f)
{
    f->text = g_malloc0(((gsize)64 << 20) + 1);
    rp_refuses("expected at most 67108864 bytes", rp_profile_parse, "t", f->text,
               ((gsize)64 << 20) + 1);
}

RP_TEST_OF(refuses_a_file_cut_at_any_byte, Fixture *f)
{
    for (gsize length = 0; length < strlen(full_text) - 2; length++) {
        g_clear_error(&f->error);
        f->profile = rp_profile_parse("t", full_text, length, &f->error);
        assert_null(f->profile);
        assert_true(g_error_matches(f->error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_SYNTAX));
    }
}

RP_TEST_OF(saves_and_loads_the_same_bytes, Fixture *f)
{
    f->profile = rp_must(rp_profile_parse, "t", full_text, strlen(full_text));
    assert_true(rp_profile_save(f->profile, f->path, &f->error));
    assert_true(rp_profile_save(f->profile, f->path, &f->error));
    assert_true(g_file_get_contents(f->path, &f->text, NULL, NULL));
    assert_string_equal(f->text, full_text);
    f->other = rp_must(rp_profile_load, f->path);
    g_free(f->text);
    f->text = rp_profile_to_json(f->other);
    assert_string_equal(f->text, full_text);
}

RP_TEST_OF(leaves_nothing_beside_a_saved_file, Fixture *f)
{
    guint n = 0;

    f->profile = rp_profile_new(1);
    assert_true(rp_profile_save(f->profile, f->path, &f->error));
    GDir *dir = g_dir_open(f->directory, 0, NULL);
    while (g_dir_read_name(dir) != NULL)
        n++;
    g_dir_close(dir);
    assert_int_equal(n, 1);
}

RP_TEST_OF(saves_through_a_symbolic_link, Fixture *f)
{
    char target[64] = "";

    f->profile = rp_profile_new(1);
    assert_true(rp_profile_save(f->profile, f->path, &f->error));
    char *link = g_build_filename(f->directory, "link.json", NULL);
    assert_int_equal(symlink("profile.json", link), 0);
    f->profile->gpus = 5;
    gboolean saved = rp_profile_save(f->profile, link, &f->error);
    ssize_t length = readlink(link, target, sizeof target - 1);
    g_free(link);
    assert_true(saved);
    assert_int_equal(length, strlen("profile.json"));
    f->other = rp_must(rp_profile_load, f->path);
    assert_int_equal(f->other->gpus, 5);
}

RP_TEST_OF(reports_what_cannot_be_read_or_written, Fixture *f)
{
    f->profile = rp_profile_new(1);
    f->other = rp_profile_load(f->path, &f->error);
    assert_null(f->other);
    assert_true(g_error_matches(f->error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_IO));
    rp_assert_error(&f->error, "profile.json: cannot read: No such file");
    rp_refuses("Is a directory", rp_profile_load, f->directory);
    rp_refuses("cannot write: Is a directory", rp_profile_save, f->profile, f->directory);
    assert_false(rp_profile_save(f->profile, "/nonexistent/x.json", &f->error));
    assert_true(g_error_matches(f->error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_IO));
    rp_assert_error_message_contains(f->error, "/nonexistent/x.json: cannot write: ");
}

RP_TEST_OF(reports_a_full_disk, Fixture *f)
{
    if (!g_file_test("/dev/full", G_FILE_TEST_EXISTS))
        skip();
    f->profile = rp_profile_new(1);
    rp_refuses("/dev/full: cannot write: No space left", rp_profile_save, f->profile, "/dev/full");
}

RP_TEST_OF(reports_an_unreadable_file, Fixture *f)
{
    if (geteuid() == 0)
        skip(); /* root reads everything */
    f->profile = rp_profile_new(1);
    assert_true(rp_profile_save(f->profile, f->path, &f->error));
    assert_int_equal(g_chmod(f->path, 0), 0);
    rp_refuses("cannot read: Permission denied", rp_profile_load, f->path);
}

RP_TEST_OF(reads_devices_up_to_a_limit, Fixture *f)
{
    rp_refuses("/dev/zero: expected at most 67108864 bytes", rp_profile_load, "/dev/zero");
}

RP_TEST_OF(waits_for_the_writer_of_a_pipe_with_a_bound, Fixture *f)
{
    gsize length;

    assert_int_equal(mkfifo(f->path, 0600), 0);
    f->profile = rp_profile_load(f->path, &f->error); /* nobody writes */
    assert_null(f->profile);
    rp_assert_error(&f->error, "expected a pipe that is written to");
    rp_refuses("expected a regular file", rp_trace_load_chrome, f->path);

    pid_t child = fork();
    if (child == 0) {
        (void)alarm(20);
        FILE *pipe = fopen(f->path, "we");
        (void)g_usleep(100000); /* open, and silent at first */
        _exit(pipe != NULL && fputs("written", pipe) >= 0 && fclose(pipe) == 0 ? 0 : 1);
    }
    f->text = rp_file_read(f->path, 7, &length, &f->error);
    assert_int_equal(waitpid(child, NULL, 0), child);
    rp_assert_no_error(f->error);
    assert_string_equal(f->text, "written");
    assert_int_equal(length, 7);
}

RP_TEST_OF(reports_a_read_that_fails_midway, Fixture *f)
{
    if (!g_file_test("/proc/self/mem", G_FILE_TEST_EXISTS))
        skip();
    f->profile = rp_profile_load("/proc/self/mem", &f->error); /* address 0 is not mapped */
    assert_null(f->profile);
    rp_assert_error_message_contains(f->error, "/proc/self/mem: cannot read: ");
}

RP_TEST_OF(names_a_pointer_of_git_lfs, Fixture *f)
{
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";

    assert_true(g_file_set_contents(f->path, pointer, -1, NULL));
    rp_refuses("found a pointer of git-lfs", rp_profile_load, f->path);
}

RP_TEST_OF(keeps_nanoseconds_and_rates_exactly, Fixture *f)
{
    const gint64 times_ns[] = {0,         1,           999999,          1000000,
                               123456789, 18503703,    999999999999999, 1000000000000000,
                               7429000,   40561063125, 100000000000001};
    GRand *random = g_rand_new_with_seed(7);
    gboolean same = TRUE;

    for (guint i = 0; i < 2000 && same; i++) {
        g_clear_pointer(&f->profile, rp_profile_free);
        g_clear_pointer(&f->other, rp_profile_free);
        f->profile = rp_profile_new(1);
        f->profile->layers[0].forward_ns =
            i < G_N_ELEMENTS(times_ns) ? times_ns[i] : (gint64)g_rand_double_range(random, 0, 1e15);
        double rate = exp(g_rand_double_range(random, log(1e6), log(1e15)));
        f->profile->links.h2d_bytes_per_s = floor(rate);
        f->profile->links.root_bytes_per_s = rate;
        f->profile->links.host_bytes_per_s = rate;
        const double beside = i % 2 == 0 || rate < 4e6 ? 0 : rate / 2;
        f->profile->links.beside_optimizer_bytes_per_s = beside;
        f->profile->optimizer_parameters_per_s = rate;
        f->profile->norm_parameters_per_s = 1e21 / rate;
        f->profile->head_chunk = i % 4 * 1024;
        f->profile->constant_bytes = i % 3 * 4096;
        f->profile->alone_speed = i % 5 == 0 ? 0 : 1 + i % 5 * 0.25;
        f->profile->sum_parameters_per_s = i % 2 == 0 ? 0 : rate;
        f->profile->gradient_copy_parameters_per_s = 1e21 / rate;
        f->profile->parameter_copy_parameters_per_s = rate;
        for (guint form = 0; form < RP_N_UPDATES * RP_N_MOMENTS * RP_N_MASTERS; form++)
            (&f->profile->cached_parameters_per_s[0][0][0])[form] =
                i % 2 * MAX(1e6, rate / (form + 1));
        g_free(f->profile->attention);
        f->profile->attention = g_strdup(i % 3 == 0 ? "" : i % 3 == 1 ? "builtin" : "cudnn");
        g_free(f->text);
        f->text = rp_profile_to_json(f->profile);
        f->other = rp_must(rp_profile_parse, "t", f->text, strlen(f->text));
        char *again = rp_profile_to_json(f->other);
        same = g_str_equal(again, f->text) &&
               f->other->layers[0].forward_ns == f->profile->layers[0].forward_ns &&
               f->other->optimizer_parameters_per_s == rate &&
               f->other->norm_parameters_per_s == 1e21 / rate &&
               f->other->head_chunk == i % 4 * 1024 && f->other->constant_bytes == i % 3 * 4096 &&
               f->other->alone_speed == f->profile->alone_speed &&
               f->other->sum_parameters_per_s == (i % 2 == 0 ? 0 : rate) &&
               f->other->gradient_copy_parameters_per_s == 1e21 / rate &&
               f->other->parameter_copy_parameters_per_s == rate &&
               memcmp(f->other->cached_parameters_per_s, f->profile->cached_parameters_per_s,
                      sizeof f->other->cached_parameters_per_s) == 0 &&
               g_str_equal(f->other->attention, f->profile->attention) &&
               fabs(f->other->links.beside_optimizer_bytes_per_s - beside) <= 1e-15 * beside &&
               fabs(f->other->links.root_bytes_per_s / rate - 1) < 1e-15;
        g_free(again);
    }
    g_rand_free(random);
    assert_true(same);
}

/* In a file, in a copy, and in a file of that. */
RP_TEST_OF(keeps_variants_to_multiply, Fixture *f)
{
    const RpMatmulVariant variants[] = {
        {.form = 1, .a = 1, .b = 1, .c = 1, .m = 16384, .n = 2048, .k = 4096, .variant = 3},
        {.form = 0, .a = 3, .b = 3, .c = 1, .m = 1, .n = 2, .k = 3, .a_stride = 6, .variant = 7},
        {.form = 0, .a = 4, .b = 3, .c = 0, .m = 1, .n = 2, .k = 3, .bias = TRUE, .variant = 1}};
    RpProfile *copy;
    char *again;

    f->profile = rp_profile_new(1);
    rp_profile_set_matmuls(f->profile, "paper 1", variants, G_N_ELEMENTS(variants));
    copy = rp_profile_copy(f->profile);
    f->text = rp_profile_to_json(copy);
    rp_profile_free(copy);
    f->other = rp_must(rp_profile_parse, "t", f->text, strlen(f->text));
    again = rp_profile_to_json(f->other);
    assert_string_equal(again, f->text);
    g_free(again);
    assert_string_equal(f->other->matmul_library, "paper 1");
    assert_int_equal(f->other->n_matmul_variants, G_N_ELEMENTS(variants));
    for (guint i = 0; i < G_N_ELEMENTS(variants); i++) {
        assert_true(rp_matmul_variant_is_of(&f->other->matmul_variants[i], &variants[i]));
        assert_int_equal(f->other->matmul_variants[i].variant, variants[i].variant);
    }
}

RP_TEST_OF(folds_equal_neighbours_only, Fixture *f)
{
    const guint64 two[] = {1, 2};
    const guint64 other_two[] = {2, 1};

    f->profile = rp_profile_new(6);
    for (guint i = 0; i < 6; i++)
        rp_profile_set_tensors(f->profile, i, i < 5 ? two : other_two, 2);
    f->profile->layers[2].forward_ns = 1;
    f->profile->layers[3].recompute_spread_ns = 1;
    assert_int_equal(f->profile->layers[5].parameter_bytes, 3);
    assert_ptr_equal(f->profile->layers[0].tensor_bytes, f->profile->layers[4].tensor_bytes);
    f->text = rp_profile_to_json(f->profile);
    f->other = rp_must(rp_profile_parse, "t", f->text, strlen(f->text));
    assert_int_equal(f->other->n_layers, 6);
    guint n = 0;
    for (const char *p = f->text; (p = strstr(p, "\"kind\"")) != NULL; p++)
        n++;
    assert_int_equal(n, 5); /* 0-1, 2, 3, 4, 5 */
    assert_int_equal(f->other->layers[5].tensor_bytes[0], 2);
}

/* ---- times of several micro-batches ---- */

#define ONE(model, sequences, layers)                                                              \
    "{\"format\":\"roundpipe-profile/1\",\"model\":\"" model                                       \
    "\",\"micro_batch\":{\"sequences\":" #sequences                                                \
    ",\"tokens_per_sequence\":8},\"layers\":[" layers "]}"
#define OF_MS(ms) "{\"kind\":\"block\",\"forward_ms\":" #ms ",\"backward_ms\":2}"

RP_TEST_OF(an_array_has_times_of_several_micro_batches, Fixture *f)
{
    static const char text[] =
        "[" ONE("m", 1, OF_MS(1)) "," ONE("m", 2, OF_MS(3)) "," ONE("m", 8, OF_MS(9)) "]";

    f->profile = rp_must(rp_profile_parse, "t", text, strlen(text));
    f->text = rp_profile_to_json(f->profile);
    f->other = rp_must(rp_profile_parse, "t", f->text, strlen(f->text));
    g_autofree char *again = rp_profile_to_json(f->other);
    assert_string_equal(again, f->text);

    g_autofree char *all = rp_profile_micro_batches(f->other);
    assert_string_equal(all, "1, 2 and 8");
    assert_int_equal(rp_profile_with_micro_batch(f->other, 2)->layers[0].forward_ns, 3000000);
    assert_ptr_equal(rp_profile_with_micro_batch(f->other, 1), f->other);
    assert_null(rp_profile_with_micro_batch(f->other, 4));

    g_autoptr(RpProfile) copy = rp_profile_copy(f->other);
    assert_null(copy->next);
}

RP_TEST(refuses_arrays_of_different_runs)
{
    rp_test_lines("tests/core/messages.txt", "profile: arrays of different runs", refusal, NULL);
}

/* Measured on GPUs or published, all of them serve full fidelity. */
RP_TEST_OF(reads_every_file_that_is_shipped, Fixture *f)
{
    static const char *const folders[] = {"profiles/h200", "profiles/rtx4090"};

    for (guint i = 0; i < G_N_ELEMENTS(folders); i++) {
        g_autofree char *path = rp_test_source_path(folders[i]);
        g_autoptr(GDir) folder = g_dir_open(path, 0, NULL);
        const char *name;
        guint n_files = 0;

        assert_non_null(folder);
        while ((name = g_dir_read_name(folder)) != NULL) {
            g_autofree char *file = g_build_filename(path, name, NULL);

            if (!g_str_has_suffix(name, ".json"))
                continue;
            g_clear_pointer(&f->profile, rp_profile_free);
            f->profile = rp_must(rp_profile_load, file);
            if (!f->profile->has_sizes || !(f->profile->links.h2d_bytes_per_s > 0))
                fail_msg("%s: expected sizes and links, found none", file);
            n_files++;
        }
        assert_true(n_files >= 4);
    }
}

RP_TEST(shares_a_machine_between_its_servers)
{
    const double full = 48e9;
    const struct {
        guint servers, devices;
        double root;
    } cases[] = {{1, 4, full}, {2, 4, full}, {2, 2, full / 2}, {4, 1, full / 4}, {2, 1, full / 2}};

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(RpProfile) profile = rp_profile_new(1);

        profile->links.root_bytes_per_s = full;
        profile->links.gpus_per_root = 4;
        profile->links.host_bytes_per_s = 4 * full;
        profile->optimizer_parameters_per_s = 1e9;
        rp_profile_share_machine(profile, cases[i].servers, cases[i].devices, i % 2 == 0);
        assert_true(profile->links.root_bytes_per_s == cases[i].root);
        assert_true(profile->links.host_bytes_per_s == 4 * full / cases[i].servers);
        assert_true(profile->optimizer_parameters_per_s ==
                    1e9 / (i % 2 == 0 ? cases[i].servers : 1));
    }
}

/* ---- boxes ---- */

#define BOX(members) "{\"format\":\"roundpipe-profile/1\"," members "}"

static RpProfile *
parse_box(const char *text, GError **error)
{
    return rp_profile_parse_box("box.json", text, strlen(text), error);
}

RP_TEST_OF(a_box_is_read_as_it_was_written, Fixture *f)
{
    f->profile = parse_box(
        BOX("\"gpus\":4,\"links\":{\"copy_latency_ms\":0.01,\"h2d_gb_per_s\":24.9,\"d2h_gb_per_s\":"
            "26.25,\"both_gb_per_s\":37.3,\"host_gb_per_s\":96.1},\"optimizer\":{\"parameters_per_"
            "s\":"
            "2.1e9,\"norm_parameters_per_s\":9e9}"),
        &f->error);
    assert_non_null(f->profile);
    assert_int_equal(f->profile->n_layers, 0);
    assert_true(rp_profile_save(f->profile, f->path, &f->error));
    f->other = rp_profile_load_box(f->path, &f->error);
    assert_non_null(f->other);
    assert_memory_equal(&f->other->links, &f->profile->links, sizeof f->profile->links);
    assert_true(f->other->gpus == 4 && f->other->optimizer_parameters_per_s == 2.1e9 &&
                f->other->norm_parameters_per_s == 9e9);
    assert_int_equal(rp_profile_box_known(f->other), 1 << RP_UNKNOWN_BOTH | 1 << RP_UNKNOWN_ROOTS |
                                                         1 << RP_UNKNOWN_HOST |
                                                         1 << RP_UNKNOWN_OPTIMIZER);
}

static char *
refusal_of_box(const char *text, gpointer data)
{
    GError *error = NULL;

    (void)data;
    rp_profile_free(parse_box(text, &error));
    return rp_test_refusal(&error);
}

RP_TEST(refuses_boxes_that_say_nothing)
{
    rp_test_lines("tests/core/messages.txt", "profile: boxes that say nothing", refusal_of_box,
                  NULL);
}

/* A timing file is a box, too; a box is no timing file. */
RP_TEST_OF(a_profile_takes_what_a_box_has, Fixture *f)
{
    static const char host[] = BOX("\"links\":{\"host_gb_per_s\":90}");
    static const char links[] =
        BOX("\"gpus\":1,\"links\":{\"h2d_gb_per_s\":10,\"d2h_gb_per_s\":10}");
    static const char timed[] =
        WITH_KEY("\"links\":{\"hop_ms\":2,\"h2d_gb_per_s\":20,\"d2h_gb_per_s\":20,"
                 "\"root_gb_per_s\":40,\"gpus_per_root\":4,\"host_gb_per_s\":150}");

    assert_null(rp_profile_parse("box.json", host, strlen(host), &f->error));
    assert_non_null(strstr(f->error->message, "layers: expected an array of layers"));
    f->profile = parse_box(timed, NULL);
    f->other = parse_box(host, NULL);
    assert_int_equal(f->profile->n_layers, 1);
    rp_profile_take_box(f->profile, f->other);
    assert_true(f->profile->links.host_bytes_per_s == 90e9);
    assert_true(f->profile->links.h2d_bytes_per_s == 20e9);
    rp_profile_free(f->other);
    /* one card: its root is as much slower as its link */
    f->other = parse_box(links, NULL);
    rp_profile_take_box(f->profile, f->other);
    assert_true(f->profile->links.root_bytes_per_s == 20e9);
    assert_int_equal(f->profile->links.hop_ns, 4000000);
    assert_true(f->profile->links.host_bytes_per_s == 90e9);
    /* four, of which none waits for another */
    f->other->gpus = 4;
    rp_profile_take_box(f->profile, f->other);
    assert_int_equal(f->profile->links.gpus_per_root, 0);
}

RP_TEST_STATE(Fixture, setup, teardown)
