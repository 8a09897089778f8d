/* Greedy answers, against the loss that training's own head gives to every token that might come
 * next: the likeliest is the one that costs least. */
#include "tests/exec-network/network-fixture.h"

#include <glib/gstdio.h>
#include <math.h>

#include "exec/generate/generator.h"
#include "exec/host/kernels.h"
#include "exec/model/init.h"

#define TOKENS 9
#define PROMPTS 3
#define NEW_TOKENS 4

typedef struct {
    char *directory;
    RpModel config;
    RpSafetensors *checkpoint;
    RpWeights *weights;
} Files;

/* Blocks of DeltaNet and of gated attention, with experts and a shared one. */
static void
make_mixture(RpModel *config)
{
    config->hidden = 16;
    config->head_dim = 8;
    config->full_period = 2;
    config->delta_key_heads = 1;
    config->delta_value_heads = 2;
    config->delta_key_dim = 6;
    config->delta_value_dim = 5;
    config->delta_kernel = 4;
    config->experts = 4;
    config->active_experts = 2;
    config->norm_topk = TRUE;
    config->intermediate = 7;
    config->shared_intermediate = 9;
}

static Files *
files_new(RpArchitecture architecture)
{
    Files *files = g_new0(Files, 1);
    RpInitOptions options = {.seed = 3};

    files->directory = g_dir_make_tmp("rp-greedy-XXXXXX", NULL);
    files->config = network_config(architecture, architecture == RP_ARCHITECTURE_QWEN3);
    if (architecture == RP_ARCHITECTURE_QWEN3_5_MOE)
        make_mixture(&files->config);
    files->config.dtype = RP_DTYPE_BF16;
    files->config.has_dtype = TRUE;
    files->config.initializer_range = 0.5; /* else all tokens are about as likely */
    files->config.n_eos = 0;
    assert_true(rp_init_write(&files->config, files->directory, &options, NULL));
    files->checkpoint = rp_safetensors_open(files->directory, NULL);
    assert_non_null(files->checkpoint);
    files->weights = rp_weights_new(&files->config);
    assert_true(rp_weights_bind(files->weights, files->checkpoint, NULL));
    return files;
}

static int
setup(void **state)
{
    *state = files_new(RP_ARCHITECTURE_QWEN3);
    return 0;
}

static void
files_free(Files *files)
{
    static const char *const names[] = {"config.json", "model.safetensors"};

    rp_safetensors_free(files->checkpoint);
    rp_weights_free(files->weights);
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(files->directory, names[i], NULL);

        (void)g_remove(path);
    }
    (void)g_rmdir(files->directory);
    g_free(files->directory);
    g_free(files);
}

static int
teardown(void **state)
{
    files_free(*state);
    return 0;
}

/* The model as a test's, for sequences of @tokens. */
static Model *
model_of(const Files *files, guint tokens)
{
    const RpNetworkOptions options = {.dtype = RP_DTYPE_BF16, .sequences = 1, .tokens = tokens};
    Model *model = network_new(&files->config, &options);

    for (guint i = 0; i < rp_weights_count(files->weights); i++) {
        const RpSafetensor *source = rp_weights_source(files->weights, i);
        g_autofree float *values = g_new(float, source->elements);

        rp_dtype_to_float(source->dtype, source->data, values, source->elements);
        network_set_weight(model, i, values);
    }
    return model;
}

/* The loss of @token behind @n ids. */
static double
cost(Model *model, const gint32 *ids, guint n, gint32 token)
{
    Run run = network_run_new(model);

    for (guint t = 0; t < model->tokens; t++) {
        model->ids[t] = t < n ? ids[t] : 0;
        model->targets[t] = t == n - 1 ? token : RP_LABEL_MASKED;
    }
    network_stage(model, STAGE_FORWARD, (RpInterval){0, rp_network_n_layers(model->network)}, NULL,
                  0, &run);
    return run.loss;
}

static const RpSampling greedy = {.temperature = 0};

/* Answers @n prompts of any lengths, with an end or without (-1), in a cache of @tokens. */
static void
answer_within(const Files *files, RpAnswer *answers, guint n, gint32 end,
              const RpSampling *sampling, guint tokens)
{
    RpGeneratorOptions options = {.slots = n, .tokens = tokens, .ends = {end}, .n_ends = end >= 0};
    RpProbe *probe = rp_host_probe_new(0, NULL);
    RpGenerator *generator;

    assert_non_null(probe);
    generator =
        rp_generator_new(&files->config, files->weights, rp_host_kernels(), probe, &options, NULL);
    assert_non_null(generator);
    assert_true(rp_generator_answer(generator, answers, n, NEW_TOKENS, sampling, NULL, NULL, NULL));
    rp_generator_free(generator);
    rp_probe_free(probe);
}

static void
answer_all(const Files *files, RpAnswer *answers, guint n, gint32 end, const RpSampling *sampling)
{
    answer_within(files, answers, n, end, sampling, TOKENS);
}

/* Each token of a longrope follows from the factors of its own sequence, in whatever cache: those of short
 * ones, and from the sixth token on those of long ones. */
RP_TEST(a_longrope_turns_by_the_sequence_that_there_is)
{
    static const gint32 prompt[] = {1, 2, 3};
    Files files = *(const Files *)*state;
    gint32 few[NEW_TOKENS], many[NEW_TOKENS], ids[TOKENS] = {1, 2, 3};
    RpAnswer answer = {.prompt = prompt, .n_prompt = 3, .answer = few};

    files.config.rope = (RpRope){.type = RP_ROPE_LONGROPE,
                                 .theta = 10000,
                                 .original_max_positions = 5,
                                 .attention_factor = 1.1};
    for (guint i = 0; i < RP_ROPE_MAX_PAIRS; i++) {
        files.config.rope.short_factor[i] = 1;
        files.config.rope.long_factor[i] = 40;
    }
    files.weights = rp_weights_new(&files.config);
    assert_true(rp_weights_bind(files.weights, files.checkpoint, NULL));
    answer_within(&files, &answer, 1, -1, &greedy, 3 + NEW_TOKENS);
    answer.answer = many;
    answer_within(&files, &answer, 1, -1, &greedy, 60);
    assert_memory_equal(few, many, sizeof few);
    for (guint n = 3; n < 3 + NEW_TOKENS; n++) {
        Model *model = model_of(&files, n);
        gint32 best = 0;

        for (gint32 v = 1; v < (gint32)files.config.vocab; v++)
            if (cost(model, ids, n, v) < cost(model, ids, n, best))
                best = v;
        ids[n] = best;
        assert_int_equal(few[n - 3], best);
        network_free(model);
    }
    rp_weights_free(files.weights);
}

static void
check_likeliest(const Files *files)
{
    static const gint32 prompts[PROMPTS][TOKENS - NEW_TOKENS] = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}};
    static const guint lengths[PROMPTS] = {3, 1, 5};
    gint32 answers[PROMPTS][NEW_TOKENS];
    RpAnswer answer[PROMPTS];
    Model *model = model_of(files, TOKENS);

    for (guint i = 0; i < PROMPTS; i++)
        answer[i] = (RpAnswer){.prompt = prompts[i], .n_prompt = lengths[i], .answer = answers[i]};
    answer_all(files, answer, PROMPTS, -1, &greedy);
    for (guint i = 0; i < PROMPTS; i++) {
        gint32 ids[TOKENS];

        assert_int_equal(answer[i].n_answer, NEW_TOKENS);
        memcpy(ids, prompts[i], lengths[i] * sizeof *ids);
        for (guint n = lengths[i]; n < lengths[i] + NEW_TOKENS; n++) {
            gint32 best = 0;

            for (gint32 v = 1; v < (gint32)files->config.vocab; v++)
                if (cost(model, ids, n, v) < cost(model, ids, n, best))
                    best = v;
            ids[n] = best;
            assert_int_equal(answers[i][n - lengths[i]], best);
        }
    }
    network_free(model);
}

RP_TEST(prompts_of_any_length_get_the_likeliest_tokens)
{
    Files *mixture = files_new(RP_ARCHITECTURE_QWEN3_5_MOE);

    check_likeliest(*state);
    check_likeliest(mixture);
    files_free(mixture);
}

RP_TEST_OF(an_end_ends_its_own_answer_alone, const Files *files)
{
    static const gint32 prompts[2][2] = {{1, 2}, {3, 4}};
    gint32 free_answers[2][NEW_TOKENS], answers[2][NEW_TOKENS];
    RpAnswer first[2], second[2];

    for (guint i = 0; i < 2; i++) {
        first[i] = (RpAnswer){.prompt = prompts[i], .n_prompt = 2, .answer = free_answers[i]};
        second[i] = (RpAnswer){.prompt = prompts[i], .n_prompt = 2, .answer = answers[i]};
    }
    answer_all(files, first, 2, -1, &greedy);
    const gint32 end = free_answers[0][1];

    answer_all(files, second, 2, end, &greedy);
    for (guint i = 0; i < 2; i++) {
        guint n = 0;

        while (n < NEW_TOKENS && free_answers[i][n] != end)
            n++;
        assert_int_equal(second[i].n_answer, MIN(n + 1, NEW_TOKENS));
        assert_memory_equal(answers[i], free_answers[i], second[i].n_answer * sizeof(gint32));
    }
    assert_true(second[0].n_answer <= 2);
}

/* The same prompt beside others, or alone, gets the same answer, also with sampling. */
RP_TEST_OF(an_answer_does_not_depend_on_its_neighbours, const Files *files)
{
    static const gint32 prompts[2][3] = {{1, 2, 3}, {9}};
    static const RpSampling warm = {.temperature = 1.3, .top_p = 0.95, .top_k = 20, .seed = 5};
    gint32 answers[3][NEW_TOKENS];
    RpAnswer both[2], alone;

    for (guint i = 0; i < 2; i++)
        both[i] = (RpAnswer){.prompt = prompts[i],
                             .n_prompt = i == 0 ? 3 : 1,
                             .answer = answers[i],
                             .number = 7 + i};
    alone = both[1];
    alone.answer = answers[2];
    answer_all(files, both, 2, -1, &warm);
    answer_all(files, &alone, 1, -1, &warm);
    assert_memory_equal(answers[1], answers[2], sizeof answers[1]);
}

/* Answers that have all their blocks need no other for those that begin later. */
static gboolean
see_all_in_progress(gpointer user_data, guint index, const RpAnswer *answer)
{
    const RpAnswer *answers = user_data;

    if (answer->n_answer == NEW_TOKENS)
        for (guint i = 0; i < 6; i++)
            assert_true(answers[i].n_answer > 0);
    return TRUE;
}

RP_TEST_OF(all_begin_where_blocks_just_suffice, const Files *files)
{
    static const gint32 prompt[6][RP_CACHE_BLOCK] = {{1}, {2}, {3}, {4}, {5}, {6}};
    const RpGeneratorOptions options = {
        .slots = 6, .tokens = RP_CACHE_BLOCK + NEW_TOKENS, .blocks = 2 * 6};
    gint32 ids[6][NEW_TOKENS];
    RpAnswer answers[6];
    RpProbe *probe = rp_host_probe_new(0, NULL);
    RpGenerator *generator =
        rp_generator_new(&files->config, files->weights, rp_host_kernels(), probe, &options, NULL);

    assert_non_null(generator);
    for (guint i = 0; i < 6; i++)
        answers[i] = (RpAnswer){.prompt = prompt[i], .n_prompt = RP_CACHE_BLOCK, .answer = ids[i]};
    assert_true(rp_generator_answer(generator, answers, 6, NEW_TOKENS, &greedy, see_all_in_progress,
                                    answers, NULL));
    rp_generator_free(generator);
    rp_probe_free(probe);
}

static gint32
sample(const RpSampleChoice *choice, const float *logits, guint n, guint64 number)
{
    RpSampleChoice of = *choice;
    gint32 id;
    const RpSampleArgs args = {.dtype = RP_DTYPE_FP32,
                               .rows = 1,
                               .vocabulary = n,
                               .logits = logits,
                               .choices = &of,
                               .ids = &id};

    of.number = number;
    rp_host_kernels()->sample(NULL, &args);
    return id;
}

RP_TEST(dice_follow_the_odds)
{
    static const float logits[5] = {0, 2, 1, 2, -8};
    RpSampleChoice choice = {.temperature = 0, .top_p = 1, .token = 3};
    guint counts[5] = {0};

    assert_int_equal(sample(&choice, logits, 5, 0), 1); /* the lower id of equal ones */
    choice.temperature = 2;
    for (guint i = 0; i < 20000; i++)
        counts[sample(&choice, logits, 5, i)]++;
    for (guint v = 0; v < 5; v++) { /* softmax of half the logits */
        const double sum = exp(0) + 2 * exp(1) + exp(0.5) + exp(-4);

        assert_float_equal(counts[v] / 20000.0, exp(logits[v] / 2) / sum, 0.015);
    }
    memset(counts, 0, sizeof counts);
    choice.top_k = 3; /* 1, 3, 2 */
    choice.top_p = 0.7;
    for (guint i = 0; i < 1000; i++)
        counts[sample(&choice, logits, 5, i)]++;
    assert_int_equal(counts[0] + counts[2] + counts[4], 0); /* 1 and 3 have 0.77 of three */
    assert_true(counts[1] > 400 && counts[3] > 400);
    assert_int_equal(sample(&choice, logits, 5, 77), sample(&choice, logits, 5, 77));
}

/* Chi-squared of @draws draws against the odds that the definition gives, by sorting in doubles. Returns: degrees of
 * freedom, @chi: (out) */
static guint
chi_squared(const RpSampleChoice *choice, const float *logits, guint n, guint draws, double *chi)
{
    g_autofree double *odds = g_new0(double, n);
    g_autofree guint *order = g_new(guint, n), *counts = g_new0(guint, n);
    const guint most = choice->top_k > 0 ? MIN(choice->top_k, n) : n;
    double sum = 0, reached = 0, rest = 0;
    guint kept = 0, freedom = 0, rare = 0;

    for (guint i = 0; i < n; i++) { /* of equal ones the lower id first */
        guint at = i;

        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (guint i = 0; i < most; i++)
        sum += exp((double)logits[order[i]] / choice->temperature);
    while (kept < most && reached < choice->top_p * sum) {
        odds[order[kept]] = exp((double)logits[order[kept]] / choice->temperature);
        reached += odds[order[kept++]];
    }
    for (guint i = 0; i < draws; i++)
        counts[sample(choice, logits, n, i)]++;
    *chi = 0;
    for (guint v = 0; v < n; v++) {
        const double expected = draws * odds[v] / reached;

        if (odds[v] <= 0)
            assert_int_equal(counts[v], 0);
        if (expected < 5) { /* too few to be counted by themselves */
            rest += expected;
            rare += counts[v];
            continue;
        }
        *chi += (counts[v] - expected) * (counts[v] - expected) / expected;
        freedom++;
    }
    if (rest >= 5) {
        *chi += (rare - rest) * (rare - rest) / rest;
        freedom++;
    }
    return freedom - 1;
}

RP_TEST(samples_have_the_distribution_that_is_defined)
{
    static const RpSampleChoice choices[] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 0.5, .top_p = 0.9, .seed = 2},
        {.temperature = 2, .top_p = 1, .top_k = 50, .seed = 3},
        {.temperature = 1.5, .top_p = 0.6, .top_k = 200, .seed = 4},
    };
    float logits[300];

    for (guint v = 0; v < G_N_ELEMENTS(logits); v++)
        logits[v] = (float)((v * 7919) % 300) / 60.0f; /* some are equal, as stored */
    for (guint i = 0; i < G_N_ELEMENTS(choices); i++) {
        double chi;
        const guint freedom = chi_squared(&choices[i], logits, 300, 20000, &chi);

        assert_true(freedom >= 10);
        /* the mean is the degrees of freedom, the variance twice as much */
        assert_true(chi < freedom + 4 * sqrt(2.0 * freedom));
    }
}

/* ---- requests from other threads ---- */

typedef struct {
    RpRequests *requests;
    gint32 answers[3][NEW_TOKENS];
    guint n[3];
    RpRequestEnd ends[3];
    gint n_done; /* atomic */
    guint64 cancelled;
} Asked;

typedef struct {
    Asked *asked;
    guint index;
} One;

static gboolean
cancel_second(gpointer user_data, const gint32 *answer, guint n_answer)
{
    const One *one = user_data;

    if (one->index == 0 && n_answer == 2)
        rp_requests_cancel(one->asked->requests, one->asked->cancelled);
    return TRUE;
}

static void
note_end(gpointer user_data, RpRequestEnd end, const gint32 *answer, guint n_answer)
{
    const One *one = user_data;
    Asked *asked = one->asked;

    memcpy(asked->answers[one->index], answer, n_answer * sizeof *answer);
    asked->n[one->index] = n_answer;
    asked->ends[one->index] = end;
    g_atomic_int_inc(&asked->n_done);
}

static gpointer
serve(gpointer data)
{
    gpointer *both = data;

    return GINT_TO_POINTER(rp_generator_serve(both[0], both[1], NULL));
}

RP_TEST_OF(requests_come_and_go_while_a_generator_serves, const Files *files)
{
    static const gint32 prompt[] = {1, 2, 3};
    const RpGeneratorOptions options = {.slots = 2, .tokens = 3 + 40};
    Asked asked = {.requests = rp_requests_new(2)};
    One ones[] = {{&asked, 0}, {&asked, 1}, {&asked, 2}};
    RpProbe *probe = rp_host_probe_new(0, NULL);
    RpGenerator *generator =
        rp_generator_new(&files->config, files->weights, rp_host_kernels(), probe, &options, NULL);
    gpointer both[] = {generator, asked.requests};
    guint64 id, ids[3];
    GThread *thread = g_thread_new("generator", serve, both);
    RpPromptRequest request = {.prompt = prompt,
                               .n_prompt = 3,
                               .most_tokens = NEW_TOKENS,
                               .token = cancel_second,
                               .done = note_end};

    assert_non_null(generator);
    g_usleep(20000); /* it waits */
    asked.cancelled = 2;
    request.user_data = &ones[0];
    assert_true(rp_requests_add(asked.requests, &request, 1, &id, NULL));
    assert_int_equal(id, 1);
    request.user_data = &ones[1];
    assert_true(rp_requests_add(asked.requests, &request, 1, &id, NULL));
    assert_int_equal(id, 2);
    while (g_atomic_int_get(&asked.n_done) < 2)
        g_usleep(1000);
    request.user_data = &ones[2];
    rp_refuses("too many requests at once: expected at most 2 answers, of which 0 are under way",
               rp_requests_add, asked.requests,
               (const RpPromptRequest[]){request, request, request}, 3, ids);
    assert_true(rp_requests_add(asked.requests, &request, 1, &id, NULL));
    rp_requests_close(asked.requests);
    assert_true(GPOINTER_TO_INT(g_thread_join(thread)));
    assert_int_equal(asked.n_done, 3);
    assert_int_equal(asked.ends[0], RP_REQUEST_FULL);
    assert_int_equal(asked.ends[2], RP_REQUEST_FULL);
    assert_true(asked.ends[1] == RP_REQUEST_STOPPED || asked.n[1] == NEW_TOKENS);
    assert_memory_equal(asked.answers[0], asked.answers[2], sizeof asked.answers[0]);
    assert_memory_equal(asked.answers[0], asked.answers[1], asked.n[1] * sizeof(gint32));
    rp_generator_free(generator);
    rp_requests_free(asked.requests);
    rp_probe_free(probe);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
RP_TEST_GROUP(setup, teardown)
