/* A card of one's own: a JSON file with the members of an RpGpu, read by a table of them. */
#include "core/catalogue/catalogue.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"

#define MAX_FILE_BYTES (1u << 20)
#define MAX_TEXT 256
#define MAX_RATE 1e9

#define NUMBER(key, member, least)                                                                 \
    {                                                                                              \
        key, rp_json_read_number, G_STRUCT_OFFSET(RpGpu, member),                                  \
            .min = least, .max = MAX_RATE, .expected = "a number from " #least " to 1e9"           \
    }
#define SHARE(key, member)                                                                         \
    {                                                                                              \
        key, rp_json_read_number, G_STRUCT_OFFSET(RpGpu, member),                                  \
            .min = 0.001, .max = 1, .expected = "a share of the peak, 0.001 to 1"                  \
    }
#define TEXT(key, member)                                                                          \
    {                                                                                              \
        key, rp_json_read_text, G_STRUCT_OFFSET(RpGpu, member), .max = MAX_TEXT                    \
    }
#define FLAG(key, member)                                                                          \
    {                                                                                              \
        key, rp_json_read_boolean, G_STRUCT_OFFSET(RpGpu, member)                                  \
    }

static gboolean
read_expert_ns(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint64 ns;

    if (!rp_json_read_size(pull, field, &ns))
        return FALSE;
    *(gint64 *)value = (gint64)ns;
    return TRUE;
}

static const RpJsonField fields[] = {
    {"like", rp_json_read_ignored},
    TEXT("name", name),
    TEXT("title", title),
    {"memory_bytes", rp_json_read_size, G_STRUCT_OFFSET(RpGpu, memory_bytes), .min = 1073741824,
     .max = 1125899906842624},
    NUMBER("fp16_accumulate_tflops", fp16_accumulate_tflops, 0.001),
    NUMBER("fp32_accumulate_tflops", fp32_accumulate_tflops, 0.001),
    NUMBER("fp8_tflops", fp8_tflops, 0),
    NUMBER("fp8_fp16_accumulate_tflops", fp8_fp16_accumulate_tflops, 0),
    TEXT("rates_source", rates_source),
    TEXT("rates_shown", rates_shown),
    NUMBER("memory_gb_per_s", memory_gb_per_s, 0.001),
    NUMBER("copy_gb_per_s", copy_gb_per_s, 0),
    NUMBER("l2_mib", l2_mib, 0),
    {"processors", rp_json_read_count, G_STRUCT_OFFSET(RpGpu, processors), .min = 1, .max = 65536},
    NUMBER("clock_ghz", clock_ghz, 0.001),
    TEXT("interconnect", interconnect),
    NUMBER("interconnect_gb_per_s", interconnect_gb_per_s, 0.001),
    NUMBER("h2d_gb_per_s", h2d_gb_per_s, 0.001),
    NUMBER("d2h_gb_per_s", d2h_gb_per_s, 0.001),
    {"gpus_per_root", rp_json_read_count, G_STRUCT_OFFSET(RpGpu, gpus_per_root), .min = 1,
     .max = 65536},
    NUMBER("root_gb_per_s", root_gb_per_s, 0.001),
    NUMBER("host_gb_per_s", host_gb_per_s, 0.001),
    SHARE("matmul_efficiency", matmul_efficiency),
    SHARE("grouped_efficiency", grouped_efficiency),
    SHARE("attention_efficiency", attention_efficiency),
    SHARE("attention_backward_efficiency", attention_backward_efficiency),
    SHARE("memory_efficiency", memory_efficiency),
    {"expert_ns", read_expert_ns, G_STRUCT_OFFSET(RpGpu, expert_ns), .min = 1, .max = 1e9},
    {"optimizer_parameters_per_s", rp_json_read_number,
     G_STRUCT_OFFSET(RpGpu, optimizer_parameters_per_s), .min = 1, .max = 1e15},
    FLAG("scaled", scaled),
    FLAG("measured", measured),
    FLAG("foreign", foreign),
    TEXT("basis", basis),
};

/* A file may leave these keys out. */
static gboolean
is_optional(const char *key)
{
    static const char *const keys[] = {"like",
                                       "title",
                                       "fp8_tflops",
                                       "fp8_fp16_accumulate_tflops",
                                       "rates_source",
                                       "rates_shown",
                                       "copy_gb_per_s",
                                       "l2_mib",
                                       "interconnect",
                                       "interconnect_gb_per_s",
                                       "scaled",
                                       "measured",
                                       "foreign",
                                       "basis",
                                       NULL};

    return g_strv_contains(keys, key);
}

void
rp_gpu_free(RpGpu *gpu)
{
    if (gpu == NULL)
        return;
    g_free((char *)gpu->name);
    g_free((char *)gpu->title);
    g_free((char *)gpu->rates_source);
    g_free((char *)gpu->rates_shown);
    g_free((char *)gpu->interconnect);
    g_free((char *)gpu->basis);
    g_free(gpu);
}

static RpGpu *
copy(const RpGpu *from)
{
    RpGpu *gpu = g_memdup2(from, sizeof *from);

    gpu->name = g_strdup(from->name);
    gpu->title = g_strdup(from->title);
    gpu->rates_source = g_strdup(from->rates_source);
    gpu->rates_shown = g_strdup(from->rates_shown);
    gpu->interconnect = g_strdup(from->interconnect);
    gpu->basis = g_strdup(from->basis);
    return gpu;
}

typedef struct {
    char *like;
} Base;

/* One object, or a list of one, as `roundpipe gpus --json CARD` prints it. */
static gboolean
read_one(RpJsonPull *pull, const RpJsonField *rows, guint n_rows, gpointer data,
         RpJsonRecord *record)
{
    const gboolean list = rp_json_pull_peek(pull) == RP_JSON_ARRAY;

    if (list && rp_json_pull_enter_array(pull) && !rp_json_pull_next_element(pull))
        return rp_json_pull_fail_value(pull, "one card");
    if (!rp_json_read_record(pull, rows, n_rows, data, record))
        return FALSE;
    if (list && rp_json_pull_next_element(pull))
        return rp_json_pull_fail(pull, "one card alone");
    return rp_json_pull_end(pull);
}

/* The card that the file's is like, or one of nothing. */
static RpGpu *
read_base(RpJsonPull *pull, gboolean *given)
{
    static const RpJsonField base_fields[] = {
        {"like", rp_json_read_text, G_STRUCT_OFFSET(Base, like), .max = MAX_TEXT},
        {NULL, rp_json_read_ignored},
    };
    static const RpGpu nothing = {.rates_source = "a file",
                                  .interconnect = "PCIe",
                                  .interconnect_gb_per_s = 32,
                                  .basis = "a file"};
    Base base = {NULL};
    RpJsonRecord record;
    const RpGpu *like = &nothing;

    if (read_one(pull, base_fields, G_N_ELEMENTS(base_fields), &base, &record) &&
        base.like != NULL) {
        g_autoptr(GError) problem = NULL;

        like = rp_gpu_find(base.like, &problem);
        if (like == NULL) {
            g_autofree char *expected = g_strdup_printf("a card (%s)", problem->message);

            (void)rp_json_record_fail(&record, pull, "like", expected);
        }
    }
    *given = base.like != NULL;
    g_free(base.like);
    return pull->failed ? NULL : copy(like);
}

/* Without another card to be like. */
static gboolean
check_complete(RpJsonPull *pull, const RpJsonRecord *record)
{
    for (guint i = 0; i < G_N_ELEMENTS(fields); i++)
        if (record->at[i] == NULL && !is_optional(fields[i].key))
            return rp_json_record_fail(record, pull, fields[i].key,
                                       "a value, or \"like\": \"rtx4090\" or another card of "
                                       "`roundpipe gpus` to take it from");
    return TRUE;
}

/* A file's rates replace everything that belongs to the other card's: fp8 rates with fp16 sums,
 * sources, published copies. */
static void
take_rates(const RpJsonRecord *record, RpGpu *gpu)
{
    static const char *const rates[] = {"fp16_accumulate_tflops", "fp32_accumulate_tflops",
                                        "fp8_tflops", "fp8_fp16_accumulate_tflops"};
    gboolean given = FALSE;

    for (guint i = 0; i < G_N_ELEMENTS(rates); i++)
        given = given || rp_json_record_at(record, rates[i]) != NULL;
    if (rp_json_record_at(record, "fp8_tflops") != NULL &&
        rp_json_record_at(record, "fp8_fp16_accumulate_tflops") == NULL)
        gpu->fp8_fp16_accumulate_tflops = gpu->fp8_tflops;
    if (rp_json_record_at(record, "memory_gb_per_s") != NULL &&
        rp_json_record_at(record, "copy_gb_per_s") == NULL)
        gpu->copy_gb_per_s = 0;
    if (given && rp_json_record_at(record, "rates_shown") == NULL)
        g_clear_pointer((char **)&gpu->rates_shown, g_free);
    if (given && rp_json_record_at(record, "rates_source") == NULL) {
        g_free((char *)gpu->rates_source);
        gpu->rates_source = g_strdup("a file");
    }
}

RpGpu *
rp_gpu_parse(const char *name, const char *text, gsize length, GError **error)
{
    g_autofree char *shown = rp_display_name(name);
    RpJsonRecord record;
    RpJsonPull pull;
    gboolean like;

    if (!rp_json_pull_init(&pull, shown, text, length, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_FILE,
                           error))
        return NULL;
    RpJsonPull first = pull;
    g_autoptr(RpGpu) gpu = read_base(&first, &like);

    if (gpu == NULL || !read_one(&pull, fields, G_N_ELEMENTS(fields), gpu, &record) ||
        (!like && !check_complete(&pull, &record)))
        return NULL;
    if (gpu->fp16_accumulate_tflops < gpu->fp32_accumulate_tflops)
        return rp_null(rp_json_record_fail(&record, &pull, "fp16_accumulate_tflops",
                                           "at least fp32_accumulate_tflops"));
    take_rates(&record, gpu);
    if (gpu->fp8_fp16_accumulate_tflops < gpu->fp8_tflops)
        return rp_null(rp_json_record_fail(&record, &pull, "fp8_fp16_accumulate_tflops",
                                           "at least fp8_tflops"));
    if (gpu->root_gb_per_s < gpu->h2d_gb_per_s)
        return rp_null(
            rp_json_record_fail(&record, &pull, "root_gb_per_s", "at least h2d_gb_per_s"));
    if (rp_json_record_at(&record, "title") == NULL && rp_json_record_at(&record, "name") != NULL) {
        g_free((char *)gpu->title);
        gpu->title = g_strdup(gpu->name);
    }
    if (rp_json_record_at(&record, "measured") == NULL)
        gpu->measured = FALSE;
    return g_steal_pointer(&gpu);
}

RpGpu *
rp_gpu_open(const char *word, GError **error)
{
    g_autoptr(GError) problem = NULL;
    gsize length;

    if (strchr(word, G_DIR_SEPARATOR) == NULL && !g_str_has_suffix(word, ".json")) {
        const RpGpu *gpu = rp_gpu_find(word, error);

        return gpu != NULL ? copy(gpu) : NULL;
    }
    g_autofree char *text = rp_file_read(word, MAX_FILE_BYTES, &length, &problem);
    if (text == NULL)
        return rp_null(
            rp_fail(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_FILE, "%s", problem->message));
    return rp_gpu_parse(word, text, length, error);
}
