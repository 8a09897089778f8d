/**
 * A card's link, as the kernel reports it: lanes and speed now, and the most that card and slot can
 * do.
 */
#pragma once

#include <glib.h>

#define RP_PCIE_DEVICES "/sys/bus/pci/devices"

typedef struct {
    guint width;     /* lanes; 0: unknown */
    double gt_per_s; /* rate of a lane; 0: unknown */
} RpPcieSpeed;

typedef struct {
    RpPcieSpeed now;
    RpPcieSpeed card;
    RpPcieSpeed slot; /* the port above; of the card where there is none */
} RpPcieLink;

/**
 * rp_pcie_read_link:
 * @devices: RP_PCIE_DEVICES
 * @address: "0000:01:00.0"
 *
 * Returns: %FALSE: nothing is known, as in most virtual machines
 */
gboolean rp_pcie_read_link(const char *devices, const char *address, RpPcieLink *link);

/* The IOMMU's mode for the card, in the kernel's word: "DMA" or "DMA-FQ" translates addresses,
 * "identity" does not. (transfer full) (nullable): there is none */
char *rp_pcie_iommu(const char *devices, const char *address);

/**
 * rp_pcie_fault:
 * @woken: the card has just worked: an idle one lowers its speed, which is no fault
 *
 * Returns: (transfer full) (nullable): the respect in which the link is below the most of card and
 * slot
 */
char *rp_pcie_fault(const RpPcieLink *link, gboolean woken);
