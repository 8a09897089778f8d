#include "exec/cuda/runtime/split.h"

#include <cuda.h>
#include <string.h>

#include "core/base/quote.h"
#include "exec/cuda/runtime/check.h"
#include "exec/cuda/runtime/device.h"

#define MOST_PARTS 16
#define DRIVER_VERSION 12050 /* the first driver with these functions */
/* Hardware queues of a part: streams that share one wait for each other. CUDA has 32 for a process, and fewer are
 * left for each where several processes share a card. */
#define CONNECTIONS 8
#define MOST_CONNECTIONS 32

typedef struct {
    CUgreenCtx green;
    CUcontext context;
    int multiprocessors;
} Part;

/* The driver's functions, which the program is not linked with: it runs where there is no driver. */
typedef struct {
    __typeof__(&cuDeviceGet) device_get;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuCtxSetCurrent) set_current;
    __typeof__(&cuDeviceGetDevResource) get_resource;
    __typeof__(&cuDevSmResourceSplitByCount) split;
    __typeof__(&cuDevResourceGenerateDesc) describe;
    __typeof__(&cuGreenCtxCreate) create;
    __typeof__(&cuCtxFromGreenCtx) context_of;
    __typeof__(&cuGreenCtxStreamCreate) stream_create;
} Driver;

/* As CUDA's own devices are, parts are the process's: written once, before any device is used. */
static struct {
    guint per_card; /* 0: cards are whole */
    guint n_cards;
    guint first; /* first part among all: before it are those of the machine's other servers */
    int multiprocessors[MOST_PARTS]; /* multiprocessors of each card's parts */
    Part *parts;                     /* [n_cards * per_card] */
    Driver driver;
} split;
static _Thread_local int used = -1;

static gboolean
find_driver(Driver *driver, GError **error)
{
    const struct {
        const char *name;
        void *function;
    } names[] = {
        {"cuDeviceGet", &driver->device_get},
        {"cuDevicePrimaryCtxRetain", &driver->retain},
        {"cuCtxSetCurrent", &driver->set_current},
        {"cuDeviceGetDevResource", &driver->get_resource},
        {"cuDevSmResourceSplitByCount", &driver->split},
        {"cuDevResourceGenerateDesc", &driver->describe},
        {"cuGreenCtxCreate", &driver->create},
        {"cuCtxFromGreenCtx", &driver->context_of},
        {"cuGreenCtxStreamCreate", &driver->stream_create},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        enum cudaDriverEntryPointQueryResult found;
        void *function = NULL;
        const cudaError_t status = cudaGetDriverEntryPointByVersion(
            names[i].name, &function, DRIVER_VERSION, cudaEnableDefault, &found);

        if (status != cudaSuccess || found != cudaDriverEntryPointSuccess || function == NULL) {
            (void)cudaGetLastError();
            return rp_fail(
                error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
                "the driver has no green contexts (%s): they come with that of CUDA 12.5",
                names[i].name);
        }
        memcpy(names[i].function, &function, sizeof function);
    }
    return TRUE;
}

/* The driver's error codes are the runtime's. */
static gboolean
ok(CUresult status, const char *what, GError **error)
{
    return rp_cuda_ok((cudaError_t)status, what, error);
}

/* Parts of one card, of which @wanted of all cards are this process's: all counts are multiples of the unit, and a part
 * is as many units. */
static gboolean
open_card(int card, guint wanted, Part *parts, GError **error)
{
    const Driver *driver = &split.driver;
    CUdevice device;
    CUcontext primary;
    CUdevResource all, rest;
    guint unit = 0, n_units = 0, made, at = 0;

    for (guint p = 0; p < split.per_card; p++) {
        guint a = (guint)split.multiprocessors[p], b = unit;

        while (b != 0) {
            const guint c = a % b;

            a = b;
            b = c;
        }
        unit = a;
    }
    for (guint p = 0; p < split.per_card; p++)
        n_units += (guint)split.multiprocessors[p] / unit;
    g_autofree CUdevResource *units = g_new0(CUdevResource, n_units);

    if (!ok(driver->device_get(&device, card), "cuDeviceGet", error) ||
        !ok(driver->retain(&primary, device), "cuDevicePrimaryCtxRetain", error) ||
        !ok(driver->get_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource",
            error))
        return FALSE;
    made = n_units;
    const CUresult status = driver->split(units, &made, &all, &rest, 0, unit);

    if (status != CUDA_SUCCESS || made < n_units || units[0].sm.smCount != unit)
        return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
                       "GPU %d has %u multiprocessors, which do not divide into %u times %u: give "
                       "parts fewer, as multiples of 8",
                       card, all.sm.smCount, n_units, unit);
    for (guint p = 0; p < split.per_card; p++) {
        const guint n = (guint)split.multiprocessors[p] / unit;
        CUdevResourceDesc description;
        const guint part = (guint)card * split.per_card + p;

        at += n;
        if (part < split.first || part >= split.first + wanted)
            continue;
        if (!ok(driver->describe(&description, &units[at - n], n), "cuDevResourceGenerateDesc",
                error) ||
            !ok(driver->create(&parts[p].green, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
                "cuGreenCtxCreate", error) ||
            !ok(driver->context_of(&parts[p].context, parts[p].green), "cuCtxFromGreenCtx", error))
            return FALSE;
        parts[p].multiprocessors = (int)(n * unit);
    }
    return TRUE;
}

/* "24,24,48", "4*24", or "equal": as many multiprocessors for each of @n as there are, in eights. */
static gboolean
read_parts(const char *text, guint n, GError **error)
{
    g_auto(GStrv) words = g_strsplit(text, ",", -1);
    int all = 0;

    if (strcmp(text, "equal") == 0) {
        if (!rp_cuda_ok(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0),
                        "cudaDeviceGetAttribute", error))
            return FALSE;
        split.per_card = (n + split.n_cards - 1) / split.n_cards;
        for (guint p = 0; p < MIN(split.per_card, MOST_PARTS); p++)
            split.multiprocessors[p] = all / (int)split.per_card / 8 * 8;
    } else {
        for (char **word = words; *word != NULL; word++) {
            const char *star = strchr(*word, '*');
            guint64 times = 1, count = 0;
            g_autofree char *before = star != NULL ? g_strndup(*word, (gsize)(star - *word)) : NULL;

            if ((before != NULL &&
                 !g_ascii_string_to_unsigned(before, 10, 1, MOST_PARTS, &times, NULL)) ||
                !g_ascii_string_to_unsigned(star != NULL ? star + 1 : *word, 10, 1, 4096, &count,
                                            NULL)) {
                split.per_card = MOST_PARTS + 1;
                break;
            }
            for (; times > 0; times--, split.per_card++)
                if (split.per_card < MOST_PARTS)
                    split.multiprocessors[split.per_card] = (int)count;
        }
    }
    if (split.per_card > 0 && split.per_card <= MOST_PARTS && split.multiprocessors[0] > 0)
        return TRUE;
    return rp_fail(
        error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
        "expected equal, or multiprocessors of each of a card's parts, as 24,24,48 or 4*24, "
        "at most %d parts, found \"%s\"",
        MOST_PARTS, text);
}

static gboolean
open_parts(const char *text, guint server, guint n, GError **error)
{
    int cards = 0;

    if (!rp_cuda_ok(cudaGetDeviceCount(&cards), "cudaGetDeviceCount", error))
        return FALSE;
    split.n_cards = (guint)MAX(cards, 1);
    if (!read_parts(text, n, error) || !find_driver(&split.driver, error))
        return FALSE;
    split.first = server * n;
    if (split.first + n > split.n_cards * split.per_card && server > 0)
        return rp_fail(
            error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
            "server %u of this machine is given parts %u to %u, and there are %u: name the "
            "parts of all servers, "
            "as 4*24 for two of cuda:2",
            server, split.first, split.first + n - 1, split.n_cards * split.per_card);
    split.n_cards = MIN(split.n_cards, (split.first + n + split.per_card - 1) / split.per_card);
    split.parts = g_new0(Part, (gsize)split.n_cards * split.per_card);
    for (guint c = 0; c < split.n_cards; c++)
        if (!open_card((int)c, n, &split.parts[c * split.per_card], error))
            return FALSE;
    return TRUE;
}

gboolean
rp_cuda_split_devices(const char *text, guint server, guint n, GError **error)
{
    g_return_val_if_fail(text != NULL && n > 0, FALSE);

    if (split.parts != NULL)
        return TRUE;
    g_autofree char *connections =
        g_strdup_printf("%u", MIN(n, MOST_CONNECTIONS / CONNECTIONS) * CONNECTIONS);
    (void)g_setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, FALSE);
    if (open_parts(text, server, n, error))
        return TRUE;
    g_free(split.parts);
    memset(&split, 0, sizeof split);
    return FALSE;
}

int
rp_cuda_parts(int cards)
{
    return split.parts != NULL ? (int)(split.n_cards * split.per_card - split.first) : cards;
}

int
rp_cuda_parts_per_card(void)
{
    return (int)MAX(split.per_card, 1);
}

int
rp_cuda_card_of(int device)
{
    return (device + (int)split.first) / rp_cuda_parts_per_card();
}

static const Part *
part_of(int device)
{
    return &split.parts[split.first + (guint)device];
}

cudaError_t
rp_cuda_use(int device)
{
    int now = -1;

    if (split.parts == NULL) {
        const cudaError_t status = cudaGetDevice(&now); /* far cheaper than setting it */

        return status != cudaSuccess || now != device ? cudaSetDevice(device) : cudaSuccess;
    }
    if (used == device)
        return cudaSuccess;
    const CUresult status = split.driver.set_current(part_of(device)->context);

    used = status == CUDA_SUCCESS ? device : -1;
    return (cudaError_t)status;
}

cudaError_t
rp_cuda_current(int *device)
{
    *device = MAX(used, 0);
    return split.parts == NULL ? cudaGetDevice(device) : cudaSuccess;
}

cudaError_t
rp_cuda_multiprocessors_of(int device, int *n)
{
    if (split.parts == NULL)
        return cudaDeviceGetAttribute(n, cudaDevAttrMultiProcessorCount, device);
    *n = part_of(device)->multiprocessors;
    return cudaSuccess;
}

cudaError_t
rp_cuda_name(int device, char *name, size_t bytes)
{
    struct cudaDeviceProp card;
    int n = 0;
    cudaError_t status = cudaGetDeviceProperties(&card, rp_cuda_card_of(device));

    if (status == cudaSuccess)
        status = rp_cuda_multiprocessors_of(device, &n);
    if (status != cudaSuccess)
        return status;
    g_strlcpy(name, card.name, bytes);
    if (n < card.multiProcessorCount)
        g_snprintf(name, bytes, "%s (%d of %d multiprocessors)", card.name, n,
                   card.multiProcessorCount);
    return cudaSuccess;
}

cudaError_t
rp_cuda_multiprocessors(int *n)
{
    int device;
    const cudaError_t status = rp_cuda_current(&device);

    return status == cudaSuccess ? rp_cuda_multiprocessors_of(device, n) : status;
}

cudaError_t
rp_cuda_stream(cudaStream_t *stream, int priority)
{
    int device;
    const cudaError_t status = rp_cuda_current(&device);

    if (status != cudaSuccess)
        return status;
    if (split.parts == NULL)
        return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority);
    return (cudaError_t)split.driver.stream_create(stream, part_of(device)->green,
                                                   CU_STREAM_NON_BLOCKING, priority);
}
