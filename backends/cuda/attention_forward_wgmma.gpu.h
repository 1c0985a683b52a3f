// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `wgmma` (Hopper, sm_90a), 16-bit types. Against mma:
//   products of a whole warpgroup, operands straight from shared memory (P from registers), asynchronous: Q·Kᵀ of a block runs
//   beside P·V of the block before it, and the latter under the softmax;
//   one thread of a producer warpgroup drives the copy engine; K and V stream through a ring of slots, the consumers never
//   compute an address; registers go from the producer to the consumers;
//   a block stays for many tiles (BM queries each) and takes the next one's Q while it works. A warp of its own finds out what
//   the next tile is, which takes 3 us of one thread: as long as the ring lasts;
//   the guard: the row maximum is looked for in the first blocks only. bf16 has the exponents of fp32, so weights far above 1
//   lose nothing; the block's row sum, which is needed anyway, tells when they exceed 2^40, and that block is done again.
//   The maximum weighs 2^-12, so that sums of V near the end of the range stay in it.
//   fp16 ends at 2^16, so there the maximum weighs 2^5 and the limit is 2^15.
//
// Accepts: what the method (attention_forward_wgmma.c) calls plain: windows of step 1, lengths, packing, GQA, sinks; aligned rows.
// Tiles whose result is not finite are done again at the end by mma's careful passes, so hidden NaN and Inf never count. So are
// those that hold means next to nothing, of which products below 2^-149 may be missing.
//
// Bytes requested and FLOPs: as flash2, with BM for BR.
#pragma once
#include "attention_forward_wgmma_block.gpu.h"

// The template's arguments: see wgmma_forward_block. CAP: softcap.
template <class E, int D, int DV, int BN, int NWG, int SLOTS, int QS, bool CAP = false>
struct attention_forward_wgmma : wgmma_forward_block<E, D, DV, BN, NWG, SLOTS, QS> {
    using block = wgmma_forward_block<E, D, DV, BN, NWG, SLOTS, QS>;
    using block::BM, block::PANELS, block::PANELS_V, block::PANEL_Q, block::PANEL_KV, block::PLANS, block::ROUNDS,
        block::SENDS_Q;
    using typename block::args, typename block::careful, typename block::shared, typename block::pipeline,
        typename block::slot, typename block::place;
    static constexpr bool HALF = __is_same(E, gpu_half);
    // The largest weight that was looked for is 2^SHIFT. Products with V are missing if they were below 2^-149: they matter to a
    // mean below FAINT (bits of bf16: 2^-121). One that is exactly 0 misses no more than half of the least number of bf16.
    static constexpr float LAG = 2.f, SHIFT = HALF ? 5.f : -12.f, LIMIT = HALF ? 0x1p15f : 0x1p40f;
    static constexpr uint32_t FAINT = HALF ? 0 : (127 - 121) << 7;

    static GPU_FN void run(const args &a, shared &sh)
    {
        block::template run_with<attention_forward_wgmma>(a, sh);
    }

    // ---- a consumer warpgroup: 64 queries of every tile ----
    struct state {
        float s[BN / 2], o[DV / 2];
        uint32_t p[BN / 4]; // weights, rounded: the operand of P·V
        // Of my rows l / 4 + 8·h. A weight is 2^(score·scale - base); sums are my share of four.
        float base[2], sum[2], lost[2], alpha[2];
        uint32_t q_matrix, k_matrix, v_matrix; // of stage and slot 0
        wgmma_ring<PLANS> plan;
        wgmma_ring<QS> q;
        wgmma_ring<SLOTS> kv;
        bool sending; // O of the tile before may still be in the memory of its Q
    };

    static GPU_FN void await(const pipeline &pipe, const state &me)
    {
        gpu_mbarrier_wait(gpu_shared_address(&pipe.kv_full[me.kv.stage]), me.kv.parity);
    }
    static GPU_FN void release(pipeline &pipe, state &me)
    {
        if (gpu_lane() == 0)
            gpu_mbarrier_arrive(gpu_shared_address(&pipe.kv_empty[me.kv.stage]));
        me.kv.next();
    }
    static GPU_FN void release_plan(pipeline &pipe, state &me)
    {
        if (gpu_lane() == 0)
            gpu_mbarrier_arrive(gpu_shared_address(&pipe.plan_empty[me.plan.stage]));
        me.plan.next();
    }
    // Q of the tile before, when O is no longer there.
    static GPU_FN void release_q(pipeline &pipe, state &me)
    {
        if (me.sending && gpu_lane() == 0) {
            gpu_bulk_wait_read<0>();
            gpu_mbarrier_arrive(gpu_shared_address(&pipe.q_empty[QS == 1 ? 0 : me.q.stage ^ 1]));
        }
        me.sending = false;
    }
    static GPU_FN void end_tile(pipeline &pipe, state &me)
    {
        me.q.next();
        me.sending = true;
        if constexpr (!SENDS_Q)
            release_q(pipe, me);
    }
    static GPU_FN void skip(pipeline &pipe, state &me, int slots)
    { // in step with the other warpgroups
#pragma unroll 1
        for (; slots > 0; slots--)
            await(pipe, me), release(pipe, me);
    }

    static GPU_FN void issue_scores(state &me)
    {
        const uint32_t q = me.q_matrix + me.q.stage * (uint32_t)(sizeof(pipeline::q[0]) >> 4),
                       k = me.k_matrix + me.kv.stage * (uint32_t)(sizeof(slot) >> 4);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            gpu_wgmma<E, BN>::ss(me.s, gpu_wgmma_descriptor(q + kk / 4 * (PANEL_Q * 2 >> 4) + kk % 4 * 2, 1024),
                                 gpu_wgmma_descriptor(k + kk / 4 * (PANEL_KV * 2 >> 4) + kk % 4 * 2, 1024), kk != 0);
        gpu_wgmma_commit();
    }
    static GPU_FN void issue_values(state &me)
    {
        const uint32_t v = me.v_matrix + me.kv.stage * (uint32_t)(sizeof(slot) >> 4);
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++)
            gpu_wgmma<E, DV>::rs(me.o, me.p + 4 * kk, gpu_wgmma_descriptor(v + kk * (2048 >> 4), 1024));
        gpu_wgmma_commit();
    }

    // Scores become cap·tanh(score·scale / cap), in units of log2.
    static GPU_FN void cap(const gpu_wgmma_cap &c, state &me)
    {
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            me.s[i] = gpu_tanh(me.s[i] * c.in) * c.out;
    }
    // The largest |score| of mine. Of NaN it knows nothing: their weights tell.
    static GPU_FN float largest(const state &me)
    {
        float most = 0;
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            most = gpu_max(most, gpu_abs(me.s[i]));
        return most;
    }
    // What the window hides becomes -inf.
    static GPU_FN void hide(state &me, const wgmma_tile &t, int row, int j)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int shift = j * BN + gpu_lane() % 4 * 2, begin = t.begin(t.q0 + row + 8 * h) - shift,
                      end = t.end(t.q0 + row + 8 * h) - shift;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * i + c < begin || 8 * i + c >= end)
                        me.s[4 * i + 2 * h + c] = gpu_minus_infinity();
        }
    }
    // Raises the bases to what s holds; alpha: what older sums and O must be multiplied by. Is that needed? Lazy: a base stays
    // until it is exceeded by LAG, so that O is seldom rescaled.
    template <bool LAZY> static GPU_FN bool follow(state &me, float scale)
    {
        bool changed = !LAZY;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m0 = me.s[2 * h], m1 = me.s[2 * h + 1];
#pragma unroll
            for (int i = 1; i < BN / 8; i++)
                m0 = gpu_max(m0, me.s[4 * i + 2 * h]), m1 = gpu_max(m1, me.s[4 * i + 2 * h + 1]);
            float base = gpu_max(gpu_fma(gpu_wave_max<4>(gpu_max(m0, m1)), scale, -SHIFT), me.base[h]);
            if constexpr (LAZY) {
                const bool grow = base - me.base[h] > LAG;
                if (!grow)
                    base = me.base[h];
                changed |= grow;
            }
            me.alpha[h] = gpu_exp2(me.base[h] - gpu_finite_or_zero(base));
            me.base[h] = base;
        }
        return LAZY ? gpu_wave_any(changed) : changed;
    }
    // s becomes the weights, sum this block's share. MASKED: there may be rows without a key so far. TERMS: s is not capped yet, and
    // so small that that many terms of tanh will do.
    template <bool MASKED, int TERMS = 0>
    static GPU_FN void weigh(const gpu_wgmma_cap &c, state &me, float scale, float (&sum)[2])
    {
        const auto weight = [&](float x, float base) {
            if constexpr (TERMS == 0)
                return gpu_exp2(gpu_fma(x, scale, -base));
            const float *odd = TERMS == 3 ? c.three : c.five, t = x * x;
            float y = odd[TERMS - 1];
#pragma unroll
            for (int i = TERMS - 2; i >= 0; i--)
                y = gpu_fma(y, t, odd[i]);
            return gpu_exp2(gpu_fma(x, y, -base));
        };
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float base = MASKED ? gpu_finite_or_zero(me.base[h]) : me.base[h];
            float sum0 = 0, sum1 = 0;
#pragma unroll
            for (int i = 0; i < BN / 8; i++) {
                float &x0 = me.s[4 * i + 2 * h], &x1 = me.s[4 * i + 2 * h + 1];
                x0 = weight(x0, base), x1 = weight(x1, base);
                sum0 += x0, sum1 += x1;
            }
            sum[h] = sum0 + sum1;
        }
    }
    static GPU_FN void round_weights(state &me)
    {
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            me.p[i] = gpu_pair<E>(me.s[2 * i], me.s[2 * i + 1]);
    }
    static GPU_FN void rescale(state &me)
    {
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            me.o[i] *= me.alpha[i / 2 % 2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            me.sum[h] *= me.alpha[h], me.lost[h] *= me.alpha[h];
    }
    // The block in the current slot once more with its own maximum, for the 16 rows of a warp: by mma, for in a wgmma the others
    // of the group would have to take part.
    static GPU_FN void redo(const args &a, const pipeline &pipe, state &me, int wg, float scale, float (&sum)[2])
    {
        const int lane = gpu_lane(), warp = gpu_wave_id() % 4;
        const uint32_t qa =
            gpu_shared_address(pipe.q[me.q.stage] + wg * PANELS * PANEL_Q) + (warp * 16 + lane % 16) * 128;
        const uint32_t ka = gpu_shared_address(pipe.kv[me.kv.stage].k) + (lane / 16 * 8 + lane % 8) * 128;
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            me.s[i] = 0;
#pragma unroll 1
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t q[4], b[4];
            gpu_ldmatrix_at(q, qa + kk / 4 * (PANEL_Q * 2) + ((2 * (kk % 4) + lane / 16) ^ lane % 8) * 16);
            const uint32_t kb = ka + kk / 4 * (PANEL_KV * 2) + ((2 * (kk % 4) + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
            for (int n = 0; n < BN / 16; n++) {
                gpu_ldmatrix_at(b, kb + n * 2048);
                gpu_mma<E>(*(float(*)[4])(me.s + 8 * n), q, b[0], b[1]);
                gpu_mma<E>(*(float(*)[4])(me.s + 8 * n + 4), q, b[2], b[3]);
            }
        }
        if constexpr (CAP)
            cap(a.cap, me);
        follow<false>(me, scale);
        rescale(me);
        weigh<false>(a.cap, me, scale, sum);
    }

    // One block: Q·Kᵀ of block j beside P·V of block j + 1, the latter under the softmax of block j.
    template <bool MASKED>
    static GPU_FN void step(const args &a, pipeline &pipe, state &me, const wgmma_tile &t, int wg, int row, int j,
                            float scale)
    {
        constexpr bool WATCH = !MASKED;
        float sum[2];
        bool changed = false;
        await(pipe, me);
        gpu_wgmma_fence();
        issue_scores(me);
        issue_values(me);
        gpu_wgmma_wait<1>();
        gpu_wgmma_settle(me.s);
        if constexpr (CAP && MASKED)
            cap(a.cap, me);
        if constexpr (MASKED)
            hide(me, t, row, j);
        if constexpr (!WATCH)
            changed = follow<true>(me, scale);
        if constexpr (CAP && !MASKED) {
            const float most = largest(me);
            if (!gpu_wave_any(!(most <= a.cap.most_three)))
                weigh<false, 3>(a.cap, me, scale, sum);
            else if (!gpu_wave_any(!(most <= a.cap.most_five)))
                weigh<false, 5>(a.cap, me, scale, sum);
            else {
                cap(a.cap, me);
                weigh<false>(a.cap, me, scale, sum);
            }
        } else
            weigh<MASKED>(a.cap, me, scale, sum);
        // The branch stands before the wait for P·V, which also keeps the compiler from moving the exponentials below that wait.
        if constexpr (WATCH) {
            if (gpu_wave_any(sum[0] > LIMIT || sum[1] > LIMIT)) {
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(me.o);
                gpu_wgmma_settle(me.p);
                redo(a, pipe, me, wg, scale, sum);
            }
        }
        gpu_wgmma_wait<0>();
        gpu_wgmma_settle(me.o);
        gpu_wgmma_settle(me.p);
        release(pipe, me);
        round_weights(me);
        if (changed)
            rescale(me);
#pragma unroll
        for (int h = 0; h < 2; h++) { // thousands of equal terms would all be rounded the same way
            const float l = me.sum[h] + sum[h];
            me.lost[h] += sum[h] - (l - me.sum[h]);
            me.sum[h] = l;
        }
    }

    static GPU_FN void consume(const args &a, shared &sh, int wg)
    {
        pipeline &pipe = sh.pipe;
        const float scale = CAP ? 1.f : a.base.scale_log2;                 // from what s holds to exponents of 2
        const int row = wg * 64 + gpu_wave_id() % 4 * 16 + gpu_lane() / 4; // of the tile; and row + 8
        state me;
        me.sending = false;
        me.q_matrix = gpu_wgmma_matrix(gpu_shared_address(pipe.q[0] + wg * PANELS * PANEL_Q), 16);
        me.k_matrix = gpu_wgmma_matrix(gpu_shared_address(pipe.kv[0].k), 16);
        me.v_matrix = gpu_wgmma_matrix(gpu_shared_address(pipe.kv[0].v), PANEL_KV * 2);
#pragma unroll 1
        while (true) {
            gpu_mbarrier_wait(gpu_shared_address(&pipe.q_full[me.q.stage]), me.q.parity);
            release_q(pipe, me); // by now O has left
            const wgmma_tile &t = pipe.plans[me.plan.stage].tile;
            if (t.q0 < 0)
                break;
            const int slots = t.past > t.first ? t.past - t.first + 1 : 0;
            if (wg * 64 >= t.rows) {
                skip(pipe, me, slots);
                release_plan(pipe, me);
                end_tile(pipe, me);
                continue;
            }
            const wgmma_part part = pipe.plans[me.plan.stage].part[wg];
            const int first = part.first, past = part.past, whole_begin = part.whole_begin;
#pragma unroll
            for (int i = 0; i < DV / 2; i++)
                me.o[i] = 0;
#pragma unroll
            for (int h = 0; h < 2; h++)
                me.base[h] = gpu_minus_infinity(), me.sum[h] = me.lost[h] = 0;
            if (past <= first) { // no row sees a key
                finish<false>(a, sh, me, row, false);
                skip(pipe, me, slots);
                continue;
            }
            skip(pipe, me, t.past - past);
            await(pipe, me);
            gpu_wgmma_fence();
            issue_scores(me);
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(me.s);
            if constexpr (CAP)
                cap(a.cap, me);
            int j = past - 1;
            if (j >= part.watched || j < whole_begin) // one block too many is no harm
                hide(me, t, row, j);
            release(pipe, me);
            follow<false>(me, scale);
            weigh<true>(a.cap, me, scale, me.sum);
            round_weights(me);
            j--;
            int stop = part.watched > first ? part.watched : first;
#pragma unroll 1
            while (true) {
#pragma unroll 1
                for (; j >= stop; j--)
                    step<true>(a, pipe, me, t, wg, row, j, scale);
                if (j < first)
                    break;
#pragma unroll 1
                for (; j >= whole_begin; j--)
                    step<false>(a, pipe, me, t, wg, row, j, scale);
                stop = first;
            }
            const int left = first - t.first;
            finish<true>(a, sh, me, row, left == 0);
            skip(pipe, me, left);
        }
    }

    // O, rounded, in the layout of the accumulator (pair 2·i + h is row h·8, columns 8·i ...), by way of shared memory and the copy
    // engine, 16 rows a warp: my rows of Q, which no product needs any more; where there is one stage of Q, for which the next tile
    // waits, the place of K in the tile's last slot, which has none, PLACES panels at a time.
    static constexpr int PLACES = SENDS_Q ? PANELS_V : PANELS * PANEL_KV / (4 * NWG) / (16 * 64);
    static GPU_FN void send(const args &a, pipeline &pipe, const state &me, const wgmma_tile &t,
                            const uint32_t (&o)[DV / 4])
    {
        constexpr int APART = SENDS_Q ? PANEL_Q * 2 : 16 * 128; // bytes from panel to panel
        const int lane = gpu_lane(), wave = gpu_wave_id(), row = wave * 16;
        const uint32_t from =
            SENDS_Q ? gpu_shared_address(pipe.q[me.q.stage]) + wave / 4 * (PANELS * APART) + wave % 4 * 2048
                    : gpu_shared_address(pipe.kv[me.kv.stage].k) + wave * (PLACES * APART);
        const uint32_t mine = from + (lane / 8 % 2 * 8 + lane % 8) * 128 + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
        for (int c = 0; c < PANELS_V; c++) {
            if (c >= PLACES) {
                if (lane == 0)
                    gpu_bulk_wait_read<PLACES - 1>();
                gpu_wave_barrier();
            }
#pragma unroll
            for (int i = 0; i < 8 && 8 * c + i < DV / 8; i += 2)
                gpu_stmatrix_at((mine ^ i * 16) + c % PLACES * APART, o + 16 * c + 2 * i);
            gpu_async_fence();
            gpu_wave_barrier();
            if (lane == 0)
                gpu_tensor_store(&a.o, from + c % PLACES * APART, c * 64, t.q_row + row, t.head, t.q_batch);
        }
    }

    // The end of a tile: the last P·V, lse, O; fewer rows than 64 go straight from registers.
    // LAST: no other warpgroup needs K of the slot that holds my last V.
    template <bool ANY> static GPU_FN void finish(const args &a, shared &sh, state &me, int row, bool last)
    {
        const auto &p = a.base.p;
        const wgmma_tile t =
            sh.pipe.plans[me.plan.stage].tile; // read again, rather than kept in registers through the loop
        release_plan(sh.pipe, me);
        if constexpr (!SENDS_Q)
            end_tile(sh.pipe, me);
        const bool whole = t.rows >= gpu_warpgroup() * 64 + 64 && (SENDS_Q || (ANY && last));
        if constexpr (ANY) {
            await(sh.pipe, me);
            gpu_wgmma_fence();
            issue_values(me);
        }
        float factor[2];
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool here = row + 8 * h < t.rows;
            const float lost = me.lost[h] - me.lost[h] == 0 ? me.lost[h] : 0.f; // inf - inf
            const float sum = gpu_wave_sum<4>(me.sum[h] + lost);
            const gpu_row_end done(p, t.head, me.base[h], sum, me.base[h] > gpu_minus_infinity(), SHIFT);
            // What is not settled is NaN, for the careful passes leave alone what is finite.
            const bool finite = sum < -gpu_minus_infinity();
            if (here && t.lse && gpu_lane() % 4 == 0)
                t.lse[(row + 8 * h) * p.lse.stride[2]] = finite ? done.lse() : __builtin_nanf("");
            factor[h] = finite ? done.factor : __builtin_nanf("");
        }
        if constexpr (ANY) {
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(me.o);
            gpu_wgmma_settle(me.p);
            if (SENDS_Q || !whole)
                release(sh.pipe, me);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (gpu_wave_any(factor[h] == 0)) // no key weighs: 0, whatever V holds
#pragma unroll
                for (int i = 0; i < DV / 4; i++)
                    if (factor[h] == 0)
                        me.o[4 * (i / 2) + 2 * h + i % 2] = 0;
        bool sent = false;
        if (whole) {
            uint32_t o[DV / 4];
            wgmma_extent seen;
#pragma unroll
            for (int i = 0; i < DV / 4; i++) {
                o[i] = gpu_pair<E>(me.o[2 * i] * factor[i % 2], me.o[2 * i + 1] * factor[i % 2]);
                seen.add(o[i]);
            }
            if constexpr (SENDS_Q)
                gpu_named_barrier(2 + gpu_warpgroup(), 128); // no product of the others reads Q either
            sent = FAINT == 0 || !gpu_wave_any(seen.faint(FAINT));
            if (sent) {
                open = seen.template overflows<E>();
                send(a, sh.pipe, me, t, o);
            }
            if constexpr (!SENDS_Q) {
                if (gpu_lane() == 0)
                    gpu_bulk_wait_read<0>();
                release(sh.pipe, me);
            }
        }
        if constexpr (SENDS_Q)
            end_tile(sh.pipe, me);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (sent)
                break;
            const wgmma_extent seen =
                wgmma_store_row<E, DV>((E *)t.o + (row + 8 * h) * p.o.stride[2], row + 8 * h < t.rows, (int)p.d_v,
                                       [&](int i, int e) { return me.o[4 * i + 2 * h + e] * factor[h]; });
            open |= seen.template overflows<E>();
            if constexpr (FAINT > 0)
                if (gpu_wave_any(seen.faint(FAINT))) { // what is not settled is NaN
                    open = true;
#pragma unroll
                    for (int i = 0; i < DV / 4; i++) {
                        const int col = i / 2 * 8 + gpu_lane() % 4 * 2 + i % 2;
                        const float y = gpu_abs(me.o[i / 2 * 4 + 2 * h + i % 2] * factor[h]);
                        if (y > 0 && y < 0x1p-121f && row + 8 * h < t.rows && col < p.d_v)
                            ((E *)t.o)[(row + 8 * h) * p.o.stride[2] + col] = gpu_from_float<E>(__builtin_nanf(""));
                    }
                }
        }
        const int bit = t.round < ROUNDS - 1 ? t.round : ROUNDS - 1;
        if (gpu_wave_any(open) && gpu_lane() == 0)
            gpu_shared_or(&sh.bad[bit / 32], 1u << bit % 32);
    }

    // What was not settled, by mma's careful passes, when all else is done.
    static GPU_FN void again(const args &a, shared &sh)
    {
        gpu_bulk_wait(), gpu_async_fence_global(); // O is seen below
        gpu_named_barrier(1, 128 * NWG);           // all have noted, and need the slots no longer
        bool any = false;
        for (int i = 0; i < ROUNDS / 32; i++)
            any |= sh.bad[i] != 0;
        if (!any)
            return;
#pragma unroll 1
        for (int round = 0;; round++) {
            const int bit = round < ROUNDS - 1 ? round : ROUNDS - 1;
            int item;
            if (a.counters) {
                if (round == ROUNDS)
                    return;
                item = sh.items[round];
            } else if (!block::deal(a, sh, round, item))
                return;
            if (!(sh.bad[bit / 32] >> bit % 32 & 1))
                continue;
            const place at = block::place_of(a, item);
            if (at.m < 0)
                continue;
            const gpu_item work(a.base.p, (at.batch * a.base.p.heads + at.head) * a.base.q_tiles + at.m,
                                a.base.q_tiles);
            careful::again(a.base, sh.careful_room, work, block::begin_of(a, at.m), block::height_of(a, at.m));
        }
    }
};
