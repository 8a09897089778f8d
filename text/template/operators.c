#include "text/template/render.h"

#include <math.h>
#include <string.h>

static gboolean
is_whole(RpValue value)
{
    return value.type == RP_VALUE_INTEGER || value.type == RP_VALUE_BOOLEAN;
}

static gint64
whole(RpValue value)
{
    return value.type == RP_VALUE_INTEGER ? value.integer : value.boolean;
}

static gboolean
fail_operands(RpRender *render, const char *sign, RpValue a, RpValue b)
{
    if (a.type == RP_VALUE_UNDEFINED || b.type == RP_VALUE_UNDEFINED)
        return rp_render_fail_type(render, "a value", a.type == RP_VALUE_UNDEFINED ? a : b);
    return rp_render_fail(render, "expected operands of `%s` that fit, found %s and %s", sign,
                          rp_value_type_name(a), rp_value_type_name(b));
}

/* Toward minus infinity, as Python's // and %. */
static gint64
floor_divide(gint64 a, gint64 b)
{
    const gint64 quotient = a / b;

    return quotient - (a % b != 0 && (a % b < 0) != (b < 0));
}

static gboolean
power(gint64 base, gint64 exponent, gint64 *result)
{
    gint64 product = 1;
    gboolean fits = TRUE;

    if (base == 0 || base == 1 || base == -1) {
        *result = base == -1 ? (exponent % 2 == 0 ? 1 : -1) : exponent == 0 ? 1 : base;
        return TRUE;
    }
    for (gint64 i = 0; fits && i < exponent; i++)
        fits = !__builtin_mul_overflow(product, base, &product);
    *result = product;
    return fits;
}

static gboolean
operate_whole(RpRender *render, RpOperation operation, gint64 a, gint64 b, RpValue *value)
{
    gint64 result = 0;
    gboolean fits = TRUE;

    if (b == 0 &&
        (operation == RP_OP_DIVIDE || operation == RP_OP_FLOOR_DIVIDE || operation == RP_OP_MODULO))
        return rp_render_fail(render, "expected a divisor, found 0");
    switch (operation) {
    case RP_OP_ADD:
        fits = !__builtin_add_overflow(a, b, &result);
        break;
    case RP_OP_SUBTRACT:
        fits = !__builtin_sub_overflow(a, b, &result);
        break;
    case RP_OP_MULTIPLY:
        fits = !__builtin_mul_overflow(a, b, &result);
        break;
    case RP_OP_DIVIDE:
        *value = rp_value_float((double)a / (double)b);
        return TRUE;
    case RP_OP_FLOOR_DIVIDE:
        fits = b != -1 || a != G_MININT64;
        result = fits ? floor_divide(a, b) : 0;
        break;
    case RP_OP_MODULO:
        result = b == -1 ? 0 : a - floor_divide(a, b) * b;
        break;
    default:
        if (b < 0) {
            *value = rp_value_float(pow((double)a, (double)b));
            return TRUE;
        }
        fits = power(a, b, &result);
    }
    if (!fits)
        return rp_render_fail(render, "expected a whole number of 64 bits, found a larger one");
    *value = rp_value_int(result);
    return TRUE;
}

static gboolean
operate_float(RpRender *render, RpOperation operation, double a, double b, RpValue *value)
{
    if (b == 0.0 &&
        (operation == RP_OP_DIVIDE || operation == RP_OP_FLOOR_DIVIDE || operation == RP_OP_MODULO))
        return rp_render_fail(render, "expected a divisor, found 0");
    const double result = operation == RP_OP_ADD            ? a + b
                          : operation == RP_OP_SUBTRACT     ? a - b
                          : operation == RP_OP_MULTIPLY     ? a * b
                          : operation == RP_OP_DIVIDE       ? a / b
                          : operation == RP_OP_FLOOR_DIVIDE ? floor(a / b)
                          : operation == RP_OP_MODULO       ? a - floor(a / b) * b
                                                            : pow(a, b);
    *value = rp_value_float(result);
    return TRUE;
}

static gboolean
join(RpRender *render, RpValue a, RpValue b, RpValue *value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    return rp_append(render, text, a) && rp_append(render, text, b) &&
           rp_keep_text(render, text, value);
}

/* @a, then the items of @b @times times. */
static gboolean
repeat_items(RpRender *render, RpValue like, const RpList *a, const RpList *b, gint64 times,
             RpValue *value)
{
    RpList *list = rp_list_new(render->arena, 0);

    if (b->length > 0 && times > 0 && !rp_render_charge(render, (guint64)times))
        return FALSE;
    for (guint i = 0; a != NULL && i < a->length; i++)
        rp_list_append(render->arena, list, a->items[i]);
    for (gint64 n = 0; b->length > 0 && n < times; n++) {
        if (!rp_render_charge(render, b->length))
            return FALSE;
        for (guint i = 0; i < b->length; i++)
            rp_list_append(render->arena, list, b->items[i]);
    }
    *value = rp_value_list(list);
    value->type = like.type;
    return TRUE;
}

static gboolean
repeat(RpRender *render, RpValue what, gint64 times, RpValue *value)
{
    const gint64 n = MAX(times, 0);

    if (what.type != RP_VALUE_STRING)
        return repeat_items(render, what, NULL, what.list, n, value);
    if (what.length > 0 &&
        (n > G_MAXINT32 || !rp_arena_has_space(render->arena, what.length * (gsize)n)))
        return rp_render_fail(render,
                              "expected a text of less memory, found one of %" G_GINT64_FORMAT
                              " times %u bytes",
                              n, what.length);
    char *text = rp_arena_alloc(render->arena, what.length * (gsize)n);
    for (gsize i = 0; what.length > 0 && i < (gsize)n; i++)
        memcpy(text + i * what.length, what.text, what.length);
    *value = rp_value_text(text, what.length * (gsize)n);
    return TRUE;
}

static gboolean
is_sequence(RpValue value)
{
    return value.type == RP_VALUE_STRING || value.type == RP_VALUE_LIST ||
           value.type == RP_VALUE_TUPLE;
}

gboolean
rp_operate(RpRender *render, RpOperation operation, RpValue a, RpValue b, RpValue *value)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    double x = 0.0, y = 0.0;

    if (is_whole(a) && is_whole(b))
        return operate_whole(render, operation, whole(a), whole(b), value);
    if (rp_value_to_number(a, &x) && rp_value_to_number(b, &y))
        return operate_float(render, operation, x, y, value);
    if (operation == RP_OP_MODULO && a.type == RP_VALUE_STRING)
        return rp_format(render, a, b, value);
    if (operation == RP_OP_ADD && a.type == b.type && a.type == RP_VALUE_STRING)
        return join(render, a, b, value);
    if (operation == RP_OP_ADD && a.type == b.type && is_sequence(a))
        return repeat_items(render, a, a.list, b.list, 1, value);
    if (operation == RP_OP_MULTIPLY && is_sequence(a) && is_whole(b))
        return repeat(render, a, whole(b), value);
    if (operation == RP_OP_MULTIPLY && is_whole(a) && is_sequence(b))
        return repeat(render, b, whole(a), value);
    return fail_operands(render, signs[operation], a, b);
}

static gboolean
order_items(RpRender *render, const RpList *a, const RpList *b, int *order)
{
    for (guint i = 0; i < MIN(a->length, b->length); i++)
        if (!rp_value_equal(render->arena, a->items[i], b->items[i]))
            return rp_order(render, a->items[i], b->items[i], order);
    *order = (a->length > b->length) - (a->length < b->length);
    return TRUE;
}

gboolean
rp_order(RpRender *render, RpValue a, RpValue b, int *order)
{
    double x = 0.0, y = 0.0;
    gboolean done = TRUE;

    if (is_whole(a) && is_whole(b)) {
        *order = (whole(a) > whole(b)) - (whole(a) < whole(b));
        return TRUE;
    }
    if (rp_value_to_number(a, &x) && rp_value_to_number(b, &y)) {
        *order = (x > y) - (x < y);
        return TRUE;
    }
    if (a.type == RP_VALUE_STRING && b.type == RP_VALUE_STRING) {
        const guint shorter = MIN(a.length, b.length);
        *order = shorter > 0 ? memcmp(a.text, b.text, shorter) : 0;
        if (*order == 0)
            *order = (a.length > b.length) - (a.length < b.length);
        return rp_render_charge(render, shorter / 256);
    }
    if (a.type != b.type || (a.type != RP_VALUE_LIST && a.type != RP_VALUE_TUPLE))
        return fail_operands(render, "<", a, b);
    done = rp_arena_enter(render->arena) ? order_items(render, a.list, b.list, order)
                                         : rp_render_fail_bound(render, NULL);
    rp_arena_leave(render->arena);
    return done;
}

static gboolean
contains(RpRender *render, RpValue container, RpValue item, gboolean *truth)
{
    RpList *items;

    if (container.type == RP_VALUE_STRING) {
        if (item.type != RP_VALUE_STRING)
            return rp_render_fail_type(render, "a string to look for in a string", item);
        *truth = rp_string_find(container, item, FALSE) >= 0;
        return rp_render_charge(render, container.length / RP_SCANNED + item.length / RP_DECODED);
    }
    if (container.type == RP_VALUE_DICT) {
        if (!rp_value_is_key(item) && item.type != RP_VALUE_UNDEFINED)
            return rp_render_fail_type(render, "a key", item);
        *truth = item.type != RP_VALUE_UNDEFINED && rp_dict_find(container.dict, item) != NULL;
        return rp_charge_key(render, item);
    }
    if (!rp_to_items(render, container, &items))
        return FALSE;
    *truth = FALSE;
    for (guint i = 0; !*truth && i < items->length; i++)
        *truth = rp_value_equal(render->arena, items->items[i], item);
    return rp_render_charge(render, 0);
}

gboolean
rp_compare(RpRender *render, RpOperation operation, RpValue a, RpValue b, gboolean *truth)
{
    int order = 0;

    if (operation == RP_OP_EQUAL || operation == RP_OP_UNEQUAL) {
        *truth = rp_value_equal(render->arena, a, b) == (operation == RP_OP_EQUAL);
        return rp_render_charge(render, 0);
    }
    if (operation == RP_OP_IN || operation == RP_OP_NOT_IN) {
        if (!contains(render, b, a, truth))
            return FALSE;
        *truth = *truth == (operation == RP_OP_IN);
        return TRUE;
    }
    if (!rp_order(render, a, b, &order))
        return FALSE;
    *truth = operation == RP_OP_LESS         ? order < 0
             : operation == RP_OP_LESS_EQUAL ? order <= 0
             : operation == RP_OP_GREATER    ? order > 0
                                             : order >= 0;
    if ((a.type == RP_VALUE_FLOAT && isnan(a.number)) ||
        (b.type == RP_VALUE_FLOAT && isnan(b.number)))
        *truth = FALSE;
    return TRUE;
}

/* Where a slice's bound lies, as Python has it. @low, @high: bounds of places */
static gboolean
bound_of(RpRender *render, RpValue part, gint64 absent, gint64 length, gint64 low, gint64 high,
         gint64 *place)
{
    if (part.type == RP_VALUE_NONE) {
        *place = absent;
        return TRUE;
    }
    if (!is_whole(part))
        return rp_render_fail_type(render, "a whole number as bound of a slice", part);
    *place = whole(part);
    if (*place < 0)
        *place += length;
    *place = CLAMP(*place, low, high);
    return TRUE;
}

gboolean
rp_slice(RpRender *render, RpValue value, const RpValue parts[3], RpValue *result)
{
    gint64 start = 0, stop = 0, step = 1;

    if (value.type == RP_VALUE_UNDEFINED)
        return rp_render_fail_type(render, "a value to slice", value);
    if (!is_sequence(value)) {
        *result = rp_value_undefined("slice", 5);
        return TRUE;
    }
    const gboolean string = value.type == RP_VALUE_STRING;
    RpList *items = string ? rp_string_characters(render->arena, value) : value.list;
    const gint64 length = items->length;
    if (parts[2].type != RP_VALUE_NONE) {
        if (!is_whole(parts[2]) || whole(parts[2]) == 0)
            return rp_render_fail_type(render, "a step other than 0", parts[2]);
        step = CLAMP(whole(parts[2]), -G_MAXINT32, G_MAXINT32);
    }
    const gint64 low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
    if (!bound_of(render, parts[0], step < 0 ? high : low, length, low, high, &start) ||
        !bound_of(render, parts[1], step < 0 ? low : high, length, low, high, &stop) ||
        !rp_render_charge(render, items->length / 16))
        return FALSE;
    if (string && step == 1) { /* characters of one string follow each other */
        *result = rp_value_text("", 0);
        if (start < stop) {
            const char *from = items->items[start].text;
            const RpValue last = items->items[stop - 1];
            *result = rp_value_text(from, (gsize)(last.text + last.length - from));
        }
        return TRUE;
    }
    RpList *taken = rp_list_new(render->arena, 0);
    for (gint64 i = start; step > 0 ? i < stop : i > stop; i += step)
        rp_list_append(render->arena, taken, items->items[i]);
    if (!string) {
        *result = rp_value_list(taken);
        result->type = value.type;
        return TRUE;
    }
    g_autoptr(GString) text = g_string_new(NULL);
    for (guint i = 0; i < taken->length; i++)
        g_string_append_len(text, taken->items[i].text, taken->items[i].length);
    return rp_keep_text(render, text, result);
}

static RpValue
missing(RpValue key)
{
    return key.type == RP_VALUE_STRING ? rp_value_undefined(key.text, key.length)
                                       : rp_value_undefined("item", 4);
}

gboolean
rp_get_item(RpRender *render, RpValue value, RpValue key, RpValue *result)
{
    if (value.type == RP_VALUE_UNDEFINED)
        return rp_render_fail_type(render, "a value to take an item of", value);
    if (value.type == RP_VALUE_DICT && rp_value_is_key(key)) {
        const RpValue *there = rp_dict_find(value.dict, key);
        if (!rp_charge_key(render, key))
            return FALSE;
        if (there != NULL) {
            *result = *there;
            return TRUE;
        }
    }
    if (is_sequence(value) && is_whole(key)) {
        const gint64 length =
            value.type == RP_VALUE_STRING ? rp_string_length(value) : value.list->length;
        const gint64 at = whole(key) < 0 ? whole(key) + length : whole(key);
        if (at < 0 || at >= length) {
            *result = missing(key);
            return TRUE;
        }
        if (value.type != RP_VALUE_STRING) {
            *result = value.list->items[at];
            return TRUE;
        }
        const char *start = g_utf8_offset_to_pointer(value.text, at);
        *result = rp_value_text(start, g_utf8_skip[(guchar)*start]);
        return rp_render_charge(render, value.length / RP_SCANNED + (guint64)at / RP_DECODED);
    }
    if (key.type == RP_VALUE_STRING && value.type != RP_VALUE_DICT) {
        g_autofree char *name = g_strndup(key.text, key.length);
        if (!rp_get_attribute(render, value, name, result))
            return FALSE;
        if (result->type == RP_VALUE_UNDEFINED) /* @name ends here */
            *result = missing(key);
        return TRUE;
    }
    *result = missing(key);
    return TRUE;
}

gboolean
rp_get_attribute(RpRender *render, RpValue value, const char *name, RpValue *result)
{
    const RpRow *row = rp_find_method(name, value.type);

    if (value.type == RP_VALUE_UNDEFINED)
        return rp_render_fail_type(render, "a value to take an attribute of", value);
    if (value.type == RP_VALUE_LOOP)
        return rp_loop_attribute(render, value, name, result);
    if (row != NULL) {
        *result = rp_function_value(render, row, value);
        return TRUE;
    }
    if (value.type == RP_VALUE_DICT || value.type == RP_VALUE_NAMESPACE) {
        const RpValue *there = rp_dict_get(value.dict, name);
        if (there != NULL) {
            *result = *there;
            return TRUE;
        }
    }
    *result = rp_value_undefined(name, strlen(name));
    return TRUE;
}
