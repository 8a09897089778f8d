/*
 * Rule 2, tables: where layers live, decisions and constants. Each buffer that a table names is in
 * the right arena, of the right category, large enough, and shares no byte with any other buffer.
 */
#include "core/base/shard.h"
#include "core/verify/private.h"

#define FP32_BYTES 4

#define fail_table(verifier, ...) fail_plan(verifier, RP_RULE_TABLES, __VA_ARGS__)

/* The buffer @index is for what @format says: it must have @bytes; 0: there must be none. */
static G_GNUC_PRINTF(6, 7) gboolean
    claim(RpVerifier *verifier, guint32 index, guint32 arena, RpBufferCategory category,
          guint64 bytes, const char *format, ...)
{
    va_list arguments;

    if (bytes == 0 && index == RP_NONE)
        return TRUE;
    va_start(arguments, format);
    g_autofree char *name = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    if (bytes == 0 || index >= rp_plan_n_buffers(verifier->plan))
        return fail_table(verifier,
                          bytes == 0 ? "there is a buffer for the %s, which have no bytes"
                                     : "there is no buffer for the %s",
                          name);
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, index);
    char **owner = &verifier->sweep->holders[index].owner;
    if (buffer->arena != arena || buffer->category != (guint32)category || buffer->bytes < bytes)
        return fail_table(verifier,
                          "the %s take %" G_GUINT64_FORMAT
                          " bytes of %s: buffer %u has %" G_GUINT64_FORMAT " of %s",
                          name, bytes, rp_buffer_category_name(category), index, buffer->bytes,
                          rp_buffer_category_name((RpBufferCategory)buffer->category));
    if (*owner != NULL)
        return fail_table(verifier, "buffer %u is for the %s and for the %s", index, *owner, name);
    *owner = g_steal_pointer(&name);
    return TRUE;
}

/* Whether one of the layers before has the same buffer of gradients, and may. */
static gboolean
is_shared(const RpVerifier *verifier, guint layer, guint64 bytes)
{
    const RpPlan *plan = verifier->plan;
    const guint32 buffer = rp_plan_layer(plan, layer)->gradients[0];

    for (guint l = 0; l < layer && rp_modes_share_gradients(verifier->modes); l++)
        if (buffer != RP_NONE && rp_plan_layer(plan, l)->gradients[0] == buffer)
            return rp_plan_buffer(plan, buffer)->bytes >= bytes;
    return FALSE;
}

/* @bytes: size of each buffer */
static gboolean
claim_gradients(RpVerifier *verifier, guint layer, guint64 bytes)
{
    const RpPlanModes *modes = verifier->modes;
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);
    const guint n = rp_modes_gradient_buffers(modes);

    for (guint i = 0; i < G_N_ELEMENTS(row->gradients); i++) {
        g_autofree char *round = modes->gradients == RP_GRADIENTS_APART
                                     ? g_strdup_printf(" of round %u", i)
                                     : g_strdup("");

        if (i == 0 && bytes > 0 && is_shared(verifier, layer, bytes))
            continue;
        if (!claim(verifier, row->gradients[i], rp_plan_gpus(verifier->plan), RP_BUFFER_GRADIENTS,
                   i < n ? bytes : 0, "gradients%s of layer %u", round, layer))
            return FALSE;
    }
    return TRUE;
}

/* Resident weights are those that no step ever writes, and they have a buffer on each device that
 * has any. @trained: bytes of the layer's weights that steps write */
static gboolean
check_resident(RpVerifier *verifier, guint layer, guint64 trained)
{
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);

    if (row->resident_bytes > 0 &&
        (verifier->layers[layer].parameter_bytes != trained ||
         (row->tied_to != RP_NONE && (verifier->layers[layer].gradient_bytes > 0 ||
                                      verifier->layers[row->tied_to].gradient_bytes > 0))))
        return fail_plan(
            verifier, RP_RULE_TABLES,
            "weights of layer %u stay on the devices and are trained, or do neither stay nor go up",
            layer);
    for (guint g = 0; g < rp_plan_gpus(verifier->plan); g++) {
        const guint32 buffer = rp_plan_resident(verifier->plan, g, layer);

        if (buffer != RP_NONE &&
            !claim(verifier, buffer, g, RP_BUFFER_PARAMETERS, row->resident_bytes,
                   "weights of layer %u that stay on gpu %u", layer, g))
            return FALSE;
    }
    return TRUE;
}

static gboolean
check_layer(RpVerifier *verifier, guint layer)
{
    const RpPlanModes *modes = verifier->modes;
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);
    const RpLayerFacts *facts = &verifier->layers[layer];
    const guint64 tied = row->tied_to != RP_NONE ? row->tied_bytes : 0;
    const guint64 parameters = facts->parameter_bytes + row->resident_bytes;

    if (tied > parameters || (row->tied_to != RP_NONE && row->tied_to >= layer) ||
        (tied > 0 && tied > verifier->layers[row->tied_to].parameter_bytes +
                                rp_plan_layer(verifier->plan, row->tied_to)->resident_bytes))
        return fail_table(verifier, "layer %u is tied to one that has not as many bytes", layer);
    const guint64 own = parameters - tied;
    const guint64 element = verifier->storage->element_bytes;
    const guint64 leaving = rp_verifier_leaving_element(verifier);
    const guint64 n_gradients = facts->gradient_bytes / leaving;
    const guint64 tied_gradients = row->tied_gradient_bytes;
    const guint64 trained = n_gradients * element - tied_gradients;
    const guint64 share = rp_shard_most(trained / element, modes->servers);
    const guint64 tied_share = rp_shard_most(n_gradients - trained / element, modes->servers);

    if ((tied_gradients > 0 &&
         (tied_gradients != tied || tied_gradients > n_gradients * element ||
          rp_plan_tied_from(verifier->plan, row->tied_to) != layer ||
          tied_gradients / element > verifier->layers[row->tied_to].gradient_bytes / leaving)) ||
        trained > own)
        return fail_table(verifier, "gradients of layer %u are not those of its weights", layer);
    if (row->early && (modes->step != RP_STEP_EARLY || trained == 0))
        return fail_table(
            verifier, "weights of layer %u are to be written by an early step, and are not", layer);
    const struct {
        guint32 buffer;
        RpBufferCategory category;
        guint64 bytes;
        const char *name;
    } places[] = {
        {row->frozen, RP_BUFFER_PARAMETERS, own - trained, "frozen weights"},
        {row->weights[0], RP_BUFFER_PARAMETERS, trained, "weights"},
        {row->weights[1], RP_BUFFER_PARAMETERS, rp_modes_versions(modes) == 2 ? trained : 0,
         "second weights"},
        {row->optimizer, RP_BUFFER_OPTIMIZER,
         rp_optimizer_state_bytes(verifier->storage->form, share), "optimizer state"},
        {row->reduced, RP_BUFFER_GRADIENTS,
         modes->servers > 1 ? (share + tied_share) * FP32_BYTES : 0, "gradients of all servers"},
        {row->copied, RP_BUFFER_OPTIMIZER,
         modes->copies == RP_COPIES_BLOCKING ? n_gradients * FP32_BYTES : 0, "copied gradients"},
    };
    if (!check_resident(verifier, layer, trained) ||
        !claim_gradients(verifier, layer,
                         n_gradients * (rp_modes_sum(modes) ? FP32_BYTES : element)))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(places); i++)
        if (!claim(verifier, places[i].buffer, rp_plan_gpus(verifier->plan), places[i].category,
                   places[i].bytes, "%s of layer %u", places[i].name, layer))
            return FALSE;
    return TRUE;
}

/* Layer by layer, one after the other. @end: of the layer before; 0: none has any */
static gboolean
claim_behind(RpVerifier *verifier, guint device, guint layer, guint32 index,
             RpBufferCategory category, guint64 bytes, const char *name, guint64 *end)
{
    const gboolean layerwise = verifier->modes->weights == RP_WEIGHTS_PER_LAYER;

    if (!claim(verifier, index, device, category, layerwise ? bytes : 0, "%s of layer %u on gpu %u",
               name, layer, device))
        return FALSE;
    if (index == RP_NONE)
        return TRUE;
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, index);
    if (*end != 0 && buffer->offset != *end)
        return fail_plan(
            verifier, RP_RULE_TABLES,
            "buffer %u, for the %s of layer %u, does not begin where those of the layer before end",
            index, name, layer);
    *end = buffer->offset + bytes;
    return TRUE;
}

static gboolean
check_device(RpVerifier *verifier, guint device)
{
    guint64 parameters = 0, gradients = 0;

    if (!claim(verifier, rp_plan_constants(verifier->plan, device), device, RP_BUFFER_WORKSPACE,
               verifier->storage->constant_bytes, "constants of gpu %u", device))
        return FALSE;
    for (guint l = 0; l < verifier->n_layers; l++) {
        const RpPlanSlotLayer row = rp_plan_slot_layer(verifier->plan, device, l);

        if (!claim_behind(verifier, device, l, row.parameters, RP_BUFFER_PARAMETERS,
                          verifier->layers[l].parameter_bytes, "parameters", &parameters) ||
            !claim_behind(verifier, device, l, row.leaving, RP_BUFFER_GRADIENTS,
                          verifier->layers[l].gradient_bytes, "leaving gradients", &gradients))
            return FALSE;
    }
    return TRUE;
}

static gboolean
check_exchange(RpVerifier *verifier)
{
    const guint64 leaving = rp_verifier_leaving_element(verifier);
    const guint64 element = verifier->storage->element_bytes;
    const guint gpus = rp_plan_gpus(verifier->plan);
    const gboolean several = verifier->modes->servers > 1;
    const RpPlanExchange exchange = rp_plan_exchange(verifier->plan);
    guint64 blocks = 0, largest = 0;

    for (guint l = 0; l < verifier->n_layers; l++) {
        const guint64 n = verifier->layers[l].gradient_bytes / leaving;

        blocks +=
            rp_shard_blocks(n - rp_plan_layer(verifier->plan, l)->tied_gradient_bytes / element);
        largest = MAX(largest, n * element);
    }
    return claim(verifier, exchange.squares, gpus, RP_BUFFER_OPTIMIZER,
                 several ? blocks * sizeof(double) + RP_EXCHANGE_EXTRA_BYTES : 0,
                 "sums of squares of all servers") &&
           claim(verifier, exchange.space, gpus, RP_BUFFER_STAGING,
                 several ? RP_EXCHANGE_SCRATCH(largest) : 0, "space for what servers send");
}

/* A buffer that is claimed shares no atom with another. */
static gboolean
check_overlaps(RpVerifier *verifier)
{
    const RpSweep *sweep = verifier->sweep;

    for (guint i = 0; i < sweep->n_buffers; i++) {
        const RpHolder *run = &sweep->holders[i];

        for (guint32 a = run->first; run->owner != NULL && a < run->first + run->count; a++) {
            guint other = 0;

            if (sweep->atoms[a].n_buffers == 1)
                continue;
            while (other == i || sweep->holders[other].first > a ||
                   a - sweep->holders[other].first >= sweep->holders[other].count)
                other++;
            return fail_table(verifier, "buffer %u, for the %s, overlaps buffer %u", i, run->owner,
                              other);
        }
    }
    return TRUE;
}

void
rp_verify_tables(RpVerifier *verifier)
{
    const RpPlan *plan = verifier->plan;
    const guint gpus = rp_plan_gpus(plan);
    gboolean correct = TRUE;

    if (!verifier->full ||
        (verifier->sweep != NULL && verifier->sweep->n_buffers == rp_plan_n_buffers(plan)))
        return;
    rp_sweep_cut_arenas(verifier);
    for (guint l = 0; l < verifier->n_layers && correct; l++)
        correct = check_layer(verifier, l);
    for (guint i = 0; i < rp_plan_n_decisions(plan) && correct; i++)
        correct = claim(verifier, rp_plan_decision(plan, i), gpus, RP_BUFFER_OPTIMIZER,
                        RP_DECISION_BYTES(verifier->n_layers), "decisions (%u)", i);
    for (guint g = 0; g < gpus && correct; g++)
        correct = check_device(verifier, g);
    if (correct && check_exchange(verifier))
        (void)check_overlaps(verifier);
}

gboolean
rp_verify_arenas(RpVerifier *verifier)
{
    const RpPlan *plan = verifier->plan;

    for (guint i = 0; i < rp_plan_n_buffers(plan); i++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, i);

        if (buffer->arena > rp_plan_gpus(plan) || buffer->offset > G_MAXUINT64 - buffer->bytes ||
            buffer->offset + buffer->bytes > rp_plan_arena_bytes(plan, buffer->arena))
            return fail_plan(verifier, RP_RULE_ARENA, "buffer %u does not lie in its arena", i);
    }
    return TRUE;
}
