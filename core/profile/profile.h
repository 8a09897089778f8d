/**
 * A profile: costs of one model's layers on one kind of device, and rates of its links.
 *
 * Everything that predicts starts here. Files are `roundpipe-profile/1` JSON
 * (docs/profile-format.md): times in milliseconds, sizes in bytes. In memory times are whole
 * nanoseconds.
 */
#pragma once

#include <glib.h>

#include "core/base/moments.h"

/*
 * The fastest of the algorithms that a library proposes for a matmul, for each shape that a model
 * has, as they were timed. A shape that is not listed uses the library's first proposal.
 */

#define RP_MATMUL_MAX_VARIANTS 8 /* for a shape, the first included */

/* Names of RpMatmulLayout (exec/kernels/args.h), in its order; the last is NULL. */
extern const char *const rp_matmul_layouts[];

/* The shape, and the algorithm. Forms and storages are those of exec/kernels/args.h. */
typedef struct {
    guint form;    /* NT, NN, TN */
    guint a, b, c; /* RpDtype */
    guint64 m, n, k;
    guint64 a_stride; /* from a row of A to the next; 0: no gaps */
    gboolean bias;    /* one is added */
    guint variant;    /* 0: the library's first proposal; less than RP_MATMUL_MAX_VARIANTS */
} RpMatmulVariant;

/* Whether it is the same shape, whatever the algorithm. */
gboolean rp_matmul_variant_is_of(const RpMatmulVariant *a, const RpMatmulVariant *b);

/*
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

#define RP_PROFILE_FORMAT "roundpipe-profile/1"
#define RP_PROFILE_MAX_LAYERS 32000

typedef enum {
    RP_PROFILE_ERROR_IO,      /* cannot read or write the file */
    RP_PROFILE_ERROR_SYNTAX,  /* not JSON, nested too deep */
    RP_PROFILE_ERROR_FORMAT,  /* wrong or missing format tag */
    RP_PROFILE_ERROR_VALUE,   /* an unknown or repeated key; a value missing, of the wrong type or
                                 out of range */
    RP_PROFILE_ERROR_FIDELITY /* full fidelity was requested, but sizes or links are missing */
} RpProfileError;

#define RP_PROFILE_ERROR (rp_profile_error_quark())
GQuark rp_profile_error_quark(void);

typedef enum { RP_LAYER_EMBEDDING, RP_LAYER_BLOCK, RP_LAYER_HEAD } RpLayerKind;

/* One layer, for one micro-batch. Sizes are 0 when unknown (RpProfile.has_sizes says so). */
typedef struct {
    RpLayerKind kind;
    const char *name; /* a constant, interned, or in RpProfile.names */
    gint64 forward_ns;
    gint64 backward_ns;        /* input and weight gradient, without recompute */
    gint64 recompute_ns;       /* default: forward_ns */
    gint64 recompute_last_ns;  /* the same if the block ends a backward stage: nobody needs its
                                  output; <= recompute_ns; 0 = as long */
    gint64 weight_gradient_ns; /* the W of backward_ns = I + W; default: half, rounded down */
    gint64 forward_spread_ns;  /* spread of measured times (half the 10-90 % range); 0 if unknown */
    gint64 recompute_spread_ns;
    gint64 backward_spread_ns;
    gint64 expand_ns;        /* packed weights to 16 bits on the device, once a slot */
    guint64 parameter_bytes; /* 16-bit weights that the layer runs with */
    guint64 upload_bytes;    /* uploaded for them, where some are packed; 0 = parameter_bytes */
    guint64 gradient_bytes;  /* gradients downloaded, as wide; 0 for a frozen layer */
    guint64 tied_bytes; /* the last of its parameters, which are those of layer 0, the embedding:
                           uploaded here, but kept and updated there */
    guint64 tied_gradient_bytes; /* the last of gradient_bytes, which are that matrix's: downloaded
                                    here, stepped there; 0 where it is frozen */
    guint64 resident_bytes; /* frozen weights that stay on devices and do not go up again: set by a
                               planner in a profile of its own, 0 in files */
    guint64 input_bytes;    /* one micro-batch's input activation */
    guint64 output_bytes;   /* one micro-batch's output activation */
    guint64 forward_workspace_bytes;         /* scratch while the layer runs forward */
    guint64 backward_workspace_bytes;        /* scratch while the layer runs backward */
    guint64 activation_bytes;                /* kept from (re)compute until the layer's backward */
    RpSavedTensors saved[RP_N_SAVED_GROUPS]; /* parts of both that a forward may leave for it */
    guint saved_groups; /* bits of those that it leaves, 0 in files (rp_profile_choose_saved()) */
    guint n_tensors;    /* tensors of parameter_bytes, in file order; 0 if unknown */
    const guint64
        *tensor_bytes; /* n_tensors sizes, their sum = parameter_bytes; owned by the profile */
} RpLayer;

/* Link speeds. Bytes per second; 0 = unknown. One direction each unless said otherwise. */
typedef struct {
    gint64 hop_ns;           /* fixed time from one device to another (`compute` fidelity) */
    gint64 copy_latency_ns;  /* fixed cost of one copy, before its first byte */
    double h2d_bytes_per_s;  /* one device alone, host to device */
    double d2h_bytes_per_s;  /* one device alone, device to host */
    double both_bytes_per_s; /* one device alone in both directions at once, the sum; 0 = as each */
    /* Measured sums that no prediction uses: all devices at once in one direction, the other, and
     * both. */
    double all_h2d_bytes_per_s;
    double all_d2h_bytes_per_s;
    double all_both_bytes_per_s;
    double host_bytes_per_s; /* host memory: all copies and the CPU optimizer together */
    double root_bytes_per_s; /* one root complex, per direction, shared by its devices */
    guint gpus_per_root;     /* 0 = no shared root complex */
    double beside_optimizer_bytes_per_s; /* part of host_bytes_per_s that copies to all devices get
                                            while the CPU optimizer runs; 0 = unknown */
    double network_bytes_per_s;          /* payload from a server to others, and as much back */
    gint64 network_latency_ns;           /* a message's */
} RpLinks;

/* The profile. Plain value: read freely, change only through rp_profile_copy() of your own. */
typedef struct _RpProfile RpProfile;
struct _RpProfile {
    char *model;      /* e.g. "qwen3-1.7b" */
    char *device;     /* e.g. "RTX 4090" */
    char *dtype;      /* "fp16", "bf16", "fp32" */
    char *accumulate; /* "fp16" or "fp32" */
    char *matmul;     /* layers that multiply fp8 values (core/base/fp8.h); "": none */
    char *attention;  /* owner of the kernels: "builtin", "cudnn"; "cudnn-forward" in older ones */
    char *source;     /* "published", "measured" or "predicted" */
    char *origin;     /* where the numbers come from */
    char *date;       /* ISO 8601 date */
    guint gpus;       /* devices of the machine it describes; 0 = unknown */
    guint processors; /* that the devices compute and copy on; 0 = each has its own */
    guint sequences;  /* per micro-batch */
    guint tokens_per_sequence;
    guint head_chunk;       /* tokens whose logits exist at once in the head; 0 = unknown */
    guint64 constant_bytes; /* on every device, beside what a plan moves: tables of positions */
    RpLinks links;
    guint64 gpu_memory_bytes; /* 0 = unknown */
    gboolean whole_card;      /* that is the card's memory, not what is free of it for plans */
    double optimizer_parameters_per_s; /* CPU optimizer rate; 0 = unknown */
    double norm_parameters_per_s;      /* its pass over all gradients before it; 0 = no time */
    /* Rates of adding a round's gradients to an fp32 sum, of copying gradients (blocking), and of
     * copying weights (blocking and lean). 0 = their bytes as fast as the optimizer's. */
    double sum_parameters_per_s;
    double gradient_copy_parameters_per_s;
    double parameter_copy_parameters_per_s;
    double
        alone_speed; /* how many times as fast an action is while no other device is at work, where
                           devices are parts of a card and share its power; layers' times are with all
                           at work; 0 = the same */
    /* Rate of steps whose state is in caches, all threads: it shows the processors' limit without
     * memory's. 0 = unknown. */
    double cached_parameters_per_s[RP_N_UPDATES][RP_N_MOMENTS][RP_N_MASTERS];
    guint n_layers;
    RpLayer *layers;    /* counts expanded: [embedding] block... [head] */
    gboolean has_sizes; /* every layer gives parameter, gradient, input and output bytes */
    char *missing;      /* the first of those a file lacks, e.g. "layers[2].input_bytes"; or NULL */
    GPtrArray *tensor_tables; /* owns the tensor_bytes arrays */
    GPtrArray *names;         /* owns the layer names that were read from a file */
    guint n_cards;            /* kinds of cards (core/profile/cards.h); 0: all devices are alike */
    RpProfile **cards;        /* [card], of which none has cards itself */
    guint n_devices;          /* that have one */
    guint *card_of;           /* [device] */
    char *matmul_library;     /* that proposes matmul algorithms; "": nothing is known of them */
    guint n_matmul_variants;
    RpMatmulVariant *matmul_variants; /* for shapes whose first proposal is not the fastest */
    RpProfile *next; /* of the same file, with the next larger micro-batch; copies have none */
};

/**
 * rp_profile_load:
 * @path: a `roundpipe-profile/1` file
 *
 * Reads and validates strictly: unknown keys, duplicate keys, NaN, negative times, counts of 0,
 * more than RP_PROFILE_MAX_LAYERS layers and a wrong layer order are errors. An array of profiles has times
 * of one model for several micro-batches, the smallest first. Each error is one line
 * naming the file, line and column, the place (`layers[2].forward_ms`), the expected and the found
 * value.
 *
 * Returns: (transfer full): the profile, or %NULL
 * Errors: RP_PROFILE_ERROR_*
 */
RpProfile *rp_profile_load(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same of a box's file, which may leave out the layers: links and optimizer of a machine
 * (core/profile/box.h). */
RpProfile *rp_profile_load_box(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_profile_parse:
 * @name: how to call the text in messages (a file name)
 * @text: @length bytes of JSON, need not end in NUL
 */
RpProfile *rp_profile_parse(const char *name, const char *text, gsize length,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
RpProfile *rp_profile_parse_box(const char *name, const char *text, gsize length,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The one of @profile and those behind it that is of @sequences a micro-batch; %NULL: there is none. */
const RpProfile *rp_profile_with_micro_batch(const RpProfile *profile, guint sequences);

/* Puts @one (transfer full) among @all (transfer full), in place of what has its micro-batch. (transfer full) */
RpProfile *rp_profile_insert(RpProfile *all, RpProfile *one);

/* The micro-batches of a file, as "1, 2 and 4". (transfer full) */
char *rp_profile_micro_batches(const RpProfile *profile);

/* Serialises, as an array if others are behind @profile; equal neighbouring layers are folded into `count`. Ends in a newline. Never fails. */
char *rp_profile_to_json(const RpProfile *profile);

/* Writes rp_profile_to_json() beside @path and renames it into place. */
gboolean rp_profile_save(const RpProfile *profile, const char *path,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_profile_new:
 * @n_layers: number of layers; all zeroed, kind block, named "block"
 *
 * An empty profile to fill in by hand (tests, catalogue, `profile` command). Strings start as "".
 */
RpProfile *rp_profile_new(guint n_layers);
RpProfile *rp_profile_copy(const RpProfile *profile);
void rp_profile_free(RpProfile *profile);
/* Makes all devices alike. */
void rp_profile_clear_cards(RpProfile *profile);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpProfile, rp_profile_free)

/* Number of layers of kind block, and the index of the first one (n_layers if there is none). */
guint rp_profile_n_blocks(const RpProfile *profile);
guint rp_profile_first_block(const RpProfile *profile);

/* Tokens of one micro-batch; 0 if the profile does not say. */
guint64 rp_profile_micro_batch_tokens(const RpProfile *profile);

/**
 * rp_profile_check_full:
 *
 * Whether the profile can serve `full` fidelity: sizes of every layer, h2d and d2h speed.
 * Errors: RP_PROFILE_ERROR_FIDELITY, naming the first thing that is missing
 */
gboolean rp_profile_check_full(const RpProfile *profile, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Device memory that no plan may use: CUDA context, kernels and library workspaces, 621 and 732 MiB
 * in two runs on an H200, and the margin that a run keeps: 0.9 GiB. A card with less than twice as much keeps half. */
#define RP_GPU_RESERVE_BYTES (G_GUINT64_CONSTANT(9) * (1 << 30) / 10)

/* The part of a card's memory that plans may use. */
static inline guint64
rp_gpu_plan_bytes(guint64 memory_bytes)
{
    return memory_bytes - MIN(memory_bytes / 2, RP_GPU_RESERVE_BYTES);
}

/* The same of each device of @profile; 0 = unknown. Whatever says that a plan fits compares with this. */
static inline guint64
rp_profile_plan_bytes(const RpProfile *profile)
{
    return profile->whole_card ? rp_gpu_plan_bytes(profile->gpu_memory_bytes)
                               : profile->gpu_memory_bytes;
}

/* Sets the tensor sizes of one layer (copied); their sum becomes parameter_bytes. */
void rp_profile_set_tensors(RpProfile *profile, guint layer, const guint64 *tensor_bytes,
                            guint n_tensors);

/* Gives it the sizes of @sized, layer by layer, which has as many; times stay. */
void rp_profile_take_sizes(RpProfile *profile, const RpProfile *sized);

/* Sets the known matmul algorithms; all is copied. */
void rp_profile_set_matmuls(RpProfile *profile, const char *library,
                            const RpMatmulVariant *variants, guint n);

/* Bytes of a weight or leaving gradient: 4 of dtype "fp32", else 2. */
guint rp_profile_element_bytes(const RpProfile *profile);
/* Bytes of the fp32 sums of @gradient_bytes. */
guint64 rp_profile_sum_bytes(const RpProfile *profile, guint64 gradient_bytes);

/* Whether any layer's weights are packed when they go up. */
gboolean rp_profile_is_packed(const RpProfile *profile);

/* Sets the tensors that forwards save for their backwards, in layers that have such. */
void rp_profile_choose_saved(RpProfile *profile, const RpSavedChoice *choice);

/* Forwards keep all that backwards read: none of it is made again. */
void rp_profile_keep_activations(RpProfile *profile);

/* Sets a string of a profile. @value: (transfer full) */
void rp_profile_take(char **string, char *value);

const char *rp_layer_kind_name(RpLayerKind kind);

/* Gradients that the layer's own step reads: all but those of a tied matrix. */
static inline guint64
rp_layer_own_gradient_bytes(const RpLayer *layer)
{
    return layer->gradient_bytes - layer->tied_gradient_bytes;
}

/* The layer's weights as the host keeps them: packed ones, and those that are not. */
static inline guint64
rp_layer_host_bytes(const RpLayer *layer)
{
    return layer->upload_bytes > 0 ? layer->upload_bytes : layer->parameter_bytes;
}

gboolean rp_profile_saves(const RpProfile *profile);
/* Times that a MiB saves (rp_saved_ns_per_mib()) of all groups of all layers, each once, the most
 * first. (element-type double) (transfer full) */
GArray *rp_profile_savings(const RpProfile *profile);
/* Forgets it of layers from @fused on: a fused stage keeps everything. Returns: bytes of a micro-batch
 * that others save */
guint64 rp_profile_keep_fused(RpProfile *profile, guint fused);
/* "attention of 28 layers, qkv of 28"; "nothing". (transfer full) */
char *rp_profile_describe_saved(const RpProfile *profile);

/* Bytes of a micro-batch that the layer's forward saves for its backward. */
guint64 rp_layer_saved_bytes(const RpLayer *layer);
/* Its recompute with that. */
gint64 rp_layer_recompute_ns(const RpLayer *layer);

/* Bytes that are uploaded for each slot that runs the layer. */
static inline guint64
rp_layer_upload_bytes(const RpLayer *layer)
{
    return rp_layer_host_bytes(layer) - layer->resident_bytes;
}

/**
 * rp_layer_saving_ns:
 *
 * Returns: by how much the recompute of a backward stage that ends with @layer is shorter than
 *   those of its layers: recompute_ns - recompute_last_ns of a block that gives it, else 0
 */
gint64 rp_layer_saving_ns(const RpLayer *layer);
