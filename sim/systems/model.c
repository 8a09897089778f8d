/* The model, read from its profile, and the server of the profile's card. */
#include "sim/systems/private.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "sim/advise/advise.h"

G_DEFINE_QUARK(rp_system_error, rp_system_error)

static double
elements(const RpProfile *profile, guint64 bytes)
{
    return (double)bytes / rp_profile_element_bytes(profile);
}

/* Adds a layer to the sums; a tied matrix is the embedding's. */
static void
add_layer(const RpProfile *profile, const RpLayer *layer, RpSystemModel *model)
{
    const double all = elements(profile, layer->parameter_bytes);
    const double trained = elements(profile, layer->gradient_bytes);
    const double tied = elements(profile, layer->tied_bytes);

    model->parameters += all - tied;
    model->trained += elements(profile, rp_layer_own_gradient_bytes(layer));
    model->tied += tied;
    model->sequence_ns += layer->forward_ns + layer->backward_ns;
    if (layer->kind == RP_LAYER_BLOCK) {
        model->sequence_ns += layer->recompute_ns;
        model->block = MAX(model->block, all);
        model->block_trained = MAX(model->block_trained, trained);
    } else if (layer->kind == RP_LAYER_EMBEDDING) {
        model->embedding = all;
        model->embedding_trained = trained;
    } else {
        model->head = all;
        model->head_trained = trained;
    }
}

static guint
count_vocabulary(const RpSystemModel *model)
{
    const double matrix = MAX(model->head, model->embedding);

    return model->catalogue != NULL ? model->catalogue->vocab : (guint)(matrix / model->hidden);
}

gboolean
rp_system_model_read(const RpProfile *profile, RpSystemModel *model, GError **error)
{
    const guint blocks = rp_profile_n_blocks(profile);
    RpSystemModel read = {.profile = profile, .blocks = blocks};

    if (!rp_profile_check_full(profile, error))
        return FALSE;
    if (blocks == 0 || rp_profile_micro_batch_tokens(profile) == 0)
        return rp_fail(error, RP_SYSTEM_ERROR, RP_SYSTEM_ERROR_MODEL,
                       "%s: expected blocks and the tokens of a micro-batch, found %s",
                       *profile->model != '\0' ? profile->model : "the profile",
                       blocks == 0 ? "no block" : "no \"micro_batch\"");
    for (guint i = 0; i < profile->n_layers; i++)
        add_layer(profile, &profile->layers[i], &read);
    read.catalogue = rp_model_find(profile->model, NULL);
    read.hidden =
        (guint)(elements(profile, profile->layers[rp_profile_first_block(profile)].input_bytes) /
                (double)rp_profile_micro_batch_tokens(profile));
    read.vocab = read.hidden > 0 ? count_vocabulary(&read) : 0;
    read.sequence_ns /= profile->sequences;
    *model = read;
    return TRUE;
}

/* Facts of the card that a profile lacks: the links between GPUs, and how it accumulates. */
void
rp_system_server_take(RpSystemServer *server, const RpProfile *profile, const RpGpu *gpu)
{
    if (g_str_has_prefix(gpu->interconnect, "NVLink"))
        server->deepspeed_bytes_per_s = server->nccl_bytes_per_s =
            RP_SYSTEM_NVLINK_SHARE * gpu->interconnect_gb_per_s * 1e9;
    if (gpu->fp32_accumulate_tflops < gpu->fp16_accumulate_tflops &&
        strcmp(profile->accumulate, "fp16") == 0 && strcmp(profile->dtype, "fp16") == 0)
        server->fp32_speed = RP_SYSTEM_FP32_SPEED;
    if (profile->gpu_memory_bytes > 0) {
        server->gpu_bytes =
            MIN(rp_profile_plan_bytes(profile), rp_gpu_plan_bytes(gpu->memory_bytes));
    }
}

RpSystemServer
rp_system_server(const RpProfile *profile, guint gpus)
{
    const RpGpu *gpu = rp_gpu_find(profile->device, NULL);
    const RpLinks *links = &profile->links;
    const double pcie = MIN(links->h2d_bytes_per_s, links->d2h_bytes_per_s) / RP_SYSTEM_PCIE4;
    RpSystemServer server = {
        .gpus = gpus,
        .gpu_bytes = rp_profile_plan_bytes(profile),
        .deepspeed_bytes_per_s = pcie * RP_SYSTEM_DEEPSPEED_PCIE4,
        .nccl_bytes_per_s = pcie * RP_SYSTEM_NCCL_PCIE4,
        .h2d_bytes_per_s = links->h2d_bytes_per_s,
        .d2h_bytes_per_s = links->d2h_bytes_per_s,
        .fp32_speed = 1,
    };

    if (gpu != NULL)
        rp_system_server_take(&server, profile, gpu);
    return server;
}

double
rp_system_ring(const RpSystemJob *job)
{
    return (job->server->gpus - 1.0) / job->server->gpus;
}

guint
rp_system_turns(const RpSystem *system, const RpSystemJob *job)
{
    return (guint)job->batch / job->sequences / (system->own_batches ? job->server->gpus : 1);
}

double
rp_system_tokens(const RpSystemJob *job)
{
    return (double)job->sequences * job->tokens;
}

double
rp_system_logits(const RpSystemJob *job, double logit_bytes)
{
    const double tokens = rp_system_tokens(job);

    return job->chunked_head ? MIN(tokens, RP_COST_MODEL_HEAD_CHUNK) * job->model->vocab * (2 + 4)
                             : tokens * job->model->vocab * logit_bytes;
}

double
rp_system_activations(const RpSystemJob *job, double logit_bytes)
{
    const double hidden = rp_system_tokens(job) * job->model->hidden;

    return hidden * (2.0 * job->model->blocks + RP_SYSTEM_BLOCK_BYTES) +
           rp_system_logits(job, logit_bytes);
}

double
rp_system_compute_s(const RpSystemJob *job)
{
    return (double)job->model->sequence_ns / (double)RP_NS_PER_S * (double)job->batch /
           job->server->gpus;
}

RpProfile *
rp_system_scaled(const RpSystemJob *job)
{
    RpProfile *profile = rp_profile_copy(job->model->profile);
    const double times = rp_system_tokens(job) / (double)rp_profile_micro_batch_tokens(profile);
    const double fixed = (double)RP_COST_MODEL_HEAD_CHUNK * job->model->vocab * (2 + 4);

    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        gint64 *const ns[] = {&layer->forward_ns, &layer->backward_ns, &layer->recompute_ns,
                              &layer->recompute_last_ns, &layer->weight_gradient_ns};
        guint64 *const bytes[] = {&layer->input_bytes, &layer->output_bytes,
                                  &layer->activation_bytes};
        guint64 *const scratch[] = {&layer->forward_workspace_bytes,
                                    &layer->backward_workspace_bytes};

        for (guint k = 0; k < G_N_ELEMENTS(ns); k++)
            *ns[k] = (gint64)((double)*ns[k] * times);
        for (guint k = 0; k < G_N_ELEMENTS(bytes); k++)
            *bytes[k] = (guint64)((double)*bytes[k] * times);
        /* a head's logits are in chunks, however long the sequence */
        for (guint k = 0; k < G_N_ELEMENTS(scratch); k++) {
            const double still = layer->kind == RP_LAYER_HEAD ? MIN(fixed, (double)*scratch[k]) : 0;

            *scratch[k] = (guint64)(still + ((double)*scratch[k] - still) * times);
        }
        for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
            layer->saved[g].bytes = (guint64)((double)layer->saved[g].bytes * times);
    }
    profile->links.hop_ns = (gint64)((double)profile->links.hop_ns * times);
    profile->sequences = job->sequences;
    profile->tokens_per_sequence = job->tokens;
    return profile;
}

gboolean
rp_system_takes_stages(const RpSystemJob *job, GError **error)
{
    if (job->model->blocks >= job->server->gpus)
        return TRUE;
    return rp_fail(error, RP_SYSTEM_ERROR, RP_SYSTEM_ERROR_MODEL,
                   "%u blocks are fewer than %u GPUs, and a stage has one at least: use fewer GPUs",
                   job->model->blocks, job->server->gpus);
}
