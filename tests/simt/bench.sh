#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# bench.sh KILN BACKEND: `kiln bench --counters` in its three formats says the same, and says it of the right call.
set -euo pipefail
kiln=$1 backend=$2 folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bench() { "$kiln" bench --backend "$backend" --counters --algorithm tiled,flash2 "$@" b1h2q64d64:bf16; }
export TMPDIR=$folder KILN_SIMT_COUNTERS=$folder/own # the caller's file is left alone while the program counts
bench --format json >"$folder/json"
left=$(find "$folder" -name 'kiln-counters-*')
[[ -z $left ]] || { echo "bench.sh: a temporary file is left: $left"; exit 1; }
bench --format csv >"$folder/csv"
bench --format text >"$folder/text"
python3 - "$folder" <<'EOF'
import csv, json, sys
folder = sys.argv[1]
document = json.load(open(folder + "/json"))
assert document["schema"] == "kiln-counters-1", document["schema"]
rungs = {r["algorithm"]: r for r in document["results"]}
assert list(rungs) == ["tiled", "flash2"], list(rungs)
rows = list(csv.DictReader(line for line in open(folder + "/csv") if not line.startswith("#")))
assert all(None not in row and None not in row.values() for row in rows), "rows of different length"
text = open(folder + "/text").read().split("\n")
for name, r in rungs.items():
    assert r["verdict"] == "right" and r["counted_bytes"] == r["ledger_bytes"] > 0, r
    assert r["counted"] == ("distinct" if name == "tiled" else "requested"), r
    assert len(r["launches"]) == (3 if name == "tiled" else 1), "one call was counted"
    mine = [row for row in rows if row["algorithm"] == name]
    assert [row for row in mine if row["launch"] == ""][0]["counted_bytes"] == str(r["counted_bytes"])
    assert [row["kernel"] for row in mine if row["launch"] and not row["tensor"]] == [l["kernel"] for l in r["launches"]]
    for launch in r["launches"]:
        for tensor, bytes in launch["tensors"].items():
            there = [row for row in mine if (row["kernel"], row["tensor"]) == (launch["kernel"], tensor)]
            assert len(there) == 1 and all(there[0][k] == str(v) for k, v in bytes.items()), there
            assert any(line.split()[:3] == [launch["kernel"], tensor, str(bytes["read"])] for line in text), (launch["kernel"], tensor)
    assert any(line.split()[:4] == [name, "right", r["counted"], str(r["counted_bytes"])] for line in text), name
own = [json.loads(line) for line in open(folder + "/own")]
assert len(own) == 3 * 2 * 4, f"{len(own)} launches in the caller's own file: 2 runs of 4 launches while judging, thrice"
print("bench.sh: text, CSV and JSON agree")
EOF
