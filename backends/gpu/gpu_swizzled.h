// SPDX-License-Identifier: MIT OR Apache-2.0
// gpu_swizzled.h: a matrix in shared memory without padding. The 16-byte pieces of a row are permuted by its number, so that
// eight neighbouring rows at one column, and the pieces of 128 bytes of neighbouring rows, lie in different banks.
#pragma once
#include "gpu_device.h"

template <class T, int ROWS, int COLS> struct alignas(128) gpu_swizzled {
    static_assert(COLS * sizeof(T) % 128 == 0 || COLS * sizeof(T) == 64, "rows are 64 bytes, or multiples of 128");
    static constexpr int rows = ROWS, cols = COLS, V = 16 / sizeof(T);
    static constexpr int SHARE = COLS / V == 4 ? 2 : 1; // rows in 128 bytes
    T data[ROWS * COLS];
    GPU_FN T *at(int r, int c)
    {
        if constexpr (GPU_WAVE == 32 &&
                      SHARE == 1) // the same: of mma's hot loop the other form makes 130 instructions more
            return data + r * COLS + ((c / V) ^ (r % 8)) * V + c % V;
        constexpr int PIECES = 8 / SHARE; // written so that constant distances of 128 bytes are seen to be constant
        return data + r * COLS + c / V / PIECES * (PIECES * V) + (c / V % PIECES ^ r / SHARE % PIECES) * V + c % V;
    }
};

template <int N, class T, int R, int C> GPU_FN gpu_vec<T, N> gpu_load(gpu_swizzled<T, R, C> &m, int r, int c GPU_AT)
{
    gpu_check_shared(m, r, c, N, false GPU_LINE);
    gpu_vec<T, N> v;
    gpu_move<sizeof v>(&v, m.at(r, c));
    return v;
}
template <int N, class T, int R, int C>
GPU_FN void gpu_store(gpu_swizzled<T, R, C> &m, int r, int c, const gpu_vec<T, N> &v GPU_AT)
{
    gpu_check_shared(m, r, c, N, true GPU_LINE);
    gpu_move<sizeof v>(m.at(r, c), &v);
}
