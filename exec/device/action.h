/**
 * Actions and expansions, as every backend runs them: the network's call that a task is, targets of the head, sums
 * of gradients, a look at each layer's output, and the loss that comes back. Kernels run, or are
 * issued, as those of the backend do.
 *
 *   |set_places|begin_head|--forward, or recompute and backward, or fused--|break sum|leave|send_loss|
 *
 * The head runs where its backward does, at once with it; a bound forward leaves it out, unless the
 * host's state evaluates: then a forward makes the loss.
 */
#pragma once

#include "exec/device/task-map.h"
#include "exec/network/network.h"

typedef struct {
    const RpTaskMap *map;
    RpBackend *backend; /* owner of @map */
    guint device;
    const RpBackendTask *task;
    RpStageCall call;
    gsize place; /* the micro-batch's place in rings */
} RpDeviceAction;

/**
 * RpDeviceActionOps:
 * @set_places: networks that have places: @n numbers of @places into the constants, where
 *   rp_network_places_byte() says, before later work on the device; @places is read now
 * @begin_head: makes the losses at call.loss zero, and sets call.targets to the device's copy of @targets: @n of them,
 *   if @packed as many rows, T after the first, and @n_more numbers, 2 T after it
 * @send_loss: the head has run, or was issued: calls rp_device_action_take_loss() once the loss is
 *   in map->losses, all n_losses of it
 */
typedef struct {
    gboolean (*set_places)(RpDeviceAction *action, const gint32 *places, gsize n, GError **error);
    gboolean (*begin_head)(RpDeviceAction *action, const gint32 *targets, guint n, gboolean packed,
                           gsize n_more, GError **error);
    gboolean (*send_loss)(const RpDeviceAction *action, GError **error);
} RpDeviceActionOps;

/* @part: of @task. Errors: RP_DEVICE_ERROR_PLAN, RP_DEVICE_ERROR_LAUNCH, those of @ops */
gboolean rp_device_action_run(const RpTaskMap *map, const RpDeviceActionOps *ops,
                              RpBackend *backend, guint device, const RpBackendTask *task,
                              RpTaskPart part, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The loss of a micro-batch is in map->losses: it and the lowest layer that broke are passed on.
 * Any thread. Errors: RP_HOST_STATE_ERROR_LOSS */
gboolean rp_device_action_take_loss(const RpTaskMap *map, guint64 iteration, guint32 micro_batch,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Each class of layers once, before the first step: whatever runs first has its kernels loaded, and
 * libraries choose theirs. Else the first step would take longer than the others.
 */

/**
 * rp_rehearse:
 * @stream: whose actions are to come
 * @constants: as the device has them
 * @memory: the device's, @bytes that nobody needs; is written to
 *
 * Runs a layer of each class forwards and backwards, if there is space for it. All weights and
 * tokens are 0, and the results are not used. The stream records kernels that fail.
 */
void rp_rehearse(const RpNetwork *network, RpKernelStream *stream, const void *constants,
                 void *memory, guint64 bytes);
