#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gpus.sh: the options, one a line, of a build for this machine only: machine code for the GPUs that are here, and no backend
# for those that are not (a package for all chips takes much longer to build).
set -euo pipefail
if nvidia-smi -L &>/dev/null; then
    echo -DKILN_ENABLE_CUDA=AUTO
    echo -DKILN_CUDA_ARCHITECTURES=native
else
    echo -DKILN_ENABLE_CUDA=OFF
fi
# The kernel driver says which chips there are: gfx_target_version is 90402 for gfx942, 90010 for gfx90a, 0 for a processor.
chips=$({ cat /sys/class/kfd/kfd/topology/nodes/*/properties 2>/dev/null || true; } |
    awk '$1 == "gfx_target_version" && $2 > 0 { printf "gfx%d%d%x\n", $2 / 10000, $2 / 100 % 100, $2 % 100 }' | sort -u)
if [[ -n $chips ]]; then
    echo -DKILN_ENABLE_HIP=AUTO
    echo "-DKILN_HIP_ARCHITECTURES=${chips//$'\n'/;}"
else
    echo -DKILN_ENABLE_HIP=OFF
fi
