#include "core/plan/planner/gradients.h"

/* Gradients of a device that leave in the windows of the slots behind theirs. */
typedef struct {
    guint32 stage; /* RP_NONE: nothing */
    guint32 round;
    guint32 iteration;
    guint chunk; /* next to go */
} Leaving;

/* Gradients of a round in a device's staging buffer, to be added to those of the stage. */
typedef struct {
    guint32 stage; /* RP_NONE: has been added */
    guint32 iteration;
    guint32 round;
    guint32 staging;
} Summand;

struct _RpGradients {
    const RpPlanJob *job;
    const RpPlacement *placement;
    RpProtocol *protocol;
    Leaving *leaving; /* [device] */
    GArray *summands; /* Summand: gradients that left and are yet to be added; rounds in order */
};

RpGradients *
rp_gradients_new(const RpPlanJob *job, const RpPlacement *placement, RpProtocol *protocol)
{
    RpGradients *self = RP_JOB_NEW(job, RpGradients, 1);

    self->job = job;
    self->placement = placement;
    self->protocol = protocol;
    self->leaving = RP_JOB_NONE(job, Leaving, job->shape.gpus);
    self->summands = rp_job_array(job, sizeof(Summand));
    return self;
}

/* One task for summand @first and those of its stage and iteration behind it. */
static void
append_accumulate(RpGradients *self, guint first)
{
    const RpPlanJob *job = self->job;
    const Summand of = g_array_index(self->summands, Summand, first);
    const RpPlanStage *stage = rp_plan_stage(job->plan, of.stage);
    RpTask *task =
        rp_builder_begin(job->builder, RP_TASK_GRADIENT_ACCUMULATE, 0, of.stage, of.iteration);
    guint n = 0;

    for (guint i = first; i < self->summands->len; i++) {
        Summand *summand = &g_array_index(self->summands, Summand, i);

        if (summand->stage != of.stage || summand->iteration != of.iteration)
            continue;
        g_assert(summand->round == of.round + n);
        task->round = (guint16)summand->round;
        rp_builder_read(job->builder, summand->staging, RP_ROLE_STAGING);
        summand->stage = RP_NONE;
        n++;
    }
    task->bytes = rp_traffic_accumulate(job, stage->gradient_bytes, of.round, n);
    for (guint l = stage->layers.first; l < stage->layers.first + stage->layers.count; l++)
        rp_builder_access(job->builder, rp_plan_layer(job->plan, l)->gradients[0],
                          of.round == 0 ? RP_ACCESS_WRITE : RP_ACCESS_READ | RP_ACCESS_WRITE,
                          RP_ROLE_HOST, 0);
    rp_builder_end(job->builder);
}

/* Adds up the gradients of a stage that have arrived. */
static void
append_sums_of(RpGradients *self, guint32 stage, guint32 iteration)
{
    gboolean pending = FALSE;

    for (guint i = 0; i < self->summands->len; i++) {
        const Summand *summand = &g_array_index(self->summands, Summand, i);

        if (summand->stage == stage && summand->iteration == iteration)
            append_accumulate(self, i);
        pending = pending || summand->stage != RP_NONE;
    }
    if (!pending)
        g_array_set_size(self->summands, 0);
}

/* Rounds wait to be added in one pass over the sum, until all of the stage have left or the staging
 * buffer of one is needed:
 *
 *   gradient-down  gpu 1  |--round 0--|
 *                  gpu 2     |--round 1--|
 *   accumulate                           |0 + 1|     the sum is written once and never read
 */
static void
empty_staging(RpGradients *self, guint32 staging)
{
    for (guint i = 0; i < self->summands->len; i++) {
        const Summand summand = g_array_index(self->summands, Summand, i);

        if (summand.stage != RP_NONE && summand.staging == staging) {
            append_sums_of(self, summand.stage, summand.iteration);
            return;
        }
    }
}

/* Its first, or only one. */
static guint32
layer_of_chunk(const RpChunks *chunks, guint chunk)
{
    return chunks->segments[chunks->first_segment[chunk]].layer;
}

static void
append_chunk(RpGradients *self, guint g, guint chunk)
{
    const RpPlanJob *job = self->job;
    const Leaving *leaving = &self->leaving[g];
    const RpDevice *device = &self->placement->devices[g];
    const RpChunks *chunks = &rp_plan_stage(job->plan, leaving->stage)->gradients;
    const gboolean unsummed = job->modes->gradients != RP_GRADIENTS_SUMMED;
    const guint apart = job->modes->gradients == RP_GRADIENTS_APART ? leaving->round : 0;
    guint32 last_layer = RP_NONE;

    empty_staging(self, device->staging);
    RpTask *task = rp_builder_begin(job->builder, RP_TASK_GRADIENT_DOWNLOAD, g, leaving->stage,
                                    leaving->iteration);
    task->round = (guint16)leaving->round;
    task->chunk = chunk;
    task->bytes = chunks->chunk_bytes[chunk];
    /* its window opens when the activation download before it is over */
    if (job->options.transfers == RP_TRANSFERS_WINDOWS)
        rp_builder_wait_lane(job->builder, rp_plan_lane(job->plan, g, RP_LANE_ACTIVATION_DOWN));
    rp_builder_read(job->builder,
                    job->modes->weights == RP_WEIGHTS_PER_LAYER
                        ? rp_plan_slot_layer(job->plan, g, layer_of_chunk(chunks, chunk)).leaving
                        : device->leaving,
                    RP_ROLE_LEAVING);
    rp_builder_write(job->builder, device->staging, RP_ROLE_STAGING);
    for (guint i = chunks->first_segment[chunk]; unsummed && i < chunks->first_segment[chunk + 1];
         i++) {
        const guint32 layer = chunks->segments[i].layer;

        if (layer != last_layer)
            rp_builder_write(job->builder, rp_plan_layer(job->plan, layer)->gradients[apart],
                             RP_ROLE_HOST);
        last_layer = layer;
    }
    rp_builder_end(job->builder);
}

/* The gradients of a round that is not added to others, because it is the only one or has its own
 * buffers. */
static void
note_home(RpGradients *self, RpInterval layers, guint32 stage, guint32 iteration)
{
    if (!rp_protocol_record_host_copy(self->protocol, layers, iteration))
        return;
    append_sums_of(self, stage, iteration);
    rp_protocol_append_host_copy(self->protocol, layers, iteration);
}

/* Rounds of a stage are added up in their order, whatever devices they were on, so that the result
 * has the same bits on any number of them. */
static void
send_earlier_rounds(RpGradients *self, const Leaving *of)
{
    for (guint d = 0; d < self->job->shape.gpus; d++) {
        const Leaving *leaving = &self->leaving[d];

        if (leaving->stage == of->stage && leaving->iteration == of->iteration &&
            leaving->round < of->round)
            rp_gradients_send(self, d, TRUE);
    }
}

void
rp_gradients_send(RpGradients *self, guint g, gboolean all)
{
    Leaving *leaving = &self->leaving[g];
    const guint32 stage = leaving->stage;
    const guint32 iteration = leaving->iteration;

    if (stage == RP_NONE)
        return;
    const RpChunks *chunks = &rp_plan_stage(self->job->plan, stage)->gradients;
    const guint n_chunks = chunks->n_chunks;
    const gboolean one_by_one = self->job->modes->weights == RP_WEIGHTS_PER_LAYER &&
                                self->job->modes->gradients != RP_GRADIENTS_SUMMED;

    do {
        append_chunk(self, g, leaving->chunk++);
        if (one_by_one)
            note_home(self, (RpInterval){layer_of_chunk(chunks, leaving->chunk - 1), 1}, stage,
                      iteration);
    } while (all && leaving->chunk < n_chunks);
    if (leaving->chunk < n_chunks)
        return;
    if (self->job->modes->gradients == RP_GRADIENTS_SUMMED) {
        const Summand summand = {.stage = stage,
                                 .iteration = iteration,
                                 .round = leaving->round,
                                 .staging = self->placement->devices[g].staging};

        send_earlier_rounds(self, leaving);
        g_array_append_val(self->summands, summand);
    }
    leaving->stage = RP_NONE;
    if (!one_by_one)
        note_home(self, rp_plan_stage(self->job->plan, stage)->layers, stage, iteration);
}

void
rp_gradients_send_all(RpGradients *self, gboolean older)
{
    for (guint g = 0; g < self->job->shape.gpus; g++)
        if (!older || self->leaving[g].iteration < self->job->iteration)
            rp_gradients_send(self, g, TRUE);
}

void
rp_gradients_leave(RpGradients *self, guint g, guint32 stage, guint32 round)
{
    const RpPlanJob *job = self->job;

    if (rp_plan_stage(job->plan, stage)->gradients.n_chunks == 0)
        return;
    if (job->modes->gradients == RP_GRADIENTS_KEPT && round + 1 < job->modes->rounds)
        return; /* the next round is added to them */
    rp_gradients_send(self, g, TRUE);
    /* gradients of an iteration overwrite those of the one before: its steps must stand first */
    rp_gradients_send_all(self, TRUE);
    self->leaving[g] = (Leaving){.stage = stage, .round = round, .iteration = job->iteration};
}
