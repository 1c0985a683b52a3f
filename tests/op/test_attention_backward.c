/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_backward.c: attention backward against the oracle, for every case of one table.
 *
 * Every element of every gradient must lie within the oracle's bound for the kernel that ran; every other byte must be as it was.
 * Then: sweeps over lengths and head sizes in closed form, equal bits for any number of threads, independence from batch
 * mates, hidden operands that may hold anything, and every argument changed in turn.
 */
#include <stdio.h>

#include "../support/gradients.h"

#define F16 KILN_FLOAT16
#define B16 KILN_BFLOAT16
#define F32 KILN_FLOAT32

/* Short names for the table. The braces of `forward` are F(...). */
#define F(...) .forward = {__VA_ARGS__}
#define SHAPE(b, h, hk, q, k, size)                                                                                    \
    .batch = (b), .heads = (h), .heads_k = (hk), .seqlen_q = (q), .seqlen_k = (k), .d = (size)
#define TOP_LEFT               .mask = KILN_MASK_CAUSAL_TOP_LEFT
#define BOTTOM_RIGHT           .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT
#define WINDOW_TL(left, right) .mask = KILN_MASK_WINDOW_TOP_LEFT, .window_left = (left), .window_right = (right)
#define WINDOW_BR(left, right) .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT, .window_left = (left), .window_right = (right)
#define STRIDES(s)             .q_strides = (s), .k_strides = (s), .v_strides = (s), .o_strides = (s), .extra_strides = (s)
#define PACKED                 .packed_q = true, .packed_k = true
#define ACCUMULATE             .flags = KILN_FLAG_ACCUMULATE_DQ | KILN_FLAG_ACCUMULATE_DK | KILN_FLAG_ACCUMULATE_DV

/* clang-format off */
static const gradients_case cases[] = {
    /* shapes: around every tile edge, several splits of the keys, few of either */
    {F(SHAPE(1, 1, 1, 1, 1, 1))}, {F(SHAPE(1, 1, 1, 1, 2, 1))}, {F(SHAPE(1, 1, 1, 2, 1, 2))}, {F(SHAPE(2, 3, 3, 5, 7, 3))},
    {F(SHAPE(1, 1, 1, 15, 17, 16))}, {F(SHAPE(1, 2, 1, 17, 31, 31))}, {F(SHAPE(1, 1, 1, 32, 64, 33))}, {F(SHAPE(2, 2, 1, 63, 65, 64))},
    {F(SHAPE(1, 1, 1, 65, 127, 65))}, {F(SHAPE(1, 1, 1, 97, 95, 80))}, {F(SHAPE(1, 2, 1, 129, 193, 128))}, {F(SHAPE(1, 1, 1, 195, 291, 72))},
    {F(SHAPE(1, 1, 1, 70, 1100, 24))}, {F(SHAPE(1, 1, 1, 1, 1000, 64))}, {F(SHAPE(1, 1, 1, 300, 1, 20))}, {F(SHAPE(1, 1, 1, 1500, 3, 8))},
    {F(SHAPE(1, 2, 1, 20, 50, 192)), .dlse = true}, {F(SHAPE(1, 1, 1, 40, 70, 256))}, {F(SHAPE(1, 1, 1, 9, 70, 576))},
    {F(SHAPE(1, 2, 1, 20, 50, 192), .d_v = 128)}, {F(SHAPE(1, 1, 1, 20, 50, 64), .d_v = 1)}, {F(SHAPE(1, 1, 1, 20, 50, 1), .d_v = 64)}, {F(SHAPE(1, 1, 1, 20, 50, 100), .d_v = 33)},
    /* types */
    {F(SHAPE(2, 2, 1, 40, 70, 64), .type = F16)}, {F(SHAPE(2, 2, 1, 40, 70, 64), .type = B16)}, {F(SHAPE(2, 2, 1, 40, 70, 33), .type = F16), .type = F32}, {F(SHAPE(2, 2, 1, 40, 70, 33), .type = B16), .type = F32},
    {F(SHAPE(1, 2, 2, 33, 65, 40), .type = F16, .o_type = F32), .dout_type = F32}, {F(SHAPE(1, 2, 2, 33, 65, 40), .type = B16, .o_type = F32), .dout_type = F32, .dlse = true},
    /* values */
    {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_OUTLIERS)}, {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_OUTLIERS, .type = B16)}, {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_NEGATIVE)},
    {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_HUGE)}, {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_HUGE, .type = F16), .type = F32}, {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_ZERO)}, {F(SHAPE(1, 2, 2, 40, 100, 64), .values = VALUES_SMALL, .type = F16)},
    /* NaN and infinities, seen by some and hidden from others */
    {F(SHAPE(1, 2, 2, 40, 70, 16), .values = VALUES_POISON)}, {F(SHAPE(1, 2, 2, 70, 70, 16), .values = VALUES_POISON, TOP_LEFT)}, {F(SHAPE(1, 2, 1, 70, 70, 64), .values = VALUES_POISON, BOTTOM_RIGHT, .type = F16)},
    {F(SHAPE(1, 2, 2, 130, 200, 16), .values = VALUES_POISON, WINDOW_BR(20, 5)), .dlse = true}, {F(SHAPE(1, 2, 2, 60, 90, 64), .values = VALUES_POISON, .mask_len = 90)}, {F(SHAPE(1, 2, 2, 60, 90, 40), .values = VALUES_POISON, .bias = true)},
    {F(SHAPE(1, 2, 2, 60, 90, 64), .values = VALUES_POISON, .softcap = 5, BOTTOM_RIGHT)}, {F(SHAPE(1, 2, 2, 60, 90, 128), .values = VALUES_POISON, .sinks = true, TOP_LEFT)}, {F(SHAPE(2, 4, 2, 3, 300, 64), .values = VALUES_POISON, .mask_len = 250)},
    {F(SHAPE(1, 2, 2, 30, 70, 32), .dropout_p = 0.3f, .values = VALUES_POISON, BOTTOM_RIGHT)}, {F(SHAPE(4, 2, 2, 60, 60, 32), .values = VALUES_POISON, PACKED, BOTTOM_RIGHT)},
    /* masks and positions */
    {F(SHAPE(1, 2, 2, 64, 64, 32), TOP_LEFT)}, {F(SHAPE(1, 2, 2, 30, 130, 32), TOP_LEFT)}, {F(SHAPE(1, 2, 2, 30, 130, 32), BOTTOM_RIGHT)}, {F(SHAPE(1, 2, 2, 130, 30, 32), TOP_LEFT)}, {F(SHAPE(1, 2, 2, 130, 30, 32), BOTTOM_RIGHT)},
    {F(SHAPE(1, 1, 1, 600, 600, 16), BOTTOM_RIGHT)}, {F(SHAPE(2, 4, 2, 100, 100, 64), BOTTOM_RIGHT, .type = F16)}, {F(SHAPE(1, 2, 2, 100, 130, 32), WINDOW_BR(10, 3))}, {F(SHAPE(1, 2, 2, 400, 400, 16), WINDOW_BR(63, 0))},
    {F(SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(KILN_UNBOUNDED, -1))}, {F(SHAPE(1, 2, 2, 60, 70, 32), WINDOW_BR(-5, 20))}, {F(SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(5, -5))}, {F(SHAPE(1, 2, 2, 60, 70, 32), WINDOW_TL(INT64_MIN, INT64_MIN))},
    {F(SHAPE(1, 2, 2, 40, 90, 16), BOTTOM_RIGHT, .k_step = 4, .q_step = 3, .q_start = 5, .k_start = -20)}, {F(SHAPE(4, 2, 2, 40, 50, 16), WINDOW_BR(8, 2), .starts = true, .q_step = 2, .k_step = 3, .q_start = 9)},
    {F(SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 70)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 13, BOTTOM_RIGHT)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .mask_len = 33, .used_k = true, .mask_broadcast = BROADCAST_HEAD)},
    /* bias and dbias, broadcast in every way */
    {F(SHAPE(2, 2, 2, 40, 70, 32), .bias = true)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_BATCH)}, {F(SHAPE(2, 4, 2, 70, 100, 32), .bias = true, .bias_broadcast = BROADCAST_HEAD)},
    {F(SHAPE(2, 2, 2, 150, 70, 32), .bias = true, .bias_broadcast = BROADCAST_QUERY)}, {F(SHAPE(2, 2, 2, 40, 210, 32), .bias = true, .bias_broadcast = BROADCAST_KEY)}, {F(SHAPE(2, 2, 2, 80, 110, 32), .bias = true, .bias_broadcast = 15)},
    {F(SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_BATCH | BROADCAST_HEAD)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_QUERY | BROADCAST_KEY)},
    {F(SHAPE(2, 4, 2, 40, 70, 32), .bias = true, .bias_type = F16, .type = F16)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .bias = true, .bias_type = B16, .type = B16, BOTTOM_RIGHT), .type = F32}, {F(SHAPE(2, 2, 2, 40, 70, 32), .bias = true), .no_dbias = true},
    {F(SHAPE(4, 2, 2, 40, 70, 32), .bias = true, .bias_broadcast = BROADCAST_BATCH, .used_q = true, .used_k = true)}, {F(SHAPE(4, 2, 2, 40, 70, 32), .bias = true, .used_q = true, .used_k = true, .leftpad = true)},
    {F(SHAPE(1, 2, 2, 40, 70, 32), .bias = true, .softcap = 3, .extra_strides = STRIDES_TRANSPOSED), .strides = STRIDES_REVERSED}, {F(SHAPE(2, 2, 2, 3, 300, 16), .bias = true, .bias_broadcast = BROADCAST_QUERY, .dropout_p = 0.2f)},
    /* other modifiers */
    {F(SHAPE(2, 3, 3, 40, 70, 32), .alibi = 1)}, {F(SHAPE(2, 4, 1, 40, 70, 32), .alibi = 2, BOTTOM_RIGHT, .type = F16)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .softcap = 2)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .softcap = 0.01f)},
    {F(SHAPE(2, 2, 2, 40, 70, 32), .softcap = 30, .values = VALUES_HUGE)}, {F(SHAPE(2, 4, 2, 40, 70, 32), .sinks = true)}, {F(SHAPE(2, 4, 2, 130, 30, 32), .sinks = true, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(2, 4, 2, 40, 70, 32), .sinks = true), .no_dsinks = true},
    {F(SHAPE(2, 4, 2, 40, 70, 32), .sinks = true, .sinks_type = F16, .type = F16)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .scale = -0.5f)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .scale = 2), .dlse = true}, {F(SHAPE(2, 2, 2, 40, 70, 32), .flags = KILN_FLAG_SCALE_EXPLICIT)},
    {F(SHAPE(2, 2, 2, 40, 70, 32), .v_is_k = true)}, {F(SHAPE(2, 2, 2, 40, 70, 32), .max_sms = 1)}, {F(SHAPE(2, 2, 2, 40, 70, 32)), .flags = KILN_FLAG_DETERMINISTIC | KILN_FLAG_BATCH_INVARIANT}, {F(SHAPE(2, 2, 2, 40, 70, 32)), .dlse = true},
    /* accumulated */
    {F(SHAPE(2, 2, 1, 40, 70, 32)), ACCUMULATE}, {F(SHAPE(2, 2, 1, 40, 70, 32), .type = F16), ACCUMULATE}, {F(SHAPE(2, 2, 1, 40, 70, 32), .type = B16), .type = F32, ACCUMULATE}, {F(SHAPE(1, 2, 1, 100, 400, 32), BOTTOM_RIGHT), .flags = KILN_FLAG_ACCUMULATE_DQ},
    {F(SHAPE(2, 2, 1, 40, 70, 32), TOP_LEFT), .flags = KILN_FLAG_ACCUMULATE_DK}, {F(SHAPE(2, 2, 1, 40, 70, 32), .d2 = 8), .flags = KILN_FLAG_ACCUMULATE_DV}, {F(SHAPE(4, 2, 1, 40, 70, 32), PACKED, .d2 = 8), ACCUMULATE}, {F(SHAPE(2, 2, 1, 0, 70, 32)), ACCUMULATE},
    /* dropout, the second score operand */
    {F(SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.1f, .dropout_seed = 123456789012345u, .dropout_offset = 42)}, {F(SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.9f, .type = F16)}, {F(SHAPE(2, 4, 2, 40, 70, 32), .dropout_p = 0.2f, .dropout_seed = 5, .dropout_offset = 6, .dropout_pointers = true)},
    {F(SHAPE(1, 4, 1, 20, 70, 64), .d2 = 32, .d_v = 48)}, {F(SHAPE(1, 4, 1, 20, 70, 128), .d2 = 64, .d_v = 128, BOTTOM_RIGHT, .type = B16)}, {F(SHAPE(1, 1, 1, 5, 30, 576), .d2 = 576)}, {F(SHAPE(2, 2, 2, 20, 70, 7), .d2 = 1, STRIDES(STRIDES_TRANSPOSED)), .strides = STRIDES_TRANSPOSED},
    /* lengths */
    {F(SHAPE(4, 2, 2, 40, 70, 32), .used_q = true)}, {F(SHAPE(4, 2, 2, 40, 70, 32), .used_k = true)}, {F(SHAPE(4, 2, 2, 40, 70, 32), .used_q = true, .used_k = true, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(4, 2, 2, 40, 70, 32), .leftpad = true, BOTTOM_RIGHT, .alibi = 1)},
    {F(SHAPE(5, 4, 2, 60, 90, 64), PACKED, BOTTOM_RIGHT, .type = F16)}, {F(SHAPE(4, 2, 2, 40, 70, 32), .packed_q = true)}, {F(SHAPE(4, 2, 2, 40, 70, 32), .packed_k = true), .dlse = true}, {F(SHAPE(4, 2, 2, 40, 70, 32), PACKED, .used_q = true, .used_k = true)},
    {F(SHAPE(4, 2, 2, 40, 70, 32), PACKED, .dropout_p = 0.25f, BOTTOM_RIGHT)}, {F(SHAPE(4, 2, 2, 40, 70, 32), PACKED, .sinks = true, STRIDES(STRIDES_REVERSED)), .strides = STRIDES_REVERSED}, {F(SHAPE(5, 2, 1, 30, 400, 16), PACKED)},
    {F(SHAPE(3, 2, 2, 40, 70, 32), .cache_idx = true)}, /* refused, with a sentence */
    /* grouped heads, strides */
    {F(SHAPE(1, 8, 1, 20, 40, 32))}, {F(SHAPE(2, 12, 4, 1, 100, 64)), .dlse = true}, {F(SHAPE(1, 7, 1, 50, 40, 16), .bias = true, BOTTOM_RIGHT)}, {F(SHAPE(1, 71, 1, 2, 33, 8))},
    {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_SEQ_FIRST)), .strides = STRIDES_SEQ_FIRST}, {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_PADDED)), .strides = STRIDES_PADDED, ACCUMULATE}, {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_INNER_STRIDE)), .strides = STRIDES_INNER_STRIDE},
    {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_TRANSPOSED), .type = F16), .strides = STRIDES_TRANSPOSED, ACCUMULATE}, {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_REVERSED), .type = B16), .strides = STRIDES_REVERSED}, {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_BYTE_OFFSET)), .strides = STRIDES_BYTE_OFFSET},
    {F(SHAPE(1, 4, 2, 40, 70, 33), STRIDES(STRIDES_ODD_ONES)), .strides = STRIDES_ODD_ONES}, {F(SHAPE(1, 1, 1, 1, 1, 8), STRIDES(STRIDES_ODD_ONES)), .strides = STRIDES_ODD_ONES}, {F(SHAPE(2, 4, 2, 40, 70, 33), STRIDES(STRIDES_BROADCAST)), .strides = STRIDES_PADDED},
    /* nothing to do */
    {F(SHAPE(ABSENT_SIZE, 2, 2, 4, 5, 8))}, {F(SHAPE(2, 2, 2, 0, 5, 8))}, {F(SHAPE(2, 2, 2, 4, 0, 8))}, {F(SHAPE(2, 2, 2, 4, 0, 8), .sinks = true, BOTTOM_RIGHT)}, {F(SHAPE(2, 2, 2, 4, 0, 8), .bias = true, .alibi = 1)}, {F(SHAPE(ABSENT_SIZE, 2, 2, 4, 5, 8), PACKED)},
    /* bf16 with enough queries for tile registers: around tiles, units, blocks, splits and chunks */
    {F(SHAPE(1, 1, 1, 64, 1, 1), .type = B16)}, {F(SHAPE(1, 1, 1, 65, 31, 3), .type = B16), .type = F32}, {F(SHAPE(1, 2, 2, 96, 33, 31), .type = B16)}, {F(SHAPE(1, 1, 1, 127, 127, 33), .type = B16)}, {F(SHAPE(2, 2, 1, 129, 129, 64), .type = B16), .type = F32},
    {F(SHAPE(1, 2, 1, 150, 270, 128), .type = B16), .type = F32}, {F(SHAPE(1, 1, 1, 257, 300, 80), .type = B16)}, {F(SHAPE(1, 1, 1, 70, 200, 256), .type = B16)}, {F(SHAPE(1, 1, 1, 100, 140, 64), .d_v = 1, .type = B16)}, {F(SHAPE(1, 1, 1, 100, 140, 1), .d_v = 100, .type = B16), .type = F32},
    {F(SHAPE(1, 1, 1, 70, 140, 192), .d_v = 128, .type = B16, BOTTOM_RIGHT)}, {F(SHAPE(1, 1, 1, 70, 2500, 24), .type = B16)}, {F(SHAPE(1, 64, 64, 64, 1200, 16), .type = B16)}, {F(SHAPE(16, 4, 4, 64, 700, 128), .type = B16, TOP_LEFT)}, {F(SHAPE(1, 1, 1, 1100, 3, 8), .type = B16, .o_type = F32), .dlse = true},
    {F(SHAPE(2, 8, 2, 33, 170, 40), .type = B16, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(1, 71, 1, 2, 133, 8), .type = B16)}, {F(SHAPE(1, 12, 4, 50, 140, 64), .type = B16, WINDOW_BR(30, 4)), .type = F32}, {F(SHAPE(1, 6, 2, 130, 200, 64), .type = B16, TOP_LEFT, .sinks = true)}, {F(SHAPE(2, 4, 2, 130, 30, 32), .type = B16, .sinks = true, BOTTOM_RIGHT), .dlse = true},
    {F(SHAPE(1, 2, 2, 130, 30, 32), .type = B16, TOP_LEFT)}, {F(SHAPE(1, 1, 1, 600, 600, 16), .type = B16, BOTTOM_RIGHT)}, {F(SHAPE(1, 2, 2, 400, 400, 16), .type = B16, WINDOW_BR(63, 0)), .type = F32}, {F(SHAPE(1, 2, 2, 70, 470, 32), .type = B16, WINDOW_BR(-5, 20))}, {F(SHAPE(1, 2, 2, 70, 80, 32), .type = B16, WINDOW_TL(INT64_MIN, INT64_MIN))},
    {F(SHAPE(1, 2, 2, 70, 900, 16), .type = B16, WINDOW_TL(3, 2), .q_step = 25, .q_start = 7), .type = F32}, {F(SHAPE(1, 2, 2, 100, 300, 16), .type = B16, BOTTOM_RIGHT, .k_step = 4, .q_step = 3, .q_start = 5, .k_start = -20)}, {F(SHAPE(4, 2, 2, 100, 150, 16), .type = B16, WINDOW_BR(8, 2), .starts = true, .q_step = 2, .k_step = 3, .q_start = 9)},
    {F(SHAPE(1, 2, 2, 100, 200, 64), .type = B16, .values = VALUES_OUTLIERS), .type = F32}, {F(SHAPE(1, 2, 2, 100, 200, 64), .type = B16, .values = VALUES_NEGATIVE)}, {F(SHAPE(1, 2, 2, 100, 200, 64), .type = B16, .values = VALUES_HUGE), .type = F32}, {F(SHAPE(1, 2, 2, 100, 200, 64), .type = B16, .values = VALUES_ZERO)}, {F(SHAPE(1, 2, 2, 100, 200, 64), .type = B16, .values = VALUES_SMALL), .type = F32},
    {F(SHAPE(1, 2, 2, 100, 200, 32), .type = B16, .values = VALUES_POISON)}, {F(SHAPE(1, 2, 2, 170, 170, 16), .type = B16, .values = VALUES_POISON, TOP_LEFT)}, {F(SHAPE(1, 4, 1, 70, 170, 64), .type = B16, .values = VALUES_POISON, BOTTOM_RIGHT), .type = F32, .dlse = true}, {F(SHAPE(1, 2, 2, 130, 200, 16), .type = B16, .values = VALUES_POISON, WINDOW_BR(20, 5), .sinks = true)}, {F(SHAPE(4, 2, 2, 160, 160, 32), .type = B16, .values = VALUES_POISON, PACKED, BOTTOM_RIGHT)},
    {F(SHAPE(2, 2, 2, 100, 170, 32), .type = B16, .scale = -0.5f)}, {F(SHAPE(2, 2, 2, 100, 170, 32), .type = B16, .scale = 2), .dlse = true}, {F(SHAPE(2, 2, 2, 100, 170, 32), .type = B16, .flags = KILN_FLAG_SCALE_EXPLICIT)}, {F(SHAPE(2, 2, 2, 100, 170, 32), .type = B16, .v_is_k = true)}, {F(SHAPE(2, 2, 2, 100, 170, 32), .type = B16, .max_sms = 1)}, {F(SHAPE(1, 2, 2, 1, 170, 32), .type = B16), .flags = KILN_FLAG_BATCH_INVARIANT},
    {F(SHAPE(2, 2, 1, 100, 170, 32), .type = B16), ACCUMULATE}, {F(SHAPE(2, 2, 1, 100, 170, 32), .type = B16, BOTTOM_RIGHT), .type = F32, ACCUMULATE}, {F(SHAPE(1, 2, 1, 100, 400, 32), .type = B16, BOTTOM_RIGHT), .flags = KILN_FLAG_ACCUMULATE_DQ}, {F(SHAPE(2, 2, 1, 100, 70, 32), .type = B16, TOP_LEFT), .flags = KILN_FLAG_ACCUMULATE_DK}, {F(SHAPE(2, 2, 2, 100, 70, 32), .type = B16), .dout_type = F32},
    {F(SHAPE(4, 2, 2, 140, 170, 32), .type = B16, .used_q = true, .used_k = true, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(4, 2, 2, 140, 170, 32), .type = B16, .leftpad = true, BOTTOM_RIGHT)}, {F(SHAPE(5, 4, 2, 160, 190, 64), .type = B16, PACKED, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(4, 2, 2, 140, 170, 32), .type = B16, .packed_q = true)}, {F(SHAPE(4, 2, 2, 140, 170, 32), .type = B16, .packed_k = true)}, {F(SHAPE(4, 2, 1, 140, 170, 32), .type = B16, PACKED, .used_q = true, .used_k = true), ACCUMULATE},
    {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_SEQ_FIRST)), .strides = STRIDES_SEQ_FIRST}, {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_PADDED)), .strides = STRIDES_PADDED, ACCUMULATE}, {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_INNER_STRIDE)), .strides = STRIDES_INNER_STRIDE}, {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_TRANSPOSED)), .strides = STRIDES_TRANSPOSED, ACCUMULATE},
    {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_REVERSED)), .strides = STRIDES_REVERSED}, {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_BYTE_OFFSET)), .strides = STRIDES_BYTE_OFFSET}, {F(SHAPE(1, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_ODD_ONES)), .strides = STRIDES_ODD_ONES}, {F(SHAPE(2, 4, 2, 100, 170, 33), .type = B16, STRIDES(STRIDES_BROADCAST)), .strides = STRIDES_PADDED},
    {F(SHAPE(ABSENT_SIZE, 2, 2, 100, 5, 8), .type = B16)}, {F(SHAPE(2, 2, 2, 100, 0, 8), .type = B16), ACCUMULATE}, {F(SHAPE(2, 2, 2, 100, 0, 8), .type = B16, .sinks = true, BOTTOM_RIGHT)}, {F(SHAPE(2, 2, 2, 0, 5, 8), .type = B16), .flags = KILN_FLAG_BATCH_INVARIANT}, {F(SHAPE(ABSENT_SIZE, 2, 2, 100, 5, 8), .type = B16, PACKED)},
    /* 16-bit types over many tiles, of which none, some or all hold what is not finite */
    {F(SHAPE(1, 4, 2, 700, 900, 64), .type = B16, TOP_LEFT)}, {F(SHAPE(2, 2, 1, 500, 700, 128), .type = F16, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(6, 4, 2, 300, 500, 128), .type = B16, PACKED, BOTTOM_RIGHT)}, {F(SHAPE(6, 2, 2, 500, 300, 64), .type = F16, PACKED)}, {F(SHAPE(1, 2, 2, 600, 700, 72), .d_v = 40, .type = F16, WINDOW_BR(200, 30))},
    {F(SHAPE(1, 2, 1, 300, 400, 256), .type = B16, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(2, 2, 2, 200, 300, 192), .d_v = 136, .type = F16)}, {F(SHAPE(5, 2, 1, 150, 260, 256), .type = B16, PACKED, WINDOW_BR(100, 9))}, {F(SHAPE(1, 2, 1, 300, 200, 256), .type = F16, .values = VALUES_POISON, TOP_LEFT)}, {F(SHAPE(2, 2, 2, 130, 140, 160), .d_v = 256, .type = B16, .values = VALUES_POISON)},
    /* beyond d = 128 wgmma has 64 queries beside 64 others: one half sees no keys, or keys of tiles that the other does not see */
    {F(SHAPE(1, 2, 1, 330, 130, 256), .type = B16, WINDOW_TL(10, 5))}, {F(SHAPE(1, 2, 1, 300, 100, 256), .type = F16, BOTTOM_RIGHT), .dlse = true}, {F(SHAPE(1, 2, 2, 320, 640, 192), .type = B16, .values = VALUES_POISON, WINDOW_BR(20, 0))},
    {F(SHAPE(2, 4, 2, 500, 600, 64), .type = B16, .values = VALUES_POISON)}, {F(SHAPE(1, 4, 2, 500, 600, 128), .type = F16, .values = VALUES_POISON)}, {F(SHAPE(1, 2, 1, 700, 600, 64), .type = F16, .values = VALUES_POISON, TOP_LEFT)}, {F(SHAPE(5, 2, 1, 300, 400, 128), .type = B16, .values = VALUES_POISON, PACKED, BOTTOM_RIGHT)}, {F(SHAPE(1, 2, 2, 300, 500, 64), .type = F16, .values = VALUES_HUGE)}, {F(SHAPE(1, 2, 2, 300, 500, 64), .type = F16, .values = VALUES_SMALL)},
    /* everything at once */
    {F(SHAPE(3, 6, 2, 50, 90, 40), .d_v = 24, BOTTOM_RIGHT, .starts = true, .mask_len = 80, .bias = true, .alibi = 2, .softcap = 4, .sinks = true, .dropout_p = 0.1f, STRIDES(STRIDES_PADDED)), .dlse = true, .strides = STRIDES_SEQ_FIRST, ACCUMULATE},
    {F(SHAPE(3, 6, 2, 50, 90, 40), .d_v = 24, .d2 = 9, WINDOW_BR(30, 8), .starts = true, .mask_len = 80, .bias = true, .bias_broadcast = BROADCAST_BATCH | BROADCAST_QUERY, .alibi = 2, .softcap = 4, .sinks = true, .type = F16, STRIDES(STRIDES_SEQ_FIRST)), .dlse = true, .type = F32},
    {F(SHAPE(3, 6, 2, 50, 90, 40), .d_v = 24, WINDOW_TL(30, 8), .starts = true, .used_q = true, .leftpad = true, .mask_len = 80, .bias = true, .bias_broadcast = BROADCAST_HEAD, .softcap = 4, .sinks = true, .type = B16, .o_type = F32), .dout_type = F32, .strides = STRIDES_INNER_STRIDE},
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

static bool ran(test_gradients *g)
{
    char why[512] = "";
    return test_gradients_run(g, test_context(), why, sizeof why) == KILN_OK;
}

START_TEST(table)
{
    bool done = ran(test_gradients_new(&cases[_i]));
    TEST_REQUIRE(done || !test_on_cpu() || cases[_i].forward.cache_idx, "the cpu backend refuses a case");
}
END_TEST

/* ------------------------------------------------------------------------------------------------ closed forms */

/* Every number of keys around every tile: q = 0, v = 1 give dv = Σ do / Sk, and no other gradient. */
START_TEST(sweep_seqlen_k)
{
    for (int64_t sk = 1; sk <= 300; sk++) {
        if (test_is_slow_backend() && sk > 33 && (sk + 1) % 64 > 2) /* there: around the edges of tiles */
            continue;
        test_gradients *g = test_gradients_new(
            &(gradients_case){F(SHAPE(1, 2, 1, 1 + sk % 3, sk, 1 + sk % 20), .values = VALUES_ZERO)});
        test_fill(g->forward->v, 1);
        test_fill(g->dout, 1);
        test_gradients_refresh(g);
        if (!ran(g))
            return;
        double want = 2 * (double)(1 + sk % 3) / (double)sk;
        for (int64_t i = 0; i < g->out[2]->count; i++)
            ck_assert_double_eq_tol(test_result(g->out[2], i), want, 1e-6 * want);
        test_release_all();
    }
}
END_TEST

/* One key: o = v, so dv = do (summed over the group) and dq = dk = 0 exactly, whatever q and k are. */
START_TEST(single_key)
{
    for (int64_t d = 1; d <= 256; d += d < 20 ? 1 : 59) {
        test_gradients *g = test_gradients_new(&(gradients_case){F(SHAPE(3, 4, 2, 1, 1, d))});
        for (int64_t i = 0; i < g->dout->count; i++)
            test_put(g->dout, i, (double)(i / d % 4 + 1));
        for (int64_t i = 0; i < g->forward->v->count; i++)
            test_put(g->forward->v, i, (double)(i % 5));
        test_gradients_refresh(g);
        for (int64_t i = 0; i < g->forward->lse->count; i++) /* P = 1 exactly only if lse is the score: make it so */
            test_put(g->forward->lse, i, 0);
        test_fill(g->forward->q, 0);
        if (!ran(g))
            return;
        for (int64_t i = 0; i < g->out[0]->count; i++)
            ck_assert(test_result(g->out[0], i) == 0);
        for (int64_t i = 0; i < g->out[1]->count; i++)
            ck_assert(test_result(g->out[1], i) == 0 && test_result(g->out[2], i) == (i / d % 2 ? 7 : 3));
        test_release_all();
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ bits */

/* The bits of all gradients, side by side. */
static unsigned char *bits_of(const test_gradients *g, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < GRADIENTS; i++)
        *bytes += g->out[i] ? g->out[i]->bytes : 0;
    unsigned char *copy = test_alloc(*bytes), *to = copy;
    for (int i = 0; i < GRADIENTS; i++)
        if (g->out[i]) {
            memcpy(to, g->out[i]->got, g->out[i]->bytes);
            to += g->out[i]->bytes;
        }
    return copy;
}

/* The same bits for 1 ... 8 threads, for a second run, and whatever the workspace held: of the same kernel. */
START_TEST(equal_bits)
{
    static const gradients_case shapes[] = {
        {F(SHAPE(2, 4, 2, 130, 200, 64), BOTTOM_RIGHT), .dlse = true},
        {F(SHAPE(1, 1, 1, 150, 1100, 32), .type = F16)},
        {F(SHAPE(1, 1, 1, 300, 300, 128), .type = B16, WINDOW_BR(100, 5)), ACCUMULATE},
        {F(SHAPE(3, 2, 2, 70, 150, 40), .bias = true, .bias_broadcast = BROADCAST_BATCH, .sinks = true)},
        {F(SHAPE(4, 2, 2, 60, 150, 40), PACKED, BOTTOM_RIGHT, .dropout_p = 0.1f)},
        {F(SHAPE(2, 4, 2, 130, 400, 64), .type = B16, BOTTOM_RIGHT), .type = F32, .dlse = true},
        {F(SHAPE(4, 2, 1, 160, 350, 40), .type = B16, PACKED, WINDOW_BR(100, 5), .values = VALUES_POISON)},
    };
    char kernel[512] = "", why[512] = "";
    size_t bytes = 0, again = 0;
    gradients_case shape = shapes[_i];
    shape.flags |= KILN_FLAG_DETERMINISTIC;
    shape.forward.batch = test_smaller(shape.forward.batch, 2);
    shape.forward.heads = test_smaller(shape.forward.heads, 2);
    shape.forward.heads_k = test_smaller(shape.forward.heads_k, 1);
    shape.forward.seqlen_q = test_smaller(shape.forward.seqlen_q, 20);
    shape.forward.seqlen_k = test_smaller(shape.forward.seqlen_k, 150);
    test_gradients *g = test_gradients_new(&shape);
    if (test_gradients_run(g, test_context(), kernel, sizeof kernel) != KILN_OK)
        return;
    unsigned char *first = bits_of(g, &bytes);
    const int32_t step = test_is_slow_backend() ? 9 : 1; /* emulated devices have no threads */
    for (int32_t run = 0; run <= 9; run += step) {
        kiln_context *context = run == 0 ? test_context() : test_context_threads(run == 9 ? 3 : run);
        g->args.max_sms = run == 9 ? 2 : 0;
        ck_assert_int_eq(test_gradients_run(g, context, why, sizeof why), KILN_OK);
        TEST_REQUIRE(strcmp(why, kernel) != 0 || (memcmp(bits_of(g, &again), first, bytes) == 0 && again == bytes),
                     "other bits with %d threads", run);
    }
}
END_TEST
enum { EQUAL_BITS_SHAPES = 7 };

/* DETERMINISTIC where many blocks add to one row: the same bits again and again. */
START_TEST(repeated)
{
    static const gradients_case shapes[] = {
        {F(SHAPE(1, 2, 1, 1000, 1100, 64), .type = B16, BOTTOM_RIGHT), .dlse = true},
        {F(SHAPE(1, 2, 2, 1024, 1024, 128), .type = F16)},
        {F(SHAPE(4, 4, 2, 600, 800, 128), .type = B16, PACKED, BOTTOM_RIGHT)},
        {F(SHAPE(1, 2, 2, 900, 1200, 64), .type = F16, WINDOW_BR(300, 20))},
        {F(SHAPE(1, 3, 1, 400, 2000, 128), .type = B16, WINDOW_TL(50, KILN_UNBOUNDED))},
        {F(SHAPE(2, 2, 1, 1500, 700, 40), .type = F16, TOP_LEFT, .used_q = true, .used_k = true)},
        {F(SHAPE(1, 4, 1, 700, 900, 256), .type = B16, BOTTOM_RIGHT), .dlse = true},
        {F(SHAPE(3, 2, 2, 300, 400, 160), .type = F16, PACKED, WINDOW_BR(150, 20))},
    };
    char why[512];
    size_t bytes = 0, again = 0;
    gradients_case shape = shapes[_i];
    shape.flags = KILN_FLAG_DETERMINISTIC;
    shape.forward.seqlen_q = test_smaller(shape.forward.seqlen_q, 150);
    shape.forward.seqlen_k = test_smaller(shape.forward.seqlen_k, 200);
    test_gradients *g = test_gradients_new(&shape);
    if (!ran(g))
        return;
    unsigned char *first = bits_of(g, &bytes);
    const int runs = test_on_cpu() || test_is_slow_backend() ? 2 : 50;
    for (int run = 1; run < runs; run++) {
        ck_assert_int_eq(test_run(KILN_OP_ATTENTION_BACKWARD, test_context(), &g->args, why, sizeof why), KILN_OK);
        TEST_REQUIRE(memcmp(bits_of(g, &again), first, bytes) == 0 && again == bytes, "other bits in run %d", run);
    }
}
END_TEST
enum { REPEATED_SHAPES = 8 };

/* Far more tiles of keys than a device works on at a time, again and again: what a block loads for its next tile must not touch its
 * last one. Causal, so that tiles differ in length and in what they hide; then more keys than queries, so that some tiles have one
 * step and some none. A block that waits for ever is what this looks for. */
START_TEST(many_tiles)
{
    static const int64_t sizes[] = {8, 72, 136};
    const bool few = _i >= 9;
    const int64_t heads = test_smaller(test_on_cpu() ? 6 : 200, 2), queries = test_smaller(few ? 130 : 193, 70),
                  keys = test_smaller(few ? 300 : 193, 70);
    char why[512];
    test_gradients *g = test_gradients_new(
        &(gradients_case){F(SHAPE(1, heads, heads, queries, keys, sizes[_i % 3]), .type = _i / 6 ? F16 : B16,
                            .mask = few ? KILN_MASK_CAUSAL_TOP_LEFT : KILN_MASK_CAUSAL_BOTTOM_RIGHT),
                          .flags = _i / 3 % 2 ? KILN_FLAG_DETERMINISTIC : 0});
    if (test_left_out(test_attention_cost(g->forward)))
        return;
    const int runs = test_on_cpu() || test_is_slow_backend() ? 2 : 30;
    for (int run = 1; run < runs; run++) { /* the last one is judged */
        const kiln_status status = test_run(KILN_OP_ATTENTION_BACKWARD, test_context(), &g->args, why, sizeof why);
        if (status == KILN_UNSUPPORTED)
            return;
        ck_assert_int_eq(status, KILN_OK);
    }
    ck_assert(ran(g));
}
END_TEST
enum { MANY_TILES = 15, MANY_HEADS = 9, LONG_ITEMS = 13, LAST_KEYS = 8 };

/* Heads enough for a device to be at some keys of each only. Of their gradients of q the first part may be put there, for others to add
 * to: that of the first keys (DETERMINISTIC: the last), if a row sees any; rows that see others alone, or none, begin as zeros. */
START_TEST(many_heads)
{
    const int64_t batch = test_on_cpu() ? 2 : test_smaller(45, 1), heads = test_smaller(4, 2),
                  rows = test_smaller(150, 20), keys = test_smaller(300, 40), more = test_smaller(200, 20),
                  far = test_smaller(400, 40);
    const gradients_case all[MANY_HEADS] = {
        {F(SHAPE(batch, 2 * heads, heads, rows, keys, 64), WINDOW_TL(40, 30), .type = B16)},
        {F(SHAPE(batch, heads, heads, more, far, 128), WINDOW_BR(100, -20), .type = F16), .dlse = true},
        {F(SHAPE(batch, heads, heads, rows, keys, 128), BOTTOM_RIGHT, .used_q = true, .used_k = true, .type = B16)},
        {F(SHAPE(batch, heads, heads, keys, rows, 40), BOTTOM_RIGHT, .type = F16)},
        {F(SHAPE(batch, heads, heads, rows, keys, 72), TOP_LEFT, .values = VALUES_POISON, .type = B16)},
        {F(SHAPE(batch, heads, heads, rows, keys, 64), .used_k = true, .type = F16)},
        {F(SHAPE(batch, heads, heads, rows, keys, 64), WINDOW_TL(40, 30), .type = F16),
         .flags = KILN_FLAG_DETERMINISTIC},
        {F(SHAPE(batch, 2 * heads, heads, keys, rows, 128), WINDOW_BR(60, 3), .used_q = true, .type = B16),
         .flags = KILN_FLAG_DETERMINISTIC},
        {F(SHAPE(batch, heads, heads, keys, rows, 96), BOTTOM_RIGHT, .used_k = true, .type = F16),
         .flags = KILN_FLAG_DETERMINISTIC},
    };
    ck_assert(ran(test_gradients_new(&all[_i])));
}
END_TEST

/* Heads that share keys, by items of thousands of rows: wgmma has another kernel from 8192 on, at head sizes of 65 to 128. Where there
 * are few keys for many heads it deals out parts of a group, by halves: one of an odd number stays together, and its tiles of queries are
 * worked on row by row, unless one head's fill a fifth of the second-level cache, as those of the last two do. */
START_TEST(long_items)
{
    const int64_t group = test_smaller(32, 2), odd = test_smaller(33, 3), rows = test_smaller(150, 20),
                  more = test_smaller(260, 20), keys = test_smaller(270, 40), many = test_smaller(26000, 40);
    const gradients_case all[LONG_ITEMS] = {
        {F(SHAPE(1, group, 1, more, keys, 128), .type = B16, BOTTOM_RIGHT), .dlse = true},
        {F(SHAPE(3, 2 * group, 2, more, rows, 96), .type = F16, PACKED)},
        {F(SHAPE(1, group, 1, more, keys, 128), .type = B16, .values = VALUES_POISON, TOP_LEFT)},
        {F(SHAPE(1, group, 1, rows, keys, 256), .type = B16, BOTTOM_RIGHT), .dlse = true},
        {F(SHAPE(1, group, 2, rows, keys, 192), .type = F16, .values = VALUES_POISON, WINDOW_BR(60, 3))},
        {F(SHAPE(1, odd, 1, more, keys, 128), .type = B16, TOP_LEFT), .dlse = true},
        {F(SHAPE(1, odd, 1, rows, keys, 128), .type = F16, BOTTOM_RIGHT)},
        {F(SHAPE(1, odd, 1, rows, keys, 64), .type = F16, BOTTOM_RIGHT), .dlse = true},
        {F(SHAPE(1, odd, 1, rows, keys, 64), .type = B16, TOP_LEFT), .flags = KILN_FLAG_DETERMINISTIC},
        {F(SHAPE(3, 2 * odd, 2, rows, keys, 40), .type = B16, PACKED, WINDOW_BR(60, 3))},
        {F(SHAPE(1, 3, 1, 2 * rows, keys, 128), .type = F16, .values = VALUES_POISON, BOTTOM_RIGHT)},
        {F(SHAPE(1, 3, 1, many, 20, 8), .type = B16), .dlse = true},
        {F(SHAPE(1, 3, 1, many / 2, 20, 72), .type = F16)},
    };
    ck_assert(ran(test_gradients_new(&all[_i])));
}
END_TEST

/* 16-bit types, last tiles of any number of keys: a GPU's waves have 16 each, and those that have all of them may send them in another
 * way. What lies beside a row, and behind the last one, belongs to another head or sequence. */
START_TEST(last_keys)
{
    static const int64_t keys[] = {1, 15, 16, 17, 33, 95, 112, 113, 127, 128, 129, 143, 144, 145, 160, 241, 255, 257};
    static const int64_t packed_q[] = {5, 1, 3, 0, 6, 2}, packed_k[] = {17, 128, 1, 15, 113, 160};
    const int64_t size = (const int64_t[]){40, 64, 72, 128}[_i % 4], queries = test_smaller(70, 6);
    gradients_case c = {F(SHAPE(6, 1, 1, 6, 160, size), PACKED, .type = _i % 2 ? F16 : B16, .lengths_q = packed_q,
                          .lengths_k = packed_k),
                        .flags = _i / 4 ? KILN_FLAG_DETERMINISTIC : 0};
    ck_assert(ran(test_gradients_new(&c)));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        test_release_all();
        c.forward = (attention_case){SHAPE(1, 2, 2, queries, keys[i], size), STRIDES(STRIDES_SEQ_FIRST),
                                     .type = i % 2 ? F16 : B16};
        c.strides = STRIDES_SEQ_FIRST;
        ck_assert(ran(test_gradients_new(&c)));
    }
}
END_TEST

/* BATCH_INVARIANT: a packed sequence's gradients have the same bits alone and among longer mates. */
START_TEST(batch_invariant)
{
    enum { HEADS = 2, Q = 20, D = 24 };
    const int64_t longest_q = test_smaller(300, 40), longest_k = test_smaller(1300, 150), keys = test_smaller(400, 70);
    const int64_t lengths_q[] = {Q, longest_q, 1}, lengths_k[] = {keys, longest_k, 7};
    gradients_case c = {F(SHAPE(3, HEADS, 1, longest_q, longest_k, D), PACKED, BOTTOM_RIGHT, .lengths_q = lengths_q,
                          .lengths_k = lengths_k, .type = _i ? B16 : F32),
                        .flags = KILN_FLAG_BATCH_INVARIANT};
    test_gradients *mates = test_gradients_new(&c);
    if (!ran(mates))
        return;
    c.forward.batch = 1;
    c.forward.seqlen_q = Q;
    c.forward.seqlen_k = keys;
    test_gradients *alone = test_gradients_new(&c);
    test_tensor *to[] = {alone->forward->q, alone->forward->k, alone->forward->v, alone->dout};
    const test_tensor *from[] = {mates->forward->q, mates->forward->k, mates->forward->v, mates->dout};
    for (int t = 0; t < 4; t++)
        for (int64_t i = 0; i < to[t]->count; i++)
            test_put(to[t], i,
                     test_get(from[t], i / D / to[t]->shape[1] * from[t]->shape[1] * D + i % (to[t]->shape[1] * D)));
    double *kept[3];
    for (int t = 0; t < 3; t++) {
        kept[t] = test_alloc((size_t)mates->out[t]->count * sizeof(double));
        for (int64_t i = 0; i < mates->out[t]->count; i++)
            kept[t][i] = test_result(mates->out[t], i);
    }
    test_gradients_refresh(alone);
    ck_assert(ran(alone));
    for (int t = 0; t < 3; t++) {
        const int64_t rows = alone->out[t]->shape[1], all = mates->out[t]->shape[1];
        for (int64_t i = 0; i < alone->out[t]->count; i++)
            TEST_REQUIRE(test_result(alone->out[t], i) == kept[t][i / D / rows * all * D + i % (rows * D)],
                         "%s[%lld] has other bits among batch mates", gradients_name[t], (long long)i);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ hidden operands */

/* Whatever a hidden pair holds in q, k, v or dout: no bit of a gradient that does not see it changes. */
START_TEST(hidden_operands)
{
    enum { S = 150, D = 20 };
    static const double poison[] = {NAN, INFINITY, -INFINITY};
    const gradients_case c = {F(SHAPE(1, 1, 1, S, S, D), TOP_LEFT, .type = _i < 4 ? F32 : B16)};
    test_gradients *g = test_gradients_new(&c);
    if (!ran(g))
        return;
    double *clean[3];
    for (int t = 0; t < 3; t++) {
        clean[t] = test_alloc(S * D * sizeof(double));
        for (int64_t i = 0; i < S * D; i++)
            clean[t][i] = test_result(g->out[t], i);
    }
    const int64_t at = 70; /* key `at` is hidden from queries before it, query `at` sees no key after it */
    test_tensor *operand[] = {g->forward->q, g->forward->k, g->forward->v, g->dout};
    test_tensor *t = operand[_i % 4];
    test_put(t, at * D + 3, poison[_i % 3]);
    test_gradients_refresh(g);
    ck_assert(ran(g));
    bool of_query = _i % 4 == 0 || _i % 4 == 3;
    for (int64_t i = 0; i < S * D; i++) {
        int64_t row = i / D;
        /* a bad query row touches itself and the keys up to it; a bad key row the queries from it on, and all they see */
        bool query_clean = of_query ? row != at : row < at;
        bool key_clean = of_query ? row > at : false;
        TEST_REQUIRE(!query_clean || test_result(g->out[0], i) == clean[0][i], "dq[%lld] sees a hidden operand",
                     (long long)i);
        TEST_REQUIRE(!key_clean ||
                         (test_result(g->out[1], i) == clean[1][i] && test_result(g->out[2], i) == clean[2][i]),
                     "dk or dv[%lld] sees a hidden operand", (long long)i);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ every argument */

/* One argument changed; some gradient must change, and all as the oracle says. */
/* clang-format off */
#define CHANGES(X)                                                                                                     \
    X(forward.scale, 0.7f) X(forward.scale, -0.1f) X(forward.softcap, 0.5f) X(forward.bias, true)                      \
    X(forward.alibi, 1) X(forward.sinks, true) X(forward.mask, KILN_MASK_WINDOW_TOP_LEFT)                              \
    X(forward.window_left, 4) X(forward.window_right, 1) X(forward.mask_len, 30) X(forward.q_start, 5)                 \
    X(forward.q_step, 3) X(forward.k_start, 5) X(forward.k_step, 2) X(forward.starts, true) X(forward.used_k, true)    \
    X(forward.leftpad, true) X(forward.dropout_p, 0.3f) X(forward.d2, 8) X(forward.heads_k, 1) X(dlse, true)           \
    X(flags, KILN_FLAG_ACCUMULATE_DQ) X(flags, KILN_FLAG_ACCUMULATE_DK) X(flags, KILN_FLAG_ACCUMULATE_DV)
/* clang-format on */

START_TEST(every_argument)
{
    gradients_case c = {F(SHAPE(2, 4, 2, 30, 40, 16), WINDOW_BR(9, 6))};
    test_gradients *g = test_gradients_new(&c);
    if (!ran(g))
        return;
    double *before[3];
    for (int t = 0; t < 3; t++) {
        before[t] = test_alloc((size_t)g->out[t]->count * sizeof(double));
        for (int64_t i = 0; i < g->out[t]->count; i++)
            before[t][i] = test_result(g->out[t], i);
    }
    const char *what = "";
    int number = 0;
#define APPLY(field, value)                                                                                            \
    if (number++ == _i) {                                                                                              \
        c.field = value;                                                                                               \
        what = #field;                                                                                                 \
    }
    CHANGES(APPLY)
    test_gradients *h = test_gradients_new(&c);
    if (!ran(h))
        return;
    bool changed = false;
    for (int t = 0; t < 3; t++)
        for (int64_t i = 0; i < g->out[t]->count && i < h->out[t]->count; i++)
            changed |= !(test_result(h->out[t], i) == before[t][i]);
    TEST_REQUIRE(changed, "%s is ignored", what);
}
END_TEST
#define COUNT(field, value) +1
enum { ARGUMENTS = 0 CHANGES(COUNT) };

static Suite *suite(void)
{
    Suite *s = suite_create("attention_backward");
    TCase *t = test_tcase(s, "table");
    tcase_add_loop_test(t, table, 0, CASES);
    t = test_tcase(s, "closed forms");
    tcase_add_test(t, sweep_seqlen_k);
    tcase_add_test(t, single_key);
    t = test_tcase(s, "bits");
    tcase_add_loop_test(t, equal_bits, 0, EQUAL_BITS_SHAPES);
    tcase_add_loop_test(t, repeated, 0, REPEATED_SHAPES);
    tcase_add_loop_test(t, batch_invariant, 0, 2);
    t = test_tcase(s, "hidden operands");
    tcase_add_loop_test(t, hidden_operands, 0, 8);
    t = test_tcase(s, "many tiles");
    tcase_add_loop_test(t, many_tiles, 0, MANY_TILES);
    tcase_add_loop_test(t, long_items, 0, LONG_ITEMS);
    tcase_add_loop_test(t, last_keys, 0, LAST_KEYS);
    t = test_tcase(s, "many heads");
    tcase_add_loop_test(t, many_heads, 0, MANY_HEADS);
    t = test_tcase(s, "arguments");
    tcase_add_loop_test(t, every_argument, 0, ARGUMENTS);
    return s;
}

int main(void)
{
    return test_main(suite());
}
