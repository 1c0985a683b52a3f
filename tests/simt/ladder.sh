#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# ladder.sh KILN: bench/ladder.py on an emulated device. A stand-in for ncu reports what that device counts, in ncu's form: so
# --compare must find no difference, and one if the stand-in adds to a number.
set -euo pipefail
kiln=$1 ladder=$(dirname "$0")/../../bench/ladder.py folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/ncu" <<'EOF'
#!/usr/bin/env python3
import json, os, subprocess, sys
words = sys.argv[1:]
log, metrics = words[words.index("--log-file") + 1], words[words.index("--metrics") + 1].split(",")
counters = log + ".counters"
code = subprocess.run(words[words.index("--metrics") + 2:], env=dict(os.environ, KILN_SIMT_COUNTERS=counters)).returncode
with open(log, "w") as file:
    print("==PROF== Connected to process 1", file=file)
    print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"', file=file)
    for number, line in enumerate(open(counters)):
        launch = json.loads(line)
        tensors = launch["tensors"].values()
        numbers = {"dram__bytes": sum(t["distinct_read"] + t["distinct_written"] for t in tensors),
                   "l1tex__data_bank_conflicts_pipe_lsu_mem_shared": launch["bank_conflicts"],
                   "l1tex__t_sectors_pipe_lsu_mem_global_op_ld": sum(t["read_sectors"] for t in tensors),
                   "l1tex__t_sectors_pipe_lsu_mem_global_op_st": sum(t["written_sectors"] for t in tensors)}
        numbers["l1tex__t_sectors_pipe_lsu_mem_global_op_st"] += int(os.environ.get("ADD", "0"))
        for metric in metrics:
            print(f'"{number}","{launch["kernel"]}(gpu_attention_args)","{metric}","","{numbers[metric[:-4]]:,}"', file=file)
sys.exit(code)
EOF
chmod +x "$folder/ncu"
export PATH=$folder:$PATH
compare() { python3 "$ladder" "$kiln" --backend simt-cuda --compare b1h1q64d64:bf16; }
text=$(compare) || { echo "$text"; exit 1; }
[[ $(grep -c ' equal$' <<<"$text") == 18 && $text == *"0 differences" ]] || { echo "ladder.sh: $text"; exit 1; }
if text=$(ADD=1 compare); then echo "ladder.sh: a difference is not seen: $text"; exit 1; fi
[[ $(grep -c 'DIFFERENT$' <<<"$text") == 6 ]] || { echo "ladder.sh: $text"; exit 1; }
for backend in simt-cuda simt-hip; do
    text=$(python3 "$ladder" "$kiln" --backend "$backend" --problem 'b1h1q{}d64:bf16' --seqlen 128)
    [[ $(grep -cE ' (naive|tiled|tiled_unpadded|flash2) +right .* 1\.0000 ' <<<"$text") == 4 ]] || { echo "ladder.sh: $text"; exit 1; }
done
echo "ladder.sh: all as it should be"
