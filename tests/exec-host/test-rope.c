#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include <math.h>

#include "exec/model/rope-table.h"
#include "exec/safetensors/safetensors.h"

#define POSITIONS 300

typedef struct {
    float *frequencies, *cosines, *sines;
    double *exact_frequencies;
    int32_t *positions;
} Tables;

static Tables
make_tables(guint head_size, size_t tokens)
{
    const RpRope rope = {.type = RP_ROPE_DEFAULT, .theta = 10000};
    Tables tables;

    tables.frequencies = host_bytes(head_size / 2 * sizeof(float));
    tables.cosines = host_bytes(POSITIONS * head_size / 2 * sizeof(float));
    tables.sines = host_bytes(POSITIONS * head_size / 2 * sizeof(float));
    tables.exact_frequencies = host_doubles(head_size / 2);
    tables.positions = host_bytes(tokens * sizeof(int32_t));
    rp_rope_frequencies(&rope, head_size, POSITIONS, tables.frequencies);
    rp_rope_table(tables.frequencies, head_size, POSITIONS, 1, tables.cosines, tables.sines);
    for (guint i = 0; i < head_size / 2; i++)
        tables.exact_frequencies[i] = (double)tables.frequencies[i];
    for (size_t t = 0; t < tokens; t++)
        tables.positions[t] = host_random_below(POSITIONS);
    return tables;
}

static void
check_rotation(RpDtype dtype, guint head_size, gboolean in_place)
{
    const size_t tokens = 23;
    const size_t heads = 3;
    const Tables tables = make_tables(head_size, tokens);
    double *want = host_doubles(tokens * heads * head_size);

    for (int direction = 1; direction >= -1; direction -= 2) {
        const Array x = host_random(dtype, tokens * heads * head_size, 1);
        const Array y = in_place ? x : host_output(dtype, x.n);
        const RpRopeArgs args = {.dtype = dtype,
                                 .tokens = tokens,
                                 .heads = heads,
                                 .head_size = head_size,
                                 .positions = tables.positions,
                                 .cosines = tables.cosines,
                                 .sines = tables.sines,
                                 .x = x.data,
                                 .y = y.data};

        reference_rope(tokens, heads, head_size, tables.positions, tables.exact_frequencies,
                       direction, x.values, want);
        if (direction > 0)
            rp_host_kernels()->rope_forward(NULL, &args);
        else
            rp_host_kernels()->rope_backward(NULL, &args);
        /* the tables hold fp32 angles: half a unit at 299 is 1.5e-5, as 41 terms allow */
        host_assert_close(y, want, 41 * 41, 0);
    }
}

RP_TEST(turns_heads_of_any_even_size)
{
    static const guint head_sizes[] = {2, 6, 34, 128, 1030};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(head_sizes); i++)
            for (gboolean in_place = FALSE; in_place <= TRUE; in_place++)
                check_rotation((RpDtype)dtype, head_sizes[i], in_place);
}

/* Forward from columns of wider rows, backward within them. */
RP_TEST(turns_columns)
{
    const size_t tokens = 9, heads = 3, row = 5, D = 16;
    const Tables tables = make_tables((guint)D, tokens);
    const Array x = host_random(RP_DTYPE_BF16, tokens * heads * D, 1);
    const Array wide = host_random(RP_DTYPE_BF16, tokens * row * D, 1);
    const Array want = host_output(RP_DTYPE_BF16, x.n), got = host_output(RP_DTYPE_BF16, x.n);
    const Array left = host_copy(wide);
    RpRopeArgs args = {.dtype = RP_DTYPE_BF16,
                       .tokens = tokens,
                       .heads = heads,
                       .head_size = D,
                       .positions = tables.positions,
                       .cosines = tables.cosines,
                       .sines = tables.sines};

    for (size_t t = 0; t < tokens; t++)
        memcpy((char *)wide.data + t * row * D * 2, (char *)x.data + t * heads * D * 2,
               heads * D * 2);
    args.x = x.data;
    args.y = want.data;
    rp_host_kernels()->rope_forward(NULL, &args);
    args.row_heads = row;
    args.x = wide.data;
    args.y = got.data;
    rp_host_kernels()->rope_forward(NULL, &args);
    host_assert_same(got, want);

    args.y = wide.data;
    rp_host_kernels()->rope_backward(NULL, &args);
    args.row_heads = 0;
    args.x = x.data;
    args.y = want.data;
    rp_host_kernels()->rope_backward(NULL, &args);
    for (size_t t = 0; t < tokens; t++) {
        const char *at = (char *)wide.data + t * row * D * 2;

        assert_memory_equal(at, (char *)want.data + t * heads * D * 2, heads * D * 2);
        assert_memory_equal(at + heads * D * 2, (char *)left.data + (t * row + heads) * D * 2,
                            (row - heads) * D * 2);
    }
}

RP_TEST(makes_the_frequencies_of_transformers)
{
    static const struct {
        const char *name;
        guint head_size;
        RpRope rope;
    } cases[] = {
        {"linear", 64, {.type = RP_ROPE_LINEAR, .theta = 1e4, .factor = 3}},
        {"dynamic",
         64,
         {.type = RP_ROPE_DYNAMIC, .theta = 1e4, .factor = 2.5, .original_max_positions = 4096}},
        {"yarn",
         64,
         {.type = RP_ROPE_YARN,
          .theta = 1e4,
          .factor = 4,
          .original_max_positions = 1024,
          .beta_fast = 32,
          .beta_slow = 1,
          .truncate = TRUE}},
        {"yarn-gpt-oss",
         64,
         {.type = RP_ROPE_YARN,
          .theta = 150000,
          .factor = 32,
          .original_max_positions = 4096,
          .beta_fast = 32,
          .beta_slow = 1}},
        {"plain-1e4-128", 128, {.theta = 1e4}},
        {"plain-1e6-128", 128, {.theta = 1e6}},
        {"plain-5e5-64", 64, {.theta = 5e5}},
        {"llama3-5e5-128",
         128,
         {.type = RP_ROPE_LLAMA3,
          .theta = 5e5,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_max_positions = 8192}},
        {"llama3-5e5-64",
         64,
         {.type = RP_ROPE_LLAMA3,
          .theta = 5e5,
          .factor = 32,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_max_positions = 8192}},
    };
    char *path = rp_test_source_path("tests/exec-host/fixtures/frequencies.safetensors");
    RpSafetensors *file = rp_must(rp_safetensors_open, path);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const RpSafetensor *tensor = rp_safetensors_find(file, cases[i].name);
        const Array got = host_output(RP_DTYPE_FP32, cases[i].head_size / 2);

        assert_non_null(tensor);
        assert_int_equal(tensor->elements, got.n);
        rp_rope_frequencies(&cases[i].rope, cases[i].head_size, 10000, got.data);
        for (size_t j = 0; j < got.n; j++) {
            const double want = (double)((const float *)tensor->data)[j];

            /* torch's pow may be off by a unit; the operations after it double that at most */
            assert_true(fabs(host_value(got, j) - want) <= want * 0x1p-22);
        }
    }
    rp_safetensors_free(file);
    g_free(path);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
