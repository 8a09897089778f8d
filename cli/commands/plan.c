/* roundpipe plan: what will happen if I train MODEL on N x GPU. */
#include "cli/plan/plan.h"

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
draw_times(const RpPlanQuestion *question, const RpAdvice *advice, RpRequestDrawn *drawn,
           GError **error)
{
    const RpArgs *args = question->args;

    if (args->draws == 0 || advice->best == NULL)
        return TRUE;
    *drawn = (RpRequestDrawn){.draws = (guint)args->draws, .seed = (guint64)args->seed};
    return rp_advise_draw(advice->profile, advice->best, drawn->draws, drawn->seed,
                          &drawn->iteration_ns, &drawn->bubble_ratio, error);
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
    const RpArgs *args = question->args;
    const char *model = question->path != NULL ? question->path : args->model;
    g_autofree char *devices = g_strdup_printf("cuda:%u", advice->query.gpus);
    const RpRunSpec words = {.model = (char *)(model != NULL ? model : question->name),
                             .data = (char *)"data.jsonl",
                             .output = (char *)"output",
                             .devices = devices};

    if (args->output == NULL || (advice->best == NULL && advice->instead == NULL))
        return TRUE;
    return rp_plan_write_run(args->output, question, advice, &words, error);
}

static gboolean
report_advice(RpPlanQuestion *question, RpReport *report, GError **error)
{
    RpRequestDrawn drawn = {0};
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
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    g_auto(RpPlanQuestion) question = {0};

    const char *path = words[0];

    if (path != NULL && args->model == NULL && args->profile == NULL &&
        !rp_plan_word_is_path(path)) {
        args->model = words[0];
        path = NULL;
    }
    const RpCliFile files[] = {{"--box", args->box.file, RP_CLI_READ},
                               {"--output", args->output, RP_CLI_WRITTEN}};
    if (args->output != NULL && args->max_sequence)
        return rp_cli_refuse(error, "--output: expected no --max-sequence beside it");
    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    const gboolean done = rp_plan_question_read(args, path, &question, error) &&
                          (args->max_sequence ? report_longest(&question, report, error)
                                              : report_advice(&question, report, error));

    blame_usage(error);
    return done;
}

static const RpUse uses[] = {
    {"model"},
    {"gpu", "GPU: a name, see `roundpipe gpus`, or a card's FILE.json"},
    {"gpus", "number of GPUs (default: 1)"},
    {"gpu-memory host-memory"},
    {"sequence", "tokens of a sequence (default: 2048)", "TOKENS"},
    {"packed batch"},
    {"servers", "so many of them, each of which steps a share of every layer (default: 1)"},
    {"network", "between servers: 10GbE, 25GbE, 100GbE, IB400 or a network's FILE.json"},
    {"tokens lora-rank lora-targets base"},
    {"objective",
     "what is learned: sft, or a preference: dpo, ipo, orpo, simpo, kto (default: sft)"},
    {"reference"},
    {"max-sequence"},
    {"output", "write a run file of it: set its data, then train", "RUN.yaml"},
    RP_FOR_EXPERTS,
    {"profile"},
    {"micro-batch", "sequences of a micro-batch (default: chosen)"},
    {"micro-batches", "micro-batches of a step (default: chosen)"},
    {"round", "micro-batches of a round (default: chosen)"},
    {"sync " RP_USE_LINKS},
    {"dtype", "bf16 (default) or fp16; of a MODEL_DIR: default its own", "NAME"},
    {"matmul accumulate optimizer optimizer-name optimizer-state optimizer-master resident "
     "recompute schedules"},
    {"draws",
     "with --profile: simulate the recommended plan N times more, with times drawn from the file's "
     "spreads"},
    {"seed"},
    {"devices",
     "of the longest sequence: room of whose kernels, cuda (default, where it is built in) or host",
     "NAME"},
    {"attention", "of the longest sequence: the run's, builtin (default) or cudnn", "NAME"},
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
    .uses = uses,
    .run = run,
};
