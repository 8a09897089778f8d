/**
 * Maps a task of a `full` plan to memory: its operands, its stage's call, the pieces that a copy
 * moves. It is the same for every backend; a backend only knows how to move and to compute.
 */
#pragma once

#include <glib.h>

#include "exec/device/batch-feed.h"
#include "exec/device/host-state.h"
#include "exec/engine/backend.h"

/* A device's own buffers for its actions; set by the backend. */
typedef struct {
    RpKernelStream *stream;  /* where kernels are issued */
    double *losses;          /* [RP_BATCH_FEED_RING x M][n_losses] to which its heads add */
    void *squares_workspace; /* sum_squares': rp_task_map_squares_workspace() */
    gsize begun;             /* 1 + place of the micro-batch whose action began sums; 0: none yet */
} RpTaskDevice;

typedef struct {
    const RpPlan *plan;
    const RpPlanModes *modes; /* the plan's */
    const RpNetwork *network;
    RpHostState *host_state;
    RpBatchFeed *feed;
    guint gpus;
    guint n_layers;
    guint micro_batches; /* M of an iteration */
    gsize tokens;        /* T of a micro-batch */
    gsize element_bytes;
    guint64 *constants;  /* [gpus] offset in the device's arena */
    guint64 *residents;  /* [gpus][n_layers] the same for resident weights, or RP_LAYOUT_NONE */
    guint64 *first;      /* [n_layers] first byte of a layer in the upload of all */
    RpSavedPlace *saved; /* [gpus][n_layers] of the running action's layers */
    /* [gpus][head_numbers]: [2][T] targets that are not masked, and their rows; behind them, of a preference, first rows,
     * kinds and references of documents, at most T of them */
    gint32 *packed;
    gsize head_numbers;
    /* losses of a micro-batch: its own, and the auxiliary one if there is one; of a preference RP_STAGE_LOSSES */
    gsize n_losses;
    gsize most_places;     /* rp_network_most_places() */
    gint32 *places;        /* [gpus][most_places] of a micro-batch, or %NULL */
    RpTaskDevice *devices; /* [gpus] */
    /* set by the backend */
    guint8 **memory; /* [gpus + 1] where each arena begins */
    double *losses;  /* [RP_BATCH_FEED_RING x M][n_losses] as the host reads them */
    float *
        scores; /* [RP_SCORE_RING x M][T] log-probabilities of documents by forwards; %NULL: no preference */
    double *squares; /* [RP_BATCH_FEED_RING][n_layers] of gradients that have left; or NULL */
    /* [RP_BATCH_FEED_RING x M][n_layers] tokens from the first whose output is not finite; 0: all
     * are finite */
    guint32 *broken;
} RpTaskMap;

/* All borrowed; fixed buffers of @plan are looked up now. */
void rp_task_map_init(RpTaskMap *map, const RpPlan *plan, const RpNetwork *network,
                      RpHostState *host_state, RpBatchFeed *feed);
void rp_task_map_clear(RpTaskMap *map);

/* Type of gradients that leave a device. */
static inline RpDtype
rp_task_map_leaving_dtype(const RpTaskMap *map)
{
    return map->modes->gradients == RP_GRADIENTS_KEPT ? RP_DTYPE_FP32
                                                      : rp_network_options(map->network)->dtype;
}

/* Size of the workspace, bytes. */
gsize rp_task_map_squares_workspace(const RpTaskMap *map);

/* Forwards that score documents: more are not under way at once. */
#define RP_SCORE_RING 4

/* Numbers of the ring of scores; 0 without a preference. */
gsize rp_task_map_n_scores(const RpTaskMap *map);

/* Places of rings of RP_BATCH_FEED_RING x M, and a micro-batch's. */
static inline gsize
rp_task_map_places(const RpTaskMap *map)
{
    return RP_BATCH_FEED_RING * (gsize)map->micro_batches;
}

static inline gsize
rp_task_map_place(const RpTaskMap *map, guint64 iteration, guint32 micro_batch)
{
    return iteration % RP_BATCH_FEED_RING * map->micro_batches + micro_batch;
}

/* Returns: (nullable): the task's access of that role */
const RpBackendAccess *rp_task_access(const RpBackendTask *task, RpAccessRole role);
/* Address of the task's buffer of that role. Returns: (nullable): it has none */
void *rp_task_operand(const RpTaskMap *map, const RpBackendTask *task, RpAccessRole role);

/* Layers that a fused task runs. */
RpStageSteps rp_task_steps(const RpTaskMap *map, const RpBackendTask *task);
/* Parameters of the task's stage, as its first layer's begin. */
const void *rp_task_parameters(const RpTaskMap *map, const RpBackendTask *task);
/* Place where the action's layers save values, or have saved them; %NULL: nowhere. */
const RpSavedPlace *rp_task_saved(const RpTaskMap *map, guint device, const RpBackendTask *task);

/* Layers that are resident on @device. */
static inline RpResidents
rp_task_residents(const RpTaskMap *map, guint device)
{
    return (RpResidents){.first = map->first,
                         .place = map->residents + (gsize)device * map->n_layers,
                         .memory = map->memory[device]};
}

static inline const RpPlanStage *
rp_task_stage(const RpTaskMap *map, const RpBackendTask *task)
{
    return rp_plan_stage(map->plan, task->task.stage);
}

/* Moves @bytes from @source to @target, one of which is of a device. */
typedef gboolean (*RpTaskMove)(gpointer user_data, void *target, const void *source, guint64 bytes,
                               GError **error);

/**
 * rp_task_copy:
 *
 * The pieces of a transfer: activations, saved values of layers, token ids (from the feed's batch), parameters of a
 * chunk (a tied matrix from where it lives), gradients of a chunk (to the host, or staged in later rounds).
 *
 * Errors: those of @move
 */
gboolean rp_task_copy(const RpTaskMap *map, const RpBackendTask *task, RpTaskMove move,
                      gpointer user_data, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_arena_check_limits:
 * @bytes: (array length=gpus): that the plan needs of each device
 * @limit: bytes of a device; 0 = none
 *
 * Errors: RP_DEVICE_ERROR_MEMORY, with the first device that is too small and by how much
 */
gboolean rp_arena_check_limits(const guint64 *bytes, guint gpus, guint64 limit,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_arena_check_open:
 * @bytes: (array length=n): that the plan needs of each arena now
 * @open: (array length=n): that each was opened with
 *
 * Errors: RP_DEVICE_ERROR_MEMORY, with the first arena that is too small
 */
gboolean rp_arena_check_open(const guint64 *bytes, const guint64 *open, guint n,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
