/**
 * GPUs of the machine, as CUDA numbers them. Without CUDA (exec/cuda/module/none.c) there are none.
 */
#pragma once

#include <glib.h>

typedef struct {
    char name[256]; /* "NVIDIA H200" */
    guint64 memory_bytes;
    guint64 free_bytes; /* now */
    guint sm;           /* 90: compute capability 9.0 */
    guint multiprocessors;
    char pci_address[16]; /* "0000:01:00.0" */
} RpCudaDeviceInfo;

/* Devices that a run may use; 0 if there is no driver. */
guint rp_cuda_device_count(void);

/* Why there are none, in CUDA's words: no driver, an old one, nothing visible. %NULL: there are */
const char *rp_cuda_no_device_text(void);

/**
 * rp_cuda_split_devices:
 * @text: "equal", or how many multiprocessors each part of a card has, as "24,24,48" or "4*24"
 * @server: which of the machine's processes this is, where several train one model: the parts before are the others'
 * @n: devices that are wanted, of all cards together
 *
 * Makes several devices of each card for the rest of the process, parts that compute beside each other
 * (exec/cuda/runtime/split.h). To be called before anything else here; a second call changes nothing.
 *
 * Errors: RP_DEVICE_ERROR_MISSING: @text is wrong, the driver has no green contexts, or the card has too few
 * multiprocessors
 */
gboolean rp_cuda_split_devices(const char *text, guint server, guint n,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Wakes the device up, which takes a moment and some of its memory. Errors:
 * RP_DEVICE_ERROR_MISSING */
gboolean rp_cuda_device_info(guint device, RpCudaDeviceInfo *info,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Whether GPU code was built into this program, as Meson found it: CUDA is not called for it.
 */

gboolean rp_cuda_built(void);

/* "CUDA 13.0.88, for cards of compute capability 80, 90", or "not built in: there was no nvcc in
 * PATH (docs/gpu.md)". */
const char *rp_cuda_built_text(void);
