#include "exec/data/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/quote.h"
#include "core/base/threads.h"
#include "exec/data/dataset.h"

#define PIECE_BYTES ((gsize)1 << 24)

struct _RpDataBytes {
    char *name;
    GBytes *memory; /* NULL of a file */
    const guint8 *start;
    int fd; /* -1 of memory */
    guint64 length;
    struct timespec changed; /* st_mtim */
};

RpDataBytes *
rp_data_bytes_open(const char *path, GError **error)
{
    struct stat status;

    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    int fd = rp_file_open(path, &status, error);
    if (fd < 0)
        return NULL;
    RpDataBytes *bytes = g_new0(RpDataBytes, 1);
    bytes->name = rp_display_name(path);
    bytes->fd = fd;
    bytes->length = (guint64)status.st_size;
    bytes->changed = status.st_mtim;
    return bytes;
}

RpDataBytes *
rp_data_bytes_new(const char *name, GBytes *memory)
{
    RpDataBytes *bytes = g_new0(RpDataBytes, 1);
    gsize length;

    bytes->name = g_strdup(name);
    bytes->memory = g_bytes_ref(memory);
    bytes->start = g_bytes_get_data(memory, &length);
    bytes->fd = -1;
    bytes->length = length;
    return bytes;
}

void
rp_data_bytes_free(RpDataBytes *bytes)
{
    if (bytes == NULL)
        return;
    if (bytes->fd >= 0)
        close(bytes->fd);
    g_clear_pointer(&bytes->memory, g_bytes_unref);
    g_free(bytes->name);
    g_free(bytes);
}

const char *
rp_data_bytes_name(const RpDataBytes *bytes)
{
    return bytes->name;
}

guint64
rp_data_bytes_length(const RpDataBytes *bytes)
{
    return bytes->length;
}

static gboolean
fail_errno(const RpDataBytes *bytes, int number, GError **error)
{
    g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(number),
                "%s: cannot be read: %s", bytes->name, g_strerror(number));
    return FALSE;
}

static gboolean
fail_shorter(const RpDataBytes *bytes, guint64 found, GError **error)
{
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                "%s: expected %" G_GUINT64_FORMAT
                " bytes, as there were at the start, found %" G_GUINT64_FORMAT
                ": the file was cut short while it was read",
                bytes->name, bytes->length, found);
    return FALSE;
}

/* All @n bytes of a file into @to. */
static gboolean
read_all(const RpDataBytes *bytes, guint64 offset, gsize n, guint8 *to, GError **error)
{
    for (gsize done = 0; done < n;) {
        gssize got = pread(bytes->fd, to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(bytes, errno, error);
        if (got == 0)
            return fail_shorter(bytes, offset + done, error);
        done += (gsize)got;
    }
    return TRUE;
}

const guint8 *
rp_data_bytes_get(const RpDataBytes *bytes, guint64 offset, gsize n, guint8 **scratch,
                  GError **error)
{
    *scratch = NULL;
    g_return_val_if_fail(offset <= bytes->length && n <= bytes->length - offset, NULL);

    if (bytes->memory != NULL)
        return n > 0 ? bytes->start + offset : (const guint8 *)"";
    g_autofree guint8 *memory = g_malloc(MAX(n, 1));
    if (!read_all(bytes, offset, n, memory, error))
        return NULL;
    *scratch = g_steal_pointer(&memory);
    return *scratch;
}

/* ---- all of it ---- */

typedef struct {
    const RpDataBytes *bytes;
    guint64 *hashes; /* one for each piece */
} Hashing;

/* RpPieceFunc. @data: Hashing */
static gboolean
hash_piece(guint i, gpointer data, GError **error)
{
    const Hashing *hashing = data;
    const RpDataBytes *bytes = hashing->bytes;
    const guint64 offset = (guint64)i * PIECE_BYTES;
    const gsize n = (gsize)MIN(PIECE_BYTES, bytes->length - offset);
    g_autofree guint8 *scratch = NULL;
    const guint8 *piece = rp_data_bytes_get(bytes, offset, n, &scratch, error);

    if (piece != NULL)
        hashing->hashes[i] = GUINT64_TO_LE(rp_hash64(piece, n, i));
    return piece != NULL;
}

gboolean
rp_data_bytes_hash(const RpDataBytes *bytes, guint64 *hash, GError **error)
{
    const guint n = (guint)((bytes->length + PIECE_BYTES - 1) / PIECE_BYTES);
    g_autofree guint64 *hashes = g_new0(guint64, n + 1);
    Hashing hashing = {.bytes = bytes, .hashes = hashes};

    if (!rp_run_pieces(n, hash_piece, &hashing, error))
        return FALSE;
    *hash = rp_hash64(hashes, n * sizeof *hashes, bytes->length);
    return TRUE;
}

gboolean
rp_data_bytes_check_unchanged(const RpDataBytes *bytes, GError **error)
{
    struct stat status;

    if (bytes->memory != NULL)
        return TRUE;
    if (fstat(bytes->fd, &status) != 0)
        return fail_errno(bytes, errno, error);
    if ((guint64)status.st_size < bytes->length)
        return fail_shorter(bytes, (guint64)status.st_size, error);
    if ((guint64)status.st_size == bytes->length &&
        status.st_mtim.tv_sec == bytes->changed.tv_sec &&
        status.st_mtim.tv_nsec == bytes->changed.tv_nsec)
        return TRUE;
    g_set_error(
        error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
        "%s: expected the file as it was at the start, found %s: samples may be others than "
        "were checked, and a resume will ask for the file as it was",
        bytes->name,
        (guint64)status.st_size == bytes->length ? "it written to since" : "it grown since");
    return FALSE;
}

G_DEFINE_QUARK(rp_dataset_error, rp_dataset_error)
