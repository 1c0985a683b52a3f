/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * views.h: the tensors of each argument struct of gpu_kernel.h under the names that reports and counters use. A new view in
 * a struct needs a line here; without one its accesses are faults ("outside tensor (no argument)"). A kernel with an argument
 * struct of its own declares simt_tensors_of() for it beside the struct.
 */
#ifndef KILN_BACKENDS_SIMT_VIEWS_H
#define KILN_BACKENDS_SIMT_VIEWS_H

#include "machine.h"

#define SIMT_VIEW(field)       simt_tensor(#field, &a.field)
#define SIMT_VIEW_OF(p, field) simt_tensor(#field, &(p).field)

inline void simt_tensors_of(const gpu_softmax_args &a)
{
    SIMT_VIEW(x), SIMT_VIEW(y), SIMT_VIEW(lse), SIMT_VIEW(dy), SIMT_VIEW(dx), SIMT_VIEW(partial);
    SIMT_VIEW(forgotten);
}

inline void simt_tensors_of(const kiln_attention_problem &a)
{
    SIMT_VIEW(q), SIMT_VIEW(k), SIMT_VIEW(v), SIMT_VIEW(o), SIMT_VIEW(q2), SIMT_VIEW(k2), SIMT_VIEW(lse);
    SIMT_VIEW(q_descale), SIMT_VIEW(k_descale), SIMT_VIEW(v_descale);
    SIMT_VIEW(bias), SIMT_VIEW(attn_mask), SIMT_VIEW(alibi), SIMT_VIEW(sinks);
    SIMT_VIEW(q_starts), SIMT_VIEW(k_starts), SIMT_VIEW(cu_seqlens_q), SIMT_VIEW(cu_seqlens_k);
    SIMT_VIEW(seqused_q), SIMT_VIEW(seqused_k), SIMT_VIEW(leftpad_k), SIMT_VIEW(block_table),
        SIMT_VIEW(cache_batch_idx);
}

inline void simt_tensors_of(const gpu_attention_args &a)
{
    simt_tensors_of(a.p);
    SIMT_VIEW(scores), SIMT_VIEW(weights), SIMT_VIEW(part_o), SIMT_VIEW(part_lse);
}

inline void simt_tensors_of(const gpu_backward_args &a)
{
    simt_tensors_of(a.p.forward);
    SIMT_VIEW_OF(a.p, dout), SIMT_VIEW_OF(a.p, dlse), SIMT_VIEW_OF(a.p, dq), SIMT_VIEW_OF(a.p, dk),
        SIMT_VIEW_OF(a.p, dv);
    SIMT_VIEW_OF(a.p, dq2), SIMT_VIEW_OF(a.p, dk2), SIMT_VIEW_OF(a.p, dbias), SIMT_VIEW_OF(a.p, dsinks);
    SIMT_VIEW(delta);
}

inline void simt_tensors_of(const gpu_merge_args &a)
{
    SIMT_VIEW(o), SIMT_VIEW(lse), SIMT_VIEW(sinks), SIMT_VIEW(weight), SIMT_VIEW(sum);
    for (int i = 0; i < GPU_MERGE_PARTS; i++)
        SIMT_VIEW(o_part[i]), SIMT_VIEW(lse_part[i]);
}

#undef SIMT_VIEW
#undef SIMT_VIEW_OF
#endif
