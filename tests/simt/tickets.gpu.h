// SPDX-License-Identifier: MIT OR Apache-2.0
// tickets.gpu.h: blocks that take numbers and wait for each other, for the emulated device's own tests: atomic addition, words
// that one block stores and another loads. y[i] = 0 + 1 + ... + i, each from the one before, whatever the order of the blocks.
#pragma once
#include "../../backends/gpu/gpu_device.h"

struct tickets {
    using args = gpu_softmax_args;
    static constexpr int threads = GPU_WAVE, blocks = 1, tile_q = 1, tile_k = 0;
    struct shared {
        gpu_array<int64_t, 1, 1> ticket;
    };
    static GPU_FN void run(const args &a, shared &s, int64_t)
    {
        for (;;) {
            if (gpu_thread() == 0)
                gpu_store<1>(s.ticket, 0, 0, gpu_vec<int64_t, 1>{(int64_t)gpu_atomic_add(a.ticket, (uint64_t)1)});
            gpu_block_barrier();
            const int64_t ticket = gpu_load<1>(s.ticket, 0, 0)[0];
            gpu_block_barrier();
            if (ticket >= a.y.size[3])
                return;
            uint64_t word = 1; // the sum and one more: 0 is not there yet
            if (ticket > 0)
                while ((word = gpu_atomic_load(a.partial, 0, ticket - 1)) == 0)
                    gpu_pause();
            word += (uint64_t)ticket;
            gpu_block_barrier();
            if (gpu_thread() == 0) {
                gpu_atomic_store(a.partial, 0, ticket, word);
                gpu_write<float>(a.y, 0, 0, 0, ticket, (float)(word - 1));
            }
        }
    }
};
