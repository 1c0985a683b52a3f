/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* peak.c: see peak.h. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "peak.h"
#include "peak_cpu.h"
#include "text.h"

static device_peak measure_cpu(const session *s)
{
    device_peak peak = {.measured = true};
    char buffer[32];
    progress("measuring the peaks of this processor");
    cpu_peak cpu = cpu_peak_measure(s->info.units, s->info.l3_bytes, strcmp(s->info.architecture, "amx") == 0);
    progress_done();
    text_bytes((double)cpu.buffer, buffer, sizeof buffer);
    /* 16-bit operands are widened to fp32 on a CPU, so one number serves all types, but for bf16 on tile units */
    peak.model = (kiln_device_model){"this", s->info.name, cpu.flops, cpu.flops, cpu.bandwidth};
    snprintf(peak.source, sizeof peak.source,
             "measured in this run on %d threads: fp32 %s from registers, reading %s of memory", cpu.threads, cpu.unit,
             buffer);
    peak.tile_flops = cpu.tile_flops;
    peak.copy = cpu.copy;
    if (cpu.copy > 0) {
        text_si(cpu.copy, "B/s", buffer, sizeof buffer);
        size_t used = strlen(peak.source);
        snprintf(peak.source + used, sizeof peak.source - used, "; non-temporal copy: %s read and written", buffer);
    }
    if (cpu.tile_flops > 0) {
        text_si(cpu.tile_flops, "FLOP/s", buffer, sizeof buffer);
        size_t used = strlen(peak.source);
        snprintf(peak.source + used, sizeof peak.source - used, "; bf16 AMX tile products from registers: %s", buffer);
    }
    return peak;
}

/* Does the board's name hold the key, as "NVIDIA H200" holds "h200"? The longest key wins. */
static bool names_it(const char *name, const char *key)
{
    size_t n = strlen(key);
    for (; *name != '\0'; name++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)name[i]) == key[i])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

device_peak device_peak_of(const session *s)
{
    if (s->info.device.device_type == KILN_DEVICE_CPU)
        return measure_cpu(s);
    device_peak peak = {.model = {"this", s->info.name, 0, 0, 0}};
    size_t count, best = 0;
    const kiln_device_model *models = kiln_device_models(&count);
    snprintf(peak.source, sizeof peak.source, "unknown: %.64s is not in the table of devices", s->info.name);
    for (size_t i = 0; i < count; i++)
        if (names_it(s->info.name, models[i].key) && strlen(models[i].key) > best) {
            best = strlen(models[i].key);
            peak.model = models[i];
            snprintf(peak.source, sizeof peak.source, "the vendor's numbers for %s, not measured", models[i].name);
        }
    return peak;
}

double device_peak_flops(const device_peak *peak, int32_t type)
{
    if (type == KILN_BFLOAT16 && peak->tile_flops > 0)
        return peak->tile_flops;
    return type == KILN_FLOAT16 || type == KILN_BFLOAT16 ? peak->model.flops16 : peak->model.flops32;
}

json_t *device_peak_json(const device_peak *peak)
{
    return json_pack("{s:b, s:s, s:f, s:f, s:f, s:f, s:f}", "measured", peak->measured, "source", peak->source,
                     "flops16_per_s", peak->model.flops16, "flops32_per_s", peak->model.flops32, "tile_flops_per_s",
                     peak->tile_flops, "bytes_per_s", peak->model.bandwidth, "copy_bytes_per_s", peak->copy);
}
