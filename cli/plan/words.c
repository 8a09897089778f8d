/* roundpipe plan: words and figures that text and JSON share. */
#include "cli/plan/plan.h"
#include "core/base/units.h"

char *
rp_plan_remedy_words(const RpAdviseRemedy *remedy)
{
    const RpAdviseQuery *query = &remedy->query;
    g_autoptr(GString) text = g_string_new(NULL);
    guint changes = remedy->changes;

    if (changes & RP_ADVISE_CHANGE_GPU)
        g_string_append_printf(text, " --gpu %s", query->gpu->name);
    if (changes & RP_ADVISE_CHANGE_HOST_MEMORY)
        g_string_append_printf(text, " --host-memory %" G_GUINT64_FORMAT "GiB",
                               query->host_bytes / RP_GIB);
    if (changes & RP_ADVISE_CHANGE_REFERENCE)
        g_string_append(text, " --reference precomputed");
    if (changes & RP_ADVISE_CHANGE_ROUND)
        g_string_append_printf(text, " --round %u", query->round);
    if (changes & RP_ADVISE_CHANGE_MICRO_BATCH)
        g_string_append(text, " --micro-batch 1");
    if (changes & RP_ADVISE_CHANGE_LEAN)
        g_string_append(text, " --optimizer lean");
    if (changes & RP_ADVISE_CHANGE_STATES)
        g_string_append(text, " --optimizer-state int8 --optimizer-master bf16");
    if (changes & RP_ADVISE_CHANGE_SYNC)
        g_string_append(text, " --sync");
    if (changes & RP_ADVISE_CHANGE_BATCH)
        g_string_append_printf(text, " --batch %u", query->batch);
    if (changes & RP_ADVISE_CHANGE_SEQUENCE)
        g_string_append_printf(text, " --sequence %u", query->tokens_per_sequence);
    if (changes & RP_ADVISE_CHANGE_ADAPTERS)
        g_string_append_printf(text, " --lora-rank %d", RP_PLAN_ADAPTER_RANK);
    if (changes & RP_ADVISE_CHANGE_BASE)
        g_string_append(text, " --base " RP_PLAN_ADAPTER_BASE);
    return g_strdup(text->len > 0 ? text->str + 1 : "");
}

char *
rp_plan_saved_words(const RpAdvice *advice, const RpAdviseRun *run)
{
    g_autoptr(RpProfile) own = rp_profile_copy(advice->profile);

    (void)rp_profile_keep_fused(own, run->partition->backward[0].first);
    return rp_profile_describe_saved(own);
}

const char *
rp_plan_device_name(const RpAdviseQuery *query)
{
    return query->cards != NULL     ? query->box
           : query->gpu != NULL     ? query->gpu->title
           : query->profile != NULL ? query->profile->device
                                    : NULL;
}

char *
rp_plan_unknown_ends(const RpAdviseRange *range, RpUnknown unknown)
{
    const RpUnknownInfo *info = rp_unknown_info(unknown);

    return info->unit == NULL ? g_strdup("slow and fast estimate")
                              : g_strdup_printf("%.3g to %.3g %s", range->of[unknown].low / 1e9,
                                                range->of[unknown].high / 1e9, info->unit);
}

/* Bytes of weights, 16 bits each. Values of 8 bits are kept with their transpose, as many bytes, with scales beside them that
 * are no parameters: then what goes up is all but these. */
static guint64
parameter_bytes(const RpLayer *layer)
{
    const guint64 up = layer->upload_bytes;

    return up < layer->parameter_bytes && up > layer->parameter_bytes / 64 * 63
               ? up
               : layer->parameter_bytes;
}

void
rp_plan_count_parameters(const RpProfile *profile, guint64 *parameters, guint64 *trained)
{
    guint element = rp_profile_element_bytes(profile);

    *parameters = 0;
    *trained = 0;
    for (guint i = 0; i < profile->n_layers; i++) {
        const RpLayer *layer = &profile->layers[i];

        *parameters += (parameter_bytes(layer) - layer->tied_bytes) / element;
        *trained += rp_layer_own_gradient_bytes(layer) / element;
    }
}

guint64
rp_plan_checkpoint_bytes(const RpProfile *profile, const RpPlanOptions *options)
{
    guint element = rp_profile_element_bytes(profile);
    guint64 parameters, trained;

    rp_plan_count_parameters(profile, &parameters, &trained);
    return (trained < parameters ? trained * sizeof(float) : parameters * element) +
           rp_optimizer_state_bytes(options->form, trained) +
           (options->async ? trained * element : 0);
}

const RpPlanWaits rp_plan_waits[] = {
    [RP_ADVISE_WAITS_LITTLE] = {"nothing", "compute", NULL},
    [RP_ADVISE_WAITS_OPTIMIZER] = {"optimizer", "optimizer", "the optimizer on the host"},
    [RP_ADVISE_WAITS_SUMS] = {"sums", "sums", "sums of rounds' gradients on the host"},
    [RP_ADVISE_WAITS_UPLOADS] = {"uploads", "uploads", "uploads from the host"},
    [RP_ADVISE_WAITS_DOWNLOADS] = {"downloads", "downloads", "downloads to the host"},
    [RP_ADVISE_WAITS_NETWORK] = {"network", "network", "the network between servers"},
    [RP_ADVISE_WAITS_STAGES] = {"each other", "stages",
                                "each other, because stages are uneven or few"},
};

const RpAdviseRun *
rp_plan_shown_run(const RpAdvice *advice)
{
    return advice->best != NULL      ? advice->best
           : advice->instead != NULL ? advice->instead
                                     : advice->nearest;
}
