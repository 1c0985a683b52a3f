/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_naive.inc.h: attention of one query row as kiln.h writes it, forward and backward, in the type `REAL`.
 * Include after defining REAL, NAME(x), GRADS, EXP, LOG, TANH. O(seqlen_k · d) a row.
 */

static REAL NAME(dot)(const oracle_tensor *a, int64_t row_a, const oracle_tensor *b, int64_t row_b, int64_t n)
{
    REAL sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (REAL)oracle_get(a, row_a * n + c) * (REAL)oracle_get(b, row_b * n + c);
    return sum;
}

/* Score of a visible pair; *t = tanh of the softcap. */
static REAL NAME(score)(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j, REAL *t)
{
    const oracle_case *c = &p->c;
    int64_t row_q = oracle_q_row(p, b, h, i), row_k = oracle_k_row(p, b, h / (c->heads / c->heads_k), j);
    REAL s = NAME(dot)(p->q, row_q, p->k, row_k, c->d);
    if (c->d2)
        s += NAME(dot)(p->q2, row_q, p->k2, row_k, c->d2);
    s *= c->scale != 0 ? (REAL)c->scale : (REAL)(1 / sqrt((double)(c->d + c->d2)));
    *t = 0;
    if (c->softcap > 0) {
        *t = TANH(s / (REAL)c->softcap);
        s = (REAL)c->softcap * *t;
    }
    if (c->bias)
        s += (REAL)oracle_get(p->bias, oracle_bias_index(p, b, h, i, j));
    if (c->alibi) {
        int64_t distance = oracle_pos_q(p, b, i) - oracle_pos_k(p, b, j);
        s -= (REAL)oracle_get(p->alibi, c->alibi == 1 ? h : b * c->heads + h) *
             (REAL)(distance < 0 ? -distance : distance);
    }
    return s;
}

void NAME(oracle_row)(const oracle_problem *p, int64_t b, int64_t h, int64_t i, REAL *o, REAL *lse)
{
    const oracle_case *c = &p->c;
    REAL max = c->sinks ? (REAL)oracle_get(p->sinks, h) : -INFINITY, t;
    for (int64_t j = 0; j < p->len_k[b]; j++) {
        if (oracle_sees(p, b, h, i, j)) {
            REAL s = NAME(score)(p, b, h, i, j, &t);
            max = s > max ? s : max;
        }
    }
    for (int64_t e = 0; e < c->d_v; e++)
        o[e] = 0;
    *lse = -INFINITY;
    if (max == -INFINITY)
        return;
    REAL sum = c->sinks ? EXP((REAL)oracle_get(p->sinks, h) - max) : 0;
    for (int64_t j = 0; j < p->len_k[b]; j++) {
        if (!oracle_sees(p, b, h, i, j))
            continue;
        REAL w = EXP(NAME(score)(p, b, h, i, j, &t) - max);
        int64_t row_k = oracle_k_row(p, b, h / (c->heads / c->heads_k), j);
        sum += w;
        for (int64_t e = 0; e < c->d_v; e++)
            o[e] += w * (REAL)oracle_keeps(p, b, h, i, j) * (REAL)oracle_get(p->v, row_k * c->d_v + e);
    }
    for (int64_t e = 0; e < c->d_v; e++)
        o[e] /= sum;
    *lse = max + LOG(sum);
}

void NAME(oracle_back)(const oracle_problem *p, const oracle_tensor *dout, const oracle_tensor *dlse, int64_t b,
                       int64_t h, int64_t i, GRADS *g)
{
    const oracle_case *c = &p->c;
    int64_t row_q = oracle_q_row(p, b, h, i), group = c->heads / c->heads_k;
    REAL lse = (REAL)oracle_get(p->lse, row_q), scale = c->scale != 0 ? (REAL)c->scale : 0;
    REAL own = NAME(dot)(dout, row_q, p->o, row_q, c->d_v), extra = dlse ? (REAL)oracle_get(dlse, row_q) : 0;
    if (scale == 0)
        scale = (REAL)(1 / sqrt((double)(c->d + c->d2)));
    if (lse == -INFINITY)
        return;
    for (int64_t j = 0; j < p->len_k[b]; j++) {
        if (!oracle_sees(p, b, h, i, j))
            continue;
        int64_t row_k = oracle_k_row(p, b, h / group, j);
        REAL t, s = NAME(score)(p, b, h, i, j, &t), w = EXP(s - lse), keep = (REAL)oracle_keeps(p, b, h, i, j);
        REAL ds = w * (keep * NAME(dot)(dout, row_q, p->v, row_k, c->d_v) - own + extra);
        for (int64_t e = 0; e < c->d_v; e++)
            g->dv[row_k * c->d_v + e] += keep * w * (REAL)oracle_get(dout, row_q * c->d_v + e);
        if (g->dbias)
            g->dbias[oracle_bias_index(p, b, h, i, j)] += ds;
        ds *= scale * (1 - t * t);
        for (int64_t e = 0; e < c->d; e++) {
            g->dq[row_q * c->d + e] += ds * (REAL)oracle_get(p->k, row_k * c->d + e);
            g->dk[row_k * c->d + e] += ds * (REAL)oracle_get(p->q, row_q * c->d + e);
        }
        for (int64_t e = 0; e < c->d2; e++) {
            g->dq2[row_q * c->d2 + e] += ds * (REAL)oracle_get(p->k2, row_k * c->d2 + e);
            g->dk2[row_k * c->d2 + e] += ds * (REAL)oracle_get(p->q2, row_q * c->d2 + e);
        }
    }
    if (g->dsinks)
        g->dsinks[h] += EXP((REAL)oracle_get(p->sinks, h) - lse) * (extra - own);
}
