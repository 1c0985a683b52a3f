#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# check.sh [ARGUMENTS OF ctest]: on a fresh Debian or Ubuntu machine, installs what is missing, builds the release with its
# tests and runs them, those labelled `slow` too. Ends with ctest's closing lines.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/cmake/packages.sh" build test
options=$("$root/cmake/gpus.sh") # a statement of its own, so that its failure is one
mapfile -t gpus <<<"$options"
"$root/cmake/build.sh" release -DKILN_BUILD_PROGRAM=ON -DKILN_BUILD_TESTS=ON "${gpus[@]}"
echo "== tests"
cd "$root"
exec ctest --preset release "$@"
