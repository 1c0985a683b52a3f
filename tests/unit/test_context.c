/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* test_context.c: contexts: options, what they refuse, info, log, the host's own pool, memory, streams and events. */
#include <pthread.h>
#include <stdio.h>

#include "../support/attention.h"
#include "../support/softmax.h"

/* AddressSanitizer asks for this: an allocation that is too large returns NULL, as without it, instead of ending the test. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static kiln_context *context;
static void destroy(void)
{
    kiln_context_destroy(context);
    context = NULL;
}

START_TEST(defaults)
{
    kiln_device_info info = {.struct_size = sizeof info};
    ck_assert_int_eq(kiln_context_create(&context, NULL), KILN_OK);
    ck_assert_int_eq(kiln_context_info(context, &info), KILN_OK);
    ck_assert(info.backend[0] && info.name[0] && info.architecture[0]);
    ck_assert_int_ge(info.units, 1);
    ck_assert_int_eq(info.device.device_type, kiln_context_device(context).device_type);
    ck_assert_int_eq(kiln_context_device(NULL).device_type, 0);
    kiln_context_destroy(NULL);
}
END_TEST

/* Each row: a status and a word of the sentence; *context is NULL afterwards. */
static void refused(kiln_context_options options, kiln_status status, const char *word)
{
    kiln_context *made = (kiln_context *)(uintptr_t)16;
    options.struct_size = options.struct_size ? options.struct_size : sizeof options;
    kiln_status got = kiln_context_create(&made, &options);
    ck_assert_msg(got == status && !made, "%s: %s instead of %s", word, kiln_status_name(got),
                  kiln_status_name(status));
    ck_assert_msg(strstr(kiln_last_error(), word), "the sentence lacks '%s': %s", word, kiln_last_error());
}

START_TEST(bad_options)
{
    refused((kiln_context_options){.backend = "vulkan"}, KILN_INVALID_ARGUMENT, "'vulkan'");
    refused((kiln_context_options){.backend = "vulkan"}, KILN_INVALID_ARGUMENT, "cpu");
    refused((kiln_context_options){.backend = ""}, KILN_INVALID_ARGUMENT, "''");
    refused((kiln_context_options){.backend = "CPU"}, KILN_INVALID_ARGUMENT, "'CPU'");
    refused((kiln_context_options){.backend = "cpu", .device = 1}, KILN_UNAVAILABLE, "options.device is 1");
    refused((kiln_context_options){.device = -1}, KILN_INVALID_ARGUMENT, "options.device is -1");
    refused((kiln_context_options){.max_threads = -2}, KILN_INVALID_ARGUMENT, "options.max_threads is -2");
    refused((kiln_context_options){.log_level = 5}, KILN_INVALID_ARGUMENT, "options.log_level is 5");
    refused((kiln_context_options){.reserved = 1}, KILN_INVALID_ARGUMENT, "options.reserved is 1");
    refused((kiln_context_options){.struct_size = 4}, KILN_VERSION_MISMATCH, "kiln_context_options.struct_size is 4");
    ck_assert_int_eq(kiln_context_create(NULL, NULL), KILN_INVALID_ARGUMENT);
    struct {
        kiln_context_options options;
        char tail[8];
    } longer = {.options = {.struct_size = sizeof longer, .backend = "cpu"}, .tail = {0, 0, 1}};
    ck_assert_int_eq(kiln_context_create(&context, &longer.options), KILN_VERSION_MISMATCH);
    ck_assert_ptr_null(context);
    longer.tail[2] = 0;
    ck_assert_int_eq(kiln_context_create(&context, &longer.options), KILN_OK);
}
END_TEST

/* The environment stands in for a NULL name only. */
START_TEST(environment)
{
    setenv("KILN_BACKEND", "nonesuch", 1);
    refused((kiln_context_options){.backend = NULL}, KILN_INVALID_ARGUMENT, "KILN_BACKEND");
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu"};
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    destroy();
    setenv("KILN_BACKEND", "cpu", 1);
    options.backend = NULL;
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    setenv("KILN_BACKEND", "", 1);
    destroy();
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    unsetenv("KILN_BACKEND");
}
END_TEST

/* An older caller's shorter struct is filled as far as it goes. */
START_TEST(info_sizes)
{
    kiln_device_info info;
    ck_assert_int_eq(kiln_context_create(&context, NULL), KILN_OK);
    memset(&info, 0x77, sizeof info);
    info.struct_size = offsetof(kiln_device_info, name);
    ck_assert_int_eq(kiln_context_info(context, &info), KILN_OK);
    ck_assert_str_eq(info.backend, "cpu");
    for (size_t i = offsetof(kiln_device_info, name); i < sizeof info; i++)
        ck_assert_int_eq(((unsigned char *)&info)[i], 0x77);
    info.struct_size = 0;
    ck_assert_int_eq(kiln_context_info(context, &info), KILN_VERSION_MISMATCH);
    ck_assert_int_eq(kiln_context_info(context, NULL), KILN_INVALID_ARGUMENT);
    info.struct_size = sizeof info;
    ck_assert_int_eq(kiln_context_info(NULL, &info), KILN_INVALID_ARGUMENT);
}
END_TEST

typedef struct log_state {
    int count, worst, mildest;
    bool complete;
} log_state;
static void on_log(void *user, int32_t level, const char *message)
{
    log_state *l = user;
    l->count++;
    l->worst = level < l->worst ? level : l->worst;
    l->mildest = level > l->mildest ? level : l->mildest;
    l->complete = l->complete && message[0] && !strchr(message, '\n');
}

/* Messages of the level asked for and of the more serious ones only; the choice of the backend is told. */
START_TEST(log_levels)
{
    int counts[4];
    for (int32_t level = KILN_LOG_ERROR; level <= KILN_LOG_DEBUG; level++) {
        log_state l = {.worst = 99, .mildest = -99, .complete = true};
        kiln_context_options options = {
            .struct_size = sizeof options, .backend = "cpu", .log = on_log, .log_user = &l, .log_level = level};
        ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
        destroy();
        ck_assert(l.complete);
        ck_assert(l.count == 0 || l.mildest <= level);
        counts[level - KILN_LOG_ERROR] = l.count;
    }
    ck_assert_int_eq(counts[0], 0);
    ck_assert_int_eq(counts[1], 0);
    ck_assert_int_ge(counts[2], 1);
    ck_assert_int_gt(counts[3], counts[2]);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ the host's own pool */

typedef struct pool {
    int calls, bodies;
    bool backwards, threaded;
} pool;

typedef struct task {
    void (*body)(void *arg, int32_t index);
    void *arg;
    int32_t index;
} task;
static void *run_task(void *user)
{
    task *t = user;
    t->body(t->arg, t->index);
    return NULL;
}

static void pool_for(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    pool *p = user;
    p->calls++;
    p->bodies += count;
    if (p->threaded && count <= 64) {
        pthread_t threads[64];
        task tasks[64];
        for (int32_t i = 0; i < count; i++) {
            tasks[i] = (task){body, arg, i};
            ck_assert_int_eq(pthread_create(&threads[i], NULL, run_task, &tasks[i]), 0);
        }
        for (int32_t i = 0; i < count; i++)
            pthread_join(threads[i], NULL);
        return;
    }
    for (int32_t i = 0; i < count; i++)
        body(arg, p->backwards ? count - 1 - i : i);
}

/* One after another in either order, or each on a thread of its own. */
static const pool *open_pool(int kind, int32_t threads)
{
    static pool p;
    kiln_context_options options = {.struct_size = sizeof options,
                                    .backend = "cpu",
                                    .max_threads = threads,
                                    .parallel_for = pool_for,
                                    .parallel_for_user = &p};
    p = (pool){.backwards = kind == 1, .threaded = kind == 2};
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    return &p;
}

/* The pool is used, the result has the same bits. */
START_TEST(parallel_for)
{
    test_attention *a = test_attention_new(&(attention_case){
        .batch = 2, .heads = 4, .seqlen_q = 70, .seqlen_k = 200, .d = 32, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT});
    ck_assert(test_attention_ran(a, NULL));
    unsigned char *right = test_alloc(a->o->bytes);
    memcpy(right, a->o->got, a->o->bytes);
    for (int kind = 0; kind < 3; kind++) {
        char why[256];
        const pool *p = open_pool(kind, 4);
        ck_assert_int_eq(test_attention_run(a, context, NULL, why, sizeof why), KILN_OK);
        ck_assert_int_ge(p->calls, 1);
        ck_assert_int_ge(p->bodies, 2);
        ck_assert_int_eq(memcmp(right, a->o->got, a->o->bytes), 0);
        destroy();
    }
}
END_TEST

/* Rows that all workers share, where a second cache of half a megabyte and more does not hold one: nobody may wait for whom the pool has
 * not called yet. */
START_TEST(shared_rows)
{
    test_softmax *s = test_softmax_new(KILN_OP_SOFTMAX_FORWARD, &(softmax_case){.rank = 2, .shape = {7, 300001}});
    ck_assert_int_eq(test_softmax_run(s, test_context_threads(1), "online"), KILN_OK);
    unsigned char *right = test_alloc(s->out->bytes);
    memcpy(right, s->out->got, s->out->bytes);
    for (int kind = 0; kind < 3; kind++) {
        const pool *p = open_pool(kind, 16);
        ck_assert_int_eq(test_softmax_run(s, context, "online"), KILN_OK);
        ck_assert_int_ge(p->bodies, 2);
        ck_assert_int_eq(memcmp(right, s->out->got, s->out->bytes), 0);
        destroy();
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ memory, streams, events */

START_TEST(memory)
{
    void *p = (void *)(uintptr_t)16, *q;
    unsigned char bytes[300];
    ck_assert_int_eq(kiln_context_create(&context, NULL), KILN_OK);
    ck_assert_int_eq(kiln_malloc(context, 0, &p), KILN_OK);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(kiln_free(context, NULL), KILN_OK);
    ck_assert_int_eq(kiln_malloc(context, SIZE_MAX - 1000, &p), KILN_OUT_OF_MEMORY);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(kiln_malloc(context, SIZE_MAX, &p), KILN_OUT_OF_MEMORY);
    ck_assert_int_eq(kiln_malloc(context, 300, &p), KILN_OK);
    ck_assert_int_eq(kiln_malloc(context, 1, &q), KILN_OK);
    ck_assert((uintptr_t)p % 256 == 0 && (uintptr_t)q % 256 == 0);
    ck_assert_int_eq(kiln_fill(context, p, 0xab, 300, NULL), KILN_OK);
    ck_assert_int_eq(kiln_copy(context, bytes, p, 300, NULL), KILN_OK);
    for (int i = 0; i < 300; i++)
        ck_assert_int_eq(bytes[i], 0xab);
    ck_assert_int_eq(kiln_copy(context, NULL, NULL, 0, NULL), KILN_OK);
    ck_assert_int_eq(kiln_free(context, p), KILN_OK);
    ck_assert_int_eq(kiln_free(context, q), KILN_OK);
    ck_assert_int_eq(kiln_malloc(NULL, 8, &p), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_malloc(context, 8, NULL), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_free(NULL, NULL), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_copy(context, NULL, bytes, 8, NULL), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_copy(context, bytes, NULL, 8, NULL), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_fill(context, NULL, 0, 8, NULL), KILN_INVALID_ARGUMENT);
}
END_TEST

START_TEST(streams_and_events)
{
    kiln_stream stream;
    kiln_event *start, *end;
    double milliseconds = -1;
    ck_assert_int_eq(kiln_context_create(&context, NULL), KILN_OK);
    ck_assert_int_eq(kiln_stream_create(context, &stream), KILN_OK);
    ck_assert_int_eq(kiln_event_create(context, &start), KILN_OK);
    ck_assert_int_eq(kiln_event_create(context, &end), KILN_OK);
    ck_assert_int_eq(kiln_event_elapsed(context, start, end, &milliseconds), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_event_record(context, start, stream), KILN_OK);
    ck_assert_int_eq(kiln_event_elapsed(context, start, end, &milliseconds), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_event_record(context, end, stream), KILN_OK);
    ck_assert_int_eq(kiln_stream_synchronize(context, stream), KILN_OK);
    ck_assert_int_eq(kiln_event_elapsed(context, start, end, &milliseconds), KILN_OK);
    ck_assert(milliseconds >= 0 && milliseconds < 10000);
    ck_assert_int_eq(kiln_event_destroy(context, start), KILN_OK);
    ck_assert_int_eq(kiln_event_destroy(context, end), KILN_OK);
    ck_assert_int_eq(kiln_stream_destroy(context, stream), KILN_OK);
    ck_assert_int_eq(kiln_stream_create(NULL, &stream), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_event_create(context, NULL), KILN_INVALID_ARGUMENT);
}
END_TEST

/* Creation and destruction from several threads at once. */
static void *come_and_go(void *user)
{
    for (int i = 0; i < 200; i++) {
        kiln_context *mine;
        if (kiln_context_create(&mine, NULL) != KILN_OK || kiln_context_device(mine).device_type == 0)
            return NULL;
        kiln_context_destroy(mine);
    }
    return user;
}
START_TEST(concurrent_creation)
{
    pthread_t threads[4];
    int mark;
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, come_and_go, &mark), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, &mark);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("context");
    TCase *t = test_tcase(s, "context");
    tcase_add_checked_fixture(t, NULL, destroy);
    tcase_add_test(t, defaults);
    tcase_add_test(t, bad_options);
    tcase_add_test(t, environment);
    tcase_add_test(t, info_sizes);
    tcase_add_test(t, log_levels);
    tcase_add_test(t, parallel_for);
    tcase_add_test(t, shared_rows);
    tcase_add_test(t, memory);
    tcase_add_test(t, streams_and_events);
    tcase_add_test(t, concurrent_creation);
    return test_main(s);
}
