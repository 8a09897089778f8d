/**
 * What is known before the first step: job.c, times.c and predict.c share this.
 */
#pragma once

#include "run/train/job.h"

/* The network of the job's model and options, over its weights. */
RpNetwork *rp_train_job_network(const RpTrainJob *job);

/* ---- times.c ---- */

/* Sets the job's profile, and what follows from it: whose attention, the head's chunk, the memory
 * that there is. @earlier_run: as rp_train_job_prepare() */
gboolean rp_train_find_times(RpTrainJob *job, const char *earlier_run,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- predict.c ---- */

/* A prediction that would not fit in memory is refused before anything long is done: here before
 * there is a partition. */
gboolean rp_train_check_least_size(const RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Partition, plan, trace and their figures. */
gboolean rp_train_predict(RpTrainJob *job, const RpNetwork *network, gboolean dry,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
