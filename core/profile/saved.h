/**
 * Tensors that a block's forward makes and its backward reads, in groups: each may be made again by the
 * backward's recompute, or saved by the forward until then. A row a group:
 *
 *   attention   its output and the log-sum-exp of its scores    2 a d + 4 a bytes a token
 *   qkv         queries, keys and values before norm and rope   2 (a + 2 k) d
 *   residual    the hidden state between attention and MLP      2 h
 *   mlp         gate and up of a dense MLP                      4 m
 *
 * Saved values have the bits of those made again.
 */
#pragma once

#include <glib.h>

typedef enum {
    RP_SAVED_ATTENTION,
    RP_SAVED_QKV,
    RP_SAVED_RESIDUAL,
    RP_SAVED_MLP,
    RP_N_SAVED_GROUPS
} RpSavedGroup;

#define RP_SAVED(group) (1u << RP_SAVED_##group)

/* One group of a layer, for one micro-batch. */
typedef struct {
    guint64 bytes;       /* 0: the layer has no such tensors */
    gint64 recompute_ns; /* the part of the layer's recompute that makes them; 0: unknown */
} RpSavedTensors;

/* Selects the tensors that forwards save: groups, bits of RpSavedGroup, that save at least least_ns
 * a MiB, of layers from first on. All zeros: nothing. */
typedef struct {
    guint groups;
    guint first;
    double least_ns;
} RpSavedChoice;
#define RP_SAVED_PARTS 4 /* searches try the start of each part of the layers as `first` */

typedef struct {
    const char *name;      /* "attention" */
    const char *bytes_key; /* key in profiles: "saved_attention_bytes" */
    const char *time_key;  /* "saved_attention_ms" */
    const char *title;     /* for people */
} RpSavedGroupInfo;
const RpSavedGroupInfo *rp_saved_group(RpSavedGroup group);
/* Time that a MiB of them saves. @tensors: have bytes */
double rp_saved_ns_per_mib(const RpSavedTensors *tensors);
