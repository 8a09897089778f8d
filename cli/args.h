/**
 * Options of all commands: a row of one table each (args.c), or a setting of runs (run/settings.c), and
 * their values. A command lists the names of those that it takes.
 */
#pragma once

#include <glib.h>

#include "run/spec.h"

/* The box that a command is asked about; %NULL = not given. Zero-initialise. */
typedef struct {
    char *gpu; /* a card's name or file; "rtx4090:2,rtx3090:2": several, in the order of devices */
    char *pcie;
    char *host_bandwidth;
    char *file;      /* a measured box's */
    char *network;   /* between servers; or %NULL */
    int sequence;    /* tokens; 0 = as usual */
    int micro_batch; /* sequences; 0 = as usual */
} RpBoxArgs;

/* Values of a command's options; 0, %FALSE or %NULL = not given. Texts are interned: nobody frees them,
 * and a copy is as good. */
typedef struct {
    RpRunSpec run; /* with the plan that schedule options describe */
    RpBoxArgs box;
    char *schedule; /* also one that is not trained */
    char *fidelity;
    gboolean published;
    gboolean late;
    /* draws of times */
    int draws;
    gint64 seed;
    double noise; /* sigma */
    /* files and directories */
    char *output;
    char *profile;
    char *trace;
    char *kinds;
    char *csv;
    char *picture;
    char *memory_picture;
    char *profiles_dir;
    char *measured_dir;
    char *chrome;
    char *pytorch_csv;
    char *order;
    char *gguf;
    char *quantize;
    char *adapter;
    char *prompts;
    char *resume; /* "" = the last checkpoint */
    char *save_gradients;
    gboolean force;
    /* pictures */
    char *width;
    gboolean no_title;
    char *window;
    char *range; /* of iterations */
    char *axes;
    char *series;
    gboolean logarithmic;
    /* models and cards */
    const char *model;
    int sequences;
    int tokens_per_sequence;
    gboolean lora;
    int packed;
    int batch;
    char *tokens;
    char *gpu_memory;
    char *host_memory;
    gboolean sync;
    gboolean max_sequence;
    char *schedules;
    char *systems;
    char *price;
    char *gpu_price;
    gboolean chunked_head;
    char *shard_size;
    char *routing;
    gboolean measure_servers;
    gboolean append;
    gboolean quick;
    /* how a command works, and how much it tells */
    double seconds;
    double scale;
    char *scale_word;
    double progress_s;
    char **sets;
    char *formats;
    gboolean keys;
    gboolean dry_run;
    gboolean list;
    gboolean cards;
    gboolean old_names;
    gboolean timed;
    gboolean drop;
    int samples;
    int top;
    /* tokens */
    gboolean decode;
    gboolean lines;
    gboolean text;
    gboolean count;
    gboolean no_special;
    gboolean no_template;
    gboolean chat;
    char *system; /* message of a chat */
    int new_tokens;
    double temperature;
    double top_p;
    int top_k;
    char *serve; /* port */
    char *bind;
    char *token_file;
    int requests;
    /* every command's */
    gboolean json, wide;
    char *
        *swept; /* RP_SWEPT_REQUEST: the text of each of rp_schedule_options(); %NULL: not given */
} RpArgs;

typedef enum {
    RP_OPTION_WORD,
    RP_OPTION_FILE,
    RP_OPTION_COUNT,   /* 1 or more */
    RP_OPTION_INTEGER, /* 64 bits */
    RP_OPTION_NUMBER,
    RP_OPTION_FLAG,
    RP_OPTION_WORDS, /* any number of times */
    RP_OPTION_SETTING
} RpOptionKind;

typedef struct {
    const char *name; /* "trace" */
    char letter;      /* 0: none */
    RpOptionKind kind;
    gsize offset;      /* of the member of RpArgs */
    const char *help;  /* %NULL: that of the setting with this option or name */
    const char *value; /* "FILE.json"; %NULL: a flag */
    const char *key;   /* (nullable): its name in messages of the library, if it is no setting */
    const RpSetting *setting; /* RP_OPTION_SETTING: that it sets in RpArgs.run */
} RpOption;

/* Options that a command takes. */
typedef struct {
    const char
        *names;       /* with spaces between; where several have one name a colon and a word follow:
                          "scale:auto" */
    const char *help; /* %NULL: the option's; with ": " at its end before that */
    const char *value; /* %NULL: the option's */
} RpUse;

/* In a list of uses: those behind it are for experts. */
#define RP_FOR_EXPERTS                                                                             \
    {                                                                                              \
        ""                                                                                         \
    }
/* Names of options: of all commands that draw; of those that draw times; of those that know links. */
#define RP_USE_PICTURE "width no-title"
#define RP_USE_NOISE "draws seed noise slow"
#define RP_USE_LINKS "pcie host-bandwidth box"

/* Options that describe a schedule and a partition: the schedule first. */
extern const RpUse rp_schedule_uses[];
/* Their options; the last has no name. */
#define RP_MOST_SCHEDULE_OPTIONS 64
const RpOption *rp_schedule_options(void);

/* The option that a use names. */
RpOption rp_option_find(const char *name);

/* Its line of help. (transfer full) */
char *rp_option_help(const RpOption *option, const RpUse *use);

/* Stores the value that @text is of. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_option_store(const RpOption *option, const char *text, RpArgs *args,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for an option and a value that are known to be right; %NULL: as if it was not given. */
void rp_args_set(RpArgs *args, const char *name, const char *text);

/* Whether an option was given. */
gboolean rp_args_has(const RpArgs *args, const char *name);
