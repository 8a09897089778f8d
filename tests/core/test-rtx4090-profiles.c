#include "tests/rp-test.h"

#include "core/profile/profile.h"
#include "profiles/rtx4090.h"

typedef struct {
    GPtrArray *profiles;
    GError *error;
} Fixture;

static void
setup(Fixture *f)
{
    g_autofree char *csv = rp_test_source_path("profiles/rtx4090/layer-times.csv");

    f->profiles = rp_must(rp_rtx4090_profiles, csv);
}

static void
teardown(Fixture *f)
{
    g_ptr_array_unref(f->profiles);
    g_clear_error(&f->error);
}

RP_TEST_OF(are_what_make_rtx4090_writes, Fixture *f)
{
    assert_int_equal(f->profiles->len, 5);
    for (guint i = 0; i < f->profiles->len; i++) {
        const RpProfile *profile = g_ptr_array_index(f->profiles, i);
        g_autofree char *relative = g_strdup_printf("profiles/rtx4090/%s.json", profile->model);
        g_autofree char *path = rp_test_source_path(relative);
        g_autofree char *made = rp_profile_to_json(profile);
        g_autofree char *committed = NULL;

        if (!g_file_get_contents(path, &committed, NULL, NULL) || !g_str_equal(committed, made)) {
            print_error("%s differs; run make-rtx4090 profiles/rtx4090\n", relative);
            fail();
        }
    }
}

RP_TEST_OF(serve_full_fidelity_with_the_published_times, Fixture *f)
{
    const RpProfile *qwen = g_ptr_array_index(f->profiles, 0);
    const RpProfile *lora = g_ptr_array_index(f->profiles, 4);

    for (guint i = 0; i < f->profiles->len; i++) {
        assert_true(rp_profile_check_full(g_ptr_array_index(f->profiles, i), &f->error));
        rp_assert_no_error(f->error);
    }
    assert_int_equal(rp_profile_n_blocks(qwen), 28);
    assert_int_equal(qwen->layers[0].forward_ns, 0);
    assert_int_equal(qwen->layers[1].forward_ns, 7429000);
    assert_int_equal(qwen->layers[1].recompute_ns, 7429000);
    assert_int_equal(qwen->layers[29].backward_ns, 43707000);
    assert_int_equal(qwen->links.hop_ns, 1600000);
    assert_int_equal(rp_profile_micro_batch_tokens(qwen), 8192);
    assert_string_equal(lora->model, "qwen3-235b-a22b");
    assert_int_equal(lora->layers[1].weight_gradient_ns, 0);
    /* adapters of attention, router and 128 experts, in fp16 */
    assert_int_equal(lora->layers[1].gradient_bytes, 166010880);
}

RP_TEST_STATE(Fixture, setup, teardown)
