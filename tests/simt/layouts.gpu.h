// SPDX-License-Identifier: MIT OR Apache-2.0
// layouts.gpu.h: what each lane holds after a matrix operation whose layout is published. Lanes fill operands by the published
// formulas (driver.c restates them for the results), and write every register to y: row = lane, column = element.
#pragma once
#include "../../backends/gpu/gpu_device.h"
#include "../../backends/gpu/gpu_mma.h"
#if GPU_WAVE == 64
#include "../../backends/gpu/gpu_mfma.h"
#endif

// A[i][k] = 16 i + k, for i >= 16 its negative: exact in both types. B picks M columns of A, from `shift` on.
template <class E> GPU_FN E layout_a(int i, int k)
{
    return gpu_from_float<E>((float)(i < 16 ? 16 * i + k : -(16 * (i - 16) + k)));
}
template <class E> GPU_FN E layout_b(int k, int j, int shift)
{
    return gpu_from_float<E>(k == j + shift ? 1.f : 0.f);
}

#if GPU_WAVE == 64
// v_mfma_f32_{16x16x16,32x32x8} twice (gfx90a, gfx942) or once with twice the depth (gfx950): lane l has row (column) l mod M and
// 8 neighbouring k of A (B). D = A B with K columns; those of B beyond K are zero.
template <class E, int SIZE> struct layout_mfma {
    using args = gpu_softmax_args;
    using tile = gpu_tile<E, SIZE>;
    static constexpr int threads = 64, blocks = 1, tile_q = SIZE, tile_k = tile::K;
    struct shared {
    };
    static GPU_FN void run(const args &a, shared &, int64_t)
    {
        const int l = gpu_lane();
        typename tile::a x, y;
        typename tile::acc d;
        for (int e = 0; e < 8; e++) {
            const int k = l / SIZE * 8 + e;
            x.v[e] = layout_a<E>(l % SIZE, k), y.v[e] = layout_b<E>(k, l % SIZE, 0);
        }
        tile::zero(d);
        tile::mma(d, x, reinterpret_cast<typename tile::bk &>(y));
        for (int e = 0; e < tile::acc::n; e++)
            gpu_write<float>(a.y, 0, 0, l, e, (float)d.x(e));
    }
};

// Row of D that row i of the second product picks.
GPU_FN int layout_pick(int i, int k)
{
    return (i * 7 + 3) % k;
}
// Results as the B operand of a second product: D' = A'·D, where A' has a one in each row and its columns in the order of
// gpu_mfma::place(). K rows of D: one tile of 32 rows (of which the first 16), or two of 16.
template <class E, int SIZE> struct layout_mfma_chain {
    using args = gpu_softmax_args;
    using mfma = gpu_mfma<E, SIZE>;
    static constexpr int threads = 64, blocks = 1, tile_q = SIZE, tile_k = mfma::K;
    struct shared {
    };
    static GPU_FN void run(const args &a, shared &, int64_t)
    {
        const int column = mfma::column(), group = mfma::group();
        gpu_vec<E, 8> x, y, pick;
        typename mfma::acc d[2], out;
        for (int t = 0; t < 2; t++) {
            for (int e = 0; e < 8; e++) {
                const int k = group * 8 + e;
                x[e] = layout_a<E>(column + 16 * t, k), y[e] = layout_b<E>(k, column, 0);
            }
            mfma::zero(d[t]);
            mfma::mma(d[t], x, y);
        }
        gpu_packed b;
        for (int j = 0; j < 4; j++) {
            const int r = SIZE == 32 ? 2 * j : j % 2 * 2;
            const auto &from = d[SIZE == 32 ? 0 : j / 2];
            const gpu_vec<E, 2> two = gpu_from_floats<E>(gpu_vec<float, 2>{{from.v[r], from.v[r + 1]}});
            b[j] = __builtin_bit_cast(uint32_t, two);
        }
        for (int k = 0; k < mfma::K; k++)
            if (mfma::place(k) / 8 == group)
                pick[mfma::place(k) % 8] = gpu_from_float<E>(k == layout_pick(column, mfma::K) ? 1.f : 0.f);
        mfma::zero(out);
        mfma::mma(out, pick, b);
        for (int e = 0; e < mfma::n; e++)
            gpu_write<float>(a.y, 0, 0, gpu_lane(), e, (float)out.v[e]);
    }
};

// Loads through a descriptor of 10 rows, of 16 bytes in the lane's row and three rows below: zeros outside, which nobody judges.
// A quarter of the lanes stands past the last column. Then what waves exchange: columns 16...19 of y.
struct layout_bounded {
    using args = gpu_softmax_args;
    static constexpr int threads = 64, blocks = 1, tile_q = 16, tile_k = 16;
    struct shared {
    };
    static GPU_FN void run(const args &a, shared &, int64_t)
    {
        const int l = gpu_lane();
        const gpu_bounded<const gpu_half> rows(gpu_rows<const gpu_half>(a.x, 0, 0), 10);
        const auto at = rows.place(l % 16, l / 16 == 3 ? 64 : l / 16 * 24);
        for (int part = 0; part < 2; part++) {
            const auto v = __builtin_bit_cast(gpu_vec<gpu_half, 8>, gpu_load_bounded<8>(rows, at, 3 * part));
            for (int e = 0; e < 8; e++)
                gpu_write<float>(a.y, 0, 0, l, 8 * part + e, gpu_to_float(v[e]));
        }
        const uint32_t low = 0x10001u * l, high = 0x10000u * (l + 1) + l;
        gpu_write<float>(a.y, 0, 0, l, 16, (float)gpu_of_lane(3 * l, 37));
        gpu_write<float>(a.y, 0, 0, l, 17, (float)(gpu_wave_ballot(l % 5 == 0) >> l & 1));
        gpu_write<float>(a.y, 0, 0, l, 18, (float)(gpu_pick(low, high, false) >> 16));
        gpu_write<float>(a.y, 0, 0, l, 19, (float)(gpu_pick(low, high, true) >> 16));
    }
};
#else
// mma.m16n8k16: y columns 0...3 are D with the first 8 columns of A, 4...7 with the last 8.
template <class E> struct layout_mma {
    using args = gpu_softmax_args;
    static constexpr int threads = 32, blocks = 1, tile_q = 16, tile_k = 16;
    struct shared {
    };
    static GPU_FN uint32_t pair(E lo, E hi)
    {
        return lo.bits | (uint32_t)hi.bits << 16;
    }
    static GPU_FN void run(const args &args, shared &, int64_t)
    {
        const int l = gpu_lane(), g = l / 4, t = l % 4;
        uint32_t a[4];
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
            a[i] = pair(layout_a<E>(row, k), layout_a<E>(row, k + 1));
        }
        for (int half = 0; half < 2; half++) {
            uint32_t b[2];
            for (int i = 0; i < 2; i++) {
                const int k = 2 * t + i * 8;
                b[i] = pair(layout_b<E>(k, g, half * 8), layout_b<E>(k + 1, g, half * 8));
            }
            float d[4] = {};
            gpu_mma<E>(d, a, b[0], b[1]);
            for (int i = 0; i < 4; i++)
                gpu_write<float>(args.y, 0, 0, l, half * 4 + i, d[i]);
        }
    }
};

// ldmatrix.x4 of four 8 x 8 tiles of a 16 x 64 matrix that holds 64 row + column: y columns 2i, 2i+1 are the two elements that a
// lane gets of tile i, 8 more the same with .trans.
struct layout_ldmatrix {
    using args = gpu_softmax_args;
    static constexpr int threads = 32, blocks = 1, tile_q = 16, tile_k = 16;
    struct shared {
        gpu_swizzled<gpu_half, 16, 64> m;
    };
    template <bool TRANS> static GPU_FN void read(const args &a, shared &s, int first)
    {
        const int l = gpu_lane();
        uint32_t x[4];
        const gpu_cursor<decltype(s.m)> at(s.m, l % 8 + l / 8 % 2 * 8,
                                           l / 16 * 8); // tiles: rows 0, 8 at column 0; rows 0, 8 at 8
        gpu_ldmatrix<TRANS, 0, 16>(x, at);
        for (int i = 0; i < 8; i++)
            gpu_write<float>(a.y, 0, 0, l, first + i, gpu_to_float(gpu_half{(uint16_t)(x[i / 2] >> i % 2 * 16)}));
    }
    static GPU_FN void run(const args &a, shared &s, int64_t)
    {
        for (int u = gpu_lane(); u < 16 * 8; u += 32)
            gpu_store<8>(s.m, u / 8, u % 8 * 8, gpu_load<8>(gpu_rows<const gpu_half>(a.x, 0, 0), u / 8, u % 8 * 8));
        gpu_wave_barrier();
        read<false>(a, s, 0);
        read<true>(a, s, 8);
    }
};
#endif
