#include "tests/exec-host/host-fixture.h"

#include <math.h>
#include <stdlib.h>

#define TILE 1024 /* elements converted at once */

static GPtrArray *blocks;
static GRand *random_source;

int
host_setup(void **state)
{
    blocks = g_ptr_array_new_with_free_func(free);
    random_source = g_rand_new_with_seed(20261120);
    return 0;
}

int
host_teardown(void **state)
{
    g_clear_pointer(&blocks, g_ptr_array_unref);
    g_clear_pointer(&random_source, g_rand_free);
    return 0;
}

void *
host_bytes(size_t bytes)
{
    void *block = NULL;

    bytes = MAX(bytes, 1);
    assert_int_equal(posix_memalign(&block, 64, bytes), 0);
    memset(block, 0xff, bytes);
    g_ptr_array_add(blocks, block);
    return block;
}

guint
host_mark(void)
{
    return blocks->len;
}

void
host_free_since(guint mark)
{
    g_ptr_array_set_size(blocks, (gint)mark);
}

void *
host_workspace(size_t bytes)
{
    return bytes > 0 ? host_bytes(bytes) : NULL;
}

Array
host_output(RpDtype dtype, size_t n)
{
    return (Array){dtype, n, host_bytes(n * rp_dtype_size(dtype)), NULL};
}

static void
read_values(Array *array)
{
    float tile[TILE];

    array->values = host_doubles(array->n);
    for (size_t first = 0; first < array->n; first += TILE) {
        const size_t n = MIN(TILE, array->n - first);

        rp_dtype_to_float(array->dtype, (char *)array->data + first * rp_dtype_size(array->dtype),
                          tile, n);
        for (size_t i = 0; i < n; i++)
            array->values[first + i] = (double)tile[i];
    }
}

Array
host_random(RpDtype dtype, size_t n, double spread)
{
    Array array = host_output(dtype, n);
    float tile[TILE];

    for (size_t first = 0; first < n; first += TILE) {
        const size_t count = MIN(TILE, n - first);

        for (size_t i = 0; i < count; i++) {
            const double radius = sqrt(-2 * log(1 - g_rand_double(random_source)));

            tile[i] = (float)(spread * radius * cos(2 * G_PI * g_rand_double(random_source)));
        }
        rp_dtype_from_float(dtype, tile, (char *)array.data + first * rp_dtype_size(dtype), count);
    }
    read_values(&array);
    return array;
}

Array
host_copy(Array array)
{
    Array copy = host_output(array.dtype, array.n);

    memcpy(copy.data, array.data, array.n * rp_dtype_size(array.dtype));
    read_values(&copy);
    return copy;
}

gint32
host_random_below(gint32 end)
{
    return g_rand_int_range(random_source, 0, end);
}

double
host_value(Array array, size_t i)
{
    switch (array.dtype) {
    case RP_DTYPE_BF16:
        return (double)rp_float_from_bf16(((const guint16 *)array.data)[i]);
    case RP_DTYPE_FP16:
        return (double)rp_float_from_fp16(((const guint16 *)array.data)[i]);
    default:
        break;
    }
    return (double)((const float *)array.data)[i];
}

void
host_check_close(Array got, const double *want, size_t terms, double roundings, const char *file,
                 int line)
{
    static const double units[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = 0x1p-24, [RP_DTYPE_BF16] = 0x1p-8, [RP_DTYPE_FP16] = 0x1p-11};
    const double unit = units[got.dtype];
    const double least = got.dtype == RP_DTYPE_FP16 ? 0x1p-25 : 0;
    double largest = 1;

    for (size_t i = 0; i < got.n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < got.n; i++) {
        const double value = host_value(got, i);
        const double tolerance =
            unit * fabs(want[i]) + least +
            (8 * sqrt((double)terms) * 0x1p-24 + 2 * unit * roundings) * largest;

        if (fabs(value - want[i]) <= tolerance)
            continue;
        print_error("%s, element %zu of %zu: %.9g, expected %.9g +- %.3g\n",
                    rp_dtype_name(got.dtype), i, got.n, value, want[i], tolerance);
        _fail(file, line);
    }
}
