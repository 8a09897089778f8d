/**
 * A dataset, and a batcher over it, for tests of batches.
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/data/batch.h"

typedef struct {
    RpDataset *dataset;
    RpBatcher *batcher;
    RpTokenBatch *batch;
    GError *error;
} RpBatchFixture;

/* CMocka's. */
int rp_batch_fixture_setup(void **state);
int rp_batch_fixture_teardown(void **state);
void rp_batch_fixture_clear(RpBatchFixture *f);
/* Reads the next batch, which must be there. */
void rp_batch_fixture_next(RpBatchFixture *f);
/* Compares @n tokens. */
void rp_assert_row(const gint32 *row, gsize n, const gint32 *expected);
