# SPDX-License-Identifier: MIT OR Apache-2.0
"""kiln_ctypes.py: libkiln for the peer benchmarks, by ctypes, on PyTorch CPU tensors (no copies, any strides)."""
import ctypes as c


class Tensor(c.Structure):  # DLPack's DLTensor
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
                ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class Options(c.Structure):  # kiln_context_options up to max_threads
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_char_p), ("device", c.c_int32), ("max_threads", c.c_int32)]


class Forward(c.Structure):  # kiln_attention_forward_args up to num_splits
    _fields_ = ([("struct_size", c.c_size_t)] +
                [(n, c.c_void_p) for n in "q k v o softmax_lse q2 k2 q_descale k_descale v_descale".split()] +
                [("softmax_scale", c.c_float), ("softcap", c.c_float)] +
                [(n, c.c_void_p) for n in "bias alibi_slopes sinks".split()] +
                [("mask", c.c_int32), ("num_splits", c.c_int32)])


class Backward(c.Structure):  # kiln_attention_backward_args up to dv
    _fields_ = [("struct_size", c.c_size_t), ("forward", c.c_void_p), ("dout", c.c_void_p), ("dlse", c.c_void_p),
                ("dq", c.c_void_p), ("dk", c.c_void_p), ("dv", c.c_void_p)]


class Softmax(c.Structure):  # kiln_softmax_forward_args up to lse
    _fields_ = [("struct_size", c.c_size_t), ("x", c.c_void_p), ("y", c.c_void_p), ("lse", c.c_void_p)]


CAUSAL_BOTTOM_RIGHT = 2


class Kiln:
    """One context. Calls are prepared once (args, workspace) and give a function to be timed."""

    def __init__(self, path, threads):
        self.lib = c.CDLL(path)
        self.lib.kiln_last_error.restype = c.c_char_p
        self.context = c.c_void_p()
        options = Options(c.sizeof(Options), b"cpu", 0, threads)
        self._check(self.lib.kiln_context_create(c.byref(self.context), c.byref(options)))
        self.keep = []

    def _check(self, status):
        if status:
            raise RuntimeError(self.lib.kiln_last_error().decode())

    def tensor(self, t):
        code = {"torch.float32": (2, 32), "torch.float16": (2, 16), "torch.bfloat16": (4, 16)}[str(t.dtype)]
        dims = c.c_int64 * t.dim()
        made = Tensor(t.data_ptr(), 1, 0, t.dim(), *code, 1, dims(*t.shape), dims(*t.stride()), 0)
        self.keep += [made, t]
        return c.addressof(made)

    def call(self, name, args):
        """(function that runs it, what `supported` says would run). Every call has a workspace of its own."""
        size, workspace, why = c.c_size_t(), c.c_void_p(), c.create_string_buffer(128)
        self._check(getattr(self.lib, f"kiln_{name}_supported")(self.context, c.byref(args), why, c.c_size_t(128)))
        self._check(getattr(self.lib, f"kiln_{name}_workspace")(self.context, c.byref(args), c.byref(size)))
        self._check(self.lib.kiln_malloc(self.context, size, c.byref(workspace)))
        run = getattr(self.lib, f"kiln_{name}")
        self.keep.append(args)
        return lambda: self._check(run(self.context, c.byref(args), workspace, size, None)), why.value.decode()

    def forward_args(self, q, k, v, o, lse=None, causal=False):
        return Forward(c.sizeof(Forward), self.tensor(q), self.tensor(k), self.tensor(v), self.tensor(o),
                       self.tensor(lse) if lse is not None else None, mask=CAUSAL_BOTTOM_RIGHT if causal else 0)

    def forward(self, *tensors, **options):
        return self.call("attention_forward", self.forward_args(*tensors, **options))

    def backward(self, forward_args, dout, dq, dk, dv):
        self.keep.append(forward_args)
        return self.call("attention_backward", Backward(c.sizeof(Backward), c.addressof(forward_args), self.tensor(dout),
                                                        None, self.tensor(dq), self.tensor(dk), self.tensor(dv)))

    def softmax(self, x, y):
        return self.call("softmax_forward", Softmax(c.sizeof(Softmax), self.tensor(x), self.tensor(y), None))
