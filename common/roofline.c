/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * roofline.c: the traffic ledger, its operations, and the peaks of known devices. Contract: roofline.h. Cost: nothing.
 */
#include <string.h>

#include "roofline.h"

/*
 * Peaks are written as the vendors derive them, so that each can be checked: units × FLOP per unit and clock × clock.
 * Dense numbers everywhere: the headline figures of Ampere and later data sheets count 2:4 sparsity, which is twice that.
 * A device is what a process opens. An MI250X is two of them (two dies, half the bandwidth each); both are listed.
 *
 *  V100    "NVIDIA Tesla V100 GPU architecture" (2017), table 1: 80 SMs, 1530 MHz, 900 GB/s.
 *  A100    "NVIDIA A100 Tensor Core GPU architecture" (2020), table 4, and the A100 80GB data sheet (2021): 108 SMs,
 *          1410 MHz; SXM 80GB 2039 GB/s, SXM 40GB 1555 GB/s.
 *  L40S    "NVIDIA L40S" data sheet (2023): 362 TFLOP/s fp16 dense, 91.6 fp32, 864 GB/s.
 *  H100    "NVIDIA H100 Tensor Core GPU architecture" (2022), table 2, and the H100 data sheet: SXM5 132 SMs, 1830 MHz with
 *          tensor cores, 1980 MHz without, 3350 GB/s; PCIe 114 SMs, 1620 and 1755 MHz, 2000 GB/s.
 *  H200    "NVIDIA H200" data sheet (2024): the processor of the H100 SXM5, 4800 GB/s.
 *  B200    "NVIDIA Blackwell architecture technical brief" (2024), HGX B200: 2250 TFLOP/s fp16 dense, 75 fp32, 8000 GB/s.
 *  MI100   "AMD CDNA architecture" white paper (2020): 120 CUs, 1502 MHz, 1228.8 GB/s.
 *  MI210   AMD Instinct MI210 data sheet (2022): 104 CUs, 1700 MHz, 1638.4 GB/s.
 *  MI250X  AMD Instinct MI250X data sheet (2021) and "AMD CDNA 2 architecture": 220 CUs, 1700 MHz, 3276.8 GB/s.
 *  MI300X  AMD Instinct MI300X data sheet (2023) and "AMD CDNA 3 architecture": 304 CUs, 2100 MHz, 5300 GB/s.
 *  MI325X  AMD Instinct MI325X data sheet (2024): the processor of the MI300X, 6000 GB/s.
 *  MI350X  AMD Instinct MI350X data sheet (2025) and "AMD CDNA 4 architecture": 256 CUs, 2200 MHz, 8000 GB/s.
 *  MI355X  AMD Instinct MI355X data sheet (2025): the same at 2400 MHz.
 */
static const kiln_device_model models[] = {
    {"v100", "NVIDIA V100 SXM2", 80 * 1024 * 1.53e9, 80 * 128 * 1.53e9, 900e9},
    {"a100", "NVIDIA A100 SXM 80GB", 312e12, 108 * 128 * 1.41e9, 2039e9},
    {"a100-40gb", "NVIDIA A100 SXM 40GB", 312e12, 108 * 128 * 1.41e9, 1555e9},
    {"l40s", "NVIDIA L40S", 362e12, 91.6e12, 864e9},
    {"h100", "NVIDIA H100 SXM5", 132.0 * 4096 * 1.83e9, 132 * 256 * 1.98e9, 3350e9},
    {"h100-pcie", "NVIDIA H100 PCIe", 114.0 * 4096 * 1.62e9, 114 * 256 * 1.755e9, 2000e9},
    {"h200", "NVIDIA H200 SXM", 132.0 * 4096 * 1.83e9, 132 * 256 * 1.98e9, 4800e9},
    {"b200", "NVIDIA B200 (HGX)", 2250e12, 75e12, 8000e9},
    {"mi100", "AMD Instinct MI100", 120 * 1024 * 1.502e9, 120 * 256 * 1.502e9, 1228.8e9},
    {"mi210", "AMD Instinct MI210", 104 * 1024 * 1.7e9, 104 * 256 * 1.7e9, 1638.4e9},
    {"mi250x", "AMD Instinct MI250X (both dies)", 220 * 1024 * 1.7e9, 220 * 256 * 1.7e9, 3276.8e9},
    {"mi250x-gcd", "AMD Instinct MI250X (one die)", 110 * 1024 * 1.7e9, 110 * 256 * 1.7e9, 1638.4e9},
    {"mi300x", "AMD Instinct MI300X", 304 * 2048 * 2.1e9, 304 * 256 * 2.1e9, 5300e9},
    {"mi325x", "AMD Instinct MI325X", 304 * 2048 * 2.1e9, 304 * 256 * 2.1e9, 6000e9},
    {"mi350x", "AMD Instinct MI350X", 256.0 * 4096 * 2.2e9, 256 * 256 * 2.2e9, 8000e9},
    {"mi355x", "AMD Instinct MI355X", 256.0 * 4096 * 2.4e9, 256 * 256 * 2.4e9, 8000e9},
};

const kiln_device_model *kiln_device_models(size_t *count)
{
    *count = sizeof models / sizeof *models;
    return models;
}

const kiln_device_model *kiln_device_model_find(const char *key)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].key, key) == 0)
            return &models[i];
    return NULL;
}

const char *kiln_rung_name(kiln_rung rung)
{
    static const char *const names[KILN_RUNG_COUNT] = {"naive", "tiled", "flash1", "flash2", "ideal"};
    return rung >= 0 && rung < KILN_RUNG_COUNT ? names[rung] : "?";
}

/* Scores that are computed, of one head. */
static double scores(const kiln_ledger *ledger)
{
    return (double)ledger->seqlen_q * (double)ledger->seqlen_k * (ledger->causal ? 0.5 : 1);
}

double kiln_ledger_flops(const kiln_ledger *ledger)
{
    return (double)ledger->heads * scores(ledger) * (2 * (double)ledger->d + 2 * (double)ledger->d_v + 3);
}

/* Tiles that cover n rows. */
static double tiles(int64_t n, int64_t block)
{
    return (double)(n / block + (n % block != 0));
}

double kiln_ledger_bytes(const kiln_ledger *ledger, kiln_rung rung)
{
    double heads = (double)ledger->heads, heads_k = (double)ledger->heads_k, e = ledger->element_bytes;
    double rows = (double)ledger->seqlen_q, half = ledger->causal ? 0.5 : 1;
    double q = rows * (double)ledger->d * e, o = rows * (double)ledger->d_v * e;  /* of one query head */
    double kv = (double)ledger->seqlen_k * (double)(ledger->d + ledger->d_v) * e; /* of one KV head */
    double partial = rows * (double)ledger->d_v * ledger->output_bytes;           /* O as flash1 revisits it */
    switch (rung) {
    case KILN_RUNG_NAIVE:
    case KILN_RUNG_TILED: return heads * (q + o + 4 * scores(ledger) * ledger->score_bytes) + heads_k * kv;
    case KILN_RUNG_FLASH1:
        /* m and l are 4 bytes each, read and written: 16 a row and round. The first round reads no O, m, l. */
        return heads * (kv + half * tiles(ledger->seqlen_k, ledger->block_k) * (q + 2 * partial + 16 * rows) -
                        (partial + 8 * rows));
    case KILN_RUNG_FLASH2: return heads * (q + o + half * tiles(ledger->seqlen_q, ledger->block_q) * kv);
    case KILN_RUNG_IDEAL:
    case KILN_RUNG_COUNT: break;
    }
    return heads * (q + o) + heads_k * kv;
}

double kiln_ledger_lse_bytes(const kiln_ledger *ledger)
{
    return 4.0 * (double)ledger->heads * (double)ledger->seqlen_q;
}

double kiln_attention_flops(int64_t batch_heads, int64_t seqlen_q, int64_t seqlen_k, int64_t d_score, int64_t d_v)
{
    return 2.0 * (double)batch_heads * (double)seqlen_q * (double)seqlen_k * ((double)d_score + (double)d_v);
}

double kiln_roofline_knee(double flops_per_second, double bytes_per_second)
{
    return flops_per_second / bytes_per_second;
}

double kiln_roofline_time(double flops, double bytes, double flops_per_second, double bytes_per_second)
{
    double compute = flops / flops_per_second, move = bytes / bytes_per_second;
    return compute > move ? compute : move;
}
