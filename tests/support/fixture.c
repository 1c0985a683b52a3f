/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* fixture.c: see fixture.h. Cost of a call: every tensor is copied twice and compared once. */
#include "fixture.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GUARD = 64, INPUT_POISON = 0xff, OUTPUT_POISON = 0xa5, SKIPPED = 77 };

const char *const test_attention_algorithms[TEST_ATTENTION_ALGORITHMS] = {"naive", "tiled", "flash1",  "flash2", "mma",
                                                                          "mfma",  "wgmma", "splitkv", NULL};
const char *const test_softmax_algorithms[TEST_SOFTMAX_ALGORITHMS] = {"three_pass", "online", NULL};
const char *const test_strides_name[STRIDES_COUNT] = {
    "compact", "seq_first", "padded", "inner_stride", "transposed", "reversed", "byte_offset", "odd_ones", "broadcast"};

/* What belongs to the running test. One test runs at a time, in one thread. */
static struct {
    kiln_context *context;
    kiln_context *limited[16];
    int limited_count;
    test_tensor *tensors;
    void **blocks;
    size_t block_count;
    uint64_t random;
    char label[1200];
} state;

/* ------------------------------------------------------------------------------------------------ suites */

/* Around 0.2 s: an emulated device does some 10^7 multiply-adds per second. */
static const double SLOW_LIMIT = 2e6;
static int left_out; /* of the whole suite: slow backends do not fork */

void test_label(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(state.label, sizeof state.label, format, list);
    va_end(list);
}

void test_fail(const char *format, ...)
{
    char message[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    ck_abort_msg("%s\n    backend %s, %s", message, test_backend_name(), state.label[0] ? state.label : "(no label)");
    abort(); /* not reached */
}

/* A fault in a kernel should say which case it was; then the default action tells Check. */
static void on_fault(int signal_number)
{
    static const char text[] = "\nfault in: ";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    ignored = write(STDERR_FILENO, state.label, strlen(state.label));
    ignored = write(STDERR_FILENO, "\n", 1);
    (void)ignored;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

bool test_slow(void)
{
    const char *slow = getenv("KILN_TEST_SLOW");
    return slow && strcmp(slow, "1") == 0;
}

bool test_is_slow_backend(void)
{
    const char *emulated = getenv("KILN_TEST_EMULATED"); /* a real backend on the stand-in of tests/hip */
    return (strncmp(test_backend_name(), "simt-", 5) == 0 || (emulated && emulated[0])) && !test_slow();
}

bool test_left_out(double multiply_adds)
{
    bool out = test_is_slow_backend() && multiply_adds > SLOW_LIMIT;
    left_out += out;
    return out;
}

int64_t test_smaller(int64_t size, int64_t on_slow_backends)
{
    return test_is_slow_backend() && on_slow_backends < size ? on_slow_backends : size;
}

bool test_has_memory(size_t bytes)
{
    double available = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (available >= 1.25 * (double)bytes)
        return true;
    printf("skipped: needs %.1f GB of memory, %.1f GB are free\n", 1.25e-9 * (double)bytes, 1e-9 * available);
    return false;
}

TCase *test_tcase(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, NULL, test_release_all);
    tcase_set_timeout(tcase, test_slow() ? 600 : 120);
    suite_add_tcase(suite, tcase);
    return tcase;
}

/* 0 if the backend (and the instruction set asked for) is there, else SKIPPED or 1, with a line that says why. */
static int probe(void)
{
    const char *isa = getenv("KILN_CPU_ISA");
    kiln_context_options options = {.struct_size = sizeof options, .backend = test_backend_name()};
    kiln_context *context;
    kiln_device_info info = {.struct_size = sizeof info};
    kiln_status status = kiln_context_create(&context, &options);
    if (status != KILN_OK) {
        printf("%s: backend %s: %s\n", status == KILN_UNAVAILABLE ? "skipped" : "failed", options.backend,
               kiln_last_error());
        return status == KILN_UNAVAILABLE && !test_on_cpu() ? SKIPPED : 1;
    }
    int code = 0;
    if (kiln_context_info(context, &info) != KILN_OK) {
        printf("failed: %s\n", kiln_last_error());
        code = 1;
    } else if (test_on_cpu() && isa && strcmp(info.architecture, isa) != 0) {
        printf("skipped: this machine runs %s kernels, not %s\n", info.architecture, isa);
        code = SKIPPED;
    }
    kiln_context_destroy(context);
    return code;
}

int test_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int code;
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    signal(SIGFPE, on_fault);
    if (srunner_fork_status(runner) == CK_NOFORK) {
        code = probe();
    } else {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            code = probe();
            fflush(stdout);
            _exit(code);
        }
        int wait_status = 0;
        waitpid(child, &wait_status, 0);
        code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1;
    }
    if (code == 0) {
        srunner_run_all(runner, CK_ENV);
        if (left_out)
            printf("%d cases left to the real device\n", left_out);
        code = srunner_ntests_failed(runner) != 0 || srunner_ntests_run(runner) == 0;
    }
    srunner_free(runner);
    return code;
}

/* ------------------------------------------------------------------------------------------------ backend */

const char *test_backend_name(void)
{
    const char *name = getenv("KILN_TEST_BACKEND");
    return name && name[0] ? name : "cpu";
}

bool test_on_cpu(void)
{
    return strcmp(test_backend_name(), "cpu") == 0;
}

bool test_on_host(void)
{
    return kiln_context_device(test_context()).device_type == KILN_DEVICE_CPU;
}

kiln_context *test_context(void)
{
    if (!state.context) {
        kiln_context_options options = {.struct_size = sizeof options, .backend = test_backend_name()};
        TEST_REQUIRE(kiln_context_create(&state.context, &options) == KILN_OK, "context: %s", kiln_last_error());
    }
    return state.context;
}

kiln_context *test_context_threads(int32_t threads)
{
    kiln_context_options options = {
        .struct_size = sizeof options, .backend = test_backend_name(), .max_threads = threads};
    ck_assert_int_lt(state.limited_count, 16);
    kiln_context **slot = &state.limited[state.limited_count++];
    TEST_REQUIRE(kiln_context_create(slot, &options) == KILN_OK, "context: %s", kiln_last_error());
    return *slot;
}

const char *test_algorithm_name(const char *algorithm)
{
    return algorithm ? algorithm : "auto";
}

bool test_refused(kiln_status status, const char *algorithm, const char *why)
{
    bool missing = status == KILN_INVALID_ARGUMENT && algorithm && strncmp(why, "algorithm is ", 13) == 0;
    if (status != KILN_UNSUPPORTED && !missing)
        return false;
    printf("refused: %s: %s\n", test_algorithm_name(algorithm), why);
    return true;
}

/* ------------------------------------------------------------------------------------------------ memory */

void *test_alloc(size_t bytes)
{
    void *block = calloc(1, bytes ? bytes : 1);
    void **blocks = realloc(state.blocks, (state.block_count + 1) * sizeof *blocks);
    if (!block || !blocks)
        test_fail("the test itself is out of memory (%zu bytes)", bytes);
    state.blocks = blocks;
    state.blocks[state.block_count++] = block;
    return block;
}

/* Device memory of `bytes`. CPU: pages of its own, the last byte (rounded up to `alignment`) before a page without access. */
static unsigned char *memory_new(size_t bytes, size_t alignment, void **mapping, size_t *mapping_bytes)
{
    if (!test_on_cpu()) {
        void *pointer;
        TEST_REQUIRE(kiln_malloc(test_context(), bytes, &pointer) == KILN_OK, "kiln_malloc: %s", kiln_last_error());
        *mapping = pointer;
        *mapping_bytes = 0;
        return pointer;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = (bytes + alignment - 1) / alignment * alignment;
    size_t body = (rounded + page - 1) / page * page;
    *mapping_bytes = body + 2 * page;
    *mapping = mmap(NULL, *mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TEST_REQUIRE(*mapping != MAP_FAILED && mprotect((char *)*mapping + page, body, PROT_READ | PROT_WRITE) == 0,
                 "the test itself could not map %zu bytes", body);
    return (unsigned char *)*mapping + page + body - rounded;
}

static void memory_free(void *mapping, size_t mapping_bytes)
{
    if (mapping_bytes)
        munmap(mapping, mapping_bytes);
    else
        kiln_free(test_context(), mapping);
}

static void copy(void *destination, const void *source, size_t bytes)
{
    TEST_REQUIRE(kiln_copy(test_context(), destination, source, bytes, NULL) == KILN_OK, "kiln_copy: %s",
                 kiln_last_error());
}

void test_release_all(void)
{
    for (test_tensor *t = state.tensors; t; t = t->next)
        if (t->bytes)
            memory_free(t->mapping, t->mapping_bytes);
    for (int i = 0; i < state.limited_count; i++)
        kiln_context_destroy(state.limited[i]);
    kiln_context_destroy(state.context);
    for (size_t i = 0; i < state.block_count; i++)
        free(state.blocks[i]);
    free(state.blocks);
    memset(&state, 0, sizeof state);
}

/* ------------------------------------------------------------------------------------------------ tensors */

static void choose_strides(test_tensor *t, int rank, test_strides layout)
{
    int order[KILN_MAX_RANK]; /* axes from the fastest */
    for (int i = 0; i < rank; i++)
        order[i] = layout == STRIDES_TRANSPOSED ? i : rank - 1 - i;
    if (layout == STRIDES_SEQ_FIRST && rank >= 3) {
        order[1] = rank - 3;
        order[2] = rank - 2;
    }
    int64_t stride = layout == STRIDES_INNER_STRIDE ? 3 : 1;
    for (int i = 0; i < rank; i++) {
        int64_t size = t->shape[order[i]], padding = layout == STRIDES_PADDED ? (i == 0 ? 3 : 1) : 0;
        t->stride[order[i]] = stride;
        stride *= size + padding ? size + padding : 1;
    }
    if (layout == STRIDES_REVERSED)
        for (int i = rank >= 2 ? rank - 2 : 0; i < rank; i++)
            t->stride[i] = -t->stride[i];
    if (layout == STRIDES_BROADCAST && rank > 0)
        t->stride[0] = 0;
    if (layout == STRIDES_ODD_ONES)
        for (int i = 0; i < rank; i++)
            if (t->shape[i] == 1)
                t->stride[i] = i % 2 ? -7 : 999999937;
}

test_tensor *test_tensor_new(int32_t type, int rank, const int64_t *shape, test_strides layout, bool output)
{
    test_tensor *t = test_alloc(sizeof *t);
    int64_t size = kiln_type_size(type), low = 0, high = 0;
    if (output && layout == STRIDES_BROADCAST)
        layout = STRIDES_PADDED;
    t->type = type;
    t->output = output;
    t->count = 1;
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->count *= shape[i];
    }
    choose_strides(t, rank, layout);
    for (int i = 0; i < rank; i++)
        if (t->shape[i] > 1) {
            int64_t reach = (t->shape[i] - 1) * t->stride[i];
            *(reach < 0 ? &low : &high) += reach;
        }
    const int64_t *strides = layout == STRIDES_COMPACT ? NULL : t->stride;
    kiln_device device = kiln_context_device(test_context());
    t->device = kiln_tensor_make(device, NULL, type, rank, t->shape, strides);
    t->host = kiln_tensor_make((kiln_device){KILN_DEVICE_CPU, 0}, NULL, type, rank, t->shape, strides);
    t->next = state.tensors;
    state.tensors = t;
    if (t->count == 0)
        return t;

    t->first = GUARD + (size_t)(-low * size);
    t->bytes = GUARD + (size_t)((high - low + 1) * size) + (test_on_cpu() ? 0 : GUARD);
    t->memory = memory_new(t->bytes, (size_t)size, &t->mapping, &t->mapping_bytes);
    t->image = test_alloc(t->bytes);
    t->got = test_alloc(t->bytes);
    uint64_t offset = layout == STRIDES_BYTE_OFFSET ? (uint64_t)(5 * size) : 0;
    t->device.byte_offset = t->host.byte_offset = offset;
    t->device.data = t->memory + t->first - offset;
    t->host.data = t->image + t->first - offset;
    memset(t->image, output ? OUTPUT_POISON : INPUT_POISON, t->bytes);
    if (output)
        test_fill(t, NAN);
    return t;
}

test_tensor *test_tensors(void)
{
    return state.tensors;
}

const kiln_tensor *test_device(const test_tensor *tensor)
{
    return tensor ? &tensor->device : NULL;
}

const kiln_tensor *test_host(const test_tensor *tensor)
{
    return tensor ? &tensor->host : NULL;
}

static int64_t element_offset(const test_tensor *t, int64_t i)
{
    int64_t offset = 0;
    for (int axis = t->host.ndim - 1; axis >= 0; axis--) {
        offset += i % t->shape[axis] * t->stride[axis];
        i /= t->shape[axis];
    }
    return offset;
}

double test_get(const test_tensor *tensor, int64_t i)
{
    return kiln_load_double(tensor->image + tensor->first, tensor->type, element_offset(tensor, i));
}

void test_put(test_tensor *tensor, int64_t i, double value)
{
    kiln_store_double(tensor->image + tensor->first, tensor->type, element_offset(tensor, i), value);
}

double test_result(const test_tensor *tensor, int64_t i)
{
    return kiln_load_double(tensor->got + tensor->first, tensor->type, element_offset(tensor, i));
}

void test_set(test_tensor *tensor, const double *values, int64_t n)
{
    TEST_REQUIRE(n <= tensor->count, "the test itself sets %lld of %lld elements", (long long)n,
                 (long long)tensor->count);
    for (int64_t i = 0; i < n; i++)
        test_put(tensor, i, values[i]);
}

void test_fill(test_tensor *tensor, double value)
{
    for (int64_t i = 0; i < tensor->count; i++)
        test_put(tensor, i, value);
}

void test_upload(void)
{
    for (test_tensor *t = state.tensors; t; t = t->next)
        if (t->bytes)
            copy(t->memory, t->image, t->bytes);
}

/* Which tensor of the test, for messages: its type and shape. */
static const char *name_of(const test_tensor *t)
{
    static char text[160];
    int n = snprintf(text, sizeof text, "%s of type %d and shape (", t->output ? "output" : "input", t->type);
    for (int i = 0; i < t->host.ndim; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, i ? ", %lld" : "%lld", (long long)t->shape[i]);
    snprintf(text + n, sizeof text - (size_t)n, ")");
    return text;
}

static void check(bool outputs_written, const char *what)
{
    for (test_tensor *t = state.tensors; t; t = t->next) {
        if (!t->bytes)
            continue;
        copy(t->got, t->memory, t->bytes);
        if (memcmp(t->got, t->image, t->bytes) == 0)
            continue;
        TEST_REQUIRE(t->output, "%s: the call changed an %s", what, name_of(t));
        TEST_REQUIRE(outputs_written, "%s: the call failed but wrote to an %s", what, name_of(t));
        unsigned char *rest = malloc(t->bytes);
        TEST_REQUIRE(rest, "the test itself is out of memory");
        memcpy(rest, t->got, t->bytes);
        size_t size = (size_t)kiln_type_size(t->type);
        for (int64_t i = 0; i < t->count; i++)
            if (!t->written || t->written[i]) {
                size_t at = t->first + (size_t)(element_offset(t, i) * (int64_t)size);
                memcpy(rest + at, t->image + at, size);
            }
        for (size_t b = 0; b < t->bytes; b++)
            TEST_REQUIRE(rest[b] == t->image[b], "%s: the call wrote byte %lld, which is none of the elements of an %s",
                         what, (long long)b - (long long)t->first, name_of(t));
        free(rest);
    }
}

void test_check_memory(void)
{
    check(true, "memory");
}

void test_check_untouched(const char *what)
{
    check(false, what);
}

/* ------------------------------------------------------------------------------------------------ data */

void test_seed(uint64_t seed)
{
    state.random = seed * 0x9E3779B97F4A7C15u + 1;
}

/* SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t next_random(void)
{
    uint64_t z = state.random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double test_uniform(void)
{
    return ldexp((double)(next_random() >> 11), -53);
}

double test_normal(void)
{
    double radius = sqrt(-2 * log(1 - test_uniform()));
    return radius * cos(6.283185307179586 * test_uniform());
}

int64_t test_integer(int64_t below)
{
    return below <= 0 ? 0 : (int64_t)(next_random() % (uint64_t)below);
}
