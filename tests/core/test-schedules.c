/*
 * Schedules: orders as text, every action once on its device, live activations, makespans by closed
 * form (docs/schedules.md), and which shapes are refused.
 */
#include "tests/rp-test.h"

#include <math.h>

#include "core/schedules/schedule.h"

#define MAX_GPUS 6
#define MAX_MICRO_BATCHES 14
#define MAX_CHUNKS 3

typedef struct {
    const RpScheduleOps *ops;
    RpShape shape;
} Case;

static RpShape
bound_shape(guint gpus, guint micro_batches, guint stages)
{
    return (RpShape){
        .gpus = gpus, .micro_batches = micro_batches, .stages = stages, .round = micro_batches};
}

static const RpScheduleOps *
find(const char *name)
{
    const RpScheduleOps *ops = rp_schedule_find(name, NULL);

    assert_non_null(ops);
    return ops;
}

static gboolean
accepts(const RpScheduleOps *ops, const RpShape *shape)
{
    return rp_schedule_check(ops, shape, NULL);
}

static GArray *
order_of(const Case *c, guint gpu)
{
    GArray *order = g_array_new(FALSE, FALSE, sizeof(RpAction));

    c->ops->order(&c->shape, gpu, order);
    return order;
}

/* Every shape of the grid that a schedule accepts. */
static GArray *
grid_new(void)
{
    GArray *cases = g_array_new(FALSE, FALSE, sizeof(Case));

    for (const RpScheduleOps *const *ops = rp_schedules(); *ops != NULL; ops++)
        for (guint N = 1; N <= MAX_GPUS; N++)
            for (guint M = 1; M <= MAX_MICRO_BATCHES; M++)
                for (guint S = 1; S <= MAX_CHUNKS * N; S++)
                    for (guint round = (*ops)->dispatched ? 1 : M; round <= M; round++) {
                        Case c = {*ops, bound_shape(N, M, S)};

                        c.shape.round = round;
                        if ((*ops)->dispatched) {
                            c.shape.forward_slots = S / 3;
                            c.shape.first_gpu = N / 2;
                        }
                        if (accepts(*ops, &c.shape))
                            g_array_append_val(cases, c);
                    }
    return cases;
}

static int
set_up(void **state)
{
    *state = grid_new();
    return 0;
}

static int
tear_down(void **state)
{
    g_array_unref(*state);
    return 0;
}

/* Names the case that fails: an assert in a grid says only where. */
#define assert_case(c, condition) assert_case_at((c), (condition), #condition, __FILE__, __LINE__)

static void
assert_case_at(const Case *c, gboolean holds, const char *condition, const char *file, int line)
{
    const RpShape *s = &c->shape;

    if (holds)
        return;
    print_error("%s, N = %u, M = %u, S = %u, M_R = %u, G = %u: %s\n", c->ops->name, s->gpus,
                s->micro_batches, s->stages, s->round, s->group, condition);
    _fail(file, line);
}

/* A stand-in for the simulator: uniform costs, no hops. */

typedef struct {
    gint64 F, I, W; /* B = I + W; RoundPipe: every slot takes F, of which W may be apart */
    gint64 overlap; /* F&B */
} Costs;

typedef struct {
    const Case *c;
    Costs costs;
    gint64 *forward_end;  /* [stage][micro-batch], -1 = not yet; dispatched: the value sent on */
    gint64 *backward_end; /* B or I; dispatched: unused */
} Run;

/* End of the inputs of F (or B and I) of a stage; -1 = not yet. */
static gint64
ready(const Run *run, gboolean backward, guint stage, guint micro_batch)
{
    const guint M = run->c->shape.micro_batches;
    const gint64 *forward = &run->forward_end[stage * M + micro_batch];

    if (!backward || run->c->ops->dispatched)
        return stage == 0 ? 0 : *(forward - M);
    if (stage + 1 == run->c->shape.stages || *forward < 0)
        return *forward;
    return run->backward_end[(stage + 1) * M + micro_batch];
}

/* Runs @action on a device that is free from @free on; its end, or -1 if it must wait. */
static gint64
run_action(Run *run, const RpAction *action, gint64 free)
{
    const guint M = run->c->shape.micro_batches;
    const gsize at = action->stage * M + action->micro_batch;
    const Costs *costs = &run->costs;
    gint64 start, end;

    if (action->kind == RP_ACTION_OVERLAP) {
        const gsize back = action->backward_stage * M + action->backward_micro_batch;
        gint64 a = ready(run, FALSE, action->stage, action->micro_batch);
        gint64 b = ready(run, TRUE, action->backward_stage, action->backward_micro_batch);

        if (a < 0 || b < 0)
            return -1;
        end = MAX(free, MAX(a, b)) + costs->overlap;
        run->forward_end[at] = run->backward_end[back] = end;
        return end;
    }
    if (action->kind == RP_ACTION_WEIGHT_GRADIENT) {
        const gint64 *ends = run->c->ops->dispatched ? run->forward_end : run->backward_end;

        return ends[at] < 0 ? -1 : MAX(free, ends[at]) + costs->W;
    }

    start = ready(run, action->kind != RP_ACTION_FORWARD, action->stage, action->micro_batch);
    if (start < 0)
        return -1;
    end = MAX(free, start);
    if (action->kind == RP_ACTION_FORWARD || run->c->ops->dispatched)
        return run->forward_end[at] =
                   end + costs->F - (action->kind == RP_ACTION_INPUT_GRADIENT ? costs->W : 0);
    end += action->kind == RP_ACTION_BACKWARD ? costs->I + costs->W : costs->I;
    return run->backward_end[at] = end;
}

static gint64
busy_time(const Costs *costs, const GArray *order)
{
    gint64 busy = 0;

    for (guint i = 0; i < order->len; i++) {
        const gint64 time[] = {
            [RP_ACTION_FORWARD] = costs->F,         [RP_ACTION_BACKWARD] = costs->I + costs->W,
            [RP_ACTION_FUSED] = costs->F,           [RP_ACTION_INPUT_GRADIENT] = costs->I,
            [RP_ACTION_WEIGHT_GRADIENT] = costs->W, [RP_ACTION_OVERLAP] = costs->overlap,
        };
        busy += time[g_array_index(order, RpAction, i).kind];
    }
    return busy;
}

/* Makespan of the orders, or -1 if they deadlock. @min_busy: the least busy device's. */
static gint64
makespan(const Case *c, Costs costs, gint64 *min_busy)
{
    const guint N = c->shape.gpus;
    const gsize n = (gsize)c->shape.stages * c->shape.micro_batches;
    g_autofree gint64 *forward_end = g_new(gint64, n);
    g_autofree gint64 *backward_end = g_new(gint64, n);
    g_autofree gint64 *free = g_new0(gint64, N);
    g_autofree guint *next = g_new0(guint, N);
    g_autoptr(GPtrArray) orders = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
    Run run = {c, costs, forward_end, backward_end};
    gint64 end = 0;
    gboolean moved = TRUE, waits = FALSE;

    memset(forward_end, 0xff, n * sizeof *forward_end);
    memset(backward_end, 0xff, n * sizeof *backward_end);
    *min_busy = G_MAXINT64;
    for (guint g = 0; g < N; g++) {
        g_ptr_array_add(orders, order_of(c, g));
        *min_busy = MIN(*min_busy, busy_time(&costs, orders->pdata[g]));
    }
    while (moved) {
        moved = waits = FALSE;
        for (guint g = 0; g < N; g++) {
            const GArray *order = orders->pdata[g];

            for (; next[g] < order->len; next[g]++) {
                end = run_action(&run, &g_array_index(order, RpAction, next[g]), free[g]);
                if (end < 0)
                    break;
                free[g] = end;
                moved = TRUE;
            }
            waits = waits || next[g] < order->len;
        }
    }
    for (guint g = 0; g < N; g++)
        end = MAX(end, free[g]);
    return waits ? -1 : end;
}

static char *
format_orders(const Case *c)
{
    static const char letters[] = "FBXIW";
    GString *text = g_string_new(NULL);

    for (guint g = 0; g < c->shape.gpus; g++) {
        g_autoptr(GArray) order = order_of(c, g);

        g_string_append(text, g > 0 ? " |" : "");
        for (guint i = 0; i < order->len; i++) {
            const RpAction *a = &g_array_index(order, RpAction, i);
            const char letter = a->kind == RP_ACTION_OVERLAP ? 'F' : letters[a->kind];

            g_string_append_printf(text, "%s%u%c%u", text->len > 0 ? " " : "", a->stage, letter,
                                   a->micro_batch);
            if (a->kind == RP_ACTION_OVERLAP)
                g_string_append_printf(text, "+%uB%u", a->backward_stage, a->backward_micro_batch);
        }
    }
    return g_string_free(text, FALSE);
}

/* Names */

RP_TEST(finds_every_schedule_of_the_table_by_its_name)
{
    const RpScheduleOps *const *schedules = rp_schedules();
    guint n = 0;

    assert_string_equal(schedules[0]->name, "gpipe");
    for (; schedules[n] != NULL; n++) {
        assert_ptr_equal(find(schedules[n]->name), schedules[n]); /* so no other has its name */
        assert_true(strlen(schedules[n]->title) > 0 && strlen(schedules[n]->summary) > 0);
    }
    assert_true(n >= 20);
}

RP_TEST(suggests_the_nearest_name)
{
    static const char *const wrong[][2] = {{"1f1bb", "\"1f1b\""},
                                           {"GPipe", "\"gpipe\""},
                                           {"round-pipe", "\"roundpipe\""},
                                           {"interleaved-1fb1", "\"interleaved-1f1b\""},
                                           {"zbv", "\"zb-v\""},
                                           {"sgd", "there are gpipe, "}};

    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autoptr(GError) error = NULL;

        assert_null(rp_schedule_find(wrong[i][0], &error));
        assert_true(g_error_matches(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_UNKNOWN));
        rp_assert_error_message_contains(error, wrong[i][0]);
        rp_assert_error_message_contains(error, wrong[i][1]);
    }
}

/* Orders */

/* The case of "gpipe N=2 M=3 S=2 R=3". */
static Case
parse_case(const char *words)
{
    static const struct {
        const char *name;
        gsize offset;
    } numbers[] = {
        {"N", offsetof(RpShape, gpus)},           {"M", offsetof(RpShape, micro_batches)},
        {"S", offsetof(RpShape, stages)},         {"R", offsetof(RpShape, round)},
        {"Sf", offsetof(RpShape, forward_slots)}, {"g0", offsetof(RpShape, first_gpu)},
        {"G", offsetof(RpShape, group)},          {"live", offsetof(RpShape, live)},
        {"slices", offsetof(RpShape, slices)},    {"replicas", offsetof(RpShape, replicas)},
        {"flow", offsetof(RpShape, flow)},
    };
    g_auto(GStrv) parts = g_strsplit(words, " ", -1);
    Case c = {find(parts[0]), {0}};

    for (char **part = parts + 1; *part != NULL; part++) {
        const gsize length = strcspn(*part, "=");
        guint i = 0;

        while (strlen(numbers[i].name) != length || strncmp(*part, numbers[i].name, length) != 0)
            assert_true(++i < G_N_ELEMENTS(numbers));
        *(guint *)(void *)((char *)&c.shape + numbers[i].offset) =
            (guint)g_ascii_strtoull(*part + length + 1, NULL, 10);
    }
    return c;
}

static char *
order_line(const char *words, gpointer data)
{
    const Case c = parse_case(words);

    (void)data;
    assert_case(&c, accepts(c.ops, &c.shape));
    return format_orders(&c);
}

RP_TEST(orders_read_as_in_their_timelines)
{
    rp_test_lines("tests/core/messages.txt", "schedules: orders", order_line, NULL);
}

RP_TEST_OF(appends_to_an_order_that_has_actions, const GArray *grid)
{
    const RpAction first = {.stage = 77, .kind = RP_ACTION_INPUT_GRADIENT};

    for (guint i = 0; i < grid->len; i += 7) {
        const Case *c = &g_array_index(grid, Case, i);
        g_autoptr(GArray) alone = order_of(c, 0);
        g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(RpAction));

        g_array_append_val(order, first);
        c->ops->order(&c->shape, 0, order);
        assert_case(c, order->len == alone->len + 1);
        assert_case(c, g_array_index(order, RpAction, 0).stage == 77);
        for (guint k = 0; k < alone->len; k++) {
            const RpAction *a = &g_array_index(alone, RpAction, k);
            const RpAction *b = &g_array_index(order, RpAction, k + 1);

            assert_case(c, a->kind == b->kind && a->stage == b->stage &&
                               a->micro_batch == b->micro_batch);
        }
    }
}

enum { DID_F = 1, DID_B = 2, DID_I = 4, DID_W = 8, DID_X = 16 };

/* Marks one part of an action as done by @gpu; %FALSE if it was, or if it is not @gpu's to do. */
static gboolean
mark(const Case *c, guint gpu, guint8 *done, guint stage, guint micro_batch, guint8 part)
{
    const RpShape *shape = &c->shape;

    if (stage >= shape->stages || micro_batch >= shape->micro_batches ||
        rp_schedule_gpu_of(c->ops, shape, stage, micro_batch) != gpu ||
        (done[stage * shape->micro_batches + micro_batch] & part) != 0)
        return FALSE;
    done[stage * shape->micro_batches + micro_batch] |= part;
    return TRUE;
}

static gboolean
mark_action(const Case *c, guint gpu, guint8 *done, const RpAction *a)
{
    static const guint8 parts[] = {
        [RP_ACTION_FORWARD] = DID_F,         [RP_ACTION_BACKWARD] = DID_B,
        [RP_ACTION_FUSED] = DID_X,           [RP_ACTION_INPUT_GRADIENT] = DID_I,
        [RP_ACTION_WEIGHT_GRADIENT] = DID_W, [RP_ACTION_OVERLAP] = DID_F,
    };

    if (!mark(c, gpu, done, a->stage, a->micro_batch, parts[a->kind]))
        return FALSE;
    if (a->kind == RP_ACTION_OVERLAP)
        return mark(c, gpu, done, a->backward_stage, a->backward_micro_batch, DID_B);
    return a->backward_stage == G_MAXUINT32 && a->backward_micro_batch == G_MAXUINT32;
}

/* Whether all actions of a stage (slot) have been done to a micro-batch in the end. */
static gboolean
is_complete(const Case *c, guint stage, guint8 done)
{
    const guint fused = c->shape.forward_slots;

    if (c->ops->dispatched)
        return done == (stage < fused            ? DID_F
                        : stage == fused         ? DID_X
                        : c->ops->split_backward ? DID_I | DID_W
                                                 : DID_B);
    return done == (DID_F | DID_B) || (c->ops->split_backward && done == (DID_F | DID_I | DID_W));
}

RP_TEST_OF(runs_every_action_once_on_its_device, const GArray *grid)
{
    for (guint i = 0; i < grid->len; i++) {
        const Case *c = &g_array_index(grid, Case, i);
        const guint n = c->shape.stages * c->shape.micro_batches;
        g_autofree guint8 *done = g_new0(guint8, n);

        for (guint g = 0; g < c->shape.gpus; g++) {
            g_autoptr(GArray) order = order_of(c, g);

            for (guint k = 0; k < order->len; k++)
                assert_case(c, mark_action(c, g, done, &g_array_index(order, RpAction, k)));
        }
        for (guint k = 0; k < n; k++)
            assert_case(c, is_complete(c, k / c->shape.micro_batches, done[k]));
    }
}

RP_TEST(goes_on_where_the_last_iteration_ended)
{
    /* two iterations of one round are one iteration of two rounds */
    for (guint S = 1; S <= 11; S++)
        for (guint g0 = 0; g0 < 4; g0++) {
            const RpScheduleOps *ops = find("roundpipe");
            RpShape both = {.gpus = 4, .micro_batches = 10, .stages = S, .round = 5};
            RpShape one = both;

            both.first_gpu = one.first_gpu = g0;
            one.micro_batches = 5;
            RpShape two = one;
            two.first_gpu = rp_schedule_next_first_gpu(ops, &one);
            assert_int_equal(two.first_gpu, (g0 + S) % 4);
            assert_int_equal(rp_schedule_next_first_gpu(ops, &both), (g0 + 2 * S) % 4);
            for (guint slot = 0; slot < S; slot++)
                assert_int_equal(rp_schedule_gpu(ops, &both, slot, 1),
                                 rp_schedule_gpu(ops, &two, slot, 0));
        }
}

/* Each of K groups of N GPUs runs every K-th round as if it were alone. */
RP_TEST(shares_rounds_out_to_replicas)
{
    for (guint S = 1; S <= 9; S++)
        for (guint K = 1; K <= 3; K++)
            for (guint g = 0; g < 3 * K; g++) {
                const RpScheduleOps *ops = find(S % 2 == 0 ? "roundpipe" : "roundpipe-split");
                const RpShape one = {.gpus = 3,
                                     .micro_batches = 8,
                                     .stages = S,
                                     .round = 4,
                                     .forward_slots = S / 3,
                                     .first_gpu = S % 3};
                RpShape all = one;

                all.gpus *= K;
                all.micro_batches *= K;
                all.replicas = K;
                g_autoptr(GArray) found = order_of(&(Case){ops, all}, g);
                g_autoptr(GArray) alone = order_of(&(Case){ops, one}, g % 3);

                assert_true(accepts(ops, &all));
                assert_int_equal(rp_schedule_next_first_gpu(ops, &all),
                                 rp_schedule_next_first_gpu(ops, &one));
                assert_int_equal(found->len, alone->len);
                for (guint i = 0; i < found->len; i++) {
                    const RpAction *a = &g_array_index(found, RpAction, i);
                    const RpAction *b = &g_array_index(alone, RpAction, i);
                    const guint round = b->micro_batch / 4 * K + g / 3;

                    assert_true(a->kind == b->kind && a->stage == b->stage);
                    assert_int_equal(a->micro_batch, 4 * round + b->micro_batch % 4);
                    assert_int_equal(rp_schedule_gpu(ops, &all, a->stage, round), g);
                }
            }
}

/* Closed forms */

static gboolean
is_looped(const Case *c)
{
    return g_str_equal(c->ops->name, "looped-bfs") || g_str_equal(c->ops->name, "mobius");
}

/* One round of slots that take F each: slot i on device i, i < N, starts when the one in front of it has
 * sent its first micro-batch on, which is W sooner behind the fused slot; device after device ends so. */
static gint64
split_closed_form(const RpShape *shape, Costs t)
{
    const guint last = shape->stages - 1;
    const guint g = last % shape->gpus, late = MIN(g, shape->forward_slots + 1);

    if (shape->round != shape->micro_batches)
        return -1;
    return late * t.F + (g - late) * (t.F - t.W) +
           (gint64)(last / shape->gpus + 1) * shape->micro_batches * t.F;
}

/* The makespan by closed form; -1 where there is none. */
static gint64
closed_form(const Case *c, Costs t, gint64 min_busy)
{
    const char *name = c->ops->name;
    const gint64 N = c->shape.gpus, M = c->shape.micro_batches, S = c->shape.stages, v = S / N;
    const gint64 B = t.I + t.W;
    const gboolean unit = t.F == t.I && t.I == t.W;

    if (g_str_equal(name, "gpipe") || g_str_equal(name, "1f1b") || g_str_equal(name, "seq-1f1b") ||
        g_str_equal(name, "pipedream-2bw"))
        return (M + S - 1) * (t.F + B);
    if (g_str_equal(name, "slimpipe"))
        return (v * M + N - 1) * (t.F + B);
    if (g_str_equal(name, "interleaved-1f1b"))
        return M % N == 0 || v == 1 ? (v * M + N - 1) * (t.F + B) : -1;
    if (is_looped(c))
        return M >= N || v == 1 ? (v * M + N - 1) * (t.F + B) : -1;
    if (g_str_equal(name, "zb-h1") || g_str_equal(name, "interleaved-zb"))
        return t.I >= t.W && M >= N ? v * M * (t.F + B) + (N - 1) * (MAX(t.F, t.W) + t.I - t.W)
                                    : -1;
    if (g_str_equal(name, "zb-v"))
        return unit && M >= 2 * N - 1 ? 2 * M * (t.F + B) + (N - 1) * t.F : -1;
    if (g_str_equal(name, "chimera"))
        return M % N == 0 ? M * (t.F + B) + (N - 2) * (MAX(t.F, B) + (M / N - 1) * ABS(B - t.F))
                          : -1;
    if (g_str_equal(name, "dualpipe"))
        return unit && t.overlap <= t.F + B ? min_busy + (N / 2 - 1) * (t.overlap + B - 3 * t.W)
                                            : -1;
    if (g_str_equal(name, "hanayo") && v == 1)
        return (M + N - 1) * (t.F + B);
    if (g_str_equal(name, "hanayo"))
        return M % N == 0
                   ? v * M * (t.F + B) + 2 * (N - 1) * (MAX(t.F, B) + (M / N - 1) * ABS(B - t.F))
                   : -1;
    if (g_str_equal(name, "zb-2p"))
        return M >= 2 * N - 1
                   ? M * (t.F + B) + (N - 1) * MAX(MAX(t.F, t.I - t.F), t.F + t.I - 2 * t.W)
                   : -1;
    if (g_str_equal(name, "v-half"))
        return unit && M > N && N > 1 ? 2 * M * (t.F + B) + (7 * N - 8) / 2 * t.F : -1;
    if (g_str_equal(name, "v-min"))
        return unit && M > 1 && N > 1 ? 2 * M * (t.F + B) + (4 * N - 5 + (N % 3 == 0 ? 2 : 0)) * t.F
                                      : -1;
    if (g_str_equal(name, "dualpipe-v"))
        return unit && t.overlap <= t.F + B ? min_busy + (N - 1) * (t.overlap + B - 3 * t.W) : -1;
    if (!c->ops->dispatched)
        return -1;
    if (c->ops->split_backward)
        return split_closed_form(&c->shape, t);

    const gint64 round = c->shape.round, rest = M / round * S % N;
    if (S < N)
        return -1;
    return ((M * S + N * (N - 1)) * t.F + (rest != 0 ? (N - rest) * (round - N) * t.F : 0)) / N;
}

RP_TEST_OF(runs_without_deadlock_in_the_time_of_its_closed_form, const GArray *grid)
{
    static const Costs costs[] = {{1, 1, 1, 3}, {60, 60, 60, 180}, {60, 60, 60, 150}, {2, 3, 1, 6},
                                  {5, 3, 1, 9}, {1, 4, 3, 8},      {1, 2, 5, 8}};

    for (guint i = 0; i < grid->len; i++) {
        const Case *c = &g_array_index(grid, Case, i);

        for (guint k = 0; k < G_N_ELEMENTS(costs); k++) {
            Costs t = costs[k];
            gint64 min_busy, end, expected;

            if (c->ops->dispatched)
                t.F *= c->shape.gpus; /* the closed form divides by N */
            if (c->ops->dispatched)
                t.W = MIN(t.W, t.F);
            end = makespan(c, t, &min_busy);
            assert_case(c, end > 0);
            expected = closed_form(c, t, min_busy);
            assert_case(c, expected < 0 || end == expected);
        }
    }
}

RP_TEST(takes_the_published_times_for_unit_costs)
{
    static const struct {
        const char *name;
        guint stages;
        gint64 end;
    } published[] = {{"gpipe", 4, 33},      {"1f1b", 4, 33},      {"interleaved-1f1b", 8, 57},
                     {"looped-bfs", 8, 57}, {"zb-h1", 4, 27},     {"interleaved-zb", 8, 51},
                     {"zb-2p", 4, 27},      {"v-half", 8, 58},    {"v-min", 8, 59},
                     {"zb-v", 8, 51},       {"hanayo", 8, 66},    {"chimera", 4, 30},
                     {"dualpipe", 4, 26},   {"dualpipe-v", 8, 54}};

    for (guint i = 0; i < G_N_ELEMENTS(published); i++) {
        Case c = {find(published[i].name), bound_shape(4, 8, published[i].stages)};
        gint64 min_busy;

        assert_case(&c, makespan(&c, (Costs){1, 1, 1, 3}, &min_busy) == published[i].end);
    }
}

/* Slices of equal time: as 1F1B with as many micro-batches, and K - 1 more alive. */
RP_TEST(slices_take_the_time_of_their_closed_form)
{
    static const Costs costs[] = {{1, 1, 1, 3}, {2, 3, 1, 6}, {5, 3, 1, 9}, {1, 2, 5, 8}};

    for (guint N = 1; N <= MAX_GPUS; N++)
        for (guint K = 1; K <= 5; K++)
            for (guint M = 1; M <= 6; M++) {
                Case c = {find("seq-1f1b"), bound_shape(N, M * K, N)};

                c.shape.slices = K;
                for (guint i = 0; i < G_N_ELEMENTS(costs); i++) {
                    const Costs t = costs[i];
                    gint64 min_busy;

                    assert_case(&c,
                                makespan(&c, t, &min_busy) == (M * K + N - 1) * (t.F + t.I + t.W));
                }
                for (guint r = 0; r < N; r++)
                    assert_case(&c, rp_schedule_peak_live(c.ops, &c.shape, r) ==
                                        MIN(M * K, N - r + K - 1));
            }
}

/* Groups of N slices: interleaved 1F1B with as many micro-batches; alive is one micro-batch of the whole
 * model over N, and at most 2(N - 1) actions more. */
RP_TEST(slimpipe_takes_the_time_of_its_closed_form)
{
    static const Costs costs[] = {{1, 1, 1, 3}, {2, 3, 1, 6}, {5, 3, 1, 9}, {1, 2, 5, 8}};
    guint accepted = 0;

    for (guint N = 1; N <= MAX_GPUS; N++)
        for (guint K = 1; K <= 2 * N + 1; K++)
            for (guint v = 1; v <= MAX_CHUNKS; v++)
                for (guint M = 1; M <= 4; M++) {
                    Case c = {find("slimpipe"), bound_shape(N, M * K, v * N)};

                    c.shape.slices = K;
                    assert_case(&c, accepts(c.ops, &c.shape) == (v == 1 || K % N == 0));
                    if (!accepts(c.ops, &c.shape))
                        continue;
                    accepted++;
                    for (guint i = 0; i < G_N_ELEMENTS(costs); i++) {
                        const Costs t = costs[i];
                        gint64 min_busy;

                        assert_case(&c, makespan(&c, t, &min_busy) ==
                                            (v * M * K + N - 1) * (t.F + t.I + t.W));
                    }
                    for (guint r = 0; r < N; r++)
                        assert_case(&c, rp_schedule_peak_live(c.ops, &c.shape, r) ==
                                            MIN(v * M * K, v * K + 2 * (N - 1 - r)));
                }
    assert_true(accepted > 100);
}

/* The slices of a time are that time together, and grow with attention from the first to the last. */
RP_TEST(slices_are_the_whole_together)
{
    for (guint K = 1; K <= 9; K++)
        for (guint a = 0; a <= 4; a++) {
            const gint64 ns = 1000003;
            gint64 sum = 0, before = 0;

            for (guint j = 0; j < K; j++) {
                const gint64 slice = rp_slice_time_ns(ns, a / 4.0, j, K);

                assert_true(slice + 1 >= before);
                sum += before = slice;
            }
            assert_int_equal(sum, ns);
            /* all attention: the j-th of K squares' differences */
            if (a == 4)
                assert_int_equal(before, ns - llround((double)ns * (K - 1) * (K - 1) / (K * K)));
        }
}

/* Live activations of device @r by closed form; 0 where there is none. */
static guint
closed_peak(const Case *c, guint r)
{
    const char *name = c->ops->name;
    const guint N = c->shape.gpus, M = c->shape.micro_batches, S = c->shape.stages, v = S / N;

    if (g_str_equal(name, "gpipe"))
        return M;
    if (g_str_equal(name, "1f1b") || g_str_equal(name, "seq-1f1b") ||
        g_str_equal(name, "pipedream-2bw"))
        return MIN(M, S - r);
    if (g_str_equal(name, "slimpipe"))
        return MIN(v + 2 * (N - 1 - r), v * M);
    if (g_str_equal(name, "interleaved-1f1b"))
        return MIN((v - 1) * N + 2 * (N - 1 - r) + 1, v * M);
    if (is_looped(c))
        return v * M;
    if (g_str_equal(name, "zb-h1") || g_str_equal(name, "interleaved-zb"))
        return v == 1 ? MIN(M, N) : v * N;
    if (g_str_equal(name, "chimera"))
        return M >= N ? N / 2 + 1 + MIN(r, N - 1 - r) : 0;
    if (g_str_equal(name, "dualpipe"))
        return N + 1;
    if (g_str_equal(name, "hanayo"))
        return M >= N ? v * N - (v % 2 == 0 ? N - 1 - r : r) : 0;
    if (g_str_equal(name, "zb-2p"))
        return MIN(M, 2 * N - 1);
    if (g_str_equal(name, "zb-v"))
        return M >= 2 * N - 1 ? 2 * N : 0;
    if (g_str_equal(name, "v-half"))
        return M > N ? 2 * ((N + 2) / 2) : 0;
    if (g_str_equal(name, "v-min"))
        return 0; /* per device it is not known: holds_the_published_share_of_activations() */
    if (g_str_equal(name, "dualpipe-v"))
        return 2 * N + 1;
    return c->ops->dispatched && S >= N ? 1 : 0;
}

RP_TEST_OF(keeps_as_many_activations_alive_as_its_closed_form, const GArray *grid)
{
    for (guint i = 0; i < grid->len; i++) {
        const Case *c = &g_array_index(grid, Case, i);

        for (guint r = 0; r < c->shape.gpus; r++) {
            guint expected = closed_peak(c, r);
            guint peak = rp_schedule_peak_live(c->ops, &c->shape, r);

            assert_case(c, expected == 0 ? peak <= c->shape.stages * c->shape.micro_batches
                                         : peak == expected);
        }
    }
}

/* (p + 4)/3 and (p + 2)/2 micro-batches of two stages (Qi et al., NeurIPS 2024): a limit for any M,
 * which the fullest device reaches if M is large enough. */
RP_TEST(holds_the_published_share_of_activations)
{
    static const struct {
        const char *name;
        guint more, part;
    } published[] = {{"v-min", 4, 3}, {"v-half", 2, 2}};

    for (guint i = 0; i < G_N_ELEMENTS(published); i++)
        for (guint N = 1; N <= 40; N++)
            for (guint M = 1; M <= 3 * N; M += N) {
                const Case c = {find(published[i].name), bound_shape(N, M, 2 * N)};
                const guint limit = 2 * ((N + published[i].more) / published[i].part);
                guint most = 0;

                for (guint r = 0; r < N; r++)
                    most = MAX(most, rp_schedule_peak_live(c.ops, &c.shape, r));
                assert_case(&c, M > N ? most == limit : most <= limit);
            }
}

/* Shapes */

static gboolean
should_suit(const RpScheduleOps *ops, const RpShape *shape)
{
    const guint N = shape->gpus, M = shape->micro_batches, S = shape->stages, R = shape->round;
    const gboolean interleaved = g_str_has_prefix(ops->name, "interleaved");

    if (ops->dispatched)
        return R >= N && M % R == 0;
    return S % N == 0 && R == M && (ops->stages_per_gpu == 0 || S == N * ops->stages_per_gpu) &&
           (!ops->mirrored || (N % 2 == 0 && M % 2 == 0)) &&
           (!interleaved || S == N || M % N == 0) &&
           (!g_str_equal(ops->name, "slimpipe") || S == N || N == 1) &&
           (!g_str_equal(ops->name, "pipedream-2bw") || M >= N) &&
           (!g_str_has_prefix(ops->name, "dualpipe") || M >= 2 * N);
}

RP_TEST(accepts_exactly_the_shapes_it_is_defined_for)
{
    for (const RpScheduleOps *const *ops = rp_schedules(); *ops != NULL; ops++)
        for (guint N = 1; N <= MAX_GPUS; N++)
            for (guint M = 1; M <= MAX_MICRO_BATCHES; M++)
                for (guint S = 1; S <= 4 * N; S++)
                    for (guint R = 1; R <= M + 1; R++) {
                        Case c = {*ops, bound_shape(N, M, S)};

                        c.shape.round = R;
                        assert_case(&c, accepts(*ops, &c.shape) == should_suit(*ops, &c.shape));
                    }
}

RP_TEST(refuses_every_group_that_deadlocks)
{
    static const char *const names[] = {"interleaved-1f1b", "interleaved-zb"};
    guint accepted = 0;

    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        for (guint N = 1; N <= MAX_GPUS; N++)
            for (guint M = 1; M <= MAX_MICRO_BATCHES; M++)
                for (guint G = 1; G <= M; G++) {
                    Case c = {find(names[i]), bound_shape(N, M, 2 * N)};
                    const guint rounds = MAX(1, M / N);
                    gint64 min_busy;

                    c.shape.group = G;
                    const gboolean suits = accepts(c.ops, &c.shape);
                    /* PyTorch's G is among those that run */
                    assert_case(&c, suits || M % rounds != 0 || G != M / rounds);
                    assert_case(&c, !suits || M % G == 0);
                    if (suits)
                        assert_case(&c, makespan(&c, (Costs){1, 1, 1, 3}, &min_busy) > 0);
                    accepted += suits;
                }
    assert_true(accepted > 100);
}

/* From ZB-H1's activations to twice as many: never more than the limit, and never slower for more. */
RP_TEST(zb_2p_keeps_to_its_limit)
{
    static const Costs costs[] = {{1, 1, 1, 3}, {2, 3, 1, 6}, {1, 2, 5, 8}, {3, 3, 2, 8}};

    for (guint N = 1; N <= 8; N++)
        for (guint k = 0; k < G_N_ELEMENTS(costs); k++) {
            Case c = {find("zb-2p"), bound_shape(N, 3 * N, N)};
            const Case h1 = {find("zb-h1"), c.shape};
            gint64 busy, last = makespan(&h1, costs[k], &busy);

            for (c.shape.live = N; c.shape.live <= 2 * N; c.shape.live++) {
                const gint64 end = makespan(&c, costs[k], &busy);

                assert_case(&c, accepts(c.ops, &c.shape));
                assert_case(&c, c.shape.live == N ? end == last : end <= last);
                last = end;
                for (guint r = 0; r < N; r++)
                    assert_case(&c, rp_schedule_peak_live(c.ops, &c.shape, r) ==
                                        MIN(c.shape.live, 2 * N - 1));
            }
            c.shape.live = 0;
            assert_case(&c, makespan(&c, costs[k], &busy) == last);
        }
}

static void
append_remedy(GString *line, const RpShapeRemedy *remedy)
{
    static const char *const parts[] = {"nothing", "gpus",  "micro-batches", "stages",
                                        "round",   "group", "live",          "slices"};
    static const char *const bounds[] = {"=", ">=", "<="};

    if (remedy->part != RP_SHAPE_NOTHING)
        g_string_append_printf(line, " [%s %s %u]", parts[remedy->part], bounds[remedy->bound],
                               remedy->number);
}

/* The refusal of a shape, and its remedies. (transfer full) */
static char *
refusal(const char *words, gpointer data)
{
    const Case c = parse_case(words);
    GError *error = NULL;
    g_autoptr(GString) remedies = g_string_new(NULL);

    (void)data;
    if (rp_schedule_check(c.ops, &c.shape, &error))
        return NULL;
    const RpScheduleErrorPrivate *known = rp_schedule_error_remedies(error);

    if (known != NULL) {
        append_remedy(remedies, &known->one);
        append_remedy(remedies, &known->other);
    }
    g_autofree char *message = rp_test_refusal(&error);
    return g_strconcat(message, remedies->str, NULL);
}

RP_TEST(says_what_is_wrong_with_a_shape)
{
    rp_test_lines("tests/core/messages.txt", "schedules: wrong shapes", refusal, NULL);
}

/* A schedule of the caller's program: last, for the table keeps it. */

static guint wrong_stage, wrong_micro_batch; /* of one action more, on gpu 0 */
static RpActionKind wrong_kind;

static void
order_by_hand(const RpShape *shape, guint gpu, GArray *order)
{
    for (guint m = 0; m < shape->micro_batches; m++) {
        rp_order_push(order, RP_ACTION_FORWARD, gpu, m);
        if (gpu > 0 || m != wrong_micro_batch || wrong_kind != RP_ACTION_WEIGHT_GRADIENT)
            rp_order_push(order, RP_ACTION_BACKWARD, gpu, m);
    }
    if (gpu == 0 && wrong_kind != RP_ACTION_WEIGHT_GRADIENT)
        rp_order_push(order, wrong_kind, wrong_stage, wrong_micro_batch);
}

RP_TEST(takes_a_schedule_of_the_callers_program)
{
    static const RpScheduleOps mine = {.name = "by-hand",
                                       .title = "By hand",
                                       .summary = "one micro-batch after the other",
                                       .stages_per_gpu = 1,
                                       .order = order_by_hand};
    static const struct {
        RpActionKind kind;
        guint stage, micro_batch;
        const char *message;
    } wrong[] = {
        {RP_ACTION_FORWARD, 2, 0,
         "by-hand: gpu 0, action 8: expected F, B, I or W of a stage of that gpu, each once, found "
         "kind 0 of stage 2, micro-batch 0"},
        {RP_ACTION_FORWARD, 0, 4,
         "by-hand: gpu 0, action 8: expected F, B, I or W of a stage of that gpu, each once, found "
         "kind 0 of stage 0, micro-batch 4"},
        {RP_ACTION_BACKWARD, 1, 0,
         "by-hand: gpu 0, action 8: expected F, B, I or W of a stage of that gpu, each once, found "
         "kind 1 of stage 1, micro-batch 0"},
        {RP_ACTION_BACKWARD, 0, 3,
         "by-hand: gpu 0, action 8: expected F, B, I or W of a stage of that gpu, each once, found "
         "kind 1 of stage 0, micro-batch 3"},
        {RP_ACTION_WEIGHT_GRADIENT, 0, 3,
         "by-hand: expected F and B, or F, I and W, of stage 0, micro-batch 3 in its order"},
    };
    const RpShape shape = bound_shape(2, 4, 2);
    RpScheduleOps bad[] = {mine, mine, mine, mine};

    assert_true(rp_schedule_add(&mine, NULL));
    assert_ptr_equal(find("by-hand"), &mine);
    bad[0].name = "By hand";
    bad[1].name = "1f1b";
    bad[2].name = "by-hand-2", bad[2].order = NULL;
    bad[3].name = "by-hand-3", bad[3].dispatched = TRUE;
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;

        assert_false(rp_schedule_add(&bad[i], &error));
        assert_true(g_error_matches(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_OWN));
    }
    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autoptr(GError) error = NULL;

        wrong_kind = wrong[i].kind;
        wrong_stage = wrong[i].stage;
        wrong_micro_batch = wrong[i].micro_batch;
        assert_false(rp_schedule_check(&mine, &shape, &error));
        assert_true(g_error_matches(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_OWN));
        assert_string_equal(error->message, wrong[i].message);
    }
}

RP_TEST_GROUP(set_up, tear_down)
