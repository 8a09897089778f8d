/* The table of architectures and losses of the caller's program, and what follows from a row. */
#include "core/catalogue/custom.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/catalogue/catalogue.h"

#define MOST_ADDED 64

static const RpCustomArchitecture *architectures[MOST_ADDED + 1];
static const RpLoss *losses[MOST_ADDED + 1];

static gboolean
is_name(const char *name)
{
    return name != NULL && *name != '\0' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(name);
}

/* Both tables hold pointers to rows whose first member is their name. */
static guint
count(const void *const *rows, const char *name, gboolean *taken)
{
    guint n = 0;

    for (*taken = FALSE; rows[n] != NULL; n++)
        *taken = *taken || g_str_equal(*(const char *const *)rows[n], name);
    return n;
}

static gboolean
add(const void **rows, const void *row, const char *name, const char *fault, const char *what,
    GError **error)
{
    gboolean taken = FALSE;
    const guint n = is_name(name) ? count(rows, name, &taken) : 0;

    fault = !is_name(name)    ? "expected a name of small letters, digits and hyphens"
            : taken           ? "expected a name that no other has"
            : n == MOST_ADDED ? "expected 64 of a program at most"
                              : fault;
    if (fault == NULL)
        rows[n] = row;
    else
        g_set_error(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_MODEL, "%s \"%s\": %s", what,
                    name != NULL ? name : "", fault);
    return fault == NULL;
}

static gboolean
is_layer(const RpCustomLayer *layer)
{
    return layer != NULL && layer->tensors != NULL && layer->forward != NULL &&
           layer->backward != NULL;
}

gboolean
rp_architecture_add(const RpCustomArchitecture *row, GError **error)
{
    g_return_val_if_fail(row != NULL, FALSE);

    const char *fault =
        !is_layer(row->input) || !is_layer(row->block) || !is_layer(row->output)
            ? "expected input, block and output, each with tensors, forward and backward"
        : row->loss == NULL || row->loss->host == NULL ? "expected a loss"
        : row->labels == 0                             ? "expected one label or more"
        : row->dtypes == 0 || row->dtypes >> RP_N_DTYPES != 0
            ? "expected dtypes of fp32, bf16 and fp16"
            : NULL;

    return add((const void **)architectures, row, row->name, fault, "architecture", error);
}

gboolean
rp_loss_add(const RpLoss *loss, GError **error)
{
    g_return_val_if_fail(loss != NULL, FALSE);

    return add((const void **)losses, loss, loss->name,
               loss->host == NULL ? "expected a function over arrays of the host" : NULL, "loss",
               error);
}

const RpCustomArchitecture *
rp_architecture_nth(guint index)
{
    return index < MOST_ADDED ? architectures[index] : NULL;
}

const RpLoss *
rp_loss_find(const char *name, GError **error)
{
    const char *names[MOST_ADDED + 2] = {"cross_entropy"};

    g_return_val_if_fail(name != NULL, NULL);
    for (guint i = 0; losses[i] != NULL; i++) {
        if (g_str_equal(losses[i]->name, name))
            return losses[i];
        names[i + 1] = losses[i]->name;
    }
    g_autofree char *all = g_strjoinv(", ", (char **)names);
    g_autofree char *quoted = rp_quote(name);

    return rp_null(
        rp_fail(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_MODEL,
                "loss: expected one of %s, or one that a program adds (docs/library.md), found %s",
                all, quoted));
}

/* ---- a model with such an architecture ---- */

const RpCustomLayer *
rp_custom_layer(const RpModel *model, guint layer)
{
    return layer == 0                   ? model->custom->input
           : layer == model->blocks + 1 ? model->custom->output
                                        : model->custom->block;
}

RpCustomShape
rp_custom_shape(const RpModel *model, guint layer)
{
    return (RpCustomShape){.words = model->max_positions,
                           .hidden = model->hidden,
                           .inner = model->intermediate,
                           .outputs = model->vocab,
                           .blocks = model->blocks,
                           .block = layer > 0 ? layer - 1 : 0};
}

static guint
tensors_of(const RpModel *model, guint layer, RpCustomTensor *tensors)
{
    const RpCustomShape shape = rp_custom_shape(model, layer);
    const guint n = rp_custom_layer(model, layer)->tensors(&shape, tensors);

    g_return_val_if_fail(n <= RP_CUSTOM_MOST_TENSORS, 0);
    return n;
}

guint
rp_custom_class(const RpModel *model, guint layer)
{
    RpCustomTensor own[RP_CUSTOM_MOST_TENSORS] = {{0}}, others[RP_CUSTOM_MOST_TENSORS] = {{0}};
    const guint n = tensors_of(model, layer, own);
    guint first = 1, same = 0;

    for (; first < layer; first++) {
        same = tensors_of(model, first, others) == n ? 0 : n + 1;
        while (same < n && own[same].rank == others[same].rank &&
               memcmp(own[same].dims, others[same].dims, sizeof own[same].dims) == 0)
            same++;
        if (same == n)
            break;
    }
    return first;
}

void
rp_custom_add_weights(const RpModel *model, guint layer, GStringChunk *names, GArray *weights)
{
    RpCustomTensor tensors[RP_CUSTOM_MOST_TENSORS] = {{0}};
    const guint n = tensors_of(model, layer, tensors);
    g_autofree char *prefix = layer == 0 ? g_strdup("input")
                              : layer == model->blocks + 1
                                  ? g_strdup("output")
                                  : g_strdup_printf("blocks.%u", layer - 1);

    for (guint i = 0; i < n; i++) {
        RpWeight weight = {.kind = (RpWeightKind)i,
                           .layer = layer,
                           .rank = tensors[i].rank,
                           .elements = 1,
                           .norm = tensors[i].start > 0,
                           .deviation = tensors[i].deviation,
                           .trained = TRUE};
        for (guint d = 0; d < RP_WEIGHT_MAX_RANK; d++) {
            weight.shape[d] = d < weight.rank ? tensors[i].dims[d] : 1;
            weight.elements *= weight.shape[d];
        }
        if (names != NULL) {
            g_autofree char *name = g_strconcat(prefix, ".", tensors[i].name, NULL);

            weight.name = g_string_chunk_insert(names, name);
        }
        g_array_append_val(weights, weight);
    }
}
