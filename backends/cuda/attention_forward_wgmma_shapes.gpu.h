// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_forward_wgmma_shapes.gpu.h: the tile shapes of rung `wgmma`, and why.
//
// symbol        head (of v)  keys  warpgroups  slots  stages of Q   shared   registers (launch -> producer, consumers)
// 64_256x64        64          64           4      4            2   130 KB   96 -> 24, 112    the most queries per K and V
// 64_192x128       64         128           3      4            2   178 KB   128 -> 32, 160   from 8K keys on: fewer steps
// 96_192x64        96          64           3      4            2   226 KB   128 -> 32, 160   as 128, with 3/4 of the products
// 128_192x64      128          64           3      4            2   226 KB   128 -> 32, 160   80 keys would take 176
// 192_128_128x64  192 (128)    64           2      3            2   219 KB   168 -> 40, 232   the head of MLA; three would not leave room to be careful
// 192_128x64      192          64           2      3            1   217 KB   168 -> 40, 232
// 256_128x64      256          64           2      2            1   217 KB   168 -> 40, 232   O alone is 128 registers
// ..._cap: with softcap; 64 columns by tiles of 128 keys always, for a step has more to compute.
#define WGMMA_KERNEL(NAME, ...) GPU_KERNEL_SM90(attention_forward_wgmma_##NAME, attention_forward_wgmma<__VA_ARGS__>)
#define WGMMA_KERNELS(NAME, E)                                                                                         \
    WGMMA_KERNEL(NAME##_64_256x64, E, 64, 64, 64, 4, 4, 2)                                                             \
    WGMMA_KERNEL(NAME##_64_192x128, E, 64, 64, 128, 3, 4, 2)                                                           \
    WGMMA_KERNEL(NAME##_96_192x64, E, 96, 96, 64, 3, 4, 2)                                                             \
    WGMMA_KERNEL(NAME##_128_192x64, E, 128, 128, 64, 3, 4, 2)                                                          \
    WGMMA_KERNEL(NAME##_192_128_128x64, E, 192, 128, 64, 2, 3, 2)                                                      \
    WGMMA_KERNEL(NAME##_192_128x64, E, 192, 192, 64, 2, 3, 1)                                                          \
    WGMMA_KERNEL(NAME##_256_128x64, E, 256, 256, 64, 2, 2, 1)                                                          \
    WGMMA_KERNEL(NAME##_64_192x128_cap, E, 64, 64, 128, 3, 4, 2, true)                                                 \
    WGMMA_KERNEL(NAME##_128_192x64_cap, E, 128, 128, 64, 3, 4, 2, true)                                                \
    WGMMA_KERNEL(NAME##_256_128x64_cap, E, 256, 256, 64, 2, 2, 1, true)
