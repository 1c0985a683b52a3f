/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* state.h: the state of one emulated multiprocessor (a machine), shared by the files that machine.h lists. C only. */
#ifndef KILN_BACKENDS_SIMT_STATE_H
#define KILN_BACKENDS_SIMT_STATE_H

#include "machine.h"
#include "simt.h"

#include <string.h>

enum { STACK = 128 << 10 };           /* bytes of a lane's stack */
#define STACK_END 0x7374616b5f656e64u /* stands at the lowest word of a stack that was never too small */

enum lane_state { LANE_RUNS, LANE_AT_WAVE_OPERATION, LANE_AT_BLOCK_BARRIER, LANE_DONE };

/* An access since the wave last met: what counters.c groups into instructions. */
enum record_kind { SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE };
typedef struct record {
    simt_at at;
    uintptr_t where; /* shared: offset in the arena */
    int16_t bytes;
    uint8_t kind, tensor;
} record;

typedef struct async_copy {
    unsigned char *to;
    const void *from;
    int32_t bytes, valid, group;
    bool early;
    simt_at at;
} async_copy;

struct tensor;

/* A store to a tensor of KILN_SIMT_NAN, to be looked at when the lane is next heard of: it is there then. */
typedef struct stored {
    const struct tensor *of; /* NULL: none */
    const unsigned char *place;
    int64_t index[4];
    int32_t bytes, indices;
    simt_at at;
} stored;

typedef struct lane {
    simt_lane seen; /* first: simt_now points here */
    void *stack_pointer;
    enum lane_state state;
    simt_operation operation; /* at which it waits; block barriers use name and at */
    bool any, any_result;     /* of a block barrier with a vote */
    record *records;
    int32_t record_count, record_room;
    async_copy *copies;
    int32_t copy_count, copy_room, copy_group;
    stored stored;
} lane;

/* A shared byte: the last write, and the reads since. See shadow.c. */
typedef struct shadow_cell {
    uint64_t write, read;
} shadow_cell;

enum { LOCATIONS = 2048, TENSORS = SIMT_TENSORS, ARGS_LIMIT = 4096 };

/* A tensor of the launch's arguments. */
typedef struct tensor {
    const char *name;
    const kiln_view *view;
    uintptr_t begin, end; /* the bytes from its lowest to its highest element */
    int32_t element;      /* bytes */
    int32_t region;
    bool watched;        /* KILN_SIMT_NAN names it */
    uint8_t *touched[2]; /* a bit per element that was read, and written; atomic */
} tensor;

/* Memory that tensors cover, those that overlap (k and v, an in-place softmax) together: who wrote and read each granule, the
 * smallest element of the tensors. See regions.c. */
typedef struct region_cell {
    uint64_t write, read; /* atomic */
} region_cell;
typedef struct region {
    uintptr_t begin, end;
    int32_t granule;
    region_cell *cells;
} region;

/* What the blocks of a launch share; read-only while they run, but for `next` and the first fault. */
typedef struct launch {
    const gpu_kernel *kernel;
    const void *args;
    int32_t blocks;
    uint64_t seed;
    const int32_t *order; /* of the blocks */
    int32_t next;         /* atomic: place in `order` of the next block */
    int32_t stop;         /* atomic: a block has a fault */
    tensor tensors[TENSORS];
    region regions[TENSORS];
    int32_t tensor_count, region_count;
    uint8_t tensor_of[ARGS_LIMIT / 8]; /* 1 + number of the tensor whose view stands at this place of the arguments */
    char *fault;
    size_t fault_cap;
    int32_t fault_place; /* in `order`; the earliest wins */
    simt_counters *counters;
} launch;

struct simt_machine {
    launch *launch;
    lane *lanes;
    char *stacks;
    size_t stacks_bytes;
    int32_t lane_room;
    int32_t block, wave; /* wave: lanes of one */
    void *scheduler;     /* its stack pointer while a lane runs */
    uint64_t random;
    uint32_t block_epoch, wave_epoch[SIMT_MAX_THREADS / 32];
    int32_t arrived[SIMT_MAX_THREADS / 32];
    unsigned char *arena_block, *arena;
    size_t arena_room;
    shadow_cell *shadow;
    size_t shadow_room;
    simt_at location[LOCATIONS]; /* hash table: a location's number is its place */
    simt_at last_at;
    uint32_t last_location;
    int64_t conflicts[LOCATIONS];
    simt_counters count;
    char fault[512]; /* not empty: the block has ended with it */
    bool abandoned;  /* it waited for a block that has a fault, and has none of its own */
    int32_t pauses;
    struct simt_machine *next_free;
};

static inline lane *this_lane(void)
{
    return (lane *)simt_now;
}

static inline simt_machine *this_machine(void)
{
    return simt_now->machine;
}

static inline const char *location_file(simt_at at)
{
    const char *slash = at ? strrchr(at->file, '/') : NULL;
    return !at ? "?" : slash ? slash + 1 : at->file;
}

static inline unsigned location_line(simt_at at)
{
    return at ? at->line : 0;
}

/* splitmix64 */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline void shuffle(int32_t *order, int32_t n, uint64_t *state)
{
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)(random_next(state) % (uint64_t)(i + 1)), x = order[i];
        order[i] = order[j], order[j] = x;
    }
}

/* fiber.c: the context of the caller goes to *save; continues at `to`. A new fiber runs `entry`, which never returns. */
void fiber_switch(void **save, void *to);
void *fiber_new(char *stack_top, void (*entry)(void));

/* scheduler.c. False: machine->fault says why. */
bool run_block(simt_machine *machine, int32_t block);

/* shadow.c */
void shadow_poison(simt_machine *machine);
uint32_t location_number(simt_machine *machine, simt_at at);

/* counters.c */
void count_record(simt_at at, uintptr_t where, int bytes, enum record_kind kind, int tensor);
void count_instructions(simt_machine *machine, lane *wave);
void counters_lines(simt_machine *machine);
void counters_line(simt_counters *counters, const char *file, unsigned line, int64_t conflicts);
void counters_add(simt_counters *sum, const simt_counters *more);

/* tensors.c */
bool tensors_of_launch(launch *l);
void tensors_free(launch *l);
void stored_check(lane *me); /* a fault if its last store to a watched tensor was NaN */

/* regions.c. `name` is the tensor's, `index` the text of the place, for reports. */
bool regions_of_launch(launch *l);
void regions_free(launch *l);
void region_access(simt_machine *machine, const tensor *t, uintptr_t address, int bytes, bool write, simt_at at);

/* Zeroed pages that cost nothing until they are touched; NULL if there are none. */
void *zeroed(size_t bytes);
void zeroed_free(void *memory, size_t bytes);

#endif
