#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""scaling.py KILN [--threads N,N] [--rounds N] [--seconds S] [PROBLEM ...]: how calls speed up with threads, beside what
the machine allows.

KILN is the program (build/release/bin/kiln). For every number of threads `kiln bench` runs the problems and measures its
ceilings in the same process; rounds go through all numbers of threads in turn and the best of each counts. Attention is
compared with the multiply-adds of the same run (bf16 on tile units: with tile products), softmax with the non-temporal copy.
A problem that names no algorithm is run on the whole ladder, and its fastest rung counts.
Printed for each problem: time, speed-up over the first number of threads (1), the ceiling's speed-up, and the share of it
that the call reaches. The aim is 0.95. A ceiling of several threads is that of the slowest one, so where they are not equally
fast (a virtual machine with neighbours) a share may be too high.
Exit code 1 if a result was wrong or nothing could be measured, not for slowness.
"""
import argparse
import json
import os
import subprocess
import sys

DEFAULTS = ["attention_forward:b1h16q2048d128:fp32:algorithm=flash2",
            "attention_forward:b1h16q2048d128:bf16:causal_br:algorithm=flash2",
            "attention_backward:b1h16q1024d128:fp32", "softmax_forward:r131072n1024:fp32:algorithm=online",
            "softmax_forward:r8192n32768:bf16:algorithm=online"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("kiln")
parser.add_argument("problems", nargs="*", default=DEFAULTS, metavar="PROBLEM")
parser.add_argument("--threads", metavar="N,N", help="default: 1,2,4,... and all processors")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--seconds", type=float, default=1.0, help="of timing a problem in a round")
options = parser.parse_intermixed_args()
processors = len(os.sched_getaffinity(0))
threads = sorted({1 << i for i in range(processors.bit_length())} | {processors})
if options.threads:
    threads = [int(t) for t in options.threads.split(",")]


def run(count):
    """Results and ceilings of one process."""
    command = [options.kiln, "bench", "--backend", "cpu", "--threads", str(count), "--format", "json",
               "--seconds", str(options.seconds)] + options.problems
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    document = json.loads(done.stdout)
    return document["results"], document["peak"]


def ceiling(result, peak):
    """Of what limits this call: its name, and the rate of this run."""
    if result.get("flops", 0) == 0:
        return "copy", peak["copy_bytes_per_s"]
    if "amx" in result["kernel"] and peak["tile_flops_per_s"] > 0:
        return "tile", peak["tile_flops_per_s"]
    return "FMA", peak["flops32_per_s"]


best, limit, kernel = {}, {}, {}
for _ in range(options.rounds):
    for count in threads:
        results, peak = run(count)
        for result in results:
            key = result["problem"], count
            name, rate = ceiling(result, peak)
            best[key] = min(best.get(key, float("inf")), result["min_s"])
            limit[key] = max(limit.get(key, (name, 0.0)), (name, rate))
            kernel[result["problem"]] = result["kernel"]

if not best:
    sys.exit("nothing was measured")
for problem, name in kernel.items():
    print(f"\n{problem}   {name}")
    print(f"{'threads':>7s} {'time':>11s} {'speed-up':>9s} {'ceiling':>8s} {'its speed-up':>13s} {'share':>6s}")
    for count in threads:
        speedup = best[problem, threads[0]] / best[problem, count]
        allowed = limit[problem, count][1] / limit[problem, threads[0]][1]
        print(f"{count:7d} {best[problem, count] * 1e3:8.2f} ms {speedup:8.2f}x {limit[problem, count][0]:>8s} "
              f"{allowed:12.2f}x {speedup / allowed:6.2f}")
