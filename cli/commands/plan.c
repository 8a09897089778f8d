/* roundpipe plan: what will happen if I train MODEL on N x GPU. */
#include "cli/plan/plan.h"
#include "run/settings.h"

/* A refusal by the library because of the words is wrong usage. */
static void
blame_usage(GError **error)
{
    if (*error == NULL || (*error)->domain != RP_ADVISE_ERROR)
        return;
    (*error)->domain = RP_CLI_ERROR;
    (*error)->code = RP_CLI_ERROR_USAGE;
}

static gboolean
report_longest(const RpPlanQuestion *question, RpReport *report, GError **error)
{
    g_auto(RpAdviseLongest) longest = {0};

    if (!rp_advise_longest(&question->query, &longest, error))
        return FALSE;
    report->exit = longest.tokens > 0 ? RP_EXIT_OK : RP_EXIT_FAILED;
    rp_plan_report_longest(report, question, &longest);
    return TRUE;
}

/* Figures over draws of the times, if they are asked for. */
static gboolean
draw_times(const RpPlanQuestion *question, const RpAdvice *advice, RpPlanDrawn *drawn,
           GError **error)
{
    const RpPlanArgs *args = question->args;

    if (args->draws == 0 || advice->best == NULL)
        return TRUE;
    *drawn = (RpPlanDrawn){.draws = (guint)args->draws, .seed = args->seed};
    return rp_advise_draw(advice->profile, advice->best, drawn->draws, (guint64)drawn->seed,
                          &drawn->step_ns, &drawn->bubble_ratio, error);
}

/* Where times are the cost model's, and rest on something. */
static gboolean
find_range(const RpAdvice *advice, RpAdviseRange *range, GError **error)
{
    RpAdviseQuery query = advice->query;

    if (advice->best != NULL)
        query.saved = advice->best->saved;
    return query.gpu == NULL || query.servers > 1 || query.gpu->foreign || advice->best == NULL ||
           rp_advise_range(&query, advice->best, range, error);
}

/* The same question for one server shows how much the network costs. */
static gboolean
serve(RpPlanQuestion *question, const RpAdvice *advice, GError **error)
{
    static const RpScheduleOps *const none[] = {NULL};
    RpAdviseQuery query = question->query;

    if (query.servers <= 1 || advice->best == NULL)
        return TRUE;
    query.network = NULL;
    g_autoptr(RpAdvice) alone = rp_advise(&query, none, error);

    if (alone == NULL)
        return FALSE;
    query = advice->query;
    query.saved = advice->best->saved;
    return rp_advise_serve(&query, advice->best, alone->best != NULL ? alone->best : advice->best,
                           &question->served, error);
}

/* How fast it is with what makes it fit. */
static gboolean
find_remedies(const RpPlanQuestion *question, RpAdvice *advice, GError **error)
{
    return advice->best != NULL || (rp_advise_price_remedies(advice, error) &&
                                    rp_plan_add_adapters(question, advice->remedies, error));
}

/* For the cards of the question, wherever it is asked. */
static gboolean
write_run(const RpPlanQuestion *question, const RpAdvice *advice, GError **error)
{
    const RpPlanArgs *args = question->args;
    const char *model = args->path != NULL ? args->path : args->model;
    g_autofree char *devices = g_strdup_printf("cuda:%u", advice->query.gpus);
    const RpPlanRunWords words = {.model = model != NULL ? model : question->name,
                                  .data = "data.jsonl",
                                  .output = "output",
                                  .devices = devices};

    if (args->output == NULL || (advice->best == NULL && advice->instead == NULL))
        return TRUE;
    return rp_plan_write_run(args->output, question, advice, &words, error);
}

static gboolean
report_advice(RpPlanQuestion *question, RpReport *report, GError **error)
{
    RpPlanDrawn drawn = {0};
    RpAdviseRange range = {0};
    g_autoptr(RpAdvice) advice = rp_advise(
        &question->query, (const RpScheduleOps *const *)(void *)question->schedules->pdata, error);

    if (advice == NULL || !draw_times(question, advice, &drawn, error) ||
        !find_range(advice, &range, error) || !serve(question, advice, error) ||
        !find_remedies(question, advice, error) || !write_run(question, advice, error))
        return FALSE;
    report->exit = advice->best != NULL || advice->instead != NULL ? RP_EXIT_OK : RP_EXIT_FAILED;
    rp_plan_report_advice(report, advice, question, &drawn, &range);
    return TRUE;
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    RpPlanArgs *args = user_args;
    g_auto(RpPlanQuestion) question = {0};

    if (words[0] != NULL && args->model == NULL && args->profile == NULL &&
        !rp_plan_word_is_path(words[0]))
        args->model = g_strdup(words[0]);
    else
        args->path = words[0];
    if (args->dtype != NULL) {
        char *word = g_strdup(rp_setting_word(args->dtype));

        g_free(args->dtype);
        args->dtype = word;
    }
    const RpCliFile files[] = {{"--box", args->box.file, RP_CLI_READ},
                               {"--output", args->output, RP_CLI_WRITTEN}};
    if (args->output != NULL && args->max_sequence)
        return rp_cli_refuse(error, "--output: expected no --max-sequence beside it");
    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    const gboolean done = rp_plan_question_read(args, &question, error) &&
                          (args->max_sequence ? report_longest(&question, report, error)
                                              : report_advice(&question, report, error));

    blame_usage(error);
    return done;
}

static const GOptionEntry options[] = {
    {"model", 0, RP_WORD(RpPlanArgs, model),
     "model: a name (see `roundpipe models`), a config.json or a model's directory", "MODEL"},
    {"gpu", 0, RP_WORD(RpPlanArgs, box.gpu),
     "GPU: a name, see `roundpipe gpus`, or a card's FILE.json", "CARD"},
    {"gpus", 'n', RP_COUNT(RpPlanArgs, gpus), "number of GPUs (default: 1)", "N"},
    {"gpu-memory", 0, RP_WORD(RpPlanArgs, gpu_memory),
     "for a plan on each GPU (default: the card's, less 0.9 GiB for the CUDA context)", "SIZE"},
    {"host-memory", 0, RP_WORD(RpPlanArgs, host_memory),
     "for a plan on the host; a number alone is in GiB (default: not checked)", "SIZE"},
    {"sequence", 0, RP_COUNT(RpPlanArgs, sequence), "tokens of a sequence (default: 2048)",
     "TOKENS"},
    {"packed", 0, RP_COUNT(RpPlanArgs, packed),
     "samples share sequences, and attention stays within one: tokens of a typical sample, as "
     "inspect tells (default: a sequence each)",
     "TOKENS"},
    {"batch", 0, RP_COUNT(RpPlanArgs, batch),
     "sequences of a step, all GPUs and servers together (default: 16 a GPU)", "SEQUENCES"},
    {"servers", 0, RP_COUNT(RpPlanArgs, servers),
     "so many of them, each of which steps a share of every layer (default: 1)", "R"},
    {"network", 0, RP_WORD(RpPlanArgs, network),
     "between servers: 10GbE, 25GbE, 100GbE, IB400 or a network's FILE.json", "NETWORK"},
    {"tokens", 0, RP_WORD(RpPlanArgs, tokens), "to train on, as 300M or 1.5B: tells the hours",
     "NUMBER"},
    {"lora-rank", 0, RP_COUNT(RpPlanArgs, lora_rank),
     "train rank-R adapters of all matrices (default: all parameters)", "R"},
    {"lora-targets", 0, RP_WORD(RpPlanArgs, lora_targets),
     "with --lora-rank: adapters of these modules alone, as q_proj,v_proj", "LIST"},
    {"base", 0, RP_WORD(RpPlanArgs, base),
     "with --lora-rank: frozen weights in bf16 (default), fp8, nf4 or mxfp4", "FORMAT"},
    {"max-sequence", 0, RP_FLAG(RpPlanArgs, max_sequence),
     "tell the longest sequence that `train` takes at micro-batch 1, nothing else", NULL},
    {"output", 'o', RP_FILE(RpPlanArgs, output), "write a run file of it: set its data, then train",
     "RUN.yaml"},
    RP_FOR_EXPERTS,
    {"profile", 0, RP_FILE(RpPlanArgs, profile),
     "timing file instead of --gpu and --model; fixes the micro-batch", "PROFILE.json"},
    {"micro-batch", 0, RP_COUNT(RpPlanArgs, micro_batch),
     "sequences of a micro-batch (default: chosen)", "B"},
    {"micro-batches", 'm', RP_COUNT(RpPlanArgs, micro_batches),
     "micro-batches of a step (default: chosen)", "M"},
    {"round", 0, RP_COUNT(RpPlanArgs, round), "micro-batches of a round (default: chosen)", "M_R"},
    {"sync", 0, RP_FLAG(RpPlanArgs, sync), "synchronous optimizer step", NULL},
    RP_BOX_LINKS(RpPlanArgs, box),
    {"dtype", 0, RP_WORD(RpPlanArgs, dtype),
     "bf16 (default) or fp16; of a MODEL_DIR: default its own", "NAME"},
    {"matmul", 0, RP_WORD(RpPlanArgs, matmul),
     "what matmuls of blocks read: fp8 (fp8-head: the head's, too), or numbers of dtype (default)",
     "TYPE"},
    {"accumulate", 0, RP_WORD(RpPlanArgs, accumulate),
     "of matmuls: fp32 (default), or fp16 with dtype fp16 or fp8", "NAME"},
    {"optimizer", 0, RP_WORD(RpPlanArgs, optimizer),
     "fused (default, 18 bytes a parameter) or lean (16)", "NAME"},
    {"optimizer-name", 0, RP_WORD(RpPlanArgs, form.rule), NULL, "NAME"},
    {"optimizer-state", 0, RP_WORD(RpPlanArgs, form.moments), NULL, "NAME"},
    {"optimizer-master", 0, RP_WORD(RpPlanArgs, form.master), NULL, "NAME"},
    {"resident", 0, RP_WORD(RpPlanArgs, resident), NULL, "NAME"},
    {"recompute", 0, RP_WORD(RpPlanArgs, recompute), NULL, "NAME"},
    {"schedules", 0, RP_WORD(RpPlanArgs, schedules),
     "schedules to compare (default: all that have `full` plans of their own)", "LIST"},
    {"draws", 0, RP_COUNT(RpPlanArgs, draws),
     "with --profile: simulate the recommended plan N times more, with times drawn from the file's "
     "spreads",
     "N"},
    {"seed", 0, 0, G_OPTION_ARG_INT64, RP_ARG(RpPlanArgs, seed), "of --draws (default: 0)", "S"},
    {"devices", 0, RP_WORD(RpPlanArgs, devices),
     "of the longest sequence: room of whose kernels, cuda (default, where it is built in) or host",
     "NAME"},
    {"attention", 0, RP_WORD(RpPlanArgs, attention),
     "of the longest sequence: the run's, builtin (default) or cudnn", "NAME"},
    {0},
};

const RpCommand rp_command_plan = {
    .name = "plan",
    .summary = "what will happen if I train MODEL on N x GPU",
    .words = "[MODEL]",
    .help = "Tells what will happen if a model is trained on these GPUs.\n\n"
            "MODEL is a name, a config.json or a model's directory.\n\n"
            "Examples:\n"
            "  roundpipe plan Qwen/Qwen3-8B --gpu rtx4090 --gpus 4 \\\n"
            "    --host-memory 256GiB --tokens 100M\n"
            "  roundpipe plan MODEL --max-sequence --gpu-memory 24GiB\n\n"
            "Exit codes: 0 something fits, 1 nothing does, 2 wrong usage.",
    .options = options,
    .args_size = sizeof(RpPlanArgs),
    .run = run,
};
