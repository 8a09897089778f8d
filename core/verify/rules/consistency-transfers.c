/*
 * Rule 5, (1) to (4) and staleness: uploads read one whole version of the weights, downloads and
 * sums are complete before they are read, and nothing is overwritten before that.
 */
#include "core/verify/rules/consistency.h"

static guint32
gradient_reader(const RpProtocol *protocol, guint32 iteration, guint32 layer)
{
    return *rp_protocol_task(protocol, iteration, layer, rp_protocol_first_reader(protocol));
}

/* The first of an iteration's tasks that overwrites the layer's weights. */
static guint32
overwriter(const RpProtocol *protocol, guint32 iteration, guint32 layer)
{
    return rp_protocol_is_early(protocol, layer)
               ? *rp_protocol_task(protocol, iteration, layer, RP_HOST_EARLY_STEP)
               : rp_protocol_weight_writer(protocol, iteration, layer);
}

/* Fails with the version that an upload read instead of the right one. */
static gboolean
fail_staleness(RpProtocol *protocol, guint32 upload, guint32 writer, guint32 layer, gint64 version)
{
    RpVerifier *verifier = protocol->verifier;
    g_autofree char *wanted = version < 0 ? g_strdup("the initial ones")
                                          : g_strdup_printf("those of iteration %" G_GINT64_FORMAT,
                                                            version + verifier->first_iteration);

    if (writer == RP_NO_TASK || writer == RP_OLD_TASK)
        return rp_verifier_fail(verifier, RP_RULE_STALENESS, RP_NO_TASK, upload,
                                "the upload does not read the weights of layer %u it should: %s",
                                layer, wanted);
    return rp_verifier_fail(verifier, RP_RULE_STALENESS, writer, upload,
                            "the second task uploads the weights of layer %u made by the first, "
                            "not %s",
                            layer, wanted);
}

/* Every weight that the upload reads is of the one version, and it reads the layer's. */
static gboolean
check_version(RpProtocol *protocol, guint32 upload, guint32 layer, gint64 version)
{
    RpVerifier *verifier = protocol->verifier;
    const RpTask *task = rp_verifier_task(verifier, upload);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    gboolean found = FALSE, owned = FALSE;
    guint32 host = rp_plan_gpus(verifier->plan);

    for (guint i = 0; i < task->access_count; i++) {
        const guint32 writer = rp_verifier_content(verifier, task, i)->writer;

        if ((accesses[i].mode & RP_ACCESS_READ) == 0)
            continue;
        if (version < 0 && writer == RP_NO_TASK && protocol->owner[accesses[i].buffer] == RP_NONE &&
            rp_plan_buffer(verifier->plan, accesses[i].buffer)->arena == host)
            found = TRUE; /* a growing plan: its first update is yet to come */
        if (protocol->owner[accesses[i].buffer] != layer)
            continue;
        owned = TRUE;
        if (writer == RP_OLD_TASK ||
            (writer == RP_NO_TASK ? version >= 0 && verifier->whole
                                  : rp_verifier_task(verifier, writer)->iteration -
                                            (gint64)verifier->first_iteration !=
                                        version))
            return fail_staleness(protocol, upload, writer, layer, version);
        found = TRUE;
    }
    /* before its first update a layer's buffer has no owner yet */
    for (guint b = 0; b < rp_plan_n_buffers(verifier->plan) && !owned; b++)
        owned = protocol->owner[b] == layer;
    return found || !owned || fail_staleness(protocol, upload, RP_NO_TASK, layer, version);
}

/* (1), (2) and staleness of one uploaded layer. */
static gboolean
check_upload(RpProtocol *protocol, guint32 upload, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    const RpPlanPromises *promises = verifier->promises;
    gint64 now = rp_verifier_task(verifier, upload)->iteration - verifier->first_iteration;
    gint64 version = now - (promises->async ? 2 : 1);
    gint64 overwriting = now - (promises->async ? 1 : 0) + (promises->double_weights ? 1 : 0);

    if (!rp_verifier_is_stepped(verifier, layer))
        return TRUE;
    if (version >= 0) {
        guint32 writer = rp_protocol_publisher(protocol, (guint32)version, layer);

        if (writer == RP_NO_TASK && version >= verifier->complete_from)
            return rp_verifier_fail(verifier, RP_RULE_TORN_WEIGHTS, RP_NO_TASK, upload,
                                    "the weights of layer %u made in iteration %" G_GINT64_FORMAT
                                    " are uploaded but never written",
                                    layer, version + verifier->first_iteration);
        if (!rp_protocol_check_follows(verifier, RP_RULE_TORN_WEIGHTS, writer, upload,
                                       "the weights may be uploaded before they are written"))
            return FALSE;
    }
    if (overwriting >= 0 && overwriting < verifier->n_iterations &&
        !rp_protocol_check_follows(verifier, RP_RULE_WEIGHT_INTEGRITY, upload,
                                   overwriter(protocol, (guint32)overwriting, layer),
                                   "the weights may be overwritten while they are uploaded"))
        return FALSE;
    return check_version(protocol, upload, layer, version);
}

static gboolean
overlap(const RpPlan *plan, guint32 a, guint32 b)
{
    const RpBuffer *x = rp_plan_buffer(plan, a), *y = rp_plan_buffer(plan, b);

    return a == b || (x->arena == y->arena && x->offset < y->offset + y->bytes &&
                      y->offset < x->offset + x->bytes);
}

/* Whether @download writes the bytes that @reader reads; a download that declares nothing may write
 * anything. */
static gboolean
overwrites(const RpVerifier *verifier, guint32 download, guint32 reader)
{
    const RpTask *from = rp_verifier_task(verifier, download);
    const RpTask *to = rp_verifier_task(verifier, reader);
    const RpAccess *writes = rp_plan_accesses(verifier->plan, from);
    const RpAccess *reads = rp_plan_accesses(verifier->plan, to);

    for (guint i = 0; i < from->access_count; i++)
        for (guint k = 0; k < to->access_count && (writes[i].mode & RP_ACCESS_WRITE) != 0; k++)
            if (overlap(verifier->plan, writes[i].buffer, reads[k].buffer))
                return TRUE;
    return from->access_count == 0 || to->access_count == 0;
}

/* (4) of layers that have a buffer in common: who was there before has been reduced. Backward comes to the
 * layer above first. */
static gboolean
check_shared(RpProtocol *protocol, guint32 download, guint32 now, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    const guint32 buffer = rp_plan_layer(verifier->plan, layer)->gradients[0];

    for (guint l = 0; l < verifier->n_layers && rp_verifier_may_share(verifier); l++) {
        if (l == layer || buffer == RP_NONE ||
            rp_plan_layer(verifier->plan, l)->gradients[0] != buffer || (l < layer && now == 0))
            continue;
        const guint32 reduce =
            *rp_protocol_task(protocol, l > layer ? now : now - 1, l, RP_HOST_REDUCE);

        if (reduce == RP_NO_TASK || rp_verifier_before(verifier, reduce, download))
            continue;
        return rp_verifier_fail(verifier, RP_RULE_GRADIENT_INTEGRITY, reduce, download,
                                "the gradients of layer %u may be overwritten before they are "
                                "reduced",
                                l);
    }
    return TRUE;
}

/* (3) and (4) of one downloaded layer. */
static gboolean
check_download(RpProtocol *protocol, guint32 download, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    const RpTask *task = rp_verifier_task(verifier, download);
    guint32 now = task->iteration - verifier->first_iteration;
    guint32 reader = gradient_reader(protocol, now, layer);

    if (!rp_protocol_check_follows(verifier, RP_RULE_INCOMPLETE_GRADIENTS, download, reader,
                                   "the gradients may be read before they have arrived"))
        return FALSE;
    if (now > 0) {
        guint32 before =
            *rp_protocol_task(protocol, now - 1, layer, rp_protocol_last_reader(protocol, layer));

        if (before != RP_NO_TASK && !rp_verifier_before(verifier, before, download) &&
            overwrites(verifier, download, before))
            return rp_verifier_fail(verifier, RP_RULE_GRADIENT_INTEGRITY, before, download,
                                    "the gradients may be overwritten before they are read");
    }
    if (!check_shared(protocol, download, now, layer))
        return FALSE;
    return rp_verifier_stages(verifier) || reader == RP_NO_TASK ||
           rp_verifier_check_flow(verifier, RP_RULE_INCOMPLETE_GRADIENTS, download, reader,
                                  (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_GRADIENTS},
                                  "the layer's gradient");
}

/* (3) of one layer that has been summed over rounds. */
static gboolean
check_sum_read(RpProtocol *protocol, guint32 accumulate, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    guint32 now = rp_verifier_task(verifier, accumulate)->iteration - verifier->first_iteration;
    guint32 reader = gradient_reader(protocol, now, layer);

    return !verifier->trainable[layer] || reader == RP_NO_TASK ||
           (rp_protocol_check_follows(
                verifier, RP_RULE_INCOMPLETE_GRADIENTS, accumulate, reader,
                "the gradients may be read before the rounds have been summed") &&
            rp_verifier_check_flow(verifier, RP_RULE_INCOMPLETE_GRADIENTS, accumulate, reader,
                                   (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_GRADIENTS},
                                   "the sum of the rounds' gradients"));
}

/* A tied layer carries weights and gradients of another as well: rules for its own hold for
 * those. Copied gradients are read by the layer's own copy only, and reduced ones by its own reduce. */
static gboolean
check_tied(RpProtocol *protocol, guint32 index, guint32 layer,
           gboolean (*check)(RpProtocol *protocol, guint32 task, guint32 layer))
{
    guint other = rp_protocol_tied_to(protocol->verifier, layer);

    return other == RP_NONE ||
           (check != check_upload &&
            (rp_plan_tied_from(protocol->verifier->plan, other) != layer ||
             protocol->has[RP_HOST_GRADIENT_COPY] || protocol->has[RP_HOST_REDUCE])) ||
           check(protocol, index, other);
}

static gboolean
check_accumulate(RpProtocol *protocol, guint32 accumulate)
{
    const RpVerifier *verifier = protocol->verifier;
    guint32 stage = rp_verifier_task(verifier, accumulate)->stage;
    RpInterval layers = rp_plan_stage(verifier->plan, stage)->layers;

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        if (!check_sum_read(protocol, accumulate, l) ||
            !check_tied(protocol, accumulate, l, check_sum_read))
            return FALSE;
    return TRUE;
}

/* Calls the check of each layer that a chunk holds. */
static gboolean
check_chunk(RpProtocol *protocol, guint32 index, const RpTask *task, const RpChunks *chunks,
            gboolean (*check)(RpProtocol *protocol, guint32 task, guint32 layer))
{
    guint32 last = RP_NONE;

    for (guint i = chunks->first_segment[task->chunk]; i < chunks->first_segment[task->chunk + 1];
         i++) {
        guint32 layer = chunks->segments[i].layer;

        if (layer != last &&
            (!check(protocol, index, layer) || !check_tied(protocol, index, layer, check)))
            return FALSE;
        last = layer;
    }
    return TRUE;
}

gboolean
rp_protocol_check_transfers(RpProtocol *protocol)
{
    RpVerifier *verifier = protocol->verifier;

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        if (task->iteration - verifier->first_iteration < verifier->first_dirty)
            continue;
        if (task->kind == RP_TASK_PARAMETER_UPLOAD &&
            !check_chunk(protocol, i, task, &rp_plan_stage(verifier->plan, task->stage)->parameters,
                         check_upload))
            return FALSE;
        if (task->kind == RP_TASK_GRADIENT_DOWNLOAD &&
            !check_chunk(protocol, i, task, &rp_plan_stage(verifier->plan, task->stage)->gradients,
                         check_download))
            return FALSE;
        if (task->kind == RP_TASK_GRADIENT_ACCUMULATE && !check_accumulate(protocol, i))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_protocol_check_follows(RpVerifier *verifier, RpRule rule, guint32 first, guint32 second,
                          const char *text)
{
    if (first == RP_NO_TASK || second == RP_NO_TASK || rp_verifier_before(verifier, first, second))
        return TRUE;
    return rp_verifier_fail(verifier, rule, first, second, "%s", text);
}
