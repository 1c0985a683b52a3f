/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* problems.c: see problems.h. Each problem takes about a millisecond. */
#include "problems.h"

static const attention_case forward_cases[] = {
    {.batch = 2,
     .heads = 4,
     .heads_k = 2,
     .seqlen_q = 70,
     .seqlen_k = 150,
     .d = 40,
     .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
    {.batch = 2,
     .heads = 2,
     .seqlen_q = 33,
     .seqlen_k = 90,
     .d = 64,
     .type = KILN_BFLOAT16,
     .bias = true,
     .sinks = true,
     .alibi = 1,
     .q_strides = STRIDES_SEQ_FIRST,
     .k_strides = STRIDES_TRANSPOSED,
     .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT,
     .window_left = 50,
     .window_right = 3},
    {.batch = 4,
     .heads = 2,
     .seqlen_q = 60,
     .seqlen_k = 150,
     .d = 24,
     .type = KILN_FLOAT16,
     .packed_q = true,
     .packed_k = true,
     .dropout_p = 0.1f},
    {.batch = 4,
     .heads = 8,
     .heads_k = 2,
     .seqlen_q = 1,
     .seqlen_k = 700,
     .d = 64,
     .type = KILN_FLOAT16,
     .used_k = true,
     .page_size = 16},
    {.seqlen_q = 5, .seqlen_k = 40, .d = 300, .values = VALUES_POISON, .mask_len = 30},
    {.heads = 8,
     .heads_k = 8,
     .seqlen_q = 100,
     .seqlen_k = 150,
     .d = 40,
     .type = KILN_BFLOAT16,
     .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
};
static const char *const forward_names[] = {"dense causal", "modifiers", "packed",
                                            "paged decode", "poison",    "bf16 causal"};
enum { FORWARD_CASES = sizeof forward_cases / sizeof *forward_cases };

static const softmax_case softmax_cases[] = {
    {.rank = 2, .shape = {37, 300}},
    {.rank = 3, .shape = {3, 2, 9000}, .type = KILN_BFLOAT16, .log = true, .in_strides = STRIDES_PADDED},
};

static const gradients_case backward_case = {.forward = {.batch = 2,
                                                         .heads = 4,
                                                         .heads_k = 2,
                                                         .seqlen_q = 40,
                                                         .seqlen_k = 90,
                                                         .d = 32,
                                                         .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT,
                                                         .bias = true,
                                                         .sinks = true},
                                             .dlse = true};
static const merge_case a_merge = {
    .batch = 2, .heads = 3, .seqlen_q = 50, .d_v = 64, .parts = PROBLEM_PARTS, .sinks = true};

static problem *make(const char *name, kiln_op op, size_t args_bytes)
{
    problem *p = test_alloc(sizeof *p);
    p->name = name;
    p->op = op;
    p->args_bytes = args_bytes;
    p->end = test_tensors();
    return p;
}

/* All tensors made since make() are the problem's. */
static problem *made(problem *p)
{
    p->first = test_tensors();
    return p;
}

problem *problem_softmax(kiln_op op, const softmax_case *description)
{
    bool forward = op == KILN_OP_SOFTMAX_FORWARD;
    problem *p = make(forward ? "softmax_forward" : "softmax_backward", op,
                      forward ? sizeof p->args.softmax_forward : sizeof p->args.softmax_backward);
    const test_softmax *s = test_softmax_new(op, description);
    uint64_t flags = s->c.log ? KILN_FLAG_LOG : 0;
    if (forward)
        p->args.softmax_forward = (kiln_softmax_forward_args){.struct_size = p->args_bytes,
                                                              .x = test_device(s->in),
                                                              .y = test_device(s->out),
                                                              .lse = test_device(s->lse),
                                                              .flags = flags};
    else
        p->args.softmax_backward = (kiln_softmax_backward_args){.struct_size = p->args_bytes,
                                                                .y = test_device(s->in),
                                                                .dy = test_device(s->grad),
                                                                .dx = test_device(s->out),
                                                                .flags = flags};
    return made(p);
}

problem *problem_forward(const char *name, const attention_case *description)
{
    problem *p = make(name, KILN_OP_ATTENTION_FORWARD, sizeof p->args.attention_forward);
    p->args.attention_forward = test_attention_new(description)->args;
    return made(p);
}

problem *problem_backward(const gradients_case *description)
{
    problem *p = make("attention_backward", KILN_OP_ATTENTION_BACKWARD, sizeof p->args.attention_backward);
    p->args.attention_backward = test_gradients_new(description)->args;
    return made(p);
}

problem *problem_merge(const merge_case *description)
{
    problem *p = make("attention_merge", KILN_OP_ATTENTION_MERGE, sizeof p->args.attention_merge);
    const test_merge *m = test_merge_new(description);
    ck_assert_int_le(description->parts, PROBLEM_PARTS);
    for (int i = 0; i < description->parts; i++) {
        p->o_parts[i] = test_device(m->o_part[i]);
        p->lse_parts[i] = test_device(m->lse_part[i]);
    }
    p->args.attention_merge = (kiln_attention_merge_args){.struct_size = p->args_bytes,
                                                          .o_parts = p->o_parts,
                                                          .lse_parts = p->lse_parts,
                                                          .o = test_device(m->o),
                                                          .softmax_lse = test_device(m->lse),
                                                          .sinks = test_device(m->sinks),
                                                          .num_parts = description->parts};
    return made(p);
}

problem *problem_new(int kind)
{
    switch (kind - FORWARD_CASES) {
    case 0:
    case 1: return problem_softmax(KILN_OP_SOFTMAX_FORWARD, &softmax_cases[kind - FORWARD_CASES]);
    case 2: return problem_softmax(KILN_OP_SOFTMAX_BACKWARD, &softmax_cases[0]);
    case 3: return problem_backward(&backward_case);
    case 4: return problem_merge(&a_merge);
    default: return problem_forward(forward_names[kind], &forward_cases[kind]);
    }
}
_Static_assert(PROBLEM_KINDS == FORWARD_CASES + 5, "every kind has a number");

void problem_reset(problem *p)
{
    for (test_tensor *t = p->first; t != p->end; t = t->next)
        if (t->bytes)
            memcpy(t->memory, t->image, t->bytes);
}

const char *problem_run(problem *p, kiln_context *context)
{
    size_t bytes = 0;
    problem_reset(p);
    if (test_workspace(p->op, context, &p->args, &bytes) != KILN_OK)
        return kiln_last_error();
    void *workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
    if (!workspace)
        return "the test itself is out of memory";
    memset(workspace, 0xff, bytes);
    kiln_status status = test_call(p->op, context, &p->args, workspace, bytes);
    free(workspace);
    return status == KILN_OK ? NULL : kiln_last_error();
}

bool problem_equal(const problem *a, const problem *b)
{
    const test_tensor *t = a->first, *u = b->first;
    for (; t != a->end && u != b->end; t = t->next, u = u->next)
        if (t->bytes != u->bytes || (t->bytes && memcmp(t->memory, u->memory, t->bytes) != 0))
            return false;
    return t == a->end && u == b->end;
}

void problem_references(problem *right[PROBLEM_KINDS])
{
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        right[kind] = problem_new(kind);
        const char *failure = problem_run(right[kind], test_context());
        TEST_REQUIRE(!failure, "%s: %s", right[kind]->name, failure);
    }
}

void problem_check_all(kiln_context *context, problem *right[PROBLEM_KINDS], const char *what)
{
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        problem *p = problem_new(kind);
        const char *failure = problem_run(p, context);
        TEST_REQUIRE(!failure, "%s: %s: %s", what, p->name, failure);
        TEST_REQUIRE(problem_equal(p, right[kind]), "%s: %s has other bits", what, p->name);
    }
}
