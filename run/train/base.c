/* The frozen base of a run: in how many bits it is held, and the file where it is. */
#include "run/train/private.h"

#include <string.h>

#include "core/base/quote.h"
#include "exec/quantise/quantise.h"

static gboolean
show(guint64 done, guint64 total, gpointer user_data)
{
    const RpRunEvents *events = user_data;

    events->progress(events->user_data, "packing the base", done, total);
    return events->stop == NULL || events->stop() == 0;
}

/* What the file has its frozen matrices in; %NULL: 16 or 32 bits. */
static const char *
format_of(const RpWeights *weights)
{
    for (guint i = 0; i < rp_weights_count(weights); i++)
        if (rp_weights_nth(weights, i)->is_packed)
            return rp_lowbit_name(rp_weights_nth(weights, i)->format);
    return NULL;
}

/* The packed form of the checkpoint, made once and kept beside it. Takes the checkpoint's place. */
static gboolean
quantise(RpTrainJob *job, RpLowbit format, GError **error)
{
    const RpQuantiseOptions options = {.progress = show, .user_data = (gpointer)job->events};
    g_autofree char *path = rp_quantise_path(job->checkpoint, format);
    g_autofree char *shown = rp_display_name(path);
    RpSafetensors *packed;
    gboolean there = g_file_test(path, G_FILE_TEST_EXISTS);

    if (!there) {
        there = rp_quantise(&job->config, job->checkpoint, format, path, &options, error);
        job->events->progress(job->events->user_data, "packing the base", 0, 0);
        if (there)
            rp_run_say(job->events, "note", "the base in %s is kept in %s", rp_lowbit_name(format),
                       shown);
    }
    packed = there ? rp_safetensors_open(path, error) : NULL;
    if (packed == NULL)
        return FALSE;
    /* adapters of the one are adapters of the other: the hash is that of the model's own file */
    g_autoptr(RpWeights) plain =
        rp_weights_new_adapted(&job->config, rp_weights_lora(job->weights));
    const gboolean bound = rp_weights_bind(plain, job->checkpoint, error);

    rp_weights_pack_base(job->weights, format);
    rp_weights_set_base_hash(job->weights, bound ? rp_weights_base_hash(plain) : NULL);
    rp_safetensors_free(job->checkpoint);
    job->checkpoint = packed;
    return bound;
}

gboolean
rp_train_open_base(RpTrainJob *job, GError **error)
{
    const int choice = job->run->base_choice;
    const gboolean adapted = rp_weights_lora(job->weights) != NULL;
    const char *format;

    if (!adapted && choice > RP_RUN_BASE_16_BITS) {
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "base: expected bf16 without lora.rank, found %s: a packed base is frozen",
                    rp_lowbit_name((RpLowbit)(choice - RP_RUN_BASE_PACKED)));
        return FALSE;
    }
    if (!adapted || choice == RP_RUN_BASE_16_BITS)
        return TRUE; /* packed weights are expanded as they are read, or refused */
    if (!rp_weights_adopt(job->weights, job->checkpoint, error)) {
        g_prefix_error(error, "model: ");
        return FALSE;
    }
    format = format_of(job->weights);
    if (choice == RP_RUN_BASE_OF_THE_FILE)
        return TRUE;
    const RpLowbit wanted = (RpLowbit)(choice - RP_RUN_BASE_PACKED);

    if (format != NULL && strcmp(format, rp_lowbit_name(wanted)) != 0) {
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "base: expected %s, as the model's file has it, found %s", format,
                    rp_lowbit_name(wanted));
        return FALSE;
    }
    if (format != NULL || quantise(job, wanted, error))
        return TRUE;
    g_prefix_error(error, "base: ");
    return FALSE;
}
