/*
 * Text to ids.
 *
 *   "Hi<|end|>é x"  ->  Hi | <|end|> | é x   added tokens cut out
 *                       Hi |         | é x   each stretch between them normalized (here composed)
 *                       Hi |         | é|␣x  cut into pieces, pieces merged
 *
 * Where a token comes from is followed back through the edits of each step.
 */
#include "text/tokenizer/private.h"

#include <string.h>

#include "core/base/quote.h"

#define WORD_MARK "\xe2\x96\x81" /* ▁ */

/* The edits of one step, from its result back to its source. */
typedef struct {
    GArray *edits; /* RpEdit */
    guint next;    /* the first that begins behind the place of the last look-up */
} Layer;

typedef struct {
    const RpTokenizer *tokenizer;
    RpEncodeFlags flags;
    GArray *ids;
    GArray *spans; /* or %NULL */
    RpMergeWork work;
    RpMatch *match;
    GPtrArray *layers; /* Layer: spare ones behind the first n_layers */
    guint n_layers;
    GString *texts[2]; /* normalizers read one and write the other */
    GString *prefixed; /* text with a prefix before it */
    GString *spaced;
    gsize origin;   /* start of the stretch in the text */
    gboolean moved; /* the part is cut from the text as it is, @shift bytes behind its start */
    gsize shift;
    const char *text; /* that is cut into pieces */
} Encoder;

static void
layer_free(gpointer data)
{
    Layer *layer = data;

    g_array_unref(layer->edits);
    g_free(layer);
}

/* Memory for the edits of one more step; %NULL if nobody needs them. */
static GArray *
push_layer(Encoder *encoder)
{
    if (encoder->spans == NULL)
        return NULL;
    if (encoder->n_layers == encoder->layers->len) {
        Layer *layer = g_new0(Layer, 1);

        layer->edits = g_array_new(FALSE, FALSE, sizeof(RpEdit));
        g_ptr_array_add(encoder->layers, layer);
    }
    Layer *layer = g_ptr_array_index(encoder->layers, encoder->n_layers++);

    g_array_set_size(layer->edits, 0);
    layer->next = 0;
    return layer->edits;
}

/* Where @at of a step's result was before. */
static gsize
look_back(Layer *layer, gsize at, gboolean is_end)
{
    const RpEdit *edits = (const RpEdit *)(const void *)layer->edits->data;

    while (layer->next > 0 && edits[layer->next - 1].new_start > at)
        layer->next--;
    while (layer->next < layer->edits->len && edits[layer->next].new_start <= at)
        layer->next++;
    if (layer->next == 0)
        return at;
    const RpEdit *edit = &edits[layer->next - 1];

    if (at >= edit->new_end)
        return edit->old_end + (at - edit->new_end);
    return is_end && at > edit->new_start ? edit->old_end : edit->old_start;
}

/* Bytes @start to @end of the text that is cut, in the original. */
static void
append_span(Encoder *encoder, gsize start, gsize end)
{
    for (guint i = encoder->n_layers; i-- > 0;) {
        Layer *layer = g_ptr_array_index(encoder->layers, i);

        start = look_back(layer, start, FALSE);
        end = look_back(layer, end, TRUE);
    }
    RpTokenSpan span = (RpTokenSpan){(guint32)(encoder->origin + start),
                                     (guint32)(encoder->origin + MAX(start, end))};
    g_array_append_val(encoder->spans, span);
}

/* Whether the edits of all steps only say where the part begins. */
static void
find_shift(Encoder *encoder)
{
    encoder->moved = TRUE;
    encoder->shift = encoder->origin;
    for (guint i = 0; i < encoder->n_layers; i++) {
        const GArray *edits = ((Layer *)g_ptr_array_index(encoder->layers, i))->edits;
        const RpEdit *edit = (const RpEdit *)(const void *)edits->data;

        if (edits->len == 0)
            continue;
        encoder->moved &= edits->len == 1 && edit->new_end == 0 && edit->old_start == edit->old_end;
        encoder->shift += edit->old_end;
    }
}

/* Where the symbols of a piece come from. */
static void
append_spans(Encoder *encoder, const RpSymbol *symbols, guint n, gsize piece)
{
    const guint before = encoder->spans->len;
    guint32 start = 0;

    if (!encoder->moved) {
        for (guint i = 0; i < n; start = symbols[i++].end)
            append_span(encoder, piece + start, piece + symbols[i].end);
        return;
    }
    g_array_set_size(encoder->spans, before + n);
    RpTokenSpan *spans = &g_array_index(encoder->spans, RpTokenSpan, before);
    const guint32 shift = (guint32)(encoder->shift + piece);

    for (guint i = 0; i < n; start = symbols[i++].end)
        spans[i] = (RpTokenSpan){shift + start, shift + symbols[i].end};
}

static void
append_symbols(Encoder *encoder, const RpSymbol *symbols, guint n, gsize piece)
{
    const guint before = encoder->ids->len;

    g_array_set_size(encoder->ids, before + n);
    guint32 *ids = &g_array_index(encoder->ids, guint32, before);

    for (guint i = 0; i < n; i++)
        ids[i] = symbols[i].id;
    if (encoder->spans != NULL)
        append_spans(encoder, symbols, n, piece);
}

/* ---- pieces ---- */

/* Whether @piece is a token as a whole, for files that ignore merges then. */
static gboolean
take_whole(Encoder *encoder, const char *piece, gsize length, gsize start)
{
    const RpTokenizer *tokenizer = encoder->tokenizer;
    char content[2 * RP_CACHED_BYTES * 8];
    gsize n = 0;
    RpSymbol symbol = {.end = (guint32)length};

    if (!tokenizer->ignore_merges || length > sizeof content / 2)
        return FALSE;
    for (gsize i = 0; i < length && tokenizer->byte_level; i++)
        n += rp_byte_level_character((guint8)piece[i], content + n);
    symbol.id = tokenizer->byte_level ? rp_vocabulary_find(&tokenizer->vocabulary, content, n)
                                      : rp_vocabulary_find(&tokenizer->vocabulary, piece, length);
    if (symbol.id == RP_TOKEN_NONE)
        return FALSE;
    rp_piece_cache_add(tokenizer->cache, piece, length, &symbol, 1);
    append_symbols(encoder, &symbol, 1, start);
    return TRUE;
}

static void
encode_piece(Encoder *encoder, gsize start, gsize end)
{
    const char *piece = encoder->text + start;
    RpPieceCache *cache = encoder->tokenizer->cache;
    RpSymbol known[RP_CACHED_SYMBOLS];
    const guint n = rp_piece_cache_find(cache, piece, end - start, known);

    if (n > 0) {
        append_symbols(encoder, known, n, start);
        return;
    }
    if (take_whole(encoder, piece, end - start, start))
        return;
    rp_bpe_merge(encoder->tokenizer, piece, end - start, &encoder->work);
    const GArray *symbols = encoder->work.symbols;

    rp_piece_cache_add(cache, piece, end - start, (const RpSymbol *)(void *)symbols->data,
                       symbols->len);
    append_symbols(encoder, (const RpSymbol *)(void *)symbols->data, symbols->len, start);
}

/* A piece, word by word where no merge joins words. */
static void
encode_words(Encoder *encoder, gsize start, gsize end)
{
    const char *text = encoder->text;
    const gsize mark = strlen(WORD_MARK);

    for (gsize at = start; encoder->tokenizer->cuts_words && at < end;) {
        const char *found = memmem(text + at, end - at, WORD_MARK, mark);

        if (found == NULL)
            break;
        const gsize word = (gsize)(found - text);

        if (word > start) {
            encode_piece(encoder, start, word);
            start = word;
        }
        for (at = word; end - at >= mark && memcmp(text + at, WORD_MARK, mark) == 0;)
            at += mark;
    }
    if (start < end)
        encode_piece(encoder, start, end);
}

static gboolean split(Encoder *encoder, guint step, gsize start, gsize end);

/* A part that waits for the next one. */
typedef struct {
    gsize start, end;
    gboolean held;
    gboolean is_match;
} Held;

static gboolean
flush(Encoder *encoder, guint step, Held *held)
{
    const gboolean good = !held->held || split(encoder, step + 1, held->start, held->end);

    held->held = FALSE;
    return good;
}

/* The next part of a text that a pattern divides: a match, or the text between matches. */
static gboolean
take_part(Encoder *encoder, guint step, Held *held, gsize start, gsize end, gboolean is_match)
{
    const RpStep *rule = &g_array_index(encoder->tokenizer->splits, RpStep, step);
    const gboolean joins = rule->behavior == RP_SPLIT_CONTIGUOUS ? is_match == held->is_match
                           : rule->behavior == RP_SPLIT_MERGED_WITH_PREVIOUS
                               ? is_match && !held->is_match
                               : held->is_match && !is_match;

    if (rule->behavior == RP_SPLIT_REMOVED && is_match)
        return TRUE;
    if (rule->behavior == RP_SPLIT_REMOVED || rule->behavior == RP_SPLIT_ISOLATED)
        return split(encoder, step + 1, start, end);
    if (held->held && joins) {
        held->end = end;
    } else {
        if (!flush(encoder, step, held))
            return FALSE;
        *held = (Held){start, end, TRUE, is_match};
    }
    held->is_match = is_match;
    return TRUE;
}

/* Cuts a part of the text by the rules from @step on, and encodes the results. */
static gboolean
split(Encoder *encoder, guint step, gsize start, gsize end)
{
    const GArray *splits = encoder->tokenizer->splits;
    const char *text = encoder->text + start;
    const gsize length = end - start;
    gsize at = 0, from = 0, first, last;
    Held held = {0};
    int found = 1;

    if (length == 0)
        return TRUE;
    if (step == splits->len) {
        encode_words(encoder, start, end);
        return TRUE;
    }
    const RpStep *rule = &g_array_index(splits, RpStep, step);

    while (from <= length && found > 0) {
        found = rp_pattern_next(rule->pattern, encoder->match, text, length, from, &first, &last);
        if (found <= 0)
            break;
        if (at < first && !take_part(encoder, step, &held, start + at, start + first, rule->invert))
            return FALSE;
        if (first < last &&
            !take_part(encoder, step, &held, start + first, start + last, !rule->invert))
            return FALSE;
        at = last;
        from = last > first    ? last
               : last < length ? (gsize)(g_utf8_next_char(text + last) - text)
                               : length + 1;
    }
    return found >= 0 &&
           (at == length || take_part(encoder, step, &held, start + at, end, rule->invert)) &&
           flush(encoder, step, &held);
}

/* ---- stretches ---- */

/* Puts Metaspace's marks and the prefix in, then cuts. @at: place of @text in the normalized
 * stretch */
static gboolean
encode_normalized(Encoder *encoder, const char *text, gsize length, gsize at)
{
    const RpTokenizer *tokenizer = encoder->tokenizer;
    const guint n_layers = encoder->n_layers;
    GArray *edits = push_layer(encoder);
    gsize prefix = tokenizer->prefix != RP_PREFIX_NEVER ? strlen(tokenizer->prefix_text) : 0;

    if (edits != NULL) { /* a part of the stretch */
        const RpEdit shift = {0, 0, 0, (guint32)at};

        g_array_append_val(edits, shift);
    }
    if (tokenizer->spaces.content != NULL &&
        rp_normalize(&tokenizer->spaces, encoder->match, text, length, G_MAXSIZE, encoder->spaced,
                     push_layer(encoder)) > 0) {
        text = encoder->spaced->str;
        length = encoder->spaced->len;
    }
    if (prefix > 0 && length > 0 &&
        (tokenizer->prefix == RP_PREFIX_ALWAYS || encoder->origin + at == 0) &&
        (length < prefix || memcmp(text, tokenizer->prefix_text, prefix) != 0)) {
        const RpStep step = {.kind = RP_STEP_PREPEND, .content = tokenizer->prefix_text};

        (void)rp_normalize(&step, encoder->match, text, length, G_MAXSIZE, encoder->prefixed,
                           push_layer(encoder));
        text = encoder->prefixed->str;
        length = encoder->prefixed->len;
    }
    encoder->text = text;
    find_shift(encoder);
    const gboolean good = split(encoder, 0, 0, length);

    encoder->n_layers = n_layers;
    return good;
}

/* Text between added tokens that are found as they are. */
static gboolean
encode_stretch(Encoder *encoder, const char *text, gsize length, gsize origin)
{
    const RpTokenizer *tokenizer = encoder->tokenizer;
    const gsize most = RP_NORMALIZE_MOST(length);
    RpAddedState state = {0};
    RpAddedMatch part;

    encoder->origin = origin;
    encoder->n_layers = 0;
    for (guint i = 0; i < tokenizer->normalizers->len; i++) {
        GString *out = encoder->texts[text == encoder->texts[0]->str];
        const int changed =
            rp_normalize(&g_array_index(tokenizer->normalizers, RpStep, i), encoder->match, text,
                         length, most, out, push_layer(encoder));

        if (changed < 0)
            return FALSE;
        if (changed > 0) {
            text = out->str;
            length = out->len;
        }
    }
    while (rp_added_next(&tokenizer->matched[1], (encoder->flags & RP_ENCODE_PLAIN) != 0, text,
                         length, &state, &part)) {
        if (part.id == RP_TOKEN_NONE) {
            if (!encode_normalized(encoder, text + part.start, part.end - part.start, part.start))
                return FALSE;
            continue;
        }
        g_array_append_val(encoder->ids, part.id);
        if (encoder->spans != NULL)
            append_span(encoder, part.start, part.end);
    }
    return TRUE;
}

/* Tokens that the file puts around every text. */
static void
append_template(Encoder *encoder, const GArray *ids, gsize at)
{
    const RpTokenSpan nowhere = {(guint32)at, (guint32)at};

    if ((encoder->flags & RP_ENCODE_TEMPLATE) == 0)
        return;
    for (guint i = 0; i < ids->len; i++) {
        g_array_append_val(encoder->ids, g_array_index(ids, guint32, i));
        if (encoder->spans != NULL)
            g_array_append_val(encoder->spans, nowhere);
    }
}

static gboolean
encode(Encoder *encoder, const char *text, gsize length)
{
    const RpTokenizer *tokenizer = encoder->tokenizer;
    RpAddedState state = {0};
    RpAddedMatch part;

    append_template(encoder, tokenizer->before, 0);
    while (rp_added_next(&tokenizer->matched[0], (encoder->flags & RP_ENCODE_PLAIN) != 0, text,
                         length, &state, &part)) {
        if (part.id == RP_TOKEN_NONE) {
            if (!encode_stretch(encoder, text + part.start, part.end - part.start, part.start))
                return FALSE;
            continue;
        }
        const RpTokenSpan span = {(guint32)part.start, (guint32)part.end};

        g_array_append_val(encoder->ids, part.id);
        if (encoder->spans != NULL)
            g_array_append_val(encoder->spans, span);
    }
    append_template(encoder, tokenizer->after, length);
    return TRUE;
}

static gboolean
check_text(const char *text, gsize length, GError **error)
{
    if (length > RP_TOKENIZER_MAX_TEXT)
        return rp_fail(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_TEXT,
                       "expected a text of at most %d bytes, found %" G_GSIZE_FORMAT,
                       RP_TOKENIZER_MAX_TEXT, length);
    const gsize good = rp_utf8_length(text, length);

    if (good == length)
        return TRUE;
    return rp_fail(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_TEXT,
                   "offset %" G_GSIZE_FORMAT ": expected UTF-8, found byte 0x%02x", good,
                   (guint8)text[good]);
}

gboolean
rp_tokenizer_encode(const RpTokenizer *tokenizer, const char *text, gsize length,
                    RpEncodeFlags flags, GArray *ids, GArray *spans, GError **error)
{
    const guint n_ids = ids->len, n_spans = spans != NULL ? spans->len : 0;

    if (!check_text(text, length, error))
        return FALSE;
    Encoder encoder = {
        .tokenizer = tokenizer,
        .flags = flags,
        .ids = ids,
        .spans = spans,
        .match = rp_match_new(),
        .layers = g_ptr_array_new_with_free_func(layer_free),
        .texts = {g_string_new(NULL), g_string_new(NULL)},
        .prefixed = g_string_new(NULL),
        .spaced = g_string_new(NULL),
    };

    rp_merge_work_init(&encoder.work);
    const gboolean good = encode(&encoder, text, length);

    rp_merge_work_clear(&encoder.work);
    rp_match_free(encoder.match);
    g_ptr_array_unref(encoder.layers);
    g_string_free(encoder.texts[0], TRUE);
    g_string_free(encoder.texts[1], TRUE);
    g_string_free(encoder.prefixed, TRUE);
    g_string_free(encoder.spaced, TRUE);
    if (good)
        return TRUE;
    g_array_set_size(ids, n_ids);
    if (spans != NULL)
        g_array_set_size(spans, n_spans);
    return rp_fail(
        error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_TEXT,
        "a pattern of the tokenizer takes too long on this text, or makes too much of it");
}
