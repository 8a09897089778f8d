/* Tests adapters in files against files that peft wrote
 * (tests/exec-network/fixtures/make-adapters.py). */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>

#include "exec/adapter/adapter.h"

#define TOLERANCE 1e-6 /* norm-wise, each tensor */

typedef struct {
    RpModel config;
    RpLora lora;
    RpSafetensors *base, *adapters;
    RpWeights *weights;
    char *directory; /* directory of the test's files */
    GError *error;
} Fixture;

static void
set_up(Fixture *f)
{
    f->directory = g_dir_make_tmp("rp-adapter-XXXXXX", NULL);
}

static void
close_files(Fixture *f)
{
    g_clear_pointer(&f->weights, rp_weights_free);
    g_clear_pointer(&f->adapters, rp_safetensors_free);
    g_clear_pointer(&f->base, rp_safetensors_free);
    rp_lora_clear(&f->lora);
    g_clear_error(&f->error);
}

static void
tear_down(Fixture *f)
{
    g_autofree char *model = g_build_filename(f->directory, "model.safetensors", NULL);

    close_files(f);
    g_unlink(model);
    g_rmdir(f->directory);
    g_free(f->directory);
}

static char *
path_of(const char *name, const char *file)
{
    g_autofree char *relative = g_build_filename("tests/exec-network/fixtures", name, file, NULL);

    return rp_test_source_path(relative);
}

/* Returns: whether the adapters of @adapters are of @base. */
static gboolean
open_files(Fixture *f, const char *base, const char *adapters)
{
    g_autofree char *config = path_of(base, "config.json");
    g_autofree char *model = path_of(base, "model.safetensors");
    g_autofree char *directory = path_of(adapters, NULL);
    g_autofree char *tensors = path_of(adapters, RP_ADAPTER_TENSORS);

    close_files(f);
    assert_true(rp_hf_config_load(config, &f->config, &f->error));
    assert_true(rp_adapter_config_load(directory, &f->lora, &f->error));
    f->base = rp_safetensors_open(model, &f->error);
    f->adapters = rp_must(rp_safetensors_open, tensors);
    f->weights = rp_weights_new_adapted(&f->config, &f->lora);
    assert_true(rp_weights_bind(f->weights, f->base, &f->error));
    return rp_adapter_bind(f->weights, f->adapters, &f->error);
}

static void
compare(const RpSafetensor *found, const RpSafetensor *expected)
{
    double difference = 0, norm = 0;

    assert_non_null(expected);
    assert_int_equal(found->bytes, expected->bytes);
    for (gsize i = 0; i < found->bytes / sizeof(float); i++) {
        const double want = ((const float *)expected->data)[i];
        const double d = ((const float *)found->data)[i] - want;

        difference += d * d;
        norm += want * want;
    }
    if (!(sqrt(difference) <= TOLERANCE * sqrt(norm)))
        fail_msg("%s: relative error %.3g", found->name, sqrt(difference / norm));
}

static void
check_merged(Fixture *f, const char *base, const char *adapters)
{
    const RpMergeOptions options = {0};
    g_autofree char *path = path_of(adapters, "merged.safetensors");
    g_autoptr(RpSafetensors) expected = rp_safetensors_open(path, &f->error);

    assert_true(open_files(f, base, adapters));
    assert_true(rp_merge_write(f->weights, f->directory, &options, &f->error));
    g_autoptr(RpSafetensors) found = rp_must(rp_safetensors_open, f->directory);

    assert_true(rp_safetensors_count(found) > 20);
    for (guint i = 0; i < rp_safetensors_count(found); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(found, i);

        compare(tensor, rp_safetensors_find(expected, tensor->name));
    }
}

RP_TEST(merges_as_peft_does)
{
    check_merged(*state, "qwen3-tied", "qwen3-tied-lora");
    check_merged(*state, "llama-bias", "llama-bias-lora");
    check_merged(*state, "llama-bias", "llama-bias-dropout");
    check_merged(*state, "qwen3-5", "qwen3-5-lora");
}

/* Stacks as peft writes them since 0.19, as it did before, and each expert's own matrices. */
RP_TEST(merges_adapters_of_experts_as_peft_does)
{
    check_merged(*state, "qwen3-moe", "qwen3-moe-lora");
    check_merged(*state, "qwen3-moe", "qwen3-moe-swapped");
    check_merged(*state, "qwen3-moe", "qwen3-moe-apart");
    check_merged(*state, "gpt-oss", "gpt-oss-lora");
}

RP_TEST_OF(reads_what_it_writes, Fixture *f)
{
    RpLora again = {0};

    assert_true(open_files(f, "qwen3-tied", "qwen3-tied-lora"));
    g_autofree char *text = rp_adapter_config_text(f->weights, "base");
    assert_true(rp_adapter_config_parse("config", text, strlen(text), &again, &f->error));
    assert_int_equal(again.rank, 4);
    assert_true(again.alpha == 6 && !again.rslora && again.saved == NULL);
    assert_int_equal(g_strv_length(again.targets), 3);
    rp_lora_clear(&again);
}

/* Names as peft with transformers 5 reads them. */
RP_TEST_OF(writes_adapters_of_experts_as_parameters, Fixture *f)
{
    g_auto(RpLora) again = {0};

    assert_true(open_files(f, "qwen3-moe", "qwen3-moe-apart"));
    g_autofree char *text = rp_adapter_config_text(f->weights, "base");
    assert_non_null(strstr(text, "\"target_modules\": [\"q_proj\"]"));
    assert_non_null(strstr(text, "\"target_parameters\": [\"mlp.experts.gate_up_proj\", "
                                 "\"mlp.experts.down_proj\"]"));
    assert_non_null(strstr(text, "\"rank_pattern\": {\n    \"mlp.experts.gate_up_proj\": 6\n"));
    assert_non_null(strstr(text, "\"alpha_pattern\": {\n    \"mlp.experts.gate_up_proj\": 10.0\n"));
    assert_true(rp_adapter_config_parse("config", text, strlen(text), &again, &f->error));
    g_autoptr(RpWeights) weights = rp_weights_new_adapted(&f->config, &again);

    assert_int_equal(rp_weights_count(weights), rp_weights_count(f->weights));
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *one = rp_weights_nth(weights, i), *other = rp_weights_nth(f->weights, i);

        assert_string_equal(one->name, other->name);
        assert_memory_equal(one->shape, other->shape, sizeof one->shape);
        assert_true(one->scale == other->scale);
    }
}

RP_TEST_OF(refuses_adapters_of_another_base, Fixture *f)
{
    assert_false(open_files(f, "llama-tied", "qwen3-tied-lora"));
    assert_true(g_error_matches(f->error, RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_TENSOR));
    assert_non_null(
        strstr(f->error->message, "expected F32 [4, 20], as the base has it, found F32"));
    assert_false(open_files(f, "qwen3-tied", "llama-bias-lora"));
}

static char *
refusal(const char *text, gpointer data)
{
    Fixture *f = data;
    RpLora lora;

    assert_false(rp_adapter_config_parse("config", text, strlen(text), &lora, &f->error));
    return rp_test_refusal(&f->error);
}

RP_TEST(refuses_kinds_that_nothing_computes)
{
    rp_test_lines("tests/exec-model/messages.txt", "adapter: kinds that nothing computes", refusal,
                  *state);
}

/* Ranks and scales of the adapted matrices of a model of two blocks: "0.q_proj 4 2, ..." */
static char *
adapted_by(const char *config, gpointer fixture)
{
    Fixture *f = fixture;
    g_autofree char *text = g_strdup_printf("{\"peft_type\": \"LORA\", \"r\": 4, "
                                            "\"lora_alpha\": 8, %s}",
                                            config);
    g_autoptr(GString) list = g_string_new(NULL);
    g_auto(RpLora) lora = {0};

    if (!rp_adapter_config_parse("config", text, strlen(text), &lora, &f->error) ||
        !rp_lora_check(&lora, &f->config, &f->error))
        rp_assert_no_error(f->error);
    g_autoptr(RpWeights) weights = rp_weights_new_adapted(&f->config, &lora);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *a = rp_weights_nth(weights, i);
        g_auto(GStrv) words = g_strsplit(a->name, ".", -1);

        if (!g_str_has_suffix(a->name, ".lora_A.weight"))
            continue;
        assert_true(rp_weights_nth(weights, i + 1)->shape[1] == a->shape[0]);
        assert_true(rp_weights_nth(weights, i + 1)->scale == a->scale);
        g_string_append_printf(list, "%s%s.%s %u %g", list->len > 0 ? ", " : "", words[2], words[4],
                               (guint)a->shape[0], a->scale);
    }
    return g_string_free(g_steal_pointer(&list), FALSE);
}

/* Chooses modules as peft's check_target_module_exists() and get_pattern_key() do. */
RP_TEST_OF(adapts_what_peft_would, Fixture *f)
{
    assert_true(open_files(f, "llama-bias", "llama-bias-lora"));
    rp_test_lines("tests/exec-model/messages.txt", "adapter: what peft would adapt", adapted_by, f);
    g_autofree char *all =
        adapted_by("\"target_modules\": \"all-linear\", \"layers_to_transform\": [0]", f);
    assert_true(g_str_has_prefix(all, "0.q_proj 4 2, 0.k_proj 4 2"));
    assert_null(strstr(all, "1."));
    assert_non_null(strstr(all, "0.down_proj"));
}

/* Patterns that peft does not know become the modules that they are of. */
RP_TEST_OF(writes_what_peft_reads, Fixture *f)
{
    g_auto(RpLora) again = {0};

    assert_true(open_files(f, "llama-bias", "llama-bias-dropout"));
    g_autofree char *text = rp_adapter_config_text(f->weights, "base");
    assert_true(rp_adapter_config_parse("config", text, strlen(text), &again, &f->error));
    assert_int_equal(g_strv_length(again.targets), 10);
    assert_string_equal(again.targets[0], "model.layers.0.self_attn.q_proj");
    assert_true(again.dropout == 0.25 && again.alpha == 12);
    assert_string_equal(again.saved[0], "embed_tokens");
    assert_true(again.ranks[0].value == 5 && again.ranks[1].value == 2);
    assert_string_equal(again.alphas[0].pattern, "mlp.down_proj");
}

RP_TEST_OF(refuses_ranks_and_names_that_are_of_no_matrix, Fixture *f)
{
    static const struct {
        guint rank;
        const char *target, *saved, *says; /* NULL: it is good */
    } cases[] = {
        {29, NULL, NULL, "lora.rank: expected at most 24, the smallest side"},
        {24, NULL, NULL, NULL},
        {4, "q_porj", NULL, "did you mean \"q_proj\"?"},
        {4, "lm_head", NULL, "lora.targets: expected names of q_proj, k_proj"},
        {4, "model.layers.7.*", NULL, "matches none"},
        {4, "regex:.*_proj[", NULL, "expected a regular expression, found \"regex:.*_proj[\""},
        {4, "regex:q_proj", NULL, "matches none"},
        {4, "regex:.*\\.q_proj", NULL, NULL},
        {4, "model.layers.?.mlp.*", NULL, NULL},
        {4, "layers.1.self_attn.q_proj", "norm", NULL},
        {4, NULL, "lm_haed", "did you mean \"lm_head\"?"},
    };

    assert_true(open_files(f, "llama-bias", "llama-bias-lora"));
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        char *targets[] = {(char *)cases[i].target, NULL},
             *saved[] = {(char *)cases[i].saved, NULL};
        const RpLora lora = {.rank = cases[i].rank,
                             .alpha = 8,
                             .targets = cases[i].target != NULL ? targets : NULL,
                             .saved = cases[i].saved != NULL ? saved : NULL};

        g_clear_error(&f->error);
        if (rp_lora_check(&lora, &f->config, &f->error) != (cases[i].says == NULL) ||
            (cases[i].says != NULL && strstr(f->error->message, cases[i].says) == NULL))
            fail_msg("case %zu: %s", i, f->error != NULL ? f->error->message : "good");
    }
}

RP_TEST_STATE(Fixture, set_up, tear_down)
