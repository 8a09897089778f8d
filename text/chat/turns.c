#include "text/chat/private.h"

#include <string.h>

#include "core/base/quote.h"
#include "text/template/values/value.h"

/* State while the turns of one record are found. */
typedef struct {
    const RpChat *chat;
    const RpRecord *record;
    const RpRendered *whole;
    const char *text;
    gsize length;
    const GString *prompt; /* the text that asks for an assistant's turn; NULL: not known */
    RpRendered others[2];  /* all messages say something else; text NULL: not yet rendered */
    gboolean others_fail;
    GError **error;
} Search;

static RpTextSpan
trimmed_end(const char *text, RpTextSpan span)
{
    const RpValue bare =
        rp_string_strip(rp_value_text(text + span.start, span.end - span.start), NULL, FALSE, TRUE);

    return (RpTextSpan){span.start, span.start + bare.length};
}

/* The one stretch that the loop over messages made of message @i. */
static gboolean
trace_of(const RpRendered *rendered, guint i, RpTextSpan *span)
{
    guint n = 0;

    for (guint k = 0; k < rendered->traces->len; k++) {
        const RpTextTrace trace = g_array_index(rendered->traces, RpTextTrace, k);
        if (trace.tag != i + 1)
            continue;
        *span = trace.span;
        n++;
    }
    return n == 1;
}

static gsize
common_length(const char *a, gsize n_a, const char *b, gsize n_b)
{
    gsize n = 0;

    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    while (n > 0 && n < n_a && ((guchar)a[n] & 0xc0) == 0x80)
        n--;
    return n;
}

/* The length that the prompt and a turn begin with alike; a tag that they do not share is the
 * turn's. */
static gsize
shared_length(const GString *prompt, const char *turn, gsize n_turn)
{
    gsize n = common_length(prompt->str, prompt->len, turn, n_turn);

    while (n > 0 && n < prompt->len && strchr(">] \n", prompt->str[n - 1]) == NULL)
        n--;
    return n;
}

/* The length in front of message @i's content in @span, whatever the message says: the part that
 * two renderings share in which all messages say something else. G_MAXSIZE if they do not show it.
 */
static gsize
header_length(Search *search, guint i, RpTextSpan span)
{
    static const char *const contents[] = {"A turn.", "9 others"};
    const char *start = search->text + span.start;
    gsize n = span.end - span.start;

    for (guint k = 0; k < G_N_ELEMENTS(contents); k++) {
        RpRendered *other = &search->others[k];
        RpTextSpan changed;
        if (other->text == NULL && !search->others_fail)
            search->others_fail = !rp_chat_render_messages(search->chat, search->record,
                                                           search->record->messages->len, FALSE,
                                                           contents[k], other, NULL);
        if (search->others_fail || !trace_of(other, i, &changed))
            return G_MAXSIZE;
        n = common_length(start, n, other->text->str + changed.start, changed.end - changed.start);
    }
    return n;
}

/* Where the model's own text begins in the stretch @span of message @i: behind the prompt. */
static void
find_start(Search *search, guint i, RpTextSpan *span)
{
    const gboolean assistant = g_array_index(search->record->messages, RpMessage, i).assistant;
    const gsize n = span->end - span->start;
    const char *start = search->text + span->start;

    const GString *prompt = assistant ? search->prompt : NULL;
    if (prompt == NULL || prompt->len == 0) {
        const gsize header = header_length(search, i, *span);
        if (header != G_MAXSIZE &&
            rp_string_strip(rp_value_text(start, header), NULL, TRUE, FALSE).length > 0)
            span->start += header; /* space alone is said */
        return;
    }
    if (prompt->len <= n && memcmp(start, prompt->str, prompt->len) == 0) {
        span->start += prompt->len;
        return;
    }
    g_auto(RpRendered) before = {0};
    if (rp_chat_render_messages(search->chat, search->record, i, TRUE, NULL, &before, NULL) &&
        before.text->len >= span->start && before.text->len <= span->end &&
        memcmp(search->text, before.text->str, before.text->len) == 0) {
        span->start = before.text->len;
        return;
    }
    span->start += MIN(header_length(search, i, *span), shared_length(prompt, start, n));
}

/* Space behind the mark of a turn's end is not said by the model. A turn without a mark ends with
 * the text behind it: space, and for the last turn the end of the chat. */
static void
find_end(const Search *search, guint i, RpTextSpan *span)
{
    const RpMessage *message = &g_array_index(search->record->messages, RpMessage, i);
    const RpValue *content = rp_dict_get(message->dict, "content");
    const RpTextSpan bare = trimmed_end(search->text, *span);
    const RpTextSpan rest = {span->end, search->length};
    RpValue said = rp_value_static("");

    if (content != NULL && content->type == RP_VALUE_STRING)
        said = rp_string_strip(*content, NULL, FALSE, TRUE);
    if (said.length == 0 ||
        !rp_string_ends(rp_value_text(search->text + bare.start, bare.end - bare.start), said))
        *span = bare;
    else if (i + 1 == search->record->messages->len &&
             trimmed_end(search->text, rest).end > rest.start)
        span->end = search->length;
}

/* By renderings of the chat up to the message, where loops do not show it. */
static gboolean
find_by_prefixes(const Search *search, guint i, RpTextSpan *span)
{
    const gboolean last = i + 1 == search->record->messages->len;
    const gboolean assistant = g_array_index(search->record->messages, RpMessage, i).assistant;
    g_auto(RpRendered) before = {0}, with = {0};

    if (rp_chat_render_messages(search->chat, search->record, i, assistant, NULL, &before, NULL) &&
        rp_chat_render_messages(search->chat, search->record, i + 1, FALSE, NULL, &with, NULL)) {
        const RpTextSpan all = {0, with.text->len};
        const gsize end = last ? with.text->len : trimmed_end(with.text->str, all).end;
        if (before.text->len < end && end <= search->length &&
            memcmp(search->text, before.text->str, before.text->len) == 0 &&
            memcmp(search->text, with.text->str, end) == 0) {
            *span = (RpTextSpan){before.text->len, end};
            return TRUE;
        }
    }
    return rp_fail(search->error, RP_CHAT_ERROR, RP_CHAT_ERROR_RENDER,
                   "%s: line %" G_GUINT64_FORMAT
                   ": message %u: expected text that can be told from "
                   "that of the others, found none: mark turns with {%% generation %%} in the "
                   "template (chat_template)",
                   search->record->file, search->record->line, i + 1);
}

static gboolean
turn_of(Search *search, guint i, RpTextSpan *span)
{
    if (!trace_of(search->whole, i, span))
        return find_by_prefixes(search, i, span);
    find_start(search, i, span);
    find_end(search, i, span);
    return TRUE;
}

/* The weight with which message @i is learned, or 0. */
static double
weight_of(const RpChat *chat, const RpRecord *record, guint i, guint last)
{
    const RpMessage *message = &g_array_index(record->messages, RpMessage, i);
    gboolean learned = message->assistant && i >= record->n_prompt;

    if (chat->options.train_on == RP_TRAIN_ON_ALL)
        learned = TRUE;
    else if (chat->options.train_on == RP_TRAIN_ON_LAST)
        learned = i == last;
    if (message->train != RP_TRAIN_DEFAULT)
        learned = message->train == RP_TRAIN_YES;
    return learned ? message->weight : 0.0;
}

/* Spans that lie in @turn, of a template that marks them. Returns: how many */
static guint
add_marked(const RpRendered *whole, RpTextSpan turn, double weight, GArray *spans)
{
    guint n = 0;

    for (guint k = 0; k < whole->generations->len; k++) {
        const RpTextSpan mark = g_array_index(whole->generations, RpTextSpan, k);
        const RpChatSpan span = {mark.start, mark.end, weight};
        if (mark.start < turn.start || mark.end > turn.end)
            continue;
        if (weight > 0.0)
            g_array_append_val(spans, span);
        n++;
    }
    return n;
}

/* All text, but that of messages of another weight. */
static gboolean
find_all(Search *search, GArray *spans)
{
    const RpRecord *record = search->record;
    gsize at = 0;

    for (guint i = 0; i < record->messages->len; i++) {
        const double weight = weight_of(search->chat, record, i, G_MAXUINT);
        RpTextSpan turn;
        if (weight == 1.0)
            continue;
        if (!trace_of(search->whole, i, &turn) && !find_by_prefixes(search, i, &turn))
            return FALSE;
        const RpChatSpan before = {at, turn.start, 1.0}, own = {turn.start, turn.end, weight};
        if (before.end > before.start)
            g_array_append_val(spans, before);
        if (weight > 0.0)
            g_array_append_val(spans, own);
        at = MAX(at, turn.end);
    }
    const RpChatSpan rest = {at, search->length, 1.0};
    if (rest.end > rest.start)
        g_array_append_val(spans, rest);
    return TRUE;
}

static int
compare_spans(gconstpointer a, gconstpointer b)
{
    const gsize x = ((const RpChatSpan *)a)->start, y = ((const RpChatSpan *)b)->start;

    return (x > y) - (x < y);
}

/* Without settings of single messages a template's own marks are all that is learned. */
static gboolean
is_simple(const RpChat *chat, const RpRecord *record)
{
    for (guint i = 0; i < record->messages->len; i++) {
        const RpMessage *message = &g_array_index(record->messages, RpMessage, i);
        if (message->train != RP_TRAIN_DEFAULT || message->weight != 1.0)
            return FALSE;
    }
    return chat->options.train_on == RP_TRAIN_ON_ASSISTANT && record->n_prompt == 0;
}

static gboolean
find_turns(Search *search, gboolean marked, GArray *spans)
{
    const RpRecord *record = search->record;
    const RpTextSpan all = {0, search->length};
    guint last = G_MAXUINT;

    if (search->chat->options.train_on == RP_TRAIN_ON_ALL)
        return find_all(search, spans);
    if (marked && is_simple(search->chat, record)) {
        add_marked(search->whole, all, 1.0, spans);
        return TRUE;
    }
    for (guint i = 0; i < record->messages->len; i++)
        if (g_array_index(record->messages, RpMessage, i).assistant)
            last = i;
    for (guint i = 0; i < record->messages->len; i++) {
        const double weight = weight_of(search->chat, record, i, last);
        RpTextSpan turn;
        if (marked && trace_of(search->whole, i, &turn) &&
            add_marked(search->whole, turn, weight, spans) > 0)
            continue;
        if (weight == 0.0)
            continue;
        if (!turn_of(search, i, &turn))
            return FALSE;
        const RpChatSpan span = {turn.start, turn.end, weight};
        if (span.end > span.start)
            g_array_append_val(spans, span);
    }
    g_array_sort(spans, compare_spans);
    return TRUE;
}

/* Text and spans of a chat. */
static gboolean
read_turns(const RpChat *chat, const RpRecord *record, RpChatText *text, GError **error)
{
    g_autoptr(GError) refused = NULL;
    g_auto(RpRendered) whole = {0};
    const RpTemplate *template = rp_chat_template_of(chat, record, error);

    if (template == NULL)
        return FALSE;
    if (!rp_chat_render_messages(chat, record, record->messages->len, FALSE, NULL, &whole,
                                 &refused))
        return rp_fail(error, RP_CHAT_ERROR, RP_CHAT_ERROR_RENDER,
                       "%s: line %" G_GUINT64_FORMAT ": %s", record->file, record->line,
                       refused->message);
    const gboolean marked = rp_template_marks_generation(template);
    if (marked && whole.hidden)
        return rp_fail(error, RP_CHAT_ERROR, RP_CHAT_ERROR_FILE,
                       "%s: line %" G_GUINT64_FORMAT
                       ": expected {%% generation %%} outside of macros "
                       "and set blocks of the template, found one within",
                       record->file, record->line);
    Search search = {.chat = chat,
                     .record = record,
                     .whole = &whole,
                     .text = whole.text->str,
                     .length = whole.text->len,
                     .error = error};
    const gboolean own = record->variables != NULL || template != chat->plain;
    GString *prompt =
        own ? rp_chat_find_prompt(chat, record->variables, template != chat->plain) : NULL;
    GArray *spans = g_array_new(FALSE, FALSE, sizeof(RpChatSpan));
    search.prompt = own ? prompt : chat->prompt;
    const gboolean found = find_turns(&search, marked, spans);
    if (prompt != NULL)
        g_string_free(prompt, TRUE);
    rp_rendered_clear(&search.others[0]);
    rp_rendered_clear(&search.others[1]);
    if (!found) {
        g_array_free(spans, TRUE);
        return FALSE;
    }
    *text = (RpChatText){g_steal_pointer(&whole.text), spans};
    return TRUE;
}

/* ---- samples ---- */

static void
add_span(GArray *spans, gsize start, gsize end)
{
    const RpChatSpan span = {start, end, 1.0};

    if (end > start)
        g_array_append_val(spans, span);
}

/* The text of a record that is no chat; all of it is learned, or the part behind the prompt. */
static void
plain_text(const RpChat *chat, const RpRecord *record, RpChatText *text)
{
    *text = (RpChatText){g_string_new(NULL), g_array_new(FALSE, FALSE, sizeof(RpChatSpan))};
    if (record->kind == RP_RECORD_COMPLETION)
        g_string_append_len(text->text, record->prompt.text, record->prompt.length);
    const gsize prompt = text->text->len;
    g_string_append_len(text->text, record->text.text, record->text.length);
    add_span(text->spans, chat->options.train_on == RP_TRAIN_ON_ALL ? 0 : prompt, text->text->len);
}

static gboolean
render_record(const RpChat *chat, const RpRecord *record, RpChatText *text, GError **error)
{
    if (record->kind == RP_RECORD_CHAT)
        return read_turns(chat, record, text, error);
    plain_text(chat, record, text);
    return TRUE;
}

gboolean
rp_chat_render(const RpChat *chat, const char *file, guint64 line, const char *json, gsize length,
               RpChatText *text, GError **error)
{
    g_auto(RpRecord) record = {0};

    return rp_record_read(file, line, json, length, RP_ANSWER_NONE, &record, error) &&
           render_record(chat, &record, text, error);
}

void
rp_chat_sample_clear(RpChatSample *sample)
{
    if (sample->ids != NULL)
        g_array_free(sample->ids, TRUE);
    if (sample->labels != NULL)
        g_array_free(sample->labels, TRUE);
    if (sample->weights != NULL)
        g_array_free(sample->weights, TRUE);
    *sample = (RpChatSample){0};
}

/* Weights of @n labels; none where all are 1. */
static void
keep_weights(RpChatSample *sample, const float *weights, gsize n)
{
    gboolean ones = TRUE;

    for (gsize i = 0; ones && i < n; i++)
        ones = weights[i] == 1.0f;
    if (!ones)
        g_array_append_vals(sample->weights, weights, (guint)n);
}

/* Labels by where tokens stand: a token is learned if a byte of it is in a span. */
static void
label(RpChatSample *sample, const GArray *tokens, const GArray *spans)
{
    g_autofree float *weights = g_new(float, tokens->len + 1);
    guint k = 0;

    for (guint i = 0; i < tokens->len; i++) {
        const RpTokenSpan token = g_array_index(tokens, RpTokenSpan, i);
        gint32 id = RP_CHAT_MASKED;
        weights[i] = 1.0f;
        while (k < spans->len && g_array_index(spans, RpChatSpan, k).end <= token.start)
            k++;
        const RpChatSpan *span = k < spans->len ? &g_array_index(spans, RpChatSpan, k) : NULL;
        if (span != NULL && token.end > token.start && token.end > span->start) {
            id = g_array_index(sample->ids, gint32, i);
            weights[i] = (float)span->weight;
            sample->n_learned++;
        }
        g_array_append_val(sample->labels, id);
    }
    keep_weights(sample, weights, tokens->len);
}

/* The end that the tokenizer names, where the text has none: learned as the text before it. */
static void
add_end(const RpChat *chat, RpChatSample *sample)
{
    const gint64 eos = rp_tokenizer_role(chat->tokenizer, RP_TOKEN_EOS);
    const gint32 id = (gint32)eos;
    const guint n = sample->ids->len;

    if (eos < 0)
        return;
    if (n == 0 || g_array_index(sample->ids, gint32, n - 1) != id) {
        g_array_append_val(sample->ids, id);
        g_array_append_val(sample->labels, id);
    } else if (g_array_index(sample->labels, gint32, n - 1) == RP_CHAT_MASKED) {
        g_array_index(sample->labels, gint32, n - 1) = id; /* the tokenizer's template added it */
    } else {
        return;
    }
    sample->n_learned++;
}

static gboolean
tokenize(const RpChat *chat, const RpRecord *record, const RpChatText *text, RpChatSample *sample,
         GError **error)
{
    const gboolean plain = record->kind != RP_RECORD_CHAT;
    g_autoptr(GArray) tokens = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));

    if (!rp_tokenizer_encode(chat->tokenizer, text->text->str, text->text->len,
                             plain ? RP_ENCODE_TEMPLATE : RP_ENCODE_TEXT, sample->ids, tokens,
                             error))
        return rp_prefix_error(error, "%s: line %" G_GUINT64_FORMAT ": ", record->file,
                               record->line);
    label(sample, tokens, text->spans);
    if (plain)
        add_end(chat, sample);
    return TRUE;
}

gboolean
rp_chat_answer(const RpChat *chat, RpAnswerKind answer, const char *file, guint64 line,
               const char *json, gsize length, RpChatSample *sample, GError **error)
{
    g_auto(RpRecord) record = {0};
    g_auto(RpChatText) text = {0};
    g_auto(RpChatSample) made = {.ids = g_array_new(FALSE, FALSE, sizeof(gint32)),
                                 .labels = g_array_new(FALSE, FALSE, sizeof(gint32)),
                                 .weights = g_array_new(FALSE, FALSE, sizeof(float))};

    if (!rp_record_read(file, line, json, length, answer, &record, error) ||
        !render_record(chat, &record, &text, error) ||
        !tokenize(chat, &record, &text, &made, error))
        return FALSE;
    made.desirable = record.desirable;
    *sample = made;
    made = (RpChatSample){0};
    return TRUE;
}

gboolean
rp_chat_sample(const RpChat *chat, const char *file, guint64 line, const char *json, gsize length,
               RpChatSample *sample, GError **error)
{
    return rp_chat_answer(chat, RP_ANSWER_NONE, file, line, json, length, sample, error);
}
