#include "tests/exec-model/tensor-fixture.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const guint64 shape[] = {2, 3};

/* Three tensors: bf16 [3], fp32 [2, 3], fp16 scalar. */
static gboolean
write_three(TensorFixture *f, const char *path, guint64 max_shard_bytes)
{
    const guint8 bytes[24] = {1, 2, 3, 4, 5, 6, 7, 8};

    g_clear_error(&f->error);
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->writer = rp_safetensors_writer_new(path, max_shard_bytes);
    guint a = rp_safetensors_writer_add(f->writer, "a\"", RP_DTYPE_BF16, &shape[1], 1);
    guint b = rp_safetensors_writer_add(f->writer, "b", RP_DTYPE_FP32, shape, 2);
    guint c = rp_safetensors_writer_add(f->writer, "c", RP_DTYPE_FP16, NULL, 0);
    return rp_safetensors_writer_begin(f->writer, &f->error) &&
           rp_safetensors_writer_write(f->writer, c, bytes, 2, &f->error) &&
           rp_safetensors_writer_write(f->writer, b, bytes, 10, &f->error) &&
           rp_safetensors_writer_write(f->writer, a, bytes, 6, &f->error) &&
           rp_safetensors_writer_write(f->writer, b, bytes + 10, 14, &f->error) &&
           rp_safetensors_writer_finish(f->writer, &f->error);
}

RP_TEST_OF(writes_what_reads_back, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    assert_true(write_three(f, path, 0));
    f->tensors = rp_must(rp_safetensors_open, path);
    assert_int_equal(rp_safetensors_count(f->tensors), 3);
    const RpSafetensor *b = rp_safetensors_find(f->tensors, "b");
    assert_int_equal(b->dtype, RP_DTYPE_FP32);
    assert_int_equal(b->rank, 2);
    assert_memory_equal(b->shape, shape, sizeof shape);
    assert_int_equal(((const guint8 *)b->data)[7], 8);
    assert_int_equal((gsize)b->data % 8, 0); /* wider types first, aligned */
    assert_int_equal(rp_safetensors_find(f->tensors, "a\"")->bytes, 6);
    f->text = tensor_list(f);
    assert_string_equal(f->text, "model.safetensors");
}

/* The whole file, byte by byte. */
RP_TEST_OF(writes_exactly_these_bytes, TensorFixture *f)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"a\\\"\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
        "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[30,32]}}";
    g_autofree char *path = tensor_path(f, "model.safetensors");

    assert_true(write_three(f, path, 0));
    g_autoptr(GBytes) file = tensor_load(f, "model.safetensors");
    gsize length;
    const guint8 *bytes = g_bytes_get_data(file, &length);
    gsize padded = (strlen(header) + 7) / 8 * 8;
    assert_int_equal(length, 8 + padded + 32);
    assert_int_equal(bytes[0] | bytes[1] << 8, padded);
    assert_memory_equal(bytes + 8, header, strlen(header));
    for (gsize i = strlen(header); i < padded; i++)
        assert_int_equal(bytes[8 + i], ' ');
    assert_int_equal(bytes[8 + padded + 7], 8);
    assert_int_equal(bytes[8 + padded + 24], 1);
}

RP_TEST_OF(divides_into_shards_with_an_index, TensorFixture *f)
{
    static const char index[] = "{\n  \"metadata\": {\n    \"total_size\": 32\n  },\n"
                                "  \"weight_map\": {\n"
                                "    \"a\\\"\": \"model-00001-of-00003.safetensors\",\n"
                                "    \"b\": \"model-00002-of-00003.safetensors\",\n"
                                "    \"c\": \"model-00003-of-00003.safetensors\"\n  }\n}\n";
    g_autofree char *path = tensor_path(f, "model.safetensors");

    /* b alone is larger than a shard may be */
    assert_true(write_three(f, path, 8));
    g_autoptr(GBytes) written = tensor_load(f, "model.safetensors.index.json");
    assert_int_equal(g_bytes_get_size(written), strlen(index));
    assert_memory_equal(g_bytes_get_data(written, NULL), index, strlen(index));
    f->tensors = rp_must(rp_safetensors_open, f->directory);
    assert_int_equal(rp_safetensors_count(f->tensors), 3);
    assert_int_equal(((const guint8 *)rp_safetensors_find(f->tensors, "b")->data)[7], 8);
}

RP_TEST_OF(removes_the_other_form_of_a_checkpoint, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    assert_true(write_three(f, path, 0));
    assert_true(write_three(f, path, 30));
    f->text = tensor_list(f);
    assert_string_equal(f->text,
                        "model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
                        "model.safetensors.index.json");
    assert_true(write_three(f, path, 32));
    g_free(f->text);
    f->text = tensor_list(f);
    assert_string_equal(f->text,
                        "model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
                        "model.safetensors");
}

RP_TEST_OF(leaves_nothing_when_given_up, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    tensor_save_text(f, "model.safetensors", "old");
    f->writer = rp_safetensors_writer_new(path, 0);
    guint a = rp_safetensors_writer_add(f->writer, "a", RP_DTYPE_BF16, shape, 2);
    assert_true(rp_safetensors_writer_begin(f->writer, &f->error));
    assert_true(rp_safetensors_writer_write(f->writer, a, "x", 1, &f->error));
    rp_refuses("tensor \"a\": expected 12 bytes, found 1", rp_safetensors_writer_finish, f->writer);
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->text = tensor_list(f);
    assert_string_equal(f->text, "model.safetensors");
    g_autoptr(GBytes) old = tensor_load(f, "model.safetensors");
    assert_int_equal(g_bytes_get_size(old), 3);
}

RP_TEST_OF(removes_a_killed_writer_s_file, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    tensor_save_text(f, ".model.safetensors.tmp", "left");
    assert_true(write_three(f, path, 0));
    f->text = tensor_list(f);
    assert_string_equal(f->text, "model.safetensors");
}

RP_TEST_OF(leaves_a_file_that_another_writes, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");
    g_autofree char *temporary = tensor_path(f, ".model.safetensors.tmp");

    tensor_save_text(f, ".model.safetensors.tmp", "begun");
    const int fd = open(temporary, O_RDONLY | O_CLOEXEC);

    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_false(write_three(f, path, 0));
    close(fd);
    rp_assert_error_message_contains(f->error,
                                     "model.safetensors\": another process is writing it");
    f->text = tensor_list(f);
    assert_string_equal(f->text, ".model.safetensors.tmp");
}

RP_TEST_OF(refuses_places_that_cannot_be_written, TensorFixture *f)
{
    assert_false(write_three(f, "/nowhere/model.safetensors", 0));
    rp_assert_error_message_contains(f->error, "cannot write \"/nowhere");
    /* a rename would replace the device */
    assert_false(write_three(f, "/dev/full", 0));
    rp_assert_error_message_contains(f->error, "cannot write \"/dev/full\"");
    assert_false(write_three(f, f->directory, 0));
    rp_assert_error_message_contains(f->error, f->directory);
}

RP_TEST_OF(asks_for_the_space_before_it_writes, TensorFixture *f)
{
    const guint64 huge[] = {G_GUINT64_CONSTANT(1) << 50, 1 << 10};
    g_autofree char *path = tensor_path(f, "model.safetensors");

    f->writer = rp_safetensors_writer_new(path, 0);
    rp_safetensors_writer_add(f->writer, "a", RP_DTYPE_FP32, huge, 2);
    assert_false(rp_safetensors_writer_begin(f->writer, &f->error));
    assert_true(g_error_matches(f->error, G_FILE_ERROR, G_FILE_ERROR_NOSPC));
    rp_assert_error_message_contains(f->error, "model.safetensors\": expected 46116860184273");
    rp_assert_error_message_contains(f->error, " bytes of free disk space, found ");
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->text = tensor_list(f);
    assert_string_equal(f->text, "");
}

/* A limit on the size of files stands for a disk that is full in the middle. */
RP_TEST_OF(keeps_the_old_file_when_writing_fails, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");
    struct rlimit before, small;

    assert_true(write_three(f, path, 0));
    g_autoptr(GBytes) old = tensor_load(f, "model.safetensors");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    for (small.rlim_cur = 0; small.rlim_cur < g_bytes_get_size(old); small.rlim_cur += 8) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &small);
        gboolean written = write_three(f, path, 0);
        setrlimit(RLIMIT_FSIZE, &before);
        signal(SIGXFSZ, SIG_DFL);
        assert_false(written);
        rp_assert_error_message_contains(f->error, "model.safetensors\": File too large");
        g_clear_pointer(&f->writer, rp_safetensors_writer_free);
        g_autoptr(GBytes) now = tensor_load(f, "model.safetensors");
        assert_true(g_bytes_equal(old, now));
        g_autofree char *names = tensor_list(f);
        assert_string_equal(names, "model.safetensors");
    }
}

/* In a child with mounts of its own, a file system of 64 KiB on @directory; exits 77 if it may not.
 */
static int
fill_small_disk(TensorFixture *f)
{
    const guint64 large[] = {40000};
    g_autofree char *path = tensor_path(f, "model.safetensors");
    g_autofree guint8 *data = g_malloc0(large[0] * 2);

    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", f->directory, "tmpfs", 0, "size=64k") != 0)
        return 77;
    if (!write_three(f, path, 0))
        return 1;
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->writer = rp_safetensors_writer_new(path, 0);
    guint a = rp_safetensors_writer_add(f->writer, "a", RP_DTYPE_BF16, large, 1);
    if ((rp_safetensors_writer_begin(f->writer, &f->error) &&
         rp_safetensors_writer_write(f->writer, a, data, large[0] * 2, &f->error)) ||
        !g_error_matches(f->error, G_FILE_ERROR, G_FILE_ERROR_NOSPC))
        return 2;
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    g_clear_error(&f->error);
    f->tensors = rp_safetensors_open(path, &f->error);
    g_autofree char *names = tensor_list(f);
    return f->tensors != NULL && strcmp(names, "model.safetensors") == 0 ? 0 : 3;
}

RP_TEST(keeps_the_old_file_on_a_full_disk)
{
    int status;
    pid_t child = fork();

    if (child == 0)
        _exit(fill_small_disk(*state));
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
