/**
 * The parts of a tokenizer.json, each a reader of a row (core/json/json-record.h) whose value is the
 * tokenizer.
 */
#pragma once

#include "text/tokenizer/private.h"

/* Steps of one kind, with those within others. */
#define RP_TOKENIZER_MAX_STEPS 64

gboolean rp_tokenizer_read_normalizer(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_tokenizer_read_pre_tokenizer(RpJsonPull *pull, const RpJsonField *field,
                                         gpointer value);
gboolean rp_tokenizer_read_post_processor(RpJsonPull *pull, const RpJsonField *field,
                                          gpointer value);
gboolean rp_tokenizer_read_decoder(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_tokenizer_read_model(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_tokenizer_read_added(RpJsonPull *pull, const RpJsonField *field, gpointer value);

/* Any text, into a char *; the old one is freed. */
gboolean rp_tokenizer_read_string(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* {"String": …} or {"Regex": …}, into an RpPattern *. */
gboolean rp_tokenizer_read_pattern(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* Each element of an array by @read. */
gboolean rp_tokenizer_read_each(RpJsonPull *pull, RpJsonRead read, gpointer value);
