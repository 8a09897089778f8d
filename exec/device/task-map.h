/**
 * What a task of a `full` plan means in memory: its operands, its stage's call, the pieces that a
 * copy moves. The same for every backend; a backend only knows how to move and to compute.
 */
#pragma once

#include "exec/device/feed.h"
#include "exec/device/home.h"
#include "exec/engine/backend.h"

typedef struct {
    const RpNetwork *network;
    RpHome *home;
    RpFeed *feed;
    guint gpus;
    guint n_layers;
    gsize element_bytes;
    RpDtype leaving_dtype;      /* of gradients on their way */
    gboolean kept_sums;         /* these are sums of rounds */
    const RpPlanStage **stages; /* the plan's */
    guint64 *constants;         /* [gpus] offset in the device's arena */
    guint8 **memory;            /* [gpus + 1] where each arena begins; set by the backend */
} RpTaskMap;

/* All borrowed; stages and fixed buffers of @plan are read now. */
void rp_task_map_init(RpTaskMap *map, const RpPlan *plan, const RpNetwork *network, RpHome *home,
                      RpFeed *feed);
void rp_task_map_clear(RpTaskMap *map);

/* Returns: (nullable): the task's access of that role */
const RpBackendAccess *rp_task_access(const RpBackendTask *task, RpAccessRole role);
/* Whether the task's stage holds the head. */
gboolean rp_task_has_head(const RpTaskMap *map, const RpBackendTask *task);

/* A compute action (forward, backward or fused) as a call of the network: memory and layers; the
 * stream, targets, loss, scale and observer are the backend's to set. */
RpStageCall rp_task_call(const RpTaskMap *map, guint device, const RpBackendTask *task);

/**
 * rp_task_leave:
 * @sums: of the task's slot, complete
 *
 * The last part of an action whose slot's sum is complete: rounds it to the network's storage, in
 * which it leaves or, where sums stay on the device, is added to that of the rounds before. Does
 * nothing in other actions.
 */
void rp_task_leave(const RpTaskMap *map, const RpBackendTask *task, RpKernelStream *stream,
                   const float *sums);

/* Moves @bytes from @source to @target, one of which is of a device. */
typedef gboolean (*RpTaskMove)(gpointer user_data, void *target, const void *source, guint64 bytes,
                               GError **error);

/**
 * rp_task_copy:
 *
 * The pieces of a transfer: activations, token ids (from the feed's batch), parameters of a chunk
 * (a tied matrix from where it lives), gradients of a chunk (home, or staged in later rounds).
 *
 * Errors: those of @move
 */
gboolean rp_task_copy(const RpTaskMap *map, const RpBackendTask *task, RpTaskMove move,
                      gpointer user_data, GError **error) G_GNUC_WARN_UNUSED_RESULT;
