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

static bool is_dense(const problem_data *data)
{
    return data->tensor[SLOT_Q].ndim == 4 && data->tensor[SLOT_K].ndim == 4 && data->spec.page_size == 0 &&
           !data->tensor[SLOT_SEQUSED_Q].present && !data->tensor[SLOT_SEQUSED_K].present;
}

static bool is_causal(const problem_data *data)
{
    const problem_spec *s = &data->spec;
    problem_extent extent = problem_attention_extent(data);
    return (s->mask == KILN_MASK_CAUSAL_TOP_LEFT || s->mask == KILN_MASK_CAUSAL_BOTTOM_RIGHT) &&
           extent.q_rows == extent.k_rows;
}

/* A tile of 0 rows is all of them. S, P and the o that flash1 revisits are fp32 on every backend. */
static kiln_ledger ledger_of(const problem_data *data, int64_t tile_q, int64_t tile_k)
{
    const problem_spec *s = &data->spec;
    int64_t rows = s->seqlen_q > 0 ? s->seqlen_q : 1, keys = s->seqlen_k > 0 ? s->seqlen_k : 1;
    return (kiln_ledger){.heads = s->batch * s->heads,
                         .heads_k = s->batch * s->heads_k,
                         .seqlen_q = s->seqlen_q,
                         .seqlen_k = s->seqlen_k,
                         .d = s->d + s->d2,
                         .d_v = s->d_v,
                         .element_bytes = (int32_t)kiln_type_size(s->type),
                         .score_bytes = 4,
                         .output_bytes = 4,
                         .block_q = tile_q > 0 ? tile_q : rows,
                         .block_k = tile_k > 0 ? tile_k : keys,
                         .causal = is_causal(data)};
}

/* The rung whose formula an algorithm follows; KILN_RUNG_COUNT: none. */
static kiln_rung formula_of(const char *algorithm)
{
    static const struct {
        const char *algorithm;
        kiln_rung rung;
    } formulas[] = {{"naive", KILN_RUNG_NAIVE},   {"tiled", KILN_RUNG_TILED},   {"tiled_unpadded", KILN_RUNG_TILED},
                    {"flash1", KILN_RUNG_FLASH1}, {"flash2", KILN_RUNG_FLASH2}, {"mma", KILN_RUNG_FLASH2},
                    {"wgmma", KILN_RUNG_FLASH2},  {"mfma", KILN_RUNG_FLASH2}};
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        if (strcmp(algorithm, formulas[i].algorithm) == 0)
            return formulas[i].rung;
    return KILN_RUNG_COUNT;
}

static ladder_cost attention_cost(const problem_data *data, const char *algorithm, int64_t tile)
{
    const problem_spec *s = &data->spec;
    problem_extent extent = problem_attention_extent(data);
    bool causal = is_causal(data);
    double heads = (double)s->heads, heads_k = (double)s->heads_k, pairs = extent.pairs * (causal ? 0.5 : 1);
    double e = (double)kiln_type_size(s->type), columns = (double)(s->d + s->d2 + s->d_v);
    double once = (heads * (double)extent.q_rows + heads_k * (double)extent.k_rows) * columns * e;
    ladder_cost cost = {2 * heads * pairs * columns, once, 0};
    if (s->op == KILN_OP_ATTENTION_BACKWARD) {
        cost.flops *= 2.5;
        cost.bytes = 2 * once; /* q, k, v, o, do in; dq, dk, dv out */
        return cost;
    }
    kiln_rung rung = formula_of(algorithm);
    if (rung <= KILN_RUNG_FLASH1 && is_dense(data)) {
        kiln_ledger ledger = ledger_of(data, 0, tile);
        cost.bytes = kiln_ledger_bytes(&ledger, rung);
    }
    return cost;
}

ladder_cost ladder_cost_of(const problem_data *data, const char *algorithm, int64_t tile)
{
    switch (data->spec.op) {
    case KILN_OP_SOFTMAX_FORWARD:
    case KILN_OP_SOFTMAX_BACKWARD: return softmax_cost(data, algorithm);
    case KILN_OP_ATTENTION_FORWARD:
    case KILN_OP_ATTENTION_BACKWARD: return attention_cost(data, algorithm, tile);
    default: break;
    }
    return (ladder_cost){0,
                         tensor_bytes(data, SLOT_O_PARTS) + tensor_bytes(data, SLOT_LSE_PARTS) +
                             tensor_bytes(data, SLOT_O) + tensor_bytes(data, SLOT_LSE),
                         0};
}

ladder_bytes ladder_bytes_of(const problem_data *data, const char *algorithm, int64_t tile_q, int64_t tile_k)
{
    ladder_bytes bytes = {.rung = formula_of(algorithm), .lse = tensor_bytes(data, SLOT_LSE)};
    if (data->spec.op != KILN_OP_ATTENTION_FORWARD || !is_dense(data))
        bytes.rung = KILN_RUNG_COUNT;
    bytes.distinct = bytes.rung <= KILN_RUNG_TILED;
    kiln_ledger ledger = ledger_of(data, tile_q, tile_k);
    bytes.matrices = bytes.rung == KILN_RUNG_COUNT ? ladder_cost_of(data, algorithm, tile_k).bytes
                                                   : kiln_ledger_bytes(&ledger, bytes.rung);
    return bytes;
}
