#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model, not a measurement: how busy the matrix unit of a CDNA device is in the hot loop of a kernel.

    model.py --arch gfx942 --kernel attention_forward_mfma_f16_128 code-object.co [--listing]

Reads the listing of llvm-objdump and the notes of llvm-readelf (programs by --objdump, --readelf). The hot loop is the innermost
loop with most MFMA instructions; branches in it that skip what has no MFMA are taken (no tile at an edge, no
rescaling). Two answers:

  sums      cycles that a SIMD's units need for the waves of one step: matrix unit, vector unit (with the exponentials and the
            issue of MFMA), exponentials alone, LDS and global memory of the whole compute unit. The largest is a bound.
  schedule  the waves of a SIMD issue the loop's instructions in order, as the units are free, the registers are there and
            s_waitcnt has what it waits for. Waves of different blocks are not in step; those of a block meet at barriers, for
            which BARRIER stands (the four SIMDs are taken to be alike).

Rates are published ones (CDNA ISA guides, AMD's matrix calculator); latencies are round figures of microbenchmarks. What the
model does not know: clocks under load, instruction fetch, the power limit, the LDS's order of service, other blocks' caches.
"""
import argparse
import re
import subprocess
import sys

# name, compute units, MHz (sustained where one is published, else the peak, marked), TB/s of its memory
DEVICES = {
    "gfx90a": ("MI250X", 220, 1700, "peak clock", 3.2),
    "gfx942": ("MI300X", 304, 1207, "clock of AMD's max-achievable bf16 product", 5.3),
    "gfx950": ("MI355X", 256, 2400, "peak clock", 8.0),
}
MFMA = {  # cycles in the matrix unit
    "gfx90a": {"32x32x8": 64, "16x16x16": 32, "32x32x2": 64, "16x16x4": 32},
    "gfx942": {"32x32x8": 32, "16x16x16": 16},
    "gfx950": {"32x32x8": 32, "16x16x16": 16, "32x32x16": 32, "16x16x32": 16},
}
EXP = {"gfx90a": 16, "gfx942": 16, "gfx950": 8}  # a quarter of the rate; gfx950: half
LDS_BYTES = {"gfx90a": 128, "gfx942": 128, "gfx950": 256}  # a clock of a compute unit: 32 banks; gfx950 64 for wide reads
LDS_LATENCY = 128  # cycles to the first result
L2_BYTES, L2_LATENCY = 64, 700
OPTIONS = argparse.Namespace(lds_bytes=None)
MFMA_TO_VALU, BARRIER, SIMDS = 8, 24, 4
PACKED = re.compile(r"v_pk_(fma|mul|add)_f32")  # does not run beside MFMA
EXPONENTIAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_")


class Instruction:
    def __init__(self, address, text):
        self.address = address
        self.name, _, self.operands = text.partition(" ")
        self.name = self.name.replace("_e32", "").replace("_e64", "")
        self.target = None
        registers = [spread(x) for x in split(self.operands)]
        writes = 0 if self.name.startswith(("buffer_store", "global_store", "ds_write", "s_cmp", "s_cbranch", "s_wait")) else 1
        if self.name.startswith(("v_cmp", "v_add_co", "v_addc_co")) and self.operands.startswith("vcc"):
            registers[0] = {"vcc"}
        self.writes = set().union(*registers[:writes]) if writes else set()
        self.reads = set().union(*registers[writes:]) if len(registers) > writes else set()
        if re.match(r"s_cbranch_vcc", self.name):
            self.reads = {"vcc"}
        if self.name.startswith("v_permlane32_swap") or self.name.startswith("v_permlane16_swap"):
            self.writes = self.reads = set().union(*registers)

    @property
    def kind(self):
        n = self.name
        if n.startswith("v_mfma"):
            return "mfma"
        if EXPONENTIAL.match(n):
            return "exp"
        if n.startswith("v_"):
            return "valu"
        if n.startswith("ds_"):
            return "lds"
        if n.startswith(("buffer_", "global_", "flat_", "scratch_")):
            return "memory"
        return "scalar"

    def bytes(self):
        m = re.search(r"_b(\d+)$", self.name.replace("_tr_b16", ""))
        if "_tr_b16" in self.name:
            return 512
        if m:
            return int(m.group(1)) // 8 * 64
        m = re.search(r"dwordx(\d)", self.name)
        return (int(m.group(1)) if m else 1) * 256


def split(text):
    return [x for x in re.split(r",\s*(?![^\[]*\])", text.strip()) if x]


def spread(text):
    """The registers of an operand: v[4:7] -> v4 v5 v6 v7."""
    out = set()
    for kind, a, b in re.findall(r"\b([vas])\[(\d+):(\d+)\]", text):
        out |= {f"{kind}{i}" for i in range(int(a), int(b) + 1)}
    out |= set(re.findall(r"\b[vas]\d+\b", re.sub(r"\[[^\]]*\]", "", text)))
    if re.search(r"\bvcc", text):
        out.add("vcc")
    return out


def parse(listing, kernel):
    code, inside = [], False
    for line in listing.splitlines():
        if re.match(r"[0-9a-f]+ <", line):
            inside = line.rstrip().endswith(f"<{kernel}>:")
            continue
        m = re.match(r"\s+(\S.*?)\s*//\s*([0-9A-F]+):", line) if inside else None
        if m:
            i = Instruction(int(m.group(2), 16), m.group(1).strip())
            t = re.search(r"<[^>]*\+0x([0-9a-f]+)>", line)
            if t and i.name.startswith(("s_cbranch", "s_branch")):
                i.target = int(t.group(1), 16)
            code.append(i)
    if not code:
        sys.exit(f"no kernel {kernel} in the listing")
    base = code[0].address
    at = {i.address - base: n for n, i in enumerate(code)}
    for i in code:
        i.target = at.get(i.target) if i.target is not None else None
    return code


def hot_loop(code):
    """First and last instruction of the innermost loop with most MFMA."""
    loops = [(i.target, n) for n, i in enumerate(code) if i.target is not None and i.target <= n]
    count = lambda a, b: sum(i.kind == "mfma" for i in code[a:b + 1])
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] and count(*y) >= 8 for y in loops)]
    return max(inner, key=lambda x: (count(*x), x[0] - x[1]))


def trace(code, first, last):
    """The instructions of a round, with rare blocks skipped: until the walk is back at the first. It may leave the loop as it
    lies in the listing, where a part of the body stands behind the branch back."""
    out, n = [], first
    while not out or n != first:
        i = code[n]
        out.append(i)
        skipped = code[n + 1:i.target] if i.target is not None and i.target > n else []
        away = any(x.name == "s_branch" and x.target is not None and x.target > last for x in skipped)
        if i.target is not None and i.name.startswith("s_branch"):
            n = i.target
        elif skipped and (i.target <= last or n > last or away) and not any(x.kind == "mfma" for x in skipped):
            n = i.target
        elif i.target is not None and i.target <= first:
            n = i.target
        else:
            n += 1
        if len(out) > 20000 or n >= len(code):
            sys.exit("no round of the loop found")
    return out


def mfma_cycles(i, arch):
    m = re.search(r"_(\d+x\d+x\d+)", i.name)
    return MFMA[arch][m.group(1)]


def shared(amount, i):
    """Cycles of a unit of the compute unit, for the waves of all its SIMDs. Waves without rows read no operands."""
    working = OPTIONS.working or OPTIONS.simds
    return amount * (working if i.name.startswith("ds_read") else OPTIONS.simds)


def sums(code, arch, waves):
    unit = {"matrix unit": 0, "vector unit": 0, "exponentials": 0, "LDS": 0, "global memory": 0}
    for i in code:
        if i.kind == "mfma":
            unit["matrix unit"] += mfma_cycles(i, arch)
            unit["vector unit"] += 4
        elif i.kind == "exp":
            unit["vector unit"] += EXP[arch]
            unit["exponentials"] += EXP[arch]
        elif i.kind == "valu":
            unit["vector unit"] += 4
        elif i.kind == "lds":
            unit["LDS"] += shared(i.bytes() / lds_bytes(arch), i)
        elif i.kind == "memory":
            unit["global memory"] += shared(i.bytes() / L2_BYTES, i)
    return {k: v * waves for k, v in unit.items()}


def lds_bytes(arch):
    return OPTIONS.lds_bytes or LDS_BYTES[arch]


class Wave:
    def __init__(self, start):
        self.at, self.round, self.free = 0, 0, start
        self.ready = {}  # register -> (cycle, by whom)
        self.lds, self.memory = [], []  # when what is on its way will be there
        self.began, self.why = [], {}


def schedule(code, arch, waves, rounds=16):
    """Share of the time in which the matrix unit works, and cycles of a round of all waves; what a wave waits for."""
    unit = {"valu": 0, "matrix": 0, "lds": 0, "memory": 0}
    busy = []
    team = [Wave(w * 600) for w in range(waves)]
    while all(w.round < rounds for w in team):
        # The wave that may issue first; if several may, the one that has waited longest.
        best, when, why = None, None, None
        for w in team:
            if w.round >= rounds:
                continue
            i = code[w.at]
            t, reason = w.free, "issue"
            for r in i.reads | i.writes:
                if r in w.ready:
                    c, by = w.ready[r]
                    if by == "mfma" and i.kind == "mfma" and r in i.writes:
                        c -= MFMA_TO_VALU  # the accumulator is handed on inside the unit
                    if c > t:
                        t, reason = c, "result of " + by
            if i.kind in ("mfma", "exp", "valu") and unit["valu"] > t:
                t, reason = unit["valu"], "vector unit"
            if (i.kind == "mfma" or PACKED.match(i.name)) and unit["matrix"] > t:
                t, reason = unit["matrix"], "matrix unit"
            if i.name == "s_waitcnt":
                for counter, queue in (("lgkmcnt", w.lds), ("vmcnt", w.memory)):
                    m = re.search(counter + r"\((\d+)\)", i.operands)
                    if m and len(queue) > int(m.group(1)):
                        c = queue[len(queue) - 1 - int(m.group(1))]
                        if c > t:
                            t, reason = c, "LDS" if counter == "lgkmcnt" else "global memory"
            if best is None or t < when or (t == when and w.free < best.free):
                best, when, why = w, t, reason
        w, i, t = best, code[best.at], when
        if why != "issue":
            w.why[why] = w.why.get(why, 0) + t - w.free
        if w.at == 0:
            w.began.append(t)
        w.free = t + 4
        if i.kind == "mfma":
            c = mfma_cycles(i, arch)
            unit["valu"], unit["matrix"] = t + 4, t + c
            busy.append((t, t + c))
            for r in i.writes:
                w.ready[r] = (t + c + MFMA_TO_VALU, "mfma")
        elif i.kind in ("exp", "valu"):
            c = EXP[arch] if i.kind == "exp" else 4
            unit["valu"] = t + c
            for r in i.writes:
                w.ready[r] = (t + c + (4 if i.kind == "exp" else 0), "valu")
        elif i.kind == "lds":
            start = max(t, unit["lds"])
            unit["lds"] = start + shared(i.bytes() / lds_bytes(arch), i)
            w.lds.append(unit["lds"] + LDS_LATENCY - shared(i.bytes() / lds_bytes(arch), i))
        elif i.kind == "memory":
            start = max(t, unit["memory"])
            unit["memory"] = start + shared(i.bytes() / L2_BYTES, i)
            w.memory.append(unit["memory"] + L2_LATENCY)
        elif i.name == "s_nop":
            w.free = t + 4 * (int(i.operands or "0", 0) + 1)
        elif i.name == "s_barrier":
            w.free = t + BARRIER
        w.lds, w.memory = [x for x in w.lds if x > t], [x for x in w.memory if x > t]
        w.at += 1
        if w.at == len(code):
            w.at, w.round = 0, w.round + 1
    begin, end = min(w.began[rounds // 4] for w in team), min(w.free for w in team if w.round == rounds)
    work = sum(max(0, min(b, end) - max(a, begin)) for a, b in busy)
    why = {}
    for w in team:
        for k, v in w.why.items():
            why[k] = why.get(k, 0) + v / sum(x.round for x in team)
    return work / (end - begin), why


def notes_of(text, kernel):
    part = [x for x in re.split(r"\n  - ", text) if re.search(rf"\.name:\s+{kernel}\n", x)]
    if not part:
        sys.exit(f"no kernel {kernel} in the notes")
    get = lambda key: int(re.search(rf"\.{key}:\s+(\d+)", part[0]).group(1))
    return {k: get(k) for k in ("vgpr_count", "agpr_count", "vgpr_spill_count", "sgpr_spill_count", "group_segment_fixed_size",
                                "private_segment_fixed_size", "max_flat_workgroup_size")}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("object")
    p.add_argument("--arch", choices=sorted(DEVICES), required=True)
    p.add_argument("--kernel", required=True)
    p.add_argument("--objdump", default="llvm-objdump-22")
    p.add_argument("--readelf", default="llvm-readelf-22")
    p.add_argument("--lds-bytes", type=int, help="a clock of a compute unit, instead of the published figure")
    p.add_argument("--blocks", type=int, help="of a compute unit, where a call has too few to fill it")
    p.add_argument("--working", type=int, help="SIMDs whose waves have rows, where a call has few: the others only load")
    p.add_argument("--listing", action="store_true", help="print the round that is modelled")
    global OPTIONS
    OPTIONS = a = p.parse_args()
    run = lambda *c: subprocess.run(c, check=True, capture_output=True, text=True).stdout
    code = parse(run(a.objdump, "-d", f"--mcpu={a.arch}", a.object), a.kernel)
    notes = notes_of(run(a.readelf, "--notes", a.object), a.kernel)
    lds = 160 * 1024 if a.arch == "gfx950" else 64 * 1024
    per_block = notes["max_flat_workgroup_size"] // 64
    registers = (notes["vgpr_count"] + 7) // 8 * 8
    blocks = min(512 // registers * SIMDS // per_block, lds // notes["group_segment_fixed_size"], 8 * SIMDS // per_block)
    blocks = min(blocks, a.blocks or blocks)
    waves = max(1, blocks * per_block // SIMDS)
    OPTIONS.simds = min(SIMDS, blocks * per_block)  # that have waves
    round_ = trace(code, *hot_loop(code))
    if a.listing:
        for i in round_:
            print(f"{i.address:6x} {i.name} {i.operands}")
    count = {k: sum(i.kind == k for i in round_) for k in ("mfma", "exp", "valu", "lds", "memory", "scalar")}
    unit = sums(round_, a.arch, waves)
    share, why = schedule(round_, a.arch, waves)
    name, units, mhz, clock, memory = DEVICES[a.arch]
    peak = units * OPTIONS.simds * (256 if a.arch == "gfx90a" else 512 if a.arch == "gfx942" else 1024) * mhz * 1e6 / 1e12
    print(f"{a.kernel} on {a.arch} ({name}): MODEL, not measured")
    print("  " + ", ".join(f"{k} {v}" for k, v in notes.items()))
    print(f"  {blocks} blocks, {waves} waves on {OPTIONS.simds} SIMDs each; a round: " +
          ", ".join(f"{v} {k}" for k, v in count.items()))
    print("  cycles of a round of all waves of a SIMD: " + ", ".join(f"{k} {v:.0f}" for k, v in unit.items()))
    limiter = max(unit, key=lambda k: unit[k] if k != "exponentials" else 0)
    print(f"  bound by sums: {unit['matrix unit'] / max(unit.values()):.0%} busy, limiter {limiter}")
    cycles = unit["matrix unit"] / share
    print(f"  schedule: {share:.0%} busy, {cycles:.0f} cycles a round of all waves; a wave waits for " +
          ", ".join(f"{k} {v:.0f}" for k, v in sorted(why.items(), key=lambda x: -x[1])))
    print(f"  {share * peak:.0f} of {peak:.0f} TFLOP/s at {mhz} MHz ({clock})")
    print(f"  {unit['global memory'] * L2_BYTES / cycles:.1f} bytes a clock of a compute unit are loaded; "
          f"the device's memory gives {memory * 1e6 / units / mhz:.1f}")


main()
