// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax.gpu.h: what the softmax kernels share: a row as slots of 16 bytes, the state (m, l), reductions over the threads of
// a row.
//
// Slots lie on 16-byte boundaries of the memory, wherever the row begins; the few columns before and after them are read by
// elements. So rows of odd length cost what their neighbours cost. The sums then depend on where the row lies: with `invariant`,
// and where the tensors of a call are not aligned alike, the whole row is read by elements.
//
// NaN and Inf: the maximum leaves NaN out, but exp(NaN) makes l NaN and so the row; +inf gives inf - inf, the same. Where m is
// -inf differences are taken to 0 instead, so that every weight is 0.
#pragma once
#include "gpu_device.h"

constexpr float SOFTMAX_LOG2E = 1.44269504089f, SOFTMAX_LN2 = 0.69314718056f;

// Row r of a view, as rows of one; `live` false: a row without columns.
template <class T> GPU_FN gpu_rows<T> softmax_row(const kiln_view &v, int64_t r, bool live)
{
    gpu_rows<T> row;
    if ((v.size[0] | v.size[1]) <= 1)
        row = gpu_rows<T>(v, 0, 0).slice(r, live);
    else { // 64-bit division is a subroutine, and outer axes are nearly always one
        const int64_t i2 = r % v.size[2], i1 = r / v.size[2] % v.size[1], i0 = r / v.size[2] / v.size[1];
        row = gpu_rows<T>(v, live ? i0 : 0, live ? i1 : 0).slice(live ? i2 : 0, live);
    }
    row.cols = live ? row.cols : 0;
    return row;
}

// T: the element type, const for an input. A row is its body, slots of V columns from `head` on, and its edges: the columns
// before and after, fewer than 2V of them or all.
template <class T> struct softmax_slots {
    using E = typename gpu_plain<T>::type;
    static constexpr int V = 16 / sizeof(E);
    gpu_rows<T> row;
    int head, body, edges; // columns, slots, columns
    GPU_FN softmax_slots(const gpu_rows<T> &r, int head_) : row(r), head(head_ < r.cols ? head_ : r.cols)
    {
        body = (row.cols - head) / V;
        edges = row.cols - body * V;
    }
    // Columns before the first 16-byte boundary.
    static GPU_FN int head_of(const gpu_rows<T> &r)
    {
        return (int)((16 - (uintptr_t)r.data % 16) % 16 / sizeof(E));
    }
    GPU_FN int edge(int i) const
    {
        return i < head ? i : i + body * V;
    } // its column
    GPU_FN E get(int column) const
    {
        return gpu_load<1>(row, 0, column)[0];
    }
    GPU_FN void put(int column, float y) const
    {
        gpu_store<1>(row, 0, column, gpu_vec<E, 1>{gpu_from_float<E>(y)});
    }

    // Slots k, k + step, ...; past the body they read as `outside`. STREAM: nobody reads them again.
    template <bool STREAM, int N> GPU_FN void load(gpu_packed (&x)[N], int k, int step, const gpu_packed &outside) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = k + i * step < body ? gpu_load_packed<STREAM>(row, 0, head + (k + i * step) * V) : outside;
    }
    GPU_FN void store(int k, const gpu_vec<float, V> &y) const
    {
        gpu_store_stream<V>(row, 0, head + k * V, gpu_from_floats<E>(y));
    }
};

// Where the slots of a call begin, which works on rows x and y at the same columns.
template <class X, class Y> GPU_FN int softmax_head(const gpu_rows<X> &x, const gpu_rows<Y> &y, int invariant)
{
    const int head = softmax_slots<X>::head_of(x);
    return invariant || head != softmax_slots<Y>::head_of(y) ? x.cols : head;
}

// Columns of row r before its slots, as the host found them out (gpu_softmax_args.head); -1: look at the row.
template <class E> GPU_FN int softmax_known_head(const gpu_softmax_args &a, int64_t r)
{
    const uint32_t head = (uint32_t)a.head + (uint32_t)r * (uint32_t)a.head_step;
    return a.head_step ? (int)(head % (16 / sizeof(E))) : a.head;
}

// An element whose weight is 0 whatever the row, and a slot of them.
GPU_FN float softmax_lowest_element(float scale)
{
    return scale < 0 ? -gpu_minus_infinity() : gpu_minus_infinity();
}
template <class E> GPU_FN gpu_packed softmax_lowest(float scale)
{
    return gpu_pack_all<E>(softmax_lowest_element(scale));
}

// Reductions over the T threads of a row, the same in all of them. T <= GPU_WAVE: lanes of a wave, by butterflies; else the
// whole block, through shared memory (a block barrier each).
template <int T> struct softmax_group {
    static constexpr int LANES = T < GPU_WAVE ? T : GPU_WAVE, WAVES = T / LANES; // lanes of each of its waves
    struct shared {
        gpu_array<float, 2, 2 * WAVES> part;
    };
    static GPU_FN float max(float x, shared &s, int which)
    {
        x = gpu_wave_max<LANES>(x);
        if constexpr (WAVES > 1) {
            exchange(x, s, which);
            for (int w = 0; w < WAVES; w++)
                x = gpu_max(x, gpu_load<1>(s.part, which, w)[0]);
        }
        return x;
    }
    static GPU_FN float sum(float x, shared &s, int which)
    {
        x = gpu_wave_sum<LANES>(x);
        if constexpr (WAVES > 1) {
            exchange(x, s, which);
            x = 0;
            for (int w = 0; w < WAVES; w++)
                x += gpu_load<1>(s.part, which, w)[0];
        }
        return x;
    }
    static GPU_FN void exchange(float x, shared &s, int which)
    {
        if (gpu_lane() == 0)
            gpu_store<1>(s.part, which, gpu_wave_id(), gpu_vec<float, 1>{x});
        gpu_block_barrier();
    }
};

// A maximum m, against which scores are weighed, and its exponent of 2: rounded, which is a factor common to all weights and
// cancels. Where scores are huge (far) that could leave the range of exponents, and differences are taken first.
struct softmax_base {
    float m, base;
    bool far;
    GPU_FN softmax_base(float m_) : m(gpu_finite_or_zero(m_)), base(gpu_product(m, SOFTMAX_LOG2E))
    {
        far = !(base < 65536.f && base > -65536.f);
    }
    GPU_FN float from(float other) const // for weights that were taken against another maximum
    {
        return gpu_exp2(far ? (other - m) * SOFTMAX_LOG2E : gpu_product(other, SOFTMAX_LOG2E) - base);
    }
};

// What an element x weighs: exp(scale·x - m), in exponents of 2 one fma.
struct softmax_weight : softmax_base {
    float scale, scale_log2;
    GPU_FN softmax_weight(float scale_, float m_) : softmax_base(m_), scale(scale_), scale_log2(scale_ * SOFTMAX_LOG2E)
    {
    }
    GPU_FN float near(float x) const
    {
        return gpu_exp2(gpu_fma(x, scale_log2, -base));
    }
    GPU_FN float operator()(float x) const
    {
        return far ? gpu_exp2((x * scale - m) * SOFTMAX_LOG2E) : near(x);
    }
};

// The largest element of some slots, NaN left out (but not among NaN alone); GPU_PACKED_MAX: two 16-bit ones an instruction.
template <class E, int N> GPU_FN float softmax_largest(gpu_packed (&x)[N])
{
    if constexpr (sizeof(E) == 2 && GPU_PACKED_MAX) {
        uint32_t top[4] = {x[0][0], x[0][1], x[0][2], x[0][3]};
#pragma unroll
        for (int i = 1; i < N; i++)
#pragma unroll
            for (int w = 0; w < 4; w++)
                top[w] = gpu_max_packed<E>(top[w], x[i][w]);
        const uint32_t most = gpu_max_packed<E>(gpu_max_packed<E>(top[0], top[1]), gpu_max_packed<E>(top[2], top[3]));
        return gpu_max(gpu_to_float(E{(uint16_t)most}), gpu_to_float(E{(uint16_t)(most >> 16)}));
    } else {
        float top[4]; // four chains are shorter than one
#pragma unroll
        for (int i = 0; i < N; i++) {
            gpu_pin(x[i]);
            const auto s = gpu_unpack<E>(x[i]);
#pragma unroll
            for (int e = 0; e < 16 / (int)sizeof(E); e++)
                top[e % 4] = i == 0 && e < 4 ? s[e] : gpu_max(top[e % 4], s[e]);
        }
        return gpu_max(gpu_max(top[0], top[1]), gpu_max(top[2], top[3]));
    }
}
// The largest score.
template <class E, int N> GPU_FN float softmax_top(gpu_packed (&x)[N], float scale)
{
    if (scale > 0) // that of the largest element
        return softmax_largest<E>(x) * scale;
    float top = gpu_minus_infinity();
#pragma unroll
    for (int i = 0; i < N; i++) {
        gpu_pin(x[i]);
        const auto s = gpu_unpack<E>(x[i]);
#pragma unroll
        for (int e = 0; e < 16 / (int)sizeof(E); e++)
            top = gpu_max(top, s[e] * scale);
    }
    return top;
}

// The maximum of some scores s = scale·x and the sum of their weights.
struct softmax_state {
    float m = gpu_minus_infinity(), l = 0;
    GPU_FN void rebase(float to) // l counts from a new maximum
    {
        if (m != to)
            l *= gpu_exp2(m * SOFTMAX_LOG2E - gpu_finite_or_zero(to) * SOFTMAX_LOG2E);
        m = to;
    }
    template <class E, int N> GPU_FN void add(gpu_packed (&x)[N], float scale)
    {
        constexpr int V = 16 / sizeof(E);
        float sum = 0;
        rebase(gpu_max(m, softmax_top<E>(x, scale)));
        const softmax_weight weight(scale, m);
        if (!weight.far) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                gpu_pin(x[i]);
                const auto s = gpu_unpack<E>(x[i]);
#pragma unroll
                for (int e = 0; e < V; e++)
                    sum += weight.near(s[e]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                gpu_pin(x[i]);
                const auto s = gpu_unpack<E>(x[i]);
#pragma unroll
                for (int e = 0; e < V; e++)
                    sum += weight(s[e]);
            }
        }
        l += sum;
    }
    GPU_FN void add(float x, float scale)
    {
        rebase(gpu_max(m, x * scale));
        l += softmax_weight(scale, m)(x);
    }
    // Over all threads of the row, where the lanes of each wave have one m already; one block barrier. `turn` counts the calls,
    // so that no wave writes what another still reads. Returns what weights against my wave's m are to be multiplied by.
    template <class GROUP, class SHARED> GPU_FN float gather(SHARED &s, int turn)
    {
        l = gpu_wave_sum<GROUP::LANES>(l);
        if constexpr (GROUP::WAVES > 1) {
            const float mine = m;
            if (gpu_lane() == 0)
                gpu_store<2>(s.part, turn % 2, 2 * gpu_wave_id(), gpu_vec<float, 2>{m, l});
            gpu_block_barrier();
#pragma unroll
            for (int w = 0; w < GROUP::WAVES; w++)
                m = gpu_max(m, gpu_load<2>(s.part, turn % 2, 2 * w)[0]);
            const softmax_base to(m);
            l = 0;
#pragma unroll
            for (int w = 0; w < GROUP::WAVES; w++) {
                const auto other = gpu_load<2>(s.part, turn % 2, 2 * w);
                l += other[1] * to.from(other[0]);
            }
            return to.from(mine);
        } else
            return 1;
    }
    GPU_FN float lse() const
    {
        return l == 0 ? gpu_minus_infinity() : m + gpu_log2(l) * SOFTMAX_LN2;
    }
};

// y from an element, given the state of its whole row.
struct softmax_writer {
    softmax_weight weight;
    float factor; // 1/l, for log-softmax ln l
    bool log;
    GPU_FN softmax_writer(const softmax_state &s, float scale, bool log_) : weight(scale, s.m), log(log_)
    {
        factor = log ? gpu_log2(s.l) * SOFTMAX_LN2 : s.l == 0 ? 0.f : gpu_rcp(s.l);
        if (log && s.l == 0)
            factor = 0; // only -inf: s - 0 - 0
    }
    GPU_FN float operator()(float x) const
    {
        return log ? x * weight.scale - weight.m - factor : weight(x) * factor;
    }
    GPU_FN bool is_plain() const // so that the choice stands outside of loops
    {
        return !log && !weight.far;
    }
    template <int V> GPU_FN gpu_vec<float, V> plain(const gpu_vec<float, V> &x) const
    {
        gpu_vec<float, V> y;
#pragma unroll
        for (int e = 0; e < V; e++)
            y[e] = weight.near(x[e]) * factor;
        return y;
    }
    template <int V> GPU_FN gpu_vec<float, V> operator()(const gpu_vec<float, V> &x) const
    {
        if (is_plain())
            return plain(x);
        gpu_vec<float, V> y;
#pragma unroll
        for (int e = 0; e < V; e++)
            y[e] = (*this)(x[e]);
        return y;
    }
};
