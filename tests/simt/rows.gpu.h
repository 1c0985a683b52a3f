// SPDX-License-Identifier: MIT OR Apache-2.0
// rows.gpu.h: softmax over rows, a block of WAVES waves each, for the emulated device's own tests: block barriers, shared memory
// across waves, tails. See flash.gpu.h.
#pragma once
#include "../../backends/gpu/gpu_device.h"

template <class E, int WAVES> struct rows {
    using args = gpu_softmax_args;
    static constexpr int threads = WAVES * GPU_WAVE, blocks = 1, tile_q = 1, tile_k = 0;
    struct shared {
        gpu_array<float, 2, WAVES> part;
    };

    struct state {
        float m = gpu_minus_infinity(), l = 0;
        GPU_FN void rebase(float to)
        { // l counts from a new maximum
            l *= gpu_exp2(m - gpu_finite_or_zero(to));
            m = to;
        }
        template <int V> GPU_FN void add(const gpu_vec<E, V> &x, float scale)
        {
            float top = m;
            for (int e = 0; e < V; e++)
                top = gpu_max(top, gpu_to_float(x[e]) * scale);
            rebase(top);
            for (int e = 0; e < V; e++)
                l += gpu_exp2(gpu_to_float(x[e]) * scale - gpu_finite_or_zero(m));
        }
    };
    template <int V>
    static GPU_FN void write(const gpu_rows<E> &y, int row, int c, const gpu_vec<E, V> &x, float scale, const state &s)
    {
        gpu_vec<float, V> p;
        for (int e = 0; e < V; e++)
            p[e] = gpu_exp2(gpu_to_float(x[e]) * scale - gpu_finite_or_zero(s.m)) * s.l;
        gpu_store<V>(y, row, c, gpu_from_floats<E>(p));
    }

    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        constexpr int V = 16 / sizeof(E);
        const gpu_rows<const E> x(a.x, 0, 0);
        const gpu_rows<E> y(a.y, 0, 0);
        const int row = (int)item, n = x.cols, first = gpu_thread();
        const int body =
            gpu_aligned<16>(x, row) && gpu_aligned<16>(y, row) ? n / V * V : 0; // by vectors; the rest singly
        const float scale = a.scale * 1.44269504f;

        state me;
        for (int c = first * V; c < body; c += threads * V)
            me.add(gpu_load<V>(x, row, c), scale);
        for (int c = body + first; c < n; c += threads)
            me.add(gpu_load<1>(x, row, c), scale);

        me.rebase(gpu_wave_max<GPU_WAVE>(me.m));
        me.l = gpu_wave_sum<GPU_WAVE>(me.l);
        if constexpr (WAVES > 1) {
            if (gpu_lane() == 0) {
                gpu_store<1>(s.part, 0, gpu_wave_id(), gpu_vec<float, 1>{me.m});
                gpu_store<1>(s.part, 1, gpu_wave_id(), gpu_vec<float, 1>{me.l});
            }
            gpu_block_barrier();
            float top = me.m, sum = 0;
            for (int w = 0; w < WAVES; w++)
                top = gpu_max(top, gpu_load<1>(s.part, 0, w)[0]);
            for (int w = 0; w < WAVES; w++)
                sum += gpu_load<1>(s.part, 1, w)[0] * gpu_exp2(gpu_load<1>(s.part, 0, w)[0] - gpu_finite_or_zero(top));
            me.m = top, me.l = sum;
        }
        me.l = gpu_rcp(me.l);
        for (int c = first * V; c < body; c += threads * V)
            write(y, row, c, gpu_load<V>(x, row, c), scale, me);
        for (int c = body + first; c < n; c += threads)
            write(y, row, c, gpu_load<1>(x, row, c), scale, me);
    }
};
