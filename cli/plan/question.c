/* roundpipe plan: what its words ask. */
#include <string.h>

#include "cli/plan/plan.h"
#include "cli/reports/reports.h"
#include "core/base/shard.h"
#include "core/base/units.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/lora.h"
#include "exec/model/hf-config.h"
#include "run/model.h"
#include "run/spec.h"

/* Defaults of the options. */
#define DEFAULT_SEQUENCE 2048
/* A number alone is in GiB, and no machine has more than so many. */
#define MAX_GIB 65536.0
#define MAX_TOKENS 1e15

static const char *const dtype_names[] = {"bf16", "fp16", NULL};

void
rp_plan_question_clear(RpPlanQuestion *question)
{
    rp_profile_free(question->profile);
    rp_gpu_free(question->gpu);
    rp_profile_free(question->measured_box);
    g_clear_pointer(&question->cards, g_ptr_array_unref);
    g_clear_pointer(&question->card_of, g_array_unref);
    g_free(question->box);
    rp_server_network_free(question->network_between);
    rp_plan_network_free(question->network);
    g_free(question->name);
    g_strfreev(question->lora_targets);
    g_clear_pointer(&question->schedules, g_ptr_array_unref);
}

static gboolean
refuse(const char *option, const char *message, GError **error)
{
    return rp_cli_refuse(error, "%s: %s", option, message);
}

/* ---- single words ---- */

static gboolean
read_schedules(const char *list, RpPlanQuestion *question, GError **error)
{
    question->schedules = g_ptr_array_new();
    if (list == NULL) {
        for (const RpScheduleOps *const *at = rp_schedules(); *at != NULL; at++)
            if (rp_schedule_has_full(*at))
                g_ptr_array_add(question->schedules, (gpointer)*at);
    } else {
        g_auto(GStrv) names = g_strsplit(list, ",", -1);

        for (guint i = 0; names[i] != NULL; i++) {
            const RpScheduleOps *schedule = rp_schedule_find(g_strstrip(names[i]), error);

            if (schedule == NULL)
                return rp_prefix_error(error, "--schedules: ");
            g_ptr_array_add(question->schedules, (gpointer)schedule);
        }
    }
    g_ptr_array_add(question->schedules, NULL);
    return TRUE;
}

/* A number alone is in GiB, as people say it; bytes alone are refused. */
static gboolean
read_memory(const char *option, const char *text, guint64 *bytes, GError **error)
{
    char *end = NULL;

    if (text == NULL)
        return TRUE;
    double value = g_ascii_strtod(text, &end);
    if (end != text && *end == '\0') {
        if (value > 0 && value <= MAX_GIB) {
            *bytes = (guint64)(value * (double)RP_GIB);
            return TRUE;
        }
        return rp_cli_refuse(
            error,
            "--%s: a number alone is in GiB, 1 to %.0f, found \"%s\"; write it with a "
            "unit: 24GiB, 800GB, 1048576B",
            option, MAX_GIB, text);
    }
    if (!rp_cli_parse_bytes(option, text, bytes, error))
        return FALSE;
    if (*bytes > 0)
        return TRUE;
    return rp_cli_refuse(error, "--%s: expected more than 0, found \"%s\"", option, text);
}

/* "300M": K, M, B and T are thousands, millions, ... of tokens. */
static gboolean
read_tokens(const char *text, guint64 *tokens, GError **error)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}};
    char *end = NULL;

    if (text == NULL)
        return TRUE;
    double value = g_ascii_strtod(text, &end);
    for (gsize i = 0; end != text && i < G_N_ELEMENTS(units); i++) {
        double total = value * units[i].factor;

        if (g_ascii_strcasecmp(end, units[i].suffix) != 0 || !(total >= 1 && total <= MAX_TOKENS))
            continue;
        *tokens = (guint64)total;
        return TRUE;
    }
    return rp_cli_refuse(error, "--tokens: expected a number such as 300M or 1.5B, found \"%s\"",
                         text);
}

/* Several kinds: the one with the least memory says what fits. */
static gboolean
find_cards(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    if (args->max_sequence)
        return refuse(
            "--gpu", "expected one card with --max-sequence: the one with the least memory", error);
    question->cards = rp_box_open_cards(&args->box, NULL, &question->card_of, error);
    if (question->cards == NULL)
        return FALSE;
    for (guint c = 0; c < question->cards->len; c++) {
        const RpGpu *card = g_ptr_array_index(question->cards, c);

        if (query->gpu == NULL || card->memory_bytes < query->gpu->memory_bytes)
            query->gpu = card;
    }
    query->gpu_bytes = rp_gpu_plan_bytes(query->gpu->memory_bytes);
    if (question->cards->len < 2)
        return TRUE;
    query->cards = (const RpGpu *const *)(void *)question->cards->pdata;
    query->card_of = (const guint *)(void *)question->card_of->data;
    query->box = question->box = rp_box_describe(question->cards, question->card_of);
    return TRUE;
}

static gboolean
find_gpu(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    if (args->box.gpu == NULL)
        return TRUE;
    guint counted = args->run.plan.gpus;

    if (!rp_box_count(&args->box, &counted, error))
        return FALSE;
    query->gpus = MAX(1, counted);
    if (!rp_box_measured(&args->box, &question->measured_box, error))
        return FALSE;
    query->measured_box = question->measured_box;
    query->known = (query->measured_box != NULL ? rp_profile_box_known(query->measured_box) : 0) |
                   (args->box.host_bandwidth != NULL ? 1u << RP_UNKNOWN_HOST : 0);
    if (rp_box_has_counts(&args->box))
        return find_cards(args, question, error);
    query->gpu = question->gpu = rp_box_open(&args->box, NULL, error);
    if (query->gpu == NULL)
        return FALSE;
    query->gpu_bytes = rp_gpu_plan_bytes(query->gpu->memory_bytes);
    return TRUE;
}

/* ---- preferences ---- */

/* Adapters are asked for, or the timing file's. */
static gboolean
read_preference(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    RpRunSpec run = args->run;

    run.lora.rank = query->profile != NULL ? rp_profile_has_frozen(query->profile) : run.lora.rank;
    const char *problem = rp_args_has(args, "reference") ? rp_run_reference_problem(&run) : NULL;
    if (problem != NULL)
        return rp_cli_refuse(error, "--reference: %s", problem);
    query->preference = rp_preference_default((RpObjective)run.objective);
    if (rp_preference_is_used(&query->preference))
        query->preference.reference = rp_run_choose_reference(&run, 0, &question->reference_why);
    return TRUE;
}

/* ---- where times and sizes come from ---- */

/* All that cannot be guessed, at once. */
static gboolean
check_missing(const RpArgs *args, const char *path, GError **error)
{
    gboolean no_model = args->model == NULL && path == NULL;
    gboolean no_gpu = args->box.gpu == NULL && !(args->max_sequence && args->gpu_memory != NULL);

    if (args->profile != NULL || (!no_model && (!no_gpu || args->max_sequence)))
        return TRUE;
    return rp_cli_refuse(
        error, "%s%s%s: expected %s, found nothing; or give --profile with a timing file",
        no_model ? "--model" : "", no_model && no_gpu ? " and " : "", no_gpu ? "--gpu" : "",
        !no_gpu     ? "a name (`roundpipe models`), a config.json or a model's directory"
        : !no_model ? "a name (`roundpipe gpus`)"
                    : "names (`roundpipe models`, `roundpipe gpus`)");
}

/* Options that say what the catalogue's cost model is asked; a timing file has the answers. */
static gboolean
check_profile_words(const RpArgs *args, const char *path, GError **error)
{
    static const char *const own[] = {"dtype",     "accumulate",   "matmul",
                                      "lora-rank", "lora-targets", "base"};

    if (args->box.gpu != NULL)
        return refuse("--profile", "the file names its GPU; leave --gpu out", error);
    if (path != NULL)
        return refuse("--profile", "the file has its model; leave the directory out", error);
    for (gsize i = 0; i < G_N_ELEMENTS(own); i++)
        if (rp_args_has(args, own[i]))
            return refuse(
                "--profile",
                "the file's times have their own --dtype, --accumulate, --matmul, --lora-rank, "
                "--lora-targets and --base; leave them out",
                error);
    if (args->max_sequence)
        return refuse("--max-sequence",
                      "a timing file has sizes for one length only; use --model and --gpu", error);
    return TRUE;
}

static gboolean
read_profile(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    const RpBoxArgs box = {
        .pcie = args->box.pcie, .host_bandwidth = args->box.host_bandwidth, .file = args->box.file};

    if (!check_profile_words(args, question->path, error))
        return FALSE;
    question->profile = rp_cli_load_profiles(args->profile, &box, args->run.plan.gpus, error);
    if (question->profile == NULL)
        return FALSE;
    if (!rp_profile_check_full(question->profile, error))
        return rp_prefix_error(error, "%s: ", args->profile);
    const RpProfile *profile = question->profile;

    if (args->model != NULL && g_ascii_strcasecmp(args->model, profile->model) != 0)
        return rp_cli_refuse(error, "--model: expected \"%s\" as in %s, or nothing, found \"%s\"",
                             profile->model, args->profile, args->model);
    if (args->packed != 0)
        return refuse("--packed", "times are those of the file: leave it out", error);
    if (args->box.sequence != 0 && (guint)args->box.sequence != profile->tokens_per_sequence)
        return rp_cli_refuse(error, "--sequence: expected %u as in %s, or nothing, found %d",
                             profile->tokens_per_sequence, args->profile, args->box.sequence);
    question->name = g_strdup(profile->model);
    query->profile = profile;
    query->tokens_per_sequence = profile->tokens_per_sequence;
    query->dtype = profile->dtype;
    query->accumulate = profile->accumulate;
    query->gpu_bytes = rp_profile_plan_bytes(profile);
    return read_preference(args, question, error);
}

/* The model of a directory or its config.json. Its weights may be fp32, whose times nobody
 * predicts: these are planned as bf16. */
static gboolean
read_path(RpRunSpec *run, const char *path, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    question->network = rp_plan_network_open(path, run, error);
    if (question->network == NULL)
        return FALSE;
    query->dtype = rp_dtype_name(question->network->options.dtype);
    if (query->gpu != NULL && run->dtype_choice == 0 &&
        !g_strv_contains(dtype_names, query->dtype)) {
        question->dtype_assumed = TRUE;
        query->dtype = dtype_names[0];
        run->dtype_choice = RP_DTYPE_BF16 + 1;
        rp_plan_network_free(question->network);
        question->network = rp_plan_network_open(path, run, error);
        if (question->network == NULL)
            return FALSE;
    }
    query->model = &question->network->model;
    question->name = g_strdup(query->model->name);
    return TRUE;
}

/* A model that `train` knows is planned as `train` does, any other by the cost model. */
static gboolean
read_name(const RpArgs *args, const RpRunSpec *run, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    g_autoptr(GError) problem = NULL;

    query->model = rp_model_find(args->model, error);
    if (query->model == NULL)
        return rp_prefix_error(error, "--model: ");
    question->name = g_strdup(query->model->name);
    if (query->dtype == NULL)
        query->dtype = dtype_names[0];
    question->network = rp_plan_network_of(query->model, run, &problem);
    if (question->network != NULL ||
        g_error_matches(problem, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_UNSUPPORTED))
        return rp_cli_check_lora(query->model, query->lora_rank, query->lora_targets, error);
    return rp_propagate_error(error, g_steal_pointer(&problem));
}

gboolean
rp_plan_word_is_path(const char *word)
{
    g_autofree char *path = rp_model_path(word);

    return g_path_is_absolute(word) || word[0] == '.' || g_str_has_suffix(word, ".json") ||
           g_file_test(path, G_FILE_TEST_EXISTS);
}

/* After --model a name of the catalogue is one, even if a directory is called so. */
static gboolean
is_path(const char *word)
{
    return rp_plan_word_is_path(word) &&
           (rp_model_find(word, NULL) == NULL || g_path_is_absolute(word) || word[0] == '.');
}

/* Reads numbers, and which weights are frozen beside adapters. */
static gboolean
read_numbers(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    const gboolean has_base = rp_args_has(args, "base");

    if (args->run.lora.rank == 0 && (args->run.lora.targets != NULL || has_base))
        return refuse(has_base ? "--base" : "--lora-targets",
                      "expected --lora-rank beside it: without adapters all weights are trained",
                      error);
    question->lora_targets = rp_lora_read_targets(args->run.lora.targets);
    const RpWorkload workload = rp_cli_workload(&args->run, question->lora_targets);

    query->dtype = workload.dtype;
    query->accumulate = workload.accumulate;
    query->fp8 = workload.fp8;
    query->fp8_head = workload.fp8_head;
    query->lora_rank = workload.lora_rank;
    query->lora_targets = workload.lora_targets;
    query->base = workload.base;
    return query->gpu == NULL || query->dtype == NULL ||
           rp_cli_choice("dtype", query->dtype, dtype_names, error) >= 0;
}

static gboolean
read_model(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    const char *path = question->path != NULL ? question->path
                       : is_path(args->model) ? args->model
                                              : NULL;
    RpRunSpec run = args->run;

    if (question->path != NULL && args->model != NULL)
        return refuse(question->path, "leave --model out, or the path", error);
    if (!read_preference(args, question, error))
        return FALSE;
    run.preference = query->preference;
    if (!read_numbers(args, question, error) ||
        (path != NULL ? !read_path(&run, path, question, error)
                      : !read_name(args, &run, question, error)))
        return FALSE;
    query->tokens_per_sequence = args->box.sequence != 0
                                     ? (guint)args->box.sequence
                                     : MIN(DEFAULT_SEQUENCE, query->model->max_positions);
    if (query->fp8 && query->tokens_per_sequence % 16 != 0)
        return rp_cli_refuse(error,
                             "--sequence: expected a multiple of 16 with --matmul %s, found %u",
                             rp_run_spec_given(&args->run, "matmul"), query->tokens_per_sequence);
    query->sample_tokens = (guint)args->packed;
    if (query->sample_tokens > query->tokens_per_sequence)
        return rp_cli_refuse(error, "--packed: expected at most %u, the sequence, found %d",
                             query->tokens_per_sequence, args->packed);
    if (question->network != NULL)
        query->base = rp_run_base_format(question->network->weights);
    return TRUE;
}

/* Times are those of a GPU; sizes need none. */
static gboolean
check_gpu(const RpArgs *args, const RpPlanQuestion *question, GError **error)
{
    const gboolean sizes_only = args->max_sequence && question->network != NULL;

    if (question->network == NULL && (args->run.devices != NULL || rp_args_has(args, "attention")))
        return refuse(args->run.devices != NULL ? "--devices" : "--attention",
                      "sizes are those of the cost model or the file: `train` has no such run; "
                      "leave it out",
                      error);
    if (args->box.gpu == NULL && args->profile == NULL && !sizes_only)
        return refuse("--gpu", "expected a name, found nothing; or give --profile", error);
    if (sizes_only && args->box.gpu == NULL && args->gpu_memory == NULL)
        return refuse("--gpu-memory", "expected a size, found nothing; or give --gpu", error);
    return TRUE;
}

/* ---- several servers ---- */

static gboolean
open_network(const char *word, RpPlanQuestion *question, GError **error)
{
    question->network_between = rp_server_network_open(word, error);
    return question->network_between != NULL || rp_prefix_error(error, "--network: ");
}

/* Words that a plan of several servers has no answer to. */
static gboolean
check_beside(const RpArgs *args, GError **error)
{
    const struct {
        gboolean given;
        const char *option, *why;
    } others[] = {
        {args->max_sequence, "--max-sequence", "the longest sequence is that of one server"},
        {args->draws > 0, "--draws", "draws are of one server's steps"},
        {args->output != NULL, "--output", "no run has several servers yet"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(others); i++)
        if (others[i].given)
            return rp_cli_refuse(error, "--servers: expected no %s beside it: %s", others[i].option,
                                 others[i].why);
    return TRUE;
}

static gboolean
read_servers(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    const guint servers = MAX(1, args->run.plan.servers);
    RpAdviseQuery *query = &question->query;

    if (args->run.plan.servers > RP_SHARD_MOST_SERVERS)
        return rp_cli_refuse(error, "--servers: expected at most %d, found %d",
                             RP_SHARD_MOST_SERVERS, args->run.plan.servers);
    if (args->box.network != NULL && args->run.plan.servers == 0)
        return rp_cli_refuse(error, "--network: expected --servers beside it");
    if (args->box.network != NULL && !open_network(args->box.network, question, error))
        return FALSE;
    if (servers == 1)
        return TRUE;
    if (args->box.network == NULL)
        return rp_cli_refuse(error, "--servers: expected --network beside it: 10GbE, 25GbE, "
                                    "100GbE, IB400 or a FILE.json");
    if (!check_beside(args, error))
        return FALSE;
    if (args->batch % (int)servers != 0)
        return rp_cli_refuse(error,
                             "--batch: expected a multiple of the %u servers, found %d: each "
                             "trains on as many sequences",
                             servers, args->batch);
    query->servers = servers;
    query->network = question->network_between;
    if (args->batch != 0)
        query->batch /= servers;
    return TRUE;
}

/* ---- together ---- */

static void
read_counts(const RpArgs *args, RpAdviseQuery *query)
{
    query->gpus = MAX(1, args->run.plan.gpus);
    query->batch = (guint)args->batch;
    query->micro_batch = (guint)args->box.micro_batch;
    query->micro_batches = (guint)args->run.plan.micro_batches;
    query->round = (guint)args->run.plan.round;
    query->sync = args->sync;
    query->accumulate = "fp32";
    query->save = rp_run_spec_save(&args->run);
    query->optimizer = (RpOptimizerMode)args->run.optimizer.mode;
    query->form = rp_run_optimizer_form(&args->run.optimizer);
    query->resident = (RpResidentChoice)args->run.resident_choice;
}

/* 16 sequences a GPU, in whole micro-batches and rounds where these were given. */
static void
choose_batch(RpAdviseQuery *query)
{
    guint micro_batch =
        query->profile != NULL ? MAX(1, query->profile->sequences) : MAX(1, query->micro_batch);
    guint unit = micro_batch * MAX(1, MAX(query->round, query->gpus));
    guint wanted = RP_PLAN_BATCH_PER_GPU * query->gpus;

    guint64 given = (guint64)query->micro_batches * micro_batch;

    query->batch =
        given != 0 ? (guint)MIN(given, G_MAXUINT) : MAX(1, (wanted + unit - 1) / unit) * unit;
}

/* Times that are predicted have no spread; those of a file may have one. */
static gboolean
check_draws(const RpArgs *args, const RpPlanQuestion *question, GError **error)
{
    if (args->seed != 0 && args->draws == 0)
        return refuse("--seed", "expected --draws beside it", error);
    if (args->draws > RP_CLI_MOST_DRAWS)
        return rp_cli_refuse(error, "--draws: expected at most %d, found %d", RP_CLI_MOST_DRAWS,
                             args->draws);
    return args->draws == 0 ||
           (question->profile != NULL && rp_draws_has_spreads(question->profile)) ||
           refuse("--draws", "expected --profile with a timing file whose times have spreads",
                  error);
}

gboolean
rp_plan_question_read(const RpArgs *args, const char *path, RpPlanQuestion *question,
                      GError **error)
{
    RpAdviseQuery *query = &question->query;

    question->args = args;
    question->path = path;
    read_counts(args, query);
    if (!check_missing(args, path, error) || !read_schedules(args->schedules, question, error) ||
        !find_gpu(args, question, error))
        return FALSE;
    if (!(args->profile != NULL ? read_profile(args, question, error)
                                : read_model(args, question, error)) ||
        !check_gpu(args, question, error) || !check_draws(args, question, error))
        return FALSE;
    if (question->network != NULL)
        query->sizes = &question->network->sizes;
    if (query->batch == 0 && !args->max_sequence)
        choose_batch(query);
    return read_servers(args, question, error) &&
           read_tokens(args->tokens, &question->tokens, error) &&
           read_memory("gpu-memory", args->gpu_memory, &query->gpu_bytes, error) &&
           read_memory("host-memory", args->host_memory, &query->host_bytes, error);
}

/* ---- adapters instead ---- */

/* Blocks times sequences of a step: beyond, an answer takes some ten seconds, and a packed base is not asked about. */
#define MOST_ADAPTER_WORK 5000

static gboolean
add_adapters(const RpPlanQuestion *question, guint changes, GPtrArray *remedies, GError **error)
{
    static const RpScheduleOps *const none[] = {NULL};
    RpArgs args = *question->args;
    g_auto(RpPlanQuestion) changed = {0};

    rp_args_set(&args, "lora-rank", G_STRINGIFY(RP_PLAN_ADAPTER_RANK));
    rp_args_set(&args, "base", changes & RP_ADVISE_CHANGE_BASE ? RP_PLAN_ADAPTER_BASE : NULL);
    if (!rp_plan_question_read(&args, question->path, &changed, NULL))
        return TRUE; /* there are models whose weights have no such adapters or base */
    changed.query.quick = TRUE;
    g_autoptr(RpAdvice) advice = rp_advise(&changed.query, none, error);

    if (advice == NULL)
        return FALSE;
    if (advice->best == NULL)
        return TRUE;
    RpAdviseRemedy *remedy = g_new0(RpAdviseRemedy, 1);

    *remedy =
        (RpAdviseRemedy){.changes = changes,
                         .tokens_per_s = advice->best->tokens_per_s * MAX(1, changed.query.servers),
                         .gpu_total = advice->best->gpu.total,
                         .host_total = advice->best->host.total};
    g_ptr_array_add(remedies, remedy);
    return TRUE;
}

gboolean
rp_plan_add_adapters(const RpPlanQuestion *question, GPtrArray *remedies, GError **error)
{
    const RpArgs *args = question->args;

    const RpAdviseQuery *query = &question->query;
    const gboolean large =
        query->model != NULL && query->model->blocks * query->batch > MOST_ADAPTER_WORK;

    return args->profile != NULL || args->run.lora.rank != 0 ||
           (add_adapters(question, RP_ADVISE_CHANGE_ADAPTERS, remedies, error) &&
            (large || add_adapters(question, RP_ADVISE_CHANGE_ADAPTERS | RP_ADVISE_CHANGE_BASE,
                                   remedies, error)));
}
