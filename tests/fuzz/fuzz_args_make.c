/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_args_make.c: bytes -> problem. The options come from the table that the parser of problem strings has, so a new one is
 * fuzzed as soon as it is there. The problem passes through its text: what the parser refuses is not built.
 */
#include <string.h>

#include "../../bench/problem_keys.h"
#include "fuzz_args.h"

enum { BUILD_LIMIT = 1 << 17, OPTIONS_MAX = 8, BUILD_WORK = 1 << 17 /* products */ };

uint8_t input_byte(input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

size_t input_below(input *in, size_t count)
{
    return input_byte(in) % count;
}

int64_t input_number(input *in)
{
    static const int64_t special[] = {INT64_MAX,
                                      INT64_MIN,
                                      INT32_MAX,
                                      INT32_MIN,
                                      INT64_C(1) << 31,
                                      INT64_C(1) << 32,
                                      INT64_C(1) << 62,
                                      INT64_MAX - 1,
                                      1000,
                                      65536,
                                      255,
                                      256,
                                      576,
                                      577,
                                      1024,
                                      1025};
    uint8_t byte = input_byte(in);
    return byte < 192 ? byte % 24 - 4 : special[byte % 16];
}

static double input_double(input *in)
{
    static const double special[] = {0, 1, -1, 0.5, 30, 1e-30, 1e30, 1e-45, 0.1, 0.999, 3e38, 0.002};
    return special[input_below(in, 12)];
}

static void make_list(input *in, problem_list *list)
{
    list->kind = (int32_t)input_below(in, LIST_GIVEN + 1);
    list->count = list->kind == LIST_GIVEN ? 1 + (int32_t)input_below(in, 4) : 0;
    for (int i = 0; i < list->count; i++)
        list->value[i] = input_number(in);
}

static void set_option(input *in, problem_spec *spec)
{
    static const char *const algorithms[] = {"",           "naive",  "tiled", "flash1", "flash2", "splitkv",
                                             "three_pass", "online", "mma",   "mfma",   "nothing"};
    const problem_key *key = &problem_keys[input_below(in, problem_key_count)];
    void *field = (char *)spec + key->offset;
    size_t names = 0;
    if (!(key->ops & 1 << spec->op))
        return;
    switch (key->kind) {
    case KEY_INT: *(int64_t *)field = input_number(in); break;
    case KEY_UINT: *(uint64_t *)field = (uint64_t)input_number(in); break;
    case KEY_DOUBLE: *(double *)field = input_double(in); break;
    case KEY_SWITCH: *(int32_t *)field = (int32_t)input_below(in, 2); break;
    case KEY_NAME:
        while (key->names[names] != NULL)
            names++;
        *(int32_t *)field = (int32_t)input_below(in, names);
        break;
    case KEY_TYPE: {
        static const int32_t types[] = {0, KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16, KILN_FLOAT64, KILN_INT8};
        *(int32_t *)field = types[input_below(in, 6)];
        break;
    }
    case KEY_AXES: *(int32_t *)field = AXES_PRESENT | (int32_t)input_below(in, 16); break;
    case KEY_LIST: make_list(in, field); break;
    case KEY_FLAGS: *(uint64_t *)field = input_byte(in); break;
    case KEY_TEXT: snprintf(spec->algorithm, sizeof spec->algorithm, "%s", algorithms[input_below(in, 10)]); break;
    case KEY_KEEP:
        spec->keep = (int32_t)input_below(in, KEEP_COUNT);
        spec->keep_density = 0.5;
        break;
    }
}

static void make_shape(input *in, problem_spec *s)
{
    static const uint8_t size[] = {1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 65, 0};
    static const int32_t types[] = {KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16};
    size_t type = input_below(in, 32);
    s->type = type == 31 ? KILN_FLOAT64 : type == 30 ? KILN_INT8 : types[type % 3];
    s->batch = size[input_below(in, 4)];
    s->heads_k = 1 + (int64_t)input_below(in, 2);
    s->heads = s->heads_k * (1 + (int64_t)input_below(in, 3));
    s->seqlen_q = size[input_below(in, 12)];
    s->seqlen_k = size[input_below(in, 12)];
    s->d = size[input_below(in, 11)];
    s->d_v = input_below(in, 2) ? size[input_below(in, 11)] : s->d;
    s->d2 = input_below(in, 8) == 7 ? size[input_below(in, 11)] : 0;
    if (1 << s->op & FOR_MERGE)
        s->heads_k = s->heads, s->seqlen_k = s->seqlen_q, s->d_v = s->d, s->d2 = 0;
    if (1 << s->op & FOR_SOFTMAX) {
        s->n = s->seqlen_k;
        s->outer_rank = (int32_t)input_below(in, 4);
        for (int i = 0; i < s->outer_rank; i++)
            s->outer[i] = size[input_below(in, 6)];
    }
    s->mask = 1 << s->op & FOR_ATTENTION ? (int32_t)input_below(in, 5) : 0;
    if (s->mask >= KILN_MASK_WINDOW_TOP_LEFT)
        s->window_left = input_number(in), s->window_right = input_number(in);
}

bool make_problem(input *in, problem_data *data)
{
    static problem_spec spec;
    static char line[PROBLEM_TEXT_MAX];
    problem_error error;
    char why[256];
    spec = problem_default((kiln_op)input_below(in, KILN_OP_COUNT));
    make_shape(in, &spec);
    for (size_t n = input_below(in, OPTIONS_MAX); n > 0; n--)
        set_option(in, &spec);
    double columns = (double)(spec.d + spec.d_v + spec.d2 + 8);
    if ((double)spec.batch * (double)spec.heads * (double)spec.seqlen_q * (double)spec.seqlen_k * columns > BUILD_WORK)
        return false;
    problem_print(&spec, line, sizeof line);
    return problem_parse(line, spec.op, &spec, &error) && problem_build(&spec, BUILD_LIMIT, data, why, sizeof why);
}
