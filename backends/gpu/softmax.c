/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax.c: the methods of softmax on GPUs: which kernel of softmax.gpu.cpp a problem gets, and its launches.
 *
 * Rows of one length go to the fewest threads that keep a row on the chip, because more rows are then under way: 4 up to 512
 * bytes, twice as many for twice as long a row (each with half as many slots again, for rows in between), 512 beyond 64 KB.
 * Rows that are so long that a block cannot keep one, or so few that one block each would leave the device idle, are shared by
 * several (`split`): by the length alone under BATCH_INVARIANT.
 */
#include "gpu_host.h"

#include <math.h>
#include <stdio.h>

#define SOFTMAX_TYPE(X, name)                                                                                          \
    X(softmax_online_##name##_short)                                                                                   \
    X(softmax_online_##name##_4)                                                                                       \
    X(softmax_online_##name##_8)                                                                                       \
    X(softmax_online_##name##_16)                                                                                      \
    X(softmax_online_##name##_16_wide)                                                                                 \
    X(softmax_online_##name##_32)                                                                                      \
    X(softmax_online_##name##_32_wide)                                                                                 \
    X(softmax_online_##name##_64)                                                                                      \
    X(softmax_online_##name##_64_wide)                                                                                 \
    X(softmax_online_##name##_128)                                                                                     \
    X(softmax_online_##name##_128_wide)                                                                                \
    X(softmax_online_##name##_256)                                                                                     \
    X(softmax_online_##name##_medium)                                                                                  \
    X(softmax_online_##name##_long)                                                                                    \
    X(softmax_split_##name)                                                                                            \
    X(softmax_split_##name##_far)                                                                                      \
    X(softmax_backward_split_##name)                                                                                   \
    X(softmax_backward_split_##name##_far)                                                                             \
    X(softmax_backward_##name##_8)                                                                                     \
    X(softmax_backward_##name##_32) X(softmax_backward_##name##_128) X(softmax_backward_##name##_512)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
SOFTMAX_TYPE(DECLARE, f32)
SOFTMAX_TYPE(DECLARE, f16)
SOFTMAX_TYPE(DECLARE, bf16)
DECLARE(softmax_three_pass_32)
DECLARE(softmax_three_pass_256)
DECLARE(softmax_backward_mixed_256)

/* The kernels of one element type; `row`: for longer and longer rows. */
enum { ROW_KERNELS = 14 };
typedef struct softmax_kernels {
    const gpu_kernel *row[ROW_KERNELS], *split[2], *backward[4], *backward_split[2]; /* [1]: for rows of many blocks */
} softmax_kernels;

static const softmax_kernels *kernels_of(int32_t type)
{
#define TABLE(name)                                                                                                    \
    {                                                                                                                  \
        {&GPU_INFO(softmax_online_##name##_short),    &GPU_INFO(softmax_online_##name##_4),                            \
         &GPU_INFO(softmax_online_##name##_8),        &GPU_INFO(softmax_online_##name##_16),                           \
         &GPU_INFO(softmax_online_##name##_16_wide),  &GPU_INFO(softmax_online_##name##_32),                           \
         &GPU_INFO(softmax_online_##name##_32_wide),  &GPU_INFO(softmax_online_##name##_64),                           \
         &GPU_INFO(softmax_online_##name##_64_wide),  &GPU_INFO(softmax_online_##name##_128),                          \
         &GPU_INFO(softmax_online_##name##_128_wide), &GPU_INFO(softmax_online_##name##_256),                          \
         &GPU_INFO(softmax_online_##name##_medium),   &GPU_INFO(softmax_online_##name##_long)},                        \
            {&GPU_INFO(softmax_split_##name), &GPU_INFO(softmax_split_##name##_far)},                                  \
            {&GPU_INFO(softmax_backward_##name##_8), &GPU_INFO(softmax_backward_##name##_32),                          \
             &GPU_INFO(softmax_backward_##name##_128), &GPU_INFO(softmax_backward_##name##_512)},                      \
            {&GPU_INFO(softmax_backward_split_##name), &GPU_INFO(softmax_backward_split_##name##_far)},                \
    }
    static const softmax_kernels f32 = TABLE(f32), f16 = TABLE(f16), bf16 = TABLE(bf16);
    return type == KILN_FLOAT32 ? &f32 : type == KILN_FLOAT16 ? &f16 : &bf16;
}

static int64_t element_size(int32_t type)
{
    return type % 256 / 8;
}

static int64_t ceil_divide(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The first of `count` kernels, in ascending order, that keeps a row of n elements on the chip; else the last that the device has room for. */
static const gpu_kernel *fitting(const gpu_device *device, const gpu_kernel *const *kernels, int count, int64_t n)
{
    int i = 0;
    while (i < count - 1 && kernels[i]->tile_k < n && kernels[i + 1]->shared_bytes <= device->shared_bytes)
        i++;
    return kernels[i];
}

/* ------------------------------------------------------------------------------------------------ arguments */

enum { INNER_AXES = 3, SPLIT_WORDS = 256 }; /* outer axes that a launch covers; the host walks over the others */

static kiln_view view_of(const kiln_softmax_problem *p, const kiln_rows *rows, bool row_value)
{
    kiln_view view = {NULL, rows->type, {1, 1, 1, row_value ? 1 : p->n}, {0, 0, 0, row_value ? 0 : rows->stride}};
    if (!rows->type)
        return view;
    view.data = rows->data;
    for (int i = 0; i < INNER_AXES && i < p->outer_rank; i++) {
        view.size[2 - i] = p->outer_size[p->outer_rank - 1 - i];
        view.stride[2 - i] = rows->outer_stride[p->outer_rank - 1 - i];
    }
    return view;
}

static gpu_softmax_args args_of(const kiln_softmax_problem *p)
{
    gpu_softmax_args a = {.x = view_of(p, &p->x, false),
                          .y = view_of(p, &p->y, false),
                          .lse = view_of(p, &p->lse, true),
                          .dy = view_of(p, &p->dy, false),
                          .dx = view_of(p, &p->dx, false),
                          .scale = p->scale,
                          .log = (p->flags & KILN_FLAG_LOG) != 0,
                          .invariant = (p->flags & KILN_FLAG_BATCH_INVARIANT) != 0};
    a.rows = 1;
    for (int i = 0; i < INNER_AXES && i < p->outer_rank; i++)
        a.rows *= p->outer_size[p->outer_rank - 1 - i];
    return a;
}

/* Moves the data pointers to entry `index` of the axes that launches do not cover. */
static void move_to(gpu_softmax_args *a, const kiln_softmax_problem *p, int64_t index)
{
    const struct {
        kiln_view *view;
        const kiln_rows *rows;
    } all[] = {{&a->x, &p->x}, {&a->y, &p->y}, {&a->lse, &p->lse}, {&a->dy, &p->dy}, {&a->dx, &p->dx}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t offset = 0, rest = index;
        for (int axis = p->outer_rank - INNER_AXES - 1; axis >= 0; axis--) {
            offset += rest % p->outer_size[axis] * all[i].rows->outer_stride[axis];
            rest /= p->outer_size[axis];
        }
        if (all[i].rows->type)
            all[i].view->data = all[i].rows->data + offset * element_size(all[i].rows->type);
    }
}

/*
 * gpu_softmax_args.head and head_step: where the rows of all tensors begin alike, or move on alike from row to row, none need
 * be looked at. All columns, where tensors never begin alike.
 */
static void find_heads(gpu_softmax_args *a)
{
    const kiln_view *forward[] = {&a->x, &a->y, NULL}, *backward[] = {&a->y, &a->dy, &a->dx, NULL};
    const kiln_view *const *views = a->x.type ? forward : backward;
    int64_t head = 0, step = 0;
    bool alike = true, alike_steps = true, one_axis = true;
    for (int v = 0; views[v] && views[v]->type; v++) {
        const kiln_view *view = views[v];
        const int64_t element = element_size(view->type), slot = 16 / element;
        const int64_t mine = (16 - (int64_t)((uintptr_t)view->data % 16)) % 16 / element;
        const int64_t mine_step = view->size[2] > 1 ? (slot - view->stride[2] % slot) % slot : 0;
        for (int axis = 0; axis < 2; axis++) /* then the head is no linear function of the row */
            if (view->size[axis] > 1 && (view->stride[axis] % slot != 0 || mine_step != 0))
                one_axis = false;
        alike = alike && (v == 0 || mine == head);
        alike_steps = alike_steps && (v == 0 || mine_step == step);
        head = mine, step = mine_step;
    }
    const bool known = a->invariant || (one_axis && alike_steps);
    alike = alike && !a->invariant;
    a->head = (int32_t)(!known ? -1 : alike ? head : views[0]->size[3]);
    a->head_step = (int32_t)(known && alike ? step : 0);
}

/* Blocks that the device holds at once. */
static int64_t resident(const gpu_device *device, const gpu_kernel *kernel)
{
    const int64_t fit = device->shared_per_unit / (kernel->shared_bytes ? kernel->shared_bytes : 1);
    return (int64_t)device->units * (fit < 1 ? 1 : fit < kernel->blocks_per_unit ? fit : kernel->blocks_per_unit);
}

/*
 * softmax_online: row groups of an item. Few, and so far more items than blocks: the device hands them out in order to
 * whoever is done, so what is under way lies close together in memory, and no multiprocessor is done before the others. Two
 * have one row on its way under the other; of short rows as many as RUN_BYTES have; one where blocks would be left without.
 * 0: as many items as blocks, which walk over the rows. Where a multiprocessor has one block, nothing runs under its begin.
 */
static int64_t run_of(const gpu_device *device, const kiln_softmax_problem *p, const gpu_kernel *kernel, int64_t groups)
{
    enum { RUN_BYTES = 32 << 10 };
    const int64_t blocks = resident(device, kernel), bytes = kernel->tile_q * p->n * element_size(p->x.type);
    const int64_t fair = groups / blocks;
    int64_t run = bytes > 0 ? RUN_BYTES / bytes : 1;
    if (blocks <= device->units || p->max_sms > 0)
        return 0;
    run = run > 2 ? run : 2;
    run = run < fair ? run : fair;
    return run > 1 ? run : 1;
}

/* Launches `kernel` for all rows, tile_q an item; softmax_online (online): a run an item; rows that are split: an item for each
 * block that the device holds, for blocks take pieces. */
static kiln_status launch_rows(const gpu_device *device, const kiln_softmax_problem *p, gpu_softmax_args *a,
                               const gpu_kernel *kernel, bool online, kiln_stream stream)
{
    const int64_t launches = a->rows ? p->rows / a->rows : 0, groups = ceil_divide(a->rows, kernel->tile_q);
    const int64_t blocks = resident(device, kernel);
    kiln_status status = KILN_OK;
    a->items = a->splits ? a->rows * a->splits : groups;
    if ((a->splits || online) && a->items > blocks)
        a->items = blocks;
    if (online && !a->splits) {
        const int64_t run = run_of(device, p, kernel, groups);
        if (run)
            a->items = ceil_divide(groups, run);
        a->spread = (run ? run : 1) * kernel->tile_q;
        a->run = run ? a->spread : a->rows;
        a->step = (int32_t)(run ? 1 : a->items) * kernel->tile_q;
    }
    for (int64_t i = 0; i < launches && status == KILN_OK; i++) {
        move_to(a, p, i);
        find_heads(a);
        if (a->splits) /* tickets and words */
            status = gpu_fill(device, a->ticket, 0, SPLIT_WORDS + (size_t)(a->rows * a->splits) * 8, stream);
        if (status == KILN_OK)
            status = gpu_launch(device, kernel, a, gpu_max_blocks(p->max_sms), stream);
    }
    return status;
}

/*
 * The longest chain of fp32 additions: the elements of a thread, and a tree. The bound knows runs of `tile` only,
 * depth = tile + ceil(n / tile): at least this chain, and the least of all, 2·sqrt(n), if longer.
 */
static void numerics_of(int64_t n, int64_t threads, kiln_numerics *numerics)
{
    const int64_t chain = n / threads + 80, root = (int64_t)sqrt((double)n);
    *numerics = (kiln_numerics){.unit = 0x1p-24,
                                .exp_error = 0x1p-21, /* of ex2.approx and lg2.approx: 2^-22; a weight may be of two */
                                .p_floor = 0x1p-125,
                                .score_extra = 5, /* scale, difference, log2(e) and its rounding, the final product */
                                .tile = root > chain ? root : chain};
}

/* ------------------------------------------------------------------------------------------------ rows, whole or split */

static const gpu_kernel *online_of(const gpu_device *device, const kiln_softmax_problem *p)
{
    return fitting(device, kernels_of(p->x.type)->row, ROW_KERNELS, p->n);
}

static const gpu_kernel *backward_of(const gpu_device *device, const kiln_softmax_problem *p)
{
    return fitting(device, kernels_of(p->y.type)->backward, 4, p->n);
}

/* The kernel of a problem, of one pass or the other, whose tensors are of one type; pieces of a row if blocks share it, else 0. */
static const gpu_kernel *plan_of(const gpu_device *device, const kiln_softmax_problem *p, int32_t *splits)
{
    const bool forward = p->x.type != 0;
    const int32_t type = forward ? p->x.type : p->y.type;
    const gpu_kernel *whole = forward ? online_of(device, p) : backward_of(device, p);
    const bool far = p->n * element_size(type) > 1 << 20;
    const gpu_kernel *split = forward ? kernels_of(type)->split[far] : kernels_of(type)->backward_split[far];
    const bool few =
        !(p->flags & KILN_FLAG_BATCH_INVARIANT) && p->rows < device->units && p->n * element_size(type) > 128 << 10;
    *splits = few || p->n > whole->tile_k ? (int32_t)ceil_divide(p->n, split->tile_k) : 0;
    return *splits ? split : whole;
}

static size_t rows_workspace(const gpu_device *device, const kiln_softmax_problem *p)
{
    int32_t splits;
    plan_of(device, p, &splits);
    return splits ? SPLIT_WORDS + (size_t)(args_of(p).rows * splits) * 2 * sizeof(int64_t) : 0;
}

static kiln_status rows_run(const gpu_device *device, const kiln_softmax_problem *p, void *workspace,
                            kiln_stream stream)
{
    gpu_softmax_args a = args_of(p);
    const gpu_kernel *kernel = plan_of(device, p, &a.splits);
    if (a.splits) {
        const int64_t pieces = a.rows * a.splits;
        char *words = (char *)workspace + SPLIT_WORDS;
        a.ticket = workspace;
        a.partial = (kiln_view){words, KILN_INT64, {a.rows, a.splits, 1, 1}, {a.splits, 1, 0, 0}};
        a.forgotten = (kiln_view){words + 8 * pieces, KILN_INT64, {1, 1, 1, pieces}, {0, 0, 0, 1}};
    }
    return launch_rows(device, p, &a, kernel, a.x.type != 0, stream);
}

static void rows_numerics(const gpu_device *device, const kiln_softmax_problem *p, kiln_numerics *numerics)
{
    int32_t splits;
    const gpu_kernel *kernel = plan_of(device, p, &splits);
    numerics_of(splits ? kernel->tile_k : p->n, kernel->threads / kernel->tile_q, numerics);
    if (splits) { /* then the pieces, in a thread and a tree */
        const int64_t root = (int64_t)sqrt((double)p->n), chain = numerics->tile + splits / kernel->threads + 10;
        numerics->tile = root > chain ? root : chain;
    }
}

/* ------------------------------------------------------------------------------------------------ forward */

static bool same_types(const kiln_softmax_problem *p)
{
    return !p->y.type || p->x.type == p->y.type;
}

static bool supports_all(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device, (void)problem, (void)why, (void)cap;
    return true;
}

static const gpu_kernel *three_pass_of(const kiln_softmax_problem *p)
{
    return p->n <= 1024 ? &GPU_INFO(softmax_three_pass_32) : &GPU_INFO(softmax_three_pass_256);
}

static const gpu_kernel *three_pass_kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return i == 0 ? three_pass_of(&problem->softmax) : NULL;
}

static kiln_status three_pass_run(const gpu_device *device, const kiln_problem *problem, void *workspace,
                                  kiln_stream stream)
{
    (void)workspace;
    gpu_softmax_args a = args_of(&problem->softmax);
    return launch_rows(device, &problem->softmax, &a, three_pass_of(&problem->softmax), false, stream);
}

static void three_pass_numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device;
    numerics_of(problem->softmax.n, 64 * 32, numerics); /* runs of 64 in 32 threads or more */
    const int64_t n = problem->softmax.n, chain = 64 + n / (n <= 1024 ? 2048 : 64 * 256) + 80;
    if (numerics->tile < chain)
        numerics->tile = chain;
}

static bool online_supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device;
    if (same_types(&problem->softmax))
        return true;
    snprintf(why, cap, "x and y differ in type; online needs them alike (three_pass takes any)");
    return false;
}

static size_t online_workspace(const gpu_device *device, const kiln_problem *problem)
{
    return rows_workspace(device, &problem->softmax);
}

static const gpu_kernel *online_kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    int32_t splits;
    return i == 0 ? plan_of(device, &problem->softmax, &splits) : NULL;
}

static kiln_status online_run(const gpu_device *device, const kiln_problem *problem, void *workspace,
                              kiln_stream stream)
{
    return rows_run(device, &problem->softmax, workspace, stream);
}

static void online_numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    rows_numerics(device, &problem->softmax, numerics);
}

const gpu_method GPU_NAME(gpu_softmax_online) = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "online",
    .name = "softmax_online",
    .supports = online_supports,
    .workspace = online_workspace,
    .kernel = online_kernel,
    .run = online_run,
    .numerics = online_numerics,
};

/* Second in the list: it takes what differs in type. */
const gpu_method GPU_NAME(gpu_softmax_three_pass) = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "three_pass",
    .name = "softmax_three_pass",
    .supports = supports_all,
    .kernel = three_pass_kernel,
    .run = three_pass_run,
    .numerics = three_pass_numerics,
};

/* ------------------------------------------------------------------------------------------------ backward */

static bool is_mixed(const kiln_softmax_problem *p)
{
    return p->y.type != p->dy.type || p->y.type != p->dx.type;
}

static size_t backward_workspace(const gpu_device *device, const kiln_problem *problem)
{
    return is_mixed(&problem->softmax) ? 0 : rows_workspace(device, &problem->softmax);
}

static const gpu_kernel *backward_kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    return i == 0 && is_mixed(&problem->softmax) ? &GPU_INFO(softmax_backward_mixed_256)
                                                 : online_kernel(device, problem, i);
}

static kiln_status backward_run(const gpu_device *device, const kiln_problem *problem, void *workspace,
                                kiln_stream stream)
{
    if (!is_mixed(&problem->softmax))
        return rows_run(device, &problem->softmax, workspace, stream);
    gpu_softmax_args a = args_of(&problem->softmax);
    return launch_rows(device, &problem->softmax, &a, &GPU_INFO(softmax_backward_mixed_256), false, stream);
}

static void backward_numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    if (is_mixed(&problem->softmax))
        numerics_of(problem->softmax.n, 256, numerics);
    else
        rows_numerics(device, &problem->softmax, numerics);
}

const gpu_method GPU_NAME(gpu_softmax_backward) = {
    .op = KILN_OP_SOFTMAX_BACKWARD,
    .algorithm = "two_pass",
    .name = "softmax_backward",
    .supports = supports_all,
    .workspace = backward_workspace,
    .kernel = backward_kernel,
    .run = backward_run,
    .numerics = backward_numerics,
};
