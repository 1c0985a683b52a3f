/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_threads.c: many threads at once, on one context and on several. Every result has the bytes of an undisturbed
 * run, and a thread's error sentence is its own. Runs under ThreadSanitizer too: there without OpenMP, so calls are
 * spread by a pool.
 */
#include <pthread.h>
#include <stdio.h>

#include "pool.h"
#include "problems.h"

enum { THREADS = 4, ROUNDS = 3 };

static pthread_barrier_t together;

/* Runs `body` for each of THREADS workers of `size` bytes. Each gives NULL, or what went wrong. */
static void on_threads(void *(*body)(void *), void *workers, size_t size)
{
    pthread_t threads[THREADS];
    const char *failures[THREADS];
    ck_assert_int_eq(pthread_barrier_init(&together, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, body, (char *)workers + (size_t)i * size), 0);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failures[i] = result;
    }
    for (int i = 0; i < THREADS; i++)
        TEST_REQUIRE(!failures[i], "thread %d: %s", i, failures[i]);
    pthread_barrier_destroy(&together);
}

typedef struct worker {
    kiln_context *context;          /* NULL: makes one of its own for every call */
    problem *mine[PROBLEM_KINDS];   /* in the order in which they are run */
    problem **right[PROBLEM_KINDS]; /* what they are compared with */
    pool *pool;
    char failure[600];
} worker;

static void *run_problems(void *user)
{
    worker *w = user;
    pthread_barrier_wait(&together);
    for (int i = 0; i < ROUNDS * PROBLEM_KINDS; i++) {
        int at = i % PROBLEM_KINDS;
        kiln_context *context = w->context;
        kiln_context_options options = {.struct_size = sizeof options,
                                        .backend = "cpu",
                                        .max_threads = 1 + i % 3,
                                        .parallel_for = w->pool ? pool_for : NULL,
                                        .parallel_for_user = w->pool};
        const char *failure = NULL;
        if (!context && kiln_context_create(&context, &options) != KILN_OK)
            failure = kiln_last_error();
        if (!failure)
            failure = problem_run(w->mine[at], context);
        if (!failure && !problem_equal(w->mine[at], *w->right[at]))
            failure = "other bits than alone";
        if (failure)
            snprintf(w->failure, sizeof w->failure, "%s: %s", w->mine[at]->name, failure);
        if (!w->context)
            kiln_context_destroy(context);
        if (failure)
            return w->failure;
    }
    return NULL;
}

enum { ONE_CONTEXT, OWN_CONTEXTS, ONE_CONTEXT_POOL, OWN_CONTEXTS_POOL, VARIANTS };

/* Thread t starts with problem `spread`·t, so that the same problems meet (0), or different ones (1). */
static void concurrent(int variant, int spread)
{
    static worker workers[THREADS];
    problem *right[PROBLEM_KINDS];
    pool *p = variant >= ONE_CONTEXT_POOL ? pool_new(3) : NULL;
    kiln_context *shared = NULL;
    kiln_context_options options = {.struct_size = sizeof options,
                                    .backend = "cpu",
                                    .max_threads = 3,
                                    .parallel_for = p ? pool_for : NULL,
                                    .parallel_for_user = p};
    ck_assert(p || variant < ONE_CONTEXT_POOL);
    problem_references(right);
    if (variant == ONE_CONTEXT || variant == ONE_CONTEXT_POOL)
        ck_assert_int_eq(kiln_context_create(&shared, &options), KILN_OK);
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.context = shared, .pool = p};
        for (int i = 0; i < PROBLEM_KINDS; i++) {
            int kind = (i + 2 * spread * t) % PROBLEM_KINDS;
            workers[t].mine[i] = problem_new(kind);
            workers[t].right[i] = &right[kind];
        }
    }
    on_threads(run_problems, workers, sizeof *workers);
    kiln_context_destroy(shared);
    if (p)
        pool_free(p);
}

START_TEST(concurrent_calls)
{
    concurrent(_i / 2, _i % 2);
}
END_TEST

/* Each thread fails in a way of its own, again and again, and always finds its own sentence. */
static void *fail_often(void *user)
{
    const int32_t number = *(const int32_t *)user;
    char want[64];
    snprintf(want, sizeof want, "options.max_threads is %d;", number);
    if (kiln_last_error()[0])
        return "a new thread has an error sentence";
    pthread_barrier_wait(&together);
    for (int i = 0; i < 2000; i++) {
        kiln_context *context;
        kiln_context_options options = {.struct_size = sizeof options, .max_threads = number};
        if (kiln_context_create(&context, &options) != KILN_INVALID_ARGUMENT || context)
            return "a wrong option was not refused";
        if (strncmp(kiln_last_error(), want, strlen(want)) != 0)
            return "the sentence belongs to another thread";
        if (i % 16 == 0) {
            options.max_threads = 1;
            if (kiln_context_create(&context, &options) != KILN_OK)
                return "a right option was refused";
            if (strncmp(kiln_last_error(), want, strlen(want)) != 0)
                return "a call that went well touched the sentence";
            kiln_context_destroy(context);
        }
    }
    return NULL;
}

START_TEST(error_sentences)
{
    int32_t numbers[THREADS];
    for (int i = 0; i < THREADS; i++)
        numbers[i] = -1000 - i;
    on_threads(fail_often, numbers, sizeof *numbers);
    ck_assert_str_eq(kiln_last_error(), "");
}
END_TEST

/* Failures inside a call, on one context: the sentence of an operation. */
static void *fail_calls(void *user)
{
    worker *w = user;
    problem *p = w->mine[0];
    char want[64];
    int64_t rows = p->args.attention_forward.o->shape[2];
    snprintf(want, sizeof want, "is %lld", (long long)rows);
    pthread_barrier_wait(&together);
    for (int i = 0; i < 2000; i++) {
        if (test_call(p->op, w->context, &p->args, NULL, 0) != KILN_INVALID_ARGUMENT)
            return "a wrong call was not refused";
        if (!strstr(kiln_last_error(), want))
            return "the sentence of the call belongs to another thread";
    }
    return NULL;
}

START_TEST(error_sentences_of_calls)
{
    static worker workers[THREADS];
    static int64_t shapes[THREADS][4];
    static kiln_tensor wrong[THREADS];
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.context = test_context(), .mine = {problem_new(0)}};
        kiln_attention_forward_args *args = &workers[t].mine[0]->args.attention_forward;
        wrong[t] = *args->o;
        memcpy(shapes[t], args->o->shape, sizeof shapes[t]);
        shapes[t][2] = 1000 + t;
        wrong[t].shape = shapes[t];
        wrong[t].strides = NULL;
        args->o = &wrong[t];
    }
    on_threads(fail_calls, workers, sizeof *workers);
}
END_TEST

static void count_cpu(void *user, const kiln_backend_info *info)
{
    *(int *)user += strcmp(info->name, "cpu") == 0;
}

/* The list of backends while others make contexts. */
static void *list_often(void *user)
{
    (void)user;
    pthread_barrier_wait(&together);
    for (int i = 0; i < 50; i++) {
        int seen = 0;
        kiln_context *context;
        if (kiln_backend_list(NULL, count_cpu, &seen) != KILN_OK || seen != 1)
            return "the list of backends is wrong";
        if (kiln_context_create(&context, NULL) != KILN_OK)
            return "no context";
        kiln_context_destroy(context);
    }
    return NULL;
}

START_TEST(backend_list)
{
    char unused[THREADS];
    on_threads(list_often, unused, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("threads");
    TCase *t = test_tcase(s, "threads");
    tcase_add_loop_test(t, concurrent_calls, 0, 2 * VARIANTS);
    tcase_add_test(t, error_sentences);
    tcase_add_test(t, error_sentences_of_calls);
    tcase_add_test(t, backend_list);
    return test_main(s);
}
