// SPDX-License-Identifier: MIT OR Apache-2.0
// The device dialect: everything a kernel may say. One kernel source is compiled
//   by nvcc   (gpu_intrin_cuda.h): 32 lanes, WMMA, __shfl_xor_sync, cp.async;
//   by clang  (gpu_intrin_hip.h):  64 lanes, MFMA, DPP/swizzle/bpermute, no HIP headers;
//   by clang  (gpu_intrin_simt.h): as host C++, a fiber per lane, everything checked and counted.
//
// A kernel is a struct K with: args (a C struct of gpu_kernel.h, which begins with `items`), shared (a struct of gpu_array,
// all of its shared memory), threads, blocks (that a multiprocessor should hold), tile_q, tile_k, and
// run(const args &, shared &, int64_t item). GPU_KERNEL(symbol, K) makes the entry point, which runs the items that are the
// block's with a block barrier between them, and symbol_info. A run() that returns bool says that something is left to do
// (all threads the same): then rest(const args &, shared &, int64_t item) is called for all items of the block, after the
// last. What is rare stands there, apart from the loops that must be fast: in or under them it would cost them registers.
//
// Supplied by the target's file:
//   GPU_WAVE GPU_TILE_MAX GPU_ASYNC GPU_PACKED_MAX  lanes in a wave; largest M of a tile; whether copies bypass registers;
//                                  whether gpu_max_packed is one instruction
//   gpu_thread gpu_block gpu_blocks gpu_lane gpu_wave_id
//   gpu_atomic_or(uint32_t *, bits), gpu_atomic_add(uint32_t * or uint64_t *, n)  relaxed, on global memory; what was there before
//   gpu_atomic_ask(uint64_t *, n)  gpu_atomic_add that nobody waits for until its outcome is used
//   gpu_atomic_load(view, i0, i1), gpu_atomic_store(view, i0, i1, x)  relaxed, of the 8 bytes (i0, i1) of a view: how a block
//                                  tells others of its launch something, in one word. Nothing else is ordered by it
//   gpu_pause                      between two looks at a word that another block will write; only for what blocks write that
//                                  run already, whatever became of those that do not
//   gpu_next_item                  between the items of a block: a block barrier; nothing in shared memory is kept
//   gpu_block_any(bool)            whether it holds for any thread of the block; a block barrier too
//   gpu_wave_any(bool)             whether it holds for any lane of the wave
//   gpu_block_barrier              all threads of the block; orders their shared memory
//   gpu_wave_barrier               all lanes of the wave; orders their shared memory. A shuffle does not.
//   gpu_shfl_xor<MASK>(float)      the mask is a constant: AMD has it in the instruction
//   gpu_exp2 gpu_log2 gpu_rcp gpu_max gpu_fma gpu_product (a product that is not fused with a sum)
//   gpu_max_packed<E>(uint32_t, uint32_t)  of two 16-bit numbers each, as gpu_max; where GPU_PACKED_MAX
//   gpu_to_float(E), gpu_from_float<E>(float), gpu_from_floats<E>(gpu_vec<float, N>)
//   gpu_move<BYTES>, gpu_put<BYTES>  2, 4, 8 or 16 bytes in one instruction; put: to global memory
//   gpu_move_stream<BYTES>, gpu_put_stream<BYTES>  the same for data that caches need not keep
//   gpu_tile<E, M>                 M x M x K on the matrix unit, see below
//   gpu_pin(v)                     16 bytes that stay as loaded until here: else the wait moves up to the load, or what was
//                                  computed from them (fp32 of packed halves) is kept instead, in twice the registers
//   gpu_copy_async, gpu_copy_wait  used through gpu_tile_copy only; gpu_copy_async_piece through gpu_copy_piece
//   gpu_copy_commit, gpu_copy_wait_groups<N>  asynchronous copies of this thread: close a group; wait for all groups but N
#pragma once
#include "gpu_kernel.h"

// Storage only: arithmetic is in fp32.
struct gpu_half {
    uint16_t bits;
};
struct gpu_bf16 {
    uint16_t bits;
};

template <class T> struct gpu_plain {
    using type = T;
};
template <class T> struct gpu_plain<const T> {
    using type = T;
};
template <bool, class A, class B> struct gpu_select {
    using type = A;
};
template <class A, class B> struct gpu_select<false, A, B> {
    using type = B;
};

#if defined(__CUDACC__)
#define GPU_FN   __device__ __forceinline__
#define GPU_CALL __device__ __noinline__ // for the rare: its registers are its own
#elif defined(__HIP__)
#define GPU_FN   __attribute__((device, always_inline)) inline
#define GPU_CALL __attribute__((device, noinline))
#else
#define GPU_FN   inline
#define GPU_CALL inline
#endif
// f(0), f(1), ... f(N - 1) with constants as arguments, where a loop counter must be a template argument.
template <int I> struct gpu_constant {
    GPU_FN constexpr operator int() const
    {
        return I;
    }
};
template <int N, int I = 0, class F> GPU_FN void gpu_unroll(F &&f)
{
    if constexpr (I < N) {
        f(gpu_constant<I>());
        gpu_unroll<N, I + 1>(f);
    }
}
// Where an access stands in the source: the emulator reports it, hardware does not carry it.
#if defined(__CUDACC__) || defined(__HIP__)
#define GPU_AT
#define GPU_LINE
#else
#define GPU_AT   , gpu_place gpu_at = __builtin_source_location()
#define GPU_LINE , gpu_at
typedef simt_at gpu_place;
#endif

template <class T, int N> struct alignas(sizeof(T) * N) gpu_vec {
    T v[N];
    GPU_FN T &operator[](int i)
    {
        return v[i];
    }
    GPU_FN const T &operator[](int i) const
    {
        return v[i];
    }
};

// a / b of numbers >= 0: 64-bit division is a subroutine of a hundred instructions, and nearly always not needed.
GPU_FN int64_t gpu_divide(int64_t a, int64_t b)
{
    return ((a | b) >> 31) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

// A matrix in global memory with unit stride along its rows: one (batch, head) of a view. Rows and columns are logical, so
// that the emulator can judge them. Types are the caller's promise.
template <class T> struct gpu_rows {
    T *data;
    int64_t stride;
    int64_t first, rows; // first: of which row of the view this is row 0
    int cols;
    const kiln_view *of;
    gpu_rows() = default;
    GPU_FN gpu_rows(const kiln_view &t, int64_t b, int64_t h)
        : data((T *)t.data + b * t.stride[0] + h * t.stride[1]), stride(t.stride[2]), first(0), rows(t.size[2]),
          cols((int)t.size[3]), of(&t)
    {
    }
    GPU_FN T *at(int r, int c) const
    {
        return data + r * stride + c;
    }
    // Rows from r on, so that rows at constant distances share one 64-bit product.
    GPU_FN gpu_rows from(int64_t r) const
    {
        gpu_rows m = *this;
        m.data += r * stride, m.first += r, m.rows -= r;
        return m;
    }
    // Rows r ... r + n - 1 only.
    GPU_FN gpu_rows slice(int64_t r, int64_t n) const
    {
        gpu_rows m = from(r);
        m.rows = n;
        return m;
    }
};

// A matrix in shared memory. PAD elements end each row to spread the banks; they are never touched.
template <class T, int ROWS, int COLS, int PAD = 0> struct alignas(32) gpu_array {
    static constexpr int rows = ROWS, cols = COLS, pitch = COLS + PAD;
    T data[ROWS * pitch];
    GPU_FN T *at(int r, int c)
    {
        return data + r * pitch + c;
    }
};

// What the host knows of the kernel that is the struct in the last arguments (gpu_kernel.h); for GPU_KERNEL.
#define GPU_DESCRIBE(NAME, ENTRY, BLOCKS, ...)                                                                         \
    const gpu_kernel GPU_INFO(NAME) = {#NAME,    (void (*)(void))ENTRY,       __VA_ARGS__::threads,                    \
                                       BLOCKS,   sizeof(__VA_ARGS__::shared), sizeof(__VA_ARGS__::args),               \
                                       GPU_WAVE, __VA_ARGS__::tile_q,         __VA_ARGS__::tile_k};

#if defined(__CUDACC__)
#include "gpu_intrin_cuda.h"
#elif defined(__HIP__)
#include "gpu_intrin_hip.h"
#else
#include "gpu_intrin_simt.h"
#endif

// ---- the body of an entry point ----
template <class K> GPU_FN void gpu_run_items(const typename K::args &a, typename K::shared &shared)
{
    bool left = false;
    for (int64_t item = gpu_block(); item < a.items; item += gpu_blocks()) {
        if (item != gpu_block())
            gpu_next_item();
        if constexpr (__is_same(decltype(K::run(a, shared, item)), bool))
            left |= K::run(a, shared, item);
        else
            K::run(a, shared, item);
    }
    if constexpr (__is_same(decltype(K::run(a, shared, 0)), bool))
        for (int64_t item = gpu_block(); left && item < a.items; item += gpu_blocks()) {
            gpu_next_item();
            K::rest(a, shared, item);
        }
}

// ---- loads and stores of N elements, naturally aligned ----
template <int N, class T> GPU_FN auto gpu_load(const gpu_rows<T> &m, int r, int c GPU_AT)
{
    using V = gpu_vec<typename gpu_plain<T>::type, N>;
    gpu_check_global(m, r, c, N, false GPU_LINE);
    V v;
    gpu_move<sizeof v>(&v, m.at(r, c));
    return v;
}
template <int N, class T> GPU_FN void gpu_store(const gpu_rows<T> &m, int r, int c, const gpu_vec<T, N> &v GPU_AT)
{
    gpu_check_global(m, r, c, N, true GPU_LINE);
    gpu_put<sizeof v>(m.at(r, c), &v);
}
// 16 bytes of elements as the four registers they are: as a vector of halves a compiler may give each a register of its own.
using gpu_packed = gpu_vec<uint32_t, 4>;
template <bool STREAM, class T> GPU_FN gpu_packed gpu_load_packed(const gpu_rows<T> &m, int r, int c GPU_AT)
{
    gpu_check_global(m, r, c, 16 / sizeof(T), false GPU_LINE);
    gpu_packed v;
    if constexpr (STREAM)
        gpu_move_stream<16>(&v, m.at(r, c));
    else
        gpu_move<16>(&v, m.at(r, c));
    return v;
}
template <class E> GPU_FN gpu_packed gpu_pack_all(float x)
{
    const E e = gpu_from_float<E>(x);
    uint32_t w;
    if constexpr (sizeof(E) == 4)
        w = __builtin_bit_cast(uint32_t, e);
    else
        w = e.bits * 0x10001u;
    return {{w, w, w, w}};
}
template <class E> GPU_FN gpu_vec<float, 16 / sizeof(E)> gpu_unpack(const gpu_packed &p)
{
    gpu_vec<float, 16 / sizeof(E)> x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(E) == 4)
            x[i] = __builtin_bit_cast(float, p[i]);
        else
            x[2 * i] = gpu_to_float(E{(uint16_t)p[i]}), x[2 * i + 1] = gpu_to_float(E{(uint16_t)(p[i] >> 16)});
    }
    return x;
}
// 16 bytes from global to shared memory, asynchronous where the target can: there when the thread has waited for its group.
// `in`: whether at all. As an argument it does not cut the code into pieces, each with addresses of its own.
template <class A, class T>
GPU_FN void gpu_copy_piece(A &to, int r, int c, const gpu_rows<const T> &from, int fr, int fc, bool in = true GPU_AT)
{
    if constexpr (GPU_ASYNC)
        gpu_copy_async_piece(to, r, c, from, fr, fc, in GPU_LINE);
    else if (in)
        gpu_store<4>(to, r, c, gpu_load_packed<true>(from, fr, fc GPU_LINE) GPU_LINE);
}
// The same, with the hint that nobody will want it again soon: caches keep other data.
template <int N, class T> GPU_FN auto gpu_load_stream(const gpu_rows<T> &m, int r, int c GPU_AT)
{
    using V = gpu_vec<typename gpu_plain<T>::type, N>;
    gpu_check_global(m, r, c, N, false GPU_LINE);
    V v;
    gpu_move_stream<sizeof v>(&v, m.at(r, c));
    return v;
}
template <int N, class T>
GPU_FN void gpu_store_stream(const gpu_rows<T> &m, int r, int c, const gpu_vec<T, N> &v GPU_AT)
{
    gpu_check_global(m, r, c, N, true GPU_LINE);
    gpu_put_stream<sizeof v>(m.at(r, c), &v);
}
template <int N, class T, int R, int C, int P>
GPU_FN gpu_vec<T, N> gpu_load(gpu_array<T, R, C, P> &m, int r, int c GPU_AT)
{
    gpu_check_shared(m, r, c, N, false GPU_LINE);
    gpu_vec<T, N> v;
    gpu_move<sizeof v>(&v, m.at(r, c));
    return v;
}
template <int N, class T, int R, int C, int P>
GPU_FN void gpu_store(gpu_array<T, R, C, P> &m, int r, int c, const gpu_vec<T, N> &v GPU_AT)
{
    gpu_check_shared(m, r, c, N, true GPU_LINE);
    gpu_move<sizeof v>(m.at(r, c), &v);
}
template <int BYTES, class T> GPU_FN bool gpu_aligned(const gpu_rows<T> &m, int r)
{
    return (uintptr_t)m.at(r, 0) % BYTES == 0;
}

// ---- one element of a view, any strides: lengths, tables, bias, masks ----
template <class T>
GPU_FN T gpu_read(const kiln_view &v, int64_t i0, int64_t i1 = 0, int64_t i2 = 0, int64_t i3 = 0 GPU_AT)
{
    gpu_check_view(v, i0, i1, i2, i3, sizeof(T), false GPU_LINE);
    return ((const T *)v.data)[i0 * v.stride[0] + i1 * v.stride[1] + i2 * v.stride[2] + i3 * v.stride[3]];
}
template <class T> GPU_FN void gpu_write(const kiln_view &v, int64_t i0, int64_t i1, int64_t i2, int64_t i3, T x GPU_AT)
{
    gpu_check_view(v, i0, i1, i2, i3, sizeof(T), true GPU_LINE);
    ((T *)v.data)[i0 * v.stride[0] + i1 * v.stride[1] + i2 * v.stride[2] + i3 * v.stride[3]] = x;
}
// The same where the type is data: fp32, fp16 or bf16.
GPU_FN float gpu_read_float(const kiln_view &v, int64_t i0, int64_t i1, int64_t i2, int64_t i3 GPU_AT)
{
    if (v.type == KILN_FLOAT32)
        return gpu_read<float>(v, i0, i1, i2, i3 GPU_LINE);
    if (v.type == KILN_FLOAT16)
        return gpu_to_float(gpu_read<gpu_half>(v, i0, i1, i2, i3 GPU_LINE));
    return gpu_to_float(gpu_read<gpu_bf16>(v, i0, i1, i2, i3 GPU_LINE));
}
GPU_FN void gpu_write_float(const kiln_view &v, int64_t i0, int64_t i1, int64_t i2, int64_t i3, float x GPU_AT)
{
    if (v.type == KILN_FLOAT32)
        gpu_write<float>(v, i0, i1, i2, i3, x GPU_LINE);
    else if (v.type == KILN_FLOAT16)
        gpu_write<gpu_half>(v, i0, i1, i2, i3, gpu_from_float<gpu_half>(x) GPU_LINE);
    else
        gpu_write<gpu_bf16>(v, i0, i1, i2, i3, gpu_from_float<gpu_bf16>(x) GPU_LINE);
}

// tanh from one exponential and one reciprocal: absolute error below 2^-21, which is what numerics.h wants of it.
GPU_FN float gpu_tanh(float x)
{
    return 1.f - 2.f * gpu_rcp(gpu_exp2(2.88539008178f * x) + 1.f);
}

GPU_FN constexpr float gpu_minus_infinity()
{
    return -__builtin_huge_valf();
}
// Guards (-inf) - (-inf).
GPU_FN float gpu_finite_or_zero(float m)
{
    return m == gpu_minus_infinity() ? 0.f : m;
}

// ---- butterflies over WIDTH neighbouring lanes; every lane gets the result ----
template <int WIDTH> GPU_FN float gpu_wave_max(float x GPU_AT)
{
    if constexpr (WIDTH > 1)
        x = gpu_wave_max<WIDTH / 2>(gpu_max(x, gpu_shfl_xor<WIDTH / 2>(x GPU_LINE)) GPU_LINE);
    return x;
}
template <int WIDTH> GPU_FN float gpu_wave_sum(float x GPU_AT)
{
    if constexpr (WIDTH > 1)
        x = gpu_wave_sum<WIDTH / 2>(x + gpu_shfl_xor<WIDTH / 2>(x GPU_LINE) GPU_LINE);
    return x;
}

// ---- gpu_tile<E, M>: the matrix unit ----
//   M (rows = columns of a tile), K (depth of one mma), b_by_rows (whether load_bn is fast: if not, stage B transposed)
//   types a, bk, bn, acc;  acc::n elements a lane, x(i) any one of them: WHICH element is the target's secret
//   load_a (a,   array, r, c)  a[i][k] = array[r+i][c+k]        load_bk(bk, array, r, c)  b[k][j] = array[r+j][c+k]
//   load_bn(bn,  array, r, c)  b[k][j] = array[r+k][c+j]        store  (array, r, c, acc)
//   load_rows(acc, array, r, c)  acc[i][j] = array[r][c+i]: a value per row, in the accumulator's own layout, so that
//                              elementwise code can scale rows without knowing the layout
//   zero(acc)   mma(acc, a, b)

// ---- a ROWS x COLS tile from global to shared memory, by all THREADS ----
// issue() starts it, land() ends it; the destination belongs to the copy in between; a block barrier then shows it to
// others. cp.async goes straight to shared memory; elsewhere the tile waits in registers, which hides the latency and
// lets land() transpose. Rows from `limit` on become zeros and are not read.
template <class E, int ROWS, int COLS, int THREADS, bool TRANSPOSE = false> struct gpu_tile_copy {
    static constexpr int V = 16 / sizeof(E), PER = TRANSPOSE ? 2 : 1; // a piece: PER rows of V columns
    static constexpr int ACROSS = TRANSPOSE ? ROWS / PER : COLS / V;  // pieces that neighbouring threads take
    static constexpr int STEPS = ROWS / PER * (COLS / V) / THREADS;
    static constexpr bool direct = GPU_ASYNC && !TRANSPOSE;
    static_assert(STEPS * THREADS == ROWS / PER * (COLS / V) && THREADS % ACROSS == 0, "pieces share out evenly");
    gpu_vec<E, V> held[direct ? 1 : STEPS * PER];

    static GPU_FN int row(int s)
    {
        return TRANSPOSE ? gpu_thread() % ACROSS * PER : gpu_thread() / ACROSS + s * (THREADS / ACROSS);
    }
    static GPU_FN int col(int s)
    {
        return TRANSPOSE ? (gpu_thread() / ACROSS + s * (THREADS / ACROSS)) * V : gpu_thread() % ACROSS * V;
    }

    template <class A> GPU_FN void issue(A &to, const gpu_rows<const E> &from, int row0, int limit GPU_AT)
    {
        const gpu_rows<const E> mine = from.from(row0 + row(0));
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int p = 0; p < PER; p++) {
                const int r = (TRANSPOSE ? 0 : s * (THREADS / ACROSS)) + p;
                const bool in = row0 + row(0) + r < limit;
                if constexpr (direct)
                    gpu_copy_async<V>(to, row(s), col(s), mine, r, in GPU_LINE);
                else
                    held[s * PER + p] = in ? gpu_load<V>(mine, r, col(s) GPU_LINE) : gpu_vec<E, V>{};
            }
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
