/* Generators of `roundpipe generate`, and how they choose tokens. */
#include "cli/generate/generate.h"

RpSampling
rp_generate_sampling(const RpArgs *args)
{
    return (RpSampling){.temperature = args->temperature,
                        .top_p = args->top_p,
                        .top_k = (guint)args->top_k,
                        .seed = (guint64)args->seed};
}

gboolean
rp_generate_check_sampling(const RpArgs *args, GError **error)
{
    if (!(args->temperature >= 0 && args->temperature <= 100))
        return rp_cli_refuse(error, "--temperature: expected a number from 0 to 100, found %g",
                             args->temperature);
    if (!(args->top_p > 0 && args->top_p <= 1))
        return rp_cli_refuse(error, "--top-p: expected a number above 0, at most 1, found %g",
                             args->top_p);
    if (args->temperature == 0 && (args->top_p < 1 || args->top_k > 0))
        return rp_cli_refuse(error, "--top-%c: expected a --temperature above 0 beside it",
                             args->top_k > 0 ? 'k' : 'p');
    return TRUE;
}

void
rp_generate_note_streamed(guint streamed, guint n_layers)
{
    if (streamed > 0)
        rp_cli_note("note",
                    "%u of %u layers do not fit into the device's memory: they are copied there "
                    "for every token",
                    streamed, n_layers);
}

gboolean
rp_generate_open(const RpTrained *model, const RpArgs *args, guint n, guint tokens,
                 GPtrArray *generators, GError **error)
{
    const guint share = (n + model->n_probes - 1) / model->n_probes;
    const guint most = args->batch > 0 ? (guint)args->batch : RP_GENERATOR_MAX_SLOTS;
    RpGeneratorOptions options = {
        .slots = MIN(share, most), .tokens = tokens, .memory_bytes = args->run.device_memory_bytes};
    guint n_layers = 0, streamed = 0;

    if (!rp_trained_ends(model, &options, error))
        return FALSE;
    for (guint d = 0; d < model->n_probes; d++) {
        RpGenerator *generator = rp_generator_new(&model->config, model->weights, model->kernels,
                                                  model->probes[d], &options, error);

        if (generator == NULL)
            return FALSE;
        g_ptr_array_add(generators, generator);
        streamed = MAX(streamed, rp_generator_streamed(generator, &n_layers));
        options.beside = generator;
    }
    rp_generate_note_streamed(streamed, n_layers);
    return TRUE;
}
