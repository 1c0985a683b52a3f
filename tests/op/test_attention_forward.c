/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_forward.c: attention forward against the oracle, for every case of one table and every algorithm.
 *
 * Every element of o and lse must lie within the oracle's bound for the kernel that ran; every other byte must be as it was.
 * A case that a rung does not support must be refused with a sentence, by all four calls alike; refusals are listed by
 * `refusals`, which also demands that no refusal hides a plain case. Then: sweeps over lengths and head sizes in closed
 * form, needles, equal bits for any number of threads, and every argument changed in turn.
 */
#include <stdio.h>

#include "../support/attention.h"

#define F16 KILN_FLOAT16
#define B16 KILN_BFLOAT16
#define F32 KILN_FLOAT32

/* Short names for the table. */
#define SHAPE(b, h, hk, q, k, size)                                                                                    \
    .batch = (b), .heads = (h), .heads_k = (hk), .seqlen_q = (q), .seqlen_k = (k), .d = (size)
#define TOP_LEFT               .mask = KILN_MASK_CAUSAL_TOP_LEFT
#define BOTTOM_RIGHT           .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT
#define WINDOW_TL(left, right) .mask = KILN_MASK_WINDOW_TOP_LEFT, .window_left = (left), .window_right = (right)
#define WINDOW_BR(left, right) .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT, .window_left = (left), .window_right = (right)
#define STRIDES(s)             .q_strides = (s), .k_strides = (s), .v_strides = (s), .o_strides = (s), .extra_strides = (s)

/* clang-format off */
static const attention_case cases[] = {
    /* shapes: around every tile edge, few queries, few keys, many of each */
    {SHAPE(1, 1, 1, 1, 1, 1)}, {SHAPE(1, 1, 1, 1, 2, 1)}, {SHAPE(1, 1, 1, 2, 1, 2)}, {SHAPE(2, 3, 3, 5, 7, 3)},
    {SHAPE(1, 1, 1, 15, 17, 16)}, {SHAPE(1, 2, 2, 16, 16, 16)}, {SHAPE(1, 2, 1, 17, 31, 31)}, {SHAPE(1, 1, 1, 31, 33, 32)},
    {SHAPE(1, 1, 1, 32, 64, 33)}, {SHAPE(1, 1, 1, 33, 63, 40)}, {SHAPE(2, 2, 1, 63, 65, 64)}, {SHAPE(1, 2, 2, 64, 128, 64)},
    {SHAPE(1, 1, 1, 65, 127, 65)}, {SHAPE(1, 1, 1, 96, 96, 72)}, {SHAPE(1, 1, 1, 97, 95, 80)}, {SHAPE(1, 1, 1, 127, 129, 96)},
    {SHAPE(1, 2, 1, 129, 130, 128)}, {SHAPE(1, 1, 1, 193, 191, 129)}, {SHAPE(1, 1, 1, 256, 257, 64)}, {SHAPE(1, 1, 1, 257, 300, 112)},
    {SHAPE(3, 5, 5, 1, 70, 24)}, {SHAPE(1, 1, 1, 1, 1000, 64)}, {SHAPE(1, 1, 1, 3, 2000, 48)}, {SHAPE(1, 1, 1, 300, 1, 20)},
    {SHAPE(1, 1, 1, 40, 70, 160)}, {SHAPE(1, 1, 1, 40, 70, 192)}, {SHAPE(1, 2, 1, 40, 70, 255)}, {SHAPE(1, 1, 1, 40, 70, 256)},
    {SHAPE(1, 1, 1, 9, 70, 320)}, {SHAPE(1, 1, 1, 9, 70, 512)}, {SHAPE(1, 2, 2, 9, 70, 576), .d_v = 512}, {SHAPE(1, 1, 1, 9, 70, 576)},
    {SHAPE(1, 2, 1, 20, 50, 192), .d_v = 128}, {SHAPE(1, 1, 1, 20, 50, 64), .d_v = 1}, {SHAPE(1, 1, 1, 20, 50, 1), .d_v = 64},
    {SHAPE(1, 1, 1, 20, 50, 33), .d_v = 100}, {SHAPE(1, 1, 1, 20, 50, 100), .d_v = 33},
    /* types */
    {SHAPE(2, 2, 2, 40, 70, 64), .type = F16}, {SHAPE(2, 2, 1, 40, 70, 64), .type = B16}, {SHAPE(1, 2, 2, 65, 129, 128), .type = F16},
    {SHAPE(1, 2, 2, 65, 129, 128), .type = B16}, {SHAPE(1, 2, 2, 33, 65, 40), .type = F16, .o_type = F32},
    {SHAPE(1, 2, 2, 33, 65, 40), .type = B16, .o_type = F32}, {SHAPE(1, 1, 1, 1, 300, 80), .type = F16}, {SHAPE(1, 4, 1, 1, 300, 80), .type = B16},
    {SHAPE(1, 1, 1, 17, 33, 7), .type = F16}, {SHAPE(1, 1, 1, 17, 33, 7), .type = B16}, {SHAPE(1, 1, 1, 17, 33, 256), .type = F16},
    {SHAPE(1, 1, 1, 17, 33, 256), .type = B16}, {SHAPE(1, 1, 1, 9, 40, 576), .type = F16, .d_v = 512}, {SHAPE(1, 1, 1, 9, 40, 320), .type = B16},
    /* values */
    {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_OUTLIERS}, {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_OUTLIERS, .type = F16},
    {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_OUTLIERS, .type = B16}, {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_NEGATIVE},
    {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_NEGATIVE, .type = F16}, {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_HUGE},
    {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_HUGE, .type = F16}, {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_HUGE, .type = B16},
    {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_ZERO}, {SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_SMALL, .type = F16},
    {SHAPE(1, 2, 2, 70, 200, 64), .values = VALUES_NEGATIVE, BOTTOM_RIGHT}, {SHAPE(1, 2, 2, 70, 200, 64), .values = VALUES_HUGE, BOTTOM_RIGHT},
    /* NaN and infinities, seen by some queries and hidden from others */
    {SHAPE(1, 2, 2, 40, 70, 16), .values = VALUES_POISON}, {SHAPE(1, 2, 2, 70, 70, 16), .values = VALUES_POISON, TOP_LEFT},
    {SHAPE(1, 2, 1, 70, 70, 64), .values = VALUES_POISON, BOTTOM_RIGHT, .type = F16}, {SHAPE(1, 2, 2, 70, 100, 33), .values = VALUES_POISON, BOTTOM_RIGHT, .type = B16},
    {SHAPE(1, 2, 2, 130, 200, 16), .values = VALUES_POISON, WINDOW_BR(20, 5)}, {SHAPE(1, 2, 2, 60, 90, 64), .values = VALUES_POISON, .mask_len = 90},
    {SHAPE(1, 2, 2, 60, 90, 64), .values = VALUES_POISON, .bias = true}, {SHAPE(1, 2, 2, 60, 90, 64), .values = VALUES_POISON, .softcap = 5, BOTTOM_RIGHT},
    {SHAPE(1, 2, 2, 60, 90, 128), .values = VALUES_POISON, .sinks = true, TOP_LEFT}, {SHAPE(2, 4, 2, 1, 300, 64), .values = VALUES_POISON, .mask_len = 250},
    {SHAPE(1, 2, 2, 60, 90, 64), .values = VALUES_POISON, .alibi = 1, BOTTOM_RIGHT}, {SHAPE(1, 1, 1, 200, 200, 64), .values = VALUES_POISON, TOP_LEFT, .seed = 7},
    /* causal */
    {SHAPE(1, 2, 2, 64, 64, 32), TOP_LEFT}, {SHAPE(1, 2, 2, 64, 64, 32), BOTTOM_RIGHT}, {SHAPE(1, 2, 2, 30, 130, 32), TOP_LEFT},
    {SHAPE(1, 2, 2, 30, 130, 32), BOTTOM_RIGHT}, {SHAPE(1, 2, 2, 130, 30, 32), TOP_LEFT}, {SHAPE(1, 2, 2, 130, 30, 32), BOTTOM_RIGHT},
    {SHAPE(1, 1, 1, 257, 257, 64), BOTTOM_RIGHT}, {SHAPE(2, 4, 2, 100, 100, 64), BOTTOM_RIGHT, .type = F16},
    {SHAPE(2, 4, 2, 100, 100, 64), TOP_LEFT, .type = B16}, {SHAPE(1, 4, 1, 1, 200, 64), BOTTOM_RIGHT}, {SHAPE(1, 4, 1, 1, 200, 64), TOP_LEFT},
    {SHAPE(1, 4, 1, 7, 200, 64), BOTTOM_RIGHT}, {SHAPE(1, 1, 1, 65, 64, 128), BOTTOM_RIGHT, .type = F16, .o_type = F32},
    /* windows */
    {SHAPE(1, 2, 2, 100, 100, 32), WINDOW_TL(10, 0)}, {SHAPE(1, 2, 2, 100, 130, 32), WINDOW_BR(10, 3)}, {SHAPE(1, 2, 2, 100, 70, 32), WINDOW_BR(0, 0)},
    {SHAPE(1, 2, 2, 100, 70, 32), WINDOW_TL(0, 0)}, {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(KILN_UNBOUNDED, -1)},
    {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(KILN_UNBOUNDED, KILN_UNBOUNDED)}, {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(-5, 20)},
    {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(20, -5)}, {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(-5, -5)}, {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(5, -5)},
    {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(INT64_MIN, INT64_MIN)}, {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(INT64_MIN, KILN_UNBOUNDED)},
    {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(KILN_UNBOUNDED, INT64_MIN)}, {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(INT64_MAX - 1, INT64_MAX - 1)},
    {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(0, 1000)}, {SHAPE(1, 2, 2, 300, 300, 16), WINDOW_BR(63, 0)}, {SHAPE(1, 4, 2, 3, 300, 64), WINDOW_BR(100, 0), .type = F16},
    {SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(16, 16), .type = B16},
    /* positions */
    {SHAPE(1, 2, 2, 40, 50, 16), TOP_LEFT, .q_start = 7}, {SHAPE(1, 2, 2, 40, 50, 16), TOP_LEFT, .k_start = 7}, {SHAPE(1, 2, 2, 40, 50, 16), BOTTOM_RIGHT, .q_start = -9},
    {SHAPE(1, 2, 2, 40, 50, 16), TOP_LEFT, .q_step = 3}, {SHAPE(1, 2, 2, 40, 90, 16), TOP_LEFT, .k_step = 2, .q_start = 40},
    {SHAPE(1, 2, 2, 40, 90, 16), BOTTOM_RIGHT, .k_step = 4, .q_step = 3, .q_start = 5, .k_start = -20}, {SHAPE(1, 2, 2, 40, 90, 16), WINDOW_TL(30, 10), .q_step = 5, .k_step = 2},
    {SHAPE(4, 2, 2, 40, 50, 16), BOTTOM_RIGHT, .starts = true}, {SHAPE(4, 2, 2, 40, 50, 16), WINDOW_BR(8, 2), .starts = true, .q_step = 2, .k_step = 3, .q_start = 9},
    {SHAPE(1, 2, 2, 40, 50, 16), TOP_LEFT, .q_start = (int64_t)1 << 60, .k_start = (int64_t)1 << 60}, {SHAPE(1, 2, 2, 40, 50, 16), TOP_LEFT, .q_start = -((int64_t)1 << 60)},
    {SHAPE(1, 2, 2, 40, 50, 16), WINDOW_TL(INT64_MAX - 1, 0), .k_start = -((int64_t)1 << 60), .q_start = (int64_t)1 << 60},
    {SHAPE(1, 2, 2, 40, 50, 16), .alibi = 1, .q_start = 3, .k_start = 11, .q_step = 2}, {SHAPE(3, 2, 2, 40, 50, 16), .alibi = 2, .starts = true, .k_step = 2},
    /* attn_mask */
    {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 70}, {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 70, .mask_broadcast = BROADCAST_BATCH},
    {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 70, .mask_broadcast = BROADCAST_HEAD}, {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 70, .mask_broadcast = BROADCAST_QUERY},
    {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 70, .mask_broadcast = BROADCAST_BATCH | BROADCAST_HEAD | BROADCAST_QUERY},
    {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 1}, {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 13, BOTTOM_RIGHT}, {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 69, .mask_type = KILN_BOOL},
    {SHAPE(2, 4, 2, 8, 200, 64), .mask_len = 8, .type = F16}, {SHAPE(1, 2, 2, 40, 70, 32), .mask_len = 70, .extra_strides = STRIDES_TRANSPOSED},
    {SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 33, .used_k = true}, {SHAPE(2, 2, 2, 40, 3, 32), .mask_len = 3}, {SHAPE(1, 1, 1, 40, 1, 32), .mask_len = 1},
    /* bias */
    {SHAPE(2, 2, 2, 40, 70, 32), .bias = true}, {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_BATCH},
    {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_HEAD}, {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_QUERY},
    {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_KEY}, {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = 15},
    {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_BATCH | BROADCAST_QUERY}, {SHAPE(2, 4, 2, 40, 70, 32), .bias = true, .bias_type = F16, .type = F16},
    {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_type = B16, .type = B16}, {SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .type = B16, BOTTOM_RIGHT},
    {SHAPE(1, 2, 2, 40, 70, 32), .bias = true, .extra_strides = STRIDES_TRANSPOSED}, {SHAPE(1, 2, 2, 40, 70, 32), .bias = true, .extra_strides = STRIDES_REVERSED},
    {SHAPE(1, 2, 2, 1, 300, 64), .bias = true}, {SHAPE(1, 2, 2, 40, 70, 32), .bias = true, .mask_len = 60, .softcap = 3},
    /* other modifiers */
    {SHAPE(2, 3, 3, 40, 70, 32), .alibi = 1}, {SHAPE(2, 3, 3, 40, 70, 32), .alibi = 2, BOTTOM_RIGHT}, {SHAPE(2, 4, 1, 40, 70, 32), .alibi = 1, TOP_LEFT, .type = F16},
    {SHAPE(2, 4, 2, 1, 300, 64), .alibi = 1}, {SHAPE(2, 2, 2, 40, 70, 32), .softcap = 2}, {SHAPE(2, 2, 2, 40, 70, 32), .softcap = 0.01f}, {SHAPE(2, 2, 2, 40, 70, 32), .softcap = 50, .type = F16, BOTTOM_RIGHT},
    {SHAPE(2, 2, 2, 40, 70, 32), .softcap = 30, .values = VALUES_HUGE}, {SHAPE(2, 2, 2, 40, 70, 32), .softcap = 1e30f}, {SHAPE(2, 4, 2, 40, 70, 32), .sinks = true},
    {SHAPE(2, 4, 2, 130, 30, 32), .sinks = true, BOTTOM_RIGHT}, {SHAPE(2, 4, 2, 40, 70, 32), .sinks = true, .sinks_type = F16, .type = F16}, {SHAPE(2, 4, 2, 1, 300, 32), .sinks = true, .sinks_type = B16, .type = B16},
    {SHAPE(2, 2, 2, 40, 70, 32), .scale = 2}, {SHAPE(2, 2, 2, 40, 70, 32), .scale = -0.5f}, {SHAPE(2, 2, 2, 40, 70, 32), .scale = 1e-30f}, {SHAPE(2, 2, 2, 40, 70, 32), .flags = KILN_FLAG_SCALE_EXPLICIT},
    {SHAPE(2, 2, 2, 40, 70, 32), .flags = KILN_FLAG_SCALE_EXPLICIT, .scale = 0.25f}, {SHAPE(2, 2, 2, 40, 70, 32), .flags = KILN_FLAG_DETERMINISTIC | KILN_FLAG_BATCH_INVARIANT},
    {SHAPE(2, 2, 2, 40, 70, 32), .max_sms = 1}, {SHAPE(1, 2, 2, 3, 700, 32), .num_splits = 1}, {SHAPE(1, 2, 2, 3, 700, 32), .num_splits = 3}, {SHAPE(1, 2, 2, 3, 700, 32), .num_splits = 1024},
    {SHAPE(2, 2, 2, 40, 70, 32), .no_lse = true}, {SHAPE(2, 2, 2, 40, 70, 32), .v_is_k = true},
    /* everything at once */
    {SHAPE(3, 6, 2, 50, 90, 40), .d_v = 24, BOTTOM_RIGHT, .starts = true, .mask_len = 80, .bias = true, .alibi = 2, .softcap = 4, .sinks = true, STRIDES(STRIDES_PADDED)},
    {SHAPE(3, 6, 2, 50, 90, 40), .d_v = 24, WINDOW_BR(30, 8), .starts = true, .mask_len = 80, .bias = true, .alibi = 2, .softcap = 4, .sinks = true, .type = F16, STRIDES(STRIDES_SEQ_FIRST)},
    {SHAPE(3, 6, 2, 50, 90, 40), .d_v = 24, WINDOW_TL(30, 8), .starts = true, .mask_len = 80, .bias = true, .alibi = 2, .softcap = 4, .sinks = true, .type = B16, .o_type = F32, STRIDES(STRIDES_INNER_STRIDE)},
    /* grouped heads */
    {SHAPE(1, 8, 1, 20, 40, 32)}, {SHAPE(1, 8, 2, 20, 40, 32), BOTTOM_RIGHT}, {SHAPE(2, 12, 4, 1, 100, 64)}, {SHAPE(1, 28, 4, 1, 50, 16), .type = F16}, {SHAPE(1, 7, 1, 5, 40, 16), .bias = true},
    {SHAPE(1, 32, 8, 3, 33, 16), .type = B16, BOTTOM_RIGHT}, {SHAPE(1, 71, 1, 2, 33, 8)}, {SHAPE(1, 16, 1, 1, 600, 64), BOTTOM_RIGHT, .type = F16},
    /* strides */
    {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_SEQ_FIRST)}, {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_PADDED)}, {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_INNER_STRIDE)},
    {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_TRANSPOSED)}, {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_REVERSED)}, {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_BYTE_OFFSET)},
    {SHAPE(1, 4, 2, 40, 70, 33), STRIDES(STRIDES_ODD_ONES)}, {SHAPE(1, 1, 1, 40, 70, 1), STRIDES(STRIDES_ODD_ONES)}, {SHAPE(1, 1, 1, 1, 1, 8), STRIDES(STRIDES_ODD_ONES)},
    {SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_BROADCAST)}, {SHAPE(2, 4, 2, 40, 70, 64), STRIDES(STRIDES_SEQ_FIRST), .type = F16, BOTTOM_RIGHT},
    {SHAPE(2, 4, 2, 40, 70, 64), STRIDES(STRIDES_INNER_STRIDE), .type = B16, TOP_LEFT}, {SHAPE(2, 4, 2, 40, 70, 64), STRIDES(STRIDES_TRANSPOSED), .type = F16},
    {SHAPE(2, 4, 2, 40, 70, 64), STRIDES(STRIDES_REVERSED), .type = B16}, {SHAPE(2, 4, 2, 1, 300, 64), STRIDES(STRIDES_TRANSPOSED)}, {SHAPE(2, 4, 2, 1, 300, 64), STRIDES(STRIDES_REVERSED), .type = F16},
    {SHAPE(2, 4, 2, 40, 70, 64), .q_strides = STRIDES_TRANSPOSED}, {SHAPE(2, 4, 2, 40, 70, 64), .k_strides = STRIDES_TRANSPOSED}, {SHAPE(2, 4, 2, 40, 70, 64), .v_strides = STRIDES_TRANSPOSED},
    {SHAPE(2, 4, 2, 40, 70, 64), .o_strides = STRIDES_TRANSPOSED}, {SHAPE(2, 4, 2, 40, 70, 64), .o_strides = STRIDES_INNER_STRIDE, .type = F16},
    /* nothing to do */
    {SHAPE(ABSENT_SIZE, 2, 2, 4, 5, 8)}, {SHAPE(2, 2, 2, 0, 5, 8)}, {SHAPE(2, 2, 2, 4, 0, 8)}, {SHAPE(2, 2, 2, 4, 0, 8), .sinks = true, BOTTOM_RIGHT}, {SHAPE(2, 2, 2, 0, 0, 8), BOTTOM_RIGHT},
    {SHAPE(2, 2, 2, 4, 0, 8), .type = F16, .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT, .window_left = 3}, {SHAPE(2, 2, 2, 4, 0, 8), .bias = true, .alibi = 1},
    /* dropout */
    {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.1f, .dropout_seed = 123456789012345u, .dropout_offset = 42}, {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.5f, BOTTOM_RIGHT},
    {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.9f, .type = F16, .dropout_offset = UINT64_MAX}, {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.996f, .type = B16, .dropout_seed = UINT64_MAX},
    {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.2f, .q_start = 100, .k_start = -37, .k_step = 3, .starts = true}, {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.2f, .dropout_seed = 5, .dropout_offset = 6, .dropout_pointers = true},
    {SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.001f}, {SHAPE(1, 4, 2, 1, 300, 32), .dropout_p = 0.3f, .sinks = true}, {SHAPE(1, 2, 2, 30, 70, 32), .dropout_p = 0.3f, .values = VALUES_POISON, BOTTOM_RIGHT},
    /* second score operand */
    {SHAPE(1, 4, 1, 20, 70, 64), .d2 = 32, .d_v = 48}, {SHAPE(1, 4, 1, 20, 70, 128), .d2 = 64, .d_v = 128, BOTTOM_RIGHT, .type = B16}, {SHAPE(1, 4, 1, 1, 200, 512), .d2 = 64, .d_v = 512, .type = F16},
    {SHAPE(2, 2, 2, 20, 70, 7), .d2 = 1, STRIDES(STRIDES_TRANSPOSED)}, {SHAPE(1, 4, 1, 20, 70, 64), .d2 = 32, .scale = 0.3f, .softcap = 2}, {SHAPE(1, 1, 1, 5, 30, 576), .d2 = 576},
    /* shortened sequences */
    {SHAPE(4, 2, 2, 40, 70, 32), .used_q = true}, {SHAPE(4, 2, 2, 40, 70, 32), .used_k = true}, {SHAPE(4, 2, 2, 40, 70, 32), .used_q = true, .used_k = true, BOTTOM_RIGHT}, {SHAPE(4, 4, 2, 1, 300, 64), .used_k = true, .type = F16, BOTTOM_RIGHT},
    {SHAPE(4, 2, 2, 40, 70, 32), .leftpad = true}, {SHAPE(4, 2, 2, 40, 70, 32), .leftpad = true, BOTTOM_RIGHT, .alibi = 1, .type = B16}, {SHAPE(4, 2, 2, 40, 70, 32), .leftpad = true, TOP_LEFT, .mask_len = 20},
    {SHAPE(4, 2, 2, 40, 70, 32), .leftpad = true, .bias = true}, {SHAPE(3, 2, 2, 40, 70, 32), .cache_idx = true}, {SHAPE(3, 2, 2, 1, 70, 32), .cache_idx = true, .used_k = true, .leftpad = true, .type = F16}, {SHAPE(4, 2, 2, 40, 70, 32), .used_q = true, .used_k = true, .sinks = true, .starts = true, TOP_LEFT},
    /* packed */
    {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true, .packed_k = true}, {SHAPE(5, 4, 2, 60, 90, 64), .packed_q = true, .packed_k = true, BOTTOM_RIGHT, .type = F16}, {SHAPE(5, 4, 2, 60, 60, 33), .packed_q = true, .packed_k = true, TOP_LEFT, .type = B16, STRIDES(STRIDES_SEQ_FIRST)},
    {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true}, {SHAPE(4, 2, 2, 40, 70, 32), .packed_k = true}, {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true, .packed_k = true, .used_q = true, .used_k = true}, {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true, .packed_k = true, WINDOW_BR(20, 3), .starts = true, .alibi = 2, .sinks = true},
    {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true, .packed_k = true, .dropout_p = 0.25f, BOTTOM_RIGHT}, {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true, .packed_k = true, STRIDES(STRIDES_REVERSED)}, {SHAPE(4, 2, 2, 1, 300, 64), .packed_k = true, .type = F16},
    {SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true, .packed_k = true, .d2 = 16, .o_type = F32, .type = B16, .seed = 3}, {SHAPE(ABSENT_SIZE, 2, 2, 4, 5, 8), .packed_q = true, .packed_k = true}, {SHAPE(1, 2, 2, 0, 0, 8), .packed_q = true, .packed_k = true},
    /* paged */
    {SHAPE(3, 2, 2, 40, 70, 32), .page_size = 16}, {SHAPE(3, 4, 2, 1, 300, 64), .page_size = 16, BOTTOM_RIGHT, .type = F16}, {SHAPE(3, 4, 2, 8, 300, 64), .page_size = 64, BOTTOM_RIGHT, .type = B16}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 1},
    {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 7, .alibi = 1}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 128}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, .leftpad = true, TOP_LEFT}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, .cache_idx = true},
    {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, .packed_q = true, BOTTOM_RIGHT}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, .bias = true, .bias_broadcast = BROADCAST_HEAD}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, .mask_len = 11}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, STRIDES(STRIDES_SEQ_FIRST)},
    {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 5, STRIDES(STRIDES_TRANSPOSED), WINDOW_BR(9, 2)}, {SHAPE(2, 4, 1, 1, 500, 128), .page_size = 32, .d2 = 64, .d_v = 64, .type = B16}, {SHAPE(3, 2, 2, 20, 70, 32), .page_size = 16, .dropout_p = 0.5f}, {SHAPE(3, 2, 2, 4, 900, 32), .page_size = 16, .num_splits = 4, .sinks = true},
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

/* The floor of every backend: `auto` must take dense attention without dropout and without a second operand. */
static bool plain(const attention_case *c)
{
    return !(c->packed_q || c->packed_k || c->page_size || c->used_q || c->used_k || c->leftpad || c->cache_idx ||
             c->dropout_p != 0 || c->d2);
}

/* One test per case and algorithm. */
START_TEST(table)
{
    test_attention *a = test_attention_new(&cases[_i % CASES]);
    /* Slow backends: what is not small on every second rung, in turn; each feature has neighbours in the table. */
    if ((_i % CASES + _i / CASES) % 2 && test_left_out(4 * test_attention_cost(a)))
        return;
    (void)test_attention_ran(a, test_attention_algorithms[_i / CASES]);
}
END_TEST

/* What is refused, once, in one list; and that `auto` takes everything plain. */
START_TEST(refusals)
{
    int refused[TEST_ATTENTION_ALGORITHMS] = {0};
    for (int i = 0; i < CASES; i++) {
        test_attention *a = test_attention_new(&cases[i]);
        for (int g = 0; g < TEST_ATTENTION_ALGORITHMS; g++) {
            const char *algorithm = a->args.algorithm = test_attention_algorithms[g];
            char why[512] = "";
            kiln_status status = test_supported(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, why, sizeof why);
            if (status == KILN_OK)
                continue;
            TEST_REQUIRE(test_refused(status, algorithm, why), "%s: %s: %s", test_algorithm_name(algorithm),
                         kiln_status_name(status), why);
            TEST_REQUIRE(algorithm || !plain(&cases[i]) || !test_on_cpu(), "auto refuses a plain case: %s", why);
            refused[g]++;
        }
        test_release_all();
    }
    for (int g = 0; g < TEST_ATTENTION_ALGORITHMS; g++)
        printf("%s %s: %d of %d cases refused\n", test_backend_name(),
               test_algorithm_name(test_attention_algorithms[g]), refused[g], CASES);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ closed forms */

/* Every number of keys around every tile: q = 0, v = 1 give o = 1 and lse = ln Sk, whatever k is. */
START_TEST(sweep_seqlen_k)
{
    static const int32_t types[3] = {F32, F16, B16};
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    int32_t type = types[_i / TEST_ATTENTION_ALGORITHMS];
    for (int64_t sk = 1; sk <= 260; sk++) {
        if (test_is_slow_backend() && sk > 33 && (sk + 1) % 64 > 2) /* there: around the edges of tiles */
            continue;
        test_attention *a = test_attention_new(
            &(attention_case){SHAPE(1, 2, 1, 1 + sk % 3, sk, 1 + sk % 20), .type = type, .values = VALUES_ZERO});
        test_fill(a->v, 1);
        if (!test_attention_ran(a, algorithm))
            return;
        for (int64_t i = 0; i < a->o->count; i++)
            ck_assert_double_eq_tol(test_result(a->o, i), 1, 1e-6);
        for (int64_t i = 0; i < a->lse->count; i++)
            ck_assert_double_eq_tol(test_result(a->lse, i), log((double)sk), 2e-6);
        test_release_all();
    }
}
END_TEST

/* Every head size: only the last lane of q and k is set, so every lane must count. weights 3:1, LSE = ln 4. */
START_TEST(sweep_head_size)
{
    const char *algorithm = test_attention_algorithms[_i];
    static const int64_t large[] = {264, 320, 512, 576};
    for (int64_t n = 1; n <= 260; n++) {
        int64_t d = n <= 256 ? n : large[n - 257];
        if (test_is_slow_backend() && n <= 256 && (n + 1) % 8 > 2) /* there: around the edges of vectors */
            continue;
        test_attention *a = test_attention_new(&(attention_case){SHAPE(1, 1, 1, 1, 2, d), .scale = 1});
        test_fill(a->q, 0);
        test_fill(a->k, 0);
        test_put(a->q, d - 1, 1);
        test_put(a->k, d - 1, log(3.0));
        for (int64_t j = 0; j < d; j++) {
            test_put(a->v, j, 1 + (double)j);
            test_put(a->v, d + j, 0);
        }
        if (!test_attention_ran(a, algorithm))
            return;
        for (int64_t j = 0; j < d; j++)
            ck_assert_double_eq_tol(test_result(a->o, j), 0.75 * (1 + (double)j), 2e-6 * (1 + (double)j));
        ck_assert_double_eq_tol(test_result(a->lse, 0), log(4.0), 1e-6);
        test_release_all();
    }
}
END_TEST

/*
 * Needle: one key among many carries the value. A bound that grows with the number of keys would let it be lost: here the
 * answer is known to a few units in the last place.
 */
static void needle(const char *algorithm, int32_t type, int64_t sk, int64_t at, double score)
{
    test_attention *a =
        test_attention_new(&(attention_case){SHAPE(1, 1, 1, 1, sk, 8), .type = type, .scale = 1, .o_type = F32});
    test_fill(a->q, 0);
    test_fill(a->k, 0);
    test_fill(a->v, 0);
    test_put(a->q, 5, 1);
    test_put(a->k, at * 8 + 5, score);
    for (int64_t j = 0; j < 8; j++)
        test_put(a->v, at * 8 + j, 64 + (double)j);
    char why[512] = "";
    if (test_attention_run(a, test_context(), algorithm, why, sizeof why) != KILN_OK)
        return;
    /* The largest weight of a row is 1 and so exact, unless a rung's reference lags behind the maximum: then it is rounded as
     * the others are. flash1 revisits the sum in memory, as fp32: one rounding a tile, all of them in one direction here. */
    const double revisited = strstr(why, "flash1") ? 0x1p-24 * (double)sk / (double)a->numerics.tile : 0;
    const double rounding = revisited + (strstr(why, "mma") || strstr(why, "mfma") ? a->numerics.p_unit : 0);
    test_label("needle %s: key %lld of %lld, score %g", test_algorithm_name(algorithm), (long long)at, (long long)sk,
               score);
    double rest = (double)(sk - 1) * exp(-score), weight = 1 / (1 + rest);
    for (int64_t j = 0; j < 8; j++) {
        double want = weight * (64 + (double)j), got = test_result(a->o, j);
        TEST_REQUIRE(fabs(got - want) <= (3e-5 + rounding) * want, "o[%lld] is %.9g, right is %.9g", (long long)j, got,
                     want);
    }
    double lse = score + log1p(rest);
    TEST_REQUIRE(fabs(test_result(a->lse, 0) - lse) <= 2e-5 + revisited, "lse is %.9g, right is %.9g",
                 test_result(a->lse, 0), lse);
    test_release_all();
}

START_TEST(needles)
{
    static const int32_t types[3] = {F32, F16, B16};
    const char *algorithm = test_attention_algorithms[_i];
    const int64_t many = test_smaller(131072, 8192);
    for (int t = 0; t < 3; t++) {
        static const double scores[] = {0, 4, 12};
        int64_t places[] = {0, 1, many / 3, many - 1};
        needle(algorithm, types[t], many, places[t], scores[t]);
        needle(algorithm, types[t], many, places[t + 1], scores[2 - t]);
        needle(algorithm, types[t], 4099, 4098, 0);
        needle(algorithm, types[t], 4099, 77, 8);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ bits */

static unsigned char *bits_of(const test_attention *a, size_t *bytes)
{
    *bytes = a->o->bytes + a->lse->bytes;
    unsigned char *copy = malloc(*bytes);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, a->o->got, a->o->bytes);
    memcpy(copy + a->o->bytes, a->lse->got, a->lse->bytes);
    return copy;
}

/* The same bits for 1 ... 8 threads, for a second run, and whatever the workspace and the outputs held. */
START_TEST(equal_bits)
{
    static const attention_case shapes[] = {
        {SHAPE(2, 4, 2, 130, 200, 64), BOTTOM_RIGHT},
        {SHAPE(1, 2, 1, 3, 3000, 64), .type = F16},
        {SHAPE(1, 1, 1, 300, 300, 128), .type = B16, WINDOW_BR(100, 5)},
        {SHAPE(3, 2, 2, 70, 150, 40), .bias = true, .sinks = true, STRIDES(STRIDES_TRANSPOSED)},
        {SHAPE(4, 4, 1, 1, 700, 64), .used_k = true, .page_size = 16},
        {SHAPE(4, 2, 2, 60, 150, 40), .packed_q = true, .packed_k = true, BOTTOM_RIGHT, .dropout_p = 0.1f},
        /* bf16, several heads a worker: tile kernels pack keys and deal tasks in another way, most of all without a mask */
        {SHAPE(1, 8, 8, 330, 330, 64), .type = B16, BOTTOM_RIGHT},
        {SHAPE(1, 4, 4, 530, 70, 40), .type = B16},
        {SHAPE(4, 2, 2, 60, 150, 40), .type = B16, .packed_q = true, .packed_k = true, BOTTOM_RIGHT},
    };
    char why[512];
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    attention_case shape = shapes[_i / TEST_ATTENTION_ALGORITHMS];
    size_t bytes = 0, again = 0;
    shape.batch = test_smaller(shape.batch, 2);
    shape.heads = test_smaller(shape.heads, 2);
    shape.heads_k = test_smaller(shape.heads_k, shape.heads);
    shape.seqlen_q = test_smaller(shape.seqlen_q, 9);
    shape.seqlen_k = test_smaller(shape.seqlen_k, 300);
    test_attention *a = test_attention_new(&shape);
    if (!test_attention_ran(a, algorithm))
        return;
    unsigned char *first = bits_of(a, &bytes);
    const int32_t step = test_is_slow_backend() ? 9 : 1; /* emulated devices have no threads */
    for (int32_t run = 0; run <= 9; run += step) {
        kiln_context *context = run == 0 ? test_context() : test_context_threads(run == 9 ? 3 : run);
        a->args.max_sms = run == 9 ? 2 : 0;
        ck_assert_int_eq(test_attention_run(a, context, algorithm, why, sizeof why), KILN_OK);
        unsigned char *bits = bits_of(a, &again);
        TEST_REQUIRE(again == bytes && memcmp(bits, first, bytes) == 0, "%s: other bits with %d threads",
                     test_algorithm_name(algorithm), run);
        free(bits);
    }
    free(first);
}
END_TEST
enum { EQUAL_BITS_SHAPES = 9 };

/* Results of a test_tensor in fp64, kept over the next call (which overwrites every output of the test). */
static double *keep_results(const test_tensor *t)
{
    double *kept = test_alloc((size_t)t->count * sizeof *kept);
    for (int64_t i = 0; i < t->count; i++)
        kept[i] = test_result(t, i);
    return kept;
}

/* BATCH_INVARIANT: sequence 0's rows have the same bits alone, with mates, and when only some of its queries are asked. */
START_TEST(batch_invariant)
{
    enum { HEADS = 4, D = 64 };
    const int64_t all = test_smaller(70, 18);
    const char *algorithm = test_attention_algorithms[_i];
    const attention_case full = {SHAPE(test_smaller(3, 2), HEADS, 2, all, test_smaller(1000, 70), D), .type = B16,
                                 .o_type = F32, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT,
                                 .flags = KILN_FLAG_BATCH_INVARIANT};
    test_attention *a = test_attention_new(&full);
    if (!test_attention_ran(a, algorithm))
        return;
    const double *o = keep_results(a->o), *lse = keep_results(a->lse);
    static const int64_t counts[] = {70, 1, 2, 5, 12, 33};
    for (int n = 0; n < 6; n++) { /* the last counts[n] queries of sequence 0 */
        int64_t rows = counts[n] < all ? counts[n] : all;
        attention_case part = full;
        part.batch = 1;
        part.seqlen_q = rows;
        test_attention *b = test_attention_new(&part);
        for (int64_t r = 0; r < HEADS * rows; r++)
            for (int64_t j = 0; j < D; j++)
                test_put(b->q, r * D + j, test_get(a->q, (r / rows * all + all - rows + r % rows) * D + j));
        for (int64_t i = 0; i < b->k->count; i++) {
            test_put(b->k, i, test_get(a->k, i));
            test_put(b->v, i, test_get(a->v, i));
        }
        ck_assert(test_attention_ran(b, algorithm));
        for (int64_t r = 0; r < HEADS * rows; r++) {
            int64_t whole = r / rows * all + all - rows + r % rows;
            bool equal = test_result(b->lse, r) == lse[whole];
            for (int64_t j = 0; j < D; j++)
                equal = equal && test_result(b->o, r * D + j) == o[whole * D + j];
            TEST_REQUIRE(equal, "%s: row %lld has other bits when %lld queries are asked",
                         test_algorithm_name(algorithm), (long long)r, (long long)rows);
        }
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ every argument */

/* One argument changed; the result must change, and as the oracle says. */
typedef struct change {
    const char *what;
    void (*apply)(attention_case *c);
} change;
#define CHANGE(name, statement)                                                                                        \
    static void change_##name(attention_case *c)                                                                       \
    {                                                                                                                  \
        statement;                                                                                                     \
    }
CHANGE(scale, c->scale = 0.7f)
CHANGE(scale_explicit, c->flags |= KILN_FLAG_SCALE_EXPLICIT; c->scale = 0)
CHANGE(softcap, c->softcap = 0.5f)
CHANGE(bias, c->bias = true)
CHANGE(alibi, c->alibi = 1)
CHANGE(sinks, c->sinks = true)
CHANGE(mask_causal, c->mask = KILN_MASK_CAUSAL_TOP_LEFT)
CHANGE(mask_bottom_right, c->mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT)
CHANGE(window_left, c->window_left = 4)
CHANGE(window_right, c->window_right = 1)
CHANGE(attn_mask, c->mask_len = 30)
CHANGE(q_start, c->q_start = 5)
CHANGE(q_step, c->q_step = 3)
CHANGE(k_start, c->k_start = 5)
CHANGE(k_step, c->k_step = 2)
CHANGE(starts, c->starts = true)
CHANGE(used_k, c->used_k = true)
CHANGE(leftpad, c->leftpad = true)
CHANGE(cache_idx, c->cache_idx = true)
CHANGE(dropout, c->dropout_p = 0.3f)
CHANGE(second, c->d2 = 8)
CHANGE(heads_k, c->heads_k = 1)
static const change changes[] = {
    {"softmax_scale", change_scale},
    {"SCALE_EXPLICIT", change_scale_explicit},
    {"softcap", change_softcap},
    {"bias", change_bias},
    {"alibi_slopes", change_alibi},
    {"sinks", change_sinks},
    {"mask", change_mask_causal},
    {"mask bottom-right", change_mask_bottom_right},
    {"window_left", change_window_left},
    {"window_right", change_window_right},
    {"attn_mask", change_attn_mask},
    {"q_start", change_q_start},
    {"q_step", change_q_step},
    {"k_start", change_k_start},
    {"k_step", change_k_step},
    {"starts", change_starts},
    {"seqused_k", change_used_k},
    {"leftpad_k", change_leftpad},
    {"cache_batch_idx", change_cache_idx},
    {"dropout_p", change_dropout},
    {"q2, k2", change_second},
    {"heads_k", change_heads_k},
};
enum { CHANGES = sizeof changes / sizeof *changes };

START_TEST(every_argument)
{
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    const change *one = &changes[_i / TEST_ATTENTION_ALGORITHMS];
    attention_case base = {SHAPE(2, test_smaller(4, 2), 2, 24, 40, 16), .mask = KILN_MASK_WINDOW_TOP_LEFT,
                           .window_left = 12, .window_right = 6};
    attention_case changed = base;
    one->apply(&changed);
    if (changed.mask < KILN_MASK_WINDOW_TOP_LEFT)
        changed.window_left = changed.window_right = 0;
    test_attention *before = test_attention_new(&base);
    if (!test_attention_ran(before, algorithm))
        return;
    test_attention *after = test_attention_new(&changed);
    if (!test_attention_ran(after, algorithm))
        return;
    ck_assert_int_eq(before->o->count, after->o->count);
    int64_t moved = 0;
    for (int64_t i = 0; i < before->o->count; i++)
        moved += fabs(after->o_value[i] - before->o_value[i]) > after->o_bound[i] + before->o_bound[i];
    TEST_REQUIRE(moved > 0, "the test itself is blind: the oracle does not see a change of %s", one->what);
}
END_TEST

/* Seed and offset choose the mask. */
START_TEST(dropout_seed_and_offset)
{
    const char *algorithm = test_attention_algorithms[_i];
    double first[3] = {0};
    for (int variant = 0; variant < 3; variant++) {
        test_attention *a =
            test_attention_new(&(attention_case){SHAPE(1, 1, 1, 1, 200, 4), .dropout_p = 0.5f,
                                                 .dropout_seed = variant == 1, .dropout_offset = variant == 2});
        if (!test_attention_ran(a, algorithm))
            return;
        first[variant] = test_result(a->o, 0);
    }
    ck_assert(first[0] != first[1] && first[0] != first[2] && first[1] != first[2]);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("attention_forward");
    TCase *t = test_tcase(s, "table");
    tcase_add_loop_test(t, table, 0, CASES * TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "refusals");
    tcase_add_test(t, refusals);
    t = test_tcase(s, "sweeps");
    tcase_add_loop_test(t, sweep_seqlen_k, 0, 3 * TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, sweep_head_size, 0, TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "needles");
    tcase_add_loop_test(t, needles, 0, TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "bits");
    tcase_add_loop_test(t, equal_bits, 0, EQUAL_BITS_SHAPES * TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, batch_invariant, 0, TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "arguments");
    tcase_add_loop_test(t, every_argument, 0, CHANGES * TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, dropout_seed_and_offset, 0, TEST_ATTENTION_ALGORITHMS);
    return s;
}

int main(void)
{
    return test_main(suite());
}
