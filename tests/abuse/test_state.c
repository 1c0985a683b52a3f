/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_state.c: what a process sets for itself is neither felt by a call nor changed by it: floating-point environment,
 * errno, signal handlers and mask, affinity, locale, OpenMP's settings, open files; and nothing is printed.
 */
#include <dirent.h>
#include <errno.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "problems.h"

/* All four calls of an operation, on a workspace of the caller's. */
static kiln_status four_calls(problem *p, kiln_context *context, void *workspace, size_t cap)
{
    char why[256];
    size_t bytes = 0;
    kiln_status status = test_supported(p->op, context, &p->args, why, sizeof why);
    if (status == KILN_OK)
        status = test_workspace(p->op, context, &p->args, &bytes);
    if (status == KILN_OK)
        status = test_prepare(p->op, context, &p->args);
    return status == KILN_OK ? test_call(p->op, context, &p->args, workspace, bytes <= cap ? bytes : cap) : status;
}

enum { WORKSPACE = 1 << 24 };

/* ------------------------------------------------------------------------------------------------ floating point */

static void nearest(void)
{
}
static void downward(void)
{
    fesetround(FE_DOWNWARD);
}
static void upward(void)
{
    fesetround(FE_UPWARD);
}
static void toward_zero(void)
{
    fesetround(FE_TOWARDZERO);
}
static void trapping(void)
{
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_ALL_EXCEPT);
}
static void flags_set(void)
{
    feraiseexcept(FE_OVERFLOW | FE_DIVBYZERO);
}
#if defined(__x86_64__)
static void flushing(void)
{
    _mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ and DAZ */
}
static unsigned control(void)
{
    return _mm_getcsr();
}
#elif defined(__aarch64__)
static void flushing(void)
{
    uint64_t fpcr;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(fpcr | 1u << 24 | 1u << 25)); /* FZ and DN */
}
static unsigned control(void)
{
    uint64_t fpcr, fpsr;
    __asm__ __volatile__("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(fpcr), "=r"(fpsr));
    return (unsigned)fpcr << 5 ^ (unsigned)fpsr;
}
#else
static void flushing(void)
{
}
static unsigned control(void)
{
    return (unsigned)fegetround() ^ (unsigned)fetestexcept(FE_ALL_EXCEPT) << 16;
}
#endif

/* The same bits under every environment, and the environment is as it was, raised flags included. */
START_TEST(floating_point)
{
    static void (*const set[])(void) = {nearest, downward, upward, toward_zero, trapping, flags_set, flushing};
    static const char *const names[] = {"nearest", "down", "up", "to zero", "traps", "flags", "FTZ and DAZ"};
    problem *right[PROBLEM_KINDS];
    problem_references(right);
    kiln_context *context = test_context_threads(1 + 2 * (_i % 2));
    void *workspace = aligned_alloc(256, WORKSPACE);
    ck_assert_ptr_nonnull(workspace);
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        problem *p = problem_new(kind);
        problem_reset(p);
        fenv_t saved;
        fegetenv(&saved);
        feclearexcept(FE_ALL_EXCEPT);
        set[_i / 2]();
        unsigned before = control();
        kiln_status status = four_calls(p, context, workspace, WORKSPACE);
        unsigned after = control();
        int rounding = fegetround();
        fesetenv(&saved);
        TEST_REQUIRE(status == KILN_OK, "%s, %s: %s", p->name, names[_i / 2], kiln_last_error());
        TEST_REQUIRE(before == after, "%s, %s: the environment was %#x and is %#x, rounding %d", p->name, names[_i / 2],
                     before, after, rounding);
        TEST_REQUIRE(problem_equal(p, right[kind]), "%s, %s: other bits", p->name, names[_i / 2]);
    }
    free(workspace);
}
END_TEST

/* A context made under traps and round-down is a context like any other. */
START_TEST(floating_point_at_creation)
{
    problem *right[PROBLEM_KINDS];
    problem_references(right);
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu", .max_threads = 2};
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(FE_DOWNWARD);
    feenableexcept(FE_ALL_EXCEPT);
    kiln_status status = kiln_context_create(&context, &options);
    fedisableexcept(FE_ALL_EXCEPT);
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(status, KILN_OK);
    problem_check_all(context, right, "made under traps");
    kiln_context_destroy(context);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ the process */

typedef struct process {
    struct sigaction actions[65]; /* by signal number */
    sigset_t mask;
    cpu_set_t affinity;
    int omp[6];
    int files;
    mode_t umask;
    char locale[64], directory[512];
} process;

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

static void look(process *p)
{
    memset(p, 0, sizeof *p);
    for (int i = 1; i < 65; i++)
        sigaction(i, NULL, &p->actions[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &p->mask);
    sched_getaffinity(0, sizeof p->affinity, &p->affinity);
#ifdef _OPENMP
    omp_sched_t kind;
    omp_get_schedule(&kind, &p->omp[0]);
    p->omp[1] = (int)kind;
    p->omp[2] = omp_get_max_threads();
    p->omp[3] = omp_get_dynamic();
    p->omp[4] = omp_get_max_active_levels();
    p->omp[5] = omp_get_thread_limit();
#endif
    p->files = open_files();
    p->umask = umask(0);
    umask(p->umask);
    snprintf(p->locale, sizeof p->locale, "%s", setlocale(LC_ALL, NULL));
    if (!getcwd(p->directory, sizeof p->directory))
        p->directory[0] = '\0';
}

static void expect_same(const process *was, const process *is, const char *what)
{
    for (int i = 1; i < 65; i++)
        TEST_REQUIRE(was->actions[i].sa_handler == is->actions[i].sa_handler, "%s changed the handler of signal %d",
                     what, i);
    TEST_REQUIRE(memcmp(&was->mask, &is->mask, sizeof was->mask) == 0, "%s changed the signal mask", what);
    TEST_REQUIRE(CPU_EQUAL(&was->affinity, &is->affinity), "%s changed the affinity", what);
    TEST_REQUIRE(memcmp(was->omp, is->omp, sizeof was->omp) == 0, "%s changed OpenMP's settings", what);
    TEST_REQUIRE(was->files == is->files, "%s left %d files open", what, is->files - was->files);
    TEST_REQUIRE(was->umask == is->umask, "%s changed the umask", what);
    TEST_REQUIRE(strcmp(was->locale, is->locale) == 0, "%s changed the locale", what);
    TEST_REQUIRE(strcmp(was->directory, is->directory) == 0, "%s changed the directory", what);
}

static void silent_visit(void *user, const kiln_backend_info *info)
{
    ++*(int *)user;
    (void)info;
}

START_TEST(process_state)
{
    static process was, is;
    kiln_context *context;
    int seen = 0;
    kiln_context_options options = {
        .struct_size = sizeof options, .backend = "cpu", .max_threads = 3, .plugin_path = "/etc"};
#ifdef _OPENMP
    omp_set_dynamic(1);
    omp_set_num_threads(2);
    omp_set_schedule(omp_sched_guided, 7);
#endif
    look(&was);
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    ck_assert_int_eq(kiln_backend_list(&options, silent_visit, &seen), KILN_OK);
    look(&is);
    expect_same(&was, &is, "creating a context");
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        problem *p = problem_new(kind);
        const char *failure = problem_run(p, context);
        TEST_REQUIRE(!failure, "%s: %s", p->name, failure);
        look(&is);
        expect_same(&was, &is, p->name);
    }
    kiln_context_destroy(context);
    look(&is);
    expect_same(&was, &is, "destroying a context");
}
END_TEST

/* A call that goes well leaves errno alone. */
START_TEST(error_number)
{
    kiln_context *context = test_context_threads(3);
    void *workspace = aligned_alloc(256, WORKSPACE);
    ck_assert_ptr_nonnull(workspace);
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        problem *p = problem_new(kind);
        problem_reset(p);
        for (int run = 0; run < 2; run++) { /* the first one may start threads */
            errno = ENOTTY;
            ck_assert_int_eq(four_calls(p, context, workspace, WORKSPACE), KILN_OK);
            TEST_REQUIRE(errno == ENOTTY, "%s set errno to %d", p->name, errno);
        }
    }
    free(workspace);
}
END_TEST

/* Standard output and error go to a file, which is empty after everything that can go right or wrong. */
START_TEST(silence)
{
    char path[] = "/tmp/kiln_silence_XXXXXX";
    int file = mkstemp(path), out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO), seen = 0, failures = 0;
    ck_assert(file >= 0 && out >= 0 && err >= 0);
    unlink(path);
    fflush(NULL);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);

    kiln_context *context = NULL;
    kiln_context_options options = {.struct_size = sizeof options, .max_threads = 3, .plugin_path = "/nonexistent"};
    setenv("KILN_CPU_ISA", "nonsense", 1);
    failures += kiln_context_create(&context, &options) != KILN_OK;
    failures += kiln_backend_list(&options, silent_visit, &seen) != KILN_OK;
    for (int kind = 0; kind < PROBLEM_KINDS && context; kind++) {
        problem *p = problem_new(kind);
        failures += problem_run(p, context) != NULL;
        failures += test_call(p->op, context, NULL, NULL, 0) == KILN_OK;
        failures += test_call(p->op, NULL, &p->args, NULL, 0) == KILN_OK;
    }
    kiln_context_destroy(context);
    options.backend = "nonesuch";
    failures += kiln_context_create(&context, &options) == KILN_OK;

    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    off_t printed = lseek(file, 0, SEEK_END);
    close(file);
    close(out);
    close(err);
    ck_assert_int_eq(failures, 0);
    ck_assert_msg(printed == 0, "%lld bytes were printed", (long long)printed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state");
    TCase *t = test_tcase(s, "state");
    tcase_add_loop_test(t, floating_point, 0, 14);
    tcase_add_test(t, floating_point_at_creation);
    tcase_add_test(t, process_state);
    tcase_add_test(t, error_number);
    tcase_add_test(t, silence);
    return test_main(s);
}
