// SPDX-License-Identifier: MIT OR Apache-2.0
// The dialect on NVIDIA, sm_80 and newer.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#define GPU_WAVE       32
#define GPU_TILE_MAX   16
#define GPU_ASYNC      1
#define GPU_PACKED_MAX 1

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
GPU_FN uint32_t gpu_atomic_add(uint32_t *p, uint32_t n)
{
    return atomicAdd(p, n);
}
GPU_FN uint64_t gpu_atomic_add(uint64_t *p, uint64_t n)
{
    return atomicAdd((unsigned long long *)p, n);
}
// ptxas makes one addition of a wave's, whose lanes hand the outcome round at once, and so wait for it wherever it is needed. Not so
// where it cannot tell that all add the same: the mask of a lane has one bit, which it does not know.
GPU_FN uint64_t gpu_atomic_ask(uint64_t *p, uint64_t n)
{
    uint64_t x;
    asm volatile("{\n"
                 ".reg .u32 one;\n"
                 ".reg .u64 sum;\n"
                 "mov.u32 one, %%lanemask_eq;\n"
                 "popc.b32 one, one;\n"
                 "cvt.u64.u32 sum, one;\n"
                 "mul.lo.u64 sum, sum, %2;\n"
                 "atom.relaxed.gpu.global.add.u64 %0, [%1], sum;\n"
                 "}"
                 : "=l"(x)
                 : "l"(__cvta_generic_to_global(p)), "l"(n)
                 : "memory");
    return x;
}
GPU_FN uint64_t gpu_atomic_load(const kiln_view &v, int64_t i0, int64_t i1)
{
    uint64_t x;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];"
                 : "=l"(x)
                 : "l"(__cvta_generic_to_global((const uint64_t *)v.data + i0 * v.stride[0] + i1 * v.stride[1]))
                 : "memory");
    return x;
}
GPU_FN void gpu_atomic_store(const kiln_view &v, int64_t i0, int64_t i1, uint64_t x)
{
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(
                     __cvta_generic_to_global((uint64_t *)v.data + i0 * v.stride[0] + i1 * v.stride[1])),
                 "l"(x)
                 : "memory");
}
GPU_FN void gpu_pause()
{
    __nanosleep(100);
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
GPU_FN void gpu_next_item()
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
template <class E> GPU_FN uint32_t gpu_max_packed(uint32_t a, uint32_t b)
{
    uint32_t y;
    if constexpr (__is_same(E, gpu_half))
        asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    else
        asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
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
// As any store: evicted first (st.cs), what was written leaves the L2 cache in an order that costs a plain copy 1 to 5 % (H200).
template <int BYTES> GPU_FN void gpu_put_stream(void *to, const void *from)
{
    gpu_put<BYTES>(to, from);
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
GPU_FN void gpu_copy_async_piece(A &to, int r, int c, const gpu_rows<const T> &from, int fr, int fc, bool in)
{
    const uint32_t d = (uint32_t)__cvta_generic_to_shared(to.at(r, c));
    asm volatile("{ .reg .pred in; setp.ne.u32 in, %2, 0; @in cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(d),
                 "l"(from.at(fr, fc)), "r"((uint32_t)in)
                 : "memory");
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
    // Loads and stores are written out where WMMA's own take registers and two instructions an access for addresses (nvcc
    // folds no constant into them), and for bf16 a dozen generic loads and a transposition. A fragment's first registers are
    // those of mma.m16n8k16 (gpu_mma.h), of two neighbouring tiles of 8 columns for B and the accumulator: what ldmatrix
    // gives, on sm_80 and newer. fp16 fragments hold them twice.
    template <bool TRANS, class F, class A> static GPU_FN void load(F &f, A &m, int r, int c, int lane_r, int lane_c)
    {
        uint32_t p = (uint32_t)__cvta_generic_to_shared(m.at(lane_r, lane_c)), x[4];
        asm volatile("" : "+r"(p)); // or a loop keeps an address for every constant below in a register of its own
        p += (r * A::pitch + c) * (int)sizeof(E);
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
#pragma unroll
        for (int i = 0; i < f.num_elements / 2; i++)
            ((uint32_t *)f.x)[i] = x[i % 4]; // as WMMA's own mma_sync reads them
    }
    template <class A> static GPU_FN void load_a(a &f, A &m, int r, int c)
    {
        load<false>(f, m, r, c, gpu_lane() % 16, gpu_lane() / 16 * 8);
    }
    // By WMMA, as fp16 for both types: the addresses keep ptxas from fetching so many operands ahead that accumulators
    // must leave the registers (flash2 at d = 128; tests/cuda/spills.sh watches it).
    template <class A> static GPU_FN void load_bk(bk &f, A &m, int r, int c)
    {
        fragment<nvcuda::wmma::matrix_b, __half, nvcuda::wmma::col_major> h;
        nvcuda::wmma::load_matrix_sync(h, (const __half *)m.at(r, c), A::pitch);
#pragma unroll
        for (int i = 0; i < f.num_elements / 2; i++)
            ((uint32_t *)f.x)[i] = ((const uint32_t *)h.x)[i % 4];
    }
    template <class A> static GPU_FN void load_bn(bn &f, A &m, int r, int c)
    {
        load<true>(f, m, r, c, gpu_lane() % 16, gpu_lane() / 16 * 8);
    }
    template <class A> static GPU_FN void load_rows(acc &d, A &m, int r, int c)
    {
        const float lo = *m.at(r, c + gpu_lane() / 4), hi = *m.at(r, c + gpu_lane() / 4 + 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            d.f.x[i] = i % 4 < 2 ? lo : hi;
    }
    template <class A> static GPU_FN void store(A &m, int r, int c, const acc &d)
    {
        uint32_t p = (uint32_t)__cvta_generic_to_shared(m.at(gpu_lane() / 4, gpu_lane() % 4 * 2));
        asm volatile("" : "+r"(p));
        p += (r * A::pitch + c) * (int)sizeof(float);
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(p + (i % 4 / 2 * 8 * A::pitch + i / 4 * 8) * 4),
                         "f"(d.f.x[i]), "f"(d.f.x[i + 1])
                         : "memory");
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

#define GPU_KERNEL(NAME, ...)                                                                                          \
    extern "C" __global__ void __launch_bounds__((__VA_ARGS__::threads), (__VA_ARGS__::blocks))                        \
        NAME(const __grid_constant__ __VA_ARGS__::args a)                                                              \
    {                                                                                                                  \
        static_assert(sizeof(a) <= 4096, "parameters of a kernel");                                                    \
        extern __shared__ __align__(128) unsigned char gpu_arena[];                                                    \
        gpu_run_items<__VA_ARGS__>(a, *(__VA_ARGS__::shared *)gpu_arena);                                              \
    }                                                                                                                  \
    extern "C" GPU_DESCRIBE(NAME, NAME, (__VA_ARGS__::blocks), __VA_ARGS__)
