/* Sizes as `train` has them, of a network over a backend's kernels. */
#include <string.h>

#include "cli/network.h"
#include "exec/cuda/backend.h"
#include "exec/device/device.h"
#include "exec/model/hf-config.h"
#include "exec/network/network.h"
#include "exec/safetensors/safetensors.h"
#include "run/matmul.h"
#include "run/run-file.h"

struct _RpPlanNetwork {
    RpModel model;
    char *name; /* of @model */
    RpWeights *weights;
    const RpDeviceOps *devices;
    RpNetworkOptions options;
    RpLora lora; /* of rank 0: none; its targets are borrowed */
    RpAdviseSizes sizes;
};

void
rp_plan_network_free(RpPlanNetwork *network)
{
    if (network == NULL)
        return;
    rp_weights_free(network->weights);
    g_free(network->name);
    g_free(network);
}

static RpProfile *
make_sizes(guint sequences, guint tokens, gpointer user_data)
{
    const RpPlanNetwork *plan = user_data;
    RpNetworkOptions options = plan->options;

    options.sequences = sequences;
    options.tokens = tokens;
    /* of lengths that are looked at on the way to the longest, those that codes do not take stay plain */
    options.fp8.used = plan->options.fp8.used && (guint64)sequences * tokens % 16 == 0;
    options.packed_tokens = tokens; /* there is room for packed data: samples are whole sequences */
    g_autoptr(RpNetwork) network =
        rp_network_new(plan->weights, plan->devices->kernels(), &options);

    RpProfile *profile = rp_network_profile(network);

    /* a plan with all its buffers has links; how fast they are changes no size */
    profile->links.h2d_bytes_per_s = 1;
    profile->links.d2h_bytes_per_s = 1;
    return profile;
}

static gboolean
find_devices(RpPlanNetwork *network, const char *word, GError **error)
{
    static const char *const names[] = {"host", "cuda", NULL};
    const RpDeviceOps *cuda = rp_cuda_devices();
    const int choice = word != NULL ? rp_cli_choice("devices", word, names, error) : cuda != NULL;

    if (choice < 0)
        return FALSE;
    network->devices = choice == 0 ? rp_host_devices() : cuda;
    if (network->devices != NULL)
        return TRUE;
    return rp_cli_refuse(error,
                         "--devices: expected host, for what GPU code needs is not known: %s",
                         rp_cuda_missing_text());
}

/* Storage of weights, as `train` finds it: theirs if they are there, or what the config says. */
static gboolean
find_dtype(RpPlanNetwork *network, const char *directory, GError **error)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    const RpModel *model = &network->model;

    network->options.dtype = model->has_dtype ? model->dtype : RP_DTYPE_BF16;
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(directory, names[i], NULL);

        if (!g_file_test(path, G_FILE_TEST_EXISTS))
            continue;
        RpSafetensors *checkpoint = rp_safetensors_open(directory, error);
        gboolean bound =
            checkpoint != NULL &&
            (network->lora.rank == 0 || rp_weights_adopt(network->weights, checkpoint, error)) &&
            rp_weights_bind(network->weights, checkpoint, error);

        if (bound) {
            /* names, shapes and what is packed are all that is needed from here on */
            RpWeights *copy = rp_weights_copy(network->weights);

            network->options.dtype = rp_weights_dtype(network->weights);
            rp_weights_free(network->weights);
            network->weights = copy;
        }
        rp_safetensors_free(checkpoint);
        return bound;
    }
    return TRUE;
}

/* A base that is packed already stays as it is. */
static gboolean
pack_base(RpPlanNetwork *network, const char *word, GError **error)
{
    int choice = RP_RUN_BASE_OF_THE_FILE;

    if (!rp_cli_choose("base", "base", word, &choice, error))
        return FALSE;
    if (choice >= RP_RUN_BASE_PACKED && !rp_weights_is_packed(network->weights))
        rp_weights_pack_base(network->weights, (RpLowbit)(choice - RP_RUN_BASE_PACKED));
    return TRUE;
}

static gboolean
find_attention(RpPlanNetwork *network, const char *word, GError **error)
{
    const char *names[RP_N_ATTENTIONS + 1] = {NULL};
    int choice = 0;

    for (guint i = 0; i < RP_N_ATTENTIONS; i++)
        names[i] = rp_attention_name((RpAttentionChoice)i);
    if (word != NULL)
        choice = rp_cli_choice("attention", word, names, error);
    if (choice < 0)
        return FALSE;
    network->options.attention = (RpAttentionChoice)choice;
    if (network->devices->kernels()->has_attention(network->options.attention))
        return TRUE;
    return rp_cli_refuse(error, "--attention: %s kernels have no %s attention here",
                         network->devices->name, word);
}

/* Whether the cards can is known where they are. */
static gboolean
take_matmul(RpPlanNetwork *network, const RpPlanNetworkWords *words, GError **error)
{
    const RpRunMatmul matmul = {.choice = words->matmul, .half_sums = words->half_sums};
    g_autoptr(GError) problem = NULL;

    return rp_run_take_matmul(&matmul, "--", network->weights, NULL, 1, &network->options,
                              &problem) ||
           rp_cli_refuse(error, "%s", problem->message);
}

/* @directory: (nullable): of weights */
static gboolean
set_up(RpPlanNetwork *network, const char *directory, const RpPlanNetworkWords *words,
       GError **error)
{
    int choice = RP_DTYPE_BF16 + 1;

    if (!rp_cli_choose("dtype", "dtype", words->dtype, &choice, error) ||
        !find_devices(network, words->devices, error) ||
        !find_attention(network, words->attention, error) ||
        (directory != NULL && !find_dtype(network, directory, error)) ||
        !pack_base(network, words->base, error))
        return FALSE;
    if (directory == NULL || words->dtype != NULL)
        network->options.dtype = (RpDtype)(choice - 1);
    rp_weights_store_base(network->weights, network->options.dtype);
    if (!take_matmul(network, words, error))
        return FALSE;
    network->options.aux_loss = network->model.router_aux_loss;
    network->sizes = (RpAdviseSizes){
        .make = make_sizes,
        .user_data = network,
        .most_tokens = RP_RUN_MAX_COUNT,
        .max_positions = network->model.max_positions,
        .host_devices = words->devices != NULL && network->devices->host_memory,
    };
    return TRUE;
}

static RpPlanNetwork *
make(const RpModel *model, const char *directory, const RpPlanNetworkWords *words, GError **error)
{
    g_autoptr(RpPlanNetwork) network = g_new0(RpPlanNetwork, 1);

    network->model = *model;
    if (!rp_cli_check_lora(model, words->lora_rank, words->lora_targets, error))
        return NULL;
    network->lora =
        (RpLora){.rank = words->lora_rank, .alpha = RP_LORA_ALPHA, .targets = words->lora_targets};
    network->weights = rp_weights_new_adapted(model, &network->lora);
    return set_up(network, directory, words, error) ? g_steal_pointer(&network) : NULL;
}

/* Names the model by its path: the directory's name, also of its config.json. */
static char *
name_of(const char *path)
{
    g_autofree char *full = g_canonicalize_filename(path, NULL);
    g_autofree char *directory =
        g_file_test(full, G_FILE_TEST_IS_DIR) ? g_strdup(full) : g_path_get_dirname(full);

    return g_path_get_basename(directory);
}

RpPlanNetwork *
rp_plan_network_open(const char *path, const RpPlanNetworkWords *words, GError **error)
{
    RpModel model;
    RpPlanNetwork *network = NULL;

    if (rp_hf_config_load(path, &model, error))
        network = make(&model, path, words, error);
    if (network == NULL)
        return NULL;
    network->name = name_of(path);
    network->model.name = network->model.hf_name = network->name;
    return network;
}

RpPlanNetwork *
rp_plan_network_of(const RpModel *model, const RpPlanNetworkWords *words, GError **error)
{
    return rp_hf_config_check_runs(model, error) ? make(model, NULL, words, error) : NULL;
}

const RpAdviseSizes *
rp_plan_network_sizes(const RpPlanNetwork *network)
{
    return &network->sizes;
}

const RpModel *
rp_plan_network_model(const RpPlanNetwork *network)
{
    return &network->model;
}

const char *
rp_plan_network_devices(const RpPlanNetwork *network)
{
    return network->devices->name;
}

const char *
rp_plan_network_dtype(const RpPlanNetwork *network)
{
    return rp_dtype_name(network->options.dtype);
}

const char *
rp_plan_network_attention(const RpPlanNetwork *network)
{
    return rp_attention_name(network->options.attention);
}

const char *
rp_plan_network_base(const RpPlanNetwork *network)
{
    for (guint i = 0; i < rp_weights_count(network->weights); i++)
        if (rp_weights_nth(network->weights, i)->is_packed)
            return rp_lowbit_name(rp_weights_nth(network->weights, i)->format);
    return NULL;
}
