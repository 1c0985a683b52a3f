/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * gpu_host.h: the host side of every GPU backend, in C: the vendor's runtime as a table of functions, a device, and the
 * methods (kernels with their host code) that a backend's select file lists.
 *
 *   gpu_runtime   what differs between cudart, HIP and the emulated device: memory, streams, events, launch. One table each:
 *                 backends/cuda/runtime_cuda.cu, backends/hip/runtime_hip.c, backends/simt/runtime_simt.cpp
 *   gpu_backend.c the slots of common/backend.h on top of it, the same for all
 *   gpu_select.c  which method a problem gets; gpu_method is one row of the ordered list in select_<name>.c
 */
#ifndef KILN_BACKENDS_GPU_HOST_H
#define KILN_BACKENDS_GPU_HOST_H

#include "../../common/backend.h"
#include "gpu_kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_device gpu_device;
typedef struct gpu_method gpu_method;

/*
 * What the vendor's runtime does. Functions return 0 or the runtime's own error code, which error_status() turns into a
 * status and error_text() into words. All but device_count, device_open, enter and the error functions are called between
 * enter() and leave(). Slots marked optional may be NULL: nothing to do. Any thread may call at any time.
 */
typedef struct gpu_runtime {
    const char *name;    /* "cuda", "hip", "simt-cuda", "simt-hip" */
    int32_t device_type; /* KILN_DEVICE_CUDA, ... */
    int32_t score;       /* for `auto`; 0 = only by name */
    bool host_readable;  /* device memory is host memory (emulated) */
    /* Devices that exist, or -1 with one sentence if there is none that could be used. Starts no context on any of them. */
    int32_t (*device_count)(char *reason, size_t cap);
    /* Fills the properties and `native` of a zeroed device whose services, runtime, methods and ordinal are set; undoes
     * itself on failure. */
    int (*device_open)(gpu_device *device);
    void (*device_close)(gpu_device *device); /* optional */
    /* Makes the device current for the calling thread; `before` is for leave(), which brings back what was. A context of
     * the caller's that is current on the device already is kept, and used. Optional, both. */
    int (*enter)(const gpu_device *device, void **before);
    void (*leave)(const gpu_device *device, void *before);
    int (*prepare)(const gpu_device *device, const gpu_kernel *kernel); /* optional: loads it. May be called again */
    /* Enqueues `blocks` >= 1 blocks. Also of a kernel that was never prepared, also on a stream that is being captured. */
    int (*launch)(const gpu_device *device, const gpu_kernel *kernel, int32_t blocks, const void *args,
                  kiln_stream stream);
    /* The same for a kernel that may begin before the one before it in the stream ends, and waits for that end itself, where it
     * needs it (gpu_chain_wait()). Optional: launch(). */
    int (*launch_chained)(const gpu_device *device, const gpu_kernel *kernel, int32_t blocks, const void *args,
                          kiln_stream stream);
    int (*malloc)(size_t bytes, void **pointer); /* aligned to 256 bytes; bytes > 0 */
    int (*free)(void *pointer);
    int (*copy)(void *destination, const void *source, size_t bytes, kiln_stream stream); /* waits for host memory */
    int (*fill)(void *destination, uint8_t value, size_t bytes, kiln_stream stream);      /* asynchronous */
    int (*stream_create)(kiln_stream *stream);
    int (*stream_destroy)(kiln_stream stream);
    int (*stream_synchronize)(kiln_stream stream);
    int (*event_create)(void **event);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, kiln_stream stream);
    int (*event_elapsed)(void *start, void *end, double *milliseconds); /* waits for `end` */
    kiln_status (*error_status)(int error);
    const char *(*error_text)(int error); /* valid until the thread's next call of the runtime */
} gpu_runtime;

/* State of one context. Immutable after open(), so calls may run concurrently. */
struct gpu_device {
    const kiln_services *services;
    const gpu_runtime *runtime;
    const gpu_method *const *methods; /* NULL-terminated, in order of preference per operation */
    int32_t ordinal;
    int32_t units;           /* multiprocessors or compute units */
    int32_t architecture;    /* CUDA: 10·major + minor; HIP: the hexadecimal gfx number; emulated: its model's */
    int32_t wave;            /* lanes */
    int64_t shared_bytes;    /* largest of a block, opt-in included */
    int64_t shared_per_unit; /* of a multiprocessor */
    int64_t l2_bytes, memory_bytes;
    char name[128], architecture_name[32]; /* "NVIDIA H200", "sm_90" */
    void *native;                          /* the runtime's own */
};

/*
 * One way to do an operation: a rung of the ladder with its kernels and host code. Several methods may share a rung
 * (`flash2` for 16-bit types and for fp32, say); the first that supports the problem is taken.
 * Workspace: 256-byte aligned, `workspace(...)` bytes, garbage on entry.
 */
struct gpu_method {
    kiln_op op;
    const char *algorithm; /* rung */
    const char *name;      /* "attention_forward_flash2" */
    /* May it run? If not, says so in `why`: one sentence that names the argument, its value and what is allowed. Strides of
     * the last axis need no look: gpu_select.c has refused what is not 1. */
    bool (*supports)(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap);
    /* Is it the better choice among those that may run? Asked only when no algorithm is named; metadata and device model
     * only. NULL = yes. */
    bool (*prefers)(const gpu_device *device, const kiln_problem *problem);
    size_t (*workspace)(const gpu_device *device, const kiln_problem *problem); /* NULL = 0 bytes */
    /* The i-th kernel that run() will launch, NULL past the last: for prepare(). */
    const gpu_kernel *(*kernel)(const gpu_device *device, const kiln_problem *problem, int32_t i);
    /* Launches, by gpu_launch(), and returns the first status that is not KILN_OK. The device is current. Allocates and
     * waits for nothing; must not read what tensors hold. */
    kiln_status (*run)(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream);
    void (*numerics)(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics);
};

/*
 * gpu_backend.c: launches args->items work items (any number; 0 launches nothing) on at most max_blocks blocks (0 = no limit
 * but the grid's), and turns errors into statuses. `args` begins with items and has kernel->args_bytes bytes.
 */
kiln_status gpu_launch(const gpu_device *device, const gpu_kernel *kernel, const void *args, int64_t max_blocks,
                       kiln_stream stream);
/* The same by launch_chained(), for the kernels of a call after its first. */
kiln_status gpu_launch_chained(const gpu_device *device, const gpu_kernel *kernel, const void *args, int64_t max_blocks,
                               kiln_stream stream);

/* gpu_backend.c: fills device memory in stream order: for counters that a kernel expects to be zero. */
kiln_status gpu_fill(const gpu_device *device, void *destination, uint8_t value, size_t bytes, kiln_stream stream);

/* Blocks that stay on max_sms multiprocessors (0 = all: no limit). One each, because blocks are dealt out one by one. */
static inline int64_t gpu_max_blocks(int32_t max_sms)
{
    return max_sms;
}

/* gpu_select.c: the first method for this problem whose algorithm matches, which supports it and, where none is named,
 * prefers it; NULL with `why` filled otherwise (and *unknown set if no backend has a rung of that name). */
const gpu_method *gpu_select(const gpu_device *device, const kiln_problem *problem, bool *unknown, char *why,
                             size_t cap);

/*
 * The table of a backend. GPU_BACKEND(cuda, gpu_runtime_cuda, gpu_methods_cuda) in a C file defines
 * `static const kiln_backend *cuda(const kiln_services *)`, for the plug-in's kiln_backend_entry() (which is called under the
 * registry's lock). Slots that have no state are bound here; the rest is gpu_backend.c's.
 */
int32_t gpu_backend_probe(const gpu_runtime *runtime, char *reason, size_t cap);
int32_t gpu_backend_device_count(const gpu_runtime *runtime);
kiln_status gpu_backend_open(const gpu_runtime *runtime, const gpu_method *const *methods,
                             const kiln_open_options *options, void **state);
/* Fills the table but for these three, unless it is full. */
void gpu_backend_table(kiln_backend *table, const gpu_runtime *runtime, const kiln_services *services);

#define GPU_BACKEND(function, bound_runtime, bound_methods)                                                            \
    static int32_t function##_probe(char *reason, size_t cap)                                                          \
    {                                                                                                                  \
        return gpu_backend_probe(&(bound_runtime), reason, cap);                                                       \
    }                                                                                                                  \
    static int32_t function##_device_count(void)                                                                       \
    {                                                                                                                  \
        return gpu_backend_device_count(&(bound_runtime));                                                             \
    }                                                                                                                  \
    static kiln_status function##_open(const kiln_open_options *options, void **state)                                 \
    {                                                                                                                  \
        return gpu_backend_open(&(bound_runtime), bound_methods, options, state);                                      \
    }                                                                                                                  \
    static const kiln_backend *function(const kiln_services *services)                                                 \
    {                                                                                                                  \
        static kiln_backend table = {                                                                                  \
            .probe = function##_probe, .device_count = function##_device_count, .open = function##_open};              \
        gpu_backend_table(&table, &(bound_runtime), services);                                                         \
        return &table;                                                                                                 \
    }

#ifdef __cplusplus
}
#endif
#endif
