#include "sim/one-machine.h"

/* Moves heap[place] to where longer tails stand above and shorter ones below. */
static void
sink(RpJob *heap, gsize n, gsize place)
{
    const RpJob job = heap[place];

    for (;;) {
        gsize child = 2 * place + 1;

        if (child + 1 < n && heap[child + 1].tail_ns > heap[child].tail_ns)
            child++;
        if (child >= n || heap[child].tail_ns <= job.tail_ns)
            break;
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = job;
}

static void
rise(RpJob *heap, gsize place)
{
    const RpJob job = heap[place];

    for (; place > 0 && heap[(place - 1) / 2].tail_ns < job.tail_ns; place = (place - 1) / 2)
        heap[place] = heap[(place - 1) / 2];
    heap[place] = job;
}

gint64
rp_one_machine_ns(const RpJob *jobs, gsize n, RpJob *heap)
{
    gint64 now_ns = 0, most_ns = 0;
    gsize i = 0, waiting = 0;

    while (i < n || waiting > 0) {
        if (waiting == 0)
            now_ns = MAX(now_ns, jobs[i].head_ns);
        for (; i < n && jobs[i].head_ns <= now_ns; i++) {
            heap[waiting] = jobs[i];
            rise(heap, waiting++);
        }
        const gint64 until_ns = i < n ? jobs[i].head_ns : G_MAXINT64;

        if (heap[0].work_ns > until_ns - now_ns) {
            heap[0].work_ns -= until_ns - now_ns;
            now_ns = until_ns;
            continue;
        }
        now_ns += heap[0].work_ns;
        most_ns = MAX(most_ns, now_ns + heap[0].tail_ns);
        heap[0] = heap[--waiting];
        sink(heap, waiting, 0);
    }
    return most_ns;
}
