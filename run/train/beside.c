/* checkpoints beside training: whether there is memory for a copy to write from,
 * and what became of a write that is under way. */
#include "run/train/loop.h"

#include "core/base/units.h"
#include "exec/system/memory-limit.h"

/* checkpoint.beside */
enum { AUTO, NEVER, ALWAYS };

/* That a copy leaves free unless it was asked for: page tables, caches of the files it goes to. */
#define MARGIN_BYTES ((guint64)256 << 20)
#define MARGIN_SHARE 16 /* and one part in so many of the copy */

static guint64
copy_bytes(const RpTrainLoop *loop)
{
    const RpTrainJob *job = loop->job;

    return rp_checkpoint_copy_bytes(job->weights, job->network.dtype, job->request.options.async);
}

/* That training takes of the host's memory. */
static guint64
training_bytes(const RpTrainJob *job)
{
    const guint host = job->run->n_devices;
    guint64 sum = rp_plan_arena_bytes(job->plan, host);

    for (guint g = 0; job->run->device_ops->host_memory && g < host; g++)
        sum += rp_plan_arena_bytes(job->plan, g);
    return sum;
}

/* Of the limits that the run file and the system set, beside training. @taken: training has taken
 * its memory. @limit: (out): the system's, if that is the lower one */
static guint64
room_bytes(const RpTrainJob *job, gboolean taken, RpMemoryLimit *limit)
{
    const guint64 asked = job->run->host_memory_bytes;
    const guint64 training = training_bytes(job);
    const guint64 left = asked > 0 ? asked - MIN(asked, training) : G_MAXUINT64;
    guint64 system;

    *limit = rp_memory_limit("", FALSE);
    system = limit->bytes;
    if (!taken && system < G_MAXUINT64)
        system -= MIN(system, training);
    if (left < system)
        rp_memory_limit_clear(limit);
    return MIN(left, system);
}

gboolean
rp_train_loop_check_beside(const RpTrainLoop *loop, GError **error)
{
    g_auto(RpMemoryLimit) limit = {0};
    const guint64 bytes = copy_bytes(loop);
    guint64 room;

    if (loop->job->run->checkpoint.beside != ALWAYS)
        return TRUE;
    room = room_bytes(loop->job, FALSE, &limit);
    if (bytes <= room)
        return TRUE;
    g_autofree char *what = limit.file != NULL ? rp_memory_limit_describe(&limit) : NULL;

    g_set_error(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_MEMORY,
                "checkpoint.beside: a copy of weights and optimizer state needs %" G_GUINT64_FORMAT
                " bytes of host memory, beside training there are %" G_GUINT64_FORMAT
                "; the limit is %s: use checkpoint.beside: auto or false",
                bytes, room, what != NULL ? what : "host_memory");
    return FALSE;
}

gboolean
rp_train_loop_take_beside(RpTrainLoop *loop, GError **error)
{
    if (loop->job->run->checkpoint.beside != ALWAYS)
        return TRUE;
    loop->beside = rp_checkpoint_beside_new(copy_bytes(loop), error);
    if (loop->beside == NULL)
        g_prefix_error(error, "checkpoint.beside: ");
    return loop->beside != NULL;
}

/* Once a checkpoint is due and training has what it needs. */
static gboolean
find_room(RpTrainLoop *loop)
{
    g_auto(RpMemoryLimit) limit = {0};
    const guint64 bytes = copy_bytes(loop);

    if (loop->beside == NULL && loop->job->run->checkpoint.beside == AUTO &&
        bytes + bytes / MARGIN_SHARE + MARGIN_BYTES <= room_bytes(loop->job, TRUE, &limit))
        loop->beside = rp_checkpoint_beside_new(bytes, NULL);
    return loop->beside != NULL;
}

gboolean
rp_train_loop_begin_beside(RpTrainLoop *loop, const RpCheckpointOptions *options,
                           const RpDataState *state)
{
    return !loop->ending && find_room(loop) &&
           rp_checkpoint_beside_begin(loop->beside, options, loop->trainer, state);
}

void
rp_train_loop_settle(RpTrainLoop *loop, gboolean wait)
{
    g_auto(RpCheckpointWritten) written = {0};

    if (loop->beside == NULL || !rp_checkpoint_beside_is_writing(loop->beside) ||
        (!wait && !rp_checkpoint_beside_is_over(loop->beside)))
        return;
    rp_checkpoint_beside_end(loop->beside, &written);
    loop->outcome->n_beside += written.path != NULL;
    loop->outcome->beside_seconds += written.seconds;
    rp_train_loop_note_saved(loop, &written, TRUE, NULL);
}
