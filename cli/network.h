/**
 * Sizes of what `roundpipe train` runs, of any shape of micro-batches.
 */
#pragma once

#include "cli/cli.h"
#include "sim/advise/advise.h"

/* A network of any shape of micro-batches: the sizes that `roundpipe train` plans with, at the
 * defaults of a run file. */
typedef struct _RpPlanNetwork RpPlanNetwork;

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

const RpAdviseSizes *rp_plan_network_sizes(const RpPlanNetwork *network);
/* Its shapes, for the cost model; named after the path. Lives as long as @network. */
const RpModel *rp_plan_network_model(const RpPlanNetwork *network);
/* "cuda" or "host": whose kernels. */
const char *rp_plan_network_devices(const RpPlanNetwork *network);
const char *rp_plan_network_dtype(const RpPlanNetwork *network);
/* The format that the frozen base is packed in; %NULL: none. */
const char *rp_plan_network_base(const RpPlanNetwork *network);
/* "builtin", "cudnn". */
const char *rp_plan_network_attention(const RpPlanNetwork *network);
