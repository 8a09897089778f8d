/* The box that a command is asked about: its card, and links that differ from the card's usual ones. */
#include "cli/cli.h"

#include <math.h>

/* GB/s: more is a slip of the hand. */
#define MOST_RATE 1e6

/* GB/s; 0: not given. */
typedef struct {
    double pcie, host;
} Links;

static double
read_rate(const char *text)
{
    char *end = NULL;
    const double rate = g_ascii_strtod(text, &end);

    return end != text && *end == '\0' && rate > 0 && rate <= MOST_RATE ? rate : 0;
}

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
            links->pcie = read_rate(box->pcie);
        if (links->pcie == 0)
            return rp_cli_refuse(error,
                                 "--pcie: expected a generation from 3 to 6 and 1, 2, 4, 8 or 16 "
                                 "lanes, as 4x8, or GB/s, found \"%s\"",
                                 box->pcie);
    }
    if (box->host_bandwidth != NULL) {
        links->host = read_rate(box->host_bandwidth);
        if (links->host == 0)
            return rp_cli_refuse(error, "--host-bandwidth: expected GB/s, as 80, found \"%s\"",
                                 box->host_bandwidth);
    }
    return TRUE;
}

RpGpu *
rp_box_open(const RpBoxArgs *box, const char *usual, GError **error)
{
    Links links;
    g_autoptr(RpGpu) gpu = NULL;

    if (!read_links(box, &links, error))
        return NULL;
    gpu = rp_gpu_open(box->gpu != NULL ? box->gpu : usual, error);
    if (gpu == NULL) {
        g_prefix_error(error, "--gpu: ");
        return NULL;
    }
    if (links.pcie > 0) {
        gpu->root_gb_per_s *= links.pcie / MAX(gpu->h2d_gb_per_s, gpu->d2h_gb_per_s);
        gpu->h2d_gb_per_s = gpu->d2h_gb_per_s = links.pcie;
    }
    if (links.host > 0)
        gpu->host_gb_per_s = links.host;
    return g_steal_pointer(&gpu);
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
    return TRUE;
}
