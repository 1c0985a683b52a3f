// SPDX-License-Identifier: MIT OR Apache-2.0
// The matrix part of the dialect (gpu_mma.h) on the emulated device, in the layout that the PTX ISA publishes. 32 lanes only.
#pragma once

#if GPU_WAVE == 32
// Registers of 32 bits as their two 16-bit elements.
template <class E> GPU_FN float gpu_half_of(uint32_t word, int upper)
{
    return gpu_to_float(E{(uint16_t)(word >> 16 * upper)});
}

template <class E> void gpu_mma_wave(const simt_operation *const *o)
{
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; l++)
        for (int u = 0; u < 2; u++) {
            const int g = l / 4, t = l % 4;
            const uint32_t *a = (const uint32_t *)o[l]->in[0], *b = (const uint32_t *)o[l]->in[1];
            for (int i = 0; i < 4; i++)
                A[g + i % 2 * 8][2 * t + u + i / 2 * 8] = gpu_half_of<E>(a[i], u);
            for (int i = 0; i < 2; i++)
                B[2 * t + u + i * 8][g] = gpu_half_of<E>(b[i], u);
        }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            float x = ((float *)o[l]->out)[i];
            for (int k = 0; k < 16; k++)
                x += A[l / 4 + i / 2 * 8][k] * B[k][l % 4 * 2 + i % 2];
            ((float *)o[l]->out)[i] = x;
        }
    simt_count_matrix_op();
}
template <class E> GPU_FN void gpu_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 GPU_AT)
{
    const uint32_t b[2] = {b0, b1};
    const simt_operation op = {"mma m16n8k16", gpu_at, gpu_mma_wave<E>, {a, b}, d, {}};
    simt_arrive(&op);
}

template <int THREADS> GPU_FN void gpu_block_barrier_apart(GPU_HERE)
{
    simt_block_barrier(gpu_at, "block barrier", false);
}

// The rows are read by some lane of the wave: its own is not the one whose address it gives.
template <class A> struct gpu_cursor {
    A &m;
    int r, c;
    GPU_FN gpu_cursor(A &m_, int r_, int c_) : m(m_), r(r_), c(c_)
    {
    }
    GPU_FN void pin()
    {
    }
};
inline uint32_t gpu_ldmatrix_element(const simt_operation *const *o, int tile, int row, int column)
{
    return ((const uint16_t *)o[tile * 8 + row]->in[0])[column];
}
template <bool TRANS> void gpu_ldmatrix_wave(const simt_operation *const *o)
{
    for (int l = 0; l < 32; l++)
        for (int tile = 0; tile < 4; tile++) {
            const int g = l / 4, t = 2 * (l % 4);
            ((uint32_t *)o[l]->out)[tile] =
                TRANS ? gpu_ldmatrix_element(o, tile, t, g) | gpu_ldmatrix_element(o, tile, t + 1, g) << 16
                      : gpu_ldmatrix_element(o, tile, g, t) | gpu_ldmatrix_element(o, tile, g, t + 1) << 16;
        }
}
template <bool TRANS, int DR, int DC, class A>
GPU_FN void gpu_ldmatrix(uint32_t (&x)[4], const gpu_cursor<A> &cursor GPU_AT)
{
    static_assert(DR % 8 == 0 && DC % 16 == 0, "as the hardware's");
    A &m = cursor.m;
    const int r = cursor.r + DR, c = cursor.c + DC;
    const bool in = r >= 0 && r < A::rows && c >= 0 && c + 8 <= A::cols;
    const void *p = in ? m.at(r, c) : m.at(0, 0);
    simt_shared_access(p, 16, 16, SIMT_ANY_LANE, in, r, c, gpu_at);
    const simt_operation op = {"ldmatrix", gpu_at, gpu_ldmatrix_wave<TRANS>, {p}, x, {TRANS}};
    simt_arrive(&op);
    simt_shared_count(p, 16, false, gpu_at);
}

template <int DR, int DC, class T, int R, int C>
GPU_FN void gpu_store_pair(const gpu_cursor<gpu_swizzled<T, R, C>> &cursor, uint32_t x GPU_AT)
{
    static_assert(sizeof(T) == 2 && DR % 8 == 0 && DC % 8 == 0, "as the hardware's");
    gpu_vec<T, 2> pair;
    pair[0].bits = (uint16_t)x, pair[1].bits = (uint16_t)(x >> 16);
    gpu_store<2>(cursor.m, cursor.r + DR, cursor.c + DC, pair GPU_LINE);
}

template <class E> GPU_FN uint32_t gpu_pair(float lo, float hi)
{
    return gpu_from_float<E>(lo).bits | (uint32_t)gpu_from_float<E>(hi).bits << 16;
}
#endif
