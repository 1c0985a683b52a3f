/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fixture.h: what every suite stands on: the backend under test, tensors with guards, data, and the four calls of an
 * operation in one place.
 *
 * A test_tensor is a strided tensor twice: its *image* on the host, which the oracle reads, and its *memory* on the device,
 * which the library sees. Nothing else writes to the image, so after a call whatever differs between the two was written
 * by the library: test_check_memory() demands that this is exactly the elements that should have been written.
 *  - bytes outside the elements (64 before the first, gaps between strides, 64 after the last) are poison: NaN for inputs;
 *  - elements of outputs start as NaN;
 *  - on the CPU the memory ends at a page that cannot be read, so reading one element too far is a fault.
 * Everything belongs to the running test and is freed by test_release_all() (a checked fixture of every suite).
 *
 * Environment: KILN_TEST_BACKEND (default "cpu"), KILN_CPU_ISA (a suite exits with 77 if the machine lacks it),
 * KILN_TEST_SLOW=1 adds the heavy tests, CK_FORK=no runs without a process per test (GPUs).
 */
#ifndef KILN_TESTS_SUPPORT_FIXTURE_H
#define KILN_TESTS_SUPPORT_FIXTURE_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/convert.h"
#include "../../common/problem.h"
#include <kiln/kiln.h>

/* ------------------------------------------------------------------------------------------------ suites */
/* Runs a suite under the environment above; returns main's exit code. The parent process never calls Kiln when tests are
 * forked, because OpenMP does not survive a fork. */
int test_main(Suite *suite);
/* A test case with test_release_all() after each test, added to `suite`. */
TCase *test_tcase(Suite *suite, const char *name);
bool test_slow(void); /* KILN_TEST_SLOW=1 */
/* Emulated devices are a thousand times slower than a core. Suites take smaller sizes there, and what would still be more
 * than 2·10^6 multiply-adds is left to the real device: counted, and the count printed. KILN_TEST_SLOW=1 runs all. */
bool test_is_slow_backend(void);
bool test_left_out(double multiply_adds);
int64_t test_smaller(int64_t size, int64_t on_slow_backends); /* the lesser of both there, else `size` */
/* Is that much host memory free, with a quarter to spare? If not, prints "skipped". */
bool test_has_memory(size_t bytes);

/* The line printed with every failure, and by the fault handler: what is running. */
void test_label(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fails the running test with a sentence and the label. */
_Noreturn void test_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define TEST_REQUIRE(condition, ...)                                                                                   \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            test_fail(__VA_ARGS__);                                                                                    \
    } while (0)

/* ------------------------------------------------------------------------------------------------ backend */
const char *test_backend_name(void);
bool test_on_cpu(void);
bool test_on_host(
    void); /* device memory is the host's (CPU, emulated devices): lengths are read before anything runs */
/* The context under test, opened on first use. */
kiln_context *test_context(void);
/* Another one, with a limit of threads; freed by test_release_all(). */
kiln_context *test_context_threads(int32_t threads);

/* The rungs every attention test runs, NULL (auto) last; and those of softmax. The one place that lists them. */
extern const char *const test_attention_algorithms[];
enum { TEST_ATTENTION_ALGORITHMS = 9 };
extern const char *const test_softmax_algorithms[];
enum { TEST_SOFTMAX_ALGORITHMS = 3 };
const char *test_algorithm_name(const char *algorithm); /* "auto" for NULL */
/* Is this a refusal that a backend may give: KILN_UNSUPPORTED, or that it has no rung of that name? Then it is printed. */
bool test_refused(kiln_status status, const char *algorithm, const char *why);

/* ------------------------------------------------------------------------------------------------ tensors */
typedef enum test_strides {
    STRIDES_COMPACT,      /* strides == NULL */
    STRIDES_SEQ_FIRST,    /* the two axes before the last swapped: (batch, seqlen, heads, d) in memory */
    STRIDES_PADDED,       /* gaps after every axis */
    STRIDES_INNER_STRIDE, /* the last axis has stride 3 */
    STRIDES_TRANSPOSED,   /* the last axis is the slowest */
    STRIDES_REVERSED,     /* the last two axes run backwards */
    STRIDES_BYTE_OFFSET,  /* data and byte_offset apart */
    STRIDES_ODD_ONES,     /* axes of size 1 have absurd strides */
    STRIDES_BROADCAST,    /* inputs: the first axis has stride 0; outputs: as STRIDES_PADDED */
    STRIDES_COUNT
} test_strides;
extern const char *const test_strides_name[STRIDES_COUNT];

typedef struct test_tensor {
    kiln_tensor device, host; /* over `memory` and over `image` */
    int64_t shape[KILN_MAX_RANK], stride[KILN_MAX_RANK];
    int64_t count; /* elements */
    int32_t type;
    bool output;
    unsigned char *memory, *image, *got; /* of `bytes` each; got: what test_check_memory() found in memory */
    size_t bytes, first;                 /* first: byte of element (0, 0, ...) */
    void *mapping;                       /* CPU: the pages behind `memory` */
    size_t mapping_bytes;
    bool *written; /* outputs: NULL = every element must be written, else one flag per element */
    struct test_tensor *next;
} test_tensor;

test_tensor *test_tensor_new(int32_t type, int rank, const int64_t *shape, test_strides strides, bool output);
test_tensor *test_tensors(void); /* the running test's, the newest first */
/* NULL stays NULL (absent). */
const kiln_tensor *test_device(const test_tensor *tensor);
const kiln_tensor *test_host(const test_tensor *tensor);
/* Element i in row-major order: of the image, and of what the call left behind. */
double test_get(const test_tensor *tensor, int64_t i);
void test_put(test_tensor *tensor, int64_t i, double value);
double test_result(const test_tensor *tensor, int64_t i);
/* Sets the first n elements; TEST_SET(t, 1, 2, 3). */
void test_set(test_tensor *tensor, const double *values, int64_t n);
#define TEST_SET(tensor, ...)                                                                                          \
    test_set(tensor, (const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))
void test_fill(test_tensor *tensor, double value);

void test_upload(void);       /* images to the device, all tensors */
void test_check_memory(void); /* fetches all tensors and demands that nothing but outputs' written elements changed */
void test_check_untouched(const char *what); /* the same, and outputs have not changed either: after a refused call */
void test_release_all(void);

/* Frees at test_release_all(); zeroed, never NULL. */
void *test_alloc(size_t bytes);

/* ------------------------------------------------------------------------------------------------ data */
void test_seed(uint64_t seed);
double test_uniform(void); /* [0, 1) */
double test_normal(void);
int64_t test_integer(int64_t below);

/* ------------------------------------------------------------------------------------------------ calls */
kiln_status test_supported(kiln_op op, const kiln_context *context, const void *args, char *why, size_t cap);
kiln_status test_workspace(kiln_op op, const kiln_context *context, const void *args, size_t *bytes);
kiln_status test_prepare(kiln_op op, kiln_context *context, const void *args);
kiln_status test_call(kiln_op op, kiln_context *context, const void *args, void *workspace, size_t bytes);

/*
 * Uploads everything, makes all four calls with a garbage-filled and guarded workspace, demands that they agree, and
 * checks memory. Returns the common status; any but KILN_OK leaves its sentence in `why` (not empty) and everything
 * untouched.
 */
kiln_status test_run(kiln_op op, kiln_context *context, const void *args, char *why, size_t cap);

#endif
