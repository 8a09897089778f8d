#include "tests/cli/script-value.h"

#include <math.h>

void
rp_script_result_free(RpScriptResult *result)
{
    rp_cli_run_clear(&result->run);
    g_clear_pointer(&result->tree, rp_tree_free);
    g_free(result->name);
    g_free(result);
}

RpScriptResult *
rp_script_find(GPtrArray *results, const char *name)
{
    for (guint i = results->len; i-- > 0;) {
        RpScriptResult *result = g_ptr_array_index(results, i);

        if (g_str_equal(result->name, name) || g_str_equal(name, "it"))
            return result;
    }
    fail_msg("no result is called %s", name);
    return NULL;
}

/* %NULL if there is nothing at @path, or @path of the result that a word and a colon name. */
static const RpTree *
find(GPtrArray *results, const char *path)
{
    const char *colon = strchr(path, ':');
    g_autofree char *name = colon != NULL ? g_strndup(path, (gsize)(colon - path)) : g_strdup("it");
    RpScriptResult *result = rp_script_find(results, name);

    if (result->tree == NULL)
        result->tree = rp_tree_parse(result->run.out);
    if (result->tree == NULL)
        fail_msg("not JSON: %.200s", result->run.out);
    if (colon != NULL && colon[1] == '\0')
        return result->tree;
    return rp_tree_find(result->tree, colon != NULL ? colon + 1 : path);
}

static const RpTree *
get(GPtrArray *results, const char *path)
{
    const RpTree *found = find(results, path);

    if (found == NULL)
        fail_msg("no member %s", path);
    return found;
}

gboolean
rp_script_has(GPtrArray *results, const char *path)
{
    return find(results, path) != NULL;
}

char *
rp_script_text(GPtrArray *results, const char *path)
{
    const RpTree *value = get(results, path);

    if (value->type != RP_JSON_ARRAY)
        return g_strdup(value->text);
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < value->items->len; i++)
        g_string_append_printf(text, "%s%s", i > 0 ? "," : "", rp_tree_nth(value, i)->text);
    return g_string_free(text, FALSE);
}

/* ---- expressions ---- */

typedef struct {
    GPtrArray *results;
    const char *at;
} Reader;

static double read_sum(Reader *reader);

static gboolean
take(Reader *reader, char c)
{
    while (*reader->at == ' ')
        reader->at++;
    if (*reader->at != c)
        return FALSE;
    reader->at++;
    return TRUE;
}

/* A path, whose minus signs have a letter or digit behind them. (transfer full) */
static char *
read_path(Reader *reader)
{
    const char *begin = reader->at;

    while (g_ascii_isalnum(*reader->at) || (*reader->at != '\0' && strchr("_.:", *reader->at)) ||
           (*reader->at == '-' && g_ascii_isalnum(reader->at[1])))
        reader->at++;
    if (reader->at == begin)
        fail_msg("expected a number or a path, found \"%s\"", begin);
    return g_strndup(begin, (gsize)(reader->at - begin));
}

static double
value_of(const RpTree *value)
{
    return value->type == RP_JSON_STRING ? g_ascii_strtod(value->text, NULL) : value->number;
}

/* Calls the function @name of the numbers in the parentheses behind it. */
static double
call(Reader *reader, const char *name)
{
    double one, other = 0;

    if (g_str_equal(name, "len")) {
        g_autofree char *path = read_path(reader);

        one = get(reader->results, path)->items->len;
    } else {
        one = read_sum(reader);
        if (take(reader, ','))
            other = read_sum(reader);
    }
    if (!take(reader, ')'))
        fail_msg("expected ), found \"%s\"", reader->at);
    return g_str_equal(name, "abs")    ? fabs(one)
           : g_str_equal(name, "ceil") ? ceil(one)
           : g_str_equal(name, "exp")  ? exp(one)
           : g_str_equal(name, "min")  ? MIN(one, other)
           : g_str_equal(name, "max")  ? MAX(one, other)
                                       : one;
}

static double
read_value(Reader *reader)
{
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    char *end;

    if (take(reader, '('))
        return call(reader, "");
    if (take(reader, '-'))
        return -read_value(reader);
    const double number = g_ascii_strtod(reader->at, &end);

    if (end != reader->at && !g_ascii_isalpha(*end)) {
        reader->at = end;
        return number;
    }
    g_autofree char *path = read_path(reader);

    for (guint i = 0; i < G_N_ELEMENTS(units); i++)
        if (g_str_equal(path, units[i]))
            return (double)(1 << 10 * (i + 1));
    return take(reader, '(') ? call(reader, path) : value_of(get(reader->results, path));
}

static double
read_product(Reader *reader)
{
    double product = read_value(reader);

    for (;;)
        if (take(reader, '*'))
            product *= read_value(reader);
        else if (take(reader, '/'))
            product /= read_value(reader);
        else
            return product;
}

static double
read_sum(Reader *reader)
{
    double sum = read_product(reader);

    for (;;)
        if (take(reader, '+'))
            sum += read_product(reader);
        else if (take(reader, '-'))
            sum -= read_product(reader);
        else
            return sum;
}

double
rp_script_number(GPtrArray *results, const char *text)
{
    Reader reader = {results, text};
    const double number = read_sum(&reader);

    if (take(&reader, '\0'))
        return number;
    fail_msg("expected nothing behind it, found \"%s\"", reader.at);
    return 0;
}
