#include "tests/exec-lowbit/lowbit-fixture.h"

#include <glib/gstdio.h>

#include "exec/lowbit/lowbit-file.h"

typedef struct {
    char *directory;
    char *path;
} Fixture;

static void
setup(Fixture *fixture)
{
    fixture->directory = g_dir_make_tmp("rp-lowbit-XXXXXX", NULL);
    fixture->path = g_build_filename(fixture->directory, "model.safetensors", NULL);
}

static void
teardown(Fixture *fixture)
{
    g_unlink(fixture->path);
    g_rmdir(fixture->directory);
    g_free(fixture->path);
    g_free(fixture->directory);
}

static RpLowbitSource
find(const RpSafetensors *tensors, const char *name)
{
    RpLowbitSource source = {0};
    GError *error = NULL;

    if (!rp_lowbit_source_find(tensors, name, &source, &error))
        print_message("%s\n", error->message);
    assert_null(error);
    return source;
}

static guint8 *
load(const RpLowbitSource *source)
{
    guint8 *packed =
        lowbit_scratch(source->format, rp_lowbit_shape_of(source->shape, source->rank));

    rp_lowbit_source_load(source, packed, NULL);
    return packed;
}

/* The name of a weight of a fixture: with `.weight` where its file has that. */
static char *
weight_name(const RpSafetensor *source, const char *form, const char *suffix)
{
    g_autofree char *name = g_strndup(source->name, strlen(source->name) - strlen(".source"));

    return g_strconcat(name, form, suffix, NULL);
}

/* Reads each weight of @file as others wrote it; our own packing of its source has the same
 * bytes. */
static void
check_file(const char *file, RpLowbit format, const char *form, const char *suffix)
{
    g_autoptr(RpSafetensors) tensors = lowbit_open(file);
    guint n = 0;

    for (guint i = 0; i < rp_safetensors_count(tensors); i++) {
        const RpSafetensor *plain = rp_safetensors_nth(tensors, i);

        if (!g_str_has_suffix(plain->name, ".source") ||
            (format == RP_LOWBIT_MXFP4 && plain->shape[plain->rank - 1] % 32 != 0))
            continue;
        if (format == RP_LOWBIT_NF4 && strcmp(plain->name, "large.source") == 0)
            continue;
        g_autofree char *name = weight_name(plain, form, suffix);
        const RpLowbitSource source = find(tensors, name);
        g_autofree guint8 *packed = load(&source);
        g_autofree guint8 *ours = lowbit_scratch(format, lowbit_shape(plain));
        g_autoptr(GError) error = NULL;

        assert_true(source.is_packed);
        assert_int_equal(source.format, format);
        assert_int_equal(source.rank, plain->rank);
        assert_memory_equal(source.shape, plain->shape, plain->rank * sizeof *plain->shape);
        assert_true(rp_lowbit_pack_tensor(format, plain, ours, NULL, &error));
        assert_memory_equal(packed, ours, rp_lowbit_layout(format, lowbit_shape(plain)).total);
        if (strstr(name, "large") == NULL)
            assert_true(rp_lowbit_source_check(&source, packed, RP_DTYPE_BF16, NULL, &error));
        n++;
    }
    assert_true(n >= 3);
}

RP_TEST(reads_what_others_have_written)
{
    check_file("nf4.safetensors", RP_LOWBIT_NF4, "", ".weight");
    check_file("nf4.safetensors", RP_LOWBIT_NF4_SINGLE, "-single", ".weight");
    check_file("mxfp4.safetensors", RP_LOWBIT_MXFP4, "", "");
    check_file("fp8.safetensors", RP_LOWBIT_FP8, "", ".weight");
}

RP_TEST(packs_alike_on_any_number_of_threads)
{
    const guint64 n = 300 * 4099;
    g_autofree guint16 *values = g_new(guint16, n);
    const RpSafetensor tensor = {.name = "w",
                                 .file = "f",
                                 .supported = TRUE,
                                 .dtype = RP_DTYPE_BF16,
                                 .rank = 2,
                                 .shape = {300, 4099},
                                 .elements = n,
                                 .bytes = n * 2,
                                 .data = values};
    const RpLowbitShape shape = {1, 300, 4099};
    g_autoptr(GError) error = NULL;
    g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){.n_threads = 3}, &error);

    assert_non_null(pool);
    for (guint64 i = 0; i < n; i++)
        values[i] = lowbit_noise(i);
    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        g_autofree guint8 *one = lowbit_scratch((RpLowbit)f, shape);
        g_autofree guint8 *many = lowbit_scratch((RpLowbit)f, shape);

        assert_true(rp_lowbit_pack_tensor((RpLowbit)f, &tensor, one, NULL, &error));
        assert_true(rp_lowbit_pack_tensor((RpLowbit)f, &tensor, many, pool, &error));
        assert_memory_equal(one, many, rp_lowbit_layout((RpLowbit)f, shape).total);
    }
    values[120 * 4099 + 7] = 0x7f80;
    values[299 * 4099] = 0x7fc0;
    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        g_autofree guint8 *packed = lowbit_scratch((RpLowbit)f, shape);
        g_autoptr(GError) fault = NULL;

        assert_false(rp_lowbit_pack_tensor((RpLowbit)f, &tensor, packed, pool, &fault));
        assert_string_equal(fault->message,
                            "f: tensor \"w\": expected finite values in bf16, found one that is "
                            "infinite or NaN at [120, 7]");
    }
}

RP_TEST_OF(writes_what_it_reads, const Fixture *fixture)
{
    static const char *const names[] = {"a.weight", "b.weight", "c.gate_up_proj", "d.weight"};
    const guint64 shape[] = {2, 70, 96};
    const RpLowbitShape as = {2, 70, 96};
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(fixture->path, 0);
    g_autoptr(GError) error = NULL;
    RpLowbitTarget targets[RP_N_LOWBITS] = {0};
    guint8 *packed[RP_N_LOWBITS];
    guint16 values[2 * 70 * 96];
    const RpSafetensor tensor = {.name = "w",
                                 .file = "f",
                                 .supported = TRUE,
                                 .dtype = RP_DTYPE_BF16,
                                 .rank = 3,
                                 .shape = {2, 70, 96},
                                 .elements = G_N_ELEMENTS(values),
                                 .data = values};

    for (guint i = 0; i < G_N_ELEMENTS(values); i++)
        values[i] = lowbit_noise(i);
    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        packed[f] = lowbit_scratch((RpLowbit)f, as);
        assert_true(rp_lowbit_pack_tensor((RpLowbit)f, &tensor, packed[f], NULL, &error));
        assert_true(rp_lowbit_target_add(writer, names[f], (RpLowbit)f, shape, 3, RP_DTYPE_BF16,
                                         &targets[f], &error));
    }
    assert_true(rp_safetensors_writer_begin(writer, &error));
    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        assert_true(rp_lowbit_target_write(writer, &targets[f], packed[f], &error));
        rp_lowbit_target_clear(&targets[f]);
    }
    assert_true(rp_safetensors_writer_finish(writer, &error));
    g_autoptr(RpSafetensors) tensors = rp_safetensors_open(fixture->path, &error);
    assert_non_null(tensors);
    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        const RpLowbitSource source = find(tensors, names[f]);
        g_autofree guint8 *again = load(&source);

        assert_int_equal(source.format, f);
        assert_int_equal(source.rank, 3);
        assert_memory_equal(source.shape, shape, sizeof shape);
        assert_memory_equal(again, packed[f], rp_lowbit_layout((RpLowbit)f, as).total);
        g_free(packed[f]);
    }
}

/* One tensor of a file that is made up. */
typedef struct {
    const char *name, *type;
    guint64 bytes; /* bytes of a vector */
    const char *data;
} Part;

static void
assert_refuses(const char *path, const Part *parts, guint n, const char *name, const char *words)
{
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(path, 0);
    g_autoptr(GError) error = NULL;
    RpLowbitSource source;

    for (guint i = 0; i < n; i++)
        assert_int_equal(rp_safetensors_writer_add_type(writer, parts[i].name, parts[i].type,
                                                        &parts[i].bytes, 1),
                         i);
    assert_true(rp_safetensors_writer_begin(writer, &error));
    for (guint i = 0; i < n; i++) {
        g_autofree char *zeros = g_malloc0(parts[i].bytes);

        assert_true(rp_safetensors_writer_write(
            writer, i, parts[i].data != NULL ? parts[i].data : zeros, parts[i].bytes, &error));
    }
    assert_true(rp_safetensors_writer_finish(writer, &error));
    g_autoptr(RpSafetensors) tensors = rp_safetensors_open(path, &error);
    assert_non_null(tensors);
    assert_false(rp_lowbit_source_find(tensors, name, &source, &error));
    if (strstr(error->message, words) == NULL)
        fail_msg("expected \"%s\" in \"%s\"", words, error->message);
    assert_null(strchr(error->message, '\n'));
}

RP_TEST_OF(refuses_other_formats_by_name, const Fixture *fixture)
{
    static const struct {
        const char *mark, *words;
    } others[] = {
        {"l.g_idx", "found GPTQ"},
        {"l.qweight", "found AWQ"},
        {"l.SCB", "found bitsandbytes int8"},
        {"l.weight.quant_state.bitsandbytes__fp4", "found bitsandbytes fp4"},
        {"l.weight_packed", "found compressed-tensors"},
        {"l.weight_scale_2", "found NVFP4"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        const Part parts[] = {{"l.weight", "U8", 32}, {others[i].mark, "U8", 4}};

        assert_refuses(fixture->path, parts, 2, "l.weight", others[i].words);
    }
    assert_refuses(fixture->path, &(Part){"l.weight", "I8", 32}, 1, "l.weight", "found I8");
    assert_refuses(fixture->path, &(Part){"l.weight", "U8", 32}, 1, "m.weight",
                   "\"m.weight\": expected a weight, found no such tensor");
}

#define STATE(more) "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[8,16]" more "}"
#define STATE_PART(text)                                                                           \
    {                                                                                              \
        "l.weight.quant_state.bitsandbytes__nf4", "U8", sizeof(text) - 1, text                     \
    }

RP_TEST_OF(refuses_parts_that_do_not_fit, const Fixture *fixture)
{
    static const float values[] = {RP_NF4_VALUES};
    /* 128 weights */
    Part parts[] = {{"l.weight", "U8", 64},
                    {"l.weight.quant_map", "U8", 64, (const char *)values},
                    {"l.weight.absmax", "U8", 2},
                    STATE_PART(STATE(",\"nested_offset\":0.5")),
                    {"l.weight.nested_absmax", "U8", 4},
                    {"l.weight.nested_quant_map", "U8", 1024}};

    assert_refuses(fixture->path, parts, 4, "l.weight",
                   "\"l.weight.nested_absmax\": expected it beside \"l.weight\"");
    assert_refuses(fixture->path, parts, 6, "l.weight", "expected 4 bytes of F32, found U8 [4]");
    parts[2].bytes = 1;
    assert_refuses(fixture->path, parts, 6, "l.weight",
                   "\"l.weight.absmax\": expected 2 bytes of U8, found U8 [1]");
    parts[0].bytes = 63;
    assert_refuses(fixture->path, parts, 6, "l.weight",
                   "\"l.weight\": expected 64 bytes of U8, found U8 [63]");
    parts[0].bytes = 64;
    parts[1].data = NULL;
    assert_refuses(fixture->path, parts, 6, "l.weight", "expected the 16 values of NF4");
    parts[3] = (Part)STATE_PART(STATE(",\"nested_offset\":1e300"));
    assert_refuses(fixture->path, parts, 6, "l.weight", "expected a finite nested_offset");
    parts[3] = (Part)STATE_PART("{\"quant_type\":\"nf4\",\"blocksize\":128,\"shape\":[8,16]}");
    assert_refuses(fixture->path, parts, 6, "l.weight", "expected blocks of 64");
    parts[3] = (Part)STATE_PART("{\"quant_type\":\"nf4\",\"blocksize\":64");
    assert_refuses(fixture->path, parts, 6, "l.weight", "quant_state.bitsandbytes__nf4\"");
    parts[3] = (Part)STATE_PART("{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[0,16]}");
    assert_refuses(fixture->path, parts, 6, "l.weight", "expected a shape");
    assert_refuses(fixture->path, &(Part){"l_blocks", "U8", 64}, 1, "l",
                   "expected U8 [.., blocks, 16]");
    assert_refuses(fixture->path, &(Part){"l.weight", "F8_E4M3", 64}, 1, "l.weight",
                   "\"l.weight_scale_inv\": expected it beside \"l.weight\"");
}

/* bitsandbytes saves an infinite nested_offset, and reads it again. */
RP_TEST(refuses_scales_with_an_infinite_sum)
{
    g_autoptr(RpSafetensors) tensors = lowbit_open("nf4.safetensors");
    const RpSafetensor *plain = lowbit_find(tensors, "large", ".source");
    g_autofree guint8 *packed = lowbit_scratch(RP_LOWBIT_NF4, lowbit_shape(plain));
    g_autoptr(GError) error = NULL;
    g_autoptr(GError) on_reading = NULL;
    RpLowbitSource source;

    assert_false(rp_lowbit_pack_tensor(RP_LOWBIT_NF4, plain, packed, NULL, &error));
    assert_non_null(strstr(error->message, "tensor \"large.source\": expected values that nf4 can "
                                           "hold, found ones whose scales have an infinite sum"));
    assert_false(rp_lowbit_source_find(tensors, "large.weight", &source, &on_reading));
    assert_non_null(
        strstr(on_reading->message, "nested_offset: expected a number, found Infinity"));
}

/* Scales that are NaN pass as bytes; the look behind loading finds them. */
RP_TEST(refuses_scales_that_are_nan)
{
    g_autoptr(RpSafetensors) tensors = lowbit_open("mxfp4.safetensors");
    const RpLowbitSource source = find(tensors, "experts.gate_up_proj");
    const RpLowbitShape shape = rp_lowbit_shape_of(source.shape, source.rank);
    const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_MXFP4, shape);
    g_autofree guint8 *packed = load(&source);
    g_autoptr(GError) error = NULL;

    assert_true(rp_lowbit_source_check(&source, packed, RP_DTYPE_FP16, NULL, &error));
    packed[layout.at[RP_LOWBIT_SCALES] + 15] = 255; /* expert 1, row 1, second block */
    assert_false(rp_lowbit_source_check(&source, packed, RP_DTYPE_FP16, NULL, &error));
    assert_non_null(strstr(error->message,
                           "tensor \"experts.gate_up_proj_blocks\": expected finite values in "
                           "fp16, found one that is infinite or NaN at [1, 1, 32]"));
}

RP_TEST(names_a_cache_by_format_and_hash)
{
    g_autoptr(RpSafetensors) a = lowbit_open("mxfp4.safetensors");
    g_autoptr(RpSafetensors) b = lowbit_open("fp8.safetensors");
    g_autofree char *one = rp_lowbit_cache_name(RP_LOWBIT_NF4, a);
    g_autofree char *same = rp_lowbit_cache_name(RP_LOWBIT_NF4, a);
    g_autofree char *other = rp_lowbit_cache_name(RP_LOWBIT_NF4, b);
    g_autofree char *format = rp_lowbit_cache_name(RP_LOWBIT_FP8, a);

    assert_true(g_regex_match_simple("^model\\.nf4-[0-9a-f]{16}\\.safetensors$", one, 0, 0));
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    assert_true(g_str_has_prefix(format, "model.fp8-"));
}

RP_TEST_STATE(Fixture, setup, teardown)
