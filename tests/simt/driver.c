/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * driver.c: runs the emulated device's own test kernels (kernels.gpu.cpp) on it.
 *   check   against fp64, many shapes; prints a hash of all outputs, which no seed and no number of threads may change
 *   count   bytes against the ledger's formulas, bank conflicts against an NVIDIA profiler's counts
 *   layouts registers of matrix operations against the vendors' published layouts
 *   fault   each kernel once, one of them with NaN in keys that it may not see; prints the reports. For faults.sh, which builds it with mutated kernels
 *   time    the CPU time of the standard problem
 * A second argument, 32 or 64, runs one width only.
 */
#include "../../backends/simt/simt.h"
#include "../../common/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KERNELS(DO)                                                                                                    \
    DO(test_rows_wave)                                                                                                 \
    DO(test_rows_block)                                                                                                \
    DO(test_flash_64) DO(test_flash_128) DO(test_flash_padded) DO(test_flash_unpadded) DO(test_tickets)
#define DECLARE(name) extern const gpu_kernel name##_simt_cuda_info, name##_simt_hip_info;
KERNELS(DECLARE)

typedef struct kernel_set {
    int wave;
    const gpu_kernel *rows[2], *flash[2], *padded, *unpadded, *tickets;
} kernel_set;
#define SET(width, target)                                                                                             \
    {                                                                                                                  \
        width, {&test_rows_wave_##target##_info, &test_rows_block_##target##_info},                                    \
            {&test_flash_64_##target##_info, &test_flash_128_##target##_info}, &test_flash_padded_##target##_info,     \
            &test_flash_unpadded_##target##_info, &test_tickets_##target##_info                                        \
    }
static const kernel_set sets[] = {SET(32, simt_cuda), SET(64, simt_hip)};

extern const gpu_kernel test_layout_mma_f16_simt_cuda_info, test_layout_mma_bf16_simt_cuda_info,
    test_layout_ldmatrix_simt_cuda_info;
extern const gpu_kernel test_layout_mfma_f16_16_simt_hip_info, test_layout_mfma_f16_32_simt_hip_info;
extern const gpu_kernel test_layout_mfma_chain_16_simt_hip_info, test_layout_mfma_chain_32_simt_hip_info,
    test_layout_bounded_simt_hip_info;
extern const gpu_kernel test_layout_mfma_bf16_16_simt_hip_info, test_layout_mfma_bf16_32_simt_hip_info;

static int failures;
static uint64_t hash = 14695981039346656037u;
static uint32_t random_state = 1;

static double normal(void)
{
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += (double)((random_state = random_state * 1664525u + 1013904223u) >> 8) * 0x1p-24 * 2 - 1;
    return sum;
}

static float get(const kiln_view *v, int64_t i)
{
    const void *p = v->data + i * kiln_type_size(v->type);
    return v->type == KILN_FLOAT32   ? *(const float *)p
           : v->type == KILN_FLOAT16 ? kiln_f16_to_float(*(const uint16_t *)p)
                                     : kiln_bf16_to_float(*(const uint16_t *)p);
}

static void put(const kiln_view *v, int64_t i, float x)
{
    void *p = v->data + i * kiln_type_size(v->type);
    if (v->type == KILN_FLOAT32)
        *(float *)p = x;
    else
        *(uint16_t *)p = v->type == KILN_FLOAT16 ? kiln_f16_from_float(x) : kiln_bf16_from_float(x);
}

/* A compact tensor; scale 0: an output, NaN. */
static kiln_view make(int32_t type, int64_t b, int64_t h, int64_t r, int64_t c, double scale)
{
    kiln_view v = {NULL, type, {b, h, r, c}, {h * r * c, r * c, c, 1}};
    const int64_t n = b * h * r * c;
    v.data = aligned_alloc(256, ((size_t)n * 4 + 256) & ~(size_t)255);
    if (!v.data)
        abort();
    for (int64_t i = 0; i < n; i++)
        put(&v, i, scale != 0 ? (float)(scale * normal()) : NAN);
    return v;
}

static void drop(kiln_view *v)
{
    for (int64_t i = 0, n = v->size[0] * v->size[1] * v->size[2] * v->size[3] * kiln_type_size(v->type); i < n; i++)
        hash = (hash ^ (unsigned char)v->data[i]) * 1099511628211u;
    free(v->data);
}

static bool launch(const gpu_kernel *kernel, int32_t blocks, const void *args, simt_counters *counters)
{
    char fault[512];
    if (simt_launch(kernel, blocks, args, counters, fault, sizeof fault) == 0)
        return true;
    printf("FAULT %s\n", fault);
    failures++;
    return false;
}

static float *floats(const kiln_view *v)
{
    const int64_t n = v->size[0] * v->size[1] * v->size[2] * v->size[3];
    float *x = malloc(sizeof *x * (size_t)n);
    if (!x)
        abort();
    for (int64_t i = 0; i < n; i++)
        x[i] = get(v, i);
    return x;
}

/* The worst ratio of an error to its bound in one row of attention. */
static double judge_row(const gpu_attention_args *a, const float *qf, const float *kf, const float *vf, int64_t h,
                        int64_t i)
{
    const kiln_attention_problem *p = &a->p;
    const int64_t d = p->d, nk = p->seqlen_k, nq = p->seqlen_q, hk = h * p->heads_k / p->heads;
    const int64_t q = (h * nq + i) * d, kv = hk * nk * d;
    const int64_t seen = p->masked && i + 1 + nk - nq < nk ? i + 1 + nk - nq : nk;
    const double unit = p->v.type == KILN_BFLOAT16 ? 0x1p-8 : 0x1p-11,
                 least = p->v.type == KILN_BFLOAT16 ? 0x1p-134 : 0x1p-25;
    double *w = malloc(sizeof *w * (size_t)(nk + 1)), m = -INFINITY, l = 0, worst = 0;
    if (!w)
        abort();
    for (int64_t j = 0; j < seen; j++) {
        w[j] = 0;
        for (int64_t c = 0; c < d; c++)
            w[j] += (double)qf[q + c] * (double)kf[kv + j * d + c];
        w[j] *= (double)a->scale_log2 * 0.69314718055994531;
        m = w[j] > m ? w[j] : m;
    }
    for (int64_t j = 0; j < seen; j++)
        l += w[j] = exp(w[j] - m);
    const double lse = seen > 0 ? m + log(l) : -INFINITY, got = (double)get(&p->lse, h * nq + i);
    worst = got == lse ? 0 : fabs(got - lse) / (4e-6 * (1 + fabs(lse)));
    for (int64_t c = 0; c < d; c++) {
        double x = 0, size = 0, big = 0;
        for (int64_t j = 0; j < seen; j++) {
            const double y = (double)vf[kv + j * d + c];
            x += w[j] / l * y, size += w[j] / l * fabs(y);
            big = fabs(y) > big ? fabs(y) : big;
        }
        double e = fabs((double)get(&p->o, q + c) - x);
        e /= unit * size + 2e-5 * size + unit * fabs(x) + least + (l > 0 ? (double)seen * least * big / l : 0) + 1e-300;
        if (!(e <= worst))
            worst = e;
    }
    free(w);
    return worst;
}

static gpu_attention_args attention_args(int32_t type, int64_t d, int64_t heads, int64_t heads_k, int64_t nq,
                                         int64_t nk, bool causal)
{
    gpu_attention_args a = {
        .p = {.batch = 1, .heads = heads, .heads_k = heads_k, .seqlen_q = nq, .seqlen_k = nk, .d = d, .d_v = d}};
    a.p.masked = causal;
    a.scale_log2 = (float)(1.4426950408889634 / sqrt((double)d));
    a.p.q = make(type, 1, heads, nq, d, 1.5);
    a.p.k = make(type, 1, heads_k, nk, d, 1.5);
    a.p.v = make(type, 1, heads_k, nk, d, 1);
    a.p.o = make(type, 1, heads, nq, d, 0);
    a.p.lse = make(KILN_FLOAT32, 1, heads, nq, 1, 0);
    return a;
}

static void attention_drop(gpu_attention_args *a)
{
    drop(&a->p.q), drop(&a->p.k), drop(&a->p.v), drop(&a->p.o), drop(&a->p.lse);
}

static void attention(const gpu_kernel *kernel, int32_t type, int64_t d, int64_t heads, int64_t heads_k, int64_t nq,
                      int64_t nk, bool causal, int32_t most_blocks, simt_counters *counters)
{
    gpu_attention_args a = attention_args(type, d, heads, heads_k, nq, nk, causal);
    a.items = (nq + kernel->tile_q - 1) / kernel->tile_q * heads;
    double worst = 0;
    if (launch(kernel, (int32_t)(a.items < most_blocks ? a.items : most_blocks), &a, counters)) {
        float *q = floats(&a.p.q), *k = floats(&a.p.k), *v = floats(&a.p.v);
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < nq; i++) {
                double w = judge_row(&a, q, k, v, h, i);
                worst = w <= worst ? worst : w;
            }
        free(q), free(k), free(v);
        if (!(worst <= 1)) {
            printf("FAIL %s q %lld k %lld causal %d: %.2f of its bound\n", kernel->name, (long long)nq, (long long)nk,
                   causal, worst);
            failures++;
        }
    }
    attention_drop(&a);
}

static void rows(const gpu_kernel *kernel, int64_t count, int64_t n, int64_t stride, int32_t blocks)
{
    gpu_softmax_args a = {.items = count, .rows = count, .scale = 1};
    a.x = make(KILN_FLOAT32, 1, 1, count, stride, 4);
    a.y = make(KILN_FLOAT32, 1, 1, count, stride, 0);
    a.x.size[3] = a.y.size[3] = n;
    double worst = 0;
    if (launch(kernel, blocks, &a, NULL)) {
        for (int64_t r = 0; r < count; r++) {
            double m = -INFINITY, l = 0;
            for (int64_t c = 0; c < n; c++)
                m = fmax(m, (double)get(&a.x, r * stride + c));
            for (int64_t c = 0; c < n; c++)
                l += exp((double)get(&a.x, r * stride + c) - m);
            for (int64_t c = 0; c < n; c++) {
                double s = (double)get(&a.x, r * stride + c) - m, want = exp(s) / l;
                double e =
                    fabs((double)get(&a.y, r * stride + c) - want) / (want * (0x1p-24 + 0x1p-22 * (4 + fabs(s))));
                worst = e <= worst ? worst : e;
            }
        }
        if (!(worst <= 1)) {
            printf("FAIL %s %lld rows of %lld: %.2f of its bound\n", kernel->name, (long long)count, (long long)n,
                   worst);
            failures++;
        }
    }
    drop(&a.x), drop(&a.y);
}

/* Blocks that wait for each other. */
static void tickets(const gpu_kernel *kernel, int64_t count, int32_t blocks)
{
    uint64_t ticket = 0, words[64] = {0};
    gpu_softmax_args a = {.items = blocks, .ticket = &ticket};
    int wrong = 0;
    a.y = make(KILN_FLOAT32, 1, 1, 1, count, 0);
    a.partial = (kiln_view){(char *)words, KILN_INT64, {1, count, 1, 1}, {count, 1, 0, 0}};
    if (launch(kernel, blocks, &a, NULL)) {
        for (int64_t i = 0; i < count; i++)
            wrong += !(get(&a.y, i) == (float)(i * (i + 1) / 2));
        if (wrong > 0)
            printf("FAIL %s: %d of %lld sums\n", kernel->name, wrong, (long long)count);
        failures += wrong > 0;
    }
    drop(&a.y);
}

static void check(const kernel_set *s)
{
    enum { LENGTHS = 4 };
    static const int64_t lengths[LENGTHS] = {1, 17, 100, 257};
    for (int k = 0; k < 2; k++)
        for (int n = 0; n < LENGTHS; n++)
            rows(s->rows[k], 3, lengths[n], lengths[n], 3), rows(s->rows[k], 3, lengths[n] * 8, lengths[n] * 8 + 8, 2);
    for (int32_t blocks = 1; blocks <= 9; blocks += 4)
        tickets(s->tickets, 50, blocks);
    for (int k = 0; k < 2; k++)
        for (int n = 0; n < LENGTHS; n++)
            for (int m = 0; m < LENGTHS; m++) /* the last column on 2 blocks: several items a block */
                attention(s->flash[k], k ? KILN_BFLOAT16 : KILN_FLOAT16, k ? 128 : 64, 2, 1 + m / 3, lengths[n],
                          lengths[m], (n + m) % 2, m == 3 ? 2 : 1 << 20, NULL);
}

static void expect(const char *what, int64_t got, int64_t want)
{
    printf("%s %s %lld, expected %lld\n", got == want ? "ok  " : "FAIL", what, (long long)got, (long long)want);
    failures += got != want;
}

static void count(const kernel_set *s)
{
    enum { N = 256, D = 64, ELEMENT = 2 };
    static simt_counters c;
    int64_t read = 0, written = 0, distinct = 0;
    attention(s->padded, KILN_FLOAT16, D, 1, 1, N, N, false, 1 << 20, &c);
    for (int t = 0; t < SIMT_TENSORS; t++)
        read += c.tensor[t].read, written += c.tensor[t].written,
            distinct += c.tensor[t].distinct_read + c.tensor[t].distinct_written;
    expect("bytes read", read, N * D * ELEMENT + 2 * N * D * ELEMENT * (N / s->padded->tile_q));
    expect("bytes written", written, N * D * ELEMENT + 4 * N);
    expect("distinct bytes", distinct, 4 * N * D * ELEMENT + 4 * N);
    printf("     %s: %lld matrix operations, %lld exchanges, %lld wave barriers, %lld block barriers, %lld switches\n",
           c.tensor[0].name, (long long)c.matrix_ops, (long long)c.exchanges, (long long)c.wave_barriers,
           (long long)c.block_barriers, (long long)c.switches);
    for (int unpadded = 0; unpadded < 2; unpadded++) {
        attention(unpadded ? s->unpadded : s->padded, KILN_FLOAT16, D, 1, 1, N, N, false, 1 << 20, &c);
        printf("     %s: %lld shared accesses, %lld phases, %lld conflicts\n", unpadded ? "unpadded" : "padded",
               (long long)c.shared_accesses, (long long)c.shared_phases, (long long)c.bank_conflicts);
        for (int i = 0; i < SIMT_LINES && c.line[i].conflicts; i++)
            printf("       line %u: %lld\n", c.line[i].line, (long long)c.line[i].conflicts);
        if (unpadded && s->wave == 32)
            expect("bank conflicts, unpadded, as an H200's profiler counts", c.bank_conflicts, 87808);
    }
}

/* Runs a kernel of layouts.gpu.h and compares element `e` of every lane with what `want` says. */
static void layout(const gpu_kernel *kernel, int lanes, int elements, int size,
                   float (*want)(int size, int lane, int e))
{
    gpu_softmax_args a = {.items = 1, .rows = 1, .scale = 1};
    int wrong = 0;
    a.x = make(KILN_FLOAT16, 1, 1, 16, 64, 1);
    a.y = make(KILN_FLOAT32, 1, 1, lanes, elements, 0);
    for (int64_t i = 0; i < 16 * 64; i++)
        put(&a.x, i, (float)i);
    if (launch(kernel, 1, &a, NULL))
        for (int l = 0; l < lanes; l++)
            for (int e = 0; e < elements; e++)
                wrong += !(get(&a.y, (int64_t)l * elements + e) == want(size, l, e));
    printf("%s %s: %d of %d registers hold another element\n", wrong ? "FAIL" : "ok  ", kernel->name, wrong,
           lanes * elements);
    failures += wrong > 0;
    drop(&a.x), drop(&a.y);
}

/* PTX ISA, mma.m16n8k16, fragment of D: c0, c1 in row lane / 4, columns 2 (lane mod 4) and the next; c2, c3 8 rows below. */
static float want_mma(int size, int lane, int e)
{
    (void)size;
    const int row = lane / 4 + e % 4 / 2 * 8, column = lane % 4 * 2 + e % 2;
    return (float)(16 * row + column + e / 4 * 8);
}

/* PTX ISA, ldmatrix: of each 8 x 8 matrix, lane l gets of row l / 4 the elements 2 (l mod 4) and the next; .trans swaps. */
static float want_ldmatrix(int size, int lane, int e)
{
    (void)size;
    const int tile = e % 8 / 2, major = lane / 4, minor = lane % 4 * 2 + e % 2, trans = e / 8;
    const int row = (trans ? minor : major) + tile % 2 * 8, column = (trans ? major : minor) + 16 + tile / 2 * 8;
    return (float)(64 * row + column);
}

/* CDNA3 ISA, "Dense matrix layouts": D of 16x16: row 4 (lane / 16) + e, column lane mod 16; of 32x32: row 8 (e / 4) +
 * 4 (lane / 32) + e mod 4, column lane mod 32. */
static float want_mfma(int size, int lane, int e)
{
    const int row = size == 16 ? 4 * (lane / 16) + e : 8 * (e / 4) + 4 * (lane / 32) + e % 4, column = lane % size;
    return column >= 8 * 64 / size ? 0 : (float)(row < 16 ? 16 * row + column : -(16 * (row - 16) + column));
}

/* layout_mfma_chain: row i of the result is row (7 i + 3) mod K of the first product. */
static float want_mfma_chain(int size, int lane, int e)
{
    const int k = 8 * 64 / size, column = lane % size;
    const int i = size == 16 ? 4 * (lane / 16) + e : 8 * (e / 4) + 4 * (lane / 32) + e % 4, row = (i * 7 + 3) % k;
    return column >= k ? 0 : (float)(row < 16 ? 16 * row + column : -(16 * (row - 16) + column));
}

/* layout_bounded: element 64 row + column of 10 rows, else 0; lane 37's number, a ballot, lower and upper halves. */
static float want_bounded(int size, int lane, int e)
{
    (void)size;
    const int row = lane % 16 + e / 8 * 3, column = lane / 16 * 24 + e % 8;
    if (e < 16)
        return row < 10 && lane / 16 < 3 ? (float)(64 * row + column) : 0;
    return e == 16 ? 3 * 37 : e == 17 ? lane % 5 == 0 : e == 18 ? (float)lane : (float)(lane + 1);
}

static void layouts(const kernel_set *s)
{
    if (s->wave == 32) {
        layout(&test_layout_mma_f16_simt_cuda_info, 32, 8, 16, want_mma);
        layout(&test_layout_mma_bf16_simt_cuda_info, 32, 8, 16, want_mma);
        layout(&test_layout_ldmatrix_simt_cuda_info, 32, 16, 16, want_ldmatrix);
    } else {
        layout(&test_layout_mfma_f16_16_simt_hip_info, 64, 4, 16, want_mfma);
        layout(&test_layout_mfma_bf16_16_simt_hip_info, 64, 4, 16, want_mfma);
        layout(&test_layout_mfma_f16_32_simt_hip_info, 64, 16, 32, want_mfma);
        layout(&test_layout_mfma_bf16_32_simt_hip_info, 64, 16, 32, want_mfma);
        layout(&test_layout_mfma_chain_16_simt_hip_info, 64, 4, 16, want_mfma_chain);
        layout(&test_layout_mfma_chain_32_simt_hip_info, 64, 16, 32, want_mfma_chain);
        layout(&test_layout_bounded_simt_hip_info, 64, 20, 16, want_bounded);
    }
}

/* K and V go on behind the last key, with NaN. Queries are whole tiles, so that the only rows past an end are those. */
static void hidden_nan(const gpu_kernel *kernel)
{
    enum { KEYS = 50, THERE = 64, D = 64 };
    gpu_attention_args a = attention_args(KILN_FLOAT16, D, 1, 1, 2 * kernel->tile_q, THERE, false);
    a.p.seqlen_k = KEYS;
    a.items = 2;
    for (int64_t i = KEYS * D; i < THERE * D; i++)
        put(&a.p.k, i, NAN), put(&a.p.v, i, NAN);
    launch(kernel, 2, &a, NULL);
    attention_drop(&a);
}

static void fault(const kernel_set *s)
{
    setenv("KILN_SIMT_NAN", "o,y", 1); /* a NaN that is stored there is a fault */
    hidden_nan(s->flash[0]);
    attention(s->flash[0], KILN_FLOAT16, 64, 2, 1, 100, 130, false, 1 << 20, NULL);
    rows(s->rows[1], 2, 100, 101, 2);
    rows(s->rows[1], 3, 100, 104, 1); /* one block, three items */
    tickets(s->tickets, 20, 4);
}

static void measure(const kernel_set *s)
{
    gpu_attention_args a = attention_args(KILN_FLOAT16, 64, 2, 2, 512, 512, true);
    a.items = 512 / s->flash[0]->tile_q * 2;
    double best = 1e30;
    static simt_counters c;
    for (int i = 0; i < 9; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        launch(s->flash[0], (int32_t)a.items, &a, &c);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        const double t = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        best = t < best ? t : best;
    }
    printf("%d lanes: %.3f s of CPU time, %lld switches\n", s->wave, best, (long long)c.switches);
    attention_drop(&a);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const int wave = argc > 2 ? atoi(argv[2]) : 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (wave && wave != sets[i].wave)
            continue;
        (strcmp(what, "count") == 0     ? count
         : strcmp(what, "fault") == 0   ? fault
         : strcmp(what, "layouts") == 0 ? layouts
         : strcmp(what, "time") == 0    ? measure
                                        : check)(&sets[i]);
    }
    printf("%d failures, hash %016llx\n", failures, (unsigned long long)hash);
    return failures != 0;
}
