/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_gradient_rows.inc.h: what the backward kernels do row by row before and after their main pass: delta, a finished
 * row of a gradient, dsinks; and the loop over the rows of q.
 * Cost: one pass over o and do; one over what is written.
 */
#ifndef KILN_CPU_REF_ATTENTION_GRADIENT_ROWS_INC_H
#define KILN_CPU_REF_ATTENTION_GRADIENT_ROWS_INC_H

#include "attention_gradient.inc.h"

enum { BACKWARD_ROWS = 16 }; /* rows of a task in passes over rows */

/* A pass over the rows of q: task = BACKWARD_ROWS rows of one head of one sequence. */
typedef struct row_pass {
    const gradient_call *g;
    int64_t tasks_a_head;
    void (*row)(const gradient_call *g, const kiln_sequence *seq, int64_t head, int64_t i);
} row_pass;

static void row_pass_task(void *arg, int64_t task)
{
    const row_pass *pass = arg;
    const kiln_attention_problem *p = pass->g->call.p;
    const int64_t at = task / pass->tasks_a_head, first = task % pass->tasks_a_head * BACKWARD_ROWS;
    const kiln_sequence seq = kiln_sequence_of(p, at / p->heads);
    for (int64_t i = first; i < first + BACKWARD_ROWS && i < seq.seqlen_q; i++)
        pass->row(pass->g, &seq, at % p->heads, i);
}

static void run_row_pass(const kiln_cpu *cpu, int32_t workers, const gradient_call *g, int64_t columns,
                         void (*row)(const gradient_call *g, const kiln_sequence *seq, int64_t head, int64_t i))
{
    const kiln_attention_problem *p = g->call.p;
    row_pass pass = {g, (longest_seqlen_q(p) + BACKWARD_ROWS - 1) / BACKWARD_ROWS, row};
    rows_parallel(cpu, rows_workers(g->rows, columns, workers), p->batch * p->heads * pass.tasks_a_head, row_pass_task,
                  &pass);
}

/* Longest row that the passes over rows hold on their stack. */
enum { ROW_MOST = 2 * 576 };

/* delta = Σ do·o - dlse. */
static void delta_row(const gradient_call *g, const kiln_sequence *seq, int64_t head, int64_t i)
{
    const kiln_attention_problem *p = g->call.p;
    const kiln_view *dout = &g->b->dout, *dlse = &g->b->dlse;
    float x[ROW_MOST], y[ROW_MOST];
    load_row(view_row(dout, seq->q_batch, head, seq->q_row + i), dout->type, dout->stride[3], p->d_v, x);
    load_row(view_row(&p->o, seq->q_batch, head, seq->q_row + i), p->o.type, p->o.stride[3], p->d_v, y);
    vf sum = vf_zero();
    for (int64_t c = 0; c < p->d_v; c += VF_LANES) {
        const int n = p->d_v - c < VF_LANES ? (int)(p->d_v - c) : VF_LANES;
        sum = vf_fma(vf_load_tail(x + c, n), vf_load_tail(y + c, n), sum);
    }
    float delta = vf_hsum(sum);
    if (kiln_view_present(dlse))
        delta -= *(const float *)(const void *)view_row(dlse, seq->q_batch, head, seq->q_row + i);
    g->delta[gradient_row(g, seq, head, i)] = delta;
}

/* out = scale·sum (+ what out holds), rounded once; sum is changed. Adding +0 makes every zero +0, whatever was skipped. */
static void finish_row(const kiln_view *view, int64_t batch, int64_t head, int64_t row, float scale, bool add,
                       float *sum, int64_t columns)
{
    char *out = view_row(view, batch, head, row);
    float old[ROW_MOST];
    if (add)
        load_row(out, view->type, view->stride[3], columns, old);
    for (int64_t c = 0; c < columns; c += VF_LANES) {
        const int n = columns - c < VF_LANES ? (int)(columns - c) : VF_LANES;
        const vf was = add ? vf_load_tail(old + c, n) : vf_zero();
        vf_store_tail(sum + c, vf_fma(vf_load_tail(sum + c, n), vf_set1(scale), was), n);
    }
    store_row(out, view->type, view->stride[3], columns, sum);
}

/* dsink = -Σ exp(sink - lse)·delta of one head, in double. */
static void dsink_task(void *arg, int64_t head)
{
    const gradient_call *g = arg;
    const kiln_attention_problem *p = g->call.p;
    const double sink = kiln_load_double(view_row(&p->sinks, 0, head, 0), p->sinks.type, 0);
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const kiln_sequence seq = kiln_sequence_of(p, b);
        for (int64_t i = 0; i < seq.seqlen_q; i++) {
            const float lse = row_lse(p, &seq, head, i);
            if (lse != -INFINITY)
                sum -= exp(sink - lse) * g->delta[gradient_row(g, &seq, head, i)];
        }
    }
    *(float *)(void *)view_row(&g->b->dsinks, 0, head, 0) = (float)(sum + 0.0);
}

#endif
