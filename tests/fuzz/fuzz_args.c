/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_args.c: any arguments, on the CPU backend. The rules of kiln.h that hold for all of them:
 *  - supported, workspace and prepare say the same; a refusal has a sentence; `why` is never written past its cap;
 *  - the call accepts nothing that supported refuses; what supported accepts it refuses for contents only, and then what
 *    problem_build() made as it is accepted or its lengths are wrong;
 *  - a call that is refused has written nothing, one that is accepted has not written an input or outside its workspace.
 * Reads and writes outside the tensors are for AddressSanitizer to find.
 */
#include <string.h>

#include "../support/fixture.h"
#include "fuzz_args.h"

enum { WORKSPACE_MAX = 1 << 24, PATTERN = 0xA5, GUARD = 64 };

static kiln_context *open_context(int32_t threads)
{
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu", .max_threads = threads};
    kiln_context *context;
    FUZZ_REQUIRE(kiln_context_create(&context, &options) == KILN_OK, "%s", kiln_last_error());
    return context;
}

#if defined(__SANITIZE_ADDRESS__)
#define FUZZ_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_POISONS 1
#endif
#endif
#ifdef FUZZ_POISONS
#include <sanitizer/asan_interface.h>
#endif

/* Lets AddressSanitizer treat the guards at both ends of every storage as memory of nobody, or ends that. */
static void poison_guards(const problem_data *data, bool on)
{
#ifdef FUZZ_POISONS
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        const problem_tensor *t = &data->tensor[slot];
        for (int end = 0; t->storage != NULL && end < 2; end++) {
            char *guard = end ? t->storage + t->bytes - PROBLEM_GUARD : t->storage;
            if (on)
                __asan_poison_memory_region(guard, PROBLEM_GUARD);
            else
                __asan_unpoison_memory_region(guard, PROBLEM_GUARD);
        }
    }
#else
    (void)data;
    (void)on;
#endif
}

/* Copies of all storages, to tell what a call wrote. */
typedef struct snapshot {
    char *storage[SLOT_COUNT];
} snapshot;

static snapshot take_snapshot(const problem_data *data)
{
    snapshot s = {{NULL}};
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (data->tensor[slot].storage != NULL) {
            s.storage[slot] = malloc(data->tensor[slot].bytes);
            FUZZ_REQUIRE(s.storage[slot] != NULL, "out of memory");
            memcpy(s.storage[slot], data->tensor[slot].storage, data->tensor[slot].bytes);
        }
    return s;
}

static void check_unwritten(const snapshot *s, const problem_data *data, bool outputs, const char *after)
{
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        const problem_tensor *t = &data->tensor[slot];
        if (t->storage != NULL && (outputs || !t->output))
            FUZZ_REQUIRE(memcmp(s->storage[slot], t->storage, t->bytes) == 0, "%s was written by a call that %s",
                         problem_slot_name((problem_slot)slot), after);
    }
}

static void free_snapshot(snapshot *s)
{
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        free(s->storage[slot]);
}

static bool has_lengths(const problem_data *data)
{
    for (int slot = SLOT_CU_SEQLENS_Q; slot <= SLOT_CACHE_BATCH_IDX; slot++)
        if (data->tensor[slot].present)
            return true;
    return false;
}

/* `why` in a buffer of exactly `cap` bytes. */
static kiln_status ask(const call_args *a, const kiln_context *context, size_t cap)
{
    char *why = malloc(cap > 0 ? cap : 1);
    FUZZ_REQUIRE(why != NULL, "out of memory");
    kiln_status status = test_supported(a->op, context, a->args, why, cap);
    FUZZ_REQUIRE(cap == 0 || memchr(why, '\0', cap) != NULL, "`why` has no end");
    FUZZ_REQUIRE(status == KILN_OK || kiln_last_error()[0] != '\0', "%s without a sentence", kiln_status_name(status));
    free(why);
    return status;
}

static void make_call(const call_args *a, kiln_context *context, const problem_data *data, kiln_status expected,
                      size_t bytes)
{
    void *memory = NULL;
    if (bytes > WORKSPACE_MAX)
        return; /* only what lacks its data is as large */
    FUZZ_REQUIRE(posix_memalign(&memory, 256, bytes + GUARD) == 0, "out of memory");
    char *workspace = memory;
    memset(workspace, PATTERN, bytes + GUARD);
    snapshot before = take_snapshot(data);
    if (expected == KILN_OK && bytes > 0) {
        FUZZ_REQUIRE(test_call(a->op, context, a->args, workspace, bytes - 1) != KILN_OK, "a workspace too small");
        FUZZ_REQUIRE(test_call(a->op, context, a->args, NULL, bytes) != KILN_OK, "no workspace");
        FUZZ_REQUIRE(test_call(a->op, context, a->args, workspace + 8, bytes) != KILN_OK, "a workspace not aligned");
        check_unwritten(&before, data, true, "had no good workspace");
    }
    poison_guards(data, !a->moved);
    kiln_status status = test_call(a->op, context, a->args, bytes > 0 ? workspace : NULL, bytes);
    poison_guards(data, false);
    if (status != KILN_OK) {
        check_unwritten(&before, data, true, "was refused");
        FUZZ_REQUIRE(kiln_last_error()[0] != '\0', "%s without a sentence", kiln_status_name(status));
        FUZZ_REQUIRE(expected != KILN_OK || status == KILN_INVALID_ARGUMENT, "supported accepts, the call says %s: %s",
                     kiln_status_name(status), kiln_last_error());
        FUZZ_REQUIRE(expected != KILN_OK || a->spoiled || !a->complete || has_lengths(data),
                     "supported accepts, the call does not: %s", kiln_last_error());
    } else {
        FUZZ_REQUIRE(expected == KILN_OK, "the call accepts what supported refuses");
        if (!a->spoiled)
            check_unwritten(&before, data, false, "was accepted");
    }
    for (int i = 0; i < GUARD; i++)
        FUZZ_REQUIRE(workspace[bytes + (size_t)i] == (char)PATTERN, "written past the workspace of %zu bytes", bytes);
    free_snapshot(&before);
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static kiln_context *contexts[2];
    static problem_data data;
    static problem_call call;
    static call_args a;
    input in = {bytes, size};
    for (int i = 0; i < 2; i++)
        if (contexts[i] == NULL)
            contexts[i] = open_context(i + 1);
    kiln_context *context = contexts[input_below(&in, 16) == 15]; /* starting threads takes longer than the calls */
    size_t cap = input_byte(&in), needed = 0;
    if (!make_problem(&in, &data))
        return 0;
    problem_call_init(&call, &data, kiln_context_device(context), NULL);
    call_args_make(&a, &in, &call, &data);

    kiln_status expected = ask(&a, context, cap);
    kiln_status status = test_workspace(a.op, context, a.args, &needed);
    FUZZ_REQUIRE(status == expected, "supported says %s, workspace %s", kiln_status_name(expected),
                 kiln_status_name(status));
    status = test_prepare(a.op, context, a.args);
    FUZZ_REQUIRE(status == expected, "supported says %s, prepare %s", kiln_status_name(expected),
                 kiln_status_name(status));
    make_call(&a, context, &data, expected, expected == KILN_OK ? needed : 4096);
    call_args_free(&a);
    problem_free(&data);
    return 0;
}
