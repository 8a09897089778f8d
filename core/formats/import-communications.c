/**
 * Sends, receives, unshards and reductions of a PyTorch pipeline CSV.
 *
 *   row 0   0F0  0SEND_F0  0RECV_B0  0B0        a send continues, a receive waits for its send;
 *   row 1   1RECV_F0  1F0  1B0  1SEND_B0        a pair of ranks has one channel
 *
 * Most errors show by places in a row: a value must be received before it is used, and be there
 * when it is sent. Only receives wait for another rank.
 */
#include "core/base/quote.h"
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

/*
 * Messages about broken communications.
 */

static const RpCommunication *
communication_at(const RpCommunicationCheck *check, guint rank, guint i)
{
    return &g_array_index(check->orders->communications[rank], RpCommunication, i);
}

/* "`0SEND_F1` (row 1, cell 3)" */
static char *
describe_communication(const RpCommunicationCheck *check, guint rank, guint i)
{
    const RpCommunication *communication = communication_at(check, rank, i);
    GString *text = g_string_new("`");

    rp_communication_format(text, communication);
    g_string_append_printf(text, "` (row %u, cell %u)", rank + 1, communication->cell);
    return g_string_free(text, FALSE);
}

/* Sets the error "<file>: <subject> <problem>". */
static gboolean
fail_check(const RpCommunicationCheck *check, const char *subject, const char *problem)
{
    return rp_fail_in(check->error, check->orders->name, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER,
                      "%s %s", subject, problem);
}

/* Sets the error "<file>: <subject> <problem>"; the subject of the second is a communication.
 * Returns: %FALSE */
static gboolean
fail_check_at(const RpCommunicationCheck *check, guint rank, guint i, const char *problem)
{
    g_autofree char *subject = describe_communication(check, rank, i);

    return fail_check(check, subject, problem);
}

/**
 * Unshards and reductions of a PyTorch pipeline CSV, row by row: no rank waits for another here.
 *
 *   0UNSHARD  0F0  0F1  0RESHARD  ...  0UNSHARD  0B0  0B1  0REDUCE_GRAD  0RESHARD
 */

typedef enum { SHARDED, UNSHARDED, USED } ShardState;

static gboolean
check_use(const RpCommunicationCheck *check, guint8 *state, guint rank, guint i)
{
    const RpAction *action = rp_orders_action(check->orders, rank, i);
    guint32 stages[2] = {action->stage, rp_action_backward_stage(action)};

    for (guint k = 0; k < 2; k++) {
        if (state[stages[k]] == SHARDED) {
            g_autofree char *subject = rp_orders_describe(check->orders, rank, i);
            g_autofree char *problem =
                g_strdup_printf("computes with stage %u before it is unsharded", stages[k]);

            return fail_check(check, subject, problem);
        }
        state[stages[k]] = USED;
    }
    return TRUE;
}

static gboolean
check_shard(const RpCommunicationCheck *check, guint8 *state, guint rank, guint i)
{
    const RpCommunication *communication = communication_at(check, rank, i);
    guint8 *of = &state[communication->stage];

    if (communication->kind == RP_COMMUNICATION_UNSHARD) {
        if (*of != SHARDED)
            return fail_check_at(check, rank, i, "is of a stage that is unsharded already");
        *of = UNSHARDED;
    } else if (communication->kind == RP_COMMUNICATION_RESHARD) {
        if (*of != USED)
            return fail_check_at(check, rank, i,
                                 *of == SHARDED ? "is of a stage that is not unsharded"
                                                : "follows on an unshard that no action has used");
        *of = SHARDED;
    }
    return TRUE;
}

/* Every action between an unshard and a reshard of its stage (import-shards.c). */
static gboolean
check_shards(const RpCommunicationCheck *check)
{
    const RpOrders *orders = check->orders;
    g_autofree guint8 *state = g_new0(guint8, orders->n_stages);

    if (check->n_of[RP_COMMUNICATION_UNSHARD] + check->n_of[RP_COMMUNICATION_RESHARD] == 0)
        return TRUE;
    for (guint r = 0; r < orders->n_ranks; r++) {
        const guint n = orders->communications[r]->len;
        guint c = 0;

        for (guint i = 0; i <= orders->ranks[r]->len; i++) {
            for (; c < n && communication_at(check, r, c)->position <= i; c++)
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
        return fail_check(check, subject, "is not resharded at the end of its row");
    }
    return TRUE;
}

/* A reduction of each stage behind its last backward. */
static gboolean
check_reductions(const RpCommunicationCheck *check)
{
    const RpOrders *orders = check->orders;
    g_autofree gboolean *reduced = g_new0(gboolean, orders->n_stages);

    if (check->n_of[RP_COMMUNICATION_REDUCE_GRAD] == 0)
        return TRUE;
    for (guint r = 0; r < orders->n_ranks; r++) {
        for (guint i = 0; i < orders->communications[r]->len; i++) {
            const RpCommunication *communication = communication_at(check, r, i);

            if (communication->kind != RP_COMMUNICATION_REDUCE_GRAD)
                continue;
            if (reduced[communication->stage])
                return fail_check_at(check, r, i, "is there twice");
            if (!check->backward ||
                communication->position <= check->last_backward[communication->stage])
                return fail_check_at(check, r, i, "comes before the last backward of its stage");
            reduced[communication->stage] = TRUE;
        }
    }
    for (guint32 s = 0; s < orders->n_stages; s++) {
        if (reduced[s])
            continue;
        g_autofree char *subject = g_strdup_printf("stage %u", s);
        return fail_check(check, subject, "lacks its REDUCE_GRAD, which other stages have");
    }
    return TRUE;
}

static gsize
entry(const RpCommunicationCheck *check, guint32 stage, guint32 micro_batch)
{
    return (gsize)stage * check->orders->micro_batches + micro_batch;
}

static gboolean
is_transfer(const RpCommunication *communication)
{
    return communication->kind < N_TRANSFERS;
}

static gboolean
is_receive(const RpCommunication *communication)
{
    return communication->kind == RP_COMMUNICATION_RECV_F ||
           communication->kind == RP_COMMUNICATION_RECV_B;
}

/* The stage at the other end; may be outside the model. */
static guint32
peer_stage(const RpCommunication *communication)
{
    gboolean up = communication->kind == RP_COMMUNICATION_SEND_F ||
                  communication->kind == RP_COMMUNICATION_RECV_B;

    return up ? communication->stage + 1 : communication->stage - 1;
}

/* The other half of a transfer: a send's receive, a receive's send. Returns: its rank */
static guint
find_partner(const RpCommunicationCheck *check, const RpCommunication *communication, guint *i)
{
    guint32 stage = peer_stage(communication);

    *i = check->place[communication->kind ^ 1][entry(check, stage, communication->micro_batch)];
    return check->rank_of[stage];
}

/* ---- existing sends and receives ---- */

static void
note_action(RpCommunicationCheck *check, guint rank, guint i)
{
    const RpAction *action = rp_orders_action(check->orders, rank, i);
    gboolean overlap = action->kind == RP_ACTION_OVERLAP;
    guint32 stage = rp_action_backward_stage(action);
    guint32 micro_batch = rp_action_backward_micro_batch(action);

    check->rank_of[action->stage] = rank;
    check->rank_of[stage] = rank;
    if (action->kind == RP_ACTION_FORWARD || overlap)
        check->forward_at[entry(check, action->stage, action->micro_batch)] = i;
    if (action->kind == RP_ACTION_FORWARD)
        return;
    check->backward = TRUE;
    if (action->kind != RP_ACTION_WEIGHT_GRADIENT)
        check->backward_at[entry(check, stage, micro_batch)] = i;
    if (action->kind != RP_ACTION_INPUT_GRADIENT)
        check->last_backward[stage] = i;
}

static gboolean
check_no_fused(const RpCommunicationCheck *check)
{
    for (guint r = 0; r < check->orders->n_ranks; r++)
        for (guint i = 0; i < check->orders->ranks[r]->len; i++)
            if (rp_orders_action(check->orders, r, i)->kind == RP_ACTION_FUSED)
                return fail_check(check,
                                  "an order with fused actions, whose stages have no rank of "
                                  "their own,",
                                  "cannot have SEND, RECV, UNSHARD, RESHARD or "
                                  "REDUCE_GRAD");
    return TRUE;
}

/* Whether a cell makes sense where it stands; records the place of a transfer. */
static gboolean
register_communication(RpCommunicationCheck *check, guint rank, guint i)
{
    const RpCommunication *communication = communication_at(check, rank, i);
    guint32 stage = communication->stage, micro_batch = communication->micro_batch;

    if (stage >= check->orders->n_stages)
        return fail_check_at(check, rank, i, "is of a stage that no action runs");
    if (check->rank_of[stage] != rank)
        return fail_check_at(check, rank, i, "is of a stage that runs on another rank");
    check->n_of[communication->kind]++;
    if (!is_transfer(communication))
        return TRUE;
    if (micro_batch == RP_NONE)
        return fail_check_at(check, rank, i, "lacks its micro-batch");
    if (micro_batch >= check->orders->micro_batches)
        return fail_check_at(check, rank, i, "is of a micro-batch that no action runs");
    if (communication->kind >= RP_COMMUNICATION_SEND_B && !check->backward)
        return fail_check_at(check, rank, i,
                             "is of a gradient in an order without backward actions");
    if (peer_stage(communication) >= check->orders->n_stages)
        return fail_check_at(check, rank, i, "has no stage at its other end");
    if (check->rank_of[peer_stage(communication)] == rank)
        return fail_check_at(check, rank, i,
                             "would go from a rank to itself, where nothing is sent");

    guint32 *place = &check->place[communication->kind][entry(check, stage, micro_batch)];

    if (*place != ABSENT)
        return fail_check_at(check, rank, i, "is there twice");
    *place = i;
    return TRUE;
}

/* ---- transfers ---- */

/* Whether the half of a transfer is there, and on the right side of the action that it serves. */
static gboolean
check_half(const RpCommunicationCheck *check, RpCommunicationKind kind, guint32 stage,
           guint32 micro_batch)
{
    gboolean receive = kind == RP_COMMUNICATION_RECV_F || kind == RP_COMMUNICATION_RECV_B;
    gboolean forward = kind < RP_COMMUNICATION_SEND_B;
    guint rank = check->rank_of[stage];
    guint32 action =
        (forward ? check->forward_at : check->backward_at)[entry(check, stage, micro_batch)];
    guint32 place = check->place[kind][entry(check, stage, micro_batch)];
    g_autofree char *served = rp_orders_describe(check->orders, rank, action);

    if (place == ABSENT) {
        const RpCommunication missing = {
            .stage = stage, .micro_batch = micro_batch, .kind = (guint8)kind};
        g_autoptr(GString) name = g_string_new(receive ? "lacks the `" : "lacks a `");

        rp_communication_format(name, &missing);
        g_string_append(name, receive ? "` before it that it computes with"
                                      : "` behind it: the other rank waits for it");
        return fail_check(check, served, name->str);
    }
    const guint32 position = communication_at(check, rank, place)->position;

    if (receive ? position <= action : position > action)
        return TRUE;
    g_autofree char *problem =
        g_strdup_printf(receive ? "comes after %s, which computes with it"
                                : "comes before %s, which makes what is sent",
                        served);
    return fail_check_at(check, rank, place, problem);
}

static gboolean
check_halves(const RpCommunicationCheck *check)
{
    for (guint32 s = 0; s + 1 < check->orders->n_stages; s++) {
        if (check->rank_of[s] == check->rank_of[s + 1])
            continue;
        for (guint32 m = 0; m < check->orders->micro_batches; m++) {
            if (!check_half(check, RP_COMMUNICATION_SEND_F, s, m) ||
                !check_half(check, RP_COMMUNICATION_RECV_F, s + 1, m))
                return FALSE;
            if (check->backward && (!check_half(check, RP_COMMUNICATION_SEND_B, s + 1, m) ||
                                    !check_half(check, RP_COMMUNICATION_RECV_B, s, m)))
                return FALSE;
        }
    }
    return TRUE;
}

/* Follows who waits for whom from a rank that waits, until one comes up again. Every row stands at
 * a receive whose send is behind another receive. */
static gboolean
fail_deadlock(const RpCommunicationCheck *check, const guint *next, guint rank)
{
    g_autofree gboolean *seen = g_new0(gboolean, check->orders->n_ranks);
    guint sender = rank, send = 0, sender_waits = 0;

    while (!seen[rank]) {
        seen[rank] = TRUE;
        rank = find_partner(check, communication_at(check, rank, next[rank]), &send);
    }
    /* @rank is on the cycle now */
    sender = find_partner(check, communication_at(check, rank, next[rank]), &send);
    guint behind =
        find_partner(check, communication_at(check, sender, next[sender]), &sender_waits);
    g_autofree char *waiting = describe_communication(check, rank, next[rank]);
    g_autofree char *wanted = describe_communication(check, sender, send);
    g_autofree char *blocked = describe_communication(check, sender, next[sender]);
    g_autofree char *wanted_too = describe_communication(check, behind, sender_waits);

    return rp_fail_in(
        check->error, check->orders->name, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
        "the order cannot run: %s waits for %s, which comes after %s, which waits for %s", waiting,
        wanted, blocked, wanted_too);
}

/* Runs the rows beside each other: a receive waits for its send, nothing else does. */
static gboolean
check_no_deadlock(const RpCommunicationCheck *check)
{
    const RpOrders *orders = check->orders;
    g_autofree guint *next = g_new0(guint, orders->n_ranks);
    GQueue ready = G_QUEUE_INIT;

    for (guint r = 0; r < orders->n_ranks; r++)
        g_queue_push_tail(&ready, GUINT_TO_POINTER(r + 1));
    while (!g_queue_is_empty(&ready)) {
        guint rank = GPOINTER_TO_UINT(g_queue_pop_head(&ready)) - 1;

        for (; next[rank] < orders->communications[rank]->len; next[rank]++) {
            const RpCommunication *communication = communication_at(check, rank, next[rank]);
            guint other, i = 0;

            if (!is_transfer(communication))
                continue;
            other = find_partner(check, communication, &i);
            if (is_receive(communication) && next[other] <= i)
                break;
            if (!is_receive(communication) && next[other] == i)
                g_queue_push_tail(&ready, GUINT_TO_POINTER(other + 1));
        }
    }
    for (guint r = 0; r < orders->n_ranks; r++)
        if (next[r] < orders->communications[r]->len)
            return fail_deadlock(check, next, r);
    return TRUE;
}

/* How many transfers @rank has had with @other before, and one more from now on. */
static guint
count_transfer(GHashTable *counts, guint rank, guint other)
{
    gpointer key = GUINT_TO_POINTER(rank * RP_PYTORCH_MAX_ROWS + other);
    guint n = GPOINTER_TO_UINT(g_hash_table_lookup(counts, key));

    g_hash_table_insert(counts, key, GUINT_TO_POINTER(n + 1));
    return n;
}

/* The k-th transfer of a rank with another is the k-th of the other with it. */
static gboolean
check_channels(const RpCommunicationCheck *check, RpCommunicationProof *proof)
{
    const RpOrders *orders = check->orders;
    g_autoptr(GHashTable) counts = g_hash_table_new(NULL, NULL);
    g_autofree guint **number = g_new0(guint *, orders->n_ranks);
    gboolean aligned = TRUE;

    for (guint r = 0; r < orders->n_ranks; r++) {
        number[r] = g_new0(guint, orders->communications[r]->len);
        for (guint i = 0; i < orders->communications[r]->len; i++) {
            const RpCommunication *communication = communication_at(check, r, i);

            if (is_transfer(communication))
                number[r][i] = count_transfer(counts, r, check->rank_of[peer_stage(communication)]);
        }
    }
    for (guint r = 0; r < orders->n_ranks && aligned; r++) {
        for (guint i = 0; i < orders->communications[r]->len && aligned; i++) {
            const RpCommunication *communication = communication_at(check, r, i);
            guint other, k = 0;

            if (!is_transfer(communication))
                continue;
            other = find_partner(check, communication, &k);
            if (number[r][i] == number[other][k])
                continue;
            g_autofree char *half = describe_communication(check, other, k);
            g_autofree char *problem = g_strdup_printf(
                "is transfer %u of rank %u with rank %u, but its other half %s is transfer %u of "
                "rank %u with rank %u: a pair of ranks has one channel, which keeps its order",
                number[r][i] + 1, r, other, half, number[other][k] + 1, other, r);

            aligned = fail_check_at(check, r, i, problem);
        }
    }
    for (guint r = 0; r < orders->n_ranks; r++)
        g_free(number[r]);
    proof->rank_pairs = g_hash_table_size(counts) / 2;
    return aligned;
}

static gboolean
check_transfers(const RpCommunicationCheck *check, RpCommunicationProof *proof)
{
    guint64 halves = 0;

    for (guint kind = 0; kind < N_TRANSFERS; kind++)
        halves += check->n_of[kind];
    proof->transfers = halves / 2;
    return halves == 0 ||
           (check_halves(check) && check_no_deadlock(check) && check_channels(check, proof));
}

/* ---- all of it ---- */

static gboolean
register_all(RpCommunicationCheck *check)
{
    const RpOrders *orders = check->orders;

    if (!check_no_fused(check))
        return FALSE;
    for (guint r = 0; r < orders->n_ranks; r++)
        for (guint i = 0; i < orders->ranks[r]->len; i++)
            note_action(check, r, i);
    for (guint r = 0; r < orders->n_ranks; r++)
        for (guint i = 0; i < orders->communications[r]->len; i++)
            if (!register_communication(check, r, i))
                return FALSE;
    return TRUE;
}

static guint32 *
absent_entries(gsize n)
{
    guint32 *entries = g_new(guint32, n);

    for (gsize i = 0; i < n; i++)
        entries[i] = ABSENT;
    return entries;
}

gboolean
rp_orders_check_communications(const RpOrders *orders, RpCommunicationProof *proof, GError **error)
{
    const gsize n = (gsize)orders->n_stages * orders->micro_batches;
    RpCommunicationCheck check = {.orders = orders, .error = error};
    RpCommunicationProof found = {0};

    if (rp_orders_n_communications(orders) == 0) {
        *proof = found;
        return TRUE;
    }
    check.rank_of = absent_entries(orders->n_stages);
    check.last_backward = g_new0(guint32, orders->n_stages);
    check.forward_at = absent_entries(n);
    check.backward_at = absent_entries(n);
    for (guint kind = 0; kind < N_TRANSFERS; kind++)
        check.place[kind] = absent_entries(n);
    gboolean correct = register_all(&check) && check_transfers(&check, &found) &&
                       check_shards(&check) && check_reductions(&check);
    for (guint kind = 0; kind < N_TRANSFERS; kind++)
        g_free(check.place[kind]);
    g_free(check.backward_at);
    g_free(check.forward_at);
    g_free(check.last_backward);
    g_free(check.rank_of);
    found.unshards = check.n_of[RP_COMMUNICATION_UNSHARD];
    found.reductions = (guint)check.n_of[RP_COMMUNICATION_REDUCE_GRAD];
    if (correct)
        *proof = found;
    return correct;
}
