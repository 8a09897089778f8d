/**
 * Files for tests of `roundpipe train`: a tiny model, data, layer times and a run file in @T, and
 * what is left when it is over.
 */
#pragma once

#include "tests/cli/run-cli.h"

/* Fixture of a group, which rp_cli_teardown() ends: rp_cli_setup() and @T/model of @T/tiny.json, @T/data.jsonl,
 * @T/pairs.jsonl of preferences, @T/times.json, @T/run.yaml; and @T/tiny-gpt-oss.json, a config of a mixture of experts.
 * The run has a round of its four micro-batches, so that sums do not depend on the devices. */
int rp_train_files_setup(void **state);

/* Trains @T/run.yaml with the options @line: ends well, and uses the bytes that were planned. */
void rp_train_files_train(const char *line);

/* Names in @T/@name but the lock, sorted, joined by spaces. (transfer full) */
char *rp_train_files_list(const char *name);

/* The lines of @T/@output/metrics.jsonl without their times. (transfer full) */
char *rp_train_files_learned(const char *output);

/* Fails unless both have the same files with the same bytes. */
void rp_train_files_assert_same(const char *expected, const char *found);
