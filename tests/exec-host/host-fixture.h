/**
 * Arrays for tests of kernels: in the storage under test, each with the exact double values of its
 * elements. All arrays live until the test's teardown, or host_free_since().
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/host/kernels.h"

typedef struct {
    RpDtype dtype;
    size_t n;
    void *data;     /* exactly n elements, so that a sanitizer sees overruns */
    double *values; /* values of @data when it was made */
} Array;

int host_setup(void **state);
int host_teardown(void **state);

/* Memory of exactly @bytes (at least 1), at a multiple of 64, full of 0xff: NaN. */
void *host_bytes(size_t bytes);
/* Number of arrays made so far; host_free_since() frees all made after @mark. */
guint host_mark(void);
void host_free_since(guint mark);
/* The same, but NULL for nothing. */
void *host_workspace(size_t bytes);
#define host_doubles(n) ((double *)host_bytes((n) * sizeof(double)))

/* Normal random values, times @spread, rounded to the storage; the same for every run. */
Array host_random(RpDtype dtype, size_t n, double spread);
/* Full of NaN, for an output that an operation must write whole. */
Array host_output(RpDtype dtype, size_t n);
Array host_copy(Array array);
gint32 host_random_below(gint32 end);

/* The value of element @i of @array. */
double host_value(Array array, size_t i);

/**
 * host_assert_close:
 * @terms: length of the longest sum behind a value
 * @roundings: to the storage of @got, beside the last one, that the values have been through
 *
 * |got - want| <= u |want| + (8 sqrt(terms) 2^-24 + 2 u roundings) max(1, max |want|), with u the
 * largest relative rounding error of the storage: fp32 2^-24, bf16 2^-8, fp16 2^-11 (and 2^-25
 * absolute, since it has subnormals). 1: inputs are of order 1, and terms may cancel.
 */
#define host_assert_close(got, want, terms, roundings)                                             \
    host_check_close((got), (want), (terms), (roundings), __FILE__, __LINE__)
void host_check_close(Array got, const double *want, size_t terms, double roundings,
                      const char *file, int line);

/* Fails unless both hold the same bits. */
#define host_assert_same(a, b)                                                                     \
    assert_memory_equal((a).data, (b).data, (a).n *rp_dtype_size((a).dtype))
