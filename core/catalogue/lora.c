#include "core/catalogue/lora.h"

#include <math.h>
#include <string.h>

G_DEFINE_QUARK(rp_lora_error, rp_lora_error)

static RpLoraPattern *
copy_patterns(const RpLoraPattern *patterns)
{
    guint n = 0;

    while (patterns != NULL && patterns[n].pattern != NULL)
        n++;
    RpLoraPattern *copy = patterns != NULL ? g_new0(RpLoraPattern, n + 1) : NULL;
    for (guint i = 0; i < n; i++)
        copy[i] = (RpLoraPattern){g_strdup(patterns[i].pattern), patterns[i].value};
    return copy;
}

void
rp_lora_patterns_free(RpLoraPattern *patterns)
{
    for (guint i = 0; patterns != NULL && patterns[i].pattern != NULL; i++)
        g_free(patterns[i].pattern);
    g_free(patterns);
}

RpLora
rp_lora_copy(const RpLora *lora)
{
    RpLora copy = *lora;

    copy.targets = g_strdupv(lora->targets);
    copy.saved = g_strdupv(lora->saved);
    copy.ranks = copy_patterns(lora->ranks);
    copy.alphas = copy_patterns(lora->alphas);
    return copy;
}

char **
rp_lora_split_names(const char *list)
{
    const gsize n = list != NULL ? strlen(list) : 0;
    const gboolean brackets = n > 1 && list[0] == '[' && list[n - 1] == ']';
    g_autofree char *inner =
        list != NULL ? g_strndup(list + brackets, n - 2 * (gsize)brackets) : NULL;
    const int most = inner != NULL && g_str_has_prefix(inner, RP_LORA_REGEX) ? 1 : -1;
    char **names = inner != NULL ? g_strsplit(inner, ",", most) : NULL;

    for (guint i = 0; names != NULL && names[i] != NULL; i++)
        g_strstrip(names[i]);
    return names;
}

char **
rp_lora_read_targets(const char *list)
{
    return g_strcmp0(list, RP_LORA_ALL_LINEAR) != 0 ? rp_lora_split_names(list) : NULL;
}

void
rp_lora_clear(RpLora *lora)
{
    g_clear_pointer(&lora->targets, g_strfreev);
    g_clear_pointer(&lora->saved, g_strfreev);
    g_clear_pointer(&lora->ranks, rp_lora_patterns_free);
    g_clear_pointer(&lora->alphas, rp_lora_patterns_free);
}

/* Whether @expression, with @before in front of it, matches all of @module. */
static gboolean
matches(const char *before, const char *expression, const char *module)
{
    g_autofree char *whole = g_strdup_printf("\\A(?:%s(?:%s))\\z", before, expression);
    g_autoptr(GRegex) regex = g_regex_new(whole, 0, 0, NULL);

    return regex != NULL && g_regex_match(regex, module, 0, NULL);
}

static double
value_of(const RpLoraPattern *patterns, const char *module, double otherwise)
{
    for (; patterns != NULL && patterns->pattern != NULL; patterns++)
        if (matches("(?:.*\\.)?", patterns->pattern, module))
            return patterns->value;
    return otherwise;
}

guint
rp_lora_rank(const RpLora *lora, const char *module)
{
    return (guint)value_of(lora->ranks, module, lora->rank);
}

double
rp_lora_scale(const RpLora *lora, const char *module)
{
    const double rank = rp_lora_rank(lora, module);

    return value_of(lora->alphas, module, lora->alpha) / (lora->rslora ? sqrt(rank) : rank);
}

static gboolean
is_of(const char *name, const char *module)
{
    const gsize n = strlen(name), all = strlen(module);

    if (g_str_has_prefix(name, RP_LORA_REGEX))
        return matches("", name + strlen(RP_LORA_REGEX), module);
    if (strpbrk(name, "*?") != NULL)
        return g_pattern_match_simple(name, module);
    return n <= all && strcmp(module + all - n, name) == 0 &&
           (n == all || module[all - n - 1] == '.');
}

gboolean
rp_lora_names_module(char *const *names, const char *module)
{
    for (; names != NULL && *names != NULL; names++)
        if (is_of(*names, module))
            return TRUE;
    return FALSE;
}
