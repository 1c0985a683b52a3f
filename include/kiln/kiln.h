/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/**
 * @file kiln.h
 * @brief Kiln: exact softmax and attention for NVIDIA GPUs, AMD GPUs and any CPU. The whole public API.
 *
 * How to read this file
 * ---------------------
 *  - Every operation has the same four calls: `kiln_<op>_supported`, `kiln_<op>_workspace`, `kiln_<op>_prepare` and
 *    `kiln_<op>`. All four take the *same* argument struct.
 *  - An argument struct that is all zero except for `struct_size` and the tensors asks for the plain operation. Zero is
 *    the documented default of every field, for ever.
 *  - Sizes, strides and positions are `int64_t` and count **elements** unless a name says bytes. Enums are `int32_t`,
 *    flags `uint64_t`.
 *  - Shapes are written (outer, ..., inner). `seqlen_q`, `heads_k` and so on are the terms of the FlashAttention papers.
 *
 * Thread safety: unless a function says otherwise it may be called from any thread at any time, also on one context from
 * several threads at once (each call with a workspace of its own). A context must not be destroyed while in use.
 *
 * Process state: Kiln never prints, aborts, exits, installs signal handlers, sets thread affinity or changes the
 * caller's OpenMP settings. What it has to say goes through ::kiln_log_callback and kiln_last_error(). The caller's
 * floating-point environment (rounding, traps, FTZ) neither changes a result nor is changed.
 *
 * fork(): a child may use Kiln, its parent's contexts included, if no other thread was inside a Kiln call at the fork.
 * OpenMP's threads do not survive a fork: if Kiln used them before, calls in the child run on the calling thread, with
 * the same bits (a host's own kiln_parallel_for is called as ever). If only the *host* used OpenMP before the fork, Kiln
 * cannot know: make contexts for the child with max_threads 1.
 *
 * Since: every symbol here is new in 0.1.0 unless it says so. Before 1.0 there is no ABI promise (see CHANGELOG.md).
 */
#ifndef KILN_KILN_H
#define KILN_KILN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Marks what the library exports. */
#if defined(KILN_STATIC) || !defined(__GNUC__)
#define KILN_API
#else
#define KILN_API __attribute__((visibility("default")))
#endif

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup version Version
 *  @{ */
#define KILN_VERSION_MAJOR 0 /**< raised by incompatible changes, from 1.0 on */
#define KILN_VERSION_MINOR 1 /**< raised by additions; before 1.0 also by incompatible changes */
#define KILN_VERSION_PATCH 0 /**< raised by corrections */
/** One number that orders versions: major·10000 + minor·100 + patch. */
#define KILN_VERSION (KILN_VERSION_MAJOR * 10000 + KILN_VERSION_MINOR * 100 + KILN_VERSION_PATCH)

/** ::KILN_VERSION of the library that is running, which may be newer than the header it was compiled with. */
KILN_API int32_t kiln_version(void);
/** The same as text, for example "0.1.0". Static storage. */
KILN_API const char *kiln_version_string(void);
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup status Status and error text
 *  @{ */

/** What every fallible call returns. The values are pinned. */
typedef int32_t kiln_status;
enum {
    KILN_OK = 0,
    KILN_INVALID_ARGUMENT = 1,    /**< An argument contradicts this header; no backend would take it. */
    KILN_UNSUPPORTED = 2,         /**< Well formed, but this backend or the named algorithm does not do it. */
    KILN_UNAVAILABLE = 3,         /**< The backend or device does not exist or cannot be used on this machine. */
    KILN_OUT_OF_MEMORY = 4,       /**< Host or device memory could not be had. */
    KILN_WORKSPACE_TOO_SMALL = 5, /**< The workspace passed is smaller than `kiln_<op>_workspace` says. */
    KILN_VERSION_MISMATCH = 6,    /**< `struct_size` or a plug-in's ABI number is not one this library understands. */
    KILN_DEVICE_ERROR = 7,        /**< The device or its driver reported a fault, at a launch or earlier. */
    KILN_INTERNAL = 8             /**< A defect of Kiln. Please report it. */
};

/** Name of a status, for example "KILN_INVALID_ARGUMENT"; "KILN_UNKNOWN_STATUS" for other values. Static storage. */
KILN_API const char *kiln_status_name(kiln_status status);

/**
 * The sentence that belongs to the last call of *this thread* that did not return KILN_OK: which argument, its value,
 * what is allowed. "" if there was none. Valid until the thread's next Kiln call that fails. Successful calls leave it.
 */
KILN_API const char *kiln_last_error(void);
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup tensor Tensors
 *  @{ */

/** Element type: DLPack's `DLDataType` (same layout, same codes). `lanes` must be 1. */
typedef struct kiln_dtype {
    uint8_t code;   /**< DLPack type code: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, ...: see the enum below */
    uint8_t bits;   /**< size of one element in bits */
    uint16_t lanes; /**< must be 1 */
} kiln_dtype;

/** Where data lies: DLPack's `DLDevice` (same layout, same codes). */
typedef struct kiln_device {
    int32_t device_type; /**< KILN_DEVICE_CPU, ... */
    int32_t device_id;   /**< ordinal within the type; 0 for the CPU */
} kiln_device;
enum { KILN_DEVICE_CPU = 1, KILN_DEVICE_CUDA = 2, KILN_DEVICE_ROCM = 10 };

/** Element types by one number, code·256 + bits, for kiln_tensor_make(). The codes are DLPack's. */
enum {
    KILN_INT8 = 0 * 256 + 8,
    KILN_INT32 = 0 * 256 + 32,
    KILN_INT64 = 0 * 256 + 64,
    KILN_UINT8 = 1 * 256 + 8,
    KILN_UINT32 = 1 * 256 + 32,
    KILN_UINT64 = 1 * 256 + 64,
    KILN_FLOAT16 = 2 * 256 + 16,
    KILN_FLOAT32 = 2 * 256 + 32,
    KILN_FLOAT64 = 2 * 256 + 64,
    KILN_BFLOAT16 = 4 * 256 + 16,
    KILN_BOOL = 6 * 256 + 8,
    KILN_FLOAT8_E4M3FN = 10 * 256 + 8,
    KILN_FLOAT8_E4M3FNUZ = 11 * 256 + 8,
    KILN_FLOAT8_E5M2 = 12 * 256 + 8,
    KILN_FLOAT8_E5M2FNUZ = 13 * 256 + 8
};

/** Most axes a tensor may have. */
#define KILN_MAX_RANK 8

/**
 * A strided array that the caller owns: the layout of DLPack's `DLTensor`, so a `DLTensor *` may be passed by a cast.
 *
 *  - Element (i0, i1, ...) lies at `(char *)data + byte_offset + (Σ i_k·strides[k])·bits/8`.
 *  - `strides == NULL` means compact row-major. An axis of size 1 may carry any stride. Stride 0 broadcasts an *input*;
 *    an output axis longer than 1 must not have stride 0.
 *  - `data` may be NULL in `_supported`, `_workspace` and `_prepare`, and where the tensor has no element.
 *  - The first element must be aligned to the element size; more alignment only changes speed.
 *  - The struct, `shape` and `strides` are read during the call only. The data must live until the stream has passed.
 *  - CPU: any strides. GPU: the last axis must have stride 1 (others are answered with KILN_UNSUPPORTED).
 */
typedef struct kiln_tensor {
    void *data;             /**< first byte, less byte_offset */
    kiln_device device;     /**< where data lies; must be the context's */
    int32_t ndim;           /**< axes, 0...KILN_MAX_RANK */
    kiln_dtype dtype;       /**< element type */
    const int64_t *shape;   /**< ndim sizes */
    const int64_t *strides; /**< in elements; NULL = compact */
    uint64_t byte_offset;   /**< of the first element from data, in bytes; data + byte_offset must not wrap around */
} kiln_tensor;

/** Builds a tensor that refers to `data`, `shape` and `strides`. `type` is KILN_FLOAT32 and so on. Never fails. */
static inline kiln_tensor kiln_tensor_make(kiln_device device, void *data, int32_t type, int32_t ndim,
                                           const int64_t *shape, const int64_t *strides)
{
    kiln_tensor t;
    t.data = data;
    t.device = device;
    t.ndim = ndim;
    t.dtype.code = (uint8_t)(type / 256);
    t.dtype.bits = (uint8_t)(type % 256);
    t.dtype.lanes = 1;
    t.shape = shape;
    t.strides = strides;
    t.byte_offset = 0;
    return t;
}
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup context Contexts and backends
 *  @{ */

/** One backend on one device. Opaque. */
typedef struct kiln_context kiln_context;

/** `cudaStream_t`, `hipStream_t`; NULL = the legacy default stream. The CPU is synchronous: pass NULL. */
typedef void *kiln_stream;

/** Log levels; a callback gets messages of its level and the more serious ones. */
enum { KILN_LOG_ERROR = -2, KILN_LOG_WARNING = -1, KILN_LOG_INFO = 0, KILN_LOG_DEBUG = 1 };

/** Receives one message, without a newline, valid during the call only. May be called from any thread that uses Kiln. */
typedef void (*kiln_log_callback)(void *user, int32_t level, const char *message);

/**
 * A host's own thread pool. Must call `body(arg, i)` exactly once for every i in [0, count), from any threads,
 * concurrently or one after another, and return after the last has returned. Bits of results do not depend on it.
 */
typedef void (*kiln_parallel_for)(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg);

/** Options of kiln_context_create(). All zero (or a NULL pointer) = best backend, its first device, OpenMP's threads. */
typedef struct kiln_context_options {
    size_t struct_size;  /**< sizeof(kiln_context_options) */
    const char *backend; /**< "cpu", "cuda", "hip", "simt-cuda", "simt-hip"; NULL = the best available. A backend
                                     named here that is unavailable is an error, never a silent fallback; no other
                                     backend's driver is started then.
                                     The environment variable KILN_BACKEND replaces a NULL. */
    int32_t device;      /**< ordinal of the device within the backend */
    int32_t max_threads; /**< CPU: most threads a call may use; 0 = omp_get_max_threads() at creation */
    kiln_parallel_for parallel_for; /**< CPU: run on this pool instead of OpenMP; NULL = OpenMP. Set max_threads with it
                                     (0 = one per processor that the process may use). */
    void *parallel_for_user;        /**< first argument of parallel_for */
    kiln_log_callback log;          /**< NULL = silent */
    void *log_user;                 /**< first argument of log */
    int32_t log_level;              /**< KILN_LOG_INFO (0) by default */
    int32_t reserved;               /**< must be 0 */
    const char *plugin_path; /**< folder with plug-ins, searched before the environment variable KILN_BACKEND_PATH
                                     (absolute folders, colon-separated; others are ignored) and the folder beside the
                                     library; NULL = only those */
} kiln_context_options;

/**
 * Creates a context. `options` may be NULL. On failure `*context` is NULL.
 * Contexts may be created and destroyed concurrently. Strings are copied.
 * Errors: INVALID_ARGUMENT (a name that is no backend's, negative numbers), UNAVAILABLE (not installed, could not be loaded, no
 * device: with the reason), OUT_OF_MEMORY, VERSION_MISMATCH (struct_size).
 */
KILN_API kiln_status kiln_context_create(kiln_context **context, const kiln_context_options *options);
/** Destroys a context; NULL is allowed. No call on it may be running. Work already on a stream is not waited for. */
KILN_API void kiln_context_destroy(kiln_context *context);

/** What a context runs on. Filled by kiln_context_info(); strings live as long as the context. */
typedef struct kiln_device_info {
    size_t struct_size;       /**< in: sizeof(kiln_device_info); never written past it */
    const char *backend;      /**< "cpu", "cuda", ... */
    const char *name;         /**< processor or board */
    const char *architecture; /**< "avx512", "neon", "sm_90", "gfx942", ... */
    kiln_device device;       /**< what tensors must carry to be accepted */
    int32_t units;            /**< CPU: threads that a call may use; GPU: multiprocessors or compute units */
    int32_t numa_nodes;       /**< CPU: NUMA nodes; 0 = unknown */
    int64_t memory_bytes;     /**< memory of the device; 0 = unknown */
    int64_t l1_bytes;         /**< data cache of one core / shared memory of one unit; 0 = unknown */
    int64_t l2_bytes;         /**< second-level cache, of one core on a CPU; 0 = unknown */
    int64_t l3_bytes;         /**< last-level cache; 0 = unknown or none */
} kiln_device_info;
/** Describes the context's device. Errors: INVALID_ARGUMENT, VERSION_MISMATCH. */
KILN_API kiln_status kiln_context_info(const kiln_context *context, kiln_device_info *info);
/** Shorthand for kiln_device_info::device. A NULL context gives {0, 0}. */
KILN_API kiln_device kiln_context_device(const kiln_context *context);

/** One backend as kiln_backend_list() sees it. */
typedef struct kiln_backend_info {
    const char *name;     /**< "cpu", "cuda", ... or the file name of a plug-in that could not be loaded */
    const char *path;     /**< file of the plug-in; "" for one that is linked in */
    const char *reason;   /**< why it is unavailable; "" if it is available */
    int32_t available;    /**< 1 or 0 */
    int32_t score;        /**< `auto` takes the highest; 0 = only by name, or unavailable */
    int32_t device_count; /**< devices it can open; 0 if unavailable */
} kiln_backend_info;
/**
 * Calls `visit` once for every backend that is linked in or found as a plug-in, the ones that cannot be used included.
 * `options` (may be NULL) gives the plug-in folder and the log. Pointers in `info` are valid during the visit.
 * May load plug-ins; they stay loaded. Errors: INVALID_ARGUMENT, VERSION_MISMATCH, OUT_OF_MEMORY.
 */
KILN_API kiln_status kiln_backend_list(const kiln_context_options *options,
                                       void (*visit)(void *user, const kiln_backend_info *info), void *user);
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup memory Device memory, streams and events
 *  Vendor-neutral helpers for small programs, tests and benchmarks. Programs that already hold pointers and streams do
 *  not need them. On the CPU a stream is NULL, copies are memcpy and an event is a time stamp.
 *  @{ */
/** Allocates `bytes` of device memory, aligned to 256 bytes (CPU: host memory). 0 bytes gives NULL. */
KILN_API kiln_status kiln_malloc(kiln_context *context, size_t bytes, void **pointer);
/** Frees what kiln_malloc() gave; NULL is allowed. GPU: waits for the device first, as the vendors' own call does. */
KILN_API kiln_status kiln_free(kiln_context *context, void *pointer);
/** Copies between any two of host and device memory, in stream order; returns when the *host* side may be reused. */
KILN_API kiln_status kiln_copy(kiln_context *context, void *destination, const void *source, size_t bytes,
                               kiln_stream stream);
/** Sets `bytes` bytes of device memory to `value`, in stream order. */
KILN_API kiln_status kiln_fill(kiln_context *context, void *destination, uint8_t value, size_t bytes,
                               kiln_stream stream);
/** Creates a stream that does not synchronise with the default stream. */
KILN_API kiln_status kiln_stream_create(kiln_context *context, kiln_stream *stream);
/** Destroys a stream that kiln_stream_create() gave. */
KILN_API kiln_status kiln_stream_destroy(kiln_context *context, kiln_stream stream);
/** Waits until everything on the stream is done, and reports faults of the device. */
KILN_API kiln_status kiln_stream_synchronize(kiln_context *context, kiln_stream stream);

/** A point in a stream whose time can be asked for. Opaque. */
typedef struct kiln_event kiln_event;
/** Creates an event that has not been recorded. */
KILN_API kiln_status kiln_event_create(kiln_context *context, kiln_event **event);
/** Destroys an event; NULL is allowed. */
KILN_API kiln_status kiln_event_destroy(kiln_context *context, kiln_event *event);
/** Records the event at the present end of the stream. May be recorded again. */
KILN_API kiln_status kiln_event_record(kiln_context *context, kiln_event *event, kiln_stream stream);
/** Waits for `end`, then gives the milliseconds between the two records. Errors: INVALID_ARGUMENT if not recorded. */
KILN_API kiln_status kiln_event_elapsed(kiln_context *context, kiln_event *start, kiln_event *end,
                                        double *milliseconds);
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup calls What the calls of every operation have in common
 *
 *  **supported**: judges the metadata (struct, shapes, strides, types, alignment of nothing, the named algorithm) and
 *  never looks at data; pure host code, cheap. KILN_OK exactly when the call accepts the same metadata. `why` (may be
 *  NULL) receives, cut to `cap` bytes with a terminator: on KILN_OK which algorithm and kernel will run; otherwise the
 *  sentence of kiln_last_error().
 *
 *  **workspace**: bytes of scratch memory that the call needs, 0 allowed; pure host code, cheap. It covers the context's
 *  `max_threads` and any alignment of the data. Same errors as `supported`.
 *
 *  **prepare**: optional; loads what the first call would load, so that the first call can be captured in a graph.
 *
 *  **the call**: enqueues the work on `stream` (CPU: does it). It allocates nothing, synchronises nothing and uses no
 *  other stream; it can be captured and replayed. `workspace`: device memory (CPU: host memory), 256-byte aligned, may
 *  hold garbage, must not be used by two calls at a time; NULL is allowed when 0 bytes are needed; `workspace_bytes` is
 *  its size. Arguments are copied before the call returns.
 *
 *  Inputs and outputs must not overlap, except: K and V may alias; softmax `y` may alias `x` (and `dx` may alias `dy`)
 *  with the same strides; merge may write over its first input. Only a shared first element is detected.
 *
 *  Errors of all of them: VERSION_MISMATCH (struct_size), INVALID_ARGUMENT, UNSUPPORTED; the call also
 *  WORKSPACE_TOO_SMALL, DEVICE_ERROR. **When a call fails, nothing has been written.** (After DEVICE_ERROR outputs are
 *  undefined.)
 *
 *  `struct_size`: sizeof the struct as the caller knows it. Shorter structs (older callers) are zero-filled; longer ones
 *  are accepted if the part that this library does not know is zero. A multiple of the size of a pointer, as every
 *  sizeof is.
 *  @{ */

/** Flags; each operation says which it takes. Others are refused. */
enum {
    KILN_FLAG_LOG = 1 << 0,            /**< softmax: log-softmax */
    KILN_FLAG_SCALE_EXPLICIT = 1 << 1, /**< attention: softmax_scale is meant as written, also when it is 0 */
    KILN_FLAG_DETERMINISTIC = 1 << 2,  /**< backward: same bits in every run, or refused (forward always is) */
    KILN_FLAG_BATCH_INVARIANT =
        1 << 3, /**< a row's bits depend only on its own q, its keys and the scalar arguments: not
                                             on batch mates, seqlen_q, page layout or alignment */
    KILN_FLAG_WORKSPACE_ZEROED =
        1 << 4,                       /**< the caller vouches that the workspace is all zero, or was left by an earlier
                                             successful call with the same arguments; saves clearing counters */
    KILN_FLAG_ACCUMULATE_DQ = 1 << 5, /**< backward: dq += instead of dq = */
    KILN_FLAG_ACCUMULATE_DK = 1 << 6,
    KILN_FLAG_ACCUMULATE_DV = 1 << 7
};

/** Bits of `device_status`: the call met a value in device memory that it had to ignore or clamp. */
enum {
    KILN_DEVICE_STATUS_CU_SEQLENS = 1 << 0,     /**< cu_seqlens not ascending, or past the tensor; clamped */
    KILN_DEVICE_STATUS_SEQUSED = 1 << 1,        /**< seqused, leftpad_k negative or past the capacity; clamped */
    KILN_DEVICE_STATUS_BLOCK_TABLE = 1 << 2,    /**< page number outside the pool; its keys are treated as masked */
    KILN_DEVICE_STATUS_CACHE_BATCH_IDX = 1 << 3 /**< batch index outside the cache; its keys are treated as masked */
};
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup softmax Softmax
 *  Over the last axis of a tensor of rank 1...8, with rows of any length from 0 to 2^31-1 and any strides.
 *
 *  y_j = exp(scale·x_j - lse), lse = ln Σ exp(scale·x_j); with KILN_FLAG_LOG y_j = scale·x_j - lse.
 *  The definition is Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), with the maximum
 *  subtracted. A row of only -inf: y = 0 (KILN_FLAG_LOG: -inf), lse = -inf. NaN or +inf in a row make it NaN.
 *  An empty row: lse = -inf. scale·x is fp32: a product that leaves its range is ±Inf. Results below 2^-126 may be 0.
 *
 *  Types: x and y fp32, fp16, bf16, each as it likes; lse fp32. Arithmetic is fp32. Flags: LOG.
 *  Algorithms: "three_pass" (maximum, sum, write), "online" (one pass over (m, l), then write); NULL = auto.
 *  @{ */
/** Arguments of softmax_forward. Required: struct_size, x, and y or lse. */
typedef struct kiln_softmax_forward_args {
    size_t struct_size;     /**< sizeof this struct */
    const kiln_tensor *x;   /**< (..., n) */
    const kiln_tensor *y;   /**< (..., n), shape of x. May be NULL if lse is given (log-sum-exp only) */
    const kiln_tensor *lse; /**< (...), fp32, shape of x without its last axis; NULL = not wanted */
    float scale;            /**< 0 = 1. For a scale of exactly 0, fill y with 1/n yourself */
    int32_t max_sms;        /**< most multiprocessors (CPU: threads) to use; 0 = all */
    uint64_t flags;         /**< KILN_FLAG_LOG, KILN_FLAG_WORKSPACE_ZEROED, KILN_FLAG_BATCH_INVARIANT */
    const char *algorithm;  /**< NULL = auto */
} kiln_softmax_forward_args;

/** Would the call be taken, and by which kernel? See @ref calls. */
KILN_API kiln_status kiln_softmax_forward_supported(const kiln_context *context, const kiln_softmax_forward_args *args,
                                                    char *why, size_t cap);
/** Bytes of scratch memory that the call needs. See @ref calls. */
KILN_API kiln_status kiln_softmax_forward_workspace(const kiln_context *context, const kiln_softmax_forward_args *args,
                                                    size_t *bytes);
/** Loads now what the first call would load. See @ref calls. */
KILN_API kiln_status kiln_softmax_forward_prepare(kiln_context *context, const kiln_softmax_forward_args *args);
/** Computes y and lse. See @ref calls. */
KILN_API kiln_status kiln_softmax_forward(kiln_context *context, const kiln_softmax_forward_args *args, void *workspace,
                                          size_t workspace_bytes, kiln_stream stream);

/** dx from y and dy: dx_j = scale·y_j·(dy_j - Σ y·dy); with KILN_FLAG_LOG dx_j = scale·(dy_j - exp(y_j)·Σ dy). */
typedef struct kiln_softmax_backward_args {
    size_t struct_size;    /**< sizeof this struct */
    const kiln_tensor *y;  /**< (..., n), what the forward call wrote (log-probabilities with KILN_FLAG_LOG) */
    const kiln_tensor *dy; /**< (..., n) */
    const kiln_tensor *dx; /**< (..., n) output */
    float scale;           /**< the forward's; 0 = 1 */
    int32_t max_sms;       /**< as in forward */
    uint64_t flags;        /**< KILN_FLAG_LOG as in forward, KILN_FLAG_DETERMINISTIC (always honoured),
                                KILN_FLAG_WORKSPACE_ZEROED, KILN_FLAG_BATCH_INVARIANT */
    const char *algorithm; /**< NULL = auto */
} kiln_softmax_backward_args;

/** Would the call be taken, and by which kernel? See @ref calls. */
KILN_API kiln_status kiln_softmax_backward_supported(const kiln_context *context,
                                                     const kiln_softmax_backward_args *args, char *why, size_t cap);
/** Bytes of scratch memory that the call needs. See @ref calls. */
KILN_API kiln_status kiln_softmax_backward_workspace(const kiln_context *context,
                                                     const kiln_softmax_backward_args *args, size_t *bytes);
/** Loads now what the first call would load. See @ref calls. */
KILN_API kiln_status kiln_softmax_backward_prepare(kiln_context *context, const kiln_softmax_backward_args *args);
/** Computes dx. See @ref calls. */
KILN_API kiln_status kiln_softmax_backward(kiln_context *context, const kiln_softmax_backward_args *args,
                                           void *workspace, size_t workspace_bytes, kiln_stream stream);
/** @} */

/* ------------------------------------------------------------------------------------------------------------------ */
/** @defgroup attention Attention
 *
 *  For every batch entry, query head h and query i, over the keys j (Dao et al., "FlashAttention", 2022, and
 *  "FlashAttention-2", 2023; the modifiers in this order):
 *
 *      s_ij = softmax_scale · q_i·k_j                    fp32 accumulation
 *      s_ij = softcap · tanh(s_ij / softcap)             if softcap > 0
 *      s_ij = s_ij + bias_ij - alibi_slope_h · |pos_q(i) - pos_k(j)|
 *      s_ij = -inf                                       if a mask hides key j from query i
 *      lse_i = ln( Σ_j exp s_ij  +  exp sink_h )         natural logarithm; the sink is neither scaled nor capped
 *      p_ij = exp(s_ij - lse_i)
 *      o_i  = Σ_j dropout(p_ij) · v_j
 *
 *  **Heads.** Query head h reads key/value head floor(h·heads_k/heads); heads must be a multiple of heads_k.
 *
 *  **Positions.** pos_q(i) = base + q_start + i·q_step and pos_k(j) = k_start + j·k_step. Causal masks, windows, ALiBi and
 *  dropout use positions, so the shards of a ring see what the whole sequence would. base is 0 for the top-left kinds
 *  and seqlen_k - seqlen_q of the sequence (after seqused) for the bottom-right kinds and for KILN_MASK_NONE.
 *  Limits: |q_start|, |k_start| <= 2^60; step·length <= 2^60.
 *
 *  **Masked keys** have no influence whatever they hold, NaN and Inf included. A query with no visible key gives o = 0
 *  and lse = -inf (with a sink: lse = sink), and zero gradients; it is written. A key dropped by dropout stays visible:
 *  its weight is 0, and a NaN in it shows. A query all of whose visible scores are -inf counts as one without a visible
 *  key.
 *
 *  **NaN and Inf that are visible** give each output element the class (NaN, ±Inf, finite) that exact arithmetic would;
 *  only where an infinite v meets a weight below 2^-126 the result may be NaN instead of ±Inf. A score or a sink
 *  that is NaN or +inf makes o and lse of its row NaN. Scores are fp32: a product that leaves its range is ±Inf.
 *
 *  **Layouts.** All of q, k, v, o, bias ... are strided, so (batch, seqlen, heads, d) in memory is a matter of strides.
 *  - *Dense*: q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v),
 *    o (batch, heads, seqlen_q, d_v), softmax_lse (batch, heads, seqlen_q).
 *  - *Packed queries* (cu_seqlens_q given): q (heads, total_q, d), o (heads, total_q, d_v), softmax_lse
 *    (heads, total_q). Sequence b owns rows cu_seqlens_q[b] ... cu_seqlens_q[b+1]-1.
 *  - *Packed keys* (cu_seqlens_k given): k (heads_k, total_k, d), v (heads_k, total_k, d_v). Queries and keys may be
 *    packed independently of one another.
 *  - *Paged keys* (block_table given): k (num_pages, heads_k, page_size, d), v (num_pages, heads_k, page_size, d_v);
 *    token j of sequence b lies in page block_table[b][j / page_size] at row j % page_size. Lengths come from seqused_k.
 *    Not together with cu_seqlens_k. Any page_size >= 1. Table entries past the length are never read.
 *  - Rows outside every sequence (past seqused, past cu_seqlens[batch]) are neither read nor written.
 *
 *  Types: q, k, v of one type, fp32, fp16 or bf16; o of that type or fp32; softmax_lse fp32. 1 <= d, d_v <= 576.
 *  Reproducible: same build, device model, arguments and thread limit give the same bits.
 *  @{ */

/** Mask kinds: kiln_attention_forward_args::mask. With p = pos_q(i) and t = pos_k(j), key j is visible when: */
enum {
    KILN_MASK_NONE = 0,                /**< always */
    KILN_MASK_CAUSAL_TOP_LEFT = 1,     /**< t <= p; query 0 sees key 0 */
    KILN_MASK_CAUSAL_BOTTOM_RIGHT = 2, /**< t <= p; the last query sees the last key */
    KILN_MASK_WINDOW_TOP_LEFT = 3,     /**< p - window_left <= t <= p + window_right */
    KILN_MASK_WINDOW_BOTTOM_RIGHT = 4  /**< the same, with bottom-right positions */
};
/** A window side without a limit. */
#define KILN_UNBOUNDED INT64_MAX

/**
 * Arguments of attention_forward. Required: struct_size, q, k, v, o. Everything else may stay zero.
 * Fields marked "refused until built" answer KILN_UNSUPPORTED when they are set and the backend does not have them.
 */
typedef struct kiln_attention_forward_args {
    size_t struct_size; /**< sizeof this struct */

    /** @name Tensors
     *  @{ */
    const kiln_tensor *q;           /**< queries, see Layouts */
    const kiln_tensor *k;           /**< keys */
    const kiln_tensor *v;           /**< values; may alias k */
    const kiln_tensor *o;           /**< output, q's type or fp32 (partial results for a merge) */
    const kiln_tensor *softmax_lse; /**< output fp32, o's shape without d_v; NULL = not wanted. Needed for backward */
    const kiln_tensor *q2; /**< second score operand (MLA): score += softmax_scale·q2·k2, q's shape with another
                                         d, 1...576; q2 and k2 together or not at all. Default scale: 1/sqrt(d + d2) */
    const kiln_tensor *k2; /**< k's shape with q2's d (paged if k is) */
    const kiln_tensor *q_descale; /**< fp32, (batch, heads_k), sizes 1 broadcast: q is multiplied by it. fp8; refused
                                         until built */
    const kiln_tensor *k_descale; /**< the same for k */
    const kiln_tensor *v_descale; /**< the same for v */
    /** @} */

    /** @name Scores
     *  @{ */
    float softmax_scale;     /**< 0 = 1/sqrt(d); with KILN_FLAG_SCALE_EXPLICIT as written */
    float softcap;           /**< 0 = none; must be >= 0 and finite. Exact tanh */
    const kiln_tensor *bias; /**< fp32 or q's type, (batch, heads, seqlen_q, seqlen_k), sizes 1 broadcast; -inf
                                           in it is a mask. Paged: the last size is max_pages·page_size or 1. Refused for
                                           packed queries or keys */
    const kiln_tensor
        *alibi_slopes;        /**< fp32, (heads) or (batch, heads); Press et al. 2021. Subtracts slope·distance */
    const kiln_tensor *sinks; /**< fp32 or q's type, (heads): one extra logit per head that joins the sum only */
    /** @} */

    /** @name Masks
     *  @{ */
    int32_t mask;                 /**< KILN_MASK_NONE, ... */
    int32_t num_splits;           /**< pieces the keys are cut into: 0 = chosen from the shape, 1 = not cut, n = at most
                                           n. Bits depend on it; 1...1024 */
    int64_t window_left;          /**< window kinds only: any value, KILN_UNBOUNDED = no limit. Left L keeps L+1 keys */
    int64_t window_right;         /**< window kinds only: 0 = up to the diagonal, -1 = strictly before it */
    const kiln_tensor *attn_mask; /**< uint8 or bool, (batch, heads, seqlen_q, mask_len), sizes 1 broadcast except the
                                           last: non-zero = visible. Covers the *last* mask_len keys of each sequence
                                           (mask_len <= seqlen_k of the tensor; 1 is one key, not a broadcast) and is
                                           ANDed with `mask`. Refused for packed queries or keys */
    /** @} */

    /** @name Positions
     *  @{ */
    int64_t q_start;             /**< added to every query position */
    int64_t q_step;              /**< distance of neighbouring queries, 0 = 1; must not be negative */
    int64_t k_start;             /**< position of key 0 */
    int64_t k_step;              /**< distance of neighbouring keys, 0 = 1; must not be negative */
    const kiln_tensor *q_starts; /**< int32 (batch), added to q_start per sequence; NULL = 0 */
    const kiln_tensor *k_starts; /**< int32 (batch), added to k_start per sequence; NULL = 0 */
    /** @} */

    /** @name Lengths: packed, shortened, paged
     *  @{ */
    const kiln_tensor
        *cu_seqlens_q; /**< int32 (batch + 1), ascending from >= 0, last <= total_q. Gives packed queries */
    const kiln_tensor *cu_seqlens_k; /**< int32 (batch + 1), the same for keys */
    int64_t max_seqlen_q;            /**< packed: upper bound of a sequence's length, known on the host; 0 = total_q */
    int64_t max_seqlen_k;            /**< packed: the same for keys; 0 = total_k */
    const kiln_tensor *seqused_q;    /**< int32 (batch): queries used of each sequence, <= its length; NULL = all */
    const kiln_tensor *seqused_k;   /**< int32 (batch): keys used, tokens just appended included. Required when paged */
    const kiln_tensor *leftpad_k;   /**< int32 (batch): that many first key slots are skipped; seqlen_k becomes
                                           seqused_k - leftpad_k and key 0 is the first one after the padding. Refused
                                           for packed keys */
    const kiln_tensor *block_table; /**< int32 (batch, max_pages). Gives paged keys */
    const kiln_tensor
        *cache_batch_idx; /**< int32 (batch): k and v (or the block table's row) of sequence b are those of
                                           entry cache_batch_idx[b]; then k's batch size (the table's row count) may
                                           differ from q's. Refused for packed keys */
    /** @} */

    /** @name Dropout
     *  @{ */
    float dropout_p;                    /**< probability to drop a weight, 0 <= p <= 1 - 1/512, realised as
                                           1 - round(256·(1-p))/256; kept weights are multiplied by 256/round(256·(1-p)).
                                           Philox4x32-10 (Salmon et al. 2011): key (seed low, seed high xor offset high),
                                           counter (pos_k div 16, pos_q, batch·heads + head, offset low), all low 32 bits;
                                           byte pos_k mod 16 of the 16 result bytes (little endian) belongs to key
                                           pos_k; kept iff byte < round(256·(1-p)) */
    int32_t max_sms;                    /**< most multiprocessors (CPU: threads) to use; 0 = all */
    uint64_t dropout_seed;              /**< used when dropout_seed_ptr is NULL */
    uint64_t dropout_offset;            /**< used when dropout_offset_ptr is NULL */
    const uint64_t *dropout_seed_ptr;   /**< device memory, read when the work runs (graph replay) */
    const uint64_t *dropout_offset_ptr; /**< device memory, the same */
    /** @} */

    /** @name Running
     *  @{ */
    uint64_t flags;          /**< SCALE_EXPLICIT, DETERMINISTIC, BATCH_INVARIANT, WORKSPACE_ZEROED */
    uint32_t *device_status; /**< device memory, one word: bits KILN_DEVICE_STATUS_* are ORed into it; NULL = not
                                           wanted. The CPU checks lengths before it starts and returns INVALID_ARGUMENT */
    const char *algorithm;   /**< "naive", "tiled", "flash1", "flash2", "splitkv", ...: a rung of the ladder by
                                           name; NULL = auto. kiln_attention_forward_supported() says what would run.
                                           GPUs also have "tiled_unpadded", which shows what bank conflicts cost */
    /** @} */
} kiln_attention_forward_args;

/** Would the call be taken, and by which kernel? See @ref calls. */
KILN_API kiln_status kiln_attention_forward_supported(const kiln_context *context,
                                                      const kiln_attention_forward_args *args, char *why, size_t cap);
/** Bytes of scratch memory that the call needs. See @ref calls. */
KILN_API kiln_status kiln_attention_forward_workspace(const kiln_context *context,
                                                      const kiln_attention_forward_args *args, size_t *bytes);
/** Loads now what the first call would load. See @ref calls. */
KILN_API kiln_status kiln_attention_forward_prepare(kiln_context *context, const kiln_attention_forward_args *args);
/** Computes o and softmax_lse. See @ref calls. */
KILN_API kiln_status kiln_attention_forward(kiln_context *context, const kiln_attention_forward_args *args,
                                            void *workspace, size_t workspace_bytes, kiln_stream stream);

/**
 * Arguments of attention_backward: the description of the forward call, by pointer, and the gradients.
 * P is recomputed from softmax_lse; nothing quadratic is stored.
 *
 *   dv_j = Σ_i dropout(p_ij)·do_i;  dp_ij = dropout'(do_i·v_j);  ds_ij = p_ij·(dp_ij - D_i + dlse_i), D_i = do_i·o_i;
 *   dq_i = scale·Σ_j ds_ij·c_ij·k_j;  dk_j = scale·Σ_i ds_ij·c_ij·q_i, c = 1 - (s/softcap)^2 (1 without softcap);
 *   dbias_ij = ds_ij (summed over broadcast axes);  dsink_h = Σ_i exp(sink_h - lse_i)·(dlse_i - D_i).
 *
 * `forward->o` and `forward->softmax_lse` are *inputs* here and required. `forward->algorithm` and `num_splits` are not
 * used; flags of both structs are ORed. lse is fp32: where the scores of a row are so large that a rounding
 * of lse is not small against 1 (beyond about 2^20: a huge finite bias, ALiBi over distant positions), p cannot be had from
 * it, and the gradients of that row are finite but meaningless. Elements of dbias that belong to no query or key of a
 * sequence (past seqused, past the last key after leftpad_k) are not written. `forward->block_table` and
 * `forward->cache_batch_idx` are refused: two sequences may share an entry of a cache, whose gradients would be the sum of
 * theirs.
 */
typedef struct kiln_attention_backward_args {
    size_t struct_size;                         /**< sizeof this struct */
    const kiln_attention_forward_args *forward; /**< the forward call's arguments, o and softmax_lse as it left them */
    const kiln_tensor *dout;                    /**< gradient of o, shape of o, any strides, q's type or fp32 */
    const kiln_tensor *dlse;                    /**< gradient of softmax_lse, fp32, its shape; NULL = 0 */
    const kiln_tensor *dq;                      /**< output, shape of q, q's type or fp32 */
    const kiln_tensor *dk;                      /**< output, shape of k, k's type or fp32. Paged keys are refused */
    const kiln_tensor *dv;                      /**< output, shape of v, v's type or fp32 */
    const kiln_tensor *dq2;                     /**< output, shape of q2; required when q2 is given */
    const kiln_tensor *dk2;                     /**< output, shape of k2 */
    const kiln_tensor *dbias;                   /**< output, fp32 or bias' type, shape of bias; NULL = not wanted */
    const kiln_tensor *dsinks;                  /**< output, fp32, (heads); NULL = not wanted */
    uint64_t flags;        /**< DETERMINISTIC, BATCH_INVARIANT, WORKSPACE_ZEROED, ACCUMULATE_DQ / _DK / _DV (also for
                                   q2 and k2) */
    int32_t max_sms;       /**< most multiprocessors (CPU: threads) to use; 0 = all */
    int32_t reserved;      /**< must be 0 */
    const char *algorithm; /**< NULL = auto */
} kiln_attention_backward_args;

/** Would the call be taken, and by which kernel? See @ref calls. */
KILN_API kiln_status kiln_attention_backward_supported(const kiln_context *context,
                                                       const kiln_attention_backward_args *args, char *why, size_t cap);
/** Bytes of scratch memory that the call needs. See @ref calls. */
KILN_API kiln_status kiln_attention_backward_workspace(const kiln_context *context,
                                                       const kiln_attention_backward_args *args, size_t *bytes);
/** Loads now what the first call would load. See @ref calls. */
KILN_API kiln_status kiln_attention_backward_prepare(kiln_context *context, const kiln_attention_backward_args *args);
/** Computes the gradients. See @ref calls. */
KILN_API kiln_status kiln_attention_backward(kiln_context *context, const kiln_attention_backward_args *args,
                                             void *workspace, size_t workspace_bytes, kiln_stream stream);

/**
 * Joins n partial results over disjoint sets of keys into the result over all of them:
 * lse = ln Σ exp lse_i, o = Σ exp(lse_i - lse)·o_i (Rabe and Staats 2021). The neutral element is (0, -inf): such a
 * part is not read beyond its lse. One part, or one non-neutral part, with a finite lse is passed
 * through exactly; a NaN or +inf among the lse gives NaN.
 */
typedef struct kiln_attention_merge_args {
    size_t struct_size;                  /**< sizeof this struct */
    const kiln_tensor *const *o_parts;   /**< n tensors, (batch, heads, seqlen_q, d_v) or (heads, total_q, d_v), fp32 or
                                              o's type, all of one type and shape, any strides */
    const kiln_tensor *const *lse_parts; /**< n tensors fp32, the shape of o without d_v */
    const kiln_tensor *o;                /**< output; may be o_parts[0] */
    const kiln_tensor *softmax_lse;      /**< output fp32; may be lse_parts[0]; NULL = not wanted */
    const kiln_tensor *sinks;            /**< fp32 or o's type, (heads): joins the sum here; NULL = none */
    int32_t num_parts;                   /**< n >= 1 */
    int32_t max_sms;                     /**< most multiprocessors (CPU: threads) to use; 0 = all */
    uint64_t flags;                      /**< KILN_FLAG_WORKSPACE_ZEROED, KILN_FLAG_BATCH_INVARIANT (always honoured) */
    const char *algorithm;               /**< NULL = auto */
} kiln_attention_merge_args;

/** Would the call be taken, and by which kernel? See @ref calls. */
KILN_API kiln_status kiln_attention_merge_supported(const kiln_context *context, const kiln_attention_merge_args *args,
                                                    char *why, size_t cap);
/** Bytes of scratch memory that the call needs. See @ref calls. */
KILN_API kiln_status kiln_attention_merge_workspace(const kiln_context *context, const kiln_attention_merge_args *args,
                                                    size_t *bytes);
/** Loads now what the first call would load. See @ref calls. */
KILN_API kiln_status kiln_attention_merge_prepare(kiln_context *context, const kiln_attention_merge_args *args);
/** Computes o and softmax_lse from the parts. See @ref calls. */
KILN_API kiln_status kiln_attention_merge(kiln_context *context, const kiln_attention_merge_args *args, void *workspace,
                                          size_t workspace_bytes, kiln_stream stream);
/** @} */

#ifdef __cplusplus
}
#endif
#endif /* KILN_KILN_H */
