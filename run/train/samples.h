/**
 * The data that a run names: files, folders and patterns become one dataset. Records of text become a
 * cache of samples first, which is used again as long as nothing of it changes.
 */
#pragma once

#include "core/catalogue/model.h"
#include "exec/data/dataset.h"
#include "run/train/job.h"
#include "text/chat/chat.h"

/* A run whose data are read: its keys data, data_weights, sequence_length, data_cache, skip_bad_samples, train_on,
 * chat_template, eval.split and seed count. */
typedef struct {
    const RpRunSpec *run;
    const char *key;   /* for messages, where data is named */
    const char *model; /* directory with a tokenizer, if texts are read; %NULL: none are */
    const RpModel *config;
} RpSamplesSource;

typedef struct {
    RpDataset *train;
    RpDataset *validation; /* %NULL without a split */
    char *cache;           /* file; %NULL: none was needed */
    gboolean reused;
    RpCacheHeader header; /* of the cache */
    char *bad;            /* what was wrong with the first record that was left out; or %NULL */
} RpRunSamples;

void rp_run_samples_clear(RpRunSamples *samples);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpRunSamples, rp_run_samples_clear)

/* Files that @data names: those of a folder and of a pattern, sorted. (transfer full)
 * Errors: G_FILE_ERROR, RP_RUN_ERROR_VALUE */
char **rp_run_data_files(const char *data, GArray *groups,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @samples: (out): set on success only. Errors: those of the data, RP_RUN_ERROR_VALUE */
gboolean rp_run_samples_open(const RpSamplesSource *source, const RpRunEvents *events,
                             RpRunSamples *samples, GError **error) G_GNUC_WARN_UNUSED_RESULT;
