/* roundpipe plan: what will happen if I train MODEL on N x GPU. */
#include "cli/plan/plan.h"

/* What the library refuses because of the words is wrong usage. */
static void
blame_usage(GError **error)
{
    if (*error == NULL || (*error)->domain != RP_ADVISE_ERROR)
        return;
    (*error)->domain = RP_CLI_ERROR;
    (*error)->code = RP_CLI_ERROR_USAGE;
}

static gboolean
run_longest(const RpPlanQuestion *question, int *code, GError **error)
{
    g_auto(RpAdviseLongest) longest = {0};

    if (!rp_advise_longest(&question->query, &longest, error))
        return FALSE;
    *code = longest.tokens > 0 ? RP_EXIT_OK : RP_EXIT_FAILED;
    if (question->args->json)
        rp_cmd_plan_json_longest(question, &longest);
    else
        rp_cmd_plan_print_longest(question, &longest);
    return TRUE;
}

static gboolean
run_advice(const RpPlanQuestion *question, int *code, GError **error)
{
    g_autoptr(RpAdvice) advice = rp_advise(
        &question->query, (const RpScheduleOps *const *)(void *)question->schedules->pdata, error);

    if (advice == NULL)
        return FALSE;
    *code = advice->best != NULL || advice->instead != NULL ? RP_EXIT_OK : RP_EXIT_FAILED;
    if (question->args->json) {
        rp_cmd_plan_json(advice, question);
        return TRUE;
    }
    rp_cmd_plan_print_answer(advice, question);
    rp_cmd_plan_print_tables(advice, question);
    return TRUE;
}

static gboolean
run(const RpPlanArgs *args, int *code, GError **error)
{
    g_auto(RpPlanQuestion) question = {0};
    gboolean done = rp_plan_question_read(args, &question, error) &&
                    (args->max_sequence ? run_longest(&question, code, error)
                                        : run_advice(&question, code, error));

    blame_usage(error);
    return done;
}

int
rp_cmd_plan(int argc, char **argv)
{
    RpPlanArgs args = {0};
    const GOptionEntry entries[] = {
        {"model", 0, 0, G_OPTION_ARG_STRING, &args.model,
         "model: a name (see `roundpipe models`), a config.json or a model's directory", "MODEL"},
        {"gpu", 0, 0, G_OPTION_ARG_STRING, &args.gpu, "GPU, see `roundpipe gpus`", "NAME"},
        {"profile", 0, 0, G_OPTION_ARG_FILENAME, &args.profile,
         "timing file instead of --gpu and --model; fixes the micro-batch", "PROFILE.json"},
        {"gpus", 'n', 0, G_OPTION_ARG_INT, &args.gpus, "number of GPUs (default: 1)", "N"},
        {"gpu-memory", 0, 0, G_OPTION_ARG_STRING, &args.gpu_memory,
         "for a plan on each GPU (default: the card's, less 0.9 GiB for the CUDA context)", "SIZE"},
        {"host-memory", 0, 0, G_OPTION_ARG_STRING, &args.host_memory,
         "for a plan on the host; a number alone is in GiB (default: not checked)", "SIZE"},
        {"sequence", 0, 0, G_OPTION_ARG_INT, &args.sequence, "tokens of a sequence (default: 2048)",
         "TOKENS"},
        {"batch", 0, 0, G_OPTION_ARG_INT, &args.batch,
         "sequences of a step, all GPUs together (default: 16 a GPU)", "SEQUENCES"},
        {"tokens", 0, 0, G_OPTION_ARG_STRING, &args.tokens,
         "to train on, as 300M or 1.5B: tells the hours", "NUMBER"},
        {"lora-rank", 0, 0, G_OPTION_ARG_INT, &args.lora_rank,

         "predict rank-R adapters, which `train` cannot run yet (default: all parameters)", "R"},
        {"micro-batch", 0, 0, G_OPTION_ARG_INT, &args.micro_batch,
         "sequences of a micro-batch (default: chosen)", "B"},
        {"micro-batches", 'm', 0, G_OPTION_ARG_INT, &args.micro_batches,
         "micro-batches of a step (default: chosen)", "M"},
        {"round", 0, 0, G_OPTION_ARG_INT, &args.round, "micro-batches of a round (default: chosen)",
         "M_R"},
        {"sync", 0, 0, G_OPTION_ARG_NONE, &args.sync, "synchronous optimizer step", NULL},
        {"dtype", 0, 0, G_OPTION_ARG_STRING, &args.dtype,
         "bf16 (default) or fp16; of a MODEL_DIR: default its own", "NAME"},
        {"accumulate", 0, 0, G_OPTION_ARG_STRING, &args.accumulate,
         "of matmuls: fp32 (default) or fp16", "NAME"},
        {"optimizer", 0, 0, G_OPTION_ARG_STRING, &args.optimizer,
         "fused (default, 18 bytes a parameter) or lean (16)", "NAME"},
        {"schedules", 0, 0, G_OPTION_ARG_STRING, &args.schedules,
         "schedules to compare (default: all)", "LIST"},
        {"max-sequence", 0, 0, G_OPTION_ARG_NONE, &args.max_sequence,
         "tell the longest sequence that `train` takes at micro-batch 1, nothing else", NULL},
        {"devices", 0, 0, G_OPTION_ARG_STRING, &args.devices,
         "of the longest sequence: room of whose kernels, cuda (default, where it is built in) or "
         "host",
         "NAME"},
        {"attention", 0, 0, G_OPTION_ARG_STRING, &args.attention,
         "of the longest sequence: the run's, builtin (default) or cudnn", "NAME"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print JSON", NULL},
        G_OPTION_ENTRY_NULL,
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("[MODEL]",
                      "Tells what will happen if a model is trained on these GPUs.\n\n"
                      "MODEL is a name, a config.json or a model's directory.\n\n"
                      "Examples:\n"
                      "  roundpipe plan --model Qwen/Qwen3-8B --gpu rtx4090 --gpus 4 \\\n"
                      "    --host-memory 256GiB --tokens 100M\n"
                      "  roundpipe plan MODEL --max-sequence --gpu-memory 24GiB\n\n"
                      "Exit codes: 0 something fits, 1 nothing does, 2 wrong usage.",
                      entries, NULL, 0, 1, &argc, &argv, &error)) {
        code = rp_cli_fail("plan", error);
    } else {
        args.path = argc > 1 ? argv[1] : NULL;
        if (!run(&args, &code, &error))
            code = rp_cli_fail("plan", error);
    }
    rp_plan_args_clear(&args);
    return code;
}
