/**
 * Checksums of files, as they are read back. Several threads take files in rotation, the largest first; shards make the
 * files equal.
 */
#include "core/base/threads.h"
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <unistd.h>

#define PIECE_BYTES ((gsize)1 << 20)

static void
clear_file(gpointer data)
{
    g_free(((RpCheckpointFile *)data)->name);
}

GArray *
rp_checkpoint_files_new(void)
{
    GArray *files = g_array_new(FALSE, TRUE, sizeof(RpCheckpointFile));

    g_array_set_clear_func(files, clear_file);
    return files;
}

typedef struct {
    const char *directory;
    const GArray *files;
    guint *order; /* the largest file first */
    RpCheckpointDigests *digests;
} Digesting;

/* GLib's takes five times as long: it knows no instructions of processors for it. */
static int
digest_file(const char *path, guint8 *piece, char *sha256)
{
    guint8 digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx checksum;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    gssize n;

    if (fd < 0)
        return errno;
    sha256_init(&checksum);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    do {
        n = read(fd, piece, PIECE_BYTES);
        if (n > 0)
            sha256_update(&checksum, (size_t)n, piece);
    } while (n > 0 || (n < 0 && errno == EINTR));
    int number = n < 0 ? errno : 0;
    close(fd);
    sha256_digest(&checksum, sizeof digest, digest);
    for (gsize i = 0; i < sizeof digest; i++)
        g_snprintf(sha256 + 2 * i, 3, "%02x", digest[i]);
    return number;
}

/* RpPieceFunc. @data: Digesting */
static gboolean
digest_one(guint k, gpointer data, GError **error)
{
    const Digesting *digesting = data;
    const guint i = digesting->order[k];
    g_autofree guint8 *piece = g_malloc(PIECE_BYTES);
    g_autofree char *path =
        g_build_filename(digesting->directory, rp_checkpoint_file(digesting->files, i)->name, NULL);

    digesting->digests->number[i] = digest_file(path, piece, digesting->digests->sha256[i]);
    return TRUE;
}

static gint
compare_sizes(gconstpointer a, gconstpointer b, gpointer data)
{
    guint64 x = rp_checkpoint_file(data, *(const guint *)a)->bytes;
    guint64 y = rp_checkpoint_file(data, *(const guint *)b)->bytes;

    return (x < y) - (x > y);
}

static guint *
largest_first(GArray *files)
{
    guint *order = g_new(guint, files->len + 1);

    for (guint i = 0; i < files->len; i++)
        order[i] = i;
    g_qsort_with_data(order, (gint)files->len, sizeof *order, compare_sizes, files);
    return order;
}

RpCheckpointDigests
rp_checkpoint_digest(const char *directory, GArray *files)
{
    RpCheckpointDigests digests = {.sha256 = g_malloc0_n(files->len + 1, RP_CHECKPOINT_SHA256 + 1),
                                   .number = g_new0(int, files->len + 1)};
    g_autofree guint *order = largest_first(files);
    Digesting digesting = {
        .directory = directory, .files = files, .order = order, .digests = &digests};

    (void)rp_run_pieces(files->len, digest_one, &digesting, NULL);
    return digests;
}

void
rp_checkpoint_digests_clear(RpCheckpointDigests *digests)
{
    g_free(digests->sha256);
    g_free(digests->number);
}
