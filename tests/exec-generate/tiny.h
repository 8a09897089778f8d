/**
 * Tiny models with the answers that transformers gives (fixtures/make-answers.py), on any device.
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/device/device.h"

int rp_tiny_setup(void **state);
int rp_tiny_teardown(void **state);
/* Greedy answers, all prompts at once and each alone: token by token the same. */
void rp_tiny_check_all(gpointer state, const RpDeviceOps *devices);
/* Answers of prompts that take several blocks, in any batch and order, with few blocks, on two devices and to prompts of one
 * group: the same as of each alone; and the next token of a prompt is that of the same tokens, one by one. */
void rp_tiny_check_batches(gpointer state, const RpDeviceOps *devices);
/* The same answers with as little memory as they can have, with more, up to that of all layers; and on two devices, which
 * share their weights on the host. */
void rp_tiny_check_streamed(gpointer state, const RpDeviceOps *devices);
