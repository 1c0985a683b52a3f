#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# quickstart.sh [ARGUMENTS OF kiln bench]: on a fresh Debian or Ubuntu machine, installs what is missing, builds the release,
# and runs the main job: every rung of the ladder on this machine's best backend, verified, timed, and this machine's roofline.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/cmake/packages.sh" build
options=$("$root/cmake/gpus.sh") # a statement of its own, so that its failure is one
mapfile -t gpus <<<"$options"
"$root/cmake/build.sh" release -DKILN_BUILD_PROGRAM=ON -DKILN_BUILD_TESTS=OFF "${gpus[@]}"
kiln=$root/build/release/bin/kiln
echo "== kiln bench $*"
"$kiln" bench "$@"
if (($# == 0)); then
    echo
    echo "== kiln roofline"
    "$kiln" roofline
fi
