/*
 * Rule 2, and which write each read sees.
 *
 * Every arena is cut into atoms at the borders of its buffers, so that buffers conflict exactly
 * where they share atoms, and almost always a buffer is one atom. Each atom keeps its last writer
 * and, for each lane, the last reader since. Tasks come in the order of their ids, which is one
 * order that the plan allows (rule 3), so it is enough to compare neighbours in an atom's history:
 *
 *   write --> read      the read must happen after the write      each such pair ordered: so is,
 *   read  --> write     the write after every read before it      by transitivity, every pair of
 *   write --> write     and after the write before it             accesses of which one writes
 *
 * Then every order that the plan allows has this same history, and the write that a read sees is
 * the same in all of them. To ask for it, an atom counts generations: a new one begins with a write
 * that discards the contents, that is, any but
 *   - the next chunk of the same upload or download (same kind, iteration, round and stage),
 *   - an action or GRADIENT_ACCUMULATE that reads and writes: it adds to the contents.
 * A buffer's generation is the sum over its atoms. A value travels from a to b if b reads a buffer
 * that a wrote, in the same generation: whole, not overwritten, not yet the next one.
 */
#include "core/verify/rules/atoms.h"

#include <string.h>

static void
note_race(RpSweep *sweep, RpRule rule, guint32 first, guint32 second, char *text)
{
    RpVerifier *verifier = sweep->verifier;

    if (verifier->race != RP_RULE_NONE) {
        g_free(text);
        return;
    }
    verifier->race = rule;
    verifier->race_first = first;
    verifier->race_second = second;
    verifier->race_text = text;
}

static char *
describe_buffer(const RpPlan *plan, guint32 buffer)
{
    const RpBuffer *of = rp_plan_buffer(plan, buffer);
    const char *category = rp_buffer_category_name((RpBufferCategory)of->category);

    if (of->arena == rp_plan_gpus(plan))
        return g_strdup_printf("buffer %u (%s, host)", buffer, category);
    return g_strdup_printf("buffer %u (%s, gpu %u)", buffer, category, of->arena);
}

/* A phase-1 dependency may guard the gradient that a backward reads after its recompute, and the
 * input of a fused stage under the published convention, and nothing else. */
static gboolean
may_come_late(const RpVerifier *verifier, guint32 writer, guint32 reader)
{
    if (writer == RP_OLD_TASK)
        return FALSE;
    guint8 from = rp_verifier_task(verifier, writer)->kind;
    guint8 to = rp_verifier_task(verifier, reader)->kind;

    if (from == RP_TASK_ACTGRAD_UPLOAD)
        return to == RP_TASK_BACKWARD || to == RP_TASK_INPUT_GRADIENT;
    return from == RP_TASK_ACTIVATION_UPLOAD && to == RP_TASK_FUSED &&
           verifier->promises->early_fused;
}

/* Whether a task that may be old has ended whenever @second starts. */
static gboolean
is_before(const RpVerifier *verifier, const RpToucher *first, guint32 second)
{
    if (first->lane == verifier->lane[second])
        return first->position < verifier->position[second];
    return verifier->clocks[verifier->start_row[second] * verifier->stride + first->lane] >=
           first->position;
}

static void
check_order(RpSweep *sweep, const RpToucher *by, guint32 second, guint32 buffer,
            gboolean first_writes, gboolean second_writes)
{
    RpVerifier *verifier = sweep->verifier;
    const guint32 first = by->task;

    if (first == second || is_before(verifier, by, second) ||
        (!second_writes && may_come_late(verifier, first, second) &&
         rp_verifier_before_late(verifier, first, second)))
        return;
    g_autofree char *name = describe_buffer(verifier->plan, buffer);
    note_race(sweep, RP_RULE_BUFFERS, first, second,
              g_strdup_printf("%s is %s by the first task and %s by the second, and nothing orders "
                              "the two",
                              name, first_writes ? "written" : "read",
                              second_writes ? "written" : "read"));
}

/* Whether a write keeps the contents in place. */
static gboolean
continues(const RpVerifier *verifier, const RpAtom *atom, guint32 buffer, const RpTask *task,
          guint32 mode)
{
    if (atom->writer.task == RP_NO_TASK || atom->writer_buffer != buffer)
        return FALSE;
    if ((mode & RP_ACCESS_READ) != 0)
        return rp_task_is_compute(task) || task->kind == RP_TASK_GRADIENT_ACCUMULATE;
    if (atom->writer.task == RP_OLD_TASK ||
        (task->kind != RP_TASK_PARAMETER_UPLOAD && task->kind != RP_TASK_GRADIENT_DOWNLOAD))
        return FALSE;
    const RpTask *writer = rp_verifier_task(verifier, atom->writer.task);

    return writer->kind == task->kind && writer->iteration == task->iteration &&
           writer->round == task->round && writer->stage == task->stage;
}

static void
add_reader(RpSweep *sweep, RpAtom *atom, guint32 task)
{
    const RpVerifier *verifier = sweep->verifier;
    const RpToucher by = {verifier->first_id + task, task, verifier->lane[task],
                          verifier->position[task]};
    guint32 index = atom->readers;

    for (; index != RP_NO_TASK; index = g_array_index(sweep->readers, RpReader, index).next) {
        RpReader *reader = &g_array_index(sweep->readers, RpReader, index);

        if (reader->by.lane == by.lane) {
            reader->by = by;
            return;
        }
    }
    RpReader fresh = {.by = by, .next = atom->readers};
    if (sweep->unused != RP_NO_TASK) {
        atom->readers = sweep->unused;
        sweep->unused = g_array_index(sweep->readers, RpReader, atom->readers).next;
        g_array_index(sweep->readers, RpReader, atom->readers) = fresh;
    } else {
        atom->readers = sweep->readers->len;
        g_array_append_val(sweep->readers, fresh);
    }
}

static void
check_and_drop_readers(RpSweep *sweep, RpAtom *atom, guint32 task, guint32 buffer)
{
    while (atom->readers != RP_NO_TASK) {
        guint32 index = atom->readers;
        RpReader *reader = &g_array_index(sweep->readers, RpReader, index);

        check_order(sweep, &reader->by, task, buffer, FALSE, TRUE);
        atom->readers = reader->next;
        reader->next = sweep->unused;
        sweep->unused = index;
    }
}

/* One access to one atom. */
static void
touch(RpSweep *sweep, guint32 index, const RpTask *task, const RpAccess *access, RpAtom *atom,
      RpContent *content)
{
    gboolean reads = (access->mode & RP_ACCESS_READ) != 0;
    gboolean writes = (access->mode & RP_ACCESS_WRITE) != 0;

    if (atom->writer.task != RP_NO_TASK) {
        check_order(sweep, &atom->writer, index, access->buffer, TRUE, writes);
        if (content->writer == RP_NO_TASK || content->writer == RP_OLD_TASK ||
            (atom->writer.task != RP_OLD_TASK && content->writer < atom->writer.task))
            content->writer = atom->writer.task;
    }
    content->seen += atom->generation;
    if (writes) {
        check_and_drop_readers(sweep, atom, index, access->buffer);
        if (!continues(sweep->verifier, atom, access->buffer, task, access->mode))
            atom->generation++;
        atom->writer = (RpToucher){sweep->verifier->first_id + index, index,
                                   sweep->verifier->lane[index], sweep->verifier->position[index]};
        atom->writer_buffer = access->buffer;
    } else if (reads) {
        add_reader(sweep, atom, index);
    }
    content->made += atom->generation;
}

/* Token ids, the input of layer 0, come from the caller. */
static gboolean
reads_token_ids(const RpTask *task)
{
    return (task->kind == RP_TASK_ACTIVATION_UPLOAD || task->kind == RP_TASK_STASH_UPLOAD) &&
           task->layer == 0;
}

/* Host weights and optimizer state exist before the plan. */
static gboolean
has_initial_content(const RpVerifier *verifier, const RpTask *task, const RpAccess *access)
{
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, access->buffer);

    if (buffer->arena < rp_plan_gpus(verifier->plan))
        return buffer->category == RP_BUFFER_WORKSPACE && (access->mode & RP_ACCESS_WRITE) != 0;
    return buffer->category == RP_BUFFER_PARAMETERS || buffer->category == RP_BUFFER_OPTIMIZER ||
           reads_token_ids(task);
}

/* Whether two actions or transfers work on the same micro-batch (OVERLAP: on one of its two). */
static gboolean
same_micro_batch(const RpTask *a, const RpTask *b)
{
    gboolean overlap_a = a->kind == RP_TASK_OVERLAP, overlap_b = b->kind == RP_TASK_OVERLAP;

    return a->iteration == b->iteration &&
           (a->micro_batch == b->micro_batch ||
            (overlap_a && a->backward_micro_batch == b->micro_batch) ||
            (overlap_b && b->backward_micro_batch == a->micro_batch) ||
            (overlap_a && overlap_b && a->backward_micro_batch == b->backward_micro_batch));
}

static void
check_read(RpSweep *sweep, guint32 index, const RpTask *task, const RpAccess *access,
           const RpContent *content)
{
    RpVerifier *verifier = sweep->verifier;
    guint32 category = rp_plan_buffer(verifier->plan, access->buffer)->category;
    gboolean adds = (access->mode & RP_ACCESS_WRITE) != 0;

    if (sweep->runs[access->buffer].count == 0)
        return;
    if (content->writer == RP_NO_TASK) {
        if (!verifier->whole || has_initial_content(verifier, task, access))
            return;
        g_autofree char *name = describe_buffer(verifier->plan, access->buffer);
        note_race(sweep, RP_RULE_BUFFERS, RP_NO_TASK, index,
                  g_strdup_printf("%s is read before anything was written to it", name));
        return;
    }
    const RpTask *writer =
        content->writer == RP_OLD_TASK ? NULL : rp_verifier_task(verifier, content->writer);
    gboolean right = reads_token_ids(task) || (writer != NULL && same_micro_batch(writer, task));
    if (task->kind == RP_TASK_WEIGHT_GRADIENT && category == RP_BUFFER_WORKSPACE)
        right = right && writer != NULL && writer->kind == RP_TASK_INPUT_GRADIENT &&
                writer->stage == task->stage;
    if (!right && (category == RP_BUFFER_ACTIVATIONS || category == RP_BUFFER_STASH ||
                   (category == RP_BUFFER_WORKSPACE && !adds))) {
        g_autofree char *name = describe_buffer(verifier->plan, access->buffer);
        note_race(sweep, RP_RULE_BUFFERS, content->writer, index,
                  g_strdup_printf("%s holds what the first task left for other work when the "
                                  "second reads it",
                                  name));
    }
}

static void
sweep_task(RpSweep *sweep, guint32 index)
{
    RpVerifier *verifier = sweep->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++) {
        const RpAtomRun *run = &sweep->runs[accesses[i].buffer];
        RpContent *content = &verifier->contents[task->first_access - verifier->first_access + i];

        *content = (RpContent){.writer = RP_NO_TASK};
        for (guint32 a = 0; a < run->count; a++)
            touch(sweep, index, task, &accesses[i], &sweep->atoms[run->first + a], content);
        if ((accesses[i].mode & RP_ACCESS_READ) != 0)
            check_read(sweep, index, task, &accesses[i], content);
    }
}

gboolean
rp_verify_accesses(RpVerifier *verifier)
{
    const RpTask *last = rp_verifier_task(verifier, verifier->n_tasks - 1);
    gsize n_contents;

    verifier->first_access = rp_verifier_task(verifier, 0)->first_access;
    n_contents = last->first_access + last->access_count - verifier->first_access + 1;
    if (n_contents > verifier->max_contents) {
        verifier->max_contents = verifier->source == NULL ? n_contents : 2 * n_contents;
        verifier->contents = g_renew(RpContent, verifier->contents, verifier->max_contents);
    }
    if (verifier->sweep == NULL) {
        verifier->sweep = g_new(RpSweep, 1);
        *verifier->sweep = (RpSweep){.verifier = verifier, .unused = RP_NO_TASK};
        verifier->sweep->readers = g_array_new(FALSE, FALSE, sizeof(RpReader));
    }
    if (verifier->sweep->atoms == NULL ||
        verifier->sweep->n_buffers != rp_plan_n_buffers(verifier->plan))
        rp_sweep_cut_arenas(verifier->sweep);
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++)
        sweep_task(verifier->sweep, i);
    return TRUE;
}

void
rp_verifier_free_sweep(RpSweep *sweep)
{
    if (sweep == NULL)
        return;
    g_array_unref(sweep->readers);
    g_free(sweep->atoms);
    g_free(sweep->runs);
    g_free(sweep);
}

static int
compare_ids(gconstpointer a, gconstpointer b)
{
    const RpTaskId x = ((const RpOldTask *)a)->id, y = ((const RpOldTask *)b)->id;

    return x < y ? -1 : x > y;
}

/* If the task of @by becomes an old one, its place and clock move to the old tasks. */
static void
keep_old(const RpVerifier *verifier, GArray *old, RpToucher *by, guint32 n)
{
    RpOldTask kept = {.id = by->id, .lane = by->lane, .position = by->position};

    if (by->task == RP_NO_TASK)
        return;
    if (by->task == RP_OLD_TASK)
        kept.end_row = rp_verifier_old(verifier, by->id)->end_row;
    else if (by->task < n)
        kept.end_row = verifier->end_row[by->task];
    by->task = rp_verifier_moved(by->task, n);
    if (by->task == RP_OLD_TASK)
        g_array_append_val(old, kept);
}

static void
keep_touchers(RpVerifier *verifier, guint32 n)
{
    RpSweep *sweep = verifier->sweep;
    GArray *old = g_array_new(FALSE, FALSE, sizeof(RpOldTask));
    guint unique = 0;

    for (guint32 i = 0; i < sweep->n_atoms; i++) {
        RpAtom *atom = &sweep->atoms[i];

        keep_old(verifier, old, &atom->writer, n);
        for (guint32 r = atom->readers; r != RP_NO_TASK;
             r = g_array_index(sweep->readers, RpReader, r).next)
            keep_old(verifier, old, &g_array_index(sweep->readers, RpReader, r).by, n);
    }
    g_array_sort(old, compare_ids);
    for (guint i = 0; i < old->len; i++) {
        const RpOldTask kept = g_array_index(old, RpOldTask, i);

        if (unique == 0 || g_array_index(old, RpOldTask, unique - 1).id != kept.id)
            g_array_index(old, RpOldTask, unique++) = kept;
    }
    g_array_set_size(old, unique);
    g_clear_pointer(&verifier->old, g_array_unref);
    verifier->old = old;
}

void
rp_verifier_forget_contents(RpVerifier *verifier, guint32 n)
{
    const RpTask *first = rp_verifier_task(verifier, n);
    const RpTask *last = rp_verifier_task(verifier, verifier->n_tasks - 1);
    const gsize gone = first->first_access - verifier->first_access;
    const gsize kept = last->first_access + last->access_count - first->first_access;

    memmove(verifier->contents, verifier->contents + gone, kept * sizeof(RpContent));
    for (gsize i = 0; i < kept; i++)
        verifier->contents[i].writer = rp_verifier_moved(verifier->contents[i].writer, n);
    keep_touchers(verifier, n);
}
