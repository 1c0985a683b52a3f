#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""cpu.py LIBKILN [--threads N] [--only WORD ...] [--rounds N]: Kiln beside its peers on this machine's CPU.

Each row is one problem: Kiln and every peer that is installed (PyTorch's scaled_dot_product_attention and softmax; ONNX
Runtime's fused attention) take turns in this process, the best of the rounds counts, and a row is printed only if Kiln's
result passed its check against float64 in this run. Ratios are peer time / Kiln time: above 1 Kiln is faster.
Peers that are absent are named and skipped. FLOPs: 4·B·H·Sq·Sk·d forward, halved for causal, 2.5 times that backward.
"""
import argparse
import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two OpenMP runtimes share the cores: the idle one must not spin
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("libkiln")
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
parser.add_argument("--rounds", type=int, default=9)
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("cpu.py needs PyTorch, both as a peer and for the tensors: it is not installed")
from kiln_ctypes import Kiln

torch.set_num_threads(options.threads)
torch.manual_seed(1)
kiln = Kiln(options.libkiln, options.threads)
print(f"PyTorch {torch.__version__}, {options.threads} threads; ONNX Runtime: ", end="")
try:
    import onnxruntime
    import onnx
    print(onnxruntime.__version__)
except ImportError:
    onnxruntime = None
    print("not installed, skipped")


def best(functions, flush):
    """Best seconds of each function; they take turns, and the caches are cold where `flush` asks for it."""
    times = [float("inf")] * len(functions)
    for f in functions:
        f()
    for _ in range(options.rounds):
        for i, f in enumerate(functions):
            if flush is not None:
                flush.add_(1)
            time.sleep(0.002)
            begin = time.perf_counter()
            f()
            times[i] = min(times[i], time.perf_counter() - begin)
    return times


def reference(q, k, v, causal):
    """One head in float64: (o, Σ p|v|)."""
    q, k, v = (t.double() for t in (q, k, v))
    s = q @ k.T / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(s.shape, dtype=torch.bool).triu(1 + s.shape[1] - s.shape[0])
        s = s.masked_fill(hidden, float("-inf"))
    p = s.softmax(-1)
    return p @ v, p @ v.abs()


def passes(got, want, magnitude, dtype, p_unit):
    """|error| <= (rounding of P and fp32 sums)·Σ p|v| + half an ulp of the output type. A NaN fails."""
    half_ulp = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    bound = (p_unit + 3e-5) * magnitude + half_ulp * want.abs() + 1e-30
    return bool(((got.double() - want).abs() <= bound).all())


def onnx_attention(q, k, v, causal):
    """A function that runs ONNX Runtime's MultiHeadAttention, or None. (batch, seqlen, heads·d) in its layout."""
    if onnxruntime is None or q.dtype != torch.float32 or q.shape[1] != k.shape[1]:
        return None
    b, h, s, d = q.shape
    node = onnx.helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=h,
                                 unidirectional=int(causal))
    io = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [b, None, h * d]) for n in "qkvo"]
    graph = onnx.helper.make_graph([node], "attention", io[:3], io[3:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17),
                                                         onnx.helper.make_opsetid("com.microsoft", 1)], ir_version=9)
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), session_options, ["CPUExecutionProvider"])
    feed = {n: t.transpose(1, 2).reshape(b, -1, h * d).contiguous().numpy() for n, t in zip("qkv", (q, k, v))}
    return lambda: session.run(None, feed)


def row(name, seconds, flops, bytes_, kernel, ok):
    if not ok:
        print(f"{name:34s} WRONG, not timed ({kernel})")
        return False
    ours, torch_time = seconds[0], seconds[1]
    ort = f"{seconds[2] / ours:6.2f}x" if len(seconds) > 2 else "      -"
    rate = f"{flops / ours / 1e9:8.0f} GF/s" if flops else f"{bytes_ / ours / 1e9:8.1f} GB/s"
    print(f"{name:34s} {ours * 1e3:9.3f} ms {rate} {torch_time / ours:7.2f}x {ort}  {kernel}", flush=True)
    return True


def make(dtype, b, h, s, d):
    return torch.randn(b, h, s, d).to(dtype)


def attention_row(dtype, h, hk, sq, sk, d, causal, flush=None):
    name = f"forward {str(dtype)[6:]} h{h}/{hk} {sq}x{sk} d{d} {'causal' if causal else 'full'}"
    q, k, v = make(dtype, 1, h, sq, d), make(dtype, 1, hk, sk, d), make(dtype, 1, hk, sk, d)
    o = torch.full_like(q, float("nan"))
    run, kernel = kiln.forward(q, k, v, o, causal=causal)
    run()
    ok = all(passes(o[0, x], *reference(q[0, x], k[0, x * hk // h], v[0, x * hk // h], causal), dtype,
                    2.0**-8 if "amx" in kernel else 0) for x in (0, h - 1))
    # The peers' causal is top-left; for one query that must see every key it is left out.
    functions = [run, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal and sq > 1, enable_gqa=h != hk)]
    ort = onnx_attention(q, k, v, causal) if sq == sk else None
    functions += [ort] if ort else []
    flops = 4 * h * sq * sk * d * (0.5 if causal and sq == sk else 1)
    bytes_ = 2 * hk * sk * d * k.element_size()
    with torch.no_grad():
        return row(name, best(functions, flush) if ok else None, flops if sq > 8 else 0, bytes_, kernel, ok)


def backward_row(dtype, h, s, d, causal):
    name = f"backward {str(dtype)[6:]} h{h} {s}x{s} d{d} {'causal' if causal else 'full'}"
    q, k, v, dout = (make(dtype, 1, h, s, d) for _ in range(4))
    o, lse = torch.empty_like(q), torch.empty(1, h, s)
    dq, dk, dv = (torch.full_like(q, float("nan")) for _ in range(3))
    args = kiln.forward_args(q, k, v, o, lse, causal=causal)
    kiln.call("attention_forward", args)[0]()
    run, kernel = kiln.backward(args, dout, dq, dk, dv)
    run()
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    exact = [t[0, 0].double().requires_grad_() for t in (q, k, v)]
    reference(*exact, causal)[0].backward(dout[0, 0].double())
    # Norms only: the per-element bound is the test suites' business.
    limit = 3e-5 if dtype == torch.float32 else 2e-2
    ok = all((got[0, 0].double() - want.grad).norm() <= limit * want.grad.norm()
             for got, want in zip((dq, dk, dv), exact))

    def peer():
        torch.autograd.grad(out, leaves, dout, retain_graph=True)

    return row(name, best([run, peer], None) if ok else None, 10 * h * s * s * d * (0.5 if causal else 1), 0, kernel, ok)


def softmax_row(dtype, rows, n):
    x = torch.randn(rows, n).to(dtype)
    y = torch.full_like(x, float("nan"))
    run, kernel = kiln.softmax(x, y)
    run()
    want = x[:4].double().softmax(-1)
    theirs = torch.empty_like(x)
    ok = passes(y[:4], want, want, dtype, 0)
    return row(f"softmax {str(dtype)[6:]} {rows}x{n}", best([run, lambda: torch.softmax(x, -1, out=theirs)], None) if ok else None, 0,
               2 * x.numel() * x.element_size(), kernel, ok)


print(f"{'problem':34s} {'Kiln':>12s} {'rate':>13s} {'PyTorch':>8s} {'ORT':>7s}  kernel")
heads = max(2, min(32, options.threads * 2))
cells = []
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for d in (64, 128):
        for causal in (False, True):
            for s in (512, 4096):
                cells.append((f"forward {dtype} {s}", attention_row, (dtype, heads, heads, s, s, d, causal)))
            cells.append((f"backward {dtype}", backward_row, (dtype, heads, 2048, d, causal)))
for dtype in (torch.float32, torch.bfloat16):
    for hk in (32, 8):
        for sk in (8192, 32768):
            cells.append((f"decode {dtype}", attention_row, (dtype, 32, hk, 1, sk, 128, False, torch.zeros(64 << 20))))
for s in (16, 64, 256):
    cells.append(("short", attention_row, (torch.float32, 2, 2, s, s, 64, False)))
for dtype in (torch.float32, torch.bfloat16):
    for n in (64, 1000, 1024, 4096, 32768, 1 << 20):
        cells.append((f"softmax {dtype}", softmax_row, (dtype, (1 << 28) // n // dtype.itemsize, n)))
wanted = [(f, a) for name, f, a in cells if not options.only or any(word in name for word in options.only)]
sys.exit(0 if all([f(*a) for f, a in wanted]) else 1)
