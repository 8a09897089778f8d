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
