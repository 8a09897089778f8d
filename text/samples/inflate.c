#include "text/samples/samples.h"

#include <errno.h>
#include <gio/gio.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "core/base/file.h"
#include "core/base/quote.h"

G_DEFINE_QUARK(rp_samples_error, rp_samples_error)

#define PIECE_BYTES ((gsize)1 << 18)
#define CUT_SHORT "the end: the file was cut short"

typedef enum { PLAIN, GZIP, ZSTD } Kind;

struct _RpInflate {
    char *name;
    int fd;
    Kind kind;
    GConverter *gzip;
    ZSTD_DStream *zstd;
    char *piece; /* a piece of the file: */
    gsize from, to;
    guint64 offset;   /* offset of the bytes behind the piece */
    gboolean ended;   /* the file */
    gboolean between; /* members or frames: it may end here */
};

static const struct {
    const char *ending;
    Kind kind;
} endings[] = {{".gz", GZIP}, {".zst", ZSTD}, {".zstd", ZSTD}};

static Kind
kind_of(const char *path, gsize *length)
{
    *length = strlen(path);
    for (guint i = 0; i < G_N_ELEMENTS(endings); i++) {
        if (!g_str_has_suffix(path, endings[i].ending))
            continue;
        *length -= strlen(endings[i].ending);
        return endings[i].kind;
    }
    return PLAIN;
}

char *
rp_inflate_name(const char *path)
{
    gsize length;

    (void)kind_of(path, &length);
    return g_strndup(path, length);
}

RpInflate *
rp_inflate_open(const char *path, GError **error)
{
    struct stat status;
    gsize length;
    const int fd = rp_file_open(path, &status, error);

    if (fd < 0)
        return NULL;
    RpInflate *inflate = g_new0(RpInflate, 1);

    inflate->name = rp_display_name(path);
    inflate->fd = fd;
    inflate->kind = kind_of(path, &length);
    inflate->between = TRUE;
    inflate->piece = g_malloc(PIECE_BYTES);
    if (inflate->kind == GZIP)
        inflate->gzip = G_CONVERTER(g_zlib_decompressor_new(G_ZLIB_COMPRESSOR_FORMAT_GZIP));
    if (inflate->kind == ZSTD)
        inflate->zstd = ZSTD_createDStream();
    return inflate;
}

void
rp_inflate_free(RpInflate *inflate)
{
    if (inflate == NULL)
        return;
    close(inflate->fd);
    g_clear_object(&inflate->gzip);
    ZSTD_freeDStream(inflate->zstd);
    g_free(inflate->piece);
    g_free(inflate->name);
    g_free(inflate);
}

guint64
rp_inflate_offset(const RpInflate *inflate)
{
    return inflate->offset;
}

static gboolean
fill(RpInflate *inflate, GError **error)
{
    gssize got;

    if (inflate->from < inflate->to || inflate->ended)
        return TRUE;
    do
        got = read(inflate->fd, inflate->piece, PIECE_BYTES);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return rp_fail(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno),
                       "%s: cannot be read: %s", inflate->name, g_strerror(errno));
    inflate->from = 0;
    inflate->to = (gsize)got;
    inflate->offset += (guint64)got;
    inflate->ended = got == 0;
    return TRUE;
}

static gboolean
fail(const RpInflate *inflate, const char *found, GError **error)
{
    return rp_fail(error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_FILE,
                   "%s: byte %" G_GUINT64_FORMAT ": expected %s data, found %s", inflate->name,
                   inflate->offset - (inflate->to - inflate->from),
                   inflate->kind == GZIP ? "gzip" : "zstd", found);
}

/* One call of the decompressor. @n: (out): bytes that it made, perhaps none */
static gboolean
inflate_gzip(RpInflate *inflate, char *to, gsize space, gsize *n, GError **error)
{
    g_autoptr(GError) problem = NULL;
    gsize used = 0;
    const GConverterResult result = g_converter_convert(
        inflate->gzip, inflate->piece + inflate->from, inflate->to - inflate->from, to, space,
        inflate->ended ? G_CONVERTER_INPUT_AT_END : G_CONVERTER_NO_FLAGS, &used, n, &problem);

    if (result == G_CONVERTER_ERROR)
        return fail(inflate,
                    g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_PARTIAL_INPUT)
                        ? CUT_SHORT
                        : problem->message,
                    error);
    inflate->from += used;
    inflate->between = result == G_CONVERTER_FINISHED;
    if (inflate->between) /* another member may follow */
        g_converter_reset(inflate->gzip);
    return TRUE;
}

static gboolean
inflate_zstd(RpInflate *inflate, char *to, gsize space, gsize *n, GError **error)
{
    ZSTD_inBuffer in = {inflate->piece, inflate->to, inflate->from};
    ZSTD_outBuffer out = {to, space, 0};
    const size_t left = ZSTD_decompressStream(inflate->zstd, &out, &in);

    if (ZSTD_isError(left))
        return fail(inflate, ZSTD_getErrorName(left), error);
    inflate->from = in.pos;
    inflate->between = left == 0;
    *n = out.pos;
    return TRUE;
}

gboolean
rp_inflate_read(RpInflate *inflate, char *to, gsize space, gsize *n, GError **error)
{
    g_return_val_if_fail(space > 0, FALSE);

    for (*n = 0; *n == 0;) {
        if (!fill(inflate, error))
            return FALSE;
        if (inflate->ended && (inflate->kind == PLAIN || inflate->between))
            return TRUE;
        if (inflate->kind == PLAIN) {
            *n = MIN(space, inflate->to - inflate->from);
            memcpy(to, inflate->piece + inflate->from, *n);
            inflate->from += *n;
            return TRUE;
        }
        if (inflate->ended && inflate->kind == ZSTD) {
            /* output that is left inside, or nothing */
            if (!inflate_zstd(inflate, to, space, n, error))
                return FALSE;
            if (*n == 0)
                return fail(inflate, CUT_SHORT, error);
        } else if (!(inflate->kind == GZIP ? inflate_gzip : inflate_zstd)(inflate, to, space, n,
                                                                          error)) {
            return FALSE;
        }
    }
    return TRUE;
}
