/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_gpu_host.c: the host side of the GPU backends (backends/gpu/gpu_backend.c, gpu_select.c) on a runtime made of
 * cardboard, which records what it is asked and fails on demand.
 */
#include <stdio.h>

#include "../../backends/gpu/gpu_host.h"
#include "../../common/context.h"
#include "../support/fixture.h"

enum { BAD_STREAM = 7, NO_ROOM = 9 };

/* What the runtime has seen, and what it shall fail with. */
static struct {
    int fail; /* error code of every function but enter and device_open; 0 = none */
    int fail_enter, fail_open;
    int32_t devices;
    int entered, left, calls, prepared, launched, opened, closed;
    bool outside; /* a function was called while the device was not current */
    int32_t blocks[8];
    const gpu_kernel *kernel[8];
} fake;

static int called(void)
{
    fake.calls++;
    fake.outside = fake.outside || fake.entered != fake.left + 1;
    return fake.fail;
}

static int32_t fake_count(char *reason, size_t cap)
{
    if (fake.devices < 0)
        snprintf(reason, cap, "the cardboard is wet");
    return fake.devices;
}
static int fake_open(gpu_device *device)
{
    if (fake.fail_open)
        return fake.fail_open;
    fake.opened++;
    device->units = 4;
    device->shared_per_unit = 1000;
    device->l2_bytes = 2000;
    device->memory_bytes = 3000;
    snprintf(device->name, sizeof device->name, "cardboard");
    snprintf(device->architecture_name, sizeof device->architecture_name, "brown");
    device->native = &fake;
    return 0;
}
static void fake_close(gpu_device *device)
{
    ck_assert_ptr_eq(device->native, &fake);
    fake.closed++;
}
static int fake_enter(const gpu_device *device, void **before)
{
    (void)device;
    if (fake.fail_enter)
        return fake.fail_enter;
    fake.entered++;
    *before = &fake.left;
    return 0;
}
static void fake_leave(const gpu_device *device, void *before)
{
    (void)device;
    ck_assert_ptr_eq(before, &fake.left);
    fake.left++;
}
static int fake_prepare(const gpu_device *device, const gpu_kernel *kernel)
{
    (void)device;
    fake.kernel[fake.prepared++] = kernel;
    return called();
}
static int fake_launch(const gpu_device *device, const gpu_kernel *kernel, int32_t blocks, const void *args,
                       kiln_stream stream)
{
    (void)device, (void)args, (void)stream;
    fake.kernel[fake.launched] = kernel;
    fake.blocks[fake.launched++] = blocks;
    return called();
}
static int fake_malloc(size_t bytes, void **pointer)
{
    ck_assert_uint_gt(bytes, 0);
    *pointer = fake.fail ? NULL : &fake;
    return called();
}
static int fake_pointer(void *pointer)
{
    (void)pointer;
    return called();
}
static int fake_copy(void *to, const void *from, size_t bytes, kiln_stream stream)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    return called();
}
static int fake_fill(void *to, uint8_t value, size_t bytes, kiln_stream stream)
{
    (void)to, (void)value, (void)bytes, (void)stream;
    return called();
}
static int fake_create(void **made)
{
    *made = &fake;
    return called();
}
static int fake_record(void *event, kiln_stream stream)
{
    (void)event, (void)stream;
    return called();
}
static int fake_elapsed(void *start, void *end, double *milliseconds)
{
    (void)start, (void)end;
    *milliseconds = 1.5;
    return called();
}
static kiln_status fake_status(int error)
{
    return error == NO_ROOM ? KILN_OUT_OF_MEMORY : error == BAD_STREAM ? KILN_INVALID_ARGUMENT : KILN_DEVICE_ERROR;
}
static const char *fake_text(int error)
{
    return error == NO_ROOM ? "no room" : "torn";
}

static const gpu_runtime runtime = {
    .name = "fake",
    .device_type = KILN_DEVICE_CUDA,
    .score = 50,
    .device_count = fake_count,
    .device_open = fake_open,
    .device_close = fake_close,
    .enter = fake_enter,
    .leave = fake_leave,
    .prepare = fake_prepare,
    .launch = fake_launch,
    .malloc = fake_malloc,
    .free = fake_pointer,
    .copy = fake_copy,
    .fill = fake_fill,
    .stream_create = fake_create,
    .stream_destroy = fake_pointer,
    .stream_synchronize = fake_pointer,
    .event_create = fake_create,
    .event_destroy = fake_pointer,
    .event_record = fake_record,
    .event_elapsed = fake_elapsed,
    .error_status = fake_status,
    .error_text = fake_text,
};

/* ------------------------------------------------------------------------------------------------ methods */

static const gpu_kernel first = {.name = "first"}, second = {.name = "second"};
static int64_t items[2]; /* of the two launches of a run */

static bool takes_all(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device, (void)problem, (void)why, (void)cap;
    return true;
}
static bool takes_narrow(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device;
    if (problem->softmax.n <= 100)
        return true;
    snprintf(why, cap, "n is %lld; online takes up to 100", (long long)problem->softmax.n);
    return false;
}
static bool prefers_short(const gpu_device *device, const kiln_problem *problem)
{
    (void)device;
    return problem->attention.seqlen_k <= 16;
}
static size_t some_bytes(const gpu_device *device, const kiln_problem *problem)
{
    (void)device, (void)problem;
    return 512;
}
static const gpu_kernel *both(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device, (void)problem;
    return i == 0 ? &first : i == 1 ? &second : NULL;
}
static kiln_status launch_both(const gpu_device *device, const kiln_problem *problem, void *workspace,
                               kiln_stream stream)
{
    (void)workspace;
    int64_t blocks = gpu_max_blocks(problem->softmax.max_sms);
    kiln_status status = gpu_launch(device, &first, &items[0], blocks, stream);
    return status != KILN_OK ? status : gpu_launch(device, &second, &items[1], 0, stream);
}
static void rounding(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device, (void)problem;
    *numerics = (kiln_numerics){.tile = 32};
}

#define METHOD(an_op, rung, title, ...)                                                                                \
    &(const gpu_method)                                                                                                \
    {                                                                                                                  \
        .op = an_op, .algorithm = rung, .name = title, .kernel = both, .run = launch_both, .numerics = rounding,       \
        __VA_ARGS__                                                                                                    \
    }
static const gpu_method *const methods[] = {
    METHOD(KILN_OP_SOFTMAX_FORWARD, "online", "narrow", .supports = takes_narrow, .workspace = some_bytes),
    METHOD(KILN_OP_SOFTMAX_FORWARD, "three_pass", "wide", .supports = takes_all),
    METHOD(KILN_OP_SOFTMAX_BACKWARD, "two_pass", "slopes", .supports = takes_all),
    METHOD(KILN_OP_ATTENTION_FORWARD, "splitkv", "cut", .supports = takes_all, .prefers = prefers_short),
    METHOD(KILN_OP_ATTENTION_FORWARD, "flash2", "whole", .supports = takes_all),
    METHOD(KILN_OP_ATTENTION_MERGE, "merge", "join", .supports = takes_all),
    NULL,
};

GPU_BACKEND(bind, runtime, methods)

static const kiln_services services = {.abi = KILN_BACKEND_ABI, .fail = kiln_fail};
static const kiln_backend *backend;
static void *state;

static void silent(void *user, int32_t level, const char *format, ...)
{
    (void)user, (void)level, (void)format;
}

static void set_up(void)
{
    memset(&fake, 0, sizeof fake);
    fake.devices = 3;
    items[0] = items[1] = 1;
    backend = bind(&services);
    ck_assert_int_eq(backend->open(&(kiln_open_options){.device = 2, .log = silent}, &state), KILN_OK);
}

static void tear_down(void)
{
    ck_assert_int_eq(fake.entered, fake.left);
    ck_assert(!fake.outside);
    backend->close(state);
    ck_assert_int_eq(fake.closed, fake.opened);
}

static kiln_problem softmax_of(int64_t n, const char *algorithm)
{
    kiln_rows rows = {.type = KILN_FLOAT32, .stride = 1};
    return (kiln_problem){.op = KILN_OP_SOFTMAX_FORWARD,
                          .softmax = {.rows = 1, .n = n, .x = rows, .y = rows, .algorithm = algorithm}};
}

/* ------------------------------------------------------------------------------------------------ tests */

START_TEST(probing)
{
    char reason[64] = "?";
    ck_assert_int_eq(backend->probe(reason, sizeof reason), 50);
    ck_assert_str_eq(reason, "");
    ck_assert_int_eq(backend->device_count(), 3);
    fake.devices = -1;
    ck_assert_int_eq(backend->probe(reason, sizeof reason), -1);
    ck_assert_str_eq(reason, "the cardboard is wet");
    ck_assert_int_eq(backend->device_count(), 0);
    ck_assert_ptr_eq(bind(&services), backend); /* the same file by another path */
    ck_assert_str_eq(backend->name, "fake");
    ck_assert(!backend->host_readable);
    ck_assert_int_eq(fake.entered, 0);
}
END_TEST

START_TEST(opening)
{
    void *other = NULL;
    kiln_device_info info = {.struct_size = sizeof info};
    ck_assert_int_eq(backend->info(state, &info), KILN_OK);
    ck_assert_str_eq(info.name, "cardboard");
    ck_assert_str_eq(info.architecture, "brown");
    ck_assert_int_eq(info.device.device_type, KILN_DEVICE_CUDA);
    ck_assert_int_eq(info.device.device_id, 2);
    ck_assert_int_eq(info.units, 4);
    ck_assert_int_eq(info.l1_bytes, 1000);
    ck_assert_int_eq(info.l2_bytes, 2000);
    ck_assert_int_eq(info.memory_bytes, 3000);

    fake.fail_open = 5;
    ck_assert_int_eq(backend->open(&(kiln_open_options){.device = 1, .log = silent}, &other), KILN_DEVICE_ERROR);
    ck_assert_str_eq(kiln_last_error(), "fake device 1: it could not be opened: torn (error 5)");
    ck_assert_ptr_null(other);
}
END_TEST

/* Every slot that reaches the runtime: current inside, restored after, success or not; the error in words. */
static kiln_status call_slot(int slot)
{
    void *p = NULL;
    double milliseconds;
    kiln_problem problem = softmax_of(10, NULL);
    switch (slot) {
    case 0: return backend->malloc(state, 100, &p);
    case 1: return backend->free(state, &p);
    case 2: return backend->copy(state, &p, &fake, 8, NULL);
    case 3: return backend->fill(state, &p, 1, 8, NULL);
    case 4: return backend->stream_create(state, &p);
    case 5: return backend->stream_destroy(state, &p);
    case 6: return backend->stream_synchronize(state, NULL);
    case 7: return backend->event_create(state, &p);
    case 8: return backend->event_destroy(state, &p);
    case 9: return backend->event_record(state, &p, NULL);
    case 10: return backend->event_elapsed(state, &p, &p, &milliseconds);
    case 11: return backend->prepare(state, &problem);
    default: return backend->run(state, &problem, NULL, 0, NULL);
    }
}
enum { SLOTS = 13 };

START_TEST(slots)
{
    static const struct {
        int error;
        kiln_status status;
    } errors[] = {{NO_ROOM, KILN_OUT_OF_MEMORY}, {BAD_STREAM, KILN_INVALID_ARGUMENT}, {700, KILN_DEVICE_ERROR}};
    ck_assert_int_eq(call_slot(_i), KILN_OK);
    int calls = fake.calls;
    ck_assert_int_ge(calls, 1);
    ck_assert_int_eq(fake.entered, 1);
    for (int i = 0; i < 3; i++) {
        fake.fail = errors[i].error;
        fake.launched = fake.prepared = 0;
        ck_assert_int_eq(call_slot(_i), errors[i].status);
        ck_assert_int_eq(fake.entered, fake.left);
        ck_assert_int_eq(fake.calls, ++calls); /* stops at the first that fails */
        char text[64];
        snprintf(text, sizeof text, ": %s (error %d)", fake_text(fake.fail), fake.fail);
        ck_assert_ptr_nonnull(strstr(kiln_last_error(), text));
        ck_assert_int_eq(strncmp(kiln_last_error(), "fake device 2: ", 15), 0);
    }
    fake.fail = 0;
    fake.fail_enter = 46;
    ck_assert_int_eq(call_slot(_i), KILN_DEVICE_ERROR);
    ck_assert_int_eq(fake.calls, calls);
}
END_TEST

START_TEST(nothing_to_do)
{
    void *p = &fake;
    ck_assert_int_eq(backend->malloc(state, 0, &p), KILN_OK);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(backend->stream_destroy(state, NULL), KILN_OK);
    ck_assert_int_eq(fake.calls, 0);
    fake.fail = NO_ROOM;
    p = &fake;
    ck_assert_int_eq(backend->malloc(state, 12345, &p), KILN_OUT_OF_MEMORY);
    ck_assert_ptr_null(p);
    ck_assert_str_eq(kiln_last_error(), "fake device 2: allocating 12345 bytes: no room (error 9)");
}
END_TEST

/* Grids: one block an item, at most max_sms, at most 2^31 - 1; none for nothing. */
START_TEST(grids)
{
    static const struct {
        int64_t items;
        int32_t max_sms, blocks;
    } rows[] = {{1, 0, 1},
                {132, 0, 132},
                {132, 5, 5},
                {3, 5, 3},
                {INT32_MAX, 0, INT32_MAX},
                {INT64_C(1) << 31, 0, INT32_MAX},
                {INT64_C(1) << 62, 0, INT32_MAX},
                {INT64_C(1) << 62, 7, 7}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kiln_problem problem = softmax_of(10, NULL);
        problem.softmax.max_sms = rows[i].max_sms;
        items[0] = rows[i].items;
        items[1] = 0;
        fake.launched = 0;
        ck_assert_int_eq(backend->run(state, &problem, NULL, 0, NULL), KILN_OK);
        ck_assert_int_eq(fake.launched, 1);
        ck_assert_ptr_eq(fake.kernel[0], &first);
        ck_assert_int_eq(fake.blocks[0], rows[i].blocks);
    }
    fake.fail = 1;
    items[0] = 0;
    kiln_problem problem = softmax_of(10, NULL);
    ck_assert_int_eq(backend->run(state, &problem, NULL, 0, NULL), KILN_OK);
    items[0] = 4;
    ck_assert_int_eq(backend->run(state, &problem, NULL, 0, NULL), KILN_DEVICE_ERROR);
    ck_assert_str_eq(kiln_last_error(), "fake device 2: first: torn (error 1)");
}
END_TEST

START_TEST(preparing)
{
    kiln_problem problem = softmax_of(10, NULL);
    ck_assert_int_eq(backend->prepare(state, &problem), KILN_OK);
    ck_assert_int_eq(fake.prepared, 2);
    ck_assert_ptr_eq(fake.kernel[0], &first);
    ck_assert_ptr_eq(fake.kernel[1], &second);
}
END_TEST

static void expect(const kiln_problem *problem, kiln_status status, const char *text)
{
    char why[256] = "";
    ck_assert_int_eq(backend->supports(state, problem, why, sizeof why), status);
    ck_assert_str_eq(status == KILN_OK ? why : kiln_last_error(), text);
    size_t bytes;
    kiln_numerics numerics;
    ck_assert_int_eq(backend->workspace(state, problem, &bytes), status);
    ck_assert_int_eq(backend->numerics(state, problem, &numerics), status);
    ck_assert_int_eq(fake.calls, 0); /* queries are host code only */
    ck_assert_int_eq(backend->run(state, problem, NULL, 0, NULL), status);
    ck_assert_int_eq(fake.calls, status == KILN_OK ? 2 : 0);
    fake.calls = fake.launched = 0;
}

START_TEST(choice)
{
    size_t bytes = 1;
    kiln_problem p = softmax_of(100, NULL);
    expect(&p, KILN_OK, "online: narrow");
    ck_assert_int_eq(backend->workspace(state, &p, &bytes), KILN_OK);
    ck_assert_uint_eq(bytes, 512);
    p = softmax_of(101, NULL);
    expect(&p, KILN_OK, "three_pass: wide");
    ck_assert_int_eq(backend->workspace(state, &p, &bytes), KILN_OK);
    ck_assert_uint_eq(bytes, 0);
    p = softmax_of(100, "three_pass");
    expect(&p, KILN_OK, "three_pass: wide");
    p = softmax_of(101, "online");
    expect(&p, KILN_UNSUPPORTED, "n is 101; online takes up to 100");
    p = softmax_of(100, "Online");
    expect(&p, KILN_INVALID_ARGUMENT,
           "algorithm is \"Online\"; the fake backend has online, three_pass for softmax_forward");

    p = (kiln_problem){.op = KILN_OP_ATTENTION_FORWARD, .attention = {.seqlen_k = 16}};
    expect(&p, KILN_OK, "splitkv: cut");
    p.attention.seqlen_k = 17;
    expect(&p, KILN_OK, "flash2: whole");
    p.attention.algorithm = "splitkv"; /* named: nobody asks what it prefers */
    expect(&p, KILN_OK, "splitkv: cut");
    p.attention.algorithm = "naive"; /* a rung, but not here */
    expect(&p, KILN_UNSUPPORTED, "algorithm is \"naive\"; the fake backend has splitkv, flash2 for attention_forward");
    p = (kiln_problem){.op = KILN_OP_ATTENTION_BACKWARD};
    expect(&p, KILN_UNSUPPORTED, "the fake backend has no attention_backward");
}
END_TEST

/* The last axis of what kernels read row by row must have stride 1; sizes of one have none. */
START_TEST(strides)
{
    const char *sentence = "%s has stride %d along its last axis; GPU kernels need 1";
    char text[128];
    static const struct {
        const char *name;
        size_t offset;
        bool refused;
    } rows[] = {
        {"q", offsetof(kiln_attention_problem, q), true},        {"k", offsetof(kiln_attention_problem, k), true},
        {"v", offsetof(kiln_attention_problem, v), true},        {"o", offsetof(kiln_attention_problem, o), true},
        {"q2", offsetof(kiln_attention_problem, q2), true},      {"k2", offsetof(kiln_attention_problem, k2), true},
        {"bias", offsetof(kiln_attention_problem, bias), false}, {"lse", offsetof(kiln_attention_problem, lse), false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int stride = -1; stride <= 3; stride++) {
            kiln_problem p = {.op = KILN_OP_ATTENTION_FORWARD, .attention = {.seqlen_k = 17}};
            kiln_view *view = (kiln_view *)((char *)&p.attention + rows[i].offset);
            *view = (kiln_view){.type = KILN_FLOAT32, .size = {1, 1, 1, 8}, .stride = {0, 0, 0, stride}};
            snprintf(text, sizeof text, sentence, rows[i].name, stride);
            bool refused = rows[i].refused && stride != 1;
            expect(&p, refused ? KILN_UNSUPPORTED : KILN_OK, refused ? text : "flash2: whole");
            view->size[3] = 1;
            expect(&p, KILN_OK, "flash2: whole");
        }
    for (int which = 0; which < 4; which++) {
        kiln_problem p = softmax_of(10, NULL);
        p.op = KILN_OP_SOFTMAX_BACKWARD;
        kiln_rows *tensors[4] = {&p.softmax.x, &p.softmax.y, &p.softmax.dy, &p.softmax.dx};
        *tensors[which] = (kiln_rows){.type = KILN_FLOAT16, .stride = 2};
        snprintf(text, sizeof text, sentence, ((const char *[]){"x", "y", "dy", "dx"})[which], 2);
        expect(&p, KILN_UNSUPPORTED, text);
        p.softmax.n = 1;
        expect(&p, KILN_OK, "two_pass: slopes");
    }
    int64_t shape[4] = {1, 1, 1, 8}, stride[4] = {8, 8, 8, 1};
    kiln_tensor o = {.ndim = 4, .dtype = {2, 32, 1}, .shape = shape, .strides = stride}, lse = o;
    const kiln_tensor *parts[] = {&o}, *lses[] = {&lse};
    lse.ndim = 3;
    kiln_problem p = {.op = KILN_OP_ATTENTION_MERGE,
                      .merge = {.num_parts = 1, .o_parts = parts, .lse_parts = lses, .d_v = 8}};
    expect(&p, KILN_OK, "merge: join");
    stride[3] = 4;
    snprintf(text, sizeof text, sentence, "an entry of o_parts", 4);
    expect(&p, KILN_UNSUPPORTED, text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_host");
    TCase *t = test_tcase(suite, "gpu_host");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, probing);
    tcase_add_test(t, opening);
    tcase_add_loop_test(t, slots, 0, SLOTS);
    tcase_add_test(t, nothing_to_do);
    tcase_add_test(t, grids);
    tcase_add_test(t, preparing);
    tcase_add_test(t, choice);
    tcase_add_test(t, strides);
    return test_main(suite);
}
