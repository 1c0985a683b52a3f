/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_folders.c: plug-in folders full of what should not be there. Nothing of it is fatal, everything that is named
 * like a plug-in is listed with a reason, and the current directory is never searched by itself.
 */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/fixture.h"

static char folder[] = "/tmp/kiln_folders_XXXXXX";

static void make_folder(void)
{
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static void remove_folder(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static char *in_folder(const char *name)
{
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

/* The good plug-in of tests/unit. */
static unsigned char *read_good(size_t *bytes)
{
    FILE *file = fopen(PLUGIN_DIR "/kiln_good.so", "rb");
    ck_assert(file && fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    unsigned char *data = test_alloc((size_t)size);
    rewind(file);
    ck_assert_int_eq(fread(data, 1, (size_t)size, file), size);
    fclose(file);
    *bytes = (size_t)size;
    return data;
}

typedef struct seen {
    int all, cpu, good, unavailable, without_reason;
    const char *wanted; /* file name */
    char reason[512];   /* of `wanted`; "-" = not listed */
} seen;

static void visit(void *user, const kiln_backend_info *info)
{
    seen *s = user;
    s->all++;
    s->cpu += strcmp(info->name, "cpu") == 0 && info->available;
    s->good += strcmp(info->name, "test") == 0 && info->available;
    s->unavailable += !info->available;
    s->without_reason += !info->available && !info->reason[0];
    if (s->wanted && strcmp(info->name, s->wanted) == 0)
        snprintf(s->reason, sizeof s->reason, "%s", info->reason);
}

static seen look(const char *path, const char *wanted)
{
    seen s = {.wanted = wanted, .reason = "-"};
    kiln_context_options options = {.struct_size = sizeof options, .plugin_path = path};
    TEST_REQUIRE(kiln_backend_list(&options, visit, &s) == KILN_OK, "%s: %s", path ? path : "NULL", kiln_last_error());
    TEST_REQUIRE(s.cpu == 1 && s.without_reason == 0, "%s: cpu is there %d times, %d lack a reason",
                 path ? path : "NULL", s.cpu, s.without_reason);
    return s;
}

static void expect_reason(const char *wanted, const char *word)
{
    seen s = look(folder, wanted);
    TEST_REQUIRE(strstr(s.reason, word), "the reason of %s lacks '%s': %s", wanted, word, s.reason);
    kiln_context *context; /* and a context is made all the same */
    kiln_context_options options = {.struct_size = sizeof options, .plugin_path = folder};
    TEST_REQUIRE(kiln_context_create(&context, &options) == KILN_OK, "%s: %s", wanted, kiln_last_error());
    kiln_context_destroy(context);
}

START_TEST(junk)
{
    test_seed(1);
    for (int i = 0; i < 100; i++) {
        char name[32];
        unsigned char data[2000];
        snprintf(name, sizeof name, "kiln_junk%d.so", i);
        for (size_t b = 0; b < sizeof data; b++)
            data[b] = (unsigned char)test_integer(256);
        if (i % 2)
            memcpy(data, "\177ELF\2\1\1", 8); /* begins as it should */
        write_file(in_folder(name), data, sizeof data / 100 * (size_t)i);
    }
    seen s = look(folder, "kiln_junk1.so");
    ck_assert_int_ge(s.unavailable, 100);
    ck_assert_int_eq(look(folder, NULL).all, s.all);
    expect_reason("kiln_junk99.so", "could not be loaded");
}
END_TEST

START_TEST(not_a_file)
{
    ck_assert_int_eq(mkdir(in_folder("kiln_folder.so"), 0700), 0);
    expect_reason("kiln_folder.so", "not a file");
    ck_assert_int_eq(mkfifo(in_folder("kiln_pipe.so"), 0600), 0);
    expect_reason("kiln_pipe.so", "not a file");
    ck_assert_int_eq(symlink("/dev/zero", in_folder("kiln_device.so")), 0);
    expect_reason("kiln_device.so", "not a file");
    ck_assert_int_eq(symlink(in_folder("kiln_loop.so"), in_folder("kiln_loop.so")), 0);
    expect_reason("kiln_loop.so", "could not be loaded");
    ck_assert_int_eq(symlink("/nonexistent", in_folder("kiln_dangling.so")), 0);
    expect_reason("kiln_dangling.so", "could not be loaded");
}
END_TEST

START_TEST(not_readable)
{
    size_t bytes;
    const unsigned char *good = read_good(&bytes);
    write_file(in_folder("kiln_secret.so"), good, bytes);
    ck_assert_int_eq(chmod(in_folder("kiln_secret.so"), 0), 0);
    if (access(in_folder("kiln_secret.so"), R_OK) == 0) { /* root reads everything: try as somebody else */
        ck_assert_int_eq(chmod(folder, 0755), 0);
        if (seteuid(65534) != 0) {
            printf("skipped: root cannot become another user here\n");
            return;
        }
    }
    expect_reason("kiln_secret.so", "could not be loaded");
    if (geteuid() == 65534)
        ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(folder, 0), 0);
    look(folder, NULL);
    ck_assert_int_eq(chmod(folder, 0700), 0);
}
END_TEST

/* A good plug-in whose end is missing, at every tenth. */
START_TEST(cut_short)
{
    size_t bytes;
    const unsigned char *good = read_good(&bytes);
    for (int tenth = 0; tenth < 10; tenth++) {
        char name[32];
        snprintf(name, sizeof name, "kiln_cut%d.so", tenth);
        write_file(in_folder(name), good, bytes * (size_t)tenth / 10);
    }
    expect_reason("kiln_cut1.so", "cut short");
    expect_reason("kiln_cut2.so", "cut short");
    write_file(in_folder("kiln_whole.so"), good, bytes);
    ck_assert_int_ge(look(folder, NULL).good, 1);
}
END_TEST

/* Odd names, and a path as long as paths get. */
START_TEST(names)
{
    size_t bytes;
    char name[256], path[5000];
    const unsigned char *good = read_good(&bytes);
    memset(name, 'x', 255);
    memcpy(name, "kiln_", 5);
    memcpy(name + 252, ".so", 4);
    write_file(in_folder(name), "", 0);
    write_file(in_folder("kiln_%s%n%s.so"), "", 0);
    write_file(in_folder("kiln_\n\033[31m.so"), "", 0);
    write_file(in_folder("kiln_.so"), good, bytes); /* has no name: not a plug-in */
    write_file(in_folder("libkiln_good.so"), good, bytes);
    write_file(in_folder("kiln_good.so.1"), good, bytes);
    seen s = look(folder, name);
    ck_assert_int_ne(s.reason[0], '-');
    ck_assert_int_eq(s.good, 0);
    expect_reason("kiln_%s%n%s.so", "kiln_%s%n%s.so");
    memset(path, '/', sizeof path);
    path[sizeof path - 1] = '\0';
    look(path, NULL);
    memset(path + 1, 'a', sizeof path - 2);
    look(path, NULL);
    setenv("KILN_BACKEND_PATH", path, 1);
    look(NULL, NULL);
    unsetenv("KILN_BACKEND_PATH");
}
END_TEST

/* What lies in the current directory is not found by empty, relative or odd parts of KILN_BACKEND_PATH. */
START_TEST(current_directory)
{
    static const char *const paths[] = {"",        ":",         "::::",      ".", "./", "..",
                                        "plugins", ":plugins:", "./plugins", "~", " "};
    size_t bytes;
    const unsigned char *good = read_good(&bytes);
    write_file(in_folder("kiln_here.so"), good, bytes);
    ck_assert_int_eq(mkdir(in_folder("plugins"), 0700), 0);
    write_file(in_folder("plugins/kiln_below.so"), good, bytes);
    ck_assert_int_eq(chdir(in_folder("plugins")), 0);
    for (int below = 1; below >= 0; below--) {
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
            setenv("KILN_BACKEND_PATH", paths[i], 1);
            TEST_REQUIRE(look(NULL, NULL).good == 0, "KILN_BACKEND_PATH=%s finds what is here", paths[i]);
            TEST_REQUIRE(look("", NULL).good == 0, "an empty plugin_path finds what is here");
        }
        ck_assert_int_eq(chdir(folder), 0);
    }
    char list[1100];
    snprintf(list, sizeof list, ":.:%s:", folder); /* among all that, the absolute one counts */
    setenv("KILN_BACKEND_PATH", list, 1);
    ck_assert_int_eq(look(NULL, NULL).good, 1);
    unsetenv("KILN_BACKEND_PATH");
}
END_TEST

/* Files that come and go between two looks. */
START_TEST(changing)
{
    size_t bytes;
    const unsigned char *good = read_good(&bytes);
    ck_assert_int_eq(look(folder, NULL).good, 0);
    write_file(in_folder("kiln_new.so"), good, bytes);
    ck_assert_int_eq(look(folder, NULL).good, 1);
    kiln_context *context;
    kiln_context_options options = {.struct_size = sizeof options, .backend = "test", .plugin_path = folder};
    ck_assert_int_eq(kiln_context_create(&context, &options), KILN_OK);
    ck_assert_int_eq(remove(in_folder("kiln_new.so")), 0);
    ck_assert_int_eq(look(folder, NULL).good, 0);
    kiln_device_info info = {.struct_size = sizeof info}; /* what is loaded stays usable */
    ck_assert_int_eq(kiln_context_info(context, &info), KILN_OK);
    ck_assert_str_eq(info.backend, "test");
    kiln_context_destroy(context);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("folders");
    TCase *t = test_tcase(s, "folders");
    tcase_add_checked_fixture(t, make_folder, remove_folder);
    tcase_add_test(t, junk);
    tcase_add_test(t, not_a_file);
    tcase_add_test(t, not_readable);
    tcase_add_test(t, cut_short);
    tcase_add_test(t, names);
    tcase_add_test(t, current_directory);
    tcase_add_test(t, changing);
    return test_main(s);
}
