/**
 * The searcher of dispatched partitions: judges a cut, keeps the best. How it is led from cut to cut
 * stands in the files that use it. Private to sim/search/.
 */
#pragma once

#include "sim/search/dispatched.h"
#include "sim/search/random.h"

#define RP_POOL 32 /* findings that are kept for the last judgement */

typedef struct {
    const RpDispatchedSearch *search;
    RpRecurrence *recurrence;
    RpRandom random;
    GPtrArray *pool; /* RpFinding, the best of different shapes */
    gint64 worst_ns; /* of them */
    gint64 best_ns;  /* of all that were kept */
    guint64 other;   /* what was spent beside the recurrence, in its actions */
    gint64 bound_ns; /* no partition is better: the search ends where one is as good */
} RpSearcher;

/* Work so far, in actions of the recurrence. */
guint64 rp_searcher_spent(const RpSearcher *searcher);
/* Time of an iteration; G_MAXINT64 if it cannot run, or certainly takes longer than @most_ns. */
gint64 rp_searcher_cost(RpSearcher *searcher, const RpCut *cut, guint round, gint64 most_ns);
/* Whether its arena fits. */
gboolean rp_searcher_fits(RpSearcher *searcher, const RpCut *cut);
/* Time of an iteration as the reports measure it: the whole M, until all is steady. */
gint64 rp_searcher_real_cost(RpSearcher *searcher, const RpFinding *finding);
/* Takes @cut, which fits, into the pool if it is good enough. */
void rp_searcher_keep(RpSearcher *searcher, const RpCut *cut, guint round, gint64 cost_ns);
/* Judges a cut and keeps it if it is good enough. */
void rp_searcher_try(RpSearcher *searcher, const RpCut *cut, guint round);
/* Copies of @n findings, best first, @alike of one kind at most: what is nearly as good but quite
 * different may lead further than one more of the best kind. (transfer full) */
GPtrArray *rp_searcher_best(RpSearcher *searcher, guint n, guint alike);
/* Drops all but the @keep best. */
void rp_searcher_trim(RpSearcher *searcher, guint keep);
void rp_finding_free(gpointer finding);

/* all.c: whether partitions in @n_rounds sizes of rounds are few enough; tries all. */
gboolean rp_searcher_are_few(const RpDispatchedSearch *search, guint n_rounds);
void rp_searcher_try_all(RpSearcher *searcher, guint round);

/* seeds.c: tries tapered partitions, for @actions at most. */
void rp_searcher_seed(RpSearcher *searcher, guint round, guint64 actions);

/* descent.c: goes down from @finding to where no neighbour is better. */
void rp_searcher_descend(RpSearcher *searcher, RpFinding *finding, guint64 actions);
