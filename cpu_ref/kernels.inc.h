/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kernels.inc.h: every kernel body, compiled once per instruction set by kernels_<isa>.c, and the ordered list of them.
 *
 * To add a kernel: include its body below and give it a row in the list; rows of one operation stand in order of
 * preference, the most general last. A body defines `static const kiln_cpu_kernel <name>` and names itself with
 * KILN_CPU_NAME.
 */
#include "attention_backward.inc.h"
#include "attention_forward_flash1.inc.h"
#include "attention_forward_flash2.inc.h"
#include "attention_forward_naive.inc.h"
#include "attention_forward_splitkv.inc.h"
#include "attention_forward_tiled.inc.h"
#include "attention_merge.inc.h"
#include "softmax_backward.inc.h"
#include "softmax_forward_online.inc.h"
#include "softmax_forward_three_pass.inc.h"

static const kiln_cpu_kernel *const kernels[] = {
    &softmax_forward_online,
    &softmax_forward_three_pass,
    &softmax_backward,
    &attention_forward_splitkv,
    &attention_forward_flash2,
    &attention_forward_flash1,
    &attention_forward_tiled,
    &attention_forward_naive,
    &attention_backward,
    &attention_merge,
    NULL,
};
