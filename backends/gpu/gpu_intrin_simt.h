// SPDX-License-Identifier: MIT OR Apache-2.0
// The dialect on the emulated device: host C++, one fiber per lane. Loads and stores take effect at once, after a check; wave
// operations execute when all lanes of the wave have arrived at the same one. backends/simt/ holds the machine.
// GPU_WAVE, from the build, chooses whose rules hold: 32 NVIDIA's (WMMA, cp.async), 64 AMD's (MFMA).
#pragma once

#define GPU_TILE_MAX   (GPU_WAVE == 32 ? 16 : 32)
#define GPU_ASYNC      (GPU_WAVE == 32)
#define GPU_PACKED_MAX (GPU_WAVE == 32)

#define GPU_HERE gpu_place gpu_at = __builtin_source_location()

GPU_FN int gpu_thread()
{
    return simt_now->thread;
}
GPU_FN int gpu_block()
{
    return simt_now->block;
}
GPU_FN int gpu_blocks()
{
    return simt_now->blocks;
}
GPU_FN int gpu_lane()
{
    return simt_now->thread % GPU_WAVE;
}
GPU_FN int gpu_wave_id()
{
    return simt_now->thread / GPU_WAVE;
}

GPU_FN void gpu_block_barrier(GPU_HERE)
{
    simt_block_barrier(gpu_at, "block barrier", false);
}
GPU_FN void gpu_next_item(GPU_HERE)
{
    simt_next_item(gpu_at);
}
GPU_FN bool gpu_block_any(bool x GPU_AT)
{
    return simt_block_barrier(gpu_at, "block_any", x);
}
GPU_FN void gpu_wave_barrier(GPU_HERE)
{
    simt_wave_barrier(gpu_at);
}
template <int MASK> void gpu_shfl_xor_wave(const simt_operation *const *o)
{
    for (int l = 0; l < GPU_WAVE; l++)
        *(float *)o[l]->out = *(const float *)o[l ^ MASK]->in[0];
    simt_count_exchange();
}
template <int MASK> GPU_FN float gpu_shfl_xor(float x GPU_AT)
{
    static_assert(MASK > 0 && MASK < GPU_WAVE, "xor stays in the wave");
    float y;
    const simt_operation op = {"shuffle", gpu_at, gpu_shfl_xor_wave<MASK>, {&x}, &y, {MASK}};
    simt_arrive(&op);
    return y;
}
inline void gpu_wave_any_wave(const simt_operation *const *o)
{
    bool any = false;
    for (int l = 0; l < GPU_WAVE; l++)
        any = any || *(const bool *)o[l]->in[0];
    for (int l = 0; l < GPU_WAVE; l++)
        *(bool *)o[l]->out = any;
    simt_count_exchange();
}
GPU_FN bool gpu_wave_any(bool x GPU_AT)
{
    bool any;
    const simt_operation op = {"wave_any", gpu_at, gpu_wave_any_wave, {&x}, &any, {}};
    simt_arrive(&op);
    return any;
}
GPU_FN void gpu_atomic_or(uint32_t *p, uint32_t bits GPU_AT)
{
    simt_atomic_access(NULL, p, sizeof *p, true, gpu_at);
    __atomic_fetch_or(p, bits, __ATOMIC_RELAXED);
}
template <class T> GPU_FN T gpu_atomic_add(T *p, T n GPU_AT)
{
    simt_atomic_access(NULL, p, sizeof *p, true, gpu_at);
    return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
GPU_FN uint64_t gpu_atomic_ask(uint64_t *p, uint64_t n GPU_AT)
{
    return gpu_atomic_add(p, n GPU_LINE);
}
GPU_FN uint64_t *gpu_atomic_word(const kiln_view &v, int64_t i0, int64_t i1, simt_at gpu_at)
{
    uint64_t *p = (uint64_t *)v.data + i0 * v.stride[0] + i1 * v.stride[1];
    simt_atomic_access(&v, p, sizeof *p, i0 >= 0 && i0 < v.size[0] && i1 >= 0 && i1 < v.size[1], gpu_at);
    return p;
}
GPU_FN uint64_t gpu_atomic_load(const kiln_view &v, int64_t i0, int64_t i1 GPU_AT)
{
    return __atomic_load_n(gpu_atomic_word(v, i0, i1, gpu_at), __ATOMIC_RELAXED);
}
GPU_FN void gpu_atomic_store(const kiln_view &v, int64_t i0, int64_t i1, uint64_t x GPU_AT)
{
    __atomic_store_n(gpu_atomic_word(v, i0, i1, gpu_at), x, __ATOMIC_RELAXED);
}
GPU_FN void gpu_pause(GPU_HERE)
{
    simt_pause(gpu_at);
}

GPU_FN float gpu_exp2(float x)
{
    return exp2f(x);
}
GPU_FN float gpu_log2(float x)
{
    return log2f(x);
}
GPU_FN float gpu_rcp(float x)
{
    return 1.f / x;
}
GPU_FN float gpu_max(float a, float b)
{
    return fmaxf(a, b);
}
GPU_FN float gpu_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
// Compiled without contraction.
GPU_FN float gpu_product(float a, float b)
{
    return a * b;
}

GPU_FN float gpu_to_float(float x)
{
    return x;
}
GPU_FN float gpu_to_float(gpu_half x)
{
    return (float)__builtin_bit_cast(_Float16, x.bits);
}
GPU_FN float gpu_to_float(gpu_bf16 x)
{
    return __builtin_bit_cast(float, (uint32_t)x.bits << 16);
}
template <class E> GPU_FN E gpu_from_float(float x)
{
    if constexpr (sizeof(E) == 4)
        return x;
    else if constexpr (__is_same(E, gpu_half))
        return {__builtin_bit_cast(uint16_t, (_Float16)x)};
    else {
        const uint32_t u = __builtin_bit_cast(uint32_t, x);
        return {(uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16)};
    }
}
template <class E> GPU_FN uint32_t gpu_max_packed(uint32_t a, uint32_t b)
{
    uint32_t y = 0;
    for (int i = 0; i < 32; i += 16)
        y |= (uint32_t)gpu_from_float<E>(
                 gpu_max(gpu_to_float(E{(uint16_t)(a >> i)}), gpu_to_float(E{(uint16_t)(b >> i)})))
                 .bits
             << i;
    return y;
}
template <class E, int N> GPU_FN gpu_vec<E, N> gpu_from_floats(const gpu_vec<float, N> &x)
{
    gpu_vec<E, N> y;
    for (int i = 0; i < N; i++)
        y[i] = gpu_from_float<E>(x[i]);
    return y;
}
template <int BYTES> GPU_FN void gpu_move(void *to, const void *from)
{
    __builtin_memcpy(__builtin_assume_aligned(to, BYTES), __builtin_assume_aligned(from, BYTES), BYTES);
}
template <int BYTES> GPU_FN void gpu_put(void *to, const void *from)
{
    gpu_move<BYTES>(to, from);
}
template <int BYTES> GPU_FN void gpu_move_stream(void *to, const void *from)
{
    gpu_move<BYTES>(to, from);
}
template <int BYTES> GPU_FN void gpu_put_stream(void *to, const void *from)
{
    gpu_move<BYTES>(to, from);
}

template <class T>
GPU_FN void gpu_check_global(const gpu_rows<T> &m, int64_t r, int64_t c, int n, bool write, simt_at gpu_at)
{
    const bool in = r >= 0 && r < m.rows && c >= 0 && c + n <= m.cols;
    const int64_t index[2] = {m.first + r, c};
    simt_global_access(m.of, (const char *)m.data + (r * m.stride + c) * (int64_t)sizeof(T), n * (int)sizeof(T),
                       n * (int)sizeof(T), sizeof(T), write, in, index, 2, gpu_at);
}
GPU_FN void gpu_check_view(const kiln_view &v, int64_t i0, int64_t i1, int64_t i2, int64_t i3, int bytes, bool write,
                           simt_at gpu_at)
{
    const int64_t index[4] = {i0, i1, i2, i3};
    bool in = true;
    for (int axis = 0; axis < 4; axis++) // along a broadcast axis any index names the same element
        in = in && index[axis] >= 0 && (index[axis] < v.size[axis] || (v.stride[axis] == 0 && v.size[axis] == 1));
    simt_global_access(&v, v.data + kiln_view_offset(&v, i0, i1, i2, i3) * bytes, bytes, bytes, bytes, write, in, index,
                       4, gpu_at);
}
// A: gpu_array, gpu_swizzled: any matrix with rows, cols and at().
template <class A> GPU_FN void gpu_check_shared(A &m, int r, int c, int n, bool write, simt_at gpu_at)
{
    const int bytes = n * (int)sizeof *m.at(0, 0);
    const bool in = r >= 0 && r < A::rows && c >= 0 && c + n <= A::cols;
    const auto *p = in ? m.at(r, c) : m.at(0, 0);
    simt_shared_access(p, bytes, bytes, write ? SIMT_WRITE : 0, in, r, c, gpu_at);
    simt_shared_count(p, bytes, write, gpu_at);
}
template <int N, class A, class T>
GPU_FN void gpu_copy_async(A &to, int r, int c, const gpu_rows<const T> &from, int fr, bool in GPU_AT)
{
    if (in)
        gpu_check_global(from, fr, c, N, false, gpu_at);
    gpu_check_shared(to, r, c, N, true, gpu_at);
    simt_copy_async(to.at(r, c), from.at(fr, c), N * sizeof(T), in ? N * sizeof(T) : 0, gpu_at);
}
template <class V> GPU_FN void gpu_pin(V &)
{
}
template <class A, class T>
GPU_FN void gpu_copy_async_piece(A &to, int r, int c, const gpu_rows<const T> &from, int fr, int fc, bool in GPU_AT)
{
    if (!in)
        return;
    gpu_check_global(from, fr, fc, 16 / (int)sizeof(T), false, gpu_at);
    gpu_check_shared(to, r, c, 16 / (int)sizeof *to.at(0, 0), true, gpu_at);
    simt_copy_async(to.at(r, c), from.at(fr, fc), 16, 16, gpu_at);
}
GPU_FN void gpu_copy_commit()
{
    simt_copy_commit();
}
template <int N> GPU_FN void gpu_copy_wait_groups(GPU_HERE)
{
    simt_copy_wait(N, gpu_at);
}
GPU_FN void gpu_copy_wait(GPU_HERE)
{
    simt_copy_wait(-1, gpu_at);
}

// The matrix unit. 32 lanes: WMMA, whose layout is a secret, so the seed permutes it, and an access to shared memory is made
// by some lane of the wave, never a known one. 64 lanes: MFMA, in the published layout.
template <class E, int SIZE> struct gpu_tile {
    static constexpr bool mfma = GPU_WAVE == 64;
    static_assert(mfma ? SIZE == 16 || SIZE == 32 : SIZE == 16, "shapes of the hardware");
    static constexpr int M = SIZE, K = 8 * GPU_WAVE / M;
    static constexpr bool b_by_rows = !mfma;
    struct fragment {
        E v[8];
    };
    struct a : fragment {
    };
    struct bk : fragment {
    };
    struct bn : bk { // the same registers, filled another way
    };
    struct acc {
        static constexpr int n = M * M / GPU_WAVE;
        float v[n];
        float &x(int i)
        {
            return v[i];
        }
    };
    struct place {
        int i, j;
    };
    using lanes = const simt_operation *const *; // of a wave that has met

    // Where element e of lane l lies. A: row and k; B: column and k; accumulator: row and column.
    static place wmma(int which, int l, int e)
    {
        const int p = simt_wmma_place[which][l % 32][e % 8];
        return {p / 16, p % 16};
    }
    static place of_a(int l, int e)
    {
        return mfma ? place{l % M, l / M * 8 + e} : wmma(0, l, e);
    }
    static place of_b(int l, int e)
    {
        return mfma ? of_a(l, e) : wmma(1, l, e);
    }
    static place of_acc(int l, int e)
    {
        return mfma ? place{8 * (e / 4) + 4 * (l / M) + e % 4, l % M} : wmma(2, l, e);
    }

    // WMMA: what the wave accesses, rows x 16 elements from (r, c) on. It wants 32 bytes of alignment where it begins and 16 in
    // every row.
    template <class A> static void wave_access(A &m, int r, int c, int rows, int flags, simt_at gpu_at)
    {
        for (int i = 0; i < rows; i++)
            simt_shared_access(m.at(r + i, c), 16 * (int)sizeof m.data[0], i ? 16 : 32, flags | SIMT_ANY_LANE,
                               r >= 0 && c >= 0 && r + i < A::rows && c + 16 <= A::cols, r + i, c, gpu_at);
    }
    // MFMA: n neighbouring elements of the running lane.
    template <class A> static void lane_access(A &m, int r, int c, int n, bool write, simt_at gpu_at)
    {
        gpu_check_shared(m, r, c, n, write, gpu_at);
    }
    // All lanes name the same place of the same matrix; `execute` does the work of WMMA for all of them.
    template <class A>
    static void meet(const char *name, A &m, int r, int c, void *registers, void (*execute)(lanes), simt_at gpu_at)
    {
        const simt_operation op = {name, gpu_at, execute, {&m}, registers, {r, c, (int64_t)(uintptr_t)&m}};
        simt_arrive(&op);
    }

    // An operand. BY_ROWS: k runs down the rows of the matrix, else along them.
    template <bool IS_A, bool BY_ROWS, class A> static void load_wave(lanes o)
    {
        A &m = *(A *)o[0]->in[0];
        const int r = (int)o[0]->same[0], c = (int)o[0]->same[1];
        wave_access(m, r, c, 16, 0, o[0]->at);
        for (int l = 0; l < GPU_WAVE; l++)
            for (int e = 0; e < 8; e++) {
                const place p = IS_A ? of_a(l, e) : of_b(l, e);
                ((fragment *)o[l]->out)->v[e] = BY_ROWS ? *m.at(r + p.j, c + p.i) : *m.at(r + p.i, c + p.j);
            }
    }
    template <bool IS_A, bool BY_ROWS, class A>
    static void load(const char *name, fragment &f, A &m, int r, int c, simt_at gpu_at)
    {
        const int l = gpu_lane();
        if constexpr (!mfma) {
            meet(name, m, r, c, &f, load_wave<IS_A, BY_ROWS, A>, gpu_at);
            simt_shared_count(m.at(r + l % 16, c + l / 16 * 8), 16, false,
                              gpu_at); // ldmatrix: 8 rows of 16 bytes a phase
            return;
        }
        meet(name, m, r, c, &f, nullptr, gpu_at);
        if (!BY_ROWS) // 16 bytes of a row
            lane_access(m, r + l % M, c + l / M * 8, 8, false, gpu_at);
        for (int e = 0; e < 8; e++) {
            const int i = r + (BY_ROWS ? l / M * 8 + e : l % M), j = c + (BY_ROWS ? l % M : l / M * 8 + e);
            if (BY_ROWS)
                lane_access(m, i, j, 1, false, gpu_at);
            f.v[e] = *m.at(i, j);
        }
    }
    template <class A> static void load_a(a &f, A &m, int r, int c GPU_AT)
    {
        load<true, false>("load_a", f, m, r, c, gpu_at);
    }
    template <class A> static void load_bk(bk &f, A &m, int r, int c GPU_AT)
    {
        load<false, false>("load_bk", f, m, r, c, gpu_at);
    }
    template <class A> static void load_bn(bn &f, A &m, int r, int c GPU_AT)
    {
        load<false, true>("load_bn", f, m, r, c, gpu_at);
    }

    template <class A> static void load_rows_wave(lanes o)
    {
        A &m = *(A *)o[0]->in[0];
        const int r = (int)o[0]->same[0], c = (int)o[0]->same[1];
        wave_access(m, r, c, 1, 0, o[0]->at);
        for (int l = 0; l < GPU_WAVE; l++)
            for (int e = 0; e < acc::n; e++)
                ((acc *)o[l]->out)->v[e] = *m.at(r, c + of_acc(l, e).i);
    }
    template <class A> static void load_rows(acc &d, A &m, int r, int c GPU_AT)
    {
        meet("load_rows", m, r, c, &d, mfma ? nullptr : load_rows_wave<A>, gpu_at);
        for (int e = 0; mfma && e < acc::n; e += 4) {
            const int i = c + of_acc(gpu_lane(), e).i;
            lane_access(m, r, i, 4, false, gpu_at);
            for (int u = 0; u < 4; u++)
                d.v[e + u] = *m.at(r, i + u);
        }
    }

    template <class A> static void store_wave(lanes o)
    {
        A &m = *(A *)o[0]->in[0];
        const int r = (int)o[0]->same[0], c = (int)o[0]->same[1];
        wave_access(m, r, c, 16, SIMT_WRITE, o[0]->at);
        for (int l = 0; l < GPU_WAVE; l++)
            for (int e = 0; e < acc::n; e++)
                *m.at(r + of_acc(l, e).i, c + of_acc(l, e).j) = ((const acc *)o[l]->out)->v[e];
    }
    template <class A> static void store(A &m, int r, int c, const acc &d GPU_AT)
    {
        const int l = gpu_lane();
        meet("store", m, r, c, const_cast<acc *>(&d), mfma ? nullptr : store_wave<A>, gpu_at);
        for (int e = 0; mfma && e < acc::n; e++) {
            const place p = of_acc(l, e);
            lane_access(m, r + p.i, c + p.j, 1, true, gpu_at);
            *m.at(r + p.i, c + p.j) = d.v[e];
        }
        for (int e = 0; !mfma && e < 4; e++) // as the hardware stores: two neighbours of a row a lane
            simt_shared_count(m.at(r + l / 4 + e / 2 * 8, c + l % 4 * 2 + e % 2 * 8), 8, true, gpu_at);
    }

    static void zero(acc &d)
    {
        memset(&d, 0, sizeof d);
    }
    static void mma_wave(lanes o)
    {
        float A[M][K], B[K][M], D[M][M];
        for (int l = 0; l < GPU_WAVE; l++) {
            for (int e = 0; e < 8; e++) {
                const place x = of_a(l, e), y = of_b(l, e);
                A[x.i][x.j] = gpu_to_float(((const fragment *)o[l]->in[0])->v[e]);
                B[y.j][y.i] = gpu_to_float(((const fragment *)o[l]->in[1])->v[e]);
            }
            for (int e = 0; e < acc::n; e++)
                D[of_acc(l, e).i][of_acc(l, e).j] = ((const acc *)o[l]->out)->v[e];
        }
        for (int i = 0; i < M; i++)
            for (int k = 0; k < K; k++)
                for (int j = 0; j < M; j++)
                    D[i][j] += A[i][k] * B[k][j];
        for (int l = 0; l < GPU_WAVE; l++)
            for (int e = 0; e < acc::n; e++)
                ((acc *)o[l]->out)->v[e] = D[of_acc(l, e).i][of_acc(l, e).j];
        simt_count_matrix_op();
    }
    static void mma(acc &d, const a &x, const bk &y GPU_AT)
    {
        const simt_operation op = {"mma", gpu_at, mma_wave, {&x, &y}, &d, {}};
        simt_arrive(&op);
    }
};

// Descriptions lie one after the other in a section of their own, where tests/hip finds kernels by name.
#define GPU_KERNEL(NAME, ...)                                                                                          \
    static void NAME(const void *args, void *arena)                                                                    \
    {                                                                                                                  \
        const auto &a = *(const __VA_ARGS__::args *)args;                                                              \
        static_assert(sizeof a <= 4096, "parameters of a kernel");                                                     \
        if (!arena)                                                                                                    \
            return simt_tensors_of(a);                                                                                 \
        gpu_run_items<__VA_ARGS__>(a, *(__VA_ARGS__::shared *)arena);                                                  \
    }                                                                                                                  \
    extern "C" __attribute__((section("simt_kernels"))) GPU_DESCRIBE(NAME, NAME, (__VA_ARGS__::blocks), __VA_ARGS__)
