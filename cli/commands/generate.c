/* roundpipe generate: a model answers, a prompt of text or a file of ids. */
#include "cli/generate/model.h"

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
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

static const RpUse uses[] = {
    {"chat system adapter any-base"},
    {"devices", "host, or cuda: the first GPU (default: host)", "DEVICE"},
    {"max-new-tokens"},
    {"temperature",
     "what logits are divided by before dice are thrown (default: 0: the likeliest token)"},
    {"top-p top-k"},
    {"seed", "of the dice (default: 0)", "N"},
    {"prompts"},
    {"output", "where answers to --prompts go, a line of JSON each; - prints them", "FILE.jsonl"},
    {0},
};

static const RpArgs defaults = {.top_p = 1};

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
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
