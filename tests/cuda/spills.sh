#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# spills.sh BUILD_DIR [CUOBJDUMP]: the kernels that must be fast keep their loops in registers. Reads what ptxas said of each kernel
# when BUILD_DIR was built (FILE.o.ptxas beside the objects; sm_90, sm_90a only: other chips have other limits), and, where cuobjdump is
# there, the machine code.
#   softmax_online, _split,   no spill at all
#   _backward_split
#   flash2, mma at d <= 128   plain mode: at most LIMIT bytes, of what the loop over the keys hardly needs; in that loop (the
#                             innermost one with the most HMMA) no access to local memory (mma at d = 128: at most 6)
#   wgmma, backward           at most 96 bytes, of the producer and between items; in the loop over the queries no access to
#                             local memory
#   wgmma, forward            at most 256 bytes, of the producer and of rare paths; in the loop over the keys at most one access to
#                             local memory (without softcap: its kernels are not looked at)
set -eu
logs=$1/backends/cuda dump=${2:-$(command -v cuobjdump || true)}
limit=160 seen=0 bad=0
wgmma='^attention_backward_wgmma_((sent|queries)_)?(f16|bf16)_' forward='^attention_forward_wgmma_(f16|bf16)_[0-9_]+x[0-9]+$'
must='^attention_forward_(flash2|mma)_(f16|bf16)_(64|128)$' never='^softmax_(online|(backward_)?split)_'

shopt -s nullglob
list=$(cat "$logs"/*.ptxas | awk '
    /Compiling entry function/ { split($0, q, "\047"); name = q[2]; chip = q[4]; next }
    /Function properties/ { own = ($NF == name) }
    /bytes spill stores/ && own && (chip == "sm_90" || chip == "sm_90a" && name ~ /_wgmma_/) { for (i = 2; i < NF; i++) if ($(i + 1) == "bytes" && $(i + 2) == "spill" && $(i + 3) ~ /^stores/) print name, $i }')
while read -r name bytes; do
    if [[ $name =~ $never ]]; then most=0; elif [[ $name =~ $wgmma ]]; then most=96; elif [[ $name =~ $forward ]]; then most=256; elif [[ $name =~ $must ]]; then most=$limit; else continue; fi
    seen=$((seen + 1))
    if ((bytes > most)); then
        echo "$name spills $bytes bytes; $most are allowed"
        bad=$((bad + 1))
    fi
done <<<"$list"
if ((seen < 20)); then
    echo "only $seen of the kernels found in $logs/*.ptxas: build for sm_90"
    exit 1
fi

looked=0 expected=8
if [ -n "$dump" ]; then
    for object in "$logs"/attention_forward_{flash2,mma}_{f16,bf16}.gpu.cpp.o "$logs"/attention_{backward,forward}_wgmma_*_sm90a.gpu.cpp.o; do
        arch=sm_90 shortest=0
        if [[ $object == *_sm90a.* ]]; then arch=sm_90a shortest=20 expected=$((expected + 6)); fi
        if [[ $object == *forward_wgmma* ]]; then shortest=8 expected=$((expected + 1)); fi
        while read -r name hmma local; do
            allowed=0
            if [[ $name =~ $wgmma ]]; then least=20; elif [[ $name =~ $forward ]]; then least=8 allowed=1; elif [[ $name =~ $must ]]; then least=64; if [[ $name =~ _mma_.*_128$ ]]; then allowed=6; fi; else continue; fi
            looked=$((looked + 1))
            if ((hmma < least || local > allowed)); then
                echo "$name: $local accesses to local memory in a loop of $hmma matrix products"
                bad=$((bad + 1))
            fi
        done < <("$dump" -sass -arch "$arch" "$object" | awk -v shortest=$shortest '
            function value(hex,    i, x) { x = 0; for (i = 1; i <= length(hex); i++) x = 16 * x + index("0123456789abcdef", substr(hex, i, 1)) - 1; return x }
            function finish(    i, most, pick, inner) {
                # Loops by their end; an inner one ends before what holds it. The first with the most HMMA is innermost. wgmma: the
                # shortest with so many, because those who wait for a barrier again jump back from far away; and one beside it with as
                # many products, where warpgroups have loops of their own.
                most = 0
                for (i = 1; i <= loops; i++)
                    if (shortest) { if (mma[i] >= shortest && (most == 0 || to[i] - from[i] < to[pick] - from[pick])) { most = mma[i]; pick = i } }
                    else if (mma[i] > most) { inner = 1; for (j = 1; j <= loops; j++) if (j != i && from[j] >= from[i] && to[j] <= to[i] && mma[j] >= 32) inner = 0; if (inner) { most = mma[i]; pick = i } }
                if (shortest && pick) for (i = 1; i <= loops; i++) if (mma[i] == most && to[i] - from[i] < 2 * (to[pick] - from[pick]) && (to[i] < from[pick] || from[i] > to[pick])) beside = mem[i]
                if (name != "") print name, most + 0, mem[pick] + beside
                loops = 0; n = 0; beside = 0
            }
            /Function :/ { finish(); name = $NF; next }
            match($0, /^ *\/\*[0-9a-f]+\*\//) {
                at = substr($0, RSTART, RLENGTH); gsub(/[^0-9a-f]/, "", at); at = value(at)
                n++; place[n] = at; isma[n] = ($0 ~ /HG?MMA/); ismem[n] = ($0 ~ /[^A-Z](LDL|STL)[^A-Z]/)
                if (match($0, /BRA[^;]* 0x[0-9a-f]+/)) {
                    t = substr($0, RSTART, RLENGTH); sub(/.*0x/, "", t); t = value(t)
                    if (t <= at) {
                        loops++; from[loops] = t; to[loops] = at; mma[loops] = mem[loops] = 0
                        for (i = n; i > 0 && place[i] >= t; i--) { mma[loops] += isma[i]; mem[loops] += ismem[i] }
                    }
                }
            }
            END { finish() }')
    done
    ((looked == expected)) || { echo "cuobjdump showed $looked of $expected kernels"; bad=$((bad + 1)); }
fi
echo "$seen kernels' spills, $looked kernels' loops looked at; $bad are wrong"
((bad == 0))
