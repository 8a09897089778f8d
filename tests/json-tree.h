/**
 * JSON as a tree, for what a test asks of it: the project itself reads without one.
 */
#pragma once

#include "core/json/json-pull.h"

typedef struct _RpTree RpTree;

struct _RpTree {
    RpJsonType type;
    char *key;        /* in an object */
    char *text;       /* of a string, else as it stands in the file */
    double number;    /* 1 = true */
    GPtrArray *items; /* of an object or an array, in their order; else empty */
};

/* %NULL if it is not JSON. */
RpTree *rp_tree_parse(const char *text);
void rp_tree_free(RpTree *tree);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTree, rp_tree_free)

/* By its path, `bubble.fill` or `rows.3.schedule`; %NULL if there is none. */
const RpTree *rp_tree_find(const RpTree *tree, const char *path);
/* @index: less than the number of items */
const RpTree *rp_tree_nth(const RpTree *tree, guint index);
