/**
 * A checkpoint written from a copy, in a thread of its own, while training continues.
 *
 *   caller   step | copy | step | step | step | step        | wait | copy | step
 *   writer               |  tensors, small files, name, older ones  |     |  tensors ...
 *
 * The copy is read by the writer alone from begin to end, and written by the caller outside of it.
 */
#include "core/base/threads.h"
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Arrays of the copy begin at multiples, so that threads share no line. */
#define ALIGNMENT 64
/* Each of a part's arrays is padded up to such a multiple. */
#define MOST_PADDING ((guint64)(6 * ALIGNMENT))
/* Bytes that a thread copies at a time. */
#define PIECE_BYTES ((gsize)4 << 20)
/* Training goes first where both want a processor. */
#define WRITER_NICE 10

struct _RpCheckpointBeside {
    guint8 *memory;
    gsize bytes;
    pthread_t thread;
    gboolean writing;
    atomic_bool over; /* the thread has nothing left to do but to end */
    /* the write under way: the writer owns these until it has ended */
    char *output;
    char *model_dir;
    char *base;
    char *card;
    RpCheckpointOptions options;
    RpCheckpointImage image; /* into @memory */
    RpCheckpointWritten written;
};

/* ---- bytes, in several threads ---- */

typedef struct {
    guint8 *to;
    const guint8 *from; /* %NULL: zeros */
    gsize bytes;
} Piece;

static void
add_pieces(GArray *pieces, guint8 *to, const void *from, gsize bytes)
{
    for (gsize at = 0; at < bytes; at += PIECE_BYTES) {
        const Piece piece = {.to = to + at,
                             .from = from != NULL ? (const guint8 *)from + at : NULL,
                             .bytes = MIN(PIECE_BYTES, bytes - at)};
        g_array_append_val(pieces, piece);
    }
}

static gboolean
copy_piece(guint i, gpointer pieces, GError **error)
{
    const Piece *piece = &g_array_index((const GArray *)pieces, Piece, i);

    if (piece->from != NULL)
        memcpy(piece->to, piece->from, piece->bytes);
    else
        memset(piece->to, 0, piece->bytes);
    return TRUE;
}

static void
copy_pieces(GArray *pieces)
{
    (void)rp_run_pieces(pieces->len, copy_piece, pieces, NULL);
}

/* ---- the copy ---- */

static gsize
aligned(guint64 bytes)
{
    return (gsize)((bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static guint64
weight_bytes(const RpWeight *weight, RpDtype dtype, RpStateFormat form, gboolean async)
{
    guint64 sum = async ? aligned(weight->elements * rp_dtype_size(dtype)) : 0;

    for (guint k = 0; k < rp_checkpoint_n_state_tensors(form); k++)
        sum += aligned(rp_checkpoint_state_bytes(weight, form, k));
    return sum;
}

/* Bounds a share of the layer: it has as many elements as the largest share, and each weight has arrays of its own. */
static guint64
layer_bytes(const RpWeights *weights, guint layer, RpDtype dtype, RpStateFormat form,
            gboolean async, guint n_servers)
{
    guint first;
    const guint n = rp_weights_layer(weights, layer, &first);
    guint64 sum = 0, elements = 0;
    RpWeight none = {.rank = 1, .shape = {0}}, share = none;

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!rp_weight_has_state(weight))
            continue;
        sum += n_servers > 1 ? weight_bytes(&none, dtype, form, async) + MOST_PADDING
                             : weight_bytes(weight, dtype, form, async);
        elements += weight->elements + ALIGNMENT; /* and a gap */
    }
    if (n_servers == 1 || elements == 0)
        return sum;
    share.shape[0] = share.elements = rp_shard_most(elements, n_servers);
    return sum + weight_bytes(&share, dtype, form, async);
}

guint64
rp_checkpoint_copy_bytes(const RpWeights *weights, RpDtype dtype, RpStateFormat form,
                         gboolean async, guint n_servers)
{
    guint64 sum = 0;

    for (guint l = 0; l < rp_weights_n_layers(weights); l++)
        sum += layer_bytes(weights, l, dtype, form, async, n_servers);
    return sum;
}

RpCheckpointBeside *
rp_checkpoint_beside_new(guint64 bytes, GError **error)
{
    RpCheckpointBeside *beside = g_new0(RpCheckpointBeside, 1);
    g_autoptr(GArray) touching = g_array_new(FALSE, FALSE, sizeof(Piece));
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        g_set_error(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_MEMORY,
                    "a copy of weights and optimizer state needs %" G_GUINT64_FORMAT
                    " bytes of host memory: %s",
                    bytes, g_strerror(errno));
        g_free(beside);
        return NULL;
    }
    beside->memory = memory;
    beside->bytes = bytes;
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* fewer faults, where there are such pages */
    add_pieces(touching, beside->memory, NULL, bytes);
    copy_pieces(touching);
    return beside;
}

void
rp_checkpoint_beside_free(RpCheckpointBeside *beside)
{
    RpCheckpointWritten written;

    if (beside == NULL)
        return;
    if (beside->writing) {
        rp_checkpoint_beside_end(beside, &written);
        rp_checkpoint_written_clear(&written);
    }
    (void)munmap(beside->memory, beside->bytes);
    g_free(beside);
}

/* Puts the next array of the copy in the place of @from. */
static const void *
move(GArray *copying, guint8 **at, const void *from, gsize bytes)
{
    guint8 *to = *at;

    add_pieces(copying, to, from, bytes);
    *at += aligned(bytes);
    return to;
}

static void
take(RpCheckpointBeside *beside, RpTrainer *trainer, const RpDataState *data)
{
    RpCheckpointImage *image = &beside->image;
    guint8 *at = beside->memory;
    g_autoptr(GArray) copying = g_array_new(FALSE, FALSE, sizeof(Piece));

    rp_checkpoint_image_take(image, trainer, beside->options.servers, data);
    for (guint i = 0; i < rp_weights_count(image->weights); i++) {
        const RpWeight part = rp_checkpoint_image_part(image, i);
        RpCheckpointNumbers *numbers = &image->numbers[i];
        RpOptimizerState *state = &numbers->state;
        if (!rp_weight_has_state(&part) || part.elements == 0)
            continue;
        for (guint k = 0; k < rp_checkpoint_n_state_tensors(state->form); k++) {
            const RpCheckpointTensor tensor =
                rp_checkpoint_state_tensor(&part, state->form, state->first, k);
            const void *from = rp_checkpoint_state_data(&tensor, state);

            rp_checkpoint_state_set_data(&tensor, state, move(copying, &at, from, tensor.bytes));
        }
        if (numbers->next != NULL)
            numbers->next = move(copying, &at, numbers->next,
                                 (gsize)part.elements * rp_dtype_size(image->dtype));
    }
    g_assert(at <= beside->memory + beside->bytes);
    copy_pieces(copying);
}

/* ---- the writer ---- */

static void *
write_copy(void *data)
{
    RpCheckpointBeside *beside = data;
    RpCheckpointWritten *written = &beside->written;
    const gint64 begin_us = g_get_monotonic_time();

    /* counts for this thread and those that it starts */
    (void)setpriority(PRIO_PROCESS, 0, MAX(WRITER_NICE, getpriority(PRIO_PROCESS, 0)));
    written->path = rp_checkpoint_save_image(&beside->options, &beside->image, &written->removed,
                                             &written->error);
    written->seconds = (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC;
    atomic_store(&beside->over, TRUE);
    return NULL;
}

static void
forget(RpCheckpointBeside *beside)
{
    rp_checkpoint_image_clear(&beside->image);
    g_clear_pointer(&beside->output, g_free);
    g_clear_pointer(&beside->model_dir, g_free);
    g_clear_pointer(&beside->base, g_free);
    g_clear_pointer(&beside->card, g_free);
}

gboolean
rp_checkpoint_beside_begin(RpCheckpointBeside *beside, const RpCheckpointOptions *options,
                           RpTrainer *trainer, const RpDataState *data)
{
    sigset_t all, before;

    g_return_val_if_fail(!beside->writing, FALSE);
    beside->options = *options;
    take(beside, trainer, data);
    beside->output = g_strdup(options->output);
    beside->model_dir = g_strdup(options->model_dir);
    beside->options.output = beside->output;
    beside->options.model_dir = beside->model_dir;
    beside->options.base = beside->base = g_strdup(options->base);
    beside->options.card = beside->card = g_strdup(options->card);
    beside->written = (RpCheckpointWritten){.step = beside->image.state.step};
    atomic_store(&beside->over, FALSE);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&beside->thread, NULL, write_copy, beside);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        forget(beside);
    beside->writing = !failed;
    return beside->writing;
}

gboolean
rp_checkpoint_beside_is_writing(const RpCheckpointBeside *beside)
{
    return beside->writing;
}

gboolean
rp_checkpoint_beside_is_over(const RpCheckpointBeside *beside)
{
    return beside->writing && atomic_load(&beside->over);
}

void
rp_checkpoint_beside_end(RpCheckpointBeside *beside, RpCheckpointWritten *written)
{
    g_return_if_fail(beside->writing);

    pthread_join(beside->thread, NULL);
    beside->writing = FALSE;
    *written = beside->written;
    beside->written = (RpCheckpointWritten){0};
    forget(beside);
}

void
rp_checkpoint_written_clear(RpCheckpointWritten *written)
{
    g_clear_pointer(&written->path, g_free);
    g_clear_pointer(&written->removed, g_free);
    g_clear_error(&written->error);
}
