/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * layout.c: the binary interface of kiln.h on LP64 machines (x86-64, aarch64 Linux), held at compile time.
 *
 * A failure here means that programs compiled earlier would break. Before 1.0 that is allowed with a line under "ABI" in
 * CHANGELOG.md and a new minor version; from 1.0 on only additions at the end of a struct and new enum values are.
 */
#include <stddef.h>

#include <kiln/kiln.h>

#define VALUE(name, value) _Static_assert((name) == (value), #name " has changed")
#define SIZE(type, size, alignment)                                                                                    \
    _Static_assert(sizeof(type) == (size) && _Alignof(type) == (alignment), #type " has changed")
#define OFFSET(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")

VALUE(KILN_OK, 0);
VALUE(KILN_INVALID_ARGUMENT, 1);
VALUE(KILN_UNSUPPORTED, 2);
VALUE(KILN_UNAVAILABLE, 3);
VALUE(KILN_OUT_OF_MEMORY, 4);
VALUE(KILN_WORKSPACE_TOO_SMALL, 5);
VALUE(KILN_VERSION_MISMATCH, 6);
VALUE(KILN_DEVICE_ERROR, 7);
VALUE(KILN_INTERNAL, 8);
VALUE(KILN_DEVICE_CPU, 1);
VALUE(KILN_DEVICE_CUDA, 2);
VALUE(KILN_DEVICE_ROCM, 10);
VALUE(KILN_INT8, 8);
VALUE(KILN_INT32, 32);
VALUE(KILN_INT64, 64);
VALUE(KILN_UINT8, 264);
VALUE(KILN_UINT32, 288);
VALUE(KILN_UINT64, 320);
VALUE(KILN_FLOAT16, 528);
VALUE(KILN_FLOAT32, 544);
VALUE(KILN_FLOAT64, 576);
VALUE(KILN_BFLOAT16, 1040);
VALUE(KILN_BOOL, 1544);
VALUE(KILN_FLOAT8_E4M3FN, 2568);
VALUE(KILN_FLOAT8_E4M3FNUZ, 2824);
VALUE(KILN_FLOAT8_E5M2, 3080);
VALUE(KILN_FLOAT8_E5M2FNUZ, 3336);
VALUE(KILN_LOG_ERROR, -2);
VALUE(KILN_LOG_WARNING, -1);
VALUE(KILN_LOG_INFO, 0);
VALUE(KILN_LOG_DEBUG, 1);
VALUE(KILN_FLAG_LOG, 1);
VALUE(KILN_FLAG_SCALE_EXPLICIT, 2);
VALUE(KILN_FLAG_DETERMINISTIC, 4);
VALUE(KILN_FLAG_BATCH_INVARIANT, 8);
VALUE(KILN_FLAG_WORKSPACE_ZEROED, 16);
VALUE(KILN_FLAG_ACCUMULATE_DQ, 32);
VALUE(KILN_FLAG_ACCUMULATE_DK, 64);
VALUE(KILN_FLAG_ACCUMULATE_DV, 128);
VALUE(KILN_DEVICE_STATUS_CU_SEQLENS, 1);
VALUE(KILN_DEVICE_STATUS_SEQUSED, 2);
VALUE(KILN_DEVICE_STATUS_BLOCK_TABLE, 4);
VALUE(KILN_DEVICE_STATUS_CACHE_BATCH_IDX, 8);
VALUE(KILN_MASK_NONE, 0);
VALUE(KILN_MASK_CAUSAL_TOP_LEFT, 1);
VALUE(KILN_MASK_CAUSAL_BOTTOM_RIGHT, 2);
VALUE(KILN_MASK_WINDOW_TOP_LEFT, 3);
VALUE(KILN_MASK_WINDOW_BOTTOM_RIGHT, 4);

SIZE(kiln_dtype, 4, 2);
OFFSET(kiln_dtype, code, 0);
OFFSET(kiln_dtype, bits, 1);
OFFSET(kiln_dtype, lanes, 2);

SIZE(kiln_device, 8, 4);
OFFSET(kiln_device, device_type, 0);
OFFSET(kiln_device, device_id, 4);

SIZE(kiln_tensor, 48, 8);
OFFSET(kiln_tensor, data, 0);
OFFSET(kiln_tensor, device, 8);
OFFSET(kiln_tensor, ndim, 16);
OFFSET(kiln_tensor, dtype, 20);
OFFSET(kiln_tensor, shape, 24);
OFFSET(kiln_tensor, strides, 32);
OFFSET(kiln_tensor, byte_offset, 40);

SIZE(kiln_context_options, 72, 8);
OFFSET(kiln_context_options, struct_size, 0);
OFFSET(kiln_context_options, backend, 8);
OFFSET(kiln_context_options, device, 16);
OFFSET(kiln_context_options, max_threads, 20);
OFFSET(kiln_context_options, parallel_for, 24);
OFFSET(kiln_context_options, parallel_for_user, 32);
OFFSET(kiln_context_options, log, 40);
OFFSET(kiln_context_options, log_user, 48);
OFFSET(kiln_context_options, log_level, 56);
OFFSET(kiln_context_options, reserved, 60);
OFFSET(kiln_context_options, plugin_path, 64);

SIZE(kiln_device_info, 80, 8);
OFFSET(kiln_device_info, struct_size, 0);
OFFSET(kiln_device_info, backend, 8);
OFFSET(kiln_device_info, name, 16);
OFFSET(kiln_device_info, architecture, 24);
OFFSET(kiln_device_info, device, 32);
OFFSET(kiln_device_info, units, 40);
OFFSET(kiln_device_info, numa_nodes, 44);
OFFSET(kiln_device_info, memory_bytes, 48);
OFFSET(kiln_device_info, l1_bytes, 56);
OFFSET(kiln_device_info, l2_bytes, 64);
OFFSET(kiln_device_info, l3_bytes, 72);

SIZE(kiln_backend_info, 40, 8);
OFFSET(kiln_backend_info, name, 0);
OFFSET(kiln_backend_info, path, 8);
OFFSET(kiln_backend_info, reason, 16);
OFFSET(kiln_backend_info, available, 24);
OFFSET(kiln_backend_info, score, 28);
OFFSET(kiln_backend_info, device_count, 32);

SIZE(kiln_softmax_forward_args, 56, 8);
OFFSET(kiln_softmax_forward_args, struct_size, 0);
OFFSET(kiln_softmax_forward_args, x, 8);
OFFSET(kiln_softmax_forward_args, y, 16);
OFFSET(kiln_softmax_forward_args, lse, 24);
OFFSET(kiln_softmax_forward_args, scale, 32);
OFFSET(kiln_softmax_forward_args, max_sms, 36);
OFFSET(kiln_softmax_forward_args, flags, 40);
OFFSET(kiln_softmax_forward_args, algorithm, 48);

SIZE(kiln_softmax_backward_args, 56, 8);
OFFSET(kiln_softmax_backward_args, struct_size, 0);
OFFSET(kiln_softmax_backward_args, y, 8);
OFFSET(kiln_softmax_backward_args, dy, 16);
OFFSET(kiln_softmax_backward_args, dx, 24);
OFFSET(kiln_softmax_backward_args, scale, 32);
OFFSET(kiln_softmax_backward_args, max_sms, 36);
OFFSET(kiln_softmax_backward_args, flags, 40);
OFFSET(kiln_softmax_backward_args, algorithm, 48);

SIZE(kiln_attention_forward_args, 336, 8);
OFFSET(kiln_attention_forward_args, struct_size, 0);
OFFSET(kiln_attention_forward_args, q, 8);
OFFSET(kiln_attention_forward_args, k, 16);
OFFSET(kiln_attention_forward_args, v, 24);
OFFSET(kiln_attention_forward_args, o, 32);
OFFSET(kiln_attention_forward_args, softmax_lse, 40);
OFFSET(kiln_attention_forward_args, q2, 48);
OFFSET(kiln_attention_forward_args, k2, 56);
OFFSET(kiln_attention_forward_args, q_descale, 64);
OFFSET(kiln_attention_forward_args, k_descale, 72);
OFFSET(kiln_attention_forward_args, v_descale, 80);
OFFSET(kiln_attention_forward_args, softmax_scale, 88);
OFFSET(kiln_attention_forward_args, softcap, 92);
OFFSET(kiln_attention_forward_args, bias, 96);
OFFSET(kiln_attention_forward_args, alibi_slopes, 104);
OFFSET(kiln_attention_forward_args, sinks, 112);
OFFSET(kiln_attention_forward_args, mask, 120);
OFFSET(kiln_attention_forward_args, num_splits, 124);
OFFSET(kiln_attention_forward_args, window_left, 128);
OFFSET(kiln_attention_forward_args, window_right, 136);
OFFSET(kiln_attention_forward_args, attn_mask, 144);
OFFSET(kiln_attention_forward_args, q_start, 152);
OFFSET(kiln_attention_forward_args, q_step, 160);
OFFSET(kiln_attention_forward_args, k_start, 168);
OFFSET(kiln_attention_forward_args, k_step, 176);
OFFSET(kiln_attention_forward_args, q_starts, 184);
OFFSET(kiln_attention_forward_args, k_starts, 192);
OFFSET(kiln_attention_forward_args, cu_seqlens_q, 200);
OFFSET(kiln_attention_forward_args, cu_seqlens_k, 208);
OFFSET(kiln_attention_forward_args, max_seqlen_q, 216);
OFFSET(kiln_attention_forward_args, max_seqlen_k, 224);
OFFSET(kiln_attention_forward_args, seqused_q, 232);
OFFSET(kiln_attention_forward_args, seqused_k, 240);
OFFSET(kiln_attention_forward_args, leftpad_k, 248);
OFFSET(kiln_attention_forward_args, block_table, 256);
OFFSET(kiln_attention_forward_args, cache_batch_idx, 264);
OFFSET(kiln_attention_forward_args, dropout_p, 272);
OFFSET(kiln_attention_forward_args, max_sms, 276);
OFFSET(kiln_attention_forward_args, dropout_seed, 280);
OFFSET(kiln_attention_forward_args, dropout_offset, 288);
OFFSET(kiln_attention_forward_args, dropout_seed_ptr, 296);
OFFSET(kiln_attention_forward_args, dropout_offset_ptr, 304);
OFFSET(kiln_attention_forward_args, flags, 312);
OFFSET(kiln_attention_forward_args, device_status, 320);
OFFSET(kiln_attention_forward_args, algorithm, 328);

SIZE(kiln_attention_backward_args, 112, 8);
OFFSET(kiln_attention_backward_args, struct_size, 0);
OFFSET(kiln_attention_backward_args, forward, 8);
OFFSET(kiln_attention_backward_args, dout, 16);
OFFSET(kiln_attention_backward_args, dlse, 24);
OFFSET(kiln_attention_backward_args, dq, 32);
OFFSET(kiln_attention_backward_args, dk, 40);
OFFSET(kiln_attention_backward_args, dv, 48);
OFFSET(kiln_attention_backward_args, dq2, 56);
OFFSET(kiln_attention_backward_args, dk2, 64);
OFFSET(kiln_attention_backward_args, dbias, 72);
OFFSET(kiln_attention_backward_args, dsinks, 80);
OFFSET(kiln_attention_backward_args, flags, 88);
OFFSET(kiln_attention_backward_args, max_sms, 96);
OFFSET(kiln_attention_backward_args, reserved, 100);
OFFSET(kiln_attention_backward_args, algorithm, 104);

SIZE(kiln_attention_merge_args, 72, 8);
OFFSET(kiln_attention_merge_args, struct_size, 0);
OFFSET(kiln_attention_merge_args, o_parts, 8);
OFFSET(kiln_attention_merge_args, lse_parts, 16);
OFFSET(kiln_attention_merge_args, o, 24);
OFFSET(kiln_attention_merge_args, softmax_lse, 32);
OFFSET(kiln_attention_merge_args, sinks, 40);
OFFSET(kiln_attention_merge_args, num_parts, 48);
OFFSET(kiln_attention_merge_args, max_sms, 52);
OFFSET(kiln_attention_merge_args, flags, 56);
OFFSET(kiln_attention_merge_args, algorithm, 64);

VALUE(KILN_MAX_RANK, 8);
VALUE(KILN_UNBOUNDED, INT64_MAX);

/* Everything happens above. */
int main(void)
{
    return 0;
}
