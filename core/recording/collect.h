/**
 * How readers of recordings put one together: rows of a file come in any order, and become a recording at the end.
 *
 *   reader (kineto.c, nsight.c)                  rp_collector_finish()
 *     work of devices      name, kind, times  ->   spans of each device, from the first event's time on
 *     steps on the host                       ->   steps, one of each number
 *     notes of actions     "3F0" from .. to   ->   actions of each device: from its first kernel to its last
 *     launches             which call, when   ->   which kernels belong to which note
 *
 * A kernel belongs to the note of its process in whose time it was launched, whichever thread launched it: a backward
 * runs on threads of PyTorch while the thread that annotated it waits.
 */
#pragma once

#include "core/recording/recording.h"

/* Times of a file's origin, in 2042: the difference of any two still fits 64 bits. */
#define RP_COLLECT_MAX_ORIGIN_NS G_GINT64_CONSTANT(2300000000000000000)
#define RP_COLLECT_MAX_SPAN_NS G_GINT64_CONSTANT(2000000000000000) /* 23 days */
#define RP_COLLECT_NO_NS G_MININT64                                /* a number that is no time */
#define RP_COLLECT_MAX_DEVICES 1024
#define RP_COLLECT_STEP_PREFIX "ProfilerStep#"

/* Why a row is not taken. The reader says it, with the place and in the units of its file. */
typedef enum {
    RP_COLLECTED,
    RP_COLLECT_START,  /* no time, or too late */
    RP_COLLECT_LENGTH, /* negative, or too long */
    RP_COLLECT_APART,  /* far from all others */
    RP_COLLECT_DEVICES /* too many */
} RpCollectResult;

typedef struct _RpCollector RpCollector;

/* @name: of the file. @patterns outlives the collector. */
RpCollector *rp_collector_new(const char *name, const RpWorkPatterns *patterns);
void rp_collector_free(RpCollector *collector);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpCollector, rp_collector_free)

/* Display name of the file. */
const char *rp_collector_file(const RpCollector *collector);

/* The key of a launch: @process tells processes of one file apart. 0: not known */
guint64 rp_collect_key(guint32 process, guint32 correlation);

/**
 * rp_collector_add_work:
 * @other: its kind if no pattern matches
 * @key: of its launch
 */
RpCollectResult rp_collector_add_work(RpCollector *collector, const char *name, RpWorkKind other,
                                      guint64 device, gint64 start_ns, gint64 length_ns,
                                      guint64 key);

/**
 * rp_collector_add_note:
 * @on_device: it is on a device's clock, of work that the host launched meanwhile
 *
 * Keeps steps ("ProfilerStep#3") and, of the host, actions as PyTorch's CSV of schedules writes them, as they are or
 * behind "PP:" ("3F0", "PP:3B0"); passes over all other notes.
 */
RpCollectResult rp_collector_add_note(RpCollector *collector, const char *text, gboolean on_device,
                                      guint32 process, gint64 start_ns, gint64 length_ns);

/* Whether any note was of an action: if not, nobody needs launches. */
gboolean rp_collector_has_actions(const RpCollector *collector);
void rp_collector_add_launch(RpCollector *collector, guint64 key, gint64 time_ns);

/**
 * rp_collector_finish:
 * @wanted: which work the file should have, for the message
 *
 * Returns: (transfer full) (nullable): the recording, without clock and rank
 * Errors: RP_RECORDING_ERROR_FILE if there is no work of a device
 */
RpRecording *rp_collector_finish(RpCollector *collector, const char *wanted,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
