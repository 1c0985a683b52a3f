// SPDX-License-Identifier: MIT OR Apache-2.0
// gpu_attention.gpu.h: what every attention kernel needs to know of the contract, once: where a sequence lies, which keys a
// query sees, what happens to a score, which weights dropout keeps. Used by all rungs, forward and backward.
//
// Lengths lie in device memory and are not trusted: they are clamped to the tensors, and what was clamped is reported in
// *device_status. Scores come as the raw product q·k and leave in units of log2 (exponents of 2).
#pragma once
#include "../../common/philox.h"
#include "../../common/window.h"
#include "gpu_device.h"

// A work item of a kernel that walks over (batch, head, tile of rows): which one. Long rows of causal problems come first
// when the caller counts tiles downwards.
struct gpu_item {
    int64_t batch, head, tile;
    GPU_FN gpu_item(const kiln_attention_problem &p, int64_t item, int64_t tiles)
    {
        const int64_t at = gpu_divide(item, tiles);
        tile = item - at * tiles, batch = gpu_divide(at, p.heads), head = at - batch * p.heads;
    }
};

GPU_FN int64_t gpu_clamp(int64_t x, int64_t low, int64_t high, uint32_t bit, uint32_t &status)
{
    if (x >= low && x <= high)
        return x;
    status |= bit;
    return x < low ? low : high;
}

// Where sequence b lies; the device's form of kiln_sequence_of(), which trusts what validation has read. A cache entry that
// does not exist leaves no key.
GPU_FN kiln_sequence gpu_sequence_of(const kiln_attention_problem &p, int64_t b, bool report)
{
    kiln_sequence s = {p.seqlen_q, p.seqlen_k, b, 0, b, 0, 0, 0};
    uint32_t status = 0;
    if (kiln_view_present(&p.cu_seqlens_q)) {
        s.q_batch = 0;
        s.q_row = gpu_clamp(gpu_read<int32_t>(p.cu_seqlens_q, b), 0, p.total_q, KILN_DEVICE_STATUS_CU_SEQLENS, status);
        const int64_t room = p.total_q - s.q_row;
        s.seqlen_q = gpu_clamp(gpu_read<int32_t>(p.cu_seqlens_q, b + 1) - s.q_row, 0,
                               room < p.seqlen_q ? room : p.seqlen_q, KILN_DEVICE_STATUS_CU_SEQLENS, status);
    }
    if (kiln_view_present(&p.cu_seqlens_k)) {
        s.k_batch = 0;
        s.k_row = gpu_clamp(gpu_read<int32_t>(p.cu_seqlens_k, b), 0, p.total_k, KILN_DEVICE_STATUS_CU_SEQLENS, status);
        const int64_t room = p.total_k - s.k_row;
        s.seqlen_k = gpu_clamp(gpu_read<int32_t>(p.cu_seqlens_k, b + 1) - s.k_row, 0,
                               room < p.seqlen_k ? room : p.seqlen_k, KILN_DEVICE_STATUS_CU_SEQLENS, status);
    }
    if (kiln_view_present(&p.seqused_q))
        s.seqlen_q = gpu_clamp(gpu_read<int32_t>(p.seqused_q, b), 0, s.seqlen_q, KILN_DEVICE_STATUS_SEQUSED, status);
    if (kiln_view_present(&p.seqused_k))
        s.seqlen_k = gpu_clamp(gpu_read<int32_t>(p.seqused_k, b), 0, s.seqlen_k, KILN_DEVICE_STATUS_SEQUSED, status);
    if (kiln_view_present(&p.leftpad_k)) {
        const int64_t pad =
            gpu_clamp(gpu_read<int32_t>(p.leftpad_k, b), 0, s.seqlen_k, KILN_DEVICE_STATUS_SEQUSED, status);
        s.k_row += pad, s.seqlen_k -= pad;
    }
    s.pos_q = p.q_start + (p.bottom_right ? s.seqlen_k - s.seqlen_q : 0);
    s.pos_k = p.k_start;
    if (kiln_view_present(&p.q_starts))
        s.pos_q += gpu_read<int32_t>(p.q_starts, b);
    if (kiln_view_present(&p.k_starts))
        s.pos_k += gpu_read<int32_t>(p.k_starts, b);
    if (kiln_view_present(&p.cache_batch_idx)) {
        const int64_t entry = gpu_read<int32_t>(p.cache_batch_idx, b);
        s.k_batch = gpu_clamp(entry, 0, p.kv_batch - 1, KILN_DEVICE_STATUS_CACHE_BATCH_IDX, status);
        if (s.k_batch != entry)
            s.k_batch = 0, s.seqlen_k = 0;
    }
    if (status && p.device_status && report)
        gpu_atomic_or(p.device_status, status);
    return s;
}
GPU_FN kiln_sequence gpu_sequence_of(const kiln_attention_problem &p, int64_t b)
{
    return gpu_sequence_of(p, b, gpu_thread() == 0);
}

// One head of one sequence: everything between q·k and the softmax, and dropout.
struct gpu_scores {
    const kiln_attention_problem &p;
    const kiln_sequence &s;
    int64_t batch, head;
    float scale_log2, slope_log2; // slope of ALiBi
    uint64_t seed, offset;

    GPU_FN gpu_scores(const kiln_attention_problem &p_, const kiln_sequence &s_, int64_t b, int64_t h, float scale)
        : p(p_), s(s_), batch(b), head(h), scale_log2(scale), slope_log2(0), seed(0), offset(0)
    {
        if (kiln_view_present(&p.alibi))
            slope_log2 = 1.44269504089f * gpu_read<float>(p.alibi, b, h);
        if (p.dropout_threshold < 256) {
            seed = p.dropout_seed_ptr ? *p.dropout_seed_ptr : p.dropout_seed;
            offset = p.dropout_offset_ptr ? *p.dropout_offset_ptr : p.dropout_offset;
        }
    }
    GPU_FN int64_t head_k() const
    {
        return head * p.heads_k / p.heads;
    }
    // Is there nothing to do to a score but to scale it and to look at the window (and at pages)?
    GPU_FN bool plain() const
    {
        return scale_log2 > 0 && p.softcap == 0 && p.mask_len == 0 && !kiln_view_present(&p.bias) &&
               !kiln_view_present(&p.alibi);
    }
    GPU_FN kiln_key_range window(int64_t i) const
    {
        return kiln_window_keys(&p, &s, i);
    }

    // Page of key j; -1 (and a bit in *device_status) if the table names one that does not exist: its keys are masked.
    GPU_FN int64_t page(int64_t j) const
    {
        const int64_t page = gpu_read<int32_t>(p.block_table, s.k_batch, gpu_divide(s.k_row + j, p.page_size));
        if (page >= 0 && page < p.k.size[0])
            return page;
        if (p.device_status)
            gpu_atomic_or(p.device_status, KILN_DEVICE_STATUS_BLOCK_TABLE);
        return -1;
    }
    // Does query i see key j through attn_mask and bias? (Window and pages are the caller's: it knows ranges and rows.)
    GPU_FN bool visible(int64_t i, int64_t j) const
    {
        if (p.mask_len > 0) { // it covers the last mask_len keys
            const int64_t m = j - (s.seqlen_k - p.mask_len);
            if (m >= 0 && gpu_read<uint8_t>(p.attn_mask, batch, head, i, m) == 0)
                return false;
        }
        return !kiln_view_present(&p.bias) || gpu_read_float(p.bias, batch, head, i, j) != gpu_minus_infinity();
    }
    // The score of query i and key j (inside the window, on a page) in units of log2; -inf if masked, whatever `product`
    // holds. slope_of_cap, if given, becomes d capped / d score: 1 without softcap.
    GPU_FN float score(float product, int64_t i, int64_t j, float *slope_of_cap = nullptr) const
    {
        float x = product * scale_log2;
        if (p.softcap > 0) {
            const float t = gpu_tanh(x * (0.69314718056f / p.softcap));
            if (slope_of_cap)
                *slope_of_cap = 1.f - t * t;
            x = t * (p.softcap * 1.44269504089f);
        } else if (slope_of_cap)
            *slope_of_cap = 1.f;
        if (kiln_view_present(&p.bias)) {
            const float bias = gpu_read_float(p.bias, batch, head, i, j);
            if (bias == gpu_minus_infinity())
                return bias;
            const float sum = gpu_fma(bias, 1.44269504089f, x), most = 0x1.fffffep127f;
            const bool finite = bias - bias == 0 && x - x == 0; // then so is their sum, in whatever units
            x = finite && sum < -most ? -most : finite && sum > most ? most : sum;
        }
        if (kiln_view_present(&p.alibi)) {
            const int64_t d = (s.pos_q + i * p.q_step) - (s.pos_k + j * p.k_step);
            x = gpu_fma(-slope_log2, (float)(d < 0 ? -d : d), x);
        }
        if (p.mask_len > 0) {
            const int64_t m = j - (s.seqlen_k - p.mask_len);
            if (m >= 0 && gpu_read<uint8_t>(p.attn_mask, batch, head, i, m) == 0)
                return gpu_minus_infinity();
        }
        return x;
    }
};

// Dropout along a row: consecutive keys share 16 bytes of random bits, so a thread that walks over keys keeps them.
struct gpu_dropout {
    kiln_philox_words words;
    int64_t block, row_head;
    bool filled = false;
    GPU_FN bool keep(const gpu_scores &c, int64_t i, int64_t j)
    {
        const int64_t pos = c.s.pos_k + j * c.p.k_step;
        if (!filled || pos >> 4 != block) {
            block = pos >> 4, filled = true;
            words =
                kiln_dropout_words(c.seed, c.offset, c.batch * c.p.heads + c.head, c.s.pos_q + i * c.p.q_step, block);
        }
        return kiln_dropout_byte(words, (int)(pos & 15)) < c.p.dropout_threshold;
    }
};

// sum = sum·alpha + x, with what rounding loses kept in `lost` (Kahan): over thousands of tiles a plain sum would lose a little
// of each in the same direction.
GPU_FN void gpu_add_compensated(float &sum, float &lost, float alpha, float x)
{
    const float before = sum * alpha, add = gpu_fma(lost, alpha, x);
    sum = before + add;
    lost = add - (sum - before);
}

GPU_FN float gpu_abs(float x)
{
    return __builtin_fabsf(x);
}
GPU_FN bool gpu_is_finite(float x)
{
    return gpu_abs(x) < -gpu_minus_infinity();
}

// ---- the end of a row ----
// Weights were 2^(x - offset), l is their sum: the sink joins it, and out come lse and the factor 1/l of o.
// `shift`: weights were larger by 2^shift than those of the maximum, offset = maximum - shift.
struct gpu_row_end {
    float offset, l, shift, factor; // o = factor · Σ weight·v
    GPU_FN gpu_row_end(const gpu_scores &c, float offset_, float l_, bool any, float shift_)
        : gpu_row_end(c.p, c.head, offset_, l_, any, shift_)
    {
    }
    GPU_FN gpu_row_end(const kiln_attention_problem &p, int64_t head, float offset_, float l_, bool any, float shift_)
        : offset(offset_), l(l_), shift(shift_)
    {
        float rescale = 1;
        if (kiln_view_present(&p.sinks)) {
            const float sink = gpu_read_float(p.sinks, 0, head, 0, 0) * 1.44269504089f;
            const float top = any ? gpu_max(offset, sink - shift) : sink - shift;
            const float base = gpu_finite_or_zero(top);
            rescale = any ? gpu_exp2(offset - base) : 0.f;
            l = gpu_fma(l, rescale, gpu_exp2(sink - base));
            offset = base;
        }
        factor = l == 0 ? 0.f : rescale / l;
    }
    GPU_FN float lse() const
    { // offset + shift is as exact as the maximum; the logarithm is near 0
        if (l == 0)
            return gpu_minus_infinity();
        // A score that score() held at the end of the range, which in units of log2 is nearer than in natural ones: people
        // mask with -FLT_MAX.
        const float most = 0x1.fffffep127f, top = offset + shift;
        if ((top == most || top == -most) && l == l)
            return top;
        const float down = shift == 0 ? 1.f : gpu_exp2(-shift); // exact
        return 0.69314718056f * (top + gpu_log2(l * down));
    }
    // unsettled: only where no number is yet.
    GPU_FN void store_lse(const gpu_scores &c, int64_t i, bool unsettled = false) const
    {
        const int64_t row = c.s.q_row + i;
        if (kiln_view_present(&c.p.lse) &&
            !(unsettled && gpu_is_finite(gpu_read<float>(c.p.lse, c.s.q_batch, c.head, row))))
            gpu_write<float>(c.p.lse, c.s.q_batch, c.head, row, 0, lse());
    }
};

// ---- rows of q, k and v ----
// A source of tiles: from(j) is a matrix whose row 0 is row j of the sequence. Rows of one run lie at constant distances
// (gpu_rows itself); rows on pages are looked up one by one. rows == 0: there is no such row.
template <class E> struct gpu_page_rows {
    static constexpr bool paged = true;
    const gpu_scores &c;
    const kiln_view &view;
    GPU_FN gpu_page_rows(const gpu_scores &c_, const kiln_view &v) : c(c_), view(v)
    {
    }
    GPU_FN gpu_rows<const E> from(int64_t j) const
    {
        const int64_t page = c.page(j), row = c.s.k_row + j;
        gpu_rows<const E> m(view, page < 0 ? 0 : page, c.head_k());
        if (page < 0)
            return m.slice(0, 0);
        return m.slice(row - gpu_divide(row, c.p.page_size) * c.p.page_size, 1);
    }
};
template <class E> struct gpu_run_rows : gpu_rows<const E> {
    static constexpr bool paged = false;
    GPU_FN explicit gpu_run_rows(const gpu_rows<const E> &rows) : gpu_rows<const E>(rows)
    {
    }
    GPU_FN gpu_run_rows(const kiln_view &v, int64_t b, int64_t h, int64_t first, int64_t n)
        : gpu_rows<const E>(gpu_rows<const E>(v, b, h).slice(first, n))
    {
    }
};

// May whole 16-byte pieces be read from (or written to) every row of this head? Rows that are not aligned are taken
// element by element: alignment decides speed, never whether a call is taken, nor any bit.
GPU_FN bool gpu_aligned_rows(const kiln_view &v, int element)
{
    const int64_t bits =
        ((int64_t)(uintptr_t)v.data) | (v.stride[0] | v.stride[1] | v.stride[2]) * element | v.size[3] * element;
    return bits % 16 == 0;
}

// A ROWS x COLS tile from global to shared memory, by all THREADS: gpu_tile_copy for rows of any width and alignment, on
// pages or not. Rows from `rows` on and columns from `cols` on become zeros and are not read. Destination, barriers and
// register prefetch: as in gpu_tile_copy.
template <class E, int ROWS, int COLS, int THREADS, bool TRANSPOSE = false> struct gpu_row_copy {
    static constexpr int round_up(int n)
    {
        int p = 1;
        while (p < n)
            p *= 2;
        return p;
    }
    static constexpr int V = 16 / sizeof(E), PER = TRANSPOSE ? 2 : 1;          // a piece: PER rows of V columns
    static constexpr int ACROSS = TRANSPOSE ? ROWS / PER : round_up(COLS / V); // that neighbouring threads take
    static constexpr int DOWN = THREADS / ACROSS, TALL = TRANSPOSE ? COLS / V : ROWS;
    static constexpr int STEPS = (TALL + DOWN - 1) / DOWN;
    static constexpr bool direct = GPU_ASYNC && !TRANSPOSE;
    static_assert(THREADS % ACROSS == 0 && COLS % V == 0, "pieces share out evenly");
    gpu_vec<E, V> held[direct ? 1 : STEPS * PER];

    static GPU_FN int row(int s)
    {
        return TRANSPOSE ? gpu_thread() % ACROSS * PER : gpu_thread() / ACROSS + s * DOWN;
    }
    static GPU_FN int col(int s)
    {
        return TRANSPOSE ? (gpu_thread() / ACROSS + s * DOWN) * V : gpu_thread() % ACROSS * V;
    }
    static GPU_FN bool mine(int s)
    { // constant where the pieces share out exactly
        if constexpr (TRANSPOSE)
            return TALL % DOWN == 0 || col(s) < COLS;
        else
            return (ROWS % DOWN == 0 || row(s) < ROWS) && (ACROSS * V == COLS || col(s) < COLS);
    }
    static GPU_FN gpu_vec<E, V> pick(const gpu_rows<const E> &from, int r, int c, int cols)
    {
        gpu_vec<E, V> v = {};
#pragma unroll
        for (int e = 0; e < V; e++)
            if (c + e < cols)
                v[e] = gpu_load<1>(from, r, c + e)[0];
        return v;
    }

    template <class A, class SOURCE>
    GPU_FN void issue(A &to, const SOURCE &from, int64_t row0, int rows, int cols, bool aligned GPU_AT)
    {
        if (direct && aligned) {
            if constexpr (direct && SOURCE::paged) {
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    if (!mine(s))
                        continue;
                    const bool want = row(s) < rows && col(s) < cols;
                    const gpu_rows<const E> source = from.from(want ? row0 + row(s) : row0);
                    gpu_copy_async<V>(to, row(s), col(s), source, 0, want && source.rows > 0 GPU_LINE);
                }
            } else if constexpr (direct)
                issue_near(to, from.from(row0 + row(0)), rows, cols GPU_LINE);
        } else if constexpr (direct) {
#pragma unroll 1
            for (int s = 0; s < STEPS; s++) {
                if (!mine(s))
                    continue;
                gpu_vec<E, V> v = {};
                if (row(s) < rows && col(s) < cols) {
                    const gpu_rows<const E> source = from.from(row0 + row(s));
                    if (source.rows > 0)
                        v = pick(source, 0, col(s), cols);
                }
                gpu_store<V>(to, row(s), col(s), v GPU_LINE);
            }
        } else {
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int p = 0; p < PER; p++) {
                    gpu_vec<E, V> v = {};
                    if (mine(s) && row(s) + p < rows && col(s) < cols) {
                        const gpu_rows<const E> source = from.from(row0 + row(s) + p);
                        if (source.rows > 0)
                            v = aligned ? gpu_load<V>(source, 0, col(s) GPU_LINE) : pick(source, 0, col(s), cols);
                    }
                    held[s * PER + p] = v;
                }
        }
    }
    // The same where copies are direct, from aligned rows of one run; source: the rows from this thread's first on.
    template <class A> static GPU_FN void issue_near(A &to, const gpu_rows<const E> &source, int rows, int cols GPU_AT)
    {
        if (rows >= ROWS) { // a whole tile, as nearly all are: nothing to compare
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (mine(s))
                    gpu_copy_async<V>(to, row(s), col(s), source, s * DOWN, col(s) < cols GPU_LINE);
        } else
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (mine(s))
                    gpu_copy_async<V>(to, row(s), col(s), source, s * DOWN, row(s) < rows && col(s) < cols GPU_LINE);
    }
    template <class A> GPU_FN void land(A &to GPU_AT)
    {
        if constexpr (direct)
            gpu_copy_wait();
        else {
#pragma unroll
            for (int i = 0; i < STEPS * PER; i++)
                gpu_pin(held[i]);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                if (!mine(s))
                    continue;
                if constexpr (!TRANSPOSE)
                    gpu_store<V>(to, row(s), col(s), held[s] GPU_LINE);
                else
#pragma unroll
                    for (int e = 0; e < V; e++)
                        gpu_store<2>(to, col(s) + e, row(s),
                                     gpu_vec<E, 2>{held[2 * s][e], held[2 * s + 1][e]} GPU_LINE);
            }
        }
    }
};

// ---- the output ----
// What a number becomes in the type of o: the first that rounds to infinity, and the largest finite one.
GPU_FN float gpu_overflow_of(int32_t type)
{
    return type == KILN_FLOAT32 ? -gpu_minus_infinity() : type == KILN_FLOAT16 ? 65520.f : 0x1.ffp127f;
}
GPU_FN float gpu_largest_of(int32_t type)
{
    return type == KILN_FLOAT32 ? 0x1.fffffep127f : type == KILN_FLOAT16 ? 65504.f : 0x1.fep127f;
}

// What kept weights are multiplied by.
GPU_FN float gpu_keep_scale(const kiln_attention_problem &p)
{
    return p.dropout_threshold < 256 ? 256.f / (float)p.dropout_threshold : 1.f;
}

// One element of o. A row without a weight is 0 whatever v holds.
GPU_FN float gpu_mean(float sum, float factor, float keep, float up = 1.f)
{
    return factor == 0 ? 0.f : sum * factor * keep * up;
}

// A mean of finite values is finite, whatever rounding says (dropout's factor may leave the range in earnest).
GPU_FN float gpu_clamp_mean(const kiln_attention_problem &p, float y)
{
    const float most = gpu_largest_of(p.o.type);
    if (p.dropout_threshold < 256)
        return y;
    return y > most ? most : y < -most ? -most : y;
}
