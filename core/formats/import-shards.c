/**
 * Unshards and reductions of a PyTorch pipeline CSV, row by row: no rank waits for another here.
 *
 *   0UNSHARD  0F0  0F1  0RESHARD  ...  0UNSHARD  0B0  0B1  0REDUCE_GRAD  0RESHARD
 */
#include "core/formats/import-communications-private.h"

typedef enum { SHARDED, UNSHARDED, USED } ShardState;

static gboolean
check_use(const RpCommunicationCheck *check, guint8 *state, guint rank, guint i)
{
    const RpAction *action = rp_check_action(check, rank, i);
    guint32 stages[2] = {action->stage, action->kind == RP_ACTION_OVERLAP ? action->backward_stage
                                                                          : action->stage};

    for (guint k = 0; k < 2; k++) {
        if (state[stages[k]] == SHARDED) {
            g_autofree char *subject = rp_check_describe_action(check, rank, i);
            g_autofree char *problem =
                g_strdup_printf("computes with stage %u before it is unsharded", stages[k]);

            return rp_check_fail(check, subject, problem);
        }
        state[stages[k]] = USED;
    }
    return TRUE;
}

static gboolean
check_shard(const RpCommunicationCheck *check, guint8 *state, guint rank, guint i)
{
    const RpCommunication *communication = rp_check_communication(check, rank, i);
    guint8 *of = &state[communication->stage];

    if (communication->kind == RP_COMMUNICATION_UNSHARD) {
        if (*of != SHARDED)
            return rp_check_fail_at(check, rank, i, "is of a stage that is unsharded already");
        *of = UNSHARDED;
    } else if (communication->kind == RP_COMMUNICATION_RESHARD) {
        if (*of != USED)
            return rp_check_fail_at(check, rank, i,
                                    *of == SHARDED
                                        ? "is of a stage that is not unsharded"
                                        : "follows on an unshard that no action has used");
        *of = SHARDED;
    }
    return TRUE;
}

gboolean
rp_check_shards(const RpCommunicationCheck *check)
{
    const RpOrders *orders = check->orders;
    g_autofree guint8 *state = g_new0(guint8, orders->n_stages);

    if (check->n_of[RP_COMMUNICATION_UNSHARD] + check->n_of[RP_COMMUNICATION_RESHARD] == 0)
        return TRUE;
    for (guint r = 0; r < orders->n_ranks; r++) {
        const guint n = orders->communications[r]->len;
        guint c = 0;

        for (guint i = 0; i <= orders->ranks[r]->len; i++) {
            for (; c < n && rp_check_communication(check, r, c)->position <= i; c++)
                if (!check_shard(check, state, r, c))
                    return FALSE;
            if (i < orders->ranks[r]->len && !check_use(check, state, r, i))
                return FALSE;
        }
    }
    for (guint32 s = 0; s < orders->n_stages; s++) {
        if (state[s] == SHARDED)
            continue;
        g_autofree char *subject = g_strdup_printf("stage %u", s);
        return rp_check_fail(check, subject, "is not resharded at the end of its row");
    }
    return TRUE;
}

gboolean
rp_check_reductions(const RpCommunicationCheck *check)
{
    const RpOrders *orders = check->orders;
    g_autofree gboolean *reduced = g_new0(gboolean, orders->n_stages);

    if (check->n_of[RP_COMMUNICATION_REDUCE_GRAD] == 0)
        return TRUE;
    for (guint r = 0; r < orders->n_ranks; r++) {
        for (guint i = 0; i < orders->communications[r]->len; i++) {
            const RpCommunication *communication = rp_check_communication(check, r, i);

            if (communication->kind != RP_COMMUNICATION_REDUCE_GRAD)
                continue;
            if (reduced[communication->stage])
                return rp_check_fail_at(check, r, i, "is there twice");
            if (!check->backward ||
                communication->position <= check->last_backward[communication->stage])
                return rp_check_fail_at(check, r, i, "comes before the last backward of its stage");
            reduced[communication->stage] = TRUE;
        }
    }
    for (guint32 s = 0; s < orders->n_stages; s++) {
        if (reduced[s])
            continue;
        g_autofree char *subject = g_strdup_printf("stage %u", s);
        return rp_check_fail(check, subject, "lacks its REDUCE_GRAD, which other stages have");
    }
    return TRUE;
}
