/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rows.inc.h: what kernels that work row by row share: strided elements, and the loop over equal tasks.
 *
 * Included in kernels_<isa>.c after simd_<isa>.h, by the bodies that need it.
 */
#ifndef KILN_CPU_REF_ROWS_INC_H
#define KILN_CPU_REF_ROWS_INC_H

enum {
    ROWS_WORKER_ELEMENTS = 16384, /* with less to do, another worker costs more than it brings */
    ROWS_SHARES = 16              /* most that a worker draws, if all are equally fast */
};

/* Strided elements, side by side in `to`, bit for bit. */
static void rows_gather(void *to, const char *from, int32_t type, int64_t stride, int count)
{
    if (stride == 1)
        memcpy(to, from, (size_t)count * (size_t)kiln_type_size(type));
    else if (type == KILN_FLOAT32)
        for (int j = 0; j < count; j++)
            memcpy((char *)to + 4 * j, from + 4 * j * stride, 4);
    else
        for (int j = 0; j < count; j++)
            memcpy((char *)to + 2 * j, from + 2 * j * stride, 2);
}

static void rows_scatter(char *to, const void *from, int32_t type, int64_t stride, int count)
{
    if (stride == 1)
        memcpy(to, from, (size_t)count * (size_t)kiln_type_size(type));
    else if (type == KILN_FLOAT32)
        for (int j = 0; j < count; j++)
            memcpy(to + 4 * j * stride, (const char *)from + 4 * j, 4);
    else
        for (int j = 0; j < count; j++)
            memcpy(to + 2 * j * stride, (const char *)from + 2 * j, 2);
}

/* to = value, rounded to `type`; unit stride. */
VF_INLINE void rows_store_type(char *to, int32_t type, int count, const float *value)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2;
    int j = 0;
    for (; j + VF_LANES <= count; j += VF_LANES)
        vf_store_type(to + j * size, type, vf_load(value + j));
    if (j < count)
        vf_store_type_tail(to + j * size, type, vf_load(value + j), count - j);
}

/* The same for any stride. `scratch`: count elements of at most 4 bytes. `value` is padded to whole vectors. */
static void rows_store(char *to, int32_t type, int64_t stride, int count, const float *value, void *scratch)
{
    char *unit = stride == 1 ? to : scratch;
    switch (type) {
    case KILN_FLOAT32: rows_store_type(unit, KILN_FLOAT32, count, value); break;
    case KILN_FLOAT16: rows_store_type(unit, KILN_FLOAT16, count, value); break;
    default: rows_store_type(unit, KILN_BFLOAT16, count, value); break;
    }
    if (stride != 1)
        rows_scatter(to, scratch, type, stride, count);
}

/* Tasks [0, count) in contiguous shares of equal size, one a worker: all tasks cost the same, and in a second loop over
 * the same tasks a worker meets what it has in its cache. Or in more shares than that, which workers draw: where what they have
 * in their caches is no use any more, and they may not be equally fast. */
typedef struct rows_loop {
    kiln_cpu_queue queue;
    void (*share)(void *arg, int32_t worker, int64_t begin, int64_t end);
    void (*task)(void *arg, int64_t task);
    void *arg;
    int64_t count, shares;
} rows_loop;

static void rows_share(const rows_loop *loop, int32_t worker, int64_t number)
{
    int64_t share = loop->count / loop->shares, more = loop->count % loop->shares;
    int64_t begin = share * number + (number < more ? number : more), end = begin + share + (number < more);
    if (loop->share)
        loop->share(loop->arg, worker, begin, end);
    else
        for (int64_t task = begin; task < end; task++)
            loop->task(loop->arg, task);
}

static void rows_worker(void *arg, int32_t worker)
{
    rows_share(arg, worker, worker);
}

static void rows_drawing_worker(void *arg, int32_t worker)
{
    rows_loop *loop = arg;
    for (int64_t number; (number = kiln_cpu_next(&loop->queue)) < loop->shares;)
        rows_share(loop, worker, number);
}

static void rows_parallel(const kiln_cpu *cpu, int32_t workers, int64_t count, void (*task)(void *arg, int64_t task),
                          void *arg)
{
    rows_loop loop = {.task = task, .arg = arg, .count = count, .shares = count < workers ? count : workers};
    kiln_cpu_parallel(cpu, (int32_t)loop.shares, rows_worker, &loop);
}

/* The same for a body that takes a whole share at a time. */
static void rows_parallel_shares(const kiln_cpu *cpu, int32_t workers, int64_t count,
                                 void (*share)(void *arg, int32_t worker, int64_t begin, int64_t end), void *arg)
{
    rows_loop loop = {.share = share, .arg = arg, .count = count, .shares = count < workers ? count : workers};
    kiln_cpu_parallel(cpu, (int32_t)loop.shares, rows_worker, &loop);
}

/* The same in shares that workers draw, of `least` tasks or more. */
static void rows_parallel_drawn(const kiln_cpu *cpu, int32_t workers, int64_t count, int64_t least,
                                void (*share)(void *arg, int32_t worker, int64_t begin, int64_t end), void *arg)
{
    const int64_t most = count / least, wanted = workers > 1 ? ROWS_SHARES * (int64_t)workers : 1;
    if (most <= workers) {
        rows_parallel_shares(cpu, workers, count, share, arg);
        return;
    }
    rows_loop loop = {.share = share, .arg = arg, .count = count, .shares = most < wanted ? most : wanted};
    kiln_cpu_parallel(cpu, workers, rows_drawing_worker, &loop);
}

/* How many of the workers are worth their cost for that many elements. Changes no bit. */
static int32_t rows_workers(int64_t rows, int64_t columns, int32_t workers)
{
    double worth = 1 + (double)rows * (double)columns / ROWS_WORKER_ELEMENTS;
    return worth < workers ? (int32_t)worth : workers;
}

#endif
