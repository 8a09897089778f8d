/* One evaluation of one file: a run that never trains.
 *
 * It would train the least that is possible: the adapters that are given, or one of rank 1 that adds
 * zeros. So a model has no gradients and no optimizer state, and stands as it stands in its file.
 */
#include "run/train/evaluate-file.h"

#include "run/train/loop.h"
#include "run/train/private.h"

/* Every architecture has it. */
#define SMALL_TARGET "model.layers.0.self_attn.q_proj"

void
rp_train_evaluated_clear(RpTrainEvaluated *evaluated)
{
    rp_train_job_clear(&evaluated->job);
    g_clear_pointer(&evaluated->run, rp_run_spec_free);
}

static void
add(GPtrArray *sets, const char *key, const char *value)
{
    g_ptr_array_add(sets, g_strdup_printf("%s=%s", key, value));
}

static RpRunSpec *
make_run(const char *model, const char *adapter, const RpRunSpec *options, GError **error)
{
    static const char text[] = "steps: 1\nasync: false\noutput: .\n";
    g_autoptr(GPtrArray) sets = g_ptr_array_new_with_free_func(g_free);

    add(sets, "model", model);
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const char *given = rp_run_spec_given(options, setting->key);

        if (given != NULL)
            add(sets, setting->key, given);
        if (given != NULL && strcmp(setting->key, "data") == 0)
            add(sets, "eval.data", given);
    }
    add(sets, adapter != NULL ? "lora.start" : "lora.rank", adapter != NULL ? adapter : "1");
    if (adapter == NULL)
        add(sets, "lora.targets", SMALL_TARGET);
    g_ptr_array_add(sets, NULL);
    return rp_run_file_parse("evaluation", text, sizeof text - 1,
                             (const char *const *)(void *)sets->pdata, error);
}

gboolean
rp_train_evaluate_file(const char *model, const char *adapter, const RpRunSpec *options,
                       const RpRunEvents *events, RpTrainEvaluated *evaluated, GError **error)
{
    RpTrainJob *job = &evaluated->job;
    RpTrainer *trainer;
    gboolean done;

    *evaluated = (RpTrainEvaluated){.run = make_run(model, adapter, options, error)};
    if (evaluated->run == NULL ||
        !rp_train_job_prepare(job, evaluated->run, NULL, FALSE, events, error))
        return FALSE;
    trainer = rp_train_make_trainer(job, FALSE, NULL, error);
    if (trainer == NULL)
        return FALSE;
    done = rp_trainer_evaluate(trainer, job->evaluation.dataset, job->batcher.pad_id,
                               rp_train_evaluation_progress, job, &evaluated->result, error);
    evaluated->left = !rp_trainer_free(trainer);
    return done;
}
