/* Run files: values become a run, and what follows from them. */
#include "run/run-file.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/schedules/schedule.h"
#include "run/devices.h"
#include "run/values.h"

#define MAX_FILE_BYTES ((gsize)1 << 20)

/* ---- values ---- */

static gboolean
fail_value(const RpRunValue *value, GError **error)
{
    g_autofree char *expected = rp_setting_expects(value->setting);
    g_autofree char *found = *value->text != '\0' ? rp_quote(value->text) : g_strdup("nothing");
    g_autofree const char **names = rp_setting_names(value->setting);
    const char *near = rp_nearest_name(value->text, names);

    return rp_run_value_fail(value, error, RP_RUN_ERROR_VALUE, "expected %s, found %s%s%s%s",
                             expected, found, near != NULL ? "; did you mean \"" : "",
                             near != NULL ? near : "", near != NULL ? "\"?" : "");
}

/* A setting that has no default and need not be given is unset if its text is empty. */
static gboolean
store_value(RpRunValue *value, const char *name, RpRunSpec *run, GError **error)
{
    const RpSetting *setting = value->setting;
    gint64 number = 0;

    if (setting->initial == NULL && !setting->required && value->text != NULL &&
        *value->text == '\0')
        rp_run_value_set(value, NULL, NULL, FALSE);
    if (value->text == NULL && setting->required) {
        g_autofree char *expected = rp_setting_expects(setting);

        return rp_fail_in(error, name, RP_RUN_ERROR, RP_RUN_ERROR_KEY,
                          "%s: required: expected %s, found nothing", setting->key, expected);
    }
    if (value->text == NULL)
        return TRUE;
    if (!rp_setting_store(setting, value->text, run))
        return fail_value(value, error);
    if (setting->type == RP_SETTING_WHOLE &&
        g_ascii_string_to_signed(value->text, 10, G_MININT64, G_MAXINT64, &number, NULL)) {
        g_free(value->text);
        value->text = g_strdup_printf("%" G_GINT64_FORMAT, number); /* 010 is ten */
    }
    return TRUE;
}

/* ---- what follows from the values ---- */

/* A card's name stands for no file: one that is there is read. */
static gboolean
resolve_card(const RpRunValues *values, RpRunSpec *run, GError **error)
{
    g_autoptr(GError) problem = NULL;

    if (run->device_split != NULL)
        return rp_run_value_fail(
            rp_run_values_find(values, "device_split"), error, RP_RUN_ERROR_KEY,
            "expected it not beside profile: %s, for whole cards are predicted", run->profile);
    if (rp_run_predicted_devices(run->devices, &run->device_ops, &run->n_devices, &problem))
        return TRUE;
    return rp_run_value_fail(rp_run_values_find(values, "devices"), error, RP_RUN_ERROR_VALUE,
                             "%s, beside profile: %s", problem->message, run->profile);
}

static gboolean
resolve_devices(const RpRunValues *values, RpRunSpec *run, GError **error)
{
    g_autoptr(GError) problem = NULL;

    if (!rp_run_measures(run) && !g_file_test(run->profile, G_FILE_TEST_EXISTS))
        run->card = rp_gpu_find(run->profile, NULL);
    if (run->card != NULL)
        return resolve_card(values, run, error);
    if (rp_run_parse_devices(run->devices, run->device_split, &run->device_ops, &run->n_devices,
                             &problem))
        return TRUE;
    return rp_run_value_fail(
        rp_run_values_find(values, run->device_split != NULL ? "device_split" : "devices"), error,
        RP_RUN_ERROR_VALUE, "%s", problem->message);
}

static gboolean
resolve_slow(const RpRunValues *values, RpRunSpec *run, GError **error)
{
    const RpRunValue *value = rp_run_values_find(values, "host_slow");
    g_autoptr(GError) problem = NULL;

    if (run->host_slow == NULL)
        return TRUE;
    if (!run->device_ops->host_memory)
        return rp_run_value_fail(value, error, RP_RUN_ERROR_KEY,
                                 "expected devices: host:N beside it, found %s", run->devices);
    run->slow = rp_run_parse_slow(run->host_slow, run->n_devices, &problem);
    if (run->slow == NULL)
        return rp_run_value_fail(value, error, RP_RUN_ERROR_VALUE, "%s", problem->message);
    for (guint g = 0; g < run->n_devices; g++)
        if (run->slow[g].link != 1)
            return rp_run_value_fail(
                value, error, RP_RUN_ERROR_VALUE,
                "expected devices, as 1=1.5, found the link of device %u: copies are "
                "not slowed down",
                g);
    return TRUE;
}

static gboolean
check_dispatch(const RpRunValues *values, const RpScheduleOps *schedule, const RpRunSpec *run,
               GError **error)
{
    if (run->dispatch == RP_DISPATCH_ROTATION ||
        (run->schedule_file == NULL && rp_schedule_is_rotated(schedule)))
        return TRUE;
    return rp_run_value_fail(
        rp_run_values_find(values, "dispatch"), error, RP_RUN_ERROR_VALUE,
        "expected rotation: schedule %s says itself on which device a stage runs",
        run->schedule_file != NULL ? run->schedule_file : run->schedule);
}

static gboolean
has_rounds(const RpScheduleOps *schedule)
{
    return schedule->dispatched && rp_schedule_is_trained(schedule);
}

/* Checks that devices and micro-batches suit a schedule with replicas. */
static gboolean
check_replicas(const RpRunValues *values, const RpScheduleOps *schedule, const RpRunSpec *run,
               const RpShape *given, GError **error)
{
    const RpRunValue *value = rp_run_values_find(values, "replicas");
    RpShape shape = *given;

    if (run->replicas == 1)
        return TRUE;
    if (!rp_schedule_is_rotated(schedule) || run->schedule_file != NULL) {
        g_autofree char *others = rp_schedule_names(has_rounds);

        return rp_run_value_fail(
            value, error, RP_RUN_ERROR_VALUE,
            "schedule %s says itself on which device a stage runs; expected 1, found "
            "%" G_GINT64_FORMAT "; more are for %s",
            run->schedule_file != NULL ? run->schedule_file : run->schedule, run->replicas, others);
    }
    if (shape.round == 0 || run->round_choice <= 0)
        shape.round = MAX(1, shape.micro_batches / shape.replicas);
    if (shape.micro_batches % shape.round == 0 && rp_schedule_check(schedule, &shape, error))
        return TRUE;
    if (error != NULL && *error == NULL)
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                    "%u micro-batches do not divide into %u replicas", shape.micro_batches,
                    shape.replicas);
    return rp_prefix_error(error, "%sreplicas: ", value->place);
}

static gboolean
resolve_round(const RpRunValues *values, const RpScheduleOps *schedule, RpRunSpec *run,
              GError **error)
{
    const RpRunValue *value = rp_run_values_find(values, "round");
    const gint64 given = run->round_choice;
    const gboolean dispatched = schedule->dispatched && run->schedule_file == NULL;
    const RpShape shape = {.gpus = run->n_devices,
                           .micro_batches = (guint)run->micro_batches,
                           .stages = MAX(2, run->n_devices),
                           .replicas = (guint)run->replicas,
                           .round = (guint)given};

    if (given > 0 && !dispatched) {
        g_autofree char *others = rp_schedule_names(has_rounds);

        return rp_run_value_fail(
            value, error, RP_RUN_ERROR_VALUE,
            "schedule %s runs all micro-batches as one round; expected all or auto, "
            "found %" G_GINT64_FORMAT "; numbers are for %s",
            run->schedule_file != NULL ? run->schedule_file : run->schedule, given, others);
    }
    if (!check_replicas(values, schedule, run, &shape, error))
        return FALSE;
    if (given > 0 && !rp_schedule_check(schedule, &shape, error))
        return rp_prefix_error(error, "%sround: ", value->place);
    run->round = given > 0                                 ? given
                 : given == RP_RUN_ROUND_ALL && dispatched ? run->micro_batches / run->replicas
                                                           : 0;
    return TRUE;
}

/* Steps or epochs say when a run ends: of both steps, as in transformers. */
static gboolean
resolve_length(RpRunSpec *run, const char *name, GError **error)
{
    if (run->steps > 0)
        run->epochs = 0;
    if (run->steps > 0 || run->epochs > 0)
        return TRUE;
    return rp_fail_in(error, name, RP_RUN_ERROR, RP_RUN_ERROR_KEY,
                      "steps: required: expected a whole number from 1 to 1000000000000, or "
                      "epochs instead, found nothing");
}

const char *
rp_run_reference_problem(const RpRunSpec *run)
{
    const gboolean adapters = run->reference_choice == RP_REFERENCE_ADAPTERS;

    if (run->objective == RP_OBJECTIVE_SFT)
        return "expected an objective of preferences (dpo) beside it, found sft";
    if (!rp_objective_info((RpObjective)run->objective)->has_reference)
        return "expected it for dpo, ipo or kto, found an objective that has no reference";
    if (adapters && run->lora.save != NULL)
        return "expected copy or precomputed, as lora.save has whole modules trained, too, found "
               "adapters";
    if (adapters && run->lora.rank == 0 && run->lora.start == NULL)
        return "expected copy or precomputed, as there are no adapters without lora.rank, found "
               "adapters";
    return NULL;
}

RpReference
rp_run_choose_reference(const RpRunSpec *run, double epochs, const char **why)
{
    const char *reason;
    RpReference reference = RP_REFERENCE_PRECOMPUTED;

    if (!rp_objective_info((RpObjective)run->objective)->has_reference) {
        reference = RP_REFERENCE_NONE;
        reason = "the objective has none";
    } else if (run->reference_choice != RP_REFERENCE_NONE) {
        reference = (RpReference)run->reference_choice;
        reason = "as given";
    } else if (run->lora.rank > 0 && run->lora.save == NULL) {
        reference = RP_REFERENCE_ADAPTERS;
        reason = "the model with its adapters off needs no memory";
    } else if (epochs > 0 && epochs < 1) {
        reference = RP_REFERENCE_COPY;
        reason = "the steps see a part of the samples, and others are not scored";
    } else {
        reason = "each sample is scored once, and no copy of the weights is kept";
    }
    if (why != NULL)
        *why = reason;
    return reference;
}

#define LORA_KEYS "lora.alpha lora.targets lora.rslora lora.save lora.dropout lora.rank"

/* Keys that mean nothing without others, or beside them: refused, not passed over. */
static gboolean
check_beside(const RpRunValues *values, const RpRunSpec *run, GError **error)
{
    const gboolean rank = run->lora.rank > 0, start = run->lora.start != NULL;
    const gboolean data = run->eval.data != NULL, split = run->eval.split > 0;
    const gboolean steps = run->optimizer.warmup_steps > 0, ratio = run->optimizer.warmup_ratio > 0;
    const RpObjective objective = (RpObjective)run->objective;
    const RpObjectiveInfo *info = rp_objective_info(objective);
    const gboolean preference = objective != RP_OBJECTIVE_SFT;
    const struct {
        gboolean wrong;
        const char *keys, *problem;
    } rows[] = {
        {run->schedule_file != NULL, "schedule",
         "expected either the name of a schedule or a schedule_file, found both"},
        {run->given_stages, "partition",
         "expected either a partition to be chosen or lists of stages, found both"},
        {rank && start, LORA_KEYS, "expected it not beside lora.start, whose adapters have it"},
        {!rank && !start, LORA_KEYS, "expected lora.rank beside it, found none"},
        {rank || start, "freeze",
         "expected it not beside lora, which freezes all but its adapters"},
        {!data && !split, "eval.every eval.keep_best eval.patience",
         "expected eval.data or eval.split beside it, found none"},
        {data && split, "eval.split", "expected eval.data or a share of data, found both"},
        {steps && ratio, "optimizer.warmup_ratio",
         "expected warmup_steps or a share of the steps, found both"},
        {!preference, "beta sft_weight simpo_gamma desirable_weight undesirable_weight",
         "expected an objective of preferences (dpo) beside it, found sft"},
        {rp_run_reference_problem(run) != NULL, "reference", rp_run_reference_problem(run)},
        {preference && objective != RP_OBJECTIVE_SIMPO, "simpo_gamma",
         "expected objective: simpo beside it, found another"},
        {preference && objective != RP_OBJECTIVE_KTO, "desirable_weight undesirable_weight",
         "expected objective: kto beside it, found another"},
        {preference && !info->has_smoothing && run->label_smoothing > 0, "label_smoothing",
         "expected it for sft, dpo or simpo, found another objective"},
        {preference && run->label_smoothing >= 0.5, "label_smoothing",
         "expected less than 0.5, a share of pairs that are labelled the wrong way round"},
        {preference && run->loss != NULL, "loss",
         "expected it for objective: sft, found an objective that is a loss of its own"},
        {preference && run->train_on == RP_TRAIN_ON_ALL, "train_on",
         "expected assistant or last, as a preference is between answers, found all"},
        {preference && run->packing_choice == 1, "packing",
         "expected true or auto, as both answers of a preference share a sequence, found false"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(GStrv) keys = g_strsplit(rows[i].keys, " ", -1);

        for (char **key = keys; *key != NULL && rows[i].wrong; key++) {
            const RpRunValue *value = rp_run_values_find(values, *key);

            if (value->place != NULL)
                return rp_run_value_fail(value, error, RP_RUN_ERROR_KEY, "%s", rows[i].problem);
        }
    }
    return TRUE;
}

/* Numbers that are not given are those of the objective. */
static void
resolve_preference(const RpRunValues *values, RpRunSpec *run)
{
    const RpPreference usual = rp_preference_default((RpObjective)run->objective);
    RpPreference *preference = &run->preference;
    const struct {
        const char *key;
        double *value, usual;
    } rows[] = {{"beta", &preference->beta, usual.beta},
                {"sft_weight", &preference->sft_weight, usual.sft_weight},
                {"simpo_gamma", &preference->gamma, usual.gamma},
                {"desirable_weight", &preference->desirable_weight, usual.desirable_weight},
                {"undesirable_weight", &preference->undesirable_weight, usual.undesirable_weight}};

    preference->objective = (RpObjective)run->objective;
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
        if (rp_run_values_find(values, rows[i].key)->text == NULL)
            *rows[i].value = rows[i].usual;
    if (preference->objective == RP_OBJECTIVE_SFT)
        return;
    preference->label_smoothing = run->label_smoothing;
    run->label_smoothing = 0; /* of targets there is none */
    preference->reference = rp_run_choose_reference(run, 0, NULL);
}

/* Blocks at either end. */
static gboolean
read_plain(const RpRunValues *values, RpRunSpec *run, GError **error)
{
    g_auto(GStrv) words = g_strsplit(run->fp8.plain != NULL ? run->fp8.plain : "0,0", ",", -1);
    guint64 blocks[2] = {0};
    gboolean read = g_strv_length(words) == G_N_ELEMENTS(blocks);

    for (guint i = 0; read && i < G_N_ELEMENTS(blocks); i++)
        read = g_ascii_string_to_unsigned(g_strstrip(words[i]), 10, 0, 4096, &blocks[i], NULL);
    if (!read)
        rp_run_value_fail(rp_run_values_find(values, "fp8.plain_blocks"), error, RP_RUN_ERROR_VALUE,
                          "expected two numbers of blocks, as [1, 2], found %s", run->fp8.plain);
    run->fp8.plain_first = (guint)blocks[0];
    run->fp8.plain_last = (guint)blocks[1];
    return read;
}

static gboolean
resolve(const RpRunValues *values, RpRunSpec *run, GError **error)
{
    RpRunValue *async = rp_run_values_find(values, "async");
    const RpScheduleOps *schedule = rp_schedule_find(run->schedule, error);

    if (schedule == NULL)
        return FALSE;
    run->async = run->async_choice != 0
                     ? run->async_choice == 2
                     : run->schedule_file == NULL && rp_schedule_is_dispatched(schedule);
    if (rp_run_values_find(values, "router_aux_loss_coef")->text == NULL)
        run->router_aux_loss = -1;
    run->given_stages =
        run->stages != NULL || run->forward_stages != NULL || run->backward_stages != NULL;
    if (!check_beside(values, run, error) || !read_plain(values, run, error) ||
        !resolve_devices(values, run, error) || !resolve_slow(values, run, error) ||
        !check_dispatch(values, schedule, run, error) ||
        !resolve_round(values, schedule, run, error))
        return FALSE;
    resolve_preference(values, run);
    rp_run_value_set(async, run->async ? "true" : "false", async->place, async->from_set);
    if (run->given_stages)
        rp_run_value_set(rp_run_values_find(values, "partition"), NULL, NULL, FALSE);
    if (run->schedule_file != NULL)
        rp_run_value_set(rp_run_values_find(values, "schedule"), NULL, NULL, FALSE);
    return TRUE;
}

RpRunSpec *
rp_run_file_parse(const char *name, const char *text, gsize length, const char *const *sets,
                  GError **error)
{
    g_autoptr(RpRunValues) values = rp_run_values_new();
    g_autoptr(RpRunSpec) run = g_new0(RpRunSpec, 1);

    if (!rp_run_values_read(values, name, text, length, error))
        return NULL;
    for (; sets != NULL && *sets != NULL; sets++)
        if (!rp_run_values_set(values, *sets, error))
            return NULL;
    for (guint i = 0; i < values->len; i++)
        if (!store_value(&g_array_index(values, RpRunValue, i), name, run, error))
            return NULL;
    if (!resolve_length(run, name, error) || !resolve(values, run, error))
        return NULL;
    run->values = g_steal_pointer(&values);
    return g_steal_pointer(&run);
}

RpRunSpec *
rp_run_file_load(const char *path, const char *const *sets, GError **error)
{
    gsize length = 0;

    g_autofree char *text = rp_file_read(path, MAX_FILE_BYTES, &length, error);
    if (text == NULL)
        return NULL;
    return rp_run_file_parse(path, text, length, sets, error);
}

char *
rp_run_file_of(const RpRunSpec *run)
{
    return rp_run_values_to_yaml(run->values);
}

void
rp_run_spec_free(RpRunSpec *run)
{
    if (run == NULL)
        return;
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        rp_setting_clear(setting, run);
    g_clear_pointer(&run->values, g_array_unref);
    g_free(run->slow);
    g_free(run);
}
