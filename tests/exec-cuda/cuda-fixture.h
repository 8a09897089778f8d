/**
 * Holds CUDA's kernels to the host's: one function computes with either table on the same inputs.
 *
 *   host --------------------> want
 *   device ------------------> close to want
 *   device, again -----------> the same bits
 *   device, shifted ---------> the same bits: all arrays one element further
 *
 * Programs of these tests exit with 77, skipped, if there is no device. Under compute-sanitizer
 * they take minutes: RP_TEST_FILTER='attends_in_bf16*' runs those tests alone.
 */
#pragma once

#include "tests/exec-host/host-fixture.h"

#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"

/* The device on which one run computes. */
typedef struct {
    const RpKernels *kernels;
    RpKernelStream *stream; /* NULL: on the host */
    size_t shift;           /* elements that every array is moved by; device only */
} Side;

#define CUDA_MOST_OUTPUTS 5

/* Results of one run. Unused entries are zero. */
typedef struct {
    Array arrays[CUDA_MOST_OUTPUTS];
    size_t terms[CUDA_MOST_OUTPUTS]; /* length of the longest sum behind a value */
    double slack[CUDA_MOST_OUTPUTS]; /* error of a value beyond what its storage and terms allow */
    double sums[CUDA_MOST_OUTPUTS];  /* held to a millionth */
} Outputs;

typedef void (*Compute)(const Side *side, const void *inputs, Outputs *outputs);

/* Whether there is a device. */
gboolean cuda_available(void);

int cuda_setup(void **state);
int cuda_teardown(void **state);

/* A copy of @n elements of @size bytes where @side computes, at multiples of @size. */
void *cuda_copy_in(const Side *side, const void *data, size_t n, size_t size);
/* Memory for them there, full of NaN. */
void *cuda_scratch(const Side *side, size_t n, size_t size);
/* Not shifted; NULL for nothing. */
void *cuda_workspace(const Side *side, size_t bytes);
/* Waits for the side's stream, whose failures fail the test; copies back. */
void cuda_copy_out(const Side *side, const void *data, void *target, size_t bytes);

/* The same of arrays. */
void *cuda_in(const Side *side, Array array);
void *cuda_out(const Side *side, RpDtype dtype, size_t n);
Array cuda_result(const Side *side, RpDtype dtype, size_t n, const void *data);

/* Like host_random(), but values repeat after a prime number of them: for arrays of millions, most
 * of whose time that takes. Has no `values`. */
Array cuda_random(RpDtype dtype, size_t n, double spread);
/* The largest magnitude that is a number, or 1 if that is more. */
double cuda_largest(Array array);

/**
 * cuda_hold_to_host:
 * @anywhere: whether shifted arrays must give the same bits; else they need only be close
 *
 * The arrays made by @compute are freed again.
 *
 * Arrays: host and device are each allowed host_assert_close()'s tolerance from the exact value, so
 * twice that from one another.
 */
void cuda_hold_to_host(Compute compute, const void *inputs, gboolean anywhere);
/* The tolerance of cuda_hold_to_host(), with terms and slack of @want. @where: whose @got is */
void cuda_assert_close(const Outputs *got, const Outputs *want, const char *where);
/* The device's stream of this test. */
RpKernelStream *cuda_stream(void);
