/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* softmax.c: see softmax.h. Cost: a few passes over the tensors. */
#include "softmax.h"

#include "../../common/context.h"
#include "../../cpu_ref/oracle.h"

#include <stdio.h>

static void describe(const test_softmax *s)
{
    char shape[128] = "";
    for (int i = 0; i < s->c.rank; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), i ? "x%lld" : "%lld", (long long)s->c.shape[i]);
    test_label("softmax_%s %s type=%d out=%d strides=%s,%s scale=%g%s%s%s%s%s%s spread=%g seed=%llu",
               s->op == KILN_OP_SOFTMAX_FORWARD ? "forward" : "backward", shape, s->c.type, s->c.out_type,
               test_strides_name[s->c.in_strides], test_strides_name[s->c.out_strides], (double)s->c.scale,
               s->c.log ? " log" : "", s->c.no_lse ? " no_lse" : "", s->c.no_y ? " no_y" : "",
               s->c.in_place ? " in_place" : "", s->c.poison ? " poison" : "", s->c.invariant ? " invariant" : "",
               s->c.spread, (unsigned long long)s->c.seed);
}

static double draw(const softmax_case *c, int64_t row, int64_t j)
{
    double x = test_normal() * c->spread;
    if (!c->poison)
        return x;
    switch (row % 6) {
    case 0: return -INFINITY;
    case 1: return j == 0 ? NAN : x;
    case 2: return j == c->shape[c->rank - 1] - 1 ? INFINITY : x;
    case 3: return j % 2 ? -INFINITY : x;
    default: return x;
    }
}

/* Backward's y: a true softmax (or log-softmax) of random numbers, so that it is what a forward call leaves. */
static void fill_probabilities(test_softmax *s)
{
    int64_t n = s->c.shape[s->c.rank - 1];
    double *x = test_alloc((size_t)n * sizeof *x);
    for (int64_t at = 0; n > 0 && at < s->in->count; at += n) {
        double sum = 0, largest = -INFINITY;
        for (int64_t j = 0; j < n; j++) {
            x[j] = s->c.spread * test_normal();
            largest = fmax(largest, x[j]);
        }
        for (int64_t j = 0; j < n; j++)
            sum += exp(x[j] - largest);
        for (int64_t j = 0; j < n; j++)
            test_put(s->in, at + j, s->c.log ? x[j] - largest - log(sum) : exp(x[j] - largest) / sum);
    }
}

test_softmax *test_softmax_new(kiln_op op, const softmax_case *description)
{
    test_softmax *s = test_alloc(sizeof *s);
    softmax_case *c = &s->c;
    *c = *description;
    s->op = op;
    c->type = c->type ? c->type : KILN_FLOAT32;
    c->out_type = c->out_type ? c->out_type : c->type;
    c->spread = c->spread > 0 ? c->spread : 1;
    describe(s);
    test_seed(c->seed + 11);
    int64_t n = c->shape[c->rank - 1];
    s->in = test_tensor_new(c->type, c->rank, c->shape, c->in_strides, c->in_place && op == KILN_OP_SOFTMAX_FORWARD);
    if (op == KILN_OP_SOFTMAX_FORWARD) {
        for (int64_t i = 0; i < s->in->count; i++)
            test_put(s->in, i, draw(c, n ? i / n : 0, n ? i % n : 0));
        s->out = c->in_place ? s->in
                 : c->no_y   ? NULL
                             : test_tensor_new(c->out_type, c->rank, c->shape, c->out_strides, true);
        if (!c->no_lse)
            s->lse = test_tensor_new(KILN_FLOAT32, c->rank > 1 ? c->rank - 1 : 1,
                                     c->rank > 1 ? c->shape : (const int64_t[]){1}, c->out_strides, true);
        return s;
    }
    fill_probabilities(s);
    s->grad = test_tensor_new(c->type, c->rank, c->shape, c->in_strides, c->in_place);
    for (int64_t i = 0; i < s->grad->count; i++)
        test_put(s->grad, i, test_normal());
    s->out = c->in_place ? s->grad : test_tensor_new(c->out_type, c->rank, c->shape, c->out_strides, true);
    return s;
}

static void judge(const test_tensor *t, const char *name, const char *algorithm, const kiln_oracle_output *right)
{
    for (int64_t i = 0; t && i < t->count; i++) {
        double got = test_result(t, i);
        TEST_REQUIRE(kiln_oracle_accepts(got, right->value[i], right->bound[i]),
                     "%s: %s[%lld] is %.9g; right is %.9g, at most %.3g away (it is %.3g away)",
                     test_algorithm_name(algorithm), name, (long long)i, got, right->value[i], right->bound[i],
                     fabs(got - right->value[i]));
    }
}

static kiln_oracle_output output_for(const test_tensor *t)
{
    size_t bytes = (size_t)(t ? t->count : 0) * sizeof(double);
    return (kiln_oracle_output){t ? test_alloc(bytes) : NULL, t ? test_alloc(bytes) : NULL};
}

kiln_status test_softmax_run(test_softmax *s, kiln_context *context, const char *algorithm)
{
    const softmax_case *c = &s->c;
    bool forward = s->op == KILN_OP_SOFTMAX_FORWARD;
    uint64_t flags = (c->log ? KILN_FLAG_LOG : 0) | (c->invariant ? KILN_FLAG_BATCH_INVARIANT : 0);
    kiln_softmax_forward_args fwd[2];
    kiln_softmax_backward_args bwd[2];
    for (int host = 0; host < 2; host++) { /* [0] device memory, [1] images, for the oracle */
        const kiln_tensor *(*of)(const test_tensor *) = host ? test_host : test_device;
        fwd[host] = (kiln_softmax_forward_args){.struct_size = sizeof fwd[host],
                                                .x = of(s->in),
                                                .y = of(s->out),
                                                .lse = of(s->lse),
                                                .scale = c->scale,
                                                .max_sms = c->max_sms,
                                                .flags = flags,
                                                .algorithm = algorithm};
        bwd[host] = (kiln_softmax_backward_args){.struct_size = sizeof bwd[host],
                                                 .y = of(s->in),
                                                 .dy = of(s->grad),
                                                 .dx = of(s->out),
                                                 .scale = c->scale,
                                                 .max_sms = c->max_sms,
                                                 .flags = flags,
                                                 .algorithm = algorithm};
    }
    const void *args = forward ? (const void *)&fwd[0] : (const void *)&bwd[0];
    char why[512] = "";
    kiln_numerics numerics = {0};
    kiln_oracle_softmax right = {output_for(s->out), output_for(s->lse)};
    kiln_status status = test_run(s->op, context, args, why, sizeof why);
    if (status != KILN_OK) {
        TEST_REQUIRE(test_refused(status, algorithm, why), "%s refuses a right call: %s: %s",
                     test_algorithm_name(algorithm), kiln_status_name(status), why);
        return status;
    }
    TEST_REQUIRE(kiln_internal_numerics(context, s->op, args, &numerics) == KILN_OK, "no numerics: %s",
                 kiln_last_error());
    status = forward ? kiln_oracle_softmax_forward(&fwd[1], &numerics, &right)
                     : kiln_oracle_softmax_backward(&bwd[1], &numerics, &right.y);
    TEST_REQUIRE(status == KILN_OK, "the oracle says %s", kiln_status_name(status));
    judge(s->out, forward ? "y" : "dx", algorithm, &right.y);
    judge(s->lse, "lse", algorithm, &right.lse);
    return KILN_OK;
}
