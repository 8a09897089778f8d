/* Layer times, measured, of a file, or of the run that goes on. */
#include "run/train/private.h"

#include <stddef.h>
#include <string.h>

#include <glib/gstdio.h>

#include "core/catalogue/cost/cost-model.h"
#include "core/plan/planner.h"
#include "core/profile/cards.h"
#include "exec/measure/profile.h"
#include "run/devices.h"
#include "run/model.h"

/* The default of older runs, whose profile.json does not say. */
#define EARLIER_HEAD_CHUNK 1024

/* Relative error of measured medians: predictions are held to 3 % of a step. */
#define PRECISION 0.01

static void
take_string(char **to, const char *from)
{
    g_free(*to);
    *to = g_strdup(from);
}

/* Times of a file for the sizes that the network has. */
static gboolean
take_times(RpProfile *profile, const RpProfile *file, const char *path, GError **error)
{
    if (file->n_layers != profile->n_layers)
        return rp_fail(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_VALUE,
                       "%s: expected times of the model's %u layers, found %u", path,
                       profile->n_layers, file->n_layers);
    for (guint l = 0; l < file->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];
        const RpLayer *times = &file->layers[l];

        if (layer->kind != times->kind)
            return rp_fail(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_VALUE,
                           "%s: layers[%u]: expected %s, found %s", path, l,
                           rp_layer_kind_name(layer->kind), rp_layer_kind_name(times->kind));
        /* times and their spreads stand together */
        memcpy((char *)layer + offsetof(RpLayer, forward_ns),
               (const char *)times + offsetof(RpLayer, forward_ns),
               offsetof(RpLayer, parameter_bytes) - offsetof(RpLayer, forward_ns));
        for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
            layer->saved[g].recompute_ns = times->saved[g].recompute_ns;
    }
    take_string(&profile->model, file->model);
    take_string(&profile->device, file->device);
    take_string(&profile->source, file->source);
    take_string(&profile->origin, file->origin);
    take_string(&profile->date, file->date);
    profile->gpus = file->gpus;
    profile->processors = file->processors;
    /* links, memory and rates of the host, too */
    memcpy((char *)profile + offsetof(RpProfile, links),
           (const char *)file + offsetof(RpProfile, links),
           offsetof(RpProfile, n_layers) - offsetof(RpProfile, links));
    return TRUE;
}

/* The choice of a timing file, if this build has it; else it stays as it is. */
static void
take_attention(RpTrainJob *job, const RpProfile *file, const char *path)
{
    RpAttentionChoice choice;

    if (job->run->attention_choice != 0 || !rp_attention_from_name(file->attention, &choice))
        return;
    if (job->run->device_ops->kernels()->has_attention(choice))
        job->network.attention = choice;
    else
        rp_run_say(job->events, "note",
                   "%s has times of %s attention, which %s devices do not "
                   "have here",
                   path, file->attention, job->run->device_ops->name);
}

/* Proposals for matmuls of a timing file, if the devices' library is the one that made them. Without a file
 * each shape is multiplied by the first one. */
static void
take_matmuls(RpTrainJob *job, const RpProfile *file, const char *path)
{
    const RpKernels *kernels = job->run->device_ops->kernels();
    g_autofree char *library = kernels->matmul_library != NULL ? kernels->matmul_library() : NULL;

    if (*file->matmul_library == '\0')
        return;
    if (g_strcmp0(library, file->matmul_library) != 0) {
        rp_run_say(job->events, "note",
                   "%s has times of matmuls as chosen for %s; here is %s, whose first proposals "
                   "are taken",
                   path, file->matmul_library, library != NULL ? library : "no such library");
        return;
    }
    g_free(job->matmul_library);
    g_free(job->matmul_variants);
    job->matmul_library = g_steal_pointer(&library);
    job->matmul_variants =
        g_memdup2(file->matmul_variants, file->n_matmul_variants * sizeof(RpMatmulVariant));
    job->network.matmul_library = job->matmul_library;
    job->network.matmul_variants = job->matmul_variants;
    job->network.n_matmul_variants = file->n_matmul_variants;
}

/* The head's chunk of a timing file, where the run's own is to be chosen: times are with it, and a
 * run that goes on keeps its bits. @unknown: of a file that does not say */
static void
take_head_chunk(RpTrainJob *job, const RpProfile *file, guint unknown)
{
    if (job->run->head_chunk == 0)
        job->network.head_chunk = file->head_chunk > 0 ? file->head_chunk : unknown;
}

/* Reads a file that the run names; an earlier run's is not used then. */
static void
note_other_chunk(const RpTrainJob *job, const RpProfile *file, const char *path)
{
    if (job->run->head_chunk > 0 && file->head_chunk > 0 &&
        file->head_chunk != job->network.head_chunk)
        rp_run_say(job->events, "note",
                   "%s has times of a head in chunks of %u tokens, the run's "
                   "are of %u",
                   path, file->head_chunk, job->network.head_chunk);
}

/* The network of the job's model and options, over its weights. */
static RpNetwork *
make_network(const RpTrainJob *job)
{
    return rp_network_new(job->weights, job->run->device_ops->kernels(), &job->network);
}

/* Times that are not measured here. @path: where @file stands, or a card's name */
static RpProfile *
take_profile(RpTrainJob *job, const RpProfile *file, const char *path, GError **error)
{
    guint64 tokens = (guint64)job->network.sequences * job->network.tokens;

    take_attention(job, file, path);
    take_matmuls(job, file, path);
    take_head_chunk(job, file, 0);
    note_other_chunk(job, file, path);
    g_autoptr(RpNetwork) network = make_network(job);
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    if (!take_times(profile, file, path, error))
        return NULL;
    if (!rp_profile_check_full(profile, error))
        return rp_null(rp_prefix_error(error, "%s: ", path));
    if (rp_profile_micro_batch_tokens(file) != 0 && rp_profile_micro_batch_tokens(file) != tokens)
        rp_run_say(job->events, "note",
                   "%s has times of micro-batches of %" G_GUINT64_FORMAT
                   " tokens, the run's have %" G_GUINT64_FORMAT "",
                   path, rp_profile_micro_batch_tokens(file), tokens);
    return g_steal_pointer(&profile);
}

static RpProfile *
read_profile(RpTrainJob *job, const char *path, GError **error)
{
    g_autoptr(RpProfile) file = rp_profile_load(path, error);
    const RpProfile *own =
        file != NULL ? rp_profile_with_micro_batch(file, job->network.sequences) : NULL;

    return file != NULL ? take_profile(job, own != NULL ? own : file, path, error) : NULL;
}

/* Times that `plan` predicts with, of a card that need not be here. */
static RpProfile *
predict_profile(RpTrainJob *job, GError **error)
{
    const RpNetworkOptions *options = &job->network;
    const RpLora *lora = rp_weights_lora(job->weights);
    const RpWorkload workload = {
        .sequences = options->sequences,
        .tokens_per_sequence = options->tokens,
        .sample_tokens = options->packed_tokens,
        .dtype = rp_dtype_name(options->dtype),
        .accumulate = options->half_sums ? "fp16" : "fp32",
        .fp8 = options->fp8.used,
        .fp8_head = options->fp8.head,
        .lora_rank = lora != NULL ? lora->rank : 0,
        .lora_targets = lora != NULL ? lora->targets : NULL,
        .base = lora != NULL ? rp_run_base_format(job->weights) : NULL,
        .gpus = job->run->n_devices,
    };
    g_autoptr(RpProfile) card =
        rp_cost_model_profile(&job->config, job->run->card, &workload, error);

    if (card == NULL)
        return rp_null(rp_prefix_error(error, "profile: %s: ", job->run->profile));
    rp_run_say(job->events, "note",
               "times of %u x %s are predicted, as by `plan`: none is measured",
               job->run->n_devices, card->device);
    card->gpu_memory_bytes = rp_profile_plan_bytes(card);
    card->whole_card = FALSE;
    return take_profile(job, card, job->run->profile, error);
}

/* Whether @file was measured on what @now describes, for micro-batches of this run. */
static gboolean
is_of_these_devices(const RpTrainJob *job, const RpProfile *file, const RpProfile *now)
{
    return strcmp(file->source, "measured") == 0 && strcmp(file->device, now->device) == 0 &&
           file->processors == now->processors && file->gpus == job->run->n_devices &&
           file->n_layers == now->n_layers && file->sequences == job->network.sequences &&
           file->tokens_per_sequence == job->network.tokens &&
           strcmp(file->dtype, now->dtype) == 0 && strcmp(file->accumulate, now->accumulate) == 0 &&
           strcmp(file->matmul, now->matmul) == 0 &&
           (file->head_chunk == 0 || file->head_chunk == now->head_chunk) &&
           rp_profile_check_full(file, NULL);
}

/* A run that goes on takes the times that it began with, if its devices are still the same: they
 * decide about the plan, and about whose attention it is. %NULL: there are none. */
static RpProfile *
earlier_profile(RpTrainJob *job, RpProbe *probe, const char *path)
{
    g_autoptr(RpProfile) file = rp_profile_load(path, NULL);

    if (file == NULL)
        return NULL;
    take_attention(job, file, path);
    take_matmuls(job, file, path);
    take_head_chunk(job, file, EARLIER_HEAD_CHUNK);
    g_autoptr(RpNetwork) network = make_network(job);
    g_autoptr(RpProfile) now = rp_network_profile(network);

    now->gpus = job->run->n_devices;
    probe->ops->describe(probe, now);
    if (!is_of_these_devices(job, file, now) ||
        (job->run->attention_choice != 0 && strcmp(file->attention, now->attention) != 0) ||
        !take_times(now, file, path, NULL))
        return NULL;
    return g_steal_pointer(&now);
}

/* The file in the user's cache with the times of these layers on these devices, whether it is there or not: its name is
 * a hash of everything that times depend on. */
static char *
kept_path(const RpTrainJob *job, RpProbe *probe, const RpNetwork *network,
          const RpMeasureOptions *options)
{
    const RpRunSpec *run = job->run;
    const RpKernels *kernels = run->device_ops->kernels();
    g_autofree char *library = kernels->matmul_library != NULL ? kernels->matmul_library() : NULL;
    g_autoptr(RpProfile) sizes = rp_network_profile(network);
    g_autoptr(GString) key = g_string_new(NULL);
    GStatBuf program = {0};

    probe->ops->describe(probe, sizes);
    sizes->gpu_memory_bytes = 0; /* what is free differs from start to start */
    g_autofree char *json = rp_profile_to_json(sizes);

    (void)g_stat("/proc/self/exe", &program);
    g_string_append_printf(key, "%s%s %s %" G_GINT64_FORMAT " %" G_GINT64_FORMAT " ", json, library,
                           run->device_split, (gint64)program.st_size, (gint64)program.st_mtime);
    g_string_append_printf(key, "%d %u %u %u %u %d %d %d %d", run->attention_choice,
                           job->network.packed_tokens, options->devices, rp_usable_processors(),
                           options->optimizer_threads, options->form.rule, options->form.master,
                           options->form.moments, options->form.shared);
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, key->str, -1);
    g_autofree char *name = g_strdup_printf("%.32s.json", hash);

    return g_build_filename(g_get_user_cache_dir(), "roundpipe", "profiles", name, NULL);
}

/* A cache that cannot be written costs the next start its time, and nothing else. It is written to a file that
 * nobody else can have made, and takes the place of what has its name, be it a link. */
static void
keep_profile(const RpProfile *profile, const char *path)
{
    g_autofree char *directory = g_path_get_dirname(path);
    g_autofree char *json = rp_profile_to_json(profile);

    if (g_mkdir_with_parents(directory, 0700) == 0)
        (void)g_file_set_contents_full(path, json, -1, G_FILE_SET_CONTENTS_CONSISTENT, 0600, NULL);
}

/* Whether the partition that needs least fits: cuDNN's attention needs workspace. */
static gboolean
may_fit(const RpTrainJob *job, RpProbe *probe, const RpNetwork *network)
{
    g_autoptr(RpProfile) sizes = rp_network_profile(network);

    probe->ops->describe(probe, sizes);
    const guint64 limit =
        job->run->device_memory_bytes > 0 ? job->run->device_memory_bytes : sizes->gpu_memory_bytes;
    /* a plan with all its buffers has links; how fast they are changes no size */
    sizes->links.h2d_bytes_per_s = 1;
    sizes->links.d2h_bytes_per_s = 1;
    g_autoptr(RpPartition) least = rp_partition_least(sizes);

    return limit == 0 || rp_plan_dispatched_gpu_bytes(sizes, least, FALSE, 0) <= limit;
}

static gboolean
show_measurements(guint64 done, guint64 total, gpointer user_data)
{
    const RpRunEvents *events = user_data;

    RP_RUN_TELL(events, progress, "measuring layers", done, total);
    return TRUE;
}

/* Whether samples fill their sequences: others are attended by the built-in kernels. */
static gboolean
is_full(const RpTrainJob *job)
{
    return job->network.packed_tokens == 0 || job->network.packed_tokens == job->network.tokens;
}

/* Memory for a head's chunk of its own, where the partition that needs least has room for it: so it does
 * not depend on how many devices there are. */
static void
give_head_memory(RpTrainJob *job, RpProbe *probe)
{
    job->network.head_memory = rp_measure_head_memory(probe, job->run->device_memory_bytes);

    g_autoptr(RpNetwork) network = make_network(job);

    if (!may_fit(job, probe, network))
        job->network.head_memory = 0;
}

static RpProfile *
measure_with(RpTrainJob *job, RpProbe *probe, const char *earlier_run,
             const RpMeasureOptions *options, GError **error)
{
    g_autofree char *path =
        earlier_run != NULL ? g_build_filename(earlier_run, RP_TRAIN_PROFILE, NULL) : NULL;
    RpProfile *earlier = path != NULL ? earlier_profile(job, probe, path) : NULL;

    if (earlier != NULL)
        return earlier;
    g_autoptr(RpNetwork) network = make_network(job);
    g_autofree char *kept = kept_path(job, probe, network, options);
    const RpWeights *weights = job->checkpoint != NULL ? job->weights : NULL;
    RpAttentionChoice fastest;

    if (strcmp(job->run->profile, RP_RUN_PROFILE_MEASURE) != 0)
        earlier = earlier_profile(job, probe, kept);
    if (earlier != NULL) {
        rp_run_say(
            job->events, "note",
            "layer times of %s, measured by an earlier run: profile: measure takes them anew",
            earlier->date);
        return earlier;
    }

    if (job->run->attention_choice == 0 && job->network.attention == RP_ATTENTION_BUILTIN &&
        earlier_run == NULL && is_full(job)) {
        if (!rp_measure_attention(probe, network, weights, &fastest, error))
            return NULL;
        job->network.attention = fastest;
        rp_network_free(network);
        network = make_network(job);
        if (fastest != RP_ATTENTION_BUILTIN && job->network.head_memory > 0 &&
            !may_fit(job, probe, network)) { /* rather a smaller chunk than slower attention */
            job->network.head_memory = 0;
            rp_network_free(network);
            network = make_network(job);
        }
        if (fastest != RP_ATTENTION_BUILTIN && !may_fit(job, probe, network)) {
            job->network.attention = RP_ATTENTION_BUILTIN;
            rp_network_free(network);
            network = make_network(job);
        }
    }
    RpProfile *profile = rp_measure_profile(probe, network, weights, options, error);

    if (profile != NULL && options->seconds == 0) /* not those that were measured in less time */
        keep_profile(profile, kept);
    return profile;
}

/* On one device. @alone: all are of its kind */
static RpProfile *
measure_device(RpTrainJob *job, guint device, gboolean alone, const char *earlier_run,
               GError **error)
{
    const RpMeasureOptions options = {
        .devices = job->run->n_devices,
        .seconds = job->measured_seconds,
        .precision = job->measured_seconds > 0 ? 0 : PRECISION,
        .optimizer_threads = job->optimizer_threads,
        .form = rp_run_optimizer_form(&job->run->optimizer),
        .progress = show_measurements,
        .user_data = (gpointer)job->events,
    };
    RpProbe *probe = job->run->device_ops->probe_new(device, error);
    RpProfile *profile = NULL;

    if (probe != NULL && alone && earlier_run == NULL && job->network.head_chunk == 0)
        give_head_memory(job, probe);
    if (probe != NULL)
        profile = measure_with(job, probe, earlier_run, &options, error);
    rp_probe_free(probe);
    RP_RUN_TELL(job->events, progress, "measuring layers", 0, 0);
    return profile;
}

/* The kind of each device, numbered in the order in which they come. Returns: (transfer full)
 * (element-type guint) */
static GArray *
find_kinds(const RpRunSpec *run, GError **error)
{
    g_autoptr(GArray) kinds = g_array_new(FALSE, FALSE, sizeof(guint));
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);

    for (guint g = 0; g < run->n_devices; g++) {
        char *name = rp_run_device_kind(run->device_ops, g, error);
        guint kind = 0;

        if (name == NULL)
            return NULL;
        while (kind < names->len && strcmp(g_ptr_array_index(names, kind), name) != 0)
            kind++;
        if (kind == names->len)
            g_ptr_array_add(names, name);
        else
            g_free(name);
        g_array_append_val(kinds, kind);
    }
    return g_steal_pointer(&kinds);
}

/* Each kind of device is measured once, one of several with the attention that suits the first. */
static RpProfile *
measure_profile(RpTrainJob *job, const char *earlier_run, GError **error)
{
    g_autoptr(GArray) kinds = find_kinds(job->run, error);
    g_autoptr(GPtrArray) cards = g_ptr_array_new_with_free_func((GDestroyNotify)rp_profile_free);

    if (kinds == NULL)
        return NULL;
    const guint *kind_of = (const guint *)(void *)kinds->data;
    guint n_kinds = 1;

    for (guint g = 0; g < kinds->len; g++)
        n_kinds = MAX(n_kinds, kind_of[g] + 1);
    for (guint g = 0; g < kinds->len; g++) {
        if (kind_of[g] < cards->len)
            continue;
        RpProfile *card =
            measure_device(job, g, n_kinds == 1, n_kinds == 1 ? earlier_run : NULL, error);

        if (card == NULL)
            return NULL;
        g_ptr_array_add(cards, card);
    }
    return cards->len == 1 ? g_steal_pointer(&cards->pdata[0])
                           : rp_profile_box((const RpProfile *const *)(void *)cards->pdata, kind_of,
                                            kinds->len);
}

/* Server 0 measures; all take its times, as they stand in a file. */
static RpProfile *
share_profile(RpTrainJob *job, const char *earlier_run, GError **error)
{
    g_autoptr(RpProfile) measured = NULL;
    g_autofree char *json = NULL;
    g_auto(GStrv) texts = NULL;

    if (rp_train_is_first(job->servers)) {
        measured = measure_profile(job, earlier_run, error);
        if (measured == NULL)
            return NULL;
        json = rp_profile_to_json(measured);
    }
    texts =
        rp_servers_gather_texts(job->servers, RP_SERVERS_CONTROL, json != NULL ? json : "", error);
    if (texts == NULL)
        return NULL;
    const char *name = rp_servers_name(job->servers, 0);
    g_autoptr(RpProfile) file = rp_profile_parse(name, texts[0], strlen(texts[0]), error);

    return file != NULL ? take_profile(job, file, name, error) : NULL;
}

/* A file says how much memory there was when it was made. What there is now, a plan may have. */
static gboolean
take_memory(RpTrainJob *job, GError **error)
{
    const RpDeviceOps *devices = job->run->device_ops;

    if (devices->host_memory || job->run->device_memory_bytes > 0 || job->run->card != NULL)
        return TRUE;
    g_autoptr(RpNetwork) network = make_network(job);
    g_autoptr(RpProbe) probe = devices->probe_new(0, error);

    return probe != NULL && rp_measure_memory(probe, network, job->run->n_devices,
                                              &job->profile->gpu_memory_bytes, error);
}

gboolean
rp_train_find_times(RpTrainJob *job, const char *earlier_run, GError **error)
{
    const char *path = job->run->profile;

    job->profile = job->run->card != NULL       ? predict_profile(job, error)
                   : !rp_run_measures(job->run) ? read_profile(job, path, error)
                   : job->servers != NULL       ? share_profile(job, earlier_run, error)
                                                : measure_profile(job, earlier_run, error);
    return job->profile != NULL && take_memory(job, error) &&
           rp_train_least(job, &job->profile->gpu_memory_bytes, error);
}
