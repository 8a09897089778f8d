#include "tests/rp-test.h"

#include <math.h>

#include "sim/flows/bandwidth.h"

#define MAX_FLOWS 12
#define MAX_LINKS 6
#define TOLERANCE 1e-9

/* A case: links and the flows over them. */
typedef struct {
    guint n_links;
    guint n_flows;
    double links[MAX_LINKS];
    RpFlow flows[MAX_FLOWS];
    double rates[MAX_FLOWS];
} Case;

static void
share(Case *c)
{
    RpBandwidth *bandwidth = rp_bandwidth_new(c->links, c->n_links);

    rp_bandwidth_share(bandwidth, c->flows, c->n_flows, c->rates);
    rp_bandwidth_free(bandwidth);
}

static void
assert_near(double value, double expected)
{
    if (fabs(value - expected) <= TOLERANCE * MAX(1.0, fabs(expected)))
        return;
    print_error("expected %.17g, found %.17g\n", expected, value);
    fail();
}

static Case
random_case(GRand *random, gboolean small_numbers)
{
    Case c = {0};

    c.n_links = (guint)g_rand_int_range(random, 1, MAX_LINKS + 1);
    c.n_flows = (guint)g_rand_int_range(random, 1, MAX_FLOWS + 1);
    for (guint l = 0; l < c.n_links; l++) {
        c.links[l] = small_numbers ? g_rand_int_range(random, 1, 9)
                                   : exp(g_rand_double_range(random, 0, 25));
        if (g_rand_int_range(random, 0, 6) == 0)
            c.links[l] = INFINITY;
    }
    for (guint f = 0; f < c.n_flows; f++) {
        RpFlow *flow = &c.flows[f];
        const guint first = (guint)g_rand_int_range(random, 0, (int)c.n_links);
        const guint step = c.n_links > 1 ? (guint)g_rand_int_range(random, 1, (int)c.n_links) : 1;

        flow->count = (guint32)g_rand_int_range(random, 0, 4);
        flow->weight = g_rand_boolean(random) ? 1 : g_rand_int_range(random, 1, 90) * 0.1;
        flow->cap_bytes_per_s = g_rand_boolean(random) ? INFINITY
                                : small_numbers        ? g_rand_int_range(random, 1, 9)
                                                       : exp(g_rand_double_range(random, 0, 25));
        /* different links: first, then up to two more in steps while they do not come round */
        const guint most = (guint)g_rand_int_range(random, 0, RP_FLOW_MAX_LINKS + 1);
        for (guint k = 0; k < most && first + k * step < c.n_links; k++)
            flow->links[flow->n_links++] = first + k * step;
    }
    return c;
}

static double
load_of(const Case *c, guint link)
{
    double load = 0;

    for (guint f = 0; f < c->n_flows; f++)
        for (guint k = 0; k < c->flows[f].n_links; k++)
            if (c->flows[f].links[k] == link)
                load += c->flows[f].count * c->rates[f];
    return load;
}

/* The fastest of the flows on @link. */
static double
fastest_on(const Case *c, guint link)
{
    double fastest = 0;

    for (guint f = 0; f < c->n_flows; f++)
        for (guint k = 0; k < c->flows[f].n_links; k++)
            if (c->flows[f].links[k] == link && c->flows[f].count > 0)
                fastest = MAX(fastest, c->rates[f] / c->flows[f].weight);
    return fastest;
}

/* Max-min certificate: at its own cap, or on a full link on which nobody is faster for its weight.
 */
static gboolean
is_at_its_limit(const Case *c, guint f)
{
    const RpFlow *flow = &c->flows[f];
    gboolean unlimited = isinf(flow->cap_bytes_per_s) != 0;

    if (!unlimited && c->rates[f] >= flow->cap_bytes_per_s * (1 - TOLERANCE))
        return TRUE;
    for (guint k = 0; k < flow->n_links; k++) {
        const guint link = flow->links[k];

        if (isinf(c->links[link]))
            continue;
        unlimited = FALSE;
        if (load_of(c, link) >= c->links[link] * (1 - TOLERANCE) &&
            c->rates[f] / flow->weight >= fastest_on(c, link) * (1 - TOLERANCE))
            return TRUE;
    }
    return unlimited && isinf(c->rates[f]);
}

RP_TEST(a_flow_alone_gets_its_narrowest_limit)
{
    Case c = {
        .n_links = 3,
        .n_flows = 1,
        .links = {5, 3, 7},
        .flows = {
            {.cap_bytes_per_s = 4, .count = 1, .weight = 1, .n_links = 3, .links = {0, 1, 2}}}};

    share(&c);
    assert_near(c.rates[0], 3);
    c.flows[0].cap_bytes_per_s = 2;
    share(&c);
    assert_near(c.rates[0], 2);
}

RP_TEST(what_a_capped_flow_leaves_goes_to_the_others)
{
    Case c = {.n_links = 1,
              .n_flows = 3,
              .links = {10},
              .flows = {{.cap_bytes_per_s = 2, .count = 1, .weight = 1, .n_links = 1},
                        {.cap_bytes_per_s = INFINITY, .count = 1, .weight = 1, .n_links = 1},
                        {.cap_bytes_per_s = INFINITY, .count = 1, .weight = 1, .n_links = 1}}};

    share(&c);
    assert_near(c.rates[0], 2);
    assert_near(c.rates[1], 4);
    assert_near(c.rates[2], 4);
}

RP_TEST(a_heavy_flow_gets_more_up_to_its_cap)
{
    Case c = {.n_links = 1,
              .n_flows = 2,
              .links = {12},
              .flows = {{.cap_bytes_per_s = INFINITY, .count = 1, .weight = 4, .n_links = 1},
                        {.cap_bytes_per_s = INFINITY, .count = 2, .weight = 1, .n_links = 1}}};

    share(&c);
    assert_near(c.rates[0], 8);
    assert_near(c.rates[1], 2);
    c.flows[0].cap_bytes_per_s = 5;
    share(&c);
    assert_near(c.rates[0], 5);
    assert_near(c.rates[1], 3.5);
}

/* Data Networks, §6.5.2: a line of links, one flow over all of them. */
RP_TEST(a_flow_over_several_links_is_held_by_the_fullest)
{
    Case c = {
        .n_links = 2,
        .n_flows = 3,
        .links = {1, 2},
        .flows = {
            {.cap_bytes_per_s = INFINITY, .count = 1, .weight = 1, .n_links = 2, .links = {0, 1}},
            {.cap_bytes_per_s = INFINITY, .count = 1, .weight = 1, .n_links = 1, .links = {0}},
            {.cap_bytes_per_s = INFINITY, .count = 1, .weight = 1, .n_links = 1, .links = {1}}}};

    share(&c);
    assert_near(c.rates[0], 0.5);
    assert_near(c.rates[1], 0.5);
    assert_near(c.rates[2], 1.5);
}

RP_TEST(flows_without_a_limit_or_without_a_count)
{
    Case c = {
        .n_links = 2,
        .n_flows = 3,
        .links = {INFINITY, 1},
        .flows = {
            {.cap_bytes_per_s = INFINITY, .count = 2, .weight = 1, .n_links = 1, .links = {0}},
            {.cap_bytes_per_s = INFINITY, .count = 2, .weight = 1, .n_links = 2, .links = {0, 1}},
            {.cap_bytes_per_s = 1, .count = 0, .weight = 1, .n_links = 1, .links = {1}}}};

    share(&c);
    assert_true(isinf(c.rates[0]));
    assert_near(c.rates[1], 0.5);
    assert_true(c.rates[2] == 0);
}

RP_TEST(a_count_is_so_many_equal_flows)
{
    GRand *random = g_rand_new_with_seed(3);

    for (guint round = 0; round < 1000; round++) {
        Case grouped = random_case(random, FALSE);
        grouped.n_flows = MIN(grouped.n_flows, 4);
        Case single = grouped;
        single.n_flows = 0;
        for (guint f = 0; f < grouped.n_flows; f++) {
            for (guint k = 0; k < grouped.flows[f].count; k++) {
                single.flows[single.n_flows] = grouped.flows[f];
                single.flows[single.n_flows++].count = 1;
            }
        }
        share(&grouped);
        share(&single);
        guint next = 0;
        for (guint f = 0; f < grouped.n_flows; f++)
            for (guint k = 0; k < grouped.flows[f].count; k++, next++)
                if (!isinf(grouped.rates[f]) || !isinf(single.rates[next]))
                    assert_near(single.rates[next] / grouped.rates[f], 1);
    }
    g_rand_free(random);
}

RP_TEST(no_link_is_overfull_and_every_flow_is_at_its_limit)
{
    GRand *random = g_rand_new_with_seed(1);

    for (guint round = 0; round < 20000; round++) {
        Case c = random_case(random, round % 2);

        share(&c);
        for (guint l = 0; l < c.n_links; l++)
            assert_true(isinf(c.links[l]) || load_of(&c, l) <= c.links[l] * (1 + TOLERANCE));
        for (guint f = 0; f < c.n_flows; f++) {
            assert_true(c.rates[f] <= c.flows[f].cap_bytes_per_s);
            if (c.flows[f].count == 0)
                assert_true(c.rates[f] == 0);
            else
                assert_true(is_at_its_limit(&c, f));
        }
    }
    g_rand_free(random);
}

RP_TEST(equal_flows_get_equal_rates_in_any_order)
{
    GRand *random = g_rand_new_with_seed(2);

    for (guint round = 0; round < 5000; round++) {
        Case c = random_case(random, round % 2);
        Case turned = c;
        const guint by = (guint)g_rand_int_range(random, 0, (int)c.n_flows);

        /* the last flow is made equal to the first; then all are turned round */
        c.flows[c.n_flows - 1] = c.flows[0];
        for (guint f = 0; f < c.n_flows; f++)
            turned.flows[(f + by) % c.n_flows] = c.flows[f];
        share(&c);
        share(&turned);
        assert_true(c.rates[0] == c.rates[c.n_flows - 1]);
        for (guint f = 0; f < c.n_flows; f++) {
            const double other = turned.rates[(f + by) % c.n_flows];

            if (c.rates[f] != other)
                assert_near(other / c.rates[f], 1);
        }
    }
    g_rand_free(random);
}

/* Raises every rate in steps of 1/@parts as long as nothing overflows. */
static void
share_by_small_steps(Case *c, guint parts)
{
    guint steps[MAX_FLOWS] = {0};
    gboolean stopped[MAX_FLOWS] = {FALSE};
    gboolean any = TRUE;

    while (any) {
        any = FALSE;
        for (guint f = 0; f < c->n_flows; f++) {
            if (stopped[f])
                continue;
            steps[f]++;
            for (guint g = 0; g < c->n_flows; g++)
                c->rates[g] = (double)steps[g] * c->flows[g].weight / parts;
            gboolean fits = c->rates[f] <= c->flows[f].cap_bytes_per_s;
            for (guint k = 0; k < c->flows[f].n_links; k++) {
                const guint link = c->flows[f].links[k];
                fits = fits && load_of(c, link) <= c->links[link];
            }
            if (!fits) {
                steps[f]--;
                stopped[f] = TRUE;
            }
            any = any || fits;
        }
    }
    for (guint f = 0; f < c->n_flows; f++)
        c->rates[f] = (double)steps[f] * c->flows[f].weight / parts;
}

RP_TEST(small_cases_match_brute_force)
{
    GRand *random = g_rand_new_with_seed(4);
    const guint parts = 500;

    for (guint round = 0; round < 100; round++) {
        Case c = random_case(random, TRUE);
        c.n_flows = MIN(c.n_flows, 4);
        for (guint f = 0; f < c.n_flows; f++) {
            c.flows[f].count = MAX(c.flows[f].count, 1);
            c.flows[f].cap_bytes_per_s = MIN(c.flows[f].cap_bytes_per_s, 9);
        }
        Case brute = c;
        share(&c);
        share_by_small_steps(&brute, parts);
        /* each flow may have stopped a step early, and so have left others a few steps more */
        for (guint f = 0; f < c.n_flows; f++)
            assert_true(fabs(c.rates[f] - brute.rates[f]) <= 80.0 / parts);
    }
    g_rand_free(random);
}
