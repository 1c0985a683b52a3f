// SPDX-License-Identifier: MIT OR Apache-2.0
// The dialect on AMD CDNA (gfx90a, gfx942, gfx950): clang builtins only, no HIP header, no device library. Each kernel file is
// compiled once per architecture for its code object, and once by the same compiler's host side for the kernels' descriptions.
//
// Arithmetic: fp32 and fp16 keep subnormals, rounding is to nearest; v_exp_f32, v_log_f32 and v_rcp_f32 have one ulp and take
// and give no subnormals (NVIDIA: ex2.approx.ftz; arguments of the other two are never that small). A maximum leaves NaN out.
#pragma once

#define GPU_WAVE       64
#define GPU_TILE_MAX   32
#define GPU_ASYNC      0
#define GPU_PACKED_MAX 0

GPU_FN int gpu_thread()
{
    return __builtin_amdgcn_workitem_id_x();
}
GPU_FN int gpu_block()
{
    return __builtin_amdgcn_workgroup_id_x();
}
// Code object version 5: the number of blocks is the first implicit argument.
GPU_FN int gpu_blocks()
{
    return *(const __attribute__((address_space(4))) int *)__builtin_amdgcn_implicitarg_ptr();
}
GPU_FN int gpu_lane()
{
    return gpu_thread() % GPU_WAVE;
}
// Said to be uniform, for scalar addressing.
GPU_FN int gpu_wave_id()
{
    return __builtin_amdgcn_readfirstlane(gpu_thread() / GPU_WAVE);
}

GPU_FN void gpu_block_barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
GPU_FN void gpu_next_item()
{
    gpu_block_barrier();
}
// A wave's accesses to shared memory execute in order: this only holds the compiler.
GPU_FN void gpu_wave_barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
GPU_FN bool gpu_wave_any(bool x)
{
    return __builtin_amdgcn_ballot_w64(x) != 0;
}
// Every wave leaves its vote in shared memory; the second barrier lets the next vote write there.
GPU_FN bool gpu_block_any(bool x)
{
    static __attribute__((shared)) uint32_t votes[1024 / GPU_WAVE];
    const int waves = __builtin_amdgcn_workgroup_size_x() / GPU_WAVE;
    votes[gpu_wave_id()] = gpu_wave_any(x);
    gpu_block_barrier();
    uint32_t any = 0;
    for (int w = 0; w < waves; w++)
        any |= votes[w];
    gpu_block_barrier();
    return any;
}
GPU_FN void gpu_atomic_or(uint32_t *p, uint32_t bits)
{
    __hip_atomic_fetch_or(p, bits, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T> GPU_FN T gpu_atomic_add(T *p, T n)
{
    return __hip_atomic_fetch_add(p, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
GPU_FN uint64_t gpu_atomic_ask(uint64_t *p, uint64_t n)
{
    return gpu_atomic_add(p, n);
}
GPU_FN uint64_t gpu_atomic_load(const kiln_view &v, int64_t i0, int64_t i1)
{
    return __hip_atomic_load((const uint64_t *)v.data + i0 * v.stride[0] + i1 * v.stride[1], __ATOMIC_RELAXED,
                             __HIP_MEMORY_SCOPE_AGENT);
}
GPU_FN void gpu_atomic_store(const kiln_view &v, int64_t i0, int64_t i1, uint64_t x)
{
    __hip_atomic_store((uint64_t *)v.data + i0 * v.stride[0] + i1 * v.stride[1], x, __ATOMIC_RELAXED,
                       __HIP_MEMORY_SCOPE_AGENT);
}
GPU_FN void gpu_pause()
{
    __builtin_amdgcn_s_sleep(4);
}
template <int MASK> GPU_FN float gpu_shfl_xor(float x)
{
    const int i = __builtin_bit_cast(int, x);
    int r;
    if constexpr (MASK == 1)
        r = __builtin_amdgcn_update_dpp(0, i, 0xb1, 0xf, 0xf, true); // quad_perm 1,0,3,2
    else if constexpr (MASK == 2)
        r = __builtin_amdgcn_update_dpp(0, i, 0x4e, 0xf, 0xf, true); // quad_perm 2,3,0,1
    else if constexpr (MASK < 32)
        r = __builtin_amdgcn_ds_swizzle(i, MASK << 10 | 0x1f);
    else
        r = __builtin_amdgcn_ds_bpermute((gpu_lane() ^ MASK) << 2, i);
    return __builtin_bit_cast(float, r);
}

GPU_FN float gpu_exp2(float x)
{
    return __builtin_amdgcn_exp2f(x);
}
GPU_FN float gpu_log2(float x)
{
    return __builtin_amdgcn_logf(x);
}
GPU_FN float gpu_rcp(float x)
{
    return __builtin_amdgcn_rcpf(x);
}
GPU_FN float gpu_product(float a, float b)
{
#pragma clang fp contract(off)
    return a * b;
}
GPU_FN float gpu_max(float a, float b)
{
    return __builtin_fmaxf(a, b);
}
GPU_FN float gpu_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

GPU_FN float gpu_to_float(float x)
{
    return x;
}
GPU_FN float gpu_to_float(gpu_half x)
{
    return (float)__builtin_bit_cast(_Float16, x.bits);
}
GPU_FN float gpu_to_float(gpu_bf16 x)
{
    return __builtin_bit_cast(float, (uint32_t)x.bits << 16);
}
template <class E> GPU_FN E gpu_from_float(float x)
{
    if constexpr (sizeof(E) == 4)
        return x;
    else if constexpr (__is_same(E, gpu_half))
        return {__builtin_bit_cast(uint16_t, (_Float16)x)};
    else
        return {__builtin_bit_cast(uint16_t, (__bf16)x)};
}
template <class E> GPU_FN uint32_t gpu_max_packed(uint32_t a, uint32_t b)
{
    const E lo = gpu_from_float<E>(gpu_max(gpu_to_float(E{(uint16_t)a}), gpu_to_float(E{(uint16_t)b})));
    const E hi = gpu_from_float<E>(gpu_max(gpu_to_float(E{(uint16_t)(a >> 16)}), gpu_to_float(E{(uint16_t)(b >> 16)})));
    return lo.bits | (uint32_t)hi.bits << 16;
}
template <class E, int N> GPU_FN gpu_vec<E, N> gpu_from_floats(const gpu_vec<float, N> &x)
{
    gpu_vec<E, N> y;
    for (int i = 0; i < N; i++)
        y[i] = gpu_from_float<E>(x[i]);
    return y;
}
template <int BYTES> GPU_FN void gpu_move(void *to, const void *from)
{
    __builtin_memcpy(__builtin_assume_aligned(to, BYTES), __builtin_assume_aligned(from, BYTES), BYTES);
}
template <int BYTES> GPU_FN void gpu_put(void *to, const void *from)
{
    gpu_move<BYTES>(to, from);
}
typedef uint32_t gpu_words __attribute__((ext_vector_type(4)));
template <int BYTES> GPU_FN void gpu_move_stream(void *to, const void *from)
{
    if constexpr (BYTES < 16)
        gpu_move<BYTES>(to, from);
    else
        *(gpu_words *)to = __builtin_nontemporal_load((const gpu_words *)from);
}
template <int BYTES> GPU_FN void gpu_put_stream(void *to, const void *from)
{
    if constexpr (BYTES < 16)
        gpu_move<BYTES>(to, from);
    else
        __builtin_nontemporal_store(*(const gpu_words *)from, (gpu_words *)to);
}
template <class V> GPU_FN void gpu_pin([[maybe_unused]] V &v)
{
#ifdef __HIP_DEVICE_COMPILE__
    gpu_words w = __builtin_bit_cast(gpu_words, v);
    asm volatile("" : "+v"(w));
    v = __builtin_bit_cast(V, w);
#endif
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
template <int N, class... A> GPU_FN void gpu_copy_async(const A &...)
{
}
template <class... A> GPU_FN void gpu_copy_async_piece(const A &...)
{
}
GPU_FN void gpu_copy_commit()
{
}
template <int N> GPU_FN void gpu_copy_wait_groups()
{
}
GPU_FN void gpu_copy_wait()
{
}

// MFMA 16x16 and 32x32. A lane holds 8 neighbouring k of one row of A (column of B), one 16-byte LDS read:
// gfx950 takes them in one instruction, gfx90a and gfx942 in two, whose order of k is then permuted alike in A and B.
// gfx90a's 16-bit MFMA takes subnormals for zero. For bf16 they are those of fp32; but for fp16 everything below 6e-5 would be
// lost, so there fp16 goes through the fp32 MFMA, at a quarter of the rate.
template <class E, int SIZE> struct gpu_tile {
    static constexpr int M = SIZE, K = 8 * GPU_WAVE / M;
    static constexpr bool b_by_rows = false;
    struct a {
        gpu_vec<E, 8> v;
    };
    using bk = a;
    using bn = a;
    struct acc {
        static constexpr int n = M * M / GPU_WAVE;
        typedef float vec __attribute__((ext_vector_type(n)));
        vec v;
        struct ref { // an element of a vector register is no lvalue
            vec &v;
            int i;
            GPU_FN operator float() const
            {
                return v[i];
            }
            GPU_FN void operator*=(float f)
            {
                v[i] *= f;
            }
        };
        GPU_FN ref x(int i)
        {
            return {v, i};
        }
    };
    static GPU_FN int row(int i)
    {
        return 8 * (i / 4) + 4 * (gpu_lane() / M) + i % 4;
    }
    static GPU_FN int col()
    {
        return gpu_lane() % M;
    }

    template <class A> static GPU_FN void load_a(a &f, A &m, int r, int c)
    {
        f.v = *(const gpu_vec<E, 8> *)m.at(r + gpu_lane() % M, c + gpu_lane() / M * 8);
    }
    template <class A> static GPU_FN void load_bk(a &f, A &m, int r, int c)
    {
        load_a(f, m, r, c);
    }
    template <class A> static GPU_FN void load_bn(a &f, A &m, int r, int c)
    {
        for (int e = 0; e < 8; e++)
            f.v[e] = *m.at(r + gpu_lane() / M * 8 + e, c + gpu_lane() % M);
    }
    template <class A> static GPU_FN void load_rows(acc &d, A &m, int r, int c)
    {
        for (int i = 0; i < acc::n; i++)
            d.v[i] = *m.at(r, c + row(i));
    }
    template <class A> static GPU_FN void store(A &m, int r, int c, const acc &d)
    {
        for (int i = 0; i < acc::n; i++)
            *m.at(r + row(i), c + col()) = d.v[i];
    }
    static GPU_FN void zero(acc &d)
    {
        d.v = 0.f;
    }
    static GPU_FN void mma(acc &d, const a &x, const a &y)
    {
#if defined(__gfx950__)
        constexpr bool half = __is_same(E, gpu_half);
        if constexpr (half && M == 16)
            d.v = __builtin_amdgcn_mfma_f32_16x16x32_f16(cast<h8>(x), cast<h8>(y), d.v, 0, 0, 0);
        else if constexpr (half)
            d.v = __builtin_amdgcn_mfma_f32_32x32x16_f16(cast<h8>(x), cast<h8>(y), d.v, 0, 0, 0);
        else if constexpr (M == 16)
            d.v = __builtin_amdgcn_mfma_f32_16x16x32_bf16(cast<b8>(x), cast<b8>(y), d.v, 0, 0, 0);
        else
            d.v = __builtin_amdgcn_mfma_f32_32x32x16_bf16(cast<b8>(x), cast<b8>(y), d.v, 0, 0, 0);
#else
        for (int h = 0; h < 2; h++)
            mma_half(d, x, y, h);
#endif
    }

    // One of the two instructions where mma() has two: the products of elements 4h...4h + 3.
    static GPU_FN void mma_half(acc &d, const a &x, const a &y, int h)
    {
        if constexpr (__is_same(E, gpu_half)) {
#if defined(__gfx90a__)
            for (int e = 4 * h; e < 4 * h + 4; e++) {
                const float u = gpu_to_float(x.v[e]), w = gpu_to_float(y.v[e]);
                if constexpr (M == 16)
                    d.v = __builtin_amdgcn_mfma_f32_16x16x4f32(u, w, d.v, 0, 0, 0);
                else
                    d.v = __builtin_amdgcn_mfma_f32_32x32x2f32(u, w, d.v, 0, 0, 0);
            }
#else
            if constexpr (M == 16)
                d.v = __builtin_amdgcn_mfma_f32_16x16x16f16(part<h4>(x, h), part<h4>(y, h), d.v, 0, 0, 0);
            else
                d.v = __builtin_amdgcn_mfma_f32_32x32x8f16(part<h4>(x, h), part<h4>(y, h), d.v, 0, 0, 0);
#endif
        } else if constexpr (M == 16)
            d.v = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(part<s4>(x, h), part<s4>(y, h), d.v, 0, 0, 0);
        else
            d.v = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(part<s4>(x, h), part<s4>(y, h), d.v, 0, 0, 0);
    }

  private:
    typedef _Float16 h4 __attribute__((ext_vector_type(4)));
    typedef short s4 __attribute__((ext_vector_type(4)));
    typedef _Float16 h8 __attribute__((ext_vector_type(8)));
    typedef __bf16 b8 __attribute__((ext_vector_type(8)));
    template <class V> static GPU_FN V cast(const a &x)
    {
        return __builtin_bit_cast(V, x.v);
    }
    template <class V> static GPU_FN V part(const a &x, int h)
    {
        struct two {
            V v[2];
        };
        return __builtin_bit_cast(two, x.v).v[h];
    }
};

// Blocks of a compute unit: what the kernel means, as far as 64 KB of shared memory hold them.
template <class K> constexpr int gpu_blocks_per_unit()
{
    const int fit = (64 << 10) / (int)sizeof(typename K::shared);
    return fit < 1 ? 1 : fit < K::blocks ? fit : K::blocks;
}
// Waves of each of a compute unit's four SIMDs.
template <class K> constexpr int gpu_waves_per_simd()
{
    return (K::threads / GPU_WAVE * gpu_blocks_per_unit<K>() + 3) / 4;
}

#ifdef __HIP_DEVICE_COMPILE__
#define GPU_KERNEL(NAME, ...)                                                                                          \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(__VA_ARGS__::threads, __VA_ARGS__::threads),         \
                              amdgpu_waves_per_eu(gpu_waves_per_simd<__VA_ARGS__>()))) void                            \
    NAME(__VA_ARGS__::args a)                                                                                          \
    {                                                                                                                  \
        static_assert(sizeof(a) <= 4096, "parameters of a kernel");                                                    \
        static __attribute__((shared)) __VA_ARGS__::shared arena;                                                      \
        gpu_run_items<__VA_ARGS__>(a, arena);                                                                          \
    }
#else
// The host's side: descriptions, one after the other in a section of their own, so that a runtime can go through all. `entry`
// leads to the code objects that hold the kernel, which the build embeds: GPU_OBJECTS (backends/hip/code_objects.h).
extern "C" const char GPU_OBJECTS[];
#define GPU_KERNEL(NAME, ...)                                                                                          \
    extern "C" __attribute__((section("kiln_hip_kernels")))                                                            \
    GPU_DESCRIBE(NAME, GPU_OBJECTS, (gpu_blocks_per_unit<__VA_ARGS__>()), __VA_ARGS__)
#endif
