#include "tests/exec-model/tensor-fixture.h"

#define SHARD(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define INDEX(map) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" map "}}"
#define GOOD_MAP "\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""

static void
make_shards(TensorFixture *f)
{
    tensor_make(f, SHARD("a"), 4);
    tensor_save(f, "1.safetensors");
    tensor_make(f, SHARD("b"), 4);
    tensor_save(f, "2.safetensors");
}

static gboolean
open_index(TensorFixture *f, const char *index)
{
    g_autofree char *path = tensor_path(f, "model.safetensors.index.json");

    tensor_save_text(f, "model.safetensors.index.json", index);
    g_clear_error(&f->error);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    f->tensors = rp_safetensors_open(path, &f->error);
    assert_true((f->tensors == NULL) == (f->error != NULL));
    return f->tensors != NULL;
}

RP_TEST_OF(joins_the_shards_of_an_index, TensorFixture *f)
{
    g_autofree char *second = tensor_path(f, "2.safetensors");

    make_shards(f);
    assert_true(open_index(f, INDEX(GOOD_MAP)));
    assert_int_equal(rp_safetensors_count(f->tensors), 2);
    const RpSafetensor *b = rp_safetensors_find(f->tensors, "b");
    assert_string_equal(b->file, second);
    assert_int_equal(((const guint8 *)b->data)[3], 3);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    f->tensors = rp_must(rp_safetensors_open, f->directory);
    assert_int_equal(rp_safetensors_count(f->tensors), 2);
}

/* The refusal of an index, in which the folder of the test is @T. (transfer full) */
static char *
refusal(const char *index, gpointer data)
{
    TensorFixture *f = data;

    (void)open_index(f, index);
    g_autofree char *line = rp_test_refusal(&f->error);
    GString *text = g_string_new(line);

    g_string_replace(text, f->directory, "@T", 0);
    return g_string_free(text, line == NULL);
}

RP_TEST_OF(refuses_an_index_that_disagrees_with_its_shards, TensorFixture *f)
{
    make_shards(f);
    rp_test_lines("tests/exec-model/messages.txt", "safetensors-shards: an index that disagrees",
                  refusal, f);
}

RP_TEST_OF(refuses_a_tensor_in_two_shards, TensorFixture *f)
{
    make_shards(f);
    tensor_make(f, SHARD("a"), 4);
    tensor_save(f, "2.safetensors");
    assert_false(open_index(f, INDEX(GOOD_MAP)));
    rp_assert_error_message_contains(f->error, "tensor \"a\": expected each name once, found it "
                                               "again in ");
}

RP_TEST_OF(refuses_a_broken_shard_by_its_name, TensorFixture *f)
{
    make_shards(f);
    tensor_make(f, SHARD("b"), 3);
    tensor_save(f, "2.safetensors");
    assert_false(open_index(f, INDEX(GOOD_MAP)));
    rp_assert_error_message_contains(f->error, "2.safetensors: tensor \"b\": expected data_offsets "
                                               "within the 3 bytes of data, found [0, 4]");
}

RP_TEST_OF(refuses_an_index_cut_at_any_byte, TensorFixture *f)
{
    static const char whole[] = INDEX(GOOD_MAP);

    make_shards(f);
    for (gsize n = 0; n < strlen(whole); n++) {
        g_autofree char *cut = g_strndup(whole, n);
        assert_false(open_index(f, cut));
    }
}

RP_TEST_OF(prefers_a_single_file_as_transformers_does, TensorFixture *f)
{
    make_shards(f);
    tensor_make(f, SHARD("single"), 4);
    tensor_save(f, "model.safetensors");
    tensor_save_text(f, "model.safetensors.index.json", INDEX(GOOD_MAP));
    f->tensors = rp_must(rp_safetensors_open, f->directory);
    assert_non_null(rp_safetensors_find(f->tensors, "single"));
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
