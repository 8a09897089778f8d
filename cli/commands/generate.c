/* roundpipe generate: a model answers, a prompt of text or a file of ids. */
#include "cli/generate/generate.h"

#include <stdio.h>
#include <unistd.h>

#include "run/talk.h"

/* Answers to text, printed as they come: to a prompt, to a question as a chat has it, or to one question
 * after the other from standard input. */

static gboolean
print_text(gpointer user_data, const char *text, gsize length)
{
    fwrite(text, 1, length, stdout);
    return fflush(stdout) == 0;
}

static gboolean
ask(RpTalk *talk, const RpArgs *args, const char *prompt, gboolean prints, RpTalkAnswer *answer,
    GError **error)
{
    const RpSampling sampling = rp_generate_sampling(args);
    const gboolean good = rp_talk_answer(talk, prompt, (guint)args->new_tokens, &sampling,
                                         prints ? print_text : NULL, NULL, answer, error);

    if (good && prints) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    return good;
}

/* One question a line, until there are no more. */
static gboolean
converse(RpTalk *talk, const RpArgs *args, GError **error)
{
    const gboolean terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    g_autofree char *line = NULL;
    size_t space = 0;
    RpTalkAnswer unused;
    gboolean good = TRUE;

    while (good) {
        if (terminal)
            fputs("> ", stderr);
        const ssize_t length = getline(&line, &space, stdin);

        if (length < 0)
            break;
        if (length > 0 && line[length - 1] == '\n')
            line[length - 1] = '\0';
        good = *line == '\0' || ask(talk, args, line, TRUE, &unused, error);
    }
    free(g_steal_pointer(&line));
    return good;
}

/* @prompt: %NULL: of args->chat: lines of standard input, a question each */
static gboolean
answer_text(const RpArgs *args, const char *word, const char *prompt, RpReport *report,
            GError **error)
{
    const gboolean prints = report->form != RP_REPORT_JSON;
    const RpTalkOptions options = {.model = word,
                                   .adapter = args->adapter,
                                   .any_base = args->run.lora.any_base,
                                   .device = args->run.devices,
                                   .chat = args->chat,
                                   .system = args->system,
                                   .converses = prompt == NULL};

    if (prompt == NULL && !prints)
        return rp_cli_refuse(error, "--json: expected a PROMPT beside it");
    g_autoptr(RpTalk) talk = rp_talk_new(&options, error);
    if (talk == NULL)
        return FALSE;
    if (prompt == NULL)
        return converse(talk, args, error);
    RpTalkAnswer answer;

    if (!ask(talk, args, prompt, prints, &answer, error))
        return FALSE;
    rp_report_counts(report, "prompt", (const gint32 *)(void *)answer.prompt->data,
                     answer.prompt->len);
    rp_report_counts(report, "answer", (const gint32 *)(void *)answer.ids->data, answer.ids->len);
    rp_report_text(report, "text", answer.text, NULL);
    rp_report_bool(report, "ended", answer.ended, NULL);
    rp_report_real(report, "seconds", answer.seconds, 3, NULL);
    return TRUE;
}

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
    return answer_text(args, words[0], prompt, report, error);
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
