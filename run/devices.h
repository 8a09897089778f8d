/**
 * Devices as words: "host:4", "cuda:2", "cuda"; and how slow some are: "0=1.1,link3=2".
 */
#pragma once

#include "core/profile/cards.h"
#include "exec/device/device.h"

#define RP_RUN_MAX_DEVICES 4096

/**
 * rp_run_parse_devices:
 * @text: `host` (one) or `host:N`, devices on processor threads; `cuda:N`, the first N GPUs;
 * `cuda`, all of them
 * @split: (nullable): of GPUs, each of which becomes several devices (rp_cuda_split_devices()); then @text
 *   says how many
 * @devices: (out): their backend
 * @n: (out): how many
 *
 * Messages do not name the option or key that @text is the value of: prefix them.
 * Errors: RP_RUN_ERROR_USAGE; RP_BACKEND_ERROR_FAILED if there are fewer GPUs
 */
gboolean rp_run_parse_devices(const char *text, const char *split, const RpDeviceOps **devices,
                              guint *n, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* GPUs that are predicted for and need not be here: @text is cuda:N. They run nothing.
 * Errors: RP_RUN_ERROR_USAGE */
gboolean rp_run_predicted_devices(const char *text, const RpDeviceOps **devices, guint *n,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A device's name; devices of one name take the same time. (transfer full)
 * Errors: RP_DEVICE_ERROR_MISSING */
char *rp_run_device_kind(const RpDeviceOps *devices, guint device,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The CPU optimizer's threads where none are asked for: 1 beside devices that are threads
 * themselves; beside @n GPUs all processors but one for each GPU's workers. */
guint rp_run_optimizer_threads(const RpDeviceOps *devices, guint n);

/* Processors that the optimizer's threads leave to the workers of @n devices, as a list; %NULL
 * where there are too few. (transfer full) (nullable) */
char *rp_run_device_processors(guint n);

/* How many servers the launcher has started on this machine; 1 without a launcher. */
guint rp_run_servers_of_machine(void);

/* Takes this server's part of the processors that mpirun has; all of them, where a part would be one. Open MPI's binds
 * each of two processes to one processor. Nothing changes under srun, nor if mpirun was given a binding. */
void rp_run_share_processors(void);

#define RP_RUN_MOST_SLOW 100.0

/**
 * rp_run_parse_slow:
 * @text: with commas between: `GPU=FACTOR`, whose actions take so many times as long; `linkGPU=FACTOR`,
 *   whose copies and hops do
 *
 * Messages do not name the option or key that @text is the value of: prefix them.
 *
 * Returns: (transfer full) (array length=gpus): of each GPU; %NULL on failure
 * Errors: RP_RUN_ERROR_USAGE
 */
RpSlow *rp_run_parse_slow(const char *text, guint gpus, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "gpu 0 x 1.1, link of gpu 3 x 2". (transfer full) */
char *rp_run_describe_slow(const RpSlow *slow, guint gpus);
