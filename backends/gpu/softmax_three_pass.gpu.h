// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax forward, rung `three_pass`: the textbook's safe softmax. Pass one finds the maximum, pass two the sum of
// exponentials, pass three writes. Any types in any mixture, one element an access: the plain one to read first. Bytes per row of n elements: 3n read, n written.
#pragma once
#include "softmax.gpu.h"

template <int T> struct softmax_three_pass {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int ROWS = T < 128 ? 128 / T : 1, threads = T * ROWS, blocks = 1, tile_q = ROWS, tile_k = 0;
    struct shared {
        typename group::shared max, sum;
    };

    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        const int64_t r = item * ROWS + gpu_thread() / T, i2 = r % a.x.size[2], i1 = r / a.x.size[2] % a.x.size[1],
                      i0 = r / a.x.size[2] / a.x.size[1];
        const int t = gpu_thread() % T;
        const bool live = r < a.rows;
        const int n = live ? (int)a.x.size[3] : 0;
        softmax_state me;
        for (int k = t; k < n; k += T)
            me.m = gpu_max(me.m, gpu_read_float(a.x, i0, i1, i2, k) * a.scale);
        me.m = group::max(me.m, s.max, 0);
        const softmax_weight weight(a.scale, me.m);
        // Partial sums of 64 terms each keep the error of long rows small.
        float part = 0;
        int terms = 0;
        for (int k = t; k < n; k += T) {
            part += weight(gpu_read_float(a.x, i0, i1, i2, k));
            if (++terms == 64)
                me.l += part, part = 0, terms = 0;
        }
        me.l = group::sum(me.l + part, s.sum, 0);
        if (t == 0 && live && kiln_view_present(&a.lse))
            gpu_write(a.lse, i0, i1, i2, 0, me.lse());
        if (!kiln_view_present(&a.y))
            return;
        const softmax_writer write(me, a.scale, a.log);
        for (int k = t; k < n; k += T)
            gpu_write_float(a.y, i0, i1, i2, k, write(gpu_read_float(a.x, i0, i1, i2, k)));
    }
};
