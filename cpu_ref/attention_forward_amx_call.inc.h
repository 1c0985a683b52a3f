/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_amx_call.inc.h: a call of attention_forward_flash2_amx.inc.h: what all its workers share, the layout of
 * the workspace, packing.
 */
#ifndef KILN_CPU_REF_ATTENTION_FORWARD_AMX_CALL_INC_H
#define KILN_CPU_REF_ATTENTION_FORWARD_AMX_CALL_INC_H

#include "attention_amx_odd.inc.h"
#include "attention_scores.inc.h"

enum {
    AMX_TILES = 16, /* most tiles of a task */
    AMX_SUPER = 4   /* blocks of a super-block */
};
#define AMX_PACKED_BYTES ((int64_t)256 << 20)

typedef struct amx_tile {
    tile lanes;
    amx_state state;
    float *odd_o;       /* as state.o, see `odd_seen` */
    uint32_t odd_lanes; /* whose q holds odd numbers */
    bool odd_seen;      /* odd_o is in use, else garbage */
    bool fresh;         /* state.o is garbage and counts as 0 */
    bool settled;       /* every lane has seen a score above -inf */
    bool begun, ended;  /* q is packed; o is written */
} amx_tile;

/* How far a KV head is. */
typedef struct amx_head {
    int64_t begun;   /* tasks */
    int64_t waiting; /* tasks that were drawn before it was packed */
    bool packed;
} amx_head;

typedef struct amx_call {
    attention_call call;
    int64_t group;               /* query heads of one KV head */
    int64_t steps_k, steps_v;    /* d and d_v in 32s, rounded up */
    int64_t tiles, tasks_a_head; /* of a task; of the longest head */
    int64_t tiles_a_head;
    bool taper;    /* tasks grow smaller in the end */
    bool owned;    /* the first task of each head packs its keys */
    bool together; /* and is the only one: packs to a place of its worker */
    float c;       /* |scale|·log2 e */
    uint16_t sign; /* of the scale: turns q */
    kiln_cpu_queue *queue;
    kiln_cpu_queue *waiting; /* tasks of all heads that wait */
    kiln_cpu_queue *gone;    /* workers that have left the loop */
    int32_t workers;
    amx_head *heads;                /* [batch·heads_k] */
    int64_t *first_block;           /* [batch·heads_k + 1]: blocks before those of each KV head */
    int64_t begin_head, end_head;   /* of this round, batch entry by batch entry */
    int64_t capacity, worker_bytes; /* blocks packed at a time */
    amx_marks *marks;               /* [capacity] */
    uint16_t *k, *v;                /* [capacity][AMX_BLOCK·steps·32] */
    char *memory;                   /* of workers */
} amx_call;

typedef struct amx_worker_memory {
    amx_tile *tiles;
    float *s[2];       /* scores of two units in turn, tiles of keys x lanes */
    uint32_t *p[2];    /* weights of two blocks in turn, tiles of pairs of keys x lanes */
    float *sum;        /* of the weights of a block, of each lane */
    float *again;      /* scores of a block */
    uint32_t *visible; /* [AMX_BLOCK][2]: bit = lane */
    float *o;          /* [d_v][AMX_LANES] */
    float *buffer;     /* VF_LANES rows of o */
} amx_worker_memory;

static void *amx_take(char *memory, int64_t *used, int64_t bytes)
{
    void *x = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return x;
}

/*
 * The same, 1024·`phase` bytes past a page. A load whose low 12 address bits are those of a store just before waits for it.
 * Tiles are quarters of a page, and where accumulators change over, S is stored just before O, P and V are loaded, and O
 * just before Q and K are: with these phases, the best of all, no load meets a store since the last product, and four meet
 * one of the three products before.
 */
enum { PHASE_S = 0, PHASE_Q = 0, PHASE_P = 2, PHASE_V = 1, PHASE_O = 2, PHASE_K = 3 };

static void *amx_take_phase(char *memory, int64_t *used, int64_t bytes, int phase)
{
    *used += (4096 + 1024 * phase - *used % 4096) % 4096;
    return amx_take(memory, used, bytes);
}

/* Lays out the memory of a worker (NULL: only counts) and returns its bytes. */
static int64_t amx_worker_place(const amx_call *f, char *memory, amx_worker_memory *w)
{
    const int64_t float_row = AMX_LANES * (int64_t)sizeof(float);
    int64_t used = 0;
    w->tiles = amx_take(memory, &used, AMX_TILES * (int64_t)sizeof(amx_tile));
    for (int i = 0; i < 2; i++)
        w->s[i] = amx_take_phase(memory, &used, 32 * float_row, PHASE_S);
    for (int i = 0; i < 2; i++)
        w->p[i] = amx_take_phase(memory, &used, AMX_BLOCK / 2 * float_row, PHASE_P);
    w->sum = amx_take(memory, &used, float_row);
    w->again = amx_take(memory, &used, AMX_BLOCK * float_row);
    w->visible = amx_take(memory, &used, AMX_BLOCK * 2 * (int64_t)sizeof(uint32_t));
    w->o = amx_take(memory, &used, f->call.p->d_v * float_row);
    w->buffer = amx_take(memory, &used, VF_LANES * buffer_stride(f->call.p->d_v) * (int64_t)sizeof(float));
    for (int i = 0; i < AMX_TILES; i++) {
        void *q = amx_take_phase(memory, &used, f->steps_k * 32 * AMX_LANES * 2, PHASE_Q);
        void *o = amx_take_phase(memory, &used, f->steps_v * 32 * float_row, PHASE_O);
        void *m = amx_take(memory, &used, float_row), *l = amx_take(memory, &used, float_row);
        void *odd_o = amx_take(memory, &used, f->steps_v * 32 * float_row);
        if (memory) {
            w->tiles[i].state = (amx_state){q, o, m, l};
            w->tiles[i].odd_o = odd_o;
        }
    }
    return (used + 4095) / 4096 * 4096;
}

static int64_t amx_blocks(int64_t keys)
{
    return (keys + AMX_BLOCK - 1) / AMX_BLOCK;
}

/* What follows from metadata, and the layout of the workspace (may be NULL). Returns its bytes. */
static size_t amx_layout(amx_call *f, const kiln_attention_problem *p, char *workspace, int32_t workers)
{
    const int64_t heads = p->batch * p->heads_k, longest = amx_blocks(p->seqlen_k);
    *f = (amx_call){.call = {.p = p, .nv = 2, .nq = AMX_LANES, .columns = p->d}, .group = p->heads / p->heads_k};
    f->steps_k = (p->d + 31) / 32;
    f->steps_v = (p->d_v + 31) / 32;
    const int64_t block_k = AMX_BLOCK * f->steps_k * 64, block_v = AMX_BLOCK * f->steps_v * 64;
    int64_t most = AMX_PACKED_BYTES / (block_k + block_v);
    most = most < longest ? longest : most;
    /* all there are: every sequence ends in a block of its own */
    const bool packed = kiln_view_present(&p->cu_seqlens_k);
    const int64_t all = packed ? p->heads_k * (amx_blocks(p->total_k) + p->batch) : heads * longest;
    f->capacity = most < all ? most : all;

    amx_worker_memory unused;
    int64_t used = 0;
    f->worker_bytes = amx_worker_place(f, NULL, &unused);
    f->queue = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    f->waiting = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    f->gone = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    f->heads = amx_take(workspace, &used, heads * (int64_t)sizeof(amx_head));
    f->first_block = amx_take(workspace, &used, (heads + 1) * (int64_t)sizeof(int64_t));
    f->marks = amx_take(workspace, &used, f->capacity * (int64_t)sizeof(amx_marks));
    f->k = amx_take_phase(workspace, &used, f->capacity * block_k, PHASE_K);
    f->v = amx_take_phase(workspace, &used, f->capacity * block_v, PHASE_V);
    f->memory = amx_take_phase(workspace, &used, workers * f->worker_bytes, 0);
    return (size_t)used;
}

/* Where the keys of a block lie in k or v; NULL past the end of the sequence. */
static void amx_key_rows(const kiln_attention_problem *p, const kiln_view *view, const kiln_sequence *seq,
                         int64_t head_k, int64_t block, const char **rows)
{
    for (int64_t r = 0, key = block * AMX_BLOCK; r < AMX_BLOCK; r++, key++)
        rows[r] = key < seq->seqlen_k ? key_row(p, view, seq, head_k, key) : NULL;
}

/* Packs block `block` of a KV head, number n of the workspace. */
static void amx_pack_block(const amx_call *f, const kiln_sequence *seq, int64_t head_k, int64_t block, int64_t n)
{
    const kiln_attention_problem *p = f->call.p;
    const char *k[AMX_BLOCK], *v[AMX_BLOCK];
    f->marks[n] = (amx_marks){{0}, {0}};
    amx_key_rows(p, &p->k, seq, head_k, block, k);
    amx_key_rows(p, &p->v, seq, head_k, block, v);
    amx_pack_keys(k, p->k.stride[3], p->d, f->k + n * AMX_BLOCK * f->steps_k * 32, f->marks[n].k);
    amx_pack_values(v, p->v.stride[3], p->d_v, f->v + n * AMX_BLOCK * f->steps_v * 32, f->marks[n].v);
}

#endif
