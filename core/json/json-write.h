/**
 * Writes JSON text value by value. Objects give their values keys, arrays %NULL.
 *
 *   g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);
 *   rp_json_object(json, NULL);              {
 *   rp_json_int(json, "gpus", 8);              "gpus": 8,
 *   rp_json_array(json, "block_ms");           "block_ms": [7.4, 7.0]
 *   rp_json_number(json, NULL, 7.4);         }
 *   rp_json_number(json, NULL, 7.0);
 *   rp_json_end(json);
 *   rp_json_end(json);
 */
#pragma once

#include <glib.h>

typedef enum {
    RP_JSON_COMPACT, /* {"a":1,"b":[1,2]} */
    RP_JSON_SPACED,  /* {"a": 1, "b": [1, 2]} */
    RP_JSON_PADDED,  /* { "a": 1, "b": [1, 2] } */
    RP_JSON_LINES    /* a line each: members of objects, objects and arrays in arrays */
} RpJsonLayout;

typedef struct _RpJsonWriter RpJsonWriter;

/* @layout: for all objects and arrays, unless they are given one of their own */
RpJsonWriter *rp_json_writer_new(RpJsonLayout layout);
void rp_json_writer_free(RpJsonWriter *json);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpJsonWriter, rp_json_writer_free)
/* So far. Between two outermost values it may be changed: flushed, or bytes put in between. */
GString *rp_json_writer_text(RpJsonWriter *json);
/* Frees @json. (transfer full) */
char *rp_json_writer_finish(RpJsonWriter *json);
/* The text with all that is open closed, as a file that may be the last one needs it; @json stays as it is.
 * @unfinished: (nullable): a key that the outermost object gets, with false behind it. (transfer full) */
char *rp_json_writer_so_far(const RpJsonWriter *json, const char *unfinished);

void rp_json_object(RpJsonWriter *json, const char *key);
void rp_json_array(RpJsonWriter *json, const char *key);
/* @layout: also of all that is in it */
void rp_json_object_as(RpJsonWriter *json, const char *key, RpJsonLayout layout);
/* Closes the innermost. The outermost, if in lines, ends in a newline. */
void rp_json_end(RpJsonWriter *json);
/* The next value starts a line, whatever the layout. */
void rp_json_break(RpJsonWriter *json);

/* null if @value is %NULL. Control characters are escaped, all other text stays. */
void rp_json_string(RpJsonWriter *json, const char *key, const char *value);
/* Text of @length bytes, which may have a NUL in it. */
void rp_json_bytes(RpJsonWriter *json, const char *key, const char *value, gsize length);
void rp_json_int(RpJsonWriter *json, const char *key, gint64 value);
void rp_json_uint(RpJsonWriter *json, const char *key, guint64 value);
void rp_json_bool(RpJsonWriter *json, const char *key, gboolean value);
void rp_json_null(RpJsonWriter *json, const char *key);
/* The fewest digits that read back as the same double, ".0" behind a whole number, an exponent from
 * 1e15 on. null if @value is not finite: JSON has no such number. */
void rp_json_number(RpJsonWriter *json, const char *key, double value);
/* @value rounded to @decimals. */
void rp_json_double(RpJsonWriter *json, const char *key, double value, guint decimals);
/* @value x 10^-@decimals, exactly; zeros at the end are left out but for @least decimals. */
void rp_json_decimal(RpJsonWriter *json, const char *key, gint64 value, guint decimals,
                     guint least);
/* @value is JSON. */
void rp_json_raw(RpJsonWriter *json, const char *key, const char *value);

/* The nearest double with @decimals. */
double rp_json_round(double value, guint decimals);
/* As rp_json_number(), finite, with an exponent from 10^@digits on. */
void rp_json_append_number(GString *text, double value, guint digits);
