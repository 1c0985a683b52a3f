// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax backward: dx = scale·y·(dy - Σ y·dy); for log-softmax dx = scale·(dy - exp(y)·Σ dy). One pass sums, with the row
// kept in registers. Longer rows are softmax_split's. Bytes per row of n elements, at most tile_k: 2n read, n written.
#pragma once
#include "softmax.gpu.h"

GPU_FN float softmax_gradient(float y, float dy, float sum, const gpu_softmax_args &a)
{
    return a.scale * (a.log ? dy - gpu_exp2(y * SOFTMAX_LOG2E) * sum : y * (dy - sum));
}

template <class E>
GPU_FN gpu_vec<float, 16 / sizeof(E)> softmax_gradients(const gpu_packed &y, const gpu_packed &dy, float sum,
                                                        const gpu_softmax_args &a)
{
    gpu_vec<float, 16 / sizeof(E)> dx = gpu_unpack<E>(y);
    const auto g = gpu_unpack<E>(dy);
#pragma unroll
    for (int e = 0; e < 16 / (int)sizeof(E); e++)
        dx[e] = softmax_gradient(dx[e], g[e], sum, a);
    return dx;
}
// Σ y·dy, or Σ dy
template <class E, int N> GPU_FN float softmax_product(const gpu_packed (&y)[N], const gpu_packed (&dy)[N], bool log)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const auto p = gpu_unpack<E>(y[i]), g = gpu_unpack<E>(dy[i]);
#pragma unroll
        for (int e = 0; e < 16 / (int)sizeof(E); e++)
            sum += log ? g[e] : p[e] * g[e];
    }
    return sum;
}

template <class E, int T, int VECS> struct softmax_backward {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int V = softmax_slots<E>::V, ROWS = T < 128 ? 128 / T : 1;
    static constexpr int threads = T * ROWS, blocks = T >= 1024 ? 1 : 1024 / threads, tile_q = ROWS,
                         tile_k = T * VECS * V;
    using shared = typename group::shared;

    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        const int64_t r = item * ROWS + gpu_thread() / T;
        const int t = gpu_thread() % T;
        const bool live = r < a.rows;
        const gpu_rows<const E> row_y = softmax_row<const E>(a.y, r, live),
                                row_dy = softmax_row<const E>(a.dy, r, live);
        const gpu_rows<E> row_dx = softmax_row<E>(a.dx, r, live);
        int head = softmax_head(row_y, row_dy, a.invariant);
        if (head != softmax_head(row_y, row_dx, a.invariant))
            head = row_y.cols;
        const softmax_slots<const E> y(row_y, head), dy(row_dy, head);
        const softmax_slots<E> dx(row_dx, head);
        const gpu_packed zero = gpu_pack_all<E>(0);

        gpu_packed held_y[VECS], held_dy[VECS];
        float sum = 0;
        y.template load<true>(held_y, t, T, zero), dy.template load<true>(held_dy, t, T, zero);
        sum += softmax_product<E>(held_y, held_dy, a.log);
#pragma unroll 1
        for (int i = t; i < y.edges; i += T) {
            const float g = gpu_to_float(dy.get(y.edge(i)));
            sum += a.log ? g : g * gpu_to_float(y.get(y.edge(i)));
        }
        sum = group::sum(sum, s, 0);
#pragma unroll 1
        for (int i = t; i < y.edges; i += T) {
            const int c = y.edge(i);
            dx.put(c, softmax_gradient(gpu_to_float(y.get(c)), gpu_to_float(dy.get(c)), sum, a));
        }
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            gpu_pin(held_y[i]), gpu_pin(held_dy[i]);
            if (t + i * T < y.body)
                dx.store(t + i * T, softmax_gradients<E>(held_y[i], held_dy[i], sum, a));
        }
    }
};

// Any types in any mixture, element by element: 4n read.
template <int T> struct softmax_backward_mixed {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int threads = T, blocks = 1, tile_q = 1, tile_k = 0;
    using shared = typename group::shared;
    static GPU_FN void run(const args &a, shared &s, int64_t r)
    {
        const int64_t i2 = r % a.y.size[2], i1 = r / a.y.size[2] % a.y.size[1], i0 = r / a.y.size[2] / a.y.size[1];
        const int n = (int)a.y.size[3];
        float sum = 0, part = 0;
        int terms = 0;
        for (int k = gpu_thread(); k < n; k += T) {
            const float g = gpu_read_float(a.dy, i0, i1, i2, k);
            part += a.log ? g : gpu_read_float(a.y, i0, i1, i2, k) * g;
            if (++terms == 64)
                sum += part, part = 0, terms = 0;
        }
        sum = group::sum(sum + part, s, 0);
        for (int k = gpu_thread(); k < n; k += T) {
            const float p = gpu_read_float(a.y, i0, i1, i2, k), g = gpu_read_float(a.dy, i0, i1, i2, k);
            gpu_write_float(a.dx, i0, i1, i2, k, softmax_gradient(p, g, sum, a));
        }
    }
};
