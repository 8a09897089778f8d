/* Prepares a run before the first step: model and its base, data, then the rest in order. */
#include "run/train/private.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/quote.h"
#include "core/formats/schedule-file.h"
#include "core/profile/box.h"
#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/device/batch-feed.h"
#include "exec/model/hf-config.h"
#include "exec/quantise/quantise.h"
#include "exec/system/memory-limit.h"
#include "run/devices.h"
#include "run/model.h"
#include "sim/scored.h"
#include "sim/simulate.h"

/* ---- the frozen base of a run: in how many bits it is held, and the file where it is ---- */

static gboolean
show(guint64 done, guint64 total, gpointer user_data)
{
    const RpRunEvents *events = user_data;

    RP_RUN_TELL(events, progress, "packing the base", done, total);
    return rp_run_stop(events) == 0;
}

/* Makes @path; not here while another run does, which may have made it then. */
static gboolean
make_packed(RpTrainJob *job, RpLowbit format, const char *path, GError **error)
{
    const RpQuantiseOptions options = {.progress = show, .user_data = (gpointer)job->events};
    const int lock = open(rp_safetensors_path(job->checkpoint), O_RDONLY | O_CLOEXEC);

    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        rp_run_say(job->events, "note", "another run packs the base: waiting for it");
        while (flock(lock, LOCK_EX) != 0 && errno == EINTR)
            ;
    }
    gboolean made = g_file_test(path, G_FILE_TEST_EXISTS);
    if (!made) {
        g_autofree char *shown = rp_display_name(path);

        made = rp_quantise(&job->config, job->checkpoint, format, path, &options, error);
        RP_RUN_TELL(job->events, progress, "packing the base", 0, 0);
        if (made)
            rp_run_say(job->events, "note", "the base in %s is kept in %s", rp_lowbit_name(format),
                       shown);
    }
    if (lock >= 0)
        close(lock);
    return made;
}

/* Adapters of the one are adapters of the other: the hash is that of the model's own file. It takes a
 * pass over all of it, and so is kept beside the packed form: the hash, and those of each layer's values,
 * behind a line that says so. */
#define VALUES "values\n"

static gboolean
take_hash(RpTrainJob *job, const char *packed, GError **error)
{
    g_autofree char *path = g_strconcat(packed, ".base", NULL);
    g_autofree char *text = NULL;

    if (g_file_get_contents(path, &text, NULL, NULL) && g_str_has_prefix(text, VALUES)) {
        g_auto(GStrv) lines = g_strsplit(text + strlen(VALUES), "\n", 3);

        if (g_strv_length(lines) == 3 && strlen(lines[0]) == RP_WEIGHTS_HASH_DIGITS) {
            rp_weights_set_base_hash(job->weights, lines[0], lines[1]);
            return TRUE;
        }
    }
    g_autoptr(RpWeights) plain =
        rp_weights_new_adapted(&job->config, rp_weights_lora(job->weights));
    if (!rp_weights_bind(plain, job->checkpoint, error))
        return FALSE;
    const char *hash = rp_weights_base_hash(plain), *values = rp_weights_base_values(plain);
    g_autofree char *lines = g_strdup_printf(VALUES "%s\n%s\n", hash, values);

    rp_weights_set_base_hash(job->weights, hash, values);
    if (!job->dry)
        (void)g_file_set_contents(path, lines, -1, NULL); /* else it is made again */
    return TRUE;
}

/* Whether files may be put beside the model: not where the folder is another user's, nor where its file is a
 * link, as in the cache of a hub, which has its own files in it. */
static gboolean
is_own_folder(const RpSafetensors *checkpoint)
{
    const char *path = rp_safetensors_path(checkpoint);
    g_autofree char *directory = g_path_get_dirname(path);
    GStatBuf folder;

    return !g_file_test(path, G_FILE_TEST_IS_SYMLINK) && g_stat(directory, &folder) == 0 &&
           folder.st_uid == geteuid() && access(directory, W_OK) == 0;
}

/* Beside the model, or in the user's cache; both names have the hash of the model's file. (transfer full) */
static char *
packed_path(const RpSafetensors *checkpoint, RpLowbit format)
{
    g_autofree char *beside = rp_quantise_path(checkpoint, format);
    g_autofree char *name = g_path_get_basename(beside);

    if (g_file_test(beside, G_FILE_TEST_EXISTS) || is_own_folder(checkpoint))
        return g_steal_pointer(&beside);
    return g_build_filename(g_get_user_cache_dir(), "roundpipe", "bases", name, NULL);
}

/* A dry run writes nothing: it is planned from the sizes, as without weights. */
static gboolean
plan_packed(RpTrainJob *job, RpLowbit format, GError **error)
{
    if (!rp_weights_bind(job->weights, job->checkpoint, error))
        return FALSE;
    job->config.dtype = rp_weights_dtype(job->weights);
    job->config.has_dtype = TRUE;
    const RpLora *lora = rp_weights_lora(job->weights);
    RpWeights *unbound = rp_weights_new_adapted(&job->config, lora);

    rp_weights_free(job->weights);
    job->weights = unbound;
    rp_weights_pack_base(job->weights, format);
    g_clear_pointer(&job->checkpoint, rp_safetensors_free);
    rp_run_say(job->events, "note", "the base is not packed in %s yet: planned from its sizes",
               rp_lowbit_name(format));
    return TRUE;
}

/* Opens a packed copy, which is ours: one that is broken may go. */
static RpSafetensors *
open_packed(const char *path, GError **error)
{
    g_autoptr(GError) problem = NULL;
    RpSafetensors *packed = rp_safetensors_open(path, &problem);

    if (packed == NULL)
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%s; remove the file, and it is packed again", problem->message);
    return packed;
}

/* The packed form of the checkpoint, made once and kept. Takes the checkpoint's place. */
static gboolean
quantise(RpTrainJob *job, RpLowbit format, GError **error)
{
    g_autofree char *path = packed_path(job->checkpoint, format);
    g_autofree char *directory = g_path_get_dirname(path);
    RpSafetensors *packed = NULL;

    if (job->dry && !g_file_test(path, G_FILE_TEST_EXISTS))
        return plan_packed(job, format, error);
    (void)g_mkdir_with_parents(directory, 0700); /* what fails is told of the file */
    if (g_file_test(path, G_FILE_TEST_EXISTS) || make_packed(job, format, path, error))
        packed = open_packed(path, error);
    if (packed == NULL)
        return FALSE;
    rp_weights_pack_base(job->weights, format);
    const gboolean taken = take_hash(job, path, error);

    rp_safetensors_free(job->checkpoint);
    job->checkpoint = packed;
    return taken;
}

/* Says how the job's weights are held, and makes the checkpoint that they are bound to afterwards: the
 * model's own or its packed form, which is written if it is not there. Errors: RP_RUN_ERROR_VALUE,
 * those of rp_weights_adopt() and rp_quantise() */
static gboolean
open_base(RpTrainJob *job, GError **error)
{
    const int choice = job->run->base_choice;
    const gboolean adapted = rp_weights_lora(job->weights) != NULL;

    if (!adapted && choice > RP_RUN_BASE_16_BITS)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "base: expected bf16 without lora.rank, found %s: a packed base is frozen",
                       rp_lowbit_name((RpLowbit)(choice - RP_RUN_BASE_PACKED)));
    if (!adapted || choice == RP_RUN_BASE_16_BITS)
        return TRUE; /* packed weights are expanded as they are read, or refused */
    if (job->random && choice != RP_RUN_BASE_OF_THE_FILE)
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "base: expected bf16 for %s, found %s: `roundpipe init --base` writes a random "
            "model whose base is packed",
            job->run->model, rp_lowbit_name((RpLowbit)(choice - RP_RUN_BASE_PACKED)));
    if (job->checkpoint == NULL) {
        if (choice != RP_RUN_BASE_OF_THE_FILE)
            rp_weights_pack_base(job->weights, (RpLowbit)(choice - RP_RUN_BASE_PACKED));
        return TRUE;
    }
    if (!rp_weights_adopt(job->weights, job->checkpoint, error))
        return rp_prefix_error(error, "model: ");
    const char *format = rp_run_base_format(job->weights);
    if (choice == RP_RUN_BASE_OF_THE_FILE)
        return TRUE;
    const RpLowbit wanted = (RpLowbit)(choice - RP_RUN_BASE_PACKED);

    if (format != NULL && strcmp(format, rp_lowbit_name(wanted)) != 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "base: expected %s, as the model's file has it, found %s", format,
                       rp_lowbit_name(wanted));
    if (format != NULL || quantise(job, wanted, error))
        return TRUE;
    return rp_prefix_error(error, "base: ");
}

/* ---- the job ---- */

void
rp_train_job_clear(RpTrainJob *job)
{
    g_clear_pointer(&job->device_processors, g_free);
    g_clear_pointer(&job->nodes, rp_nodes_free);
    g_clear_pointer(&job->trace, rp_trace_free);
    g_clear_pointer(&job->plan, rp_plan_free);
    rp_request_clear(&job->request);
    g_clear_pointer(&job->given, rp_schedule_free_given);
    g_clear_pointer(&job->profile, rp_profile_free);
    g_clear_pointer(&job->measured, rp_profile_free);
    g_clear_pointer(&job->profile_json, g_free);
    g_clear_pointer(&job->speeds, g_free);
    g_clear_pointer(&job->matmul_library, g_free);
    g_clear_pointer(&job->matmul_variants, g_free);
    g_clear_pointer(&job->dataset, rp_dataset_free);
    g_clear_pointer(&job->samples_folder, g_free);
    g_clear_pointer(&job->evaluation.dataset, rp_dataset_free);
    g_clear_pointer(&job->weights, rp_weights_free);
    g_clear_pointer(&job->adapters, rp_safetensors_free);
    g_clear_pointer(&job->checkpoint, rp_safetensors_free);
    g_clear_pointer(&job->model_dir, g_free);
    *job = (RpTrainJob){0};
}

guint64
rp_train_job_step_tokens(const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;

    return (guint64)run->sequence_length * (guint64)run->micro_batch_size *
           (guint64)run->micro_batches * (guint64)run->gradient_accumulation_steps;
}

/* @lora: (out): of rank 0: the run has none */
static gboolean
find_lora(RpTrainJob *job, RpLora *lora, GError **error)
{
    const RpRunLora *asked = &job->run->lora;

    *lora = (RpLora){.rank = (guint)asked->rank,
                     .alpha = asked->alpha > 0 ? asked->alpha : 2 * (double)asked->rank,
                     .rslora = asked->rslora != 0,
                     .dropout = asked->dropout,
                     .targets = rp_lora_read_targets(asked->targets),
                     .saved = rp_lora_split_names(asked->save)};
    if (asked->start != NULL) {
        g_autofree char *path = g_build_filename(asked->start, RP_ADAPTER_TENSORS, NULL);

        rp_lora_clear(lora);
        if (!rp_adapter_config_load(asked->start, lora, error) ||
            (job->adapters = rp_safetensors_open(path, error)) == NULL)
            return rp_prefix_error(error, "lora.start: ");
    }
    lora->seed = (guint64)job->run->seed;
    return lora->rank == 0 || rp_lora_check(lora, &job->config, error);
}

/* Experts' matrices of a kind stand in one stack. */
static gboolean
check_stacks(const RpWeights *weights, GError **error)
{
    for (guint layer = 0; layer < rp_weights_n_layers(weights); layer++) {
        const RpWeight *first_of[RP_N_WEIGHT_KINDS] = {NULL};
        guint first;
        const guint n = rp_weights_layer(weights, layer, &first);

        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);
            const RpWeight **of = &first_of[weight->kind];

            if (*of == NULL)
                *of = weight;
            if ((*of)->trained == weight->trained)
                continue;
            return rp_fail(
                error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                "freeze: expected all experts of a layer or none, found %s frozen and %s not",
                weight->trained ? (*of)->name : weight->name,
                weight->trained ? weight->name : (*of)->name);
        }
    }
    return TRUE;
}

/* Freezes the tensors that the run file names. Their storage is known later: rp_weights_store_base(). */
static gboolean
freeze(RpTrainJob *job, GError **error)
{
    g_auto(GStrv) names = rp_lora_split_names(job->run->freeze);
    gboolean trains = FALSE;

    for (char **name = names; name != NULL && *name != NULL; name++)
        if (rp_weights_freeze_named(job->weights, *name, job->config.dtype) == 0)
            return rp_fail(
                error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                "freeze: expected names of the model's tensors or modules, as lm_head or "
                "model.layers.0.*, found \"%s\", which none has",
                *name);
    for (guint i = 0; i < rp_weights_count(job->weights); i++)
        trains = trains || rp_weight_has_state(rp_weights_nth(job->weights, i));
    if (trains)
        return names == NULL || check_stacks(job->weights, error);
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                   "freeze: expected something to train, found every tensor frozen");
}

static gboolean
bind_weights(RpTrainJob *job, GError **error)
{
    if (job->random)
        rp_weights_bind_random(job->weights, (guint64)job->run->seed);
    else if (!rp_weights_bind(job->weights, job->checkpoint, error))
        return FALSE;
    if (job->adapters == NULL ||
        ((job->run->lora.any_base != 0 ||
          rp_checkpoint_check_base(job->run->lora.start, job->weights, error)) &&
         rp_adapter_bind(job->weights, job->adapters, error)))
        return TRUE;
    return rp_prefix_error(error, "lora.start: ");
}

/* Their dtype in files; without these that of the config. */
static RpDtype
weights_dtype(const RpTrainJob *job)
{
    if (job->checkpoint != NULL)
        return rp_weights_dtype(job->weights);
    return job->config.has_dtype ? job->config.dtype : RP_DTYPE_BF16;
}

/* The config, and the weights if they are in files. */
static gboolean
open_files(RpTrainJob *job, GError **error)
{
    const char *model = job->run->model;

    const RpModel *named = job->dry ? rp_run_model_named(model) : NULL;

    if (named != NULL) {
        rp_run_say(job->events, "note", "no directory %s: planned for the catalogue's shapes of %s",
                   model, named->hf_name);
        job->config = *named;
        return rp_hf_config_check_runs(&job->config, error);
    }
    if (!rp_run_model_load(model, &job->config, error))
        return FALSE;
    job->random = rp_run_model_is_random(model);
    job->model_dir = rp_run_model_directory(model);
    if (job->random)
        return TRUE;
    if (job->dry && g_file_test(job->model_dir, G_FILE_TEST_IS_DIR) &&
        !rp_run_has_weights(job->model_dir)) {
        rp_run_say(job->events, "note", "%s has no weights: planned from its config.json", model);
        return TRUE;
    }
    job->checkpoint = rp_safetensors_open(job->model_dir, error);
    return job->checkpoint != NULL;
}

/* A run of layers of the caller's program does not have some settings. */
static gboolean
check_custom(const RpTrainJob *job, GError **error)
{
    const RpRunSpec *run = job->run;
    const char *without = run->lora.rank > 0 || run->lora.start != NULL ? "lora"
                          : run->packing_choice == 2                    ? "packing"
                          : run->neftune_alpha > 0                      ? "neftune_alpha"
                          : run->card != NULL                           ? "profile"
                          : run->base_choice >= RP_RUN_BASE_PACKED      ? "base"
                          : run->matmul_choice != 0                     ? "matmul"
                                                                        : NULL;

    if (job->config.custom == NULL)
        return TRUE;
    if (without != NULL)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "%s: expected nothing for %s, which is a program's own architecture: leave "
                       "it out",
                       without, job->config.custom->name);
    if ((guint64)run->sequence_length == job->config.max_positions)
        return TRUE;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                   "sequence_length: expected %u, the words of a record of %s "
                   "(max_position_embeddings), found %" G_GINT64_FORMAT,
                   job->config.max_positions, job->config.custom->name, run->sequence_length);
}

/* Looks for the loss that the run names; %NULL: cross entropy. */
static gboolean
find_loss(const RpTrainJob *job, const RpLoss **loss, GError **error)
{
    const RpRunSpec *run = job->run;

    *loss = job->config.custom != NULL ? job->config.custom->loss : NULL;
    if (run->loss == NULL || (*loss == NULL && strcmp(run->loss, "cross_entropy") == 0))
        return TRUE;
    if (*loss != NULL && strcmp(run->loss, "cross_entropy") == 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "loss: expected one that a program adds, as %s has layers of its own, found "
                       "cross_entropy",
                       job->config.custom->name);
    *loss = rp_loss_find(run->loss, error);
    return *loss != NULL;
}

static gboolean
has_launchers(const RpCustomLayer *layer)
{
    return layer->forward_cuda != NULL && layer->backward_cuda != NULL;
}

/* Whether layers and loss of the caller's program run as the run asks for. */
static gboolean
check_functions(const RpTrainJob *job, GError **error)
{
    const RpCustomArchitecture *custom = job->config.custom;
    const RpLoss *loss = job->network.loss;
    const gboolean gpu = job->run->card != NULL || !job->run->device_ops->host_memory;

    if (custom != NULL && (custom->dtypes >> job->network.dtype & 1) == 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "dtype: expected one that %s can, found %s", custom->name,
                       rp_dtype_name(job->network.dtype));
    if (gpu && custom != NULL &&
        (!has_launchers(custom->input) || !has_launchers(custom->block) ||
         !has_launchers(custom->output)))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "devices: expected host:N, as %s has no launchers for CUDA", custom->name);
    if (gpu && loss != NULL && loss->cuda == NULL)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "devices: expected host:N, as the loss %s has no launcher for CUDA",
                       loss->name);
    if (loss != NULL && job->run->label_smoothing > 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "label_smoothing: expected 0 with the loss %s, found %g", loss->name,
                       job->run->label_smoothing);
    return TRUE;
}

static gboolean
open_model(RpTrainJob *job, GError **error)
{
    g_auto(RpLora) lora = {0};

    const RpRunSpec *run = job->run;

    if (!open_files(job, error))
        return rp_prefix_error(error, "model: ");
    if (!check_custom(job, error) || !find_lora(job, &lora, error))
        return FALSE;
    job->weights = rp_weights_new_adapted(&job->config, &lora);
    if (!freeze(job, error) || !open_base(job, error) ||
        ((job->random || job->checkpoint != NULL) && !bind_weights(job, error)))
        return FALSE;
    job->network = (RpNetworkOptions){
        .dtype = run->dtype_choice > 0 ? (RpDtype)(run->dtype_choice - 1) : weights_dtype(job),
        .sequences = (guint)run->micro_batch_size,
        .tokens = (guint)run->sequence_length,
        .head_chunk = (guint)run->head_chunk,
        .attention = run->attention_choice > 0 ? (RpAttentionChoice)(run->attention_choice - 1)
                                               : RP_ATTENTION_BUILTIN,
        .label_smoothing = run->label_smoothing,
        .preference = run->preference,
        .noise = run->neftune_alpha,
        .noise_seed = (guint64)run->seed,
        .aux_loss = rp_train_aux_loss(run, &job->config),
    };
    if (!find_loss(job, &job->network.loss, error) || !check_functions(job, error))
        return FALSE;
    rp_weights_store_base(job->weights, job->network.dtype);
    if (job->checkpoint != NULL &&
        !rp_weights_check_finite(job->weights, job->network.dtype, error))
        return rp_prefix_error(error, "model: ");
    if (!run->device_ops->kernels()->has_attention(job->network.attention))
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "attention: expected builtin or auto, found %s, which %s devices do not have",
            rp_attention_name(job->network.attention), run->device_ops->name);
    if (job->network.aux_loss > 0 && job->config.experts < 2)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "router_aux_loss_coef: expected 0 for %s, which has no experts, found %g",
                       rp_architectures[job->config.architecture].hf_name, job->network.aux_loss);
    if (!rp_run_take_matmul(run, job->weights,
                            run->card == NULL ? run->device_ops->kernels() : NULL, run->n_devices,
                            &job->network, error))
        return FALSE;
    if ((guint64)run->sequence_length > job->config.max_positions)
        rp_run_say(job->events, "note",
                   "sequence_length %" G_GINT64_FORMAT
                   " is beyond the model's max_position_embeddings, %u",
                   run->sequence_length, job->config.max_positions);
    return TRUE;
}

static const RpScheduleOps *
schedule_of(const RpTrainJob *job)
{
    return job->given != NULL ? job->given : rp_schedule_find(job->run->schedule, NULL);
}

/* Stages of a file's schedule are bound: a fused stage's slots are RoundPipe's own. */
static gboolean
open_schedule(RpTrainJob *job, GError **error)
{
    const char *path = job->run->schedule_file, *problem = NULL;

    if (path == NULL)
        return TRUE;
    job->given = rp_schedule_file_load(path, error);
    if (job->given == NULL)
        return rp_prefix_error(error, "schedule_file: ");
    if (job->given->dispatched)
        problem = "found a fused stage (FB): use `schedule: roundpipe`";
    else if (!rp_schedule_is_trained(job->given))
        problem = "found I and W, or an overlap, which training does not run: use B";
    if (problem == NULL)
        return TRUE;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                   "schedule_file: %s: expected F and B of stages that are bound to devices, %s",
                   path, problem);
}

/* The run with the plan that it requests; texts are borrowed. @round: 0 = chosen with the partition */
static RpRunSpec
make_request(const RpTrainJob *job, gint64 round)
{
    RpRunSpec run = *job->run;

    rp_run_spec_plan(&run);
    run.plan.schedule = schedule_of(job);
    run.plan.gpus = run.n_devices;
    run.plan.micro_batches = (guint)run.micro_batches / rp_train_n_servers(job);
    run.plan.round = (guint)round;
    run.plan.async = run.async;
    run.plan.fidelity = RP_FIDELITY_FULL;
    run.plan.servers = rp_train_n_servers(job);
    run.plan.step_at_once = run.optimizer.max_grad_norm <= 0 &&
                            job->network.dtype != RP_DTYPE_FP16 &&
                            run.consistency != RP_CONSISTENCY_BLOCKING;
    run.host_bytes = run.host_memory_bytes;
    run.trains = TRUE;
    return run;
}

/* All micro-batches in one round is the default, because its bits do not depend on devices or on
 * what was measured; where other rounds are faster, say so. */
static void
consider_rounds(RpTrainJob *job)
{
    const RpRunSpec run = make_request(job, 0);
    g_auto(RpRequest) other = {0};
    g_autoptr(RpPlan) plan = NULL;
    g_autoptr(RpTrace) trace = NULL;
    RpShortage shortage;

    if (job->run->round_choice != RP_RUN_ROUND_ALL || job->run->n_devices == 1 ||
        !job->request.options.schedule->dispatched)
        return;
    if (!rp_request_resolve(&run, job->profile, &other, NULL) ||
        other.options.round == job->request.options.round)
        return;
    trace = rp_request_simulate(&other, job->profile, &plan, NULL);
    if (trace == NULL || rp_plan_find_shortage(plan, job->device_memory_bytes, 0, FALSE, &shortage))
        return;
    const RpSteady steady = rp_report_steady(trace, other.window.first, other.window.end);

    job->other_round = other.options.round;
    job->other_gain = (double)job->steady.iteration_ns / (double)steady.iteration_ns - 1;
}

/* Devices that rest leave their processor to others: where all find one, none is shared. */
static void
share_processors(RpTrainJob *job)
{
    double busy = job->optimizer_threads;

    for (guint g = 0; g < job->run->n_devices; g++)
        busy += 1 / job->run->slow[g].actions;
    if (busy <= job->profile->processors)
        job->profile->processors = 0;
}

/* Several servers: the same plan if the network took no time. */
static gboolean
predict_alone(RpTrainJob *job, GError **error)
{
    RpMachine machine = rp_machine_from_profile(job->profile);
    g_autoptr(RpTrace) trace = NULL;

    if (job->servers == NULL)
        return TRUE;
    machine.links.network_bytes_per_s = 0;
    machine.links.network_latency_ns = 0;
    trace = rp_simulate(job->plan, &machine, error);
    if (trace == NULL)
        return FALSE;
    job->alone_ns =
        rp_report_steady(trace, job->request.window.first, job->request.window.end).iteration_ns;
    return TRUE;
}

/* The same stages where gradients are clipped, for which early steps write no weights. */
static gboolean
predict_clipped(RpTrainJob *job, GError **error)
{
    RpRequest clipped = job->request; /* borrowed */
    g_autoptr(RpPlan) plan = NULL;
    g_autoptr(RpTrace) trace = NULL;
    gboolean early = FALSE;

    for (guint l = 0; l < rp_plan_n_layers(job->plan); l++)
        early = early || rp_plan_layer(job->plan, l)->early;
    if (!early)
        return TRUE;
    clipped.options.early_steps = RP_EARLY_OFF;
    trace = rp_request_simulate(&clipped, job->profile, &plan, error);
    if (trace != NULL)
        job->clipped = rp_report_steady(trace, clipped.window.first, clipped.window.end);
    return trace != NULL;
}

RpSteady
rp_train_expected(const RpTrainJob *job, const RpTrainMeans *means)
{
    const double late = job->clipped.iteration_ns > 0 && means->steps > 0
                            ? (double)means->clipped_steps / (double)means->steps
                            : 0;
    const double early_ns = (1 - late) * (double)job->steady.iteration_ns;
    const double late_ns = late * (double)job->clipped.iteration_ns;
    RpSteady expected = job->steady;

    expected.iteration_ns = (gint64)(early_ns + late_ns);
    expected.ratio =
        (early_ns * job->steady.ratio + late_ns * job->clipped.ratio) / (early_ns + late_ns);
    return expected;
}

/* Divides the model, plans and simulates; once more with another reference if its copy of the weights does not fit. */
static gboolean
plan_steps(RpTrainJob *job, RpRunSpec *run, guint64 host_bytes, gboolean dry, GError **error)
{
    RpRunSpec requested = make_request(job, run->round);
    g_autoptr(GError) problem = NULL;

    requested.host_bytes = host_bytes;
    if (!rp_request_resolve(&requested, job->profile, &job->request, error))
        return FALSE;
    job->trace = rp_request_simulate(&job->request, job->profile, &job->plan, error);
    if (job->trace == NULL)
        return FALSE;
    const gboolean chosen = run->reference_choice == RP_REFERENCE_NONE &&
                            run->preference.reference == RP_REFERENCE_COPY;
    guint64 fits = 1 + rp_trainer_check_memory(run->device_ops, job->plan, job->device_memory_bytes,
                                               run->host_memory_bytes, dry, &job->remedy, &problem);

    /* servers have the same reference: that which fits all of them */
    if (chosen && !rp_train_least(job, &fits, error))
        return FALSE;
    if (fits > 1)
        return TRUE;
    if (!chosen)
        return rp_propagate_error(error, g_steal_pointer(&problem));
    rp_train_take_reference(job, run, RP_REFERENCE_PRECOMPUTED,
                            "a copy of the weights does not fit");
    job->remedy = RP_REMEDY_NONE;
    g_clear_pointer(&job->trace, rp_trace_free);
    g_clear_pointer(&job->plan, rp_plan_free);
    rp_request_clear(&job->request);
    return plan_steps(job, run, host_bytes, dry, error);
}

/* Partition, plan, trace and their figures. */
static gboolean
predict(RpTrainJob *job, RpRunSpec *run, const char *earlier_run, gboolean dry, GError **error)
{
    guint64 host_bytes = run->host_memory_bytes;
    RpRequest steady;

    /* A dry run has the limit, too: it plans what would run here, unless for cards that are elsewhere. */
    g_auto(RpMemoryLimit) limit =
        run->card != NULL ? (RpMemoryLimit){0} : rp_memory_limit("", run->host_memory_bytes > 0);

    if (limit.name != NULL && (host_bytes == 0 || limit.bytes < host_bytes))
        host_bytes = MAX(1, limit.bytes);
    if (!rp_train_least(job, &host_bytes, error))
        return FALSE;
    job->measured = rp_profile_copy(job->profile);
    rp_place_head(job->profile, schedule_of(job)->dispatched, rp_targets_share(job->targets),
                  rp_preference_is_used(&job->network.preference) ? job->profile->head_chunk : 0);
    if (run->slow != NULL) {
        g_autoptr(RpProfile) alike = job->profile;

        job->profile = rp_profile_slowed(alike, run->slow, run->n_devices);
        share_processors(job);
    }
    rp_train_choose_reference(job, run, earlier_run);
    if (!plan_steps(job, run, host_bytes, dry, error) || !rp_trainer_prove(job->plan, error))
        return FALSE;
    rp_train_keep_reference(job, run);
    job->steady = rp_report_steady(job->trace, job->request.window.first, job->request.window.end);
    consider_rounds(job);
    if (!predict_alone(job, error) || !predict_clipped(job, error))
        return FALSE;
    steady = job->request; /* borrowed. Synchronous steps count from steady ones, too */
    steady.steady = TRUE;
    return rp_request_spread(&steady, job->profile, &job->least_ns, &job->most_ns, error) &&
           rp_train_predict_scoring(job, error) &&
           (job->evaluation.dataset == NULL || rp_train_predict_evaluation(job, error));
}

gboolean
rp_train_job_prepare(RpTrainJob *job, RpRunSpec *run, const char *earlier_run, gboolean dry,
                     const RpRunEvents *events, GError **error)
{
    job->run = run;
    job->events = events;
    job->dry = dry;
    job->device_processors = rp_run_device_processors(run->n_devices);
    job->nodes = rp_nodes_read(RP_NODES_DIRECTORY);
    job->optimizer_threads = run->optimizer.threads > 0
                                 ? (guint)run->optimizer.threads
                                 : rp_run_optimizer_threads(run->device_ops, run->n_devices);

    if (!rp_train_divide(job, run, error) || !open_schedule(job, error))
        return FALSE;
    const RpRunSpec requested = make_request(job, run->round);

    /* before anything long is done */
    if (!rp_run_check_size(&requested, error) || !open_model(job, error) ||
        !rp_train_open_data(job, run, error) || !rp_train_agree_inputs(job, error) ||
        !rp_train_find_times(job, earlier_run, error) || !rp_train_measure_servers(job, error))
        return FALSE;
    if (rp_run_measures(run) || run->card != NULL)
        rp_profile_name_model(job->profile,
                              job->model_dir != NULL ? job->model_dir : job->config.name);
    job->profile_json = rp_profile_to_json(job->profile);
    if (job->servers != NULL)
        rp_profile_share_machine(job->profile, rp_run_servers_of_machine(), run->n_devices,
                                 !rp_run_measures(run));
    /* threads have what the machine has, GPUs what was found free */
    if (run->device_memory_bytes > 0 || run->device_ops->host_memory)
        job->profile->gpu_memory_bytes = run->device_memory_bytes;
    job->profile->whole_card = FALSE; /* a plan may have it, whatever a file is of */
    job->device_memory_bytes = job->profile->gpu_memory_bytes;
    return predict(job, run, earlier_run, dry, error) && rp_train_agree_plan(job, error);
}
