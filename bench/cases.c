/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cases.c: the table of problems that must come out right on every backend and every algorithm that takes them.
 *
 * "$" stands for each of fp32, fp16, bf16. Sizes sit around the tiles of the kernels (16, 32, 64, 96, 128 and one more or
 * less), heads and lengths are odd where that is allowed, and every field of the argument structs is moved at least once.
 * Small on purpose: all of it takes well under a minute with the serial oracle.
 */
#include <stdio.h>
#include <string.h>

#include "cases.h"

static const char *const patterns[] = {
    /* attention_forward: plain, then sizes around tiles */
    "b1h1q1k1d1:$",
    "b2h3q17k33d40:$",
    "b1h2q64k64d64:$",
    "b1h2q65k127d64:$",
    "b1h1q96k97d128:$",
    "b1h2q100k260d80:$",
    "b1h1q129k193d128:$:causal_br",
    "b1h1q33k300d256:$",
    "b1h1q20k70d320v96:$",
    "b1h1q9k40d576v512:$",
    "b1h2q31k63d96v17:$",
    "b1h2q31k63d17v96:$",
    "b1h1q5k500d3:$",
    "b5h1q1k1d8:$",
    "b3h1q7k1d64:$",
    /* empty */
    "b0h2q4k4d8:$",
    "b2h2q0k4d8:$",
    "b2h2q4k0d8:$",
    "b1h2q4k0d8:$:sinks",
    /* grouped heads */
    "b2h6k2q19k70d64:$",
    "b1h8k1q40k90d72:$:causal_br",
    "b1h28k4q3k50d64:$",
    /* masks: both alignments, more queries than keys and fewer */
    "b1h2q70k130d64:$:causal_tl",
    "b1h2q70k130d64:$:causal_br",
    "b1h2q130k70d64:$:causal_tl",
    "b1h2q130k70d64:$:causal_br",
    "b1h2q130k130d64:$:window_br=16,0",
    "b1h2q90k140d64:$:window_tl=10,5",
    "b1h2q90k140d64:$:window_br=inf,-3",
    "b1h2q90k140d64:$:window_br=-4,20",
    "b1h1q60k60d32:$:window_tl=0,0",
    "b1h1q60k60d32:$:window_br=inf,inf",
    "b1h1q40k60d32:$:window_br=-5,-9",
    /* positions: shards of a ring, striped and shifted */
    "b1h2q40k64d64:$:causal_tl:q_start=64",
    "b1h2q40k64d64:$:causal_tl:k_start=30",
    "b1h2q40k64d64:$:causal_tl:q_start=1:q_step=4:k_step=4:k_start=2",
    "b3h2q40k64d64:$:causal_br:q_starts=0,-20,7:k_starts=random",
    "b1h2q40k64d64:$:causal_tl:q_start=-100",
    /* attn_mask */
    "b2h2q40k75d64:$:attn_mask=0.5",
    "b2h2q40k75d64:$:attn_mask=0.02",
    "b2h4q40k75d64:$:attn_mask=0.7:attn_mask_axes=q",
    "b2h4q40k75d64:$:attn_mask=0.7:attn_mask_axes=b:mask_len=30",
    "b2h4q16k75d64:$:attn_mask=tree:attn_mask_axes=q",
    "b1h2q50k50d64:$:attn_mask=diagonal:attn_mask_axes=q",
    "b1h2q50k70d64:$:attn_mask=0.6:causal_br",
    "b1h2q50k70d64:$:attn_mask=0",
    /* bias, alibi, softcap, sinks, scale */
    "b2h2q40k75d64:$:bias=bhqk",
    "b2h2q40k75d64:$:bias=hqk",
    "b2h2q40k75d64:$:bias=k",
    "b2h2q40k75d64:$:bias=1",
    "b2h2q40k75d64:$:bias=bq:bias.type=$",
    "b2h2q40k75d64:$:bias=hqk:data=outlier",
    "b1h2q40k75d64:$:bias=qk:bias.strides=10000,10000,83,1",
    "b2h4q40k75d64:$:alibi=h",
    "b2h4q40k75d64:$:alibi=bh:causal_br",
    "b1h4q40k75d64:$:alibi=h:q_start=11:k_step=3",
    "b2h2q40k75d64:$:softcap=5",
    "b2h2q40k75d64:$:softcap=0.5:causal_br:data=huge",
    "b2h2q40k75d64:$:sinks",
    "b2h2q40k75d64:$:sinks:sinks.type=$:window_br=5,-1",
    "b2h2q40k75d64:$:scale=0.7",
    "b2h2q40k75d64:$:scale=-0.3",
    "b2h2q40k75d64:$:flags=scale_explicit",
    "b2h4k2q40k75d64:$:causal_br:bias=hqk:alibi=h:softcap=20:sinks:attn_mask=0.8:q_start=3",
    /* second score operand */
    "b1h4k1q30k50d64v64x32:$",
    "b1h4k1q30k50d128v128x64:$:causal_br",
    /* memory */
    "b2h4k2q40k75d64:$:layout=bshd",
    "b2h4k2q40k75d64:$:layout=sbhd",
    "b2h4k2q75k75d64:$:layout=qkv:causal_br",
    "b2h4k2q40k75d64:$:layout=kv",
    "b2h4k2q40k75d64:$:row_pad=3",
    "b2h2q40k75d64:$:inner=2",
    "b2h2q40k75d64:$:inner=3:row_pad=5:layout=bshd",
    "b2h2q40k75d64:$:offset=7",
    "b1h4k1q40k75d80v64:$:alias_kv",
    "b2h2q40k75d64:$:k.strides=0,4800,64,1:v.strides=0,4800,64,1",
    "b2h2q40k75d64:$:q.strides=5120,2560,-64,1",
    "b1h2q40k75d64:$:q.strides=-7,2560,64,1",
    "b2h2q40k75d64:$:out=fp32",
    "b2h2q40k75d64:$:lse=off",
    /* values */
    "b1h2q40k75d64:$:data=uniform",
    "b1h2q40k75d64:$:data=outlier",
    "b1h2q40k75d64:$:data=negative",
    "b1h2q40k75d64:$:data=huge",
    "b1h2q40k75d64:$:data=tiny",
    "b1h2q40k75d64:$:data=zeros",
    "b1h2q40k75d64:$:data=ones",
    "b1h2q40k75d64:$:data=index:causal_br",
    "b1h1q4k3000d64:$:data=needle",
    "b1h2q40k75d64:$:data=nan:causal_br",
    "b1h2q40k75d64:$:data=inf:causal_br",
    "b1h2q40k75d64:$:data=nan_hidden:window_br=10,0",
    "b1h2q40k75d64:$:data=nan_hidden:attn_mask=0.05",
    "b1h2q70k30d64:$:data=inf_hidden:causal_tl:attn_mask=0.1",
    /* packed, shortened, paged */
    "b3h2q50k70d64:$:lens_q=50,1,17:lens_k=70,3,64",
    "b3h4k2q50k70d64:$:lens_q=0,50,9:lens_k=30,0,70:causal_br",
    "b4h2q50k70d64:$:lens_q=random:lens_k=random:causal_tl:pack_gap=2",
    "b4h2q50k70d64:$:lens_q=random:window_br=8,2",
    "b4h2q50k70d64:$:lens_k=random",
    "b4h2q50k70d64:$:lens_q=random:lens_k=random:layout=bshd:alibi=h:softcap=9:sinks",
    "b3h2q50k70d64:$:seqused_q=random:seqused_k=random:causal_br",
    "b3h2q50k70d64:$:seqused_k=0,70,33:leftpad_k=random:causal_br",
    "b3h2q50k70d64:$:cache_batch_idx=random:cache_batch=5",
    "b2h4k2q1k100d64:$:page=16",
    "b3h4k2q7k100d64:$:page=16:seqused_k=random:causal_br",
    "b3h2q5k100d64:$:page=1:seqused_k=random:table=ordered",
    "b2h2q33k130d128:$:page=48:seqused_k=130,77:causal_br:attn_mask=0.8",
    "b2h2q1k300d64:$:page=32:leftpad_k=random:window_br=64,0:layout=bshd",
    /* few queries */
    "b1h8k1q1k700d128:$",
    "b2h8k2q3k600d64:$:causal_br",
    "b1h4k1q1k900d64:$:num_splits=3",
    "b1h4k1q2k900d64:$:flags=batch_invariant",
    /* dropout */
    "b2h2q40k75d64:$:dropout=0.3:dropout_seed=12345678901",
    "b2h2q40k75d64:$:dropout=0.9:dropout_offset=5000000000:causal_br:dropout_ptr",
    /* attention_backward */
    "attention_backward:b1h1q1k1d1:$",
    "attention_backward:b2h2q33k65d40:$",
    "attention_backward:b1h4k2q70k70d64:$:causal_br:dlse:flags=deterministic",
    "attention_backward:b1h2q40k75d64v32:$:window_br=9,2:softcap=6:alibi=h:grad=fp32",
    "attention_backward:b2h2q40k75d64:$:bias=hqk:dbias:sinks:dsinks:attn_mask=0.6",
    "attention_backward:b2h2q40k75d64:$:flags=accumulate_dq+accumulate_dk+accumulate_dv",
    "attention_backward:b3h2q50k70d64:$:lens_q=50,0,17:lens_k=70,3,0:causal_br",
    "attention_backward:b1h2q40k75d64:$:dropout=0.25:layout=bshd",
    "attention_backward:b1h2k1q30k50d64x32:$",
    /* attention_merge */
    "attention_merge:b1h1q1d1:$:parts=1",
    "attention_merge:b2h3q17d40:$",
    "attention_merge:b1h2q33d128:$:parts=7:layout=bshd",
    "attention_merge:b1h2q33d64:fp32:parts=3:out=$",
    "attention_merge:b1h4q9d64:$:parts=4:sinks:lse=off",
    /* softmax_forward */
    "softmax_forward:n1:$",
    "softmax_forward:n0:$",
    "softmax_forward:r0n5:$",
    "softmax_forward:r7n1000:$",
    "softmax_forward:r2x3x5n63:$:row_pad=2",
    "softmax_forward:r5n4097:$:flags=log",
    "softmax_forward:r33n17:$:scale=0.25:inner=2",
    "softmax_forward:r9n300:$:out=fp32:offset=3",
    "softmax_forward:r9n300:$:out=bf16:lse=off",
    "softmax_forward:r9n300:$:data=huge",
    "softmax_forward:r9n300:$:data=negative",
    "softmax_forward:r9n300:$:data=outlier:flags=log",
    "softmax_forward:r9n300:$:data=inf",
    "softmax_forward:r9n300:$:data=nan",
    "softmax_forward:r2n65536:$:data=zeros",
    "softmax_forward:r2n70000:fp32:data=needle",
    "softmax_forward:r1x1x1x4x1x1x2n65:$:x.strides=1,-3,9,260,5,5,130,2:flags=batch_invariant",
    /* softmax_backward */
    "softmax_backward:n1:$",
    "softmax_backward:r7n1000:$",
    "softmax_backward:r6n513:$:flags=log",
    "softmax_backward:r3x4n65:$:grad=fp32:scale=0.5:row_pad=1",
};
static const char *const types[] = {"fp32", "fp16", "bf16"};
enum { PATTERNS = sizeof patterns / sizeof *patterns, TYPES = 3 };

/* Cases are numbered pattern by pattern; one without "$" counts once. */
static const char *pattern_of(size_t index, size_t *type)
{
    for (size_t i = 0; i < PATTERNS; i++) {
        size_t count = strchr(patterns[i], '$') != NULL ? TYPES : 1;
        if (index < count) {
            *type = index;
            return patterns[i];
        }
        index -= count;
    }
    return NULL;
}

size_t bench_case_count(void)
{
    size_t count = 0;
    for (size_t i = 0; i < PATTERNS; i++)
        count += strchr(patterns[i], '$') != NULL ? TYPES : 1;
    return count;
}

const char *bench_case_text(size_t index)
{
    static char text[512];
    size_t type, used = 0;
    const char *pattern = pattern_of(index, &type);
    for (; pattern != NULL && *pattern != '\0' && used + 8 < sizeof text; pattern++)
        used += (size_t)snprintf(text + used, sizeof text - used, *pattern == '$' ? "%s" : "%.1s",
                                 *pattern == '$' ? types[type] : pattern);
    text[used] = '\0';
    return text;
}

bool bench_case(size_t index, problem_spec *spec)
{
    problem_error error;
    return problem_parse(bench_case_text(index), KILN_OP_ATTENTION_FORWARD, spec, &error);
}
