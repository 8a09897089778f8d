/* Lines of `F0.0 B0.0`: the words of schedule files, read and written. */
#include "core/formats/schedule-file.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/formats/private.h"

#define SHOWN_BYTES 40
#define AN_ACTION                                                                                  \
    "an action as F0.0 (F, B, I, W or FB; its stage; a dot; its micro-batch), F0.7&B7.3, or - "    \
    "for "                                                                                         \
    "an idle step"

static const struct {
    const char *letters;
    guint8 kind;
} names[] = {
    {"F", RP_ACTION_FORWARD},         {"B", RP_ACTION_BACKWARD}, {"I", RP_ACTION_INPUT_GRADIENT},
    {"W", RP_ACTION_WEIGHT_GRADIENT}, {"FB", RP_ACTION_FUSED},
};

typedef struct {
    const char *name;
    guint line;
    const char *start; /* start of the line */
    const char *end;
    guint n_words;
    RpOrders *orders;
    guint rank;
    GError **error; /* never NULL */
} Reader;

/* A word of a line. */
typedef struct {
    const char *at;
    const char *end;
} Word;

static gboolean
fail(const Reader *reader, RpImportError code, const char *expected, Word word)
{
    g_autofree char *text = g_strndup(word.at, MIN((gsize)(word.end - word.at), SHOWN_BYTES));
    g_autofree char *found = rp_quote(text);

    if (*reader->error == NULL)
        (void)rp_fail_in(reader->error, reader->name, RP_IMPORT_ERROR, code,
                         "line %u, column %" G_GSIZE_FORMAT ": expected %s, found %s", reader->line,
                         (gsize)(word.at - reader->start) + 1, expected, found);
    return FALSE;
}

/* FALSE without an error set if there is no number. */
static gboolean
take_index(const Reader *reader, Word *word, guint32 *index)
{
    const char *start = word->at;
    guint32 value = 0;

    for (; word->at < word->end && g_ascii_isdigit(*word->at); word->at++) {
        value = value * 10 + (guint32)(*word->at - '0');
        if (value > RP_PYTORCH_MAX_INDEX)
            return fail(reader, RP_IMPORT_ERROR_LIMIT, "stages and micro-batches up to 16777216",
                        (Word){start, word->end});
    }
    *index = value;
    return word->at > start;
}

/* One `F0.0` from the front of @word. */
static gboolean
take_action(const Reader *reader, Word *word, RpAction *action)
{
    const char *letters = word->at;

    *action = (RpAction){.backward_stage = RP_NONE, .backward_micro_batch = RP_NONE};
    while (word->at < word->end && g_ascii_isupper(*word->at))
        word->at++;
    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        if (strlen(names[i].letters) != (gsize)(word->at - letters) ||
            memcmp(names[i].letters, letters, (gsize)(word->at - letters)) != 0)
            continue;
        action->kind = names[i].kind;
        return take_index(reader, word, &action->stage) && word->at < word->end &&
               *word->at++ == '.' && take_index(reader, word, &action->micro_batch);
    }
    return FALSE;
}

static gboolean
read_word(Reader *reader, Word word)
{
    const Word whole = word;
    RpAction action, backward;

    if (reader->n_words++ == RP_PYTORCH_MAX_CELLS)
        return fail(reader, RP_IMPORT_ERROR_LIMIT, "at most 16777216 words", word);
    if (word.end - word.at == 1 && *word.at == '-')
        return TRUE;
    if (!take_action(reader, &word, &action))
        return fail(reader, RP_IMPORT_ERROR_SYNTAX, AN_ACTION, whole);
    if (word.at < word.end && *word.at == '&') {
        word.at++;
        if (!take_action(reader, &word, &backward) || action.kind != RP_ACTION_FORWARD ||
            backward.kind != RP_ACTION_BACKWARD)
            return fail(reader, RP_IMPORT_ERROR_SYNTAX, "a forward and a backward as F0.7&B7.3",
                        whole);
        action.kind = RP_ACTION_OVERLAP;
        action.backward_stage = backward.stage;
        action.backward_micro_batch = backward.micro_batch;
        if (action.stage == backward.stage && action.micro_batch == backward.micro_batch)
            return fail(reader, RP_IMPORT_ERROR_SYNTAX,
                        "two actions of different stages or micro-batches, or one as FB0.7", whole);
    }
    if (word.at != word.end)
        return fail(reader, RP_IMPORT_ERROR_SYNTAX, AN_ACTION, whole);
    rp_orders_append(reader->orders, reader->rank, &action,
                     (guint32)(whole.at - reader->start) + 1);
    return TRUE;
}

/* The next word of the line; FALSE at its end or a comment. */
static gboolean
next_word(const Reader *reader, Word *word)
{
    word->at = word->end;
    while (word->at < reader->end && g_ascii_isspace(*word->at))
        word->at++;
    word->end = word->at;
    while (word->end < reader->end && !g_ascii_isspace(*word->end))
        word->end++;
    return word->at < word->end && *word->at != '#';
}

static gboolean
is_word(Word word, const char *text)
{
    return strlen(text) == (gsize)(word.end - word.at) && memcmp(word.at, text, strlen(text)) == 0;
}

/* `round 8`, `weights offloaded` */
static gboolean
read_setting(const Reader *reader, Word word, RpScheduleText *words)
{
    const Word first = word;
    guint32 round = 0;

    if (is_word(word, "round")) {
        if (words->round_line != 0)
            return fail(reader, RP_IMPORT_ERROR_SYNTAX, "one line of `round`", word);
        if (!next_word(reader, &word))
            return fail(reader, RP_IMPORT_ERROR_SYNTAX, "a number of micro-batches behind it",
                        first);
        const Word number = word;

        if (!take_index(reader, &word, &round) || word.at != word.end || round == 0)
            return fail(reader, RP_IMPORT_ERROR_SYNTAX, "a number of micro-batches, 1 or more",
                        number);
        words->round = round;
        words->round_line = reader->line;
    } else if (is_word(word, "weights") && next_word(reader, &word) && is_word(word, "offloaded")) {
        words->offloaded_line = reader->line;
    } else {
        return fail(reader, RP_IMPORT_ERROR_SYNTAX,
                    AN_ACTION "; or `round N` or `weights offloaded` on a line of its own", first);
    }
    return !next_word(reader, &word) ||
           fail(reader, RP_IMPORT_ERROR_SYNTAX, "the end of the line", word);
}

/* Lines of GPUs: neither empty, nor a comment, nor a setting. */
static gboolean
has_actions(const Reader *reader)
{
    Word word = {.end = reader->start};

    return next_word(reader, &word) && !g_ascii_islower(*word.at);
}

static gboolean
read_line(Reader *reader, RpScheduleText *words)
{
    Word word = {.end = reader->start};

    if (!next_word(reader, &word))
        return TRUE;
    if (g_ascii_islower(*word.at))
        return read_setting(reader, word, words);
    reader->orders->lines[reader->rank] = reader->line;
    do
        if (!read_word(reader, word))
            return FALSE;
    while (next_word(reader, &word));
    reader->rank++;
    return TRUE;
}

/* Moves on to the next line; FALSE behind the last. */
static gboolean
next_line(Reader *reader, const char *end)
{
    if (reader->line > 0 && reader->end < end)
        reader->end++;
    if (reader->end >= end)
        return FALSE;
    reader->start = reader->end;
    reader->line++;
    const char *newline = memchr(reader->start, '\n', (gsize)(end - reader->start));

    reader->end = newline != NULL ? newline : end;
    return TRUE;
}

RpOrders *
rp_orders_import_text(const char *name, const char *text, gsize length, RpScheduleText *words,
                      GError **error)
{
    GError *problem = NULL;
    const char *end = text + length;
    Reader reader = {.name = name, .end = text, .error = &problem};
    guint n_ranks = 0;

    while (next_line(&reader, end) && n_ranks <= RP_PYTORCH_MAX_ROWS)
        n_ranks += has_actions(&reader);
    if (n_ranks == 0 || n_ranks > RP_PYTORCH_MAX_ROWS)
        return rp_null(
            rp_fail_in(error, name, RP_IMPORT_ERROR, RP_IMPORT_ERROR_LIMIT,
                       "expected 1 to %u lines of actions as `F0.0 B0.0`, one for each GPU, "
                       "found %s",
                       RP_PYTORCH_MAX_ROWS, n_ranks == 0 ? "none" : "more"));
    g_autoptr(RpOrders) orders = rp_orders_new(name, n_ranks);

    orders->lines = g_new0(guint32, n_ranks);
    reader = (Reader){.name = name, .end = text, .error = &problem, .orders = orders};
    while (next_line(&reader, end))
        if (!read_line(&reader, words))
            return rp_null(rp_propagate_error(error, problem));
    return g_steal_pointer(&orders);
}

/* ---- writing ---- */

void
rp_schedule_file_format(GString *text, const RpAction *action)
{
    const char *letters = "F";

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
        if (names[i].kind == action->kind)
            letters = names[i].letters;
    g_string_append_printf(text, "%s%u.%u", letters, action->stage, action->micro_batch);
    if (action->kind == RP_ACTION_OVERLAP)
        g_string_append_printf(text, "&B%u.%u", action->backward_stage,
                               action->backward_micro_batch);
}

gboolean
rp_schedule_file_write(const RpScheduleOps *schedule, const RpShape *shape, const char *comment,
                       GOutputStream *stream, GError **error)
{
    g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(RpAction));
    RpSink sink;

    if (schedule->mirrored)
        return rp_fail(
            error, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER,
            "%s has two copies of each stage, on two GPUs: a schedule file binds all of a "
            "stage to one; expected another schedule, or PyTorch's CSV",
            schedule->name);
    rp_sink_init(&sink, stream);
    if (comment != NULL)
        g_string_append_printf(sink.text, "# %s\n", comment);
    if (schedule->dispatched)
        g_string_append_printf(sink.text, "round %u\n", shape->round);
    else if (schedule->offloads_weights)
        g_string_append(sink.text, "weights offloaded\n");
    for (guint g = 0; g < shape->gpus; g++) {
        g_array_set_size(order, 0);
        rp_schedule_append_order(schedule, shape, g, order);
        if (order->len == 0)
            g_string_append_c(sink.text, '-');
        for (guint i = 0; i < order->len && rp_sink_step(&sink); i++) {
            if (i > 0)
                g_string_append_c(sink.text, ' ');
            rp_schedule_file_format(sink.text, &g_array_index(order, RpAction, i));
        }
        g_string_append_c(sink.text, '\n');
    }
    return rp_sink_finish(&sink, error);
}
