/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_problem.c: where the queries and keys of a sequence are, and which keys a query sees, against 128-bit arithmetic over
 * every key.
 */
#include <check.h>
#include <stdlib.h>

#include "../support/fixture.h"

/* The rule of kiln.h, one key at a time, in arithmetic that cannot overflow. */
__extension__ typedef __int128 wide;
static bool visible(const kiln_attention_problem *p, const kiln_sequence *s, int64_t i, int64_t j)
{
    wide q = (wide)s->pos_q + (wide)i * p->q_step, k = (wide)s->pos_k + (wide)j * p->k_step;
    return (p->window_left == KILN_UNBOUNDED || k >= q - (wide)p->window_left) &&
           (p->window_right == KILN_UNBOUNDED || k <= q + (wide)p->window_right);
}

static void compare(const kiln_attention_problem *p, const kiln_sequence *s, int64_t i)
{
    kiln_key_range range = kiln_visible_keys(p, s, i);
    ck_assert(range.begin >= 0 && range.begin <= range.end && range.end <= s->seqlen_k);
    for (int64_t j = 0; j < s->seqlen_k; j++)
        ck_assert_msg(
            visible(p, s, i, j) == (j >= range.begin && j < range.end),
            "key %lld of query %lld: range [%lld, %lld), left %lld right %lld pos %lld + %lld·i, %lld + %lld·j",
            (long long)j, (long long)i, (long long)range.begin, (long long)range.end, (long long)p->window_left,
            (long long)p->window_right, (long long)s->pos_q, (long long)p->q_step, (long long)s->pos_k,
            (long long)p->k_step);
}

/* Every pair of sides and positions from a list with the ends of the type in it. */
START_TEST(visible_keys_at_the_ends)
{
    const int64_t far = INT64_C(1) << 60;
    static const int64_t sides[] = {INT64_MIN, INT64_MIN + 1, -9, -1, 0, 1, 7, INT64_MAX - 1, KILN_UNBOUNDED};
    const int64_t starts[] = {-2 * far, -far, -5, 0, 3, 40, far, 2 * far};
    static const int64_t steps[] = {1, 2, 3, 7, INT64_C(1) << 57};
    for (int l = 0; l < 9; l++)
        for (int r = 0; r < 9; r++)
            for (int a = 0; a < 8; a++)
                for (int b = 0; b < 8; b++)
                    for (int t = 0; t < 5; t++) {
                        kiln_attention_problem p = {.masked = true,
                                                    .window_left = sides[l],
                                                    .window_right = sides[r],
                                                    .q_step = steps[(t + 1) % 5 == 4 ? 0 : (t + 1) % 5],
                                                    .k_step = steps[t]};
                        kiln_sequence s = {.seqlen_q = 9, .seqlen_k = 7, .pos_q = starts[a], .pos_k = starts[b]};
                        compare(&p, &s, 0);
                        compare(&p, &s, 8);
                    }
}
END_TEST

START_TEST(visible_keys_random)
{
    test_seed(1);
    for (int n = 0; n < 20000; n++) {
        kiln_attention_problem p = {.masked = true,
                                    .window_left = test_integer(40) - 10,
                                    .window_right = test_integer(40) - 10,
                                    .q_step = 1 + test_integer(5),
                                    .k_step = 1 + test_integer(5)};
        kiln_sequence s = {.seqlen_q = 30,
                           .seqlen_k = test_integer(30),
                           .pos_q = test_integer(60) - 30,
                           .pos_k = test_integer(60) - 30};
        compare(&p, &s, test_integer(30));
    }
}
END_TEST

START_TEST(no_mask_sees_all)
{
    kiln_attention_problem p = {.masked = false, .q_step = 1, .k_step = 1};
    kiln_sequence s = {.seqlen_q = 3, .seqlen_k = 5};
    kiln_key_range range = kiln_visible_keys(&p, &s, 2);
    ck_assert(range.begin == 0 && range.end == 5);
}
END_TEST

static kiln_view vector(int32_t *data, int64_t n, int64_t stride)
{
    return (kiln_view){(char *)data, KILN_INT32, {n, 1, 1, 1}, {stride, 0, 0, 0}};
}

START_TEST(sequences)
{
    int32_t cu_q[] = {1, -9, 4, -9, 4, -9}, cu_k[] = {0, 5, 12}, used_q[] = {2, 0}, used_k[] = {4, 7}, pad[] = {1, 3};
    int32_t idx[] = {5, 2}, starts_q[] = {100, -7}, starts_k[] = {10, 20};
    kiln_attention_problem p = {.batch = 2,
                                .seqlen_q = 30,
                                .seqlen_k = 50,
                                .q_step = 1,
                                .k_step = 1,
                                .bottom_right = true,
                                .q_start = 1000,
                                .k_start = 2000};
    /* dense */
    kiln_sequence s = kiln_sequence_of(&p, 1);
    ck_assert(s.seqlen_q == 30 && s.seqlen_k == 50 && s.q_batch == 1 && s.k_batch == 1 && s.q_row == 0 && s.k_row == 0);
    ck_assert(s.pos_q == 1020 && s.pos_k == 2000);
    p.bottom_right = false;
    ck_assert_int_eq(kiln_sequence_of(&p, 1).pos_q, 1000);
    p.bottom_right = true;
    /* packed, with a stride between the entries */
    p.cu_seqlens_q = vector(cu_q, 3, 2);
    p.cu_seqlens_k = vector(cu_k, 3, 1);
    s = kiln_sequence_of(&p, 0);
    ck_assert(s.seqlen_q == 3 && s.q_row == 1 && s.q_batch == 0 && s.seqlen_k == 5 && s.k_row == 0 && s.pos_q == 1002);
    s = kiln_sequence_of(&p, 1);
    ck_assert(s.seqlen_q == 0 && s.q_row == 4 && s.seqlen_k == 7 && s.k_row == 5 && s.k_batch == 0);
    /* shortened */
    p.seqused_q = vector(used_q, 2, 1);
    p.seqused_k = vector(used_k, 2, 1);
    s = kiln_sequence_of(&p, 0);
    ck_assert(s.seqlen_q == 2 && s.seqlen_k == 4 && s.pos_q == 1002 && s.q_row == 1);
    /* a cache: entries named, padding on the left, starts */
    p.cu_seqlens_q.type = p.cu_seqlens_k.type = 0;
    p.leftpad_k = vector(pad, 2, 1);
    p.cache_batch_idx = vector(idx, 2, 1);
    p.q_starts = vector(starts_q, 2, 1);
    p.k_starts = vector(starts_k, 2, 1);
    s = kiln_sequence_of(&p, 1);
    ck_assert(s.seqlen_q == 0 && s.seqlen_k == 4 && s.k_row == 3 && s.k_batch == 2 && s.q_batch == 1);
    ck_assert(s.pos_q == 1000 - 7 + 4 && s.pos_k == 2020);
    s = kiln_sequence_of(&p, 0);
    ck_assert(s.k_batch == 5 && s.k_row == 1 && s.seqlen_k == 3 && s.pos_q == 1101 && s.pos_k == 2010);
}
END_TEST

/* Views: byte_offset is in `data`, size-1 axes have stride 0, fewer axes go to the right place. */
START_TEST(views)
{
    float data[40];
    const int64_t shape[3] = {2, 1, 3}, strides[3] = {17, 999, -2};
    kiln_tensor t = kiln_tensor_make((kiln_device){KILN_DEVICE_CPU, 0}, data, KILN_FLOAT32, 3, shape, strides);
    t.byte_offset = 16;
    kiln_view v = kiln_view_of(&t, 1);
    ck_assert(v.data == (char *)(data + 4) && v.type == KILN_FLOAT32);
    ck_assert(v.size[0] == 1 && v.size[1] == 2 && v.size[2] == 1 && v.size[3] == 3);
    ck_assert(v.stride[0] == 0 && v.stride[1] == 17 && v.stride[2] == 0 && v.stride[3] == -2);
    ck_assert_int_eq(kiln_view_offset(&v, 0, 1, 0, 2), 13);
    t.strides = NULL;
    v = kiln_view_of(&t, 0);
    ck_assert(v.stride[0] == 3 && v.stride[1] == 0 && v.stride[2] == 1 && v.stride[3] == 0);
    ck_assert(!kiln_view_present(&(kiln_view){0}) && kiln_view_of(NULL, 0).type == 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("problem");
    TCase *t = test_tcase(s, "problem");
    tcase_add_test(t, visible_keys_at_the_ends);
    tcase_add_test(t, visible_keys_random);
    tcase_add_test(t, no_mask_sees_all);
    tcase_add_test(t, sequences);
    tcase_add_test(t, views);
    return test_main(s);
}
