/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_backward_wgmma.h: arguments of the Hopper backward kernels, shared by their host code and themselves. */
#ifndef KILN_BACKENDS_CUDA_ATTENTION_BACKWARD_WGMMA_H
#define KILN_BACKENDS_CUDA_ATTENTION_BACKWARD_WGMMA_H

#include "attention_wgmma.h"

enum {
    GPU_WGMMA_ROWS = 64,    /* of a tile that is done again, and keys of a warpgroup */
    GPU_WGMMA_KEYS = 128,   /* of an item at head sizes up to 128 */
    GPU_WGMMA_LIFT_F16 = 6, /* P and dS are larger by 2^this */
    GPU_WGMMA_LIFT_BF16 = 24,
};

/* What an item does with its part of dQ: adds it to what is there; puts it there, being the first; adds it when the first has left. */
enum { GPU_WGMMA_ADDS, GPU_WGMMA_PUTS, GPU_WGMMA_WAITS };

/* An item of the main kernel: `prepare` writes them down, or a thread would spend 2 us on it while its block waits. m counts
 * tiles of queries from the sequence's first on. */
typedef struct gpu_wgmma_backward_work {
    int32_t q_row, q_batch, k_row, k_batch; /* of the sequence's first query, of my first key */
    int32_t head_k, keys;                   /* fewer at the end of a sequence; 0: nothing to do at all */
    int32_t low, high;                      /* query i sees of my keys [i + low, i + high) */
    int32_t m_first, m_past;                /* tiles with queries that see one */
    int32_t clear_first, clear_past;        /* of these, where all queries see all my keys */
    int32_t q_tile;                         /* in the workspace: m = 0 of the first head */
    int32_t turn;                           /* which of the sequence's items of keys */
    int32_t head;                           /* first query head */
    uint32_t votes;                         /* 0: for the block that works on it */
    int32_t dq, unused;                     /* what happens to dQ: GPU_WGMMA_ADDS ... */
    int64_t again;                          /* my first tile as `again` counts */
    int64_t number;                         /* of this record */
} gpu_wgmma_backward_work;

/* An item of the kernel that makes dQ where that is a pass of its own; n counts tiles of GPU_WGMMA_ROWS keys from the sequence's first
 * on. */
typedef struct gpu_wgmma_backward_rows {
    int32_t q_row, q_batch, k_row, k_batch; /* of my first query, of the sequence's first key */
    int32_t head, head_k;
    int32_t rows, keys;      /* mine, fewer at the end of a sequence, 0: nothing to do at all; of the sequence */
    int32_t low, high;       /* my query i sees keys [i + low, i + high) */
    int32_t n_first, n_past; /* tiles with keys that one sees */
    int32_t clear_first, clear_past; /* of these, where all queries see all keys */
    int32_t q_tile, unused;          /* in the workspace, of GPU_WGMMA_ROWS rows: my first */
    int64_t again;                   /* the same as `again` counts, downwards */
} gpu_wgmma_backward_rows;

/*
 * Workspace by tiles of queries, whose size depends on the head size. A head has q_room of them, of all sequences
 * (gpu_wgmma_tile_of() says where one begins).
 */
typedef struct gpu_wgmma_backward_args {
    union {
        int64_t items;          /* base.items */
        gpu_backward_args base; /* q_tiles, k_tiles: of GPU_WGMMA_ROWS, as `again` counts */
    };
    int64_t m_tiles, n_tiles; /* of the longest sequence: of the main kernel's tiles of queries and of keys */
    int64_t q_room;
    int64_t works;                      /* items */
    int64_t group, parts;               /* heads of an item; items, in a row, that share a KV head's keys */
    int64_t section;                    /* masked or ordered: KV heads whose Q, dO and dQ are meant to share the L2 */
    int64_t rows_outside;               /* an item's steps: heads of a tile of queries, not tiles of a head */
    gpu_wgmma_backward_work *work;      /* in the order in which they are given out */
    gpu_wgmma_backward_rows *rows_work; /* the same of dQ, where it is a pass of its own */
    int64_t rows_works, rows_section;   /* query heads whose K and V are meant to share the L2 */
    float *part;                        /* parts > 1: dv and dk of each item, in the order of the registers */
    float *dq; /* tiles of rows x D fp32 sums, in the order of the registers; NULL where it is a pass of its own */
    float *lse, *delta; /* tiles of rows: -lse·log2(e), and D - dlse; in the order of the registers */
    /* Tiles whose gradient is not finite, to be done again: numbers of tiles of keys, and of queries; how many of each. Then
     * how many items have been given out, and how many of dQ. */
    int64_t *open_k, *open_q;
    uint32_t *open;
    /* Of each tile of dQ: whose turn it is to add to it, from the last keys to the first. NULL: in any order. */
    uint32_t *turn;
    /* Of each tile of dQ, used of an item's first: has the item of the first keys put its part there? NULL (so where
     * there are parts): dQ begins as 0. */
    uint32_t *put;
    int64_t sent_keys; /* dk and dv may leave by the copy engine: boxes of 16 rows */
    gpu_tensor_map q, k, v, dout, dk, dv;
} gpu_wgmma_backward_args;

/* The first tile of `rows` rows of sequence b, whose first row of a packed tensor is `row`: sequences never share one. */
KILN_INLINE int64_t gpu_wgmma_tile_of(bool packed, int64_t b, int64_t row, int64_t rows, int64_t tiles_of_sequence)
{
    return packed ? row / rows + b : b * tiles_of_sequence;
}

#endif
