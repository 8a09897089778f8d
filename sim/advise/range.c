/*
 * The range of a prediction: its plan with each thing that no sheet says at its slow and at its fast
 * end, the others as expected; and with all of them at once.
 *
 *            slow ----------- expected ------ fast
 *   times         |--------------|-------------|
 *   both             |-----------|
 *   all    |---------------------|----------------|
 */
#include "sim/advise/private.h"

#include "core/base/threads.h"

/* Bytes/s of a link: PCIe 5 and later are above, 4 and before below. */
#define FAST_LINK 40e9
/* Cards that a desktop has, whose memory has two channels. */
#define DESKTOP_CARDS 2

/* Idle time of devices that are always busy. */
#define BUSY 0.001

#define DOCTOR "roundpipe doctor --box box.json"

static gboolean
has_fast_links(const RpAdviseQuery *query, const RpProfile *profile)
{
    return profile->links.h2d_bytes_per_s > FAST_LINK;
}

/* More cards than a desktop has, or those with links of their own, stand in workstations and servers. */
static gboolean
is_server(const RpAdviseQuery *query, const RpProfile *profile)
{
    return query->gpus > DESKTOP_CARDS || !g_str_has_prefix(query->gpu->interconnect, "PCIe");
}

/* Ends are shares of what the catalogue takes (core/catalogue/gpus.c); the second where @second is so. */
static const struct {
    RpUnknownInfo info;
    gsize offset;                                                             /* in RpProfile */
    gboolean (*second)(const RpAdviseQuery *query, const RpProfile *profile); /* %NULL: never */
    double low[2], high[2];
} unknowns[RP_N_UNKNOWNS] = {
    [RP_UNKNOWN_TIMES] = {{"times", "times of layers", NULL, "roundpipe profile",
                           "the times of layers", "slow and fast rates of docs/cost-model.md"},
                          .offset = 0},
    [RP_UNKNOWN_BOTH] =
        {{"both", "PCIe both ways at once", "GB/s", DOCTOR, "the links",
          "PCIe 4: 11.2 of 26 GB/s up while copying down, 8 x RTX 4090, nvbandwidth issue 15 "
          "(A100: issues 11 and 53); PCIe 5: 101.5 of 110.8, an H200 (profiles/h200), and 47 of 56 "
          "up, nvbandwidth issue 53"},
         G_STRUCT_OFFSET(RpProfile, links.both_bytes_per_s),
         has_fast_links,
         {0.72, 0.92},
         {1, 1}},
    [RP_UNKNOWN_ROOTS] =
        {{"roots", "cards behind one root", "GB/s", DOCTOR, "the links",
          "low: four cards behind one x16 uplink, about as nvbandwidth issue 11 (A100, all at "
          "once: 5 to 6 GB/s each); high: each at its own, as an H200's host (196 of 222 GB/s)"},
         G_STRUCT_OFFSET(RpProfile, links.root_bytes_per_s),
         NULL,
         {0.5},
         {2}},
    [RP_UNKNOWN_HOST] =
        {{"host", "host memory", "GB/s", DOCTOR, "host memory",
          "low: 46 GB/s of 150 for two channels of DDR4-3200 (Guru3D on TridentZ Royal), four "
          "channels in workstations; high: 241.6 of 192 GB/s, an H200's host (profiles/h200)"},
         G_STRUCT_OFFSET(RpProfile, links.host_bytes_per_s),
         is_server,
         {0.31, 0.61},
         {1.26, 1.26}},
    [RP_UNKNOWN_OPTIMIZER] = {{"optimizer", "optimizer on the host", "billion parameters/s", DOCTOR,
                               "the optimizer's rate",
                               "28 bytes a parameter; low: 80 % of host memory's low end "
                               "(docs/optimizer.md); high: 92 % of host memory, "
                               "as on an H200's host (profiles/h200)"},
                              G_STRUCT_OFFSET(RpProfile, optimizer_parameters_per_s),
                              is_server,
                              {0.44, 0.88},
                              {1.64, 1.64}},
};

typedef enum { SLOW, FAST } End;

const RpUnknownInfo *
rp_unknown_info(RpUnknown unknown)
{
    g_return_val_if_fail(unknown < RP_N_UNKNOWNS, NULL);

    return &unknowns[unknown].info;
}

static double *
value_of(RpProfile *profile, RpUnknown unknown)
{
    return (double *)(void *)((char *)profile + unknowns[unknown].offset);
}

static double
assumed(const RpProfile *profile, RpUnknown unknown)
{
    const RpLinks *links = &profile->links;
    const double value = *value_of((RpProfile *)profile, unknown);

    return unknown == RP_UNKNOWN_BOTH && value <= 0
               ? links->h2d_bytes_per_s + links->d2h_bytes_per_s
               : value;
}

static double
at_end(const RpProfile *profile, const RpAdviseQuery *query, RpUnknown unknown, End end)
{
    const double *ends = end == SLOW ? unknowns[unknown].low : unknowns[unknown].high;
    const gboolean second =
        unknowns[unknown].second != NULL && unknowns[unknown].second(query, profile);

    return ends[second] * assumed(profile, unknown);
}

static gboolean
is_open(const RpAdviseQuery *query, const RpProfile *profile, RpUnknown unknown)
{
    if (unknown == RP_UNKNOWN_TIMES)
        return TRUE;
    if (unknown == RP_UNKNOWN_ROOTS && (query->gpus < 2 || profile->links.gpus_per_root == 0))
        return FALSE;
    return (query->known & (1u << unknown)) == 0 && assumed(profile, unknown) > 0;
}

/* One end of one unknown, or of all of them: a simulation that knows nothing of the others. */
typedef struct {
    const RpAdviseQuery *query;
    const RpAdviseRun *run;
    guint varied; /* bits of unknowns */
    End end;
    double tokens_per_s;
} Case;

/* (Where the host binds, faster layers may make a plan some 0.1 % slower.) */
static gboolean
simulate_case(guint i, gpointer cases, GError **error)
{
    Case *one = &((Case *)cases)[i];
    RpAdviseQuery query = *one->query;
    g_autoptr(RpAdviseRun) copy = rp_advise_run_copy(one->run);

    if (one->varied & (1u << RP_UNKNOWN_TIMES))
        query.estimate = one->end == SLOW ? RP_COST_SLOW : RP_COST_FAST;
    g_autoptr(RpProfile) profile = rp_advise_profile(&query, copy->sequences, error);

    if (profile == NULL)
        return FALSE;
    for (guint u = RP_UNKNOWN_TIMES + 1; u < RP_N_UNKNOWNS; u++)
        if (one->varied & (1u << u))
            *value_of(profile, (RpUnknown)u) = at_end(profile, one->query, (RpUnknown)u, one->end);
    copy->simulated = FALSE;
    if (!rp_advise_simulate_shortly(profile, copy, 0, error))
        return FALSE;
    one->tokens_per_s = copy->tokens_per_s;
    return TRUE;
}

static void
widen(RpAdviseEnds *ends, double tokens_per_s)
{
    ends->slow = MIN(ends->slow, tokens_per_s);
    ends->fast = MAX(ends->fast, tokens_per_s);
}

/* Both ends of @varied. Where devices are always busy, nothing but their times makes them faster. */
static void
add_cases(const RpAdviseQuery *query, const RpAdviseRun *run, guint varied, GArray *cases)
{
    const gboolean faster = run->bubble_ratio > BUSY || (varied & (1u << RP_UNKNOWN_TIMES)) != 0;

    for (guint end = SLOW; end <= (faster ? FAST : SLOW); end++) {
        const Case one = {.query = query, .run = run, .varied = varied, .end = (End)end};

        g_array_append_val(cases, one);
    }
}

/* Fills in @found's ends. */
static void
read_cases(const GArray *cases, RpAdviseRange *found)
{
    double widest = 0;

    for (guint i = 0; i < cases->len; i++) {
        const Case *one = &g_array_index(cases, Case, i);

        widen(&found->all, one->tokens_per_s);
        for (guint u = 0; u < RP_N_UNKNOWNS; u++)
            if (one->varied == 1u << u)
                widen(&found->of[u].ends, one->tokens_per_s);
    }
    for (guint u = 0; u < RP_N_UNKNOWNS; u++) {
        const RpAdviseEnds *ends = &found->of[u].ends;

        if (ends->fast - ends->slow > widest)
            found->most = (RpUnknown)u;
        widest = MAX(widest, ends->fast - ends->slow);
    }
}

gboolean
rp_advise_range(const RpAdviseQuery *query, const RpAdviseRun *run, RpAdviseRange *range,
                GError **error)
{
    g_return_val_if_fail(query->gpu != NULL && run->simulated, FALSE);

    const RpAdviseEnds expected = {run->tokens_per_s, run->tokens_per_s};
    RpAdviseRange found = {.all = expected, .most = RP_UNKNOWN_TIMES};
    guint varied = 0;
    g_autoptr(GArray) cases = g_array_new(FALSE, FALSE, sizeof(Case));
    g_autoptr(RpProfile) profile = rp_advise_profile(query, run->sequences, error);

    if (profile == NULL)
        return FALSE;
    for (guint u = 0; u < RP_N_UNKNOWNS; u++) {
        found.of[u].open = is_open(query, profile, (RpUnknown)u);
        if (!found.of[u].open)
            continue;
        found.of[u].low = at_end(profile, query, (RpUnknown)u, SLOW);
        found.of[u].high = at_end(profile, query, (RpUnknown)u, FAST);
        found.of[u].ends = expected;
        add_cases(query, run, 1u << u, cases);
        varied |= 1u << u;
    }
    add_cases(query, run, varied, cases);
    if (!rp_run_pieces(cases->len, simulate_case, cases->data, error))
        return FALSE;
    read_cases(cases, &found);
    *range = found;
    return TRUE;
}
