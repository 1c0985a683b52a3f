// SPDX-License-Identifier: MIT OR Apache-2.0
// The MFMA part of the dialect (gpu_mfma.h) on AMD CDNA.
#pragma once

template <class T> GPU_FN T gpu_uniform(T x)
{
    if constexpr (sizeof(T) == 4)
        return __builtin_bit_cast(T, __builtin_amdgcn_readfirstlane(__builtin_bit_cast(int, x)));
    else {
        static_assert(sizeof(T) == 8, "one register or two");
        const uint64_t u = __builtin_bit_cast(uint64_t, x);
        const uint32_t lo = __builtin_amdgcn_readfirstlane((uint32_t)u),
                       hi = __builtin_amdgcn_readfirstlane((uint32_t)(u >> 32));
        return __builtin_bit_cast(T, (uint64_t)hi << 32 | lo);
    }
}

// A buffer descriptor: the hardware compares offsets with its size and returns zeros beyond it.
template <class T> struct gpu_bounded {
    __amdgpu_buffer_rsrc_t descriptor;
    uint32_t stride; // in bytes
    int cols;
    GPU_FN gpu_bounded(const gpu_rows<T> &m, int n) : stride((uint32_t)m.stride * sizeof(T)), cols(m.cols)
    {
        const uint32_t bytes = n > 0 ? (n - 1) * stride + cols * (uint32_t)sizeof(T) : 0;
        descriptor = __builtin_amdgcn_make_buffer_rsrc((void *)gpu_uniform((uint64_t)(uintptr_t)m.data), 0,
                                                       (int)gpu_uniform(bytes), 0x27000);
    }
    GPU_FN gpu_offset place(int r, int c) const
    {
        return {c < cols ? r * stride + c * (uint32_t)sizeof(T) : GPU_NOWHERE};
    }
};
template <int N, class T> GPU_FN auto gpu_load_bounded(const gpu_bounded<T> &b, gpu_offset at_, int dr)
{
    constexpr int WORDS = N * sizeof(T) / 4;
    typedef uint32_t w2 __attribute__((ext_vector_type(2)));
    typedef uint32_t w4 __attribute__((ext_vector_type(4)));
    const uint32_t at = at_.offset + dr * b.stride;
    if constexpr (WORDS == 1)
        return gpu_vec<uint32_t, 1>{{(uint32_t)__builtin_amdgcn_raw_buffer_load_b32(b.descriptor, at, 0, 0)}};
    else if constexpr (WORDS == 2)
        return __builtin_bit_cast(gpu_vec<uint32_t, 2>,
                                  (w2)__builtin_amdgcn_raw_buffer_load_b64(b.descriptor, at, 0, 0));
    else
        return __builtin_bit_cast(gpu_packed, (w4)__builtin_amdgcn_raw_buffer_load_b128(b.descriptor, at, 0, 0));
}

GPU_FN uint32_t gpu_pick(uint32_t a, uint32_t b, bool upper)
{
    return __builtin_amdgcn_perm(b, a, upper ? 0x07060302u : 0x05040100u);
}

template <class E> GPU_FN uint32_t gpu_weights(gpu_two x)
{
    if constexpr (__is_same(E, gpu_half)) {
        typedef _Float16 h2 __attribute__((ext_vector_type(2)));
        return __builtin_bit_cast(uint32_t, __builtin_convertvector(x, h2));
    } else {
#if defined(__gfx950__)
        typedef __bf16 b2 __attribute__((ext_vector_type(2)));
        return __builtin_bit_cast(uint32_t, __builtin_convertvector(x, b2));
#else // no instruction for it: half a unit is added, the upper halves taken
        const float lo = x[0], hi = x[1];
        return __builtin_amdgcn_perm(__builtin_bit_cast(uint32_t, hi) + 0x8000u,
                                     __builtin_bit_cast(uint32_t, lo) + 0x8000u, 0x07060302u);
#endif
    }
}

GPU_FN int gpu_of_lane(int x, int lane)
{
    return __builtin_amdgcn_readlane(x, lane);
}
GPU_FN uint64_t gpu_wave_ballot(bool x)
{
    return __builtin_amdgcn_ballot_w64(x);
}
// Statements for the device only: the host side of the compiler knows no vector registers.
#ifdef __HIP_DEVICE_COMPILE__
#define GPU_DEVICE_ASM(...) asm volatile("" : __VA_ARGS__)
#else
#define GPU_DEVICE_ASM(...) (void)0
#endif
template <class T> GPU_FN void gpu_keep([[maybe_unused]] T &x)
{
    GPU_DEVICE_ASM("+v"(x));
}
template <class A> GPU_FN const A &gpu_reload(const A &)
{
    auto p = (const __attribute__((address_space(4))) A *)__builtin_amdgcn_kernarg_segment_ptr();
    GPU_DEVICE_ASM("+s"(p));
    return *(const A *)p;
}
GPU_FN int gpu_own(int i)
{
    GPU_DEVICE_ASM("+v"(i));
    return i;
}
GPU_FN void gpu_fence()
{
    __builtin_amdgcn_sched_barrier(0);
}
// v_med3 with infinity: v_max would first have to quiet what might be a signalling NaN.
GPU_FN float gpu_most(float a, float x, float y)
{
    a = __builtin_amdgcn_fmed3f(a, x, __builtin_huge_valf());
    return __builtin_amdgcn_fmed3f(a, y, __builtin_huge_valf());
}

#if defined(__gfx950__)
#define GPU_MFMA_PARTS 1
#else
#define GPU_MFMA_PARTS 2
#endif
template <class E> constexpr bool gpu_mfma_fast()
{
#if defined(__gfx90a__)
    return !__is_same(E, gpu_half); // gpu_tile::mma_half
#else
    return true;
#endif
}
template <int PART, class TILE>
GPU_FN void gpu_mfma_part(typename TILE::acc &d, const typename TILE::a &a, const typename TILE::bk &b)
{
    if constexpr (GPU_MFMA_PARTS == 1)
        TILE::mma(d, a, b);
    else
        TILE::mma_half(d, a, b, PART);
}
