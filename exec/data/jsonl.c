/* JSON lines as Hugging Face datasets write them.
 *
 *   {"input_ids":[1,2,3],"attention_mask":[1,1,1],"labels":[-100,2,3]}\n
 *   ^offsets[0]                                                         ^offsets[1]
 *
 * The index is built once; a line is parsed each time it is read, which takes microseconds.
 */
#include "exec/data/dataset.h"

#include <stdarg.h>
#include <string.h>

#include "core/json/json-pull.h"
#include "exec/data/dataset-private.h"

#define INDEX_PIECE_BYTES ((gsize)1 << 22)

typedef struct {
    RpDataBytes *bytes;
    const char *name;
    guint64 *offsets; /* n_lines + 1: where lines start; the last as if all ended in a newline */
    guint64 n_lines;
    guint vocabulary;
    char *expected_id; /* for messages */
    char *expected_label;
} Jsonl;

/* One line while it is read. */
typedef struct {
    const Jsonl *jsonl;
    guint64 index;
    const char *start;
    RpJsonPull pull;
    const char *ids_at; /* the opening bracket; NULL if not yet seen */
    const char *labels_at;
    const char *mask_at;
    guint64 n_ids;
    guint64 n_labels;
    guint64 labels_end; /* behind the last label that is not masked */
    guint64 n_mask;
    guint64 mask_ones; /* at its beginning */
    GError **error;
} Line;

static gboolean fail_at(const Line *line, const char *at, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

static gboolean
fail_at(const Line *line, const char *at, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *what = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error(line->error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                "%s: line %" G_GUINT64_FORMAT ", column %" G_GSIZE_FORMAT ": %s", line->jsonl->name,
                line->index + 1, (gsize)(at - line->start) + 1, what);
    return FALSE;
}

/* Digits only, less than the vocabulary. */
static gboolean
read_id(Line *line, gint32 *id)
{
    RpJsonPull *pull = &line->pull;
    guint64 value;

    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER)
        return rp_json_pull_fail(pull, line->jsonl->expected_id);
    if (*pull->at == '-') /* whole() would have its own words for it */
        return rp_json_pull_fail(pull, line->jsonl->expected_id);
    if (!rp_json_pull_whole(pull, &value))
        return FALSE;
    if (value >= line->jsonl->vocabulary)
        return rp_json_pull_fail_value(pull, line->jsonl->expected_id);
    *id = (gint32)value;
    return TRUE;
}

/* An id, or RP_LABEL_MASKED as an integer is written: -100.0 would be a number of another type. */
static gboolean
read_label(Line *line, gint32 *label)
{
    RpJsonPull *pull = &line->pull;
    guint64 whole;
    double number;

    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER)
        return rp_json_pull_fail(pull, line->jsonl->expected_label);
    if (*pull->at == '-') {
        if (!rp_json_pull_number(pull, &number))
            return FALSE;
        if (pull->at - pull->value != 4 || memcmp(pull->value, "-100", 4) != 0)
            return rp_json_pull_fail_value(pull, line->jsonl->expected_label);
        *label = RP_LABEL_MASKED;
        return TRUE;
    }
    if (!rp_json_pull_whole(pull, &whole))
        return FALSE;
    if (whole >= line->jsonl->vocabulary)
        return rp_json_pull_fail_value(pull, line->jsonl->expected_label);
    *label = (gint32)whole;
    return TRUE;
}

/* An array of ids or labels; stores what fits and counts all. */
static gboolean
read_tokens(Line *line, gboolean (*read)(Line *, gint32 *), gint32 *tokens, gsize capacity,
            const char **start, guint64 *count)
{
    guint64 n = 0;
    guint64 end = 0;

    if (!rp_json_pull_enter_array(&line->pull))
        return FALSE;
    *start = line->pull.value;
    while (rp_json_pull_next_element(&line->pull)) {
        gint32 token = 0;
        if (!read(line, &token))
            return FALSE;
        if (n < capacity)
            tokens[n] = token;
        n++;
        if (token != RP_LABEL_MASKED)
            end = n;
    }
    *count = n;
    if (read == read_label)
        line->labels_end = end;
    return !line->pull.failed;
}

/* Ones, then zeros: what is padded behind. All else changes which tokens are seen, or where they
 * stand. */
static gboolean
read_mask(Line *line)
{
    RpJsonPull *pull = &line->pull;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    line->mask_at = pull->value;
    while (rp_json_pull_next_element(pull)) {
        gboolean ended = line->mask_ones < line->n_mask;
        guint64 seen;
        if (!rp_json_pull_whole(pull, &seen))
            return FALSE;
        if (seen > 1 || (seen == 1 && ended) || (seen == 0 && line->n_mask == 0))
            return rp_json_pull_fail_value(pull, line->n_mask == 0
                                                     ? "1, since the first token is no padding"
                                                 : ended ? "0, as all that follow padding"
                                                         : "0 or 1");
        line->mask_ones += seen;
        line->n_mask++;
    }
    return !pull->failed;
}

typedef enum { INPUT_IDS, LABELS, ATTENTION_MASK, REFUSED } MemberKind;

/* The arguments of transformers' models that its Trainer fills from columns; others it drops. */
static const struct {
    const char *key;
    MemberKind kind;
    const char *why; /* of what is refused */
} members[] = {
    {"input_ids", INPUT_IDS, NULL},
    {"labels", LABELS, NULL},
    {"attention_mask", ATTENTION_MASK, NULL},
    {"position_ids", REFUSED, "positions count from 0 in each sample"},
    {"inputs_embeds", REFUSED, "tokens come from input_ids"},
    {"past_key_values", REFUSED, "a sample begins with nothing before it"},
    {"cache_position", REFUSED, "positions count from 0 in each sample"},
    {"logits_to_keep", REFUSED, "labels of -100 say what is not learned"},
    {"label", REFUSED, "labels stand in labels"},
    {"label_ids", REFUSED, "labels stand in labels"},
};

static gboolean
read_member(Line *line, const GString *key, const char *key_at, RpSample *sample)
{
    const char **places[] = {&line->ids_at, &line->labels_at, &line->mask_at};
    gsize i = 0;

    while (i < G_N_ELEMENTS(members) && strcmp(key->str, members[i].key) != 0)
        i++;
    if (i == G_N_ELEMENTS(members))
        return rp_json_pull_skip(&line->pull);
    if (members[i].kind != REFUSED && *places[members[i].kind] != NULL)
        return fail_at(line, key_at, "expected each key once, found \"%s\" a second time",
                       key->str);
    /* datasets write null where some rows have the key and this one has not */
    if (members[i].kind != INPUT_IDS && rp_json_pull_peek(&line->pull) == RP_JSON_NULL)
        return rp_json_pull_null(&line->pull);
    switch (members[i].kind) {
    case INPUT_IDS:
        return read_tokens(line, read_id, sample->input_ids, sample->capacity, &line->ids_at,
                           &line->n_ids);
    case LABELS:
        return read_tokens(line, read_label, sample->labels, sample->capacity, &line->labels_at,
                           &line->n_labels);
    case ATTENTION_MASK:
        return read_mask(line);
    case REFUSED:
        break;
    }
    return fail_at(line, key_at, "expected no %s, for %s", members[i].key, members[i].why);
}

/* Whether padding is neither learned nor learned from: then it changes nothing. */
static gboolean
check_mask(const Line *line)
{
    /* a label is learned one place before its own */
    guint64 learned = line->labels_at ? line->labels_end : line->n_ids;

    if (!line->mask_at)
        return TRUE;
    if (line->n_mask != line->n_ids)
        return fail_at(line, line->mask_at,
                       "expected attention_mask to have %" G_GUINT64_FORMAT
                       " numbers, one for each of input_ids, found %" G_GUINT64_FORMAT,
                       line->n_ids, line->n_mask);
    return learned <= line->mask_ones + 1 || line->mask_ones == line->n_ids ||
           fail_at(line, line->mask_at,
                   "expected labels of -100 where attention_mask is 0, found %s",
                   line->labels_at ? "another" : "no labels");
}

/* What can be said only when all members are read. */
static gboolean
finish(Line *line, RpSample *sample)
{
    const char *object = line->start + strspn(line->start, " \t\r");

    if (!line->ids_at)
        return fail_at(line, object, "expected an object with input_ids, found one without");
    if (line->n_ids == 0)
        return fail_at(line, line->ids_at, "expected at least one id, found none");
    if (line->labels_at && line->n_labels != line->n_ids)
        return fail_at(line, line->labels_at,
                       "expected %" G_GUINT64_FORMAT " labels, one for each of input_ids, found "
                       "%" G_GUINT64_FORMAT,
                       line->n_ids, line->n_labels);
    if (!check_mask(line))
        return FALSE;
    if (!line->labels_at && sample->capacity > 0)
        memcpy(sample->labels, sample->input_ids,
               (gsize)MIN(line->n_ids, sample->capacity) * sizeof *sample->labels);
    sample->n_tokens = line->n_ids;
    return TRUE;
}

static gboolean
parse(Line *line, RpSample *sample)
{
    g_autoptr(GString) key = g_string_new(NULL);
    RpJsonPull *pull = &line->pull;

    if (!rp_json_pull_enter_object(pull))
        return FALSE;
    while (rp_json_pull_next_key(pull, key)) {
        if (!read_member(line, key, pull->value, sample))
            return FALSE;
    }
    return !pull->failed && rp_json_pull_end(pull) && finish(line, sample);
}

static gboolean
check_length(const Line *line, guint64 length)
{
    return length <= RP_JSONL_MAX_LINE_BYTES ||
           fail_at(line, line->start,
                   "expected at most %" G_GSIZE_FORMAT " bytes in a line, found %" G_GUINT64_FORMAT,
                   RP_JSONL_MAX_LINE_BYTES, length);
}

/* What a line must be before it is looked at as JSON. */
static gboolean
check_line(const Line *line, gsize length)
{
    gsize space = 0;

    while (space < length && strchr(" \t\r", line->start[space]) && line->start[space])
        space++;
    if (space == length)
        return fail_at(line, line->start, "expected an object, found an empty line");
    if (length >= 3 && memcmp(line->start, "\xef\xbb\xbf", 3) == 0)
        return fail_at(line, line->start, "expected an object, found a byte order mark");
    return TRUE;
}

/* As rp_json_pull_init(), with the line in the message. */
static gboolean
start_pull(Line *line, gsize length)
{
    const char *bad = line->start;

    if (rp_json_pull_init(&line->pull, line->jsonl->name, line->start, length, RP_DATASET_ERROR,
                          RP_DATASET_ERROR_SAMPLE, line->error)) {
        line->pull.lines_before = line->index;
        return TRUE;
    }
    g_clear_error(line->error);
    (void)g_utf8_validate_len(line->start, length, &bad);
    return fail_at(line, bad, "expected UTF-8 text, found byte 0x%02x", (guchar)*bad);
}

static gboolean
jsonl_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const Jsonl *jsonl = source;
    guint64 length = jsonl->offsets[index + 1] - jsonl->offsets[index] - 1;
    Line line = {.jsonl = jsonl, .index = index, .error = error};
    g_autofree guint8 *scratch = NULL;

    if (!check_length(&line, length))
        return FALSE;
    line.start = (const char *)rp_data_bytes_get(jsonl->bytes, jsonl->offsets[index], (gsize)length,
                                                 &scratch, error);
    return line.start && check_line(&line, (gsize)length) && start_pull(&line, (gsize)length) &&
           parse(&line, sample);
}

static char *
jsonl_locate(gconstpointer source, guint64 index)
{
    return g_strdup_printf("line %" G_GUINT64_FORMAT, index + 1);
}

static const RpDataBytes *
jsonl_bytes(gconstpointer source)
{
    return ((const Jsonl *)source)->bytes;
}

static void
jsonl_free(gpointer source)
{
    Jsonl *jsonl = source;

    g_free(jsonl->offsets);
    g_free(jsonl->expected_id);
    g_free(jsonl->expected_label);
    rp_data_bytes_free(jsonl->bytes);
    g_free(jsonl);
}

static const RpDatasetOps jsonl_ops = {jsonl_read, jsonl_locate, jsonl_bytes, jsonl_free};

static void
add_offset(Jsonl *jsonl, gsize *room, guint64 offset)
{
    if (jsonl->n_lines + 1 == *room) {
        *room *= 2;
        jsonl->offsets = g_renew(guint64, jsonl->offsets, *room);
    }
    jsonl->offsets[++jsonl->n_lines] = offset;
}

/* Piece by piece: the file may be larger than memory. */
static gboolean
build_index(Jsonl *jsonl, GError **error)
{
    const guint64 length = rp_data_bytes_length(jsonl->bytes);
    gsize room = 1024;

    jsonl->offsets = g_new0(guint64, room);
    for (guint64 first = 0; first < length; first += INDEX_PIECE_BYTES) {
        g_autofree guint8 *scratch = NULL;
        gsize n = (gsize)MIN(INDEX_PIECE_BYTES, length - first);
        const guint8 *piece = rp_data_bytes_get(jsonl->bytes, first, n, &scratch, error);
        if (!piece)
            return FALSE;
        const guint8 *at = piece;
        while ((at = memchr(at, '\n', n - (gsize)(at - piece))))
            add_offset(jsonl, &room, first + (guint64)(++at - piece));
    }
    if (jsonl->offsets[jsonl->n_lines] < length) /* a last line without its newline */
        add_offset(jsonl, &room, length + 1);
    jsonl->offsets = g_renew(guint64, jsonl->offsets, jsonl->n_lines + 1);
    return TRUE;
}

/* @bytes: (transfer full) */
static RpDataset *
new_from(RpDataBytes *bytes, guint vocabulary, GError **error)
{
    RpFingerprints fingerprints;
    Jsonl *jsonl = g_new0(Jsonl, 1);

    jsonl->bytes = bytes;
    jsonl->name = rp_data_bytes_name(bytes);
    jsonl->vocabulary = vocabulary;
    jsonl->expected_id = g_strdup_printf("an id from 0 to %u", vocabulary - 1);
    jsonl->expected_label =
        g_strdup_printf("%d or an id from 0 to %u", RP_LABEL_MASKED, vocabulary - 1);
    if (rp_data_bytes_length(bytes) == 0) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                    "%s: expected at least one line, found an empty file", jsonl->name);
    } else if (build_index(jsonl, error) &&
               rp_dataset_fingerprints("jsonl/1", jsonl->n_lines, bytes, &fingerprints, error)) {
        return rp_dataset_new(&jsonl_ops, jsonl, jsonl->name, jsonl->n_lines, vocabulary,
                              &fingerprints);
    }
    jsonl_free(jsonl);
    return NULL;
}

RpDataset *
rp_dataset_new_jsonl(const char *name, GBytes *text, guint vocabulary, GError **error)
{
    g_return_val_if_fail(name && text, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    return new_from(rp_data_bytes_new(name, text), vocabulary, error);
}

RpDataset *
rp_dataset_open_jsonl(const char *path, guint vocabulary, GError **error)
{
    g_return_val_if_fail(path, NULL);
    g_return_val_if_fail(vocabulary > 0 && vocabulary <= RP_DATASET_MAX_VOCABULARY, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    RpDataBytes *bytes = rp_data_bytes_open(path, error);
    return bytes ? new_from(bytes, vocabulary, error) : NULL;
}
