/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_versions.c: callers compiled with another version of the header. Every struct of every size: a shorter one is
 * read up to its end and not one byte further (behind it lies a page without access), a longer one may only have zeros
 * behind what this library knows.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "problems.h"

enum { TAIL = 40 };

/* One page between two without access. */
static unsigned char *page_end(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *map = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(map != MAP_FAILED && mprotect(map + page, page, PROT_READ | PROT_WRITE) == 0);
    return map + 2 * page;
}

/* The struct as a caller has it whose struct is `size` bytes long: at the end of the page, the tail behind `full` zero. */
static void *cut(unsigned char *end, const void *args, size_t full, size_t size)
{
    unsigned char *place = end - size;
    memset(place, 0, size);
    memcpy(place, args, size < full ? size : full);
    memcpy(place, &size, sizeof size);
    return place;
}

/* A cut struct means what the zero-filled one means, for every length; so do their sentences. */
START_TEST(shorter_args)
{
    unsigned char *end = page_end();
    problem *p = problem_new(_i);
    size_t full = p->args_bytes;
    for (size_t size = sizeof size; size <= full; size += sizeof(void *)) {
        char why[2][512];
        _Alignas(8) unsigned char filled[sizeof p->args] = {0};
        memcpy(filled, &p->args, size);
        memcpy(filled, &full, sizeof full);
        const void *args = cut(end, &p->args, full, size);
        kiln_status want = test_supported(p->op, test_context(), filled, why[0], sizeof why[0]);
        kiln_status got = test_supported(p->op, test_context(), args, why[1], sizeof why[1]);
        TEST_REQUIRE(got == want && strcmp(why[0], why[1]) == 0, "%s cut to %zu bytes: %s (%s) instead of %s (%s)",
                     p->name, size, kiln_status_name(got), why[1], kiln_status_name(want), why[0]);
    }
}
END_TEST

START_TEST(longer_args)
{
    unsigned char *end = page_end();
    problem *p = problem_new(_i), *right = problem_new(_i);
    size_t full = p->args_bytes, workspace;
    const char *failure = problem_run(right, test_context());
    TEST_REQUIRE(!failure, "%s: %s", right->name, failure);
    for (size_t tail = 8; tail <= TAIL; tail += 8) {
        char why[512];
        unsigned char *args = cut(end - (8 - (full + tail) % 8) % 8, &p->args, full, full + tail);
        TEST_REQUIRE(test_supported(p->op, test_context(), args, why, sizeof why) == KILN_OK, "%s, %zu zeros more: %s",
                     p->name, tail, why);
        args[full + tail - 1] = 1;
        kiln_status status = test_supported(p->op, test_context(), args, why, sizeof why);
        TEST_REQUIRE(status == KILN_VERSION_MISMATCH && strstr(why, "struct_size"), "%s, %zu bytes more: %s: %s",
                     p->name, tail, kiln_status_name(status), why);
        ck_assert_int_eq(test_workspace(p->op, test_context(), args, &workspace), KILN_VERSION_MISMATCH);
        ck_assert_int_eq(test_prepare(p->op, test_context(), args), KILN_VERSION_MISMATCH);
        ck_assert_int_eq(test_call(p->op, test_context(), args, NULL, 0), KILN_VERSION_MISMATCH);
    }
    /* And the call itself gives the same result. */
    unsigned char *args = cut(end - (8 - (full + TAIL) % 8) % 8, &p->args, full, full + TAIL);
    void *memory;
    problem_reset(p);
    ck_assert_int_eq(test_workspace(p->op, test_context(), args, &workspace), KILN_OK);
    ck_assert_int_eq(kiln_malloc(test_context(), workspace, &memory), KILN_OK);
    ck_assert_int_eq(test_call(p->op, test_context(), args, memory, workspace), KILN_OK);
    ck_assert(problem_equal(p, right));
    kiln_free(test_context(), memory);
}
END_TEST

/* The struct inside attention_backward has a size of its own. */
START_TEST(nested_args)
{
    unsigned char *end = page_end();
    problem *p = NULL;
    for (int kind = 0; kind < PROBLEM_KINDS && (!p || p->op != KILN_OP_ATTENTION_BACKWARD); kind++)
        p = problem_new(kind);
    kiln_attention_backward_args args = p->args.attention_backward;
    const kiln_attention_forward_args forward = *args.forward;
    char why[512];
    unsigned char *longer = cut(end, &forward, sizeof forward, sizeof forward + TAIL);
    args.forward = (const kiln_attention_forward_args *)(const void *)longer;
    ck_assert_int_eq(test_supported(p->op, test_context(), &args, why, sizeof why), KILN_OK);
    longer[sizeof forward + TAIL - 1] = 1;
    ck_assert_int_eq(test_supported(p->op, test_context(), &args, why, sizeof why), KILN_VERSION_MISMATCH);
    ck_assert_ptr_nonnull(strstr(why, "struct_size"));
    /* Cut behind the last field that is used. */
    size_t size = offsetof(kiln_attention_forward_args, cu_seqlens_q);
    args.forward = cut(end, &forward, sizeof forward, size);
    ck_assert_int_eq(test_supported(p->op, test_context(), &args, why, sizeof why), KILN_OK);
    args.forward = cut(end, &forward, sizeof forward, sizeof size);
    ck_assert_int_eq(test_supported(p->op, test_context(), &args, why, sizeof why), KILN_INVALID_ARGUMENT);
}
END_TEST

START_TEST(context_options)
{
    unsigned char *end = page_end();
    const kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu", .max_threads = 1};
    for (size_t size = 0; size <= sizeof options + TAIL; size += 8) {
        kiln_context *context = (kiln_context *)(uintptr_t)16;
        unsigned char *place = size >= sizeof size ? cut(end, &options, sizeof options, size) : end - sizeof size;
        memcpy(place, &size, sizeof size);
        kiln_status status = kiln_context_create(&context, (const kiln_context_options *)(const void *)place);
        TEST_REQUIRE(status == (size < 8 ? KILN_VERSION_MISMATCH : KILN_OK), "%zu bytes: %s", size, kiln_last_error());
        ck_assert((status == KILN_OK) == (context != NULL));
        kiln_context_destroy(context);
        if (size > sizeof options) {
            place[sizeof options] = 1;
            status = kiln_context_create(&context, (const kiln_context_options *)(const void *)place);
            ck_assert_int_eq(status, KILN_VERSION_MISMATCH);
            ck_assert_ptr_null(context);
        }
    }
}
END_TEST

/* The one struct that is written: never past the size that its owner gives, and a longer one keeps its tail. */
START_TEST(device_info)
{
    unsigned char *end = page_end();
    kiln_device_info full = {.struct_size = sizeof full};
    ck_assert_int_eq(kiln_context_info(test_context(), &full), KILN_OK);
    for (size_t size = sizeof size; size <= sizeof full + TAIL; size += 8) {
        unsigned char *place = end - size;
        memset(place, 0xa5, size);
        memcpy(place, &size, sizeof size);
        ck_assert_int_eq(kiln_context_info(test_context(), (kiln_device_info *)(void *)place), KILN_OK);
        ck_assert_mem_eq(place, &size, sizeof size);
        size_t known = size < sizeof full ? size : sizeof full;
        ck_assert_mem_eq(place + sizeof size, (char *)&full + sizeof size, known - sizeof size);
        for (size_t i = sizeof full; i < size; i++)
            ck_assert_int_eq(place[i], 0xa5);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("versions");
    TCase *t = test_tcase(s, "versions");
    tcase_add_loop_test(t, shorter_args, 0, PROBLEM_KINDS);
    tcase_add_loop_test(t, longer_args, 0, PROBLEM_KINDS);
    tcase_add_test(t, nested_args);
    tcase_add_test(t, context_options);
    tcase_add_test(t, device_info);
    return test_main(s);
}
