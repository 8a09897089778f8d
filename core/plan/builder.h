/**
 * A task under construction. Declared accesses become the dependencies that keep each buffer's
 * history serial: a read after the write before it, a write after the reads before it. It knows
 * nothing of schedules, placements or protocols.
 */
#pragma once

#include "core/plan/plan.h"

typedef struct _RpBuilder RpBuilder;

/* @plan: borrowed */
RpBuilder *rp_builder_new(RpPlan *plan);
void rp_builder_free(RpBuilder *builder);

/**
 * rp_builder_begin:
 * @device: on whose lane for such tasks it stands; tasks of the host: anything
 *
 * Returns: the task, whose other fields may be filled in until rp_builder_end()
 */
RpTask *rp_builder_begin(RpBuilder *builder, RpTaskKind kind, guint device, guint32 stage,
                         guint32 iteration);
/* Appends it. */
RpTaskId rp_builder_end(RpBuilder *builder);

/* Waits for @task of @lane; implied and covered edges are left out when @hop_ns is 0. */
void rp_builder_wait(RpBuilder *builder, RpTaskId task, guint32 lane, guint32 hop_ns,
                     guint32 phase);
/* Waits for all that stands in @lane. */
void rp_builder_wait_lane(RpBuilder *builder, guint32 lane);

/* Declares an access; @buffer may be RP_NONE. */
void rp_builder_access(RpBuilder *builder, guint32 buffer, guint32 mode, RpAccessRole role,
                       guint32 phase);
static inline void
rp_builder_read(RpBuilder *builder, guint32 buffer, RpAccessRole role)
{
    if (buffer != RP_NONE)
        rp_builder_access(builder, buffer, RP_ACCESS_READ, role, 0);
}
static inline void
rp_builder_write(RpBuilder *builder, guint32 buffer, RpAccessRole role)
{
    if (buffer != RP_NONE)
        rp_builder_access(builder, buffer, RP_ACCESS_WRITE, role, 0);
}
static inline void
rp_builder_update(RpBuilder *builder, guint32 buffer, RpAccessRole role)
{
    rp_builder_access(builder, buffer, RP_ACCESS_READ | RP_ACCESS_WRITE, role, 0);
}

/* @buffer overlaps @with: an access of one is an access of both. */
void rp_builder_share_history(RpBuilder *builder, guint32 buffer, guint32 with);

/* A task of the optimizer's lane that waits for the compute lanes of all devices. */
void rp_builder_barrier(RpBuilder *builder, guint32 iteration);
/* Waits for the last barrier. @once: unless its lane has had tasks since */
void rp_builder_wait_barrier(RpBuilder *builder, gboolean once);
