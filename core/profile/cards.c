#include "core/profile/cards.h"

#include <math.h>

/* Members of a layer that are times, and those that are sizes. */
static const gsize times[] = {
    offsetof(RpLayer, forward_ns),          offsetof(RpLayer, backward_ns),
    offsetof(RpLayer, recompute_ns),        offsetof(RpLayer, recompute_last_ns),
    offsetof(RpLayer, weight_gradient_ns),  offsetof(RpLayer, forward_spread_ns),
    offsetof(RpLayer, recompute_spread_ns), offsetof(RpLayer, backward_spread_ns),
    offsetof(RpLayer, expand_ns),
};
static const gsize sizes[] = {
    offsetof(RpLayer, forward_workspace_bytes),
    offsetof(RpLayer, backward_workspace_bytes),
    offsetof(RpLayer, activation_bytes),
};

#define N_TIMES (G_N_ELEMENTS(times) + RP_N_SAVED_GROUPS)

static gint64 *
time_of(RpLayer *layer, gsize i)
{
    return i < G_N_ELEMENTS(times) ? (gint64 *)(void *)((char *)layer + times[i])
                                   : &layer->saved[i - G_N_ELEMENTS(times)].recompute_ns;
}

static guint64 *
size_of(RpLayer *layer, gsize i)
{
    return (guint64 *)(void *)((char *)layer + sizes[i]);
}

const RpProfile *
rp_profile_of(const RpProfile *profile, guint device)
{
    return profile->n_cards > 0 && device < profile->n_devices
               ? profile->cards[profile->card_of[device]]
               : profile;
}

guint
rp_profile_card(const RpProfile *profile, guint device)
{
    return profile->n_cards > 0 && device < profile->n_devices ? profile->card_of[device] : 0;
}

/* ---- one of several ---- */

static guint
count_devices(const RpProfile *box, guint card)
{
    guint n = 0;

    for (guint g = 0; g < box->n_devices; g++)
        n += box->card_of[g] == card;
    return n;
}

/* With it devices alike would do as much together: harmonic. */
static gint64
mean_time(const RpProfile *box, guint layer, gsize i)
{
    double speed = 0;

    for (guint c = 0; c < box->n_cards; c++) {
        const gint64 time_ns = *time_of(&box->cards[c]->layers[layer], i);

        if (time_ns <= 0)
            return 0;
        speed += count_devices(box, c) / (double)time_ns;
    }
    return llround(box->n_devices / speed);
}

static void
join_layer(RpProfile *box, guint l)
{
    RpLayer *layer = &box->layers[l];

    for (gsize i = 0; i < N_TIMES; i++)
        *time_of(layer, i) = mean_time(box, l, i);
    layer->weight_gradient_ns = MIN(layer->weight_gradient_ns, layer->backward_ns);
    layer->recompute_last_ns = MIN(layer->recompute_last_ns, layer->recompute_ns);
    for (guint c = 1; c < box->n_cards; c++)
        for (gsize i = 0; i < G_N_ELEMENTS(sizes); i++)
            *size_of(layer, i) = MAX(*size_of(layer, i), *size_of(&box->cards[c]->layers[l], i));
}

/* 0 stands for a limit that is not known. */
static double
least(double a, double b)
{
    return a > 0 && b > 0 ? MIN(a, b) : MAX(a, b);
}

static void
join_links(RpLinks *box, const RpLinks *card)
{
    box->hop_ns = MAX(box->hop_ns, card->hop_ns);
    box->copy_latency_ns = MAX(box->copy_latency_ns, card->copy_latency_ns);
    box->h2d_bytes_per_s = MIN(box->h2d_bytes_per_s, card->h2d_bytes_per_s);
    box->d2h_bytes_per_s = MIN(box->d2h_bytes_per_s, card->d2h_bytes_per_s);
    box->both_bytes_per_s = least(box->both_bytes_per_s, card->both_bytes_per_s);
    box->host_bytes_per_s = least(box->host_bytes_per_s, card->host_bytes_per_s);
    box->beside_optimizer_bytes_per_s =
        least(box->beside_optimizer_bytes_per_s, card->beside_optimizer_bytes_per_s);
    box->root_bytes_per_s = least(box->root_bytes_per_s, card->root_bytes_per_s);
    box->gpus_per_root = (guint)least(box->gpus_per_root, card->gpus_per_root);
}

static void
join_profile(RpProfile *box, const RpProfile *card)
{
    join_links(&box->links, &card->links);
    box->gpu_memory_bytes =
        (guint64)least((double)box->gpu_memory_bytes, (double)card->gpu_memory_bytes);
    box->optimizer_parameters_per_s =
        least(box->optimizer_parameters_per_s, card->optimizer_parameters_per_s);
#define JOIN(name, rule, moments, master)                                                          \
    box->cached_parameters_per_s[rule][moments][master] =                                          \
        least(box->cached_parameters_per_s[rule][moments][master],                                 \
              card->cached_parameters_per_s[rule][moments][master]);
    RP_STATE_FORMATS(JOIN)
#undef JOIN
    box->has_sizes = box->has_sizes && card->has_sizes;
    box->head_chunk = MAX(box->head_chunk, card->head_chunk);
}

static char *
describe(const RpProfile *box)
{
    GString *text = g_string_new(NULL);

    for (guint c = 0; c < box->n_cards; c++)
        g_string_append_printf(text, "%s%u x %s", c > 0 ? " + " : "", count_devices(box, c),
                               box->cards[c]->device);
    return g_string_free(text, FALSE);
}

RpProfile *
rp_profile_box(const RpProfile *const *cards, const guint *card_of, guint n_devices)
{
    guint n_cards = 0;

    for (guint g = 0; g < n_devices; g++)
        n_cards = MAX(n_cards, card_of[g] + 1);
    RpProfile *box = rp_profile_copy(cards[0]);

    box->gpus = n_devices;
    if (n_cards < 2)
        return box;
    rp_profile_clear_cards(box);
    box->n_devices = n_devices;
    box->card_of = g_memdup2(card_of, n_devices * sizeof *card_of);
    box->n_cards = n_cards;
    box->cards = g_new(RpProfile *, n_cards);
    for (guint c = 0; c < n_cards; c++) {
        g_assert(cards[c]->n_layers == box->n_layers && cards[c]->n_cards == 0);
        box->cards[c] = rp_profile_copy(cards[c]);
        if (c > 0)
            join_profile(box, cards[c]);
    }
    for (guint l = 0; l < box->n_layers; l++)
        join_layer(box, l);
    rp_profile_take(&box->device, describe(box));
    return box;
}

/* ---- slower ---- */

static void
slow_actions(RpProfile *card, double factor)
{
    for (guint l = 0; l < card->n_layers; l++) {
        RpLayer *layer = &card->layers[l];

        for (gsize i = 0; i < N_TIMES; i++)
            *time_of(layer, i) = llround((double)*time_of(layer, i) * factor);
    }
}

static void
slow_links(RpLinks *links, double factor)
{
    links->hop_ns = llround((double)links->hop_ns * factor);
    links->copy_latency_ns = llround((double)links->copy_latency_ns * factor);
    links->h2d_bytes_per_s /= factor;
    links->d2h_bytes_per_s /= factor;
}

RpProfile *
rp_profile_slowed(const RpProfile *profile, const RpSlow *slow, guint n_devices)
{
    g_autoptr(GPtrArray) cards = g_ptr_array_new_with_free_func((GDestroyNotify)rp_profile_free);
    g_autofree guint *card_of = g_new(guint, n_devices);
    g_autofree guint *first = g_new(guint, n_devices); /* [card] its first device */

    for (guint g = 0; g < n_devices; g++) {
        guint c = 0;

        while (c < cards->len &&
               (rp_profile_of(profile, first[c]) != rp_profile_of(profile, g) ||
                slow[first[c]].actions != slow[g].actions || slow[first[c]].link != slow[g].link))
            c++;
        card_of[g] = c;
        if (c < cards->len)
            continue;
        RpProfile *card = rp_profile_copy(rp_profile_of(profile, g));

        rp_profile_clear_cards(card);
        slow_actions(card, slow[g].actions);
        slow_links(&card->links, slow[g].link);
        first[c] = g;
        g_ptr_array_add(cards, card);
    }
    RpProfile *box =
        rp_profile_box((const RpProfile *const *)(void *)cards->pdata, card_of, n_devices);

    box->gpus = profile->gpus;
    rp_profile_take(&box->device, g_strdup(profile->device));
    return box;
}

void
rp_profile_mix_times(RpProfile *profile, double own, const RpProfile *other, const double others[])
{
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l], with = other->layers[l];

        for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
            *time_of(layer, i) = (gint64)(own * (double)*time_of(layer, i) +
                                          others[layer->kind] * (double)*time_of(&with, i));
    }
}
