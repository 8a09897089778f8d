/**
 * Cuts backward of attention by cuDNN where its dS is too large: cuDNN keeps that whole, two
 * bytes for each query, key and query head, while it runs. So it runs several times, each time over
 * as much as fits; the parts are equal, so that one plan does them all.
 *
 *   what fits                          a part
 *   a group of one sequence, or more   whole sequences x whole groups
 *   a query head of one sequence       query heads of one group, a slice: its dk and dv are those
 * of its own heads, and are to be added to the other slices'
 *
 * A group is a kv head and the query heads that read it. Arithmetic alone.
 */
#pragma once

#include <glib.h>

typedef struct {
    size_t sequences, heads, kv_heads; /* kv_heads divides heads; none is 0 */
} RpAttentionSize;

typedef struct {
    RpAttentionSize whole, part;
    size_t count;  /* number of parts */
    size_t slices; /* slices of a group, one after another; 1: parts have whole groups */
} RpAttentionParts;

/* First elements of a part. */
typedef struct {
    size_t sequence, head, kv_head;
    size_t slice; /* number within its group, < slices */
} RpAttentionPlace;

/* Bytes of dS of one query head of one sequence: both its sides to 128. @length: at most 2^31 */
size_t rp_attention_head_ds(size_t length);

/**
 * rp_attention_parts_choose:
 * @most_heads: query heads that a part may have, those of each sequence counted
 * @parts: (out): set on success only
 *
 * The largest parts; of those that are as large, the ones of fewest sequences.
 *
 * Returns: FALSE if not even one head may be had
 */
gboolean rp_attention_parts_choose(const RpAttentionSize *whole, size_t most_heads,
                                   RpAttentionParts *parts) G_GNUC_WARN_UNUSED_RESULT;

/* @i: < count. Slices of a group follow one another. */
RpAttentionPlace rp_attention_parts_place(const RpAttentionParts *parts, size_t i);
