/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_counters.c: what the emulated devices count when the shipped kernels run.
 *   ledger     the bytes of each rung equal the traffic ledger's formulas, written out here, to the byte: full problems, N a
 *              multiple of the tiles. Distinct bytes of each launch for naive and tiled, requested ones for the others. lse, and
 *              1/l of naive and tiled, on their own
 *   instances  which of a rung's kernels a problem gets, and the matrix operations of `mfma` for few queries: a wave without
 *              queries does none
 *   conflicts  `tiled` and the plain kernels of `mfma` have no bank conflict, its unpadded variant has them, most of them where columns are read
 *   sectors    what `tiled` reads and writes of matrices wastes no byte of a 32-byte sector
 * A rung that the backend lacks is named and skipped, and judged as soon as it is there.
 * KILN_TEST_BACKEND: simt-cuda or simt-hip.
 */
#include <stdio.h>

#include "../../bench/counters.h"
#include "../support/fixture.h"

enum { HEADS = 2 };
static const int32_t types[] = {KILN_FLOAT32, KILN_BFLOAT16};
static const int64_t head_dims[] = {64, 128};

typedef struct counted {
    problem_data data;
    runner owner;
    json_t *launches; /* NULL: the backend has no such rung */
    counters_bytes bytes;
} counted;

static void count(counted *c, const char *algorithm, const char *line)
{
    problem_spec spec;
    problem_error error;
    char why[256];
    test_label("%s --algorithm %s %s", test_backend_name(), algorithm, line);
    memset(c, 0, sizeof *c);
    TEST_REQUIRE(problem_parse(line, KILN_OP_ATTENTION_FORWARD, &spec, &error), "%s", error.message);
    snprintf(spec.algorithm, sizeof spec.algorithm, "%s", algorithm);
    TEST_REQUIRE(problem_build(&spec, 0, &c->data, why, sizeof why), "%s", why);
    kiln_status status = runner_open(&c->owner, test_context(), &c->data);
    if (status != KILN_OK) {
        TEST_REQUIRE(test_refused(status, algorithm, kiln_last_error()), "%s", kiln_last_error());
        printf("skipped: %s has no rung %s for %s\n", test_backend_name(), algorithm, line);
        problem_free(&c->data);
        return;
    }
    c->launches = counters_run(&c->owner, why, sizeof why);
    TEST_REQUIRE(c->launches != NULL, "%s", why);
    TEST_REQUIRE(json_array_size(c->launches) > 0, "nothing was counted");
    c->bytes = counters_bytes_of(c->launches, &c->data, algorithm);
}

static void drop(counted *c)
{
    json_decref(c->launches);
    runner_close(&c->owner);
    problem_free(&c->data);
}

static int64_t member(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static void expect(const char *what, double got, int64_t want)
{
    TEST_REQUIRE(got == (double)want, "%s: counted %.0f, the formula gives %lld (%+.0f)", what, got, (long long)want,
                 got - (double)want);
}

/* ------------------------------------------------------------------------------------------------ ledger */
/* Bytes of one head, N queries and keys, head size d, e bytes an element, tiles of br rows and bc keys. */
typedef int64_t formula(int64_t n, int64_t d, int64_t e, int64_t br, int64_t bc);

enum { E_S = 4, E_O = 4 }; /* of S and P, and of the o that flash1 revisits */

static int64_t in_memory(int64_t n, int64_t d, int64_t e, int64_t br, int64_t bc)
{
    (void)br, (void)bc;
    return 4 * n * d * e + 4 * n * n * E_S;
}

static int64_t keys_outside(int64_t n, int64_t d, int64_t e, int64_t br, int64_t bc)
{
    const int64_t rounds = n / bc;
    (void)br;
    return 2 * n * d * e + rounds * (n * d * e + 2 * n * d * E_O + 16 * n) - (n * d * E_O + 8 * n);
}

static int64_t queries_outside(int64_t n, int64_t d, int64_t e, int64_t br, int64_t bc)
{
    (void)bc;
    return 2 * n * d * e + 2 * n * d * e * (n / br);
}

static const struct rung {
    const char *algorithm;
    int64_t n; /* a multiple of the tiles of all instances */
    formula *bytes;
    bool fp32;
} rungs[] = {
    {"naive", 128, in_memory, true},          {"tiled", 128, in_memory, true},
    {"tiled_unpadded", 128, in_memory, true}, {"flash1", 256, keys_outside, true},
    {"flash2", 256, queries_outside, true},   {"mma", 256, queries_outside, false},
    {"mfma", 256, queries_outside, false},    {"mfma", 64, queries_outside, false},
};
enum { RUNGS = sizeof rungs / sizeof *rungs };

START_TEST(test_ledger)
{
    const struct rung *r = &rungs[_i];
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 2; k++) {
            char line[64];
            counted c;
            const int64_t n = r->n, d = head_dims[k], e = kiln_type_size(types[t]);
            if (e == 4 && !r->fp32)
                continue;
            snprintf(line, sizeof line, "b1h%dq%lldd%lld:%s", HEADS, (long long)n, (long long)d,
                     e == 4 ? "fp32" : "bf16");
            count(&c, r->algorithm, line);
            if (c.launches == NULL)
                return;
            const int64_t br = c.bytes.tile_q, bc = c.bytes.tile_k;
            TEST_REQUIRE(br > 0 && n % br == 0 && bc > 0 && n % bc == 0,
                         "%lld is no multiple of the tiles, %lld x %lld", (long long)n, (long long)br, (long long)bc);
            const int64_t want = HEADS * r->bytes(n, d, e, br, bc);
            expect("the ledger (common/roofline.c)", c.bytes.ledger.matrices, want);
            int64_t more = 0;
            if (r->bytes == queries_outside && strcmp(r->algorithm, "flash2") == 0 && e == 4)
                more = n * d * e *
                       (n / bc - 1); /* on FMA units Q comes again with every tile of keys (its file says so) */
            else if (r->bytes == keys_outside)
                more = n * d * (e - E_O); /* the last round writes o itself */
            expect("bytes of q, k, v, o and what is between", c.bytes.matrices, want + HEADS * more);
            expect("bytes of lse", c.bytes.lse, HEADS * 4 * n);
            expect("bytes of 1/l", c.bytes.factors, r->bytes == in_memory ? HEADS * 8 * n : 0);
            drop(&c);
        }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ instances */
/* `products`: of 16 x 16 numbers 32 deep, that K and V take with every 16 queries or part of them; 0: not judged. */
static const struct instance {
    const char *line, *kernel;
    int64_t products;
} instances[] = {
    {"b1h1q1k64d64:fp16", "attention_forward_mfma_few_f16_64", 16},
    {"b1h1q16k128d64:bf16", "attention_forward_mfma_few_bf16_64", 32},
    {"b1h1q17k96d128:fp16:causal_br", "attention_forward_mfma_few_f16_128", 96},
    {"b1h1q48k96d72:bf16", "attention_forward_mfma_few_bf16_128", 144},
    {"b1h1q64k32d128:bf16", "attention_forward_mfma_few_bf16_128", 64},
    {"b1h1q16k64d200:fp16", "attention_forward_mfma_few_f16_256", 64},
    {"b1h1q65k64d64:fp16", "attention_forward_mfma_f16_64", 0},
    {"b1h1q65k64d200:bf16", "attention_forward_mfma_bf16_256", 0},
    {"b1h1q1k64d64:fp16:flags=batch_invariant", "attention_forward_mfma_f16_64", 0},
    {"b1h1q64k64d128:bf16:flags=batch_invariant", "attention_forward_mfma_bf16_128", 0},
    {"b1h1q1k64d64:fp16:softcap=3", "attention_forward_mfma_few_general_f16_64", 16},
    {"b1h1q33k64d128:bf16:page=16", "attention_forward_mfma_few_general_bf16_128", 96},
    {"b1h1q8k32d256:bf16:dropout=0.5", "attention_forward_mfma_few_general_bf16_256", 32},
    {"b1h1q65k64d64:fp16:softcap=3", "attention_forward_mfma_general_f16_64", 0},
    {"b1h1q1k64d40:fp16:softcap=3:flags=batch_invariant", "attention_forward_mfma_general_f16_64", 0},
};
enum { INSTANCES = sizeof instances / sizeof *instances };

START_TEST(test_instances)
{
    const struct instance *want = &instances[_i];
    counted c;
    count(&c, "mfma", want->line);
    if (c.launches == NULL)
        return;
    const json_t *launch = json_array_get(c.launches, 0);
    const char *kernel = json_string_value(json_object_get(launch, "kernel"));
    TEST_REQUIRE(json_array_size(c.launches) == 1, "it is one launch");
    TEST_REQUIRE(strcmp(kernel, want->kernel) == 0, "%s ran; %s is for it", kernel, want->kernel);
    if (want->products > 0)
        expect("matrix operations", (double)member(launch, "matrix_ops"), want->products);
    if (strstr(kernel, "general") == NULL)
        expect("bank conflicts", (double)member(launch, "bank_conflicts"), 0);
    drop(&c);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ conflicts */
static const char *const shapes[] = {"b1h1q128d64:fp32",           "b1h1q128d64:fp16", "b1h1q128d64:bf16",
                                     "b1h1q64d128:fp32:causal_br", "b1h1q64d128:bf16", "b1h1q100k130d80:fp16"};
enum { SHAPES = sizeof shapes / sizeof *shapes };

START_TEST(test_padded)
{
    counted c;
    count(&c, "tiled", shapes[_i]);
    TEST_REQUIRE(c.launches != NULL, "tiled is everywhere");
    char *lines = json_dumps(json_object_get(json_array_get(c.launches, 0), "conflicts_by_line"), 0);
    TEST_REQUIRE(counters_sum(c.launches, "shared_accesses") > 0, "no access of shared memory was counted");
    TEST_REQUIRE(counters_sum(c.launches, "bank_conflicts") == 0, "%lld bank conflicts in padded tiles: %s",
                 (long long)counters_sum(c.launches, "bank_conflicts"), lines);
    free(lines);
    drop(&c);
}
END_TEST

/* The text of line `number` of a file of backends/gpu. */
static void source_line(const char *file, int number, char *text, size_t cap)
{
    char path[512];
    snprintf(path, sizeof path, "%s/backends/gpu/%s", KILN_TEST_SOURCE_DIR, file);
    FILE *source = fopen(path, "r");
    TEST_REQUIRE(source != NULL, "%s cannot be read", path);
    text[0] = '\0';
    for (int i = 0; i < number && fgets(text, (int)cap, source) != NULL; i++)
        continue;
    fclose(source);
}

START_TEST(test_unpadded)
{
    counted c;
    count(&c, "tiled_unpadded", shapes[_i]);
    TEST_REQUIRE(c.launches != NULL, "tiled_unpadded is everywhere");
    const json_t *scores = json_array_get(c.launches, 0);
    TEST_REQUIRE(2 * member(scores, "bank_conflicts") > member(scores, "shared_phases"),
                 "%lld conflicts in %lld phases: too few for tiles without padding",
                 (long long)member(scores, "bank_conflicts"), (long long)member(scores, "shared_phases"));
    const char *place, *worst = NULL;
    json_t *value;
    json_int_t most = 0;
    json_object_foreach(json_object_get(scores, "conflicts_by_line"), place, value)
    {
        if (json_integer_value(value) > most)
            most = json_integer_value(value), worst = place;
    }
    char file[128] = "", text[512];
    int number = 0;
    TEST_REQUIRE(worst != NULL && sscanf(worst, "%127[^:]:%d", file, &number) == 2, "no line is named");
    TEST_REQUIRE(2 * most > member(scores, "bank_conflicts"), "the worst line has %lld of %lld conflicts",
                 (long long)most, (long long)member(scores, "bank_conflicts"));
    source_line(file, number, text, sizeof text);
    TEST_REQUIRE(strstr(text, "load_bk(") != NULL || strstr(text, "gpu_load<4>(b,") != NULL,
                 "most conflicts come from %s, which reads no column:\n%s", worst, text);
    drop(&c);
}
END_TEST

START_TEST(test_sectors)
{
    counted c;
    size_t i;
    json_t *launch, *tensor;
    const char *name;
    count(&c, "tiled", "b1h1q128d64:bf16");
    json_array_foreach(c.launches, i, launch)
    {
        json_object_foreach(json_object_get(launch, "tensors"), name, tensor)
        {
            const int64_t read = member(tensor, "read"), written = member(tensor, "written");
            if (strstr(name, "lse") != NULL) /* a row's lane 0 alone */
                continue;
            TEST_REQUIRE(32 * member(tensor, "read_sectors") == read, "%s: %lld bytes read in %lld sectors", name,
                         (long long)read, (long long)member(tensor, "read_sectors"));
            TEST_REQUIRE(32 * member(tensor, "written_sectors") == written, "%s: %lld bytes written in %lld sectors",
                         name, (long long)written, (long long)member(tensor, "written_sectors"));
        }
    }
    drop(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("counters");
    TCase *t = test_tcase(s, "ledger");
    tcase_add_loop_test(t, test_ledger, 0, RUNGS);
    t = test_tcase(s, "instances");
    tcase_add_loop_test(t, test_instances, 0, INSTANCES);
    t = test_tcase(s, "conflicts");
    tcase_add_loop_test(t, test_padded, 0, SHAPES);
    tcase_add_loop_test(t, test_unpadded, 0, SHAPES);
    t = test_tcase(s, "sectors");
    tcase_add_test(t, test_sectors);
    return test_main(s);
}
