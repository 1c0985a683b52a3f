// SPDX-License-Identifier: MIT OR Apache-2.0
// What kernels of the Hopper family (files named *_sm90a) say beyond the dialect: barriers that count bytes, bulk tensor copies,
// matrix products of a warpgroup. Not emulated. Names and semantics: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma",
// "setmaxnreg". Addresses of shared memory are the 32-bit ones of its own window.
#pragma once
#include "../gpu/gpu_mma.h"
#include "tensor_map.h"

GPU_FN uint32_t gpu_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- barriers in shared memory: a phase ends when all arrivals and all announced bytes are there; its parity then flips ----
GPU_FN void gpu_mbarrier_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// Makes the barriers that this thread has initialised known to the copy engine. A block barrier shows them to other threads.
GPU_FN void gpu_mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
GPU_FN void gpu_mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and announces bytes that copies will bring.
GPU_FN void gpu_mbarrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Returns when the phase of this parity has ended; what was written before its arrivals is seen then.
GPU_FN void gpu_mbarrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished:\n}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

// ---- bulk tensor copies: a box of a 4-axis tensor, 64 columns of 16 bits wide, to 1024-byte aligned shared memory in which the
// 16-byte pieces of a 128-byte row are permuted by an exclusive or with the row's number modulo 8. What lies outside of the
// tensor arrives as zeros, and counts as bytes all the same.
GPU_FN void gpu_tensor_prefetch(const gpu_tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
GPU_FN void gpu_tensor_load(const gpu_tensor_map *map, uint32_t to, uint32_t bar, int column, int row, int head,
                            int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}
// A box to the L2 only.
GPU_FN void gpu_tensor_fetch(const gpu_tensor_map *map, int column, int row, int head, int batch)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(column),
                 "r"(row), "r"(head), "r"(batch)
                 : "memory");
}
// A box back to the tensor, in a group of its own (gpu_bulk_wait). What lies outside of the tensor is not written.
GPU_FN void gpu_tensor_store(const gpu_tensor_map *map, uint32_t from, int column, int row, int head, int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// 16-byte aligned memory, as it is.
GPU_FN void gpu_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
// Shared memory to global memory, in a group of its own (gpu_bulk_wait).
GPU_FN void gpu_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Adds fp32 numbers of shared memory to global memory, each atomically.
GPU_FN void gpu_bulk_add(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int N>
GPU_FN void gpu_bulk_wait_read() // what this thread has sent, but for the last N, has left shared memory
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
GPU_FN void gpu_bulk_wait() // it has arrived
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Four numbers, 16-byte aligned, put there, or added atomically; neither is a branch.
GPU_FN void gpu_put_or_add4(float *to, const float *x, bool put, bool add)
{
    asm volatile("{\n.reg .pred put, add;\nsetp.ne.u32 put, %5, 0;\nsetp.ne.u32 add, %6, 0;\n"
                 "@put st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
                 "@add red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"((uint32_t)put), "r"((uint32_t)add)
                 : "memory");
}
// What this thread has written to shared memory is seen by the copy engine and the matrix unit (after a barrier).
GPU_FN void gpu_async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same for global memory, and the other way round: what the copy engine has done, or others before it, is seen.
GPU_FN void gpu_async_fence_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Numbers by which blocks tell each other that something is done: what came before the store is seen after the load.
GPU_FN uint32_t gpu_load_acquire(const uint32_t *p)
{
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
GPU_FN void gpu_store_release(uint32_t *p, uint32_t x)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
GPU_FN int gpu_load_at(uint32_t p)
{
    int x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(p));
    return x;
}
GPU_FN gpu_vec<float, 4> gpu_load4_at(uint32_t p)
{
    gpu_vec<float, 4> x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(p));
    return x;
}
GPU_FN void gpu_store4_at(uint32_t p, const float *x, bool also = true)
{
    asm volatile(
        "{\n.reg .pred also;\nsetp.ne.u32 also, %5, 0;\n@also st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"r"(p),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"((uint32_t)also)
        : "memory");
}
// The reverse of gpu_ldmatrix_at.
GPU_FN void gpu_stmatrix_at(uint32_t p, const uint32_t *x)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(p), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

// ---- registers move from one warpgroup to another: all its warps, R a multiple of 8 ----
template <int R> GPU_FN void gpu_registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
}
template <int R> GPU_FN void gpu_registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
}

// ---- matrix products of a warpgroup (128 threads): asynchronous, 64 x N x 16 a call ----
// Layout of the accumulator: warp w has rows 16·w ... 16·w + 15, lane l rows l / 4 (+ 8) of these; d[4·i + 2·h + c] is row
// l / 4 + 8·h, column 8·i + 2·(l % 4) + c. So pairs, rounded to 16 bits, are an operand A as they lie.
// Registers may be touched after the wait only, and the compiler does not know: gpu_wgmma_settle() after each.
GPU_FN void gpu_wgmma_fence() // before the first product: registers and shared memory are as written
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_FN void gpu_wgmma_commit() // closes a group of products
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> GPU_FN void gpu_wgmma_wait() // until no more than the last N groups are under way
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> GPU_FN void gpu_wgmma_settle(float (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(r[i])::"memory");
}
template <int N> GPU_FN void gpu_wgmma_settle(uint32_t (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(r[i])::"memory");
}

// Numbers >= 0 (or NaN of exp2), or pairs of 16-bit ones, from FROM on, that are to be worked out before what follows: what does not
// depend on a wait is otherwise done after it.
template <int FROM, class T, int N> GPU_FN void gpu_wgmma_ready(const T (&r)[N])
{
    uint32_t any = 0;
#pragma unroll
    for (int i = FROM; i < N; i++)
        any |= __builtin_bit_cast(uint32_t, r[i]);
    asm volatile(
        "{\n.reg .pred never;\nsetp.eq.u32 never, %0, 0xffffffff;\n@never st.shared.u32 [%0], %0;\n}\n" ::"r"(any)
        : "memory");
}

// A matrix in shared memory as the unit wants to hear of it, rows permuted as above, distances in bytes. Along the depth of
// the product neighbours (Q, K): `leading` means nothing, `stride` is from 8 rows to the next 8. Rows along the depth (V):
// `leading` from 64 columns to the next 64, `stride` from 8 rows to the next. The upper half is a constant.
GPU_FN uint32_t gpu_wgmma_matrix(uint32_t address, uint32_t leading)
{
    return (address & 0x3ffff) >> 4 | (leading >> 4) << 16;
}
GPU_FN uint64_t gpu_wgmma_descriptor(uint32_t matrix, uint32_t stride)
{
    return (uint64_t)(stride >> 4 | 1u << 30) << 32 | matrix;
}

// ss: D = (or +=) A·Bᵀ, both from shared memory with neighbours along the depth.
// rs: D += A·B, A from registers, B from shared memory with rows along the depth.
// For the backward pass, where the first product of a chain writes only, so that no old value is kept alive:
// kk: as ss. rk: as ss with A from registers. mn: D = (+=) Aᵀ·B, both from shared memory with rows along the depth.
// kn: as rs, A from shared memory with neighbours along the depth.
template <class E, int N> struct gpu_wgmma;

// The names of the first so many operands.
#define GPU_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define GPU_R32                                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26"                \
    ",%27,%28,%29,%30,%31"
#define GPU_R48 GPU_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define GPU_R64 GPU_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define GPU_R96                                                                                                        \
    GPU_R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88"     \
            ",%89,%90,%91,%92,%93,%94,%95"
#define GPU_R128                                                                                                       \
    GPU_R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115"         \
            ",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define GPU_D8(i)                                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define GPU_D16(i)  GPU_D8(i), GPU_D8(i + 8)
#define GPU_D32(i)  GPU_D8(i), GPU_D8(i + 8), GPU_D8(i + 16), GPU_D8(i + 24)
#define GPU_D48(i)  GPU_D32(i), GPU_D8(i + 32), GPU_D8(i + 40)
#define GPU_D64(i)  GPU_D32(i), GPU_D32(i + 32)
#define GPU_D96(i)  GPU_D64(i), GPU_D32(i + 64)
#define GPU_D128(i) GPU_D64(i), GPU_D64(i + 64)

#define GPU_W8(i)                                                                                                      \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]),        \
        "=f"(d[i + 7])
#define GPU_W16(i)  GPU_W8(i), GPU_W8(i + 8)
#define GPU_W32(i)  GPU_W8(i), GPU_W8(i + 8), GPU_W8(i + 16), GPU_W8(i + 24)
#define GPU_W48(i)  GPU_W32(i), GPU_W8(i + 32), GPU_W8(i + 40)
#define GPU_W64(i)  GPU_W32(i), GPU_W32(i + 32)
#define GPU_W96(i)  GPU_W64(i), GPU_W32(i + 64)
#define GPU_W128(i) GPU_W64(i), GPU_W64(i + 64)

// COUNT accumulators of a thread; P1 ... P5: the numbers of the operands after them. ACCUMULATE: 0 or 1 as text.
#define GPU_WGMMA_ASM(TYPE, N, COUNT, ACCUMULATE, OPERANDS)                                                            \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE ", 0;\n"                                                            \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" GPU_R##COUNT "}, " OPERANDS ";\n}\n"
#define GPU_WGMMA(E, TYPE, N, COUNT, P1, P2, P3, P4, P5)                                                               \
    template <> struct gpu_wgmma<E, N> {                                                                               \
        static GPU_FN void ss(float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate)                               \
        {                                                                                                              \
            asm volatile(GPU_WGMMA_ASM(TYPE, N, COUNT, "%" #P3, "%" #P1 ", %" #P2 ", p, 1, 1, 0, 0")                   \
                         : GPU_D##COUNT(0)                                                                             \
                         : "l"(a), "l"(b), "r"(accumulate));                                                           \
        }                                                                                                              \
        static GPU_FN void rs(float (&d)[COUNT], const uint32_t *a, uint64_t b)                                        \
        {                                                                                                              \
            asm volatile(                                                                                              \
                GPU_WGMMA_ASM(TYPE, N, COUNT, "1", "{%" #P1 ",%" #P2 ",%" #P3 ",%" #P4 "}, %" #P5 ", p, 1, 1, 1")      \
                : GPU_D##COUNT(0)                                                                                      \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                 \
        }                                                                                                              \
        static GPU_FN void kk(float (&d)[COUNT], uint64_t a, uint64_t b, bool next)                                    \
        {                                                                                                              \
            if (!next)                                                                                                 \
                asm volatile(GPU_WGMMA_ASM(TYPE, N, COUNT, "0", "%" #P1 ", %" #P2 ", p, 1, 1, 0, 0")                   \
                             : GPU_W##COUNT(0)                                                                         \
                             : "l"(a), "l"(b));                                                                        \
            else                                                                                                       \
                ss(d, a, b, 1);                                                                                        \
        }                                                                                                              \
        static GPU_FN void rk(float (&d)[COUNT], const uint32_t *a, uint64_t b, bool next)                             \
        {                                                                                                              \
            if (!next)                                                                                                 \
                asm volatile(                                                                                          \
                    GPU_WGMMA_ASM(TYPE, N, COUNT, "0", "{%" #P1 ",%" #P2 ",%" #P3 ",%" #P4 "}, %" #P5 ", p, 1, 1, 0")  \
                    : GPU_W##COUNT(0)                                                                                  \
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
            else                                                                                                       \
                asm volatile(                                                                                          \
                    GPU_WGMMA_ASM(TYPE, N, COUNT, "1", "{%" #P1 ",%" #P2 ",%" #P3 ",%" #P4 "}, %" #P5 ", p, 1, 1, 0")  \
                    : GPU_D##COUNT(0)                                                                                  \
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
        }                                                                                                              \
        static GPU_FN void kn(float (&d)[COUNT], uint64_t a, uint64_t b)                                               \
        {                                                                                                              \
            asm volatile(GPU_WGMMA_ASM(TYPE, N, COUNT, "1", "%" #P1 ", %" #P2 ", p, 1, 1, 0, 1")                       \
                         : GPU_D##COUNT(0)                                                                             \
                         : "l"(a), "l"(b));                                                                            \
        }                                                                                                              \
        static GPU_FN void mn(float (&d)[COUNT], uint64_t a, uint64_t b, bool next)                                    \
        {                                                                                                              \
            if (!next)                                                                                                 \
                asm volatile(GPU_WGMMA_ASM(TYPE, N, COUNT, "0", "%" #P1 ", %" #P2 ", p, 1, 1, 1, 1")                   \
                             : GPU_W##COUNT(0)                                                                         \
                             : "l"(a), "l"(b));                                                                        \
            else                                                                                                       \
                asm volatile(GPU_WGMMA_ASM(TYPE, N, COUNT, "1", "%" #P1 ", %" #P2 ", p, 1, 1, 1, 1")                   \
                             : GPU_D##COUNT(0)                                                                         \
                             : "l"(a), "l"(b));                                                                        \
        }                                                                                                              \
    };
GPU_WGMMA(gpu_bf16, "bf16", 32, 16, 16, 17, 18, 19, 20)
GPU_WGMMA(gpu_bf16, "bf16", 64, 32, 32, 33, 34, 35, 36)
GPU_WGMMA(gpu_bf16, "bf16", 96, 48, 48, 49, 50, 51, 52)
GPU_WGMMA(gpu_bf16, "bf16", 128, 64, 64, 65, 66, 67, 68)
GPU_WGMMA(gpu_bf16, "bf16", 192, 96, 96, 97, 98, 99, 100)
GPU_WGMMA(gpu_bf16, "bf16", 256, 128, 128, 129, 130, 131, 132)
GPU_WGMMA(gpu_half, "f16", 32, 16, 16, 17, 18, 19, 20)
GPU_WGMMA(gpu_half, "f16", 64, 32, 32, 33, 34, 35, 36)
GPU_WGMMA(gpu_half, "f16", 96, 48, 48, 49, 50, 51, 52)
GPU_WGMMA(gpu_half, "f16", 128, 64, 64, 65, 66, 67, 68)
GPU_WGMMA(gpu_half, "f16", 192, 96, 96, 97, 98, 99, 100)
GPU_WGMMA(gpu_half, "f16", 256, 128, 128, 129, 130, 131, 132)

// Eight rows of 8 elements each at a shared address per lane, as gpu_ldmatrix; for tiles that a bulk copy has permuted.
GPU_FN void gpu_ldmatrix_at(uint32_t (&x)[4], uint32_t p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(p)
                 : "memory");
}

// A number that is the same in all lanes, known to be: it needs no register of its own, nor does what depends on it alone.
GPU_FN int gpu_uniform(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}
// The same number, but what follows from it is worked out where it is used: kept from before, it would need a register.
GPU_FN int gpu_again(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
// One lane of a wave, all of which ask: the compiler knows that what it does is done by one, and keeps numbers of it where the copy engine
// wants them.
GPU_FN bool gpu_elect()
{
    uint32_t me;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(me));
    return me != 0;
}
// The number of a warpgroup.
GPU_FN int gpu_warpgroup()
{
    return gpu_uniform(gpu_thread() / 128);
}
// A barrier of `threads` threads, all of whose warps call it; number 0 is the block barrier.
GPU_FN void gpu_named_barrier(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// The same barrier, and whether x holds for any of them.
GPU_FN bool gpu_group_any(int number, int threads, bool x)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.b32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"((uint32_t)x), "r"(number), "r"(threads)
                 : "memory");
    return any != 0;
}
// The same, for those who do not wait.
GPU_FN void gpu_named_barrier_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// An address that is to be kept, not computed again at each use.
template <class T> GPU_FN void gpu_keep(T *&p)
{
    asm("" : "+l"(p));
}
// Two numbers of 16 bits at a time.
GPU_FN uint32_t gpu_max_u16x2(uint32_t a, uint32_t b)
{
    return __vmaxu2(a, b);
}
GPU_FN uint32_t gpu_min_s16x2(uint32_t a, uint32_t b)
{
    return __vmins2(a, b);
}
// Word i of lane q of four lanes becomes word q of lane i.
GPU_FN void gpu_transpose_quad(uint32_t (&w)[4])
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool high = gpu_lane() & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit)
                continue;
            const uint32_t other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + bit], bit);
            if (high)
                w[i] = other;
            else
                w[i + bit] = other;
        }
    }
}
// A kernel launched by gpu_launch_chained() may have begun while the one before it runs: what that one writes is there after the
// wait, and nothing may be written before. The one before says by gpu_chain_go() that it would be of use. A wave waits as soon as one of
// its lanes does.
GPU_FN void gpu_chain_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
GPU_FN void gpu_chain_go()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
GPU_FN void gpu_trap()
{
    __trap();
}
GPU_FN void gpu_shared_or(uint32_t *p, uint32_t bits)
{
    atomicOr(p, bits);
}

// A kernel that deals out its items itself: run(args, shared) once per block; the arguments' address may be given to the copy
// engine. Shared memory is aligned to 1024 bytes.
#define GPU_KERNEL_SM90(NAME, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__((__VA_ARGS__::threads), 1)                                            \
        NAME(const __grid_constant__ __VA_ARGS__::args a)                                                              \
    {                                                                                                                  \
        static_assert(sizeof(a) <= 4096, "parameters of a kernel");                                                    \
        extern __shared__ __align__(1024) unsigned char gpu_arena_1024[];                                              \
        __VA_ARGS__::run(a, *(__VA_ARGS__::shared *)gpu_arena_1024);                                                   \
    }                                                                                                                  \
    extern "C" GPU_DESCRIBE(NAME, NAME, (__VA_ARGS__::blocks), __VA_ARGS__)
