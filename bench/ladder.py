#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""ladder.py KILN [--backend NAME] [--seqlen N,N] [--problem TEXT]: the ladder's prediction beside what was measured.

KILN is the program (build/release/bin/kiln). On a GPU: `kiln bench` on 16 heads, d = 128, bf16, each result checked and then
timed with cold caches, and beside its median the least time that the traffic ledger allows on the device of the table
(bytes / bandwidth or operations / peak, whichever is more; flash2 and later: every tensor once, for the L2 cache serves K and
V again). Where ncu is there, it says for the lengths of --profile what went through DRAM, and the bank conflicts.
On an emulated device: counted bytes beside the ledger's, and the conflicts, for short sequences.
--compare PROBLEM: kernel by kernel, what the emulated NVIDIA device counts beside what ncu does, on the same problem.
Prints rows as they come. Exit code 1 if a result was wrong, or if --compare finds a difference.
"""
import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

RUNGS = ["naive", "tiled", "tiled_unpadded", "flash1", "flash2", "mma", "wgmma", "mfma"]
DRAM = "dram__bytes.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
SECTORS_READ = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
SECTORS_WRITTEN = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
JUDGED = 2  # calls of a rung in `kiln verify`
CALLS = JUDGED + 2  # and in `kiln bench --samples 1 --cold-cache`: one warms up, one is timed

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("kiln")
parser.add_argument("--backend", default="cuda")
parser.add_argument("--seqlen", help="default: 2048,4096,8192,16384; emulated: 256")
parser.add_argument("--problem", help="with {} for the length; default: b1h16q{}d128:bf16, emulated: b1h1q{}d128:bf16")
parser.add_argument("--slow-up-to", type=int, default=8192, metavar="N", help="longest sequence for naive and flash1: 8192")
parser.add_argument("--profile", default="4096", metavar="N,N", help="lengths to run under ncu as well: 4096")
parser.add_argument("--budget", type=float, default=50, metavar="S", help="begin nothing new after so many seconds: 50")
parser.add_argument("--compare", metavar="PROBLEM", help="such as b1h1q256d64:bf16")
options = parser.parse_args()
emulated = options.backend.startswith("simt-")
lengths = [int(n) for n in (options.seqlen or ("256" if emulated else "2048,4096,8192,16384")).split(",")]
problem = options.problem or ("b1h1q{}d128:bf16" if emulated else "b1h16q{}d128:bf16")
begin = time.monotonic()
notes, wrong = [], False


def kiln(*words, under=(), may_fail=False):
    """What a run of the program prints; None where it may fail and did. What it warns of goes to stderr."""
    global wrong
    done = subprocess.run([*under, options.kiln, *words], stdout=subprocess.PIPE, text=True)
    if done.returncode == 2 and may_fail:
        return None
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(done.args)}: exit code {done.returncode}")
    wrong |= done.returncode == 1
    return done.stdout


def bench(*words, backend=options.backend):
    """The document of one run of `kiln bench`."""
    return json.loads(kiln("bench", "--backend", backend, "--format", "json", *words))


def timed(names, n):
    """Documents of the rungs side by side; one by one where the device has no room for the S of all of them."""
    words = ["bench", "--backend", options.backend, "--format", "json", "--cold-cache", "--seconds", "0.1", "--samples", "3",
             problem.format(n), "--algorithm"]
    text = kiln(*words, ",".join(names), may_fail=True)
    if text:
        yield json.loads(text)
        return
    for name in names:
        text = kiln(*words, name, may_fail=True)
        if text:
            yield json.loads(text)
        else:
            notes.append(f"S = {n}: {name} was refused, see above")


def profiled(metrics, *words):
    """[(kernel, {metric: number})] of all launches of a run of the program under ncu, or None with a note."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        kiln(*words, under=["ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--log-file", log,
                            "--kernel-name", "regex:attention_forward", "--metrics", ",".join(metrics)])
        text = ""
        if os.path.exists(log):
            with open(log) as file:
                text = file.read()
    table = text.find('"ID"')
    if table < 0:
        notes.append("ncu: " + (re.findall(r"==(?:ERROR|WARNING)== (.*)", text) or ["no counters"])[0])
        return None
    launches = {}
    for row in csv.DictReader(line for line in text[table:].split("\n") if line.startswith('"')):
        kernel = row["Kernel Name"].split("(")[0].split()[-1]
        value = row["Metric Value"].replace(",", "")
        if value.replace(".", "", 1).isdigit():
            launches.setdefault(int(row["ID"]), (kernel, {}))[1][row["Metric Name"]] = float(value)
    return [launches[i] for i in sorted(launches)]


def rung_of(kernel, before):
    """The softmax of naive serves the rungs that keep S in memory: it belongs to the launch before it."""
    name = kernel.removeprefix("attention_forward_")
    if name.startswith("naive_softmax"):
        return before
    return max((r for r in RUNGS if name.startswith(r)), key=len, default=None)


def sums_of_rungs(launches):
    """{rung: {metric: per call}}"""
    sums, rung = {}, None
    for kernel, numbers in launches:
        rung = rung_of(kernel, rung)
        for metric, value in numbers.items():
            row = sums.setdefault(rung, {})
            row[metric] = row.get(metric, 0) + value / CALLS
    return sums


def table(titles, rows):
    rows = [titles] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    for row in rows:
        print("  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip())


def amount(value, unit=1.0, digits=3):
    return "-" if value is None else f"{value / unit:.{digits}f}"


def compare():
    """Counts of one call, launch by launch."""
    metrics = [CONFLICTS, SECTORS_READ, SECTORS_WRITTEN]
    rows, differences = [], 0
    for rung in ("tiled", "tiled_unpadded"):
        counted = bench("--counters", "--algorithm", rung, options.compare, backend="simt-cuda")["results"][0]["launches"]
        launches = profiled(metrics, "verify", "--backend", options.backend, "--algorithm", rung, options.compare)
        if launches is None or len(launches) != JUDGED * len(counted):
            sys.exit(f"{rung}: {notes or f'{len(launches)} launches under ncu, {JUDGED} x {len(counted)} wanted'}")
        for launch, (kernel, numbers) in zip(counted, launches):
            if launch["kernel"] != kernel:
                sys.exit(f"ncu saw {kernel} where the emulated device ran {launch['kernel']}")
            tensors = launch["tensors"].values()
            for what, mine, metric in (
                    ("bank conflicts", launch["bank_conflicts"], CONFLICTS),
                    ("sectors read", sum(t["read_sectors"] for t in tensors), SECTORS_READ),
                    ("sectors written", sum(t["written_sectors"] for t in tensors), SECTORS_WRITTEN)):
                theirs = numbers.get(metric)
                differences += mine != theirs
                rows.append([kernel, what, mine, amount(theirs, digits=0), "equal" if mine == theirs else "DIFFERENT"])
    table(["kernel", "what", "emulated", "ncu", ""], rows)
    return differences


def emulated_table():
    rows = []
    for n in lengths:
        document = bench("--counters", problem.format(n))
        for r in document["results"]:
            if r["algorithm"] in RUNGS:
                rows.append([n, r["algorithm"], r["verdict"], r["counted"], r["counted_bytes"], r["ledger_bytes"],
                             amount(r.get("counted_over_ledger"), digits=4), r["counted_lse_bytes"], r["bank_conflicts"]])
    print(f"{document['environment']['device']}, {problem.format('N')}")
    table(["N", "rung", "result", "bytes", "counted", "ledger", "ratio", "lse", "bank conflicts"], rows)


def limiter(r, peak, rung):
    flops = peak["flops32_per_s"] if rung == "naive" or ":fp32" in problem else peak["flops16_per_s"]
    if not flops or not peak["bytes_per_s"]:
        return "-"
    return "memory" if r["ledger_bytes"] / peak["bytes_per_s"] > r["flops"] / flops else "arithmetic"


TITLES = ["S", "rung", "ledger GB", "limit", "predicted ms", "measured ms", "ratio", "TFLOP/s", "DRAM GB", "DRAM/ledger", "bank conflicts"]


def print_row(row):
    print("  ".join(str(cell).ljust(max(len(title), 14)) if i == 1 else str(cell).rjust(max(len(title), 6))
                    for i, (cell, title) in enumerate(zip(row, TITLES))).rstrip(), flush=True)


def device_table():
    there = {r["algorithm"] for r in bench("--seconds", "0", "--samples", "1", problem.format(128))["results"]}
    rungs = [r for r in RUNGS if r in there]
    profiles = [int(n) for n in options.profile.split(",") if n]
    if profiles and not shutil.which("ncu"):
        notes.append("no ncu on the PATH: no DRAM bytes, no conflicts")
        profiles = []
    head = None
    for n in lengths:
        if time.monotonic() - begin > options.budget:
            notes.append(f"S = {n} and longer left out: --budget {options.budget:g} is spent")
            break
        names = [r for r in rungs if r not in ("naive", "flash1") or n <= options.slow_up_to]
        profile = {}
        if n in profiles:
            profile = sums_of_rungs(profiled([DRAM, CONFLICTS], "bench", "--backend", options.backend, "--algorithm", ",".join(names),
                                             "--seconds", "0", "--samples", "1", "--cold-cache", problem.format(n)) or [])
        for document in timed(names, n):
            if not head:
                peak = document["peak"]
                head = (f"{document['environment']['device']}, {problem.format('S')}, cold caches; {peak['source']}: "
                        f"{peak['bytes_per_s'] / 1e12:.2f} TB/s, {peak['flops16_per_s'] / 1e12:.0f} TFLOP/s in 16 bits, "
                        f"{peak['flops32_per_s'] / 1e12:.0f} in fp32 (naive)")
                print(head)
                print_row(TITLES)
            for r in document["results"]:
                rung, seen = r["algorithm"], profile.get(r["algorithm"], {})
                if "median_s" not in r:
                    print_row([n, rung, r["verdict"]] + ["-"] * 8)
                    continue
                print_row([n, rung, amount(r["ledger_bytes"], 1e9), limiter(r, document["peak"], rung),
                           amount(r["least_s"], 1e-3), amount(r["median_s"], 1e-3),
                           amount(r["median_s"] / r["least_s"] if r["least_s"] else None, digits=2),
                           amount(r.get("flops_per_s"), 1e12, 1), amount(seen.get(DRAM), 1e9),
                           amount(seen[DRAM] / r["ledger_bytes"] if DRAM in seen else None, digits=2),
                           amount(seen.get(CONFLICTS), digits=0)])
    if options.slow_up_to < lengths[-1]:
        notes.append(f"naive and flash1 beyond S = {options.slow_up_to}: --slow-up-to")


if options.compare:
    differences = compare()
    print(f"{differences} differences")
    wrong |= differences > 0
elif emulated:
    emulated_table()
else:
    device_table()
for note in notes:
    print(note)
sys.exit(1 if wrong else 0)
