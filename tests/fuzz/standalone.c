/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * standalone.c: main() for a fuzz target without libFuzzer: gives it every file named on the command line and every file of
 * every folder named there. Any compiler builds it, so the kept corpus is replayed by every test run.
 */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static int replayed;

static void replay_file(const char *path, size_t size)
{
    FILE *from = fopen(path, "rb");
    uint8_t *bytes = malloc(size > 0 ? size : 1); /* exactly as large, so that a sanitizer sees one byte too far */
    FUZZ_REQUIRE(from != NULL && bytes != NULL && fread(bytes, 1, size, from) == size, "%s cannot be read", path);
    fclose(from);
    fprintf(stderr, "%s\n", path); /* the last line tells which one failed */
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    replayed++;
}

static void replay(const char *path)
{
    struct stat about;
    FUZZ_REQUIRE(stat(path, &about) == 0, "%s is not there", path);
    if (!S_ISDIR(about.st_mode)) {
        replay_file(path, (size_t)about.st_size);
        return;
    }
    DIR *folder = opendir(path);
    FUZZ_REQUIRE(folder != NULL, "%s cannot be opened", path);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char file[4096];
        if (entry->d_name[0] != '.' && snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < (int)sizeof file)
            replay(file);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("%d inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}
