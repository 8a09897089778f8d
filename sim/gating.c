#include "sim/gating.h"

static gboolean
is_activation_upload(guint8 kind)
{
    return kind == RP_TASK_ACTIVATION_UPLOAD || kind == RP_TASK_STASH_UPLOAD ||
           kind == RP_TASK_ACTGRAD_UPLOAD || kind == RP_TASK_SAVED_UPLOAD;
}

static gboolean
is_activation_download(guint8 kind)
{
    return kind == RP_TASK_ACTIVATION_DOWNLOAD || kind == RP_TASK_ACTGRAD_DOWNLOAD ||
           kind == RP_TASK_SAVED_DOWNLOAD;
}

static gboolean
is_compute(guint8 kind)
{
    return kind <= RP_TASK_OVERLAP;
}

/* Returns: the dependency of that sort which ended last, or %NULL */
static const RpTask *
last_dependency(const RpGating *gating, const RpTask *task, gboolean (*is_sort)(guint8 kind))
{
    const RpDependency *dependencies = rp_gating_dependencies(gating, task);
    const RpTask *last = NULL;
    gint64 last_end_ns = G_MININT64;

    for (guint d = 0; d < task->dependency_count; d++) {
        if (dependencies[d].task < gating->first)
            continue;
        const gsize i = dependencies[d].task - gating->first;
        if (is_sort(gating->tasks[i].kind) && gating->records[i].end_ns > last_end_ns) {
            last = &gating->tasks[i];
            last_end_ns = gating->records[i].end_ns;
        }
    }
    return last;
}

static gint64
upload_length_ns(const RpGating *gating, gsize upload)
{
    const RpTraceRecord *record = &gating->records[upload];
    const RpTask *download =
        last_dependency(gating, &gating->tasks[upload], is_activation_download);
    const RpTask *action = download != NULL ? last_dependency(gating, download, is_compute) : NULL;

    if (action == NULL)
        return record->end_ns - record->start_ns;
    return record->end_ns - gating->records[action - gating->tasks].end_ns;
}

gint64
rp_gating_transfer_ns(const RpGating *gating, const RpTask *task, gint64 task_lead_ns,
                      gint64 start_ns, gint64 lane_end_ns)
{
    const RpDependency *dependencies = rp_gating_dependencies(gating, task);
    gint64 transfer_ns = 0;

    if (start_ns <= lane_end_ns)
        return 0;
    for (guint d = 0; d < task->dependency_count; d++) {
        const RpDependency *dependency = &dependencies[d];

        if (dependency->task < gating->first)
            continue;
        const gsize i = dependency->task - gating->first;
        const gint64 lead_ns = dependency->phase != 0 ? task_lead_ns : 0;
        if (gating->records[i].end_ns + dependency->hop_ns - lead_ns != start_ns)
            continue;
        if (dependency->hop_ns > 0)
            transfer_ns = MAX(transfer_ns, dependency->hop_ns);
        else if (is_activation_upload(gating->tasks[i].kind))
            transfer_ns = MAX(transfer_ns, upload_length_ns(gating, i));
    }
    return transfer_ns;
}
