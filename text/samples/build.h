/**
 * Makes a cache of samples out of files of records, on several threads and in bounded memory:
 *
 *   caller    |read records of job 4|write samples of job 2|read ...
 *   threads   |encode job 2| |encode job 3|
 *
 * Jobs are written in the order in which they were read: the file does not depend on the threads.
 */
#pragma once

#include "text/samples/cache.h"
#include "text/samples/encode.h"

/* @done and @total: bytes of the files, as they are on the disk. Returns: whether to go on */
typedef gboolean (*RpBuildProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    const char *const *paths; /* up to %NULL */
    const RpEncoder *encoder;
    guint threads;            /* 0: as many as there are processors */
    gboolean skip_bad;        /* records that no sample can be made of are counted and left out */
    RpBuildProgress progress; /* (nullable) */
    gpointer user_data;
} RpSamplesBuild;

/**
 * rp_samples_build:
 * @path: the cache's; @key: hash of all that it follows from
 * @header: (out): set on success only
 * @bad: (out) (nullable) (transfer full): the error of the first record left out
 *
 * Errors: those of rp_records_open(), rp_records_next(), rp_encoder_read() and the writer: the first
 *   in the order of the files; RP_SAMPLES_ERROR_NOTHING; G_IO_ERROR_CANCELLED
 */
gboolean rp_samples_build(const RpSamplesBuild *build, const char *path, guint64 key,
                          RpCacheHeader *header, char **bad,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
