/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_registry.c: the plug-in loader, on files made for it (plugin.c). PLUGIN_DIR holds the good and all the bad ones,
 * PLUGIN_BEST_DIR one that outranks every backend. Each test runs in a process of its own, so nothing stays loaded.
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/fixture.h"

enum { MOST = 32 };
typedef struct listed {
    char name[64], path[256], reason[512];
    int32_t available, score, device_count;
} listed;
static listed found[MOST];
static int found_count;

static void visit(void *user, const kiln_backend_info *info)
{
    ck_assert_ptr_eq(user, found);
    ck_assert_int_lt(found_count, MOST);
    listed *l = &found[found_count++];
    snprintf(l->name, sizeof l->name, "%s", info->name);
    snprintf(l->path, sizeof l->path, "%s", info->path);
    snprintf(l->reason, sizeof l->reason, "%s", info->reason);
    l->available = info->available;
    l->score = info->score;
    l->device_count = info->device_count;
}

static kiln_context_options options_for(const char *path, const char *backend)
{
    return (kiln_context_options){.struct_size = sizeof(kiln_context_options), .plugin_path = path, .backend = backend};
}

static void list(const char *path)
{
    kiln_context_options options = options_for(path, NULL);
    found_count = 0;
    ck_assert_msg(kiln_backend_list(&options, visit, found) == KILN_OK, "%s", kiln_last_error());
}

static const listed *find(const char *name)
{
    for (int i = 0; i < found_count; i++)
        if (strcmp(found[i].name, name) == 0)
            return &found[i];
    return NULL;
}

static void unavailable(const char *name, const char *word)
{
    const listed *l = find(name);
    ck_assert_msg(l, "%s is not listed", name);
    ck_assert_msg(!l->available && l->score == 0 && l->device_count == 0, "%s is available", name);
    ck_assert_msg(strstr(l->reason, word), "the reason of %s lacks '%s': %s", name, word, l->reason);
}

START_TEST(everything_is_listed)
{
    list(PLUGIN_DIR);
    const listed *cpu = find("cpu"), *good = find("test");
    ck_assert(cpu && cpu->available && cpu->score > 0 && cpu->device_count == 1 && !cpu->path[0] && !cpu->reason[0]);
    ck_assert(good && good->available && good->score == 0 && good->device_count == 2 && !good->reason[0]);
    ck_assert_ptr_nonnull(strstr(good->path, "kiln_good.so"));
    unavailable("test-absent", "not plugged in");
    unavailable("kiln_wrong_abi.so", "interface");
    unavailable("kiln_wrong_size.so", "bytes");
    unavailable("kiln_no_entry.so", "kiln_backend_entry");
    unavailable("kiln_empty.so", "no backend");
    unavailable("kiln_missing_slot.so", "run");
    unavailable("kiln_unresolved.so", "kiln_test_symbol_that_nobody_has");
    unavailable("kiln_text.so", "could not be loaded");
    unavailable("kiln_zero.so", "could not be loaded");
    ck_assert_ptr_null(find("other.so"));
    int first = found_count;
    list(PLUGIN_DIR); /* a second look finds the same, once each */
    ck_assert_int_eq(found_count, first);
}
END_TEST

START_TEST(named_but_unavailable_is_an_error)
{
    static const char *const names[] = {"test-absent", "kiln_text.so", "kiln_wrong_abi.so", "text", "cuda"};
    static const char *const words[] = {"not plugged in", "could not be loaded", "interface", "could not be loaded",
                                        "not installed"};
    for (int i = 0; i < 5; i++) {
        kiln_context *context;
        kiln_context_options options = options_for(PLUGIN_DIR, names[i]);
        ck_assert_int_eq(kiln_context_create(&context, &options), KILN_UNAVAILABLE);
        ck_assert_ptr_null(context);
        ck_assert_msg(strstr(kiln_last_error(), words[i]) && strstr(kiln_last_error(), names[i]), "%s",
                      kiln_last_error());
    }
}
END_TEST

static int warnings;
static void on_log(void *user, int32_t level, const char *message)
{
    (void)user;
    warnings += level == KILN_LOG_WARNING && strstr(message, "test device 1 opened");
}

START_TEST(good_plugin_works)
{
    kiln_context *context;
    kiln_context_options options = options_for(PLUGIN_DIR, "test");
    kiln_device_info info = {.struct_size = sizeof info};
    options.device = 1;
    options.log = on_log;
    ck_assert_msg(kiln_context_create(&context, &options) == KILN_OK, "%s", kiln_last_error());
    ck_assert_int_eq(warnings, 1);
    ck_assert_int_eq(kiln_context_info(context, &info), KILN_OK);
    ck_assert_str_eq(info.backend, "test");
    ck_assert_str_eq(info.architecture, "cardboard");
    ck_assert_int_eq(kiln_context_device(context).device_id, 7);
    /* Its refusals come through the services by pointer. */
    static const int64_t shape[1] = {3};
    float data[3] = {0};
    kiln_tensor x = kiln_tensor_make(info.device, data, KILN_FLOAT32, 1, shape, NULL), y = x;
    float out[3] = {5, 5, 5};
    y.data = out;
    kiln_softmax_forward_args args = {.struct_size = sizeof args, .x = &x, .y = &y};
    ck_assert_int_eq(kiln_softmax_forward(context, &args, NULL, 0, NULL), KILN_UNSUPPORTED);
    ck_assert_str_eq(kiln_last_error(), "the test backend has no operation 0");
    ck_assert(out[0] == 5 && out[2] == 5);
    /* Tensors of another device are refused before it is asked. */
    x.device = (kiln_device){KILN_DEVICE_CPU, 0};
    ck_assert_int_eq(kiln_softmax_forward(context, &args, NULL, 0, NULL), KILN_INVALID_ARGUMENT);
    kiln_context_destroy(context);
    options.device = 2;
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(kiln_last_error(), "options.device is 2"));
}
END_TEST

/* A probe may start a vendor's driver: only the named backend is asked, and it once; all are where the best is wanted. */
START_TEST(only_what_the_choice_needs_is_asked)
{
    static const char *const names[] = {"cpu", "test", "test", "test-absent", NULL, NULL};
    static const char *const asked[] = {
        "", " test", " test", " test test-absent", " test test-absent", " test test-absent"};
    setenv("KILN_TEST_PROBED", "", 1);
    for (int i = 0; i < 6; i++) {
        kiln_context *context;
        kiln_context_options options = options_for(PLUGIN_DIR, names[i]);
        kiln_status status = kiln_context_create(&context, &options);
        ck_assert_int_eq(status, i == 3 ? KILN_UNAVAILABLE : KILN_OK);
        kiln_context_destroy(context);
        ck_assert_str_eq(getenv("KILN_TEST_PROBED"), asked[i]);
    }
    list(PLUGIN_BEST_DIR);
    ck_assert_str_eq(getenv("KILN_TEST_PROBED"), " test test-absent test-best");
    ck_assert(find("test-best")->available);
}
END_TEST

/* Score 0 is never chosen by itself; the highest is; a folder that does not exist or is empty is no error. */
START_TEST(auto_takes_the_best)
{
    static const char *const paths[] = {PLUGIN_DIR, PLUGIN_BEST_DIR, "/nonexistent", "", NULL};
    static const char *const names[] = {"cpu", "test-best", "cpu", "cpu", "cpu"};
    for (int i = 0; i < 5; i++) {
        kiln_context *context;
        kiln_context_options options = options_for(paths[i], NULL);
        kiln_device_info info = {.struct_size = sizeof info};
        ck_assert_msg(kiln_context_create(&context, &options) == KILN_OK, "%s", kiln_last_error());
        ck_assert_int_eq(kiln_context_info(context, &info), KILN_OK);
        ck_assert_str_eq(info.backend, names[i]);
        kiln_context_destroy(context);
    }
}
END_TEST

/* KILN_BACKEND_PATH: several folders, empty ones between; and what is only in the current directory is not found. */
START_TEST(environment_path)
{
    list(NULL);
    ck_assert_ptr_null(find("test"));
    ck_assert_int_eq(chdir(PLUGIN_DIR), 0);
    setenv("KILN_BACKEND_PATH", "", 1);
    list(NULL);
    ck_assert_ptr_null(find("test"));
    setenv("KILN_BACKEND_PATH", "::", 1);
    list("");
    ck_assert_ptr_null(find("test"));
    setenv("KILN_BACKEND_PATH", "/nonexistent::" PLUGIN_BEST_DIR ":" PLUGIN_DIR, 1);
    list(NULL);
    ck_assert(find("test") && find("test-best"));
    unsetenv("KILN_BACKEND_PATH");
}
END_TEST

START_TEST(bad_calls)
{
    kiln_context_options options = {.struct_size = 3};
    ck_assert_int_eq(kiln_backend_list(NULL, NULL, NULL), KILN_INVALID_ARGUMENT);
    ck_assert_int_eq(kiln_backend_list(&options, visit, found), KILN_VERSION_MISMATCH);
    found_count = 0;
    ck_assert_int_eq(kiln_backend_list(NULL, visit, found), KILN_OK);
    ck_assert_ptr_nonnull(find("cpu"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("registry");
    TCase *t = test_tcase(s, "registry");
    tcase_add_test(t, everything_is_listed);
    tcase_add_test(t, named_but_unavailable_is_an_error);
    tcase_add_test(t, good_plugin_works);
    tcase_add_test(t, only_what_the_choice_needs_is_asked);
    tcase_add_test(t, auto_takes_the_best);
    tcase_add_test(t, environment_path);
    tcase_add_test(t, bad_calls);
    return test_main(s);
}
