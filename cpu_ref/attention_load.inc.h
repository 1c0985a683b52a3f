/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_load.inc.h: rows of q, k, v as fp32, from any type, stride and page; rows of o back. The only place that
 * knows how a row is found in memory.
 *
 * Contract: reads exactly the elements of the rows asked for, writes exactly those of the row stored.
 * Cost: one pass; keys are used in place when they are fp32, dense rows that do not share cache sets.
 */
#ifndef KILN_CPU_REF_ATTENTION_LOAD_INC_H
#define KILN_CPU_REF_ATTENTION_LOAD_INC_H

#include <float.h>
#include <math.h>

#include "rows.inc.h"

/* Sums of weights times V can leave fp32's range where their mean does not. Such elements of o are computed once more, from
 * V times VALUE_SHRINK: 2^31 keys then stay within range, and what that flushes is nothing to a sum past 2^128. */
#define VALUE_SHRINK 0x1p-64f

/* `columns` elements of unit stride as fp32. */
VF_INLINE void load_row_type(const char *data, const int32_t type, int64_t columns, float *out)
{
    const int64_t size = type == KILN_FLOAT32 ? 4 : 2;
    int64_t c = 0;
    for (; c + VF_LANES <= columns; c += VF_LANES)
        vf_store(out + c, vf_load_type(data + c * size, type));
    if (c < columns)
        vf_store_tail(out + c, vf_load_type_tail(data + c * size, type, (int)(columns - c)), (int)(columns - c));
}

/* `columns` elements at `data`, `stride` elements apart, as fp32. */
static void load_row(const char *data, int32_t type, int64_t stride, int64_t columns, float *out)
{
    if (stride == 1) {
        switch (type) {
        case KILN_FLOAT32: memcpy(out, data, sizeof(float) * (size_t)columns); break;
        case KILN_FLOAT16: load_row_type(data, KILN_FLOAT16, columns, out); break;
        default: load_row_type(data, KILN_BFLOAT16, columns, out); break;
        }
        return;
    }
    for (int64_t c = 0; c < columns; c += VF_LANES) {
        int n = columns - c < VF_LANES ? (int)(columns - c) : VF_LANES;
        uint32_t gathered[VF_LANES];
        rows_gather(gathered, data + c * stride * kiln_type_size(type), type, stride, n);
        vf_store_tail(out + c, vf_load_type_tail(gathered, type, n), n);
    }
}

static void store_row(char *data, int32_t type, int64_t stride, int64_t columns, const float *in)
{
    const int64_t size = kiln_type_size(type);
    for (int64_t c = 0; c < columns; c += VF_LANES) {
        int n = columns - c < VF_LANES ? (int)(columns - c) : VF_LANES;
        vf x = vf_load_tail(in + c, n);
        if (stride == 1) {
            vf_store_type_tail(data + c * size, type, x, n);
        } else {
            uint32_t scattered[VF_LANES];
            vf_store_type(scattered, type, x);
            rows_scatter(data + c * stride * size, scattered, type, stride, n);
        }
    }
}

static void shrink_row(float *row, int64_t columns)
{
    for (int64_t c = 0; c < columns; c++)
        row[c] *= VALUE_SHRINK;
}

/* What a second computation, with shrunk V, has for a row of o: goes where the first left something that is not finite.
 * Without dropout's factor it is a mean of V, so that rounding must not carry it past the largest number of V's type. */
static void store_row_grown(const kiln_attention_problem *p, char *row, const float *in)
{
    const float largest = p->v.type == KILN_BFLOAT16 ? 0x1.fep127f : FLT_MAX; /* fp16's is no limit to fp32 */
    const float most = p->dropout_threshold < 256 ? INFINITY : largest * VALUE_SHRINK;
    for (int64_t c = 0; c < p->d_v; c++) {
        if (isfinite(kiln_load_double(row, p->o.type, c * p->o.stride[3])))
            continue;
        float x = isfinite(in[c]) && fabsf(in[c]) > most ? copysignf(most, in[c]) : in[c];
        kiln_store_double(row, p->o.type, c * p->o.stride[3], x / VALUE_SHRINK);
    }
}

/* Where element (i0, i1, i2, 0) of a view lies. */
static char *view_row(const kiln_view *view, int64_t i0, int64_t i1, int64_t i2)
{
    return view->data + kiln_view_offset(view, i0, i1, i2, 0) * kiln_type_size(view->type);
}

/* Key j of a sequence in k, v or k2. */
static const char *key_row(const kiln_attention_problem *p, const kiln_view *view, const kiln_sequence *seq,
                           int64_t head_k, int64_t j)
{
    int64_t row = seq->k_row + j;
    if (p->page_size == 0)
        return view_row(view, seq->k_batch, head_k, row);
    const kiln_view *table = &p->block_table;
    int64_t entry = kiln_view_offset(table, seq->k_batch, row / p->page_size, 0, 0);
    return view_row(view, ((const int32_t *)table->data)[entry], head_k, row % p->page_size);
}

/* Can a block be read where it lies? Metadata only. Longer rows or gaps between them fall into few cache sets. */
static bool rows_in_place(const kiln_attention_problem *p, const kiln_view *view, int64_t columns)
{
    return view->type == KILN_FLOAT32 && p->page_size == 0 && view->stride[2] == columns && columns <= 128 &&
           (view->stride[3] == 1 || columns == 1);
}

/* Floats from one row of a copied block to the next: whole cache lines, an odd number of them, so that sets are spread. */
static int64_t copied_stride(int64_t columns)
{
    return ((columns + 15) / 16 | 1) * 16;
}

/* fp32 rows of one block: row r is key `first` + r, at data + r·stride. */
typedef struct key_rows {
    const float *data;
    int64_t stride;
} key_rows;

/* Rows [begin, end) of the block of keys that starts at `first`. `copy` holds `end` rows; `second` (may be absent) is
 * appended to each row. */
static key_rows load_keys(const kiln_attention_problem *p, const kiln_view *view, int64_t columns,
                          const kiln_view *second, int64_t second_columns, const kiln_sequence *seq, int64_t head_k,
                          int64_t first, int64_t begin, int64_t end, float *copy)
{
    if (second_columns == 0 && rows_in_place(p, view, columns))
        return (key_rows){(const float *)(const void *)key_row(p, view, seq, head_k, first), view->stride[2]};
    key_rows rows = {copy, copied_stride(columns + second_columns)};
    for (int64_t r = begin; r < end; r++) {
        float *out = copy + r * rows.stride;
        load_row(key_row(p, view, seq, head_k, first + r), view->type, view->stride[3], columns, out);
        if (second_columns > 0)
            load_row(key_row(p, second, seq, head_k, first + r), second->type, second->stride[3], second_columns,
                     out + columns);
    }
    return rows;
}

#endif
