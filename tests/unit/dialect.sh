#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# dialect.sh SOURCE_DIR: kernels speak the device dialect only. Vendor names may stand in backends/gpu/gpu_intrin_*, in the
# vendors' own host files (backends/cuda, backends/hip; their kernels speak the dialect too), in the Hopper family's files
# (backends/cuda/*wgmma*), and nowhere else under backends/ and common/. Comments may name them.
# Also: only gpu_intrin_simt* and backends/simt/ know the emulator, and no file of one vendor includes the other's.
set -eu
cd "$1"

# Names, not words of comments: "threadIdx.x", "__shared__", "<<<", "asm(", "__half", "__builtin_amdgcn_...", "cudaMalloc".
names='\b(threadIdx|blockIdx|blockDim|gridDim|__shared__|__global__|__device__|__syncthreads|__shfl_[a-z]+|__half2?|__nv_[a-z0-9_]+|nvcuda)\b'
names+='|\b(__builtin_amdgcn_[a-z0-9_]+|__hip_[a-z_]+|hip[A-Z][A-Za-z0-9]*|cuda[A-Z][A-Za-z0-9]*|cu[A-Z][a-z]+[A-Z][A-Za-z0-9]*)\b'
names+='|<<<|\b(asm|__asm__)\b *(volatile)? *\('
emulator='\bsimt_[a-z_]+\b'

# Text without comments and strings, every line with its file and number.
code() {
    awk '
        FNR == 1 { inside = 0 }
        {
            line = $0; out = ""
            while (length(line)) {
                if (inside) {
                    at = index(line, "*/")
                    if (!at) break
                    line = substr(line, at + 2); inside = 0
                } else if (match(line, /\/\/|\/\*|"([^"\\]|\\.)*"/)) {
                    out = out substr(line, 1, RSTART - 1)
                    found = substr(line, RSTART, RLENGTH); line = substr(line, RSTART + RLENGTH)
                    if (found == "//") break
                    if (found == "/*") inside = 1
                } else { out = out line; break }
            }
            print FILENAME ":" FNR ": " out
        }' "$@"
}

failed=0
complain() { # WHAT, lines on standard input
    local lines
    lines=$(cat)
    [ -n "$lines" ] || return 0
    echo "$1"
    echo "$lines"
    failed=1
}
mapfile -t neutral < <({
    find backends/gpu common -type f \( -name '*.h' -o -name '*.c' -o -name '*.cpp' \) ! -name 'gpu_intrin_*'
    find backends/cuda backends/hip -type f -name '*.gpu.*' ! -name '*wgmma*'
} | sort)
[ ${#neutral[@]} -gt 10 ] || { echo "found only ${#neutral[@]} files under backends/gpu and common"; exit 1; }
# The macros that say what a device function is stand in gpu_device.h and inline.h: the only exceptions.
complain "vendor names outside backends/gpu/gpu_intrin_*:" < <(code "${neutral[@]}" | grep -E "$names" |
    grep -vE '^(backends/gpu/gpu_device.h|common/inline.h):[0-9]+: *# *define (GPU_[A-Z]+|KILN_INLINE) ')
complain "the emulator outside backends/gpu/gpu_intrin_* and backends/simt/:" < <(code "${neutral[@]}" |
    grep -E "$emulator" | grep -vE '^backends/gpu/gpu_device.h:[0-9]+: *typedef simt_at gpu_place;')
complain "includes of a vendor's folder:" < <(grep -nE '#include .*(/|")(cuda|hip)/' backends/{gpu,simt}/* common/* || true)
[ $failed != 0 ] || echo "kernels speak the dialect only (${#neutral[@]} files)"
exit $failed
