/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_problem_string.c: bytes as a problem string. A refusal has a place inside the text and a sentence. What is accepted
 * prints to a line that parses to the same line, into buffers of any size; what is small builds, with every element inside
 * its storage, or says why not.
 */
#include <string.h>

#include "../../bench/problem.h"
#include "../../common/convert.h"
#include "fuzz.h"

enum { BUILD_LIMIT = 1 << 20, BUILD_DIMENSION = 64, BUILD_WORK = 1 << 16 };

/* Building fills element by element; strides of 0 make problems large that need little memory. */
static bool is_small(const problem_spec *s)
{
    const int64_t sizes[] = {s->batch,     s->heads,       s->heads_k,  s->seqlen_q, s->seqlen_k,
                             s->d,         s->d_v,         s->d2,       s->n,        s->cache_batch,
                             s->page_size, s->spare_pages, s->pack_gap, s->mask_len, s->parts};
    double score = 1, rows = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > BUILD_DIMENSION)
            return false;
    for (int i = 0; i < s->outer_rank; i++)
        rows *= (double)s->outer[i];
    score = (double)s->batch * (double)s->heads * (double)s->seqlen_q * (double)s->seqlen_k;
    rows *= (double)s->n;
    return score <= BUILD_WORK && rows <= BUILD_WORK;
}

static void check_tensor(const problem_data *data, const problem_tensor *t)
{
    int64_t size = kiln_type_size(t->type), low = t->origin, high = t->origin;
    for (int axis = 0; axis < t->ndim; axis++) {
        if (t->shape[axis] <= 0)
            return;
        int64_t reach = (t->shape[axis] - 1) * t->stride[axis];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    size_t bytes = data->tensor[t->home].bytes;
    FUZZ_REQUIRE(low >= 0 && (uint64_t)(high + 1) * (uint64_t)size <= bytes, "an element outside the storage");
}

static void build(const problem_spec *spec)
{
    static problem_call call;
    static problem_data data;
    char why[256] = "";
    if (!problem_build(spec, BUILD_LIMIT, &data, why, sizeof why)) {
        FUZZ_REQUIRE(why[0] != '\0', "a refusal without a sentence");
        return;
    }
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (data.tensor[slot].present)
            check_tensor(&data, &data.tensor[slot]);
    problem_call_init(&call, &data, (kiln_device){KILN_DEVICE_CPU, 0}, NULL);
    FUZZ_REQUIRE(problem_call_args(&call) != NULL, "no argument struct");
    problem_reset_outputs(&data);
    problem_free(&data);
}

static void round_trip(const problem_spec *spec)
{
    static problem_spec again;
    problem_error error;
    size_t length = problem_print(spec, NULL, 0);
    char *line = malloc(length + 1), *second = malloc(length + 1), *cut = malloc(length / 2 + 1);
    FUZZ_REQUIRE(line != NULL && second != NULL && cut != NULL, "out of memory");
    FUZZ_REQUIRE(problem_print(spec, line, length + 1) == length && strlen(line) == length, "%s", line);
    FUZZ_REQUIRE(problem_print(spec, cut, length / 2 + 1) == length && strncmp(cut, line, length / 2) == 0 &&
                     cut[length / 2] == '\0',
                 "%s: cut to %s", line, cut);
    FUZZ_REQUIRE(problem_parse(line, KILN_OP_ATTENTION_FORWARD, &again, &error), "%s: %s", line, error.message);
    FUZZ_REQUIRE(problem_print(&again, second, length + 1) == length && strcmp(line, second) == 0, "%s != %s", line,
                 second);
    free(line);
    free(second);
    free(cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static problem_spec spec;
    problem_error error;
    char *text = malloc(size + 1);
    FUZZ_REQUIRE(text != NULL, "out of memory");
    memcpy(text, bytes, size);
    text[size] = '\0';
    memset(&error, 0x5A, sizeof error);
    if (problem_parse(text, KILN_OP_ATTENTION_FORWARD, &spec, &error)) {
        round_trip(&spec);
        if (is_small(&spec))
            build(&spec);
    } else {
        FUZZ_REQUIRE(error.position >= 0 && (size_t)error.position <= strlen(text), "position %d", error.position);
        FUZZ_REQUIRE(error.message[0] != '\0' && memchr(error.message, '\0', sizeof error.message) != NULL,
                     "no sentence");
    }
    free(text);
    return 0;
}
