/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* gradients.c: see gradients.h. Cost: the oracle's, a forward and a backward pass in fp64. */
#include "gradients.h"

#include "../../common/context.h"

#include <stdio.h>

const char *const gradients_name[GRADIENTS] = {"dq", "dk", "dv", "dq2", "dk2", "dbias", "dsinks"};

/* A tensor with the shape of `like`; NULL if that is absent. */
static test_tensor *like(const test_tensor *of, int32_t type, test_strides strides, bool output)
{
    return of ? test_tensor_new(type ? type : of->type, of->host.ndim, of->shape, strides, output) : NULL;
}

static void fill(test_tensor *t)
{
    for (int64_t i = 0; t && i < t->count; i++)
        test_put(t, i, test_normal());
}

/* Sets an input to what the oracle computed; rows outside every sequence stay poison. */
static void put_values(test_tensor *t, const double *value)
{
    for (int64_t i = 0; i < t->count; i++)
        test_put(t, i, value[i]);
}

static kiln_attention_backward_args arguments(const test_gradients *g, const kiln_tensor *(*of)(const test_tensor *))
{
    return (kiln_attention_backward_args){
        .struct_size = sizeof(kiln_attention_backward_args),
        .forward = of == test_device ? &g->forward->args : &g->forward->host_args,
        .dout = of(g->dout),
        .dlse = of(g->dlse),
        .dq = of(g->out[0]),
        .dk = of(g->out[1]),
        .dv = of(g->out[2]),
        .dq2 = of(g->out[3]),
        .dk2 = of(g->out[4]),
        .dbias = of(g->out[5]),
        .dsinks = of(g->out[6]),
        .flags = g->c.flags,
        .max_sms = g->forward->c.max_sms,
    };
}

/* What an accumulated output held before the call. Elements that must not be touched keep their poison. */
static void fill_accumulated(test_gradients *g)
{
    static const uint64_t flag[GRADIENTS] = {KILN_FLAG_ACCUMULATE_DQ,
                                             KILN_FLAG_ACCUMULATE_DK,
                                             KILN_FLAG_ACCUMULATE_DV,
                                             KILN_FLAG_ACCUMULATE_DQ,
                                             KILN_FLAG_ACCUMULATE_DK,
                                             0,
                                             0};
    for (int i = 0; i < GRADIENTS; i++)
        if (g->c.flags & flag[i])
            fill(g->out[i]);
}

void test_gradients_refresh(test_gradients *g)
{
    g->forward->judged = g->judged = false;
    test_attention_oracle(g->forward, &(kiln_numerics){0});
    put_values(g->forward->o, g->forward->o_value);
    put_values(g->forward->lse, g->forward->lse_value);
}

test_gradients *test_gradients_new(const gradients_case *description)
{
    test_gradients *g = test_alloc(sizeof *g);
    g->c = *description;
    test_attention *f = g->forward = test_attention_new(&description->forward);
    const test_strides strides = g->c.strides;
    f->o->output = f->lse->output = false;
    g->dout = like(f->o, g->c.dout_type ? g->c.dout_type : f->c.type, strides, false);
    g->dlse = like(g->c.dlse ? f->lse : NULL, 0, strides, false);
    const test_tensor *inputs[GRADIENTS] = {
        f->q, f->k, f->v, f->q2, f->k2, g->c.no_dbias ? NULL : f->bias, g->c.no_dsinks ? NULL : f->sinks};
    for (int i = 0; i < GRADIENTS; i++)
        g->out[i] = like(inputs[i], i == 6 ? KILN_FLOAT32 : g->c.type, strides, true);
    test_seed(16 * f->c.seed + 12);
    fill(g->dout);
    fill(g->dlse);
    fill_accumulated(g);
    test_gradients_refresh(g);
    g->args = arguments(g, test_device);
    g->host_args = arguments(g, test_host);
    return g;
}

/* The exact gradients and bounds for these numerics, and which elements must be written. */
static void consult(test_gradients *g, const kiln_numerics *numerics)
{
    if (g->judged && memcmp(&g->numerics, numerics, sizeof *numerics) == 0)
        return;
    for (int i = 0; i < GRADIENTS; i++)
        if (g->out[i] && !g->right[i].value) {
            g->right[i].value = test_alloc((size_t)g->out[i]->count * sizeof(double));
            g->right[i].bound = test_alloc((size_t)g->out[i]->count * sizeof(double));
            g->out[i]->written = test_alloc((size_t)g->out[i]->count * sizeof(bool));
        }
    kiln_oracle_gradients out = {g->right[0], g->right[1], g->right[2], g->right[3],
                                 g->right[4], g->right[5], g->right[6]};
    kiln_status status = kiln_oracle_attention_backward(&g->host_args, numerics, &out);
    TEST_REQUIRE(status == KILN_OK, "the oracle says %s", kiln_status_name(status));
    for (int i = 0; i < GRADIENTS; i++)
        for (int64_t j = 0; g->out[i] && j < g->out[i]->count; j++)
            g->out[i]->written[j] = !kiln_oracle_untouched(g->right[i].value[j], g->right[i].bound[j]);
    g->numerics = *numerics;
    g->judged = true;
}

static void judge(const test_tensor *t, const char *name, const kiln_oracle_output *right)
{
    for (int64_t i = 0; t && i < t->count; i++) {
        double got = test_result(t, i);
        TEST_REQUIRE(!t->written[i] || kiln_oracle_accepts(got, right->value[i], right->bound[i]),
                     "%s[%lld] is %.9g; right is %.9g, at most %.3g away (it is %.3g away)", name, (long long)i, got,
                     right->value[i], right->bound[i], fabs(got - right->value[i]));
    }
}

kiln_status test_gradients_run(test_gradients *g, kiln_context *context, char *why, size_t cap)
{
    kiln_numerics numerics = {0};
    if (test_left_out(test_attention_cost(g->forward))) {
        snprintf(why, cap, "left to the real device");
        return KILN_UNSUPPORTED;
    }
    kiln_status status = test_supported(KILN_OP_ATTENTION_BACKWARD, context, &g->args, why, cap);
    if (status == KILN_OK) {
        status = kiln_internal_numerics(context, KILN_OP_ATTENTION_BACKWARD, &g->args, &numerics);
        TEST_REQUIRE(status == KILN_OK, "supported, but no numerics: %s", kiln_last_error());
        consult(g, &numerics);
    }
    status = test_run(KILN_OP_ATTENTION_BACKWARD, context, &g->args, why, cap);
    TEST_REQUIRE(status == KILN_OK || test_refused(status, g->args.algorithm, why), "refuses a right call: %s: %s",
                 kiln_status_name(status), why);
    for (int i = 0; status == KILN_OK && i < GRADIENTS; i++)
        judge(g->out[i], gradients_name[i], &g->right[i]);
    return status;
}
