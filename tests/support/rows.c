/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* rows.c: see rows.h. */
#include "rows.h"
#include "fixture.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

kiln_context *rows_context(int32_t device)
{
    kiln_context_options options = {.struct_size = sizeof options, .backend = test_backend_name(), .device = device};
    kiln_context *context = NULL;
    return kiln_context_create(&context, &options) == KILN_OK ? context : NULL;
}

#define RETURN_IF_NOT_OK(call)                                                                                         \
    do {                                                                                                               \
        kiln_status status_ = (call);                                                                                  \
        if (status_ != KILN_OK)                                                                                        \
            return status_;                                                                                            \
    } while (0)

static kiln_status new_of(known_rows *r, kiln_context *context, int64_t rows, int64_t n)
{
    kiln_device device = kiln_context_device(context);
    memset(r, 0, sizeof *r);
    r->context = context;
    r->shape[0] = r->shape_lse[0] = rows;
    r->shape[1] = n;
    RETURN_IF_NOT_OK(kiln_malloc(context, sizeof(float) * (size_t)(rows * n), &r->x));
    RETURN_IF_NOT_OK(kiln_malloc(context, sizeof(float) * (size_t)(rows * n), &r->y));
    RETURN_IF_NOT_OK(kiln_malloc(context, sizeof(float) * (size_t)rows, &r->lse));
    r->tx = kiln_tensor_make(device, r->x, KILN_FLOAT32, 2, r->shape, NULL);
    r->ty = kiln_tensor_make(device, r->y, KILN_FLOAT32, 2, r->shape, NULL);
    r->tlse = kiln_tensor_make(device, r->lse, KILN_FLOAT32, 1, r->shape_lse, NULL);
    r->args = (kiln_softmax_forward_args){.struct_size = sizeof r->args, .x = &r->tx, .y = &r->ty, .lse = &r->tlse};
    RETURN_IF_NOT_OK(kiln_softmax_forward_workspace(context, &r->args, &r->bytes));
    return kiln_malloc(context, r->bytes, &r->workspace);
}

kiln_status rows_new(known_rows *r, kiln_context *context)
{
    return new_of(r, context, ROWS, ROWS_N);
}

kiln_status rows_new_long(known_rows *r, kiln_context *context)
{
    return new_of(r, context, 1, ROWS_LONG);
}

kiln_status rows_free(known_rows *r)
{
    RETURN_IF_NOT_OK(kiln_free(r->context, r->x));
    RETURN_IF_NOT_OK(kiln_free(r->context, r->y));
    RETURN_IF_NOT_OK(kiln_free(r->context, r->lse));
    return kiln_free(r->context, r->workspace);
}

enum { MOST = ROWS * ROWS_N > ROWS_LONG ? ROWS *ROWS_N : ROWS_LONG };

kiln_status rows_set(known_rows *r, float value, kiln_stream stream)
{
    static _Thread_local float host[MOST];
    const int64_t count = r->shape[0] * r->shape[1];
    for (int64_t i = 0; i < count; i++)
        host[i] = value;
    RETURN_IF_NOT_OK(kiln_copy(r->context, r->x, host, sizeof(float) * (size_t)count, stream));
    RETURN_IF_NOT_OK(kiln_fill(r->context, r->y, 0xff, sizeof(float) * (size_t)count, stream));
    return kiln_fill(r->context, r->lse, 0xff, sizeof(float) * (size_t)r->shape[0], stream);
}

kiln_status rows_run(known_rows *r, kiln_stream stream)
{
    return kiln_softmax_forward(r->context, &r->args, r->workspace, r->bytes, stream);
}

bool rows_right(known_rows *r, float value, kiln_stream stream)
{
    static _Thread_local float y[MOST], lse[ROWS];
    const int64_t rows = r->shape[0], n = r->shape[1];
    bool right = kiln_copy(r->context, y, r->y, sizeof(float) * (size_t)(rows * n), stream) == KILN_OK &&
                 kiln_copy(r->context, lse, r->lse, sizeof(float) * (size_t)rows, stream) == KILN_OK;
    for (int64_t i = 0; i < rows * n; i++)
        right = right && fabsf(y[i] - 1.0f / (float)n) <= 1e-6f / (float)n;
    for (int64_t i = 0; i < rows; i++)
        right = right && fabsf(lse[i] - (value + logf((float)n))) <= 2e-6f * (fabsf(value) + 8);
    return right;
}

typedef struct row_thread {
    pthread_t thread;
    kiln_context *context;
    bool (*unchanged)(void);
    bool is_long, right;
} row_thread;

static void *run_thread(void *pointer)
{
    enum { ROUNDS = 6 };
    row_thread *t = pointer;
    known_rows r;
    kiln_stream stream;
    bool right = t->unchanged() && (t->is_long ? rows_new_long(&r, t->context) : rows_new(&r, t->context)) == KILN_OK &&
                 kiln_stream_create(t->context, &stream) == KILN_OK;
    for (int round = 0; round < ROUNDS && right; round++)
        right = rows_set(&r, (float)round, stream) == KILN_OK && rows_run(&r, stream) == KILN_OK &&
                rows_right(&r, (float)round, stream);
    t->right =
        right && kiln_stream_destroy(t->context, stream) == KILN_OK && rows_free(&r) == KILN_OK && t->unchanged();
    return NULL;
}

int rows_wrong_threads(kiln_context *context, bool (*unchanged)(void))
{
    enum { THREADS = 4 };
    row_thread threads[THREADS];
    int started = 0, wrong = 0;
    for (; started < THREADS; started++) {
        threads[started] = (row_thread){.context = context, .unchanged = unchanged, .is_long = started % 2 != 0};
        if (pthread_create(&threads[started].thread, NULL, run_thread, &threads[started]) != 0)
            break;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
        wrong += !threads[i].right;
    }
    return started < THREADS ? -1 : wrong;
}
