/**
 * The next event of each of a fixed number of slots, and the earliest of them all: a binary heap
 * that knows where each slot stands, so that an event can be moved.
 */
#pragma once

#include <glib.h>

typedef struct {
    gint64 time_ns;
    guint32 slot;
} RpEvent;

typedef struct {
    guint32 n;
    RpEvent *events; /* heap; [0] is next; ties go to the lower slot */
    guint32 *places; /* per slot: 1 + index into events; 0 = no event */
} RpEventHeap;

static inline void
rp_event_heap_init(RpEventHeap *heap, guint32 n_slots)
{
    heap->n = 0;
    heap->events = g_new(RpEvent, n_slots);
    heap->places = g_new0(guint32, n_slots);
}

static inline void
rp_event_heap_clear(RpEventHeap *heap)
{
    g_clear_pointer(&heap->events, g_free);
    g_clear_pointer(&heap->places, g_free);
    heap->n = 0;
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpEventHeap, rp_event_heap_clear)

static inline gboolean
rp_event_before(RpEvent a, RpEvent b)
{
    return a.time_ns < b.time_ns || (a.time_ns == b.time_ns && a.slot < b.slot);
}

static inline void
rp_event_heap_put(RpEventHeap *heap, guint32 place, RpEvent event)
{
    heap->events[place] = event;
    heap->places[event.slot] = place + 1;
}

/* Lets @event find its place upwards or downwards from the free @place. */
static inline void
rp_event_heap_settle(RpEventHeap *heap, guint32 place, RpEvent event)
{
    while (place > 0 && rp_event_before(event, heap->events[(place - 1) / 2])) {
        rp_event_heap_put(heap, place, heap->events[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        guint32 child = 2 * place + 1;

        if (child >= heap->n)
            break;
        if (child + 1 < heap->n && rp_event_before(heap->events[child + 1], heap->events[child]))
            child++;
        if (!rp_event_before(heap->events[child], event))
            break;
        rp_event_heap_put(heap, place, heap->events[child]);
        place = child;
    }
    rp_event_heap_put(heap, place, event);
}

/* Gives @slot an event, or moves the one it has. */
static inline void
rp_event_heap_set(RpEventHeap *heap, guint32 slot, gint64 time_ns)
{
    const RpEvent event = {.time_ns = time_ns, .slot = slot};

    rp_event_heap_settle(heap, heap->places[slot] ? heap->places[slot] - 1 : heap->n++, event);
}

/* Takes the event of @slot away, if it has one. */
static inline void
rp_event_heap_remove(RpEventHeap *heap, guint32 slot)
{
    if (heap->places[slot] == 0)
        return;
    const guint32 place = heap->places[slot] - 1;

    heap->places[slot] = 0;
    heap->n--;
    if (place < heap->n)
        rp_event_heap_settle(heap, place, heap->events[heap->n]);
}
