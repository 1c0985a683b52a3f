/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_softmax_large.c: softmax of tensors beyond the caches, whose results may take another way to memory. No bit may
 * depend on that: the tensor as a whole gives what a few of its rows at a time give, which the oracle judges in
 * test_softmax.c. Bytes around and between the rows stay as they are, wherever rows begin and end.
 */
#include <stdio.h>

#include "../../common/convert.h"
#include "../support/fixture.h"

enum { GUARD = 256, CANARY = 0xa5, TENSOR = 40 << 20 /* bytes, about */, SLICE = TENSOR / 6 };

typedef struct large_case {
    int64_t n, gap; /* row length; elements between rows of the result */
    int32_t type, threads;
    int32_t offset_in, offset_out; /* elements by which the tensors are off the start of a cache line */
    bool log, in_place, backward;
} large_case;

#define F32 KILN_FLOAT32
#define F16 KILN_FLOAT16
#define B16 KILN_BFLOAT16
/* clang-format off */
static const large_case cases[] = {
    {.n = 64, .type = F32, .threads = 2}, {.n = 64, .type = B16, .threads = 2}, {.n = 64, .type = F16, .threads = 2}, {.n = 1, .type = F32, .threads = 1, .offset_out = 3}, {.n = 3, .type = B16, .threads = 2, .offset_in = 1, .offset_out = 5}, {.n = 17, .type = F16, .threads = 3, .offset_out = 1},
    {.n = 100, .type = F32, .threads = 3, .offset_in = 1, .offset_out = 2}, {.n = 33, .type = B16, .threads = 3, .offset_in = 31, .offset_out = 7}, {.n = 1000, .type = F32, .threads = 2}, {.n = 1001, .type = F32, .threads = 3}, {.n = 1001, .type = B16, .threads = 3}, {.n = 1023, .type = F16, .threads = 2, .offset_in = 3, .offset_out = 1},
    {.n = 2047, .type = F32, .threads = 3, .offset_out = 1}, {.n = 2048, .type = B16, .threads = 2}, {.n = 2049, .type = F32, .threads = 3, .offset_in = 5}, {.n = 4097, .type = F16, .threads = 2}, {.n = 4095, .type = B16, .threads = 3, .offset_in = 1, .offset_out = 1}, {.n = 6145, .type = F32, .threads = 5, .offset_out = 15},
    {.n = 300, .type = F32, .threads = 3, .gap = 5, .offset_out = 1}, {.n = 1500, .type = B16, .threads = 3, .gap = 7}, {.n = 5000, .type = F16, .threads = 3, .gap = 1, .offset_out = 9}, {.n = 10, .type = F32, .threads = 2, .gap = 3},
    {.n = 33333, .type = F32, .threads = 3, .offset_in = 1, .offset_out = 3}, {.n = 300001, .type = F32, .threads = 3}, {.n = 300001, .type = B16, .threads = 2, .offset_out = 1}, {.n = (1 << 20) + 1, .type = F32, .threads = 2, .offset_out = 1}, {.n = (1 << 20) + 1, .type = F16, .threads = 3, .offset_in = 1}, {.n = 1 << 20, .type = F32, .threads = 1},
    {.n = 777, .type = F32, .threads = 2, .offset_out = 3, .log = true}, {.n = 9000, .type = B16, .threads = 2, .offset_out = 3, .log = true}, {.n = 1200000, .type = F32, .threads = 1, .offset_out = 3, .log = true},
    {.n = 64, .type = F32, .threads = 3, .in_place = true}, {.n = 1001, .type = B16, .threads = 3, .offset_in = 1, .offset_out = 1, .in_place = true}, {.n = 5001, .type = F32, .threads = 3, .offset_in = 1, .offset_out = 1, .in_place = true}, {.n = 400001, .type = F32, .threads = 3, .offset_in = 1, .offset_out = 1, .in_place = true},
    {.n = 64, .type = F32, .threads = 2, .backward = true}, {.n = 1001, .type = B16, .threads = 3, .offset_in = 1, .offset_out = 5, .backward = true}, {.n = 2049, .type = F32, .threads = 3, .offset_out = 1, .backward = true}, {.n = 50001, .type = F16, .threads = 3, .offset_in = 1, .offset_out = 3, .backward = true},
    {.n = (1 << 20) + 1, .type = F32, .threads = 3, .offset_out = 1, .backward = true}, {.n = 999, .type = F32, .threads = 2, .gap = 6, .offset_out = 1, .backward = true}, {.n = 999, .type = F32, .threads = 2, .offset_out = 1, .log = true, .backward = true}, {.n = 3001, .type = F32, .threads = 3, .offset_in = 1, .offset_out = 1, .in_place = true, .backward = true},
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

/* Rows of a tensor in memory of its own, GUARD bytes and more of CANARY around and between them. */
typedef struct large_tensor {
    kiln_tensor tensor;
    int64_t shape[2], stride[2];
    unsigned char *memory, *first;
    size_t bytes;
} large_tensor;

static void make(large_tensor *t, const large_case *c, int64_t rows, int64_t gap, int32_t offset)
{
    size_t size = (size_t)kiln_type_size(c->type);
    t->shape[0] = rows;
    t->shape[1] = c->n;
    t->stride[0] = c->n + gap;
    t->stride[1] = 1;
    t->bytes = (size_t)(rows * t->stride[0]) * size + 2 * GUARD + 64 * size;
    t->memory = aligned_alloc(64, (t->bytes + 63) / 64 * 64);
    TEST_REQUIRE(t->memory != NULL, "no memory");
    memset(t->memory, CANARY, t->bytes);
    t->first = t->memory + GUARD + (size_t)offset * size;
    t->tensor =
        kiln_tensor_make(kiln_context_device(test_context()), t->first, c->type, 2, t->shape, gap ? t->stride : NULL);
}

/* Numbers in (-4, 4) without a call a number: large tensors. `positive`: in (0, 2), what backward takes for y. */
static void fill(large_tensor *t, int32_t type, uint32_t seed, bool positive)
{
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(seed >> 8) * 0x1p-21f - 4;
        x = positive ? (x + 4) / 4 : x;
        if (type == F32)
            memcpy(t->first + 4 * i, &x, 4);
        else {
            uint16_t h = type == F16 ? kiln_f16_from_float(x) : kiln_bf16_from_float(x);
            memcpy(t->first + 2 * i, &h, 2);
        }
    }
}

/* Rows [row, row + rows) of `t`. */
static kiln_tensor rows_of(const large_tensor *t, size_t size, int64_t row, int64_t *shape)
{
    kiln_tensor part = t->tensor;
    part.data = t->first + (size_t)(row * t->stride[0]) * size;
    part.shape = shape;
    return part;
}

static void run(const large_case *c, kiln_context *context, const kiln_tensor *in, const kiln_tensor *dy,
                const kiln_tensor *out)
{
    uint64_t flags = c->log ? KILN_FLAG_LOG : 0;
    kiln_softmax_forward_args forward = {.struct_size = sizeof forward, .x = in, .y = out, .flags = flags};
    kiln_softmax_backward_args backward = {
        .struct_size = sizeof backward, .y = in, .dy = dy, .dx = out, .flags = flags};
    kiln_op op = c->backward ? KILN_OP_SOFTMAX_BACKWARD : KILN_OP_SOFTMAX_FORWARD;
    const void *args = c->backward ? (const void *)&backward : (const void *)&forward;
    size_t bytes = 0;
    void *workspace = NULL;
    TEST_REQUIRE(test_workspace(op, context, args, &bytes) == KILN_OK, "%s", kiln_last_error());
    ck_assert_int_eq(kiln_malloc(context, bytes, &workspace), KILN_OK);
    if (bytes > 0)
        memset(workspace, 0xff, bytes);
    TEST_REQUIRE(test_call(op, context, args, workspace, bytes) == KILN_OK, "%s", kiln_last_error());
    kiln_free(context, workspace);
}

static void check_bytes(const large_tensor *t, const unsigned char *from, const unsigned char *to)
{
    for (const unsigned char *p = from; p < to; p++)
        TEST_REQUIRE(*p == CANARY, "byte %lld of %zu was written", (long long)(p - t->memory), t->bytes);
}

START_TEST(whole_is_its_rows)
{
    const large_case *c = &cases[_i];
    const size_t size = (size_t)kiln_type_size(c->type), row_bytes = (size_t)c->n * size;
    int64_t rows = (int64_t)((TENSOR + row_bytes - 1) / row_bytes), slice = (int64_t)(SLICE / row_bytes);
    slice = slice < 1 ? 1 : slice;
    large_tensor in, dy = {.memory = NULL}, out, part;
    if (!test_on_cpu() || !test_has_memory((size_t)rows * row_bytes * 6))
        return;
    test_label("softmax_%s of %lld rows of %lld + %lld, type %d, offsets %d %d, %d threads%s%s",
               c->backward ? "backward" : "forward", (long long)rows, (long long)c->n, (long long)c->gap, c->type,
               c->offset_in, c->offset_out, c->threads, c->log ? ", log" : "", c->in_place ? ", in place" : "");
    make(&in, c, rows, 0, c->offset_in);
    fill(&in, c->type, 1, c->backward);
    if (c->backward) {
        make(&dy, c, rows, 0, c->offset_in);
        fill(&dy, c->type, 2, false);
    }
    make(&out, c, rows, c->gap, c->offset_out);
    make(&part, c, slice, 0, 0);
    if (c->in_place)
        memcpy(out.first, (c->backward ? &dy : &in)->first, (size_t)rows * row_bytes);
    run(c, test_context_threads(c->threads), c->in_place && !c->backward ? &out.tensor : &in.tensor,
        c->in_place ? &out.tensor : &dy.tensor, &out.tensor);

    check_bytes(&out, out.memory, out.first);
    check_bytes(&out, out.first + (size_t)((rows - 1) * out.stride[0] + c->n) * size, out.memory + out.bytes);
    for (int64_t row = 0; row < rows; row += slice) {
        int64_t count = rows - row < slice ? rows - row : slice, shape[2] = {count, c->n};
        kiln_tensor x = rows_of(&in, size, row, shape), g = c->backward ? rows_of(&dy, size, row, shape) : x;
        part.shape[0] = count;
        run(c, test_context_threads(1), &x, &g, &part.tensor);
        for (int64_t r = 0; r < count; r++) {
            const unsigned char *got = out.first + (size_t)((row + r) * out.stride[0]) * size;
            TEST_REQUIRE(memcmp(got, part.first + (size_t)r * row_bytes, row_bytes) == 0,
                         "row %lld has other bits than alone", (long long)(row + r));
            if (row + r + 1 < rows)
                check_bytes(&out, got + row_bytes, got + (size_t)out.stride[0] * size);
        }
    }
    free(in.memory);
    free(dy.memory);
    free(out.memory);
    free(part.memory);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("softmax_large");
    TCase *t = test_tcase(s, "large");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, whole_is_its_rows, 0, CASES);
    return s;
}

int main(void)
{
    return test_main(suite());
}
