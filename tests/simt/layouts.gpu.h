// SPDX-License-Identifier: MIT OR Apache-2.0
// layouts.gpu.h: what each lane holds after a matrix operation whose layout is published. Lanes fill operands by the published
// formulas (driver.c restates them for the results), and write every register to y: row = lane, column = element.
#pragma once
#include "../../backends/gpu/gpu_device.h"
#include "../../backends/gpu/gpu_mma.h"

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
