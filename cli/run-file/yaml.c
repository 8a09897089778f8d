/* Run files: what a text sets, with the line and column of everything. */
#include <string.h>
#include <yaml.h>

#include "cli/run-file/private.h"
#include "cli/run-file/run-file.h"
#include "core/base/quote.h"

#define MAX_DEPTH 16u

typedef struct {
    RpRunEntries *entries;
    const char *name; /* %NULL: defaults */
    yaml_document_t *document;
    GHashTable *seen; /* keys of this text -> line + 1 */
} Reader;

static char *
place_of(const Reader *reader, const yaml_node_t *node)
{
    g_autofree char *name = NULL;

    if (reader->name == NULL)
        return NULL;
    name = rp_display_name(reader->name);
    return g_strdup_printf("%s: line %zu, column %zu", name, node->start_mark.line + 1,
                           node->start_mark.column + 1);
}

static void
fail_at(const Reader *reader, const yaml_node_t *node, const char *key, int code, GError **error,
        const char *message)
{
    g_autofree char *place = place_of(reader, node);

    g_set_error(error, RP_RUN_FILE_ERROR, code, "%s: %s%s%s", place != NULL ? place : "defaults",
                key, *key != '\0' ? ": " : "", message);
}

static gboolean
is_null(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           rp_run_text_is_null((const char *)node->data.scalar.value);
}

/* The text of a scalar; %NULL if it cannot stand on one line. */
static const char *
scalar_text(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;

    if (strlen(text) != node->data.scalar.length || !g_utf8_validate(text, -1, NULL))
        return NULL;
    for (const char *p = text; *p != '\0'; p = g_utf8_next_char(p))
        if (g_unichar_iscntrl(g_utf8_get_char(p)))
            return NULL;
    return text;
}

/* [3, 3, 2] where 3,3,2 is expected. Returns: (transfer full) (nullable) */
static char *
join_sequence(const Reader *reader, const yaml_node_t *node)
{
    g_autoptr(GString) text = g_string_new(NULL);
    const yaml_node_item_t *item = node->data.sequence.items.start;

    for (; item < node->data.sequence.items.top; item++) {
        const yaml_node_t *part = yaml_document_get_node(reader->document, *item);

        if (part == NULL || part->type != YAML_SCALAR_NODE || scalar_text(part) == NULL)
            return NULL;
        g_string_append_printf(text, "%s%s", text->len > 0 ? "," : "", scalar_text(part));
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static gboolean
read_value(const Reader *reader, RpRunEntry *entry, const yaml_node_t *node, GError **error)
{
    g_autofree char *place = place_of(reader, node);
    g_autofree char *joined = NULL;
    const char *text = NULL;

    if (is_null(node))
        return TRUE;
    if (node->type == YAML_SEQUENCE_NODE && g_str_has_suffix(entry->key, "stages"))
        text = joined = join_sequence(reader, node);
    else if (node->type == YAML_SCALAR_NODE)
        text = scalar_text(node);
    if (text != NULL) {
        rp_run_entry_set(entry, text, place, FALSE);
        return TRUE;
    }
    fail_at(reader, node, entry->key, RP_RUN_FILE_ERROR_VALUE, error,
            node->type == YAML_SCALAR_NODE ? "expected one line of text, found control characters"
            : node->type == YAML_MAPPING_NODE ? "expected a value, found keys"
                                              : "expected a value, found a list");
    return FALSE;
}

static gboolean
note_key(const Reader *reader, const yaml_node_t *node, const char *key, GError **error)
{
    gpointer before = g_hash_table_lookup(reader->seen, key);

    if (before != NULL) {
        g_autofree char *message = g_strdup_printf("expected once, found again (first on line %u)",
                                                   GPOINTER_TO_UINT(before));

        fail_at(reader, node, key, RP_RUN_FILE_ERROR_KEY, error, message);
        return FALSE;
    }
    g_hash_table_insert(reader->seen, g_strdup(key),
                        GUINT_TO_POINTER((guint)node->start_mark.line + 1));
    return TRUE;
}

static gboolean
read_mapping(const Reader *reader, const char *prefix, const yaml_node_t *mapping, GError **error)
{
    const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;

    for (; pair < mapping->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(reader->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(reader->document, pair->value);

        if (name->type != YAML_SCALAR_NODE || scalar_text(name) == NULL) {
            fail_at(reader, name, "", RP_RUN_FILE_ERROR_SYNTAX, error,
                    "expected the name of a key, found something else");
            return FALSE;
        }
        g_autofree char *key = g_strconcat(prefix, scalar_text(name), NULL);
        RpRunEntry *entry = rp_run_entries_find(reader->entries, key);
        gboolean group =
            entry == NULL && *prefix == '\0' && rp_run_entries_is_group(reader->entries, key);

        if (entry == NULL && !group) {
            g_autofree char *place = place_of(reader, name);

            rp_run_entries_fail_unknown(reader->entries, place != NULL ? place : "defaults", key,
                                        RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_KEY, error);
            return FALSE;
        }
        if (!note_key(reader, name, key, error))
            return FALSE;
        if (!group) {
            if (!read_value(reader, entry, value, error))
                return FALSE;
            continue;
        }
        g_autofree char *inner = g_strconcat(key, ".", NULL);

        if (is_null(value))
            continue;
        if (value->type != YAML_MAPPING_NODE) {
            fail_at(reader, value, key, RP_RUN_FILE_ERROR_VALUE, error,
                    "expected keys of its own, found a value");
            return FALSE;
        }
        if (!read_mapping(reader, inner, value, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
fail_syntax(const yaml_parser_t *parser, const char *name, GError **error)
{
    g_autofree char *shown = rp_display_name(name != NULL ? name : "defaults");
    const char *problem = parser->problem != NULL ? parser->problem : "cannot be read";

    if (parser->error == YAML_READER_ERROR)
        g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_SYNTAX,
                    "%s: byte %zu: expected YAML, found: %s", shown, parser->problem_offset,
                    problem);
    else
        g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_SYNTAX,
                    "%s: line %zu, column %zu: expected YAML, found: %s", shown,
                    parser->problem_mark.line + 1, parser->problem_mark.column + 1, problem);
    return FALSE;
}

static gboolean
read_document(Reader *reader, GError **error)
{
    const yaml_node_t *root = yaml_document_get_root_node(reader->document);

    if (root == NULL || is_null(root)) {
        g_autofree char *shown = rp_display_name(reader->name != NULL ? reader->name : "defaults");

        g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_SYNTAX,
                    "%s: expected keys such as \"model: DIRECTORY\", found nothing", shown);
        return FALSE;
    }
    if (root->type == YAML_MAPPING_NODE)
        return read_mapping(reader, "", root, error);
    fail_at(reader, root, "", RP_RUN_FILE_ERROR_SYNTAX, error,
            "expected keys such as \"model: DIRECTORY\", found something else");
    return FALSE;
}

/* Nothing may follow the first document. */
static gboolean
read_end(yaml_parser_t *parser, const char *name, GError **error)
{
    yaml_document_t more;
    gboolean ended = FALSE;

    if (!yaml_parser_load(parser, &more))
        return fail_syntax(parser, name, error);
    ended = yaml_document_get_root_node(&more) == NULL;
    if (!ended) {
        g_autofree char *shown = rp_display_name(name != NULL ? name : "defaults");

        g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_SYNTAX,
                    "%s: line %zu: expected one document, found a second", shown,
                    more.start_mark.line + 1);
    }
    yaml_document_delete(&more);
    return ended;
}

/* A run file needs 3 levels; what libyaml does with many takes time with their square. */
static gboolean
check_depth(const char *name, const char *text, gsize length, GError **error)
{
    yaml_parser_t parser;
    yaml_event_t event;
    gboolean ended = FALSE;
    guint depth = 0;

    if (!yaml_parser_initialize(&parser))
        g_error("out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    while (!ended && depth <= MAX_DEPTH && yaml_parser_parse(&parser, &event)) {
        ended = event.type == YAML_STREAM_END_EVENT; /* after an error: said when it is loaded */
        if (event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT)
            depth++;
        else if (event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT)
            depth--;
        if (depth > MAX_DEPTH) {
            g_autofree char *shown = rp_display_name(name != NULL ? name : "defaults");

            g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_SYNTAX,
                        "%s: line %zu, column %zu: expected at most %u levels, found more", shown,
                        event.start_mark.line + 1, event.start_mark.column + 1, MAX_DEPTH);
        }
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return depth <= MAX_DEPTH;
}

gboolean
rp_run_entries_read(RpRunEntries *entries, const char *name, const char *text, gsize length,
                    GError **error)
{
    yaml_parser_t parser;
    yaml_document_t document;
    gboolean read = FALSE;

    if (!check_depth(name, text, length, error))
        return FALSE;
    if (!yaml_parser_initialize(&parser))
        g_error("out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    if (!yaml_parser_load(&parser, &document)) {
        fail_syntax(&parser, name, error);
    } else {
        g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
        Reader reader = {entries, name, &document, seen};

        read = read_document(&reader, error) && read_end(&parser, name, error);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    return read;
}
