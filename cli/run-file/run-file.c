/* Run files: what the values are. */
#include "cli/run-file/run-file.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/devices.h"
#include "cli/run-file/private.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/suggest.h"
#include "core/schedules/schedule.h"

G_DEFINE_QUARK(rp_run_file_error, rp_run_file_error)

#define MAX_FILE_BYTES ((gsize)1 << 20)

/* The lowest layer: what a key is if nobody sets it. docs/train.md has the same table. */
static const char defaults[] = "devices: host:1\n"
                               "micro_batch_size: 1\n"
                               "micro_batches: 8\n"
                               "gradient_accumulation_steps: 1\n"
                               "seed: 0\n"
                               "shuffle: true\n"
                               "schedule: roundpipe\n"
                               "round: all\n"
                               "partition: simulated\n"
                               "transfers: windows\n"
                               "consistency: events\n"
                               "device_memory: 0\n"
                               "host_memory: 0\n"
                               "head_chunk: 0\n"
                               "accumulate: fp32\n"
                               "attention: auto\n"
                               "profile: auto\n"
                               "plot_loss: false\n"
                               "optimizer:\n"
                               "  mode: fused\n"
                               "  learning_rate: 1e-4\n"
                               "  schedule: cosine\n"
                               "  warmup_steps: 0\n"
                               "  weight_decay: 0.01\n"
                               "  beta1: 0.9\n"
                               "  beta2: 0.999\n"
                               "  epsilon: 1e-8\n"
                               "  max_grad_norm: 1.0\n"
                               "  threads: 0\n"
                               "loss_scale:\n"
                               "  initial: 65536\n"
                               "  growth_interval: 2000\n"
                               "  max_skipped: 32\n"
                               "checkpoint:\n"
                               "  every: 0\n"
                               "  minutes: 30\n"
                               "  keep: 3\n"
                               "  final: true\n"
                               "  beside: auto\n";

/* ---- the schema ---- */

/* Schedules whose tasks every backend can run; a split backward is not among them. */
static const char *const schedule_names[] = {"roundpipe",        "gpipe",      "1f1b",
                                             "interleaved-1f1b", "looped-bfs", "mobius"};
static const cyaml_strval_t schedules[] = {{"roundpipe", 0},  {"gpipe", 1},
                                           {"1f1b", 2},       {"interleaved-1f1b", 3},
                                           {"looped-bfs", 4}, {"mobius", 5}};
/* Not CYAML_BOOL: to that every word but a few is true. */
static const cyaml_strval_t booleans[] = {{"false", 0}, {"true", 1}, {"no", 0},
                                          {"yes", 1},   {"off", 0},  {"on", 1}};
static const cyaml_strval_t given_booleans[] = {{"false", 1}, {"true", 2}, {"no", 1},
                                                {"yes", 2},   {"off", 1},  {"on", 2}};
static const cyaml_strval_t besides[] = {{"auto", 0}, {"false", 1}, {"true", 2}, {"no", 1},
                                         {"yes", 2},  {"off", 1},   {"on", 2}};
static const cyaml_strval_t dtypes[] = {
    {"fp32", RP_DTYPE_FP32 + 1}, {"bf16", RP_DTYPE_BF16 + 1}, {"fp16", RP_DTYPE_FP16 + 1}};
static const cyaml_strval_t partitions[] = {{"simulated", 0}, {"paper", 1}};
static const cyaml_strval_t recomputes[] = {{"early", RP_RECOMPUTE_EARLY},
                                            {"gated", RP_RECOMPUTE_GATED}};
static const cyaml_strval_t transfers[] = {{"windows", RP_TRANSFERS_WINDOWS},
                                           {"naive", RP_TRANSFERS_NAIVE}};
static const cyaml_strval_t consistencies[] = {{"events", RP_CONSISTENCY_EVENTS},
                                               {"blocking", RP_CONSISTENCY_BLOCKING}};
static const cyaml_strval_t accumulates[] = {{"fp32", 0}, {"fp16", 1}};
static const cyaml_strval_t attentions[] = {
    {"auto", 0}, {"builtin", RP_ATTENTION_BUILTIN + 1}, {"cudnn", RP_ATTENTION_CUDNN + 1}};
static const cyaml_strval_t optimizer_modes[] = {{"fused", RP_OPTIMIZER_FUSED},
                                                 {"lean", RP_OPTIMIZER_LEAN}};
static const cyaml_strval_t rates[] = {{"cosine", RP_LEARNING_RATE_COSINE},
                                       {"linear", RP_LEARNING_RATE_LINEAR},
                                       {"constant", RP_LEARNING_RATE_CONSTANT}};

#define TEXT(key, member)                                                                          \
    CYAML_FIELD_STRING_PTR(key, CYAML_FLAG_POINTER, RpRunFile, member, 1, 4096)
#define OPTIONAL_TEXT(key, member)                                                                 \
    CYAML_FIELD_STRING_PTR(key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, RpRunFile, member, 1,    \
                           4096)
#define WHOLE(key, type, member) CYAML_FIELD_INT(key, CYAML_FLAG_DEFAULT, type, member)
#define REAL(key, type, member) CYAML_FIELD_FLOAT(key, CYAML_FLAG_STRICT, type, member)
#define NAME(key, type, member, names)                                                             \
    CYAML_FIELD_ENUM(key, CYAML_FLAG_STRICT, type, member, names, G_N_ELEMENTS(names))
#define OPTIONAL_NAME(key, type, member, names)                                                    \
    CYAML_FIELD_ENUM(key, CYAML_FLAG_STRICT | CYAML_FLAG_OPTIONAL, type, member, names,            \
                     G_N_ELEMENTS(names))

static const cyaml_schema_field_t optimizer_fields[] = {
    NAME("mode", RpRunFileOptimizer, mode, optimizer_modes),
    REAL("learning_rate", RpRunFileOptimizer, learning_rate),
    NAME("schedule", RpRunFileOptimizer, schedule, rates),
    WHOLE("warmup_steps", RpRunFileOptimizer, warmup_steps),
    REAL("weight_decay", RpRunFileOptimizer, weight_decay),
    REAL("beta1", RpRunFileOptimizer, beta1),
    REAL("beta2", RpRunFileOptimizer, beta2),
    REAL("epsilon", RpRunFileOptimizer, epsilon),
    REAL("max_grad_norm", RpRunFileOptimizer, max_grad_norm),
    WHOLE("threads", RpRunFileOptimizer, threads),
    CYAML_FIELD_END};

static const cyaml_schema_field_t loss_scale_fields[] = {
    REAL("initial", RpRunFileLossScale, initial),
    WHOLE("growth_interval", RpRunFileLossScale, growth_interval),
    WHOLE("max_skipped", RpRunFileLossScale, max_skipped), CYAML_FIELD_END};

static const cyaml_schema_field_t checkpoint_fields[] = {
    WHOLE("every", RpRunFileCheckpoint, every),
    REAL("minutes", RpRunFileCheckpoint, minutes),
    WHOLE("keep", RpRunFileCheckpoint, keep),
    NAME("final", RpRunFileCheckpoint, final, booleans),
    NAME("beside", RpRunFileCheckpoint, beside, besides),
    CYAML_FIELD_END};

static const cyaml_schema_field_t fields[] = {
    TEXT("model", model),
    TEXT("data", data),
    TEXT("output", output),
    TEXT("devices", devices),
    OPTIONAL_NAME("dtype", RpRunFile, dtype_choice, dtypes),
    WHOLE("sequence_length", RpRunFile, sequence_length),
    WHOLE("micro_batch_size", RpRunFile, micro_batch_size),
    WHOLE("micro_batches", RpRunFile, micro_batches),
    WHOLE("gradient_accumulation_steps", RpRunFile, gradient_accumulation_steps),
    WHOLE("steps", RpRunFile, steps),
    WHOLE("seed", RpRunFile, seed),
    NAME("shuffle", RpRunFile, shuffle, booleans),
    NAME("schedule", RpRunFile, schedule_choice, schedules),
    OPTIONAL_NAME("async", RpRunFile, async_choice, given_booleans),
    TEXT("round", round_text),
    NAME("partition", RpRunFile, partition_choice, partitions),
    OPTIONAL_TEXT("stages", stages),
    OPTIONAL_TEXT("forward_stages", forward_stages),
    OPTIONAL_TEXT("backward_stages", backward_stages),
    OPTIONAL_NAME("recompute", RpRunFile, recompute_choice, recomputes),
    NAME("transfers", RpRunFile, transfers, transfers),
    NAME("consistency", RpRunFile, consistency, consistencies),
    TEXT("device_memory", device_memory),
    TEXT("host_memory", host_memory),
    WHOLE("head_chunk", RpRunFile, head_chunk),
    NAME("accumulate", RpRunFile, half_sums, accumulates),
    NAME("attention", RpRunFile, attention_choice, attentions),
    TEXT("profile", profile),
    OPTIONAL_TEXT("trace", trace),
    NAME("plot_loss", RpRunFile, plot_loss, booleans),
    CYAML_FIELD_MAPPING("optimizer", CYAML_FLAG_DEFAULT, RpRunFile, optimizer, optimizer_fields),
    CYAML_FIELD_MAPPING("loss_scale", CYAML_FLAG_DEFAULT, RpRunFile, loss_scale, loss_scale_fields),
    CYAML_FIELD_MAPPING("checkpoint", CYAML_FLAG_DEFAULT, RpRunFile, checkpoint, checkpoint_fields),
    CYAML_FIELD_END};

static const cyaml_schema_value_t schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, RpRunFile, fields)};

/* Ranges: a schema has none for numbers. */
typedef struct {
    const char *key;
    double least;
    double most;
    gboolean below; /* less than @most, not equal to it */
} Range;

static const Range ranges[] = {
    {"sequence_length", 2, RP_RUN_FILE_MAX_COUNT, FALSE},
    {"micro_batch_size", 1, RP_RUN_FILE_MAX_COUNT, FALSE},
    {"micro_batches", 1, RP_RUN_FILE_MAX_COUNT, FALSE},
    {"gradient_accumulation_steps", 1, 1024, FALSE},
    {"steps", 1, 1e12, FALSE},
    {"seed", 0, 9007199254740992.0, FALSE}, /* 2^53: the same number in every JSON reader */
    {"head_chunk", 0, RP_RUN_FILE_MAX_COUNT, FALSE},
    {"optimizer.learning_rate", 0, 1000, FALSE},
    {"optimizer.warmup_steps", 0, 1e12, FALSE},
    {"optimizer.weight_decay", 0, 1000, FALSE},
    {"optimizer.beta1", 0, 1, TRUE},
    {"optimizer.beta2", 0, 1, TRUE},
    {"optimizer.epsilon", 1e-30, 1, FALSE}, /* more than 0, as an fp32 too */
    {"optimizer.max_grad_norm", 0, 1e9, FALSE},
    {"optimizer.threads", 0, 1024, FALSE},
    {"loss_scale.initial", 1, 16777216, FALSE},
    {"loss_scale.growth_interval", 1, 1e9, FALSE},
    {"loss_scale.max_skipped", 0, 1e9, FALSE},
    {"checkpoint.every", 0, 1e12, FALSE},
    {"checkpoint.minutes", 0, 1e6, FALSE},
    {"checkpoint.keep", 0, 1e6, FALSE},
};

/* ---- what was expected ---- */

/* What a key takes, for a message. (transfer full) */
static char *
describe(const RpRunEntry *entry)
{
    const cyaml_schema_value_t *value = &entry->field->value;
    const char *kind = value->type == CYAML_INT ? "a whole number" : "a number";

    if (value->type == CYAML_STRING)
        return g_strdup("text of 1 to 4096 bytes");
    if (value->type == CYAML_ENUM) {
        g_autoptr(GString) names = g_string_new("one of");

        for (guint i = 0; i < value->enumeration.count; i++)
            g_string_append_printf(names, "%s %s", i > 0 ? "," : "",
                                   value->enumeration.strings[i].str);
        return g_string_free(g_steal_pointer(&names), FALSE);
    }
    for (guint i = 0; i < G_N_ELEMENTS(ranges); i++)
        if (strcmp(ranges[i].key, entry->key) == 0)
            return g_strdup_printf("%s from %.16g to %s%.16g", kind, ranges[i].least,
                                   ranges[i].below ? "less than " : "", ranges[i].most);
    return g_strdup(kind);
}

static void
fail_value(const RpRunEntry *entry, GError **error)
{
    const cyaml_schema_value_t *value = &entry->field->value;
    g_autofree char *expected = describe(entry);
    g_autofree char *found =
        entry->text != NULL && *entry->text != '\0' ? rp_quote(entry->text) : g_strdup("nothing");
    const char *near = NULL;

    if (value->type == CYAML_ENUM && entry->text != NULL) {
        g_autofree const char **names = g_new0(const char *, value->enumeration.count + 1);

        for (guint i = 0; i < value->enumeration.count; i++)
            names[i] = value->enumeration.strings[i].str;
        near = rp_nearest_name(entry->text, names);
    }
    rp_run_entry_fail(entry, error, RP_RUN_FILE_ERROR_VALUE, "expected %s, found %s%s%s%s",
                      expected, found, near != NULL ? "; did you mean \"" : "",
                      near != NULL ? near : "", near != NULL ? "\"?" : "");
}

/* What has no default must be given; "" is the same as not given. */
static gboolean
check_given(const RpRunEntries *entries, const char *name, GError **error)
{
    for (guint i = 0; i < entries->entries->len; i++) {
        RpRunEntry *entry = g_ptr_array_index(entries->entries, i);

        if (entry->text != NULL && *entry->text != '\0')
            continue;
        if (entry->field->value.flags & CYAML_FLAG_OPTIONAL) {
            rp_run_entry_set(entry, NULL, NULL, FALSE);
            continue;
        }
        if (entry->text == NULL) {
            g_autofree char *expected = describe(entry);
            g_autofree char *shown = rp_display_name(name);

            g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_KEY,
                        "%s: %s: required: expected %s, found nothing", shown, entry->key,
                        expected);
        } else {
            fail_value(entry, error);
        }
        return FALSE;
    }
    return TRUE;
}

/* libcyaml takes "1.5", "12x" and "010" for whole numbers (1, 12 and 8). */
static gboolean
check_numbers(const RpRunEntries *entries, GError **error)
{
    for (guint i = 0; i < entries->entries->len; i++) {
        RpRunEntry *entry = g_ptr_array_index(entries->entries, i);
        cyaml_type_e type = entry->field->value.type;
        gboolean good = TRUE;

        if (entry->text == NULL)
            continue;
        if (type == CYAML_INT) {
            gint64 number = 0;

            good = g_ascii_string_to_signed(entry->text, 10, G_MININT64, G_MAXINT64, &number, NULL);
            if (good) {
                g_free(entry->text);
                entry->text = g_strdup_printf("%" G_GINT64_FORMAT, number);
            }
        } else if (type == CYAML_FLOAT) {
            char *end = NULL;

            (void)g_ascii_strtod(entry->text, &end);
            good = end != entry->text && *end == '\0' && !g_ascii_isspace(*entry->text);
        }
        if (!good) {
            fail_value(entry, error);
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean
check_ranges(const RpRunEntries *entries, const RpRunFile *run, GError **error)
{
    for (guint i = 0; i < G_N_ELEMENTS(ranges); i++) {
        const Range *range = &ranges[i];
        const RpRunEntry *entry = rp_run_entries_find(entries, range->key);
        const char *place = (const char *)run + entry->offset;
        double number = entry->field->value.type == CYAML_INT
                            ? (double)*(const gint64 *)(const void *)place
                            : *(const double *)(const void *)place;

        if (number >= range->least && number <= range->most &&
            !(range->below && number == range->most)) /* NaN is in no range */
            continue;
        fail_value(entry, error);
        return FALSE;
    }
    return TRUE;
}

/* ---- libcyaml ---- */

/* What cyaml logs while it gives up: a message, then a backtrace with the line. */
typedef struct {
    GString *message;
    gsize line; /* 1 .. ; 0 = unknown */
} Log;

static void G_GNUC_PRINTF(3, 0)
    note_log(cyaml_log_t level, void *context, const char *format, va_list arguments)
{
    Log *log = context;
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    const char *line = strstr(text, "(line: ");

    g_strchomp(text);
    if (line != NULL && log->line == 0 && strstr(text, "in mapping field '") != NULL)
        log->line = (gsize)g_ascii_strtoull(line + strlen("(line: "), NULL, 10);
    else if (line == NULL && log->message->len == 0)
        g_string_append(log->message, text);
}

static cyaml_config_t
make_config(Log *log)
{
    return (cyaml_config_t){
        .log_fn = log != NULL ? note_log : NULL,
        .log_ctx = log,
        .mem_fn = cyaml_mem,
        .log_level = CYAML_LOG_WARNING,
        .flags = CYAML_CFG_NO_ALIAS,
    };
}

/* The entries as they are now, with types. */
static RpRunFile *
convert(const RpRunEntries *entries, const char *name, GError **error)
{
    g_autoptr(GPtrArray) lines = NULL;
    g_autofree char *yaml = rp_run_entries_to_yaml(entries, &lines);
    g_autoptr(GString) message = g_string_new(NULL);
    Log log = {.message = message};
    const cyaml_config_t config = make_config(&log);
    RpRunFile *run = NULL;
    cyaml_err_t failed = cyaml_load_data((const uint8_t *)yaml, strlen(yaml), &config, &schema,
                                         (cyaml_data_t **)&run, NULL);

    if (failed == CYAML_OK)
        return run;
    /* each line is a value that somebody gave, or a group's name, which cannot be wrong */
    if (log.line >= 1 && log.line <= lines->len && g_ptr_array_index(lines, log.line - 1) != NULL) {
        fail_value(g_ptr_array_index(lines, log.line - 1), error);
        return NULL;
    }
    g_autofree char *shown = rp_display_name(name);

    g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_VALUE, "%s: %s: %s", shown,
                cyaml_strerror(failed), message->str);
    return NULL;
}

/* ---- what follows from the values ---- */

static gboolean
resolve_devices(const RpRunEntries *entries, RpRunFile *run, GError **error)
{
    GError *problem = NULL;

    if (rp_cli_parse_devices(run->devices, &run->device_ops, &run->n_devices, &problem))
        return TRUE;
    rp_run_entry_fail(rp_run_entries_find(entries, "devices"), error, RP_RUN_FILE_ERROR_VALUE, "%s",
                      problem->message);
    g_error_free(problem);
    return FALSE;
}

static gboolean
resolve_bytes(const RpRunEntries *entries, const char *key, const char *text, guint64 *bytes,
              GError **error)
{
    if (rp_cli_parse_bytes(key, text, bytes, NULL))
        return TRUE;
    g_autofree char *found = rp_quote(text);

    rp_run_entry_fail(rp_run_entries_find(entries, key), error, RP_RUN_FILE_ERROR_VALUE,
                      "expected a size such as 24GiB or 800GB, found %s", found);
    return FALSE;
}

/* RoundPipe's rounds are of one size, and no device may be left without a micro-batch in one. */
static gboolean
check_round(const RpRunEntries *entries, const RpRunFile *run, guint64 round, GError **error)
{
    const RpRunEntry *entry = rp_run_entries_find(entries, "round");
    const guint64 all = (guint64)run->micro_batches;
    guint64 good = CLAMP(round, MIN(run->n_devices, all), all);

    if (all < run->n_devices || (all % round == 0 && round >= run->n_devices))
        return TRUE; /* too few micro-batches are the schedule's to refuse */
    while (all % good != 0)
        good++;
    g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                "%s%sround: expected a divisor of micro_batches (%" G_GUINT64_FORMAT
                ") not below the number of devices (%u), found %" G_GUINT64_FORMAT
                "; use %" G_GUINT64_FORMAT,
                entry->place, entry->from_set ? " " : ": ", all, run->n_devices, round, good);
    return FALSE;
}

static gboolean
resolve_round(const RpRunEntries *entries, RpRunFile *run, GError **error)
{
    guint64 round = 0;

    if (strcmp(run->round_text, "auto") == 0)
        return TRUE;
    if (strcmp(run->round_text, "all") != 0 &&
        !g_ascii_string_to_unsigned(run->round_text, 10, 0, RP_RUN_FILE_MAX_COUNT, &round, NULL)) {
        g_autofree char *found = rp_quote(run->round_text);

        rp_run_entry_fail(rp_run_entries_find(entries, "round"), error, RP_RUN_FILE_ERROR_VALUE,
                          "expected all, auto or a whole number up to %d, found %s",
                          RP_RUN_FILE_MAX_COUNT, found);
        return FALSE;
    }
    if (strcmp(run->schedule, "roundpipe") == 0) {
        if (round > 0 && !check_round(entries, run, round, error))
            return FALSE;
        if (round == 0)
            round = (guint64)run->micro_batches;
    } else if (round > 0) {
        rp_run_entry_fail(rp_run_entries_find(entries, "round"), error, RP_RUN_FILE_ERROR_VALUE,
                          "schedule %s runs all micro-batches as one round; expected all or auto, "
                          "found %" G_GUINT64_FORMAT "; numbers are for roundpipe",
                          run->schedule, round);
        return FALSE;
    }
    run->round = (gint64)round;
    return TRUE;
}

static gboolean
resolve(const RpRunEntries *entries, RpRunFile *run, GError **error)
{
    RpRunEntry *async = rp_run_entries_find(entries, "async");
    const RpRunEntry *partition = rp_run_entries_find(entries, "partition");

    run->schedule = schedule_names[run->schedule_choice];
    run->async =
        run->async_choice != 0 ? run->async_choice == 2 : strcmp(run->schedule, "roundpipe") == 0;
    run->given_stages =
        run->stages != NULL || run->forward_stages != NULL || run->backward_stages != NULL;
    if (run->given_stages && partition->place != NULL) {
        rp_run_entry_fail(partition, error, RP_RUN_FILE_ERROR_KEY,
                          "expected either a partition to be chosen or lists of stages, found "
                          "both");
        return FALSE;
    }
    if (!resolve_devices(entries, run, error) || !resolve_round(entries, run, error) ||
        !resolve_bytes(entries, "device_memory", run->device_memory, &run->device_memory_bytes,
                       error) ||
        !resolve_bytes(entries, "host_memory", run->host_memory, &run->host_memory_bytes, error))
        return FALSE;
    rp_run_entry_set(async, run->async ? "true" : "false", async->place, async->from_set);
    if (run->given_stages)
        rp_run_entry_set(rp_run_entries_find(entries, "partition"), NULL, NULL, FALSE);
    run->resolved = rp_run_entries_to_yaml(entries, NULL);
    return TRUE;
}

RpRunFile *
rp_run_file_parse(const char *name, const char *text, gsize length, const char *const *sets,
                  GError **error)
{
    g_autoptr(RpRunEntries) entries = rp_run_entries_new(fields);
    g_autoptr(RpRunFile) run = NULL;

    if (!rp_run_entries_read(entries, NULL, defaults, strlen(defaults), error) ||
        !rp_run_entries_read(entries, name, text, length, error))
        return NULL;
    for (; sets != NULL && *sets != NULL; sets++)
        if (!rp_run_entries_set(entries, *sets, error))
            return NULL;
    if (!check_given(entries, name, error) || !check_numbers(entries, error))
        return NULL;
    run = convert(entries, name, error);
    if (run == NULL || !check_ranges(entries, run, error) || !resolve(entries, run, error))
        return NULL;
    return g_steal_pointer(&run);
}

RpRunFile *
rp_run_file_load(const char *path, const char *const *sets, GError **error)
{
    g_autofree char *text = NULL;
    gsize length = 0;

    text = rp_file_read(path, MAX_FILE_BYTES, &length, error);
    if (text == NULL)
        return NULL;
    return rp_run_file_parse(path, text, length, sets, error);
}

void
rp_run_file_free(RpRunFile *run)
{
    const cyaml_config_t config = make_config(NULL);

    if (run == NULL)
        return;
    g_free(run->resolved);
    (void)cyaml_free(&config, &schema, run, 0);
}
