# SPDX-License-Identifier: MIT OR Apache-2.0
"""kiln_ctypes.py: libkiln for the peer benchmarks, by ctypes, on PyTorch tensors of the CPU or a GPU (no copies, any strides)."""
import ctypes as c


class Tensor(c.Structure):  # DLPack's DLTensor
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
                ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class Options(c.Structure):  # kiln_context_options up to max_threads
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_char_p), ("device", c.c_int32), ("max_threads", c.c_int32)]


class Forward(c.Structure):  # kiln_attention_forward_args
    _fields_ = ([("struct_size", c.c_size_t)] +
                [(n, c.c_void_p) for n in "q k v o softmax_lse q2 k2 q_descale k_descale v_descale".split()] +
                [("softmax_scale", c.c_float), ("softcap", c.c_float)] +
                [(n, c.c_void_p) for n in "bias alibi_slopes sinks".split()] +
                [("mask", c.c_int32), ("num_splits", c.c_int32), ("window_left", c.c_int64), ("window_right", c.c_int64),
                 ("attn_mask", c.c_void_p)] +
                [(n, c.c_int64) for n in "q_start q_step k_start k_step".split()] +
                [(n, c.c_void_p) for n in "q_starts k_starts cu_seqlens_q cu_seqlens_k".split()] +
                [("max_seqlen_q", c.c_int64), ("max_seqlen_k", c.c_int64)] +
                [(n, c.c_void_p) for n in "seqused_q seqused_k leftpad_k block_table cache_batch_idx".split()] +
                [("dropout_p", c.c_float), ("max_sms", c.c_int32), ("dropout_seed", c.c_uint64),
                 ("dropout_offset", c.c_uint64), ("dropout_seed_ptr", c.c_void_p), ("dropout_offset_ptr", c.c_void_p),
                 ("flags", c.c_uint64), ("device_status", c.c_void_p), ("algorithm", c.c_char_p)])


class Backward(c.Structure):  # kiln_attention_backward_args
    _fields_ = [("struct_size", c.c_size_t), ("forward", c.c_void_p), ("dout", c.c_void_p), ("dlse", c.c_void_p),
                ("dq", c.c_void_p), ("dk", c.c_void_p), ("dv", c.c_void_p), ("dq2", c.c_void_p), ("dk2", c.c_void_p),
                ("dbias", c.c_void_p), ("dsinks", c.c_void_p), ("flags", c.c_uint64), ("max_sms", c.c_int32),
                ("reserved", c.c_int32), ("algorithm", c.c_char_p)]


class Softmax(c.Structure):  # kiln_softmax_forward_args
    _fields_ = [("struct_size", c.c_size_t), ("x", c.c_void_p), ("y", c.c_void_p), ("lse", c.c_void_p),
                ("scale", c.c_float), ("max_sms", c.c_int32), ("flags", c.c_uint64), ("algorithm", c.c_char_p)]


CAUSAL_BOTTOM_RIGHT, WINDOW_BOTTOM_RIGHT = 2, 4
DETERMINISTIC = 1 << 2


class Kiln:
    """One context. Calls are prepared once (args, workspace) and give a function to be timed."""

    def __init__(self, path, threads, backend="cpu"):
        self.lib = c.CDLL(path)
        self.lib.kiln_last_error.restype = c.c_char_p
        self.context = c.c_void_p()
        self.stream = None  # a GPU's: the legacy default stream, which is PyTorch's
        self.device_type = {"cpu": 1, "cuda": 2, "hip": 10}[backend]
        options = Options(c.sizeof(Options), backend.encode(), 0, threads)
        self._check(self.lib.kiln_context_create(c.byref(self.context), c.byref(options)))
        self.keep, self.workspaces = [], []

    def forget(self):
        """Lets go of the tensors and workspaces of the calls so far, which must not run again."""
        for workspace in self.workspaces:
            self._check(self.lib.kiln_free(self.context, workspace))
        self.keep, self.workspaces = [], []

    def _check(self, status):
        if status:
            raise RuntimeError(self.lib.kiln_last_error().decode())

    def tensor(self, t):
        code = {"torch.float32": (2, 32), "torch.float16": (2, 16), "torch.bfloat16": (4, 16),
                "torch.int32": (0, 32)}[str(t.dtype)]
        dims = c.c_int64 * t.dim()
        made = Tensor(t.data_ptr(), self.device_type, 0, t.dim(), *code, 1, dims(*t.shape), dims(*t.stride()), 0)
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
        self.workspaces.append(workspace)
        return lambda: self._check(run(self.context, c.byref(args), workspace, size, self.stream)), why.value.decode()

    def forward_args(self, q, k, v, o, lse=None, causal=False, **fields):
        fields.setdefault("mask", CAUSAL_BOTTOM_RIGHT if causal else 0)
        return Forward(c.sizeof(Forward), self.tensor(q), self.tensor(k), self.tensor(v), self.tensor(o),
                       self.tensor(lse) if lse is not None else None, **fields)

    def forward(self, *tensors, **options):
        return self.call("attention_forward", self.forward_args(*tensors, **options))

    def backward(self, forward_args, dout, dq, dk, dv, **fields):
        self.keep.append(forward_args)
        return self.call("attention_backward", Backward(c.sizeof(Backward), c.addressof(forward_args), self.tensor(dout), None,
                                                        self.tensor(dq), self.tensor(dk), self.tensor(dv), **fields))

    def softmax(self, x, y, **fields):
        return self.call("softmax_forward", Softmax(c.sizeof(Softmax), self.tensor(x), self.tensor(y), None, **fields))
