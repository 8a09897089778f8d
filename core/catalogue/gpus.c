/**
 * The GPUs. Where the numbers come from:
 *
 * - TFLOP/s and memory bandwidth: NVIDIA's GA102, Ada, RTX Blackwell, A100 and H100/H200 data
 *   sheets, dense. GeForce cards run 16-bit matmul at half rate when accumulating in fp32. Paper
 *   Table 2 gives the fp16-accumulating figures of 4090, 5090, A100 and H100 (330, 419, 312,
 *   989.5). Workstation and server cards accumulate in fp32 at the full rate: RTX A6000, RTX 6000 Ada
 *   and RTX PRO 6000 (Workstation Edition) of NVIDIA's white papers on these generations, L4, L40S
 *   and B200 (of HGX B200, half of the rate with sparsity) of their data sheets. RTX 3060: GA106 of
 *   28 processors as GA102's. B200's memory: 7,680 bits at 3,996 MHz, as the driver reports. MI300X
 *   and Radeon PRO W7800: AMD's data sheets.
 * - Looked up again on 2026-11-23, in others' copies of the data sheets and reports on the white papers, where
 *   processors, cores, clocks, L2 and memory's speed agree: L40S (362.05 and 733 TFLOP/s: a reseller's copy), 4080 (390
 *   with sparsity), 5080 (TechPowerUp's review), PRO 6000 (reports on its launch), A6000 (154.8: Microway's
 *   comparison), 6000 Ada, L4 (7,424 cores, that is 58 processors; some say 60), 3060, B200 (2,250 and 4,500 of HGX
 *   B200: glennklockwood.com) and MI300X (ROCm's table: L2 of 4 MiB a die). Of the W7800 only 90.5 TFLOP/s and RDNA 3's
 *   6 MiB were found; its clock is that of this rate. tests/core/test-catalogue.c holds rates to processors times clock.
 * - interconnect and its speed: paper Table 2 and §5.1 (A800); RTX 3090 and H200 by the same rule,
 *   one direction.
 * - h2d, d2h: PCIe 5 measured on an H200 host (55.5 and 55.4 GB/s, pinned 1 GiB copies); PCIe 4 is
 *   taken as 25 GB/s of its nominal 32, PCIe 3 as half of that; PCIe 6 ASSUMED twice PCIe 5.
 * - root complexes: the H200 host measured with four devices at once, 196.4 GB/s host to device and
 *   192.2 GB/s in both directions together (device to host alone stops at 155.1, which the model
 *   does not show). Others ASSUMED: two sockets, each with four GPUs behind two x16 uplinks.
 * - host memory: H200 measured as the most that copies in both directions reach, 192.2 GB/s. PCIe 4
 *   servers: the paper has DDR4 and a Xeon Gold 6330 (8 x DDR4-2933, 188 GB/s a socket); two
 *   sockets and 150 GB/s reached, remote-socket traffic included, are ASSUMED. RTX 5080, 5090 and PRO
 *   6000: ASSUMED DDR5, 200 GB/s. B200 and MI300X: ASSUMED the H200's host.
 * - fp8, with fp32 and with fp16 accumulation: of each card, @rates_source, as LLMQ's table has them from the same
 *   papers (IST-DASLab/llmq, src/utilities/sol.cpp). Processors, boost clocks and caches: the same.
 * - rates that users have shown, @rates_shown: gau-nernst.github.io
 *   content/posts/20250908-nvrtc-matmul, and gau-nernst/gn-kernels README at 02ef305a, which also
 *   has the copies, @copy_gb_per_s (5090 and A100; RTX 4090: none). An RTX 4090's fp8 reaches 330
 *   to 340 TFLOP/s with cuBLASLt, whose fp8 has fp32 sums only (thread 250737 of NVIDIA's forum, as
 *   others quote it: read second-hand).
 * - efficiencies: H200 fitted to the times of this project's kernels on it, profiles/h200, cuDNN's
 *   attention, clocks as a run has them (docs/cost-model.md); ASSUMED the same: H100. Those of the
 *   others are PyTorch's kernels': RTX 4090 fitted to published layer times, ASSUMED the same all other
 *   cards of these generations; A100 and A800 ASSUMED 0.80 and attention 0.55 and 0.45; B200 ASSUMED as
 *   the H200. AMD's cards ASSUMED 0.47 (published matmuls of MI300X reach 620 of 1,307 TFLOP/s) and
 *   attention 0.30 and 0.22: nothing of this project runs on them.
 * - memory: of a card's frame buffer, which `nvidia-smi` shows, CUDA gives a program some less
 *   (cudaMemGetInfo in an empty process). As users of these cards published it, not measured by
 * this project, MiB: RTX 4090 24,166 of 24,564 (98.4 %), RTX 5090 32,113 of 32,607, RTX 3090 24,259
 * of 24,576, H100 81,009 of 81,559 (99.3 %). Rule for the others, ASSUMED: A100 and A800 98.7 %, as
 *   the A100 of 40 GB (40,448 of 40,960); H200 99.3 %, as the H100 (measured: 143,156 of 143,771).
 *   L40S (45,486 of 46,068, ECC on) and B200 (182,630 of 183,359) published by users. Others by rule:
 *   GeForce 98.4 % of 12,288 (3060), 16,376 (4080) and 16,303 (5080); 98.7 % of 23,034 (L4), 49,140 (A6000
 *   and 6000 Ada, ECC off), 97,887 (PRO 6000), 32,752 (W7800); 99.3 % of 196,592 (MI300X).
 * - optimizer: H200 measured with 60 threads, 6.3 to 7.7e9 parameters/s in profiles/h200; others
 *   ASSUMED 3e9, 84 GB/s of host memory at 28 bytes a parameter.
 */
#include "core/catalogue/catalogue.h"

#include "core/base/units.h"

/* Bytes that CUDA gives a program, in MiB, and GB/s of them; MiB of the cache. */
#define MEMORY(mib, gb_per_s, cache)                                                               \
    .memory_bytes = mib * RP_MIB, .memory_gb_per_s = gb_per_s, .l2_mib = cache
/* Streaming multiprocessors and their boost clock, GHz. */
#define CHIP(n, ghz) .processors = n, .clock_ghz = ghz
/* TFLOP/s of 16-bit matmuls with fp16 and with fp32 sums, then of fp8 ones with fp32 and with fp16 sums; 0: none. */
#define RATES(half, single, eight, eight_half)                                                     \
    .fp16_accumulate_tflops = half, .fp32_accumulate_tflops = single, .fp8_tflops = eight,         \
    .fp8_fp16_accumulate_tflops = eight_half
/* The link between GPUs and its nominal GB/s. */
#define BETWEEN(link, gb_per_s) .interconnect = link, .interconnect_gb_per_s = gb_per_s

/* The source of times of cards to which this project's kernels are scaled. */
#define SCALED .scaled = TRUE, .basis = "this project's kernels on an H200, by the card's own rates"

/* Fitted to the RTX 4090's published layer times; tests/core/test-cost-model.c has the errors. */
#define GEFORCE_FIT                                                                                \
    .matmul_efficiency = 0.86, .attention_efficiency = 0.80,                                       \
    .attention_backward_efficiency = 0.80, .memory_efficiency = 0.85, EXPERT_FIT, GROUPED_GUESS,   \
    SCALED
/* The host issues an expert's kernels, so this hardly depends on the GPU. */
#define EXPERT_FIT .expert_ns = 113000
/* ASSUMED: this project's grouped matmul is written for the instructions that cuBLAS uses there. */
#define GROUPED_GUESS .grouped_efficiency = 0.90
#define A100_GUESS                                                                                 \
    .matmul_efficiency = 0.80, .attention_efficiency = 0.55,                                       \
    .attention_backward_efficiency = 0.45, .memory_efficiency = 0.85, EXPERT_FIT, GROUPED_GUESS,   \
    SCALED
/* Fitted to blocks of experts and to a whole run of Qwen3-30B-A3B (docs/cost-model.md). */
#define GROUPED_FIT .grouped_efficiency = 0.85
#define H200_FIT                                                                                   \
    .matmul_efficiency = 0.66, .attention_efficiency = 0.475,                                      \
    .attention_backward_efficiency = 0.36, .memory_efficiency = 0.85, EXPERT_FIT, GROUPED_FIT

/* ASSUMED. */
#define AMD_GUESS                                                                                  \
    .matmul_efficiency = 0.47, .attention_efficiency = 0.30,                                       \
    .attention_backward_efficiency = 0.22, .memory_efficiency = 0.80, EXPERT_FIT, GROUPED_GUESS,   \
    .foreign = TRUE, .basis = "shares of peaks, assumed; nothing of this project runs on it"

#define PCIE4_SERVER                                                                               \
    .h2d_gb_per_s = 25, .d2h_gb_per_s = 25, .gpus_per_root = 4, .root_gb_per_s = 50,               \
    .host_gb_per_s = 150, .optimizer_parameters_per_s = 3.0e9
#define PCIE5_SERVER                                                                               \
    .h2d_gb_per_s = 55, .d2h_gb_per_s = 55, .gpus_per_root = 4, .root_gb_per_s = 110,              \
    .host_gb_per_s = 200, .optimizer_parameters_per_s = 3.0e9
#define PCIE5_MEASURED                                                                             \
    .h2d_gb_per_s = 55.5, .d2h_gb_per_s = 55.4, .gpus_per_root = 4, .root_gb_per_s = 196.4,        \
    .host_gb_per_s = 192.2, .optimizer_parameters_per_s = 6.3e9
/* Cards that have no other link between them than their servers'. */
#define PCIE4_CARD BETWEEN("PCIe4", 32), PCIE4_SERVER
#define PCIE5_CARD BETWEEN("PCIe5", 64), PCIE5_SERVER

/* Where the four rates of matmuls stand, dense. */
#define GA102_RATES "NVIDIA Ampere GA102 GPU architecture, V2, page 44"
#define ADA_RATES "NVIDIA Ada GPU architecture, V2.02, appendix A"
#define ADA_PRO_RATES "NVIDIA Ada GPU architecture for professional cards, V1.1"
#define RTX50_RATES "NVIDIA RTX Blackwell GPU architecture, appendix A"
#define RTX50_PRO_RATES "NVIDIA RTX Blackwell PRO GPU architecture, V1.0"
#define A100_RATES "NVIDIA A100 Tensor Core GPU architecture"
#define H100_RATES "NVIDIA H100 Tensor Core GPU architecture, table 2"
#define DATA_RATES "data sheet, which has no fp16 sums: ASSUMED as fast as fp32 sums"
#define B200_RATES "HGX B200 data sheet, which has no fp16 sums: ASSUMED as fast as fp32 sums"
#define AMD_RATES "AMD data sheet, which has no fp16 sums: ASSUMED as fast as fp32 sums"

static const RpGpu gpus[] = {
    {.name = "rtx3090",
     .title = "RTX 3090",
     MEMORY(24259, 936, 6),
     CHIP(82, 1.695),
     RATES(142, 71, 0, 0),
     .rates_source = GA102_RATES,
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "rtx3060",
     .title = "RTX 3060",
     MEMORY(12091, 360, 3),
     CHIP(28, 1.777),
     RATES(51, 25.5, 0, 0),
     .rates_source = GA102_RATES,
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "rtx4080",
     .title = "RTX 4080",
     MEMORY(16113, 716.8, 64),
     CHIP(76, 2.505),
     RATES(194.9, 97.5, 194.9, 389.9),
     .rates_source = ADA_RATES,
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "rtx4090",
     .title = "RTX 4090",
     MEMORY(24166, 1008, 72),
     CHIP(128, 2.52),
     RATES(330, 165, 330, 660),
     .rates_source = ADA_RATES,
     .rates_shown =
         "168 of 165 (tinygrad pull request 11390); 284 with fp16 sums, by the paper's layer times",
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "rtx5080",
     .title = "RTX 5080",
     MEMORY(16042, 960, 64),
     CHIP(84, 2.617),
     RATES(225.1, 112.6, 225.1, 450.2),
     .rates_source = RTX50_RATES,
     PCIE5_CARD,
     GEFORCE_FIT},
    {.name = "rtx5090",
     .title = "RTX 5090",
     MEMORY(32113, 1792, 96),
     .copy_gb_per_s = 1509,
     CHIP(170, 2.407),
     RATES(419, 209.5, 419, 838),
     .rates_source = RTX50_RATES,
     .rates_shown = "233 of 210, 350 of 419, in fp8 465 of 419 and 692 of 838 with fp16 sums: M = "
                    "N = K = 8,192, 600 W "
                    "(gau-nernst, NVRTC matmul, 2025-09-08)",
     PCIE5_CARD,
     GEFORCE_FIT},
    {.name = "a6000",
     .title = "RTX A6000",
     MEMORY(48501, 768, 6),
     CHIP(84, 1.8),
     RATES(154.8, 154.8, 0, 0),
     .rates_source = ADA_PRO_RATES,
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "rtx6000ada",
     .title = "RTX 6000 Ada",
     MEMORY(48501, 960, 96),
     CHIP(142, 2.505),
     RATES(364.2, 364.2, 728.5, 728.5),
     .rates_source = ADA_PRO_RATES,
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "rtxpro6000",
     .title = "RTX PRO 6000",
     MEMORY(96614, 1792, 128),
     CHIP(188, 2.617),
     RATES(503.8, 503.8, 1007.6, 1007.6),
     .rates_source = RTX50_PRO_RATES,
     .rates_shown = "428 of 504, 789 of 1,008 in fp8, 600 W (gn-kernels)",
     PCIE5_CARD,
     GEFORCE_FIT},
    {.name = "a100",
     .title = "A100 80GB SXM",
     MEMORY(80896, 2039, 40),
     .copy_gb_per_s = 1700,
     CHIP(108, 1.41),
     RATES(312, 312, 0, 0),
     .rates_source = A100_RATES,
     .rates_shown = "267 of 312 (gn-kernels)",
     BETWEEN("NVLink3", 300),
     PCIE4_SERVER,
     A100_GUESS},
    {.name = "a800",
     .title = "A800 80GB SXM",
     MEMORY(80896, 2039, 40),
     CHIP(108, 1.41),
     RATES(312, 312, 0, 0),
     .rates_source = A100_RATES,
     BETWEEN("NVLink3", 200),
     PCIE4_SERVER,
     A100_GUESS},
    {.name = "l4",
     .title = "L4",
     MEMORY(22734, 300, 48),
     CHIP(58, 2.04),
     RATES(121, 121, 242.5, 242.5),
     .rates_source = DATA_RATES,
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "l40s",
     .title = "L40S",
     MEMORY(45486, 864, 96),
     CHIP(142, 2.52),
     RATES(362, 362, 733, 733),
     .rates_source = DATA_RATES,
     .rates_shown = "about 230 of 362: M = N = K = 32,768 (LLMQ, src/utilities/sol.cpp)",
     PCIE4_CARD,
     GEFORCE_FIT},
    {.name = "h100",
     .title = "H100 80GB SXM",
     MEMORY(81009, 3350, 50),
     CHIP(132, 1.98),
     RATES(989.5, 989.5, 1979, 1979),
     .rates_source = H100_RATES,
     BETWEEN("NVLink4", 450),
     PCIE5_MEASURED,
     .basis = "the H200's",
     H200_FIT},
    {.name = "h200",
     .title = "H200",
     MEMORY(142801, 4800, 50),
     CHIP(132, 1.98),
     RATES(989.5, 989.5, 1979, 1979),
     .rates_source = H100_RATES,
     .rates_shown = "624 to 667, in fp8 925 to 1,096, with fast sums 1,016 to 1,192: this project, "
                    "docs/fp8.md",
     BETWEEN("NVLink4", 450),
     PCIE5_MEASURED,
     .measured = TRUE,
     .basis = "with this project's kernels, attention by cuDNN",
     H200_FIT},
    {.name = "b200",
     .title = "B200",
     MEMORY(182630, 7672, 126.5),
     CHIP(148, 1.965),
     RATES(2250, 2250, 4500, 4500),
     .rates_source = B200_RATES,
     .rates_shown = "1,723 of 2,250, 2,669 of 4,500 in fp8 (gn-kernels)",
     BETWEEN("NVLink5", 900),
     PCIE5_MEASURED,
     .basis = "the H200's",
     H200_FIT},
    {.name = "w7800",
     .title = "Radeon PRO W7800",
     MEMORY(32326, 576, 6),
     CHIP(70, 2.525),
     RATES(90.5, 90.5, 0, 0),
     .rates_source = AMD_RATES,
     PCIE4_CARD,
     AMD_GUESS},
    {.name = "mi300x",
     .title = "MI300X",
     MEMORY(195215, 5300, 32),
     CHIP(304, 2.1),
     RATES(1307.4, 1307.4, 2614.9, 2614.9),
     .rates_source = AMD_RATES,
     .rates_shown = "660 of 1,307, 1,197 of 2,615 in fp8, 750 W (gn-kernels)",
     BETWEEN("Infinity Fabric", 448),
     PCIE5_MEASURED,
     AMD_GUESS},
};

double
rp_pcie_gb_per_s(guint generation, guint lanes)
{
    static const double of_16[] = {[3] = 12.5, [4] = 25, [5] = 55, [6] = 110};
    const gboolean known = lanes > 0 && lanes <= 16 && (lanes & (lanes - 1)) == 0;

    return known && generation < G_N_ELEMENTS(of_16) ? of_16[generation] * lanes / 16 : 0;
}

const RpGpu *
rp_gpu_list(guint *n_gpus)
{
    *n_gpus = G_N_ELEMENTS(gpus);
    return gpus;
}
