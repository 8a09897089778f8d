/**
 * The settings of a run, a row each: run files, --set, `train --keys` and --help, messages and the
 * table of docs/train.md go by it.
 */
#pragma once

#include <glib.h>

#include "core/base/quote.h"
#include "core/plan/planner.h"

/* Errors in the description of a run. */
#define RP_RUN_ERROR (rp_run_error_quark())
GQuark rp_run_error_quark(void);
typedef enum {
    RP_RUN_ERROR_SYNTAX, /* not YAML, or not a mapping */
    RP_RUN_ERROR_KEY,    /* unknown, twice, or missing */
    RP_RUN_ERROR_VALUE,  /* of the wrong type, or out of range */
    RP_RUN_ERROR_USAGE,  /* any of these on the command line */
    /* what helps against these is worded by whoever tells it; but the last, of the output directory */
    RP_RUN_ERROR_BUSY,          /* another run writes there */
    RP_RUN_ERROR_CHECKPOINT,    /* one is there, and the run would not go on from it */
    RP_RUN_ERROR_OVERWRITTEN,   /* a file of others would be */
    RP_RUN_ERROR_NO_CHECKPOINT, /* to go on from */
    RP_RUN_ERROR_NO_MODEL       /* whose tokenizer is needed */
} RpRunError;

#define RP_SETTING_MAX_TEXT 4096 /* bytes */

/* The kind of a value, and the type of its field in RpRunSpec. */
typedef enum {
    RP_SETTING_TEXT,     /* char *: 1 to RP_SETTING_MAX_TEXT bytes */
    RP_SETTING_STAGES,   /* char *: the same; a list in YAML becomes one */
    RP_SETTING_WHOLE,    /* gint64: in a range, or one of the choices */
    RP_SETTING_NUMBER,   /* double: in a range */
    RP_SETTING_BYTES,    /* guint64: a size with a unit */
    RP_SETTING_CHOICE,   /* int: one of the choices */
    RP_SETTING_SCHEDULE, /* const char *: the name of a schedule that is trained */
} RpSettingType;

typedef struct {
    const char *name;
    int value;
} RpSettingChoice;

typedef struct {
    const char *key; /* "optimizer.learning_rate" */
    RpSettingType type;
    gsize offset;        /* of the field in RpRunSpec */
    const char *initial; /* the default, as it would be written; %NULL: none */
    gboolean required;   /* has no default and must be given */
    gboolean expert;     /* stands behind the common ones where people read */
    double least;        /* numbers */
    double most;
    gboolean below;                 /* less than @most, not equal to it */
    const RpSettingChoice *choices; /* up to one without a name */
    const RpSettingChoice *parts; /* of a choice: a list of these names, as a,b, is one, too: their
                                       values or-ed together */
    const char *unset;            /* what holds where nothing is given, if that is something */
    const char *others;           /* what other tools call it: words with spaces between */
    const char *flag; /* the option of commands, where messages name another than the key's */
    const char *help; /* one line */
} RpSetting;

/* Values of `recompute`: when it may begin (RpRecompute), and what is saved instead (RpSaveChoice). */
#define RP_SETTING_RECOMPUTE(start, save) ((int)RP_RECOMPUTE_##start + 4 * (int)RP_SAVE_##save)
#define RP_SETTING_RECOMPUTE_START(value) ((RpRecompute)((value) % 4))
#define RP_SETTING_RECOMPUTE_SAVE(value) ((RpSaveChoice)((value) / 4))

/* All settings, in the order of docs/train.md; the last has no key. */
const RpSetting *rp_settings(void);

/* Returns: (nullable) */
const RpSetting *rp_setting_find(const char *key);

/* The option of commands that means the same: "--head-chunk". */
const char *rp_setting_option(const RpSetting *setting);

/* Whether it is false or true, and nothing else: its option has no value. */
gboolean rp_setting_is_flag(const RpSetting *setting);

/* The one that the option --NAME stands for, by its flag or key. Returns: (nullable) */
const RpSetting *rp_setting_of_option(const char *name);

/* Whether @key is that of a group of settings: "optimizer". */
gboolean rp_setting_is_group(const char *key);

/* The key that @key was meant to be: by other tools' name of it, one of the same group, the same
 * word of another group, or a near one of any. Returns: (transfer full) (nullable) */
char *rp_setting_nearest(const char *key);

/* The values that a setting takes: "a whole number from 1 to 1024". (transfer full) */
char *rp_setting_expects(const RpSetting *setting);

/* "required", the default, what holds without one, or "-". */
const char *rp_setting_default(const RpSetting *setting);

/* Its help, with what it takes: "micro-batches of a call (a whole number from 1 to 1024)". (transfer
 * full) */
char *rp_setting_meaning(const RpSetting *setting);

/* The names that a setting takes, those of its parts last. (transfer container) (array zero-terminated=1) */
const char **rp_setting_names(const RpSetting *setting);

/* The first name of a choice's value. Returns: (nullable) */
const char *rp_setting_value_name(const char *key, int value);

/* The value of a choice's name, or of a list of its parts' names. Returns: whether it is one */
gboolean rp_setting_choose(const RpSetting *setting, const char *text,
                           int *value) G_GNUC_WARN_UNUSED_RESULT;

/* Stores @text's value in its field of @run, an RpRunSpec. Returns: whether it is one */
gboolean rp_setting_store(const RpSetting *setting, const char *text,
                          void *run) G_GNUC_WARN_UNUSED_RESULT;

/* Frees what rp_setting_store() stored. */
void rp_setting_clear(const RpSetting *setting, void *run);
