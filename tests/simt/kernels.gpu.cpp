// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of the emulated device's own tests.
#include "flash.gpu.h"
#include "layouts.gpu.h"
#include "rows.gpu.h"
#include "tickets.gpu.h"

GPU_KERNEL(test_rows_wave, rows<float, 1>)
GPU_KERNEL(test_rows_block, rows<float, 4>)
GPU_KERNEL(test_tickets, tickets)
#if GPU_WAVE == 32
GPU_KERNEL(test_flash_64, flash<gpu_half, 64, 16, 2, 64, 4, 1>)
GPU_KERNEL(test_flash_128, flash<gpu_bf16, 128, 16, 2, 64, 4, 1>)
#else
GPU_KERNEL(test_flash_64, flash<gpu_half, 64, 16, 1, 64, 4, 1>)
GPU_KERNEL(test_flash_128, flash<gpu_bf16, 128, 32, 1, 32, 4, 1>)
#endif
GPU_KERNEL(test_flash_padded, flash<gpu_half, 64, 16, 1, 64, 4, 1, true>)
GPU_KERNEL(test_flash_unpadded, flash<gpu_half, 64, 16, 1, 64, 4, 1, false>)

#if GPU_WAVE == 32
GPU_KERNEL(test_layout_mma_f16, layout_mma<gpu_half>)
GPU_KERNEL(test_layout_mma_bf16, layout_mma<gpu_bf16>)
GPU_KERNEL(test_layout_ldmatrix, layout_ldmatrix)
#else
GPU_KERNEL(test_layout_mfma_f16_16, layout_mfma<gpu_half, 16>)
GPU_KERNEL(test_layout_mfma_f16_32, layout_mfma<gpu_half, 32>)
GPU_KERNEL(test_layout_mfma_bf16_16, layout_mfma<gpu_bf16, 16>)
GPU_KERNEL(test_layout_mfma_bf16_32, layout_mfma<gpu_bf16, 32>)
GPU_KERNEL(test_layout_mfma_chain_16, layout_mfma_chain<gpu_half, 16>)
GPU_KERNEL(test_layout_mfma_chain_32, layout_mfma_chain<gpu_bf16, 32>)
GPU_KERNEL(test_layout_bounded, layout_bounded)
#endif
