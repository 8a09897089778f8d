/**
 * A probe: a device on which operations are timed, and the links to it. One table a backend.
 *
 *   take |weights|inputs|workspace|   upload   time |part 0|part 1|part 0|part 1| ...   give
 */
#pragma once

#include "core/profile/profile.h"
#include "exec/kernels/kernels.h"

/* Parts that run in turn, at most, and how often in one go. */
#define RP_PROBE_MAX_PARTS 5
#define RP_PROBE_MAX_REPEATS 16
/* Copies at once beside the stream. */
#define RP_PROBE_BUFFERS 2

typedef struct _RpProbe RpProbe;
typedef struct _RpMeasurer RpMeasurer; /* exec/measure/measure.h */

/* Issues operations to the probe's stream; waits for nothing. */
typedef void (*RpProbePart)(gpointer data);

/**
 * RpProbeOps:
 * @most_repeats: in one go, at most RP_PROBE_MAX_REPEATS; 1 where each run ends before the next is
 *   issued
 * @warm_up_seconds: that runs take before any counts, beside the first
 * @swing_seconds: over which times have to be taken, since the device's clocks swing about the rate
 *   that its power allows; layers then get means. 0 where they do not
 * @take: zeroed memory of the device, at a multiple of 256; freed with @give, which takes %NULL too
 * @upload: from memory of the host; done on return
 * @download: to memory of the host, of all that was issued so far; done on return
 * @stream: that parts issue to
 * @time: runs the parts in turn, @repeats times; ns[r * n_parts + p]: the device's time for run r
 *   of part p, one run after the other without a gap between them
 * @describe: device, processors, gpu_memory_bytes: memory that a plan for profile->gpus devices may
 *   have
 * @n_link_measures: that @measure_links makes
 * @measure_links: speeds of the links of profile->gpus devices, but for hop_ns; sums of copies at
 *   once may stay 0. One device is the probe's
 * @begin_copies: (nullable): the first @devices devices copy from pinned memory of the host until
 *   @end_copies; returns its argument. NULL where the host's processors do the copying
 * @end_copies: (nullable): frees @copies; @bytes_per_s (out): of all together, if they succeeded
 *
 * @record: (nullable): records the operations that @part issues, without running them: what they read may have changed
 *   each time that @replay issues them all at once. Such operations have run before. NULL where issuing costs nothing
 * @forget: frees a recording
 *
 * @take_pinned: memory of the host that every device of the backend fetches from; freed with @give_pinned
 * @fetch: begins to copy it to the device when all that was issued so far is done, beside what is issued from now on;
 *   @buffer is below RP_PROBE_BUFFERS
 * @await: what is issued from now on waits for the last @fetch of @buffer
 *
 * Errors: the backend's own; those of a cancelled measurement
 */
typedef struct {
    const char *name;
    gboolean is_host; /* its memory is the host's */
    guint most_repeats;
    double warm_up_seconds;
    double swing_seconds;
    guint n_link_measures;
    void (*free)(RpProbe *probe);
    void *(*take)(RpProbe *probe, gsize bytes, GError **error);
    void (*give)(RpProbe *probe, void *memory);
    gboolean (*upload)(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error);
    gboolean (*download)(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error);
    RpKernelStream *(*stream)(RpProbe *probe);
    gboolean (*time)(RpProbe *probe, const RpProbePart *parts, guint n_parts, guint repeats,
                     gpointer data, gint64 *ns, GError **error);
    void (*describe)(RpProbe *probe, RpProfile *profile);
    gboolean (*measure_links)(RpProbe *probe, RpMeasurer *measurer, RpProfile *profile,
                              GError **error);
    gpointer (*begin_copies)(RpProbe *probe, guint devices, GError **error);
    gboolean (*end_copies)(RpProbe *probe, gpointer copies, double *bytes_per_s, GError **error);
    gpointer (*record)(RpProbe *probe, RpProbePart part, gpointer data, GError **error);
    gboolean (*replay)(RpProbe *probe, gpointer recording, GError **error);
    void (*forget)(RpProbe *probe, gpointer recording);
    void *(*take_pinned)(RpProbe *probe, gsize bytes, GError **error);
    void (*give_pinned)(void *memory);
    gboolean (*fetch)(RpProbe *probe, guint buffer, void *to, const void *from, gsize bytes,
                      GError **error);
    gboolean (*await)(RpProbe *probe, guint buffer, GError **error);
} RpProbeOps;

/* The beginning of every probe. One thread at a time. */
struct _RpProbe {
    const RpProbeOps *ops;
    /* probes of the card's other parts, which share its power: layers are timed while these run the
     * same layer; each is used by one thread at a time */
    RpProbe **beside;
    guint n_beside;
};

/* Whether devices' data go over a link, as they have memory of their own. */
static inline gboolean
rp_probe_has_links(const RpProbe *probe)
{
    return probe->ops->begin_copies != NULL;
}

static inline void
rp_probe_free(RpProbe *probe)
{
    if (probe != NULL)
        probe->ops->free(probe);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpProbe, rp_probe_free)
