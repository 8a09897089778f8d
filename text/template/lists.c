#include "core/base/quote.h"
#include "text/template/render.h"

#include <string.h>

/* Path parts are attributes; digits are indices. */
gboolean
rp_get_path(RpRender *render, RpValue item, RpValue path, RpValue *value)
{
    if (path.type == RP_VALUE_INTEGER)
        return rp_get_item(render, item, path, value);
    if (path.type != RP_VALUE_STRING)
        return rp_render_fail_type(render, "an attribute's name", path);
    RpList *parts = rp_string_split(render->arena, path, rp_value_static("."), -1, FALSE);
    for (guint i = 0; i < parts->length; i++) {
        RpValue part = parts->items[i];
        gint64 index = 0;
        g_autofree char *digits = g_strndup(part.text, part.length);
        if (g_ascii_string_to_signed(digits, 10, 0, G_MAXINT32, &index, NULL))
            part = rp_value_int(index);
        if (!rp_get_item(render, item, part, &item))
            return FALSE;
    }
    *value = item;
    return TRUE;
}

static gboolean
filter_list(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_list(arguments->items);
    return TRUE;
}

static RpValue
generator(RpList *list)
{
    return (RpValue){RP_VALUE_GENERATOR, 0, {.list = list}};
}

static gboolean
filter_items(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    if (arguments->self.type != RP_VALUE_DICT && arguments->self.type != RP_VALUE_UNDEFINED)
        return rp_render_fail_type(render, "a dict", arguments->self);
    RpList *pairs = arguments->self.type == RP_VALUE_DICT
                        ? rp_dict_pairs(render->arena, arguments->self.dict)
                        : rp_list_new(render->arena, 0);

    *result = generator(pairs);
    return rp_render_charge(render, pairs->length / 16);
}

static gboolean
filter_first(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;
    RpList *items;

    if (self.type == RP_VALUE_GENERATOR && self.list->given < self.list->length) {
        *result = self.list->items[self.list->given++];
        return TRUE;
    }
    if (!rp_to_items(render, self, &items))
        return FALSE;
    *result = items->length > 0 ? items->items[0] : rp_value_undefined("the first item", 14);
    return TRUE;
}

static gboolean
filter_last(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpList *items = arguments->items;

    if (arguments->self.type == RP_VALUE_GENERATOR)
        return rp_render_fail_type(render, "a list", arguments->self);
    *result = items->length > 0 ? items->items[items->length - 1]
                                : rp_value_undefined("the last item", 13);
    return TRUE;
}

static gboolean
filter_reverse(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpList *items = arguments->items;
    RpList *list = rp_list_new(render->arena, 0);

    for (guint i = items->length; i > 0; i--)
        rp_list_append(render->arena, list, items->items[i - 1]);
    *result = generator(list);
    if (arguments->self.type != RP_VALUE_STRING)
        return TRUE;
    g_autoptr(GString) text = g_string_new(NULL);
    for (guint i = 0; i < list->length; i++)
        g_string_append_len(text, list->items[i].text, list->items[i].length);
    return rp_keep_text(render, text, result);
}

/* The key by which an item is sorted: its attribute, in lower case unless @exact. */
static gboolean
sort_key(RpRender *render, RpValue item, RpValue path, gboolean exact, RpValue *key)
{
    *key = item;
    if (rp_given(path) && path.type != RP_VALUE_NONE && !rp_get_path(render, item, path, key))
        return FALSE;
    if (key->type != RP_VALUE_STRING)
        return TRUE;
    if (!exact)
        *key = rp_string_case(render->arena, *key, RP_CASE_LOWER);
    return rp_render_charge(render, key->length / RP_DECODED);
}

typedef struct {
    RpRender *render;
    gboolean reverse;
} Sorting;

typedef struct {
    RpValue key;
    RpValue item;
} Sorted;

static int
compare_sorted(gconstpointer a, gconstpointer b, gpointer data)
{
    const Sorting *sorting = data;
    int order = 0;

    if (sorting->render->failed ||
        !rp_order(sorting->render, ((const Sorted *)a)->key, ((const Sorted *)b)->key, &order) ||
        !rp_render_charge(sorting->render, 1))
        return 0;
    return sorting->reverse ? -order : order;
}

/* Stable, also in reverse. */
static gboolean
sort_items(RpRender *render, const RpList *items, RpValue path, gboolean exact, gboolean reverse,
           RpValue *result)
{
    g_autoptr(GArray) sorted = g_array_new(FALSE, FALSE, sizeof(Sorted));
    Sorting sorting = {render, reverse};
    RpList *list = rp_list_new(render->arena, items->length);

    for (guint i = 0; i < items->length; i++) {
        Sorted row = {.item = items->items[i]};
        if (!sort_key(render, row.item, path, exact, &row.key))
            return FALSE;
        g_array_append_val(sorted, row);
    }
    g_array_sort_with_data(sorted, compare_sorted, &sorting);
    for (guint i = 0; i < sorted->len; i++)
        rp_list_append(render->arena, list, g_array_index(sorted, Sorted, i).item);
    *result = rp_value_list(list);
    return !render->failed;
}

static gboolean
is_set(RpValue argument)
{
    return rp_given(argument) && rp_value_is_true(argument);
}

static gboolean
filter_sort(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;

    return sort_items(render, arguments->items, bound[2], is_set(bound[1]), is_set(bound[0]),
                      result);
}

static gboolean
filter_dictsort(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    const gboolean by_value = rp_given(bound[1]) && rp_value_is_text(bound[1], "value");

    if (arguments->self.type != RP_VALUE_DICT)
        return rp_render_fail_type(render, "a dict", arguments->self);
    return sort_items(render, rp_dict_pairs(render->arena, arguments->self.dict),
                      rp_value_int(by_value), is_set(bound[0]), is_set(bound[2]), result);
}

static gboolean
filter_unique(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    RpDict *seen = rp_dict_new(render->arena);
    const RpList *items = arguments->items;
    RpList *list = rp_list_new(render->arena, 0);

    for (guint i = 0; i < items->length; i++) {
        RpValue key;
        if (!sort_key(render, items->items[i], bound[1], is_set(bound[0]), &key))
            return FALSE;
        if (!rp_value_is_key(key))
            return rp_render_fail_type(render, "items that can be keys", key);
        if (rp_dict_find(seen, key) != NULL)
            continue;
        rp_dict_set(render->arena, seen, key, rp_none);
        rp_list_append(render->arena, list, items->items[i]);
    }
    *result = generator(list);
    return rp_render_charge(render, items->length);
}

enum { LEAST, GREATEST };

/* The least or the greatest, the first of equals. */
static gboolean
filter_extreme(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    const RpList *items = arguments->items;
    RpValue best = rp_none, key;

    *result = rp_value_undefined("an item of an empty list", 24);
    for (guint i = 0; i < items->length; i++) {
        int order = 1;
        if (!sort_key(render, items->items[i], bound[1], is_set(bound[0]), &key) ||
            (i > 0 && !rp_order(render, key, best, &order)))
            return FALSE;
        if (i > 0 && (arguments->kind == GREATEST ? order <= 0 : order >= 0))
            continue;
        best = key;
        *result = items->items[i];
    }
    return rp_render_charge(render, items->length);
}

static gboolean
filter_sum(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    const RpList *items = arguments->items;

    *result = rp_given(bound[1]) ? bound[1] : rp_value_int(0);
    for (guint i = 0; i < items->length; i++) {
        RpValue item = items->items[i];
        if (rp_given(bound[0]) && bound[0].type != RP_VALUE_NONE &&
            !rp_get_path(render, item, bound[0], &item))
            return FALSE;
        if (!rp_operate(render, RP_OP_ADD, *result, item, result))
            return FALSE;
    }
    return TRUE;
}

/* The named argument @name of @arguments; undefined if it is not given. */
static RpValue
named(const RpArguments *arguments, const char *name)
{
    for (guint i = 0; i < arguments->n_named; i++)
        if (rp_value_is_text(arguments->names[i], name))
            return arguments->given[arguments->n_given - arguments->n_named + i];
    return rp_value_undefined(NULL, 0);
}

/* A filter or test by the name @value has, for `map` and `select`. */
static gboolean
find_row(RpRender *render, RpValue value, gboolean test, const RpRow **row)
{
    RpValue text;

    if (!rp_to_text_argument(render, value, &text))
        return FALSE;
    g_autofree char *name = g_strndup(text.text, text.length);
    *row = test ? rp_find_test(name) : rp_find_filter(name);
    g_autofree char *quoted = rp_quote(name);
    return *row != NULL || rp_render_fail(render, "expected a %s that is known, found %s",
                                          test ? "test" : "filter", quoted);
}

static gboolean
filter_map(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue attribute = named(arguments, "attribute"), absent = named(arguments, "default");
    const gboolean by_attribute = rp_given(attribute) && arguments->n_given == arguments->n_named;
    const RpRow *row = NULL;
    RpArguments inner = *arguments;
    RpList *items, *list = rp_list_new(render->arena, 0);

    if (!by_attribute) {
        if (arguments->n_given == arguments->n_named)
            return rp_render_fail(render, "expected a filter's name or attribute= of map()");
        if (!find_row(render, arguments->given[0], FALSE, &row))
            return FALSE;
        inner.given++;
        inner.n_given--;
    }
    if (!rp_to_items(render, arguments->self, &items))
        return FALSE;
    for (guint i = 0; i < items->length; i++) {
        RpValue value;
        inner.self = items->items[i];
        if (!(by_attribute ? rp_get_path(render, inner.self, attribute, &value)
                           : rp_call_row(render, row, &inner, &value)) ||
            !rp_render_charge(render, 1))
            return FALSE;
        if (by_attribute && value.type == RP_VALUE_UNDEFINED && rp_given(absent))
            value = absent;
        rp_list_append(render->arena, list, value);
    }
    *result = generator(list);
    return TRUE;
}

enum { BY_ATTRIBUTE = 1, REJECT = 2 };

/* The items of which a test (of an attribute) says what is wanted; without a test, their truth. */
static gboolean
filter_choose(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const gboolean by_attribute = (arguments->kind & BY_ATTRIBUTE) != 0;
    const gboolean wanted = (arguments->kind & REJECT) == 0;
    const guint n_positional = arguments->n_given - arguments->n_named;
    const RpRow *row = NULL;
    RpArguments inner = *arguments;
    RpList *items, *list = rp_list_new(render->arena, 0);

    if (by_attribute && n_positional == 0)
        return rp_render_fail(render, "expected an attribute's name, found none");
    if (n_positional > (guint)by_attribute) {
        if (!find_row(render, arguments->given[by_attribute], TRUE, &row))
            return FALSE;
        inner.given += by_attribute + 1;
        inner.n_given -= (guint)by_attribute + 1;
    }
    *result = generator(list);
    if (!rp_value_is_true(arguments->self))
        return TRUE;
    if (!rp_to_items(render, arguments->self, &items))
        return FALSE;
    for (guint i = 0; i < items->length; i++) {
        inner.self = items->items[i];
        if (by_attribute && !rp_get_path(render, items->items[i], arguments->given[0], &inner.self))
            return FALSE;
        RpValue truth = inner.self;
        if ((row != NULL && !rp_call_row(render, row, &inner, &truth)) ||
            !rp_render_charge(render, 1))
            return FALSE;
        if (rp_value_is_true(truth) == wanted)
            rp_list_append(render->arena, list, items->items[i]);
    }
    return TRUE;
}

const RpRow *
rp_find_list_filter(const char *name)
{
    static const RpRow rows[] = {
        {"dictsort", filter_dictsort, {"case_sensitive", "by", "reverse"}},
        {"first", filter_first},
        {"items", filter_items},
        {"last", filter_last, .loops = TRUE},
        {"list", filter_list, .loops = TRUE},
        {"map", filter_map, .any = TRUE},
        {"max", filter_extreme, {"case_sensitive", "attribute"}, .kind = GREATEST, .loops = TRUE},
        {"min", filter_extreme, {"case_sensitive", "attribute"}, .kind = LEAST, .loops = TRUE},
        {"reject", filter_choose, .any = TRUE, .kind = REJECT},
        {"rejectattr", filter_choose, .any = TRUE, .kind = REJECT | BY_ATTRIBUTE},
        {"reverse", filter_reverse, .loops = TRUE},
        {"select", filter_choose, .any = TRUE},
        {"selectattr", filter_choose, .any = TRUE, .kind = BY_ATTRIBUTE},
        {"sort", filter_sort, {"reverse", "case_sensitive", "attribute"}, .loops = TRUE},
        {"sum", filter_sum, {"attribute", "start"}, .loops = TRUE},
        {"unique", filter_unique, {"case_sensitive", "attribute"}, .loops = TRUE},
    };

    return rp_row_find(rows, G_N_ELEMENTS(rows), name);
}
