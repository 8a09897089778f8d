/**
 * A layer that is run over and over; run by exec/measure/layers.c in the buffers of buffers.c.
 */
#pragma once

#include "exec/measure/measure.h"

/* Buffers that a call needs. */
enum {
    RP_MEASURE_CONSTANTS,
    RP_MEASURE_PARAMETERS,
    RP_MEASURE_UPLOAD, /* a layer's upload in a network with packed weights */
    RP_MEASURE_INPUT,
    RP_MEASURE_GRADIENT,
    RP_MEASURE_OUTPUT,
    RP_MEASURE_D_INPUT,
    RP_MEASURE_SUMS,
    RP_MEASURE_WORKSPACE,
    RP_MEASURE_SAVED, /* groups of a block's tensors, one after the other */
    RP_MEASURE_TARGETS,
    RP_MEASURE_LOSS,
    RP_N_MEASURE_BUFFERS
};

typedef struct {
    RpProbe *probe;
    const RpNetwork *network;
    gboolean has_fp8; /* as the layer reads its weights */
    guint boundary;
    RpStageCall call; /* with every pointer; parts take theirs */
    void *buffer[RP_N_MEASURE_BUFFERS];
    guint n_copies; /* copies of weights and sums, one after the other in their buffers; > 0 */
    guint copy;     /* the copy in use */
    gsize weights_bytes, sums_bytes; /* from one copy to the next */
    void *d_input;                   /* NULL of layer 0 */
    double routing;                  /* skew of tokens' experts; 0: as they come */
    /* tokens whose embeddings are a block's input; NULL: random states */
    const gint32 *tokens;
} RpMeasuredLayer;

/* for the layer @index of @profile; copies of weights and sums where its memory is the
 * processors'. Errors: the probe's; give_buffers() then gives back the buffers taken so far, too */
gboolean rp_measured_layer_take_buffers(RpMeasuredLayer *layer, const RpProfile *profile,
                                        guint index, GError **error) G_GNUC_WARN_UNUSED_RESULT;

void rp_measured_layer_give_buffers(RpMeasuredLayer *layer);

/* with @weights (nullable: random ones), and layer->call is made */
gboolean rp_measured_layer_fill_buffers(RpMeasuredLayer *layer, const RpWeights *weights,
                                        const RpProfile *profile, guint index,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* other weights and sums for the next part, as a run's next layer has. */
void rp_measured_layer_take_next(RpMeasuredLayer *layer);

/* a part. @data: RpMeasuredLayer */
void rp_measured_layer_expand(gpointer data);
