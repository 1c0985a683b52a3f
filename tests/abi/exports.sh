#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# exports.sh LIBRARY MAP HEADER: what the library exports, the list in the export map and the functions that the header
# declares are the same set. Prints what is in one and not in the other.
set -eu
library=$1 map=$2 header=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/library"
sed -n '/^global:/,/^local:/s/^ *\(kiln_[a-z0-9_]*\);$/\1/p' "$map" | sort >"$work/map"
tr '\n' ' ' <"$header" | grep -oE 'KILN_API [a-z][a-z0-9_ *]*[ *]kiln_[a-z0-9_]+ ?\(' | sed -E 's/.*[ *](kiln_[a-z0-9_]+) ?\(/\1/' |
    sort >"$work/header"

status=0
for other in map header; do
    if ! diff -u --label "$other" --label library "$work/$other" "$work/library"; then
        echo "exports of $library differ from the $other (-: only there, +: only exported)"
        status=1
    fi
done
[ -s "$work/library" ] || { echo "$library exports nothing"; status=1; }
[ $status -ne 0 ] || echo "$(wc -l <"$work/library") exports, all in kiln.h and in kiln.map"
exit $status
