/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ladder.c: see ladder.h. */
#include <string.h>

#include "../common/convert.h"
#include "ladder.h"

static double tensor_bytes(const problem_data *data, problem_slot slot)
{
    const problem_tensor *t = &data->tensor[slot];
    return t->present ? (double)problem_count(t) * (double)kiln_type_size(t->type) : 0;
}

static ladder_cost softmax_cost(const problem_data *data, const char *algorithm)
{
    double x = tensor_bytes(data, SLOT_X), y = tensor_bytes(data, SLOT_Y), dy = tensor_bytes(data, SLOT_DY);
    if (data->spec.op == KILN_OP_SOFTMAX_BACKWARD)
        return (ladder_cost){0, y + dy + tensor_bytes(data, SLOT_DX), y + dy + tensor_bytes(data, SLOT_DX)};
    /* maximum, sum, write; or maximum and sum together, write; unknown rungs: once */
    double reads = strcmp(algorithm, "three_pass") == 0 ? 3 : strcmp(algorithm, "online") == 0 ? 2 : 1;
    return (ladder_cost){0, reads * x + y, x + y};
}

static ladder_cost attention_cost(const problem_data *data, const char *algorithm, int64_t tile, int32_t score_bytes)
{
    const problem_spec *s = &data->spec;
    problem_extent extent = problem_attention_extent(data);
    bool causal = (s->mask == KILN_MASK_CAUSAL_TOP_LEFT || s->mask == KILN_MASK_CAUSAL_BOTTOM_RIGHT) &&
                  extent.q_rows == extent.k_rows;
    bool dense = data->tensor[SLOT_Q].ndim == 4 && data->tensor[SLOT_K].ndim == 4 && s->page_size == 0 &&
                 !data->tensor[SLOT_SEQUSED_Q].present && !data->tensor[SLOT_SEQUSED_K].present;
    double heads = (double)s->heads, heads_k = (double)s->heads_k, pairs = extent.pairs * (causal ? 0.5 : 1);
    double e = (double)kiln_type_size(s->type), columns = (double)(s->d + s->d2 + s->d_v);
    double once = (heads * (double)extent.q_rows + heads_k * (double)extent.k_rows) * columns * e;
    ladder_cost cost = {2 * heads * pairs * columns, once, 0};
    if (s->op == KILN_OP_ATTENTION_BACKWARD) {
        cost.flops *= 2.5;
        cost.bytes = 2 * once; /* q, k, v, o, do in; dq, dk, dv out */
        return cost;
    }
    kiln_ledger ledger = {.heads = s->batch * s->heads,
                          .heads_k = s->batch * s->heads_k,
                          .seqlen_q = s->seqlen_q,
                          .seqlen_k = s->seqlen_k,
                          .d = s->d + s->d2,
                          .d_v = s->d_v,
                          .element_bytes = (int32_t)e,
                          .score_bytes = score_bytes,
                          .output_bytes = 4,
                          .block_q = s->seqlen_q > 0 ? s->seqlen_q : 1,
                          .block_k = tile > 0          ? tile
                                     : s->seqlen_k > 0 ? s->seqlen_k
                                                       : 1,
                          .causal = causal};
    for (int rung = KILN_RUNG_NAIVE; dense && rung <= KILN_RUNG_FLASH1; rung++)
        if (strcmp(algorithm, kiln_rung_name((kiln_rung)rung)) == 0)
            cost.bytes = kiln_ledger_bytes(&ledger, (kiln_rung)rung);
    return cost;
}

ladder_cost ladder_cost_of(const problem_data *data, const char *algorithm, int64_t tile, int32_t score_bytes)
{
    switch (data->spec.op) {
    case KILN_OP_SOFTMAX_FORWARD:
    case KILN_OP_SOFTMAX_BACKWARD: return softmax_cost(data, algorithm);
    case KILN_OP_ATTENTION_FORWARD:
    case KILN_OP_ATTENTION_BACKWARD: return attention_cost(data, algorithm, tile, score_bytes);
    default: break;
    }
    return (ladder_cost){0,
                         tensor_bytes(data, SLOT_O_PARTS) + tensor_bytes(data, SLOT_LSE_PARTS) +
                             tensor_bytes(data, SLOT_O) + tensor_bytes(data, SLOT_LSE),
                         0};
}
