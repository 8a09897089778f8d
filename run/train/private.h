/**
 * What is known before the first step: job.c and times.c share this.
 */
#pragma once

#include "run/train/job.h"

/* The network of the job's model and options, over its weights. */
RpNetwork *rp_train_job_network(const RpTrainJob *job);

/* Sets the job's profile, and what follows from it: whose attention, the head's chunk, the memory
 * that there is. @earlier_run: as rp_train_job_prepare() */
gboolean rp_train_find_times(RpTrainJob *job, const char *earlier_run,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
