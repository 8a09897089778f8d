/* Layers that are copied to a GPU while others run, over a CUDA of threads: the answers of a model that is resident. */
#include "tests/rp-test.h"

#include "exec/cuda/backend.h"
#include "exec/cuda/probe.h"
#include "tests/exec-generate/tiny.h"

/* A GPU that issues each call: threads have no graphs. */
static RpProbe *
probe_new(guint device, GError **error)
{
    static RpProbeOps ops;
    RpProbe *probe = rp_cuda_probe_new(device, error);

    if (probe != NULL) {
        ops = *probe->ops;
        ops.record = NULL;
        probe->ops = &ops;
    }
    return probe;
}

RP_TEST(gives_the_same_answers_in_less_memory_than_the_model)
{
    RpDeviceOps devices = *rp_cuda_devices();

    devices.probe_new = probe_new;
    rp_tiny_check_streamed(*state, &devices);
}

RP_TEST_FIXTURE(rp_tiny_setup, rp_tiny_teardown)
