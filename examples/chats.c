/* From chats to a checkpoint, and a question to it:  chats MODEL_DIR CHATS.jsonl OUTPUT_DIR QUESTION */
#include <stdio.h>

#include <roundpipe.h>

static const char run_file[] = "devices: host:2\n" /* or cuda */
                               "micro_batches: 4\n"
                               "micro_batch_size: 2\n"
                               "sequence_length: 128\n"
                               "epochs: 1\n"
                               "optimizer: {learning_rate: 3e-3, warmup_ratio: 0.1}\n";

static void
stepped(gpointer user_data, const RpStepReport *report, double step_ns)
{
    printf("step %" G_GUINT64_FORMAT ": loss %.4f, %.1f ms\n", report->step, report->loss,
           (double)report->step_ns / 1e6);
}

static void
say(gpointer user_data, const char *kind, const char *text)
{
    fprintf(stderr, "chats: %s: %s\n", kind, text);
}

static int
fail(const GError *error)
{
    fprintf(stderr, "chats: %s\n", error->message);
    return 1;
}

int
main(int argc, char **argv)
{
    const RpRunEvents events = {.say = say, .stepped = stepped};
    GError *error = NULL;

    if (argc != 5) {
        fprintf(stderr, "usage: chats MODEL_DIR CHATS.jsonl OUTPUT_DIR QUESTION\n");
        return 2;
    }
    g_autofree char *model = g_strdup_printf("model=%s", argv[1]);
    g_autofree char *data = g_strdup_printf("data=%s", argv[2]);
    g_autofree char *output = g_strdup_printf("output=%s", argv[3]);
    g_autofree char *checkpoint = NULL;
    const char *const sets[] = {model, data, output, NULL};
    RpRunSpec *run = rp_run_file_parse("chats", run_file, sizeof run_file - 1, sets, &error);
    g_autoptr(RpSession) session =
        run != NULL ? rp_session_new(run, RP_SESSION_TRAIN, &events, &error) : NULL;

    if (session == NULL || !rp_session_train(session, &checkpoint, &error))
        return fail(error);
    printf("saved: %s\n", checkpoint);

    const RpTalkOptions options = {.model = checkpoint, .chat = TRUE};
    const RpSampling likeliest = {.temperature = 0};
    g_autoptr(RpTalk) talk = rp_talk_new(&options, &error);
    RpTalkAnswer answer;

    if (talk == NULL || !rp_talk_answer(talk, argv[4], 32, &likeliest, NULL, NULL, &answer, &error))
        return fail(error);
    printf("answer: %s\n", answer.text);
    return 0;
}
