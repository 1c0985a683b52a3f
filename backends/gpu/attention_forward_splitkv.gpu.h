// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `splitkv` (flash-decoding): few queries, many keys.
//
// Since `flash2`: the keys are cut into pieces that are work items of their own, so that one sequence fills a device; the rows
// of a block are the queries × heads that share a KV head, so that K and V are read once for all of them; and no matrix unit,
// which few rows would leave idle: K and V go straight from memory to FMA units, in fp32. A second kernel joins the pieces
// (attention_merge.gpu.h), in their order; sinks join there. The whole contract in one instance per type and width of V.
//
// A block of 128 threads has ROWS rows and walks over tiles of TILE keys of its piece. S: eight lanes a key, 64 columns at a
// time, all rows; Q in shared memory. Softmax: 16 lanes a row. O: a thread 8 columns of all rows, COLUMNS / 8 threads a key;
// the sums of the threads that share columns meet at the end. A masked key has the weight -1 and is left out by selection.
// Where a sum is not finite, the piece goes through once more with weights smaller by 2^40, for those elements only: what
// overflows is the sum, not the mean.
//
// A row's bits depend on its q, its keys and where the pieces end, not on the other rows of its block.
// Bytes requested: K, V once per ROWS rows of a KV head; q per piece; partials 8·rows·pieces·(d_v + 2). FLOPs
// 2·rows·N·(d + d2 + d_v).
// Workspace: part_o, means, fp32 (batch, heads, query·pieces + piece, d_v); part_lse, fp32 (…, 2): maximum in units of log2,
// sum of weights; a sum of -1: the row sees no key of the piece, and its part of o is not written.
#pragma once
#include "attention_merge.gpu.h"
#include "gpu_attention.gpu.h"

enum { SPLIT_ROWS = 8, SPLIT_TILE = 64, SPLIT_THREADS = 128 };

// Keys of a piece of a sequence; a multiple of SPLIT_TILE.
GPU_FN int64_t split_piece_keys(const gpu_attention_args &a, int64_t seqlen_k)
{
    if (a.piece > 0)
        return a.piece;
    const int64_t keys =
        (gpu_divide(seqlen_k + a.p.num_splits - 1, a.p.num_splits) + SPLIT_TILE - 1) / SPLIT_TILE * SPLIT_TILE;
    return keys > 0 ? keys : SPLIT_TILE;
}

// Columns col ... col + 7 of row 0, zeros past the end; nothing where there is no row.
template <class E> GPU_FN gpu_vec<float, 8> split_load(const gpu_rows<const E> &from, int col, int cols, bool aligned)
{
    gpu_vec<float, 8> x = {};
    if (from.rows <= 0 || col >= cols)
        return x;
    if (aligned && col + 8 <= cols) {
#pragma unroll
        for (int c = 0; c < 8; c += 16 / sizeof(E)) {
            const auto y = gpu_unpack<E>(gpu_load_packed<false>(from, 0, col + c));
#pragma unroll
            for (int e = 0; e < 16 / (int)sizeof(E); e++)
                x[c + e] = y[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (col + e < cols)
                x[e] = gpu_to_float(gpu_load<1>(from, 0, col + e)[0]);
    }
    return x;
}

// DEPTH: columns of q and q2 together at most; COLUMNS: of v.
template <class E, int DEPTH, int COLUMNS> struct attention_forward_splitkv {
    using args = gpu_attention_args;
    static constexpr int R = SPLIT_ROWS, BC = SPLIT_TILE, threads = SPLIT_THREADS, blocks = 2, tile_q = R, tile_k = BC;
    static constexpr int LPK = 8, KEYS = threads / LPK,
                         EACH = BC / KEYS;  // scores: lanes a key, keys at a time, of a thread
    static constexpr int LPR = threads / R; // softmax: lanes a row
    static constexpr int ACROSS = COLUMNS / 8, SLOTS = threads / ACROSS; // values: threads a key, keys at a time
    static_assert(SLOTS >= 1 && LPR == 16, "threads share out evenly");

    struct shared {
        gpu_array<float, R, DEPTH, 4> q;
        gpu_array<float, BC, R, 4> s; // S by keys, and over it P
        gpu_array<float, SLOTS, COLUMNS, 4> sum;
        gpu_array<float, 1, R> scale;
        gpu_array<uint16_t, 1, BC> no_page;
    };
    struct work {
        const args &a;
        const kiln_attention_problem &p;
        const kiln_sequence &s;
        const gpu_scores &c;        // of this thread's row in the softmax
        int64_t head0, group, row0; // first head of the KV head, heads of it, first row of the block
        int rows, piece;
        bool paged, aligned_k, aligned_k2, aligned_v;
        GPU_FN int64_t head(int r) const
        {
            return head0 + (row0 + r) % group;
        }
        GPU_FN int64_t query(int r) const
        {
            return (row0 + r) / group;
        }
        GPU_FN gpu_rows<const E> key(const kiln_view &v, int64_t j) const
        {
            if (paged)
                return gpu_page_rows<E>(c, v).from(j);
            return gpu_rows<const E>(v, s.k_batch, c.head_k()).slice(s.k_row + j, 1);
        }
    };

    // q and q2 of the rows, in fp32; zeros between and after them up to whole steps of 64 columns.
    static GPU_FN void load_queries(shared &sh, const work &w)
    {
        const int d = (int)w.p.d, padded = (d + 63) / 64 * 64, all = padded + ((int)w.p.d2 + 63) / 64 * 64;
#pragma unroll 1
        for (int u = gpu_thread(); u < R * (all / 8); u += threads) {
            const int r = u / (all / 8), col = u % (all / 8) * 8;
            gpu_vec<float, 8> x = {};
            if (r < w.rows) {
                const int64_t b = w.s.q_batch, i = w.s.q_row + w.query(r);
                if (col < padded)
                    x = split_load(gpu_rows<const E>(w.p.q, b, w.head(r)).slice(i, 1), col, d,
                                   gpu_aligned_rows(w.p.q, sizeof(E)));
                else
                    x = split_load(gpu_rows<const E>(w.p.q2, b, w.head(r)).slice(i, 1), col - padded, (int)w.p.d2,
                                   gpu_aligned_rows(w.p.q2, sizeof(E)));
            }
            gpu_store<4>(sh.q, r, col, gpu_vec<float, 4>{x[0], x[1], x[2], x[3]});
            gpu_store<4>(sh.q, r, col + 4, gpu_vec<float, 4>{x[4], x[5], x[6], x[7]});
        }
    }

    // sum[n][r] += q_r · key of slot n, this lane's columns. at: where these columns of q begin in shared memory.
    static GPU_FN void products(shared &sh, const work &w, const kiln_view &view, bool aligned, int at, int64_t k0,
                                int64_t end, float (&sum)[EACH][R])
    {
        const int sub = gpu_thread() % LPK, slot = gpu_thread() / LPK, cols = (int)view.size[3];
#pragma unroll 1
        for (int c0 = 0; c0 < cols; c0 += 64) {
            const int col = c0 + sub * 8;
            gpu_vec<float, 8> k[EACH];
#pragma unroll
            for (int n = 0; n < EACH; n++) {
                const int64_t j = k0 + n * KEYS + slot;
                k[n] = {};
                if (j < end)
                    k[n] = split_load(w.key(view, j), col, cols, aligned);
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r >= w.rows)
                    break;
                const gpu_vec<float, 4> low = gpu_load<4>(sh.q, r, at + col), high = gpu_load<4>(sh.q, r, at + col + 4);
#pragma unroll
                for (int n = 0; n < EACH; n++)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        sum[n][r] = gpu_fma(e < 4 ? low[e % 4] : high[e % 4], k[n][e], sum[n][r]);
            }
        }
    }
    static GPU_FN void scores(shared &sh, const work &w, int64_t k0, int64_t end)
    {
        const int sub = gpu_thread() % LPK, slot = gpu_thread() / LPK;
        float sum[EACH][R] = {};
        products(sh, w, w.p.k, w.aligned_k, 0, k0, end, sum);
        if (w.p.d2 > 0)
            products(sh, w, w.p.k2, w.aligned_k2, ((int)w.p.d + 63) / 64 * 64, k0, end, sum);
#pragma unroll
        for (int n = 0; n < EACH; n++) {
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[n][r] = gpu_wave_sum<LPK>(sum[n][r]);
            const int j = n * KEYS + slot;
            if (sub == 0) {
#pragma unroll
                for (int r = 0; r < R; r += 4)
                    gpu_store<4>(sh.s, j, r, gpu_vec<float, 4>{sum[n][r], sum[n][r + 1], sum[n][r + 2], sum[n][r + 3]});
                if (w.paged)
                    gpu_store<1>(sh.no_page, 0, j,
                                 gpu_vec<uint16_t, 1>{(uint16_t)(k0 + j < end && w.c.page(k0 + j) < 0)});
            }
        }
    }

    // The weights of a tile, this thread's row and keys; `down`: they are stored smaller by this factor. seen: keys of the row.
    static GPU_FN void weights(shared &sh, const work &w, int64_t k0, const kiln_key_range &seen, float down, float &m,
                               float &l, float &lost)
    {
        const int row = gpu_thread() / LPR, sub = gpu_thread() % LPR;
        const int64_t i = w.query(row);
        float x[BC / LPR], top = m, sum = 0;
#pragma unroll
        for (int n = 0; n < BC / LPR; n++) {
            const int j = n * LPR + sub;
            x[n] = gpu_minus_infinity();
            if (k0 + j >= seen.begin && k0 + j < seen.end && !(w.paged && gpu_load<1>(sh.no_page, 0, j)[0] != 0))
                x[n] = w.c.score(gpu_load<1>(sh.s, j, row)[0], i, k0 + j);
            top = gpu_max(top, x[n]);
        }
        top = gpu_wave_max<LPR>(top);
        const float base = gpu_finite_or_zero(top), alpha = gpu_exp2(m - base);
        gpu_dropout drop;
#pragma unroll
        for (int n = 0; n < BC / LPR; n++) {
            const int j = n * LPR + sub;
            const float weight = gpu_exp2(x[n] - base);
            float kept = weight * down;
            sum += weight;
            if (x[n] == gpu_minus_infinity()) { // masked, or a score that is -inf: that one counts, with weight 0
                const bool visible = k0 + j >= seen.begin && k0 + j < seen.end &&
                                     !(w.paged && gpu_load<1>(sh.no_page, 0, j)[0] != 0) && w.c.visible(i, k0 + j);
                kept = visible ? 0.f : -1.f;
            } else if (w.p.dropout_threshold < 256 && !drop.keep(w.c, i, k0 + j))
                kept = 0;
            gpu_store<1>(sh.s, j, row, gpu_vec<float, 1>{kept});
        }
        gpu_add_compensated(l, lost, alpha, sum);
        m = top;
        if (sub == 0)
            gpu_store<1>(sh.scale, 0, row, gpu_vec<float, 1>{alpha});
    }

    // out = out·alpha + P·V of a tile, this thread's columns and keys.
    static GPU_FN void values(shared &sh, const work &w, int64_t k0, int64_t end, gpu_vec<float, 8> (&out)[R])
    {
        const int col = gpu_thread() % ACROSS * 8, slot = gpu_thread() / ACROSS, d_v = (int)w.p.d_v;
        gpu_vec<float, 8> sum[R] = {};
        if (col < d_v) {
#pragma unroll 2
            for (int j = slot; j < BC; j += SLOTS) {
                if (k0 + j >= end)
                    break;
                const gpu_vec<float, 8> v = split_load(w.key(w.p.v, k0 + j), col, d_v, w.aligned_v);
                gpu_vec<float, 4> weight[R / 4];
#pragma unroll
                for (int r = 0; r < R; r += 4)
                    weight[r / 4] = gpu_load<4>(sh.s, j, r);
#pragma unroll
                for (int r = 0; r < R; r++)
                    if (r < w.rows && !(weight[r / 4][r % 4] < 0))
#pragma unroll
                        for (int e = 0; e < 8; e++)
                            sum[r][e] = gpu_fma(weight[r / 4][r % 4], v[e], sum[r][e]);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float alpha = gpu_load<1>(sh.scale, 0, r)[0];
#pragma unroll
            for (int e = 0; e < 8; e++)
                out[r][e] = gpu_fma(out[r][e], alpha, sum[r][e]);
        }
    }

    // Means of the piece; true if one of this thread's is not finite. pass 1 replaces those only.
    static GPU_FN bool store_means(shared &sh, const work &w, const gpu_vec<float, 8> (&out)[R], int pass)
    {
        const int col = gpu_thread() % ACROSS * 8, slot = gpu_thread() / ACROSS, d_v = (int)w.p.d_v;
        bool open = false;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= w.rows)
                break;
            gpu_store<4>(sh.sum, slot, col, gpu_vec<float, 4>{out[r][0], out[r][1], out[r][2], out[r][3]});
            gpu_store<4>(sh.sum, slot, col + 4, gpu_vec<float, 4>{out[r][4], out[r][5], out[r][6], out[r][7]});
            gpu_block_barrier();
            const float factor = gpu_load<1>(sh.scale, 0, r)[0];
            if (factor >= 0 || factor != factor) // else nothing is seen
#pragma unroll 1
                for (int c = gpu_thread(); c < d_v; c += threads) {
                    float y = 0;
#pragma unroll 1
                    for (int n = 0; n < SLOTS; n++)
                        y += gpu_load<1>(sh.sum, n, c)[0];
                    const bool finite = gpu_is_finite(y);
                    y = factor == 0 ? y : y * factor;
                    if (pass == 1) {
                        if (gpu_is_finite(gpu_read<float>(w.a.part_o, w.c.batch, w.head(r),
                                                          w.query(r) * w.a.splits + w.piece, c)))
                            continue;
                        y *= 0x1p40f;
                        if (finite)
                            y = y > 0x1.fffffep127f ? 0x1.fffffep127f : y < -0x1.fffffep127f ? -0x1.fffffep127f : y;
                    }
                    gpu_write<float>(w.a.part_o, w.c.batch, w.head(r), w.query(r) * w.a.splits + w.piece, c, y);
                    open |= !gpu_is_finite(y);
                }
            gpu_block_barrier();
        }
        return open;
    }

    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p;
        const int64_t group = p.heads / p.heads_k;
        const int piece = (int)(item % a.splits);
        const int64_t block = item / a.splits % a.q_tiles, head_k = item / a.splits / a.q_tiles % p.heads_k,
                      batch = item / a.splits / a.q_tiles / p.heads_k;
        const kiln_sequence s = gpu_sequence_of(p, batch);
        const int64_t row0 = block * R, all = s.seqlen_q * group;
        if (row0 >= all)
            return;
        const int rows = all - row0 < R ? (int)(all - row0) : R, row = gpu_thread() / LPR, sub = gpu_thread() % LPR;
        const int64_t keys = split_piece_keys(a, s.seqlen_k), begin = piece * keys;

        const int64_t mine = row0 + (row < rows ? row : 0);
        const gpu_scores c(p, s, batch, head_k * group + mine % group, a.scale_log2);
        const work w = {a,
                        p,
                        s,
                        c,
                        head_k * group,
                        group,
                        row0,
                        rows,
                        piece,
                        p.page_size > 0,
                        gpu_aligned_rows(p.k, sizeof(E)),
                        p.d2 > 0 && gpu_aligned_rows(p.k2, sizeof(E)),
                        gpu_aligned_rows(p.v, sizeof(E))};

        // Keys of the piece that the row sees, and that some row sees: positions grow with the query.
        kiln_key_range seen = c.window(mine / group);
        if (seen.begin < begin)
            seen.begin = begin;
        if (seen.end > begin + keys)
            seen.end = begin + keys;
        if (row >= rows || seen.end < seen.begin)
            seen = {0, 0};
        int64_t from = c.window(row0 / group).begin, end = c.window((row0 + rows - 1) / group).end;
        if (from < begin)
            from = begin;
        if (end > begin + keys)
            end = begin + keys;
        from = from / BC * BC;

#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            gpu_vec<float, 8> out[R] = {};
            float m = gpu_minus_infinity(), l = 0, lost = 0;
            if (pass == 0 && from < end)
                load_queries(sh, w);
            gpu_block_barrier();
#pragma unroll 1
            for (int64_t k0 = from; k0 < end; k0 += BC) {
                scores(sh, w, k0, end);
                gpu_block_barrier();
                weights(sh, w, k0, seen, pass == 0 ? 1.f : 0x1p-40f, m, l, lost);
                gpu_block_barrier();
                values(sh, w, k0, end, out);
                gpu_block_barrier();
            }
            l = gpu_wave_sum<LPR>(l);
            const bool none = seen.begin >= seen.end;
            if (sub == 0) {
                gpu_store<1>(sh.scale, 0, row, gpu_vec<float, 1>{none ? -1.f : l == 0 ? 0.f : 1.f / l});
                if (pass == 0 && row < rows) {
                    const int64_t at = mine / group * a.splits + piece;
                    gpu_write<float>(a.part_lse, batch, c.head, at, 0, m);
                    gpu_write<float>(a.part_lse, batch, c.head, at, 1, none ? -1.f : l);
                }
            }
            gpu_block_barrier();
            if (!gpu_block_any(store_means(sh, w, out, pass)))
                break;
        }
    }
};

// The pieces of a row.
struct splitkv_parts {
    static constexpr float unit = 1.f;
    const gpu_attention_args &a;
    int64_t b, h, i;
    GPU_FN gpu_merge_weight weight(int k) const
    {
        return {gpu_read<float>(a.part_lse, b, h, i * a.splits + k, 0),
                gpu_read<float>(a.part_lse, b, h, i * a.splits + k, 1)};
    }
    GPU_FN gpu_vec<float, 8> load(int k, int col) const
    {
        return gpu_merge_load(a.part_o, b, h, i * a.splits + k, col, gpu_merge_aligned(a.part_o));
    }
};

struct attention_forward_splitkv_merge {
    using args = gpu_attention_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = GPU_MERGE_THREADS, blocks = 2, tile_q = 0, tile_k = 0;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.p;
        const gpu_merge_share share(item, p.batch * p.heads * p.seqlen_q, p.d_v);
        if (!share.mine)
            return;
        const splitkv_parts parts = {a, share.row / p.seqlen_q / p.heads, share.row / p.seqlen_q % p.heads,
                                     share.row % p.seqlen_q};
        const kiln_sequence s = gpu_sequence_of(p, parts.b);
        if (parts.i >= s.seqlen_q)
            return;
        const int64_t keys = split_piece_keys(a, s.seqlen_k), needed = gpu_divide(s.seqlen_k + keys - 1, keys);
        const int n = needed < a.splits ? (int)needed : a.splits;
        float top = gpu_minus_infinity(), sum = 0;
        gpu_merge_weigh(parts, n, top, sum);
        const gpu_scores c(p, s, parts.b, parts.h, a.scale_log2);
        const gpu_row_end done(c, gpu_finite_or_zero(top), sum, top > gpu_minus_infinity(), 0.f);
        const float keep = gpu_keep_scale(p);
#pragma unroll 1
        for (int col = share.first * 8; col < p.d_v; col += gpu_merge_share::step(p.d_v)) {
            gpu_vec<float, 8> total = {};
            bool any = false, finite = true;
            gpu_merge_add(parts, n, gpu_finite_or_zero(top), done.factor, col, total, any, finite);
            gpu_merge_clamp(total, finite);
#pragma unroll
            for (int e = 0; e < 8; e++)
                total[e] = done.factor == 0 ? 0.f : total[e] * keep;
            gpu_merge_store(p.o, s.q_batch, parts.h, s.q_row + parts.i, col, total, gpu_merge_aligned(p.o));
        }
        if (share.first == 0)
            done.store_lse(c, parts.i);
    }
};
