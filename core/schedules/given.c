/* An order that is given, not made, as one more schedule. */
#include "core/schedules/given.h"

typedef struct {
    RpScheduleOps ops;
    RpGivenOrders orders;
    char *name;
    GArray **copies;
    guint *gpu_of;
} Given;

static gboolean
is_split(const GArray *order)
{
    for (guint i = 0; i < order->len; i++) {
        const guint8 kind = g_array_index(order, RpAction, i).kind;

        if (kind == RP_ACTION_INPUT_GRADIENT || kind == RP_ACTION_WEIGHT_GRADIENT ||
            kind == RP_ACTION_OVERLAP)
            return TRUE;
    }
    return FALSE;
}

/* Whether slot after slot goes to the next GPU, round after round. */
static gboolean
are_in_turns(const RpGivenOrders *given)
{
    const guint64 n = (guint64)(given->micro_batches / given->round) * given->stages;

    for (guint64 i = 0; i < n; i++)
        if (given->gpu_of[i] != i % given->gpus)
            return FALSE;
    return TRUE;
}

RpScheduleOps *
rp_schedule_new_given(const char *name, const RpGivenOrders *orders, gboolean offloads_weights)
{
    const gboolean dispatched = orders->round > 0;
    const gsize n_places =
        (gsize)orders->stages * (dispatched ? orders->micro_batches / orders->round : 1);
    Given *given = g_new0(Given, 1);

    given->name = g_strdup(name);
    given->copies = g_new(GArray *, orders->gpus);
    given->gpu_of = g_memdup2(orders->gpu_of, n_places * sizeof *given->gpu_of);
    given->orders = *orders;
    given->orders.orders = given->copies;
    given->orders.gpu_of = given->gpu_of;
    given->orders.in_turns = dispatched && are_in_turns(orders);
    given->ops = (RpScheduleOps){
        .name = given->name,
        .title = given->name,
        .summary = "the order of a file",
        .dispatched = dispatched,
        .offloads_weights = dispatched || offloads_weights,
        .given = &given->orders,
    };
    for (guint g = 0; g < orders->gpus; g++) {
        given->copies[g] = g_array_copy(orders->orders[g]);
        given->ops.split_backward |= is_split(given->copies[g]);
    }
    return &given->ops;
}

void
rp_schedule_free_given(RpScheduleOps *schedule)
{
    Given *given = (Given *)(void *)schedule;

    if (given == NULL)
        return;
    for (guint g = 0; g < given->orders.gpus; g++)
        g_array_unref(given->copies[g]);
    g_free(given->copies);
    g_free(given->gpu_of);
    g_free(given->name);
    g_free(given);
}
