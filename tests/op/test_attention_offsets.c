/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_offsets.c: offsets beyond 2^31 elements and beyond 4 GB. Where the device's memory is the host's, by strides
 * and not by terabytes: the tensors lie in reserved address space of which only a few pages are ever touched. Other devices
 * must have the memory; a test for which it does not suffice says so. Label slow where many pages are touched. And problems of so many
 * rows that how they are cut depends on the device.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "../../common/convert.h"
#include "../support/fixture.h"

#define F32 KILN_FLOAT32
static const int64_t far = INT64_C(1) << 31; /* elements */

static struct {
    void *space;
    size_t bytes; /* 0: the device's */
} reserved[8];
static int reserved_count;

/* Room for `elements` numbers of `size` bytes, freed after the test; NULL if the device has no such memory. On the host:
 * address space, zero where it was not written. */
static void *sparse(int64_t elements, int64_t size)
{
    size_t bytes = (size_t)(elements * size);
    void *space = NULL;
    ck_assert_int_lt(reserved_count, 8);
    if (!test_on_host()) {
        kiln_status status = kiln_malloc(test_context(), bytes, &space);
        TEST_REQUIRE(status == KILN_OK || status == KILN_OUT_OF_MEMORY, "%s", kiln_last_error());
        if (status != KILN_OK) {
            printf("skipped: the device has no %.1f GB left\n", 1e-9 * (double)bytes);
            return NULL;
        }
        bytes = 0;
    } else {
        space = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        TEST_REQUIRE(space != MAP_FAILED, "the test itself cannot reserve %zu bytes", bytes);
    }
    reserved[reserved_count].space = space;
    reserved[reserved_count++].bytes = bytes;
    return space;
}

static void release_reserved(void)
{
    while (reserved_count > 0) {
        reserved_count--;
        if (reserved[reserved_count].bytes)
            munmap(reserved[reserved_count].space, reserved[reserved_count].bytes);
        else
            kiln_free(test_context(), reserved[reserved_count].space);
    }
}

/* To and from the device. */
static void copy(void *to, const void *from, size_t bytes)
{
    TEST_REQUIRE(kiln_copy(test_context(), to, from, bytes, NULL) == KILN_OK, "%s", kiln_last_error());
}

static void put(float *at, float value)
{
    copy(at, &value, sizeof value);
}

static float get(const float *at)
{
    float value;
    copy(&value, at, sizeof value);
    return value;
}

/* Wanted are small whole numbers. A GPU may be off by its rounding, which the oracle's bound allows; the CPU is not. */
static bool is(float got, float want)
{
    return test_on_cpu() ? got == want : fabsf(got - want) <= 1e-6f * fabsf(want);
}

/* A compact tensor on the device with these values. */
static kiln_tensor small(const void *values, int32_t type, int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= shape[i];
    void *memory = sparse(count, kiln_type_size(type));
    ck_assert_ptr_nonnull(memory);
    copy(memory, values, (size_t)(count * kiln_type_size(type)));
    return kiln_tensor_make(kiln_context_device(test_context()), memory, type, ndim, shape, NULL);
}

static kiln_tensor sparse_tensor(void *data, int32_t type, int ndim, const int64_t *shape, const int64_t *strides)
{
    return kiln_tensor_make(kiln_context_device(test_context()), data, type, ndim, shape, strides);
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
        if (!data[t])
            return;
        tensor[t] = sparse_tensor(data[t], F32, 4, shape, strides[t]);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < D; j++)
                put(&data[t][i * row + j], t == 3 ? NAN : (float)(1 + t + 10 * i + j));
    }
    float lse[ROWS] = {NAN, NAN, NAN};
    kiln_tensor lse_tensor = small(lse, F32, 3, lse_shape);
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
        for (int j = 0; j < D; j++) {
            float got = get(&data[3][i * strides[3][2] + j]);
            TEST_REQUIRE(is(got, (float)(3 + 10 * i + j)), "row %d column %d is %g", i, j, (double)got);
        }
}
END_TEST

/* The same for the batch and the head axes (2^33 and 2^30 elements apart, 2^31 and 2^29 where the memory must be there),
 * grouped heads included. */
START_TEST(far_batches_and_heads)
{
    const char *algorithm = test_attention_algorithms[_i];
    static const int64_t q_shape[4] = {3, 4, 2, 3}, k_shape[4] = {3, 2, 2, 3};
    const int64_t strides[4] = {INT64_C(1) << (test_on_host() ? 33 : 31), INT64_C(1) << (test_on_host() ? 30 : 29), 3,
                                1};
    float *data[3];
    kiln_tensor tensor[3];
    for (int t = 0; t < 3; t++) {
        data[t] = sparse(2 * strides[0] + 4 * strides[1], 4);
        if (!data[t])
            return;
        tensor[t] = sparse_tensor(data[t], F32, 4, t == 1 ? k_shape : q_shape, strides);
    }
    for (int64_t b = 0; b < 3; b++)
        for (int64_t h = 0; h < 4; h++)
            copy(&data[0][b * strides[0] + h * strides[1]], (const float[6]){0}, 6 * sizeof(float));
    for (int64_t b = 0; b < 3; b++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < 6; i++)
                put(&data[1][b * strides[0] + h * strides[1] + i], (float)(100 * b + 10 * h) + 1);
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
                float got = get(&data[2][b * strides[0] + h * strides[1] + i]);
                TEST_REQUIRE(is(got, (float)(100 * b + 10 * (h / 2) + 1)), "%s: batch %lld head %lld is %g",
                             test_algorithm_name(algorithm), (long long)b, (long long)h, (double)got);
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
    float zero[4] = {0}, v[4] = {1, 2, 3, 4}, o[3] = {NAN, NAN, NAN};
    float *bias = sparse(2 * strides[2] + 4, mask ? 1 : 4);
    if (!bias)
        return;
    for (int i = 0; i < 3; i++)
        if (mask)
            copy((uint8_t *)bias + i * strides[2], (const uint8_t[4]){i == 0, i == 1, i == 2, 0}, 4);
        else
            for (int j = 0; j < 4; j++)
                put(&bias[i * strides[2] + j], i == j ? 0 : -INFINITY);
    kiln_tensor tq = small(zero, F32, 4, q_shape), tk = small(zero, F32, 4, k_shape), tv = small(v, F32, 4, k_shape),
                to = small(o, F32, 4, q_shape);
    kiln_tensor extra = sparse_tensor(bias, mask ? KILN_UINT8 : F32, 4, shape, strides);
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
    copy(o, to.data, sizeof o);
    for (int i = 0; i < 3; i++)
        TEST_REQUIRE(is(o[i], (float)(i + 1)), "%s: row %d is %g", test_algorithm_name(algorithm), i, (double)o[i]);
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
    if (!pool)
        return;
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 2 * used[b]; i++)
            put(&pool[table[b] * strides[0] + i], b ? 7 : 5);
    kiln_tensor tq = small(q, F32, 4, q_shape), to = small(o, F32, 4, q_shape);
    kiln_tensor tk = sparse_tensor(pool, F32, 4, pool_shape, strides);
    kiln_tensor tt = small(table, KILN_INT32, 2, table_shape), tu = small(used, KILN_INT32, 1, batch);
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
    copy(o, to.data, sizeof o);
    for (int i = 0; i < 4; i++)
        TEST_REQUIRE(is(o[i], i < 2 ? 5.0f : 7.0f), "%s: o[%d] is %g", test_algorithm_name(algorithm), i, (double)o[i]);
}
END_TEST

/* I32-1: B8300 H16 S1 d128 bf16, as if S were padded to 128: o = v, 2,175,795,200 elements. Touches 1.1 GB. */
START_TEST(many_heads)
{
    static const int64_t shape[4] = {8300, 16, 1, 128}, strides[4] = {16 * 128 * 128, 128 * 128, 128, 1};
    if (!test_has_memory((size_t)2200 << 20))
        return;
    char *in = sparse(shape[0] * strides[0], 2), *out = sparse(shape[0] * strides[0], 2);
    uint16_t row[251 + 128], got[128];
    if (!in || !out)
        return;
    for (int j = 0; j < 251 + 128; j++)
        row[j] = (uint16_t)(0x3f00 + j % 251);
    for (int64_t bh = 0; bh < shape[0] * shape[1]; bh++)
        copy(in + 2 * bh * strides[1], row + bh % 251, sizeof got);
    kiln_tensor t = sparse_tensor(in, KILN_BFLOAT16, 4, shape, strides), o = t;
    o.data = out;
    kiln_attention_forward_args args = {.struct_size = sizeof args, .q = &t, .k = &t, .v = &t, .o = &o};
    if (!ran(&args))
        return;
    for (int64_t bh = 0; bh < shape[0] * shape[1]; bh++) {
        copy(got, out + 2 * bh * strides[1], sizeof got);
        TEST_REQUIRE(memcmp(got, row + bh % 251, sizeof got) == 0, "row %lld", (long long)bh);
    }
}
END_TEST

/* Problems so large that how rows are cut into tiles depends on the device. Query i scores i % 251 / 4 with every key, so that its lse
 * says which row it is; o is v, the same for all keys of a head. */
START_TEST(every_row)
{
    enum { HEADS = 64, HEADS_K = 8, D = 128, KEYS = 1024 };
    static const int64_t lengths[] = {1024, 1061, 2048};
    const int64_t rows = lengths[_i], q_count = HEADS * rows * D, k_count = HEADS_K * KEYS * D;
    uint16_t *q = calloc((size_t)q_count, 2), *k = calloc((size_t)k_count, 2), *v = calloc((size_t)k_count, 2);
    float *lse = calloc((size_t)(HEADS * rows), sizeof *lse);
    ck_assert(q && k && v && lse);
    for (int64_t at = 0; at < q_count; at += D)
        q[at] = kiln_bf16_from_float((float)(at / D % rows % 251) / 4);
    for (int64_t at = 0; at < k_count; at++)
        k[at] = at % D == 0 ? kiln_bf16_from_float(1) : 0,
        v[at] = kiln_bf16_from_float((float)((at / D / KEYS * 7 + at % D) % 13 - 6));
    const int64_t of_q[4] = {1, HEADS, rows, D}, of_k[4] = {1, HEADS_K, KEYS, D};
    const kiln_tensor query = small(q, KILN_BFLOAT16, 4, of_q), key = small(k, KILN_BFLOAT16, 4, of_k),
                      value = small(v, KILN_BFLOAT16, 4, of_k), out = small(q, KILN_BFLOAT16, 4, of_q),
                      sums = small(lse, F32, 3, of_q);
    kiln_attention_forward_args args = {.struct_size = sizeof args,
                                        .q = &query,
                                        .k = &key,
                                        .v = &value,
                                        .o = &out,
                                        .softmax_lse = &sums,
                                        .softmax_scale = 1};
    if (ran(&args)) {
        copy(q, out.data, (size_t)q_count * 2);
        copy(lse, sums.data, (size_t)(HEADS * rows) * sizeof *lse);
        for (int64_t row = 0; row < HEADS * rows; row++) {
            const float want = (float)(row % rows % 251) / 4 + logf(KEYS);
            TEST_REQUIRE(fabsf(lse[row] - want) <= 1e-5f * want, "lse of row %lld is %g, not %g", (long long)row,
                         (double)lse[row], (double)want);
            for (int64_t c = 0; c < D; c++)
                TEST_REQUIRE(q[row * D + c] == v[row / rows / (HEADS / HEADS_K) * KEYS * D + c],
                             "row %lld, column %lld", (long long)row, (long long)c);
        }
    }
    free(q), free(k), free(v), free(lse);
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
    if (!test_is_slow_backend())
        tcase_add_loop_test(t, every_row, 0, 3);
    if (test_slow())
        tcase_add_test(t, many_heads);
    return s;
}

int main(void)
{
    return test_main(suite());
}
