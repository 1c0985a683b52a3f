/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_output.inc.h: where results go, and what the memory does while the core computes.
 *
 * A tensor that no cache will hold when the call is over is written past the caches: an ordinary store reads each line
 * first and pushes out what is still wanted, which makes three bytes of traffic out of two. Such stores need whole
 * aligned lines, and rows end anywhere. So results pass through a stage in L1, where a block begins on a line whatever its place
 * in memory: lines of the memory are then read across two of the stage, which costs far less than results stored across
 * two. Rows that follow each other in memory do so in the stage, and only the first and the last line of a worker's
 * share are written piecemeal. The lines leave one by one between exponentials of the next block, while prefetches bring
 * the block after it: reading, writing and computing overlap.
 *
 * Whether to stream depends on the shape and on y being x, never on the machine; no bit depends on it.
 */
#ifndef KILN_CPU_REF_SOFTMAX_OUTPUT_INC_H
#define KILN_CPU_REF_SOFTMAX_OUTPUT_INC_H

#include "softmax_rows.inc.h"

enum { SOFTMAX_LINE = 64 };
#define SOFTMAX_STREAM_LEAST ((int64_t)32 << 20) /* bytes of a tensor */
enum { SOFTMAX_STREAM_ROW = 1024 };              /* bytes of a row that stands alone */

/* Bytes [from, end) of the stage wait for their place, which is `to` + the same. Not streaming: the stage is scratch for
 * strided rows. */
typedef struct softmax_output {
    _Alignas(SOFTMAX_LINE) char stage[4 * SOFTMAX_CHUNK + 3 * SOFTMAX_LINE];
    char *to; /* may lie before the tensor */
    int from, end;
    bool streams;
} softmax_output;

static inline bool softmax_streams(const kiln_softmax_problem *p, const kiln_rows *out, const kiln_rows *in)
{
    int64_t row = p->n * kiln_type_size(out->type);
    bool dense = p->outer_rank == 0 || out->outer_stride[p->outer_rank - 1] == p->n;
    return VF_STREAMS && (out->stride == 1 || p->n == 1) && out->data != in->data &&
           p->rows * row >= SOFTMAX_STREAM_LEAST && (dense || row >= SOFTMAX_STREAM_ROW);
}

/* The least elements of a share that is drawn: what it costs to begin and to end one is little then. */
enum { SOFTMAX_SHARE_ELEMENTS = 1 << 18 };

/* All rows of p, by `share`. What is written past the caches was not in them before either. */
static void softmax_parallel_rows(const kiln_cpu *cpu, const kiln_softmax_problem *p, int32_t workers, bool streams,
                                  void (*share)(void *arg, int32_t worker, int64_t begin, int64_t end), void *arg)
{
    if (streams)
        rows_parallel_drawn(cpu, workers, p->rows, 1 + SOFTMAX_SHARE_ELEMENTS / p->n, share, arg);
    else
        rows_parallel_shares(cpu, workers, p->rows, share, arg);
}

static inline void softmax_output_open(softmax_output *out, bool streams)
{
    out->streams = streams;
    out->to = out->stage; /* no row lies there; a null pointer may not even be advanced by 0 */
    out->from = out->end = SOFTMAX_LINE;
}

/* Bytes from `from` to the next line of the memory. */
static inline int softmax_output_short(const softmax_output *out)
{
    return (int)(-(uintptr_t)(out->to + out->from) % SOFTMAX_LINE);
}

/* The first line, if it is not all ours. After this whole lines begin at `from`, if there are any. */
static inline void softmax_output_head(softmax_output *out)
{
    const int count = softmax_output_short(out);
    if (count == 0 || out->from + count > out->end)
        return;
    memcpy(out->to + out->from, out->stage + out->from, (size_t)count);
    out->from += count;
}

static inline bool softmax_output_has_line(const softmax_output *out)
{
    return out->from + SOFTMAX_LINE <= out->end && softmax_output_short(out) == 0;
}

/* Sends the lines that are left; what is less than a line moves to the front and waits, so that the stage's first line ends
 * with it. */
static void softmax_output_settle(softmax_output *out)
{
    softmax_output_head(out);
    if (softmax_output_has_line(out))
        for (; out->from + SOFTMAX_LINE <= out->end; out->from += SOFTMAX_LINE)
            vf_stream_line(out->to + out->from, out->stage + out->from);
    const int moved = out->end - SOFTMAX_LINE;
    if (out->from < out->end)
        memmove(out->stage, out->stage + moved, SOFTMAX_LINE);
    out->to += moved;
    out->from -= moved;
    out->end = SOFTMAX_LINE;
}

static void softmax_output_flush(softmax_output *out)
{
    softmax_output_settle(out);
    memcpy(out->to + out->from, out->stage + out->from, (size_t)(out->end - out->from));
    out->from = out->end;
}

/* Where to write `bytes` that belong at `to`, and up to a vector more. The stage was settled before this block. */
static inline char *softmax_output_place(softmax_output *out, char *to, int bytes)
{
    if (to != out->to + out->end) {
        if (out->end > out->from)
            softmax_output_flush(out);
        out->from = out->end = SOFTMAX_LINE;
        out->to = to - SOFTMAX_LINE;
    }
    char *at = out->stage + out->end;
    out->end += bytes;
    return at;
}

/* Before other threads may look. */
static void softmax_output_close(softmax_output *out)
{
    if (!out->streams)
        return;
    if (out->end > out->from)
        softmax_output_flush(out);
    vf_stream_fence();
}

/* Tensors often lie alike in their pages, and then a line that leaves has the low address bits of the line read next, for which
 * the processor takes the store to hold it: lines leave some lines behind those that are read. */
enum { SOFTMAX_BEHIND = 4 };

/*
 * What rides along with the exponentials of a block, line by line: `read` is fetched; the stage's lines leave for `to`, or,
 * where results are not streamed, the lines that the block will be written to are fetched. fp32 is fetched into the second
 * cache, where its time goes to the memory; 16-bit types keep the core busy, so they come all the way.
 */
typedef struct softmax_ride {
    const char *read, *read_end;
    const char *from, *from_end;
    char *to;
    const char *write, *write_end;
    int wait; /* lines to read before the first leaves, see SOFTMAX_BEHIND */
} softmax_ride;

/* `read`: what will be loaded next, `write`: what will be written (NULL: nothing), each of so many bytes. Wrong guesses
 * cost a few instructions. */
VF_INLINE void softmax_ride_begin(softmax_ride *ride, softmax_output *out, const char *read, int64_t read_bytes,
                                  const char *write, int64_t write_bytes)
{
    ride->wait = SOFTMAX_BEHIND;
    ride->read =
        read - (uintptr_t)read % SOFTMAX_LINE; /* or the last line, which begins between two steps, would be missed */
    ride->read_end = read + read_bytes;
    ride->write = write;
    ride->write_end = write && !out->streams ? write + write_bytes : write;
    if (out->streams)
        softmax_output_head(out);
    ride->to = out->to + out->from;
    ride->from = out->stage + out->from;
    ride->from_end = ride->from;
    if (out->streams && softmax_output_has_line(out))
        ride->from_end += (out->end - out->from) & -SOFTMAX_LINE;
}

VF_INLINE void softmax_ride_end(const softmax_ride *ride, softmax_output *out)
{
    for (const char *read = ride->read; read < ride->read_end; read += SOFTMAX_LINE)
        __builtin_prefetch(read, 0, 2);
    out->from = (int)(ride->from - out->stage);
}

VF_INLINE void softmax_ride_line(softmax_ride *ride, bool wide)
{
    if (ride->read < ride->read_end) {
        if (wide)
            __builtin_prefetch(ride->read, 0, 2);
        else
            __builtin_prefetch(ride->read);
        ride->read += SOFTMAX_LINE;
    }
    if (ride->wait > 0) {
        ride->wait--;
    } else if (ride->from < ride->from_end) {
        vf_stream_line(ride->to, ride->from);
        ride->from += SOFTMAX_LINE;
        ride->to += SOFTMAX_LINE;
    }
    if (ride->write < ride->write_end) {
        __builtin_prefetch(ride->write, 1);
        ride->write += SOFTMAX_LINE;
    }
}

#endif
