/* A timing file by its path, or by the name of a model: shipped, or made by the cost model. */
#include "cli/network.h"

#include <stdlib.h>
#include <string.h>

#include "cli/config.h"
#include "core/base/file.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/lora.h"
#include "core/profile/cards.h"
#include "run/model.h"

/* The card whose shipped profiles stand for a model. */
#define CARD "rtx4090"
#define MAX_NAME 128 /* of a model, bytes */

char *
rp_cli_shipped_profiles(const char *part)
{
    g_autofree char *here = rp_file_own_directory();
    g_autofree char *beside = g_build_filename(here, "..", RP_PROFILES_BELOW_PREFIX, NULL);
    g_autofree char *moved = realpath(beside, NULL);
    const char *const places[] = {moved, RP_SOURCE_PROFILES_DIR, RP_INSTALLED_PROFILES_DIR};
    guint i = 0;

    while (i + 1 < G_N_ELEMENTS(places) &&
           (places[i] == NULL || !g_file_test(places[i], G_FILE_TEST_IS_DIR)))
        i++;
    return g_build_filename(places[i], part, NULL);
}

/* Whether @word can only be the path of a file. */
static gboolean
is_path(const char *word)
{
    return g_file_test(word, G_FILE_TEST_EXISTS) || g_str_has_suffix(word, ".json") ||
           (strchr(word, G_DIR_SEPARATOR) != NULL && rp_model_find(word, NULL) == NULL);
}

char *
rp_cli_profile_path(const char *word)
{
    g_autofree char *directory = rp_cli_shipped_profiles(CARD);
    const RpModel *model = rp_model_find(word, NULL);
    g_autofree char *base = g_strconcat(model != NULL ? model->name : word, ".json", NULL);
    g_autofree char *path = g_build_filename(directory, base, NULL);

    return !is_path(word) && g_file_test(path, G_FILE_TEST_EXISTS) ? g_steal_pointer(&path)
                                                                   : g_strdup(word);
}

/* A file that is not there: where one comes from. */
static RpProfile *
load_file(const char *path, GError **error)
{
    GError *problem = NULL;
    RpProfile *profile = rp_profile_load(path, &problem);

    if (profile != NULL)
        return profile;
    if (g_file_test(path, G_FILE_TEST_EXISTS))
        g_propagate_error(error, problem);
    else
        g_propagate_error(
            error, g_error_new(problem->domain, problem->code,
                               "%s; `roundpipe export --profile MODEL --gpu GPU -o %s` makes one "
                               "for a model of the catalogue, `roundpipe profile` measures one",
                               problem->message, path));
    if (error == NULL || *error != problem)
        g_error_free(problem);
    return NULL;
}

RpProfile *
rp_cli_predict_profile(const RpModel *model, const RpGpu *gpu, const RpRunSpec *run, GError **error)
{
    g_auto(GStrv) targets = rp_lora_read_targets(run->lora.targets);
    const RpWorkload workload = rp_cli_workload(run, targets);
    g_autoptr(RpProfile) profile = rp_cost_model_profile(model, gpu, &workload, error);
    g_autoptr(GError) problem = NULL;
    g_autoptr(RpPlanNetwork) network =
        profile != NULL ? rp_plan_network_of(model, run, &problem) : NULL;

    if (network == NULL && run->devices != NULL && problem != NULL)
        return rp_null(rp_propagate_error(error, g_steal_pointer(&problem)));
    if (network != NULL) {
        const RpAdviseSizes *sizes = &network->sizes;
        g_autoptr(RpProfile) sized =
            sizes->make(profile->sequences, profile->tokens_per_sequence, sizes->user_data);

        rp_profile_take_sizes(profile, sized);
    }
    return g_steal_pointer(&profile);
}

static RpProfile *
make_predicted(const RpModel *model, const RpBoxArgs *box, guint gpus, GError **error)
{
    RpRunSpec run = {0};
    g_autoptr(GArray) card_of = NULL;
    g_autoptr(GPtrArray) gpus_of_box = rp_box_open_cards(box, CARD, &card_of, error);
    g_autoptr(GPtrArray) cards = g_ptr_array_new_with_free_func((GDestroyNotify)rp_profile_free);

    rp_run_spec_init(&run);
    run.micro_batch_size = box->micro_batch > 0 ? box->micro_batch : RP_CLI_SEQUENCES;
    run.sequence_length = box->sequence > 0 ? box->sequence : RP_CLI_TOKENS;
    run.plan.gpus = gpus > 0 ? gpus : RP_CLI_GPUS;
    for (guint c = 0; gpus_of_box != NULL && c < gpus_of_box->len; c++) {
        RpProfile *card =
            rp_cli_predict_profile(model, g_ptr_array_index(gpus_of_box, c), &run, error);

        if (card == NULL)
            return NULL;
        g_ptr_array_add(cards, card);
    }
    if (gpus_of_box == NULL)
        return NULL;
    g_autoptr(RpProfile) profile =
        card_of->len == 0 ? rp_profile_copy(g_ptr_array_index(cards, 0))
                          : rp_profile_box((const RpProfile *const *)(void *)cards->pdata,
                                           (const guint *)(void *)card_of->data, card_of->len);

    return rp_box_connect(box, profile, error) ? g_steal_pointer(&profile) : NULL;
}

/* Whether a file or directory is a model's: a config.json has a type and no format. */
static gboolean
is_model(const char *path)
{
    g_autofree char *text = NULL;

    if (g_file_test(path, G_FILE_TEST_IS_DIR))
        return TRUE;
    /* a pipe would be read here, and its writer waited for */
    return g_file_test(path, G_FILE_TEST_IS_REGULAR) &&
           g_file_get_contents(path, &text, NULL, NULL) &&
           strstr(text, "\"" RP_PROFILE_FORMAT "\"") == NULL &&
           (strstr(text, "\"model_type\"") != NULL || strstr(text, "\"architectures\"") != NULL);
}

/* A file's is named after its directory. */
gboolean
rp_cli_open_model(const char *word, RpModel *model, char **name, GError **error)
{
    g_autofree char *directory = rp_run_find_directory(word);

    if (!rp_run_find_model(word, model, error))
        return FALSE;
    g_autofree char *hub = rp_model_hub_name(word, NULL);
    g_autofree char *base = g_path_get_basename(hub != NULL         ? hub
                                                : directory != NULL ? directory
                                                                    : model->name);

    *name = rp_profile_text(base, MAX_NAME);
    model->name = model->hf_name = *name;
    return TRUE;
}

static RpProfile *
load_model(const char *path, const RpBoxArgs *box, guint gpus, GError **error)
{
    g_autofree char *name = NULL;
    RpModel model;

    if (!rp_cli_open_model(path, &model, &name, error))
        return NULL;
    return make_predicted(&model, box, gpus, error);
}

/* The option that only the cost model has times for; %NULL: none was given. */
static const char *
needs_model(const RpBoxArgs *box)
{
    return box->gpu != NULL       ? "gpu"
           : box->sequence > 0    ? "sequence"
           : box->micro_batch > 0 ? "micro-batch"
                                  : NULL;
}

RpProfile *
rp_cli_load_profiles(const char *word, const RpBoxArgs *box, guint gpus, GError **error)
{
    static const RpBoxArgs usual = {0};
    g_autofree char *path = rp_cli_profile_path(word);
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(GError) problem = NULL;

    box = box != NULL ? box : &usual;
    if (!rp_box_count(box, &gpus, error))
        return NULL;
    if (is_path(word) && is_model(word))
        return load_model(word, box, gpus, error);
    const char *modelled = needs_model(box);

    if (g_file_test(word, G_FILE_TEST_EXISTS) && modelled != NULL) {
        (void)rp_cli_refuse(
            error,
            "--%s: %s has the times of its card and its micro-batches; expected the "
            "name or the config.json of a model beside it, or no --%s",
            modelled, word, modelled);
        return NULL;
    }
    if (is_path(word) || (is_path(path) && modelled == NULL)) {
        profile = load_file(path, error);
        for (RpProfile *p = profile; p != NULL; p = p->next)
            if (!rp_box_change(box, p, error))
                return NULL;
        return g_steal_pointer(&profile);
    }
    const RpModel *model = rp_model_find(word, &problem);
    if (model != NULL)
        return make_predicted(model, box, gpus, error);
    return rp_null(rp_fail(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "%s: no such file, and %s",
                           word, problem->message));
}

RpProfile *
rp_cli_load_profile(const char *word, const RpBoxArgs *box, guint gpus, GError **error)
{
    g_autoptr(RpProfile) profile = rp_cli_load_profiles(word, box, gpus, error);

    if (profile == NULL || profile->next == NULL)
        return g_steal_pointer(&profile);
    g_autofree char *all = rp_profile_micro_batches(profile);

    (void)rp_cli_refuse(
        error,
        "%s: expected times of one micro-batch, found those of %s sequences; `plan` "
        "and `train` choose",
        word, all);
    return NULL;
}

static gboolean
is_named(const char *text)
{
    return text != NULL && *text != '\0';
}

char *
rp_cli_model_name(const RpProfile *profile)
{
    return g_strdup(is_named(profile->model) ? profile->model : "a model without a name");
}

char *
rp_cli_subject(const RpProfile *profile, guint gpus)
{
    g_autofree char *model = rp_cli_model_name(profile);

    if (rp_profile_is_mixed(profile)) /* says how many of each */
        return g_strdup_printf("%s on %s", model, profile->device);
    return is_named(profile->device)
               ? g_strdup_printf("%s on %u x %s", model, gpus, profile->device)
               : g_strdup_printf("%s on %u device%s", model, gpus, gpus == 1 ? "" : "s");
}
