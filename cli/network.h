/**
 * Sizes of what `roundpipe train` runs, of any shape of micro-batches.
 */
#pragma once

#include "cli/cli.h"
#include "core/catalogue/lora.h"
#include "exec/device/device.h"
#include "exec/network/network.h"
#include "sim/advise/advise.h"

/* A network of any shape of micro-batches: the sizes that `roundpipe train` plans with, at the
 * defaults of a run file. */
typedef struct {
    RpModel model; /* its shapes, for the cost model */
    char *name;    /* of @model: after the path; or %NULL */
    RpWeights *weights;
    const RpDeviceOps *devices; /* whose kernels */
    RpNetworkOptions options;
    GStrv targets;
    RpLora lora; /* of rank 0: none; it has @targets */
    RpAdviseSizes sizes;
    GMutex lock;       /* of: */
    GHashTable *sized; /* sequences << 32 | tokens (gint64 *) -> RpProfile: made once each */
} RpPlanNetwork;

/**
 * rp_plan_network_open:
 * @path: directory, or config.json, of a model
 * @run: of which devices ("host" or "cuda", whose kernels; %NULL: cuda where it is built in. With "host"
 *   devices are threads, their arenas are host memory), numbers, attention and adapters are read; a dtype
 *   that is not given is the weights', else the config's, else bf16
 *
 * Returns: (transfer full)
 * Errors: RP_CLI_ERROR_USAGE, RP_HF_CONFIG_ERROR_*, RP_SAFETENSORS_ERROR_*, G_FILE_ERROR
 */
RpPlanNetwork *rp_plan_network_open(const char *path, const RpRunSpec *run,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same of a model of the catalogue.
 * Errors: RP_CLI_ERROR_USAGE, RP_HF_CONFIG_ERROR_UNSUPPORTED if `train` does not have it */
RpPlanNetwork *rp_plan_network_of(const RpModel *model, const RpRunSpec *run,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The question about @run for the cost model. @targets: those of its adapters, parsed; borrowed */
RpWorkload rp_cli_workload(const RpRunSpec *run, char **targets);

void rp_plan_network_free(RpPlanNetwork *network);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPlanNetwork, rp_plan_network_free)
