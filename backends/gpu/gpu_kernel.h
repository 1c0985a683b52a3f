/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * gpu_kernel.h: what host code in C and kernels in the device dialect share: the description of a kernel and the argument
 * structs. No vendor header, no C++.
 *
 * A kernel gets the normalised problem itself (common/problem.h) by value, with what the launch adds: one definition of
 * every tensor and option for host, device and oracle. Argument structs stay below 4 KB, the limit of a kernel's parameters.
 */
#ifndef KILN_BACKENDS_GPU_KERNEL_H
#define KILN_BACKENDS_GPU_KERNEL_H

#include "../../common/problem.h"

/*
 * One plug-in may hold several targets (kiln_simt.so does), so the symbols of kernels and methods carry the target's name,
 * which the build defines (-DGPU_TARGET=cuda, hip, simt_cuda, simt_hip): GPU_NAME(x) is x_cuda, GPU_INFO(x) x_cuda_info.
 */
#ifndef GPU_TARGET
#define GPU_TARGET gpu
#endif
#define GPU_PASTE_(symbol, target, what) symbol##_##target##what
#define GPU_PASTE(symbol, target, what)  GPU_PASTE_(symbol, target, what)
#define GPU_NAME(symbol)                 GPU_PASTE(symbol, GPU_TARGET, )
#define GPU_INFO(symbol)                 GPU_PASTE(symbol, GPU_TARGET, _info)

/* One entry point, as GPU_INFO(symbol); made by GPU_KERNEL (gpu_device.h) from the struct that is the kernel. */
typedef struct gpu_kernel {
    const char *name;
    void (*entry)(void); /* CUDA: the host stub; emulated: the function; HIP: the code objects with that name in them */
    int32_t threads;     /* of a block */
    int32_t blocks_per_unit; /* that a multiprocessor is meant to hold (launch bounds) */
    int32_t shared_bytes, args_bytes;
    int32_t wave;           /* lanes of a wave */
    int32_t tile_q, tile_k; /* rows and keys of a work item's tiles; 0 = not tiled */
} gpu_kernel;

/*
 * Every argument struct begins with `items`: the number of work items of the launch. Block i takes the items i, i + grid,
 * i + 2·grid, ...: grid limits never limit a shape, and a smaller grid (max_sms) only takes longer.
 */
typedef struct gpu_softmax_args {
    int64_t items;
    int64_t rows;
    /* Axes 0 to 2: the rows, in this order; axis 3: along the row. lse: axes 0 to 2. Absent ones have type 0. Problems with
     * more outer axes than three take several launches. */
    kiln_view x, y, lse; /* forward: x -> y, lse. backward: y is an input */
    kiln_view dy, dx;    /* backward */
    float scale;
    int32_t log;       /* log-softmax */
    int32_t invariant; /* bits must not depend on where a row lies */
    int32_t head;      /* columns before the first 16-byte boundary in row 0 of all tensors; -1: look at each row */
    int32_t head_step; /* by how many they grow from row to row, modulo the elements of 16 bytes */
    /* softmax_online: item i has the rows from i·spread on, `step` apart, before i·spread + run; of each the tile_q from there. */
    int64_t spread, run;
    int32_t step;
    /* Rows shared by blocks (softmax_split), and their workspace: */
    int32_t splits;      /* pieces of a row */
    uint64_t *ticket;    /* zeroed: the next piece */
    kiln_view partial;   /* zeroed, (rows, splits) int64: what is known of a piece, in a word */
    kiln_view forgotten; /* (pieces) int64: the piece forgotten before this one, by the same block */
} gpu_softmax_args;

typedef struct gpu_attention_args {
    int64_t items;
    kiln_attention_problem p;
    float scale_log2; /* softmax_scale · log2(e): scores of the matrix product become exponents of 2 */
    int32_t splits;   /* splitkv: pieces of the keys of the longest sequence */
    int64_t piece;    /* splitkv: keys of a piece; 0: p.num_splits pieces of each sequence */
    int64_t q_tiles;  /* of the longest sequence: items = batch · heads · q_tiles · splits */
    /* Workspace of the rungs that keep S, P or states in memory; see each rung's file. Types and extents in the views. */
    kiln_view scores, weights, part_o, part_lse;
} gpu_attention_args;

typedef struct gpu_backward_args {
    int64_t items;
    kiln_attention_backward_problem p;
    float scale_log2;
    int64_t q_tiles, k_tiles; /* of the longest sequence */
    kiln_view delta;          /* workspace: D - dlse, fp32, axes and extents as lse */
} gpu_backward_args;

enum {
    GPU_MERGE_PARTS = 16, /* of one launch; more parts take several */
    GPU_MERGE_THREADS = 256,
    GPU_MERGE_COLUMNS = 8 /* of a thread at a time */
};
/* Where a launch stands among those of a call. */
enum { GPU_MERGE_FIRST = 1, GPU_MERGE_LAST = 2 };
typedef struct gpu_merge_args {
    int64_t items;
    kiln_view o, lse, sinks;
    kiln_view o_part[GPU_MERGE_PARTS], lse_part[GPU_MERGE_PARTS];
    /* Workspace of calls with more parts, fp32, (batch, heads, rows, ...): largest lse and sum of weights, o so far. */
    kiln_view weight, sum;
    int32_t parts, step;
} gpu_merge_args;

/* Rows of a work item of the kernels that merge: a row stays in a block. */
KILN_INLINE int64_t gpu_merge_rows(int64_t d_v)
{
    const int64_t pieces = (d_v + GPU_MERGE_COLUMNS - 1) / GPU_MERGE_COLUMNS;
    return pieces > GPU_MERGE_THREADS / 2 ? 1 : GPU_MERGE_THREADS / (pieces > 0 ? pieces : 1);
}

#endif
