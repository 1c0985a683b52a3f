#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gates.sh [-t] LIMITS NAME.ARCHITECTURE.co...: what the compiler made of the kernels, against limits.txt, which says what is
# judged. -t prints the figures of every kernel. Needs llvm-readelf and llvm-objdump, 19 or newer.
set -euo pipefail
table=0
if [[ ${1-} == -t ]]; then table=1 && shift; fi
limits=$1
shift
tool()
{
    local found
    for found in "$1-22" "$1-21" "$1-20" "/opt/rocm/llvm/bin/$1" "$1-19" "$1"; do
        if command -v "$found"; then return; fi
    done
    echo "SKIPPED: $1 was not found (Debian and Ubuntu: llvm-22)" >&2
    exit 77
}
readelf=$(tool llvm-readelf)
objdump=$(tool llvm-objdump)

for object in "$@"; do
    architecture=${object%.co}
    echo "OBJECT ${architecture##*.}"
    "$objdump" -d --no-show-raw-insn "$object"
    echo "NOTES"
    "$readelf" --notes "$object"
done | awk -v table="$table" '
    function fail(text) { printf "%s, %s: %s\n", name, architecture, text; failures++ }
    function judge(   i, most, product) {
        kernels++
        if (table)
            printf "%-50s %-7s %4d %4d %6d %4d %4d %4d %4d\n", name, architecture, vgpr, agpr, lds, sspill, scratch,
                mfma[name], wide[name]
        for (i = 1; i <= rules && !(name ~ kernel[i] && architecture ~ chip[i]); i++)
            ;
        if (i > rules) return fail("no line of the limits is for it")
        used[i] = 1
        most = int(512 / waves[i] / 8) * 8
        product = architecture == "gfx950" ? 1 : architecture == "gfx90a" && name ~ /_f16/ ? 8 : 2
        if (vspill > 0 && memory[i] == 0) fail(vspill " vector registers are spilled")
        if (vgpr > most) fail(vgpr " vector registers; " waves[i] " waves of a SIMD leave " most)
        if (sspill > lanes[i]) fail(sspill " scalar registers lie in vector lanes; allowed are " lanes[i])
        if (scratch > memory[i]) fail(scratch " bytes of scratch; allowed are " memory[i])
        if (touch[name] > 0 && (memory[i] == 0 || unused[i])) fail(touch[name] " instructions access scratch")
        if (dynamic != "false") fail("its stack has no limit")
        if (lds > 65536) fail(lds " bytes of shared memory; a block has 65536")
        if (wave != 64) fail("a wave has " wave " lanes")
        if (mfma[name] + 0 != products[i] * product)
            fail(mfma[name] + 0 " matrix instructions; " products[i] " products of " product " each are expected")
        if (wide[name] + 0 < reads[i])
            fail(wide[name] + 0 " reads of 16 bytes from shared memory; at least " reads[i] " are expected")
    }
    FNR == NR { # the limits
        if (NF == 0 || /^#/) next
        rules++
        kernel[rules] = "^(" $1 ")$"; chip[rules] = "^(" $2 ")$"; text[rules] = $0
        waves[rules] = $3; lanes[rules] = $4; memory[rules] = $5 + 0; unused[rules] = $5 ~ /u$/; products[rules] = $6; reads[rules] = $7
        if (NF != 7) { print "seven columns are wanted: " $0; failures++ }
        next
    }
    $1 == "OBJECT" { architecture = $2; notes = 0; delete mfma; delete wide; delete touch; next }
    $1 == "NOTES" { notes = 1; next }
    !notes && /^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); next }
    !notes && $1 ~ /^v_s?mfma/ { mfma[name]++; next }
    !notes && $1 == "ds_read_b128" { wide[name]++; next }
    !notes && $1 ~ /^scratch_/ { touch[name]++; next }
    !notes { next }
    $1 == "-" { $1 = ""; $0 = $0 }
    $1 == ".agpr_count:" { agpr = $2 }
    $1 == ".group_segment_fixed_size:" { lds = $2 }
    $1 == ".name:" { name = $2 }
    $1 == ".private_segment_fixed_size:" { scratch = $2 }
    $1 == ".sgpr_spill_count:" { sspill = $2 }
    $1 == ".uses_dynamic_stack:" { dynamic = $2 }
    $1 == ".vgpr_count:" { vgpr = $2 }
    $1 == ".vgpr_spill_count:" { vspill = $2 }
    $1 == ".wavefront_size:" { wave = $2; judge() }
    END {
        for (i = 1; i <= rules; i++)
            if (!used[i]) { print "no kernel is judged by: " text[i]; failures++ }
        print kernels " kernels, " failures + 0 " failures"
        exit kernels == 0 || failures > 0
    }' "$limits" -
