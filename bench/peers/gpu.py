#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""gpu.py LIBKILN [--only WORD ...] [--rounds N] [--quick] [...]: Kiln's CUDA backend beside its peers on this machine's GPU.

Kiln, PyTorch's cuDNN attention and its FlashAttention-2, torch.softmax and a device copy take turns in this process; the
L2 cache is flushed before each timed call, times are medians of CUDA events, data are N(0,1). A row is printed only if Kiln's
result passed its check against float64 in this run. Ratios are peer time / Kiln time: above 1 Kiln is faster.
FLOPs: 4·B·H·Sq·Sk·d forward, halved for causal, 2.5 times that backward. Set KILN_BACKEND_PATH to the plug-in's folder.
"""
import argparse
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kiln_ctypes import DETERMINISTIC, Kiln

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("libkiln")
parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
parser.add_argument("--rounds", type=int, default=11)
parser.add_argument("--quick", action="store_true", help="fewer sizes")
parser.add_argument("--rungs", nargs="*", default=["", "flash2", "mma", "wgmma"], help="of attention; '' is the default choice")
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


def reference(q, k, v, causal):
    """One head in float64: (o, Σ p|v|)."""
    q, k, v = (t.double() for t in (q, k, v))
    s = q @ k.T / q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool, device=s.device).triu(1 + s.shape[1] - s.shape[0]), float("-inf"))
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


def forward_rows(rungs, dtypes, dims, lengths):
    print("attention forward, B·S = 16K, H·d = 2048: TFLOP/s of each rung, and ratio to FlashAttention-2 and cuDNN")
    for dtype in dtypes:
        for d in dims:
            for s in lengths:
                for causal in (False, True):
                    name = f"forward {str(dtype)[6:]} d{d} s{s} {'causal' if causal else 'full'}"
                    if not wanted(name):
                        continue
                    b, h = 16384 // s, 2048 // d
                    q, k, v = (torch.randn(b, s, h, d, device=device, dtype=dtype).transpose(1, 2) for _ in range(3))
                    flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
                    runs, labels = [], []
                    want, magnitude = reference(q[0, -1], k[0, -1], v[0, -1], causal)
                    for rung in rungs:
                        o = torch.full_like(q, float("nan"))
                        try:
                            run, kernel = kiln.forward(q, k, v, o, causal=causal, algorithm=rung.encode() if rung else None)
                        except RuntimeError as error:
                            print(f"{name:32s} {rung}: {error}")
                            continue
                        run()
                        torch.cuda.synchronize()
                        if passes(o[0, -1], want, magnitude, dtype) and not bool(torch.isnan(o).any()):
                            runs.append(run), labels.append(kernel or rung)
                        else:
                            worst = ((o[0, -1].double() - want).abs() / magnitude).max().item()
                            print(f"{name:32s} {rung or 'auto'} WRONG, not timed ({kernel}), worst error/magnitude {worst:.2e}")
                    times = medians(runs + peers(q, k, v, causal))
                    fa2, cudnn = times[-2:]
                    print(f"{name:32s} FA2 {flops / fa2 / 1e9:5.0f} cuDNN {flops / cudnn / 1e9:5.0f} | " +
                          " | ".join(f"{label} {flops / t / 1e9:5.0f} {fa2 / t:5.2f}x {cudnn / t:5.2f}x"
                                     for label, t in zip(labels, times)), flush=True)


def backward_rows(dtypes, dims, lengths):
    print("attention backward, B·S = 16K, H·d = 2048: TFLOP/s (all launches), and ratio to FlashAttention-2 and cuDNN; "
          "KILN_FLAG_DETERMINISTIC, and its share of ours without")
    for dtype in dtypes:
        for d in dims:
            for s in lengths:
                for causal in (False, True):
                    name = f"backward {str(dtype)[6:]} d{d} s{s} {'causal' if causal else 'full'}"
                    if not wanted(name):
                        continue
                    b, h = 16384 // s, 2048 // d
                    q, k, v, dout = (torch.randn(b, s, h, d, device=device, dtype=dtype).transpose(1, 2) for _ in range(4))
                    o, lse = torch.empty_like(q), torch.empty(b, h, s, device=device)
                    dq, dk, dv = (torch.full_like(q, float("nan")) for _ in range(3))
                    args = kiln.forward_args(q, k, v, o, lse, causal=causal)
                    kiln.call("attention_forward", args)[0]()
                    run, kernel = kiln.backward(args, dout, dq, dk, dv)
                    run()
                    exact = [t[0, -1].double().requires_grad_() for t in (q, k, v)]
                    reference(*exact, causal)[0].backward(dout[0, -1].double())
                    errors = [((got[0, -1].double() - want.grad).norm() / want.grad.norm()).item()
                              for got, want in zip((dq, dk, dv), exact)]
                    whole = not any(bool(torch.isnan(t).any()) for t in (dq, dk, dv))
                    if not whole or not max(errors) < 1e-2:  # norms only: elements are the test suites' business
                        print(f"{name:32s} WRONG, not timed ({kernel}), errors {errors}, {'no' if whole else 'some'} NaN")
                        continue
                    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
                    outs = [f() for f in peers(*leaves, causal)]

                    def peer(out):
                        return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)
                    same, same_kernel = kiln.backward(args, dout, dq, dk, dv, flags=DETERMINISTIC)
                    ours, ordered, fa2, cudnn = medians([run, same] + [peer(out) for out in outs])
                    flops = 10 * b * h * s * s * d * (0.5 if causal else 1)
                    print(f"{name:32s} FA2 {flops / fa2 / 1e9:5.0f} cuDNN {flops / cudnn / 1e9:5.0f} | {kernel} "
                          f"{flops / ours / 1e9:5.0f} {fa2 / ours:5.2f}x {cudnn / ours:5.2f}x | {same_kernel} "
                          f"{flops / ordered / 1e9:5.0f} {ours / ordered:5.2f}", flush=True)


def overhead():
    """Host time of a tiny call beyond an empty launch, by the time of many calls in a row."""
    import time
    q = torch.randn(1, 1, 16, 64, device=device, dtype=torch.float16)
    o = torch.empty_like(q)
    run, kernel = kiln.forward(q, q, q, o)
    x = torch.zeros(1, device=device)
    empty = torch.cuda._sleep
    for name, f in ((kernel, run), ("an empty kernel of PyTorch", lambda: empty(0)), ("x.zero_()", lambda: x.zero_())):
        f()
        best = 1e9
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                f()
            best = min(best, (time.perf_counter() - begin) / 200)
            torch.cuda.synchronize()
        print(f"host time of a call: {best * 1e6:6.2f} us  {name}")


if wanted("softmax"):
    softmax_rows()
if wanted("forward"):
    lengths = options.lengths or ([2048, 16384] if options.quick else [512, 1024, 2048, 4096, 8192, 16384])
    forward_rows(options.rungs, [getattr(torch, t) for t in options.types], options.dims, lengths)
if wanted("backward"):
    backward_rows([getattr(torch, t) for t in options.types], options.dims, options.lengths or [2048, 16384])
if wanted("overhead"):
    overhead()
sys.stdout.flush()
