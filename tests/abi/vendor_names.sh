#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# vendor_names.sh ROOT: kernels speak the device dialect: the names and the syntax of a vendor (built-ins, __shared__,
# threadIdx, <<<>>>, inline asm, half types) stand in backends/gpu/gpu_intrin_* only. Comments may name them.
set -euo pipefail
cd "$1"
words='__shared__|__syncthreads|__syncwarp|__shfl|__ballot|__any_sync|__launch_bounds__|__global__|threadIdx|blockIdx|blockDim|gridDim'
words+='|warpSize|<<<|\basm\b|\b__asm__\b|\bhalf2\b|__half|__nv_|bfloat162?\b|nvcuda|\bwmma\b|cooperative_groups|\bcuda[A-Z]|\bhip[A-Z]'
words+='|__device__|__host__|__builtin_amdgcn|__nvvm|__CUDA|__HIP|cuda_[a-z0-9]+\.h|hip/'
status=0 files=0
for file in backends/gpu/*.{h,cpp,c} backends/*/*.gpu.{h,cpp}; do
    name=${file##*/}
    case $name in gpu_intrin_*) continue ;; esac
    files=$((files + 1))
    # Which gpu_intrin_* file is meant is asked of the compiler, and gpu_device.h says what a function of the dialect is.
    text=$(gcc -fpreprocessed -dD -E -P -x c++ "$file" 2>/dev/null | grep -vE '^#(if|elif) .*defined\(__(CUDACC|HIP)__\)')
    [[ $name != gpu_device.h ]] || text=$(grep -vE '^#define GPU_[A-Z]+ ' <<<"$text")
    if found=$(grep -nE "$words" <<<"$text"); then
        printf '%s (comments removed):\n%s\n' "$file" "$found"
        status=1
    fi
done
echo "$files files"
((files > 0))
exit $status
