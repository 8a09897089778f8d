#include "tests/exec-generate/tiny.h"

#include <glib/gstdio.h>

#include "exec/generate/generator.h"
#include "exec/model/hf-config.h"
#include "exec/model/init.h"

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

/* The same architecture with more layers, and weights drawn at random. */
static void
open_deep(Tiny *tiny, const char *name, const RpDeviceOps *devices)
{
    static const char *const written[] = {"config.json", "model.safetensors"};
    const RpInitOptions options = {.seed = 3};
    g_autofree char *directory = g_dir_make_tmp("rp-deep-XXXXXX", NULL);

    open_model(tiny, name, devices);
    rp_weights_free(tiny->weights);
    rp_safetensors_free(tiny->checkpoint);
    tiny->config.blocks = 6;
    tiny->config.initializer_range = 0.5; /* else all tokens are about as likely */
    assert_true(rp_init_write(&tiny->config, directory, &options, NULL));
    tiny->checkpoint = rp_safetensors_open(directory, NULL);
    assert_non_null(tiny->checkpoint);
    tiny->weights = rp_weights_new(&tiny->config);
    assert_true(rp_weights_bind(tiny->weights, tiny->checkpoint, NULL));
    for (guint i = 0; i < G_N_ELEMENTS(written); i++) {
        g_autofree char *path = g_build_filename(directory, written[i], NULL);

        (void)g_remove(path);
    }
    (void)g_rmdir(directory);
}

static const char *const names[] = {"llama",   "qwen3",       "qwen3-moe",  "gpt-oss",
                                    "qwen3-5", "qwen3-5-moe", "ministral3", "mellum"};

void
rp_tiny_check_all(gpointer state, const RpDeviceOps *devices)
{
    Tiny *tiny = state;

    for (gsize m = 0; m < G_N_ELEMENTS(names); m++) {
        open_model(tiny, names[m], devices);
        assert_int_equal(tiny->n, 5);
        check(tiny, names[m], 0, tiny->n);
        for (guint i = 0; i < tiny->n; i++)
            check(tiny, names[m], i, 1);
    }
}

/* ---- batches ---- */

#define N 12
#define MOST_PROMPT 150
#define NEW 40

/* Prompts of any lengths, the last three the same, and their answers when each is alone. */
typedef struct {
    Tiny *tiny;
    gint32 prompts[N][MOST_PROMPT + NEW];
    guint lengths[N];
    gint32 alone[N][NEW];
    RpSampling sampling;
    guint64 memory_bytes; /* limit of generators */
} Batches;

static RpGenerator *
generator_of(const Batches *batches, RpProbe *probe, guint slots, guint blocks)
{
    const RpGeneratorOptions options = {.slots = slots,
                                        .tokens = MOST_PROMPT + NEW,
                                        .blocks = blocks,
                                        .memory_bytes = batches->memory_bytes};
    RpGenerator *generator = rp_generator_new(&batches->tiny->config, batches->tiny->weights,
                                              batches->tiny->kernels, probe, &options, NULL);

    assert_non_null(generator);
    return generator;
}

/* Answers prompts @first to @first + @n, @backwards from the last on, and compares. */
static void
check_answers(const Batches *batches, RpGenerator *const *generators, guint n_generators,
              guint first, guint n, gboolean backwards)
{
    gint32 answers[N][NEW];
    RpAnswer answer[N];

    for (guint i = 0; i < n; i++) {
        const guint of = first + (backwards ? n - 1 - i : i);

        answer[i] = (RpAnswer){.prompt = batches->prompts[MIN(of, N - 3)],
                               .n_prompt = batches->lengths[MIN(of, N - 3)],
                               .answer = answers[i],
                               .number = of};
    }
    assert_true(rp_generators_answer(generators, n_generators, answer, n, NEW, &batches->sampling,
                                     NULL, NULL, NULL));
    for (guint i = 0; i < n; i++) {
        assert_int_equal(answer[i].n_answer, NEW);
        assert_memory_equal(answers[i], batches->alone[answer[i].number], sizeof answers[i]);
    }
}

static void
answer_alone(Batches *batches)
{
    RpGenerator *generator = generator_of(batches, batches->tiny->probe, 1, 0);

    for (guint i = 0; i < N; i++) {
        RpAnswer answer = {.prompt = batches->prompts[MIN(i, N - 3)],
                           .n_prompt = batches->lengths[MIN(i, N - 3)],
                           .answer = batches->alone[i],
                           .number = i};

        assert_true(
            rp_generator_answer(generator, &answer, 1, NEW, &batches->sampling, NULL, NULL, NULL));
        assert_int_equal(answer.n_answer, NEW);
    }
    rp_generator_free(generator);
}

/* The likeliest tokens of a prompt and some of its answer: those of the answer, which came one by one. */
static void
check_continuation(Batches *batches)
{
    static const guint places[] = {1, 7, NEW - 1};
    RpGenerator *generator = generator_of(batches, batches->tiny->probe, 4, 0);

    for (guint i = 0; i < G_N_ELEMENTS(places); i++) {
        const guint of = 2 + i, n = batches->lengths[of];
        gint32 next;
        RpAnswer answer = {
            .prompt = batches->prompts[of], .n_prompt = n + places[i], .answer = &next};

        memcpy(batches->prompts[of] + n, batches->alone[of], places[i] * sizeof(gint32));
        assert_true(
            rp_generator_answer(generator, &answer, 1, 1, &batches->sampling, NULL, NULL, NULL));
        assert_int_equal(next, batches->alone[of][places[i]]);
    }
    rp_generator_free(generator);
}

static void
check_batches(Batches *batches, const RpDeviceOps *devices)
{
    static const guint slots[] = {3, N, 64, 64}, blocks[] = {0, 0, 6, 0};
    RpProbe *probe = devices->probe_new(0, NULL);
    RpGenerator *generators[2];

    assert_non_null(probe);
    answer_alone(batches);
    for (guint i = 0; i < G_N_ELEMENTS(slots); i++) {
        generators[0] = generator_of(batches, batches->tiny->probe, slots[i], blocks[i]);
        check_answers(batches, generators, 1, 0, N, i % 2 == 1);
        check_answers(batches, generators, 1, 4, 3, i % 2 == 0);
        rp_generator_free(generators[0]);
    }
    generators[0] = generator_of(batches, batches->tiny->probe, 2, 0);
    generators[1] = generator_of(batches, probe, 3, 5);
    check_answers(batches, generators, 2, 0, N, FALSE);
    rp_generator_free(generators[0]);
    rp_generator_free(generators[1]);
    rp_probe_free(probe);
}

static void
make_prompts(Batches *batches)
{
    static const guint lengths[] = {1, 64, 3, 100, 63, 65, 150, 17, 128, 70};
    guint32 random = 7;

    for (guint i = 0; i <= N - 3; i++) {
        batches->lengths[i] = lengths[i];
        for (guint t = 0; t < lengths[i]; t++) {
            random = random * 1664525 + 1013904223;
            batches->prompts[i][t] = (gint32)((random >> 8) % batches->tiny->config.vocab);
        }
    }
    batches->sampling = (RpSampling){.temperature = 0.9, .top_p = 0.95, .top_k = 12, .seed = 3};
}

void
rp_tiny_check_batches(gpointer state, const RpDeviceOps *devices)
{
    Tiny *tiny = state;
    g_autofree Batches *batches = g_new0(Batches, 1);

    batches->tiny = tiny;
    for (gsize m = 0; m < G_N_ELEMENTS(names); m += RP_TEST_EVERY(1, 2)) {
        const RpSampling greedy = {.temperature = 0};

        open_model(tiny, names[m], devices);
        make_prompts(batches);
        const RpSampling sampled = batches->sampling;

        batches->sampling = greedy;
        answer_alone(batches);
        check_continuation(batches);
        batches->sampling = sampled;
        check_batches(batches, devices);
    }
}

/* ---- memory that not all layers fit into ---- */

#define SLOTS 3
#define SOME 5 /* of the prompts */

/* A generator in @bytes. @streamed: (out). Returns: %NULL, if they are too few */
static RpGenerator *
generator_within(Batches *batches, RpProbe *probe, guint64 bytes, const RpGenerator *beside,
                 guint *streamed, guint *n_layers)
{
    const RpGeneratorOptions options = {.slots = SLOTS,
                                        .tokens = MOST_PROMPT + NEW,
                                        .blocks = 3, /* of one sequence: the rest is for layers */
                                        .memory_bytes = bytes,
                                        .beside = beside};
    g_autoptr(GError) error = NULL;
    RpGenerator *generator = rp_generator_new(&batches->tiny->config, batches->tiny->weights,
                                              batches->tiny->kernels, probe, &options, &error);

    if (generator == NULL)
        assert_true(g_error_matches(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_MEMORY));
    else
        *streamed = rp_generator_streamed(generator, n_layers);
    return generator;
}

/* The fewest bytes with which at most @most layers are streamed. */
static guint64
least_bytes(Batches *batches, guint most)
{
    guint64 low = 0, high = 64 << 20;

    while (high - low > 1) {
        const guint64 middle = low + (high - low) / 2;
        guint streamed = G_MAXUINT, n_layers;
        RpGenerator *generator =
            generator_within(batches, batches->tiny->probe, middle, NULL, &streamed, &n_layers);

        rp_generator_free(generator);
        *(streamed <= most ? &high : &low) = middle;
    }
    return high;
}

void
rp_tiny_check_streamed(gpointer state, const RpDeviceOps *devices)
{
    static const char *const streamed_names[] = {"llama", "qwen3-moe", "qwen3-5"};
    Tiny *tiny = state;
    g_autofree Batches *batches = g_new0(Batches, 1);
    RpProbe *probe = devices->probe_new(0, NULL);

    assert_non_null(probe);
    batches->tiny = tiny;
    for (gsize m = 0; m < G_N_ELEMENTS(streamed_names); m += RP_TEST_EVERY(1, 2)) {
        guint streamed = 1000, n_layers = 0;
        gboolean seen_all = FALSE, seen_some = FALSE;

        open_deep(tiny, streamed_names[m], devices);
        make_prompts(batches);
        answer_alone(batches);
        while (streamed > 0) {
            const guint64 bytes = least_bytes(batches, streamed / 2);
            RpGenerator *generators[2] = {
                generator_within(batches, tiny->probe, bytes, NULL, &streamed, &n_layers)};

            assert_non_null(generators[0]);
            seen_all |= streamed == n_layers;
            seen_some |= streamed > 0 && streamed < n_layers;
            check_answers(batches, generators, 1, 0, SOME, FALSE);
            generators[1] =
                generator_within(batches, probe, bytes, generators[0], &streamed, &n_layers);
            check_answers(batches, generators, 2, 0, SOME, FALSE);
            rp_generator_free(generators[0]);
            check_answers(batches, generators + 1, 1, 2, 2, TRUE);
            rp_generator_free(generators[1]);
        }
        assert_true(seen_all && seen_some);
    }
    rp_probe_free(probe);
}
