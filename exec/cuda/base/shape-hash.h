/* Keys of tables by shape: structs without gaps, made of zeros first, taken as bytes. */
#pragma once

#include <glib.h>
#include <stddef.h>

/* FNV-1a */
static inline guint
rp_shape_hash(gconstpointer key, size_t n_bytes)
{
    const guint8 *bytes = key;
    guint32 hash = 2166136261u;

    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}
