/* The key `matmuls` of a timing file, read and written. */
#include "core/base/dtype.h"
#include "core/json/json-record.h"
#include "core/profile/private.h"

#define MAX_SIZE ((double)(G_GUINT64_CONSTANT(1) << 40))
#define MAX_VARIANTS 1024 /* in a file */

const char *const rp_matmul_layouts[] = {"NT", "NN", "TN", NULL};

#define CHOICE(key, member, texts)                                                                 \
    {                                                                                              \
        key, rp_json_read_choice_index, G_STRUCT_OFFSET(RpMatmulVariant, member),                  \
            .required = TRUE, .choices = texts                                                     \
    }
#define SIZE(key, member, ...)                                                                     \
    {                                                                                              \
        key, rp_json_read_size, G_STRUCT_OFFSET(RpMatmulVariant, member),                          \
            .min = 1, .max = MAX_SIZE, __VA_ARGS__                                                 \
    }

static const RpJsonField fields[] = {
    CHOICE("form", form, rp_matmul_layouts),
    SIZE("m", m, .required = TRUE),
    SIZE("n", n, .required = TRUE),
    SIZE("k", k, .required = TRUE),
    SIZE("a_stride", a_stride, ),
    CHOICE("a", a, rp_dtype_names),
    CHOICE("b", b, rp_dtype_names),
    CHOICE("c", c, rp_dtype_names),
    {"bias", rp_json_read_boolean, G_STRUCT_OFFSET(RpMatmulVariant, bias)},
    {"way", rp_json_read_count, G_STRUCT_OFFSET(RpMatmulVariant, variant), .required = TRUE,
     .min = 1, .max = RP_MATMUL_MAX_VARIANTS - 1},
};

gboolean
rp_matmul_variant_is_of(const RpMatmulVariant *a, const RpMatmulVariant *b)
{
    return a->form == b->form && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->a_stride == b->a_stride && a->a == b->a && a->b == b->b && a->c == b->c &&
           !a->bias == !b->bias;
}

void
rp_profile_set_matmuls(RpProfile *profile, const char *library, const RpMatmulVariant *variants,
                       guint n)
{
    g_return_if_fail(profile != NULL && library != NULL && (variants != NULL || n == 0));

    rp_profile_take(&profile->matmul_library, g_strdup(library));
    g_free(profile->matmul_variants);
    profile->matmul_variants = g_memdup2(variants, n * sizeof *variants);
    profile->n_matmul_variants = n;
}

gboolean
rp_profile_read_matmul_variants(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpProfile *profile = value;
    g_autoptr(GArray) variants = g_array_new(FALSE, FALSE, sizeof(RpMatmulVariant));

    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY)
        return rp_json_pull_fail(pull, field->expected);
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        RpMatmulVariant variant = {0};
        RpJsonRecord record;

        if (!rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), &variant, &record))
            return FALSE;
        if (variant.a_stride != 0 && variant.a_stride <= variant.k)
            return rp_json_record_fail(&record, pull, "a_stride", "more than k");
        for (guint i = 0; i < variants->len; i++)
            if (rp_matmul_variant_is_of(&g_array_index(variants, RpMatmulVariant, i), &variant))
                return rp_json_record_fail(&record, pull, "m", "each shape once");
        if (variants->len == MAX_VARIANTS)
            return rp_json_record_fail(&record, pull, "m",
                                       "at most " G_STRINGIFY(MAX_VARIANTS) " shapes");
        g_array_append_val(variants, variant);
    }
    if (pull->failed)
        return FALSE;
    profile->n_matmul_variants = variants->len;
    g_free(profile->matmul_variants);
    profile->matmul_variants =
        (RpMatmulVariant *)(void *)g_array_free(g_steal_pointer(&variants), FALSE);
    return TRUE;
}

static void
add_variant(RpJsonWriter *json, const RpMatmulVariant *variant)
{
    rp_json_object_as(json, NULL, RP_JSON_PADDED);
    rp_json_string(json, "form", rp_matmul_layouts[variant->form]);
    rp_json_uint(json, "m", variant->m);
    rp_json_uint(json, "n", variant->n);
    rp_json_uint(json, "k", variant->k);
    if (variant->a_stride > 0)
        rp_json_uint(json, "a_stride", variant->a_stride);
    rp_json_string(json, "a", rp_dtype_names[variant->a]);
    rp_json_string(json, "b", rp_dtype_names[variant->b]);
    rp_json_string(json, "c", rp_dtype_names[variant->c]);
    if (variant->bias)
        rp_json_bool(json, "bias", TRUE);
    rp_json_uint(json, "way", variant->variant);
    rp_json_end(json);
}

void
rp_profile_write_matmuls(RpJsonWriter *json, const RpProfile *profile)
{
    if (*profile->matmul_library == '\0')
        return;
    rp_json_object(json, "matmuls");
    rp_json_string(json, "library", profile->matmul_library);
    rp_json_array(json, "ways");
    for (guint i = 0; i < profile->n_matmul_variants; i++)
        add_variant(json, &profile->matmul_variants[i]);
    rp_json_end(json);
    rp_json_end(json);
}
