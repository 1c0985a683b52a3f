/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * validate_lengths.c: the contents of cu_seqlens, seqused, leftpad_k, block_table and cache_batch_idx, where the host can
 * read them. After it kernels may trust them. Cost: one pass over each, O(batch + pages in use).
 */
#include "validate.h"

#include <inttypes.h>

static int64_t at(const kiln_view *view, int64_t b)
{
    return ((const int32_t *)view->data)[b * view->stride[0]];
}

/* Packed: ascending from >= 0, within the tensor, no sequence longer than promised. */
static kiln_status check_cumulative(const kiln_view *cu, const char *name, int64_t batch, int64_t total,
                                    int64_t longest, const char *longest_name)
{
    if (!kiln_view_present(cu))
        return KILN_OK;
    if (at(cu, 0) < 0)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s[0] is %" PRId64 "; it must be 0 or more", name, at(cu, 0));
    for (int64_t b = 0; b < batch; b++) {
        int64_t begin = at(cu, b), end = at(cu, b + 1);
        if (end < begin)
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "%s[%" PRId64 "] is %" PRId64 ", less than the entry before it, %" PRId64
                             "; it must ascend",
                             name, b + 1, end, begin);
        if (end > total)
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "%s[%" PRId64 "] is %" PRId64 ", but the tensor has only %" PRId64 " rows", name, b + 1,
                             end, total);
        if (end - begin > longest)
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "sequence %" PRId64 " of %s has %" PRId64 " rows; %s promises at most %" PRId64, b, name,
                             end - begin, longest_name, longest);
    }
    return KILN_OK;
}

static kiln_status check_entry(const kiln_view *view, const char *name, int64_t b, int64_t low, int64_t high,
                               const char *limit)
{
    if (kiln_view_present(view) && (at(view, b) < low || at(view, b) > high))
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "%s[%" PRId64 "] is %" PRId64 "; %" PRId64 " to %" PRId64 " (%s) is allowed", name, b,
                         at(view, b), low, high, limit);
    return KILN_OK;
}

static kiln_status check_pages(const kiln_attention_problem *p, int64_t b, const kiln_sequence *s)
{
    const kiln_view *table = &p->block_table;
    int64_t first = s->k_row / p->page_size, end = (s->k_row + s->seqlen_k + p->page_size - 1) / p->page_size;
    for (int64_t page = s->seqlen_k ? first : end; page < end; page++) {
        int64_t entry = ((const int32_t *)table->data)[kiln_view_offset(table, s->k_batch, page, 0, 0)];
        if (entry < 0 || entry >= p->k.size[0])
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "block_table[%" PRId64 "][%" PRId64 "], which sequence %" PRId64 " uses, is %" PRId64
                             "; the pool has pages 0 to %" PRId64,
                             s->k_batch, page, b, entry, p->k.size[0] - 1);
    }
    return KILN_OK;
}

kiln_status kiln_validate_lengths(const kiln_attention_problem *p)
{
    KILN_TRY(check_cumulative(&p->cu_seqlens_q, "cu_seqlens_q", p->batch, p->total_q, p->seqlen_q, "max_seqlen_q"));
    KILN_TRY(check_cumulative(&p->cu_seqlens_k, "cu_seqlens_k", p->batch, p->total_k, p->seqlen_k, "max_seqlen_k"));
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t capacity_q =
            kiln_view_present(&p->cu_seqlens_q) ? at(&p->cu_seqlens_q, b + 1) - at(&p->cu_seqlens_q, b) : p->seqlen_q;
        int64_t capacity_k =
            kiln_view_present(&p->cu_seqlens_k) ? at(&p->cu_seqlens_k, b + 1) - at(&p->cu_seqlens_k, b) : p->seqlen_k;
        KILN_TRY(check_entry(&p->seqused_q, "seqused_q", b, 0, capacity_q, "the sequence's rows"));
        KILN_TRY(check_entry(&p->seqused_k, "seqused_k", b, 0, capacity_k,
                             p->page_size ? "max_pages * page_size" : "the sequence's rows"));
        int64_t used = kiln_view_present(&p->seqused_k) ? at(&p->seqused_k, b) : capacity_k;
        KILN_TRY(check_entry(&p->leftpad_k, "leftpad_k", b, 0, used, "the keys in use"));
        KILN_TRY(check_entry(&p->cache_batch_idx, "cache_batch_idx", b, 0, p->kv_batch - 1, "entries of the cache"));
        if (p->page_size) {
            kiln_sequence s = kiln_sequence_of(p, b);
            KILN_TRY(check_pages(p, b, &s));
        }
    }
    return KILN_OK;
}
