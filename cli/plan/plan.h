/**
 * roundpipe plan: the command and its options (plan.c), its words and what they mean
 * (question.c), words of the answer
 * (words.c), a run file of it (run-file.c), and what is reported: the answer in short (answer.c), its figures and
 * tables (report.c).
 */
#pragma once

#include "cli/network.h"
#include "run/request.h"
#include "run/run-file.h"
#include "sim/advise/advise.h"
#include "sim/advise/servers.h"

/* ---- question.c ---- */

/* Whether the word that is no option is a file or directory; else it is a model's name. */
gboolean rp_plan_word_is_path(const char *word);

/* The question that the words ask. Zero-initialise. */
typedef struct {
    const RpArgs *args; /* borrowed */
    const char *path;   /* the word that is no option; or %NULL */
    RpAdviseQuery query;
    RpProfile *profile;
    RpGpu *gpu;                       /* query.gpu */
    RpProfile *measured_box;          /* query.measured_box; or %NULL */
    GPtrArray *cards;                 /* (element-type RpGpu): several kinds; or %NULL */
    GArray *card_of;                  /* guint, of each GPU */
    char *box;                        /* "2 x RTX 4090 + 2 x RTX 3090"; %NULL: all are alike */
    RpPlanNetwork *network;           /* `train` has this architecture; or %NULL */
    char *name;                       /* of the model */
    GStrv lora_targets;               /* or %NULL */
    const char *reference_why;        /* of preferences; %NULL: imitation */
    GPtrArray *schedules;             /* (element-type RpScheduleOps), %NULL-terminated */
    RpServerNetwork *network_between; /* of several servers; or %NULL */
    RpAdviseServed served;  /* of the run that is shown; servers 0: one, or nothing runs */
    guint64 tokens;         /* to train on; 0 = not asked */
    gboolean dtype_assumed; /* bf16, because nobody predicts times of fp32 */
} RpPlanQuestion;

void rp_plan_question_clear(RpPlanQuestion *question);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpPlanQuestion, rp_plan_question_clear)

/* Sequences of a step where nobody says how many, for each GPU. */
#define RP_PLAN_BATCH_PER_GPU 16

/**
 * rp_plan_question_read:
 * @path: (nullable): the word that is no option
 *
 * Checks the words and fills in what was left out: one server, one GPU, sequences of 2,048 tokens (or of as
 * many as the model has positions), 16 of them a GPU and step.
 *
 * Errors: RP_CLI_ERROR_USAGE, RP_CATALOGUE_ERROR_*, RP_PROFILE_ERROR_*, RP_HF_CONFIG_ERROR_*
 */
gboolean rp_plan_question_read(const RpArgs *args, const char *path, RpPlanQuestion *question,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Adapters that are offered where all weights are too many to train, and their frozen weights. */
#define RP_PLAN_ADAPTER_RANK 16
#define RP_PLAN_ADAPTER_BASE "nf4"

/* Adds remedies of @question that train adapters instead, with their speed; none where it asks for
 * adapters or has a timing file. */
gboolean rp_plan_add_adapters(const RpPlanQuestion *question, GPtrArray *remedies,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- words.c ---- */

/* "--optimizer lean --sequence 57408": to be typed after the command. (transfer full) */
char *rp_plan_remedy_words(const RpAdviseRemedy *remedy);

/* "qkv of 35 layers, residual of 35": what forwards of @run save. (transfer full) */
char *rp_plan_saved_words(const RpAdvice *advice, const RpAdviseRun *run);

/* "36 to 50 GB/s". (transfer full) */
char *rp_plan_unknown_ends(const RpAdviseRange *range, RpUnknown unknown);

const char *rp_plan_device_name(const RpAdviseQuery *query);

/* Parameters of the model, each once; of these the trained ones, with LoRA those of adapters. */
void rp_plan_count_parameters(const RpProfile *profile, guint64 *parameters, guint64 *trained);

/* Bytes of one checkpoint: 16-bit weights, or 32-bit adapters where the rest is frozen, and 32-bit weights and moments of what is trained; another
 * version of the weights where steps are asynchronous (docs/checkpoint-format.md). */
guint64 rp_plan_checkpoint_bytes(const RpProfile *profile, const RpPlanOptions *options);

/* Names of a cause to wait: a run's `waits_for`, the slowest resource, and for people. By RpAdviseWaits. */
typedef struct {
    const char *waits_for;
    const char *binds;
    const char *cause; /* %NULL: nothing to speak of */
} RpPlanWaits;
extern const RpPlanWaits rp_plan_waits[];

/* The run that is recommended, or shown because nothing fits. */
const RpAdviseRun *rp_plan_shown_run(const RpAdvice *advice);

/* ---- run-file.c ---- */

/* A run file's epochs, and the share of the samples that it validates. */
#define RP_PLAN_EPOCHS 3
#define RP_PLAN_VALIDATED 0.05

/* Writes it to @path. Errors: G_IO_ERROR; RP_RUN_ERROR_*: words that no run file takes */
gboolean rp_plan_write_run(const char *path, const RpPlanQuestion *question, const RpAdvice *advice,
                           const RpRunSpec *words, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Appends the optimizer's lines of a run file; nothing if all values are the defaults. */
void rp_plan_say_optimizer(RpReport *report, const RpAdviseQuery *query);
/* The same as members of JSON, but for the mode: "optimizer_state". */
void rp_plan_report_form(RpReport *report, const RpStateFormat *form);

/* ---- the report ---- */

/* One sentence, then a line for each thing that people ask next (answer.c). */
void rp_plan_say_answer(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question,
                        const RpAdviseRange *range);
/* How the recommended run is made (answer.c). */
void rp_plan_say_recommendation(RpReport *report, const RpAdvice *advice);

/* The answer, how, why, memory, schedules, the longest sequence (report.c).
 * @drawn: the recommended run's times; draws 0: none */
void rp_plan_report_advice(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question,
                           const RpRequestDrawn *drawn, const RpAdviseRange *range);

/* `--max-sequence`: the longest sequence alone. */
void rp_plan_report_longest(RpReport *report, const RpPlanQuestion *question,
                            const RpAdviseLongest *longest);
