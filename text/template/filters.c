#include "text/template/render.h"

#include <math.h>
#include <string.h>

#define MAX_INDENT 1000 /* characters a level */

static gboolean
filter_string(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return rp_to_text(render, arguments->self, result);
}

static gboolean
filter_default(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    const gboolean falsy = rp_given(bound[1]) && rp_value_is_true(bound[1]);

    *result = arguments->self;
    if (arguments->self.type == RP_VALUE_UNDEFINED || (falsy && !rp_value_is_true(arguments->self)))
        *result = rp_given(bound[0]) ? bound[0] : rp_value_static("");
    return TRUE;
}

static gboolean
filter_length(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;

    switch (self.type) {
    case RP_VALUE_UNDEFINED:
        *result = rp_value_int(0);
        return TRUE;
    case RP_VALUE_STRING:
        *result = rp_value_int(rp_string_length(self));
        return TRUE;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
        *result = rp_value_int(self.list->length);
        return TRUE;
    case RP_VALUE_DICT:
        *result = rp_value_int(self.dict->length);
        return TRUE;
    default:
        return rp_render_fail_type(render, "a value that has a length", self);
    }
}

/* As Python's int(): a text has digits with a sign and space around. */
static gboolean
parse_int(RpValue text, guint base, gint64 *integer)
{
    const RpValue bare = rp_string_strip(text, NULL, TRUE, TRUE);
    g_autofree char *digits = g_strndup(bare.text, bare.length);
    const char *p = digits[0] == '+' ? digits + 1 : digits;

    if (base == 16 && p[0] == '0' && (p[1] == 'x' || p[1] == 'X'))
        p += 2;
    return g_ascii_string_to_signed(p, base, G_MININT64, G_MAXINT64, integer, NULL);
}

static gboolean
parse_float(RpValue text, double *number)
{
    const RpValue bare = rp_string_strip(text, NULL, TRUE, TRUE);
    g_autofree char *digits = g_strndup(bare.text, bare.length);
    char *end = NULL;

    if (bare.length == 0 || strpbrk(digits, "xX") != NULL)
        return FALSE;
    *number = g_ascii_strtod(digits, &end);
    return *end == '\0';
}

static gboolean
filter_int(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self, *bound = arguments->bound;
    gint64 base = 10, integer = 0;
    double number = 0.0;

    *result = rp_given(bound[0]) ? bound[0] : rp_value_int(0);
    if (rp_given(bound[1]) && !rp_to_integer(render, bound[1], &base))
        return FALSE;
    if (base < 2 || base > 36)
        return rp_render_fail(render, "expected a base from 2 to 36");
    if (self.type == RP_VALUE_STRING && parse_int(self, (guint)base, &integer))
        *result = rp_value_int(integer);
    else if (self.type == RP_VALUE_INTEGER)
        *result = self;
    else if ((self.type == RP_VALUE_STRING && parse_float(self, &number)) ||
             rp_value_to_number(self, &number))
        if (fabs(number) < 0x1p63)
            *result = rp_value_int((gint64)number);
    return TRUE;
}

static gboolean
filter_float(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;
    double number = 0.0;

    *result = rp_given(arguments->bound[0]) ? arguments->bound[0] : rp_value_float(0.0);
    if ((self.type == RP_VALUE_STRING && parse_float(self, &number)) ||
        rp_value_to_number(self, &number))
        *result = rp_value_float(number);
    return TRUE;
}

static gboolean
filter_abs(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;
    gint64 integer = 0;

    if (self.type == RP_VALUE_FLOAT) {
        *result = rp_value_float(fabs(self.number));
        return TRUE;
    }
    if (!rp_to_integer(render, self, &integer))
        return FALSE;
    return integer < 0 ? rp_operate(render, RP_OP_SUBTRACT, rp_value_int(0), self, result)
                       : rp_operate(render, RP_OP_ADD, rp_value_int(0), self, result);
}

/* Half to even, in decimals, as Python's round(). */
static double
round_decimals(double number, int decimals)
{
    char digits[400];

    if (decimals >= 0) {
        g_autofree char *format = g_strdup_printf("%%.%df", MIN(decimals, 30));
        return fabs(number) < 1e22
                   ? g_ascii_strtod(g_ascii_formatd(digits, sizeof digits, format, number), NULL)
                   : number;
    }
    const double unit = pow(10.0, -decimals);
    return nearbyint(number / unit) * unit;
}

static gboolean
filter_round(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    gint64 precision = 0;
    double number = 0.0;

    if (!rp_value_to_number(arguments->self, &number))
        return rp_render_fail_type(render, "a number", arguments->self);
    if (rp_given(bound[0]) && !rp_to_integer(render, bound[0], &precision))
        return FALSE;
    const int decimals = (int)CLAMP(precision, -300, 300);
    const double unit = pow(10.0, decimals);
    if (!rp_given(bound[1]) || rp_value_is_text(bound[1], "common")) {
        *result = arguments->self.type == RP_VALUE_FLOAT || decimals < 0
                      ? rp_value_float(round_decimals(number, decimals))
                      : arguments->self;
        if (arguments->self.type != RP_VALUE_FLOAT && decimals < 0)
            *result = rp_value_int((gint64)result->number);
        return TRUE;
    }
    if (rp_value_is_text(bound[1], "ceil"))
        *result = rp_value_float(ceil(number * unit) / unit);
    else if (rp_value_is_text(bound[1], "floor"))
        *result = rp_value_float(floor(number * unit) / unit);
    else
        return rp_render_fail(render, "expected the method common, ceil or floor of round");
    return TRUE;
}

static gboolean
filter_indent(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    const gboolean first = rp_given(bound[1]) && rp_value_is_true(bound[1]);
    const gboolean blank = rp_given(bound[2]) && rp_value_is_true(bound[2]);
    const RpValue text = arguments->self;
    RpValue indent = rp_value_static("    ");
    g_autofree char *spaces = NULL;
    gint64 width = 4;

    if (bound[0].type == RP_VALUE_STRING) {
        indent = bound[0];
    } else if (rp_given(bound[0])) {
        if (!rp_to_integer(render, bound[0], &width))
            return FALSE;
        width = MAX(width, 0);
        if (width <= MAX_INDENT)
            spaces = g_strnfill((gsize)width, ' ');
        indent = rp_value_text(spaces, (gsize)MIN(width, MAX_INDENT));
    }
    if (indent.length > MAX_INDENT || width > MAX_INDENT)
        return rp_render_fail(render, "expected an indent of at most 1000 characters");
    /* a newline more makes the last line one, be it empty */
    g_autoptr(GString) whole = g_string_new_len(text.text, text.length);
    g_string_append_c(whole, '\n');
    RpList *lines = rp_string_lines(render->arena, rp_value_text(whole->str, whole->len));
    g_autoptr(GString) made = g_string_new(NULL);
    for (guint i = 0; i < lines->length; i++) {
        const RpValue line = lines->items[i];
        if (i > 0)
            g_string_append_c(made, '\n');
        if (i > 0 ? blank || line.length > 0 : first)
            g_string_append_len(made, indent.text, indent.length);
        if (!rp_append(render, made, line))
            return FALSE;
    }
    return rp_keep_text(render, made, result);
}

static gboolean
filter_tojson(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    RpJsonStyle style = {.indent = rp_none};
    g_autoptr(GString) text = g_string_new(NULL);
    const char *wrong = NULL;

    style.ensure_ascii = rp_given(bound[0]) && rp_value_is_true(bound[0]);
    style.sort_keys = rp_given(bound[3]) && rp_value_is_true(bound[3]);
    style.item_separator = style.key_separator = rp_none;
    if (rp_given(bound[1]))
        style.indent = bound[1];
    if (style.indent.type != RP_VALUE_NONE && style.indent.type != RP_VALUE_STRING &&
        style.indent.type != RP_VALUE_INTEGER)
        return rp_render_fail_type(render, "an indent", style.indent);
    if ((style.indent.type == RP_VALUE_STRING ? style.indent.length : style.indent.integer) >
        MAX_INDENT)
        return rp_render_fail(render, "expected an indent of at most 1000 characters");
    if (rp_given(bound[2]) && bound[2].type != RP_VALUE_NONE) {
        RpList *pair;
        if (!rp_to_items(render, bound[2], &pair))
            return FALSE;
        if (pair->length != 2 || pair->items[0].type != RP_VALUE_STRING ||
            pair->items[1].type != RP_VALUE_STRING)
            return rp_render_fail(render, "expected two strings as separators");
        style.item_separator = pair->items[0];
        style.key_separator = pair->items[1];
    }
    if (!rp_value_to_json(render->arena, arguments->self, &style, text, &wrong))
        return rp_render_fail_bound(render, wrong);
    return rp_keep_text(render, text, result);
}

/* "..." | format(a, b): named arguments are a dict. */
static gboolean
filter_format(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    RpList *list = rp_list_new(render->arena, arguments->n_given);

    if (arguments->n_named > 0)
        return rp_render_fail(render, "expected no named argument of format()");
    for (guint i = 0; i < arguments->n_given; i++)
        rp_list_append(render->arena, list, arguments->given[i]);
    return rp_format(render, arguments->self, rp_value_tuple(list), result);
}

/* One conversion of `%`: flags, width and precision as they stand in @spec. */
static gboolean
format_one(RpRender *render, const GString *spec, char letter, RpValue value, GString *text)
{
    g_autofree char *format = NULL;
    double number = 0.0;

    if (letter == 's' || letter == 'r') {
        g_autoptr(GString) shown = g_string_new(NULL);
        const char *wrong = NULL;
        if (!(letter == 's' ? rp_value_show(render->arena, value, shown, &wrong)
                            : rp_value_repr(render->arena, value, shown, &wrong)))
            return rp_render_fail_bound(render, wrong);
        if (strpbrk(spec->str, ".0123456789") == NULL) {
            g_string_append_len(text, shown->str, (gssize)shown->len);
            return TRUE;
        }
        return rp_render_fail(render, "expected %%%c without width or precision", letter);
    }
    if (!rp_value_to_number(value, &number))
        return rp_render_fail_type(render, "a number for `%`", value);
    if (letter == 'd' || letter == 'i' || letter == 'x' || letter == 'X' || letter == 'o') {
        if (!(fabs(number) < 0x1p63))
            return rp_render_fail(render, "expected a whole number of 64 bits");
        const gint64 integer = value.type == RP_VALUE_INTEGER ? value.integer : (gint64)number;
        format = g_strdup_printf("%%%s" G_GINT64_MODIFIER "%c", spec->str, letter);
        if ((letter == 'x' || letter == 'X' || letter == 'o') && integer < 0)
            return rp_render_fail(render, "expected a number that is not negative for %%%c",
                                  letter);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        g_string_append_printf(text, format, integer);
#pragma GCC diagnostic pop
        return TRUE;
    }
    char digits[1024];
    format = g_strdup_printf("%%%s%c", spec->str, letter);
    g_string_append(text, g_ascii_formatd(digits, sizeof digits, format, number));
    return TRUE;
}

/* Flags, a width and a precision, in this order, of at most two digits each. */
static gboolean
is_spec(const char *spec)
{
    static const char digits[] = "0123456789";
    const char *width = spec + strspn(spec, "-+ #0");
    gsize n = strspn(width, digits);

    if (n > 2 || width - spec > 4)
        return FALSE;
    if (width[n] != '.')
        return width[n] == '\0';
    const char *precision = width + n + 1;
    n = strspn(precision, digits);
    return n <= 2 && precision[n] == '\0';
}

gboolean
rp_format(RpRender *render, RpValue format, RpValue values, RpValue *result)
{
    g_autoptr(GString) text = g_string_new(NULL);
    const gboolean many = values.type == RP_VALUE_TUPLE;
    const guint n_values = many ? values.list->length : 1;
    guint n_used = 0;

    if (!rp_render_charge(render, format.length / RP_DECODED))
        return FALSE;
    for (guint i = 0; i < format.length; i++) {
        if (format.text[i] != '%') {
            g_string_append_c(text, format.text[i]);
            continue;
        }
        g_autoptr(GString) spec = g_string_new(NULL);
        while (++i < format.length && strchr("-+ #0123456789.", format.text[i]) != NULL &&
               format.text[i] != '\0')
            g_string_append_c(spec, format.text[i]);
        const char letter = i < format.length ? format.text[i] : '\0';
        if (letter == '%' && spec->len == 0) {
            g_string_append_c(text, '%');
            continue;
        }
        if (letter == '\0' || strchr("sdirfFeEgGxXo", letter) == NULL || !is_spec(spec->str))
            return rp_render_fail(render, "expected a conversion of `%%` that is known, with at "
                                          "most 99 characters");
        if (n_used == n_values)
            return rp_render_fail(render, "expected more than %u values for `%%`", n_values);
        const RpValue value = many ? values.list->items[n_used] : values;
        n_used++;
        if (!format_one(render, spec, letter, value, text))
            return FALSE;
    }
    if (n_used < n_values && (many || values.type != RP_VALUE_DICT))
        return rp_render_fail(render, "expected %u values for `%%`, found %u", n_used, n_values);
    return rp_keep_text(render, text, result);
}

const RpRow *
rp_find_filter(const char *name)
{
    static const RpRow rows[] = {
        {"abs", filter_abs},
        {"count", filter_length, .bytes = RP_SCANNED},
        {"d", filter_default, {"default_value", "boolean"}},
        {"default", filter_default, {"default_value", "boolean"}},
        {"float", filter_float, {"default"}, .bytes = RP_DECODED},
        {"format", filter_format, .any = TRUE, .shown = TRUE},
        {"indent", filter_indent, {"width", "first", "blank"}, .bytes = RP_DECODED, .shown = TRUE},
        {"int", filter_int, {"default", "base"}, .bytes = RP_DECODED},
        {"length", filter_length, .bytes = RP_SCANNED},
        {"round", filter_round, {"precision", "method"}},
        {"safe", filter_string},
        {"string", filter_string},
        {"tojson",
         filter_tojson,
         {"ensure_ascii", "indent", "separators", "sort_keys"},
         .bytes = RP_DECODED},
    };

    const RpRow *row = rp_row_find(rows, G_N_ELEMENTS(rows), name);

    row = row != NULL ? row : rp_find_list_filter(name);
    return row != NULL ? row : rp_find_text_filter(name);
}

/* ---- tests ---- */

/* Whether the value's type is one of the bits of @arguments->kind. */
static gboolean
test_type(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_bool((arguments->kind >> arguments->self.type & 1) != 0);
    return TRUE;
}

static gboolean
test_truth(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_bool(arguments->self.type == RP_VALUE_BOOLEAN &&
                            !arguments->self.boolean == !arguments->kind);
    return TRUE;
}

/* @self % @divisor == @rest */
static gboolean
remainder_is(RpRender *render, RpValue self, RpValue divisor, gint64 rest, RpValue *result)
{
    RpValue remainder;

    if (!rp_operate(render, RP_OP_MODULO, self, divisor, &remainder))
        return FALSE;
    *result = rp_value_bool(rp_value_equal(render->arena, remainder, rp_value_int(rest)));
    return TRUE;
}

static gboolean
test_parity(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return remainder_is(render, arguments->self, rp_value_int(2), arguments->kind, result);
}

static gboolean
test_divisible(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return remainder_is(render, arguments->self, arguments->bound[0], 0, result);
}

/* Whether there is a letter, and none of the other case. */
static gboolean
test_case(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const gboolean upper = arguments->kind == RP_CASE_UPPER;
    gboolean other = FALSE, some = FALSE;
    guint bytes = 0;
    const RpValue text = arguments->self;

    for (guint i = 0; i < text.length; i += bytes) {
        const gunichar c = rp_char_at(text.text + i, &bytes);
        some |= upper ? g_unichar_isupper(c) : g_unichar_islower(c);
        other |= upper ? g_unichar_islower(c) : g_unichar_isupper(c);
    }
    *result = rp_value_bool(some && !other);
    return TRUE;
}

static gboolean
test_same(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue a = arguments->self, b = arguments->bound[0];

    if (a.type == RP_VALUE_LIST || a.type == RP_VALUE_TUPLE || a.type == RP_VALUE_DICT)
        *result = rp_value_bool(a.type == b.type && a.other == b.other);
    else
        *result = rp_value_bool(a.type == b.type && rp_value_equal(render->arena, a, b));
    return TRUE;
}

static gboolean
test_compare(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    gboolean truth = FALSE;

    if (!rp_compare(render, arguments->kind, arguments->self, arguments->bound[0], &truth))
        return FALSE;
    *result = rp_value_bool(truth);
    return TRUE;
}

const RpRow *
rp_find_test(const char *name)
{
#define BIT(type) (1u << RP_VALUE_##type)
#define SEQUENCES (BIT(UNDEFINED) | BIT(STRING) | BIT(LIST) | BIT(TUPLE) | BIT(DICT))
#define OTHER(text, function, ...)                                                                 \
    {                                                                                              \
        .name = text, .call = function, .parameters = {"other"}, .required = 1, __VA_ARGS__        \
    }
#define COMPARE(text, operation) OTHER(text, test_compare, .kind = RP_OP_##operation)
    static const RpRow rows[] = {
        {.name = "defined", .call = test_type, .kind = ~BIT(UNDEFINED)},
        {.name = "undefined", .call = test_type, .kind = BIT(UNDEFINED)},
        {.name = "none", .call = test_type, .kind = BIT(NONE)},
        {.name = "boolean", .call = test_type, .kind = BIT(BOOLEAN)},
        {.name = "integer", .call = test_type, .kind = BIT(INTEGER)},
        {.name = "float", .call = test_type, .kind = BIT(FLOAT)},
        {.name = "number", .call = test_type, .kind = BIT(BOOLEAN) | BIT(INTEGER) | BIT(FLOAT)},
        {.name = "string", .call = test_type, .kind = BIT(STRING)},
        {.name = "mapping", .call = test_type, .kind = BIT(DICT)},
        {.name = "sequence", .call = test_type, .kind = SEQUENCES},
        {.name = "iterable", .call = test_type, .kind = SEQUENCES | BIT(GENERATOR)},
        {.name = "callable", .call = test_type, .kind = BIT(FUNCTION)},
        {.name = "true", .call = test_truth, .kind = TRUE},
        {.name = "false", .call = test_truth, .kind = FALSE},
        {.name = "odd", .call = test_parity, .kind = 1},
        {.name = "even", .call = test_parity, .kind = 0},
        {.name = "upper",
         .call = test_case,
         .bytes = RP_DECODED,
         .kind = RP_CASE_UPPER,
         .shown = TRUE},
        {.name = "lower",
         .call = test_case,
         .bytes = RP_DECODED,
         .kind = RP_CASE_LOWER,
         .shown = TRUE},
        OTHER("divisibleby", test_divisible, .kind = 0),
        OTHER("sameas", test_same, .kind = 0),
        COMPARE("in", IN),
        COMPARE("eq", EQUAL),
        COMPARE("equalto", EQUAL),
        COMPARE("ne", UNEQUAL),
        COMPARE("lt", LESS),
        COMPARE("lessthan", LESS),
        COMPARE("le", LESS_EQUAL),
        COMPARE("gt", GREATER),
        COMPARE("greaterthan", GREATER),
        COMPARE("ge", GREATER_EQUAL),
        COMPARE("==", EQUAL),
        COMPARE("!=", UNEQUAL),
        COMPARE("<", LESS),
        COMPARE("<=", LESS_EQUAL),
        COMPARE(">", GREATER),
        COMPARE(">=", GREATER_EQUAL),
    };

    return rp_row_find(rows, G_N_ELEMENTS(rows), name);
}
