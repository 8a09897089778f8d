/**
 * roundpipe plan: what is asked (cmd-plan.c), sizes of what `train` runs (plan-network.c), and what
 * is printed, on stdout as text or JSON (cmd-plan-print.c).
 */
#pragma once

#include "cli/cli.h"
#include "sim/advise.h"

/* What --optimizer takes, %NULL-terminated. */
extern const char *const rp_cmd_plan_optimizers[];

/* ---- plan-network.c ---- */

/* A network of any sequence length: the sizes that `roundpipe train` plans with, at micro-batch 1
 * and the defaults of a run file. */
typedef struct _RpPlanNetwork RpPlanNetwork;

/* Words, each %NULL if it was not given, and what a run file would set. */
typedef struct {
    const char *devices;   /* whose kernels, "host" or "cuda"; %NULL: cuda where it is built in.
                            * With "host" devices are threads, their arenas are host memory */
    const char *dtype;     /* %NULL: of a directory the weights', else the config's; else bf16 */
    const char *attention; /* %NULL: builtin */
    gboolean half_sums;
} RpPlanNetworkWords;

/**
 * rp_plan_network_open:
 * @path: directory, or config.json, of a model
 *
 * Returns: (transfer full)
 * Errors: RP_CLI_ERROR_USAGE, RP_HF_CONFIG_ERROR_*, RP_SAFETENSORS_ERROR_*, G_FILE_ERROR
 */
RpPlanNetwork *rp_plan_network_open(const char *path, const RpPlanNetworkWords *words,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same of a model of the catalogue.
 * Errors: RP_CLI_ERROR_USAGE, RP_HF_CONFIG_ERROR_UNSUPPORTED if `train` does not have it */
RpPlanNetwork *rp_plan_network_of(const RpModel *model, const RpPlanNetworkWords *words,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

void rp_plan_network_free(RpPlanNetwork *network);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPlanNetwork, rp_plan_network_free)

const RpAdviseSizes *rp_plan_network_sizes(const RpPlanNetwork *network);
/* "cuda" or "host": whose kernels. */
const char *rp_plan_network_devices(const RpPlanNetwork *network);
const char *rp_plan_network_dtype(const RpPlanNetwork *network);
/* "builtin" or "cudnn". */
const char *rp_plan_network_attention(const RpPlanNetwork *network);

/* ---- cmd-plan-print.c ---- */

/* @network: (nullable): what the longest sequence was found with; %NULL: the cost model's sizes */
void rp_cmd_plan_print(const RpAdvice *advice, const RpPlanNetwork *network, gboolean as_json);

/* `--max-sequence`: the longest sequence alone. @name: of the model */
void rp_cmd_plan_print_longest(const char *name, const RpAdviseQuery *query,
                               const RpAdviseLongest *longest, const RpPlanNetwork *network,
                               gboolean as_json);
