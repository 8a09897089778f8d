/*
 * Rule 2, tables: where layers live, decisions and constants. Each buffer that a table names is in
 * the right arena, of the right category, large enough, and shares no byte with any other buffer.
 */
#include "core/base/shard.h"
#include "core/verify/private.h"

#define FP32_BYTES 4

typedef struct {
    RpVerifier *verifier;
    char **owner; /* [buffer] its name in a table; NULL: a buffer that comes and goes */
} Tables;

/* @bytes: 0: there must be none */
static gboolean
claim(Tables *tables, guint32 index, guint32 arena, RpBufferCategory category, guint64 bytes,
      char *owner)
{
    RpVerifier *verifier = tables->verifier;
    g_autofree char *name = owner;

    if (bytes == 0 && index == RP_NONE)
        return TRUE;
    if (bytes == 0 || index >= rp_plan_n_buffers(verifier->plan))
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                bytes == 0 ? "there is a buffer for the %s, which have no bytes"
                                           : "there is no buffer for the %s",
                                name);
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, index);
    if (buffer->arena != arena || buffer->category != (guint32)category || buffer->bytes < bytes)
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                "the %s take %" G_GUINT64_FORMAT
                                " bytes of %s: buffer %u has %" G_GUINT64_FORMAT " of %s",
                                name, bytes, rp_buffer_category_name(category), index,
                                buffer->bytes,
                                rp_buffer_category_name((RpBufferCategory)buffer->category));
    if (tables->owner[index] != NULL)
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                "buffer %u is for the %s and for the %s", index,
                                tables->owner[index], name);
    tables->owner[index] = g_steal_pointer(&name);
    return TRUE;
}

static gboolean
claim_of_layer(Tables *tables, guint layer, guint32 index, RpBufferCategory category, guint64 bytes,
               const char *what)
{
    return claim(tables, index, rp_plan_gpus(tables->verifier->plan), category, bytes,
                 g_strdup_printf("%s of layer %u", what, layer));
}

/* Whether one of the layers before has the same buffer of gradients, and may. */
static gboolean
is_shared(const Tables *tables, guint layer, guint64 bytes)
{
    const RpPlan *plan = tables->verifier->plan;
    const guint32 buffer = rp_plan_layer(plan, layer)->gradients[0];

    for (guint l = 0; l < layer && rp_modes_share_gradients(tables->verifier->modes); l++)
        if (buffer != RP_NONE && rp_plan_layer(plan, l)->gradients[0] == buffer)
            return rp_plan_buffer(plan, buffer)->bytes >= bytes;
    return FALSE;
}

/* @bytes: size of each buffer */
static gboolean
claim_gradients(Tables *tables, guint layer, guint64 bytes)
{
    const RpPlanModes *modes = tables->verifier->modes;
    const RpPlanLayer *row = rp_plan_layer(tables->verifier->plan, layer);
    const guint n = rp_modes_gradient_buffers(modes);

    for (guint i = 0; i < G_N_ELEMENTS(row->gradients); i++) {
        g_autofree char *what = modes->gradients == RP_GRADIENTS_APART
                                    ? g_strdup_printf("gradients of round %u", i)
                                    : NULL;

        if (i == 0 && bytes > 0 && is_shared(tables, layer, bytes))
            continue;
        if (!claim_of_layer(tables, layer, row->gradients[i], RP_BUFFER_GRADIENTS,
                            i < n ? bytes : 0, what != NULL ? what : "gradients"))
            return FALSE;
    }
    return TRUE;
}

/* Resident weights are those that no step ever writes, and they have a buffer on each device that
 * has any. @trained: bytes of the layer's weights that steps write */
static gboolean
check_resident(Tables *tables, guint layer, guint64 trained)
{
    RpVerifier *verifier = tables->verifier;
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);

    if (row->resident_bytes > 0 &&
        (verifier->parameter_bytes[layer] != trained ||
         (row->tied_to != RP_NONE &&
          (verifier->trainable[layer] || verifier->trainable[row->tied_to]))))
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                "weights of layer %u stay on the devices and are trained, or do "
                                "neither stay nor go up",
                                layer);
    for (guint g = 0; g < rp_plan_gpus(verifier->plan); g++) {
        const guint32 buffer = rp_plan_resident(verifier->plan, g, layer);

        if (buffer != RP_NONE &&
            !claim(tables, buffer, g, RP_BUFFER_PARAMETERS, row->resident_bytes,
                   g_strdup_printf("weights of layer %u that stay on gpu %u", layer, g)))
            return FALSE;
    }
    return TRUE;
}

static gboolean
check_layer(Tables *tables, guint layer)
{
    RpVerifier *verifier = tables->verifier;
    const RpPlanModes *modes = verifier->modes;
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);
    const guint64 tied = row->tied_to != RP_NONE ? row->tied_bytes : 0;
    const guint64 parameters = verifier->parameter_bytes[layer] + row->resident_bytes;
    const guint64 gradients = verifier->gradient_bytes[layer];

    if (tied > parameters || (row->tied_to != RP_NONE && row->tied_to >= layer) ||
        (tied > 0 && tied > verifier->parameter_bytes[row->tied_to] +
                                rp_plan_layer(verifier->plan, row->tied_to)->resident_bytes))
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                "layer %u is tied to one that has not as many bytes", layer);
    const guint64 own = parameters - tied;
    const guint64 element = verifier->storage->element_bytes;
    const guint64 leaving = rp_verifier_leaving_element(verifier);
    const guint64 n_gradients = gradients / leaving;
    const guint64 tied_gradients = row->tied_gradient_bytes;
    const guint64 own_gradients = n_gradients * element - tied_gradients;
    const guint64 trained = own_gradients;
    const guint64 share = rp_shard_most(own_gradients / element, modes->servers);
    const guint64 tied_share = rp_shard_most(n_gradients - own_gradients / element, modes->servers);

    if ((tied_gradients > 0 &&
         (tied_gradients != tied || tied_gradients > n_gradients * element ||
          rp_plan_tied_from(verifier->plan, row->tied_to) != layer ||
          tied_gradients / element > verifier->gradient_bytes[row->tied_to] / leaving)) ||
        own_gradients > own)
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                "gradients of layer %u are not those of its weights", layer);
    if (row->early && (modes->step != RP_STEP_EARLY || trained == 0))
        return rp_verifier_fail(
            verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
            "weights of layer %u are to be written by an early step, and are not", layer);
    return check_resident(tables, layer, trained) &&
           claim_of_layer(tables, layer, row->frozen, RP_BUFFER_PARAMETERS, own - trained,
                          "frozen weights") &&
           claim_of_layer(tables, layer, row->weights[0], RP_BUFFER_PARAMETERS, trained,
                          "weights") &&
           claim_of_layer(tables, layer, row->weights[1], RP_BUFFER_PARAMETERS,
                          rp_modes_versions(modes) == 2 ? trained : 0, "second weights") &&
           claim_gradients(tables, layer,
                           n_gradients * (rp_modes_sum(modes) ? FP32_BYTES : element)) &&
           claim_of_layer(tables, layer, row->optimizer, RP_BUFFER_OPTIMIZER,
                          rp_optimizer_state_bytes(verifier->storage->form, share),
                          "optimizer state") &&
           claim_of_layer(tables, layer, row->reduced, RP_BUFFER_GRADIENTS,
                          modes->servers > 1 ? (share + tied_share) * FP32_BYTES : 0,
                          "gradients of all servers") &&
           claim_of_layer(tables, layer, row->copied, RP_BUFFER_OPTIMIZER,
                          modes->copies == RP_COPIES_BLOCKING ? n_gradients * FP32_BYTES : 0,
                          "copied gradients");
}

/* Layer by layer, one after the other. */
static gboolean
check_slot_layers(Tables *tables, guint device)
{
    RpVerifier *verifier = tables->verifier;
    const gboolean layerwise = verifier->modes->weights == RP_WEIGHTS_PER_LAYER;
    guint64 end[2] = {0, 0}; /* end of parameters, and of leaving gradients; 0: not begun */

    for (guint l = 0; l < verifier->n_layers; l++) {
        const RpPlanSlotLayer row = rp_plan_slot_layer(verifier->plan, device, l);
        const struct {
            guint32 buffer;
            RpBufferCategory category;
            guint64 bytes;
            const char *what;
        } places[] = {
            {row.parameters, RP_BUFFER_PARAMETERS, verifier->parameter_bytes[l], "parameters"},
            {row.leaving, RP_BUFFER_GRADIENTS, verifier->gradient_bytes[l], "leaving gradients"},
        };

        for (guint i = 0; i < G_N_ELEMENTS(places); i++) {
            if (!claim(tables, places[i].buffer, device, places[i].category,
                       layerwise ? places[i].bytes : 0,
                       g_strdup_printf("%s of layer %u on gpu %u", places[i].what, l, device)))
                return FALSE;
            if (places[i].buffer == RP_NONE)
                continue;
            const RpBuffer *buffer = rp_plan_buffer(verifier->plan, places[i].buffer);

            if (end[i] != 0 && buffer->offset != end[i])
                return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                        "buffer %u, for the %s of layer %u, does not begin where "
                                        "those of the layer before end",
                                        places[i].buffer, places[i].what, l);
            end[i] = buffer->offset + places[i].bytes;
        }
    }
    return TRUE;
}

static gboolean
check_exchange(Tables *tables)
{
    const RpVerifier *verifier = tables->verifier;
    const guint64 leaving = rp_verifier_leaving_element(verifier);
    const guint gpus = rp_plan_gpus(verifier->plan);
    const gboolean several = verifier->modes->servers > 1;
    const RpPlanExchange exchange = rp_plan_exchange(verifier->plan);
    guint64 blocks = 0, largest = 0;

    for (guint l = 0; l < verifier->n_layers; l++) {
        const RpPlanLayer *row = rp_plan_layer(verifier->plan, l);
        const guint64 n = verifier->gradient_bytes[l] / leaving;

        blocks += rp_shard_blocks(n - row->tied_gradient_bytes / verifier->storage->element_bytes);
        largest = MAX(largest, n * verifier->storage->element_bytes);
    }
    return claim(tables, exchange.squares, gpus, RP_BUFFER_OPTIMIZER,
                 several ? blocks * sizeof(double) + RP_EXCHANGE_EXTRA_BYTES : 0,
                 g_strdup("sums of squares of all servers")) &&
           claim(tables, exchange.space, gpus, RP_BUFFER_STAGING,
                 several ? RP_EXCHANGE_SCRATCH(largest) : 0,
                 g_strdup("space for what servers send"));
}

static gboolean
check_rest(Tables *tables)
{
    RpVerifier *verifier = tables->verifier;
    const guint gpus = rp_plan_gpus(verifier->plan);

    for (guint i = 0; i < rp_plan_n_decisions(verifier->plan); i++)
        if (!claim(tables, rp_plan_decision(verifier->plan, i), gpus, RP_BUFFER_OPTIMIZER,
                   RP_DECISION_BYTES(verifier->n_layers), g_strdup_printf("decisions (%u)", i)))
            return FALSE;
    for (guint g = 0; g < gpus; g++)
        if (!claim(tables, rp_plan_constants(verifier->plan, g), g, RP_BUFFER_WORKSPACE,
                   verifier->storage->constant_bytes, g_strdup_printf("constants of gpu %u", g)) ||
            !check_slot_layers(tables, g))
            return FALSE;
    return check_exchange(tables);
}

/* A buffer that is claimed shares no atom with another. */
static gboolean
check_overlaps(const Tables *tables)
{
    const RpSweep *sweep = tables->verifier->sweep;

    for (guint i = 0; i < sweep->n_buffers; i++) {
        const RpHolder *run = &sweep->holders[i];

        for (guint32 a = run->first; tables->owner[i] != NULL && a < run->first + run->count; a++) {
            guint other = 0;

            if (sweep->atoms[a].n_buffers == 1)
                continue;
            while (other == i || sweep->holders[other].first > a ||
                   a - sweep->holders[other].first >= sweep->holders[other].count)
                other++;
            return rp_verifier_fail(tables->verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                    "buffer %u, for the %s, overlaps buffer %u", i,
                                    tables->owner[i], other);
        }
    }
    return TRUE;
}

gboolean
rp_verify_tables(RpVerifier *verifier)
{
    const guint n = rp_plan_n_buffers(verifier->plan);
    Tables tables = {.verifier = verifier};
    gboolean correct = TRUE;

    if (!verifier->full || (verifier->sweep != NULL && verifier->n_claimed == n))
        return TRUE;
    rp_sweep_cut_arenas(verifier);
    if (verifier->storage->element_bytes == 0)
        return rp_verifier_fail(verifier, RP_RULE_TABLES, RP_NO_TASK, RP_NO_TASK,
                                "weights of no bytes");
    tables.owner = g_new0(char *, (gsize)n + 1);
    for (guint l = 0; l < verifier->n_layers && correct; l++)
        correct = check_layer(&tables, l);
    correct = correct && check_rest(&tables) && check_overlaps(&tables);
    g_free(verifier->claimed);
    verifier->n_claimed = n;
    verifier->claimed = g_new(gboolean, (gsize)n + 1);
    for (guint i = 0; i < n; i++)
        verifier->claimed[i] = tables.owner[i] != NULL;
    for (guint i = 0; i < n; i++)
        g_free(tables.owner[i]);
    g_free(tables.owner);
    return correct;
}

/* Places: everything that an access names exists and can be reached from its task. */
gboolean
rp_verify_places(RpVerifier *verifier)
{
    const RpPlan *plan = verifier->plan;
    guint n_buffers = rp_plan_n_buffers(plan), gpus = rp_plan_gpus(plan);

    for (guint i = 0; i < n_buffers; i++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, i);

        if (buffer->arena > gpus || buffer->offset > G_MAXUINT64 - buffer->bytes ||
            buffer->offset + buffer->bytes > rp_plan_arena_bytes(plan, buffer->arena))
            return rp_verifier_fail(verifier, RP_RULE_ARENA, RP_NO_TASK, RP_NO_TASK,
                                    "buffer %u does not lie in its arena", i);
    }
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);
        const RpAccess *accesses = rp_plan_accesses(plan, task);
        guint32 device = rp_plan_lane_device(plan, task->lane);

        for (guint k = 0; k < task->access_count; k++) {
            if (accesses[k].buffer >= n_buffers || accesses[k].mode == 0 || accesses[k].mode > 3)
                return rp_verifier_fail(verifier, RP_RULE_ARENA, RP_NO_TASK, i,
                                        "accesses buffer %u, which does not exist",
                                        accesses[k].buffer);
            guint32 arena = rp_plan_buffer(plan, accesses[k].buffer)->arena;
            if (arena != gpus && arena != device)
                return rp_verifier_fail(verifier, RP_RULE_ARENA, RP_NO_TASK, i,
                                        "accesses buffer %u of gpu %u, where it does not run",
                                        accesses[k].buffer, arena);
        }
    }
    return TRUE;
}
