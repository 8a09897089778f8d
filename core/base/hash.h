/**
 * Fingerprints of much data at the speed of memory.
 */
#pragma once

#include <glib.h>

/**
 * rp_hash64:
 *
 * Distinguishes files; no secret and no signature. One changed bit changes about half of the
 * result.
 *
 * Source: XXH64 of Yann Collet's xxHash (github.com/Cyan4973/xxHash, doc/xxhash_spec.md)
 */
guint64 rp_hash64(const void *bytes, gsize length, guint64 seed);
