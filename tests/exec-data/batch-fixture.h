/**
 * A dataset and one sample of it, for tests of files; and a batcher over a dataset, for tests of batches.
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/data/batch.h"

#define RP_SAMPLE_CAPACITY 8

typedef struct {
    RpDataset *dataset;
    GError *error;
    GBytes *bytes;
    char *text;
    char *path; /* removed at the end */
    gint32 input_ids[RP_SAMPLE_CAPACITY];
    gint32 labels[RP_SAMPLE_CAPACITY];
    RpSample sample; /* of these */
} RpSampleFixture;

/* RP_TEST_STATE() takes them. */
void rp_sample_fixture_setup(RpSampleFixture *f);
void rp_sample_fixture_teardown(RpSampleFixture *f);
/* Closes the dataset. */
void rp_sample_fixture_clear(RpSampleFixture *f);
/* Opens @length bytes of @text as JSONL with a vocabulary of 100. */
void rp_sample_fixture_open(RpSampleFixture *f, const char *text, gsize length);

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
