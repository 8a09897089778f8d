/* A run of several servers: what must be the same on all, and what server 0 says for all. */
#include "run/train/private.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/units.h"
#include "exec/system/memory-limit.h"
#include "run/run-file.h"
#include "run/train/train.h"

guint
rp_train_n_servers(const RpTrainJob *job)
{
    return job->servers != NULL ? rp_servers_count(job->servers) : 1;
}

gboolean
rp_train_is_first(const RpServers *servers)
{
    return servers == NULL || rp_servers_rank(servers) == 0;
}

/* ---- before anything is read ---- */

/* Hash of the program's own file: servers of one version calculate alike. */
static char *
hash_program(void)
{
    g_autoptr(GMappedFile) file = g_mapped_file_new("/proc/self/exe", FALSE, NULL);

    return file != NULL
               ? g_compute_checksum_for_data(G_CHECKSUM_SHA256,
                                             (const guchar *)g_mapped_file_get_contents(file),
                                             g_mapped_file_get_length(file))
               : g_strdup("unknown");
}

gboolean
rp_train_agree_start(RpServers *servers, const RpRunSpec *run, const RpTrainHow *how, gboolean dry,
                     GError **error)
{
    g_autofree char *program = hash_program();
    g_autofree char *file = rp_run_file_of(run);
    g_autofree char *asked = g_strdup_printf(
        "%s\n%s\n%s %s\n--save-gradients %s", file, dry ? "--dry-run" : "no --dry-run",
        how->resume ? "--resume" : "no --resume", how->checkpoint != NULL ? how->checkpoint : "",
        how->save_gradients != NULL ? how->save_gradients : "is not there");

    return rp_servers_check_same(servers, "a program of SHA-256", program, error) &&
           rp_servers_check_same(servers, "of the run file and options", asked, error);
}

/* ---- the output directory: server 0 makes one in it, in which each makes one ---- */

/* In @output, or where it will be. (transfer full). Returns: the path, or why there is none */
static char *
make_probe(const char *output, gboolean *made)
{
    g_autofree char *directory = rp_file_existing_directory(output);
    g_autofree char *probe = g_build_filename(directory, ".servers-XXXXXX", NULL);

    *made = g_mkdtemp_full(probe, 0777) != NULL;
    return *made ? g_steal_pointer(&probe)
                 : g_strdup_printf("%s: %s", directory, g_strerror(errno));
}

static char *
probe_of(const char *probe, guint server)
{
    g_autofree char *name = g_strdup_printf("server-%u", server);

    return g_build_filename(probe, name, NULL);
}

/* On server 0: the first whose directory is not to be seen from here; the number of servers: none. All go. */
static guint
end_probe(const RpServers *servers, const char *probe)
{
    guint first = rp_servers_count(servers);

    for (guint r = rp_servers_count(servers); r-- > 0;) {
        g_autofree char *path = probe_of(probe, r);

        if (g_rmdir(path) != 0)
            first = r;
    }
    (void)g_rmdir(probe);
    return first;
}

/* Collects each server's @problem; the first is the error of all. */
static gboolean
refuse_unshared(RpServers *servers, const char *output, const char *problem, GError **error)
{
    g_auto(GStrv) told =
        rp_servers_gather_texts(servers, RP_SERVERS_CONTROL, problem != NULL ? problem : "", error);

    for (guint r = 0; told != NULL && r < rp_servers_count(servers); r++) {
        const char *blamed = strchr(told[r], ' ');

        if (blamed == NULL)
            continue;
        return rp_fail(error, RP_SERVERS_ERROR, RP_SERVERS_ERROR_DIFFERS,
                       "%s: output: expected to write into the \"%s\" of %s, found another or none "
                       "(%s): every server writes its part of a checkpoint there; put output on "
                       "storage that all of them share",
                       rp_servers_name(servers, (guint)g_ascii_strtoull(told[r], NULL, 10)), output,
                       rp_servers_name(servers, 0), blamed + 1);
    }
    return told != NULL;
}

gboolean
rp_train_check_shared(RpServers *servers, const RpRunSpec *run, GError **error)
{
    const guint rank = rp_servers_rank(servers);
    gboolean made = rank > 0;
    g_autofree char *own = rank == 0 ? make_probe(run->output, &made) : g_strdup("");
    g_autofree char *unmade = made ? NULL : g_strdup_printf("0 %s", own);
    g_autofree char *problem = NULL, *unseen = NULL;

    if (!refuse_unshared(servers, run->output, unmade, error))
        return FALSE;
    g_auto(GStrv) all = rp_servers_gather_texts(servers, RP_SERVERS_CONTROL, own, error);
    if (all == NULL)
        return FALSE;
    g_autofree char *mine = probe_of(all[0], rank);

    if (g_mkdir(mine, 0777) != 0)
        problem = g_strdup_printf("%u %s", rank, g_strerror(errno));
    gboolean good = refuse_unshared(servers, run->output, problem, error);
    const guint first = rank == 0 ? end_probe(servers, own) : G_MAXUINT;

    if (good && rank == 0 && first < rp_servers_count(servers))
        unseen = g_strdup_printf("%u nothing of it is seen from there", first);
    return good && refuse_unshared(servers, run->output, unseen, error);
}

gboolean
rp_train_share_checkpoint(RpServers *servers, RpTrainHow *how, GError **error)
{
    g_auto(GStrv) paths = rp_servers_gather_texts(
        servers, RP_SERVERS_CONTROL, how->checkpoint != NULL ? how->checkpoint : "", error);

    if (paths == NULL)
        return FALSE;
    g_free(how->checkpoint);
    how->checkpoint = *paths[0] != '\0' ? g_strdup(paths[0]) : NULL;
    return TRUE;
}

static gboolean
refuse(GError **error, const char *key, const char *expected)
{
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE, "%s: expected %s with several servers",
                   key, expected);
}

gboolean
rp_train_divide(const RpTrainJob *job, RpRunSpec *run, GError **error)
{
    const gint64 n = rp_train_n_servers(job);

    if (n == 1)
        return TRUE;
    if (run->micro_batches % n != 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "micro_batches: expected a multiple of %" G_GINT64_FORMAT
                       ", the number of servers, found %" G_GINT64_FORMAT,
                       n, run->micro_batches);
    if (run->consistency == RP_CONSISTENCY_BLOCKING)
        return refuse(error, "consistency", "events");
    if (run->optimizer.early == RP_EARLY_ON)
        return refuse(error, "optimizer.early_steps", "auto or off");
    if (run->round_choice == RP_RUN_ROUND_ALL && run->round > 0)
        run->round = run->micro_batches / n;
    rp_servers_emulate(job->servers, run->network_limit * 1e9 / 8);
    return TRUE;
}

/* ---- once it is planned ---- */

gboolean
rp_train_least(const RpTrainJob *job, guint64 *bytes, GError **error)
{
    const guint n = rp_train_n_servers(job);
    g_autofree guint64 *all = g_new0(guint64, n);

    if (n == 1)
        return TRUE;
    all[rp_servers_rank(job->servers)] = *bytes;
    if (!rp_servers_gather_each(job->servers, RP_SERVERS_CONTROL, all, sizeof *all, error))
        return FALSE;
    for (guint r = 0; r < n; r++)
        if (all[r] > 0 && (*bytes == 0 || all[r] < *bytes))
            *bytes = all[r];
    return TRUE;
}

gboolean
rp_train_measure_servers(RpTrainJob *job, GError **error)
{
    const guint n = rp_train_n_servers(job);
    RpLinks *links = &job->profile->links;

    if (n == 1)
        return TRUE;
    job->speeds = g_new0(RpServersSpeed, n);
    if (!rp_servers_measure(job->servers, RP_TRAIN_MEASURED_BYTES, job->speeds, error))
        return FALSE;
    const RpServersSpeed slowest = rp_servers_slowest(job->speeds, n);

    links->network_bytes_per_s = slowest.bytes_per_s;
    links->network_latency_ns = slowest.latency_ns;
    return TRUE;
}

static void
add_bytes(GChecksum *checksum, const void *bytes, gsize n)
{
    g_checksum_update(checksum, bytes, (gssize)n);
}

/* Hash of all tasks, their dependencies and their operands. */
static char *
hash_plan(const RpPlan *plan)
{
    g_autoptr(GChecksum) checksum = g_checksum_new(G_CHECKSUM_SHA256);

    for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const guint32 numbers[] = {task->lane,  task->iteration, task->micro_batch, task->stage,
                                   task->layer, task->chunk,     task->round,       task->kind};

        add_bytes(checksum, numbers, sizeof numbers);
        add_bytes(checksum, rp_plan_dependencies(plan, task),
                  task->dependency_count * sizeof(RpDependency));
        add_bytes(checksum, rp_plan_accesses(plan, task), task->access_count * sizeof(RpAccess));
    }
    for (guint32 a = 0; a <= rp_plan_gpus(plan); a++) {
        const guint64 bytes = rp_plan_arena_bytes(plan, a);

        add_bytes(checksum, &bytes, sizeof bytes);
    }
    return g_strdup(g_checksum_get_string(checksum));
}

static gboolean
agree_data(const RpTrainJob *job, const char *what, const RpDataset *dataset, GError **error)
{
    g_autofree char *fingerprint =
        dataset != NULL
            ? g_strdup_printf("%016" G_GINT64_MODIFIER "x", rp_dataset_fingerprint(dataset).all)
            : g_strdup("none");

    return rp_servers_check_same(job->servers, what, fingerprint, error);
}

/* Weights that are made follow from the config and the run file's seed. */
static gboolean
agree_model(const RpTrainJob *job, GError **error)
{
    g_autofree char *config = rp_hf_config_to_json(&job->config);

    return job->random ? rp_servers_check_same(job->servers, "a config.json of", config, error)
                       : job->checkpoint == NULL ||
                             rp_servers_check_same(job->servers, "a model of hash",
                                                   rp_weights_model_hash(job->weights), error);
}

gboolean
rp_train_agree_inputs(const RpTrainJob *job, GError **error)
{
    if (job->servers == NULL)
        return TRUE;
    return agree_model(job, error) && agree_data(job, "data of fingerprint", job->dataset, error) &&
           agree_data(job, "eval.data of fingerprint", job->evaluation.dataset, error);
}

gboolean
rp_train_agree_plan(const RpTrainJob *job, GError **error)
{
    g_autofree char *plan = NULL;

    if (job->servers == NULL)
        return TRUE;
    plan = hash_plan(job->plan);
    return rp_servers_check_same(job->servers, "a plan of SHA-256", plan, error);
}

gboolean
rp_train_tell_servers(const RpTrainJob *job, GError **error)
{
    const RpRunSpec *run = job->run;
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (job->servers == NULL)
        return TRUE;
    const double bytes_per_s = job->speeds[rp_servers_rank(job->servers)].bytes_per_s;
    g_autofree char *emulated = g_strdup_printf("%g Gbit/s", run->network_limit);
    g_autofree char *text =
        g_strdup_printf("%s, %.1f GiB of host memory free, %.3g GB/s to the others as measured%s%s",
                        run->devices, (double)limit.bytes / (double)RP_GIB, bytes_per_s / 1e9,
                        run->network_limit > 0 ? ", over an emulated network: network_limit " : "",
                        run->network_limit > 0 ? emulated : "");
    g_auto(GStrv) texts = rp_servers_gather_texts(job->servers, RP_SERVERS_CONTROL, text, error);

    for (guint r = 0; texts != NULL && r < rp_servers_count(job->servers); r++)
        rp_run_say(job->events, "note", "%s: %s", rp_servers_name(job->servers, r), texts[r]);
    return texts != NULL;
}

/* ---- between steps ---- */

/* The data that a server has read. */
typedef struct {
    guint64 failed;
    RpBatchCounts counts;
} Read;

static void
add_counts(RpBatchCounts *sum, const RpBatchCounts *more)
{
    sum->n_targets += more->n_targets;
    sum->n_tokens += more->n_tokens;
    sum->n_truncated += more->n_truncated;
    sum->n_cut_tokens += more->n_cut_tokens;
    sum->n_without_targets += more->n_without_targets;
    sum->n_pairs += more->n_pairs;
    sum->n_chosen_targets += more->n_chosen_targets;
}

gboolean
rp_train_next_batch(RpServers *servers, RpBatcher *batcher, RpTokenBatch *batch, GError **error)
{
    const guint n = servers != NULL ? rp_servers_count(servers) : 1;
    g_autofree Read *all = g_new0(Read, n);
    g_autoptr(GError) problem = NULL;
    const gboolean read = rp_batcher_next(batcher, batch, &problem);

    if (n > 1) {
        all[rp_servers_rank(servers)] =
            (Read){.failed = !read, .counts = rp_token_batch_counts(batch)};
        if (!rp_servers_gather_each(servers, RP_SERVERS_CONTROL, all, sizeof *all, error))
            return FALSE;
    }
    for (guint r = 1; r < n; r++) {
        all[0].failed |= all[r].failed;
        add_counts(&all[0].counts, &all[r].counts);
    }
    if (n > 1 && all[0].failed)
        return rp_servers_tell_problem(servers, RP_SERVERS_CONTROL, g_steal_pointer(&problem),
                                       RP_DATASET_ERROR, RP_DATASET_ERROR_FILE, error);
    if (!read)
        g_propagate_error(error, g_steal_pointer(&problem));
    if (read && n > 1)
        rp_batcher_take_counts(batcher, batch, &all[0].counts);
    return read;
}

gboolean
rp_train_agree_step(const RpTrainJob *job, RpTrainWish *wish, GError **error)
{
    const guint n = rp_train_n_servers(job);
    g_autofree RpTrainWish *all = g_new0(RpTrainWish, n);

    all[rp_servers_rank(job->servers)] = *wish;
    if (!rp_servers_gather_each(job->servers, RP_SERVERS_CONTROL, all, sizeof *all, error))
        return FALSE;
    *wish = all[0];
    for (guint r = 1; r < n && wish->signal == 0; r++)
        wish->signal = all[r].signal; /* whoever is asked to stop: all stop */
    return TRUE;
}

/* ---- failure ---- */

gboolean
rp_train_fail_servers(RpServers *servers, const GError *problem)
{
    const gboolean own = problem->domain != RP_SERVERS_ERROR;
    const gboolean first = rp_servers_rank(servers) == 0;

    if (g_error_matches(problem, RP_SERVERS_ERROR, RP_SERVERS_ERROR_DIFFERS))
        return first; /* all know */
    rp_servers_fail(servers, problem->message);
    const char *said = rp_servers_said(servers, 0);
    if (first)
        return TRUE;
    return own ? said == NULL || (strstr(said, problem->message) == NULL &&
                                  strstr(problem->message, said) == NULL)
               : g_str_has_prefix(problem->message, rp_servers_name(servers, 0)) && said == NULL;
}
