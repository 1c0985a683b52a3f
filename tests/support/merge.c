/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* merge.c: see merge.h. */
#include "merge.h"

#include "../../common/context.h"
#include "../../cpu_ref/oracle.h"

#include <stdio.h>

test_merge *test_merge_new(const merge_case *description)
{
    test_merge *m = test_alloc(sizeof *m);
    merge_case *c = &m->c;
    *c = *description;
    c->type = c->type ? c->type : KILN_FLOAT32;
    c->part_type = c->part_type ? c->part_type : c->type;
    c->spread = c->spread > 0 ? c->spread : 1;
    ck_assert_int_le(c->parts, MERGE_MAX_PARTS);
    test_label("merge b%lldh%lldq%lldd%lld parts=%d type=%d part_type=%d strides=%s,%s%s%s%s%s%s spread=%g",
               (long long)c->batch, (long long)c->heads, (long long)c->seqlen_q, (long long)c->d_v, c->parts, c->type,
               c->part_type, test_strides_name[c->part_strides], test_strides_name[c->o_strides],
               c->packed ? " packed" : "", c->sinks ? " sinks" : "", c->no_lse ? " no_lse" : "",
               c->in_place ? " in_place" : "", c->neutral ? " neutral" : "", c->spread);
    test_seed(5);
    int64_t full[4] = {c->batch, c->heads, c->seqlen_q, c->d_v}, *shape = full + c->packed;
    int rank = 4 - c->packed;
    m->rows = c->batch * c->heads * c->seqlen_q;
    for (int32_t p = 0; p < c->parts; p++) {
        bool output = c->in_place && p == 0;
        m->o_part[p] = test_tensor_new(c->part_type, rank, shape, c->part_strides, output);
        m->lse_part[p] = test_tensor_new(KILN_FLOAT32, rank - 1, shape, c->part_strides, output);
        for (int64_t row = 0; row < m->lse_part[p]->count; row++) {
            bool empty = c->neutral && test_integer(3) == 0;
            test_put(m->lse_part[p], row, empty ? -INFINITY : c->spread * test_normal());
            for (int64_t j = 0; j < c->d_v; j++)
                test_put(m->o_part[p], row * c->d_v + j, empty ? NAN : test_normal());
        }
    }
    m->o = c->in_place ? m->o_part[0] : test_tensor_new(c->type, rank, shape, c->o_strides, true);
    if (!c->no_lse)
        m->lse = c->in_place ? m->lse_part[0] : test_tensor_new(KILN_FLOAT32, rank - 1, shape, c->o_strides, true);
    if (c->sinks) {
        m->sinks = test_tensor_new(KILN_FLOAT32, 1, &full[1], c->part_strides, false);
        for (int64_t h = 0; h < c->heads; h++)
            test_put(m->sinks, h, test_normal());
    }
    return m;
}

static void judge(const test_tensor *t, const char *name, const kiln_oracle_output *right)
{
    for (int64_t i = 0; t && i < t->count; i++) {
        double got = test_result(t, i);
        TEST_REQUIRE(kiln_oracle_accepts(got, right->value[i], right->bound[i]),
                     "%s[%lld] is %.9g; right is %.9g, at most %.3g away", name, (long long)i, got, right->value[i],
                     right->bound[i]);
    }
}

kiln_status test_merge_run(test_merge *m, kiln_context *context)
{
    const kiln_tensor *o_parts[2][MERGE_MAX_PARTS], *lse_parts[2][MERGE_MAX_PARTS];
    kiln_attention_merge_args args[2]; /* [0] device memory, [1] images, for the oracle */
    for (int host = 0; host < 2; host++) {
        const kiln_tensor *(*of)(const test_tensor *) = host ? test_host : test_device;
        for (int32_t p = 0; p < m->c.parts; p++) {
            o_parts[host][p] = of(m->o_part[p]);
            lse_parts[host][p] = of(m->lse_part[p]);
        }
        args[host] = (kiln_attention_merge_args){.struct_size = sizeof args[host],
                                                 .o_parts = o_parts[host],
                                                 .lse_parts = lse_parts[host],
                                                 .o = of(m->o),
                                                 .softmax_lse = of(m->lse),
                                                 .sinks = of(m->sinks),
                                                 .num_parts = m->c.parts,
                                                 .max_sms = m->c.max_sms};
    }
    char why[512] = "";
    kiln_numerics numerics = {0};
    kiln_status status = test_run(KILN_OP_ATTENTION_MERGE, context, &args[0], why, sizeof why);
    if (status != KILN_OK) {
        TEST_REQUIRE(test_refused(status, NULL, why), "a right call is refused: %s: %s", kiln_status_name(status), why);
        return status;
    }
    TEST_REQUIRE(kiln_internal_numerics(context, KILN_OP_ATTENTION_MERGE, &args[0], &numerics) == KILN_OK,
                 "no numerics: %s", kiln_last_error());
    double *arrays[4];
    for (int i = 0; i < 4; i++)
        arrays[i] = test_alloc((size_t)(m->rows * (i < 2 ? m->c.d_v : 1)) * sizeof(double));
    kiln_oracle_attention right = {{arrays[0], arrays[1]}, {arrays[2], arrays[3]}};
    status = kiln_oracle_attention_merge(&args[1], &numerics, &right);
    TEST_REQUIRE(status == KILN_OK, "the oracle says %s", kiln_status_name(status));
    judge(m->o, "o", &right.o);
    judge(m->lse, "lse", &right.lse);
    return KILN_OK;
}
