/*
 * Losses of preferences: formulas in exec/kernels/preference.h. Documents are added up in their order, and so are
 * the rows of each.
 */
#include "exec/kernels/preference.h"
#include "exec/host/host-private.h"

size_t
rp_host_preference_workspace(const RpPreferenceArgs *args)
{
    return args->documents * sizeof(RpPreferenceDocument);
}

static RpPreferenceDocument
add_rows(const RpPreferenceArgs *args, size_t d)
{
    RpPreferenceDocument document = {0};

    for (int32_t t = args->first[d]; t < args->first[d + 1]; t++) {
        if (args->labels[t] == RP_LABEL_MASKED)
            continue;
        document.logp -= (double)args->losses[t];
        document.n += 1;
    }
    return document;
}

/* The KL term: never below 0, and without a gradient. */
static double
find_z(const RpPreferenceArgs *args, const RpPreferenceDocument *documents)
{
    double sum = 0, n = 0;

    for (size_t d = 0; d < args->documents; d++)
        if (args->answers[d] == RP_ANSWER_KL) {
            sum += documents[d].logp - (double)args->references[d];
            n += 1;
        }
    return n > 0 && !(sum < 0) ? sum / n : 0;
}

static void
fill_weights(const RpPreferenceArgs *args, const RpPreferenceDocument *documents)
{
    for (size_t t = 0; t < args->tokens; t++)
        args->weights[t] = 0;
    for (size_t d = 0; d < args->documents; d++)
        for (int32_t t = args->first[d]; t < args->first[d + 1]; t++)
            if (args->labels[t] != RP_LABEL_MASKED)
                args->weights[t] = rp_preference_weight(args, &documents[d]);
}

void
rp_host_preference(RpKernelStream *stream, const RpPreferenceArgs *args)
{
    RpPreferenceDocument *documents = args->workspace;
    RpPreferenceSums sums = {0};
    double z;

    for (size_t d = 0; d < args->documents; d++) {
        documents[d] = add_rows(args, d);
        if (args->logps != NULL)
            args->logps[d] = (float)documents[d].logp;
    }
    if (args->preference.objective == RP_OBJECTIVE_KTO) {
        sums.kl = z = find_z(args, documents);
        sums.n_kl = 1;
    } else {
        z = 0;
    }
    for (size_t d = 0; d < args->documents; d++)
        *args->loss += rp_preference_document(args, z, d, documents, &sums);
    rp_preference_sums_add(args->sums, &sums);
    if (args->weights != NULL)
        fill_weights(args, documents);
}
