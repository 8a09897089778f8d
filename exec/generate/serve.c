/*
 * Which requests have slots and blocks. Each turn of the loop lets requests in, computes their prompts, and then one token
 * more of every sequence:
 *
 *   let in   slots, and blocks for what is expected: answers as long as those before in the mean
 *   begin    prompts of those let in, and their first tokens
 *   step     a token of each; one whose blocks are full takes another. If there is none, the newest is put back
 *
 * Sequences stand in the order in which they were let in. A block belongs to all sequences of its group that have it, and
 * is free when the last of them has ended.
 */
#include "exec/generate/private.h"

#include <string.h>

typedef struct {
    RpGenerator *generator;
    RpRequests *requests;
    RpSequence **sequences; /* [slots] */
    guint n, n_begun;
    guint *users; /* [blocks]: sequences that have it */
    gint32 *free_blocks;
    guint n_free;
    guint *free_slots;
    guint n_free_slots;
    guint64 n_ended, ended_tokens; /* answers so far */
} Serving;

static Serving *
serving_new(RpGenerator *generator, RpRequests *requests)
{
    const guint slots = generator->options.slots;
    Serving *serving = g_new0(Serving, 1);

    serving->generator = generator;
    serving->requests = requests;
    serving->sequences = g_new0(RpSequence *, slots);
    serving->users = g_new0(guint, generator->blocks);
    serving->free_blocks = g_new(gint32, generator->blocks);
    serving->free_slots = g_new(guint, slots);
    for (guint b = generator->blocks - 1; b > 0; b--)
        serving->free_blocks[serving->n_free++] = (gint32)b;
    for (guint s = slots; s > 0; s--)
        serving->free_slots[serving->n_free_slots++] = s;
    return serving;
}

static void
serving_free(Serving *serving)
{
    g_free(serving->sequences);
    g_free(serving->users);
    g_free(serving->free_blocks);
    g_free(serving->free_slots);
    g_free(serving);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Serving, serving_free)

/* ---- blocks ---- */

static guint
blocks_of(guint tokens)
{
    return (tokens + RP_CACHE_BLOCK - 1) / RP_CACHE_BLOCK;
}

/* There must be one that is free. */
static void
grow(Serving *serving, RpSequence *sequence)
{
    const gint32 block = serving->free_blocks[--serving->n_free];

    serving->users[block] = 1;
    sequence->blocks[sequence->n_blocks++] = block;
}

/* Frees slot and blocks; sequences behind it move up. Returns: its ticket */
static RpTicket *
leave(Serving *serving, guint index)
{
    RpSequence *sequence = serving->sequences[index];
    RpTicket *ticket = sequence->ticket;

    for (guint i = 0; i < sequence->n_blocks; i++)
        if (--serving->users[sequence->blocks[i]] == 0)
            serving->free_blocks[serving->n_free++] = sequence->blocks[i];
    serving->free_slots[serving->n_free_slots++] = sequence->slot;
    serving->n--;
    if (index < serving->n_begun)
        serving->n_begun--;
    memmove(serving->sequences + index, serving->sequences + index + 1,
            (serving->n - index) * sizeof(RpSequence *));
    g_free(sequence->blocks);
    g_free(sequence);
    return ticket;
}

/* The newest begins again later: then it has the same tokens. */
static void
put_back_newest(Serving *serving)
{
    RpTicket *ticket = leave(serving, serving->n - 1);

    ticket->n_answer = 0;
    rp_requests_put_back(serving->requests, ticket);
}

/* ---- letting in ---- */

/* A sequence whose blocks hold the same prompt. Returns: its place, or serving->n */
static guint
find_alike(const Serving *serving, const RpTicket *ticket)
{
    const RpPromptRequest *request = &ticket->request;
    guint i = 0;

    while (i < serving->n &&
           (request->group == 0 || serving->sequences[i]->ticket->request.group != request->group ||
            serving->sequences[i]->ticket->request.n_prompt != request->n_prompt))
        i++;
    return i;
}

static void
let_in(Serving *serving, RpTicket *ticket, guint alike, guint n_shared)
{
    RpSequence *sequence = g_new0(RpSequence, 1);
    const guint place = serving->n - serving->n_begun;

    sequence->ticket = ticket;
    sequence->slot = serving->free_slots[--serving->n_free_slots];
    sequence->blocks = g_new0(gint32, serving->generator->most_blocks);
    sequence->n_shared = n_shared;
    sequence->begins_with = alike < serving->n && alike >= serving->n_begun
                                ? serving->sequences[alike]->begins_with
                                : place;
    for (guint i = 0; i < n_shared; i++) {
        sequence->blocks[i] = serving->sequences[alike]->blocks[i];
        serving->users[sequence->blocks[i]]++;
    }
    sequence->n_blocks = n_shared;
    while (sequence->n_blocks < blocks_of(ticket->request.n_prompt))
        grow(serving, sequence);
    serving->sequences[serving->n++] = sequence;
}

/* Blocks that a sequence is expected to need; while no answer has ended, as many as it may. */
static guint
blocks_expected(const Serving *serving, const RpTicket *ticket)
{
    const RpPromptRequest *request = &ticket->request;
    const guint64 usual =
        serving->n_ended > 0 ? serving->ended_tokens / serving->n_ended + 1 : request->most_tokens;
    const guint64 longer = MAX(usual, ticket->n_answer + 1);

    return blocks_of(request->n_prompt + (guint)MIN(longer, request->most_tokens));
}

/* Whether there is space for @ticket beside those that are there. @tokens: (inout): that the next call begins */
static gboolean
try_let_in(Serving *serving, RpTicket *ticket, guint *tokens)
{
    const guint n_prompt = ticket->request.n_prompt;
    const guint alike = find_alike(serving, ticket);
    const guint n_shared = alike < serving->n ? n_prompt / RP_CACHE_BLOCK : 0;
    const gboolean begins_with = alike < serving->n && alike >= serving->n_begun;
    const guint more = begins_with ? 0 : n_prompt;
    const guint begins = serving->n - serving->n_begun + 1;

    if (MAX(*tokens + more, begins) > serving->generator->begin_tokens)
        return FALSE;
    guint wanted = blocks_expected(serving, ticket) - n_shared;

    for (guint i = 0; i < serving->n; i++) {
        const RpSequence *sequence = serving->sequences[i];
        const RpPromptRequest *request = &sequence->ticket->request;
        const guint expected = blocks_expected(serving, sequence->ticket);
        const guint most = blocks_of(request->n_prompt + request->most_tokens);

        wanted += MIN(MAX(expected, sequence->n_blocks + 1), most) - sequence->n_blocks;
    }
    if (serving->n > 0 && serving->n_free < wanted)
        return FALSE;
    let_in(serving, ticket, alike, n_shared);
    *tokens += more;
    return TRUE;
}

/* Waits if there is nothing else to do. Returns: whether there are sequences; else none will come */
static gboolean
let_all_in(Serving *serving)
{
    guint tokens = 0;

    while (serving->n < serving->generator->options.slots) {
        RpTicket *ticket = rp_requests_take(serving->requests, serving->n == 0);

        if (ticket == NULL)
            break;
        if (g_atomic_int_get(&ticket->cancelled)) {
            rp_requests_end(serving->requests, ticket, RP_REQUEST_STOPPED);
        } else if ((guint64)ticket->request.n_prompt + ticket->request.most_tokens >
                   serving->generator->options.tokens) {
            rp_requests_end(serving->requests, ticket, RP_REQUEST_FAILED);
        } else if (!try_let_in(serving, ticket, &tokens)) {
            rp_requests_put_back(serving->requests, ticket);
            break;
        }
    }
    return serving->n > 0;
}

/* ---- tokens ---- */

static gboolean
is_end(const RpGeneratorOptions *options, gint32 id)
{
    for (guint i = 0; i < options->n_ends; i++)
        if (options->ends[i] == id)
            return TRUE;
    return FALSE;
}

/* Adds a token to an answer. @end: (out): why it is over. Returns: whether it continues */
static gboolean
take_token(Serving *serving, RpTicket *ticket, gint32 id, RpRequestEnd *end)
{
    const RpPromptRequest *request = &ticket->request;
    gboolean stopped = g_atomic_int_get(&ticket->cancelled);

    ticket->answer[ticket->n_answer++] = id;
    if (ticket->n_answer > ticket->n_shown) {
        ticket->n_shown = ticket->n_answer;
        if (!stopped && request->token != NULL)
            stopped = !request->token(request->user_data, ticket->answer, ticket->n_answer);
    }
    *end = is_end(&serving->generator->options, id)   ? RP_REQUEST_ENDED
           : ticket->n_answer == request->most_tokens ? RP_REQUEST_FULL
                                                      : RP_REQUEST_STOPPED;
    return *end == RP_REQUEST_STOPPED && !stopped;
}

/* Adds the ids that a call has left to sequences from @first on, @n of them. */
static void
take_tokens(Serving *serving, guint first, guint n)
{
    const gint32 *ids = serving->generator->ids;
    guint at = first;

    for (guint i = 0; i < n; i++) {
        RpTicket *ticket = serving->sequences[at]->ticket;
        RpRequestEnd end;

        if (take_token(serving, ticket, ids[i], &end)) {
            at++;
            continue;
        }
        serving->n_ended++;
        serving->ended_tokens += ticket->n_answer;
        rp_requests_end(serving->requests, leave(serving, at), end);
    }
}

static gboolean
begin(Serving *serving, GError **error)
{
    const guint first = serving->n_begun, n = serving->n - first;
    gboolean again;

    if (n == 0)
        return TRUE;
    if (!rp_generator_turn(serving->generator, serving->sequences[first]->ticket->request.n_prompt,
                           TRUE, &again, error) ||
        !rp_generator_begin(serving->generator, serving->sequences + first, n, error))
        return FALSE;
    serving->n_begun = serving->n;
    take_tokens(serving, first, n);
    return TRUE;
}

/* Blocks for the token that each sequence has chosen last. */
static void
make_space(Serving *serving)
{
    for (guint i = 0; i < serving->n; i++) {
        RpSequence *sequence = serving->sequences[i];
        const RpTicket *ticket = sequence->ticket;

        if (sequence->n_blocks >= blocks_of(ticket->request.n_prompt + ticket->n_answer))
            continue;
        while (serving->n_free == 0 && serving->n > i + 1)
            put_back_newest(serving);
        if (serving->n_free == 0) {
            put_back_newest(serving); /* it is the newest */
            return;
        }
        grow(serving, sequence);
    }
}

static gboolean
step(Serving *serving, GError **error)
{
    gboolean again = FALSE;

    make_space(serving);
    if (serving->n == 0)
        return TRUE;
    const RpTicket *first = serving->sequences[0]->ticket;

    if (!rp_generator_turn(serving->generator, first->request.n_prompt + first->n_answer, FALSE,
                           &again, error))
        return FALSE;
    if (!(again ? rp_generator_begin : rp_generator_step)(serving->generator, serving->sequences,
                                                          serving->n, error))
        return FALSE;
    take_tokens(serving, 0, serving->n);
    return TRUE;
}

gboolean
rp_generator_serve(RpGenerator *generator, RpRequests *requests, GError **error)
{
    g_autoptr(Serving) serving = serving_new(generator, requests);
    gboolean good = TRUE;

    while (good && let_all_in(serving))
        good = begin(serving, error) && step(serving, error);
    while (serving->n > 0)
        rp_requests_end(requests, leave(serving, serving->n - 1), RP_REQUEST_FAILED);
    return good;
}
