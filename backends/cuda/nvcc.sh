#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# nvcc.sh LOG NVCC ARGUMENT...: runs it and keeps what ptxas says of each kernel (registers, spills) in LOG; the rest is shown.
set -u
log=$1
shift
text=$("$@" -Xptxas=-v 2>&1)
code=$?
printf '%s\n' "$text" >"$log"
grep -vE '^ptxas info|bytes stack frame|^$' "$log" >&2
exit "$code"
