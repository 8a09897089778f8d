#include "text/template/render.h"

#include <string.h>

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
