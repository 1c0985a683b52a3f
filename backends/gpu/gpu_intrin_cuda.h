// SPDX-License-Identifier: MIT OR Apache-2.0
// The dialect on NVIDIA, sm_80 and newer.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#define GPU_WAVE     32
#define GPU_TILE_MAX 16
#define GPU_ASYNC    1

GPU_FN int gpu_thread()
{
    const int t = (int)threadIdx.x;
    __builtin_assume(t >= 0 && t < 1024); // or a division by a power of two takes three instructions more
    return t;
}
GPU_FN int gpu_block()
{
    return blockIdx.x;
}
GPU_FN bool gpu_wave_any(bool x)
{
    return __any_sync(0xffffffffu, x);
}
GPU_FN void gpu_atomic_or(uint32_t *p, uint32_t bits)
{
    atomicOr(p, bits);
}
GPU_FN int gpu_blocks()
{
    return gridDim.x;
}
GPU_FN bool gpu_block_any(bool x)
{
    return __syncthreads_or(x);
}
GPU_FN float gpu_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
// Is not fused with what follows.
GPU_FN float gpu_product(float a, float b)
{
    return __fmul_rn(a, b);
}
GPU_FN int gpu_lane()
{
    return gpu_thread() % GPU_WAVE;
}
GPU_FN int gpu_wave_id()
{
    return gpu_thread() / GPU_WAVE;
}

GPU_FN void gpu_block_barrier()
{
    __syncthreads();
}
GPU_FN void gpu_wave_barrier()
{
    __syncwarp();
}
template <int MASK> GPU_FN float gpu_shfl_xor(float x)
{
    return __shfl_xor_sync(0xffffffffu, x, MASK);
}

GPU_FN float gpu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float gpu_log2(float x)
{
    return __log2f(x);
}
GPU_FN float gpu_rcp(float x)
{
    return __frcp_rn(x);
}
GPU_FN float gpu_max(float a, float b)
{
    return fmaxf(a, b);
}

GPU_FN float gpu_to_float(float x)
{
    return x;
}
GPU_FN float gpu_to_float(gpu_half x)
{
    return __half2float(__ushort_as_half(x.bits));
}
GPU_FN float gpu_to_float(gpu_bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}
template <class E> GPU_FN E gpu_from_float(float x)
{
    if constexpr (sizeof(E) == 4)
        return x;
    else if constexpr (__is_same(E, gpu_half))
        return {__half_as_ushort(__float2half_rn(x))};
    else
        return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
// Two a conversion.
template <class E, int N> GPU_FN gpu_vec<E, N> gpu_from_floats(const gpu_vec<float, N> &x)
{
    union {
        gpu_vec<E, N> y;
        uint32_t w[(N + 1) / 2];
    } u;
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        if constexpr (__is_same(E, gpu_half))
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u.w[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
        else if constexpr (__is_same(E, gpu_bf16))
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u.w[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
        else
            u.y[i] = x[i], u.y[i + 1] = x[i + 1];
    }
    if constexpr (N % 2)
        u.y[N - 1] = gpu_from_float<E>(x[N - 1]);
    return u.y;
}

template <int BYTES> struct gpu_word;
template <> struct gpu_word<2> {
    using type = uint16_t;
};
template <> struct gpu_word<4> {
    using type = uint32_t;
};
template <> struct gpu_word<8> {
    using type = uint2;
};
template <> struct gpu_word<16> {
    using type = uint4;
};
template <int BYTES> GPU_FN void gpu_move(void *to, const void *from)
{
    using W = typename gpu_word<BYTES>::type;
    *(W *)to = *(const W *)from;
}
// In C++ a 16-byte store can fall into four.
template <int BYTES> GPU_FN void gpu_put(void *to, const void *from)
{
    if constexpr (BYTES < 16)
        gpu_move<BYTES>(to, from);
    else {
        const uint32_t *w = (const uint32_t *)from;
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
    }
}

template <int BYTES> GPU_FN void gpu_move_stream(void *to, const void *from)
{
    if constexpr (BYTES < 16)
        gpu_move<BYTES>(to, from);
    else {
        uint32_t *w = (uint32_t *)to;
        asm("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];"
            : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
            : "l"(__cvta_generic_to_global(from))
            : "memory");
    }
}
template <int BYTES> GPU_FN void gpu_put_stream(void *to, const void *from)
{
    if constexpr (BYTES < 16)
        gpu_move<BYTES>(to, from);
    else {
        const uint32_t *w = (const uint32_t *)from;
        asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
    }
}

template <class... A> GPU_FN void gpu_check_global(const A &...)
{
}
template <class... A> GPU_FN void gpu_check_shared(const A &...)
{
}
template <class... A> GPU_FN void gpu_check_view(const A &...)
{
}

template <int N, class A, class T>
GPU_FN void gpu_copy_async(A &to, int r, int c, const gpu_rows<const T> &from, int fr, bool in)
{
    const uint32_t d = (uint32_t)__cvta_generic_to_shared(to.at(r, c));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(d), "l"(from.at(fr, c)), "r"(in ? 16 : 0)
                 : "memory");
}
template <class V> GPU_FN void gpu_pin(V &v)
{
    static_assert(sizeof v == 16, "a piece of 16 bytes");
    uint32_t *w = (uint32_t *)&v;
    asm volatile("" : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3]));
}
template <class A, class T>
GPU_FN void gpu_copy_async_piece(A &to, int r, int c, const gpu_rows<const T> &from, int fr, int fc)
{
    const uint32_t d = (uint32_t)__cvta_generic_to_shared(to.at(r, c));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(d), "l"(from.at(fr, fc)) : "memory");
}
GPU_FN void gpu_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> GPU_FN void gpu_copy_wait_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

GPU_FN void gpu_copy_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

template <class E> struct gpu_native;
template <> struct gpu_native<gpu_half> {
    using type = __half;
};
template <> struct gpu_native<gpu_bf16> {
    using type = __nv_bfloat16;
};

template <class E, int SIZE> struct gpu_tile {
    static_assert(SIZE == 16, "WMMA has 16x16x16");
    static constexpr int M = 16, K = 16;
    static constexpr bool b_by_rows = true;
    using T = typename gpu_native<E>::type;
    template <class USE, class... L> using fragment = nvcuda::wmma::fragment<USE, 16, 16, 16, L...>;
    using a = fragment<nvcuda::wmma::matrix_a, T, nvcuda::wmma::row_major>;
    using bk = fragment<nvcuda::wmma::matrix_b, T, nvcuda::wmma::col_major>;
    using bn = fragment<nvcuda::wmma::matrix_b, T, nvcuda::wmma::row_major>;
    struct acc {
        fragment<nvcuda::wmma::accumulator, float> f;
        static constexpr int n = 8;
        GPU_FN float &x(int i)
        {
            return f.x[i];
        }
    };
    // nvcc turns a bf16 load into a dozen generic 4-byte ones and a transposition, an fp16 load into one ldmatrix. The
    // registers are the same: a 16-bit fragment's first four hold what the instruction of either type wants, in its order.
    template <class USE, class L, class A> static GPU_FN void load(fragment<USE, T, L> &f, A &m, int r, int c)
    {
        fragment<USE, __half, L> h;
        nvcuda::wmma::load_matrix_sync(h, (const __half *)m.at(r, c), A::pitch);
        if constexpr (__is_same(E, gpu_half))
            f = h;
        else
#pragma unroll
            for (int i = 0; i < f.num_elements; i++)
                f.x[i] = __ushort_as_bfloat16(__half_as_ushort(h.x[i]));
    }
    template <class A> static GPU_FN void load_a(a &f, A &m, int r, int c)
    {
        load(f, m, r, c);
    }
    template <class A> static GPU_FN void load_bk(bk &f, A &m, int r, int c)
    {
        load(f, m, r, c);
    }
    template <class A> static GPU_FN void load_bn(bn &f, A &m, int r, int c)
    {
        load(f, m, r, c);
    }
    // Column-major with distance 0: one value a row.
    template <class A> static GPU_FN void load_rows(acc &d, A &m, int r, int c)
    {
        nvcuda::wmma::load_matrix_sync(d.f, m.at(r, c), 0, nvcuda::wmma::mem_col_major);
    }
    template <class A> static GPU_FN void store(A &m, int r, int c, const acc &d)
    {
        nvcuda::wmma::store_matrix_sync(m.at(r, c), d.f, A::pitch, nvcuda::wmma::mem_row_major);
    }
    static GPU_FN void zero(acc &d)
    {
        nvcuda::wmma::fill_fragment(d.f, 0.f);
    }
    template <class B> static GPU_FN void mma(acc &d, const a &x, const B &y)
    {
        nvcuda::wmma::mma_sync(d.f, x, y, d.f);
    }
};

// What the host knows of kernel K (gpu_kernel.h).
#define GPU_DESCRIBE(NAME, ...)                                                                                        \
    extern "C" const gpu_kernel GPU_INFO(NAME) = {#NAME,                                                               \
                                                  (void (*)(void))NAME,                                                \
                                                  __VA_ARGS__::threads,                                                \
                                                  __VA_ARGS__::blocks,                                                 \
                                                  sizeof(__VA_ARGS__::shared),                                         \
                                                  sizeof(__VA_ARGS__::args),                                           \
                                                  GPU_WAVE,                                                            \
                                                  __VA_ARGS__::tile_q,                                                 \
                                                  __VA_ARGS__::tile_k};
#define GPU_KERNEL(NAME, ...)                                                                                          \
    extern "C" __global__ void __launch_bounds__((__VA_ARGS__::threads), (__VA_ARGS__::blocks))                        \
        NAME(const __grid_constant__ __VA_ARGS__::args a)                                                              \
    {                                                                                                                  \
        static_assert(sizeof(a) <= 4096, "parameters of a kernel");                                                    \
        extern __shared__ __align__(128) unsigned char gpu_arena[];                                                    \
        for (int64_t item = blockIdx.x; item < a.items; item += gridDim.x) {                                           \
            if (item != blockIdx.x)                                                                                    \
                __syncthreads();                                                                                       \
            __VA_ARGS__::run(a, *(__VA_ARGS__::shared *)gpu_arena, item);                                              \
        }                                                                                                              \
    }                                                                                                                  \
    GPU_DESCRIBE(NAME, __VA_ARGS__)
