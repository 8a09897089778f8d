#include "core/base/quote.h"
#include "text/template/render.h"

#include <string.h>

#define MAX_RANGE 100000 /* as Jinja's sandbox */

const RpRow *
rp_row_find(const RpRow *rows, guint n, const char *name)
{
    for (guint i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

RpValue
rp_function_value(RpRender *render, const RpRow *row, RpValue self)
{
    RpFunction *function = rp_arena_alloc(render->arena, sizeof *function);

    function->row = row;
    function->self = self;
    return (RpValue){RP_VALUE_FUNCTION, 0, {.other = function}};
}

static gboolean
fail_argument(RpRender *render, const char *function, RpValue name)
{
    g_autofree char *text = g_strndup(name.text, name.length);
    g_autofree char *quoted = rp_quote(text);

    return rp_render_fail(render, "expected an argument of %s() that is known, found %s", function,
                          quoted);
}

/* The place of the named argument @name among @n names; -1 if there is none. */
static int
place_of(RpValue name, const char *const *names, guint n)
{
    for (guint i = 0; i < n && names[i] != NULL; i++)
        if (rp_value_is_text(name, names[i]))
            return (int)i;
    return -1;
}

static gboolean
bind(RpRender *render, const RpRow *row, RpArguments *arguments)
{
    const guint n_positional = arguments->n_given - arguments->n_named;
    guint n_known = 0;

    while (n_known < RP_MAX_PARAMETERS && row->parameters[n_known] != NULL)
        n_known++;
    for (guint i = 0; i < RP_MAX_PARAMETERS; i++)
        arguments->bound[i] = rp_value_undefined(NULL, 0);
    if (row->any)
        return TRUE;
    if (n_positional > n_known)
        return rp_render_fail(render, "expected at most %u arguments of %s(), found %u", n_known,
                              row->name, n_positional);
    for (guint i = 0; i < n_positional; i++)
        arguments->bound[i] = arguments->given[i];
    for (guint i = 0; i < arguments->n_named; i++) {
        const int at = place_of(arguments->names[i], row->parameters, n_known);
        if (at < 0 || rp_given(arguments->bound[at]))
            return fail_argument(render, row->name, arguments->names[i]);
        arguments->bound[at] = arguments->given[n_positional + i];
    }
    for (guint i = 0; i < row->required; i++)
        if (!rp_given(arguments->bound[i]))
            return rp_render_fail(render, "expected the argument %s of %s(), found none",
                                  row->parameters[i], row->name);
    return TRUE;
}

gboolean
rp_call_row(RpRender *render, const RpRow *row, RpArguments *arguments, RpValue *value)
{
    const RpValue self = arguments->self;

    if (row->bytes > 0 && self.type == RP_VALUE_STRING &&
        !rp_render_charge(render, self.length / row->bytes))
        return FALSE;
    arguments->kind = row->kind;
    return bind(render, row, arguments) &&
           (!row->shown || rp_to_text(render, self, &arguments->self)) &&
           (!row->loops || rp_to_items(render, self, &arguments->items)) &&
           row->call(render, arguments, value);
}

/* The arguments of a macro as variables of the present scope. */
static gboolean
bind_macro(RpRender *render, const RpSyntax *macro, const RpArguments *arguments)
{
    const guint n_parameters = macro->n_items - macro->n_named;
    const guint n_positional = arguments->n_given - arguments->n_named;

    if (n_positional > n_parameters)
        return rp_render_fail(render, "expected at most %u arguments of %s(), found %u",
                              n_parameters, macro->text, n_positional);
    for (guint i = 0; i < arguments->n_named; i++) {
        guint at = 0;
        while (at < n_parameters && !rp_value_is_text(arguments->names[i], macro->items[at]->text))
            at++;
        if (at >= n_parameters || at < n_positional)
            return fail_argument(render, macro->text, arguments->names[i]);
    }
    for (guint i = 0; i < n_parameters; i++) {
        const RpSyntax *parameter = macro->items[i];
        RpValue value = rp_value_undefined(parameter->text, strlen(parameter->text));
        gboolean given = i < n_positional;
        if (given)
            value = arguments->given[i];
        for (guint k = 0; k < arguments->n_named; k++)
            if (rp_value_is_text(arguments->names[k], parameter->text)) {
                value = arguments->given[n_positional + k];
                given = TRUE;
            }
        const guint without = n_parameters - macro->n_named;
        if (!given && i >= without &&
            !rp_evaluate(render, macro->items[n_parameters + i - without], &value))
            return FALSE;
        rp_scope_set(render, parameter->symbol, value);
    }
    return TRUE;
}

static gboolean
call_macro(RpRender *render, const RpFunction *function, const RpArguments *arguments,
           RpValue *value)
{
    RpScope *caller = render->scope;

    render->scope = function->scope;
    rp_scope_enter(render);
    const gboolean done = bind_macro(render, function->macro, arguments) &&
                          rp_execute_aside(render, function->macro->c, value);
    render->scope = caller;
    return done;
}

gboolean
rp_call_node(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpValue *given = rp_arena_alloc(render->arena, MAX(node->n_items, 1) * sizeof *given);
    RpArguments arguments = {
        .given = given, .n_given = node->n_items, .names = node->names, .n_named = node->n_named};

    if (!rp_evaluate(render, node->a, &arguments.self))
        return FALSE;
    for (guint i = 0; i < node->n_items; i++)
        if (!rp_evaluate(render, node->items[i], &given[i]))
            return FALSE;
    render->at = node;
    if (node->type != RP_NODE_CALL && node->binding == NULL)
        return rp_render_fail(render, "expected a %s that is known, found \"%s\"",
                              node->type == RP_NODE_FILTER ? "filter" : "test", node->text);
    if (node->binding != NULL)
        return rp_call_row(render, node->binding, &arguments, value);
    if (arguments.self.type != RP_VALUE_FUNCTION)
        return rp_render_fail_type(render, "a function to call", arguments.self);
    const RpFunction *function = arguments.self.other;
    arguments.self = function->self;
    if (function->row == NULL)
        return call_macro(render, function, &arguments, value);
    return rp_call_row(render, function->row, &arguments, value);
}

gboolean
rp_to_items(RpRender *render, RpValue value, RpList **list)
{
    switch (value.type) {
    case RP_VALUE_UNDEFINED:
        *list = rp_list_new(render->arena, 0);
        return TRUE;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
        *list = value.list;
        return TRUE;
    case RP_VALUE_GENERATOR:
        *list = rp_list_new(render->arena, 0);
        (*list)->length = (*list)->capacity = value.list->length - value.list->given;
        if ((*list)->length > 0)
            (*list)->items = value.list->items + value.list->given;
        value.list->given = value.list->length;
        return TRUE;
    case RP_VALUE_DICT:
        *list = rp_list_new(render->arena, value.dict->length);
        for (guint i = 0; i < value.dict->length; i++)
            rp_list_append(render->arena, *list, value.dict->pairs[i].key);
        return rp_render_charge(render, value.dict->length / 16);
    case RP_VALUE_STRING:
        *list = rp_string_characters(render->arena, value);
        return rp_render_charge(render, value.length / 16);
    default:
        return rp_render_fail_type(render, "a value to loop over", value);
    }
}

gboolean
rp_to_integer(RpRender *render, RpValue value, gint64 *integer)
{
    if (value.type != RP_VALUE_INTEGER && value.type != RP_VALUE_BOOLEAN)
        return rp_render_fail_type(render, "a whole number", value);
    *integer = value.type == RP_VALUE_INTEGER ? value.integer : value.boolean;
    return TRUE;
}

gboolean
rp_to_text_argument(RpRender *render, RpValue value, RpValue *text)
{
    if (value.type != RP_VALUE_STRING)
        return rp_render_fail_type(render, "a string", value);
    *text = value;
    return TRUE;
}

static gboolean
call_range(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    gint64 start = 0, stop = 0, step = 1;
    const RpValue *bound = arguments->bound;

    if (!rp_to_integer(render, bound[0], &stop))
        return FALSE;
    if (rp_given(bound[1])) {
        start = stop;
        if (!rp_to_integer(render, bound[1], &stop))
            return FALSE;
    }
    if (rp_given(bound[2]) && !rp_to_integer(render, bound[2], &step))
        return FALSE;
    if (step == 0)
        return rp_render_fail(render, "expected a step of range() other than 0");
    RpList *list = rp_list_new(render->arena, 0);
    for (gint64 i = start; step > 0 ? i < stop : i > stop;) {
        if (list->length == MAX_RANGE)
            return rp_render_fail(render, "expected a range of at most 100000 numbers");
        rp_list_append(render->arena, list, rp_value_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    *result = rp_value_list(list);
    return rp_render_charge(render, list->length / 16);
}

/* dict(other, key=value, ...), and the same for namespace(). */
static gboolean
make_dict(RpRender *render, const RpArguments *arguments, RpDict *dict)
{
    const guint n_positional = arguments->n_given - arguments->n_named;

    if (n_positional > 1)
        return rp_render_fail(render, "expected at most one dict, found %u arguments",
                              n_positional);
    if (n_positional == 1 && arguments->given[0].type == RP_VALUE_DICT) {
        const RpDict *from = arguments->given[0].dict;
        for (guint i = 0; i < from->length; i++)
            rp_dict_set(render->arena, dict, from->pairs[i].key, from->pairs[i].value);
    } else if (n_positional == 1) {
        RpList *pairs, *pair;
        if (!rp_to_items(render, arguments->given[0], &pairs))
            return FALSE;
        for (guint i = 0; i < pairs->length; i++) {
            if (!rp_to_items(render, pairs->items[i], &pair))
                return FALSE;
            if (pair->length != 2 || !rp_value_is_key(pair->items[0]))
                return rp_render_fail(render, "expected a pair of key and value");
            rp_dict_set(render->arena, dict, pair->items[0], pair->items[1]);
        }
    }
    for (guint i = 0; i < arguments->n_named; i++)
        rp_dict_set(render->arena, dict, arguments->names[i], arguments->given[n_positional + i]);
    return TRUE;
}

static gboolean
call_dict(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    *result = rp_value_dict(rp_dict_new(render->arena));
    result->type = arguments->kind;
    return make_dict(render, arguments, result->dict);
}

static gboolean
call_raise(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    RpValue text;

    if (!rp_to_text(render, arguments->bound[0], &text))
        return FALSE;
    g_autofree char *message = g_strndup(text.text, text.length);
    for (char *p = message; *p != '\0'; p++)
        if (g_ascii_iscntrl(*p))
            *p = ' ';
    if (!render->failed)
        g_set_error(render->error, RP_TEMPLATE_ERROR, RP_TEMPLATE_ERROR_RAISED,
                    "%s: line %u, column %u: the template refuses the chat: %s", render->name,
                    render->at->line, render->at->column, message);
    render->failed = TRUE;
    return FALSE;
}

/* As strftime() in the C locale; `-` behind the sign leaves out zeros before a number. */
static gboolean
call_strftime(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    static const char *const days[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                       "Friday", "Saturday", "Sunday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    g_autoptr(GString) text = g_string_new(NULL);
    GDateTime *now = render->now;
    RpValue format = rp_none;

    if (!rp_to_text_argument(render, arguments->bound[0], &format))
        return FALSE;
    const int hour = g_date_time_get_hour(now);
    for (guint i = 0; i < format.length; i++) {
        if (format.text[i] != '%' || i + 1 == format.length) {
            g_string_append_c(text, format.text[i]);
            continue;
        }
        const gboolean bare = format.text[i + 1] == '-' && i + 2 < format.length;
        i += 1 + bare;
        const char letter = format.text[i];
        const char *day = days[g_date_time_get_day_of_week(now) - 1];
        const char *month = months[g_date_time_get_month(now) - 1];
        const struct {
            char letter;
            int digits;
            int number;
        } numbers[] = {{'d', 2, g_date_time_get_day_of_month(now)},
                       {'m', 2, g_date_time_get_month(now)},
                       {'y', 2, g_date_time_get_year(now) % 100},
                       {'Y', 4, g_date_time_get_year(now)},
                       {'H', 2, hour},
                       {'I', 2, (hour + 11) % 12 + 1},
                       {'M', 2, g_date_time_get_minute(now)},
                       {'S', 2, g_date_time_get_second(now)},
                       {'j', 3, g_date_time_get_day_of_year(now)}};
        guint k = 0;
        while (k < G_N_ELEMENTS(numbers) && numbers[k].letter != letter)
            k++;
        if (k < G_N_ELEMENTS(numbers))
            g_string_append_printf(text, "%0*d", bare ? 1 : numbers[k].digits, numbers[k].number);
        else if (letter == 'a' || letter == 'A')
            g_string_append_len(text, day, letter == 'a' ? 3 : -1);
        else if (letter == 'b' || letter == 'B')
            g_string_append_len(text, month, letter == 'b' ? 3 : -1);
        else if (letter == 'p')
            g_string_append(text, hour < 12 ? "AM" : "PM");
        else if (letter == '%')
            g_string_append_c(text, '%');
        else
            return rp_render_fail(render, "expected one of %%d %%m %%y %%Y %%H %%I %%M %%S %%j %%a "
                                          "%%A %%b %%B %%p %%%% in strftime_now(), found another");
    }
    return rp_keep_text(render, text, result);
}

const RpRow *
rp_find_global(const char *name)
{
    static const RpRow rows[] = {
        {.name = "range",
         .call = call_range,
         .parameters = {"start", "stop", "step"},
         .required = 1},
        {.name = "dict", .call = call_dict, .any = TRUE, .kind = RP_VALUE_DICT},
        {.name = "namespace", .call = call_dict, .any = TRUE, .kind = RP_VALUE_NAMESPACE},
        {.name = "raise_exception", .call = call_raise, .parameters = {"message"}, .required = 1},
        {.name = "strftime_now", .call = call_strftime, .parameters = {"format"}, .required = 1},
    };

    return rp_row_find(rows, G_N_ELEMENTS(rows), name);
}
