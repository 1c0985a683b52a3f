// SPDX-License-Identifier: MIT OR Apache-2.0
// gpu_mfma.h: the dialect's third part, for AMD's matrix units, whose layout is published (CDNA ISA, "Dense matrix layouts"):
// operands and results are registers that a kernel may reinterpret, so that P never leaves them.
//
// gpu_mfma<E, M>: D += A B with M x M results and K = 8·GROUPS, GROUPS = 64 / M; for lane l, h = l / M:
//   a[e] A[l mod M][8h + e]    b[e] B[8h + e][l mod M]      8 elements, four registers
//   d[r] D[4 GROUPS (r / 4) + 4h + r mod 4][l mod M]        M·M / 64 fp32 numbers
// gfx950 does this in one instruction, gfx90a and gfx942 in two, each with half of a and b: any order of k is right if A and B
// have the same. So 8 neighbouring d of a lane, rounded to 16 bits, are a B operand whose k stands for the row
//   4 GROUPS (e / 4) + 4h + e mod 4   of the two groups of four, and A has its columns in that order: gpu_mfma::place().
//
// Supplied by the target's file:
//   gpu_bounded<T>(rows, n)                  the rows 0...n-1 of a matrix in global memory, whose stride is at least its width
//                                            and less than GPU_BOUNDED_STRIDE; the same in all lanes
//   bounded.place(r, c)                      the lane's place in it
//   gpu_load_bounded<N>(bounded, place, dr)  N elements, 4, 8 or 16 bytes, dr rows below; zeros outside the rows and columns,
//                                            which are not read
//   gpu_pick(a, b, upper)                    the lower (upper) 16 bits of a and, above them, of b
//   gpu_weights<E>(x)                        numbers >= 0, rounded to nearest: ties either way, NaN to anything
//   gpu_of_lane(x, lane)                     x of a lane, the same in all
//   gpu_wave_ballot(bool)                    a bit per lane
//   gpu_uniform(x)                           x, which is the same in all lanes: said so, for scalar registers
//   gpu_keep(x)                              x has been computed here
//   gpu_reload(args)                         the kernel's arguments, to be read anew: else what came from them is kept in registers
//   gpu_own(i)                               i, computed here every time: what follows from it is not kept from item to item
//   gpu_fence()                              the compiler's schedule moves nothing across
//   gpu_most(a, x, y)                        the largest number of the three; a is one
//   gpu_mfma_fast<E>()                       whether 16-bit operands go to the matrix unit as they are
//   GPU_MFMA_PARTS, gpu_mfma_part<PART>(d, a, b)  instructions that D += A B is made of, and one of them
#pragma once
#include "gpu_swizzled.h"

enum { GPU_BOUNDED_STRIDE = 1 << 22 };               // elements: a tile's offsets fit into 32 bits
static constexpr uint32_t GPU_NOWHERE = 0x80000000u; // an offset outside, and so are those a tile below
struct gpu_offset {
    uint32_t offset; // in bytes
};

typedef float gpu_two __attribute__((ext_vector_type(2))); // packed arithmetic: one instruction for both

#if defined(__HIP__)
#include "gpu_intrin_mfma_hip.h"
#else
#include "gpu_intrin_mfma_simt.h"
#endif

template <class E, int SIZE> struct gpu_mfma {
    using tile = gpu_tile<E, SIZE>;
    static constexpr int M = SIZE, GROUPS = GPU_WAVE / M, K = 8 * GROUPS, n = M * M / GPU_WAVE;
    using acc = typename tile::acc; // v[r]
    // Row of d[r] of this lane, without the lane's share 4h.
    static GPU_FN constexpr int row(int r)
    {
        return 4 * GROUPS * (r / 4) + r % 4;
    }
    // Where row k of D stands among the k of a B operand that was made of D.
    static GPU_FN constexpr int place(int k)
    {
        return k / K * K + k / 4 % GROUPS * 8 + k / (4 * GROUPS) % 2 * 4 + k % 4;
    }
    static GPU_FN int column()
    {
        return gpu_lane() % M;
    }
    static GPU_FN int group()
    {
        return gpu_lane() / M;
    }
    static GPU_FN void zero(acc &d)
    {
        tile::zero(d);
    }
    template <class A, class B> static GPU_FN void mma(acc &d, const A &a, const B &b GPU_AT)
    {
        static_assert(sizeof a == 16 && sizeof b == 16, "8 elements");
        tile::mma(d, __builtin_bit_cast(typename tile::a, a), __builtin_bit_cast(typename tile::bk, b) GPU_LINE);
    }
    // For kernels that weave their instructions: all parts, in order, are mma().
    static constexpr int PARTS = GPU_MFMA_PARTS;
    static constexpr bool fast = gpu_mfma_fast<E>(); // or it takes so long that weaving gains nothing
    template <int PART, class A, class B> static GPU_FN void mma_part(acc &d, const A &a, const B &b GPU_AT)
    {
        static_assert(sizeof a == 16 && sizeof b == 16 && PART < PARTS, "8 elements");
        gpu_mfma_part<PART, tile>(d, __builtin_bit_cast(typename tile::a, a),
                                  __builtin_bit_cast(typename tile::bk, b) GPU_LINE);
    }
};
