#include "exec/data/state.h"

#include "core/json/json-write.h"
#include "exec/data/dataset.h"

/* The second: the first index of RpDataState.sampled. */
static const char *const formats[] = {RP_DATA_STATE_FORMAT, RP_DATA_STATE_OLD_FORMAT, NULL};

/* Indices of samples; their upper limit is checked after the object. */
static gboolean
read_held(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpDataState *state = value;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (state->n_held == RP_DATA_MOST_HELD)
            return rp_json_pull_fail_value(pull, field->expected);
        if (!rp_json_pull_whole(pull, &state->held[state->n_held]))
            return FALSE;
        state->n_held++;
    }
    return !pull->failed;
}

#define WHOLE(key, member)                                                                         \
    {                                                                                              \
        key, rp_json_read_uint64, G_STRUCT_OFFSET(RpDataState, member), .required = TRUE           \
    }

/* Keys in the order of the file. */
static const RpJsonField fields[] = {
    {"format", rp_json_read_choice_index, G_STRUCT_OFFSET(RpDataState, sampled), .required = TRUE,
     .choices = formats},
    {"shuffle", rp_json_read_boolean, G_STRUCT_OFFSET(RpDataState, shuffle), .required = TRUE},
    WHOLE("samples", n_samples),
    WHOLE("fingerprint", fingerprint),
    WHOLE("seed", seed),
    WHOLE("epoch", epoch),
    WHOLE("position", position),
    WHOLE("iterations", n_iterations),
    WHOLE("tokens", n_tokens),
    WHOLE("targets", n_targets),
    WHOLE("truncated", n_truncated),
    WHOLE("cut_tokens", n_cut_tokens),
    WHOLE("dropped", n_dropped),
    /* from here on not in every file */
    {"left_out", rp_json_read_uint64, G_STRUCT_OFFSET(RpDataState, n_left_out)},
    {"held", read_held, .expected = "at most " G_STRINGIFY(RP_DATA_MOST_HELD) " samples"},
};
#define N_OPTIONAL 2

char *
rp_data_state_to_json(const RpDataState *state)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_string(json, "format", formats[state->sampled]);
    rp_json_bool(json, "shuffle", state->shuffle);
    for (gsize i = 2; i < G_N_ELEMENTS(fields) - N_OPTIONAL; i++)
        rp_json_uint(json, fields[i].key, G_STRUCT_MEMBER(guint64, state, fields[i].offset));
    if (state->n_left_out > 0)
        rp_json_uint(json, "left_out", state->n_left_out);
    if (state->n_held > 0) {
        rp_json_array(json, "held");
        for (guint i = 0; i < state->n_held; i++)
            rp_json_uint(json, NULL, state->held[i]);
        rp_json_end(json);
    }
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

gboolean
rp_data_state_read(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpDataState read = {0};
    RpJsonRecord record;

    if (!rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), &read, &record))
        return FALSE;
    if (read.n_samples == 0 || read.n_samples > G_MAXINT64)
        return rp_json_record_fail(&record, pull, "samples", "a number of samples");
    if (read.position > read.n_samples)
        return rp_json_record_fail(&record, pull, "position", "at most the number of samples");
    for (guint i = 0; i < read.n_held; i++)
        if (read.held[i] >= read.n_samples)
            return rp_json_record_fail(&record, pull, "held", "samples that there are");
    *(RpDataState *)value = read;
    return TRUE;
}

gboolean
rp_data_state_parse(const char *name, const char *text, gsize length, RpDataState *state,
                    GError **error)
{
    RpDataState read;
    RpJsonPull pull;

    g_return_val_if_fail(name && (text || length == 0) && state, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    if (!rp_json_pull_init(&pull, name, text, length, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE,
                           error) ||
        !rp_data_state_read(&pull, NULL, &read) || !rp_json_pull_end(&pull))
        return FALSE;
    *state = read;
    return TRUE;
}
