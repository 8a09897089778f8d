/**
 * Recordings: the work of GPUs in a training by any program, as a profiler of others wrote it down.
 *
 *   rp_kineto_parse()       a file of torch.profiler: spans of each device, and its steps
 *   rp_nsight_parse()       the same of Nsight Systems
 *   rp_recordings_join()    files of several ranks: onto one clock
 *   rp_recorded_window()    which part of them is looked at
 *   rp_recorded_figures()   how busy a device is there, and why it is not
 *   rp_recorded_boxes()     the same as a picture
 *   rp_recordings_trace()   actions, where the program annotated them: to be compared with a schedule
 *
 * A recording knows kernels. Stages and micro-batches it knows only if the program annotated its actions.
 */
#pragma once

#include "core/schedules/schedule.h"
#include "core/trace/trace.h"

#define RP_RECORDING_ERROR (rp_recording_error_quark())
GQuark rp_recording_error_quark(void);

typedef enum {
    RP_RECORDING_ERROR_FILE,  /* a file that is cut, wrong or has no work of a GPU */
    RP_RECORDING_ERROR_CLOCK, /* files that do not belong together */
    RP_RECORDING_ERROR_STEPS, /* steps that no file has, or no notes of actions */
    RP_RECORDING_ERROR_KINDS  /* a line of a file of patterns */
} RpRecordingError;

/* ---- kinds of work ---- */

typedef enum {
    RP_WORK_COMPUTE,
    RP_WORK_COLLECTIVE, /* also sends and receives between ranks */
    RP_WORK_COPY,
    RP_N_WORK_KINDS /* left out: "ignore" */
} RpWorkKind;

/* "compute", "collective", "copy", "ignore" */
const char *rp_work_kind_name(RpWorkKind kind);

typedef struct _RpWorkPatterns RpWorkPatterns;

/* Has the rows of the table in kinds.c. */
RpWorkPatterns *rp_work_patterns_new(void);
void rp_work_patterns_free(RpWorkPatterns *patterns);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpWorkPatterns, rp_work_patterns_free)

/**
 * rp_work_patterns_add:
 * @name: file name for messages
 * @text: lines `PATTERN KIND`; `*` stands for any text, `?` for one character; `#` begins a comment
 *
 * Adds rows that come before those that are there. The first line that matches decides.
 *
 * Errors: RP_RECORDING_ERROR_KINDS with file and line
 */
gboolean rp_work_patterns_add(RpWorkPatterns *patterns, const char *name, const char *text,
                              gsize length, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @other: the kind of a name that no pattern matches. */
RpWorkKind rp_work_patterns_match(const RpWorkPatterns *patterns, const char *name,
                                  RpWorkKind other);

/* ---- files ---- */

typedef struct {
    gint64 start_ns;
    gint64 end_ns;
    RpWorkKind kind;
    guint32 name; /* index of the recording's names */
} RpWorkSpan;

/* An action that the program annotated, on the device that ran it: from its first compute to its last. */
typedef struct {
    gint64 start_ns;
    gint64 end_ns;
    RpAction action;
} RpRecordedAction;

/* Compares by time structs that begin with start_ns and end_ns, for g_array_sort(). */
gint rp_recorded_compare(gconstpointer a, gconstpointer b);

typedef struct {
    guint64 number;
    gint64 start_ns;
    gint64 end_ns;
} RpRecordedStep;

typedef struct {
    guint64 number; /* in its process */
    GArray *spans;  /* (element-type RpWorkSpan): in the order of the file */
    GArray
        *actions; /* (element-type RpRecordedAction): in the order of time, none beside another */
} RpRecordedDevice;

/* One file. Times are from its first event, until it is joined. */
typedef struct {
    char *file;           /* display name */
    gint64 origin_ns;     /* of the times; since 1970 if has_clock */
    gboolean has_clock;   /* the file says when its clock began */
    gboolean has_rank;    /* the file says its rank */
    guint64 rank;         /* of its process */
    GPtrArray *names;     /* (element-type char *): of kernels */
    GArray *devices;      /* (element-type RpRecordedDevice): by number */
    GArray *steps;        /* (element-type RpRecordedStep): on the host, by number */
    GArray *device_steps; /* the same on devices: from its first work to its last */
} RpRecording;

void rp_recording_free(RpRecording *recording);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRecording, rp_recording_free)

/* Whether @text begins as a file of torch.profiler does. */
gboolean rp_kineto_is(const char *text, gsize length);

/**
 * rp_kineto_parse:
 * @name: file name for messages
 * @text: @length bytes
 *
 * Reads the JSON of torch.profiler (Kineto): of its events kernels, copies and fills of memory on
 * devices, and the steps of the profiler. All others are passed over.
 *
 * Errors: RP_RECORDING_ERROR_FILE, with file, line, column, key, the expected and the found value
 */
RpRecording *rp_kineto_parse(const char *name, const char *text, gsize length,
                             const RpWorkPatterns *patterns,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether @text begins as a file of SQLite does. */
gboolean rp_nsight_is(const char *text, gsize length);

/**
 * rp_nsight_parse:
 * @text: @length bytes, which stay as they are
 *
 * Reads what `nsys export --type sqlite` writes: kernels, graphs, copies and fills of memory on devices, and the ranges of
 * NVTX that are steps ("ProfilerStep#3") or actions.
 *
 * Errors: RP_RECORDING_ERROR_FILE, with file, table, row, column, the expected and the found value
 */
RpRecording *rp_nsight_parse(const char *name, const char *text, gsize length,
                             const RpWorkPatterns *patterns,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- several files ---- */

typedef enum {
    RP_CLOCK_OWN,    /* of the only file */
    RP_CLOCK_COMMON, /* that all files name */
    RP_CLOCK_STEP    /* the first step that all files have begins at once */
} RpRecordedClock;

/**
 * rp_recordings_join:
 * @recordings: (element-type RpRecording): one or more; their times are shifted
 * @step: (out): the step of RP_CLOCK_STEP
 *
 * Errors: RP_RECORDING_ERROR_CLOCK if two are of one rank, if their clocks contradict each other,
 *   or if there is nothing to join them by
 */
gboolean rp_recordings_join(GPtrArray *recordings, RpRecordedClock *clock, guint64 *step,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

typedef struct {
    gint64 start_ns;
    gint64 end_ns;
} RpRecordedWindow;

/**
 * rp_recorded_window:
 * @recordings: joined
 * @first: steps @first to @end - 1; both 0: all that is recorded
 *
 * From the start of the first work on any device to the end of the last; of steps from the earliest
 * start to the latest end of any file, on its devices if it says so, else on its host.
 *
 * Errors: RP_RECORDING_ERROR_STEPS; RP_RECORDING_ERROR_FILE if the work takes no time
 */
gboolean rp_recorded_window(const GPtrArray *recordings, guint64 first, guint64 end,
                            RpRecordedWindow *window, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * Time of one device in a window, or of several added. Each moment counts once:
 *
 *   window = busy + only collectives + only copies + both + idle at the start, between, at the end
 *
 *   compute     |    ####  ####      |   busy 8
 *   collective  |      ####  ##      |   total 6, exposed 2 (all but the 4 beside compute)
 *   copy        |  ####              |   total 4, exposed 2
 *   idle        |##            ######|   start 2, end 6
 *
 * The bubble ratio is 1 - busy / window (docs/metrics.md), so all but busy are its parts.
 */
typedef struct {
    gint64 window_ns;
    gint64 busy_ns;                   /* some compute runs */
    gint64 total_ns[RP_N_WORK_KINDS]; /* some work of the kind runs */
    gint64 only_collectives_ns;       /* exposed: nothing else runs */
    gint64 only_copies_ns;            /* exposed: nothing else runs */
    gint64 both_ns;                   /* collectives and copies run, no compute */
    gint64 idle_start_ns;             /* before anything has run */
    gint64 idle_between_ns;
    gint64 idle_end_ns; /* after everything has run */
    guint64 events;     /* that the window has a part of */
} RpRecordedFigures;

RpRecordedFigures rp_recorded_figures(const RpRecordedDevice *device,
                                      const RpRecordedWindow *window);
void rp_recorded_figures_add(RpRecordedFigures *sum, const RpRecordedFigures *figures);
/* @part_ns of the window, as a share. */
double rp_recorded_share(const RpRecordedFigures *figures, gint64 part_ns);

/* ---- as a picture, and as a trace ---- */

/* Work of one kind that overlaps is one box. */
typedef struct {
    gint64 start_ns;
    gint64 end_ns;
    guint32 name; /* of the longest in it */
    guint32 count;
} RpRecordedBox;

/* Boxes of @kind that take time in the window, in the order of time, cut at its borders.
 * Returns: (element-type RpRecordedBox) (transfer full) */
GArray *rp_recorded_boxes(const RpRecordedDevice *device, RpWorkKind kind,
                          const RpRecordedWindow *window);

/**
 * rp_recordings_trace:
 * @recordings: joined
 *
 * The actions of all devices, those of the first file first. The k-th time that an action runs is its iteration k - 1.
 *
 * Returns: (transfer full): measured, of compute alone
 * Errors: RP_RECORDING_ERROR_STEPS if no action was annotated
 */
RpTrace *rp_recordings_trace(const GPtrArray *recordings, GError **error) G_GNUC_WARN_UNUSED_RESULT;
