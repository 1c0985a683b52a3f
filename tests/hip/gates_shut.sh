#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gates_shut.sh GATES CODE_OBJECT...: the gates of backends/hip find what is wrong: limits that the kernels of one file do not keep,
# a kernel without a line, a line without a kernel.
set -euo pipefail
gates=$1
shift
for object in "$@"; do
    case $object in */attention_backward_flash2_bf16.*) break ;; esac
done
limits=$(mktemp)
trap 'rm -f "$limits"' EXIT
printf '%s\n' 'attention_backward_flash2_keys_bf16 .* 4 1 0 33 999' 'nothing .* 1 0 0 0 0' >"$limits"
code=0
text=$("$gates" "$limits" "$object") || code=$?
if ((code == 77)); then exit 77; fi
for words in 'keys_bf16.* vector registers; 4 waves of a SIMD leave 128' 'keys_bf16.* scalar registers lie in vector lanes; allowed are 1' \
    'keys_bf16.* matrix instructions; 33 products' 'keys_bf16.* reads of 16 bytes.*at least 999' 'queries_bf16.*no line of the limits' \
    'no kernel is judged by: nothing' '2 kernels, 6 failures'; do
    grep -qE "$words" <<<"$text" || { echo "not found: $words in: $text"; exit 1; }
done
((code == 1)) || { echo "exit code $code"; exit 1; }
echo "$text"
