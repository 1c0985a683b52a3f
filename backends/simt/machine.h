/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * machine.h: the emulated device as its own files and the dialect (gpu_intrin_simt.h) see it. C and C++, no vendor header.
 *
 *   fiber.c      a lane is a fiber: stack, context switch
 *   scheduler.c  runs a block: waves in a seeded order, lanes of a wave until all stand at the same operation
 *   shadow.c     shared memory: bounds, alignment, initialised bytes, races, asynchronous copies
 *   tensors.c    global memory: which tensor, bounds, alignment, races between blocks, bytes
 *   counters.c   a wave's accesses grouped into instructions: bank conflicts, sectors; the sums of a launch
 *   launch.c     a launch: blocks over threads, faults, the seed
 *
 * A lane's code calls these functions; nothing of a machine is shared between blocks that run at the same time.
 */
#ifndef KILN_BACKENDS_SIMT_MACHINE_H
#define KILN_BACKENDS_SIMT_MACHINE_H

#include "../gpu/gpu_kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where an access stands in the source: what clang's __builtin_source_location() gives, which names the type and its fields. */
#ifdef __cplusplus
}
namespace std
{
struct source_location {
    struct __impl {
        const char *_M_file_name, *_M_function_name;
        unsigned _M_line, _M_column;
    };
};
} // namespace std
extern "C" {
typedef const std::source_location::__impl *simt_at;
#else
typedef const struct simt_location {
    const char *file, *function;
    unsigned line, column;
} * simt_at;
#endif

enum { SIMT_MAX_WAVE = 64, SIMT_MAX_THREADS = 1024 };

/* A wave operation at which a lane waits until all lanes of the wave have reached the same one. */
typedef struct simt_operation {
    const char *name;
    simt_at at;
    /* Runs once, when all lanes are there. The lanes' operations, by lane; NULL: the meeting is all there is. */
    void (*execute)(const struct simt_operation *const *lanes);
    const void *in[2];
    void *out;
    int64_t same[3]; /* what must be the same in all lanes: a shuffle's mask, the place of a tile */
} simt_operation;

typedef struct simt_machine simt_machine;
typedef struct simt_lane simt_lane;

/* What a lane may read of itself. */
struct simt_lane {
    int32_t thread, block, blocks; /* of the block; of the grid */
    simt_machine *machine;
};

/* The running lane. Initial-exec: read at every access, and a plug-in would else call a function for it. */
extern __thread simt_lane *simt_now __attribute__((tls_model("initial-exec"), visibility("hidden")));

void simt_arrive(const simt_operation *operation);
bool simt_block_barrier(simt_at at, const char *name, bool any); /* whether `any` holds for a thread of the block */
void simt_wave_barrier(simt_at at);
void simt_next_item(simt_at at); /* a block barrier; shared memory is poisoned again: items owe each other nothing */

enum {
    SIMT_WRITE = 1,
    SIMT_ANY_LANE = 2 /* a lane of the wave, but which one is the target's secret (WMMA) */
};
/* `bytes` of shared memory at `p`, which is element (row, column) of an array and must be aligned to `align`. `inside`:
 * whether the array has those elements. */
void simt_shared_access(const void *p, int bytes, int align, int flags, bool inside, int row, int column, simt_at at);
/* Counts one access of the hardware, which may be made of several checked ones. */
void simt_shared_count(const void *p, int bytes, bool write, simt_at at);

/* `bytes` of the tensor that `view` describes, aligned to `align`, elements of `element` bytes; row and column or all four
 * indices for the report. */
void simt_global_access(const kiln_view *view, const void *p, int bytes, int align, int element, bool write,
                        bool inside, const int64_t *index, int indices, simt_at at);
/* A word of global memory that several blocks may change at once: of the tensor that `view` describes (`inside`: whether it
 * is), or, where that is NULL, of memory that is no tensor. */
void simt_atomic_access(const kiln_view *view, const void *p, int bytes, bool inside, simt_at at);
/* The block waits for another one: its host thread lets others run; it ends where the launch has a fault already, and is one
 * where no other block ever comes. */
void simt_pause(simt_at at);

/* Starts the copy of `bytes` bytes, of which the first `valid` are read; zeros follow. Both ends have been judged. */
void simt_copy_async(void *to, const void *from, int bytes, int valid, simt_at at);
void simt_copy_commit(void);
void simt_copy_wait(int groups, simt_at at); /* until no more than `groups` committed groups are on their way */

void simt_count_exchange(void);
void simt_count_matrix_op(void);
void simt_fault(simt_at at, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* Where WMMA keeps element i of a lane, as row·16 + column: drawn from the seed. First index: 0 a, 1 b, 2 accumulator. */
extern uint16_t simt_wmma_place[3][32][8] __attribute__((visibility("hidden")));

/* A kernel's function: runs a lane; with shared memory NULL it names the tensors of its arguments instead. */
typedef void (*simt_entry)(const void *args, void *shared);
void simt_tensor(const char *name, const kiln_view *view);

#ifdef __cplusplus
}
#endif
#endif
