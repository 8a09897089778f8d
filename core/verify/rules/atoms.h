/**
 * Shared by rules/buffers.c and rules/atoms.c: atoms, and the tasks that touched them last.
 */
#pragma once

#include "core/verify/private.h"

/* A task by its place in its lane, which outlives it. */
typedef struct {
    RpTaskId id;
    guint32 task;
    guint32 lane;
    guint32 position;
} RpToucher;

typedef struct {
    RpToucher by;
    guint32 next; /* index of a reader, or RP_NO_TASK */
} RpReader;

typedef struct {
    guint32 arena;
    guint64 offset;
    RpToucher writer; /* RP_NO_TASK: nobody yet */
    guint32 writer_buffer;
    guint32 generation;
    guint32 readers; /* since the last write; RP_NO_TASK: none */
} RpAtom;

typedef struct {
    guint32 first;
    guint32 count;
} RpAtomRun;

struct _RpSweep {
    RpVerifier *verifier;
    guint n_buffers;
    RpAtomRun *runs; /* [buffer] */
    RpAtom *atoms;   /* by arena and offset; behind those of an arena one for the rest of it */
    guint32 n_atoms;
    GArray *readers; /* RpReader */
    guint32 unused;  /* readers to be used again */
};

/* Cuts all arenas. Where they were cut before, an atom takes over the state of that place. */
void rp_sweep_cut_arenas(RpSweep *sweep);
