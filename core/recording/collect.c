/* Rows of a file become a recording. */
#include "core/recording/collect.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/formats/import-pytorch.h"

#define MOST_NOTE_BYTES 64
#define ACTION_PREFIX "PP:"

typedef struct {
    guint64 key;
    gint64 time_ns;
} Launch;

/* An action that the host annotated while it launched it. */
typedef struct {
    RpAction action;
    guint32 process;
    gint64 start_ns;
    gint64 end_ns;
} Note;

struct _RpCollector {
    const RpWorkPatterns *patterns;
    RpRecording *recording;
    GPtrArray *keys; /* (element-type GArray<guint64>): by device, of each span's launch */
    GArray *launches;
    GArray *notes;
    GHashTable *names; /* text, of the recording -> index + 1 */
    gboolean started;  /* something is kept: */
    gint64 least_ns;   /* its first start */
    gint64 most_ns;    /* and last end */
    guint last;        /* index of the device of the work before */
};

static void
clear_device(gpointer device)
{
    g_array_unref(((RpRecordedDevice *)device)->spans);
    g_array_unref(((RpRecordedDevice *)device)->actions);
}

static RpRecording *
recording_new(const char *name)
{
    RpRecording *recording = g_new0(RpRecording, 1);

    recording->file = rp_display_name(name);
    recording->names = g_ptr_array_new_with_free_func(g_free);
    recording->devices = g_array_new(FALSE, FALSE, sizeof(RpRecordedDevice));
    g_array_set_clear_func(recording->devices, clear_device);
    recording->steps = g_array_new(FALSE, FALSE, sizeof(RpRecordedStep));
    recording->device_steps = g_array_new(FALSE, FALSE, sizeof(RpRecordedStep));
    return recording;
}

void
rp_recording_free(RpRecording *recording)
{
    if (recording == NULL)
        return;
    g_free(recording->file);
    g_ptr_array_unref(recording->names);
    g_array_unref(recording->devices);
    g_array_unref(recording->steps);
    g_array_unref(recording->device_steps);
    g_free(recording);
}

RpCollector *
rp_collector_new(const char *name, const RpWorkPatterns *patterns)
{
    RpCollector *collector = g_new0(RpCollector, 1);

    collector->patterns = patterns;
    collector->recording = recording_new(name);
    collector->keys = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
    collector->launches = g_array_new(FALSE, FALSE, sizeof(Launch));
    collector->notes = g_array_new(FALSE, FALSE, sizeof(Note));
    collector->names = g_hash_table_new(g_str_hash, g_str_equal);
    return collector;
}

void
rp_collector_free(RpCollector *collector)
{
    if (collector == NULL)
        return;
    g_hash_table_unref(collector->names);
    g_array_unref(collector->notes);
    g_array_unref(collector->launches);
    g_ptr_array_unref(collector->keys);
    rp_recording_free(collector->recording);
    g_free(collector);
}

const char *
rp_collector_file(const RpCollector *collector)
{
    return collector->recording->file;
}

guint64
rp_collect_key(guint32 process, guint32 correlation)
{
    return correlation == 0 ? 0 : (guint64)process << 32 | correlation;
}

/* ---- rows ---- */

static RpCollectResult
take_times(RpCollector *collector, gint64 start_ns, gint64 length_ns)
{
    if (start_ns < -RP_COLLECT_MAX_ORIGIN_NS || start_ns > RP_COLLECT_MAX_ORIGIN_NS)
        return RP_COLLECT_START;
    if (length_ns < 0 || length_ns > RP_COLLECT_MAX_SPAN_NS)
        return RP_COLLECT_LENGTH;
    const gint64 end_ns = start_ns + length_ns;

    collector->least_ns = collector->started ? MIN(collector->least_ns, start_ns) : start_ns;
    collector->most_ns = collector->started ? MAX(collector->most_ns, end_ns) : end_ns;
    collector->started = TRUE;
    return collector->most_ns - collector->least_ns <= RP_COLLECT_MAX_SPAN_NS ? RP_COLLECTED
                                                                              : RP_COLLECT_APART;
}

/* The device with @number, new where it is the first time. Returns: (nullable): too many */
static RpRecordedDevice *
find_device(RpCollector *collector, guint64 number)
{
    GArray *devices = collector->recording->devices;

    if (collector->last < devices->len &&
        g_array_index(devices, RpRecordedDevice, collector->last).number == number)
        return &g_array_index(devices, RpRecordedDevice, collector->last);
    for (collector->last = 0; collector->last < devices->len; collector->last++)
        if (g_array_index(devices, RpRecordedDevice, collector->last).number == number)
            return &g_array_index(devices, RpRecordedDevice, collector->last);
    if (devices->len == RP_COLLECT_MAX_DEVICES)
        return NULL;
    const RpRecordedDevice device = {
        .number = number,
        .spans = g_array_new(FALSE, FALSE, sizeof(RpWorkSpan)),
        .actions = g_array_new(FALSE, FALSE, sizeof(RpRecordedAction)),
    };

    g_array_append_val(devices, device);
    g_ptr_array_add(collector->keys, g_array_new(FALSE, FALSE, sizeof(guint64)));
    return &g_array_index(devices, RpRecordedDevice, collector->last);
}

static guint32
find_name(RpCollector *collector, const char *name)
{
    GPtrArray *names = collector->recording->names;
    guint index = GPOINTER_TO_UINT(g_hash_table_lookup(collector->names, name));

    if (index == 0) {
        g_ptr_array_add(names, g_strdup(name));
        index = names->len;
        g_hash_table_insert(collector->names, names->pdata[index - 1], GUINT_TO_POINTER(index));
    }
    return index - 1;
}

RpCollectResult
rp_collector_add_work(RpCollector *collector, const char *name, RpWorkKind other, guint64 device,
                      gint64 start_ns, gint64 length_ns, guint64 key)
{
    const RpWorkKind kind = rp_work_patterns_match(collector->patterns, name, other);
    const RpCollectResult result =
        kind == RP_N_WORK_KINDS ? RP_COLLECTED : take_times(collector, start_ns, length_ns);

    if (kind == RP_N_WORK_KINDS || result != RP_COLLECTED)
        return result;
    const RpRecordedDevice *found = find_device(collector, device);

    if (found == NULL)
        return RP_COLLECT_DEVICES;
    const RpWorkSpan span = {start_ns, start_ns + length_ns, kind, find_name(collector, name)};

    g_array_append_val(found->spans, span);
    g_array_append_val(g_ptr_array_index(collector->keys, collector->last), key);
    return RP_COLLECTED;
}

static RpCollectResult
add_step(RpCollector *collector, const char *digits, GArray *steps, gint64 start_ns,
         gint64 length_ns)
{
    RpRecordedStep step = {0};

    if (!g_ascii_string_to_unsigned(digits, 10, 0, G_MAXUINT32, &step.number, NULL))
        return RP_COLLECTED; /* the name of something else */
    const RpCollectResult result = take_times(collector, start_ns, length_ns);

    if (result != RP_COLLECTED)
        return result;
    step.start_ns = start_ns;
    step.end_ns = start_ns + length_ns;
    g_array_append_val(steps, step);
    return RP_COLLECTED;
}

/* Whether @text is one cell of PyTorch's CSV, of an action that computes. */
static gboolean
read_action(const char *text, RpAction *action)
{
    const gsize length = strlen(text);

    if (length > MOST_NOTE_BYTES || (!g_ascii_isdigit(*text) && *text != '(') ||
        strpbrk(text, ",\r\n") != NULL)
        return FALSE;
    g_autoptr(RpOrders) orders = rp_orders_import_pytorch("note", text, length, 0, NULL);

    if (orders == NULL || rp_orders_n_actions(orders) != 1)
        return FALSE;
    *action = *rp_orders_action(orders, 0, 0);
    return TRUE;
}

RpCollectResult
rp_collector_add_note(RpCollector *collector, const char *text, gboolean on_device, guint32 process,
                      gint64 start_ns, gint64 length_ns)
{
    Note note = {.process = process};

    if (g_str_has_prefix(text, RP_COLLECT_STEP_PREFIX))
        return add_step(collector, text + strlen(RP_COLLECT_STEP_PREFIX),
                        on_device ? collector->recording->device_steps
                                  : collector->recording->steps,
                        start_ns, length_ns);
    if (g_str_has_prefix(text, ACTION_PREFIX))
        text += strlen(ACTION_PREFIX);
    if (on_device || !read_action(text, &note.action))
        return RP_COLLECTED;
    const RpCollectResult result = take_times(collector, start_ns, length_ns);

    if (result != RP_COLLECTED)
        return result;
    note.start_ns = start_ns;
    note.end_ns = start_ns + length_ns;
    g_array_append_val(collector->notes, note);
    return RP_COLLECTED;
}

gboolean
rp_collector_has_actions(const RpCollector *collector)
{
    return collector->notes->len > 0;
}

void
rp_collector_add_launch(RpCollector *collector, guint64 key, gint64 time_ns)
{
    const Launch launch = {key, time_ns};

    if (key != 0)
        g_array_append_val(collector->launches, launch);
}

/* ---- the recording ---- */

static gint
compare_launches(gconstpointer a, gconstpointer b)
{
    const Launch *first = a, *second = b;

    if (first->key != second->key)
        return first->key > second->key ? 1 : -1;
    return (first->time_ns > second->time_ns) - (first->time_ns < second->time_ns);
}

/* A note before those within it. */
static gint
compare_notes(gconstpointer a, gconstpointer b)
{
    const Note *first = a, *second = b;

    if (first->process != second->process)
        return first->process > second->process ? 1 : -1;
    if (first->start_ns != second->start_ns)
        return first->start_ns > second->start_ns ? 1 : -1;
    return (first->end_ns < second->end_ns) - (first->end_ns > second->end_ns);
}

static gboolean
same_action(const RpAction *a, const RpAction *b)
{
    return a->kind == b->kind && a->stage == b->stage && a->micro_batch == b->micro_batch &&
           a->backward_stage == b->backward_stage &&
           a->backward_micro_batch == b->backward_micro_batch;
}

/* PyTorch's own note of an action may have the caller's within it: one of the two is kept, the longer. */
static void
sort_notes(GArray *notes)
{
    guint n = 0;

    g_array_sort(notes, compare_notes);
    for (guint i = 0; i < notes->len; i++) {
        const Note note = g_array_index(notes, Note, i);
        const Note *before = n > 0 ? &g_array_index(notes, Note, n - 1) : NULL;

        if (before == NULL || before->process != note.process || note.start_ns >= before->end_ns ||
            !same_action(&before->action, &note.action))
            g_array_index(notes, Note, n++) = note;
    }
    g_array_set_size(notes, n);
}

/* Index of the note in whose time the launch with @key was; notes->len: of none */
static guint
find_note(const RpCollector *collector, guint64 key)
{
    const GArray *launches = collector->launches, *notes = collector->notes;
    guint low = 0, high = launches->len;

    while (low < high) {
        const guint middle = low + (high - low) / 2;

        if (g_array_index(launches, Launch, middle).key < key)
            low = middle + 1;
        else
            high = middle;
    }
    if (key == 0 || low == launches->len || g_array_index(launches, Launch, low).key != key)
        return notes->len;
    const Note at = {.process = (guint32)(key >> 32),
                     .start_ns = g_array_index(launches, Launch, low).time_ns,
                     .end_ns = G_MININT64};

    low = 0;
    high = notes->len;
    while (low < high) {
        const guint middle = low + (high - low) / 2;

        if (compare_notes(&g_array_index(notes, Note, middle), &at) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    const Note *note = low > 0 ? &g_array_index(notes, Note, low - 1) : NULL;

    return note != NULL && note->process == at.process && at.start_ns <= note->end_ns ? low - 1
                                                                                      : notes->len;
}

/* From its first compute to its last each action is on the device. Where two overlap, the later begins as the earlier
 * ends: a device runs one action at a time. */
static void
find_actions(const RpCollector *collector, RpRecordedDevice *device, const GArray *keys)
{
    const GArray *notes = collector->notes;
    g_autofree RpRecordedAction *found = g_new(RpRecordedAction, notes->len + 1);
    gint64 free_ns = G_MININT64;

    for (guint n = 0; n <= notes->len; n++)
        found[n] = (RpRecordedAction){.start_ns = G_MAXINT64, .end_ns = G_MININT64};
    for (guint i = 0; i < device->spans->len; i++) {
        const RpWorkSpan *span = &g_array_index(device->spans, RpWorkSpan, i);
        const guint n = span->kind == RP_WORK_COMPUTE
                            ? find_note(collector, g_array_index(keys, guint64, i))
                            : notes->len;

        found[n].start_ns = MIN(found[n].start_ns, span->start_ns);
        found[n].end_ns = MAX(found[n].end_ns, span->end_ns);
    }
    for (guint n = 0; n < notes->len; n++) {
        found[n].action = g_array_index(notes, Note, n).action;
        if (found[n].end_ns > found[n].start_ns)
            g_array_append_val(device->actions, found[n]);
    }
    g_array_sort(device->actions, rp_recorded_compare);
    for (guint i = 0; i < device->actions->len; i++) {
        RpRecordedAction *action = &g_array_index(device->actions, RpRecordedAction, i);

        action->start_ns = MAX(action->start_ns, free_ns);
        action->end_ns = MAX(action->end_ns, action->start_ns);
        free_ns = action->end_ns;
    }
}

static gint
compare_steps(gconstpointer a, gconstpointer b)
{
    const guint64 first = ((const RpRecordedStep *)a)->number;
    const guint64 second = ((const RpRecordedStep *)b)->number;

    return (first > second) - (first < second);
}

static gint
compare_devices(gconstpointer a, gconstpointer b)
{
    const guint64 first = ((const RpRecordedDevice *)a)->number;
    const guint64 second = ((const RpRecordedDevice *)b)->number;

    return (first > second) - (first < second);
}

/* Makes one step of those with one number: each stream of a device has its own. Times are from @origin_ns on. */
static void
finish_steps(GArray *steps, gint64 origin_ns)
{
    guint n = 0;

    g_array_sort(steps, compare_steps);
    for (guint i = 0; i < steps->len; i++) {
        RpRecordedStep step = g_array_index(steps, RpRecordedStep, i);
        RpRecordedStep *before = n > 0 ? &g_array_index(steps, RpRecordedStep, n - 1) : NULL;

        step.start_ns -= origin_ns;
        step.end_ns -= origin_ns;
        if (before == NULL || before->number != step.number) {
            g_array_index(steps, RpRecordedStep, n++) = step;
        } else {
            before->start_ns = MIN(before->start_ns, step.start_ns);
            before->end_ns = MAX(before->end_ns, step.end_ns);
        }
    }
    g_array_set_size(steps, n);
}

RpRecording *
rp_collector_finish(RpCollector *collector, const char *wanted, GError **error)
{
    RpRecording *recording = collector->recording;

    if (recording->devices->len == 0)
        return rp_null(rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                               "%s: expected work of a GPU (%s", recording->file, wanted));
    sort_notes(collector->notes);
    g_array_sort(collector->launches, compare_launches);
    for (guint d = 0; d < recording->devices->len; d++) {
        RpRecordedDevice *device = &g_array_index(recording->devices, RpRecordedDevice, d);

        for (guint i = 0; i < device->spans->len; i++) {
            g_array_index(device->spans, RpWorkSpan, i).start_ns -= collector->least_ns;
            g_array_index(device->spans, RpWorkSpan, i).end_ns -= collector->least_ns;
        }
        if (collector->notes->len > 0)
            find_actions(collector, device, g_ptr_array_index(collector->keys, d));
    }
    g_array_sort(recording->devices, compare_devices);
    finish_steps(recording->steps, collector->least_ns);
    finish_steps(recording->device_steps, collector->least_ns);
    recording->origin_ns = collector->least_ns;
    return g_steal_pointer(&collector->recording);
}
