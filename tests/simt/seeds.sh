#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# seeds.sh DRIVER: results are right and have the same bits whatever the order of lanes, waves and blocks, the layout of WMMA
# fragments, the moment at which copies land and the number of host threads.
set -eu
first=
for setting in "1 1" "2 2" "77 3"; do
    read -r seed threads <<<"$setting"
    line=$(KILN_SIMT_SEED=$seed KILN_SIMT_THREADS=$threads "$1" check) || { echo "$line"; exit 1; }
    echo "seed $seed, $threads threads: $line"
    [ "${first:=$line}" = "$line" ] || { echo "the bits depend on the seed or the threads"; exit 1; }
done
