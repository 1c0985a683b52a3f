/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_bounds.c: not one byte outside. Every tensor lies alone between two pages without access, once with its first
 * byte at the beginning of its pages and once with its last byte at their end; inputs cannot be written; the workspace
 * is exactly as long as `workspace` says, and lies the same way. Results have the bytes of a run in the open.
 *
 * tests/op has a guard page behind each tensor in every case; here are the front, the workspace and the write
 * protection.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "problems.h"

typedef struct region {
    unsigned char *map, *data; /* data: of `bytes` */
    size_t map_bytes, bytes;
} region;

static region region_new(size_t bytes, bool at_end, size_t alignment)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    region r = {.map_bytes = body + 2 * page, .bytes = bytes};
    void *map = mmap(NULL, r.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TEST_REQUIRE(map != MAP_FAILED && (!body || mprotect((char *)map + page, body, PROT_READ | PROT_WRITE) == 0),
                 "the test itself could not map %zu bytes", r.map_bytes);
    r.map = map;
    r.data = r.map + page + (at_end ? body - (bytes + alignment - 1) / alignment * alignment : 0);
    return r;
}

/* Where a tensor's elements begin in its memory: the guard of tests/support lies before. */
static size_t begin_of(const test_tensor *t)
{
    int64_t low = 0;
    for (int i = 0; i < t->device.ndim; i++)
        if (t->shape[i] > 1 && t->stride[i] < 0)
            low += (t->shape[i] - 1) * t->stride[i];
    return (size_t)((int64_t)t->first + low * kiln_type_size(t->type));
}

enum { MOST_TENSORS = 32, THREADS = 3 };

/* Runs the problem with everything moved between guard pages and compares with p's memory, which holds the right result. */
static void run_fenced(problem *p, kiln_context *context, bool at_end)
{
    region regions[MOST_TENSORS];
    void *home[MOST_TENSORS];
    int count = 0;
    size_t bytes = 0;
    for (test_tensor *t = p->first; t != p->end; t = t->next, count++) {
        ck_assert_int_lt(count, MOST_TENSORS);
        home[count] = t->device.data;
        if (!t->bytes)
            continue;
        size_t begin = begin_of(t), size = (size_t)kiln_type_size(t->type), page = (size_t)sysconf(_SC_PAGESIZE);
        region *r = &regions[count];
        *r = region_new(t->bytes - begin, at_end, size);
        memcpy(r->data, t->image + begin, r->bytes);
        t->device.data = r->data + ((unsigned char *)t->device.data - t->memory) - begin;
        if (!t->output)
            ck_assert_int_eq(mprotect(r->map + page, r->map_bytes - 2 * page, PROT_READ), 0);
    }
    TEST_REQUIRE(test_workspace(p->op, context, &p->args, &bytes) == KILN_OK, "%s", kiln_last_error());
    region workspace = region_new(bytes, at_end, 256);
    memset(workspace.data, 0xff, bytes);
    kiln_status status = test_call(p->op, context, &p->args, bytes ? workspace.data : NULL, bytes);
    TEST_REQUIRE(status == KILN_OK, "%s: %s", p->name, kiln_last_error());
    if (at_end) /* up to 255 bytes that alignment left between the workspace and the next page */
        for (size_t i = bytes; i % 256; i++)
            TEST_REQUIRE(workspace.data[i] == 0, "%s wrote %zu bytes behind its workspace", p->name, i - bytes);
    munmap(workspace.map, workspace.map_bytes);
    count = 0;
    for (test_tensor *t = p->first; t != p->end; t = t->next, count++) {
        t->device.data = home[count];
        if (!t->bytes)
            continue;
        size_t begin = begin_of(t);
        TEST_REQUIRE(memcmp(regions[count].data, t->memory + begin, t->bytes - begin) == 0,
                     "%s: other bits between guard pages", p->name);
        munmap(regions[count].map, regions[count].map_bytes);
    }
}

/* False if it is refused. */
static bool fenced(problem *p)
{
    char why[512];
    kiln_context *context = test_context_threads(THREADS);
    if (test_supported(p->op, context, &p->args, why, sizeof why) != KILN_OK)
        return false;
    const char *failure = problem_run(p, context);
    TEST_REQUIRE(!failure, "%s: %s", p->name, failure);
    run_fenced(p, context, false);
    run_fenced(p, context, true);
    return true;
}

static const int32_t types[] = {KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16};

#define SHAPE(h, hk, sq, sk, dim) .heads = (h), .heads_k = (hk), .seqlen_q = (sq), .seqlen_k = (sk), .d = (dim)
#define ALL_STRIDES(s)            .q_strides = (s), .k_strides = (s), .v_strides = (s), .o_strides = (s), .extra_strides = (s)
static const attention_case shapes[] = {
    {SHAPE(1, 1, 1, 1, 1)},
    {SHAPE(2, 1, 5, 7, 3), .d_v = 5},
    {SHAPE(2, 2, 17, 33, 16), .mask = KILN_MASK_CAUSAL_TOP_LEFT},
    {SHAPE(2, 1, 64, 64, 64), .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
    {SHAPE(1, 1, 65, 129, 80), .d_v = 72},
    {SHAPE(4, 1, 3, 200, 128)},
    {SHAPE(1, 1, 19, 40, 264)},
    {SHAPE(2, 1, 9, 70, 24), .d2 = 8},
    {SHAPE(2, 2, 21, 50, 13), ALL_STRIDES(STRIDES_INNER_STRIDE), .bias = true},
    {SHAPE(2, 2, 21, 50, 20), ALL_STRIDES(STRIDES_TRANSPOSED), .sinks = true, .alibi = 2},
    {SHAPE(2, 2, 21, 50, 17), ALL_STRIDES(STRIDES_REVERSED), .bias = true, .bias_broadcast = BROADCAST_KEY},
    {SHAPE(2, 2, 21, 50, 32), ALL_STRIDES(STRIDES_PADDED), .mask_len = 37, .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT,
     .window_left = 9, .window_right = 2},
    {SHAPE(2, 1, 21, 50, 32), .batch = 2, .k_strides = STRIDES_BROADCAST, .v_strides = STRIDES_BYTE_OFFSET},
    {SHAPE(2, 1, 30, 75, 40), .batch = 3, .packed_q = true, .packed_k = true, .dropout_p = 0.25f},
    {SHAPE(4, 2, 2, 90, 64), .batch = 2, .page_size = 16, .used_k = true},
    {SHAPE(2, 2, 1, 50, 33), .batch = 2, .used_k = true, .leftpad = true, .cache_idx = true, .values = VALUES_POISON},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

START_TEST(attention_forward)
{
    attention_case c = shapes[_i / 3];
    c.type = types[_i % 3];
    problem *p = problem_forward("attention_forward", &c);
    int ran = 0;
    for (int g = 0; g < TEST_ATTENTION_ALGORITHMS; g++) {
        p->args.attention_forward.algorithm = test_attention_algorithms[g];
        test_label("shape %d, type %d, %s", _i / 3, c.type, test_algorithm_name(test_attention_algorithms[g]));
        ran += fenced(p);
    }
    TEST_REQUIRE(ran > 0, "no algorithm takes it");
}
END_TEST

START_TEST(attention_backward)
{
    gradients_case c = {.forward = shapes[_i], .dlse = _i % 2, .strides = (test_strides)(_i % STRIDES_BROADCAST)};
    c.forward.type = types[_i % 3];
    bool paged = c.forward.page_size != 0, broadcast = c.forward.k_strides == STRIDES_BROADCAST;
    TEST_REQUIRE(paged || broadcast || c.forward.cache_idx || fenced(problem_backward(&c)), "refused");
}
END_TEST

START_TEST(softmax)
{
    static const int64_t lengths[] = {1, 7, 8, 15, 17, 31, 33, 64, 100, 1023};
    softmax_case c = {.rank = 2, .in_strides = (test_strides)_i};
    c.out_strides = c.in_strides == STRIDES_BROADCAST ? STRIDES_COMPACT : c.in_strides;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        c.type = types[((size_t)_i + i) % 3];
        c.shape[0] = 3;
        c.shape[1] = lengths[i];
        c.log = i % 2;
        problem *forward = problem_softmax(KILN_OP_SOFTMAX_FORWARD, &c);
        problem *backward = problem_softmax(KILN_OP_SOFTMAX_BACKWARD, &c);
        for (int g = 0; g < TEST_SOFTMAX_ALGORITHMS; g++) {
            test_label("softmax of %lld, type %d, strides %d, %s", (long long)lengths[i], c.type, c.in_strides,
                       test_algorithm_name(test_softmax_algorithms[g]));
            forward->args.softmax_forward.algorithm = test_softmax_algorithms[g];
            ck_assert(fenced(forward));
        }
        ck_assert(fenced(backward));
        test_release_all();
    }
}
END_TEST

START_TEST(attention_merge)
{
    static const int64_t sizes[] = {1, 3, 8, 16, 17, 64, 100};
    merge_case c = {.heads = 2,
                    .batch = 1,
                    .seqlen_q = 5,
                    .parts = 3,
                    .sinks = _i % 2,
                    .neutral = true,
                    .part_strides = (test_strides)_i,
                    .o_strides = (test_strides)_i};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        c.type = types[((size_t)_i + i) % 3];
        c.d_v = sizes[i];
        ck_assert(fenced(problem_merge(&c)));
        test_release_all();
    }
}
END_TEST

/* The test itself: one byte outside does fault, on either side. */
START_TEST(fence_front)
{
    region r = region_new(10, false, 1);
    *(volatile unsigned char *)(r.data - 1) = 1;
}
END_TEST
START_TEST(fence_back)
{
    region r = region_new(10, true, 1);
    *(volatile unsigned char *)(r.data + 10) = 1;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("bounds");
    TCase *t = test_tcase(s, "bounds");
    tcase_add_test_raise_signal(t, fence_front, SIGSEGV);
    tcase_add_test_raise_signal(t, fence_back, SIGSEGV);
    tcase_add_loop_test(t, attention_forward, 0, 3 * SHAPES);
    tcase_add_loop_test(t, attention_backward, 0, SHAPES);
    tcase_add_loop_test(t, softmax, 0, STRIDES_COUNT);
    tcase_add_loop_test(t, attention_merge, 0, STRIDES_BROADCAST);
    return test_main(s);
}
