/* Preferences against TRL: losses, metrics, gradients and ten steps of AdamW; fixtures/make-preference.py makes the
 * numbers. References by adapters that are off, by a copy and computed in advance; shapes and devices. On devices of
 * RP_TEST_DEVICES(): those of the host, a CUDA of threads, or GPUs (tests/exec-cuda/meson.build). */
#include "tests/rp-test.h"

#include <math.h>
#include <string.h>

#include "core/base/file.h"
#include "exec/adapter/adapter.h"
#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/train/trainer.h"
#include "tests/json-tree.h"

#define RELATIVE 1e-5
#define STEPS 10
#define MOST_DOCUMENTS 16 /* of an iteration */
#define MOST_TOKENS 64    /* of a sample */

typedef struct {
    RpModel config;
    RpSafetensors *file, *adapters;
    RpTree *samples, *cases;
} Fixture;

/* A case, and its trainer. */
typedef struct {
    const Fixture *f;
    const RpTree *row;
    RpPreference preference;
    RpWeights *weights;
    RpSafetensors *wanted;
    RpTrainer *trainer;
    guint micro_batches, sequences, pairs_of_a_row; /* of batches */
    gboolean shares;
    guint n_done;
    RpStepReport reports[STEPS];
} Case;

/* How a case is run beside how it was made. */
typedef struct {
    guint devices;
    guint head_chunk;
    RpReference reference;
    gboolean async;
    /* 0: rows as the fixture has them; else 3 rows of that many pairs, as long as there are some */
    guint each;
    guint micro_batches; /* 0: as the fixture */
    gboolean evaluates;
    gboolean shares; /* pairs stand behind one prompt */
} Run;

static char *
fixture_path(const char *directory, const char *name)
{
    return g_build_filename(RP_SOURCE_ROOT, "tests", directory, name, NULL);
}

static RpTree *
read_tree(const char *name)
{
    g_autofree char *path = fixture_path("exec-train/fixtures/preference", name);
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    RpTree *tree = rp_tree_parse(text);

    assert_non_null(tree);
    return tree;
}

static RpSafetensors *
open_tensors(const char *directory, const char *name)
{
    g_autofree char *path = fixture_path(directory, name);
    GError *error = NULL;
    RpSafetensors *file = rp_safetensors_open(path, &error);

    if (file == NULL)
        fail_msg("%s", error->message);
    return file;
}

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);
    g_autofree char *base = fixture_path("exec-network/fixtures", "llama-tied");

    assert_true(rp_hf_config_load(base, &f->config, NULL));
    f->file = open_tensors("exec-network/fixtures/llama-tied", "model.safetensors");
    f->adapters = open_tensors("exec-train/fixtures/preference", RP_ADAPTER_TENSORS);
    f->samples = read_tree("samples.json");
    f->cases = read_tree("cases.json");
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    rp_safetensors_free(f->file);
    rp_safetensors_free(f->adapters);
    rp_tree_free(f->samples);
    rp_tree_free(f->cases);
    g_free(f);
    return 0;
}

RP_TEST_FIXTURE(set_up, tear_down)

static double
number(const RpTree *tree, const char *name)
{
    const RpTree *found = rp_tree_find(tree, name);

    if (found == NULL)
        fail_msg("no %s", name);
    return found->number;
}

static guint
option(const Fixture *f, const char *name)
{
    g_autofree char *path = g_strconcat("options.", name, NULL);

    return (guint)number(f->samples, path);
}

static double
real_option(const Fixture *f, const char *name)
{
    g_autofree char *path = g_strconcat("options.", name, NULL);

    return number(f->samples, path);
}

/* ---- a case ---- */

static void
note_report(gpointer user_data, const RpStepReport *report)
{
    Case *c = user_data;

    c->reports[c->n_done++] = *report;
}

static void
read_names(Case *c)
{
    RpPreference *preference = &c->preference;
    const char *objective = rp_tree_find(c->row, "objective")->text;
    const char *reference = rp_tree_find(c->row, "reference")->text;

    while (strcmp(rp_objective_info(preference->objective)->name, objective) != 0)
        assert_true(++preference->objective < RP_N_OBJECTIVES);
    while (strcmp(rp_reference_name(preference->reference), reference) != 0)
        assert_true(++preference->reference < RP_N_REFERENCES);
}

static void
load_case(Case *c, const Fixture *f, const char *name)
{
    const RpTree *rows = rp_tree_find(f->cases, "cases");
    g_autofree char *file = g_strconcat(name, ".safetensors", NULL);
    g_autofree char *adapters = fixture_path("exec-train/fixtures", "preference");
    g_auto(RpLora) lora = {0};
    GError *error = NULL;

    *c = (Case){.f = f};
    for (guint i = 0; i < rows->items->len; i++)
        if (g_str_equal(rp_tree_find(rp_tree_nth(rows, i), "name")->text, name))
            c->row = rp_tree_nth(rows, i);
    assert_non_null(c->row);
    c->preference.beta = number(c->row, "beta");
    c->preference.label_smoothing = number(c->row, "label_smoothing");
    c->preference.sft_weight = number(c->row, "sft_weight");
    c->preference.gamma = number(c->row, "gamma");
    c->preference.desirable_weight = number(c->row, "desirable_weight");
    c->preference.undesirable_weight = number(c->row, "undesirable_weight");
    read_names(c);
    if (number(c->row, "lora") > 0 && !rp_adapter_config_load(adapters, &lora, &error))
        fail_msg("%s", error->message);
    c->weights = rp_weights_new_adapted(&f->config, &lora);
    if (!rp_weights_bind(c->weights, f->file, &error) ||
        (lora.rank > 0 && !rp_adapter_bind(c->weights, f->adapters, &error)))
        fail_msg("%s", error->message);
    c->wanted = open_tensors("exec-train/fixtures/preference", file);
}

static void
start_case(Case *c, const Run *run)
{
    const Fixture *f = c->f;
    const RpDeviceOps *devices = RP_TEST_DEVICES();
    RpTrainerOptions options = {
        .devices = devices,
        .weights = c->weights,
        .plan = {.schedule = rp_schedule_find("roundpipe", NULL),
                 .gpus = run->devices,
                 .micro_batches =
                     run->micro_batches > 0 ? run->micro_batches : option(f, "micro_batches"),
                 .async = run->async},
        .network = {.dtype = RP_DTYPE_FP32,
                    .sequences = run->each > 0 ? 3 : option(f, "sequences"),
                    .tokens = option(f, "tokens"),
                    .packed_tokens = 8,
                    .head_chunk = run->head_chunk,
                    .preference = c->preference},
        .update = {.adamw = {.beta1 = real_option(f, "beta1"),
                             .beta2 = real_option(f, "beta2"),
                             .epsilon = real_option(f, "epsilon"),
                             .weight_decay = real_option(f, "weight_decay")},
                   .learning_rate = {.kind = RP_LEARNING_RATE_LINEAR,
                                     .peak = real_option(f, "learning_rate"),
                                     .warmup_steps = option(f, "warmup_steps"),
                                     .total_steps = option(f, "total_steps")},
                   .max_grad_norm = real_option(f, "max_grad_norm")},
        .evaluates = run->evaluates,
        .done = note_report,
        .user_data = c,
    };

    if (run->reference != RP_REFERENCE_NONE && c->preference.reference != RP_REFERENCE_NONE)
        options.network.preference.reference = run->reference;
    c->preference.reference = options.network.preference.reference;
    c->sequences = options.network.sequences;
    c->micro_batches = options.plan.micro_batches;
    c->pairs_of_a_row = run->each > 0 ? run->each : 2;
    c->shares = run->shares && c->preference.objective != RP_OBJECTIVE_KTO;
    RpNetwork *network = rp_network_new(c->weights, devices->kernels(), &options.network);
    RpProfile *profile = rp_network_profile(network);
    GError *error = NULL;

    for (guint l = 0; l < profile->n_layers; l++)
        profile->layers[l].forward_ns = profile->layers[l].backward_ns = 1000;
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 1e10;
    RpPartition *partition =
        rp_partition_paper(profile, run->devices, options.plan.micro_batches, 0, &error);

    options.profile = profile;
    options.partition = partition;
    c->trainer = rp_trainer_new(&options, &error);
    if (c->trainer == NULL)
        fail_msg("%s", error->message);
    rp_partition_free(partition);
    rp_profile_free(profile);
    rp_network_free(network);
}

static void
end_case(Case *c)
{
    rp_trainer_free(c->trainer);
    rp_weights_free(c->weights);
    rp_safetensors_free(c->wanted);
}

/* ---- batches ---- */

/* Puts a document at @at of micro-batch @m, but for tokens of its prompt that it shares with the one before. Returns:
 * behind it */
static guint
put_document(RpTokenBatch *batch, guint m, guint at, const RpTree *prompt, const RpTree *answer,
             guint shared, RpAnswerKind kind)
{
    const guint T = batch->sequences * batch->tokens, d = batch->n_starts[m]++;
    const guint n_prompt = prompt->items->len - shared, n = n_prompt + answer->items->len;
    gint32 *ids = batch->input_ids + (gsize)m * T + at,
           *targets = batch->targets + (gsize)m * T + at;

    batch->starts[m * (T + 1) + d] = (gint32)at;
    batch->starts[m * (T + 1) + d + 1] = (gint32)(at + n);
    batch->answers[m * T + d] = (guint8)kind;
    batch->shared[m * T + d] = shared;
    batch->n_shared[m] += shared > 0;
    batch->longest[m] = MAX(batch->longest[m],
                            at + n - (guint)batch->starts[m * (T + 1) + (shared > 0 ? d - 1 : d)]);
    batch->n_tokens += n;
    for (guint i = 0; i < n; i++)
        ids[i] = (gint32)(gint64)(i < n_prompt ? rp_tree_nth(prompt, i + shared)
                                               : rp_tree_nth(answer, i - n_prompt))
                     ->number;
    for (guint i = 0; i < n; i++)
        targets[i] = i + 1 >= n_prompt && i + 1 < n ? ids[i + 1] : RP_LABEL_MASKED;
    batch->n_micro_targets[m] += n - n_prompt;
    batch->n_targets += n - n_prompt;
    if (rp_answer_is_chosen(kind))
        batch->n_chosen_targets += n - n_prompt;
    return at + n;
}

static guint
put_sample(RpTokenBatch *batch, guint m, guint at, const RpTree *sample, gboolean labelled,
           gboolean shares)
{
    const RpTree *prompt = rp_tree_find(sample, "prompt");
    const RpTree *first = rp_tree_find(sample, "answers.0");
    const gboolean desirable = rp_tree_find(sample, "desirable")->number > 0;

    batch->n_pairs++;
    at = put_document(batch, m, at, prompt, first, 0,
                      !labelled   ? RP_ANSWER_CHOSEN
                      : desirable ? RP_ANSWER_DESIRABLE
                                  : RP_ANSWER_UNDESIRABLE);
    return put_document(
        batch, m, at, prompt, rp_tree_find(sample, labelled ? "kl_answer" : "answers.1"),
        shares ? prompt->items->len - 1 : 0, labelled ? RP_ANSWER_KL : RP_ANSWER_REJECTED);
}

static guint
put_padding(RpTokenBatch *batch, guint m, guint at, guint end)
{
    const guint T = batch->sequences * batch->tokens, d = batch->n_starts[m];

    if (at == end)
        return end;
    batch->n_starts[m]++;
    batch->starts[m * (T + 1) + d] = (gint32)at;
    batch->starts[m * (T + 1) + d + 1] = (gint32)end;
    batch->answers[m * T + d] = RP_ANSWER_NONE;
    batch->shared[m * T + d] = 0;
    batch->longest[m] = MAX(batch->longest[m], end - at);
    for (; at < end; at++) {
        batch->input_ids[m * T + at] = 0;
        batch->targets[m * T + at] = RP_LABEL_MASKED;
    }
    return end;
}

/* Samples of @step, from 0 up. */
static RpTokenBatch *
make_batch(const Case *c, guint step)
{
    const Fixture *f = c->f;
    const RpTree *samples = rp_tree_find(f->samples, "samples");
    const gboolean labelled = c->preference.objective == RP_OBJECTIVE_KTO;
    const RpBatcherOptions options = {.micro_batches = c->micro_batches,
                                      .sequences = c->sequences,
                                      .tokens = option(f, "tokens"),
                                      .packing = TRUE,
                                      .preference = TRUE};
    RpTokenBatch *batch = rp_token_batch_new(&options);
    guint next = step * 3 * options.micro_batches;

    for (guint m = 0; m < options.micro_batches; m++) {
        const guint end = next + 3;

        for (guint row = 0; row < options.sequences; row++) {
            guint at = row * options.tokens;

            for (guint i = 0; i < c->pairs_of_a_row && next < end; i++)
                at = put_sample(batch, m, at, rp_tree_nth(samples, next++), labelled, c->shares);
            assert_true(at <= (row + 1) * options.tokens);
            batch->lengths[m * options.sequences + row] = at - row * options.tokens;
            (void)put_padding(batch, m, at, (row + 1) * options.tokens);
        }
    }
    return batch;
}

/* References of all documents but paddings: out of @batch, or into it. */
static void
move_references(RpTokenBatch *batch, float *of, gboolean out)
{
    for (guint m = 0; m < batch->micro_batches; m++)
        for (guint d = 0; d < batch->n_starts[m]; d++) {
            float *own = rp_token_batch_references(batch, m) + d;

            if (rp_token_batch_answers(batch, m)[d] == RP_ANSWER_NONE)
                continue;
            *(out ? of : own) = *(out ? own : of);
            of++;
        }
}

/* Fills in the references that the fixture gives to the first iteration. */
static void
set_given(const Case *c, RpTokenBatch *batch)
{
    const RpTree *samples = rp_tree_find(c->f->samples, "samples");
    float given[MOST_DOCUMENTS];

    for (guint i = 0; i < 12; i++)
        given[i] =
            (float)rp_tree_nth(rp_tree_find(rp_tree_nth(samples, i / 2), "references"), i % 2)
                ->number;
    move_references(batch, given, FALSE);
}

/* ---- comparisons ---- */

static void
assert_near(const char *what, double value, double wanted)
{
    if (!(fabs(value - wanted) <= RELATIVE * MAX(1, fabs(wanted))))
        fail_msg("%s: %.9g, TRL %.9g", what, value, wanted);
}

static void
assert_metrics(const Case *c, const double *metrics)
{
    const RpTree *wanted = rp_tree_find(c->row, "metrics");
    guint n = 0;

    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++) {
        const char *name = rp_preference_metric_name((RpPreferenceMetric)i);
        const RpTree *found = NULL;

        for (guint k = 0; k < wanted->items->len; k++)
            if (g_str_equal(rp_tree_nth(wanted, k)->key, name))
                found = rp_tree_nth(wanted, k);
        if (found != NULL)
            assert_near(name, metrics[i], found->number);
        else
            assert_true(isnan(metrics[i]));
        n += found != NULL;
    }
    assert_int_equal(n, wanted->items->len);
}

/* Weights, or gradients of the step before, of what is trained. @prefix: of the fixture's names */
static void
assert_tensors(const Case *c, const char *prefix, gboolean gradients)
{
    for (guint w = 0; w < rp_weights_count(c->weights); w++) {
        const RpWeight *weight = rp_weights_nth(c->weights, w);
        g_autofree char *name = rp_adapter_tensor_name(c->weights, w);
        g_autofree char *full = g_strconcat(prefix, name + strlen("base_model.model."), NULL);
        const RpSafetensor *wanted = rp_safetensors_find(c->wanted, full);
        double difference = 0, norm = 0;

        if (!rp_weight_has_state(weight))
            continue;
        assert_non_null(wanted);
        g_autofree float *own = g_new(float, weight->elements);
        g_autofree float *buffer = g_new(float, weight->elements);

        if (gradients)
            assert_true(rp_trainer_gradient(c->trainer, w, own, NULL));
        else
            memcpy(own, rp_trainer_weight(c->trainer, w), weight->elements * sizeof *own);
        const float *value =
            rp_adapter_to_file(weight, RP_DTYPE_FP32, own, 0, weight->elements, buffer);

        for (guint64 i = 0; i < weight->elements; i++) {
            const double want = ((const float *)wanted->data)[i];

            difference += (value[i] - want) * (value[i] - want);
            norm += want * want;
        }
        if (!(sqrt(difference) <= RELATIVE * sqrt(norm)))
            fail_msg("%s %s: relative error %.3g", rp_tree_find(c->row, "name")->text, full,
                     sqrt(difference / norm));
    }
}

static void
assert_step(Case *c, RpTokenBatch *batch, double wanted)
{
    GError *error = NULL;
    double loss;

    if (!rp_trainer_forward_backward(c->trainer, batch, &loss, &error) ||
        !rp_trainer_step(c->trainer, &error))
        fail_msg("%s", error->message);
    assert_near("loss", loss, wanted);
}

/* ---- tests ---- */

static const char *const names[] = {"dpo",   "dpo-lora",   "dpo-smoothed", "dpo-sft",
                                    "ipo",   "ipo-lora",   "orpo",         "orpo-lora",
                                    "simpo", "simpo-lora", "kto",          "kto-lora"};

static void
assert_first_step(const Fixture *f, const char *name, const Run *run)
{
    Case c;

    load_case(&c, f, name);
    start_case(&c, run);
    g_autoptr(RpTokenBatch) batch = make_batch(&c, 0);

    set_given(&c, batch);
    assert_step(&c, batch, number(c.row, "loss"));
    assert_true(rp_trainer_flush(c.trainer, NULL));
    assert_near("loss", c.reports[0].loss, number(c.row, "loss"));
    assert_metrics(&c, c.reports[0].metrics);
    assert_tensors(&c, "grad.", TRUE);
    end_case(&c);
}

RP_TEST(has_the_losses_metrics_and_gradients_of_trl)
{
    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        assert_first_step(
            *state, names[i],
            &(Run){.devices = 1 + i % 2, .head_chunk = 7, .reference = RP_REFERENCE_PRECOMPUTED});
}

RP_TEST(makes_logits_once_where_one_chunk_holds_all)
{
    for (guint i = 0; i < G_N_ELEMENTS(names); i += 3)
        assert_first_step(
            *state, names[i],
            &(Run){.devices = 1, .head_chunk = 1024, .reference = RP_REFERENCE_PRECOMPUTED});
}

RP_TEST(has_the_same_loss_with_each_pair_in_a_row)
{
    for (guint i = 0; i < G_N_ELEMENTS(names); i += 2)
        assert_first_step(
            *state, names[i],
            &(Run){
                .devices = 1, .head_chunk = 7, .each = 1, .reference = RP_REFERENCE_PRECOMPUTED});
}

RP_TEST(has_them_with_both_answers_behind_one_prompt)
{
    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        assert_first_step(*state, names[i],
                          &(Run){.devices = 1 + i % 2,
                                 .head_chunk = 7,
                                 .reference = RP_REFERENCE_PRECOMPUTED,
                                 .each = i % 3,
                                 .shares = TRUE});
}

/* Scores batches before each step, or all of them before the first. */
static void
assert_ten_steps(const Fixture *f, const char *name, guint devices, gboolean shares)
{
    const RpTree *losses;
    RpTokenBatch *batches[STEPS];
    Case c;

    load_case(&c, f, name);
    start_case(&c, &(Run){.devices = devices, .head_chunk = 16, .shares = shares});
    losses = rp_tree_find(c.row, "losses");
    for (guint i = 0; i < STEPS; i++)
        batches[i] = make_batch(&c, i);
    if (c.preference.reference == RP_REFERENCE_PRECOMPUTED)
        assert_true(rp_trainer_score(c.trainer, batches, STEPS, TRUE, NULL));
    for (guint i = 0; i < STEPS; i++) {
        const gboolean scored = c.preference.reference == RP_REFERENCE_ADAPTERS ||
                                c.preference.reference == RP_REFERENCE_COPY;

        if (scored)
            assert_true(rp_trainer_score(c.trainer, &batches[i], 1, TRUE, NULL));
        assert_step(&c, batches[i], rp_tree_nth(losses, i)->number);
    }
    assert_true(rp_trainer_flush(c.trainer, NULL));
    if (rp_safetensors_find(c.wanted, "final.model.norm.weight") != NULL ||
        number(c.row, "lora") > 0)
        assert_tensors(&c, "final.", FALSE);
    for (guint i = 0; i < STEPS; i++)
        rp_token_batch_free(batches[i]);
    end_case(&c);
}

RP_TEST(takes_ten_steps_as_trl_does)
{
    for (guint i = 0; i < 2 * G_N_ELEMENTS(names); i++)
        assert_ten_steps(*state, names[i / 2], 1 + i / 2 % 2, i % 2 == 1);
}

/* References of two steps' batches, before and after these steps. */
static void
score_steps(const Fixture *f, const char *name, const Run *run, float references[4][MOST_DOCUMENTS])
{
    RpTokenBatch *batches[2];
    Case c;

    load_case(&c, f, name);
    start_case(&c, run);
    for (guint i = 0; i < 2; i++)
        batches[i] = make_batch(&c, i);
    for (guint i = 0; i < 4; i++) {
        if (i % 2 == 0 && (i == 0 || run->reference != RP_REFERENCE_PRECOMPUTED))
            assert_true(rp_trainer_score(c.trainer, batches, 2, TRUE, NULL));
        memset(references[i], 0, sizeof references[i]);
        move_references(batches[i % 2], references[i], TRUE);
        assert_true(rp_trainer_forward_backward(c.trainer, batches[i % 2], NULL, NULL));
        assert_true(rp_trainer_step(c.trainer, NULL));
    }
    for (guint i = 0; i < 2; i++)
        rp_token_batch_free(batches[i]);
    end_case(&c);
}

/* A matrix library may round a row differently where it stands elsewhere, or where matrices are fused. */
static void
assert_nearly_same(float a[4][MOST_DOCUMENTS], float b[4][MOST_DOCUMENTS])
{
    for (guint i = 0; i < 4; i++)
        for (guint d = 0; d < MOST_DOCUMENTS; d++)
            assert_true(fabsf(a[i][d] - b[i][d]) <= 1e-5F * fabsf(a[i][d]));
}

RP_TEST(has_the_same_references_whoever_keeps_them)
{
    float a[4][MOST_DOCUMENTS], b[4][MOST_DOCUMENTS];

    score_steps(*state, "dpo", &(Run){1, 16, RP_REFERENCE_PRECOMPUTED, FALSE, 0, 0, FALSE}, a);
    assert_memory_equal(a[0], a[2], sizeof a[0]);
    for (guint async = 0; async < 2; async++) {
        score_steps(*state, "dpo", &(Run){2, 16, RP_REFERENCE_COPY, async, 0, 0, FALSE}, b);
        assert_memory_equal(a, b, sizeof a);
    }
    score_steps(*state, "dpo-lora", &(Run){1, 16, RP_REFERENCE_ADAPTERS, FALSE, 0, 0, FALSE}, b);
    assert_nearly_same(a, b); /* the adapters' base is the model of the full case */
    score_steps(*state, "dpo-lora", &(Run){2, 16, RP_REFERENCE_PRECOMPUTED, FALSE, 0, 0, FALSE}, a);
    assert_memory_equal(a, b, sizeof a);
}

RP_TEST(has_the_same_references_with_each_pair_in_a_row)
{
    float a[4][MOST_DOCUMENTS], b[4][MOST_DOCUMENTS];

    score_steps(*state, "dpo", &(Run){1, 16, RP_REFERENCE_COPY, FALSE, 2, 0, FALSE}, a);
    score_steps(*state, "dpo", &(Run){1, 16, RP_REFERENCE_COPY, FALSE, 1, 0, FALSE}, b);
    assert_nearly_same(a, b);
}

static void
copy_weights(const Case *c, GArray *to)
{
    for (guint w = 0; w < rp_weights_count(c->weights); w++)
        if (rp_weight_has_state(rp_weights_nth(c->weights, w)))
            g_array_append_vals(to, rp_trainer_weight(c->trainer, w),
                                (guint)rp_weights_nth(c->weights, w)->elements);
}

RP_TEST(has_the_same_bits_on_any_number_of_devices)
{
    static const char *const some[] = {"dpo", "dpo-lora", "kto", "orpo"};

    for (guint i = 0; i < G_N_ELEMENTS(some); i++) {
        g_autoptr(GArray) first = NULL;

        for (guint devices = 1; devices <= 4; devices *= 2) {
            g_autoptr(GArray) own = g_array_new(FALSE, FALSE, sizeof(float));
            Case c;

            load_case(&c, *state, some[i]);
            start_case(&c, &(Run){.devices = devices,
                                  .head_chunk = 16,
                                  .micro_batches = 4,
                                  .shares = i % 2 == 0});
            for (guint s = 0; s < 3; s++) {
                RpTokenBatch *batch = make_batch(&c, s);

                if (c.preference.reference != RP_REFERENCE_NONE)
                    assert_true(rp_trainer_score(c.trainer, &batch, 1, TRUE, NULL));
                assert_true(rp_trainer_forward_backward(c.trainer, batch, NULL, NULL));
                assert_true(rp_trainer_step(c.trainer, NULL));
                rp_token_batch_free(batch);
            }
            assert_true(rp_trainer_flush(c.trainer, NULL));
            copy_weights(&c, own);
            end_case(&c);
            if (first == NULL)
                first = g_steal_pointer(&own);
            else
                assert_memory_equal(first->data, own->data, first->len * sizeof(float));
        }
    }
}

/* The first six samples as a file of samples has them. (transfer full) */
static RpDataset *
make_dataset(const Case *c, const char *directory)
{
    static const char *const files[] = {"samples", NULL};
    const RpTree *samples = rp_tree_find(c->f->samples, "samples");
    g_autofree char *path = g_build_filename(directory, "samples.bin", NULL);
    g_autoptr(RpCacheWriter) writer = rp_must(rp_cache_writer_new, path, 1, 0640);
    RpCacheHeader header;

    for (guint i = 0; i < 6; i++) {
        const RpTree *sample = rp_tree_nth(samples, i);
        gint32 ids[MOST_TOKENS], labels[MOST_TOKENS];
        RpSplit split = {0, RP_ANSWER_CHOSEN};
        guint32 n = 0;

        for (guint d = 0; d < 2; d++) {
            const RpTree *parts[] = {rp_tree_find(sample, "prompt"),
                                     rp_tree_nth(rp_tree_find(sample, "answers"), d)};

            for (guint part = 0; part < 2; part++)
                for (guint t = 0; t < parts[part]->items->len; t++, n++) {
                    ids[n] = (gint32)(gint64)rp_tree_nth(parts[part], t)->number;
                    labels[n] = part > 0 ? ids[n] : RP_LABEL_MASKED;
                }
            split.tokens = d == 0 ? n : split.tokens;
        }
        assert_true(rp_cache_writer_add(writer, ids, labels, n, split, 0, i, NULL));
    }
    assert_true(rp_cache_writer_finish(writer, 0, &header, NULL));
    return rp_must(rp_dataset_open_cache, path, 1, "DATA", files, c->f->config.vocab, &header);
}

/* References of adapters and of a copy are made as the data is read; the third case has none. */
RP_TEST(evaluates_to_the_losses_and_metrics_of_trl)
{
    static const char *const some[] = {"dpo-lora", "dpo", "orpo", "simpo-lora"};
    g_autofree char *directory = g_dir_make_tmp("test-preference-XXXXXX", NULL);

    for (guint i = 0; i < G_N_ELEMENTS(some); i++) {
        RpEvaluation evaluation;
        Case c;

        load_case(&c, *state, some[i]);
        start_case(&c, &(Run){.devices = 2, .head_chunk = 16, .evaluates = TRUE});
        g_autoptr(RpDataset) dataset = make_dataset(&c, directory);

        assert_true(rp_trainer_evaluate(c.trainer, dataset, 0, NULL, NULL, &evaluation, NULL));
        assert_near("loss", evaluation.loss, rp_tree_nth(rp_tree_find(c.row, "losses"), 0)->number);
        assert_int_equal(evaluation.n_pairs, 6);
        if (c.preference.reference == RP_REFERENCE_NONE)
            assert_metrics(&c, evaluation.metrics);
        else
            assert_true(evaluation.metrics[RP_PREFERENCE_REWARDS_ACCURACIES] <= 1);
        end_case(&c);
    }
    rp_file_remove_directory(directory);
}

/* A copy takes 4 bytes a parameter of fp32, and its memory is in the plan. */
RP_TEST(counts_the_copy_of_a_reference)
{
    guint64 bytes[2], elements = 0;

    for (guint i = 0; i < 2; i++) {
        Case c;

        load_case(&c, *state, "dpo");
        start_case(&c, &(Run){.devices = 1,
                              .head_chunk = 16,
                              .reference = i == 0 ? RP_REFERENCE_PRECOMPUTED : RP_REFERENCE_COPY});
        bytes[i] = rp_trainer_arena_bytes(c.trainer, 1);
        elements = 0;
        for (guint w = 0; w < rp_weights_count(c.weights); w++)
            if (rp_weight_has_state(rp_weights_nth(c.weights, w)))
                elements += rp_weights_nth(c.weights, w)->elements;
        end_case(&c);
    }
    assert_true(bytes[1] - bytes[0] >= 4 * elements);
    assert_true(bytes[1] - bytes[0] < 4 * elements + 4 * 2048); /* layers are aligned */
}

/* One line, before memory is taken. */
RP_TEST(refuses_a_reference_that_is_not_there)
{
    static const struct {
        const char *name, *message;
        RpReference reference;
    } rows[] = {
        {"dpo", "adapters that are switched off, and the run has none", RP_REFERENCE_ADAPTERS},
        {"dpo", "needs a reference", RP_REFERENCE_NONE},
        {"orpo", "has no reference", RP_REFERENCE_COPY},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        Case c;

        load_case(&c, *state, rows[i].name);
        RpTrainerOptions options = {
            .weights = c.weights,
            .plan = {.schedule = rp_schedule_find("roundpipe", NULL), .gpus = 1},
            .network = {.packed_tokens = 4, .preference = c.preference}};
        GError *error = NULL;

        options.network.preference.reference = rows[i].reference;
        assert_null(rp_trainer_new(&options, &error));
        rp_assert_error_message_contains(error, rows[i].message);
        g_error_free(error);
        end_case(&c);
    }
}

RP_TEST_NEEDS(RP_TEST_N_DEVICES > 0)
