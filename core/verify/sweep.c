/*
 * One pass over all accesses in the order of tasks: operands, order and values.
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
 * Then every order that the plan allows has this same history, and the value that a read finds is
 * the same in all of them. A buffer holds the value that was last written through it, as long as no
 * other write has touched its atoms. The values that each task must find and leave stand in rows.c.
 */
#include "core/verify/private.h"

/* ---- order ---- */

/* A phase-1 dependency may guard the gradient that a backward reads after its recompute, and
 * the input of a fused stage under the published convention. */
static gboolean
may_come_late(const RpVerifier *verifier, guint32 writer, guint32 reader)
{
    if (writer == RP_OLD_TASK)
        return FALSE;
    guint8 from = rp_verifier_task(verifier, writer)->kind;
    guint8 to = rp_verifier_task(verifier, reader)->kind;

    if (from == RP_TASK_ACTGRAD_UPLOAD)
        return to == RP_TASK_BACKWARD || to == RP_TASK_INPUT_GRADIENT;
    return from == RP_TASK_ACTIVATION_UPLOAD && to == RP_TASK_FUSED && verifier->modes->published;
}

static void
check_order(RpVerifier *verifier, RpTaskId before, guint32 second, guint32 buffer,
            gboolean first_writes, gboolean second_writes, RpValueKind wants)
{
    const guint32 first = rp_verifier_index(verifier, before);
    const RpTaskPlace *place = rp_verifier_place(verifier, before);

    if (first == second || rp_verifier_before(verifier, place, second, FALSE) ||
        (!second_writes && may_come_late(verifier, first, second) &&
         rp_verifier_before(verifier, place, second, TRUE)))
        return;
    rp_verifier_fail_order(verifier, first, second, buffer, first_writes, second_writes, wants);
}

/* In place of the last reader of the task's lane. */
static void
add_reader(const RpVerifier *verifier, RpAtom *atom, guint32 task)
{
    const guint32 lane = verifier->places[task].lane;
    guint32 i = 0;

    while (i < atom->n_readers && rp_verifier_place(verifier, atom->readers[i])->lane != lane)
        i++;
    if (i == atom->max_readers) {
        atom->max_readers = 2 * i + 1;
        atom->readers = g_renew(RpTaskId, atom->readers, atom->max_readers);
    }
    atom->readers[i] = verifier->first_id + task;
    atom->n_readers = MAX(atom->n_readers, i + 1);
}

/* ---- values ---- */

static gboolean
fits(const RpExpected *row, const RpSymbol *found)
{
    if (found->kind == RP_VALUE_UNKNOWN || (row->initial && found->kind == RP_VALUE_INITIAL))
        return TRUE;
    return (rp_symbol_is_same(found, &row->wants) &&
            (row->wants.n == 0 || row->wants.n == found->n) &&
            (row->wants.session == RP_NONE || row->wants.session == found->session)) ||
           (row->instead.kind != RP_VALUE_NONE && rp_symbol_is_same(found, &row->instead));
}

/* ---- operands ---- */

static gboolean
mode_fits(const RpExpected *row, guint16 mode)
{
    return row->mode == RP_MAY_ADD
               ? (mode == RP_ACCESS_WRITE || mode == (RP_ACCESS_READ | RP_ACCESS_WRITE))
               : row->mode == mode;
}

/* The next row that is needed; else one that may be there, or a place that was named before. */
static RpExpected *
match(GArray *rows, const RpAccess *access)
{
    RpExpected *other = NULL;

    for (guint i = 0; i < rows->len; i++) {
        RpExpected *row = &g_array_index(rows, RpExpected, i);

        if (row->role != access->role || !mode_fits(row, access->mode) ||
            (row->buffer != RP_NONE && row->buffer != access->buffer))
            continue;
        if (!row->seen && !row->optional)
            return row;
        if (other == NULL && (!row->seen || row->buffer != RP_NONE))
            other = row;
    }
    return other;
}

/* An access of a layer's buffer that the table has elsewhere: it is matched with a row that it seems
 * to be, so that values are followed. @found: (nullable): the value that the row must want */
static RpExpected *
match_elsewhere(GArray *rows, const RpAccess *access, const RpSymbol *found)
{
    for (guint i = 0; i < rows->len; i++) {
        RpExpected *row = &g_array_index(rows, RpExpected, i);

        if (row->buffer != RP_NONE && !row->seen && row->role == access->role &&
            mode_fits(row, access->mode) && (found == NULL || fits(row, found)))
            return row;
    }
    return NULL;
}

static void
fail_operand(RpVerifier *verifier, guint32 index, const RpAccess *access)
{
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, access->buffer);

    fail_task(verifier, RP_RULE_OPERANDS, index, "buffer %u (%s) is none that the task %s as %s",
              access->buffer, rp_buffer_category_name((RpBufferCategory)buffer->category),
              access->mode == RP_ACCESS_READ ? "may read" : "may write",
              rp_access_role_name((RpAccessRole)access->role));
}

/* Where it lies, and whether it is large enough. */
static void
check_place(RpVerifier *verifier, guint32 index, const RpAccess *access, const RpExpected *row)
{
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, access->buffer);
    const guint32 arena = row->device
                              ? rp_plan_lane_device(verifier->plan, verifier->tasks[index].lane)
                              : rp_plan_gpus(verifier->plan);
    const char *wrong = verifier->sweep->holders[access->buffer].owner != NULL
                            ? "lies where a table has something else"
                        : buffer->arena != arena ? "lies in the wrong memory"
                        : (row->categories >> buffer->category & 1) == 0 ? "lies among other data"
                        : buffer->bytes < row->bytes                     ? "is too small"
                                                                         : NULL;

    if (row->buffer == RP_NONE && wrong != NULL)
        fail_task(verifier, RP_RULE_OPERANDS, index,
                  "the %s of the task, which takes %" G_GUINT64_FORMAT
                  " bytes, %s (buffer %u: %s, %" G_GUINT64_FORMAT " bytes)",
                  rp_access_role_name((RpAccessRole)access->role), row->bytes, wrong,
                  access->buffer, rp_buffer_category_name((RpBufferCategory)buffer->category),
                  buffer->bytes);
}

/* The buffer exists, and can be reached from the task. */
static gboolean
check_access(RpVerifier *verifier, guint32 index, const RpAccess *access)
{
    if (access->buffer >= rp_plan_n_buffers(verifier->plan) || access->mode == 0 ||
        access->mode > 3)
        return fail_task(verifier, RP_RULE_ARENA, index, "accesses buffer %u, which does not exist",
                         access->buffer);
    const guint32 arena = rp_plan_buffer(verifier->plan, access->buffer)->arena;
    return arena == rp_plan_gpus(verifier->plan) || arena == rp_verifier_device(verifier, index) ||
           fail_task(verifier, RP_RULE_ARENA, index,
                     "accesses buffer %u of gpu %u, where it does not run", access->buffer, arena);
}

/* A transfer moves the bytes of its value. */
static void
check_transferred(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    const RpTaskKind kind = (RpTaskKind)task->kind;
    const gboolean saved = kind == RP_TASK_SAVED_DOWNLOAD || kind == RP_TASK_SAVED_UPLOAD;
    guint64 bytes;

    if (!rp_task_is_transfer(task))
        return;
    const RpIdentity identity = rp_verifier_identity(kind);
    if (identity == RP_PER_CHUNK) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, task->stage);
        bytes = (kind == RP_TASK_PARAMETER_UPLOAD ? &stage->parameters : &stage->gradients)
                    ->chunk_bytes[task->chunk];
    } else {
        const RpPlanLayer *layer = rp_plan_layer(verifier->plan, task->layer);
        bytes = identity == RP_PER_DEVICE ? layer->resident_bytes
                : saved                   ? layer->saved_bytes
                                          : layer->input_bytes;
    }
    if (task->bytes != bytes)
        fail_task(verifier, identity == RP_PER_VALUE ? RP_RULE_OPERANDS : RP_RULE_TRANSFERS, index,
                  "%" G_GUINT64_FORMAT " bytes are transferred, the %s has %" G_GUINT64_FORMAT,
                  task->bytes, identity == RP_PER_CHUNK ? "chunk" : "value", bytes);
}

/* ---- the pass ---- */

/* A slot's first action begins a sum, and the last lets go of all of it. */
typedef struct {
    gboolean leaves;
    RpSymbol sum; /* with this task's */
} Sums;

static void
check_mode(RpVerifier *verifier, guint32 index, const RpAccess *access, const RpExpected *row,
           const RpSymbol *found)
{
    const gboolean adds = (access->mode & RP_ACCESS_READ) != 0;

    if ((row->right_mode != 0 && row->right_mode != access->mode) ||
        (row->role == RP_ROLE_SUM && !adds && rp_symbol_is_same(found, &row->wants)))
        fail_task(verifier, RP_RULE_TRANSFERS, index, "%s",
                  adds ? "the first of a sum is added to what was there before"
                       : "the sum so far is overwritten");
}

/* The value that the access leaves in the buffer, which holds @found. */
static RpSymbol
value_left(const RpExpected *row, const RpAccess *access, const RpSymbol *found)
{
    if (row == NULL)
        return (RpSymbol){.kind = RP_VALUE_NONE};
    RpSymbol left = row->leaves;
    if (!row->gathers || (row->role == RP_ROLE_SUM && access->mode == RP_ACCESS_WRITE))
        return left;
    if (found->kind == RP_VALUE_UNKNOWN)
        return *found;
    if (rp_symbol_is_same(found, &left) && found->session == left.session)
        left.n = found->n + (row->again ? 0 : left.n);
    return left;
}

static void
sweep_access(RpVerifier *verifier, guint32 index, const RpAccess *access, RpExpected *row,
             const RpSymbol *found, guint32 writer, Sums *sums)
{
    RpSweep *sweep = verifier->sweep;
    RpHolder *holder = &sweep->holders[access->buffer];
    const gboolean reads = (access->mode & RP_ACCESS_READ) != 0;
    const gboolean writes = (access->mode & RP_ACCESS_WRITE) != 0;
    const RpValueKind wants = reads && row != NULL ? (RpValueKind)row->wants.kind : RP_VALUE_NONE;

    if (holder->count == 0)
        return;
    if (wants != RP_VALUE_NONE && !fits(row, found))
        rp_verifier_fail_value(verifier, index, row, row->wants, access->buffer, found, writer);
    for (guint32 a = 0; a < holder->count; a++) {
        RpAtom *atom = &sweep->atoms[holder->first + a];

        if (atom->writer != RP_TASK_NONE)
            check_order(verifier, atom->writer, index, access->buffer, TRUE, writes, wants);
        if (!writes) {
            add_reader(verifier, atom, index);
            continue;
        }
        while (atom->n_readers > 0)
            check_order(verifier, atom->readers[--atom->n_readers], index, access->buffer, FALSE,
                        TRUE, RP_VALUE_NONE);
        atom->writer = verifier->first_id + index;
        atom->through = access->buffer;
    }
    if (!writes)
        return;
    holder->value = value_left(row, access, found);
    if (row != NULL && row->role == RP_ROLE_SUM)
        sums->sum = holder->value;
    sums->leaves = sums->leaves || (row != NULL && row->role == RP_ROLE_LEAVING);
}

/* Gradients leave when all micro-batches of the slot have added to them; layer by layer, in its last. */
static void
check_leaving(RpVerifier *verifier, guint32 index, const Sums *sums)
{
    const RpPlanModes *modes = verifier->modes;
    guint all = verifier->micro_batches / (rp_modes_upload_once(modes) ? 1 : verifier->rounds);
    guint missing = 0;

    if (!sums->leaves || sums->sum.kind != RP_VALUE_SUM)
        return;
    if (modes->weights == RP_WEIGHTS_PER_LAYER) {
        const guint n = rp_plan_stage(verifier->plan, 0)->layers.count;

        all *= n;
        missing = n - 1;
    }
    if (sums->sum.n + missing < all)
        fail_task(verifier, RP_RULE_TRANSFERS, index,
                  "the slot's gradients leave before they are complete");
}

static void
check_rest(RpVerifier *verifier, guint32 index, GArray *rows)
{
    for (guint i = 0; i < rows->len; i++) {
        const RpExpected *row = &g_array_index(rows, RpExpected, i);
        const RpSymbol nothing = {.kind = RP_VALUE_NONE};

        if (row->seen || row->optional)
            continue;
        if (row->wants.kind != RP_VALUE_NONE && (row->mode & RP_ACCESS_READ) != 0 &&
            row->mode != RP_MAY_ADD)
            rp_verifier_fail_value(verifier, index, row, row->wants, RP_NONE, &nothing, RP_NO_TASK);
        fail_task(verifier, RP_RULE_OPERANDS, index, "the task accesses no %s, or not as it must",
                  rp_access_role_name((RpAccessRole)row->role));
    }
}

/* Finds the row of an access, and checks both. */
static void
sweep_operand(RpVerifier *verifier, guint32 index, const RpAccess *access, GArray *rows, Sums *sums)
{
    guint32 writer;
    const RpSymbol found = rp_verifier_find_value(verifier, access->buffer, &writer);
    RpExpected *row = match(rows, access);
    RpExpected *other = NULL;

    if (row == NULL)
        other = match_elsewhere(rows, access, NULL);
    else if (row->buffer != RP_NONE && access->mode == RP_ACCESS_READ &&
             row->wants.kind != RP_VALUE_NONE && !fits(row, &found))
        other = match_elsewhere(rows, access, row->seen ? NULL : &found);
    if (row == NULL || other != NULL) {
        fail_operand(verifier, index, access);
        row = other;
    } else {
        check_place(verifier, index, access, row);
    }
    if (row != NULL) {
        row->again = row->seen;
        row->seen = TRUE;
        if (row->mode == RP_MAY_ADD)
            check_mode(verifier, index, access, row, &found);
    }
    sweep_access(verifier, index, access, row, &found, writer, sums);
}

static void
sweep_task(RpVerifier *verifier, guint32 index)
{
    GArray *rows = verifier->full ? verifier->sweep->expected : NULL;
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    Sums sums = {.leaves = FALSE};
    guint32 session = 0;

    rp_ledger_enter(verifier, index, &session);
    if (verifier->full)
        rp_verifier_expect(verifier, task, session, rows);
    for (guint i = 0; i < task->access_count; i++)
        if (check_access(verifier, index, &accesses[i]) && verifier->full)
            sweep_operand(verifier, index, &accesses[i], rows, &sums);
    if (!verifier->full)
        return;
    check_rest(verifier, index, rows);
    check_leaving(verifier, index, &sums);
    check_transferred(verifier, index, task);
}

/* A saved tensor goes from one action to another. */
static void
check_saving(RpVerifier *verifier)
{
    for (guint l = 0; l < verifier->n_layers && !verifier->evaluates; l++)
        if (rp_plan_layer(verifier->plan, l)->saved_bytes > 0 &&
            rp_verifier_stage_of(verifier, l, RP_FORWARD) ==
                rp_verifier_stage_of(verifier, l, RP_BACKWARD))
            fail_tasks(
                verifier, RP_RULE_ACTIONS,
                rp_verifier_find_action(verifier, verifier->tasks[0].iteration, 0, l, RP_FORWARD),
                RP_NO_TASK,
                "layer %u saves something, and its forward and backward are of one stage", l);
}

void
rp_verify_sweep(RpVerifier *verifier)
{
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++)
        sweep_task(verifier, i);
    if (verifier->full)
        check_saving(verifier);
    rp_ledger_check(verifier);
}
