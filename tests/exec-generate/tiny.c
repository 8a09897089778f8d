#include "tests/exec-generate/tiny.h"

#include "exec/generate/generator.h"
#include "exec/model/hf-config.h"

#define FIXTURES RP_SOURCE_ROOT "/tests/exec-generate/fixtures"
#define MAX_PROMPTS 8
#define MAX_TOKENS 64

typedef struct {
    RpModel config;
    RpSafetensors *checkpoint;
    RpWeights *weights;
    RpProbe *probe;
    const RpKernels *kernels;
    gint32 prompts[MAX_PROMPTS][MAX_TOKENS], expected[MAX_PROMPTS][MAX_TOKENS],
        answers[MAX_PROMPTS][MAX_TOKENS];
    RpAnswer answer[MAX_PROMPTS];
    guint n_expected[MAX_PROMPTS];
    guint n;
} Tiny;

static void
close_model(Tiny *tiny)
{
    g_clear_pointer(&tiny->weights, rp_weights_free);
    g_clear_pointer(&tiny->checkpoint, rp_safetensors_free);
    g_clear_pointer(&tiny->probe, rp_probe_free);
}

int
rp_tiny_setup(void **state)
{
    *state = g_new0(Tiny, 1);
    return 0;
}

int
rp_tiny_teardown(void **state)
{
    close_model(*state);
    g_free(*state);
    return 0;
}

static guint
read_ids(const char *text, gint32 *ids)
{
    g_auto(GStrv) words = g_strsplit(text, " ", -1);
    guint n = 0;

    for (; words[n] != NULL; n++)
        ids[n] = (gint32)g_ascii_strtoll(words[n], NULL, 10);
    return n;
}

static void
open_model(Tiny *tiny, const char *name, const RpDeviceOps *devices)
{
    g_autofree char *directory = g_build_filename(FIXTURES, name, NULL);
    g_autofree char *path = g_build_filename(directory, "answers.csv", NULL);
    g_autofree char *text = NULL;

    close_model(tiny);
    tiny->n = 0;
    assert_true(rp_hf_config_load(directory, &tiny->config, NULL));
    tiny->checkpoint = rp_safetensors_open(directory, NULL);
    assert_non_null(tiny->checkpoint);
    tiny->weights = rp_weights_new(&tiny->config);
    assert_true(rp_weights_bind(tiny->weights, tiny->checkpoint, NULL));
    tiny->kernels = devices->kernels();
    tiny->probe = devices->probe_new(0, NULL);
    assert_non_null(tiny->probe);
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(g_strchomp(text), "\n", -1);

    for (; lines[tiny->n] != NULL; tiny->n++) {
        g_auto(GStrv) cells = g_strsplit(lines[tiny->n], ",", 2);
        const guint i = tiny->n;

        tiny->answer[i] = (RpAnswer){.prompt = tiny->prompts[i],
                                     .n_prompt = read_ids(cells[0], tiny->prompts[i]),
                                     .answer = tiny->answers[i]};
        tiny->n_expected[i] = read_ids(cells[1], tiny->expected[i]);
    }
}

/* Answers prompts @first to @first + @n, at once. */
static void
check(Tiny *tiny, const char *name, guint first, guint n)
{
    RpGeneratorOptions options = {.slots = n, .tokens = MAX_TOKENS, .n_ends = tiny->config.n_eos};
    const RpSampling greedy = {.temperature = 0};
    guint most = 0;

    memcpy(options.ends, tiny->config.eos_ids, tiny->config.n_eos * sizeof *options.ends);
    for (guint i = first; i < first + n; i++)
        most = MAX(most, tiny->n_expected[i]);
    RpGenerator *generator =
        rp_generator_new(&tiny->config, tiny->weights, tiny->kernels, tiny->probe, &options, NULL);

    assert_non_null(generator);
    const gboolean good =
        rp_generator_answer(generator, tiny->answer + first, n, most, &greedy, NULL, NULL, NULL);

    rp_generator_free(generator);
    assert_true(good);
    for (guint i = first; i < first + n; i++)
        if (tiny->answer[i].n_answer != tiny->n_expected[i] ||
            memcmp(tiny->answers[i], tiny->expected[i], tiny->n_expected[i] * sizeof(gint32)) != 0)
            fail_msg("%s, prompt %u: other tokens than transformers'", name, i + 1);
}

void
rp_tiny_check_all(gpointer state, const RpDeviceOps *devices)
{
    static const char *const names[] = {"llama", "qwen3", "qwen3-moe", "gpt-oss", "qwen3-5"};
    Tiny *tiny = state;

    for (gsize m = 0; m < G_N_ELEMENTS(names); m++) {
        open_model(tiny, names[m], devices);
        assert_int_equal(tiny->n, 5);
        check(tiny, names[m], 0, tiny->n);
        for (guint i = 0; i < tiny->n; i++)
            check(tiny, names[m], i, 1);
    }
}
