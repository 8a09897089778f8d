#include "core/plan/builder.h"

/* A task that last touched a buffer. */
typedef struct {
    RpTaskId task;
    guint32 lane;
} Touch;

/* Accesses of one buffer so far: tasks that must be waited for. */
typedef struct {
    guint32 of;      /* the buffer whose history counts for this one, mostly itself */
    Touch writer;    /* task = RP_TASK_NONE: never written */
    guint n_readers; /* since the last write; at most one a lane, the latest */
    guint max_readers;
    Touch *readers;
} History;

struct _RpBuilder {
    RpPlan *plan;
    RpTask task;
    guint n_dependencies, max_dependencies;
    RpDependency *dependencies;
    guint32 *dependency_lanes; /* beside dependencies */
    guint n_accesses, max_accesses;
    RpAccess *accesses;
    GArray *histories; /* History, by buffer index */
    RpTaskId *last;    /* [lane] */
    RpTaskId barrier;  /* the last one */
};

static void
clear_history(gpointer history)
{
    g_free(((History *)history)->readers);
}

RpBuilder *
rp_builder_new(RpPlan *plan)
{
    RpBuilder *builder = g_new0(RpBuilder, 1);

    builder->plan = plan;
    builder->max_dependencies = builder->max_accesses = 64;
    builder->dependencies = g_new(RpDependency, builder->max_dependencies);
    builder->dependency_lanes = g_new(guint32, builder->max_dependencies);
    builder->accesses = g_new(RpAccess, builder->max_accesses);
    builder->histories = g_array_new(FALSE, FALSE, sizeof(History));
    g_array_set_clear_func(builder->histories, clear_history);
    builder->last = g_new(RpTaskId, rp_plan_n_lanes(plan));
    for (guint i = 0; i < rp_plan_n_lanes(plan); i++)
        builder->last[i] = RP_TASK_NONE;
    builder->barrier = RP_TASK_NONE;
    return builder;
}

void
rp_builder_free(RpBuilder *builder)
{
    if (builder == NULL)
        return;
    g_free(builder->dependencies);
    g_free(builder->dependency_lanes);
    g_free(builder->accesses);
    g_array_unref(builder->histories);
    g_free(builder->last);
    g_free(builder);
}

RpTask *
rp_builder_begin(RpBuilder *builder, RpTaskKind kind, guint device, guint32 stage,
                 guint32 iteration)
{
    const guint lane = rp_task_kind(kind)->lane;

    builder->task = (RpTask){
        .kind = (guint8)kind,
        .lane =
            lane < RP_LANES_PER_DEVICE
                ? rp_plan_lane(builder->plan, device, (RpLaneKind)lane)
                : rp_plan_host_lane(builder->plan, (RpHostLaneKind)(lane - RP_LANES_PER_DEVICE)),
        .stage = stage,
        .iteration = iteration,
        .micro_batch = RP_NONE,
        .layer = RP_NONE,
        .chunk = RP_NONE,
    };
    builder->n_dependencies = builder->n_accesses = 0;
    return &builder->task;
}

void
rp_builder_wait(RpBuilder *builder, RpTaskId task, guint32 lane, guint32 hop_ns, guint32 phase)
{
    const RpDependency dependency = {.task = task, .hop_ns = hop_ns, .phase = phase};

    if (task == RP_TASK_NONE || (lane == builder->task.lane && hop_ns == 0))
        return;
    /* only the later of two tasks of one lane is waited for, unless it is needed only later on */
    for (guint i = 0; i < builder->n_dependencies && hop_ns == 0; i++) {
        RpDependency *other = &builder->dependencies[i];

        if (builder->dependency_lanes[i] != lane || other->hop_ns != 0)
            continue;
        if (other->task >= task && other->phase <= phase)
            return;
        if (other->task <= task && other->phase >= phase) {
            *other = dependency;
            return;
        }
    }
    if (builder->n_dependencies == builder->max_dependencies) {
        const guint max = builder->max_dependencies *= 2;

        builder->dependencies = g_renew(RpDependency, builder->dependencies, max);
        builder->dependency_lanes = g_renew(guint32, builder->dependency_lanes, max);
    }
    builder->dependency_lanes[builder->n_dependencies] = lane;
    builder->dependencies[builder->n_dependencies++] = dependency;
}

void
rp_builder_wait_lane(RpBuilder *builder, guint32 lane)
{
    rp_builder_wait(builder, builder->last[lane], lane, 0, 0);
}

void
rp_builder_wait_barrier(RpBuilder *builder, gboolean once)
{
    const RpTaskId last = builder->last[builder->task.lane];

    if (!once || last == RP_TASK_NONE || last < builder->barrier)
        rp_builder_wait(builder, builder->barrier,
                        rp_plan_host_lane(builder->plan, RP_HOST_LANE_OPTIMIZER), 0, 0);
}

static void
grow_histories(RpBuilder *builder, guint32 buffer)
{
    for (guint32 i = builder->histories->len; i <= buffer; i++) {
        const History history = {.of = i, .writer.task = RP_TASK_NONE};

        g_array_append_val(builder->histories, history);
    }
}

static inline History *
history_of(const RpBuilder *builder, guint32 buffer)
{
    History *histories = (History *)(void *)builder->histories->data;

    return &histories[histories[buffer].of];
}

void
rp_builder_share_history(RpBuilder *builder, guint32 buffer, guint32 with)
{
    grow_histories(builder, MAX(buffer, with));
    g_array_index(builder->histories, History, buffer).of = with;
}

void
rp_builder_access(RpBuilder *builder, guint32 buffer, guint32 mode, RpAccessRole role,
                  guint32 phase)
{
    const RpAccess access = {.buffer = buffer, .mode = (guint16)mode, .role = (guint16)role};
    const gboolean writes = (mode & RP_ACCESS_WRITE) != 0;

    if (buffer == RP_NONE)
        return;
    grow_histories(builder, buffer);
    const History *history = history_of(builder, buffer);

    /* readers come after the writer, so waiting for them is waiting for it */
    if (!writes || history->n_readers == 0)
        rp_builder_wait(builder, history->writer.task, history->writer.lane, 0, phase);
    for (guint i = 0; writes && i < history->n_readers; i++)
        rp_builder_wait(builder, history->readers[i].task, history->readers[i].lane, 0, phase);
    if (builder->n_accesses == builder->max_accesses)
        builder->accesses = g_renew(RpAccess, builder->accesses, builder->max_accesses *= 2);
    builder->accesses[builder->n_accesses++] = access;
}

static void
note_read(History *history, Touch touch)
{
    guint i = 0;

    while (i < history->n_readers && history->readers[i].lane != touch.lane)
        i++;
    if (i == history->max_readers) {
        history->max_readers = MAX(2, history->max_readers * 2);
        history->readers = g_renew(Touch, history->readers, history->max_readers);
    }
    history->readers[i] = touch;
    history->n_readers = MAX(history->n_readers, i + 1);
}

RpTaskId
rp_builder_end(RpBuilder *builder)
{
    const RpTaskId id =
        rp_plan_append(builder->plan, &builder->task, builder->dependencies,
                       builder->n_dependencies, builder->accesses, builder->n_accesses);
    const Touch touch = {.task = id, .lane = builder->task.lane};

    for (guint i = 0; i < builder->n_accesses; i++) {
        History *history = history_of(builder, builder->accesses[i].buffer);

        if ((builder->accesses[i].mode & RP_ACCESS_WRITE) == 0) {
            note_read(history, touch);
            continue;
        }
        history->writer = touch;
        history->n_readers = 0;
    }
    builder->last[touch.lane] = id;
    return id;
}

void
rp_builder_barrier(RpBuilder *builder, guint32 iteration)
{
    rp_builder_begin(builder, RP_TASK_BARRIER, 0, RP_NONE, iteration);
    for (guint g = 0; g < rp_plan_gpus(builder->plan); g++)
        rp_builder_wait_lane(builder, rp_plan_lane(builder->plan, g, RP_LANE_COMPUTE));
    builder->barrier = rp_builder_end(builder);
}
