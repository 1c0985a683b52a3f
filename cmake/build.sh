#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# build.sh PRESET [-DOPTION=VALUE ...]: configures and builds build/PRESET. Quiet about what succeeds; shows the log of what
# does not, and the progress of the build on a terminal.
set -euo pipefail
preset=$1
shift
cd "$(dirname "$0")/.."
log=build/$preset.log
mkdir -p build
echo "== configuring and building build/$preset (log: $log)"
if ! cmake --preset "$preset" "$@" &>"$log"; then
    cat "$log" >&2
    exit 1
fi
grep '^-- kiln' "$log" || true
if [[ -t 1 ]]; then
    cmake --build --preset "$preset" # ninja keeps to one line
elif ! cmake --build --preset "$preset" &>>"$log"; then
    tail -n 100 "$log" >&2
    exit 1
fi
