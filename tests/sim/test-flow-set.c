#include "tests/rp-test.h"

#include "sim/flows/flow-set.h"

/* Three devices read from a host whose memory is their limit. */
static const RpMachine machine = {
    .links = {.h2d_bytes_per_s = 25e9, .host_bytes_per_s = 0.3e9},
};

typedef struct {
    RpFlowSet *set;
    RpEventHeap events;
} Fixture;

static int
set_up(void **state)
{
    Fixture *fixture = g_new0(Fixture, 1);

    fixture->set = rp_flow_set_new(&machine, 3, 3);
    rp_event_heap_init(&fixture->events, rp_flow_set_n_groups(fixture->set));
    *state = fixture;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *fixture = *state;

    rp_flow_set_free(fixture->set);
    rp_event_heap_clear(&fixture->events);
    g_free(fixture);
    return 0;
}

static void
begin(Fixture *fixture, guint device, guint64 bytes, gint64 now_ns)
{
    rp_flow_set_begin(fixture->set, rp_flow_set_copy_class(fixture->set, device, RP_FLOW_UP),
                      device, bytes, now_ns);
    rp_flow_set_reshare(fixture->set, now_ns, &fixture->events, 0);
}

/* Returns: when the next flow is over, which is @device's */
static gint64
end(Fixture *fixture, guint device)
{
    const RpEvent event = fixture->events.events[0];

    assert_true(fixture->events.n > 0);
    rp_event_heap_remove(&fixture->events, event.slot);
    assert_int_equal(rp_flow_set_end(fixture->set, event.slot, event.time_ns), device);
    assert_false(rp_flow_set_is_over(fixture->set, event.slot, event.time_ns));
    rp_flow_set_reshare(fixture->set, event.time_ns, &fixture->events, 0);
    return event.time_ns;
}

/* Beside a flow of weeks, 450 bytes begin, and 96 bytes after @odd ns: 0.15 bytes/ns for @odd ns,
 * 0.1 for the 960 ns of the second, 0.15 again: 3,320 ns in all. The clock that they share has
 * counted 10^14 bytes, in parts that no double holds beside them. */
RP_TEST_OF(short_flows_beside_one_of_weeks_take_as_long_as_ever, Fixture *fixture)
{
    gint64 now_ns = 0;

    begin(fixture, 0, G_GUINT64_CONSTANT(1000000000000000), 0);
    for (guint i = 0; i < 20000; i++) {
        const gint64 start_ns = now_ns + 20000000001 + 7 * i, odd_ns = 1001 + i % 100;

        begin(fixture, 1, 450, start_ns);
        begin(fixture, 2, 96, start_ns + odd_ns);
        assert_int_equal(end(fixture, 2) - start_ns, odd_ns + 960);
        now_ns = end(fixture, 1);
        assert_int_equal(now_ns - start_ns, 3320);
    }
}

/* 1,000 bytes beside 400: 400 are over after 800 / 0.3 ns, the rest of 600 after 600 / 0.3 more. */
RP_TEST_OF(a_flow_goes_on_at_the_full_rate_once_it_is_alone, Fixture *fixture)
{
    begin(fixture, 0, 1000, 0);
    begin(fixture, 1, 400, 0);
    assert_int_equal(end(fixture, 1), 2667);
    assert_int_equal(end(fixture, 0), 4667);
}

/* 10 bytes/ns up alone, 4 beside a copy down of the same device: of one device that is the rate until
 * the copy down is over, of two the mean with the other's. */
RP_TEST(copies_up_are_slower_beside_copies_down)
{
    static const RpMachine both_ways = {.links = {.h2d_bytes_per_s = 10e9, .d2h_bytes_per_s = 10e9},
                                        .beside_down_bytes_per_s = 4e9};

    for (guint gpus = 1; gpus <= 2; gpus++) {
        Fixture f = {rp_flow_set_new(&both_ways, gpus, 2), {0}};

        rp_event_heap_init(&f.events, rp_flow_set_n_groups(f.set));
        begin(&f, 0, 1000, 0);
        rp_flow_set_begin(f.set, rp_flow_set_copy_class(f.set, 0, RP_FLOW_DOWN), 1, 500, 0);
        rp_flow_set_reshare(f.set, 0, &f.events, 0);
        assert_int_equal(end(&f, 1), 50); /* at its own rate */
        assert_int_equal(end(&f, 0), gpus == 1 ? 50 + 80 : 50 + 65);
        rp_flow_set_free(f.set);
        rp_event_heap_clear(&f.events);
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
