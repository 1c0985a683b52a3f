// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `naive`: softmax(Q·Kᵀ)·V as it is written, in three kernels that meet in memory.
//
//   scores   one thread per score: a dot product along the head, then scale, softcap, bias, ALiBi, masks
//   softmax  one wave per row, in place: maximum, sum, weights; dropped weights become 0, masked ones -1, so that the
//            next kernel need not know why a key does not count
//   values   one thread per element of o: a sum over the keys that are visible, by selection
// Nothing is shared between threads but what the caches keep. It is the ladder's ground: the whole contract (second score
// operand, pages, any head size and alignment included) in the plainest form, and exact to fp32 throughout.
//
// Bytes, one head, N queries and keys, head size d, e bytes an element: 4·N·d·e (q, k, v, o) + 16·N² (S written, read; P
// written, read; fp32). FLOPs: 4·N²·d + 3·N², on FMA units.
// Workspace: S, overwritten by P, fp32 (batch, heads, seqlen_q, seqlen_k), and 1/l, fp32 (batch, heads, seqlen_q).
#pragma once
#include "gpu_attention.gpu.h"

enum {
    NAIVE_SIDE = 16,
    NAIVE_COLUMNS = 32,
    NAIVE_ROWS = 8,
    NAIVE_WAVES = 4
}; // tiles of scores and of o; rows of a block

// Row j of k, v or k2, wherever it lies; rows == 0 where the page table names none.
template <class E> GPU_FN gpu_rows<const E> naive_key(const gpu_scores &c, const kiln_view &v, int64_t j)
{
    if (c.p.page_size > 0)
        return gpu_page_rows<E>(c, v).from(j);
    return gpu_rows<const E>(v, c.s.k_batch, c.head_k()).slice(c.s.k_row + j, 1);
}

template <class E> GPU_FN float naive_dot(const gpu_rows<const E> &q, const gpu_rows<const E> &k, float sum)
{
#pragma unroll 1
    for (int c = 0; c < q.cols; c++)
        sum = gpu_fma(gpu_to_float(gpu_load<1>(q, 0, c)[0]), gpu_to_float(gpu_load<1>(k, 0, c)[0]), sum);
    return sum;
}

template <class E> struct attention_forward_naive_scores {
    using args = gpu_attention_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = NAIVE_SIDE * NAIVE_SIDE, blocks = 1, tile_q = NAIVE_SIDE, tile_k = NAIVE_SIDE;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.p;
        const int64_t across = (p.seqlen_k + NAIVE_SIDE - 1) / NAIVE_SIDE;
        const gpu_item w(p, item, a.q_tiles * across);
        const kiln_sequence s = gpu_sequence_of(p, w.batch);
        const int64_t i = w.tile / across * NAIVE_SIDE + gpu_thread() / NAIVE_SIDE,
                      j = w.tile % across * NAIVE_SIDE + gpu_thread() % NAIVE_SIDE;
        if (i >= s.seqlen_q || j >= s.seqlen_k)
            return;

        const gpu_scores c(p, s, w.batch, w.head, a.scale_log2);
        const kiln_key_range seen = c.window(i);
        float x = gpu_minus_infinity();
        if (j >= seen.begin && j < seen.end) {
            const gpu_rows<const E> k = naive_key<E>(c, p.k, j);
            if (k.rows > 0) {
                float product = naive_dot(gpu_rows<const E>(p.q, s.q_batch, w.head).from(s.q_row + i), k, 0.f);
                if (p.d2 > 0)
                    product = naive_dot(gpu_rows<const E>(p.q2, s.q_batch, w.head).from(s.q_row + i),
                                        naive_key<E>(c, p.k2, j), product);
                x = c.score(product, i, j);
            }
        }
        gpu_write<float>(a.scores, w.batch, w.head, i, j, x);
    }
};

struct attention_forward_naive_rows {
    using args = gpu_attention_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = NAIVE_WAVES * GPU_WAVE, blocks = 1, tile_q = NAIVE_WAVES, tile_k = 0;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.p;
        const gpu_item w(p, item, a.q_tiles);
        const kiln_sequence s = gpu_sequence_of(p, w.batch);
        const int64_t i = w.tile * NAIVE_WAVES + gpu_wave_id();
        if (i >= s.seqlen_q)
            return; // the whole wave

        const gpu_scores c(p, s, w.batch, w.head, a.scale_log2);
        const gpu_rows<float> row = gpu_rows<float>(a.scores, w.batch, w.head).slice(i, 1);
        const int n = (int)s.seqlen_k;
        float top = gpu_minus_infinity(), sum = 0, lost = 0;
        for (int j = gpu_lane(); j < n; j += GPU_WAVE)
            top = gpu_max(top, gpu_load<1>(row, 0, j)[0]);
        top = gpu_wave_max<GPU_WAVE>(top);
        float base = gpu_finite_or_zero(top);
        for (int j = gpu_lane(); j < n; j += GPU_WAVE)
            gpu_add_compensated(sum, lost, 1.f, gpu_exp2(gpu_load<1>(row, 0, j)[0] - base));
        sum = gpu_wave_sum<GPU_WAVE>(sum);

        const gpu_row_end end(c, base, sum, top > gpu_minus_infinity(), 0.f);
        if (gpu_lane() == 0) {
            gpu_write<float>(a.part_lse, w.batch, w.head, i, 0, end.factor);
            end.store_lse(c, i);
        }
        gpu_dropout drop;
        const kiln_key_range seen = c.window(i);
        for (int j = gpu_lane(); j < n; j += GPU_WAVE) {
            const float x = gpu_load<1>(row, 0, j)[0];
            float weight = gpu_exp2(x - base);
            if (x == gpu_minus_infinity()) { // masked, or a score that is -inf: that one counts, with weight 0
                const bool visible =
                    j >= seen.begin && j < seen.end && c.visible(i, j) && (p.page_size == 0 || c.page(j) >= 0);
                weight = visible ? 0.f : -1.f;
            } else if (p.dropout_threshold < 256 && !drop.keep(c, i, j))
                weight = 0;
            gpu_store<1>(row, 0, j, gpu_vec<float, 1>{weight});
        }
    }
};

// One element of o from the weights in memory. Most need one round. Values near the end of the type overflow the sum, not
// the mean, and what a visible Inf then meets may be an overflow of the other sign: so if the first round does not end in a
// number, once more with values scaled down by a power of two, which no finite ones overflow. Values and not weights, for a
// small weight must not become 0 beside an Inf. special: a visible v is NaN or Inf.
template <class E>
GPU_FN float naive_value(const gpu_scores &c, const kiln_view &weights, int64_t i, int col, float factor, float keep,
                         bool &special)
{
    const gpu_rows<float> row = gpu_rows<float>(weights, c.batch, c.head).slice(i, 1);
    const kiln_key_range seen = c.window(i);
    float y = 0;
    special = false;
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        const float scale = round == 0 ? 1.f : 0x1p-40f;
        float sum = 0;
#pragma unroll 1
        for (int64_t j = seen.begin; j < seen.end; j++) {
            const float weight = gpu_load<1>(row, 0, (int)j)[0];
            if (weight < 0)
                continue;
            const float v = gpu_to_float(gpu_load<1>(naive_key<E>(c, c.p.v, j), 0, col)[0]);
            special = special || !gpu_is_finite(v);
            sum = gpu_fma(weight, v * scale, sum);
        }
        y = gpu_mean(sum, factor, keep, round == 0 ? 1.f : 0x1p40f);
        if (gpu_abs(y) < gpu_overflow_of(c.p.o.type))
            break;
        if (round == 1 && gpu_is_finite(sum))
            y = gpu_clamp_mean(c.p, y);
    }
    return y;
}

template <class E> struct attention_forward_naive_values {
    using args = gpu_attention_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = NAIVE_ROWS * NAIVE_COLUMNS, blocks = 1, tile_q = NAIVE_ROWS, tile_k = 0;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.p;
        const int64_t across = (p.d_v + NAIVE_COLUMNS - 1) / NAIVE_COLUMNS;
        const gpu_item w(p, item, a.q_tiles * across);
        const kiln_sequence s = gpu_sequence_of(p, w.batch);
        const int64_t i = w.tile / across * NAIVE_ROWS + gpu_thread() / NAIVE_COLUMNS;
        const int col = (int)(w.tile % across) * NAIVE_COLUMNS + gpu_thread() % NAIVE_COLUMNS;
        if (i >= s.seqlen_q || col >= p.d_v)
            return;

        const gpu_scores c(p, s, w.batch, w.head, a.scale_log2);
        bool special;
        const float y = naive_value<E>(c, a.scores, i, col, gpu_read<float>(a.part_lse, w.batch, w.head, i),
                                       gpu_keep_scale(p), special);
        gpu_write_float(p.o, s.q_batch, w.head, s.q_row + i, col, y);
    }
};
