/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_cuda_host.c: what the CUDA backend does to its caller: CUDA contexts stay as they were, streams, threads, graphs, the
 * cost of a call. Skipped (77) where there is no driver or no device. Faults that spoil a process: test_cuda_faults.c.
 */
#include <stdio.h>
#include <time.h>

#include "../support/gradients.h"
#include "../support/rows.h"
#include "driver.h"

static const cuda_driver *cuda;
#define REQUIRE_OK(call) TEST_REQUIRE((call) == KILN_OK, "%s", kiln_last_error())
#define CUDA_OK(call)    ck_assert_int_eq((call), 0)

static kiln_context *context_on(int32_t device)
{
    kiln_context *context = rows_context(device);
    TEST_REQUIRE(context, "%s", kiln_last_error());
    return context;
}

static void *current(void)
{
    void *context = &context;
    CUDA_OK(cuda->CtxGetCurrent(&context));
    return context;
}

/* ------------------------------------------------------------------------------------------------ CUDA contexts */

#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        REQUIRE_OK(call);                                                                                              \
        TEST_REQUIRE(current() == wanted, "%s: another CUDA context is current now", #call);                           \
    } while (0)

/* Every kind of call, after each of which `wanted` is current again. `owner`: the CUDA context that memory belongs to. */
static void use(int32_t device, void *wanted, void *owner)
{
    known_rows r;
    kiln_stream stream;
    kiln_event *start, *end;
    double milliseconds = -1;
    void *found = NULL, *none = NULL;
    ck_assert_ptr_eq(current(), wanted);
    kiln_context *context = context_on(device);
    ck_assert_ptr_eq(current(), wanted);
    REQUIRE_OK(rows_new(&r, context));
    ck_assert_ptr_eq(current(), wanted);
    if (owner) {
        CUDA_OK(cuda->PointerGetAttribute(&found, CUDA_POINTER_CONTEXT, (unsigned long long)(uintptr_t)r.x));
        ck_assert_ptr_eq(found, owner);
    }
    STEP(kiln_stream_create(context, &stream));
    STEP(kiln_event_create(context, &start));
    STEP(kiln_event_create(context, &end));
    STEP(kiln_softmax_forward_prepare(context, &r.args));
    REQUIRE_OK(rows_set(&r, 3, stream));
    STEP(kiln_event_record(context, start, stream));
    STEP(rows_run(&r, stream));
    STEP(kiln_event_record(context, end, stream));
    STEP(kiln_event_elapsed(context, start, end, &milliseconds));
    ck_assert_double_ge(milliseconds, 0);
    STEP(kiln_stream_synchronize(context, stream));
    ck_assert(rows_right(&r, 3, stream));
    ck_assert_int_eq(kiln_malloc(context, (size_t)1 << 60, &none), KILN_OUT_OF_MEMORY);
    ck_assert_ptr_eq(current(), wanted);
    STEP(rows_run(&r, NULL)); /* the default stream, and nothing is left of the failure */
    ck_assert(rows_right(&r, 3, NULL));
    STEP(kiln_event_destroy(context, start));
    STEP(kiln_event_destroy(context, end));
    STEP(kiln_stream_destroy(context, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(context);
    ck_assert_ptr_eq(current(), wanted);
}

START_TEST(no_context_current)
{
    CUDA_OK(cuda->CtxSetCurrent(NULL));
    use(0, NULL, NULL);
}
END_TEST

START_TEST(primary_context_current)
{
    int device;
    void *primary;
    CUDA_OK(cuda->DeviceGet(&device, 0));
    CUDA_OK(cuda->DevicePrimaryCtxRetain(&primary, device));
    CUDA_OK(cuda->CtxSetCurrent(primary));
    use(0, primary, primary);
    CUDA_OK(cuda->CtxSetCurrent(NULL));
}
END_TEST

/* A context of the caller's own on the device is kept, and used. */
START_TEST(own_context_current)
{
    int device;
    void *own;
    CUDA_OK(cuda->DeviceGet(&device, 0));
    CUDA_OK(cuda->CtxCreate_v2(&own, 0, device));
    use(0, own, own);
    CUDA_OK(cuda->CtxDestroy_v2(own));
    CUDA_OK(cuda->CtxSetCurrent(NULL));
    use(0, NULL, NULL); /* what was set up for the one that is gone is set up again */
}
END_TEST

START_TEST(another_device_current)
{
    int count = 0, device;
    void *primary;
    CUDA_OK(cuda->DeviceGetCount(&count));
    if (count < 2) {
        printf("skipped: needs two devices\n");
        return;
    }
    CUDA_OK(cuda->DeviceGet(&device, 0));
    CUDA_OK(cuda->DevicePrimaryCtxRetain(&primary, device));
    CUDA_OK(cuda->CtxSetCurrent(primary));
    use(1, primary, NULL);
    CUDA_OK(cuda->CtxSetCurrent(NULL));
    use(1, NULL, NULL);
    /* Tensors of the other device are refused. */
    kiln_context *first = context_on(0), *second = context_on(1);
    known_rows r;
    REQUIRE_OK(rows_new(&r, first));
    ck_assert_int_eq(kiln_softmax_forward(second, &r.args, r.workspace, r.bytes, NULL), KILN_INVALID_ARGUMENT);
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(first);
    kiln_context_destroy(second);
}
END_TEST

START_TEST(device_that_is_not_there)
{
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cuda", .device = 1000};
    kiln_context *context;
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(kiln_last_error(), "1000"));
}
END_TEST

/* ------------------------------------------------------------------------------------------------ streams, threads */

/* Two Kiln contexts of one device, two streams, calls side by side: each stream keeps its own order. */
START_TEST(two_streams)
{
    kiln_context *context[2] = {context_on(0), context_on(0)};
    kiln_stream stream[2];
    known_rows r[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(rows_new(&r[i], context[i]));
        REQUIRE_OK(kiln_stream_create(context[i], &stream[i]));
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 2; i++) {
            REQUIRE_OK(rows_set(&r[i], (float)(round + 10 * i), stream[i]));
            REQUIRE_OK(rows_run(&r[i], stream[i]));
        }
        for (int i = 0; i < 2; i++)
            ck_assert(rows_right(&r[i], (float)(round + 10 * i), stream[i]));
    }
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(kiln_stream_destroy(context[i], stream[i]));
        REQUIRE_OK(rows_free(&r[i]));
        kiln_context_destroy(context[i]);
    }
}
END_TEST

static bool nothing_is_current(void)
{
    return current() == NULL;
}

START_TEST(threads)
{
    kiln_context *context = context_on(0);
    ck_assert_int_eq(rows_wrong_threads(context, nothing_is_current), 0);
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
    CUDA_OK(cuda->CtxSetCurrent(NULL)); /* only the driver's own calls need one */
    kiln_context *context = context_on(0);
    REQUIRE_OK(_i ? rows_new_long(&r, context) : rows_new(&r, context));
    ck_assert_int_eq(r.bytes > 0, _i);
    REQUIRE_OK(kiln_stream_create(context, &stream));
    REQUIRE_OK(kiln_softmax_forward_prepare(context, &r.args));
    /* GLOBAL forbids what could wait, in every thread. */
    CUDA_OK(ON_DEVICE(cuda->StreamBeginCapture_v2(stream, CUDA_CAPTURE_GLOBAL)));
    ck_assert_ptr_null(current());
    REQUIRE_OK(rows_run(&r, stream));
    ck_assert_ptr_null(current());
    CUDA_OK(ON_DEVICE(cuda->StreamEndCapture(stream, &graph)));
    CUDA_OK(ON_DEVICE(cuda->GraphInstantiateWithFlags(&replay, graph, 0)));
    for (int round = 0; round < 3; round++) {
        REQUIRE_OK(rows_set(&r, (float)round, stream));
        CUDA_OK(ON_DEVICE(cuda->GraphLaunch(replay, stream)));
        ck_assert(rows_right(&r, (float)round, stream));
    }
    CUDA_OK(ON_DEVICE(cuda->GraphExecDestroy(replay)));
    CUDA_OK(ON_DEVICE(cuda->GraphDestroy(graph)));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(context);
}
END_TEST

/* Lengths in device memory are read by every replay: the same bits as a call with these lengths. */
START_TEST(captured_lengths)
{
    static const int64_t lengths[4][2] = {{300, 17}, {1, 300}, {0, 64}, {300, 299}};
    const char *algorithm = test_attention_algorithms[_i];
    char why[512] = "";
    size_t bytes = 0;
    void *workspace, *graph, *replay;
    kiln_stream stream;
    kiln_context *context = test_context();
    test_attention *a = test_attention_new(&(attention_case){.batch = 2,
                                                             .heads = 4,
                                                             .heads_k = 2,
                                                             .seqlen_q = 5,
                                                             .seqlen_k = 300,
                                                             .d = 64,
                                                             .type = KILN_FLOAT16,
                                                             .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT,
                                                             .used_k = true});
    a->args.algorithm = algorithm;
    kiln_status status = kiln_attention_forward_supported(context, &a->args, why, sizeof why);
    if (status != KILN_OK) {
        TEST_REQUIRE(test_refused(status, algorithm, why), "%s", why);
        return;
    }
    REQUIRE_OK(kiln_attention_forward_workspace(context, &a->args, &bytes));
    REQUIRE_OK(kiln_malloc(context, bytes, &workspace));
    REQUIRE_OK(kiln_stream_create(context, &stream));
    REQUIRE_OK(kiln_attention_forward_prepare(context, &a->args));
    test_upload();
    CUDA_OK(ON_DEVICE(cuda->StreamBeginCapture_v2(stream, CUDA_CAPTURE_GLOBAL)));
    REQUIRE_OK(kiln_attention_forward(context, &a->args, workspace, bytes, stream));
    CUDA_OK(ON_DEVICE(cuda->StreamEndCapture(stream, &graph)));
    CUDA_OK(ON_DEVICE(cuda->GraphInstantiateWithFlags(&replay, graph, 0)));
    unsigned char *called = test_alloc(a->o->bytes), *replayed = test_alloc(a->o->bytes),
                  *before = test_alloc(a->o->bytes);
    for (int round = 0; round < 4; round++) {
        test_put(a->used_k, 0, (double)lengths[round][0]);
        test_put(a->used_k, 1, (double)lengths[round][1]);
        test_upload(); /* o is NaN again */
        CUDA_OK(ON_DEVICE(cuda->GraphLaunch(replay, stream)));
        REQUIRE_OK(kiln_copy(context, replayed, a->o->memory, a->o->bytes, stream));
        test_upload();
        REQUIRE_OK(kiln_attention_forward(context, &a->args, workspace, bytes, stream));
        REQUIRE_OK(kiln_copy(context, called, a->o->memory, a->o->bytes, stream));
        TEST_REQUIRE(memcmp(called, replayed, a->o->bytes) == 0, "%s, lengths %d: the replay gives other bits",
                     test_algorithm_name(algorithm), round);
        TEST_REQUIRE(memcmp(called, before, a->o->bytes) != 0, "%s, lengths %d: nothing has changed",
                     test_algorithm_name(algorithm), round);
        memcpy(before, called, a->o->bytes);
    }
    CUDA_OK(ON_DEVICE(cuda->GraphExecDestroy(replay)));
    CUDA_OK(ON_DEVICE(cuda->GraphDestroy(graph)));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(kiln_free(context, workspace));
}
END_TEST

/* The same of gradients, several launches each, which may begin while the one before them ends: replays one after the other, in a
 * workspace that holds what the last one left. */
START_TEST(captured_gradients)
{
    static const int64_t lengths[4][2] = {{300, 17}, {1, 300}, {0, 64}, {300, 299}};
    static const int32_t types[] = {KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16};
    const gradients_case c = {.forward = {.batch = 2,
                                          .heads = 4,
                                          .heads_k = 2,
                                          .seqlen_q = 300,
                                          .seqlen_k = 300,
                                          .d = _i < 3 ? 64 : 128,
                                          .type = types[_i % 3],
                                          .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT,
                                          .used_k = true},
                              .flags = KILN_FLAG_DETERMINISTIC};
    size_t bytes = 0;
    void *workspace, *graph, *replay;
    kiln_stream stream;
    kiln_context *context = test_context();
    test_gradients *g = test_gradients_new(&c);
    REQUIRE_OK(kiln_attention_backward_workspace(context, &g->args, &bytes));
    REQUIRE_OK(kiln_malloc(context, bytes, &workspace));
    REQUIRE_OK(kiln_stream_create(context, &stream));
    REQUIRE_OK(kiln_attention_backward_prepare(context, &g->args));
    test_upload();
    CUDA_OK(ON_DEVICE(cuda->StreamBeginCapture_v2(stream, CUDA_CAPTURE_GLOBAL)));
    REQUIRE_OK(kiln_attention_backward(context, &g->args, workspace, bytes, stream));
    CUDA_OK(ON_DEVICE(cuda->StreamEndCapture(stream, &graph)));
    CUDA_OK(ON_DEVICE(cuda->GraphInstantiateWithFlags(&replay, graph, 0)));
    unsigned char *called[3], *replayed[3];
    for (int t = 0; t < 3; t++)
        called[t] = test_alloc(g->out[t]->bytes), replayed[t] = test_alloc(g->out[t]->bytes);
    for (int round = 0; round < 4; round++) {
        test_put(g->forward->used_k, 0, (double)lengths[round][0]);
        test_put(g->forward->used_k, 1, (double)lengths[round][1]);
        test_upload(); /* gradients are NaN again */
        for (int i = 0; i < 5; i++)
            CUDA_OK(ON_DEVICE(cuda->GraphLaunch(replay, stream)));
        for (int t = 0; t < 3; t++)
            REQUIRE_OK(kiln_copy(context, replayed[t], g->out[t]->memory, g->out[t]->bytes, stream));
        test_upload();
        REQUIRE_OK(kiln_attention_backward(context, &g->args, workspace, bytes, stream));
        for (int t = 0; t < 3; t++) {
            REQUIRE_OK(kiln_copy(context, called[t], g->out[t]->memory, g->out[t]->bytes, stream));
            TEST_REQUIRE(memcmp(called[t], replayed[t], g->out[t]->bytes) == 0,
                         "%s, lengths %d: the replay gives other bits", gradients_name[t], round);
        }
    }
    CUDA_OK(ON_DEVICE(cuda->GraphExecDestroy(replay)));
    CUDA_OK(ON_DEVICE(cuda->GraphDestroy(graph)));
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(kiln_free(context, workspace));
}
END_TEST

/* ------------------------------------------------------------------------------------------------ the cost of a call */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Microseconds of the host per call: the least of several runs, each short enough for the driver's queue. */
static double cost(known_rows *r, kiln_stream stream, void *empty)
{
    enum { CALLS = 200 };
    double least = 1e30;
    for (int run = 0; run < 30; run++) {
        REQUIRE_OK(kiln_stream_synchronize(r->context, stream));
        double start = now();
        for (int i = 0; i < CALLS; i++) {
            if (empty)
                CUDA_OK(cuda->LaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
            else
                REQUIRE_OK(rows_run(r, stream));
        }
        double each = (now() - start) / CALLS;
        least = each < least ? each : least;
    }
    return least;
}

START_TEST(cost_of_a_call)
{
    static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";
    int device;
    void *primary, *module, *empty;
    known_rows r;
    kiln_stream stream;
    CUDA_OK(cuda->DeviceGet(&device, 0));
    CUDA_OK(cuda->DevicePrimaryCtxRetain(&primary, device));
    CUDA_OK(cuda->CtxSetCurrent(primary));
    CUDA_OK(cuda->ModuleLoadData(&module, ptx));
    CUDA_OK(cuda->ModuleGetFunction(&empty, module, "empty"));
    kiln_context *context = context_on(0);
    REQUIRE_OK(rows_new(&r, context));
    REQUIRE_OK(kiln_stream_create(context, &stream));
    r.shape[0] = r.shape_lse[0] = 1; /* a row: one block, as the empty kernel has */
    double launch = cost(&r, stream, empty), call = cost(&r, stream, NULL);
    printf("host time of an empty launch %.2f us, of a softmax %.2f us: %.2f us more\n", launch, call, call - launch);
    TEST_REQUIRE(call - launch <= 2, "a call costs %.2f us more than an empty launch; at most 2 are allowed",
                 call - launch);
    r.shape[0] = r.shape_lse[0] = ROWS;
    REQUIRE_OK(kiln_stream_destroy(context, stream));
    REQUIRE_OK(rows_free(&r));
    kiln_context_destroy(context);
    CUDA_OK(cuda->CtxSetCurrent(NULL));
}
END_TEST

int main(void)
{
    cuda = cuda_driver_get();
    if (!cuda) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
    Suite *suite = suite_create("cuda_host");
    TCase *t = test_tcase(suite, "contexts");
    tcase_add_test(t, no_context_current);
    tcase_add_test(t, primary_context_current);
    tcase_add_test(t, own_context_current);
    tcase_add_test(t, another_device_current);
    tcase_add_test(t, device_that_is_not_there);
    t = test_tcase(suite, "streams");
    tcase_add_test(t, two_streams);
    tcase_add_test(t, threads);
    t = test_tcase(suite, "graphs");
    tcase_add_loop_test(t, captured_softmax, 0, 2);
    tcase_add_loop_test(t, captured_lengths, 0, TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, captured_gradients, 0, 6);
    t = test_tcase(suite, "cost");
    tcase_add_test(t, cost_of_a_call);
    return test_main(suite);
}
