// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_forward_wgmma_shapes.gpu.h: the tile shapes of rung `wgmma`, and why.
//
// symbol          head  keys  warpgroups  slots  stages of Q   shared   registers (launch -> producer, consumers)
// 64_256x64         64    64           4      4            2   128 KB   96 -> 24, 112    the most queries per K and V
// 64_192x128        64   128           3      4            2   176 KB   128 -> 32, 160   from 8K keys on: fewer steps
// 128_192x64       128    64           3      4            2   224 KB   128 -> 32, 160   80 keys would take 176
// 256_128x64       256    64           2      2            1   217 KB   168 -> 40, 232   O alone is 128 registers
#define WGMMA_KERNELS(NAME, E)                                                                                         \
    GPU_KERNEL_SM90(attention_forward_wgmma_##NAME##_64_256x64, attention_forward_wgmma<E, 64, 64, 4, 4, 2>)           \
    GPU_KERNEL_SM90(attention_forward_wgmma_##NAME##_64_192x128, attention_forward_wgmma<E, 64, 128, 3, 4, 2>)         \
    GPU_KERNEL_SM90(attention_forward_wgmma_##NAME##_128_192x64, attention_forward_wgmma<E, 128, 64, 3, 4, 2>)         \
    GPU_KERNEL_SM90(attention_forward_wgmma_##NAME##_256_128x64, attention_forward_wgmma<E, 256, 64, 2, 2, 1>)
