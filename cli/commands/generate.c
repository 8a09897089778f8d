/* roundpipe generate: a model answers, a prompt of text or a file of ids. */
#include "cli/generate/model.h"

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const RpGenerateArgs *args = user_args;
    const char *prompt = words[1];

    if (!rp_generate_check_sampling(args, error))
        return FALSE;
    if (args->system != NULL && !args->chat)
        return rp_cli_refuse(error, "--system: expected --chat beside it");
    if (prompt == NULL && !args->chat)
        return rp_generate_prompts(args, words[0], report, error);
    if (args->prompts != NULL || args->output != NULL)
        return rp_cli_refuse(error, "--%s: expected no %s beside it",
                             args->prompts != NULL ? "prompts" : "output",
                             args->chat ? "--chat" : "PROMPT");
    return rp_generate_text(args, words[0], prompt, report, error);
}

static const GOptionEntry options[] = {
    {"chat", 0, RP_FLAG(RpGenerateArgs, chat),
     "PROMPT is a user's message, in the model's chat template; without it each line of standard "
     "input is one",
     NULL},
    {"system", 0, RP_WORD(RpGenerateArgs, system), "the system's message of the chat", "TEXT"},
    {"adapter", 0, RP_FILE(RpGenerateArgs, adapter),
     "adapters of the model: a checkpoint of them, or a directory of peft's", "DIR"},
    {"any-base", 0, RP_FLAG(RpGenerateArgs, any_base), RP_CLI_ANY_BASE, NULL},
    {"devices", 0, RP_WORD(RpGenerateArgs, devices), "host, or cuda: the first GPU (default: host)",
     "DEVICE"},
    {"max-new-tokens", 0, RP_COUNT(RpGenerateArgs, new_tokens),
     "tokens of an answer at most (default: 256; of --prompts those of the longest expected "
     "answer, "
     "else 64)",
     "N"},
    {"temperature", 0, RP_NUMBER(RpGenerateArgs, temperature),
     "what logits are divided by before dice are thrown (default: 0: the likeliest token)", "T"},
    {"top-p", 0, RP_NUMBER(RpGenerateArgs, top_p),
     "of the likeliest tokens that have P of the probability (default: 1)", "P"},
    {"top-k", 0, RP_COUNT(RpGenerateArgs, top_k), "of the likeliest K tokens (default: all)", "K"},
    {"seed", 0, RP_COUNT(RpGenerateArgs, seed), "of the dice (default: 0)", "N"},
    {"prompts", 0, RP_FILE(RpGenerateArgs, prompts),
     "prompts of ids as training data; where labels tell an answer, it is compared", "FILE.jsonl"},
    {"output", 'o', RP_FILE(RpGenerateArgs, output),
     "where answers to --prompts go, a line of JSON each; - prints them", "FILE.jsonl"},
    {0},
};

static const RpGenerateArgs defaults = {.top_p = 1};

const RpCommand rp_command_generate = {
    .name = "generate",
    .summary = "let a trained model answer a prompt",
    .words = "MODEL_DIR [PROMPT]",
    .help =
        "Continues a text, or answers a file of prompts of token ids, with a model, a checkpoint\n"
        "or the output of a run: its best checkpoint, else its last.\n\n"
        "Examples:\n  roundpipe generate models/qwen3-0.6b 'The capital of France is'\n"
        "  roundpipe generate run --chat 'Who are you?'\n"
        "  roundpipe generate run/checkpoint-200 --prompts test.jsonl -o answers.jsonl",
    .options = options,
    .args_size = sizeof(RpGenerateArgs),
    .defaults = &defaults,
    .run = run,
};
