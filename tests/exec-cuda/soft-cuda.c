#include "tests/exec-cuda/soft-cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "exec/cuda/kernels/kernels.h"
#include "tests/exec-cuda/soft-cuda-private.h"

#define DEVICES 2
#define MULTIPROCESSORS 64
#define MEMORY_BYTES ((size_t)1 << 30)
#define PAYLOAD_BYTES 256
#define MOST_COMMANDS 112 /* commands in a stream's queue, unless a test says otherwise */

typedef void (*Work)(void *payload);

/* One recording of an event. */
typedef struct {
    guint n_users;
    gboolean happened;
    gboolean lost; /* its device has failed: it happens when the failure is forgotten */
    gint64 time_ns;
} Record;

typedef struct _Command Command;
struct _Command {
    Command *next;
    Work work;
    Record *record;
    Record *wait;
    _Alignas(16) unsigned char payload[PAYLOAD_BYTES];
};

struct CUstream_st {
    int device;
    pthread_t thread;
    Command *first, **last;
    guint64 n_issued, n_done;
    guint age; /* failures that had been forgotten when it was made */
    gboolean stop;
};

struct CUevent_st {
    int device;
    Record *record;
};

typedef enum { AREA_DEVICE, AREA_PINNED } AreaKind;
typedef struct {
    AreaKind kind;
    guint8 *start;
    size_t bytes;
    gboolean ours; /* to be freed, not only forgotten */
} Area;

/* One lock over all but the work itself. After a failure functions that make things make nothing;
 * functions that free, free nevertheless. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static GArray *areas;
static guint n_left;
static guint64 fail_in;   /* pieces of work; 0: never */
static int failing = -1;  /* the device whose pieces count, and which fails; -1: all do */
static gboolean losing;   /* events of a device that has failed do not happen */
static guint n_forgotten; /* failures; older streams do no work any more */
static guint most_commands = MOST_COMMANDS;
static gboolean holding; /* a thread that waits in a queue keeps all others off the device */
static guint n_holders[DEVICES]; /* threads that wait for space */
static guint n_kept_off;         /* threads that wait for them */
static gint64 failed_ns;         /* when the last failure was */
static cudaError_t refusal;      /* answer to requests for memory */
static guint most_pins = G_MAXUINT;
static guint n_pins; /* pins that were tried */
static guint64 first_pin;
static _Atomic gboolean broken[DEVICES];
static _Atomic gint64 tell_ns; /* from when on calls say that a device is broken */
static _Atomic guint late_ns;
static _Atomic guint delay_ns;
static _Thread_local int current_device;
static _Thread_local cudaError_t last_error; /* pins that were refused */

static gint64
clock_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * G_GINT64_CONSTANT(1000000000) + time.tv_nsec;
}

static cudaError_t
device_state(int device)
{
    return atomic_load(&broken[device]) && clock_ns() >= atomic_load(&tell_ns)
               ? cudaErrorIllegalAddress
               : cudaSuccess;
}

static cudaError_t
state(void)
{
    return device_state(current_device);
}

static void
fail_at(guint64 n, int device, gboolean lose)
{
    pthread_mutex_lock(&lock);
    fail_in = n;
    failing = device;
    losing = lose;
    for (int d = 0; d < DEVICES; d++)
        n_forgotten += (guint)atomic_exchange(&broken[d], FALSE);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void
soft_cuda_fail_at(guint64 n)
{
    fail_at(n, -1, FALSE);
}

void
soft_cuda_fail_device_at(guint device, guint64 n, gboolean lose_events)
{
    g_assert(device < DEVICES);
    fail_at(n, (int)device, lose_events);
}

void
soft_cuda_tell_late(guint ns)
{
    atomic_store(&late_ns, ns);
}

void
soft_cuda_bound_queues(guint n, gboolean hold)
{
    pthread_mutex_lock(&lock);
    most_commands = n > 0 ? n : MOST_COMMANDS;
    holding = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

guint
soft_cuda_n_blocked(void)
{
    guint n;

    pthread_mutex_lock(&lock);
    n = n_kept_off;
    for (int d = 0; d < DEVICES; d++)
        n += n_holders[d];
    pthread_mutex_unlock(&lock);
    return n;
}

gint64
soft_cuda_failed_ns(void)
{
    gint64 ns;

    pthread_mutex_lock(&lock);
    ns = failed_ns;
    pthread_mutex_unlock(&lock);
    return ns;
}

void
soft_cuda_answer(SoftCudaAnswer answer)
{
    static const cudaError_t errors[] = {
        [SOFT_CUDA_GIVES] = cudaSuccess,
        [SOFT_CUDA_IS_FULL] = cudaErrorMemoryAllocation,
        [SOFT_CUDA_IS_BUSY] = cudaErrorDevicesUnavailable,
    };

    pthread_mutex_lock(&lock);
    refusal = errors[answer];
    pthread_mutex_unlock(&lock);
}

void
soft_cuda_delay(guint ns)
{
    atomic_store(&delay_ns, ns);
}

void
soft_cuda_allow_pins(guint n)
{
    pthread_mutex_lock(&lock);
    most_pins = n;
    n_pins = 0;
    first_pin = 0;
    pthread_mutex_unlock(&lock);
}

guint
soft_cuda_n_pins(void)
{
    guint n;

    pthread_mutex_lock(&lock);
    n = n_pins;
    pthread_mutex_unlock(&lock);
    return n;
}

guint64
soft_cuda_first_pin(void)
{
    guint64 bytes;

    pthread_mutex_lock(&lock);
    bytes = first_pin;
    pthread_mutex_unlock(&lock);
    return bytes;
}

gboolean
soft_cuda_error_is_left(void)
{
    return last_error != cudaSuccess;
}

static void
take_time(guint times)
{
    const struct timespec time = {.tv_nsec = (long)atomic_load(&delay_ns) * times};

    if (time.tv_nsec > 0)
        nanosleep(&time, NULL);
}

guint
soft_cuda_n_left(void)
{
    guint n;

    pthread_mutex_lock(&lock);
    n = n_left + (areas == NULL ? 0 : areas->len);
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- streams ---- */

static void
drop(Record *record) /* locked */
{
    if (record != NULL && --record->n_users == 0)
        g_free(record);
}

/* All work after a failure is left out, but streams run on. */
static void
run_work(cudaStream_t stream, Command *command) /* locked; unlocks for the work */
{
    if (command->work == NULL || atomic_load(&broken[stream->device]) || stream->age != n_forgotten)
        return;
    if (fail_in > 0 && (failing < 0 || failing == stream->device) && --fail_in == 0) {
        failed_ns = clock_ns();
        atomic_store(&tell_ns, failed_ns + atomic_load(&late_ns));
        for (int d = 0; d < DEVICES; d++)
            if (failing < 0 || failing == d)
                atomic_store(&broken[d], TRUE);
        return;
    }
    pthread_mutex_unlock(&lock);
    command->work(command->payload);
    pthread_mutex_lock(&lock);
}

static gboolean
must_wait(cudaStream_t stream, const Record *record) /* locked */
{
    return record != NULL && !record->happened && !(record->lost && !losing) &&
           !atomic_load(&broken[stream->device]);
}

static void *
stream_main(void *data)
{
    cudaStream_t stream = data;

    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->first == NULL && !stream->stop)
            pthread_cond_wait(&changed, &lock);
        Command *command = stream->first;

        if (command == NULL)
            break;
        while (must_wait(stream, command->wait))
            pthread_cond_wait(&changed, &lock);
        run_work(stream, command);
        if (command->record != NULL && losing && atomic_load(&broken[stream->device])) {
            command->record->lost = TRUE;
        } else if (command->record != NULL) {
            command->record->happened = TRUE;
            command->record->time_ns = clock_ns();
        }
        drop(command->record);
        drop(command->wait);
        stream->first = command->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        g_free(command);
        stream->n_done++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* A driver's lock of one device; not where a stream's own thread calls. */
static void
enter(int device) /* locked */
{
    n_kept_off++;
    while (holding && n_holders[device] > 0)
        pthread_cond_wait(&changed, &lock);
    n_kept_off--;
}

/* Blocks while the queue is full. */
static void
push(cudaStream_t stream, Command *command) /* locked */
{
    enter(stream->device);
    n_holders[stream->device]++;
    while (stream->n_issued - stream->n_done >= most_commands &&
           !atomic_load(&broken[stream->device]))
        pthread_cond_wait(&changed, &lock);
    n_holders[stream->device]--;
    *stream->last = command;
    stream->last = &command->next;
    stream->n_issued++;
    pthread_cond_broadcast(&changed);
}

cudaError_t
soft_cuda_issue(cudaStream_t stream, Work work, const void *payload, size_t bytes)
{
    Command *command = g_new0(Command, 1);

    g_assert(bytes <= PAYLOAD_BYTES);
    command->work = work;
    memcpy(command->payload, payload, bytes);
    pthread_mutex_lock(&lock);
    push(stream, command);
    pthread_mutex_unlock(&lock);
    return device_state(stream->device);
}

cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *result, unsigned flags, int priority)
{
    cudaStream_t stream;

    if (state() != cudaSuccess)
        return state();
    stream = g_new0(struct CUstream_st, 1);
    g_assert(flags == cudaStreamNonBlocking && priority <= 0 && priority >= -5);
    stream->device = current_device;
    stream->last = &stream->first;
    pthread_mutex_lock(&lock);
    stream->age = n_forgotten;
    pthread_mutex_unlock(&lock);
    g_assert(pthread_create(&stream->thread, NULL, stream_main, stream) == 0);
    pthread_mutex_lock(&lock);
    n_left++;
    pthread_mutex_unlock(&lock);
    *result = stream;
    return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *result, unsigned flags)
{
    return cudaStreamCreateWithPriority(result, flags, 0);
}

cudaError_t
cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return state();
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream)
{
    const int device = stream->device;

    pthread_mutex_lock(&lock);
    stream->stop = TRUE;
    n_left--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    g_free(stream);
    return device_state(device);
}

cudaError_t
cudaStreamSynchronize(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    enter(stream->device);
    while (stream->n_done < stream->n_issued)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return device_state(stream->device);
}

cudaError_t
cudaStreamQuery(cudaStream_t stream)
{
    gboolean done;

    pthread_mutex_lock(&lock);
    enter(stream->device);
    done = stream->n_done == stream->n_issued;
    pthread_mutex_unlock(&lock);
    if (device_state(stream->device) != cudaSuccess)
        return device_state(stream->device);
    return done ? cudaSuccess : cudaErrorNotReady;
}

typedef struct {
    cudaHostFn_t function;
    void *data;
} HostCall;

static void
run_host_call(void *payload)
{
    const HostCall *call = payload;

    take_time(10);
    call->function(call->data);
}

cudaError_t
cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    const HostCall call = {function, data};

    return soft_cuda_issue(stream, run_host_call, &call, sizeof call);
}

/* ---- events ---- */

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *result, unsigned flags)
{
    if (state() != cudaSuccess)
        return state();
    *result = g_new0(struct CUevent_st, 1);
    (*result)->device = current_device;
    pthread_mutex_lock(&lock);
    n_left++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t
cudaEventCreate(cudaEvent_t *result)
{
    return cudaEventCreateWithFlags(result, cudaEventDefault);
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    const int device = event->device;

    pthread_mutex_lock(&lock);
    drop(event->record);
    n_left--;
    pthread_mutex_unlock(&lock);
    g_free(event);
    return device_state(device);
}

cudaError_t
cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Command *command = g_new0(Command, 1);
    Record *record = g_new0(Record, 1);

    g_assert(event->device == stream->device);
    record->n_users = 2;
    command->record = record;
    pthread_mutex_lock(&lock);
    drop(event->record);
    event->record = record;
    push(stream, command);
    pthread_mutex_unlock(&lock);
    return device_state(stream->device);
}

cudaError_t
cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    Command *command = g_new0(Command, 1);

    pthread_mutex_lock(&lock);
    g_assert(event->record != NULL); /* CUDA would not wait */
    command->wait = event->record;
    event->record->n_users++;
    push(stream, command);
    pthread_mutex_unlock(&lock);
    return device_state(stream->device);
}

cudaError_t
cudaEventQuery(cudaEvent_t event)
{
    gboolean happened;

    pthread_mutex_lock(&lock);
    enter(event->device);
    happened = event->record == NULL || event->record->happened;
    pthread_mutex_unlock(&lock);
    if (device_state(event->device) != cudaSuccess)
        return device_state(event->device);
    return happened ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    g_assert(start->device == end->device);
    if (device_state(end->device) != cudaSuccess)
        return device_state(end->device);
    pthread_mutex_lock(&lock);
    g_assert(start->record->happened && end->record->happened);
    *ms = (float)((double)(end->record->time_ns - start->record->time_ns) / 1e6);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- memory ---- */

static void
add_area(AreaKind kind, void *start, size_t bytes, gboolean ours)
{
    const Area area = {kind, start, bytes, ours};

    pthread_mutex_lock(&lock);
    if (areas == NULL)
        areas = g_array_new(FALSE, FALSE, sizeof(Area));
    g_array_append_val(areas, area);
    pthread_mutex_unlock(&lock);
}

static cudaError_t
remove_area(AreaKind kind, void *start)
{
    gboolean found = start == NULL;

    pthread_mutex_lock(&lock);
    for (guint i = 0; start != NULL && i < areas->len; i++) {
        const Area area = g_array_index(areas, Area, i);

        if (area.kind != kind || area.start != start)
            continue;
        if (area.ours)
            free(start);
        g_array_remove_index_fast(areas, i);
        found = TRUE;
        break;
    }
    if (areas != NULL && areas->len == 0)
        g_clear_pointer(&areas, g_array_unref);
    pthread_mutex_unlock(&lock);
    g_assert(found);
    return state();
}

static gboolean
lies_in(AreaKind kind, const void *start, size_t bytes)
{
    const guint8 *at = start;
    gboolean found = FALSE;

    pthread_mutex_lock(&lock);
    for (guint i = 0; areas != NULL && i < areas->len && !found; i++) {
        const Area *area = &g_array_index(areas, Area, i);

        found = area->kind == kind && at >= area->start && at + bytes <= area->start + area->bytes;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t
allocate(AreaKind kind, void **result, size_t bytes)
{
    cudaError_t refused;

    if (state() != cudaSuccess)
        return state();
    pthread_mutex_lock(&lock);
    refused = refusal;
    pthread_mutex_unlock(&lock);
    if (refused != cudaSuccess)
        return refused;
    if (bytes > MEMORY_BYTES)
        return cudaErrorMemoryAllocation;
    *result = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(*result, 0xff, bytes); /* NaN */
    add_area(kind, *result, bytes, TRUE);
    return cudaSuccess;
}

cudaError_t
cudaMalloc(void **result, size_t bytes)
{
    return allocate(AREA_DEVICE, result, bytes);
}

cudaError_t
cudaFree(void *memory)
{
    return remove_area(AREA_DEVICE, memory);
}

cudaError_t
cudaHostAlloc(void **result, size_t bytes, unsigned flags)
{
    return allocate(AREA_PINNED, result, bytes);
}

cudaError_t
cudaFreeHost(void *memory)
{
    return remove_area(AREA_PINNED, memory);
}

/* Whether pages that begin at @memory are there: some systems say so of all. */
static gboolean
is_touched(void *memory, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t n = (bytes + page - 1) / page;
    g_autofree unsigned char *there = g_malloc(n);

    g_assert(mincore(memory, bytes, there) == 0);
    for (size_t i = 0; i < n; i++)
        if (!(there[i] & 1))
            return FALSE;
    return TRUE;
}

cudaError_t
cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    gboolean allowed;

    if (state() != cudaSuccess)
        return state();
    g_assert(is_touched(memory, bytes));
    pthread_mutex_lock(&lock);
    if (n_pins == 0)
        first_pin = bytes;
    allowed = n_pins++ < most_pins;
    pthread_mutex_unlock(&lock);
    if (!allowed)
        return last_error = cudaErrorMemoryAllocation;
    if (lies_in(AREA_PINNED, memory, 1))
        return last_error = cudaErrorHostMemoryAlreadyRegistered;
    add_area(AREA_PINNED, memory, bytes, FALSE);
    return cudaSuccess;
}

cudaError_t
cudaHostUnregister(void *memory)
{
    return remove_area(AREA_PINNED, memory);
}

cudaError_t
cudaMemset(void *memory, int value, size_t bytes)
{
    g_assert(lies_in(AREA_DEVICE, memory, bytes));
    memset(memory, value, bytes);
    return state();
}

cudaError_t
cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
    memcpy(target, source, bytes);
    return state();
}

typedef struct {
    void *target;
    const void *source;
    size_t bytes;
} Copy;

static void
run_copy(void *payload)
{
    const Copy *copy = payload;

    take_time(1);
    memcpy(copy->target, copy->source, copy->bytes);
}

cudaError_t
cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                cudaStream_t stream)
{
    const Copy copy = {target, source, bytes};
    const gboolean up = kind == cudaMemcpyHostToDevice;

    g_assert(up || kind == cudaMemcpyDeviceToHost);
    if (!lies_in(up ? AREA_PINNED : AREA_DEVICE, source, bytes) ||
        !lies_in(up ? AREA_DEVICE : AREA_PINNED, target, bytes))
        return cudaErrorInvalidValue;
    return soft_cuda_issue(stream, run_copy, &copy, sizeof copy);
}

/* ---- devices and errors ---- */

cudaError_t
cudaGetDevice(int *device)
{
    *device = current_device;
    return state();
}

cudaError_t
cudaSetDevice(int device)
{
    g_assert(device >= 0 && device < DEVICES);
    current_device = device;
    return state();
}

cudaError_t
cudaGetDeviceCount(int *count)
{
    *count = DEVICES;
    return state();
}

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    g_strlcpy(properties->name, "threads", sizeof properties->name);
    properties->major = 9;
    properties->multiProcessorCount = MULTIPROCESSORS;
    return state();
}

cudaError_t
cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    g_assert(attribute == cudaDevAttrMultiProcessorCount);
    *value = MULTIPROCESSORS;
    return state();
}

cudaError_t
cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = MEMORY_BYTES;
    return state();
}

cudaError_t
cudaDeviceSynchronize(void)
{
    return state();
}

cudaError_t
cudaGetLastError(void)
{
    const cudaError_t last = last_error;

    last_error = cudaSuccess;
    return state() != cudaSuccess ? state() : last;
}

const char *
cudaGetErrorString(cudaError_t status)
{
    switch (status) {
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorDevicesUnavailable:
        return "CUDA-capable device(s) is/are busy or unavailable";
    default:
        return "an error";
    }
}

const char *
cudaGetErrorName(cudaError_t status)
{
    return status == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaError";
}
