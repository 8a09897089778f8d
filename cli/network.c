/* Sizes as `train` has them, of a network over a backend's kernels. */
#include "cli/network.h"

#include "exec/cuda/backend.h"
#include "exec/model/hf-config.h"
#include "exec/safetensors/safetensors.h"
#include "run/model.h"
#include "run/run-file.h"

void
rp_plan_network_free(RpPlanNetwork *network)
{
    if (network == NULL)
        return;
    rp_weights_free(network->weights);
    g_strfreev(network->targets);
    g_free(network->name);
    g_hash_table_unref(network->sized);
    g_mutex_clear(&network->lock);
    g_free(network);
}

static RpProfile *
size(const RpPlanNetwork *plan, guint sequences, guint tokens)
{
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

/* Rows of a comparison ask from threads. */
static RpProfile *
make_sizes(guint sequences, guint tokens, gpointer user_data)
{
    RpPlanNetwork *plan = user_data;
    const gint64 key = (gint64)sequences << 32 | tokens;

    g_mutex_lock(&plan->lock);
    const RpProfile *known = g_hash_table_lookup(plan->sized, &key);

    if (known == NULL) {
        RpProfile *sized = size(plan, sequences, tokens);

        g_hash_table_insert(plan->sized, g_memdup2(&key, sizeof key), sized);
        known = sized;
    }
    RpProfile *copy = rp_profile_copy(known);

    g_mutex_unlock(&plan->lock);
    return copy;
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
    const RpModel *model = &network->model;

    network->options.dtype = model->has_dtype ? model->dtype : RP_DTYPE_BF16;
    if (!rp_run_has_weights(directory))
        return TRUE;
    RpSafetensors *checkpoint = rp_safetensors_open(directory, error);
    const gboolean bound =
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

/* A base that is packed already stays as it is. */
static void
pack_base(RpPlanNetwork *network, int choice)
{
    if (choice >= RP_RUN_BASE_PACKED && !rp_weights_is_packed(network->weights))
        rp_weights_pack_base(network->weights, (RpLowbit)(choice - RP_RUN_BASE_PACKED));
}

static gboolean
find_attention(RpPlanNetwork *network, int choice, GError **error)
{
    network->options.attention =
        choice > 0 ? (RpAttentionChoice)(choice - 1) : RP_ATTENTION_BUILTIN;
    if (network->devices->kernels()->has_attention(network->options.attention))
        return TRUE;
    return rp_cli_refuse(error, "--attention: %s kernels have no %s attention here",
                         network->devices->name, rp_attention_name(network->options.attention));
}

/* Whether the cards can is known where they are. */
static gboolean
take_matmul(RpPlanNetwork *network, const RpRunSpec *run, GError **error)
{
    g_autoptr(GError) problem = NULL;

    return rp_run_take_matmul(run, network->weights, NULL, 1, &network->options, &problem) ||
           rp_cli_refuse(error, "%s", problem->message);
}

/* @directory: (nullable): of weights */
static gboolean
set_up(RpPlanNetwork *network, const char *directory, const RpRunSpec *run, GError **error)
{
    if (!find_devices(network, run->devices, error) ||
        !find_attention(network, run->attention_choice, error) ||
        (directory != NULL && !find_dtype(network, directory, error)))
        return FALSE;
    pack_base(network, run->base_choice);
    if (run->dtype_choice > 0)
        network->options.dtype = (RpDtype)(run->dtype_choice - 1);
    else if (directory == NULL)
        network->options.dtype = RP_DTYPE_BF16;
    rp_weights_store_base(network->weights, network->options.dtype);
    if (!take_matmul(network, run, error))
        return FALSE;
    network->options.preference = run->preference;
    network->options.aux_loss = network->model.router_aux_loss;
    network->sizes = (RpAdviseSizes){
        .make = make_sizes,
        .user_data = network,
        .most_tokens = RP_RUN_MAX_COUNT,
        .max_positions = network->model.max_positions,
        .host_devices = run->devices != NULL && network->devices->host_memory,
    };
    return TRUE;
}

static RpPlanNetwork *
make(const RpModel *model, const char *directory, const RpRunSpec *run, GError **error)
{
    g_autoptr(RpPlanNetwork) network = g_new0(RpPlanNetwork, 1);

    g_mutex_init(&network->lock);
    network->sized =
        g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, (GDestroyNotify)rp_profile_free);
    network->model = *model;
    network->targets = rp_lora_read_targets(run->lora.targets);
    network->lora = (RpLora){
        .rank = (guint)run->lora.rank, .alpha = RP_LORA_ALPHA, .targets = network->targets};
    if (!rp_cli_check_lora(model, network->lora.rank, network->targets, error))
        return NULL;
    network->weights = rp_weights_new_adapted(model, &network->lora);
    return set_up(network, directory, run, error) ? g_steal_pointer(&network) : NULL;
}

/* Names the model by its path: the directory's name, also of its config.json, or the hub's without who published
 * it. */
static char *
name_of(const char *path)
{
    g_autofree char *full = g_canonicalize_filename(path, NULL);
    g_autofree char *hub = rp_model_hub_name(path, NULL);
    g_autofree char *directory = g_file_test(full, G_FILE_TEST_IS_DIR) ? g_strdup(full)
                                 : hub != NULL                         ? g_strdup(hub)
                                                                       : g_path_get_dirname(full);

    return g_path_get_basename(directory);
}

RpPlanNetwork *
rp_plan_network_open(const char *path, const RpRunSpec *run, GError **error)
{
    g_autofree char *directory = rp_model_path(path);
    RpModel model;
    RpPlanNetwork *network = NULL;

    if (rp_hf_config_load(directory, &model, error))
        network = make(&model, directory, run, error);
    if (network == NULL)
        return NULL;
    network->name = name_of(path);
    network->model.name = network->model.hf_name = network->name;
    return network;
}

RpPlanNetwork *
rp_plan_network_of(const RpModel *model, const RpRunSpec *run, GError **error)
{
    return rp_hf_config_check_runs(model, error) ? make(model, NULL, run, error) : NULL;
}

RpWorkload
rp_cli_workload(const RpRunSpec *run, char **targets)
{
    const gboolean head = run->matmul_choice == RP_RUN_MATMUL_FP8_HEAD;

    return (RpWorkload){
        .sequences = (guint)run->micro_batch_size,
        .tokens_per_sequence = (guint)run->sequence_length,
        .gpus = run->plan.gpus,
        .dtype = run->dtype_choice > 0 ? rp_dtype_name((RpDtype)(run->dtype_choice - 1)) : NULL,
        .accumulate = run->half_sums ? "fp16" : "fp32",
        .fp8 = head || run->matmul_choice == RP_RUN_MATMUL_FP8,
        .fp8_head = head,
        .lora_rank = (guint)run->lora.rank,
        .lora_targets = targets,
        .base = run->base_choice >= RP_RUN_BASE_PACKED
                    ? rp_lowbit_name((RpLowbit)(run->base_choice - RP_RUN_BASE_PACKED))
                    : NULL,
    };
}
