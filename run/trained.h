/**
 * A trained model as a word names it, to be asked or evaluated: a model, a checkpoint or the output of a run,
 * with adapters, on one device; and its tokenizer.
 */
#pragma once

#include "exec/device/device.h"
#include "exec/generate/generator.h"
#include "run/model-text.h"
#include "run/settings.h"

typedef struct {
    char *path;         /* of the model, or of the base of adapters */
    char *adapter;      /* (nullable): a directory of adapters */
    gboolean any_base;  /* set before: adapters of another base are taken */
    guint most_devices; /* set before: more than one are taken, so many at most; 0: one */
    RpModel config;
    RpSafetensors *checkpoint;
    RpSafetensors *adapters; /* or %NULL */
    RpWeights *weights;
    const RpKernels *kernels;
    RpProbe *probe;   /* the device, the first of */
    RpProbe **probes; /* [n_probes] */
    guint n_probes;
} RpTrained;

void rp_trained_clear(RpTrained *model);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrained, rp_trained_clear)

/* The best checkpoint of a run whose output @word is, or its last; any other model's or adapters' directory, also by its
 * name in the hub's cache. (transfer full) */
char *rp_trained_checkpoint(const char *word);

/**
 * rp_trained_open:
 * @word: a directory with a model; with adapters alone, whose base adapter_config.json names; or the
 *   output of a run: its best checkpoint, else its last
 * @adapter: (nullable): a directory of adapters for it
 * @device: (nullable): "host", "cuda" or "cuda:1"; %NULL: the host. With most_devices "cuda:2", "host:2", or "cuda": all
 *
 * Errors: of the files; RP_RUN_ERROR_USAGE
 */
gboolean rp_trained_open(RpTrained *model, const char *word, const char *adapter,
                         const char *device, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same up to paths and config: nothing of the weights is read. Errors: of the files */
gboolean rp_trained_find(RpTrained *model, const char *word, const char *adapter,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same with the weights, but without a device. Errors: of the files */
gboolean rp_trained_open_weights(RpTrained *model, const char *word, const char *adapter,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The directory that has @name: the adapters', else the model's. */
const char *rp_trained_directory(const RpTrained *model, const char *name);

/* The tokenizer and, for @chat, the template: of the adapters' directory, if it has them. @text: (out): to be cleared, also
 * on error. Errors: of the files */
gboolean rp_trained_text(const RpTrained *model, gboolean chat, RpModelText *text,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Tokens that end an answer: of generation_config.json, else of config.json. Errors: of the file */
gboolean rp_trained_ends(const RpTrained *model, RpGeneratorOptions *options,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- answers in text: to a prompt, which is continued, or to questions, as a chat has them ---- */

/* Tokens of a conversation at most. */
#define RP_TALK_CONVERSATION 4096

typedef struct _RpTalk RpTalk;

typedef struct {
    const char
        *model; /* a directory with a model; with adapters, whose base their config names; or the
                          output of a run: its best checkpoint, else its last */
    const char *adapter;         /* (nullable): a directory of adapters for it */
    gboolean any_base;           /* adapters of another base are taken */
    const char *device;          /* (nullable): "host", "cuda" or "cuda:1"; %NULL: the host */
    gboolean chat;               /* prompts are questions, which the model's template writes */
    const char *system;          /* (nullable): of a chat, before the first question */
    gboolean converses;          /* more questions follow: positions are kept for them */
    guint64 device_memory_bytes; /* limit of the device; 0: what it has left */
} RpTalkOptions;

/* A piece of an answer as it comes, whole characters. Returns: whether it may continue */
typedef gboolean (*RpTalkText)(gpointer user_data, const char *text, gsize length);

/**
 * rp_talk_new:
 * @options: copied; its texts are needed in this call alone
 *
 * Opens the model, its tokenizer and the template.
 *
 * Errors: RP_RUN_ERROR_USAGE: a device that is none, or adapters without a base; those of the files
 */
RpTalk *rp_talk_new(const RpTalkOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_talk_free(RpTalk *talk);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTalk, rp_talk_free)

/* An answer; all of it is the talk's, until the next one. */
typedef struct {
    const char *text;
    const GArray *prompt; /* (element-type gint32): ids */
    const GArray *ids;    /* (element-type gint32): of the answer */
    gboolean ended;       /* by a token, not by its length */
    double seconds;       /* without those of loading the model */
    guint streamed; /* layers that do not fit into the device's memory: each token copies them */
    guint layers;   /* of the model */
} RpTalkAnswer;

/**
 * rp_talk_answer:
 * @prompt: UTF-8
 * @most_tokens: of the answer; 0: RP_ANSWER_TOKENS, or as many as the model's positions leave
 * @sampling: how tokens are chosen; its temperature is 0, or its top_p above 0
 * @show: (nullable): gets the answer as it comes
 * @answer: (out)
 *
 * In a chat, earlier questions and answers stand before the prompt.
 *
 * Errors: RP_RUN_ERROR_USAGE: no text, or more tokens than positions; RP_GENERATE_ERROR_MEMORY
 */
gboolean rp_talk_answer(RpTalk *talk, const char *prompt, guint most_tokens,
                        const RpSampling *sampling, RpTalkText show, gpointer user_data,
                        RpTalkAnswer *answer, GError **error) G_GNUC_WARN_UNUSED_RESULT;
