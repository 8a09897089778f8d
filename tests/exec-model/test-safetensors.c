#include "tests/exec-model/tensor-fixture.h"

#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

#define GOOD                                                                                       \
    "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("a", "BF16", "[2,3]", "[0,12]") "," TENSOR(    \
        "b", "F32", "[]", "[12,16]") "," TENSOR("c", "F16", "[4,0]",                               \
                                                "[16,16]") "," TENSOR("d", "F8_E4M3", "[3]",       \
                                                                      "[16,19]") "}     "
#define GOOD_BYTES 19

RP_TEST_OF(lists_every_tensor_without_copying, TensorFixture *f)
{
    tensor_make(f, GOOD, GOOD_BYTES);
    assert_true(tensor_parse(f));
    assert_int_equal(rp_safetensors_count(f->tensors), 4);
    const RpSafetensor *a = rp_safetensors_find(f->tensors, "a");
    assert_ptr_equal(a, rp_safetensors_nth(f->tensors, 0));
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->elements, 6);
    assert_int_equal(a->bytes, 12);
    assert_true(a->supported && a->dtype == RP_DTYPE_BF16);
    const guint8 *start = g_bytes_get_data(f->bytes, NULL);
    assert_ptr_equal(a->data, start + 8 + strlen(GOOD));
    const RpSafetensor *b = rp_safetensors_find(f->tensors, "b");
    assert_int_equal(b->rank, 0);
    assert_int_equal(b->elements, 1);
    assert_int_equal(*(const guint8 *)b->data, 12);
    assert_int_equal(rp_safetensors_find(f->tensors, "c")->bytes, 0);
    const RpSafetensor *d = rp_safetensors_find(f->tensors, "d");
    assert_false(d->supported);
    assert_string_equal(d->dtype_name, "F8_E4M3");
    assert_null(rp_safetensors_find(f->tensors, "e"));
}

RP_TEST_OF(reads_the_same_from_a_file_and_a_directory, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    tensor_make(f, GOOD, GOOD_BYTES);
    tensor_save(f, "model.safetensors");
    f->tensors = rp_must(rp_safetensors_open, path);
    assert_int_equal(rp_safetensors_count(f->tensors), 4);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    f->tensors = rp_must(rp_safetensors_open, f->directory);
    assert_string_equal(rp_safetensors_path(f->tensors), path);
    assert_int_equal(((const guint8 *)rp_safetensors_find(f->tensors, "d")->data)[2], 18);
}

RP_TEST_OF(orders_tensors_by_their_place, TensorFixture *f)
{
    tensor_make(
        f, "{" TENSOR("z", "F16", "[1]", "[2,4]") "," TENSOR("y", "F16", "[1]", "[0,2]") "}", 4);
    assert_true(tensor_parse(f));
    assert_string_equal(rp_safetensors_nth(f->tensors, 0)->name, "y");
    assert_string_equal(rp_safetensors_find(f->tensors, "z")->name, "z");
}

RP_TEST_OF(takes_a_file_without_tensors, TensorFixture *f)
{
    tensor_make(f, "{}", 0);
    assert_true(tensor_parse(f));
    assert_int_equal(rp_safetensors_count(f->tensors), 0);
}

/* The refusal of "BYTES HEADER": a header over so many bytes of data. (transfer full) */
static char *
refusal(const char *words, gpointer data)
{
    TensorFixture *f = data;
    char *header = NULL;
    const gsize data_bytes = (gsize)g_ascii_strtoull(words, &header, 10);

    tensor_make(f, header + 1, data_bytes);
    (void)tensor_parse(f);
    return rp_test_refusal(&f->error);
}

RP_TEST(refuses_lying_headers)
{
    rp_test_lines("tests/exec-model/messages.txt", "safetensors: lying headers", refusal, *state);
}

RP_TEST_OF(refuses_header_lengths_beyond_the_file, TensorFixture *f)
{
    static const guint64 lengths[] = {1000, 100000001, G_MAXINT64, G_MAXUINT64, G_MAXUINT64 - 7};

    for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
        guint64 length = GUINT64_TO_LE(lengths[i]);
        g_clear_pointer(&f->tensors, rp_safetensors_free);
        g_clear_pointer(&f->bytes, g_bytes_unref);
        f->bytes = g_bytes_new(&length, sizeof length);
        assert_false(tensor_parse(f));
        rp_assert_error_message_contains(f->error, "header: expected at most 0 bytes, found ");
    }
}

/* Every prefix of a file is refused, and so is one byte more. */
RP_TEST_OF(refuses_a_file_cut_at_any_byte, TensorFixture *f)
{
    tensor_make(f, GOOD, GOOD_BYTES);
    g_autoptr(GBytes) whole = g_bytes_ref(f->bytes);
    for (gsize n = 0; n < g_bytes_get_size(whole); n++) {
        g_clear_pointer(&f->tensors, rp_safetensors_free);
        g_clear_pointer(&f->bytes, g_bytes_unref);
        /* a block of its own, so that the address sanitizer sees each read behind it */
        f->bytes = g_bytes_new(g_bytes_get_data(whole, NULL), n);
        if (tensor_parse(f))
            fail_msg("took the first %zu bytes", n);
    }
}

/* No flip of one bit crashes, and accepted tensors stay within the file. */
RP_TEST_OF(survives_every_flipped_bit, TensorFixture *f)
{
    tensor_make(f, GOOD, GOOD_BYTES);
    gsize length = g_bytes_get_size(f->bytes);
    g_autofree guint8 *bytes = g_memdup2(g_bytes_get_data(f->bytes, NULL), length);
    for (gsize bit = 0; bit < 8 * length; bit++) {
        bytes[bit / 8] ^= (guint8)(1 << bit % 8);
        g_clear_pointer(&f->tensors, rp_safetensors_free);
        g_bytes_unref(f->bytes);
        f->bytes = g_bytes_new(bytes, length);
        if (tensor_parse(f)) {
            const guint8 *start = g_bytes_get_data(f->bytes, NULL);
            for (guint i = 0; i < rp_safetensors_count(f->tensors); i++) {
                const RpSafetensor *tensor = rp_safetensors_nth(f->tensors, i);
                const guint8 *data = tensor->data;
                assert_true(data >= start && data + tensor->bytes <= start + length);
            }
        }
        bytes[bit / 8] ^= (guint8)(1 << bit % 8);
    }
}

RP_TEST_OF(refuses_what_is_no_regular_file, TensorFixture *f)
{
    static const char *const paths[] = {"/dev/zero", "/dev/null", "/nowhere/model.safetensors"};

    for (gsize i = 0; i < G_N_ELEMENTS(paths); i++) {
        g_clear_error(&f->error);
        assert_null(rp_safetensors_open(paths[i], &f->error));
        rp_assert_error_message_contains(f->error, paths[i]);
        assert_int_equal(f->error->domain, G_FILE_ERROR);
    }
    g_clear_error(&f->error);
    rp_refuses("expected model.safetensors or model.safetensors."
               "index.json, found neither",
               rp_safetensors_open, f->directory);
    tensor_save_text(f, "model.safetensors", "");
    rp_refuses("expected at least 8 bytes in the file, found 0", rp_safetensors_open, f->directory);
    tensor_save_text(f, "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    rp_refuses("found a pointer of git-lfs", rp_safetensors_open, f->directory);
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
