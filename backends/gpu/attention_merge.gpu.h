// SPDX-License-Identifier: MIT OR Apache-2.0
// attention merge: n partial results of a row become one. Part n is a mean o_n with the weight l_n·2^(m_n·unit); the result is
// the mean of the means. Operation attention_merge gives m = lse and l = 1; rung `splitkv` keeps m and l apart, so that its
// weights are as exact as those of a row that was never cut. A neutral part (l < 0 here) is not read.
//
//   attention_merge        o and lse of up to GPU_MERGE_PARTS parts; in the first and last of several launches, a chain of them
//   attention_merge_weigh  for calls with more parts: largest lse and sum of weights of all parts first, a thread a row
//
// A thread takes 8 columns of a row, and weighs the parts itself: no exchange, and a row's bits depend on its parts alone,
// which are added in their order. Weights are divided by their sum beforehand: sums of values near the end of the type do not
// overflow before the mean does. Rows that are not aligned are read element by element.
// Bytes: every part that counts once, o and lse once (n > GPU_MERGE_PARTS: o so far written and read between launches).
#pragma once
#include "gpu_device.h"

struct gpu_merge_weight {
    float m, l;
};

// May whole 16-byte pieces of this view's rows be read and written?
GPU_FN bool gpu_merge_aligned(const kiln_view &v)
{
    const int64_t element = v.type == KILN_FLOAT32 ? 4 : 2;
    return ((int64_t)(uintptr_t)v.data | (v.stride[0] | v.stride[1] | v.stride[2] | v.size[3]) * element) % 16 == 0;
}

// Columns col ... col + 7 of a row whose type is data; zeros past the end.
GPU_FN gpu_vec<float, 8> gpu_merge_load(const kiln_view &v, int64_t b, int64_t h, int64_t i, int col, bool aligned)
{
    gpu_vec<float, 8> x = {};
    const int cols = (int)v.size[3];
    if (aligned && v.type == KILN_FLOAT32) {
        const gpu_rows<const float> row = gpu_rows<const float>(v, b, h).from(i);
#pragma unroll
        for (int half = 0; half < 8; half += 4)
            if (col + half < cols) {
                const gpu_vec<float, 4> y = gpu_load<4>(row, 0, col + half);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[half + e] = y[e];
            }
    } else if (aligned) {
        const gpu_rows<const gpu_half> row = gpu_rows<const gpu_half>(v, b, h).from(i);
        const gpu_packed y = gpu_load_packed<false>(row, 0, col);
        x = v.type == KILN_FLOAT16 ? gpu_unpack<gpu_half>(y) : gpu_unpack<gpu_bf16>(y);
    } else
#pragma unroll 1
        for (int e = 0; e < 8; e++) {
            const float y = col + e < cols ? gpu_read_float(v, b, h, i, col + e) : 0.f;
#pragma unroll
            for (int n = 0; n < 8; n++)
                x[n] = n == e ? y : x[n]; // stays in registers
        }
    return x;
}
GPU_FN void gpu_merge_store(const kiln_view &v, int64_t b, int64_t h, int64_t i, int col, const gpu_vec<float, 8> &x,
                            bool aligned)
{
    const int cols = (int)v.size[3];
    if (aligned && v.type == KILN_FLOAT32) {
        const gpu_rows<float> row = gpu_rows<float>(v, b, h).from(i);
#pragma unroll
        for (int half = 0; half < 8; half += 4)
            if (col + half < cols)
                gpu_store<4>(row, 0, col + half, gpu_vec<float, 4>{x[half], x[half + 1], x[half + 2], x[half + 3]});
    } else if (aligned && v.type == KILN_FLOAT16) {
        gpu_store<8>(gpu_rows<gpu_half>(v, b, h).from(i), 0, col, gpu_from_floats<gpu_half>(x));
    } else if (aligned) {
        gpu_store<8>(gpu_rows<gpu_bf16>(v, b, h).from(i), 0, col, gpu_from_floats<gpu_bf16>(x));
    } else
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (col + e < cols)
                gpu_write_float(v, b, h, i, col + e, x[e]);
}

// The rows and columns of a thread: f(row, col) for each of its pieces; all threads, in the same number of rounds.
struct gpu_merge_share {
    int64_t row;
    int first;
    bool mine;
    GPU_FN gpu_merge_share(int64_t item, int64_t rows, int64_t d_v)
    {
        const int pieces = (int)((d_v + 7) / 8), per = pieces == 0                  ? 1
                                                       : pieces < GPU_MERGE_THREADS ? pieces
                                                                                    : GPU_MERGE_THREADS;
        const int64_t of = gpu_merge_rows(d_v);
        const int r = gpu_thread() / per;
        row = item * of + r, first = gpu_thread() % per;
        mine = r < of && row < rows;
    }
    static GPU_FN int step(int64_t d_v)
    {
        return d_v > 8 * GPU_MERGE_THREADS ? 8 * GPU_MERGE_THREADS : (int)((d_v + 7) / 8) * 8;
    }
};

// top: the largest m of parts that count; sum: of their weights l·2^((m - base)·unit), base = top, or 0 where that is -inf.
// They go on from what they hold.
template <class PARTS> GPU_FN void gpu_merge_weigh(const PARTS &parts, int n, float &top, float &sum)
{
    const float before = top;
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        const gpu_merge_weight w = parts.weight(k);
        if (!(w.l < 0))
            top = gpu_max(top, w.m);
    }
    const float base = gpu_finite_or_zero(top);
    if (sum != 0)
        sum *= gpu_exp2((gpu_finite_or_zero(before) - base) * PARTS::unit);
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        const gpu_merge_weight w = parts.weight(k);
        if (!(w.l < 0))
            sum = gpu_fma(w.l, gpu_exp2((w.m - base) * PARTS::unit), sum);
    }
}

// total += Σ weight·factor·o over eight columns. `any`: total has a term already (a first one is stored, not added: -0 stays).
// finite: all o that counted were.
template <class PARTS>
GPU_FN void gpu_merge_add(const PARTS &parts, int n, float base, float factor, int col, gpu_vec<float, 8> &total,
                          bool &any, bool &finite)
{
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        const gpu_merge_weight w = parts.weight(k);
        if (w.l < 0)
            continue;
        const float weight = w.l * gpu_exp2((w.m - base) * PARTS::unit) * factor;
        const gpu_vec<float, 8> x = parts.load(k, col);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            finite = finite && x[e] - x[e] == 0;
            total[e] = any ? gpu_fma(weight, x[e], total[e]) : weight * x[e];
        }
        any = true;
    }
}

// A mean of finite values is finite, whatever rounding says.
GPU_FN void gpu_merge_clamp(gpu_vec<float, 8> &x, bool finite)
{
    if (!finite)
        return;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        if (x[e] > 0x1.fffffep127f)
            x[e] = 0x1.fffffep127f;
        if (x[e] < -0x1.fffffep127f)
            x[e] = -0x1.fffffep127f;
    }
}

// A row of operation attention_merge.
struct attention_merge_parts {
    static constexpr float unit = 1.44269504089f;
    const gpu_merge_args &a;
    int64_t b, h, i;
    GPU_FN attention_merge_parts(const gpu_merge_args &a_, int64_t row) : a(a_)
    {
        i = row % a.o.size[2], h = row / a.o.size[2] % a.o.size[1], b = row / a.o.size[2] / a.o.size[1];
    }
    GPU_FN gpu_merge_weight weight(int k) const
    {
        const float lse = gpu_read<float>(a.lse_part[k], b, h, i);
        return {lse, lse == gpu_minus_infinity() ? -1.f : 1.f};
    }
    GPU_FN gpu_vec<float, 8> load(int k, int col) const
    {
        return gpu_merge_load(a.o_part[k], b, h, i, col, gpu_merge_aligned(a.o_part[k]));
    }
    GPU_FN void weigh(float &top, float &sum) const
    { // with the sink, as one more part
        gpu_merge_weigh(*this, a.parts, top, sum);
        if (!(a.step & GPU_MERGE_LAST) || !kiln_view_present(&a.sinks))
            return;
        const float sink = gpu_read_float(a.sinks, 0, h, 0, 0), before = top;
        if (sink == gpu_minus_infinity())
            return;
        top = gpu_max(top, sink);
        const float base = gpu_finite_or_zero(top);
        if (sum != 0)
            sum *= gpu_exp2((gpu_finite_or_zero(before) - base) * unit);
        sum += gpu_exp2((sink - base) * unit);
    }
};

struct attention_merge {
    using args = gpu_merge_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = GPU_MERGE_THREADS, blocks = 2, tile_q = 0, tile_k = 0;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const int64_t d_v = a.o.size[3];
        const gpu_merge_share share(item, a.o.size[0] * a.o.size[1] * a.o.size[2], d_v);
        const attention_merge_parts parts(a, share.mine ? share.row : 0);
        const bool several = kiln_view_present(&a.weight);
        float top = gpu_minus_infinity(), sum = 0;
        if (share.mine && several) {
            top = gpu_read<float>(a.weight, parts.b, parts.h, parts.i, 0),
            sum = gpu_read<float>(a.weight, parts.b, parts.h, parts.i, 1);
        } else if (share.mine)
            parts.weigh(top, sum);
        const float base = gpu_finite_or_zero(top), factor = sum == 0 ? 0.f : 1.f / sum;
        if (share.mine) {
#pragma unroll 1
            for (int col = share.first * 8; col < d_v; col += gpu_merge_share::step(d_v)) {
                gpu_vec<float, 8> total = {};
                bool any = !(a.step & GPU_MERGE_FIRST), finite = true;
                if (any) {
                    total = gpu_merge_load(a.sum, parts.b, parts.h, parts.i, col, gpu_merge_aligned(a.sum));
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        finite = finite && total[e] - total[e] == 0;
                }
                gpu_merge_add(parts, a.parts, base, factor, col, total, any, finite);
                gpu_merge_clamp(total, finite);
                const kiln_view &to = a.step & GPU_MERGE_LAST ? a.o : a.sum;
                gpu_merge_store(to, parts.b, parts.h, parts.i, col, total, gpu_merge_aligned(to));
            }
        }
        if (!(a.step & GPU_MERGE_LAST) || !kiln_view_present(&a.lse))
            return;
        gpu_block_barrier(); // lse may lie over the first part's
        if (share.mine && share.first == 0)
            gpu_write<float>(a.lse, parts.b, parts.h, parts.i, 0,
                             sum == 0   ? gpu_minus_infinity()
                             : sum == 1 ? top
                                        : base + 0.69314718056f * gpu_log2(sum));
    }
};

struct attention_merge_weigh {
    using args = gpu_merge_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = GPU_MERGE_THREADS, blocks = 2, tile_q = 0, tile_k = 0;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const int64_t row = item * threads + gpu_thread();
        if (row >= a.o.size[0] * a.o.size[1] * a.o.size[2])
            return;
        const attention_merge_parts parts(a, row);
        float top = gpu_minus_infinity(), sum = 0;
        if (!(a.step & GPU_MERGE_FIRST))
            top = gpu_read<float>(a.weight, parts.b, parts.h, parts.i, 0),
            sum = gpu_read<float>(a.weight, parts.b, parts.h, parts.i, 1);
        parts.weigh(top, sum);
        gpu_write<float>(a.weight, parts.b, parts.h, parts.i, 0, top);
        gpu_write<float>(a.weight, parts.b, parts.h, parts.i, 1, sum);
    }
};
