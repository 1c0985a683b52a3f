#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# cli.sh KILN: what the program says to bad input, for every subcommand: exit code 2 and a sentence that names the place, never
# a silent guess; exit code 3 for output that cannot be written; and that what is accepted is echoed as a line that it accepts.
set -euo pipefail
kiln=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_WAIT_POLICY=passive
unset KILN_CPU_ISA KILN_BACKEND
bad=0
wrong() { echo "cli.sh: $*"; bad=1; }

# expect CODE WORDS ARGUMENTS...: the program's exit code, and words that its output (both streams) must hold
expect()
{
    local code=0 want=$1 words=$2 text
    shift 2
    text=$("$kiln" "$@" 2>&1) || code=$?
    [[ $code == "$want" ]] || wrong "exit code $code, not $want: kiln $*"
    grep -qF -e "$words" <<<"$text" || wrong "no \"$words\" in the output of: kiln $*"$'\n'"$text"
}
# refused WORDS PROBLEM [PLACE]: by the parser, whose ^ stands under the PLACE-th byte of the problem, if one is given
refused()
{
    expect 2 "$1" verify "$2"
    if (($# > 2)); then
        expect 2 "$(printf '%*s^ ' $((13 + $3)) '')" verify "$2"
    fi
}

# The program, and options of all subcommands.
expect 2 "Usage: kiln COMMAND"
# shellcheck disable=SC2016 # the backquotes are part of the sentence
expect 2 'did you mean `kiln verify`' verfy
expect 2 'there is no command "nothing"' nothing
expect 2 'there is no command "nothing"' help nothing
for command in info verify bench roofline report trace; do
    expect 0 "Usage: kiln $command" "$command" --help
    expect 0 "Usage: kiln $command" help "$command"
    expect 2 "unknown option \"--frobnicate\"" "$command" --frobnicate
done
expect 2 "did you mean --threads" info --thread 1
expect 2 "--threads needs a value" info --threads
expect 2 'no whole number' info --threads one
expect 2 "--threads is given twice" info --threads 1 --threads=2
expect 2 "--backend has an empty value" info --backend ""
expect 2 "--full takes no value" verify --full=yes b1h1q1d8:fp32

# Output that cannot be written is neither success nor a wrong result.
if [[ -w /dev/full ]]; then
    for arguments in "" --help --version info "verify b1h1q1d8:fp32" "roofline --device a100" "roofline --device list" \
        "bench --seconds 0 --samples 1 b1h1q4d8:fp32" "trace 1,2" "trace --help"; do
        code=0
        read -ra words <<<"$arguments"
        want=3
        [[ -n $arguments ]] || want=2 # help on stderr: nothing is lost
        text=$("$kiln" ${words[@]+"${words[@]}"} 2>&1 >/dev/full) || code=$?
        [[ $code == "$want" ]] || wrong "exit code $code, not $want: kiln $arguments >/dev/full"
        [[ $want == 2 ]] || grep -q "could not be written" <<<"$text" || wrong "no sentence: kiln $arguments >/dev/full"
    done
    "$kiln" roofline --device a100 --format json >a100.json
    expect 3 "/dev/full could not be written" report -o /dev/full a100.json
    code=0
    "$kiln" report a100.json >/dev/full 2>/dev/null || code=$?
    [[ $code == 3 ]] || wrong "exit code $code, not 3: kiln report >/dev/full"
    code=0
    "$kiln" trace 1,,2 >/dev/full 2>/dev/null || code=$?
    [[ $code == 2 ]] || wrong "a full disk hides that a number is missing"
fi
code=0
"$kiln" trace 1,2 >&- 2>/dev/null || code=$?
[[ $code == 3 ]] || wrong "exit code $code, not 3, with standard output closed"

# info
expect 2 '"extra" is neither' info extra
expect 2 "--device and --threads are numbers from 0" info --threads=-1
expect 2 "nonsense" info --backend nonsense
bad_isa=$(KILN_CPU_ISA=AVX2 "$kiln" info --backend cpu)
grep -q "Ignored" <<<"$bad_isa" || wrong "KILN_CPU_ISA=AVX2 is not said to be ignored"
! grep -q "(capped" <<<"$bad_isa" || wrong "KILN_CPU_ISA=AVX2 is ignored, and said to cap"
plain=$("$kiln" info --backend cpu | sed -n 's/^  kernels for *//p')
for isa in portable "$plain"; do
    said=$(KILN_CPU_ISA=$isa "$kiln" info --backend cpu)
    if [[ $isa == "$plain" ]]; then
        ! grep -q "(capped" <<<"$said" || wrong "KILN_CPU_ISA=$isa caps nothing here, and is said to"
    else
        grep -qF "(capped by KILN_CPU_ISA; without it $plain)" <<<"$said" || wrong "KILN_CPU_ISA=$isa is not said to cap"
    fi
done
text=$(KILN_CPU_ISA=AVX2 "$kiln" verify --backend cpu b1h1q1d8:fp32 2>&1 >/dev/null)
grep -q "Ignored" <<<"$text" || wrong "verify does not say that KILN_CPU_ISA=AVX2 is ignored"

# verify, and the grammar of problems
expect 2 'there is no operation "softmax"' verify --op softmax n4:fp32
expect 2 "name 1 is empty" verify --algorithm , b1h1q1d8:fp32
expect 2 "at most 1 name" verify --algorithm naive,flash2 b1h1q1d8:fp32
expect 2 "names an algorithm, and so does --algorithm" verify --algorithm naive b1h1q1d8:fp32:algorithm=flash2
refused "the shape is missing" ""
refused "the type is missing" q3d4
refused "is given twice" q3d4q5:fp32 4
refused "a second mask, causal_br: causal_tl is given already" q3d4:fp32:causal_tl:causal_br 20
refused "a second mask" q3d4:fp32:none:window_br=1,0 15
refused "a second mask" q3d4:fp32:causal_br:causal_br 20
refused "softcap is given twice" q3d4:fp32:softcap=3:softcap=3 20
refused "sinks is given twice" q3d4:fp32:sinks:sinks=off 16
refused "q.offset is given twice" q3d4:fp32:q.offset=1:q.offset=2 21
refused "the axis h is given twice" q3d4:fp32:bias=hh 16
refused "the flag log is given twice" softmax_forward:n4:fp32:flags=log+log 34
refused "mask_len has no effect without attn_mask" q3d4:fp32:mask_len=99 10
refused "attn_mask_axes has no effect without attn_mask" q3d4:fp32:attn_mask_axes=q 10
refused "mask_len=0 has no meaning" q3d4:fp32:attn_mask=0.5:mask_len=0 24
refused "page=0 has no meaning" q3d4:fp32:page=0 10
refused "cache_batch=0 has no meaning" q3d4:fp32:cache_batch=0 10
refused "table has no effect without page" q3d4:fp32:table=ordered 10
refused "spare_pages has no effect without page" q3d4:fp32:spare_pages=2 10
refused "pack_gap has no effect without lens_q or lens_k" q3d4:fp32:pack_gap=2 10
refused "dropout_seed has no effect without dropout" q3d4:fp32:dropout_seed=1 10
refused "dropout_offset has no effect without dropout" q3d4:fp32:dropout=0:dropout_offset=1 20
refused "dropout_ptr has no effect without dropout" q3d4:fp32:dropout_ptr 10
refused "cache_batch contradicts lens_k" q3d4:fp32:lens_k=3:cache_batch=2 19
refused "alias_kv contradicts layout=qkv" q3d4:fp32:layout=qkv:alias_kv 21
refused "layout of a merge" attention_merge:q3d4:fp32:layout=kv 26
refused "attn_mask_axes has letters of bhq" q3d4:fp32:attn_mask=0.5:attn_mask_axes=qk 24
refused "lse has no meaning for attention_backward" attention_backward:q3d4:fp32:lse=off 29
refused "q.offset: 0 moves nothing" q3d4:fp32:q.offset=0
refused "alibi has the axes h or bh" q3d4:fp32:alibi=b
refused "dbias needs a bias" attention_backward:q3d4:fp32:dbias
refused "no tensor of this problem" q3d4:fp32:bias.type=fp16
refused 'did you mean "softcap"' q3d4:fp32:softcup=3 10
refused "an empty field" q3d4:fp32::sinks 10
refused "is no number" q3d4:fp32:scale=1e999 16
refused "is no whole number" b2q3d4:fp32:lens_q=1,,2

# What is accepted is echoed as a line that is accepted.
for line in b0h2q4k5d8:fp32:lens_q=:lens_k= b2h2q4k5d8:fp32:attn_mask=0.5:attn_mask_axes=q:mask_len=3 \
    b2h1q4k9d8:fp32:page=4:table=ordered:spare_pages=2 b1h1q4k5d8:fp32:dropout=0.5:dropout_seed=3:dropout_ptr \
    b1h1q4k5d8:fp32:window_br=inf,-1:softcap=3; do
    text=$("$kiln" verify --backend cpu "$line") || wrong "not accepted: $line"
    grep -qF "  $line" <<<"$text" || wrong "not echoed as it was written: $line"$'\n'"$text"
done

# bench
fast=(bench --seconds 0 --samples 1)
expect 2 "name 1 is empty" "${fast[@]}" --algorithm , b1h1q4d8:fp32
expect 2 "name 2 is empty" "${fast[@]}" --algorithm naive,,flash2 b1h1q4d8:fp32
expect 2 "name 2 is empty" "${fast[@]}" --algorithm naive, b1h1q4d8:fp32
expect 2 "--algorithm has an empty value" "${fast[@]}" --algorithm "" b1h1q4d8:fp32
expect 2 "at most 63 letters" "${fast[@]}" --algorithm "$(printf 'x%.0s' {1..64})" b1h1q4d8:fp32
expect 2 "at most 16 names" "${fast[@]}" --algorithm "$(printf 'naive,%.0s' {1..16})naive" b1h1q4d8:fp32
expect 2 "names an algorithm, and so does" "${fast[@]}" --algorithm naive b1h1q4d8:fp32:algorithm=flash2
expect 2 "nonsense" "${fast[@]}" --algorithm nonsense b1h1q4d8:fp32
expect 2 "a second mask" "${fast[@]}" q3d4:fp32:causal_tl:causal_br
expect 2 "--format is text, csv or json" "${fast[@]}" --format xml b1h1q4d8:fp32
expect 2 "--seconds is 0 to 3600" bench --seconds nan b1h1q4d8:fp32
expect 2 "--samples 1 to 200" bench --samples 0 b1h1q4d8:fp32
expect 2 'there is no operation "x"' bench --op x
expect 2 "backend cpu counts nothing; the emulated devices do: --backend simt-cuda or simt-hip" bench --backend cpu --counters
for option in --seconds=1 --samples=3 --cold-cache; do
    expect 2 "--counters times nothing" bench --backend cpu --counters "$option" b1h1q4d8:fp32
done

# roofline
for format in json csv; do
    expect 2 "--plot - draws on standard output" roofline --device a100 --seqlen 1024 --format "$format" --plot -
    "$kiln" roofline --device a100 --seqlen 1024 --format "$format" --plot plot.txt >"plot.$format" 2>/dev/null ||
        wrong "a plot in a file beside --format $format"
    ! grep -q "FLOP per byte" "plot.$format" || wrong "the plot lies in the $format"
done
expect 0 "FLOP per byte" roofline --device a100 --seqlen 1024 --plot -
expect 2 "unknown device \"a1000\": did you mean a100" roofline --device a1000
expect 2 '"" is no length' roofline --device a100 --seqlen 1,,2
expect 2 '"0" is no length' roofline --device a100 --seqlen 0
expect 2 "--dtype is fp16, bf16 or fp32" roofline --device a100 --dtype int8
expect 2 "--heads and --d must be at least 1" roofline --device a100 --heads 0
expect 2 "--threads has no effect without --device this" roofline --device a100 --threads 2
expect 2 "--device list is a table for people" roofline --device list --format json
expect 2 "cannot be written" roofline --device a100 --plot missing/plot.txt
expect 2 "ends in .png, .svg or .txt" roofline --device a100 --plot plot.pdf
expect 2 "it takes no arguments" roofline a100

# trace
expect 2 "give it scores" trace
expect 2 "an empty word" trace 1 "" 2
for words in "1,,2" ",1" "1," "," "1, 2" "1 ,2"; do
    expect 2 "a number is missing beside a comma" trace "$words"
done
expect 2 "no scores stand before a |" trace "1 || 2"
expect 2 "no scores stand before a |" trace "| 1"
expect 2 "no scores stand after the last |" trace "1 |"
for number in inf +inf nan -nan 1e39 -1e39 1e999; do
    expect 2 "$number" trace "1,$number"
done
expect 2 '"1x" is no number' trace 1x
expect 0 "l = 0.000 -> 1.368" trace -inf,-inf 0,1
expect 0 "l = 1.135 -> 1.553" trace '1,3 | 2,4'
expect 0 "l = 1.135 -> 1.553" trace 1,3 '|' 2,4
((bad == 0)) && echo "cli.sh: all as it should be"
exit $bad
