/**
 * One JSON object into one struct, by a table with a row a key.
 *
 *   static const RpJsonField fields[] = {
 *       {"gpus", rp_json_read_count, G_STRUCT_OFFSET(Machine, gpus), .min = 1, .max = 4096},
 *       {"name", rp_json_read_text, G_STRUCT_OFFSET(Machine, name), .max = 128, .required = TRUE},
 *   };
 *   rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), &machine, NULL)
 *
 * Keys come in any order, each at most once, and no others, unless the last row has no key: it reads
 * all that the others do not, and finds the key in pull->key. A key that is not there leaves its
 * member alone.
 */
#pragma once

#include "core/json/json-pull.h"

#define RP_JSON_MAX_FIELDS 128

typedef struct _RpJsonField RpJsonField;

/* Reads the value that stands next into @value, the row's member of the struct. */
typedef gboolean (*RpJsonRead)(RpJsonPull *pull, const RpJsonField *field, gpointer value);

struct _RpJsonField {
    const char *key; /* %NULL: any other */
    RpJsonRead read;
    gsize offset; /* offset of the member; 0 also if @read writes several */
    gboolean required;
    gboolean null_is_absent;
    double min;                 /* least number */
    double max;                 /* greatest number; most bytes of a text */
    const char *expected;       /* (nullable): for messages, instead of the bounds */
    const char *const *choices; /* (nullable): the only texts, NULL behind the last */
    const char *note;           /* (nullable): for @read */
    const RpJsonField *fields;  /* fields of an object within, see RP_JSON_NESTED */
    guint n_fields;
};

/* Where an object's values stand in the text. */
typedef struct {
    const RpJsonField *fields;
    guint n_fields;
    const char *start;                  /* start of the object */
    const char *at[RP_JSON_MAX_FIELDS]; /* [row] its value; NULL if it is not there */
} RpJsonRecord;

/**
 * rp_json_read_record:
 * @fields: (array length=n_fields): at most RP_JSON_MAX_FIELDS
 * @data: the struct
 * @record: (nullable) (out): for the functions below
 *
 * Errors: those of @pull; an unknown key suggests the nearest of the table
 */
gboolean rp_json_read_record(RpJsonPull *pull, const RpJsonField *fields, guint n_fields,
                             gpointer data, RpJsonRecord *record);
/* Where the value of @key stands; NULL if it is not there. */
const char *rp_json_record_at(const RpJsonRecord *record, const char *key);
/* Refuses the value of @key, or its absence. Returns FALSE. */
gboolean rp_json_record_fail(const RpJsonRecord *record, RpJsonPull *pull, const char *key,
                             const char *expected);

/* Rows' readers. A double, a guint and a guint64 from min to max; whole numbers may have a fraction
 * of zeros or an exponent, as Python writes them. */
gboolean rp_json_read_number(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_json_read_count(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_json_read_size(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* A guint and a guint64 in digits only, from min to max or, if that is 0, all that fit. */
gboolean rp_json_read_uint(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_json_read_uint64(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_json_read_boolean(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* One line of text of min to max bytes, one of the choices: each frees and replaces a char *. */
gboolean rp_json_read_text(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_json_read_choice(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* Any text, likewise. */
gboolean rp_json_read_string(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* An object with a table of its own, read into the same struct from the row's offset on; for a row
 * it is RP_JSON_NESTED(fields). */
gboolean rp_json_read_nested(RpJsonPull *pull, const RpJsonField *field, gpointer value);
#define RP_JSON_NESTED(table) rp_json_read_nested, .fields = table, .n_fields = G_N_ELEMENTS(table)
/* The index of the choice, into a guint; or into nothing. */
gboolean rp_json_read_choice_index(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_json_read_constant(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* Each element of an array by @read, all into @value. */
gboolean rp_json_read_each(RpJsonPull *pull, const RpJsonField *field, RpJsonRead read,
                           gpointer value);
/* Any value. */
gboolean rp_json_read_ignored(RpJsonPull *pull, const RpJsonField *field, gpointer value);
