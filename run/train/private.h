/**
 * The state before the first step, shared by job.c, data.c and times.c.
 */
#pragma once

#include "run/train/job.h"

/* Says how the job's weights are held, and makes the checkpoint that they are bound to afterwards: the
 * model's own or its packed form, which is written if it is not there. Errors: RP_RUN_ERROR_VALUE,
 * those of rp_weights_adopt() and rp_quantise() */
gboolean rp_train_open_base(RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The format of the frozen matrices; %NULL: 16 or 32 bits. */
const char *rp_train_base_format(const RpWeights *weights);

/* Opens the job's data and reads them once; says how batches are made of them, the network's
 * packed_tokens, and @run's steps if it has epochs. Errors: RP_RUN_ERROR_VALUE, those of rp_dataset_open() and rp_dataset_check() */
gboolean rp_train_open_data(RpTrainJob *job, RpRunSpec *run,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The network of the job's model and options, over its weights. */
RpNetwork *rp_train_job_network(const RpTrainJob *job);

/* RpEvaluationProgress of an RpTrainJob: tells its events of it, and asks them. */
gboolean rp_train_evaluation_progress(gpointer job, guint64 n_samples);

/* Once there is a plan: how long an evaluation takes, by a plan that only runs forward. */
gboolean rp_train_predict_evaluation(RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- servers.c: nothing of one server ---- */

/* Refuses what several servers cannot do; @run's round becomes that of each. Errors:
 * RP_RUN_ERROR_VALUE */
gboolean rp_train_divide(const RpTrainJob *job, RpRunSpec *run,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @bytes: (inout): of a limit, the least of all servers; 0: there is none. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_least(const RpTrainJob *job, guint64 *bytes,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Sets the job's speeds, and its profile's network: the slowest of all. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_measure_servers(RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Model and data are the same on all. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_agree_inputs(const RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* And the plan. Errors: RP_SERVERS_ERROR_* */
gboolean rp_train_agree_plan(const RpTrainJob *job, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Sets the job's profile, and what follows from it: whose attention, the head's chunk, the memory
 * that there is. @earlier_run: as rp_train_job_prepare() */
gboolean rp_train_find_times(RpTrainJob *job, const char *earlier_run,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
