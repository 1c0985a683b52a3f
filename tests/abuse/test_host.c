/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_host.c: hosts that have threads of their own: a pool behind parallel_for, OpenMP regions round the call, and
 * processes that fork after Kiln has used its threads.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "pool.h"
#include "problems.h"

/* ------------------------------------------------------------------------------------------------ parallel_for */

static void forwards(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    ++*(int *)user;
    for (int32_t i = 0; i < count; i++)
        body(arg, i);
}

static void backwards(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    ++*(int *)user;
    for (int32_t i = count; i-- > 0;)
        body(arg, i);
}

/* A loop inside a loop: each index on a thread of its own, which is gone when it is done. */
typedef struct one {
    void (*body)(void *arg, int32_t index);
    void *arg;
    int32_t index;
} one;
static void *run_one(void *user)
{
    const one *o = user;
    o->body(o->arg, o->index);
    return NULL;
}
static void short_lived(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    pthread_t threads[8];
    one ones[8];
    ++*(int *)user;
    ck_assert_int_le(count, 8);
    for (int32_t i = 0; i < count; i++) {
        ones[i] = (one){body, arg, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_one, &ones[i]), 0);
    }
    for (int32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* In order, in reverse, on short-lived threads, on a pool with fewer threads than indices: the bits of OpenMP. */
START_TEST(pools)
{
    static const kiln_parallel_for loops[] = {forwards, backwards, short_lived, pool_for};
    problem *right[PROBLEM_KINDS];
    int calls = 0;
    pool *p = pool_new(3);
    ck_assert_ptr_nonnull(p);
    problem_references(right);
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options,
                                    .backend = "cpu",
                                    .max_threads = 7,
                                    .parallel_for = loops[_i],
                                    .parallel_for_user = loops[_i] == pool_for ? (void *)p : &calls};
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    problem_check_all(context, right, "parallel_for");
    ck_assert(calls > 0 || loops[_i] == pool_for);
    kiln_context_destroy(context);
    pool_free(p);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ OpenMP round the call */

#ifdef _OPENMP

/* Every thread of a team makes a call of its own, plain and with nesting on; also from tasks. */
START_TEST(inside_a_region)
{
    enum { TEAM = 3 };
    problem *right[PROBLEM_KINDS], *mine[TEAM][PROBLEM_KINDS];
    const char *failures[TEAM][PROBLEM_KINDS] = {{NULL}};
    bool equal[TEAM][PROBLEM_KINDS] = {{false}};
    problem_references(right);
    for (int t = 0; t < TEAM; t++)
        for (int i = 0; i < PROBLEM_KINDS; i++)
            mine[t][i] = problem_new(i);
    kiln_context *context = test_context_threads(3);
    omp_set_max_active_levels(_i == 1 ? 3 : 1);
    if (_i < 2) {
#pragma omp parallel num_threads(TEAM)
        for (int i = 0; i < PROBLEM_KINDS; i++) {
            int t = omp_get_thread_num();
            failures[t][i] = problem_run(mine[t][i], context);
            equal[t][i] = problem_equal(mine[t][i], right[i]);
        }
    } else {
#pragma omp parallel num_threads(TEAM)
#pragma omp single
        for (int n = 0; n < TEAM * PROBLEM_KINDS; n++)
#pragma omp task firstprivate(n)
        {
            int t = n / PROBLEM_KINDS, i = n % PROBLEM_KINDS;
            failures[t][i] = problem_run(mine[t][i], context);
            equal[t][i] = problem_equal(mine[t][i], right[i]);
        }
    }
    int ran = 0;
    for (int t = 0; t < TEAM; t++)
        for (int i = 0; i < PROBLEM_KINDS; i++) {
            TEST_REQUIRE(!failures[t][i], "%s in a region: %s", right[i]->name, failures[t][i]);
            TEST_REQUIRE(equal[t][i] || _i < 2, "%s in a task has other bits", right[i]->name);
            ran += equal[t][i];
        }
    ck_assert_int_ge(ran, PROBLEM_KINDS); /* OpenMP may give a smaller team than asked */
    ck_assert_int_eq(ran % PROBLEM_KINDS, 0);
}
END_TEST

#endif

/* ------------------------------------------------------------------------------------------------ fork */

/* The child's exit status; a child that hangs is killed and counts as failed. */
static void expect_child(pid_t child, const char *what)
{
    TEST_REQUIRE(child > 0, "the test itself could not fork");
    int status = 0;
    for (int i = 0; i < 3000; i++) {
        if (waitpid(child, &status, WNOHANG) == child) {
            TEST_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: the child ended with status %#x", what,
                         (unsigned)status);
            return;
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    test_fail("%s: the child hangs", what);
}

static kiln_context *four_threads(void)
{
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu", .max_threads = 4};
    return kiln_context_create(&context, &options) == KILN_OK ? context : NULL;
}

/* In a child: does everything work on the parent's context and on a new one? 0 = yes. */
static int use_in_child(kiln_context *inherited, problem *right[PROBLEM_KINDS])
{
    int code = 0;
    kiln_context *own = four_threads();
    for (int kind = 0; kind < PROBLEM_KINDS && !code; kind++) {
        problem *p = problem_new(kind);
        code = !own || problem_run(p, inherited) || !problem_equal(p, right[kind]) || problem_run(p, own) ||
               !problem_equal(p, right[kind]);
    }
    kiln_context_destroy(own);
    return code;
}

/* After the parent has used its threads: the child and its child compute the same, and so does the parent afterwards. */
START_TEST(fork_after_use)
{
    problem *right[PROBLEM_KINDS];
    kiln_context *context = test_context_threads(4);
    problem_references(right);
    problem_check_all(context, right, "before the fork");
    pid_t child = fork();
    if (child == 0) {
        int code = use_in_child(context, right), status = 1;
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(use_in_child(context, right));
        _exit(code || grandchild < 0 || waitpid(grandchild, &status, 0) != grandchild || status != 0);
    }
    expect_child(child, "fork after use");
    problem_check_all(context, right, "after the fork");
}
END_TEST

static void *fork_and_use(void *user)
{
    problem **right = user;
    pid_t child = fork();
    if (child == 0)
        _exit(use_in_child(test_context(), right));
    expect_child(child, "fork by another thread");
    return NULL;
}

/* By a thread that never made a call, while the threads of the one that did sleep. */
START_TEST(fork_by_another_thread)
{
    problem *right[PROBLEM_KINDS];
    pthread_t thread;
    problem_references(right);
    problem_check_all(test_context_threads(4), right, "before the fork");
    ck_assert_int_eq(pthread_create(&thread, NULL, fork_and_use, right), 0);
    pthread_join(thread, NULL);
}
END_TEST

#ifdef _OPENMP
static int threads_of_process(void)
{
    char line[128];
    int threads = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %d", &threads) == 1)
            break;
    if (file)
        fclose(file);
    return threads;
}

/* A context made before the fork and first used after it: nothing is lost, the child has all its threads. */
START_TEST(fork_before_use)
{
    kiln_context *context = test_context_threads(4);
    problem *p = problem_new(0);
    pid_t child = fork();
    if (child == 0)
        _exit(problem_run(p, context) != NULL || threads_of_process() < 2);
    expect_child(child, "fork before use");
}
END_TEST
#endif

/* A child that only ends, and one that becomes another program: what they leave to run at exit does no harm. */
START_TEST(fork_and_leave)
{
    problem *right[PROBLEM_KINDS];
    problem_references(right);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        kiln_context_destroy(test_context());
#ifdef __SANITIZE_ADDRESS__
        _exit(0); /* at exit it would look for leaks, and misses the threads that the child does not have */
#else
        exit(0);
#endif
    }
    expect_child(child, "exit in a child");
    child = fork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    expect_child(child, "exec in a child");
    problem_check_all(test_context(), right, "after the forks");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("host");
    TCase *t = test_tcase(s, "host");
    tcase_add_loop_test(t, pools, 0, 4);
#ifdef _OPENMP
    tcase_add_loop_test(t, inside_a_region, 0, 3);
    tcase_add_test(t, fork_before_use);
#endif
    tcase_add_test(t, fork_after_use);
    tcase_add_test(t, fork_by_another_thread);
    tcase_add_test(t, fork_and_leave);
    return test_main(s);
}
