/* Predicts training on cards that need not be here:  predict MODEL CARD GPUS
 * MODEL: a directory with a config.json, or a name of `roundpipe models`; CARD: of `roundpipe gpus` */
#include <stdio.h>

#include <roundpipe.h>

static const char run_file[] =
    "micro_batches: 16\n"
    "micro_batch_size: 1\n"
    "sequence_length: 2048\n"
    "steps: 1\n"
    "data: none.jsonl\n" /* may be missing: all sequences are full then */
    "output: .\n";       /* left alone */

static int
fail(const GError *error)
{
    fprintf(stderr, "predict: %s\n", error->message);
    return 1;
}

int
main(int argc, char **argv)
{
    GError *error = NULL;

    if (argc != 4) {
        fprintf(stderr, "usage: predict MODEL CARD GPUS\n");
        return 2;
    }
    g_autofree char *model = g_strdup_printf("model=%s", argv[1]);
    g_autofree char *profile = g_strdup_printf("profile=%s", argv[2]);
    g_autofree char *devices = g_strdup_printf("devices=cuda:%s", argv[3]);
    const char *const sets[] = {model, profile, devices, NULL};
    RpRunSpec *run = rp_run_file_parse("predict", run_file, sizeof run_file - 1, sets, &error);
    g_autoptr(RpSession) session =
        run != NULL ? rp_session_new(run, RP_SESSION_PREDICT, NULL, &error) : NULL;

    if (session == NULL)
        return fail(error);
    const RpSessionPrediction predicted = rp_session_predict(session);
    const RpPlan *plan = predicted.plan;
    const double step_ns = (double)predicted.step.iteration_ns;
    guint64 most = 0;

    for (guint gpu = 0; gpu < rp_plan_gpus(plan); gpu++)
        most = MAX(most, rp_plan_arena_bytes(plan, gpu));
    printf("step        %.1f ms\n", step_ns / 1e6);
    printf("throughput  %.0f tokens/s\n", (double)predicted.tokens * 1e9 / step_ns);
    printf("bubble      %.2f %%\n", 100 * predicted.step.ratio);
    printf("memory      %.2f GiB on the fullest GPU, %.2f GiB on the host\n",
           (double)most / (1 << 30),
           (double)rp_plan_arena_bytes(plan, rp_plan_gpus(plan)) / (1 << 30));
    return 0;
}
