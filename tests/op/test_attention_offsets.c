/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_offsets.c: offsets beyond 2^31 elements and beyond 4 GB. By strides, not by terabytes: the tensors lie in
 * reserved address space of which only a few pages are ever touched. CPU only; label slow where many pages are touched.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "../support/fixture.h"

#define F32 KILN_FLOAT32
static const int64_t far = INT64_C(1) << 31; /* elements */

static kiln_device host = {KILN_DEVICE_CPU, 0};

static struct {
    void *space;
    size_t bytes;
} reserved[8];
static int reserved_count;

/* Address space for `elements` numbers of `size` bytes; zero where it was not written. Freed after the test. */
static void *sparse(int64_t elements, int64_t size)
{
    size_t bytes = (size_t)(elements * size);
    void *space = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TEST_REQUIRE(space != MAP_FAILED && reserved_count < 8, "the test itself cannot reserve %zu bytes", bytes);
    reserved[reserved_count].space = space;
    reserved[reserved_count++].bytes = bytes;
    return space;
}

static void release_reserved(void)
{
    while (reserved_count > 0) {
        reserved_count--;
        munmap(reserved[reserved_count].space, reserved[reserved_count].bytes);
    }
}

/* Runs it; false if the rung refuses it. */
static bool ran(const kiln_attention_forward_args *args)
{
    size_t bytes = 0;
    char why[512] = "";
    void *workspace = NULL;
    kiln_status status = test_supported(KILN_OP_ATTENTION_FORWARD, test_context(), args, why, sizeof why);
    test_label("algorithm %s", test_algorithm_name(args->algorithm));
    if (test_refused(status, args->algorithm, why))
        return false;
    TEST_REQUIRE(test_workspace(KILN_OP_ATTENTION_FORWARD, test_context(), args, &bytes) == KILN_OK, "%s",
                 kiln_last_error());
    ck_assert_int_eq(kiln_malloc(test_context(), bytes, &workspace), KILN_OK);
    TEST_REQUIRE(test_call(KILN_OP_ATTENTION_FORWARD, test_context(), args, workspace, bytes) == KILN_OK, "%s",
                 kiln_last_error());
    kiln_free(test_context(), workspace);
    return true;
}

/* I32-3: row stride 2^31; the mask keeps only key i for query i, so o = v row by row. Each tensor in turn is the far one. */
START_TEST(far_rows)
{
    enum { ROWS = 3, D = 5 };
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    int which = _i / TEST_ATTENTION_ALGORITHMS; /* 0 q, 1 k, 2 v, 3 o, 4 all */
    static const int64_t shape[4] = {1, 1, ROWS, D}, lse_shape[3] = {1, 1, ROWS};
    int64_t strides[4][4];
    kiln_tensor tensor[4];
    float *data[4];
    for (int t = 0; t < 4; t++) {
        int64_t row = which == t || which == 4 ? far : D;
        memcpy(strides[t], (const int64_t[]){0, 0, row, 1}, sizeof strides[t]);
        data[t] = sparse(2 * row + D, 4);
        tensor[t] = kiln_tensor_make(host, data[t], F32, 4, shape, strides[t]);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < D; j++)
                data[t][i * row + j] = t == 3 ? NAN : (float)(1 + t + 10 * i + j);
    }
    float lse[ROWS];
    kiln_tensor lse_tensor = kiln_tensor_make(host, lse, F32, 3, lse_shape, NULL);
    kiln_attention_forward_args args = {.struct_size = sizeof args,
                                        .q = &tensor[0],
                                        .k = &tensor[1],
                                        .v = &tensor[2],
                                        .o = &tensor[3],
                                        .softmax_lse = &lse_tensor,
                                        .mask = KILN_MASK_WINDOW_TOP_LEFT,
                                        .algorithm = algorithm};
    if (!ran(&args))
        return;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < D; j++)
            TEST_REQUIRE(data[3][i * strides[3][2] + j] == (float)(3 + 10 * i + j), "row %d column %d is %g", i, j,
                         (double)data[3][i * strides[3][2] + j]);
}
END_TEST

/* The same for the batch and the head axes (2^31 and 2^30 elements apart), grouped heads included. */
START_TEST(far_batches_and_heads)
{
    const char *algorithm = test_attention_algorithms[_i];
    static const int64_t q_shape[4] = {3, 4, 2, 3}, k_shape[4] = {3, 2, 2, 3};
    static const int64_t strides[4] = {INT64_C(1) << 33, INT64_C(1) << 30, 3, 1};
    float *data[3];
    kiln_tensor tensor[3];
    for (int t = 0; t < 3; t++) {
        data[t] = sparse(2 * strides[0] + 4 * strides[1], 4);
        tensor[t] = kiln_tensor_make(host, data[t], F32, 4, t == 1 ? k_shape : q_shape, strides);
    }
    for (int64_t b = 0; b < 3; b++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < 6; i++)
                data[1][b * strides[0] + h * strides[1] + i] = (float)(100 * b + 10 * h) + 1;
    kiln_attention_forward_args args = {.struct_size = sizeof args,
                                        .q = &tensor[0],
                                        .k = &tensor[1],
                                        .v = &tensor[1],
                                        .o = &tensor[2],
                                        .algorithm = algorithm};
    if (!ran(&args))
        return;
    for (int64_t b = 0; b < 3; b++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < 6; i++) {
                double got = (double)data[2][b * strides[0] + h * strides[1] + i];
                TEST_REQUIRE(got == (double)(100 * b + 10 * (h / 2) + 1), "%s: batch %lld head %lld is %g",
                             test_algorithm_name(algorithm), (long long)b, (long long)h, got);
            }
}
END_TEST

/* I32-4: bias (and attn_mask) rows 2,200,000,000 elements apart; row i sees key i only. */
START_TEST(far_bias)
{
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    bool mask = _i / TEST_ATTENTION_ALGORITHMS;
    static const int64_t q_shape[4] = {1, 1, 3, 1}, k_shape[4] = {1, 1, 4, 1}, shape[4] = {1, 1, 3, 4};
    static const int64_t strides[4] = {0, 0, INT64_C(2200000000), 1};
    float q[3] = {0}, k[4] = {0}, v[4] = {1, 2, 3, 4}, o[3] = {NAN, NAN, NAN};
    float *bias = sparse(2 * strides[2] + 4, mask ? 1 : 4);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            if (mask)
                ((uint8_t *)bias)[i * strides[2] + j] = i == j;
            else
                bias[i * strides[2] + j] = i == j ? 0 : -INFINITY;
    kiln_tensor tq = kiln_tensor_make(host, q, F32, 4, q_shape, NULL),
                tk = kiln_tensor_make(host, k, F32, 4, k_shape, NULL);
    kiln_tensor tv = kiln_tensor_make(host, v, F32, 4, k_shape, NULL),
                to = kiln_tensor_make(host, o, F32, 4, q_shape, NULL);
    kiln_tensor extra = kiln_tensor_make(host, bias, mask ? KILN_UINT8 : F32, 4, shape, strides);
    kiln_attention_forward_args args = {.struct_size = sizeof args,
                                        .q = &tq,
                                        .k = &tk,
                                        .v = &tv,
                                        .o = &to,
                                        .bias = mask ? NULL : &extra,
                                        .attn_mask = mask ? &extra : NULL,
                                        .algorithm = algorithm};
    if (!ran(&args))
        return;
    for (int i = 0; i < 3; i++)
        TEST_REQUIRE(o[i] == (float)(i + 1), "%s: row %d is %g", test_algorithm_name(algorithm), i, (double)o[i]);
}
END_TEST

/* PAG-3: page stride 65,536 elements, pages 32768 and 40000 of the pool. */
START_TEST(far_pages)
{
    const char *algorithm = test_attention_algorithms[_i];
    static const int64_t q_shape[4] = {2, 1, 1, 2}, pool_shape[4] = {40001, 1, 16, 2},
                         strides[4] = {65536, 65536, 2, 1};
    static const int64_t table_shape[2] = {2, 1}, batch[1] = {2};
    float q[4] = {0}, o[4] = {NAN, NAN, NAN, NAN};
    int32_t table[2] = {32768, 40000}, used[2] = {1, 16};
    float *pool = sparse(40001 * strides[0], 4);
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 2 * used[b]; i++)
            pool[table[b] * strides[0] + i] = b ? 7 : 5;
    kiln_tensor tq = kiln_tensor_make(host, q, F32, 4, q_shape, NULL),
                to = kiln_tensor_make(host, o, F32, 4, q_shape, NULL);
    kiln_tensor tk = kiln_tensor_make(host, pool, F32, 4, pool_shape, strides);
    kiln_tensor tt = kiln_tensor_make(host, table, KILN_INT32, 2, table_shape, NULL);
    kiln_tensor tu = kiln_tensor_make(host, used, KILN_INT32, 1, batch, NULL);
    kiln_attention_forward_args args = {.struct_size = sizeof args,
                                        .q = &tq,
                                        .k = &tk,
                                        .v = &tk,
                                        .o = &to,
                                        .block_table = &tt,
                                        .seqused_k = &tu,
                                        .algorithm = algorithm};
    if (!ran(&args))
        return;
    for (int i = 0; i < 4; i++)
        TEST_REQUIRE(o[i] == (i < 2 ? 5.0f : 7.0f), "%s: o[%d] is %g", test_algorithm_name(algorithm), i, (double)o[i]);
}
END_TEST

/* I32-1: B8300 H16 S1 d128 bf16, as if S were padded to 128: o = v, 2,175,795,200 elements. Touches 1.1 GB. */
START_TEST(many_heads)
{
    static const int64_t shape[4] = {8300, 16, 1, 128}, strides[4] = {16 * 128 * 128, 128 * 128, 128, 1};
    if (!test_has_memory((size_t)2200 << 20))
        return;
    uint16_t *in = sparse(shape[0] * strides[0], 2), *out = sparse(shape[0] * strides[0], 2);
    for (int64_t bh = 0; bh < shape[0] * shape[1]; bh++)
        for (int64_t j = 0; j < 128; j++)
            in[bh * strides[1] + j] = (uint16_t)(0x3f00 + (bh + j) % 251);
    kiln_tensor t = kiln_tensor_make(host, in, KILN_BFLOAT16, 4, shape, strides), o = t;
    o.data = out;
    kiln_attention_forward_args args = {.struct_size = sizeof args, .q = &t, .k = &t, .v = &t, .o = &o};
    if (!ran(&args))
        return;
    for (int64_t bh = 0; bh < shape[0] * shape[1]; bh++)
        TEST_REQUIRE(memcmp(out + bh * strides[1], in + bh * strides[1], 256) == 0, "row %lld", (long long)bh);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("attention_offsets");
    TCase *t = test_tcase(s, "offsets");
    tcase_add_checked_fixture(t, NULL, release_reserved);
    tcase_add_loop_test(t, far_rows, 0, 5 * TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, far_batches_and_heads, 0, TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, far_bias, 0, 2 * TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, far_pages, 0, TEST_ATTENTION_ALGORITHMS);
    if (test_slow())
        tcase_add_test(t, many_heads);
    return s;
}

int main(void)
{
    if (!test_on_cpu()) {
        printf("skipped: needs host memory\n");
        return 77;
    }
    return test_main(suite());
}
