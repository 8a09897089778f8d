#include "exec/host/measure.h"

#include "exec/host/probe.h"

RpProfile *
rp_host_profile(const RpNetwork *network, const RpWeights *weights,
                const RpHostProfileOptions *options, GError **error)
{
    g_autoptr(RpProbe) probe = rp_host_probe_new(0, error);

    return probe ? rp_measure_profile(probe, network, weights, options, error) : NULL;
}
