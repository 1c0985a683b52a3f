#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""attention.py LIBRARY [python|numpy]: attention from Python by ctypes, no binding needed.

python: lists in array.array. numpy: ndarrays, and ndarrays through DLPack: a DLTensor * *is* a kiln_tensor *.
Both compare with the definition, written out in Python. This file is an example as much as a test.
"""
import array
import ctypes as c
import math
import random
import sys


class Device(c.Structure):
    _fields_ = [("device_type", c.c_int32), ("device_id", c.c_int32)]


class Dtype(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device", Device), ("ndim", c.c_int32), ("dtype", Dtype),
                ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class ContextOptions(c.Structure):
    """The first fields of kiln_context_options. struct_size tells the library where we end; the rest is its default."""
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_char_p)]


class ForwardArgs(c.Structure):
    """The first fields of kiln_attention_forward_args, up to the mask, likewise."""
    _fields_ = ([("struct_size", c.c_size_t)] +
                [(name, c.c_void_p) for name in ("q", "k", "v", "o", "softmax_lse", "q2", "k2", "q_descale", "k_descale",
                                                 "v_descale")] +
                [("softmax_scale", c.c_float), ("softcap", c.c_float)] +
                [(name, c.c_void_p) for name in ("bias", "alibi_slopes", "sinks")] +
                [("mask", c.c_int32), ("num_splits", c.c_int32)])


CPU = Device(1, 0)
FLOAT32 = Dtype(2, 32, 1)
CAUSAL_BOTTOM_RIGHT = 2
kiln = c.CDLL(sys.argv[1])
kiln.kiln_last_error.restype = c.c_char_p


def check(status):
    if status != 0:
        sys.exit(f"status {status}: {kiln.kiln_last_error().decode()}")


def attention(q, k, v, o, mask):
    """q, k, v, o: pointers to kiln_tensor (or DLTensor)."""
    context, size, workspace = c.c_void_p(), c.c_size_t(), c.c_void_p()
    options = ContextOptions(c.sizeof(ContextOptions), b"cpu")
    check(kiln.kiln_context_create(c.byref(context), c.byref(options)))
    args = ForwardArgs(struct_size=c.sizeof(ForwardArgs), mask=mask)
    args.q, args.k, args.v, args.o = (c.cast(p, c.c_void_p) for p in (q, k, v, o))
    check(kiln.kiln_attention_forward_workspace(context, c.byref(args), c.byref(size)))
    check(kiln.kiln_malloc(context, size, c.byref(workspace)))
    check(kiln.kiln_attention_forward(context, c.byref(args), workspace, size, None))
    check(kiln.kiln_free(context, workspace))
    kiln.kiln_context_destroy(context)


def expected(q, k, v, heads, heads_k, seqlen_q, seqlen_k, d):
    """The definition, causal with bottom-right alignment, on flat lists."""
    o = []
    for h in range(heads):
        hk = h * heads_k // heads
        for i in range(seqlen_q):
            visible = range(i + seqlen_k - seqlen_q + 1)
            row = q[(h * seqlen_q + i) * d:][:d]
            scores = [sum(a * b for a, b in zip(row, k[(hk * seqlen_k + j) * d:][:d])) / math.sqrt(d) for j in visible]
            weights = [math.exp(s - max(scores)) for s in scores]
            o += [sum(w * v[(hk * seqlen_k + j) * d + x] for w, j in zip(weights, visible)) / sum(weights)
                  for x in range(d)]
    return o


def compare(got, want, what):
    worst = max(abs(a - b) if a == a else math.inf for a, b in zip(got, want))
    if len(got) != len(want) or not worst <= 1e-5:
        sys.exit(f"{what}: differs from the definition by {worst}")
    print(f"{what}: largest difference from the definition {worst:.2g}")


H, HK, SQ, SK, D = 4, 2, 5, 9, 16
random.seed(1)
values = {name: array.array("f", (random.uniform(-1, 1) for _ in range(heads * rows * D)))
          for name, heads, rows in (("q", H, SQ), ("k", HK, SK), ("v", HK, SK), ("o", H, SQ))}
want = expected(values["q"], values["k"], values["v"], H, HK, SQ, SK, D)

if sys.argv[2:] != ["numpy"]:
    def tensor(a, *shape):
        return c.pointer(Tensor(a.buffer_info()[0], CPU, len(shape), FLOAT32, (c.c_int64 * len(shape))(*shape), None, 0))

    o = values["o"]
    attention(tensor(values["q"], 1, H, SQ, D), tensor(values["k"], 1, HK, SK, D), tensor(values["v"], 1, HK, SK, D),
              tensor(o, 1, H, SQ, D), CAUSAL_BOTTOM_RIGHT)
    compare(o, want, "array.array")
else:
    import numpy as np

    def numpy_tensor(a):
        strides = (c.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))
        return c.pointer(Tensor(a.ctypes.data, CPU, a.ndim, FLOAT32, (c.c_int64 * a.ndim)(*a.shape), strides, 0))

    def dlpack_tensor(a, keep):
        capsule = a.__dlpack__()
        keep.append(capsule)  # owns the DLTensor
        get = c.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
        return get(capsule, b"dltensor")  # DLManagedTensor begins with its DLTensor

    shapes = {"q": (1, H, SQ, D), "k": (1, HK, SK, D), "v": (1, HK, SK, D), "o": (1, H, SQ, D)}
    arrays = {name: np.array(values[name], dtype=np.float32).reshape(shapes[name]) for name in values}
    # As models hold them: (batch, seqlen, heads, d) in memory, (batch, heads, seqlen, d) by strides.
    arrays = {name: np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for name, a in arrays.items()}
    attention(*(numpy_tensor(arrays[name]) for name in "qkvo"), CAUSAL_BOTTOM_RIGHT)
    compare(arrays["o"].ravel().tolist(), want, "numpy, strided")
    arrays["o"][...] = math.nan
    keep = []
    attention(*(dlpack_tensor(arrays[name], keep) for name in "qkvo"), CAUSAL_BOTTOM_RIGHT)
    compare(arrays["o"].ravel().tolist(), want, "numpy through DLPack")
