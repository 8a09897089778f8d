/* The optimizer's state of whole layers: cut into shares, and put together. */
#include "exec/shares/private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of RpOptimizerState: weight, two moments, and their scales. */
#define ARRAYS 5
#define ALIGNMENT ((gsize)64)

struct _RpSharesState {
    guint n_layers;
    RpOptimizerState *whole; /* [n_layers] */
    guint8 *memory;          /* of a file without a name; NULL: none */
    gsize bytes;
};

static const gsize members[ARRAYS] = {
    G_STRUCT_OFFSET(RpOptimizerState, weight), G_STRUCT_OFFSET(RpOptimizerState, moment1),
    G_STRUCT_OFFSET(RpOptimizerState, moment2), G_STRUCT_OFFSET(RpOptimizerState, scale1),
    G_STRUCT_OFFSET(RpOptimizerState, scale2)};

static guint8 *
array_of(const RpOptimizerState *state, guint array)
{
    guint8 *data;

    memcpy(&data, (const guint8 *)state + members[array], sizeof data);
    return data;
}

static void
set_array(RpOptimizerState *state, guint array, const void *data)
{
    memcpy((guint8 *)state + members[array], &data, sizeof data);
}

/* Bytes of an array of @n parameters; 0: the form has none. Shares begin with blocks of scales. */
static gsize
bytes_of(RpOptimizerForm form, guint array, guint64 n)
{
    if (array == 0)
        return (gsize)n * rp_moment_bytes(form.master);
    if ((array - 1) % 2 >= rp_optimizer_moments(form))
        return 0;
    return array < 3 ? (gsize)n * rp_moment_bytes(form.moments)
                     : (gsize)rp_moment_scales(form.moments, 0, n) * sizeof(float);
}

static gsize
room_of(gsize bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

RpOptimizerState
rp_shares_cut(const RpShares *shares, guint layer, const RpOptimizerState *whole)
{
    const RpShard share = rp_shares_own(shares, layer);
    RpOptimizerState cut = *whole;

    cut.n_parameters = share.n;
    for (guint a = 0; a < ARRAYS; a++)
        if (bytes_of(whole->form, a, whole->n_parameters) > 0)
            set_array(&cut, a, array_of(whole, a) + bytes_of(whole->form, a, share.first));
    return cut;
}

/* ---- put together ---- */

static gboolean
fail_file(const char *directory, const char *what, GError **error)
{
    const int number = errno;

    g_set_error(error, G_FILE_ERROR, g_file_error_from_errno(number),
                "%s: cannot %s for the optimizer state of all servers: %s", directory, what,
                g_strerror(number));
    return FALSE;
}

/* The system writes what memory has no room for to the disk, instead of ending the process. */
static gboolean
map_file(RpSharesState *state, const char *directory, GError **error)
{
    g_autofree char *path = g_build_filename(directory, ".servers-XXXXXX", NULL);
    const int fd = g_mkstemp(path);
    void *memory = MAP_FAILED;

    if (fd < 0)
        return fail_file(directory, "make a file", error);
    (void)unlink(path);
    errno = posix_fallocate(fd, 0, (off_t)state->bytes);
    if (errno == 0)
        memory = mmap(NULL, state->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        (void)fail_file(directory, "make room in a file", error);
    else
        state->memory = memory;
    close(fd);
    return memory != MAP_FAILED;
}

/* Places of all arrays of all layers, one after the other. */
static gboolean
make_room(RpSharesState *state, const RpShares *shares, const RpOptimizerState *states,
          const char *directory, GError **error)
{
    for (guint l = 0; l < state->n_layers; l++) {
        const guint64 n = shares->layers[l].own;

        state->whole[l] = states[l];
        state->whole[l].n_parameters = n;
        for (guint a = states[l].form.shared ? 1 : 0; a < ARRAYS; a++)
            state->bytes += room_of(bytes_of(states[l].form, a, n));
    }
    if (state->bytes == 0)
        return TRUE;
    if (!map_file(state, directory, error))
        return FALSE;
    gsize at = 0;

    for (guint l = 0; l < state->n_layers; l++)
        for (guint a = states[l].form.shared ? 1 : 0; a < ARRAYS; a++) {
            const gsize bytes = bytes_of(states[l].form, a, shares->layers[l].own);

            if (bytes > 0)
                set_array(&state->whole[l], a, state->memory + at);
            at += room_of(bytes);
        }
    return TRUE;
}

/* One layer to server 0. */
static gboolean
gather_layer(RpSharesState *state, const RpShares *shares, guint layer, const RpOptimizerState *own,
             GError **error)
{
    RpOptimizerState *whole = &state->whole[layer];
    const RpShard share = rp_shares_own(shares, layer);
    g_autoptr(GArray) sends = g_array_new(FALSE, TRUE, sizeof(RpServersBlock));
    g_autoptr(GArray) receives = g_array_new(FALSE, TRUE, sizeof(RpServersBlock));

    for (guint a = own->form.shared ? 1 : 0; a < ARRAYS; a++) {
        const RpServersBlock sent = {0, array_of(own, a), bytes_of(own->form, a, share.n)};

        if (shares->rank > 0 && sent.bytes > 0)
            g_array_append_val(sends, sent);
        for (guint r = 1; shares->rank == 0 && r < shares->count; r++) {
            const RpShard of = rp_shard(shares->layers[layer].own, shares->count, r);
            const RpServersBlock block = {r, array_of(whole, a) + bytes_of(own->form, a, of.first),
                                          bytes_of(own->form, a, of.n)};

            if (block.bytes > 0)
                g_array_append_val(receives, block);
        }
        if (shares->rank == 0 && sent.bytes > 0)
            memcpy(array_of(whole, a), sent.data, sent.bytes);
    }
    return rp_servers_exchange(
        shares->options.servers, RP_SERVERS_CONTROL, (const RpServersBlock *)(void *)sends->data,
        sends->len, (const RpServersBlock *)(void *)receives->data, receives->len, error);
}

/* All learn whether server 0 has room. */
static gboolean
agree(const RpShares *shares, const GError *problem, GError **error)
{
    g_auto(GStrv) told = rp_servers_gather_texts(shares->options.servers, RP_SERVERS_CONTROL,
                                                 problem != NULL ? problem->message : "", error);

    if (told == NULL)
        return FALSE;
    if (problem != NULL)
        g_propagate_error(error, g_error_copy(problem));
    else if (*told[0] != '\0')
        g_set_error_literal(error, G_FILE_ERROR, G_FILE_ERROR_FAILED, told[0]);
    return *told[0] == '\0';
}

RpSharesState *
rp_shares_gather_state(RpShares *shares, const RpOptimizerState *states, const char *directory,
                       GError **error)
{
    g_autoptr(RpSharesState) state = g_new0(RpSharesState, 1);
    g_autoptr(GError) problem = NULL;

    state->n_layers = shares->options.n_layers;
    state->whole = g_new0(RpOptimizerState, state->n_layers);
    if (shares->rank == 0 && !make_room(state, shares, states, directory, &problem))
        g_assert(problem != NULL);
    if (!agree(shares, problem, error))
        return NULL;
    for (guint l = 0; l < state->n_layers; l++)
        if (shares->layers[l].own > 0 && !gather_layer(state, shares, l, &states[l], error))
            return NULL;
    return g_steal_pointer(&state);
}

void
rp_shares_state_free(RpSharesState *state)
{
    if (state == NULL)
        return;
    if (state->memory != NULL)
        (void)munmap(state->memory, state->bytes);
    g_free(state->whole);
    g_free(state);
}

RpOptimizerState
rp_shares_state(const RpSharesState *state, guint layer)
{
    return state->whole[layer];
}
