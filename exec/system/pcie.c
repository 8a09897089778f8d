#include "exec/system/pcie.h"

#include <stdlib.h>

/* The number that the file begins with; 0: it is not there, or "Unknown". */
static double
read_number(const char *directory, const char *file)
{
    g_autofree char *path = g_build_filename(directory, file, NULL);
    g_autofree char *text = NULL;
    double number = 0;

    if (g_file_get_contents(path, &text, NULL, NULL))
        number = g_ascii_strtod(text, NULL);
    return number > 0 && number <= 1024 ? number : 0;
}

static RpPcieSpeed
read_speed(const char *directory, const char *width, const char *speed)
{
    return (RpPcieSpeed){(guint)read_number(directory, width), read_number(directory, speed)};
}

gboolean
rp_pcie_read_link(const char *devices, const char *address, RpPcieLink *link)
{
    g_autofree char *directory = g_build_filename(devices, address, NULL);
    char *real = realpath(directory, NULL);

    if (real == NULL)
        return FALSE;
    g_autofree char *port = g_path_get_dirname(real);

    link->now = read_speed(real, "current_link_width", "current_link_speed");
    link->card = read_speed(real, "max_link_width", "max_link_speed");
    link->slot = read_speed(port, "max_link_width", "max_link_speed");
    free(real);
    if (link->slot.width == 0)
        link->slot.width = link->card.width;
    if (link->slot.gt_per_s == 0)
        link->slot.gt_per_s = link->card.gt_per_s;
    return link->now.width > 0 && link->card.width > 0;
}

char *
rp_pcie_iommu(const char *devices, const char *address)
{
    g_autofree char *path = g_build_filename(devices, address, "iommu_group", "type", NULL);
    char *text = NULL;

    if (g_file_get_contents(path, &text, NULL, NULL))
        g_strstrip(text);
    return text;
}

char *
rp_pcie_fault(const RpPcieLink *link, gboolean woken)
{
    const guint width = MIN(link->card.width, link->slot.width);
    const double speed = MIN(link->card.gt_per_s, link->slot.gt_per_s);
    const gboolean narrow = link->now.width < width;
    const gboolean slow = woken && link->now.gt_per_s > 0 && link->now.gt_per_s < speed;

    if (!narrow && !slow)
        return NULL;
    return g_strdup_printf("%u lanes at %g GT/s, where card and slot have %u at %g: %s",
                           link->now.width, link->now.gt_per_s, width, speed,
                           narrow ? "reseat the card, look at its riser, and at the firmware's "
                                    "bifurcation of the slot"
                                  : "look at the riser, and at the slot's speed in the firmware");
}
