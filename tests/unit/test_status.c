/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* test_status.c: names of statuses, version, and the error sentence, which belongs to a thread. */
#include <pthread.h>
#include <stdio.h>

#include "../../common/context.h"
#include "../support/fixture.h"

START_TEST(names)
{
    static const char *const right[] = {"KILN_OK",
                                        "KILN_INVALID_ARGUMENT",
                                        "KILN_UNSUPPORTED",
                                        "KILN_UNAVAILABLE",
                                        "KILN_OUT_OF_MEMORY",
                                        "KILN_WORKSPACE_TOO_SMALL",
                                        "KILN_VERSION_MISMATCH",
                                        "KILN_DEVICE_ERROR",
                                        "KILN_INTERNAL"};
    for (kiln_status s = 0; s < 9; s++)
        ck_assert_str_eq(kiln_status_name(s), right[s]);
    ck_assert_str_eq(kiln_status_name(9), "KILN_UNKNOWN_STATUS");
    ck_assert_str_eq(kiln_status_name(-1), "KILN_UNKNOWN_STATUS");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KILN_VERSION_MAJOR, KILN_VERSION_MINOR, KILN_VERSION_PATCH);
    ck_assert_str_eq(kiln_version_string(), version);
    ck_assert_int_eq(kiln_version(), KILN_VERSION);
}
END_TEST

START_TEST(sentence)
{
    char longer[2000];
    ck_assert_str_eq(kiln_last_error(), "");
    ck_assert_int_eq(kiln_fail(KILN_UNSUPPORTED, "%s is %d", "d", 7), KILN_UNSUPPORTED);
    ck_assert_str_eq(kiln_last_error(), "d is 7");
    /* Its own text may be an argument of the next one. */
    kiln_fail(KILN_UNSUPPORTED, "again: %s", kiln_last_error());
    ck_assert_str_eq(kiln_last_error(), "again: d is 7");
    /* A call that succeeds leaves it. */
    ck_assert_int_eq(kiln_version(), KILN_VERSION);
    kiln_context *context;
    ck_assert_int_eq(kiln_context_create(&context, NULL), KILN_OK);
    kiln_context_destroy(context);
    ck_assert_str_eq(kiln_last_error(), "again: d is 7");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    kiln_fail(KILN_INTERNAL, "%s", longer);
    ck_assert_uint_eq(strlen(kiln_last_error()), 511);
}
END_TEST

enum { THREADS = 4, ROUNDS = 2000 };
static void *fail_often(void *user)
{
    const int id = *(const int *)user;
    char right[64];
    if (kiln_last_error()[0]) /* a new thread starts with none */
        return NULL;
    for (int n = 0; n < ROUNDS; n++) {
        kiln_context_options options = {.struct_size = sizeof options, .max_threads = -1 - id * ROUNDS - n};
        kiln_context *context;
        snprintf(right, sizeof right, "is %d;", options.max_threads);
        if (kiln_context_create(&context, &options) != KILN_INVALID_ARGUMENT || context ||
            !strstr(kiln_last_error(), right))
            return NULL;
    }
    return user;
}

START_TEST(threads_do_not_mix)
{
    int ids[THREADS];
    pthread_t threads[THREADS];
    kiln_fail(KILN_INTERNAL, "mine");
    for (int i = 0; i < THREADS; i++) {
        ids[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, fail_often, &ids[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, &ids[i]);
    }
    ck_assert_str_eq(kiln_last_error(), "mine");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("status");
    TCase *t = test_tcase(s, "status");
    tcase_add_test(t, names);
    tcase_add_test(t, sentence);
    tcase_add_test(t, threads_do_not_mix);
    return test_main(s);
}
