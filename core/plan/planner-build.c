/* A task under construction: declared accesses become the dependencies that keep each buffer's
 * history serial (a read after the write before it, a write after the reads before it). */
#include "core/plan/planner-private.h"

guint32
rp_planner_global_micro_batch(const RpPlanner *planner, guint32 micro_batch)
{
    return micro_batch == RP_NONE ? RP_NONE
                                  : planner->call * planner->shape.micro_batches + micro_batch;
}

void
rp_planner_begin_task(RpPlanner *planner, RpTaskKind kind, guint32 lane, guint32 stage,
                      guint32 micro_batch)
{
    planner->task = (RpTask){
        .kind = (guint8)kind,
        .lane = lane,
        .stage = stage,
        .micro_batch = rp_planner_global_micro_batch(planner, micro_batch),
        .iteration = planner->iteration,
        .layer = RP_NONE,
        .chunk = RP_NONE,
    };
    g_array_set_size(planner->dependencies, 0);
    g_array_set_size(planner->accesses, 0);
    g_array_set_size(planner->dependency_lanes, 0);
}

void
rp_planner_depend(RpPlanner *planner, RpTaskId task, guint32 lane, guint32 hop_ns, guint32 phase)
{
    if (task == RP_TASK_NONE || (lane == planner->task.lane && hop_ns == 0))
        return;
    /* of two tasks of one lane the later one is waited for, unless it is needed only later on */
    for (guint i = 0; i < planner->dependencies->len && hop_ns == 0; i++) {
        RpDependency *other = &g_array_index(planner->dependencies, RpDependency, i);

        if (g_array_index(planner->dependency_lanes, guint32, i) != lane || other->hop_ns != 0)
            continue;
        if (other->task >= task && other->phase <= phase)
            return;
        if (other->task <= task && other->phase >= phase) {
            other->task = task;
            other->phase = phase;
            return;
        }
    }

    RpDependency dependency = {.task = task, .hop_ns = hop_ns, .phase = phase};
    g_array_append_val(planner->dependencies, dependency);
    g_array_append_val(planner->dependency_lanes, lane);
}

static void
grow_states(RpPlanner *planner, guint32 buffer)
{
    while (planner->buffer_states->len <= buffer) {
        RpBufferState state = {.writer = {.task = RP_TASK_NONE}};
        guint32 self = planner->buffer_states->len;

        g_array_append_val(planner->buffer_states, state);
        g_array_append_val(planner->histories, self);
    }
}

static RpBufferState *
buffer_state(RpPlanner *planner, guint32 buffer)
{
    if (planner->buffer_states->len <= buffer)
        grow_states(planner, buffer);
    return &g_array_index(planner->buffer_states, RpBufferState,
                          g_array_index(planner->histories, guint32, buffer));
}

void
rp_planner_share_history(RpPlanner *planner, guint32 buffer, guint32 with)
{
    grow_states(planner, MAX(buffer, with));
    g_array_index(planner->histories, guint32, buffer) = with;
}

void
rp_planner_access(RpPlanner *planner, guint32 buffer, guint32 mode, RpAccessRole role,
                  guint32 phase)
{
    if (buffer == RP_NONE)
        return;

    const RpBufferState *state = buffer_state(planner, buffer);
    RpAccess access = {.buffer = buffer, .mode = (guint16)mode, .role = (guint16)role};

    /* readers come after the writer, so waiting for them is waiting for it */
    if ((mode & RP_ACCESS_WRITE) == 0 || state->n_readers == 0)
        rp_planner_depend(planner, state->writer.task, state->writer.lane, 0, phase);
    if ((mode & RP_ACCESS_WRITE) != 0)
        for (guint i = 0; i < state->n_readers; i++)
            rp_planner_depend(planner, state->readers[i].task, state->readers[i].lane, 0, phase);
    g_array_append_val(planner->accesses, access);
}

static void
note_read(RpBufferState *state, RpTaskId task, guint32 lane)
{
    for (guint i = 0; i < state->n_readers; i++) {
        if (state->readers[i].lane == lane) {
            state->readers[i].task = task;
            return;
        }
    }
    if (state->n_readers == state->max_readers) {
        state->max_readers = MAX(2, state->max_readers * 2);
        state->readers = g_renew(RpTouch, state->readers, state->max_readers);
    }
    state->readers[state->n_readers++] = (RpTouch){.task = task, .lane = lane};
}

RpTaskId
rp_planner_end_task(RpPlanner *planner)
{
    RpTaskId id = rp_plan_append(
        planner->plan, &planner->task,
        (const RpDependency *)(const void *)planner->dependencies->data, planner->dependencies->len,
        (const RpAccess *)(const void *)planner->accesses->data, planner->accesses->len);

    for (guint i = 0; i < planner->accesses->len; i++) {
        const RpAccess *access = &g_array_index(planner->accesses, RpAccess, i);
        RpBufferState *state = buffer_state(planner, access->buffer);

        if ((access->mode & RP_ACCESS_WRITE) != 0) {
            state->writer = (RpTouch){.task = id, .lane = planner->task.lane};
            state->n_readers = 0;
        } else {
            note_read(state, id, planner->task.lane);
        }
    }
    return id;
}

void
rp_planner_clear_buffer_states(RpPlanner *planner)
{
    for (guint i = 0; i < planner->buffer_states->len; i++)
        g_free(g_array_index(planner->buffer_states, RpBufferState, i).readers);
    g_array_set_size(planner->buffer_states, 0);
}
