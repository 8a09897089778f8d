/*
 * Arenas cut into atoms at the borders of their buffers: buffers conflict exactly where they share
 * atoms. Of tasks that a growing plan leaves behind, the last that touched an atom are remembered.
 */
#include "core/verify/private.h"

#include <stdlib.h>

static int
compare_places(const void *a, const void *b)
{
    const RpAtom *x = a, *y = b;

    if (x->arena != y->arena)
        return x->arena < y->arena ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The atom of @atoms that begins at @offset, or last before it. */
static guint32
find_atom(const RpAtom *atoms, guint32 n, guint32 arena, guint64 offset)
{
    const RpAtom place = {.arena = arena, .offset = offset};
    guint32 low = 0;

    while (n > 1) {
        guint32 half = n / 2;

        if (compare_places(&atoms[low + half], &place) <= 0)
            low += half;
        n -= half;
    }
    return low;
}

/* Buffers added since: an atom keeps the state of the one that lay there before. */
static void
inherit(RpAtom *atom, const RpAtom *before)
{
    if (before->arena != atom->arena || before->offset > atom->offset)
        return;
    atom->writer = before->writer;
    atom->through = before->through;
    atom->n_readers = atom->max_readers = before->n_readers;
    atom->readers = g_memdup2(before->readers, atom->n_readers * sizeof(RpTaskId));
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
    const guint n_buffers = rp_plan_n_buffers(verifier->plan);

    if (verifier->sweep == NULL) {
        verifier->sweep = g_new0(RpSweep, 1);
        verifier->sweep->expected = g_array_new(FALSE, FALSE, sizeof(RpExpected));
    }
    RpSweep *sweep = verifier->sweep;
    RpAtom *before = sweep->atoms;
    RpAtom *atoms = g_new(RpAtom, 2 * (gsize)n_buffers + 1);
    const guint32 n_before = sweep->n_atoms;
    guint32 n = 0, n_unique = 0;

    sweep->holders = g_renew(RpHolder, sweep->holders, (gsize)n_buffers + 1);
    for (guint i = 0; i < n_buffers; i++) {
        const RpBuffer *buffer = rp_plan_buffer(verifier->plan, i);

        if (i < sweep->n_buffers) /* tables are checked anew */
            g_clear_pointer(&sweep->holders[i].owner, g_free);
        else
            sweep->holders[i] = (RpHolder){.count = 0};
        for (guint end = 0; end < 2 && buffer->bytes > 0; end++)
            atoms[n++] = (RpAtom){.arena = buffer->arena,
                                  .offset = buffer->offset + (end > 0 ? buffer->bytes : 0),
                                  .writer = RP_TASK_NONE};
    }
    qsort(atoms, n, sizeof(RpAtom), compare_places);
    for (guint32 i = 0; i < n; i++)
        if (n_unique == 0 || compare_places(&atoms[n_unique - 1], &atoms[i]) != 0)
            atoms[n_unique++] = atoms[i];
    sweep->n_buffers = n_buffers;
    sweep->atoms = atoms;
    sweep->n_atoms = n_unique;
    for (guint i = 0; i < n_buffers; i++) {
        const RpBuffer *buffer = rp_plan_buffer(verifier->plan, i);
        RpHolder *holder = &sweep->holders[i];

        if (buffer->bytes == 0)
            continue;
        holder->first = find_atom(atoms, n_unique, buffer->arena, buffer->offset);
        holder->count = find_atom(atoms, n_unique, buffer->arena, buffer->offset + buffer->bytes) -
                        holder->first;
        for (guint32 a = 0; a < holder->count; a++)
            atoms[holder->first + a].n_buffers++;
    }
    for (guint32 i = 0; i < n_unique && n_before > 0; i++)
        inherit(&atoms[i], &before[find_atom(before, n_before, atoms[i].arena, atoms[i].offset)]);
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

/* If the task becomes an old one, its place and clock move to the old tasks. */
static void
keep_old(const RpVerifier *verifier, GArray *old, RpTaskId id, RpTaskId first)
{
    if (id >= first)
        return;
    const RpOldTask kept = {id, *rp_verifier_place(verifier, id)};
    g_array_append_val(old, kept);
}

void
rp_verifier_forget_touchers(RpVerifier *verifier, guint32 n)
{
    const RpTaskId first = verifier->first_id + n;
    const RpSweep *sweep = verifier->sweep;
    GArray *old = g_array_new(FALSE, FALSE, sizeof(RpOldTask));

    for (guint32 i = 0; sweep != NULL && i < sweep->n_atoms; i++) {
        const RpAtom *atom = &sweep->atoms[i];

        keep_old(verifier, old, atom->writer, first);
        for (guint32 r = 0; r < atom->n_readers; r++)
            keep_old(verifier, old, atom->readers[r], first);
    }
    g_array_sort(old, compare_ids);
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

        if (atom->writer == RP_TASK_NONE) {
            unwritten++;
            continue;
        }
        if (atom->through != buffer || broken == 0)
            *writer = rp_verifier_index(verifier, atom->writer);
        broken += atom->through != buffer;
    }
    if (unwritten > 0 && !verifier->whole)
        return (RpSymbol){.kind = RP_VALUE_UNKNOWN};
    if (unwritten == holder->count)
        return (RpSymbol){.kind = RP_VALUE_INITIAL};
    return broken > 0 ? (RpSymbol){.kind = RP_VALUE_NONE} : holder->value;
}
