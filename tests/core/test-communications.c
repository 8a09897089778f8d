/*
 * SEND, RECV, UNSHARD, RESHARD and REDUCE_GRAD of a PyTorch pipeline CSV: orders that PyTorch makes
 * are let pass, and every one that would hang, or compute with missing values, is refused.
 */
#include "tests/rp-test.h"

#include "core/formats/import-pytorch.h"

typedef struct {
    RpOrders *orders;
    RpPlan *plan;
    GPtrArray *rows; /* GPtrArray of Cell */
    GString *text;
    GError *error;
} Fixture;

static void
clear(Fixture *fixture)
{
    g_clear_pointer(&fixture->orders, rp_orders_free);
    g_clear_pointer(&fixture->plan, rp_plan_free);
    g_clear_error(&fixture->error);
}

static void
tear_down(Fixture *fixture)
{
    clear(fixture);
    g_clear_pointer(&fixture->rows, g_ptr_array_unref);
    if (fixture->text != NULL)
        g_string_free(fixture->text, TRUE);
}

/* Whether @text is an order whose communications are right; its actions are. */
static gboolean
check(Fixture *fixture, const char *text, RpCommunicationProof *proof)
{
    const RpStageCost cost = {1, 2, 1, 1, 0};
    const RpOrderCosts costs = {&cost, 1, 0, 0};

    clear(fixture);
    fixture->orders = rp_must(rp_orders_import_pytorch, "o.csv", text, strlen(text), 0);
    fixture->plan = rp_must(rp_plan_from_orders, fixture->orders, &costs);
    return rp_orders_check_communications(fixture->orders, proof, &fixture->error);
}

RP_TEST_OF(proves_what_pytorch_makes, Fixture *fixture)
{
    static const struct {
        const char *text;
        guint64 transfers;
        guint rank_pairs;
        guint64 unshards;
        guint reductions;
    } cases[] = {
        {"0F0,0B0\n1F0,1B0\n", 0, 0, 0, 0},
        {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 2, 1, 0, 0},
        /* from PyTorch's own tests: two ranks, two stages */
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
         "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
         4, 1, 0, 0},
        /* stages 1 and 2 share a rank: nothing is sent between them */
        {"0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
         "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n",
         4, 1, 0, 0},
        /* forward only */
        {"0F0,0SEND_F0\n1RECV_F0,1F0\n", 1, 1, 0, 0},
        {"0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n", 0, 0, 1, 1},
        {"0UNSHARD,0F0,0RESHARD,0UNSHARD,0I0,0W0,0RESHARD,0REDUCE_GRAD\n", 0, 0, 2, 1},
        {"0UNSHARD,0F0,0SEND_F0,0RESHARD,0UNSHARD,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
         "1UNSHARD,1RECV_F0,1F0,1B0,1REDUCE_GRAD,1SEND_B0,1RESHARD\n",
         2, 1, 3, 2},
    };

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        RpCommunicationProof proof;

        if (!check(fixture, cases[i].text, &proof))
            fail_msg("%s: %s", cases[i].text, fixture->error->message);
        assert_int_equal(proof.transfers, cases[i].transfers);
        assert_int_equal(proof.rank_pairs, cases[i].rank_pairs);
        assert_int_equal(proof.unshards, cases[i].unshards);
        assert_int_equal(proof.reductions, cases[i].reductions);
    }
}

static char *
refusal(const char *text, gpointer data)
{
    Fixture *fixture = data;
    RpCommunicationProof proof;

    (void)check(fixture, text, &proof);
    return rp_test_refusal(&fixture->error);
}

RP_TEST(refuses_broken_communications_by_name)
{
    rp_test_lines("tests/core/messages.txt", "communications: broken", refusal, *state);
}

/* ---- against PyTorch's simulator, written again in its own words ---- */

typedef enum { F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, N_CELLS } CellKind;

typedef struct {
    CellKind kind;
    guint32 stage;
    guint32 micro_batch;
} Cell;

static void
add_cell(GPtrArray *rows, guint rank, CellKind kind, guint32 stage, guint32 micro_batch)
{
    Cell *cell = g_new(Cell, 1);

    *cell = (Cell){kind, stage, micro_batch};
    g_ptr_array_add(g_ptr_array_index(rows, rank), cell);
}

/* _add_send_recv: the maker of a value sends it, and puts the receive at the end of the other
 * rank's row. */
static void
add_action(Fixture *fixture, const RpPlan *plan, guint rank, CellKind kind, guint32 stage,
           guint32 micro_batch)
{
    guint32 peer = kind == F ? stage + 1 : stage - 1;

    add_cell(fixture->rows, rank, kind, stage, micro_batch);
    if (kind == W || peer >= rp_plan_n_stages(plan) || rp_plan_stage(plan, peer)->device == rank)
        return;
    add_cell(fixture->rows, rank, kind == F ? SEND_F : SEND_B, stage, micro_batch);
    add_cell(fixture->rows, rp_plan_stage(plan, peer)->device, kind == F ? RECV_F : RECV_B, peer,
             micro_batch);
}

/* The order of @schedule with its communications. FALSE: a shape that it does not take */
static gboolean
lower(Fixture *fixture, const RpScheduleOps *schedule, guint gpus, guint stages,
      guint micro_batches)
{
    const RpShape shape = {
        .gpus = gpus, .micro_batches = micro_batches, .stages = stages, .round = micro_batches};
    const RpStageCost cost = {1, 2, 1, 1, 0};
    const RpOrderCosts costs = {&cost, 1, 0, 0};
    g_autoptr(RpOrders) orders = NULL;
    g_autoptr(RpPlan) plan = NULL;

    if (schedule->dispatched || !rp_schedule_check(schedule, &shape, NULL))
        return FALSE;
    orders = rp_orders_new(schedule->name, gpus);
    for (guint g = 0; g < gpus; g++) {
        g_autoptr(GArray) actions = g_array_new(FALSE, FALSE, sizeof(RpAction));

        schedule->order(&shape, g, actions);
        for (guint i = 0; i < actions->len; i++)
            rp_orders_append(orders, g, &g_array_index(actions, RpAction, i), i + 1);
    }
    clear(fixture);
    plan = rp_must(rp_plan_from_orders, orders, &costs);
    g_clear_pointer(&fixture->rows, g_ptr_array_unref);
    fixture->rows = g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);
    for (guint g = 0; g < gpus; g++)
        g_ptr_array_add(fixture->rows, g_ptr_array_new_with_free_func(g_free));
    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        guint rank = rp_plan_lane_device(plan, task->lane);

        if (task->kind == RP_TASK_OVERLAP)
            return FALSE; /* two actions in one cell: the oracle has none */
        add_action(fixture, plan, rank,
                   task->kind == RP_TASK_FORWARD          ? F
                   : task->kind == RP_TASK_BACKWARD       ? B
                   : task->kind == RP_TASK_INPUT_GRADIENT ? I
                                                          : W,
                   task->stage, task->micro_batch);
    }
    return TRUE;
}

static const char *
write_rows(Fixture *fixture)
{
    static const char *const letters[N_CELLS] = {"F",      "B",      "I",      "W",
                                                 "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

    if (fixture->text == NULL)
        fixture->text = g_string_new(NULL);
    g_string_truncate(fixture->text, 0);
    for (guint r = 0; r < fixture->rows->len; r++) {
        const GPtrArray *row = g_ptr_array_index(fixture->rows, r);

        for (guint i = 0; i < row->len; i++) {
            const Cell *cell = g_ptr_array_index(row, i);

            g_string_append_printf(fixture->text, "%s%u%s%u", i > 0 ? "," : "", cell->stage,
                                   letters[cell->kind], cell->micro_batch);
        }
        g_string_append_c(fixture->text, '\n');
    }
    return fixture->text->str;
}

static char *
cell_key(CellKind kind, guint32 stage, guint32 micro_batch)
{
    return g_strdup_printf("%d %u %u", (int)kind, stage, micro_batch);
}

static gboolean
is_done(GHashTable *done, CellKind kind, guint32 stage, guint32 micro_batch)
{
    g_autofree char *key = cell_key(kind, stage, micro_batch);

    return g_hash_table_contains(done, key);
}

/* _ready_to_schedule. @own: done on this rank; @all: on any (a stage has one rank) */
static gboolean
is_ready(const Cell *cell, guint n_stages, GHashTable *own, GHashTable *all)
{
    guint32 s = cell->stage, m = cell->micro_batch;

    switch (cell->kind) {
    case F:
        return s == 0 || is_done(own, RECV_F, s, m) || is_done(own, F, s - 1, m);
    case B:
    case I:
        return s == n_stages - 1 || is_done(own, RECV_B, s, m) || is_done(own, B, s + 1, m) ||
               is_done(own, I, s + 1, m);
    case SEND_F:
        return is_done(own, F, s, m);
    case SEND_B:
        return is_done(own, B, s, m) || is_done(own, I, s, m);
    case RECV_F:
        return is_done(all, SEND_F, s - 1, m);
    case RECV_B:
        return is_done(all, SEND_B, s + 1, m);
    default:
        return TRUE;
    }
}

/* _simulate_comms_compute: whether every row comes to its end. */
static gboolean
simulates(const GPtrArray *rows, guint n_stages)
{
    g_autoptr(GHashTable) all = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GPtrArray) own = g_ptr_array_new_with_free_func((GDestroyNotify)g_hash_table_unref);
    g_autofree guint *next = g_new0(guint, rows->len);
    gboolean progress = TRUE, over = TRUE;

    for (guint r = 0; r < rows->len; r++)
        g_ptr_array_add(own, g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL));
    while (progress) {
        progress = FALSE;
        for (guint r = 0; r < rows->len; r++) {
            const GPtrArray *row = g_ptr_array_index(rows, r);
            const Cell *cell = next[r] < row->len ? g_ptr_array_index(row, next[r]) : NULL;

            if (cell == NULL || !is_ready(cell, n_stages, g_ptr_array_index(own, r), all))
                continue;
            g_hash_table_add(all, cell_key(cell->kind, cell->stage, cell->micro_batch));
            g_hash_table_add(g_ptr_array_index(own, r),
                             cell_key(cell->kind, cell->stage, cell->micro_batch));
            next[r]++;
            progress = TRUE;
        }
    }
    for (guint r = 0; r < rows->len; r++)
        over &= next[r] == ((const GPtrArray *)g_ptr_array_index(rows, r))->len;
    return over;
}

/* The messages between @rank and @other as @rank lists them, by the sender's stage. (transfer
 * full) */
static char *
channel(const GPtrArray *rows, guint rank, guint other, const guint *rank_of)
{
    GString *text = g_string_new(NULL);
    const GPtrArray *row = g_ptr_array_index(rows, rank);

    for (guint i = 0; i < row->len; i++) {
        const Cell *cell = g_ptr_array_index(row, i);
        gboolean forward = cell->kind == SEND_F || cell->kind == RECV_F;
        guint32 from = cell->stage;

        if (cell->kind == RECV_F)
            from--;
        if (cell->kind == RECV_B)
            from++;
        if (cell->kind < SEND_F ||
            (rank_of[from] != other && rank_of[forward ? from + 1 : from - 1] != other))
            continue;
        g_string_append_printf(text, "%c%u.%u ", forward ? 'F' : 'B', from, cell->micro_batch);
    }
    return g_string_free(text, FALSE);
}

static gboolean
keeps_channels(const GPtrArray *rows, const guint *rank_of)
{
    for (guint a = 0; a < rows->len; a++) {
        for (guint b = a + 1; b < rows->len; b++) {
            g_autofree char *said = channel(rows, a, b, rank_of);
            g_autofree char *heard = channel(rows, b, a, rank_of);

            if (strcmp(said, heard) != 0)
                return FALSE;
        }
    }
    return TRUE;
}

static void
find_ranks(const GPtrArray *rows, guint *rank_of)
{
    for (guint r = 0; r < rows->len; r++) {
        const GPtrArray *row = g_ptr_array_index(rows, r);

        for (guint i = 0; i < row->len; i++)
            rank_of[((const Cell *)g_ptr_array_index(row, i))->stage] = r;
    }
}

/* Both say the same of the rows as they are. Returns: which */
static gboolean
agree(Fixture *fixture, guint n_stages, const guint *rank_of)
{
    const char *text = write_rows(fixture);
    gboolean expected =
        simulates(fixture->rows, n_stages) && keeps_channels(fixture->rows, rank_of);
    RpCommunicationProof proof;
    gboolean found = check(fixture, text, &proof);

    if (found != expected)
        fail_msg("expected %s, found %s: %s", expected ? "correct" : "wrong",
                 found ? "correct" : fixture->error->message, text);
    return found;
}

/* Every neighbours of a row in the other order, every communication left out or written twice. */
static void
mutate(Fixture *fixture, guint n_stages, const guint *rank_of, guint *right, guint *wrong)
{
    for (guint r = 0; r < fixture->rows->len; r++) {
        GPtrArray *row = g_ptr_array_index(fixture->rows, r);

        for (guint i = 0; i < row->len; i++) {
            Cell *cell = g_ptr_array_index(row, i);
            Cell *next = i + 1 < row->len ? g_ptr_array_index(row, i + 1) : NULL;

            if (next != NULL && (cell->kind >= SEND_F || next->kind >= SEND_F)) {
                row->pdata[i] = next;
                row->pdata[i + 1] = cell;
                *(agree(fixture, n_stages, rank_of) ? right : wrong) += 1;
                row->pdata[i] = cell;
                row->pdata[i + 1] = next;
            }
            if (cell->kind < SEND_F)
                continue;
            g_ptr_array_steal_index(row, i);
            assert_false(agree(fixture, n_stages, rank_of));
            g_ptr_array_insert(row, (gint)i, cell);
            *wrong += 1;
        }
    }
}

RP_TEST_OF(agrees_with_pytorchs_simulator_on_every_mutation, Fixture *fixture)
{
    static const guint shapes[][3] = {{2, 2, 3}, {2, 4, 4}, {3, 3, 6}, {3, 6, 6}, {4, 4, 8}};
    guint orders = 0, right = 0, wrong = 0;

    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        for (guint i = 0; i < G_N_ELEMENTS(shapes) && !(*schedule)->mirrored; i++) {
            guint rank_of[8];

            if (!lower(fixture, *schedule, shapes[i][0], shapes[i][1], shapes[i][2]))
                continue;
            find_ranks(fixture->rows, rank_of);
            if (!agree(fixture, shapes[i][1], rank_of))
                fail_msg("%s: %s", (*schedule)->name, fixture->error->message);
            orders++;
            mutate(fixture, shapes[i][1], rank_of, &right, &wrong);
        }
    }
    /* enough of both kinds to mean something */
    assert_true(orders >= 15);
    assert_true(right >= 500);
    assert_true(wrong >= 2000);
}

RP_TEST_STATE(Fixture, rp_test_no_state, tear_down)
