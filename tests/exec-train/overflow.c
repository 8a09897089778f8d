#include "tests/exec-train/overflow.h"

#include <math.h>

#define LARGE_ID 60
#define LARGE_TARGET 59
#define BAD 0
#define GOOD 1

typedef struct {
    guint n;
    RpStepReport reports[16];
} Reports;

static void
note_report(gpointer user_data, const RpStepReport *report)
{
    Reports *reports = user_data;

    g_assert(reports->n < G_N_ELEMENTS(reports->reports));
    reports->reports[reports->n++] = *report;
}

/**
 * The place where LARGE_ID overflows. Normed, it is sqrt(32) in its first place; of other tokens
 * the place is a random number, and seldom 4.
 *
 *   OUTPUT  the first block's gate and up multiply it by 60: their product is 115,200
 *   LOSS    the logit of LARGE_TARGET is -73,500: in fp16 infinite, as is the loss, but not its
 *           gradient
 */
typedef enum { OUTPUT, LOSS } Where;

static void
change_weight(const RpWeight *weight, Where where, float *values)
{
    if (where == LOSS && weight->kind == RP_WEIGHT_HEAD)
        values[LARGE_TARGET * 32] = -13000;
    if (weight->kind == RP_WEIGHT_EMBEDDING)
        for (guint i = 0; i < 32; i++)
            values[LARGE_ID * 32 + i] = i == 0 ? 50 : 0;
    else if (where == OUTPUT && weight->layer == 1 &&
             (weight->kind == RP_WEIGHT_GATE || weight->kind == RP_WEIGHT_UP))
        for (guint i = 0; i < 48; i++)
            values[i * 32] = 60;
}

/* A frozen weight has no state: it is changed where devices read it. */
static void
change_frozen(RpTrainer *trainer, const RpWeights *weights, guint index, Where where)
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    const RpSafetensor *source = rp_weights_source(weights, index);
    const RpLayerLayout *layout = rp_network_layout(rp_trainer_network(trainer), weight->layer);
    const RpWeightPlace *place = &layout->place[weight->kind];
    g_autofree float *values = g_memdup2(source->data, weight->elements * sizeof(float));
    guint64 run;

    change_weight(weight, where, values);
    rp_dtype_from_float(
        place->storage, values,
        rp_host_state_weights(rp_trainer_host_state(trainer), weight->layer, 0, place->byte, &run),
        weight->elements);
}

static RpTrainer *
make_trainer(const RpTinyModel *model, const RpTinyRun *run, Where where, float scale)
{
    GError *error = NULL;
    RpTrainer *trainer = rp_tiny_trainer(model, run, &error);
    RpUpdateState update;

    if (trainer == NULL)
        fail_msg("%s", error->message);
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);

        if (!weight->trained) {
            change_frozen(trainer, model->weights, w, where);
            continue;
        }
        RpOptimizerState state = rp_trainer_weight_state(trainer, w);
        g_autofree float *values = g_memdup2(state.weight, state.n_parameters * sizeof(float));

        change_weight(weight, where, values);
        state.weight = values;
        assert_true(rp_trainer_restore_weight(trainer, w, &state, NULL, &error));
    }
    update = rp_host_state_updates(rp_trainer_host_state(trainer));
    update.loss_scale.scale = update.next_scale = scale;
    rp_trainer_restore(trainer, &update);
    return trainer;
}

/* One of its micro-batches holds LARGE_ID, if @kind is BAD. */
static RpTokenBatch *
make_batch(guint64 step, guint kind)
{
    RpTokenBatch *batch = rp_tiny_batch(step, 0, 4);

    for (guint i = 0; i < 4 * RP_TINY_SEQUENCES * RP_TINY_TOKENS; i++)
        if (batch->input_ids[i] == LARGE_ID)
            batch->input_ids[i] = 0;
    if (kind == BAD) {
        const guint at = 2 * RP_TINY_SEQUENCES * RP_TINY_TOKENS + 3;

        batch->input_ids[at] = LARGE_ID;
        batch->n_targets += batch->targets[at] == RP_LABEL_MASKED;
        batch->n_micro_targets[2] += batch->targets[at] == RP_LABEL_MASKED;
        batch->targets[at] = LARGE_TARGET;
    }
    return batch;
}

static gboolean
run_step(RpTrainer *trainer, guint64 step, guint kind, gboolean flush, GError **error)
{
    g_autoptr(RpTokenBatch) batch = make_batch(step, kind);

    return rp_trainer_forward_backward(trainer, batch, NULL, error) &&
           rp_trainer_step(trainer, error) && (!flush || rp_trainer_flush(trainer, error));
}

static void
check_reports(const Reports *reports, const guint *kinds, guint n)
{
    guint n_skipped = 0;

    assert_int_equal(reports->n, n);
    for (guint i = 0; i < n; i++) {
        const RpStepReport *report = &reports->reports[i];

        if (report->skipped != (kinds[i] == BAD) || isfinite(report->loss) != (kinds[i] == GOOD))
            fail_msg("step %u: %s, loss %g, norm %g", i + 1,
                     report->skipped ? "skipped" : "applied", report->loss, report->grad_norm);
        n_skipped += report->skipped;
    }
    assert_true(n_skipped > 0);
}

/* The weights as they are after each step. */
static void
check_unchanged(const RpTinyModel *model, const RpTinyRun *run, Where where, const guint *kinds,
                guint n)
{
    RpTrainer *trainer = make_trainer(model, run, where, 4);
    g_autofree char *before = rp_tiny_hash(trainer);
    GError *error = NULL;

    for (guint i = 0; i < n; i++) {
        if (!run_step(trainer, i, kinds[i], TRUE, &error))
            fail_msg("%s", error->message);
        char *after = rp_tiny_hash(trainer);
        if ((strcmp(before, after) == 0) != (kinds[i] == BAD))
            fail_msg("step %u has %schanged the weights", i + 1, kinds[i] == BAD ? "" : "not ");
        g_free(before);
        before = after;
    }
    rp_trainer_free(trainer);
}

/* (transfer full): hash of the final weights */
static char *
check_skips(const RpTinyModel *model, const RpDeviceOps *backend, gboolean async, Where where,
            guint devices)
{
    static const guint kinds[] = {GOOD, BAD, GOOD, GOOD, BAD, BAD, GOOD};
    Reports reports = {0};
    RpTinyRun run = {"roundpipe",
                     devices,
                     4,
                     .dtype = RP_DTYPE_FP16,
                     .async = async,
                     .max_skipped = 3,
                     .backend = backend,
                     .done = note_report,
                     .user_data = &reports};
    RpTrainer *trainer = make_trainer(model, &run, where, 4);
    GError *error = NULL;
    char *hash;

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        if (!run_step(trainer, i, kinds[i], i + 1 == G_N_ELEMENTS(kinds), &error))
            fail_msg("%u devices: %s", devices, error->message);
    hash = rp_tiny_hash(trainer);
    check_reports(&reports, kinds, G_N_ELEMENTS(kinds));
    const RpUpdateState state = rp_host_state_updates(rp_trainer_host_state(trainer));
    assert_int_equal(state.n_updates, 4);
    assert_true(state.loss_scale.scale == 0.5f); /* halved three times */
    rp_trainer_free(trainer);
    run.done = NULL;
    if (!async) /* otherwise weights change by the step before, too */
        check_unchanged(model, &run, where, kinds, G_N_ELEMENTS(kinds));
    return hash;
}

char *
rp_overflow_check_skips(const RpTinyModel *model, const RpDeviceOps *backend, gboolean async)
{
    GString *all = g_string_new(NULL);

    for (Where where = OUTPUT; where <= LOSS; where++) {
        if (RP_TEST_FEW && (where == LOSS) != async)
            continue;
        g_autofree char *expected = check_skips(model, backend, async, where, 1);

        for (guint devices = RP_TEST_FEW ? 3 : 2; devices <= 3; devices++) {
            g_autofree char *hash = check_skips(model, backend, async, where, devices);

            assert_string_equal(hash, expected);
        }
        g_string_append(all, expected);
    }
    return g_string_free(all, FALSE);
}

static void
assert_says(const GError *error, const char *text)
{
    if (error == NULL || strstr(error->message, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, error != NULL ? error->message : "no error");
}

void
rp_overflow_check_gives_up(const RpTinyModel *model, const RpDeviceOps *backend)
{
    static const guint kinds[] = {BAD, BAD, GOOD, BAD, BAD, BAD};

    for (guint devices = 1; devices <= 2; devices++) {
        const RpTinyRun run = {"roundpipe",      devices,           4, .dtype = RP_DTYPE_FP16,
                               .max_skipped = 3, .backend = backend};
        RpTrainer *trainer = make_trainer(model, &run, OUTPUT, 4);
        GError *error = NULL;

        for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
            const gboolean done = run_step(trainer, i, kinds[i], TRUE, &error);

            if (done != (i + 1 < G_N_ELEMENTS(kinds)))
                fail_msg("step %u: %s", i + 1, done ? "no error" : error->message);
        }
        assert_says(error, "step 6: 3 steps in a row");
        assert_says(error, "the loss");
        assert_says(error, "micro-batch 2");
        assert_says(error, "layer 1 (model.layers.0), sequence 0, token 3:");
        assert_says(error, "loss_scale.max_skipped");
        assert_says(error, "bf16");
        g_clear_error(&error);
        rp_trainer_free(trainer);

        /* gradients alone: a scale that is still too large when it is given up */
        trainer = make_trainer(model, &run, OUTPUT, 0x1p60f);
        for (guint i = 0; i < 3; i++)
            assert_true(run_step(trainer, i, GOOD, TRUE, &error) == (i < 2));
        assert_says(error, "step 3: 3 steps in a row");
        assert_says(error, "the gradient of ");
        assert_says(error, "loss scale");
        g_clear_error(&error);
        rp_trainer_free(trainer);
    }
}
