// SPDX-License-Identifier: MIT OR Apache-2.0
// flash.gpu.h: a plain flash2 for the emulated device's own tests: it uses the whole dialect, and faults.sh plants faults in it
// by editing copies of this text. Causal or not, GQA; no other feature. The shipped kernels have suites of their own.
//
// A wave has ROWS = MT*M queries and walks over the keys in tiles of BC: S = Q K^T on the matrix unit, S to shared memory of
// this wave alone, softmax there with LPR = GPU_WAVE/M lanes a row, P back over S in 16 bits, O = diag(alpha) O + P V.
// Bytes requested, N a multiple of the tiles, per head: 2 N d e (Q, O) + 2 N d e ceil(N/BR) (K, V); LSE 4 N.
#pragma once
#include "../../backends/gpu/gpu_device.h"

template <class E, int D, int M, int MT, int BC, int WAVES, int BLOCKS = 1, bool PADDED = true, bool QS = MT == 1>
struct flash {
    using args = gpu_attention_args;
    using tile = gpu_tile<E, M>;
    static constexpr int ROWS = MT * M, BR = WAVES * ROWS, LPR = GPU_WAVE / M, PAD = PADDED ? 8 : 0;
    static constexpr int threads = WAVES * GPU_WAVE, blocks = BLOCKS, tile_q = BR, tile_k = BC;
    static constexpr bool VT = !tile::b_by_rows; // V is staged transposed
    static constexpr bool Q_STAYS = QS;          // in registers; its place is then K's and V's

    struct key_tile {
        gpu_array<E, BC, D, PAD> k;
        gpu_array<E, VT ? D : BC, VT ? BC : D, PAD> v;
    };
    using query_tile = gpu_array<E, BR, D, PAD>;
    union overlaid {
        key_tile t;
        query_tile q;
    };
    struct separate {
        key_tile t;
        query_tile q;
    };
    struct shared {
        union score { // of one row of tiles: S, and over it P
            gpu_array<float, M, BC, PADDED ? 4 * LPR : 0> s;
            gpu_array<E, M, BC, PAD> p;
        } w[WAVES][MT];
        gpu_array<float, 1, ROWS> scale[WAVES]; // a factor per row, on its way to load_rows
        typename gpu_select<Q_STAYS, overlaid, separate>::type in;
    };

    // Row i sees the keys [0, limit).
    static GPU_FN int limit(const args &a, int i)
    {
        const int nq = (int)a.p.seqlen_q, nk = (int)a.p.seqlen_k;
        return !a.p.masked || i + 1 + nk - nq > nk ? nk : i + 1 + nk - nq;
    }

    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        const int nq = (int)a.p.seqlen_q, nk = (int)a.p.seqlen_k, heads = (int)a.p.heads, qblocks = (nq + BR - 1) / BR;
        const int block = (int)item, h = block / qblocks % heads, b = block / qblocks / heads;
        const int hk = (int)(h * a.p.heads_k / heads);
        const int q0 = (qblocks - 1 - block % qblocks) * BR; // causal: the heavy ones first
        const gpu_rows<const E> q(a.p.q, b, h), k(a.p.k, b, hk), v(a.p.v, b, hk);
        const gpu_rows<E> o(a.p.o, b, h);
        const gpu_rows<float> lse(a.p.lse, b, h);

        const int wave = gpu_wave_id(), lane = gpu_lane(), w0 = wave * ROWS;
        const int r = lane / LPR, sub = lane % LPR; // in the softmax: my row of each tile, my share of it
        const int end = limit(a, (q0 + BR < nq ? q0 + BR : nq) - 1);
        auto &w = s.w[wave];
        auto &scale = s.scale[wave];

        gpu_tile_copy<E, BR, D, threads> copy_q;
        gpu_tile_copy<E, BC, D, threads> copy_k;
        gpu_tile_copy<E, BC, D, threads, VT> copy_v;
        copy_q.issue(s.in.q, q, q0, nq);
        copy_q.land(s.in.q);
        typename tile::a qa[Q_STAYS ? D / tile::K : 1];
        if constexpr (Q_STAYS) {
            gpu_block_barrier();
#pragma unroll
            for (int kk = 0; kk < D / tile::K; kk++)
                tile::load_a(qa[kk], s.in.q, w0, kk * tile::K);
            gpu_block_barrier();
        }
        typename tile::acc out[MT][D / M];
        float m[MT], l[MT];
#pragma unroll
        for (int t = 0; t < MT; t++) {
            m[t] = gpu_minus_infinity(), l[t] = 0;
#pragma unroll
            for (int n = 0; n < D / M; n++)
                tile::zero(out[t][n]);
        }

        if (end > 0)
            copy_k.issue(s.in.t.k, k, 0, nk);
        for (int k0 = 0; k0 < end; k0 += BC) {
            copy_k.land(s.in.t.k);
            gpu_block_barrier();
            copy_v.issue(s.in.t.v, v, k0, nk);
            {
                typename tile::acc sc[MT][BC / M];
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < BC / M; n++)
                        tile::zero(sc[t][n]);
#pragma unroll
                for (int kk = 0; kk < D / tile::K; kk++) {
                    typename tile::a qt[MT];
#pragma unroll
                    for (int t = 0; t < MT; t++) {
                        if constexpr (Q_STAYS)
                            qt[t] = qa[kk];
                        else
                            tile::load_a(qt[t], s.in.q, w0 + t * M, kk * tile::K);
                    }
#pragma unroll
                    for (int n = 0; n < BC / M; n++) {
                        typename tile::bk kt;
                        tile::load_bk(kt, s.in.t.k, n * M, kk * tile::K);
#pragma unroll
                        for (int t = 0; t < MT; t++)
                            tile::mma(sc[t][n], qt[t], kt);
                    }
                }
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < BC / M; n++)
                        tile::store(w[t].s, 0, n * M, sc[t][n]);
            }
            gpu_wave_barrier(); // S is complete
#pragma unroll
            for (int t = 0; t < MT; t++) {
                constexpr int STEPS = BC / (4 * LPR);
                gpu_vec<float, 4> x[STEPS];
                float top = m[t], sum = 0;
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
                    x[i] = gpu_load<4>(w[t].s, r, 4 * (i * LPR + sub));
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[i][e] *= a.scale_log2;
                }
                if (limit(a, q0 + w0 + t * M) < k0 + BC) { // a boundary tile: its first row sees least
                    const int visible = limit(a, q0 + w0 + t * M + r) - k0;
#pragma unroll
                    for (int i = 0; i < STEPS; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (4 * (i * LPR + sub) + e >= visible)
                                x[i][e] = gpu_minus_infinity();
                }
#pragma unroll
                for (int i = 0; i < STEPS; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        top = gpu_max(top, x[i][e]);
                top = gpu_wave_max<LPR>(top);
                const float base = gpu_finite_or_zero(top), alpha = gpu_exp2(m[t] - base);
                gpu_wave_barrier(); // everybody has read S: P may lie over it
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum += x[i][e] = gpu_exp2(x[i][e] - base);
                    gpu_store<4>(w[t].p, r, 4 * (i * LPR + sub), gpu_from_floats<E>(x[i]));
                }
                l[t] = l[t] * alpha + sum; // of my share; shares are added at the end
                m[t] = top;
                if (sub == 0)
                    gpu_store<1>(scale, 0, t * M + r, gpu_vec<float, 1>{alpha});
            }
            copy_v.land(s.in.t.v);
            gpu_block_barrier(); // V and P are there, K is free
            if (k0 + BC < end)
                copy_k.issue(s.in.t.k, k, k0 + BC, nk);
            rescale(out, scale);
#pragma unroll
            for (int kk = 0; kk < BC / tile::K; kk++) {
                typename tile::a pt[MT];
#pragma unroll
                for (int t = 0; t < MT; t++)
                    tile::load_a(pt[t], w[t].p, 0, kk * tile::K);
#pragma unroll
                for (int n = 0; n < D / M; n++) {
                    typename tile::bn vt;
                    if constexpr (VT)
                        tile::load_bk(vt, s.in.t.v, n * M, kk * tile::K);
                    else
                        tile::load_bn(vt, s.in.t.v, kk * tile::K, n * M);
#pragma unroll
                    for (int t = 0; t < MT; t++)
                        tile::mma(out[t][n], pt[t], vt);
                }
            }
        }

        gpu_wave_barrier();
#pragma unroll
        for (int t = 0; t < MT; t++) {
            const float sum = gpu_wave_sum<LPR>(l[t]);
            const int row = q0 + w0 + t * M + r;
            if (sub == 0) {
                gpu_store<1>(scale, 0, t * M + r, gpu_vec<float, 1>{sum > 0 ? gpu_rcp(sum) : 0.f});
                if (row < nq)
                    gpu_store<1>(
                        lse, row, 0,
                        gpu_vec<float, 1>{sum > 0 ? 0.69314718056f * (m[t] + gpu_log2(sum)) : gpu_minus_infinity()});
            }
        }
        gpu_wave_barrier();
        rescale(out, scale);
        constexpr int CH = BC < D ? BC : D; // O leaves through S's place, CH columns at a time
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int c0 = 0; c0 < D; c0 += CH) {
#pragma unroll
                for (int n = 0; n < CH / M; n++)
                    tile::store(w[t].s, 0, n * M, out[t][c0 / M + n]);
                gpu_wave_barrier();
#pragma unroll
                for (int u = lane; u < M * CH / 8; u += GPU_WAVE) {
                    const int i = u / (CH / 8), c = u % (CH / 8) * 8, row = q0 + w0 + t * M + i;
                    const auto lo = gpu_load<4>(w[t].s, i, c), hi = gpu_load<4>(w[t].s, i, c + 4);
                    const gpu_vec<float, 8> y = {lo[0], lo[1], lo[2], lo[3], hi[0], hi[1], hi[2], hi[3]};
                    if (row < nq)
                        gpu_store<8>(o, row, c0 + c, gpu_from_floats<E>(y));
                }
                gpu_wave_barrier();
            }
    }

    static GPU_FN void rescale(typename tile::acc (&out)[MT][D / M], gpu_array<float, 1, ROWS> &scale)
    {
#pragma unroll
        for (int t = 0; t < MT; t++) {
            typename tile::acc f;
            tile::load_rows(f, scale, 0, t * M);
#pragma unroll
            for (int n = 0; n < D / M; n++)
#pragma unroll
                for (int i = 0; i < tile::acc::n; i++)
                    out[t][n].x(i) *= f.x(i);
        }
    }
};
