#include "tests/json-tree.h"

#include <string.h>

void
rp_tree_free(RpTree *tree)
{
    if (tree == NULL)
        return;
    g_ptr_array_unref(tree->items);
    g_free(tree->key);
    g_free(tree->text);
    g_free(tree);
}

static RpTree *
read_value(RpJsonPull *pull, const char *key)
{
    g_autoptr(GString) text = g_string_new(NULL);
    RpTree *tree = g_new0(RpTree, 1);
    gboolean is_true = FALSE;

    tree->type = rp_json_pull_peek(pull);
    tree->key = g_strdup(key);
    tree->items = g_ptr_array_new_with_free_func((GDestroyNotify)rp_tree_free);
    const char *start = pull->at;
    if (tree->type == RP_JSON_OBJECT && rp_json_pull_enter_object(pull)) {
        while (rp_json_pull_next_key(pull, text))
            g_ptr_array_add(tree->items, read_value(pull, text->str));
    } else if (tree->type == RP_JSON_ARRAY && rp_json_pull_enter_array(pull)) {
        while (rp_json_pull_next_element(pull))
            g_ptr_array_add(tree->items, read_value(pull, NULL));
    } else if (tree->type == RP_JSON_STRING) {
        (void)rp_json_pull_string(pull, text);
        tree->text = g_strdup(text->str);
        return tree;
    } else if (tree->type == RP_JSON_NUMBER) {
        (void)rp_json_pull_number(pull, &tree->number);
    } else if (tree->type == RP_JSON_BOOLEAN) {
        (void)rp_json_pull_boolean(pull, &is_true);
        tree->number = is_true;
    } else {
        (void)rp_json_pull_null(pull);
    }
    tree->text = g_strndup(start, (gsize)(pull->at - start));
    return tree;
}

RpTree *
rp_tree_parse(const char *text)
{
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, "", text, strlen(text), 0, 0, NULL))
        return NULL;
    g_autoptr(RpTree) tree = read_value(&pull, NULL);
    return rp_json_pull_end(&pull) ? g_steal_pointer(&tree) : NULL;
}

const RpTree *
rp_tree_nth(const RpTree *tree, guint index)
{
    g_assert(index < tree->items->len);
    return g_ptr_array_index(tree->items, index);
}

const RpTree *
rp_tree_find(const RpTree *tree, const char *path)
{
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);

    for (char **key = keys; *key != NULL && tree != NULL; key++) {
        const RpTree *found = NULL;
        for (guint i = 0; i < tree->items->len && found == NULL; i++) {
            const RpTree *item = rp_tree_nth(tree, i);
            if (item->key != NULL ? strcmp(item->key, *key) == 0
                                  : g_ascii_strtoull(*key, NULL, 10) == i)
                found = item;
        }
        tree = found;
    }
    return tree;
}
