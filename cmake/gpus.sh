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
