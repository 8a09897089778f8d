/**
 * A checkpoint that several servers write together.
 *
 *   server 0   space, directory| its part | sums |      model ......      | small files, manifest, name
 *   server 1                   | its part | sums | rounded weights -> 0   |
 *   server 2                   | its part | sums | rounded weights -> 0   |
 *                              ^                 ^                                                     ^
 *                              all agree that nobody has failed: on all the same error, or none
 *
 * Parts are of masters and moments: 12 bytes a parameter, divided by the servers. The model goes through
 * server 0 in pieces; its elements stand in the file as they follow each other in the servers' parts.
 */
#include "exec/checkpoint/private.h"

#include <string.h>

#include "core/base/quote.h"

/* Elements that are sent at a time. */
#define SENT_ELEMENTS ((guint64)1 << 21)

/* Message of a server: that it has failed and why, or its report. */
enum { GOOD = '=', FULL = '+', FAILED = '-' };

/* ---- agreement ---- */

static char *
say(const GError *problem, const char *told)
{
    if (problem == NULL)
        return g_strdup_printf("%c%s", GOOD, told);
    return g_strdup_printf(
        "%c%s",
        g_error_matches(problem, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE) ? FULL : FAILED,
        problem->message);
}

/* Lets all know whether one has failed, and each one's report; the first problem becomes that of
 * all.
 * @problem: (nullable) (transfer full): of this server. Returns: (transfer full): the reports */
static GStrv
agree(const RpCheckpointSave *save, GError *problem, const char *told, GError **error)
{
    RpServers *servers = save->image->servers;
    g_autoptr(GError) own = problem, explained = NULL;

    if (own != NULL && own->domain == RP_SERVERS_ERROR) /* nothing can be said any more */
        return rp_null(rp_propagate_error(error, g_steal_pointer(&own)));
    if (own != NULL)
        rp_checkpoint_save_explain(save, own, &explained);
    g_autofree char *said = say(explained, told);
    g_auto(GStrv) texts = rp_servers_gather_texts(servers, RP_SERVERS_SAVING, said, error);

    if (texts == NULL)
        return NULL;
    for (guint r = 0; r < save->image->n_servers; r++) {
        char *text = texts[r];

        if (*text == GOOD) {
            memmove(text, text + 1, strlen(text));
            continue;
        }
        return rp_null(rp_fail(
            error, RP_CHECKPOINT_ERROR,
            *text == FULL ? RP_CHECKPOINT_ERROR_NO_SPACE : RP_CHECKPOINT_ERROR_WRITE, "%s%s%s",
            r > 0 ? rp_servers_name(servers, r) : "", r > 0 ? ": " : "", text + 1));
    }
    return g_steal_pointer(&texts);
}

static gboolean
agree_that(const RpCheckpointSave *save, gboolean good, GError *problem, GError **error)
{
    g_assert(good == (problem == NULL));
    g_auto(GStrv) told = agree(save, problem, "", error);

    return told != NULL;
}

gboolean
rp_checkpoint_as_first(const RpCheckpointImage *image, gboolean *yes, GError **error)
{
    g_auto(GStrv) all =
        rp_servers_gather_texts(image->servers, RP_SERVERS_SAVING, *yes ? "yes" : "", error);

    *yes = all != NULL && *all[0] != '\0';
    return all != NULL;
}

/* ---- the model ---- */

typedef struct {
    const RpCheckpointSave *save;
    RpCheckpointPiece piece;
    float *whole; /* on server 0: a weight whose elements the file has in another order; or %NULL */
    /* error of writing it: the others' messages are received to the end all the same */
    GError *problem;
} Stream;

/* Elements from @first on, of the part that is here, in the file's dtype. */
static void
round_own(const Stream *stream, guint index, guint64 first, gsize n)
{
    const RpCheckpointSave *save = stream->save;
    const RpOptimizerState *state = &save->image->numbers[index].state;
    const guint64 begin = rp_checkpoint_image_share(save->image, index, save->image->server).first;
    const guint8 *values =
        (const guint8 *)state->weight + (first - begin) * rp_moment_bytes(state->form.master);

    rp_dtype_to_float(state->form.master == RP_MOMENTS_FP32 ? RP_DTYPE_FP32 : RP_DTYPE_BF16, values,
                      stream->piece.wide, n);
    rp_dtype_from_float(save->model_dtype, stream->piece.wide, stream->piece.rounded, n);
}

/* Sends @n elements from their server to the first. */
static gboolean
pass(const Stream *stream, guint server, gsize n, GError **error)
{
    const RpCheckpointImage *image = stream->save->image;
    const gsize bytes = n * rp_dtype_size(stream->save->model_dtype);
    const gboolean sends = image->server == server;
    const RpServersBlock block = {sends ? 0 : server, stream->piece.rounded, bytes};

    if (server == 0 || (!sends && image->server > 0))
        return TRUE;
    return rp_servers_exchange(image->servers, RP_SERVERS_SAVING, sends ? &block : NULL, sends,
                               sends ? NULL : &block, !sends, error);
}

/* On server 0: writes the elements that it received. */
static void
take(Stream *stream, const RpWeight *weight, guint tensor, guint64 first, gsize n)
{
    const RpCheckpointSave *save = stream->save;
    const gsize size = rp_dtype_size(save->model_dtype);

    if (stream->problem != NULL)
        return;
    if (stream->whole != NULL)
        memcpy(stream->whole + first, stream->piece.rounded, n * size);
    else if (rp_checkpoint_check_finite(save->path, weight, save->model_dtype,
                                        stream->piece.rounded, n, stream->piece.wide,
                                        &stream->problem))
        (void)!rp_safetensors_writer_write(save->model, tensor, stream->piece.rounded, n * size,
                                           &stream->problem);
}

/* A weight that is trained: all servers, part by part. */
static gboolean
stream_weight(Stream *stream, guint index, guint tensor, GError **error)
{
    const RpCheckpointImage *image = stream->save->image;
    const RpWeight *weight = rp_weights_nth(image->weights, index);
    const gboolean first = image->server == 0;
    g_autofree float *whole = NULL;

    if (first && rp_weights_lora(image->weights) != NULL && rp_adapter_is_transposed(weight))
        whole = g_new(float, weight->elements);
    stream->whole = whole;
    for (guint r = 0; r < image->n_servers; r++) {
        const RpShard part = rp_checkpoint_image_share(image, index, r);

        for (guint64 at = part.first; at < part.first + part.n; at += SENT_ELEMENTS) {
            const gsize n = (gsize)MIN(SENT_ELEMENTS, part.first + part.n - at);

            if (image->server == r)
                round_own(stream, index, at, n);
            if (!pass(stream, r, n, error))
                return FALSE;
            if (first)
                take(stream, weight, tensor, at, n);
        }
    }
    if (whole != NULL && stream->problem == NULL)
        (void)!rp_checkpoint_write_rounded(stream->save, weight, tensor, whole, RP_DTYPE_FP32,
                                           &stream->piece, &stream->problem);
    return TRUE;
}

static gboolean
stream_weights(Stream *stream, GError **error)
{
    const RpCheckpointSave *save = stream->save;
    guint tensor = 0;

    for (guint i = 0; i < rp_weights_count(save->weights); i++) {
        const RpWeight *weight = rp_weights_nth(save->weights, i);

        if (!rp_checkpoint_has_weight(save->weights, weight))
            continue;
        if (rp_weight_has_state(weight)) {
            if (!stream_weight(stream, i, tensor, error))
                return FALSE;
        } else if (save->model != NULL && stream->problem == NULL)
            (void)!rp_checkpoint_write_frozen(save, i, tensor, &stream->problem);
        tensor++;
    }
    return TRUE;
}

/* Returns: %FALSE with an error of this server, which others do not know of. */
static gboolean
write_model(RpCheckpointSave *save, GError **error)
{
    g_autofree float *wide = g_new(float, SENT_ELEMENTS);
    g_autofree guint8 *rounded = g_malloc(SENT_ELEMENTS * sizeof(float));
    Stream stream = {.save = save, .piece = {wide, rounded}};

    if (save->image->server == 0)
        (void)!rp_checkpoint_begin_model(save, &stream.problem);
    if (!stream_weights(&stream, error)) {
        g_clear_error(&stream.problem);
        return FALSE;
    }
    if (stream.problem != NULL)
        return rp_propagate_error(error, stream.problem);
    return save->model == NULL || rp_checkpoint_finish_model(save, error);
}

/* ---- all of it ---- */

/* Prepares the output directory; files stay under their temporary name until all servers agree. */
static gboolean
begin(RpCheckpointSave *save, GError **error)
{
    const char *output = save->options->output;
    GError *problem = NULL;
    gboolean good = TRUE;

    if (save->image->server == 0) {
        good = rp_checkpoint_make_output(output, &problem);
        if (good)
            rp_checkpoint_remove_leftovers(output);
        good = good && rp_checkpoint_save_begin(save, &problem);
    }
    return agree_that(save, good, problem, error);
}

/* Writes the own part of the state. Returns: (transfer full): sizes and checksums of all servers'
 * files */
static GStrv
write_parts(RpCheckpointSave *save, GError **error)
{
    const RpCheckpointImage *image = save->image;
    g_autofree char *own = NULL;
    GError *problem = NULL;

    if (save->weights_only)
        return agree(save, NULL, "", error);
    if (rp_checkpoint_begin_state(save, &problem) && rp_checkpoint_write_tensors(save, &problem))
        own =
            rp_checkpoint_manifest_own(save->temporary, image->server, image->n_servers, &problem);
    return agree(save, problem, own, error);
}

/* On server 0: writes the small files and the manifest, and gives the directory its name. */
static gboolean
finish(RpCheckpointSave *save, char *const *told, GError **error)
{
    const RpCheckpointOptions *options = save->options;

    if (save->image->server > 0)
        return TRUE;
    return rp_checkpoint_write_small(options, save->image, save->temporary, error) &&
           (save->weights_only ||
            (rp_checkpoint_write_state(options, save->image, save->temporary, error) &&
             rp_checkpoint_manifest_write(save->temporary, save->image, told, error))) &&
           rp_checkpoint_publish(options->output, save->temporary, save->path, error);
}

static gboolean
write_all(RpCheckpointSave *save, GError **error)
{
    g_auto(GStrv) told = NULL;
    GError *problem = NULL;

    if (!begin(save, error) || (told = write_parts(save, error)) == NULL)
        return FALSE;
    gboolean good = write_model(save, &problem);
    good = good && finish(save, told, &problem);
    return agree_that(save, good, problem, error);
}

gboolean
rp_checkpoint_save_together(RpCheckpointSave *save, GError **error)
{
    const gboolean good = write_all(save, error);

    if (!good && save->image->server == 0)
        (void)rp_checkpoint_remove_tree(save->temporary);
    return good;
}
