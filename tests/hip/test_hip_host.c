/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_hip_host.c: the plug-in kiln_hip on the stand-in HIP runtime (standin.h): what it does to its caller, and what it says
 * and leaves behind when a call of the runtime fails. Kernels' results are judged by tests/op on the same device.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/attention.h"
#include "../support/rows.h"
#include "standin.h"

static struct {
    standin_count_fn *count;
    standin_fail_fn *spoil;
    standin_failed_fn *failed;
    int (*GetDevice)(int *);
    int (*SetDevice)(int);
    int (*GetLastError)(void);
    int (*StreamSynchronize)(void *);
    int (*StreamBeginCapture)(void *, int);
    int (*StreamEndCapture)(void *, void **);
    int (*GraphInstantiate)(void **, void *, void **, char *, size_t);
    int (*GraphLaunch)(void *, void *);
    int (*GraphDestroy)(void *);
} hip;

#define REQUIRE_OK(call) TEST_REQUIRE((call) == KILN_OK, "%s", kiln_last_error())
#define HIP_OK(call)     ck_assert_int_eq((call), 0)

static bool find_standin(void)
{
    const char *path = getenv("KILN_HIP_LIBRARY");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {"standin_count", &hip.count},
        {"standin_fail", &hip.spoil},
        {"standin_failed", &hip.failed},
        {"hipGetDevice", &hip.GetDevice},
        {"hipSetDevice", &hip.SetDevice},
        {"hipGetLastError", &hip.GetLastError},
        {"hipStreamSynchronize", &hip.StreamSynchronize},
        {"hipStreamBeginCapture", &hip.StreamBeginCapture},
        {"hipStreamEndCapture", &hip.StreamEndCapture},
        {"hipGraphInstantiate", &hip.GraphInstantiate},
        {"hipGraphLaunch", &hip.GraphLaunch},
        {"hipGraphDestroy", &hip.GraphDestroy},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = library ? dlsym(library, functions[i].name) : NULL;
        if (!address) {
            printf("KILN_HIP_LIBRARY is not the stand-in: no %s\n", functions[i].name);
            return false;
        }
        memcpy(functions[i].slot, &address, sizeof address);
    }
    return true;
}

static standin_counts counts(void)
{
    standin_counts c;
    hip.count(&c);
    return c;
}

static int current(void)
{
    int device = -1;
    HIP_OK(hip.GetDevice(&device));
    return device;
}

static kiln_context *context_on(int32_t device)
{
    kiln_context *context = rows_context(device);
    TEST_REQUIRE(context, "%s", kiln_last_error());
    return context;
}

/* What exists apart from machine code, which stays for the life of the process. */
static void same_as(const standin_counts *before)
{
    const standin_counts now = counts();
    ck_assert_int_eq(now.allocations, before->allocations);
    ck_assert_int_eq(now.streams, before->streams);
    ck_assert_int_eq(now.events, before->events);
    ck_assert_int_eq(now.graphs, before->graphs);
}

/* ------------------------------------------------------------------------------------------------ failing calls */

/* Errors of the runtime, and the status that each must become. */
static const struct {
    int error;
    kiln_status status;
} errors[] = {{2, KILN_OUT_OF_MEMORY},  {1, KILN_INVALID_ARGUMENT}, {400, KILN_INVALID_ARGUMENT},
              {900, KILN_UNSUPPORTED},  {801, KILN_UNSUPPORTED},    {101, KILN_UNAVAILABLE},
              {209, KILN_UNAVAILABLE},  {9, KILN_INTERNAL},         {98, KILN_INTERNAL},
              {719, KILN_DEVICE_ERROR}, {700, KILN_DEVICE_ERROR},   {999, KILN_DEVICE_ERROR}};
enum { ERRORS = sizeof errors / sizeof *errors };

static bool is(const char *a, const char *b)
{
    return a && strcmp(a, b) == 0;
}

enum { NOTHING_FAILED, SEEN, UNSEEN, WRONG };

/* Opens the first context of device 1 with the n-th call failing. In a process of its own: what is loaded stays. */
static int opening(int n)
{
    const int error = errors[n % ERRORS].error;
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options, .backend = "hip", .device = 1};
    hip.spoil(NULL, n, error);
    const kiln_status status = kiln_context_create(&context, &options);
    const char *failed = hip.failed();
    hip.spoil(NULL, 0, 0);
    const standin_counts left = counts();
    int device = -1;
    const bool stays = hip.GetLastError() == 0 && hip.GetDevice(&device) == 0 && device == 0;
    if (!failed)
        return status == KILN_OK && stays ? NOTHING_FAILED : WRONG;
    /* Some calls may fail: what does not tell its generation is offered all code; giving back has no status, and the device
     * that cannot be brought back stays, with HIP's error. */
    if (status == KILN_OK && (is(failed, "hipDeviceGetAttribute") || is(failed, "hipModuleUnload")))
        return stays ? UNSEEN : WRONG;
    if (status == KILN_OK && is(failed, "hipSetDevice"))
        return UNSEEN;
    const bool no_code = is(failed, "hipModuleLoadData") && status == KILN_UNAVAILABLE,
               counting = is(failed, "hipGetDeviceCount") && status != KILN_OK;
    const bool right = (no_code || counting || status == errors[n % ERRORS].status) && stays &&
                       strstr(kiln_last_error(), "hip") && left.modules == is(failed, "hipModuleUnload") &&
                       left.allocations == is(failed, "hipFree");
    if (!right)
        printf("call %d, %s, error %d: status %d, %s; %d modules and %d allocations are left, device %d is current\n",
               n, failed, error, status, kiln_last_error(), left.modules, left.allocations, device);
    return right ? SEEN : WRONG;
}

/* The n-th call of opening fails, for every n. Runs before anything is loaded. */
START_TEST(every_call_of_opening_fails)
{
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options, .backend = "hip", .device = 1000};
    int seen = 0, unseen = 0, result;
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_UNAVAILABLE); /* looks for devices */
    ck_assert_ptr_nonnull(strstr(kiln_last_error(), "1000"));
    ck_assert_int_eq(counts().modules, 0);
    fflush(stdout);
    for (int n = 1;; n++) {
        const pid_t child = fork();
        if (child == 0) {
            result = opening(n);
            fflush(stdout);
            _exit(result);
        }
        int status = 0;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        TEST_REQUIRE(WIFEXITED(status), "call %d: killed by signal %d", n, WTERMSIG(status));
        result = WEXITSTATUS(status);
        TEST_REQUIRE(result != WRONG, "call %d: see above", n);
        if (result == NOTHING_FAILED)
            break;
        seen += result == SEEN, unseen += result == UNSEEN;
    }
    printf("of opening %d calls were made to fail, %d of them without a status\n", seen + unseen, unseen);
    ck_assert_int_gt(seen, 100); /* modules and kernels */
    ck_assert_int_lt(unseen, 20);
}
END_TEST

/* Everything that a program does with a context, until something fails. */
static kiln_status use_all(kiln_context *context, known_rows *r)
{
    kiln_stream stream = NULL;
    kiln_event *start = NULL, *end = NULL;
    double milliseconds;
    kiln_status status = rows_new(r, context), cleaned;
#define STEP(call)                                                                                                     \
    if (status == KILN_OK)                                                                                             \
    status = (call)
    STEP(kiln_stream_create(context, &stream));
    STEP(kiln_event_create(context, &start));
    STEP(kiln_event_create(context, &end));
    STEP(kiln_softmax_forward_prepare(context, &r->args));
    STEP(rows_set(r, 3, stream));
    STEP(kiln_event_record(context, start, stream));
    STEP(rows_run(r, stream));
    STEP(kiln_event_record(context, end, stream));
    STEP(kiln_event_elapsed(context, start, end, &milliseconds));
    STEP(kiln_copy(context, r->x, r->y, sizeof(float) * ROWS * ROWS_N, stream));
    STEP(kiln_stream_synchronize(context, stream));
#undef STEP
    /* What could not be given back may be given back again. */
#define GIVE_BACK(call)                                                                                                \
    do {                                                                                                               \
        if ((cleaned = (call)) != KILN_OK) {                                                                           \
            status = status == KILN_OK ? cleaned : status;                                                             \
            REQUIRE_OK(call);                                                                                          \
        }                                                                                                              \
    } while (0)
    if (start)
        GIVE_BACK(kiln_event_destroy(context, start));
    if (end)
        GIVE_BACK(kiln_event_destroy(context, end));
    if (stream)
        GIVE_BACK(kiln_stream_destroy(context, stream));
    void *all[] = {r->x, r->y, r->lse, r->workspace};
    for (int i = 0; i < 4; i++)
        GIVE_BACK(kiln_free(context, all[i]));
#undef GIVE_BACK
    return status;
}

START_TEST(every_call_of_use_fails)
{
    kiln_context *context = context_on(1);
    const standin_counts before = counts();
    int n = 1, quiet = 0;
    const char *failed;
    for (;; n++) {
        const int which = (n + _i) % ERRORS;
        known_rows r;
        HIP_OK(hip.SetDevice(0));
        (void)hip.GetLastError();
        hip.spoil(NULL, n, errors[which].error);
        const kiln_status status = use_all(context, &r);
        failed = hip.failed();
        hip.spoil(NULL, 0, 0);
        same_as(&before);
        if (!failed)
            break;
        if (status == KILN_OK) {
            /* Bringing back the device has no status; where memory lies is asked only to know whether to wait. */
            TEST_REQUIRE(is(failed, "hipSetDevice") || is(failed, "hipPointerGetAttribute"),
                         "call %d, %s, has failed, and nobody noticed", n, failed);
            quiet++;
            continue;
        }
        TEST_REQUIRE(status == errors[which].status, "call %d, %s, error %d: status %d, %s", n, failed,
                     errors[which].error, status, kiln_last_error());
        ck_assert_int_eq(current(), 0);
        ck_assert_int_eq(hip.GetLastError(), 0);
    }
    TEST_REQUIRE(n > 60 && quiet < n / 2, "%d calls, %d failures without a status", n, quiet);
    kiln_context_destroy(context);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ devices */

#define CHECKED(call)                                                                                                  \
    do {                                                                                                               \
        REQUIRE_OK(call);                                                                                              \
        TEST_REQUIRE(current() == wanted, "%s: another device is current now", #call);                                 \
        ck_assert_int_eq(hip.GetLastError(), 0);                                                                       \
    } while (0)

/* _i: bit 0 the device of the context, bit 1 the one that is current. */
START_TEST(device_stays_current)
{
    const int device = _i & 1, wanted = _i >> 1;
    known_rows r;
    kiln_stream stream;
    kiln_event *start, *end;
    double milliseconds = -1;
    void *none = NULL;
    const standin_counts before = counts();
    HIP_OK(hip.SetDevice(wanted));
    kiln_context *context = context_on(device);
    ck_assert_int_eq(current(), wanted);
    ck_assert_int_eq(kiln_context_device(context).device_type, KILN_DEVICE_ROCM);
    CHECKED(rows_new(&r, context));
    CHECKED(kiln_stream_create(context, &stream));
    CHECKED(kiln_event_create(context, &start));
    CHECKED(kiln_event_create(context, &end));
    CHECKED(kiln_softmax_forward_prepare(context, &r.args));
    CHECKED(rows_set(&r, 3, stream));
    CHECKED(kiln_event_record(context, start, stream));
    CHECKED(rows_run(&r, stream));
    ck_assert_int_ge(counts().waiting, 2); /* the call has not waited */
    CHECKED(kiln_event_record(context, end, stream));
    CHECKED(kiln_event_elapsed(context, start, end, &milliseconds));
    ck_assert_double_ge(milliseconds, 0);
    ck_assert(rows_right(&r, 3, stream));
    ck_assert_int_eq(kiln_malloc(context, (size_t)1 << 60, &none), KILN_OUT_OF_MEMORY);
    ck_assert_int_eq(current(), wanted);
    ck_assert_int_eq(hip.GetLastError(), 0);
    CHECKED(rows_set(&r, 4, NULL));
    CHECKED(rows_run(&r, NULL)); /* the default stream of the context's device */
    ck_assert(rows_right(&r, 4, NULL));
    CHECKED(kiln_event_destroy(context, start));
    CHECKED(kiln_event_destroy(context, end));
    CHECKED(kiln_stream_destroy(context, stream));
    CHECKED(rows_free(&r));
    kiln_context_destroy(context);
    ck_assert_int_eq(current(), wanted);
    HIP_OK(hip.SetDevice(0));
    same_as(&before);
}
END_TEST

START_TEST(two_devices)
{
    kiln_context *first = context_on(0), *second = context_on(1);
    known_rows r;
    kiln_stream stream;
    char why[512];
    REQUIRE_OK(rows_new(&r, first));
    ck_assert_int_eq(kiln_softmax_forward(second, &r.args, r.workspace, r.bytes, NULL), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_softmax_forward_supported(second, &r.args, why, sizeof why), KILN_INVALID_ARGUMENT);
    REQUIRE_OK(kiln_stream_create(second, &stream));
    ck_assert_int_eq(rows_run(&r, stream), KILN_INVALID_ARGUMENT); /* a stream of the other device */
    ck_assert_int_eq(hip.GetLastError(), 0);
    REQUIRE_OK(rows_set(&r, 1, NULL));
    REQUIRE_OK(rows_run(&r, NULL));
    ck_assert(rows_right(&r, 1, NULL));
    REQUIRE_OK(kiln_stream_destroy(second, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(first);
    kiln_context_destroy(second);
}
END_TEST

START_TEST(described)
{
    kiln_device_info info = {.struct_size = sizeof info};
    kiln_context *context = context_on(0);
    REQUIRE_OK(kiln_context_info(context, &info));
    ck_assert_str_eq(info.architecture, "gfx942");
    ck_assert_int_eq(info.units, 304);
    ck_assert_int_eq(info.l1_bytes, 64 << 10);
    ck_assert_int_eq(info.memory_bytes, (int64_t)1 << 37);
    kiln_context_destroy(context);
}
END_TEST

/* Machine code stays, so that a context may go before its work is done. */
START_TEST(context_goes_before_its_work)
{
    known_rows r;
    kiln_stream stream;
    kiln_context *other = context_on(0);
    const int modules = counts().modules;
    kiln_context *context = context_on(0);
    ck_assert_int_eq(counts().modules, modules);
    REQUIRE_OK(rows_new(&r, other));
    REQUIRE_OK(kiln_stream_create(other, &stream));
    REQUIRE_OK(rows_set(&r, 5, stream));
    REQUIRE_OK(kiln_softmax_forward(context, &r.args, r.workspace, r.bytes, stream));
    kiln_context_destroy(context);
    ck_assert(rows_right(&r, 5, stream));
    ck_assert_int_eq(counts().modules, modules);
    REQUIRE_OK(kiln_stream_destroy(other, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(other);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ streams */

START_TEST(copies_wait_for_the_host_only)
{
    enum { BYTES = 100 };
    unsigned char host[BYTES] = {1, 2, 3}, back[BYTES] = {0};
    void *a, *b;
    kiln_stream stream;
    kiln_context *context = context_on(0);
    REQUIRE_OK(kiln_stream_create(context, &stream));
    REQUIRE_OK(kiln_malloc(context, BYTES, &a));
    REQUIRE_OK(kiln_malloc(context, BYTES, &b));
    REQUIRE_OK(kiln_copy(context, a, host, BYTES, stream));
    memset(host, 7, BYTES); /* has been read */
    ck_assert_int_eq(counts().waiting, 0);
    REQUIRE_OK(kiln_copy(context, b, a, BYTES, stream));
    ck_assert_int_eq(counts().waiting, 1);
    REQUIRE_OK(kiln_fill(context, a, 0, BYTES, stream));
    ck_assert_int_eq(counts().waiting, 2);
    REQUIRE_OK(kiln_copy(context, back, b, BYTES, stream));
    ck_assert_int_eq(counts().waiting, 0);
    ck_assert(back[0] == 1 && back[1] == 2 && back[2] == 3 && back[3] == 0);
    ck_assert_int_eq(kiln_copy(context, (char *)a + 1, b, BYTES, stream), KILN_INVALID_ARGUMENT); /* past its end */
    ck_assert_int_eq(hip.GetLastError(), 0);
    REQUIRE_OK(kiln_free(context, a));
    REQUIRE_OK(kiln_free(context, b));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    kiln_context_destroy(context);
}
END_TEST

static bool device_0_is_current(void)
{
    int device = -1;
    return hip.GetDevice(&device) == 0 && device == 0;
}

START_TEST(threads)
{
    kiln_context *context = context_on(1);
    ck_assert_int_eq(rows_wrong_threads(context, device_0_is_current), 0);
    kiln_context_destroy(context);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ graphs */

/* _i: of a long row, whose workspace is cleared first. */
START_TEST(captured_softmax)
{
    void *graph, *replay;
    known_rows r;
    kiln_stream stream;
    kiln_context *context = context_on(0);
    REQUIRE_OK(_i ? rows_new_long(&r, context) : rows_new(&r, context));
    ck_assert_int_eq(r.bytes > 0, _i);
    REQUIRE_OK(kiln_fill(context, r.workspace, 0xff, r.bytes, NULL));
    REQUIRE_OK(kiln_stream_synchronize(context, NULL));
    REQUIRE_OK(kiln_stream_create(context, &stream));
    const int calls = counts().calls;
    HIP_OK(hip.StreamBeginCapture(stream, 0));
    REQUIRE_OK(rows_run(&r, stream));                 /* nothing was prepared */
    ck_assert_int_eq(counts().calls - calls, 3 + _i); /* BeginCapture, GetDevice, (MemsetAsync,) ModuleLaunchKernel */
    void *piece = NULL;
    ck_assert_int_eq(kiln_malloc(context, 16, &piece), KILN_UNSUPPORTED);
    ck_assert_int_eq(kiln_stream_synchronize(context, stream), KILN_UNSUPPORTED);
    HIP_OK(hip.StreamEndCapture(stream, &graph));
    HIP_OK(hip.GraphInstantiate(&replay, graph, NULL, NULL, 0));
    memset(&r.args, 0xff, sizeof r.args); /* arguments were copied */
    for (int round = 0; round < 3; round++) {
        REQUIRE_OK(rows_set(&r, (float)round, stream));
        HIP_OK(hip.GraphLaunch(replay, stream));
        ck_assert(rows_right(&r, (float)round, stream));
    }
    HIP_OK(hip.GraphDestroy(graph));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(context);
}
END_TEST

/* Lengths in device memory are read by every replay. */
START_TEST(captured_lengths)
{
    static const char *const algorithms[] = {"flash2", "splitkv", "tiled"};
    static const int64_t lengths[3][2] = {{40, 17}, {1, 40}, {0, 33}};
    size_t bytes = 0;
    void *workspace, *graph, *replay;
    kiln_stream stream;
    kiln_context *context = test_context();
    test_attention *a = test_attention_new(&(attention_case){.batch = 2,
                                                             .heads = 2,
                                                             .heads_k = 1,
                                                             .seqlen_q = 5,
                                                             .seqlen_k = 40,
                                                             .d = 16,
                                                             .type = KILN_FLOAT16,
                                                             .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT,
                                                             .used_k = true});
    a->args.algorithm = algorithms[_i];
    REQUIRE_OK(kiln_attention_forward_workspace(context, &a->args, &bytes));
    REQUIRE_OK(kiln_malloc(context, bytes, &workspace));
    REQUIRE_OK(kiln_stream_create(context, &stream));
    test_upload();
    HIP_OK(hip.StreamBeginCapture(stream, 0));
    REQUIRE_OK(kiln_attention_forward(context, &a->args, workspace, bytes, stream));
    HIP_OK(hip.StreamEndCapture(stream, &graph));
    HIP_OK(hip.GraphInstantiate(&replay, graph, NULL, NULL, 0));
    unsigned char *called = test_alloc(a->o->bytes), *replayed = test_alloc(a->o->bytes),
                  *before = test_alloc(a->o->bytes);
    for (int round = 0; round < 3; round++) {
        test_put(a->used_k, 0, (double)lengths[round][0]);
        test_put(a->used_k, 1, (double)lengths[round][1]);
        test_upload(); /* o is NaN again */
        HIP_OK(hip.GraphLaunch(replay, stream));
        REQUIRE_OK(kiln_copy(context, replayed, a->o->memory, a->o->bytes, stream));
        test_upload();
        REQUIRE_OK(kiln_attention_forward(context, &a->args, workspace, bytes, stream));
        REQUIRE_OK(kiln_copy(context, called, a->o->memory, a->o->bytes, stream));
        TEST_REQUIRE(memcmp(called, replayed, a->o->bytes) == 0, "lengths %d: the replay gives other bits", round);
        TEST_REQUIRE(memcmp(called, before, a->o->bytes) != 0, "lengths %d: nothing has changed", round);
        memcpy(before, called, a->o->bytes);
    }
    HIP_OK(hip.GraphDestroy(graph));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(kiln_free(context, workspace));
}
END_TEST

/* HIP counts the threads of a grid in 32 bits, so fewer blocks are launched than there are rows. Captured, never run. */
START_TEST(more_rows_than_a_grid_has_threads)
{
    void *graph;
    kiln_stream stream;
    kiln_context *context = context_on(0);
    known_rows r;
    REQUIRE_OK(rows_new(&r, context));
    REQUIRE_OK(kiln_stream_create(context, &stream));
    const int64_t compact[2] = {1, 1};
    r.shape[0] = (int64_t)1 << 40;
    r.shape[1] = 1;
    r.args.lse = NULL;
    r.tx.strides = r.ty.strides = (int64_t *)(uintptr_t)compact;
    r.args.algorithm = "three_pass";
    HIP_OK(hip.StreamBeginCapture(stream, 0));
    REQUIRE_OK(rows_run(&r, stream));
    HIP_OK(hip.StreamEndCapture(stream, &graph));
    HIP_OK(hip.GraphDestroy(graph));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(context);
}
END_TEST

int main(void)
{
    if (!find_standin())
        return 1;
    Suite *suite = suite_create("hip_host");
    TCase *t = test_tcase(suite, "failing");
    tcase_add_test(t, every_call_of_opening_fails); /* first: loads the machine code */
    tcase_add_loop_test(t, every_call_of_use_fails, 0, ERRORS);
    t = test_tcase(suite, "devices");
    tcase_add_loop_test(t, device_stays_current, 0, 4);
    tcase_add_test(t, two_devices);
    tcase_add_test(t, described);
    tcase_add_test(t, context_goes_before_its_work);
    t = test_tcase(suite, "streams");
    tcase_add_test(t, copies_wait_for_the_host_only);
    tcase_add_test(t, threads);
    t = test_tcase(suite, "graphs");
    tcase_add_loop_test(t, captured_softmax, 0, 2);
    tcase_add_loop_test(t, captured_lengths, 0, 3);
    tcase_add_test(t, more_rows_than_a_grid_has_threads);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int code = srunner_ntests_failed(runner) != 0;
    srunner_free(runner);
    return code;
}
