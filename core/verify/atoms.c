/*
 * Arenas cut into atoms at the borders of their buffers: buffers conflict exactly where they share
 * atoms. Of tasks that a growing plan leaves behind, the last that touched an atom are remembered.
 */
#include "core/verify/private.h"

#include <stdlib.h>

static int
compare_offsets(const void *a, const void *b)
{
    guint64 x = *(const guint64 *)a, y = *(const guint64 *)b;

    return x < y ? -1 : x > y;
}

static guint32
find_border(const guint64 *borders, guint32 n, guint64 offset)
{
    guint32 low = 0;

    while (n > 1) {
        guint32 half = n / 2;

        if (borders[low + half] <= offset)
            low += half;
        n -= half;
    }
    return low;
}

/* Cuts one arena; its atoms are numbered from @first. Returns: how many. */
static guint32
cut_arena(const RpPlan *plan, RpSweep *sweep, guint32 arena, guint32 first, guint64 *borders)
{
    guint n_buffers = rp_plan_n_buffers(plan);
    guint32 n = 0, n_unique = 0;

    for (guint i = 0; i < n_buffers; i++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, i);

        if (buffer->arena == arena && buffer->bytes > 0) {
            borders[n++] = buffer->offset;
            borders[n++] = buffer->offset + buffer->bytes;
        }
    }
    qsort(borders, n, sizeof(guint64), compare_offsets);
    for (guint32 i = 0; i < n; i++)
        if (n_unique == 0 || borders[n_unique - 1] != borders[i])
            borders[n_unique++] = borders[i];
    for (guint32 i = 0; i < n_unique; i++)
        sweep->atoms[first + i] =
            (RpAtom){.arena = arena, .offset = borders[i], .writer = {.id = RP_TASK_NONE}};
    for (guint i = 0; i < n_buffers; i++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, i);
        RpHolder *run = &sweep->holders[i];

        if (buffer->arena != arena || buffer->bytes == 0)
            continue;
        run->first = find_border(borders, n_unique, buffer->offset);
        run->count = find_border(borders, n_unique, buffer->offset + buffer->bytes) - run->first;
        run->first += first;
        for (guint32 a = 0; a < run->count; a++)
            sweep->atoms[run->first + a].n_buffers++;
    }
    return n_unique;
}

/* Buffers added since: an atom keeps the state of the one that lay there before. */
static void
inherit(RpSweep *sweep, const RpAtom *before, guint32 n_before)
{
    for (guint32 i = 0, k = 0; i < sweep->n_atoms && n_before > 0; i++) {
        RpAtom *atom = &sweep->atoms[i];

        while (k + 1 < n_before &&
               (before[k + 1].arena < atom->arena ||
                (before[k + 1].arena == atom->arena && before[k + 1].offset <= atom->offset)))
            k++;
        if (before[k].arena != atom->arena || before[k].offset > atom->offset)
            continue;
        atom->writer = before[k].writer;
        atom->through = before[k].through;
        atom->n_readers = atom->max_readers = before[k].n_readers;
        atom->readers = g_memdup2(before[k].readers, atom->n_readers * sizeof(RpToucher));
    }
}

static void
free_atoms(RpAtom *atoms, guint32 n)
{
    for (guint32 i = 0; i < n; i++)
        g_free(atoms[i].readers);
    g_free(atoms);
}

void
rp_sweep_cut_arenas(RpVerifier *verifier)
{
    if (verifier->sweep == NULL) {
        verifier->sweep = g_new0(RpSweep, 1);
        verifier->sweep->expected = g_array_new(FALSE, FALSE, sizeof(RpExpected));
    }
    RpSweep *sweep = verifier->sweep;
    const RpPlan *plan = verifier->plan;
    gsize n_buffers = rp_plan_n_buffers(plan);
    g_autofree guint64 *borders = g_new(guint64, 2 * n_buffers + 1);
    RpAtom *before = sweep->atoms;
    const guint32 n_before = sweep->n_atoms;

    for (gsize i = 0; i < sweep->n_buffers; i++) /* tables are checked anew */
        g_clear_pointer(&sweep->holders[i].owner, g_free);
    sweep->holders = g_renew(RpHolder, sweep->holders, n_buffers + 1);
    for (gsize i = sweep->n_buffers; i < n_buffers; i++)
        sweep->holders[i] = (RpHolder){.count = 0};
    sweep->n_buffers = (guint)n_buffers;
    sweep->atoms = g_new(RpAtom, 2 * n_buffers + 1);
    sweep->n_atoms = 0;
    for (guint32 arena = 0; arena <= rp_plan_gpus(plan); arena++)
        sweep->n_atoms += cut_arena(plan, sweep, arena, sweep->n_atoms, borders);
    inherit(sweep, before, n_before);
    free_atoms(before, n_before);
}

void
rp_sweep_free(RpSweep *sweep)
{
    if (sweep == NULL)
        return;
    for (guint i = 0; i < sweep->n_buffers; i++)
        g_free(sweep->holders[i].owner);
    g_array_unref(sweep->expected);
    free_atoms(sweep->atoms, sweep->n_atoms);
    g_free(sweep->holders);
    g_free(sweep);
}

/* ---- a growing plan leaves tasks behind ---- */

static int
compare_ids(gconstpointer a, gconstpointer b)
{
    const RpTaskId x = ((const RpOldTask *)a)->id, y = ((const RpOldTask *)b)->id;

    return x < y ? -1 : x > y;
}

/* If the task of @by becomes an old one, its place and clock move to the old tasks. */
static void
keep_old(const RpVerifier *verifier, GArray *old, const RpToucher *by, RpTaskId first)
{
    if (by->id >= first)
        return;
    const RpOldTask kept = {by->id, *rp_verifier_place(verifier, by->id)};
    g_array_append_val(old, kept);
}

void
rp_verifier_forget_touchers(RpVerifier *verifier, guint32 n)
{
    const RpTaskId first = verifier->first_id + n;
    const RpSweep *sweep = verifier->sweep;
    GArray *old = g_array_new(FALSE, FALSE, sizeof(RpOldTask));
    guint unique = 0;

    for (guint32 i = 0; sweep != NULL && i < sweep->n_atoms; i++) {
        const RpAtom *atom = &sweep->atoms[i];

        keep_old(verifier, old, &atom->writer, first);
        for (guint32 r = 0; r < atom->n_readers; r++)
            keep_old(verifier, old, &atom->readers[r], first);
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

RpSymbol
rp_verifier_find_value(const RpVerifier *verifier, guint32 buffer, guint32 *writer)
{
    const RpHolder *holder = &verifier->sweep->holders[buffer];
    guint unwritten = 0, broken = 0;

    *writer = RP_NO_TASK;
    for (guint32 a = 0; a < holder->count; a++) {
        const RpAtom *atom = &verifier->sweep->atoms[holder->first + a];

        if (atom->writer.id == RP_TASK_NONE) {
            unwritten++;
            continue;
        }
        if (atom->through != buffer || broken == 0)
            *writer = rp_verifier_index(verifier, atom->writer.id);
        broken += atom->through != buffer;
    }
    if (unwritten > 0 && !verifier->whole)
        return (RpSymbol){.kind = RP_VALUE_UNKNOWN};
    if (unwritten == holder->count)
        return (RpSymbol){.kind = RP_VALUE_INITIAL};
    return broken > 0 ? (RpSymbol){.kind = RP_VALUE_NONE} : holder->value;
}
