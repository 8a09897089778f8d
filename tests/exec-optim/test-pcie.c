/* Tests links of cards, as files of the kernel describe them. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "exec/system/pcie.h"

typedef struct {
    char *root; /* devices, and pci0000:00/PORT/CARD, to which the devices are links */
    char *devices;
} Fixture;

static int
setup(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->root = g_dir_make_tmp("test-pcie-XXXXXX", NULL);
    f->devices = g_build_filename(f->root, "devices", NULL);
    *state = f;
    return f->root == NULL || g_mkdir(f->devices, 0700) != 0;
}

static int
teardown(void **state)
{
    Fixture *f = *state;
    g_autofree char *remove = g_strdup_printf("rm -r '%s'", f->root);
    const int failed = system(remove);

    g_free(f->root);
    g_free(f->devices);
    g_free(f);
    return failed;
}

static void
write_link(const char *directory, const char *which, const char *width, const char *speed)
{
    g_autofree char *width_file = g_strdup_printf("%s/%s_link_width", directory, which);
    g_autofree char *speed_file = g_strdup_printf("%s/%s_link_speed", directory, which);

    assert_true(g_file_set_contents(width_file, width, -1, NULL));
    assert_true(g_file_set_contents(speed_file, speed, -1, NULL));
}

/* A card that runs at @width and @speed of 16 lanes at 16 GT/s, in a port of @slot_width lanes. */
static void
plug(const Fixture *f, const char *address, const char *width, const char *speed,
     const char *slot_width)
{
    g_autofree char *port = g_build_filename(f->root, address, "port", NULL);
    g_autofree char *card = g_build_filename(port, address, NULL);
    g_autofree char *link = g_build_filename(f->devices, address, NULL);

    assert_int_equal(g_mkdir_with_parents(card, 0700), 0);
    assert_int_equal(symlink(card, link), 0);
    write_link(card, "current", width, speed);
    write_link(card, "max", "16\n", "16.0 GT/s PCIe\n");
    if (slot_width != NULL)
        write_link(port, "max", slot_width, "32.0 GT/s PCIe\n");
}

static void
check(const Fixture *f, const char *address, gboolean woken, const char *fault)
{
    RpPcieLink link;

    assert_true(rp_pcie_read_link(f->devices, address, &link));
    g_autofree char *found = rp_pcie_fault(&link, woken);

    if (fault == NULL)
        assert_null(found);
    else if (found == NULL || !g_str_has_prefix(found, fault))
        fail_msg("%s: expected \"%s\", found \"%s\"", address, fault, found);
}

RP_TEST_OF(tells_cards_below_their_slots, Fixture *f)
{
    plug(f, "0000:01:00.0", "16\n", "16.0 GT/s PCIe\n", "16\n");
    plug(f, "0000:02:00.0", "4\n", "16.0 GT/s PCIe\n", "16\n");
    plug(f, "0000:03:00.0", "8\n", "16.0 GT/s PCIe\n", "8\n");
    plug(f, "0000:04:00.0", "16\n", "2.5 GT/s PCIe\n", "16\n");
    plug(f, "0000:05:00.0", "8\n", "8.0 GT/s PCIe\n", NULL);
    check(f, "0000:01:00.0", TRUE, NULL);
    check(f, "0000:02:00.0", FALSE,
          "4 lanes at 16 GT/s, where card and slot have 16 at 16: reseat");
    check(f, "0000:03:00.0", TRUE, NULL);  /* a slot of 8 lanes is no fault */
    check(f, "0000:04:00.0", FALSE, NULL); /* it sleeps */
    check(f, "0000:04:00.0", TRUE, "16 lanes at 2.5 GT/s, where card and slot have 16 at 16: look");
    check(f, "0000:05:00.0", TRUE, "8 lanes at 8 GT/s, where card and slot have 16 at 16: reseat");
}

RP_TEST_OF(knows_nothing_of_virtual_machines, Fixture *f)
{
    RpPcieLink link;

    plug(f, "0000:06:00.0", "0\n", "Unknown\n", NULL);
    assert_false(rp_pcie_read_link(f->devices, "0000:06:00.0", &link));
    assert_false(rp_pcie_read_link(f->devices, "0000:07:00.0", &link));
}

RP_TEST_OF(tells_of_an_iommu, Fixture *f)
{
    g_autofree char *group = g_build_filename(f->devices, "0000:08:00.0", "iommu_group", NULL);
    g_autofree char *type = g_build_filename(group, "type", NULL);

    plug(f, "0000:08:00.0", "16\n", "16.0 GT/s PCIe\n", "16\n");
    assert_null(rp_pcie_iommu(f->devices, "0000:08:00.0"));
    assert_int_equal(g_mkdir(group, 0700), 0);
    assert_true(g_file_set_contents(type, "DMA-FQ\n", -1, NULL));
    g_autofree char *found = rp_pcie_iommu(f->devices, "0000:08:00.0");

    assert_string_equal(found, "DMA-FQ");
}

RP_TEST_FIXTURE(setup, teardown)
