// SPDX-License-Identifier: MIT OR Apache-2.0
// The matrix part of the dialect on NVIDIA, sm_80 and newer.
#pragma once

template <class E> GPU_FN void gpu_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (__is_same(E, gpu_half))
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
            "%2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
            "%1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class A> struct gpu_cursor {
    uint32_t p;
    GPU_FN gpu_cursor(A &m, int r, int c) : p((uint32_t)__cvta_generic_to_shared(m.at(r, c)))
    {
    }
    GPU_FN void pin()
    {
        asm volatile("" : "+r"(p));
    }
};
// Moved by constants that leave the permutation what it is, or make it an exclusive or.
template <int DR, int DC, class A> GPU_FN uint32_t gpu_moved(const gpu_cursor<A> &at)
{
    constexpr int piece = DC / A::V;
    static_assert(DR % 8 == 0 && DC % A::V == 0 && A::cols % 64 == 0, "whole pieces of rows of whole 128 bytes");
    return (at.p ^ (piece % 8 * 16)) + piece / 8 * 128 + DR * A::cols * (16 / A::V);
}
template <bool TRANS, int DR, int DC, class A> GPU_FN void gpu_ldmatrix(uint32_t (&x)[4], const gpu_cursor<A> &at)
{
    static_assert(DC % 16 == 0, "two tiles side by side");
    const uint32_t p = gpu_moved<DR, DC>(at);
    if constexpr (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(p)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(p)
                     : "memory");
}

template <int DR, int DC, class A> GPU_FN void gpu_store_pair(const gpu_cursor<A> &at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(gpu_moved<DR, DC>(at)), "r"(x) : "memory");
}

// Not __syncthreads(), which all threads must come to at the same place, as to any aligned barrier (so says synccheck); not its
// barrier either, so the number of threads is said.
template <int THREADS> GPU_FN void gpu_block_barrier_apart()
{
    asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

template <class E> GPU_FN uint32_t gpu_pair(float lo, float hi)
{
    uint32_t y;
    if constexpr (__is_same(E, gpu_half))
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
