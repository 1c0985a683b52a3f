#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# report.sh KILN: `kiln report` on documents made now: what must be on the page, that nothing is hidden, and that foreign
# documents get exit code 2 and a sentence with the file and the key. Also exit codes of lines with wrong lengths.
set -euo pipefail
kiln=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_WAIT_POLICY=passive
bad=0
wrong() { echo "report.sh: $*"; bad=1; }

# expect CODE WORDS COMMAND...: its exit code, and words that its output (both streams) must hold
expect()
{
    local code=0 want=$1 words=$2 text
    shift 2
    text=$("$@" 2>&1) || code=$?
    [[ $code == "$want" ]] || wrong "exit code $code, not $want: $*"
    grep -qF -e "$words" <<<"$text" || wrong "no \"$words\" in the output of: $*"$'\n'"$text"
}

"$kiln" bench --seconds 0 --samples 1 --threads 1 --format json b1h1q16d8:fp32 b1h1q24d8:bf16 >a.json
"$kiln" bench --seconds 0 --samples 1 --threads 2 --format json --algorithm flash2 b1h1q16d8:fp32 >b.json
"$kiln" roofline --device a100 --format json >c.json

"$kiln" report a.json b.json c.json >page.txt
for words in "Across runs" "b1h1q24k24d8:bf16: only in run A (a.json)" "not measured  19.5 TFLOP/s" \
    "Nothing on this list was run" "C (c.json): NVIDIA A100"; do
    grep -qF -e "$words" page.txt || wrong "no \"$words\" on the page"
done
# A run without naive has no speed-up, whatever another run has.
grep -qE '^B +flash2 +right .* 1 +- +' page.txt || wrong "run B, which has no naive, has a speed-up"
[[ $(grep -cE '^A +naive .* 1\.00 x' page.txt) == 2 ]] || wrong "naive of run A is not the base of run A"

"$kiln" report -o page.html a.json b.json c.json
grep -q '^<!DOCTYPE html>' page.html || wrong "-o page.html is no HTML"
if command -v gnuplot >/dev/null; then
    grep -q '<svg' page.html || wrong "the page has no plot"
fi
! grep -E '(src|href)="?https?:' page.html || wrong "the page refers to others"
expect 0 "no plots, because gnuplot" env PATH=/nonexistent "$kiln" report --format html a.json

sed 's/"device": "[^"]*"/"device": "<script>\&"/' a.json >markup.json
"$kiln" report --format html markup.json >markup.html
! grep -q '<script' markup.html || wrong "text of a file became markup"

spoil() # spoil FILE EDIT: a.json, edited by sed
{
    sed "$2" a.json >"$1"
    if cmp -s a.json "$1"; then wrong "$1 is not spoiled"; fi
}
spoil units.json 's/"units": [0-9]*/"units": "two"/'
spoil median.json 's/"median_s": .*/"median_s": -1,/'
spoil verdict.json 's/"verdict": "right"/"verdict": "perhaps"/'
spoil problem.json 's/b1h1q16k16d8:fp32/nothing/'
spoil schema.json 's/kiln-bench-1/kiln-bench-9/'
spoil escape.json 's/"device": "[^"]*"/"device": "\\u001b[2J"/'
head -n 20 a.json >cut.json
echo '{"results": []}' >foreign.json
expect 2 'units.json: the key "environment.units" must be a whole number' "$kiln" report a.json units.json
expect 2 'median.json: the key "results[0].median_s"' "$kiln" report median.json
expect 2 'verdict.json: the key "results[0].verdict"' "$kiln" report verdict.json
expect 2 'problem.json: the key "results[0].problem"' "$kiln" report problem.json
expect 2 'schema.json: the key "schema" is "kiln-bench-9"' "$kiln" report schema.json
expect 2 'escape.json: the key "environment.device" has a control character' "$kiln" report escape.json
expect 2 'cut.json: it is no JSON' "$kiln" report cut.json
expect 2 'foreign.json: the key "schema" is missing' "$kiln" report foreign.json
expect 2 'missing.json: it cannot be opened' "$kiln" report missing.json
expect 2 'given twice' "$kiln" report a.json a.json
expect 2 'would overwrite' "$kiln" report -o a.json a.json
expect 2 'give it files' "$kiln" report
expect 2 'text or html' "$kiln" report --format pdf a.json

# The oracle must not follow lengths that the library refuses.
for op in attention_forward attention_backward; do
    for lengths in seqused_k=99,1 lens_q=3,9:lens_k=random seqused_q=5,4; do
        expect 2 KILN_INVALID_ARGUMENT "$kiln" verify "$op:b2h1q4k8d8:fp32:$lengths"
    done
    expect 2 KILN_INVALID_ARGUMENT "$kiln" bench --seconds 0 --samples 1 "$op:b2h1q4k8d8:fp32:seqused_k=99,1"
done
((bad == 0)) && echo "report.sh: all as it should be"
exit $bad
