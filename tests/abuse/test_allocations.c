/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_allocations.c: every allocation fails once. What asks for memory must say KILN_OUT_OF_MEMORY or do without, leak
 * nothing, and work the next time; an operation asks for none at all.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "../../common/topology.h"
#include "allocations.h"
#include "pool.h"
#include "problems.h"

/* ------------------------------------------------------------------------------------------------ operations */

/* All four calls, counted. */
static allocations count_calls(problem *p, kiln_context *context, void *workspace, size_t cap, bool wrong)
{
    char why[512];
    size_t bytes = 0;
    problem_reset(p);
    allocations_arm(0);
    kiln_status status[4] = {test_supported(p->op, context, &p->args, why, sizeof why),
                             test_workspace(p->op, context, &p->args, &bytes), test_prepare(p->op, context, &p->args),
                             test_call(p->op, context, &p->args, workspace, bytes <= cap ? bytes : cap)};
    allocations a = allocations_disarm();
    for (int i = 0; i < 4; i++)
        TEST_REQUIRE((status[i] != KILN_OK) == wrong, "%s: %s", p->name, kiln_last_error());
    return a;
}

/* No allocation in any of the four calls, from the first one on where no threads of OpenMP's have to be started, and from
 * the second one on where they do; also none when the call is refused. */
START_TEST(operations_allocate_nothing)
{
    enum { CAP = 1 << 24 };
    int threads = _i == 0 ? 1 : 3;
    pool *p = _i == 2 ? pool_new(2) : NULL;
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options,
                                    .backend = "cpu",
                                    .max_threads = threads,
                                    .parallel_for = p ? pool_for : NULL,
                                    .parallel_for_user = p};
    void *workspace = aligned_alloc(256, CAP);
    ck_assert(workspace && (p || _i < 2));
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        problem *made = problem_new(kind);
        for (int run = _i == 1 ? 0 : 1; run < 3; run++) {
            allocations a = count_calls(made, context, workspace, CAP, false);
            TEST_REQUIRE(run == 0 || a.asked == 0, "%s asks for memory %lld times in run %d", made->name,
                         (long long)a.asked, run);
        }
        *(size_t *)(void *)&made->args = 3;
        allocations a = count_calls(made, context, workspace, CAP, true);
        TEST_REQUIRE(a.asked == 0, "%s, refused, asks for memory %lld times", made->name, (long long)a.asked);
    }
    free(workspace);
    kiln_context_destroy(context);
    if (p)
        pool_free(p);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ contexts */

static void ignore(void *user, const kiln_backend_info *info)
{
    ++*(int *)user;
    (void)info;
}

enum { CREATE_CPU, CREATE_PLUGIN, LIST, CREATE_TOPOLOGY, FIRST_CALLS };
static const char *const first_names[FIRST_CALLS] = {"create cpu", "create plug-in", "list", "create, read topology"};

static kiln_status first_call(int which, kiln_context **context)
{
    int seen = 0;
    kiln_context_options options = {.struct_size = sizeof options,
                                    .backend = which == CREATE_PLUGIN ? "test" : "cpu",
                                    .plugin_path = which == CREATE_TOPOLOGY ? NULL : PLUGIN_DIR};
    *context = NULL;
    return which == LIST ? kiln_backend_list(&options, ignore, &seen) : kiln_context_create(context, &options);
}

enum { CHILD_DONE = 2 }; /* the process made fewer allocations than the one that was to fail */

/* In a process that has not used Kiln yet: allocation `number` of its first call fails. Returns its exit code. */
static int first_call_fails(int which, int64_t number)
{
    kiln_context *context;
    if (which != CREATE_TOPOLOGY)
        kiln_topology_get();
#ifdef _OPENMP
    omp_get_max_threads(); /* lets the runtime begin: without memory it ends the process, and nobody can help that */
#endif
    allocations_arm(number);
    kiln_status status = first_call(which, &context);
    allocations a = allocations_disarm();
    /* Without memory a plug-in cannot be loaded: then it is unavailable, and says why. */
    bool fair =
        status == KILN_OK || status == KILN_OUT_OF_MEMORY ||
        (which == CREATE_PLUGIN && status == KILN_UNAVAILABLE && strstr(kiln_last_error(), "loaded")) ||
        (which == CREATE_PLUGIN && status == KILN_INVALID_ARGUMENT && strstr(kiln_last_error(), "no such backend"));
    if (!fair || (status == KILN_OK) == (kiln_last_error()[0] != '\0') || (status != KILN_OK && context)) {
        printf("%s, allocation %lld: %s: %s\n", first_names[which], (long long)number, kiln_status_name(status),
               kiln_last_error());
        return 1;
    }
    kiln_context_destroy(context);
    for (int again = CREATE_CPU; again <= LIST; again += LIST - CREATE_CPU) {
        if (first_call(again, &context) != KILN_OK) {
            printf("%s, after allocation %lld failed: %s\n", first_names[again], (long long)number, kiln_last_error());
            return 1;
        }
        kiln_context_destroy(context);
    }
    return a.failed ? 0 : CHILD_DONE;
}

START_TEST(first_calls)
{
#if KILN_HAVE_HWLOC
    if (_i == CREATE_TOPOLOGY) {
        printf("skipped: %s: hwloc does not survive a failed allocation\n", first_names[_i]);
        return;
    }
#endif
    int64_t number = 0;
    for (int code = 0; code == 0;) {
        number++;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            code = first_call_fails(_i, number);
            fflush(NULL);
            _exit(code);
        }
        int status = 0;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        TEST_REQUIRE(code == 0 || code == CHILD_DONE, "%s: allocation %lld fails: status %#x", first_names[_i],
                     (long long)number, (unsigned)status);
    }
    ck_assert_int_gt(number, 3);
    printf("%s: %lld allocations failed in turn\n", first_names[_i], (long long)(number - 1));
}
END_TEST

/* The calls that ask for memory later in a process's life. NULL if it could not be had. */
enum { CREATE, MALLOC, EVENT, LATER_CALLS };
static kiln_status later_call(int which, kiln_context *context, void **made)
{
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu", .plugin_path = PLUGIN_DIR};
    kiln_context *another = NULL;
    kiln_event *event = NULL;
    kiln_status status;
    if (which == MALLOC)
        return kiln_malloc(context, 1000, made);
    if (which == EVENT) {
        status = kiln_event_create(context, &event);
        *made = event;
        return status;
    }
    status = kiln_context_create(&another, &options);
    *made = another;
    return status;
}

static void undo(int which, kiln_context *context, void *made)
{
    if (which == MALLOC)
        kiln_free(context, made);
    else if (which == EVENT)
        kiln_event_destroy(context, made);
    else
        kiln_context_destroy(made);
}

START_TEST(later_calls)
{
    kiln_context *context = test_context();
    void *made;
    ck_assert_int_eq(later_call(_i, context, &made), KILN_OK);
    undo(_i, context, made);
    for (int64_t number = 1;; number++) {
        allocations_arm(number);
        made = (void *)(uintptr_t)16;
        kiln_status status = later_call(_i, context, &made);
        if (status == KILN_OK)
            undo(_i, context, made);
        allocations a = allocations_disarm();
        TEST_REQUIRE(a.live == 0, "call %d, allocation %lld fails: %lld blocks are left", _i, (long long)number,
                     (long long)a.live);
        if (!a.failed) {
            ck_assert_int_eq(status, KILN_OK);
            ck_assert_int_gt(number, 1);
            break;
        }
        TEST_REQUIRE(status == KILN_OUT_OF_MEMORY && !made && kiln_last_error()[0],
                     "call %d, allocation %lld fails: %s: %s", _i, (long long)number, kiln_status_name(status),
                     kiln_last_error());
    }
}
END_TEST

/* The test itself: an allocation that should fail does. */
START_TEST(interposer)
{
    allocations_arm(2);
    void *first = malloc(10), *second = calloc(1, 10);
    int error = errno;
    allocations a = allocations_disarm();
    ck_assert(first && !second && error == ENOMEM && a.failed && a.asked == 2 && a.live == 1);
    free(first);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("allocations");
    TCase *t = test_tcase(s, "allocations");
    tcase_add_test(t, interposer);
    tcase_add_loop_test(t, operations_allocate_nothing, 0, 3);
    tcase_add_loop_test(t, first_calls, 0, FIRST_CALLS);
    tcase_add_loop_test(t, later_calls, 0, LATER_CALLS);
    return test_main(s);
}
