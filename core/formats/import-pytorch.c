/**
 * Orders, and reading them from PyTorch's pipeline CSV.
 *
 *   0F0,0F1,,0B0,0B1         row 0 = rank 0; the third cell is an idle step
 *   ,1F0,1B0,1F1,1B1
 */
#include "core/formats/import-pytorch.h"

#include <string.h>

#include "core/base/quote.h"

/* Bytes after which a cell in a message is cut. */
#define SHOWN_BYTES 40

G_DEFINE_QUARK(rp_import_error, rp_import_error)

RpOrders *
rp_orders_new(const char *name, guint n_ranks)
{
    RpOrders *orders = g_new0(RpOrders, 1);

    orders->name = g_strdup(name);
    orders->n_ranks = n_ranks;
    orders->ranks = g_new0(GArray *, n_ranks);
    orders->cells = g_new0(GArray *, n_ranks);
    orders->communications = g_new0(GArray *, n_ranks);
    for (guint r = 0; r < n_ranks; r++) {
        orders->ranks[r] = g_array_new(FALSE, FALSE, sizeof(RpAction));
        orders->cells[r] = g_array_new(FALSE, FALSE, sizeof(guint32));
        orders->communications[r] = g_array_new(FALSE, FALSE, sizeof(RpCommunication));
    }
    return orders;
}

void
rp_orders_free(RpOrders *orders)
{
    if (orders == NULL)
        return;
    for (guint r = 0; r < orders->n_ranks; r++) {
        g_array_unref(orders->ranks[r]);
        g_array_unref(orders->cells[r]);
        g_array_unref(orders->communications[r]);
    }
    g_free(orders->lines);
    g_free(orders->ranks);
    g_free(orders->cells);
    g_free(orders->communications);
    g_free(orders->name);
    g_free(orders);
}

void
rp_orders_append(RpOrders *orders, guint rank, const RpAction *action, guint32 cell)
{
    g_return_if_fail(rank < orders->n_ranks);

    g_array_append_vals(orders->ranks[rank], action, 1);
    g_array_append_val(orders->cells[rank], cell);
    orders->n_stages = MAX(orders->n_stages, action->stage + 1);
    orders->micro_batches = MAX(orders->micro_batches, action->micro_batch + 1);
    if (action->kind == RP_ACTION_OVERLAP) {
        orders->n_stages = MAX(orders->n_stages, action->backward_stage + 1);
        orders->micro_batches = MAX(orders->micro_batches, action->backward_micro_batch + 1);
    }
}

guint64
rp_orders_n_actions(const RpOrders *orders)
{
    guint64 n = 0;

    for (guint r = 0; r < orders->n_ranks; r++)
        n += orders->ranks[r]->len;
    return n;
}

guint64
rp_orders_n_communications(const RpOrders *orders)
{
    guint64 n = 0;

    for (guint r = 0; r < orders->n_ranks; r++)
        n += orders->communications[r]->len;
    return n;
}

static gboolean
actions_equal(const RpAction *a, const RpAction *b)
{
    if (a->kind != b->kind || a->stage != b->stage || a->micro_batch != b->micro_batch)
        return FALSE;
    return a->kind != RP_ACTION_OVERLAP || (a->backward_stage == b->backward_stage &&
                                            a->backward_micro_batch == b->backward_micro_batch);
}

gboolean
rp_orders_equal(const RpOrders *a, const RpOrders *b)
{
    if (a->n_ranks != b->n_ranks)
        return FALSE;
    for (guint r = 0; r < a->n_ranks; r++) {
        if (a->ranks[r]->len != b->ranks[r]->len)
            return FALSE;
        for (guint i = 0; i < a->ranks[r]->len; i++)
            if (!actions_equal(&g_array_index(a->ranks[r], RpAction, i),
                               &g_array_index(b->ranks[r], RpAction, i)))
                return FALSE;
    }
    return TRUE;
}

void
rp_action_format(GString *text, const RpAction *action)
{
    static const char letters[] = {
        [RP_ACTION_FORWARD] = 'F',
        [RP_ACTION_BACKWARD] = 'B',
        [RP_ACTION_INPUT_GRADIENT] = 'I',
        [RP_ACTION_WEIGHT_GRADIENT] = 'W',
    };

    if (action->kind == RP_ACTION_FUSED)
        g_string_append_printf(text, "(%uF%u;%uB%u)OVERLAP_F_B", action->stage, action->micro_batch,
                               action->stage, action->micro_batch);
    else if (action->kind == RP_ACTION_OVERLAP)
        g_string_append_printf(text, "(%uF%u;%uB%u)OVERLAP_F_B", action->stage, action->micro_batch,
                               action->backward_stage, action->backward_micro_batch);
    else
        g_string_append_printf(text, "%u%c%u", action->stage, letters[action->kind],
                               action->micro_batch);
}

typedef struct {
    const char *name;
    guint flags;
    guint row;
    guint cell;
    guint n_cells;  /* in the whole file */
    GError **error; /* never NULL */
} Reader;

static gboolean
fail(const Reader *reader, RpImportError code, const char *expected, const char *at,
     const char *end)
{
    g_autofree char *text = g_strndup(at, MIN((gsize)(end - at), SHOWN_BYTES));
    g_autofree char *found = rp_quote(text);

    return rp_fail_in(reader->error, reader->name, RP_IMPORT_ERROR, code,
                      "row %u, cell %u: expected %s, found %s", reader->row, reader->cell, expected,
                      found);
}

/* FALSE without an error set if there is no number here at all. */
static gboolean
take_index(const Reader *reader, const char **at, const char *end, guint32 *index)
{
    const char *start = *at;
    guint32 value = 0;

    for (; *at < end && g_ascii_isdigit(**at); (*at)++) {
        value = value * 10 + (guint32)(**at - '0');
        if (value > RP_PYTORCH_MAX_INDEX)
            return fail(reader, RP_IMPORT_ERROR_LIMIT, "stages and micro-batches up to 16777216",
                        start, end);
    }
    *index = value;
    return *at > start;
}

/* The letters of an action in PyTorch's files. */
typedef struct {
    const char *letters;
    const char *old_letters; /* in files of older PyTorch; %NULL: not there */
    gboolean computes;
    guint8 kind; /* RpActionKind if it computes, else RpCommunicationKind */
} Name;

static const Name names[] = {
    {"F", "F", TRUE, RP_ACTION_FORWARD},
    {"B", "BW", TRUE, RP_ACTION_BACKWARD},
    {"I", "B", TRUE, RP_ACTION_INPUT_GRADIENT},
    {"W", "W", TRUE, RP_ACTION_WEIGHT_GRADIENT},
    {"SEND_F", "SEND_F", FALSE, RP_COMMUNICATION_SEND_F},
    {"RECV_F", "RECV_F", FALSE, RP_COMMUNICATION_RECV_F},
    {"SEND_B", "SEND_B", FALSE, RP_COMMUNICATION_SEND_B},
    {"RECV_B", "RECV_B", FALSE, RP_COMMUNICATION_RECV_B},
    {"UNSHARD", "UNSHARD", FALSE, RP_COMMUNICATION_UNSHARD},
    {"RESHARD", "RESHARD", FALSE, RP_COMMUNICATION_RESHARD},
    {"REDUCE_GRAD", NULL, FALSE, RP_COMMUNICATION_REDUCE_GRAD},
};

void
rp_communication_format(GString *text, const RpCommunication *communication)
{
    const char *letters = "?";

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
        if (!names[i].computes && names[i].kind == communication->kind)
            letters = names[i].letters;
    g_string_append_printf(text, "%u%s", communication->stage, letters);
    if (communication->micro_batch != RP_NONE)
        g_string_append_printf(text, "%u", communication->micro_batch);
}

static const Name *
find_name(const Reader *reader, const char *at, gsize length)
{
    gboolean old = (reader->flags & RP_PYTORCH_OLD_NAMES) != 0;

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        const char *letters = old ? names[i].old_letters : names[i].letters;

        if (letters != NULL && strlen(letters) == length && memcmp(letters, at, length) == 0)
            return &names[i];
    }
    return NULL;
}

/* The letters that the file's PyTorch version knows, as a message lists them. */
static char *
list_names(const Reader *reader)
{
    gboolean old = (reader->flags & RP_PYTORCH_OLD_NAMES) != 0;
    GString *list = g_string_new("<stage><action><micro-batch> with the action one of ");
    const char *comma = "";

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        const char *letters = old ? names[i].old_letters : names[i].letters;

        if (letters == NULL)
            continue;
        g_string_append_printf(list, "%s%s", comma, letters);
        comma = ", ";
    }
    return g_string_free(list, FALSE);
}

/* One `3F0`, from @at to @end; @computes: whether it is an action; else @action->kind is that of a
 * communication. */
static gboolean
read_simple(const Reader *reader, const char *at, const char *end, RpAction *action,
            gboolean *computes)
{
    const char *start = at;

    *action = (RpAction){.backward_stage = RP_NONE, .backward_micro_batch = RP_NONE};
    if (!take_index(reader, &at, end, &action->stage))
        goto wrong;
    const char *letters = at;
    while (at < end && (g_ascii_isupper(*at) || *at == '_'))
        at++;
    const Name *name = find_name(reader, letters, (gsize)(at - letters));
    if (name == NULL)
        goto wrong;
    action->kind = name->kind;
    *computes = name->computes;
    /* UNSHARD and its like may stand for the whole stage */
    gboolean numbered = take_index(reader, &at, end, &action->micro_batch);
    if (!numbered)
        action->micro_batch = RP_NONE;
    if (at == end && (numbered || !name->computes))
        return TRUE;

wrong:
    if (*reader->error == NULL) {
        g_autofree char *expected = list_names(reader);
        fail(reader, RP_IMPORT_ERROR_SYNTAX, expected, start, end);
    }
    return FALSE;
}

/* `(0F7;7B3)OVERLAP_F_B` */
static gboolean
read_overlap(const Reader *reader, const char *at, const char *end, RpAction *action)
{
    static const char tail[] = ")OVERLAP_F_B";
    const char *close = memchr(at, ')', (gsize)(end - at));
    const char *middle = memchr(at, ';', (gsize)(end - at));
    gboolean computes[2] = {FALSE, FALSE};
    RpAction backward;

    if (close == NULL || middle == NULL || middle > close ||
        (gsize)(end - close) != sizeof tail - 1 || memcmp(close, tail, sizeof tail - 1) != 0)
        return fail(reader, RP_IMPORT_ERROR_SYNTAX,
                    "an overlap as (<forward>;<backward>)OVERLAP_F_B", at, end);
    if (!read_simple(reader, at + 1, middle, action, &computes[0]) ||
        !read_simple(reader, middle + 1, close, &backward, &computes[1]))
        return FALSE;
    if (!computes[0] || !computes[1] || action->kind != RP_ACTION_FORWARD ||
        backward.kind != RP_ACTION_BACKWARD)
        return fail(reader, RP_IMPORT_ERROR_SYNTAX, "an overlap of a forward and a full backward",
                    at, end);
    if (action->stage == backward.stage && action->micro_batch == backward.micro_batch) {
        action->kind = RP_ACTION_FUSED;
        return TRUE;
    }
    action->kind = RP_ACTION_OVERLAP;
    action->backward_stage = backward.stage;
    action->backward_micro_batch = backward.micro_batch;
    return TRUE;
}

static gboolean
read_cell(Reader *reader, const char *at, const char *end, RpOrders *orders)
{
    gboolean computes = TRUE; /* an overlap does */
    RpAction action;

    if (reader->n_cells++ == RP_PYTORCH_MAX_CELLS)
        return fail(reader, RP_IMPORT_ERROR_LIMIT, "at most 16777216 cells", at, end);
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (at < end && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (at == end)
        return TRUE;
    if (*at == '(' ? !read_overlap(reader, at, end, &action)
                   : !read_simple(reader, at, end, &action, &computes))
        return FALSE;
    if (computes) {
        rp_orders_append(orders, reader->row - 1, &action, reader->cell);
        return TRUE;
    }
    const RpCommunication communication = {
        .stage = action.stage,
        .micro_batch = action.micro_batch,
        .cell = reader->cell,
        .position = orders->ranks[reader->row - 1]->len,
        .kind = action.kind,
    };

    g_array_append_val(orders->communications[reader->row - 1], communication);
    return TRUE;
}

static gboolean
read_row(Reader *reader, const char *at, const char *end, RpOrders *orders)
{
    if (at < end && end[-1] == '\r')
        end--;
    for (reader->cell = 1;; reader->cell++) {
        const char *comma = memchr(at, ',', (gsize)(end - at));
        if (!read_cell(reader, at, comma != NULL ? comma : end, orders))
            return FALSE;
        if (comma == NULL)
            return TRUE;
        at = comma + 1;
    }
}

/* Lines; the last one may lack its end. Counts one past the limit at most. */
static guint
count_rows(const char *text, const char *end)
{
    guint n = 0;

    while (text < end && n <= RP_PYTORCH_MAX_ROWS) {
        const char *newline = memchr(text, '\n', (gsize)(end - text));
        text = newline != NULL ? newline + 1 : end;
        n++;
    }
    return n;
}

RpOrders *
rp_orders_import_pytorch(const char *name, const char *text, gsize length, guint flags,
                         GError **error)
{
    GError *local = NULL;
    Reader reader = {.name = name, .flags = flags, .row = 1, .cell = 1, .error = &local};

    g_return_val_if_fail(name && (text || length == 0), NULL);

    text = length > 0 ? text : "";
    const char *end = text + length;
    guint n_rows = count_rows(text, end);
    if (n_rows == 0 || n_rows > RP_PYTORCH_MAX_ROWS)
        return rp_null(rp_fail_in(error, name, RP_IMPORT_ERROR, RP_IMPORT_ERROR_LIMIT,
                                  "expected 1 to %u rows, one for each rank, found %s",
                                  RP_PYTORCH_MAX_ROWS, n_rows == 0 ? "an empty file" : "more"));
    g_autoptr(RpOrders) orders = rp_orders_new(name, n_rows);
    for (guint r = 0; r < n_rows; r++) {
        const char *newline = memchr(text, '\n', (gsize)(end - text));

        reader.row = r + 1;
        if (!read_row(&reader, text, newline != NULL ? newline : end, orders))
            return rp_null(rp_propagate_error(error, local));
        text = newline != NULL ? newline + 1 : end;
    }
    return g_steal_pointer(&orders);
}

guint
rp_pytorch_flags_of(const char *text, gsize length)
{
    return memchr(text, 'W', length) != NULL && memchr(text, 'I', length) == NULL
               ? RP_PYTORCH_OLD_NAMES
               : 0;
}
