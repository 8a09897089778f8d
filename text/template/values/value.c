#include "text/template/values/value.h"

#include <math.h>
#include <string.h>

#define LEAST_CHUNK 8192
#define MOST_CHUNK (1 << 20)
#define FEW_PAIRS 8 /* are found one by one */

struct _RpArena {
    GPtrArray *chunks;
    char *at;
    gsize left; /* in the last chunk */
    gsize used;
    gsize max_bytes;
    guint64 steps;
    guint64 max_steps;
    guint levels;
    gboolean too_deep;
};

const RpValue rp_none = {RP_VALUE_NONE, 0, {0}};
const RpValue rp_true = {RP_VALUE_BOOLEAN, 0, {.boolean = TRUE}};
const RpValue rp_false = {RP_VALUE_BOOLEAN, 0, {.boolean = FALSE}};

RpArena *
rp_arena_new(gsize max_bytes, guint64 max_steps)
{
    RpArena *arena = g_new0(RpArena, 1);

    arena->chunks = g_ptr_array_new_with_free_func(g_free);
    arena->max_bytes = max_bytes;
    arena->max_steps = max_steps;
    return arena;
}

void
rp_arena_free(RpArena *arena)
{
    if (arena == NULL)
        return;
    g_ptr_array_free(arena->chunks, TRUE);
    g_free(arena);
}

gpointer
rp_arena_alloc(RpArena *arena, gsize bytes)
{
    gsize rounded = (MAX(bytes, 1) + 15) & ~(gsize)15;

    if (rounded > arena->left) {
        gsize chunk = MAX(rounded, CLAMP(arena->used, LEAST_CHUNK, MOST_CHUNK));
        char *start = g_malloc0(chunk);
        g_ptr_array_add(arena->chunks, start);
        arena->used += chunk;
        if (rounded == chunk)
            return start; /* the chunk before keeps its rest for the next one */
        arena->at = start;
        arena->left = chunk;
    }
    gpointer place = arena->at;
    arena->at += rounded;
    arena->left -= rounded;
    return place;
}

gboolean
rp_arena_has_space(const RpArena *arena, gsize bytes)
{
    return arena->used <= arena->max_bytes && bytes <= arena->max_bytes - arena->used;
}

gboolean
rp_arena_charge(RpArena *arena, guint64 steps)
{
    arena->steps += MIN(steps, arena->max_steps + 1);
    return arena->steps <= arena->max_steps && arena->used <= arena->max_bytes && !arena->too_deep;
}

gboolean
rp_arena_enter(RpArena *arena)
{
    arena->too_deep |= ++arena->levels > RP_ARENA_MAX_LEVELS;
    return rp_arena_charge(arena, 1);
}

void
rp_arena_leave(RpArena *arena)
{
    arena->levels--;
}

char *
rp_arena_bound(const RpArena *arena)
{
    if (arena->too_deep)
        return g_strdup(G_STRINGIFY(RP_ARENA_MAX_LEVELS) " levels");
    if (arena->steps > arena->max_steps)
        return g_strdup_printf("%" G_GUINT64_FORMAT " steps", arena->max_steps);
    return g_strdup_printf("%" G_GSIZE_FORMAT " MiB of memory", arena->max_bytes >> 20);
}

RpValue
rp_value_static(const char *text)
{
    return rp_value_text(text, strlen(text));
}

RpValue
rp_value_copy(RpArena *arena, const char *text, gsize length)
{
    char *copy = rp_arena_alloc(arena, length);

    if (length > 0)
        memcpy(copy, text, length);
    return rp_value_text(copy, length);
}

RpValue
rp_value_undefined(const char *name, gsize length)
{
    return (RpValue){RP_VALUE_UNDEFINED, (guint)length, {.text = name}};
}

RpValue
rp_value_list(RpList *list)
{
    return (RpValue){RP_VALUE_LIST, 0, {.list = list}};
}

RpValue
rp_value_dict(RpDict *dict)
{
    return (RpValue){RP_VALUE_DICT, 0, {.dict = dict}};
}

RpValue
rp_value_tuple(RpList *list)
{
    return (RpValue){RP_VALUE_TUPLE, 0, {.list = list}};
}

RpList *
rp_list_new(RpArena *arena, guint capacity)
{
    RpList *list = rp_arena_alloc(arena, sizeof *list);

    if (capacity > 0)
        list->items = rp_arena_alloc(arena, capacity * sizeof *list->items);
    list->capacity = capacity;
    return list;
}

/* Doubles the capacity; the old memory stays until the arena ends. */
static gpointer
grown(RpArena *arena, gconstpointer items, guint *capacity, gsize size)
{
    guint wider = MAX(4, *capacity * 2);
    gpointer space = rp_arena_alloc(arena, wider * size);

    if (*capacity > 0)
        memcpy(space, items, *capacity * size);
    *capacity = wider;
    return space;
}

void
rp_list_append(RpArena *arena, RpList *list, RpValue item)
{
    if (list->length == list->capacity)
        list->items = grown(arena, list->items, &list->capacity, sizeof item);
    list->items[list->length++] = item;
}

RpDict *
rp_dict_new(RpArena *arena)
{
    return rp_arena_alloc(arena, sizeof(RpDict));
}

gboolean
rp_value_to_number(RpValue value, double *number)
{
    if (value.type == RP_VALUE_FLOAT)
        *number = value.number;
    else if (value.type == RP_VALUE_INTEGER)
        *number = (double)value.integer;
    else if (value.type == RP_VALUE_BOOLEAN)
        *number = value.boolean;
    else
        return FALSE;
    return TRUE;
}

gboolean
rp_value_is_key(RpValue value)
{
    return value.type >= RP_VALUE_NONE && value.type <= RP_VALUE_STRING;
}

static gboolean
same_key(RpValue a, RpValue b)
{
    double x = 0.0, y = 0.0;

    if (a.type == RP_VALUE_STRING || b.type == RP_VALUE_STRING)
        return a.type == b.type && a.length == b.length &&
               (a.length == 0 || memcmp(a.text, b.text, a.length) == 0);
    if (a.type == RP_VALUE_INTEGER && b.type == RP_VALUE_INTEGER)
        return a.integer == b.integer;
    if (rp_value_to_number(a, &x) && rp_value_to_number(b, &y))
        return x == y;
    return a.type == b.type;
}

static guint
hash_of(RpValue key)
{
    double number = 0.0;
    guint hash = 5381;

    if (key.type == RP_VALUE_STRING) {
        for (guint i = 0; i < key.length; i++)
            hash = hash * 33 + (guchar)key.text[i];
        return hash ^ hash >> 15;
    }
    return rp_value_to_number(key, &number) ? g_double_hash(&number) : 0;
}

/* The slot of @key, or the empty one where it would stand. */
static guint *
slot_of(const RpDict *dict, RpValue key)
{
    guint at = hash_of(key) & (dict->n_slots - 1);

    while (dict->slots[at] != 0 && !same_key(dict->pairs[dict->slots[at] - 1].key, key))
        at = (at + 1) & (dict->n_slots - 1);
    return &dict->slots[at];
}

RpValue *
rp_dict_find(const RpDict *dict, RpValue key)
{
    if (dict->n_slots > 0) {
        guint slot = *slot_of(dict, key);
        return slot == 0 ? NULL : &dict->pairs[slot - 1].value;
    }
    for (guint i = 0; i < dict->length; i++)
        if (same_key(dict->pairs[i].key, key))
            return &dict->pairs[i].value;
    return NULL;
}

RpValue *
rp_dict_get(const RpDict *dict, const char *key)
{
    return rp_dict_find(dict, rp_value_static(key));
}

void
rp_dict_set(RpArena *arena, RpDict *dict, RpValue key, RpValue value)
{
    RpValue *there = rp_dict_find(dict, key);

    if (there != NULL) {
        *there = value;
        return;
    }
    if (dict->length == dict->capacity)
        dict->pairs = grown(arena, dict->pairs, &dict->capacity, sizeof *dict->pairs);
    dict->pairs[dict->length++] = (RpPair){key, value};
    if (dict->length <= FEW_PAIRS)
        return;
    if (dict->length * 2 <= dict->n_slots) {
        *slot_of(dict, key) = dict->length;
        return;
    }
    dict->n_slots = MAX(4 * FEW_PAIRS, dict->n_slots * 2);
    dict->slots = rp_arena_alloc(arena, dict->n_slots * sizeof *dict->slots);
    for (guint i = 0; i < dict->length; i++)
        *slot_of(dict, dict->pairs[i].key) = i + 1;
}

void
rp_dict_put(RpArena *arena, RpDict *dict, const char *key, RpValue value)
{
    rp_dict_set(arena, dict, rp_value_static(key), value);
}

RpDict *
rp_dict_copy(RpArena *arena, const RpDict *dict)
{
    RpDict *copy = rp_dict_new(arena);

    for (guint i = 0; i < dict->length; i++)
        rp_dict_set(arena, copy, dict->pairs[i].key, dict->pairs[i].value);
    return copy;
}

RpList *
rp_dict_pairs(RpArena *arena, const RpDict *dict)
{
    RpList *pairs = rp_list_new(arena, dict->length);

    for (guint i = 0; i < dict->length; i++) {
        RpList *pair = rp_list_new(arena, 2);
        rp_list_append(arena, pair, dict->pairs[i].key);
        rp_list_append(arena, pair, dict->pairs[i].value);
        rp_list_append(arena, pairs, rp_value_tuple(pair));
    }
    return pairs;
}

gboolean
rp_value_is_text(RpValue value, const char *text)
{
    return value.type == RP_VALUE_STRING && value.length == strlen(text) &&
           memcmp(value.text, text, value.length) == 0;
}

gboolean
rp_value_is_true(RpValue value)
{
    const gboolean list = value.type == RP_VALUE_LIST || value.type == RP_VALUE_TUPLE;

    return list                             ? value.list->length > 0
           : value.type == RP_VALUE_BOOLEAN ? value.boolean
           : value.type == RP_VALUE_INTEGER ? value.integer != 0
           : value.type == RP_VALUE_FLOAT   ? value.number != 0.0
           : value.type == RP_VALUE_STRING  ? value.length > 0
           : value.type == RP_VALUE_DICT    ? value.dict->length > 0
                                            : value.type > RP_VALUE_NONE;
}

const char *
rp_value_type_name(RpValue value)
{
    static const char *const names[] = {"nothing (undefined)",
                                        "none",
                                        "a boolean",
                                        "an integer",
                                        "a float",
                                        "a string",
                                        "a list",
                                        "a tuple",
                                        "a generator",
                                        "a dict",
                                        "a namespace",
                                        "a function",
                                        "a loop"};

    return names[value.type];
}

static gboolean
same_items(RpArena *arena, const RpList *a, const RpList *b)
{
    gboolean same = a->length == b->length;

    for (guint i = 0; same && i < a->length; i++)
        same = rp_value_equal(arena, a->items[i], b->items[i]);
    return same;
}

static gboolean
same_value(RpArena *arena, RpValue a, RpValue b)
{
    gboolean same = TRUE;

    if (rp_value_is_key(a) && rp_value_is_key(b))
        return same_key(a, b) && !(a.type == RP_VALUE_FLOAT && isnan(a.number));
    if (a.type != b.type)
        return FALSE;
    switch (a.type) {
    case RP_VALUE_UNDEFINED:
        return TRUE;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
        return a.list == b.list || same_items(arena, a.list, b.list);
    case RP_VALUE_DICT:
        same = a.dict->length == b.dict->length;
        for (guint i = 0; same && i < a.dict->length && a.dict != b.dict; i++) {
            const RpValue *other = rp_dict_find(b.dict, a.dict->pairs[i].key);
            same = other != NULL && rp_value_equal(arena, a.dict->pairs[i].value, *other);
        }
        return same;
    default:
        return a.other == b.other;
    }
}

gboolean
rp_value_equal(RpArena *arena, RpValue a, RpValue b)
{
    gboolean same = rp_arena_enter(arena) &&
                    rp_arena_charge(arena, a.type == RP_VALUE_STRING ? a.length / 256 : 0) &&
                    same_value(arena, a, b);

    rp_arena_leave(arena);
    return same;
}
