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
    assert_string_equal(rp_safetensors_metadata(f->tensors, "format"), "pt");
    assert_null(rp_safetensors_metadata(f->tensors, "x"));
}

RP_TEST_OF(reads_the_same_from_a_file_and_a_directory, TensorFixture *f)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    tensor_make(f, GOOD, GOOD_BYTES);
    tensor_save(f, "model.safetensors");
    f->tensors = rp_safetensors_open(path, &f->error);
    rp_assert_no_error(f->error);
    assert_int_equal(rp_safetensors_count(f->tensors), 4);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    f->tensors = rp_safetensors_open(f->directory, &f->error);
    rp_assert_no_error(f->error);
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

/* Each header over @data_bytes, and a part of the message that it must get. */
static const struct {
    const char *header;
    gsize data_bytes;
    const char *message;
} bad[] = {
    {"", 0, "header: expected `{` as its first byte, found no byte"},
    {" {}", 0, "header: expected `{` as its first byte, found another"},
    {"[]", 0, "expected `{`"},
    {"{", 0, "expected a key, found the end of the text"},
    {"{}x", 0, "expected the end of the text, found x"},
    {"{\"a\":1}", 0, "line 1, column 6: a: expected an object, found 1"},
    {"{" TENSOR("a", "F15", "[1]", "[0,2]") "}", 2,
     "line 1, column 15: a.dtype: expected a dtype of the format, such as \"BF16\", found "
     "\"F15\""},
    {"{" TENSOR("a", "F16", "[1]", "[0,4]") "}", 4,
     "tensor \"a\": expected 2 bytes for F16 [1], found 4 in data_offsets [0, 4]"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "}", 3,
     "expected data_offsets within the 3 bytes of data, found [0, 4]"},
    {"{" TENSOR("a", "F16", "[2]", "[4,0]") "}", 4,
     "expected data_offsets within the 4 bytes of data, found [4, 0]"},
    {"{" TENSOR("a", "F16", "[2]", "[18446744073709551612,0]") "}", 4, "found [184467440737095516"},
    {"{" TENSOR("a", "F16", "[2]", "[0,18446744073709551616]") "}", 4, "expected a whole number"},
    {"{" TENSOR("a", "F16", "[2]", "[-4,0]") "}", 4, "expected a whole number"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4.0]") "}", 4, "expected a whole number"},
    {"{" TENSOR("a", "F16", "[2]", "[0]") "}", 4, "expected two offsets"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4,8]") "}", 4, "expected two offsets"},
    {"{" TENSOR("a", "F16", "[-2]", "[0,4]") "}", 4, "expected a whole number"},
    {"{" TENSOR("a", "F16", "[4294967296,4294967296]", "[0,4]") "}", 4,
     "expected at most 2^64 - 1 elements"},
    {"{" TENSOR("a", "F16", "[9223372036854775808]", "[0,4]") "}", 4,
     "expected a whole number of bytes"},
    {"{" TENSOR("a", "F4", "[3]", "[0,1]") "}", 1,
     "expected a whole number of bytes, found F4 [3]"},
    {"{" TENSOR("a", "F16", "[1,1,1,1,1,1,1,1,1]", "[0,2]") "}", 2, "at most 8 dimensions"},
    {"{" TENSOR("a", "F16", "2", "[0,4]") "}", 4, "expected an array, found 2"},
    {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2]}}", 4,
     "line 1, column 6: a.data_offsets: expected two offsets, found nothing"},
    {"{\"a\":{\"dtype\":\"F16\",\"data_offsets\":[0,4]}}", 4,
     "a.shape: expected an array of sizes, found nothing"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
     "a.dtype: expected a dtype of the format, such as \"BF16\", found nothing"},
    {"{\"a\":{}}", 0, "a.dtype: expected a dtype of the format, such as \"BF16\", found nothing"},
    {"{\"a\":{\"dtype\":\"F16\",\"dtype\":\"F16\"}}", 0,
     "a: expected each key once, found \"dtype\" a second time"},
    {"{\"a\":{\"dtype\":\"F16\",\"shapes\":[2]}}", 0,
     "a: expected a known key such as \"shape\", found \"shapes\""},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "," TENSOR("b", "F16", "[2]", "[2,6]") "}", 6,
     "tensor \"b\": expected its data at 4, where those before end, found an overlap at 2"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "," TENSOR("b", "F16", "[2]", "[0,4]") "}", 4,
     "tensor \"b\": expected its data at 4, where those before end, found an overlap at 0"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "," TENSOR("b", "F16", "[0]", "[2,2]") "}", 4,
     "tensor \"b\": expected its data at 4, where those before end, found an overlap at 2"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "," TENSOR("b", "F16", "[2]", "[6,10]") "}", 10,
     "tensor \"b\": expected its data at 4, where those before end, found a gap at 6"},
    {"{" TENSOR("a", "F16", "[2]", "[2,6]") "}", 6, "found a gap at 2"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "}", 5,
     "FILE: expected 4 bytes of data, as the header says, found 5"},
    {"{}", 1, "expected 0 bytes of data"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "," TENSOR("a", "F16", "[2]", "[4,8]") "}", 8,
     "tensor \"a\": expected each name once, found it again in FILE"},
    {"{" TENSOR("a", "F16", "[2]", "[0,4]") "," TENSOR("\\u0061", "F16", "[2]", "[4,8]") "}", 8,
     "tensor \"a\": expected each name once"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "line 1, column 22: __metadata__.a: expected a string"},
    {"{\"__metadata__\":[]}", 0, "line 1, column 17: __metadata__: expected an object"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0,
     "expected each key once, found \"__metadata__\" a second time"},
    {"{\"a\nb\":1}", 0, "expected a string without control characters"},
    {"{\"a\\u000ab\":1}", 0, "a\\u000ab: expected"},
};

RP_TEST_OF(refuses_lying_headers, TensorFixture *f)
{
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        tensor_make(f, bad[i].header, bad[i].data_bytes);
        if (tensor_parse(f))
            fail_msg("took: %s", bad[i].header);
        rp_assert_error_message_contains(f->error, bad[i].message);
        assert_int_equal(f->error->domain, RP_SAFETENSORS_ERROR);
    }
}

RP_TEST(refuses_header_lengths_beyond_the_file)
{
    static const guint64 lengths[] = {1000, 100000001, G_MAXINT64, G_MAXUINT64, G_MAXUINT64 - 7};
    TensorFixture *f = *state;

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

RP_TEST(refuses_what_is_no_regular_file)
{
    static const char *const paths[] = {"/dev/zero", "/dev/null", "/nowhere/model.safetensors"};
    TensorFixture *f = *state;

    for (gsize i = 0; i < G_N_ELEMENTS(paths); i++) {
        g_clear_error(&f->error);
        assert_null(rp_safetensors_open(paths[i], &f->error));
        rp_assert_error_message_contains(f->error, paths[i]);
        assert_int_equal(f->error->domain, G_FILE_ERROR);
    }
    g_clear_error(&f->error);
    assert_null(rp_safetensors_open(f->directory, &f->error));
    rp_assert_error(&f->error, "expected model.safetensors or model.safetensors."
                               "index.json, found neither");
    tensor_save_text(f, "model.safetensors", "");
    assert_null(rp_safetensors_open(f->directory, &f->error));
    rp_assert_error(&f->error, "expected at least 8 bytes in the file, found 0");
    tensor_save_text(f, "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    assert_null(rp_safetensors_open(f->directory, &f->error));
    rp_assert_error_message_contains(f->error, "found a pointer of git-lfs");
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
