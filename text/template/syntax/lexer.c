#include "text/template/syntax/syntax.h"

#include <string.h>

#include "core/base/quote.h"
#include "text/template/values/value.h"

G_DEFINE_QUARK(rp_template_error, rp_template_error)

typedef struct {
    RpArena *arena;
    const char *name;
    const char *source;
    const char *end;
    const char *at;
    const char *counted; /* lines are counted up to here */
    const char *line_start;
    guint line;
    gboolean line_starting; /* the last tag took a newline */
    GArray *tokens;
    GString *open; /* brackets */
    GError **error;
} Lexer;

void
rp_template_refuse(GError **error, const char *name, const RpToken *at, const char *expected,
                   const char *found)
{
    g_set_error(error, RP_TEMPLATE_ERROR, RP_TEMPLATE_ERROR_SYNTAX,
                "%s: line %u, column %u: expected %s, found %s", name, at->line, at->column,
                expected, found);
}

char *
rp_token_describe(const RpToken *token)
{
    if (token->type == RP_TOKEN_END)
        return g_strdup("the end of the template");
    if (token->type == RP_TOKEN_DATA)
        return g_strdup("text");
    g_autofree char *text = g_strndup(token->text, token->length);
    return rp_quote(text);
}

static RpToken
token_at(Lexer *lexer, RpTokenType type, const char *at, gsize length)
{
    if (at < lexer->counted) { /* only to refuse something opened before */
        lexer->counted = lexer->line_start = lexer->source;
        lexer->line = 1;
    }
    for (; lexer->counted < at; lexer->counted++)
        if (*lexer->counted == '\n') {
            lexer->line++;
            lexer->line_start = lexer->counted + 1;
        }
    return (RpToken){type,   at, (guint)length, lexer->line, (guint)(at - lexer->line_start) + 1,
                     rp_none};
}

static void
add(Lexer *lexer, RpTokenType type, const char *at, gsize length)
{
    RpToken token = token_at(lexer, type, at, length);

    g_array_append_val(lexer->tokens, token);
}

static gboolean
refuse(Lexer *lexer, const char *at, const char *expected, const char *found)
{
    RpToken place = token_at(lexer, RP_TOKEN_END, at, 0);

    rp_template_refuse(lexer->error, lexer->name, &place, expected, found);
    return FALSE;
}

static gboolean
starts(const Lexer *lexer, const char *at, const char *word)
{
    const gsize length = strlen(word);

    return (gsize)(lexer->end - at) >= length && memcmp(at, word, length) == 0;
}

static const char *
behind_space(const Lexer *lexer, const char *at)
{
    while (at < lexer->end && rp_is_space(g_utf8_get_char(at)))
        at += g_utf8_skip[(guchar)*at];
    return at;
}

/* The end of a tag at @at, or NULL: `-` takes space behind it, a block the newline. */
static const char *
behind_end(const Lexer *lexer, const char *at, const char *end, gboolean block)
{
    if (*at == '-' && starts(lexer, at + 1, end))
        return behind_space(lexer, at + 3);
    if (*at == '+' && block && starts(lexer, at + 1, end))
        return at + 3;
    if (!starts(lexer, at, end))
        return NULL;
    at += 2;
    return block && at < lexer->end && *at == '\n' ? at + 1 : at;
}

/* `WORD` within a block tag at @at, with its sign; behind the word, or NULL. */
static const char *
block_word(const Lexer *lexer, const char *at, const char *word)
{
    if (!starts(lexer, at, "{%"))
        return NULL;
    at += 2;
    if (at < lexer->end && (*at == '-' || *at == '+'))
        at++;
    at = behind_space(lexer, at);
    return starts(lexer, at, word) ? behind_space(lexer, at + strlen(word)) : NULL;
}

/* Data up to a tag, less the space that the tag takes. */
static void
add_data(Lexer *lexer, const char *start, const char *tag)
{
    const char sign = tag + 2 < lexer->end ? tag[2] : '\0';
    const char *stop = tag;

    if (tag < lexer->end && sign == '-') {
        RpValue stripped =
            rp_string_strip(rp_value_text(start, (gsize)(tag - start)), NULL, FALSE, TRUE);
        stop = start + stripped.length;
    } else if (tag < lexer->end && sign != '+' && tag[1] != '{') {
        const char *newline = start < tag ? memrchr(start, '\n', (gsize)(tag - start)) : NULL;
        const char *line = newline != NULL ? newline + 1 : start;
        if ((newline != NULL || lexer->line_starting) && behind_space(lexer, line) >= tag)
            stop = line;
    }
    if (stop > start)
        add(lexer, RP_TOKEN_DATA, start, (gsize)(stop - start));
}

/* To where `{%`, `{{` or `{#` stands, or the end. */
static const char *
next_tag(const Lexer *lexer)
{
    for (const char *p = lexer->at; p + 1 < lexer->end; p++)
        if (*p == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#'))
            return p;
    return lexer->end;
}

static void
tag_ended(Lexer *lexer, const char *behind)
{
    lexer->line_starting = behind[-1] == '\n';
    lexer->at = behind;
}

static gboolean
skip_comment(Lexer *lexer)
{
    const char *start = lexer->at + 2;

    if (start < lexer->end && (*start == '-' || *start == '+'))
        start++;
    for (const char *p = start; p < lexer->end; p++) {
        const char *behind = behind_end(lexer, p, "#}", TRUE);
        if (behind != NULL) {
            tag_ended(lexer, behind);
            return TRUE;
        }
    }
    return refuse(lexer, lexer->at, "`#}` behind `{#`", "the end of the template");
}

/* Behind `{% raw %}`, which ends at @start. */
static gboolean
take_raw(Lexer *lexer, const char *start)
{
    const char *opened = lexer->at;

    for (const char *p = start; p < lexer->end; p++) {
        const char *word = block_word(lexer, p, "endraw");
        const char *behind =
            word != NULL && word < lexer->end ? behind_end(lexer, word, "%}", TRUE) : NULL;
        if (behind != NULL) {
            lexer->line_starting = FALSE;
            add_data(lexer, start, p);
            tag_ended(lexer, behind);
            return TRUE;
        }
    }
    return refuse(lexer, opened, "`{% endraw %}` behind `{% raw %}`", "the end of the template");
}

static gunichar
hex_digits(const char *at, const char *end, guint n)
{
    gunichar c = 0;

    if (end - at < (gssize)n)
        return (gunichar)-1;
    for (guint i = 0; i < n; i++) {
        if (!g_ascii_isxdigit(at[i]))
            return (gunichar)-1;
        c = c * 16 + (gunichar)g_ascii_xdigit_value(at[i]);
    }
    return c;
}

/* The escape at @at, behind its backslash, into @text. Returns: behind it; NULL: no character */
static const char *
unescape(const char *at, const char *end, GString *text)
{
    static const char letters[] = "\\'\"abfnrtv";
    static const char characters[] = "\\'\"\a\b\f\n\r\t\v";
    const char *letter = strchr(letters, *at);
    const guint n = *at == 'x' ? 2 : *at == 'u' ? 4 : *at == 'U' ? 8 : 0;

    if (*at == '\n')
        return at + 1;
    if (letter != NULL) {
        g_string_append_c(text, characters[letter - letters]);
        return at + 1;
    }
    gunichar c = 0;
    guint digits = 0;
    for (; n == 0 && digits < 3 && at + digits < end && at[digits] >= '0' && at[digits] <= '7';
         digits++)
        c = c * 8 + (gunichar)(at[digits] - '0');
    if (n > 0)
        c = hex_digits(at + 1, end, n);
    else if (digits == 0) { /* none that Python knows: stays */
        g_string_append_c(text, '\\');
        return at;
    }
    if (c == 0 || !g_unichar_validate(c))
        return NULL;
    g_string_append_unichar(text, c);
    return n > 0 ? at + 1 + n : at + digits;
}

static gboolean
take_string(Lexer *lexer)
{
    const char quote = *lexer->at, *start = lexer->at + 1, *p = start;
    g_autoptr(GString) text = g_string_new(NULL);

    while (p < lexer->end && *p != quote) {
        const char *run = p;
        while (p < lexer->end && *p != quote && *p != '\\')
            p++;
        g_string_append_len(text, run, p - run);
        if (p + 1 >= lexer->end)
            break;
        if (*p != '\\')
            continue;
        const char *behind = unescape(p + 1, lexer->end, text);
        if (behind == NULL)
            return refuse(lexer, p, "an escape that is a character", "another");
        p = behind;
    }
    if (p >= lexer->end || *p != quote)
        return refuse(lexer, lexer->at, "a closed string", "the end of the template");
    RpToken token = token_at(lexer, RP_TOKEN_STRING, lexer->at, (gsize)(p + 1 - lexer->at));
    token.value = rp_value_copy(lexer->arena, text->str, text->len);
    g_array_append_val(lexer->tokens, token);
    lexer->at = p + 1;
    return TRUE;
}

/* Digits of @base with single underscores within; behind them. */
static const char *
behind_digits(const Lexer *lexer, const char *p, guint base)
{
    while (p < lexer->end) {
        const char *digit = *p == '_' ? p + 1 : p;
        if (digit >= lexer->end || !g_ascii_isxdigit(*digit) ||
            g_ascii_xdigit_value(*digit) >= (int)base)
            break;
        p = digit + 1;
    }
    return p;
}

static gboolean
take_number(Lexer *lexer)
{
    const char *start = lexer->at, *p = start;
    const char kind = p + 1 < lexer->end ? g_ascii_tolower(p[1]) : '\0';
    guint base = 10;
    gboolean is_float = FALSE;

    if (*p == '0' && (kind == 'x' || kind == 'o' || kind == 'b'))
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
    p = behind_digits(lexer, base != 10 ? p + 2 : p, base);
    if (base == 10 && p + 1 < lexer->end && *p == '.' && g_ascii_isdigit(p[1]) &&
        (start == lexer->source || start[-1] != '.')) {
        is_float = TRUE;
        p = behind_digits(lexer, p + 1, 10);
    }
    if (base == 10 && p < lexer->end && (*p == 'e' || *p == 'E')) {
        const char *exponent = p + 1 < lexer->end && (p[1] == '+' || p[1] == '-') ? p + 2 : p + 1;
        const char *behind = behind_digits(lexer, exponent, 10);
        is_float |= behind > exponent;
        p = behind > exponent ? behind : p;
    }
    RpToken token =
        token_at(lexer, is_float ? RP_TOKEN_FLOAT : RP_TOKEN_INTEGER, start, (gsize)(p - start));
    g_autoptr(GString) digits =
        g_string_new_len(start + (base != 10 ? 2 : 0), p - start - (base != 10 ? 2 : 0));
    g_string_replace(digits, "_", "", 0);
    gint64 integer = 0;
    if (is_float)
        token.value = rp_value_float(g_ascii_strtod(digits->str, NULL));
    else if (g_ascii_string_to_signed(digits->str, base, 0, G_MAXINT64, &integer, NULL))
        token.value = rp_value_int(integer);
    else
        return refuse(lexer, start, "a whole number of 64 bits", digits->str);
    g_array_append_val(lexer->tokens, token);
    lexer->at = p;
    return TRUE;
}

static gboolean
take_operator(Lexer *lexer)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *p = lexer->at, c = *p;
    gsize length = 1;

    for (guint i = 0; i < G_N_ELEMENTS(operators); i++)
        if (starts(lexer, p, operators[i]))
            length = 2;
    if (length == 1 && (c == '\0' || strchr("+-/*%~[](){}><=.:|,", c) == NULL)) {
        RpToken token = token_at(lexer, RP_TOKEN_OPERATOR, p, g_utf8_skip[(guchar)c]);
        g_autofree char *found = rp_token_describe(&token);
        return refuse(lexer, p, "a word of Jinja", found);
    }
    if (strchr("([{", c) != NULL)
        g_string_append_c(lexer->open, c == '(' ? ')' : c == '[' ? ']' : '}');
    if (strchr(")]}", c) != NULL) {
        const char last = lexer->open->len > 0 ? lexer->open->str[lexer->open->len - 1] : '\0';
        if (last != c) {
            const char found[] = {'`', c, '`', '\0'}, expected[] = {'`', last, '`', '\0'};
            return refuse(lexer, p, last != '\0' ? expected : "no closing bracket", found);
        }
        g_string_truncate(lexer->open, lexer->open->len - 1);
    }
    add(lexer, RP_TOKEN_OPERATOR, p, length);
    lexer->at = p + length;
    return TRUE;
}

/* The words of a tag up to its end. */
static gboolean
take_tag(Lexer *lexer, gboolean block)
{
    const char *opened = lexer->at, *end = block ? "%}" : "}}";

    add(lexer, block ? RP_TOKEN_BLOCK_BEGIN : RP_TOKEN_VARIABLE_BEGIN, opened, 2);
    lexer->at += 2;
    if (lexer->at < lexer->end && (*lexer->at == '-' || *lexer->at == '+'))
        lexer->at++;
    g_string_truncate(lexer->open, 0);
    for (;;) {
        lexer->at = behind_space(lexer, lexer->at);
        if (lexer->at == lexer->end)
            return refuse(lexer, opened, block ? "`%}` behind `{%`" : "`}}` behind `{{`",
                          "the end of the template");
        const char *behind =
            lexer->open->len == 0 ? behind_end(lexer, lexer->at, end, block) : NULL;
        if (behind != NULL) {
            add(lexer, block ? RP_TOKEN_BLOCK_END : RP_TOKEN_VARIABLE_END, lexer->at, 2);
            tag_ended(lexer, behind);
            return TRUE;
        }
        const char *p = lexer->at;
        gunichar c = g_utf8_get_char(p);
        gboolean taken = TRUE;
        if (g_ascii_isdigit(*p)) {
            taken = take_number(lexer);
        } else if (*p == '"' || *p == '\'') {
            taken = take_string(lexer);
        } else if (c == '_' || g_unichar_isalpha(c)) {
            while (p < lexer->end && (*p == '_' || g_unichar_isalnum(g_utf8_get_char(p))))
                p += g_utf8_skip[(guchar)*p];
            add(lexer, RP_TOKEN_NAME, lexer->at, (gsize)(p - lexer->at));
            lexer->at = p;
        } else {
            taken = take_operator(lexer);
        }
        if (!taken)
            return FALSE;
    }
}

static gboolean
take_all(Lexer *lexer)
{
    while (lexer->at < lexer->end) {
        const char *tag = next_tag(lexer);
        add_data(lexer, lexer->at, tag);
        lexer->line_starting = FALSE;
        lexer->at = tag;
        if (tag == lexer->end)
            break;
        const char *raw = block_word(lexer, tag, "raw");
        const char *raw_end = NULL;
        if (raw != NULL && starts(lexer, raw, "-%}"))
            raw_end = behind_space(lexer, raw + 3);
        else if (raw != NULL && starts(lexer, raw, "%}"))
            raw_end = raw + 2;
        if (raw_end != NULL ? !take_raw(lexer, raw_end)
            : tag[1] == '#' ? !skip_comment(lexer)
                            : !take_tag(lexer, tag[1] == '%'))
            return FALSE;
    }
    return TRUE;
}

/* Newlines as "\n", the last one left out. */
static RpValue
normalized(RpArena *arena, const char *source, gsize length)
{
    char *text = rp_arena_alloc(arena, length);
    gsize n = 0;

    for (gsize i = 0; i < length; i++) {
        if (source[i] == '\r' && i + 1 < length && source[i + 1] == '\n')
            continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && text[n - 1] == '\n')
        n--;
    return rp_value_text(text, n);
}

GArray *
rp_template_tokens(RpArena *arena, const char *name, const char *source, gsize length,
                   GError **error)
{
    const char *bad = NULL;
    g_autoptr(GArray) tokens = g_array_new(FALSE, FALSE, sizeof(RpToken));
    g_autoptr(GString) open = g_string_new(NULL);

    if (!g_utf8_validate_len(source, length, &bad))
        return rp_null(rp_fail(error, RP_TEMPLATE_ERROR, RP_TEMPLATE_ERROR_SYNTAX,
                               "%s: byte %" G_GSIZE_FORMAT
                               ": expected UTF-8 text, found byte 0x%02x",
                               name, (gsize)(bad - source), (guchar)*bad));
    RpValue text = normalized(arena, source, length);
    Lexer lexer = {.arena = arena,
                   .name = name,
                   .source = text.text,
                   .end = text.text + text.length,
                   .at = text.text,
                   .counted = text.text,
                   .line_start = text.text,
                   .line = 1,
                   .line_starting = TRUE,
                   .tokens = tokens,
                   .open = open,
                   .error = error};
    if (!take_all(&lexer))
        return NULL;
    add(&lexer, RP_TOKEN_END, lexer.end, 0);
    return g_steal_pointer(&tokens);
}
