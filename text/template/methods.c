#include "text/template/render.h"

#include <string.h>

enum { LEFT = 1, RIGHT = 2 };

/* @arguments->kind: LEFT, RIGHT or both */
static gboolean
method_strip(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    RpValue chars = arguments->bound[0];
    const gboolean space = !rp_given(chars) || chars.type == RP_VALUE_NONE;

    if (!space && !rp_to_text_argument(render, chars, &chars))
        return FALSE;
    return rp_strip(render, arguments->self, space ? NULL : &chars, (arguments->kind & LEFT) != 0,
                    (arguments->kind & RIGHT) != 0, result);
}

static gboolean
method_split(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    RpValue separator = rp_given(bound[0]) ? bound[0] : rp_none;
    gint64 most = -1;

    if (separator.type != RP_VALUE_NONE && !rp_to_text_argument(render, separator, &separator))
        return FALSE;
    if (separator.type == RP_VALUE_STRING && separator.length == 0)
        return rp_render_fail(render, "expected a separator that is not empty");
    if (rp_given(bound[1]) && !rp_to_integer(render, bound[1], &most))
        return FALSE;
    *result = rp_value_list(
        rp_string_split(render->arena, arguments->self, separator, most, arguments->kind == RIGHT));
    return TRUE;
}

static gboolean
method_splitlines(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_list(rp_string_lines(render->arena, arguments->self));
    return TRUE;
}

/* Whether the string starts or ends with a string, or with one of a tuple. */
static gboolean
method_has_border(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue borders = arguments->bound[0];
    const guint n = borders.type == RP_VALUE_TUPLE ? borders.list->length : 1;
    gboolean truth = FALSE;

    for (guint i = 0; i < n && !truth; i++) {
        RpValue border = borders.type == RP_VALUE_TUPLE ? borders.list->items[i] : borders;
        if (!rp_to_text_argument(render, border, &border) ||
            !rp_render_charge(render, border.length / RP_SCANNED))
            return FALSE;
        truth = arguments->kind == RIGHT ? rp_string_ends(arguments->self, border)
                                         : rp_string_starts(arguments->self, border);
    }
    *result = rp_value_bool(truth);
    return TRUE;
}

static gboolean
method_remove(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;
    RpValue part;

    if (!rp_to_text_argument(render, arguments->bound[0], &part) ||
        !rp_render_charge(render, part.length / RP_SCANNED))
        return FALSE;
    const gboolean end = arguments->kind == RIGHT;

    *result = self;
    if (end ? rp_string_ends(self, part) : rp_string_starts(self, part))
        *result = rp_value_text(self.text + (end ? 0 : part.length), self.length - part.length);
    return TRUE;
}

static gboolean
method_case(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_string_case(render->arena, arguments->self, arguments->kind);
    return TRUE;
}

/* @arguments->kind: a filter's, which takes any values as text */
static gboolean
method_replace(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    const gboolean filter = arguments->kind != 0;
    gboolean (*const to_text)(RpRender *, RpValue, RpValue *) =
        filter ? rp_to_text : rp_to_text_argument;
    RpValue old, with;
    gint64 most = -1;

    if (!to_text(render, bound[0], &old) || !to_text(render, bound[1], &with))
        return FALSE;
    if (rp_given(bound[2]) && !(filter && bound[2].type == RP_VALUE_NONE) &&
        !rp_to_integer(render, bound[2], &most))
        return FALSE;
    return rp_string_replace(render->arena, arguments->self, old, with, most, result) ||
           rp_render_fail_bound(render, NULL);
}

/* In characters from the start; -1 if there is none. */
static gboolean
method_find(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;
    RpValue part;

    if (!rp_to_text_argument(render, arguments->bound[0], &part))
        return FALSE;
    const gssize at = rp_string_find(self, part, arguments->kind == RIGHT);
    *result =
        rp_value_int(at < 0 ? -1 : (gint64)rp_string_length(rp_value_text(self.text, (gsize)at)));
    return rp_render_charge(render, part.length / RP_DECODED);
}

static gboolean
method_count(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    RpValue self = arguments->self, part;
    gint64 n = 0;

    if (self.type != RP_VALUE_STRING) {
        for (guint i = 0; i < self.list->length; i++)
            n += rp_value_equal(render->arena, self.list->items[i], arguments->bound[0]);
        *result = rp_value_int(n);
        return rp_render_charge(render, 0);
    }
    if (!rp_to_text_argument(render, arguments->bound[0], &part))
        return FALSE;
    *result = rp_value_int((gint64)rp_string_length(self) + 1);
    if (part.length == 0)
        return TRUE;
    for (gssize at = 0; (at = rp_string_find(self, part, FALSE)) >= 0; n++)
        self = rp_value_text(self.text + at + part.length, self.length - (gsize)at - part.length);
    *result = rp_value_int(n);
    return rp_render_charge(render, part.length / RP_DECODED);
}

enum { DIGITS, LETTERS, LETTERS_AND_DIGITS, SPACES };

/* Whether there are characters and all are of a class. */
static gboolean
method_all_are(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    static gboolean (*const classes[])(gunichar) = {
        [DIGITS] = g_unichar_isdigit,
        [LETTERS] = g_unichar_isalpha,
        [LETTERS_AND_DIGITS] = g_unichar_isalnum,
        [SPACES] = rp_is_space,
    };
    const RpValue self = arguments->self;
    gboolean all = self.length > 0;
    guint bytes = 0;

    for (guint i = 0; all && i < self.length; i += bytes)
        all = classes[arguments->kind](rp_char_at(self.text + i, &bytes));
    *result = rp_value_bool(all);
    return TRUE;
}

/* @path: (nullable): of the items' attribute */
static gboolean
join(RpRender *render, RpList *items, RpValue separator, const RpValue *path,
     gboolean (*to_text)(RpRender *, RpValue, RpValue *), RpValue *result)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < items->length; i++) {
        RpValue part = items->items[i];
        if ((path != NULL && !rp_get_path(render, part, *path, &part)) ||
            !to_text(render, part, &part))
            return FALSE;
        if (i > 0)
            g_string_append_len(text, separator.text, separator.length);
        if (!rp_append(render, text, part))
            return FALSE;
    }
    return rp_keep_text(render, text, result);
}

static gboolean
method_join(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    RpList *items;

    return rp_to_items(render, arguments->bound[0], &items) &&
           join(render, items, arguments->self, NULL, rp_to_text_argument, result);
}

static gboolean
filter_join(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;
    RpValue separator = rp_value_static("");
    RpList *items;

    return (!rp_given(bound[0]) || rp_to_text(render, bound[0], &separator)) &&
           rp_to_items(render, arguments->self, &items) &&
           join(render, items, separator, rp_given(bound[1]) ? &bound[1] : NULL, rp_to_text,
                result);
}

/* "{} {0} {name}".format(...): fields without conversion or format. */
static gboolean
method_format(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue self = arguments->self;
    const guint n_positional = arguments->n_given - arguments->n_named;
    g_autoptr(GString) text = g_string_new(NULL);
    guint next = 0;

    for (guint i = 0; i < self.length; i++) {
        const char c = self.text[i];
        if (c != '{' && c != '}') {
            g_string_append_c(text, c);
            continue;
        }
        if (i + 1 < self.length && self.text[i + 1] == c) {
            g_string_append_c(text, c);
            i++;
            continue;
        }
        const char *close = c == '{' ? memchr(self.text + i, '}', self.length - i) : NULL;
        if (close == NULL)
            return rp_render_fail(render, "expected `{` and `}` of format() in pairs");
        g_autofree char *field = g_strndup(self.text + i + 1, (gsize)(close - self.text) - i - 1);
        gint64 index = next;
        gboolean found = FALSE;
        RpValue part;
        if (field[0] == '\0')
            next++;
        if (field[0] == '\0' || g_ascii_string_to_signed(field, 10, 0, G_MAXINT32, &index, NULL)) {
            found = index < n_positional;
            part = found ? arguments->given[index] : rp_none;
        }
        for (guint k = 0; k < arguments->n_named && !found; k++)
            if (rp_value_is_text(arguments->names[k], field)) {
                found = TRUE;
                part = arguments->given[n_positional + k];
            }
        if (!found)
            return rp_render_fail(render, "expected a value for each {} of format(), found fewer");
        if (!rp_to_text(render, part, &part) || !rp_append(render, text, part))
            return FALSE;
        i = (guint)(close - self.text);
    }
    return rp_keep_text(render, text, result);
}

static gboolean
method_get(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpValue *bound = arguments->bound;

    if (!rp_value_is_key(bound[0]))
        return rp_render_fail_type(render, "a key", bound[0]);
    if (!rp_charge_key(render, bound[0]))
        return FALSE;
    const RpValue *there = rp_dict_find(arguments->self.dict, bound[0]);
    *result = there != NULL ? *there : rp_given(bound[1]) ? bound[1] : rp_none;
    return TRUE;
}

enum { KEYS, VALUES, ITEMS };

static gboolean
method_view(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpDict *dict = arguments->self.dict;
    RpList *list = arguments->kind == ITEMS ? rp_dict_pairs(render->arena, dict)
                                            : rp_list_new(render->arena, dict->length);

    for (guint i = list->length; i < dict->length; i++)
        rp_list_append(render->arena, list,
                       arguments->kind == VALUES ? dict->pairs[i].value : dict->pairs[i].key);
    *result = rp_value_list(list);
    return rp_render_charge(render, dict->length / 16);
}

static gboolean
method_copy(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = arguments->self;
    if (arguments->self.type == RP_VALUE_DICT)
        *result = rp_value_dict(rp_dict_copy(render->arena, arguments->self.dict));
    return TRUE;
}

static gboolean
method_index(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const RpList *list = arguments->self.list;

    for (guint i = 0; i < list->length; i++)
        if (rp_value_equal(render->arena, list->items[i], arguments->bound[0])) {
            *result = rp_value_int(i);
            return TRUE;
        }
    return rp_render_charge(render, 0) &&
           rp_render_fail(render, "expected an item that is in the list");
}

static gboolean
method_change(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    return rp_render_fail(render, "expected no change of a list or dict: templates may not change "
                                  "them (use a namespace, and `+`)");
}

const RpRow *
rp_find_method(const char *name, RpValueType type)
{
#define STRING (1u << RP_VALUE_STRING)
#define LISTS (1u << RP_VALUE_LIST | 1u << RP_VALUE_TUPLE)
#define DICT (1u << RP_VALUE_DICT)
    static const RpRow rows[] = {
        {"strip", method_strip, {"chars"}, 0, FALSE, STRING, RP_DECODED, LEFT | RIGHT},
        {"lstrip", method_strip, {"chars"}, 0, FALSE, STRING, RP_DECODED, LEFT},
        {"rstrip", method_strip, {"chars"}, 0, FALSE, STRING, RP_DECODED, RIGHT},
        {"split", method_split, {"sep", "maxsplit"}, 0, FALSE, STRING, RP_DECODED, LEFT},
        {"rsplit", method_split, {"sep", "maxsplit"}, 0, FALSE, STRING, RP_DECODED, RIGHT},
        {"splitlines", method_splitlines, {NULL}, 0, FALSE, STRING, RP_DECODED},
        {"startswith", method_has_border, {"prefix"}, 1, FALSE, STRING, 0, LEFT},
        {"endswith", method_has_border, {"suffix"}, 1, FALSE, STRING, 0, RIGHT},
        {"removeprefix", method_remove, {"prefix"}, 1, FALSE, STRING, 0, LEFT},
        {"removesuffix", method_remove, {"suffix"}, 1, FALSE, STRING, 0, RIGHT},
        {"upper", method_case, {NULL}, 0, FALSE, STRING, RP_DECODED, RP_CASE_UPPER},
        {"lower", method_case, {NULL}, 0, FALSE, STRING, RP_DECODED, RP_CASE_LOWER},
        {"title", method_case, {NULL}, 0, FALSE, STRING, RP_DECODED, RP_CASE_TITLE},
        {"capitalize", method_case, {NULL}, 0, FALSE, STRING, RP_DECODED, RP_CASE_CAPITALIZE},
        {"replace", method_replace, {"old", "new", "count"}, 2, FALSE, STRING, RP_DECODED},
        {"find", method_find, {"sub"}, 1, FALSE, STRING, RP_SCANNED, LEFT},
        {"rfind", method_find, {"sub"}, 1, FALSE, STRING, RP_SCANNED, RIGHT},
        {"count", method_count, {"value"}, 1, FALSE, STRING | LISTS, RP_SCANNED},
        {"index", method_index, {"value"}, 1, FALSE, LISTS, 0},
        {"isdigit", method_all_are, {NULL}, 0, FALSE, STRING, RP_DECODED, DIGITS},
        {"isalpha", method_all_are, {NULL}, 0, FALSE, STRING, RP_DECODED, LETTERS},
        {"isalnum", method_all_are, {NULL}, 0, FALSE, STRING, RP_DECODED, LETTERS_AND_DIGITS},
        {"isspace", method_all_are, {NULL}, 0, FALSE, STRING, RP_DECODED, SPACES},
        {"format", method_format, {NULL}, 0, TRUE, STRING, RP_DECODED},
        {"join", method_join, {"iterable"}, 1, FALSE, STRING, 0},
        {"get", method_get, {"key", "default"}, 1, FALSE, DICT, 0},
        {"keys", method_view, {NULL}, 0, FALSE, DICT, 0, KEYS},
        {"values", method_view, {NULL}, 0, FALSE, DICT, 0, VALUES},
        {"items", method_view, {NULL}, 0, FALSE, DICT, 0, ITEMS},
        {"copy", method_copy, {NULL}, 0, FALSE, DICT | LISTS, 0},
        {"append", method_change, {NULL}, 0, TRUE, LISTS, 0},
        {"extend", method_change, {NULL}, 0, TRUE, LISTS, 0},
        {"insert", method_change, {NULL}, 0, TRUE, LISTS, 0},
        {"remove", method_change, {NULL}, 0, TRUE, LISTS, 0},
        {"reverse", method_change, {NULL}, 0, TRUE, LISTS, 0},
        {"sort", method_change, {NULL}, 0, TRUE, LISTS, 0},
        {"pop", method_change, {NULL}, 0, TRUE, LISTS | DICT, 0},
        {"clear", method_change, {NULL}, 0, TRUE, LISTS | DICT, 0},
        {"update", method_change, {NULL}, 0, TRUE, DICT, 0},
        {"setdefault", method_change, {NULL}, 0, TRUE, DICT, 0},
        {"popitem", method_change, {NULL}, 0, TRUE, DICT, 0},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++)
        if ((rows[i].types >> type & 1) != 0 && strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

const RpRow *
rp_find_text_filter(const char *name)
{
#define TEXT .bytes = RP_DECODED, .shown = TRUE
    static const RpRow rows[] = {
        {"capitalize", method_case, TEXT, .kind = RP_CASE_CAPITALIZE},
        {"join", filter_join, {"d", "attribute"}},
        {"lower", method_case, TEXT, .kind = RP_CASE_LOWER},
        {"replace", method_replace, {"old", "new", "count"}, 2, TEXT, .kind = TRUE},
        {"title", method_case, TEXT, .kind = RP_CASE_FILTER_TITLE},
        {"trim", method_strip, {"chars"}, TEXT, .kind = LEFT | RIGHT},
        {"upper", method_case, TEXT, .kind = RP_CASE_UPPER},
    };

    return rp_row_find(rows, G_N_ELEMENTS(rows), name);
}
