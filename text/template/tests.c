#include "text/template/render.h"

#include <string.h>

static gboolean
is_type(RpValue self, guint types, RpValue *result)
{
    *result = rp_value_bool((types >> self.type & 1) != 0);
    return TRUE;
}

#define BIT(type) (1u << RP_VALUE_##type)
#define TYPE_TEST(name, types)                                                                     \
    static gboolean test_##name(RpRender *render, const RpArguments *arguments, RpValue *result)   \
    {                                                                                              \
        return is_type(arguments->self, types, result);                                            \
    }

TYPE_TEST(defined, ~BIT(UNDEFINED))
TYPE_TEST(undefined, BIT(UNDEFINED))
TYPE_TEST(none, BIT(NONE))
TYPE_TEST(boolean, BIT(BOOLEAN))
TYPE_TEST(integer, BIT(INTEGER))
TYPE_TEST(float, BIT(FLOAT))
TYPE_TEST(number, BIT(BOOLEAN) | BIT(INTEGER) | BIT(FLOAT))
TYPE_TEST(string, BIT(STRING))
TYPE_TEST(mapping, BIT(DICT))
TYPE_TEST(callable, BIT(FUNCTION))
TYPE_TEST(sequence, BIT(UNDEFINED) | BIT(STRING) | BIT(LIST) | BIT(TUPLE) | BIT(DICT))
TYPE_TEST(iterable,
          BIT(UNDEFINED) | BIT(STRING) | BIT(LIST) | BIT(TUPLE) | BIT(DICT) | BIT(GENERATOR))

static gboolean
test_true(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_bool(arguments->self.type == RP_VALUE_BOOLEAN && arguments->self.boolean);
    return TRUE;
}

static gboolean
test_false(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_bool(arguments->self.type == RP_VALUE_BOOLEAN && !arguments->self.boolean);
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
test_odd(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return remainder_is(render, arguments->self, rp_value_int(2), 1, result);
}

static gboolean
test_even(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return remainder_is(render, arguments->self, rp_value_int(2), 0, result);
}

static gboolean
test_divisible(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return remainder_is(render, arguments->self, arguments->bound[0], 0, result);
}

/* Whether there is a letter, and none of the other case. */
static gboolean
has_case(RpRender *render, RpValue self, gboolean upper, RpValue *result)
{
    gboolean other = FALSE, some = FALSE;
    guint bytes = 0;
    RpValue text;

    if (!rp_to_text(render, self, &text))
        return FALSE;
    for (guint i = 0; i < text.length; i += bytes) {
        const gunichar c = rp_char_at(text.text + i, &bytes);
        some |= upper ? g_unichar_isupper(c) : g_unichar_islower(c);
        other |= upper ? g_unichar_islower(c) : g_unichar_isupper(c);
    }
    *result = rp_value_bool(some && !other);
    return TRUE;
}

static gboolean
test_upper(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return has_case(render, arguments->self, TRUE, result);
}

static gboolean
test_lower(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return has_case(render, arguments->self, FALSE, result);
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

#define COMPARE_TEST(name, operation)                                                              \
    static gboolean test_##name(RpRender *render, const RpArguments *arguments, RpValue *result)   \
    {                                                                                              \
        gboolean truth = FALSE;                                                                    \
        const gboolean done =                                                                      \
            rp_compare(render, operation, arguments->self, arguments->bound[0], &truth);           \
        *result = rp_value_bool(truth);                                                            \
        return done;                                                                               \
    }

COMPARE_TEST(equal, RP_OP_EQUAL)
COMPARE_TEST(unequal, RP_OP_UNEQUAL)
COMPARE_TEST(less, RP_OP_LESS)
COMPARE_TEST(less_equal, RP_OP_LESS_EQUAL)
COMPARE_TEST(greater, RP_OP_GREATER)
COMPARE_TEST(greater_equal, RP_OP_GREATER_EQUAL)
COMPARE_TEST(in, RP_OP_IN)

const RpRow *
rp_find_test(const char *name)
{
#define OTHER(text, function)                                                                      \
    {                                                                                              \
        .name = text, .call = function, .parameters = {"other"}, .required = 1                     \
    }
    static const RpRow rows[] = {
        {.name = "defined", .call = test_defined},
        {.name = "undefined", .call = test_undefined},
        {.name = "none", .call = test_none},
        {.name = "boolean", .call = test_boolean},
        {.name = "integer", .call = test_integer},
        {.name = "float", .call = test_float},
        {.name = "number", .call = test_number},
        {.name = "string", .call = test_string},
        {.name = "mapping", .call = test_mapping},
        {.name = "sequence", .call = test_sequence},
        {.name = "iterable", .call = test_iterable},
        {.name = "callable", .call = test_callable},
        {.name = "true", .call = test_true},
        {.name = "false", .call = test_false},
        {.name = "odd", .call = test_odd},
        {.name = "even", .call = test_even},
        {.name = "upper", .call = test_upper, .bytes = RP_DECODED},
        {.name = "lower", .call = test_lower, .bytes = RP_DECODED},
        OTHER("divisibleby", test_divisible),
        OTHER("sameas", test_same),
        OTHER("in", test_in),
        OTHER("eq", test_equal),
        OTHER("equalto", test_equal),
        OTHER("ne", test_unequal),
        OTHER("lt", test_less),
        OTHER("lessthan", test_less),
        OTHER("le", test_less_equal),
        OTHER("gt", test_greater),
        OTHER("greaterthan", test_greater),
        OTHER("ge", test_greater_equal),
        OTHER("==", test_equal),
        OTHER("!=", test_unequal),
        OTHER("<", test_less),
        OTHER("<=", test_less_equal),
        OTHER(">", test_greater),
        OTHER(">=", test_greater_equal),
    };

    return rp_row_find(rows, G_N_ELEMENTS(rows), name);
}
