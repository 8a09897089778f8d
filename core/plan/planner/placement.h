/**
 * Places of stages on devices, and accesses of their actions there. A row a kind:
 *
 *   resident     stages are bound to devices, and their weights stay there for an iteration
 *   offloaded    stages are bound to devices; weights come up for each slot
 *   dispatched   slots go from device to device, and all that they read is uploaded
 *
 * Inputs, gradients and outputs that cross devices alternate between two buffers of a kind.
 */
#pragma once

#include "core/plan/device-layout.h"
#include "core/plan/job/job.h"

/* Two buffers that alternate. */
typedef struct {
    guint32 buffers[2];
    guint turn;
} RpRing;

/* A set of equal buffers that come and go. */
typedef struct {
    guint32 arena;
    RpBufferCategory category;
    guint64 bytes;
    GArray *free; /* guint32 buffers, oldest first */
} RpBufferPool;

/* Actions in a row on one device, all of one stage (resident: of all stages of an iteration). */
typedef struct {
    guint32 stage;
    guint32 round;
    guint32 iteration;
    gboolean backward; /* makes gradients */
} RpSlot;

typedef struct {
    guint32 parameters[RP_N_DIRECTIONS][2]; /* [way][turn]; resident: unused */
    guint32 *ends;   /* [2 * stage + turn] parameters of slots at a region's borders; or %NULL */
    guint32 packed;  /* uploads to be expanded; RP_NONE: parameters are uploaded as they are */
    guint32 sums[2]; /* [turn] fp32 sums of gradients; resident: unused */
    guint32 workspace[RP_N_DIRECTIONS][2]; /* [way][turn] */
    guint turn;                            /* the running slot's */
    guint32 leaving; /* gradients being downloaded, or kept for the next round's */
    guint32 staging; /* host: gradients of rounds; RP_NONE where none are added up there */
    RpRing input, gradient, output;
    guint32 *saved; /* [2 * n_saved] tensors saved by a stage's layers, for two actions */
    guint n_saved;
    guint saved_turn;
    RpBufferPool stash;          /* bound: stage inputs until their backward */
    RpBufferPool kept;           /* split backward: activations from I to W */
    RpBufferPool local_gradient; /* gradients between stages of one device */
    RpSlot slot, next;           /* that runs; iteration = RP_NONE before the first */
    GArray *gates;               /* RpTaskId: upload that opened each window of the slot */
    GArray *old_gates;           /* the slot before's: windows of this slot's parameters */
} RpDevice;

/* Buffers of a stage and micro-batch from action to action; RP_NONE: none. */
typedef struct {
    guint32 input;    /* bound: until its backward */
    guint32 kept;     /* from I to W */
    guint32 gradient; /* the gradient of its output, made on the same device */
} RpHeld;

typedef struct _RpPlacement RpPlacement;

typedef struct {
    /* Places weights, their sums and the workspace of @device. */
    void (*lay_out)(RpPlacement *placement, guint device, const RpLargest *largest);
    /* @device has switched to device->slot: uploads its weights unless @before, the slot before,
     * had them. */
    void (*turn)(RpPlacement *placement, guint device, const RpSlot *before);
} RpPlacementOps;
extern const RpPlacementOps rp_placement_resident;
extern const RpPlacementOps rp_placement_offloaded;
extern const RpPlacementOps rp_placement_dispatched;

struct _RpPlacement {
    const RpPlanJob *job;
    const RpPlacementOps *ops;
    RpDevice *devices;
    guint32 *resident_parameters; /* [stage] */
    guint32 *resident_sums;       /* [stage] */
    gboolean *uploaded; /* [device * n_layers + layer] resident weights have been uploaded */
    RpHeld *held;       /* [stage * M + m] */
};

/* A value that an action reads or writes. */
typedef struct {
    guint32 buffer;   /* RP_NONE: there is none */
    gboolean travels; /* to or from the host */
} RpOperand;

/* The forward or the backward of an action. */
typedef struct {
    guint device;
    guint32 stage;
    guint32 micro_batch;
    const RpPlanStage *at; /* the stage */
    RpOperand input;
    RpOperand gradient;   /* the gradient of its output */
    RpOperand output;     /* a backward's: the gradient of its input */
    guint32 kept;         /* from I to W */
    RpTaskId gate;        /* upload that opened its window */
    const guint32 *saved; /* one buffer for each layer that saves something, or NULL */
} RpPart;

static inline RpPart
rp_part(const RpPlanJob *job, guint device, guint32 stage, guint32 micro_batch)
{
    const RpOperand none = {RP_NONE, FALSE};

    return (RpPart){device,       stage, micro_batch, rp_plan_stage(job->plan, stage),
                    none,         none,  none,        RP_NONE,
                    RP_TASK_NONE, NULL};
}

/* Places the arenas of all devices. */
RpPlacement *rp_placement_new(const RpPlanJob *job);
void rp_placement_begin_call(RpPlacement *placement);

/* The slot that @device must switch to for @action; %NULL: it is in it. Then switches to it. */
const RpSlot *rp_placement_next_slot(RpPlacement *placement, guint device, const RpAction *action);
void rp_placement_turn(RpPlacement *placement, guint device);
/* Uploads the parameters of @stage; @gates: RpTaskId, the windows that its chunks take, or %NULL */
void rp_placement_upload(const RpPlacement *placement, guint device, guint32 stage,
                         const GArray *gates);

/* stays.c: frozen weights that stay on devices. Places them; uploads those of @layers that are yet to
 * go up, or of all layers on all devices; @part's stage as the running task reads them. */
void rp_placement_lay_out_resident(RpPlacement *placement, guint device);
void rp_placement_upload_resident(const RpPlacement *placement, guint device, RpInterval layers);
void rp_placement_upload_all_resident(const RpPlacement *placement);
void rp_placement_read_resident(const RpPlacement *placement, const RpPart *part);

/* Places of each layer's parameters and leaving gradients, where plans are layerwise; and a
 * running action's reads and writes of those of @layers. */
void rp_placement_lay_out_parameters(RpPlacement *placement, guint device);
void rp_placement_lay_out_leaving(RpPlacement *placement, guint device);
void rp_placement_read_layers(const RpPlacement *placement, guint device, RpInterval layers);
void rp_placement_leave_layers(const RpPlacement *placement, guint device, RpInterval layers);

guint32 rp_placement_parameters(const RpPlacement *placement, const RpPart *part);
guint32 rp_placement_sums(const RpPlacement *placement, const RpPart *part);
guint32 rp_placement_workspace(const RpPlacement *placement, const RpPart *part);

/* Tensors that forwards of dispatched stages save for their backwards (core/profile/profile.h), in
 * the order of layers. They wait in the host's arena; a device has buffers for the layers of two
 * actions:
 *
 *   compute            |--- F m ---|- F m+1 -|          |--- B m ---|- B m+1 -|
 *   activation-down                |l0|l1|l2|
 *   activation-up                            |l1|l2|    (m)  |l1|l2|  (m + 1)
 *
 * The first lays the buffers out. The second takes them for @part's layers; @again: buffers that its
 * I used, for W. With the third the running task writes them, or (@backward) reads them and writes
 * over them. */
void rp_placement_lay_out_saved(RpPlacement *placement, guint device, const RpLargest *largest);
void rp_placement_take_saved(RpPlacement *placement, RpPart *part, gboolean again);
void rp_placement_access_saved(const RpPlacement *placement, const RpPart *part, gboolean backward);

/* Sets operands of a part. */
void rp_placement_take_input(RpPlacement *placement, RpPart *part);
void rp_placement_take_output(RpPlacement *placement, RpPart *part);
void rp_placement_take_gradient(RpPlacement *placement, RpPart *part);
void rp_placement_take_input_gradient(RpPlacement *placement, RpPart *part);
void rp_placement_take_kept(RpPlacement *placement, RpPart *part);
/* The action stands: buffers that it was the last to read are free, and its window is known. */
void rp_placement_release(RpPlacement *placement, const RpPart *forward, const RpPart *backward,
                          const RpActionProducts *made);
