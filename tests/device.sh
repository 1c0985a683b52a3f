#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# device.sh: the tests of a GPU backend on a machine that has the GPU but none of the packages of the build.
#   device.sh pack BUILD FOLDER [LABEL]     on the machine of the build: gathers the suites with this ctest label (cuda), the
#                                           plug-ins, bin/kiln, and the shared libraries that a bare machine lacks
#   FOLDER/device.sh run [LOGS [NAME...]]   there: runs all suites, or those whose name contains one of the words, four at a time
#                                           (KILN_TEST_JOBS); logs go to LOGS (default FOLDER/logs). Ends with a table. Exit
#                                           code 0 if nothing failed.
# A suite that is skipped there counts as failed: the device is what the run is for. KILN_TEST_SLOW=1 adds the heavy tests.
set -euo pipefail

pack()
{
    local build folder=$2 label=${3:-cuda} file
    build=$(cd "$1" && pwd)
    rm -rf "$folder"
    mkdir -p "$folder/tests" "$folder/lib/kiln" "$folder/bin"
    folder=$(cd "$folder" && pwd)
    # One line per test: name, command words, and the environment as NAME=VALUE words, separated by "|" (read would join empty fields between tabs).
    ctest --test-dir "$build" -L "^$label$" --show-only=json-v1 | python3 -c '
import json, os, sys
build = sys.argv[1]
for test in json.load(sys.stdin)["tests"]:
    command = test.get("command")  # none: its program is not built
    if not command or os.path.commonpath([build, command[0]]) != build or "kiln_program" in command[0]:
        continue  # a script: it looks at files of the build, not at the device
    properties = {p["name"]: p["value"] for p in test["properties"]}
    environment = [e for e in properties.get("ENVIRONMENT", []) if not e.startswith("KILN_BACKEND_PATH=")]
    print(test["name"], command[0], " ".join(command[1:]), " ".join(environment), sep="|")
' "$build" >"$folder/suites.all"
    cut -d '|' -f 2 "$folder/suites.all" | sort -u | while read -r file; do
        [[ -x $file ]] || { echo "device.sh: $file is not built" >&2; exit 1; }
        strip -o "$folder/tests/${file##*/}" "$file"
    done
    awk -F '|' -v OFS='|' '{ sub(/.*\//, "", $2); print }' "$folder/suites.all" >"$folder/suites"
    rm "$folder/suites.all"
    if [[ -x $build/bin/kiln ]]; then strip -o "$folder/bin/kiln" "$build/bin/kiln"; fi
    for file in "$build"/lib*/kiln/*.so "$build"/lib/*/kiln/*.so; do
        if [[ -e $file ]]; then cp "$file" "$folder/lib/kiln/"; fi
    done
    ldd "$folder"/tests/* "$folder"/bin/* 2>/dev/null | awk '/=> \// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | xargs -r cp -t "$folder/lib" -L
    cp "$0" "$folder/device.sh"
    echo "$(wc -l <"$folder/suites") suites, $(du -sh "$folder" | cut -f 1), in $folder"
}

# One suite: its log, and beside it NAME.row: passed, failed, seconds, note, separated by "|".
run_suite()
{
    local folder=$1 logs=$2 name=$3 program=$4 arguments=$5 environment=$6
    local log=$logs/$name.log start code seconds line passed=0 failed=0 errors=0 note=""
    start=$(date +%s%N)
    set +e
    # shellcheck disable=SC2086 # words, as ctest has them
    env $environment timeout 600 "$folder/tests/$program" $arguments &>"$log"
    code=$?
    set -e
    seconds=$(awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { printf "%.1f", ns / 1e9 }')
    # "97%: Checks: 259, Failures: 7, Errors: 0"; a program without that line is one test.
    line=$(grep -aE '^[0-9]+%: Checks: ' "$log" | tail -n 1 | tr -dc '0-9 ' || true)
    if [[ $line ]]; then
        read -r _ passed failed errors <<<"$line"
        failed=$((failed + errors)) passed=$((passed - failed))
        if ((code && !failed)); then failed=1 note="exit code $code"; fi
    elif ((code == 0)); then
        passed=1
    else
        failed=1 note="exit code $code"
    fi
    if ((code == 77)); then note=$(grep -a -m 1 skipped "$log" || echo skipped); fi
    echo "$passed|$failed|$seconds|$note" >"$logs/$name.row"
}

run()
{
    local folder logs name program arguments environment passed failed seconds note
    local sum_passed=0 sum_failed=0 table=() words=() names=()
    folder=$(cd "$(dirname "$0")" && pwd)
    logs=${1:-$folder/logs}
    words=("${@:2}")
    mkdir -p "$logs"
    export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} KILN_BACKEND_PATH=$folder/lib/kiln
    # Suites mostly wait for the oracle, so several share the device. What measures host time runs alone, before them.
    while IFS='|' read -r name program arguments environment; do
        if ((${#words[@]})) && ! grep -qF "$(printf '%s\n' "${words[@]}")" <<<"$name"; then continue; fi
        names+=("$name")
        rm -f "$logs/$name.row"
        if [[ $program == cuda_host ]]; then
            run_suite "$folder" "$logs" "$name" "$program" "$arguments" "$environment"
            continue
        fi
        while (($(jobs -pr | wc -l) >= ${KILN_TEST_JOBS:-4})); do wait -n || true; done
        run_suite "$folder" "$logs" "$name" "$program" "$arguments" "$environment" &
    done < <(grep '|cuda_host|' "$folder/suites" || true; grep -v '|cuda_host|' "$folder/suites")
    wait
    for name in "${names[@]}"; do
        passed=0 failed=1 seconds=- note="no result"
        if [[ -e $logs/$name.row ]]; then IFS='|' read -r passed failed seconds note <"$logs/$name.row"; fi
        if ((failed)); then
            echo "== $name"
            tail -n 15 "$logs/$name.log" || true
        fi
        sum_passed=$((sum_passed + passed)) sum_failed=$((sum_failed + failed))
        table+=("$(printf '%-36s %7d %7d %8s  %s' "$name" "$passed" "$failed" "$seconds" "$note")")
    done
    printf '\n%-36s %7s %7s %8s\n' suite passed failed seconds
    printf '%s\n' "${table[@]}"
    printf '%-36s %7d %7d\n' all "$sum_passed" "$sum_failed"
    ((sum_failed == 0 && sum_passed > 0))
}

case ${1:-} in
pack) pack "${@:2}" ;;
run) run "${@:2}" ;;
*)
    sed -n '3,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
