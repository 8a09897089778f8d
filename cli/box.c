/* The box that a command is asked about: its card, and links that differ from the card's usual ones. */
#include "cli/cli.h"

#include <math.h>
#include <string.h>

#include "core/catalogue/server-network.h"
#include "core/profile/box.h"

#define MOST_CARDS 4096

/* GB/s; 0: not given. */
typedef struct {
    double pcie, host;
} Links;

/* "4x8" */
static double
read_generation(const char *text)
{
    char *end = NULL;
    const guint64 generation = g_ascii_strtoull(text, &end, 10);

    if (end == text || *end != 'x' || generation > 9 || !g_ascii_isdigit(end[1]))
        return 0;
    const guint64 lanes = g_ascii_strtoull(end + 1, &end, 10);

    return *end == '\0' && lanes <= 16 ? rp_pcie_gb_per_s((guint)generation, (guint)lanes) : 0;
}

static gboolean
read_links(const RpBoxArgs *box, Links *links, GError **error)
{
    *links = (Links){0};
    if (box->pcie != NULL) {
        links->pcie = read_generation(box->pcie);
        if (links->pcie == 0)
            links->pcie = rp_cli_parse_positive(box->pcie);
        if (links->pcie == 0)
            return rp_cli_refuse(error,
                                 "--pcie: expected a generation from 3 to 6 and 1, 2, 4, 8 or 16 "
                                 "lanes, as 4x8, or GB/s, found \"%s\"",
                                 box->pcie);
    }
    if (box->host_bandwidth != NULL) {
        links->host = rp_cli_parse_positive(box->host_bandwidth);
        if (links->host == 0)
            return rp_cli_refuse(error, "--host-bandwidth: expected GB/s, as 80, found \"%s\"",
                                 box->host_bandwidth);
    }
    return TRUE;
}

/* "rtx3090:2": the last number, where there is one. */
static gboolean
read_count(const char *word, char **name, guint *count, GError **error)
{
    const char *colon = strrchr(word, ':');
    guint64 n = 1;

    if (colon != NULL && !g_ascii_string_to_unsigned(colon + 1, 10, 1, MOST_CARDS, &n, NULL))
        return rp_cli_refuse(error,
                             "--gpu: expected a card, or CARD:N with N from 1 to %d, found \"%s\"",
                             MOST_CARDS, word);
    *name = colon != NULL ? g_strndup(word, (gsize)(colon - word)) : g_strdup(word);
    *count = (guint)n;
    return TRUE;
}

gboolean
rp_box_has_counts(const RpBoxArgs *box)
{
    return box->gpu != NULL && (rp_box_is_mixed(box) || strrchr(box->gpu, ':') != NULL);
}

gboolean
rp_box_is_mixed(const RpBoxArgs *box)
{
    return box->gpu != NULL && strchr(box->gpu, ',') != NULL;
}

gboolean
rp_box_count(const RpBoxArgs *box, guint *gpus, GError **error)
{
    g_auto(GStrv) words = rp_box_has_counts(box) ? g_strsplit(box->gpu, ",", -1) : NULL;
    guint all = 0;

    for (char **word = words; word != NULL && *word != NULL; word++) {
        g_autofree char *name = NULL;
        guint n = 0;

        if (!read_count(*word, &name, &n, error))
            return FALSE;
        all += n;
    }
    if (words != NULL && *gpus != 0 && *gpus != all)
        return rp_cli_refuse(error, "--gpus: expected %u, as many as --gpu has, found %u", all,
                             *gpus);
    if (words != NULL)
        *gpus = all;
    return TRUE;
}

/* A card that stands twice in the list is one. */
static guint
add_card(GPtrArray *cards, GPtrArray *names, char *name, RpGpu *card)
{
    for (guint c = 0; c < names->len; c++)
        if (strcmp(g_ptr_array_index(names, c), name) == 0) {
            g_free(name);
            rp_gpu_free(card);
            return c;
        }
    g_ptr_array_add(names, name);
    g_ptr_array_add(cards, card);
    return cards->len - 1;
}

GPtrArray *
rp_box_open_cards(const RpBoxArgs *box, const char *usual, GArray **card_of, GError **error)
{
    g_auto(GStrv) words = g_strsplit(box->gpu != NULL ? box->gpu : usual, ",", -1);
    g_autoptr(GPtrArray) cards = g_ptr_array_new_with_free_func((GDestroyNotify)rp_gpu_free);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GArray) of = g_array_new(FALSE, FALSE, sizeof(guint));

    for (char **word = words; *word != NULL; word++) {
        RpBoxArgs one = *box;
        guint n = 0;

        if (!read_count(*word, &one.gpu, &n, error))
            return NULL;
        RpGpu *card = rp_box_open(&one, NULL, error);

        if (card == NULL) {
            g_free(one.gpu);
            return NULL;
        }
        const guint c = add_card(cards, names, one.gpu, card);

        for (guint i = 0; i < n; i++)
            g_array_append_val(of, c);
    }
    if (cards->len < 2)
        g_array_set_size(of, 0);
    *card_of = g_steal_pointer(&of);
    return g_steal_pointer(&cards);
}

char *
rp_box_describe(const GPtrArray *cards, const GArray *card_of)
{
    GString *text = g_string_new(NULL);

    for (guint c = 0; c < cards->len; c++) {
        guint n = 0;

        for (guint g = 0; g < card_of->len; g++)
            n += g_array_index(card_of, guint, g) == c;
        g_string_append_printf(text, "%s%u x %s", c > 0 ? " + " : "", n,
                               ((const RpGpu *)g_ptr_array_index(cards, c))->title);
    }
    return g_string_free(text, FALSE);
}

RpGpu *
rp_box_open(const RpBoxArgs *box, const char *usual, GError **error)
{
    Links links;
    g_autoptr(RpGpu) gpu = NULL;

    if (!read_links(box, &links, error))
        return NULL;
    if (rp_box_has_counts(box)) {
        (void)rp_cli_refuse(error,
                            "--gpu: expected one card, without a number, found \"%s\"; "
                            "simulate, compare and plan know boxes of several",
                            box->gpu);
        return NULL;
    }
    gpu = rp_gpu_open(box->gpu != NULL ? box->gpu : usual, error);
    if (gpu == NULL)
        return rp_null(rp_prefix_error(error, "--gpu: "));
    if (links.pcie > 0) {
        gpu->root_gb_per_s *= links.pcie / MAX(gpu->h2d_gb_per_s, gpu->d2h_gb_per_s);
        gpu->h2d_gb_per_s = gpu->d2h_gb_per_s = links.pcie;
    }
    if (links.host > 0)
        gpu->host_gb_per_s = links.host;
    return g_steal_pointer(&gpu);
}

gboolean
rp_box_measured(const RpBoxArgs *box, RpProfile **measured, GError **error)
{
    *measured = NULL;
    if (box->file == NULL)
        return TRUE;
    if (box->pcie != NULL || box->host_bandwidth != NULL)
        return rp_cli_refuse(error, "--%s: expected no --box beside it, whose file has it",
                             box->pcie != NULL ? "pcie" : "host-bandwidth");
    *measured = rp_profile_load_box(box->file, error);
    return *measured != NULL || rp_prefix_error(error, "--box: ");
}

gboolean
rp_box_connect(const RpBoxArgs *box, RpProfile *profile, GError **error)
{
    g_autoptr(RpProfile) measured = NULL;

    if (!rp_box_measured(box, &measured, error))
        return FALSE;
    if (measured != NULL)
        rp_profile_take_box(profile, measured);
    if (box->network == NULL)
        return TRUE;
    g_autoptr(RpServerNetwork) network = rp_server_network_open(box->network, error);

    if (network == NULL)
        return rp_prefix_error(error, "--network: ");
    profile->links.network_bytes_per_s = rp_server_network_bytes_per_s(network);
    profile->links.network_latency_ns = llround(network->latency_us * 1e3);
    return TRUE;
}

gboolean
rp_box_change(const RpBoxArgs *box, RpProfile *profile, GError **error)
{
    RpLinks *own = &profile->links;
    const double slower = MIN(own->h2d_bytes_per_s, own->d2h_bytes_per_s);
    const double faster = MAX(own->h2d_bytes_per_s, own->d2h_bytes_per_s);
    Links links;

    if (!read_links(box, &links, error))
        return FALSE;
    if (links.pcie > 0 && slower <= 0)
        return rp_cli_refuse(error, "--pcie: expected a profile with the speed of its links, found "
                                    "one without; --gpu with a model's name has it");
    if (links.pcie > 0) {
        own->hop_ns = llround((double)own->hop_ns * slower / (links.pcie * 1e9));
        own->root_bytes_per_s *= links.pcie * 1e9 / faster;
        own->h2d_bytes_per_s = own->d2h_bytes_per_s = links.pcie * 1e9;
    }
    if (links.host > 0) {
        own->host_bytes_per_s = links.host * 1e9;
        if (own->beside_optimizer_bytes_per_s >= own->host_bytes_per_s)
            own->beside_optimizer_bytes_per_s = 0;
    }
    return rp_box_connect(box, profile, error);
}
