#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""gpu.py LIBKILN [--only WORD ...] [--rounds N] [--quick] [...]: Kiln's CUDA backend beside its peers on this machine's GPU.

Kiln, PyTorch's cuDNN attention and its FlashAttention-2, torch.softmax and a device copy take turns in this process; the
L2 cache is flushed before each timed call, times are medians of CUDA events, data are N(0,1). A row is printed only if Kiln's
result passed its check against float64 in this run. Ratios are peer time / Kiln time: above 1 Kiln is faster.
FLOPs: 4·B·H·Sq·Sk·d forward, halved for causal, 2.5 times that backward. Set KILN_BACKEND_PATH to the plug-in's folder.
Sections: softmax, forward, gqa, special (what has no peer, beside the plain shape of the same run), sustained (a second of each,
beside a matrix product), backward, backward_special (GQA, packed, with the forward), overhead. --sections picks.
"""
import argparse
import random
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kiln_ctypes import DETERMINISTIC, WINDOW_BOTTOM_RIGHT, Kiln

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("libkiln")
parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
parser.add_argument("--sections", nargs="*", default=["softmax", "forward", "gqa", "special", "sustained", "backward", "backward_special", "overhead"])
parser.add_argument("--rounds", type=int, default=11)
parser.add_argument("--quick", action="store_true", help="fewer sizes")
parser.add_argument("--rungs", nargs="*", default=[""], help="of attention, such as flash2 mma wgmma; '' is the default choice")
parser.add_argument("--dims", nargs="*", type=int, default=[64, 128, 256], help="head sizes")
parser.add_argument("--lengths", nargs="*", type=int, help="sequence lengths")
parser.add_argument("--types", nargs="*", default=["bfloat16", "float16"])
options = parser.parse_args()
torch.manual_seed(1)
kiln = Kiln(options.libkiln, 0, "cuda")
device = torch.device("cuda")
flush_buffer = torch.empty(256 << 20, dtype=torch.uint8, device=device)
properties = torch.cuda.get_device_properties(0)
print(f"{properties.name}, {properties.multi_processor_count} multiprocessors, PyTorch {torch.__version__}, "
      f"cuDNN {torch.backends.cudnn.version()}")


def wanted(name):
    return not options.only or any(word in name for word in options.only)


def medians(functions, flush=True):
    """Median milliseconds of each function; they take turns."""
    for f in functions:
        f(), f()
    times = [[] for _ in functions]
    for _ in range(options.rounds):
        for i, f in enumerate(functions):
            if flush:
                flush_buffer.fill_(1)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            f()
            end.record()
            times[i].append((begin, end))
    torch.cuda.synchronize()
    return [statistics.median(b.elapsed_time(e) for b, e in t) for t in times]


def reference(q, k, v, causal, left=None, softcap=0):
    """One head in float64: (o, Σ p|v|)."""
    q, k, v = (t.double() for t in (q, k, v))
    s = q @ k.T / q.shape[-1] ** 0.5
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    after = s.shape[1] - s.shape[0]
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(after + 1), float("-inf"))
    if left is not None:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).tril(after - left - 1), float("-inf"))
    p = s.softmax(-1)
    return p @ v, p @ v.abs()


UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def passes(got, want, magnitude, dtype):
    """|error| <= (rounding of P and of fp32 sums)·Σ p|v| + half an ulp of the output type. A NaN fails."""
    bound = (UNIT[dtype] + 3e-5) * magnitude + UNIT[dtype] * want.abs() + 1e-30
    return bool(((got.double() - want).abs() <= bound).all())


# ------------------------------------------------------------------------------------------------ softmax
def softmax_rows():
    print("softmax forward: share of an equal-size device copy, and torch.softmax's time over ours")
    sizes = [1024, 4096, 16384, 65536, 262144, 1048576] if options.quick else \
        [64, 256, 1000, 1001, 1024, 1025, 1040, 1063, 1099, 1100, 2048, 4096, 4097, 8192, 16384, 32768, 65536, 131072,
         262144, 524288, 1048576]
    for dtype in (torch.bfloat16, torch.float32):
        total = (1 << 30) // dtype.itemsize
        for n in sizes:
            name = f"softmax {str(dtype)[6:]} {total // n}x{n}"
            if not wanted(name):
                continue
            kiln.forget()
            x = torch.randn(total // n, n, device=device, dtype=dtype)
            y = torch.full_like(x, float("nan"))
            run, kernel = kiln.softmax(x, y)
            run()
            pick = [0, 1, x.shape[0] // 2, x.shape[0] - 1]
            want = x[pick].double().softmax(-1)
            ok = bool(((y[pick].double() - want).abs() <= (UNIT[dtype] + 3e-6) * want + 1e-30).all())
            ok = ok and not bool(torch.isnan(y).any())
            if not ok:
                print(f"{name:40s} WRONG, not timed ({kernel})")
                continue
            copy = torch.empty_like(x)
            ours, peer, copied = medians([run, lambda: torch.softmax(x, -1), lambda: copy.copy_(x)])
            print(f"{name:40s} {ours:8.3f} ms {2 * x.nbytes / ours / 1e9:7.3f} TB/s  {copied / ours * 100:6.1f} % of copy  "
                  f"{peer / ours:6.2f}x torch  {kernel}", flush=True)
            del x, y, copy


# ------------------------------------------------------------------------------------------------ attention
def peers(q, k, v, causal):
    gqa = q.shape[1] != k.shape[1]

    def with_backend(backend):
        def f():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)
        return f
    return [with_backend(SDPBackend.FLASH_ATTENTION), with_backend(SDPBackend.CUDNN_ATTENTION)]


def compare(name, dtype, b, s, h, h_k, d, causal, rungs):
    """A row: the rungs beside the peers."""
    kiln.forget()
    q, k, v = (torch.randn(b, s, heads, d, device=device, dtype=dtype).transpose(1, 2) for heads in (h, h_k, h_k))
    flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
    runs, labels = [], []
    rows = slice(max(0, s - 2048), s)  # the last rows: they see all keys
    want, magnitude = reference(q[0, -1, rows], k[0, -1], v[0, -1], causal)
    for rung in rungs:
        o = torch.full_like(q, float("nan"))
        try:
            run, kernel = kiln.forward(q, k, v, o, causal=causal, algorithm=rung.encode() if rung else None)
        except RuntimeError as error:
            print(f"{name:32s} {rung}: {error}")
            continue
        run()
        torch.cuda.synchronize()
        if passes(o[0, -1, rows], want, magnitude, dtype) and not bool(torch.isnan(o).any()):
            runs.append(run), labels.append(kernel or rung)
        else:
            worst = ((o[0, -1, rows].double() - want).abs() / magnitude).max().item()
            print(f"{name:32s} {rung or 'auto'} WRONG, not timed ({kernel}), worst error/magnitude {worst:.2e}")
    times = medians(runs + peers(q, k, v, causal))
    fa2, cudnn = times[-2:]
    print(f"{name:32s} FA2 {flops / fa2 / 1e9:5.0f} cuDNN {flops / cudnn / 1e9:5.0f} | " +
          " | ".join(f"{label} {flops / t / 1e9:5.0f} {fa2 / t:5.2f}x {cudnn / t:5.2f}x" for label, t in zip(labels, times)),
          flush=True)


def forward_rows(rungs, dtypes, dims, lengths):
    print("attention forward, B·S = 16K, H·d = 2048: TFLOP/s of each rung, and ratio to FlashAttention-2 and cuDNN")
    for dtype in dtypes:
        for d in dims:
            for s in lengths:
                for causal in (False, True):
                    name = f"forward {str(dtype)[6:]} d{d} s{s} {'causal' if causal else 'full'}"
                    if wanted(name):
                        compare(name, dtype, 16384 // s, s, 2048 // d, 2048 // d, d, causal, rungs)


def gqa_rows(rungs, lengths):
    print("attention forward, 64 heads on 8, d = 128, batch 1, bf16")
    for s in lengths:
        for causal in (False, True):
            name = f"gqa s{s} {'causal' if causal else 'full'}"
            if wanted(name):
                compare(name, torch.bfloat16, 1, s, 64, 8, 128, causal, rungs)


def packed_lengths():
    """64 sequences of drawn lengths, and as many equal ones with the same FLOPs."""
    draw = random.Random(1)
    lengths = [draw.randint(100, 2000) for _ in range(64)]
    same = round((sum(n * n for n in lengths) / 64) ** 0.5)
    return ("packed equal", [same] * 64), ("packed uneven", lengths)


def special_rows():
    """What no peer does or what is about Kiln alone: TFLOP/s of the pairs that count, and the share of a plain shape."""
    print("attention forward, bf16: TFLOP/s of visible pairs, and rate over that of the plain shape named")
    bf16, rates = torch.bfloat16, {}

    def tensors(b, s, h, d, d_v):
        return [torch.randn(b, s, h, n, device=device, dtype=bf16).transpose(1, 2) for n in (d, d, d_v)]

    def row(name, plain, q, k, v, pairs, ref, causal=True, **fields):
        if not wanted("special " + name):
            return
        o = torch.full_like(v, float("nan"))
        run, kernel = kiln.forward(q, k, v, o, causal=causal, **fields)
        run()
        torch.cuda.synchronize()
        got, want, magnitude = ref(o)
        if not passes(got, want, magnitude, bf16) or bool(torch.isnan(o).any()):
            print(f"{name:32s} WRONG, not timed ({kernel}), worst {((got.double() - want).abs() / magnitude).max().item():.2e}")
            return
        (t,) = medians([run])
        rates[name] = 2 * pairs * (q.shape[-1] + v.shape[-1]) / t / 1e9
        beside = f"{rates[name] / rates[plain]:5.2f} of {plain}" if plain in rates else ""
        print(f"{name:32s} {rates[name]:5.0f} {beside}  {kernel}", flush=True)

    def last(q, k, v, **more):
        rows = slice(max(0, q.shape[2] - 2048), None)
        return lambda o: (o[0, -1, rows], *reference(q[0, -1, rows], k[0, -1], v[0, -1], True, **more))

    def whole(b, s, h):
        return b * h * s * (s + 1) / 2
    for d, d_v in ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)):
        b, s, h = 2, 8192, 2048 // d
        q, k, v = tensors(b, s, h, d, d_v)
        plain = {96: "d128", 192: "d128" if d_v == 128 else "d256"}.get(d)
        row(f"d{d}" + ("" if d == d_v else f" dv{d_v}"), plain, q, k, v, whole(b, s, h), last(q, k, v))
    q, k, v = tensors(2, 8192, 16, 128, 128)
    seen = 2 * 16 * (8192 * 1025 - 1024 * 1025 / 2)
    row("window 1024", "d128", q, k, v, seen, last(q, k, v, left=1024), mask=WINDOW_BOTTOM_RIGHT, window_left=1024, window_right=0)
    row("softcap 50", "d128", q, k, v, whole(2, 8192, 16), last(q, k, v, softcap=50), softcap=50.0)
    q, k, v = tensors(1, 16384, 16, 128, 128)
    row("16K", "d128", q, k, v, whole(1, 16384, 16), last(q, k, v))
    grow = k * torch.linspace(1, 300, 16384, device=device).to(bf16)[:, None]
    row("keys growing 300-fold", "16K", q, grow, v, whole(1, 16384, 16), last(q, grow, v))
    odd = k.clone()
    odd[:, :, ::97] *= 30
    row("outliers", "16K", q, odd, v, whole(1, 16384, 16), last(q, odd, v))
    top = torch.sign(v.float()).mul(3.3e38).to(bf16)
    row("values near the maximum", "16K", q, k, top, whole(1, 16384, 16), last(q, k, top))
    q, k, v = tensors(1, 131072, 1, 128, 128)
    row("1 x 1 x 128K", "16K", q, k, v, whole(1, 131072, 1), last(q, k, v))
    for name, ns in packed_lengths():
        starts = torch.tensor([0] + ns, device=device).cumsum(0).to(torch.int32)
        q, k, v = (torch.randn(sum(ns), 16, 128, device=device, dtype=bf16).transpose(0, 1) for _ in range(3))
        past = sum(ns)
        begin = past - ns[-1]

        def ref(o, begin=begin, q=q, k=k, v=v):
            return (o[-1, begin:], *reference(q[-1, begin:], k[-1, begin:], v[-1, begin:], True))
        row(name, "packed equal", q, k, v, 16 * sum(n * (n + 1) / 2 for n in ns), ref, cu_seqlens_q=kiln.tensor(starts),
            cu_seqlens_k=kiln.tensor(starts), max_seqlen_q=max(ns), max_seqlen_k=max(ns))


def sustained_rows(dims):
    """One second of each, one after the other, beside short bursts: long products are bound by power."""
    print("attention forward, S = 16K, bf16, in bursts and for a second: TFLOP/s beside a matrix product of 8192")
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    for d in dims:
        for causal in (False, True):
            name = f"sustained d{d} {'causal' if causal else 'full'}"
            if not wanted(name):
                continue
            q, k, v = (torch.randn(1, 16384, 2048 // d, d, device=device, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
            run, kernel = kiln.forward(q, k, v, torch.empty_like(q), causal=causal)
            flops = 4 * 2048 * 16384**2 * (0.5 if causal else 1)
            functions = [run, peers(q, k, v, causal)[1], lambda: a @ b]
            work = [flops, flops, 2 * 8192**3]
            burst = [w / t / 1e9 for w, t in zip(work, medians(functions))]
            long, clocks = [], []
            for f, w in zip(functions, work):
                torch.cuda.synchronize()
                calls, start, begin, before = 0, time.perf_counter(), torch.cuda.Event(enable_timing=True), None
                begin.record()
                while time.perf_counter() - start < 1:
                    for _ in range(20):
                        f()
                    calls += 20
                    end = torch.cuda.Event(enable_timing=True)
                    end.record()
                    if before:
                        before.synchronize()  # the host runs ahead by 20 calls
                    before = end
                clocks.append(subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"],
                                             capture_output=True, text=True).stdout.split("\n")[0])
                end.synchronize()
                long.append(w * calls / begin.elapsed_time(end) / 1e9)
            print(f"{name:24s} bursts: Kiln {burst[0]:4.0f} cuDNN {burst[1]:4.0f} product {burst[2]:4.0f} "
                  f"({burst[0] / burst[1]:4.2f}x, {burst[0] / burst[2]:4.2f}x); a second: {long[0]:4.0f} {long[1]:4.0f} {long[2]:4.0f} "
                  f"({long[0] / long[1]:4.2f}x, {long[0] / long[2]:4.2f}x)  {kernel}; clock and power: {' | '.join(clocks)}", flush=True)


def gradients_pass(name, kernel, got, want, pick):
    """Of what `pick` takes of each gradient, against that of the exact tensor. Norms only: elements are the test suites' business."""
    errors = [((g[pick].double() - w.grad).norm() / w.grad.norm()).item() for g, w in zip(got, want)]
    whole = not any(bool(torch.isnan(g).any()) for g in got)
    if whole and max(errors) < 1e-2:
        return True
    print(f"{name:32s} WRONG, not timed ({kernel}), errors {errors}, {'no' if whole else 'some'} NaN")
    return False


def backward_row(name, dtype, b, s, h, h_k, d, causal, both=False):
    """Backward beside the peers; both: forward and backward together."""
    if not wanted(name):
        return
    kiln.forget()
    q, k, v, dout = (torch.randn(b, s, n, d, device=device, dtype=dtype).transpose(1, 2) for n in (h, h_k, h_k, h))
    o, lse = torch.empty_like(q), torch.empty(b, h, s, device=device)
    dq, dk, dv = (torch.full_like(t, float("nan")) for t in (q, k, v))
    args = kiln.forward_args(q, k, v, o, lse, causal=causal)
    forward, _ = kiln.call("attention_forward", args)
    forward()
    run, kernel = kiln.backward(args, dout, dq, dk, dv)
    run()
    keys, values = (t[0, -1].double().requires_grad_() for t in (k, v))
    for head in range(h - h // h_k, h):
        query = q[0, head].double().requires_grad_()
        reference(query, keys, values, causal)[0].backward(dout[0, head].double())
    if not gradients_pass(name, kernel, (dq, dk, dv), (query, keys, values), (0, -1)):
        return
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    calls = peers(*leaves, causal)
    outs = [f() for f in calls]

    def peer(call, out):
        return lambda: torch.autograd.grad(call() if both else out, leaves, dout, retain_graph=not both)
    same, rung = kiln.backward(args, dout, dq, dk, dv, flags=DETERMINISTIC)
    ours = [lambda: (forward(), run())] if both else [same] * (rung == kernel) + [run]
    *more, t, fa2, cudnn = medians(ours + [peer(call, out) for call, out in zip(calls, outs)])
    flops = (14 if both else 10) * b * h * s * s * d * (0.5 if causal else 1)
    print(f"{name:32s} FA2 {flops / fa2 / 1e9:5.0f} cuDNN {flops / cudnn / 1e9:5.0f} | {kernel} "
          f"{flops / t / 1e9:5.0f} {fa2 / t:5.2f}x {cudnn / t:5.2f}x" +
          "".join(f" | deterministic {flops / m / 1e9:5.0f} {t / m:5.2f}" for m in more), flush=True)


def backward_rows(dtypes, dims, lengths):
    print("attention backward, B·S = 16K, H·d = 2048: TFLOP/s (all launches), and ratio to FlashAttention-2 and cuDNN; "
          "KILN_FLAG_DETERMINISTIC where it is the same rung, and its share of ours without")
    for dtype in dtypes:
        for d in dims:
            for s in lengths:
                for causal in (False, True):
                    backward_row(f"backward {str(dtype)[6:]} d{d} s{s} {'causal' if causal else 'full'}", dtype, 16384 // s, s,
                                 2048 // d, 2048 // d, d, causal)


def backward_special_rows(lengths):
    print("attention backward, bf16, d = 128, causal: 64 heads on 8, batch 1; forward and backward together; packed sequences")
    for s in lengths:
        backward_row(f"backward gqa s{s} causal", torch.bfloat16, 1, s, 64, 8, 128, True)
    backward_row("forward+backward s8192 causal", torch.bfloat16, 2, 8192, 16, 16, 128, True, both=True)
    rates = []
    for name, ns in packed_lengths():
        if not wanted("backward " + name):
            continue
        kiln.forget()
        total = sum(ns)
        starts = kiln.tensor(torch.tensor([0] + ns, device=device).cumsum(0).to(torch.int32))
        q, k, v, dout = (torch.randn(total, 16, 128, device=device, dtype=torch.bfloat16).transpose(0, 1) for _ in range(4))
        o, lse = torch.empty_like(q), torch.empty(16, total, device=device)
        grads = [torch.full_like(q, float("nan")) for _ in range(3)]
        args = kiln.forward_args(q, k, v, o, lse, causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=max(ns),
                                 max_seqlen_k=max(ns))
        kiln.call("attention_forward", args)[0]()
        run, kernel = kiln.backward(args, dout, *grads)
        run()
        last = slice(total - ns[-1], total)
        exact = [t[-1, last].double().requires_grad_() for t in (q, k, v)]
        reference(*exact, True)[0].backward(dout[-1, last].double())
        if not gradients_pass(f"backward {name}", kernel, grads, exact, (-1, last)):
            continue
        (t,) = medians([run])
        rates.append(10 * 16 * 128 * sum(n * (n + 1) / 2 for n in ns) / t / 1e9)
        print(f"backward {name:23s} {rates[-1]:5.0f} {rates[-1] / rates[0]:5.2f} of the first  {kernel}", flush=True)


def overhead():
    """Host time of a tiny call beside that of an empty launch: the GPU is kept busy meanwhile, so that calls only queue up."""
    q = torch.randn(1, 1, 16, 64, device=device, dtype=torch.float16)
    o = torch.empty_like(q)
    run, kernel = kiln.forward(q, q, q, o)
    x = torch.zeros(1, device=device)
    for name, f in ((kernel, run), ("an empty kernel of PyTorch", lambda: torch.cuda._sleep(0)), ("x.zero_()", lambda: x.zero_())):
        f()
        best = 1e9
        for _ in range(10):
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)  # 10 ms
            begin = time.perf_counter()
            for _ in range(100):
                f()
            best = min(best, (time.perf_counter() - begin) / 100)
        torch.cuda.synchronize()
        print(f"host time of a call: {best * 1e6:6.2f} us  {name}")


for section in options.sections:
    if section == "softmax":
        softmax_rows()
    elif section == "forward":
        lengths = options.lengths or ([2048, 16384] if options.quick else [512, 1024, 2048, 4096, 8192, 16384])
        forward_rows(options.rungs, [getattr(torch, t) for t in options.types], options.dims, lengths)
    elif section == "gqa":
        gqa_rows(options.rungs, options.lengths or ([2048, 16384] if options.quick else [512, 1024, 2048, 4096, 8192, 16384, 32768]))
    elif section == "special":
        special_rows()
    elif section == "sustained":
        sustained_rows(options.dims)
    elif section == "backward":
        lengths = options.lengths or ([2048, 16384] if options.quick else [512, 1024, 2048, 4096, 8192, 16384])
        backward_rows([getattr(torch, t) for t in options.types], options.dims, lengths)
    elif section == "backward_special":
        backward_special_rows(options.lengths or ([2048, 16384] if options.quick else [2048, 4096, 8192, 16384, 32768]))
    elif section == "overhead":
        overhead()
    else:
        sys.exit(f"no section {section}")
sys.stdout.flush()
