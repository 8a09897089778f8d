/**
 * Shared by the files that check communications.
 */
#pragma once

#include "core/formats/import-pytorch.h"

#define N_TRANSFERS (RP_COMMUNICATION_RECV_B + 1)
#define ABSENT G_MAXUINT32

typedef struct {
    const RpOrders *orders;
    guint32 *rank_of;                  /* [stage] */
    gboolean backward;                 /* there are backward actions at all */
    guint32 *forward_at;               /* [stage][micro-batch]: F in its row */
    guint32 *backward_at;              /* B or I in its row */
    guint32 *last_backward;            /* [stage]: the last B or W in its row */
    guint32 *place[N_TRANSFERS];       /* [stage][micro-batch]: in its row's communications */
    guint64 n_of[RP_N_COMMUNICATIONS]; /* in the file */
    GError **error;
} RpCommunicationCheck;

const RpAction *rp_check_action(const RpCommunicationCheck *check, guint rank, guint i);
const RpCommunication *rp_check_communication(const RpCommunicationCheck *check, guint rank,
                                              guint i);
/* "`0SEND_F1` (row 1, cell 3)" */
char *rp_check_describe(const RpCommunicationCheck *check, guint rank, guint i);
char *rp_check_describe_action(const RpCommunicationCheck *check, guint rank, guint i);
/* Sets the error "<file>: <subject> <problem>"; the subject of the second is a communication.
 * Returns: %FALSE */
gboolean rp_check_fail(const RpCommunicationCheck *check, const char *subject, const char *problem);
gboolean rp_check_fail_at(const RpCommunicationCheck *check, guint rank, guint i,
                          const char *problem);

/* Every action between an unshard and a reshard of its stage (import-shards.c). */
gboolean rp_check_shards(const RpCommunicationCheck *check);
/* A reduction of each stage behind its last backward. */
gboolean rp_check_reductions(const RpCommunicationCheck *check);
