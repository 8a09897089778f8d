/*
 * Partitions as objects: lists of block counts, costs of stages, evenness of the stages.
 * How good partitions are found is in paper.c and search.c.
 */
#include "core/partition/partition.h"

#include "core/base/quote.h"

/* A stage list is at most as long as a profile, and so is a stage. */
#define MAX_STAGES 65536
#define MAX_BLOCKS 65536

G_DEFINE_QUARK(rp_partition_error, rp_partition_error)

static RpInterval *
copy_intervals(const RpInterval *intervals, guint n)
{
    return n > 0 ? g_memdup2(intervals, n * sizeof *intervals) : NULL;
}

static gboolean
equal_intervals(const RpInterval *a, const RpInterval *b, guint n)
{
    for (guint i = 0; i < n; i++)
        if (a[i].first != b[i].first || a[i].count != b[i].count)
            return FALSE;
    return TRUE;
}

RpPartition *
rp_partition_new_bound(const RpInterval *stages, guint n_stages)
{
    g_return_val_if_fail(stages != NULL || n_stages == 0, NULL);

    RpPartition *partition = g_new0(RpPartition, 1);
    partition->n_forward = n_stages;
    partition->forward = copy_intervals(stages, n_stages);
    return partition;
}

RpPartition *
rp_partition_new_dispatched(const RpInterval *forward, guint n_forward, const RpInterval *backward,
                            guint n_backward)
{
    g_return_val_if_fail(forward != NULL || n_forward == 0, NULL);
    g_return_val_if_fail(backward != NULL && n_backward > 0, NULL);

    RpPartition *partition = g_new0(RpPartition, 1);
    partition->dispatched = TRUE;
    partition->n_forward = n_forward;
    partition->forward = copy_intervals(forward, n_forward);
    partition->n_backward = n_backward;
    partition->backward = copy_intervals(backward, n_backward);
    return partition;
}

RpPartition *
rp_partition_copy(const RpPartition *partition)
{
    g_return_val_if_fail(partition != NULL, NULL);

    if (!partition->dispatched)
        return rp_partition_new_bound(partition->forward, partition->n_forward);
    return rp_partition_new_dispatched(partition->forward, partition->n_forward,
                                       partition->backward, partition->n_backward);
}

gboolean
rp_partition_equal(const RpPartition *a, const RpPartition *b)
{
    g_return_val_if_fail(a != NULL && b != NULL, FALSE);

    return a->dispatched == b->dispatched && a->n_forward == b->n_forward &&
           a->n_backward == b->n_backward &&
           equal_intervals(a->forward, b->forward, a->n_forward) &&
           equal_intervals(a->backward, b->backward, a->n_backward);
}

void
rp_partition_free(RpPartition *partition)
{
    if (partition == NULL)
        return;
    g_free(partition->forward);
    g_free(partition->backward);
    g_free(partition);
}

static gboolean
holds(const RpProfile *profile, RpInterval stage)
{
    return stage.first <= profile->n_layers && stage.count <= profile->n_layers - stage.first;
}

gint64
rp_stage_time_ns(const RpProfile *profile, RpInterval stage, RpPhase phase, gint64 *recompute_ns)
{
    g_return_val_if_fail(profile != NULL && holds(profile, stage), 0);

    gint64 forward = 0, backward = 0, recompute = 0;
    for (guint i = 0; i < stage.count; i++) {
        const RpLayer *layer = &profile->layers[stage.first + i];
        forward += layer->forward_ns;
        backward += layer->backward_ns;
        recompute += layer->kind == RP_LAYER_BLOCK ? rp_layer_recompute_ns(layer) : 0;
    }
    if (stage.count > 0)
        recompute -= rp_layer_saving_ns(&profile->layers[stage.first + stage.count - 1]);
    if (recompute_ns != NULL)
        *recompute_ns = phase == RP_PHASE_BACKWARD ? recompute : 0;
    switch (phase) {
    case RP_PHASE_FORWARD:
        return forward;
    case RP_PHASE_BACKWARD:
        return recompute + backward;
    case RP_PHASE_FUSED:
        return forward + backward;
    }
    g_return_val_if_reached(0);
}

double
rp_stage_attention(const RpProfile *profile, RpInterval stage)
{
    double attention_ns = 0, all_ns = 0;

    for (guint l = stage.first; l < stage.first + stage.count; l++) {
        attention_ns += (double)profile->layers[l].saved[RP_SAVED_ATTENTION].recompute_ns;
        all_ns += (double)profile->layers[l].forward_ns;
    }
    return all_ns > 0 ? MIN(1, attention_ns / all_ns) : 0;
}

gint64
rp_stage_weight_gradient_ns(const RpProfile *profile, RpInterval stage)
{
    g_return_val_if_fail(profile != NULL && holds(profile, stage), 0);

    gint64 total = 0;
    for (guint i = 0; i < stage.count; i++)
        total += profile->layers[stage.first + i].weight_gradient_ns;
    return total;
}

/* Sums that stay at the largest number instead of wrapping: too large is too large. */
static guint64
plus(guint64 a, guint64 b)
{
    return a > G_MAXUINT64 - b ? G_MAXUINT64 : a + b;
}

static guint64
times(guint64 a, guint64 n)
{
    return n > 0 && a > G_MAXUINT64 / n ? G_MAXUINT64 : a * n;
}

guint64
rp_stage_memory_bytes(const RpProfile *profile, RpInterval stage, RpPhase phase)
{
    g_return_val_if_fail(profile != NULL && holds(profile, stage), 0);

    /* Input and output are the largest of the stage's layers, not those at its borders: so a longer
     * stage never needs less, on which the greedy packing relies. */
    guint64 parameters = 0, uploaded = 0, gradients = 0, activations = 0, input = 0, output = 0,
            scratch = 0;
    for (guint i = 0; i < stage.count; i++) {
        const RpLayer *layer = &profile->layers[stage.first + i];
        parameters = plus(parameters, layer->parameter_bytes);
        uploaded = plus(uploaded, rp_layer_upload_bytes(layer));
        gradients = plus(gradients, layer->gradient_bytes);
        activations = plus(activations, layer->activation_bytes);
        input = MAX(input, layer->input_bytes);
        output = MAX(output, layer->output_bytes);
        scratch = MAX(scratch, layer->forward_workspace_bytes);
        if (phase != RP_PHASE_FORWARD)
            scratch = MAX(scratch, layer->backward_workspace_bytes);
    }

    const gboolean packed = uploaded != parameters && rp_profile_is_packed(profile);
    guint64 bytes = plus(plus(parameters, packed ? uploaded : parameters), scratch);
    switch (phase) {
    case RP_PHASE_FORWARD: /* in: activation; out: activation */
        return plus(bytes, plus(times(input, 2), times(output, 2)));
    case RP_PHASE_BACKWARD: /* in: stashed activation and gradient; out: gradient */
        bytes = plus(bytes, plus(times(input, 4), times(output, 2)));
        break;
    case RP_PHASE_FUSED: /* in: activation; out: gradient; the last output stays inside */
        bytes = plus(bytes, plus(times(input, 4), output));
        break;
    }
    return plus(bytes,
                plus(plus(gradients, times(gradients, 4 / rp_profile_element_bytes(profile))),
                     activations));
}

/* The character at @at, for a message. */
static char *
describe(const char *at)
{
    if (*at == '\0')
        return g_strdup("the end");
    if (g_ascii_isprint(*at))
        return g_strdup_printf("'%c'", *at);
    return g_strdup_printf("byte 0x%02x", (guint)(guchar)*at);
}

static gboolean
expected(const char *text, const char *at, const char *what, GError **error)
{
    g_autofree char *found = describe(at);
    return rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_SYNTAX,
                   "stage list, position %" G_GSIZE_FORMAT ": expected %s, found %s",
                   (gsize)(at - text) + 1, what, found);
}

/* Reads digits at *@at into @number and moves behind them. */
static gboolean
parse_number(const char *text, const char **at, guint64 least, guint64 most, const char *what,
             guint *number, GError **error)
{
    const char *start = *at;
    guint64 value = 0;
    for (; g_ascii_isdigit(**at); (*at)++)
        value = MIN(value * 10 + (guint64)g_ascii_digit_value(**at), most + 1);
    if (*at == start)
        return expected(text, start, what, error);
    if (value < least || value > most)
        return rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_SYNTAX,
                       "stage list, position %" G_GSIZE_FORMAT
                       ": expected %s from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                       ", found %.*s%s",
                       (gsize)(start - text) + 1, what, least, most, (int)MIN(*at - start, 20),
                       start, *at - start > 20 ? "..." : "");
    *number = (guint)value;
    return TRUE;
}

static const char *
skip_spaces(const char *at)
{
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}

GArray *
rp_partition_parse_list(const char *text, GError **error)
{
    g_return_val_if_fail(text != NULL, NULL);

    g_autoptr(GArray) counts = g_array_new(FALSE, FALSE, sizeof(guint));
    const char *at = skip_spaces(text);
    for (;;) {
        const char *start = at;
        guint blocks = 0, repeats = 1;
        if (!parse_number(text, &at, 0, MAX_BLOCKS, "a block count", &blocks, error))
            return NULL;
        if (*at == '*') {
            at++;
            if (!parse_number(text, &at, 1, MAX_STAGES, "a number of stages", &repeats, error))
                return NULL;
        }
        if (repeats > MAX_STAGES - counts->len)
            return rp_null(rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_SYNTAX,
                                   "stage list, position %" G_GSIZE_FORMAT
                                   ": expected at most %u stages",
                                   (gsize)(start - text) + 1, (guint)MAX_STAGES));
        for (guint i = 0; i < repeats; i++)
            g_array_append_val(counts, blocks);
        const char *end = skip_spaces(at);
        if (*end == '\0')
            return g_steal_pointer(&counts);
        if (*end != ',') {
            expected(text, end, *at == ' ' ? "',' or the end" : "',', '*' or the end", error);
            return NULL;
        }
        at = skip_spaces(end + 1);
    }
}

char *
rp_partition_format_list(const guint *counts, guint n)
{
    g_return_val_if_fail(counts != NULL || n == 0, NULL);

    GString *text = g_string_new(NULL);
    for (guint i = 0; i < n;) {
        guint run = 1;
        while (i + run < n && counts[i + run] == counts[i])
            run++;
        if (run <= 2)
            run = 1;
        g_string_append_printf(text, "%s%u", i > 0 ? "," : "", counts[i]);
        if (run > 1)
            g_string_append_printf(text, "*%u", run);
        i += run;
    }
    return g_string_free(text, FALSE);
}

GArray *
rp_partition_block_counts(const RpProfile *profile, const RpInterval *stages, guint n)
{
    g_return_val_if_fail(profile != NULL && (stages != NULL || n == 0), NULL);

    GArray *counts = g_array_sized_new(FALSE, TRUE, sizeof(guint), n);
    for (guint s = 0; s < n; s++) {
        g_return_val_if_fail(holds(profile, stages[s]), counts);
        guint blocks = 0;
        for (guint i = 0; i < stages[s].count; i++)
            blocks += profile->layers[stages[s].first + i].kind == RP_LAYER_BLOCK;
        g_array_append_val(counts, blocks);
    }
    return counts;
}

static gboolean
check_sum(const char *what, guint64 blocks, guint expected_blocks, GError **error)
{
    if (blocks == expected_blocks)
        return TRUE;
    return rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT,
                   "%s hold %" G_GUINT64_FORMAT " blocks, but the model has %u", what, blocks,
                   expected_blocks);
}

static guint64
sum(const guint *counts, guint n)
{
    guint64 total = 0;
    for (guint i = 0; i < n; i++)
        total += counts[i];
    return total;
}

static gboolean
check_filled(const char *what, const RpInterval *stages, guint n, GError **error)
{
    for (guint s = 0; s < n; s++) {
        if (stages[s].count == 0)
            return rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT,
                           "%s %u of %u holds no layer", what, s + 1, n);
    }
    return TRUE;
}

/* Lays @counts upwards from layer 0; the layers before the first block join the first stage. */
static RpInterval *
lay_upwards(const RpProfile *profile, const guint *counts, guint n)
{
    RpInterval *stages = g_new0(RpInterval, n);
    guint at = 0;
    for (guint s = 0; s < n; s++) {
        guint extra = s == 0 ? rp_profile_first_block(profile) : 0;
        stages[s] = (RpInterval){at, counts[s] + extra};
        at += stages[s].count;
    }
    return stages;
}

RpPartition *
rp_partition_from_blocks(const RpProfile *profile, const guint *stages, guint n_stages,
                         GError **error)
{
    g_return_val_if_fail(profile != NULL && (stages != NULL || n_stages == 0), NULL);

    if (n_stages == 0)
        return rp_null(
            rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT, "no stages are given"));
    if (!check_sum("the stages", sum(stages, n_stages), rp_profile_n_blocks(profile), error))
        return NULL;
    g_autofree RpInterval *intervals = lay_upwards(profile, stages, n_stages);
    RpInterval *last = &intervals[n_stages - 1];
    last->count = profile->n_layers - last->first;
    return rp_partition_new_bound(intervals, n_stages);
}

RpPartition *
rp_partition_from_dispatched_blocks(const RpProfile *profile, const guint *forward, guint n_forward,
                                    const guint *backward, guint n_backward, GError **error)
{
    g_return_val_if_fail(profile != NULL && (forward != NULL || n_forward == 0), NULL);
    g_return_val_if_fail(backward != NULL || n_backward == 0, NULL);

    if (n_backward == 0)
        return rp_null(rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT,
                               "no backward stages are given"));
    guint n_blocks = rp_profile_n_blocks(profile);
    if (!check_sum("the forward stages and the first backward stage",
                   sum(forward, n_forward) + backward[0], n_blocks, error) ||
        !check_sum("the backward stages", sum(backward, n_backward), n_blocks, error))
        return NULL;

    g_autofree RpInterval *up = lay_upwards(profile, forward, n_forward);
    guint fused_first = n_forward > 0 ? up[n_forward - 1].first + up[n_forward - 1].count : 0;
    g_autofree RpInterval *down = g_new0(RpInterval, n_backward);
    down[0] = (RpInterval){fused_first, profile->n_layers - fused_first};
    for (guint s = 1; s < n_backward; s++) {
        guint end = down[s - 1].first;
        guint first = s + 1 < n_backward ? end - MIN(end, backward[s]) : 0;
        down[s] = (RpInterval){first, end - first};
    }
    if (!check_filled("forward stage", up, n_forward, error) ||
        !check_filled("backward stage", down, n_backward, error))
        return NULL;
    if (down[n_backward - 1].first > 0) { /* only an embedding can be left over */
        return rp_null(
            rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT,
                    "no backward stage holds the embedding: add a last stage of 0 blocks"));
    }
    return rp_partition_new_dispatched(up, n_forward, down, n_backward);
}

RpBalance
rp_partition_balance(const RpProfile *profile, const RpPartition *partition, GArray **times_ns)
{
    RpBalance balance = {.balance = 1.0};
    g_return_val_if_fail(profile != NULL && partition != NULL, balance);

    g_autoptr(GArray) stage_times = g_array_new(FALSE, FALSE, sizeof(gint64));
    for (guint s = 0; s < partition->n_forward; s++) {
        gint64 time = rp_stage_time_ns(profile, partition->forward[s], RP_PHASE_FORWARD, NULL);
        if (!partition->dispatched)
            time += rp_stage_time_ns(profile, partition->forward[s], RP_PHASE_BACKWARD, NULL);
        g_array_append_val(stage_times, time);
    }
    for (guint s = 0; s < partition->n_backward; s++) {
        RpPhase phase = s == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD;
        gint64 time = rp_stage_time_ns(profile, partition->backward[s], phase, NULL);
        g_array_append_val(stage_times, time);
    }

    balance.n_stages = stage_times->len;
    for (guint s = 0; s < stage_times->len; s++) {
        gint64 time = g_array_index(stage_times, gint64, s);
        balance.max_ns = MAX(balance.max_ns, time);
        balance.min_ns = s == 0 ? time : MIN(balance.min_ns, time);
        balance.total_ns += time;
    }
    if (balance.max_ns > 0) {
        balance.balance =
            (double)balance.total_ns / ((double)balance.n_stages * (double)balance.max_ns);
    }
    if (times_ns != NULL)
        *times_ns = g_steal_pointer(&stage_times);
    return balance;
}
