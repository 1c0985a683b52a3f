// SPDX-License-Identifier: MIT OR Apache-2.0
// The MFMA part of the dialect (gpu_mfma.h) on the emulated device. 64 lanes only.
#pragma once

#if GPU_WAVE == 64
// The decision by 32-bit byte offsets is the hardware's; what it reads is judged by row and column.
template <class T> struct gpu_bounded {
    gpu_rows<T> m;
    uint32_t stride, bytes;
    GPU_FN gpu_bounded(const gpu_rows<T> &m_, int n GPU_AT) : m(m_), stride((uint32_t)m_.stride * sizeof(T)), bytes(0)
    {
        if (m.stride < m.cols || m.stride >= GPU_BOUNDED_STRIDE)
            simt_fault(gpu_at, "bounded rows of %d columns at a stride of %lld", m.cols, (long long)m.stride);
        if (n > 0 && m.cols > 0)
            bytes = (n - 1) * stride + m.cols * (uint32_t)sizeof(T);
    }
    GPU_FN gpu_offset place(int r, int c) const
    {
        return {c < m.cols ? r * stride + c * (uint32_t)sizeof(T) : GPU_NOWHERE};
    }
};
template <int N, class T> GPU_FN auto gpu_load_bounded(const gpu_bounded<T> &b, gpu_offset place, int dr GPU_AT)
{
    constexpr int BYTES = N * sizeof(T);
    gpu_vec<uint32_t, BYTES / 4> v = {};
    const uint32_t at = place.offset + dr * b.stride;
    if (at < b.bytes) { // partly outside is misuse: the columns do not share out evenly
        const int r = (int)(at / b.stride), c = (int)(at % b.stride / sizeof(T));
        gpu_check_global(b.m, r, c, N, false, gpu_at);
        gpu_move<BYTES>(&v, b.m.at(r, c));
    }
    return v;
}

GPU_FN uint32_t gpu_pick(uint32_t a, uint32_t b, bool upper)
{
    return upper ? a >> 16 | (b & 0xffff0000u) : (a & 0xffff) | b << 16;
}

template <class E> GPU_FN uint32_t gpu_weights(gpu_two x)
{
    if constexpr (__is_same(E, gpu_half))
        return gpu_from_float<E>(x[0]).bits | (uint32_t)gpu_from_float<E>(x[1]).bits << 16;
    const float lo = x[0], hi = x[1];
    return (__builtin_bit_cast(uint32_t, lo) + 0x8000u) >> 16 |
           ((__builtin_bit_cast(uint32_t, hi) + 0x8000u) & 0xffff0000u);
}

inline void gpu_wave_ballot_wave(const simt_operation *const *o)
{
    uint64_t bits = 0;
    for (int l = 0; l < GPU_WAVE; l++)
        bits |= (uint64_t) * (const bool *)o[l]->in[0] << l;
    for (int l = 0; l < GPU_WAVE; l++)
        *(uint64_t *)o[l]->out = bits;
    simt_count_exchange();
}
inline void gpu_of_lane_wave(const simt_operation *const *o)
{
    const int x = *(const int *)o[o[0]->same[0]]->in[0];
    for (int l = 0; l < GPU_WAVE; l++)
        *(int *)o[l]->out = x;
    simt_count_exchange();
}
GPU_FN int gpu_of_lane(int x, int lane GPU_AT)
{
    int y;
    const simt_operation op = {"of_lane", gpu_at, gpu_of_lane_wave, {&x}, &y, {lane}};
    simt_arrive(&op);
    return y;
}
GPU_FN uint64_t gpu_wave_ballot(bool x GPU_AT)
{
    uint64_t bits;
    const simt_operation op = {"wave_ballot", gpu_at, gpu_wave_ballot_wave, {&x}, &bits, {}};
    simt_arrive(&op);
    return bits;
}
// Judged where it matters: what is said to be uniform must be.
template <class T> GPU_FN T gpu_uniform(T x GPU_AT)
{
    int64_t same = 0;
    __builtin_memcpy(&same, &x, sizeof x);
    const simt_operation op = {"uniform", gpu_at, nullptr, {}, nullptr, {same}};
    simt_arrive(&op);
    return x;
}
template <class T> GPU_FN void gpu_keep(T &)
{
}
template <class A> GPU_FN const A &gpu_reload(const A &args)
{
    return args;
}
GPU_FN int gpu_own(int i)
{
    return i;
}
GPU_FN void gpu_fence()
{
}
GPU_FN float gpu_most(float a, float x, float y)
{
    return fmaxf(fmaxf(a, x), y);
}
// As on gfx950: its results are those of the two halves but for rounding.
#define GPU_MFMA_PARTS 1
template <class E> constexpr bool gpu_mfma_fast()
{
    return true;
}
template <int, class TILE>
GPU_FN void gpu_mfma_part(typename TILE::acc &d, const typename TILE::a &a, const typename TILE::bk &b GPU_AT)
{
    TILE::mma(d, a, b, gpu_at);
}
#endif
