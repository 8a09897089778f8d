#include "core/profile/box.h"

#include <math.h>
#include <string.h>

gboolean
rp_profile_says_box(const RpProfile *profile)
{
    const RpLinks *links = &profile->links;

    return (links->h2d_bytes_per_s > 0) == (links->d2h_bytes_per_s > 0) &&
           (links->h2d_bytes_per_s > 0 || links->host_bytes_per_s > 0 ||
            profile->optimizer_parameters_per_s > 0);
}

static gboolean
knows_roots(const RpProfile *box)
{
    return box->links.h2d_bytes_per_s > 0 && (box->gpus > 1 || box->links.gpus_per_root > 0);
}

guint
rp_profile_box_known(const RpProfile *box)
{
    const gboolean known[RP_N_UNKNOWNS] = {
        [RP_UNKNOWN_BOTH] = box->links.both_bytes_per_s > 0,
        [RP_UNKNOWN_ROOTS] = knows_roots(box),
        [RP_UNKNOWN_HOST] = box->links.host_bytes_per_s > 0,
        [RP_UNKNOWN_OPTIMIZER] = box->optimizer_parameters_per_s > 0,
    };
    guint bits = 0;

    for (guint u = 0; u < RP_N_UNKNOWNS; u++)
        bits |= known[u] ? 1u << u : 0;
    return bits;
}

static void
take_links(RpLinks *own, const RpProfile *box)
{
    const RpLinks *links = &box->links;
    const double slower = MIN(own->h2d_bytes_per_s, own->d2h_bytes_per_s);
    const double faster = MAX(own->h2d_bytes_per_s, own->d2h_bytes_per_s);

    if (links->h2d_bytes_per_s > 0) {
        if (slower > 0) {
            own->hop_ns = llround((double)own->hop_ns * slower /
                                  MIN(links->h2d_bytes_per_s, links->d2h_bytes_per_s));
            own->root_bytes_per_s *= MAX(links->h2d_bytes_per_s, links->d2h_bytes_per_s) / faster;
        }
        own->h2d_bytes_per_s = links->h2d_bytes_per_s;
        own->d2h_bytes_per_s = links->d2h_bytes_per_s;
        own->both_bytes_per_s = links->both_bytes_per_s;
        own->copy_latency_ns = MAX(own->copy_latency_ns, links->copy_latency_ns);
    }
    if (knows_roots(box)) {
        own->root_bytes_per_s = links->root_bytes_per_s;
        own->gpus_per_root = links->gpus_per_root;
    }
    if (links->host_bytes_per_s > 0) {
        own->host_bytes_per_s = links->host_bytes_per_s;
        own->beside_optimizer_bytes_per_s = links->beside_optimizer_bytes_per_s;
    }
}

void
rp_profile_take_box(RpProfile *profile, const RpProfile *box)
{
    take_links(&profile->links, box);
    for (guint c = 0; c < profile->n_cards; c++)
        take_links(&profile->cards[c]->links, box);
    if (!(box->optimizer_parameters_per_s > 0))
        return;
    profile->optimizer_parameters_per_s = box->optimizer_parameters_per_s;
    profile->norm_parameters_per_s = box->norm_parameters_per_s;
    profile->sum_parameters_per_s = box->sum_parameters_per_s;
    profile->gradient_copy_parameters_per_s = box->gradient_copy_parameters_per_s;
    profile->parameter_copy_parameters_per_s = box->parameter_copy_parameters_per_s;
    memcpy(profile->cached_parameters_per_s, box->cached_parameters_per_s,
           sizeof profile->cached_parameters_per_s);
}

void
rp_profile_share_machine(RpProfile *profile, guint servers, guint devices, gboolean processors)
{
    RpLinks *links = &profile->links;
    double *const rates[] = {&profile->optimizer_parameters_per_s, &profile->norm_parameters_per_s,
                             &profile->sum_parameters_per_s,
                             &profile->gradient_copy_parameters_per_s,
                             &profile->parameter_copy_parameters_per_s};
    double *cached = &profile->cached_parameters_per_s[0][0][0];

    links->host_bytes_per_s /= servers;
    links->beside_optimizer_bytes_per_s /= servers;
    links->root_bytes_per_s /= CLAMP(links->gpus_per_root / devices, 1, servers);
    for (gsize i = 0; processors && i < G_N_ELEMENTS(rates); i++)
        *rates[i] /= servers;
    for (gsize i = 0; processors && i < sizeof profile->cached_parameters_per_s / sizeof *cached;
         i++)
        cached[i] /= servers;
}
