/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* problem_print.c: problem_spec -> text, in the order of the key table, defaults left out. Contract: problem.h. */
#include <inttypes.h>
#include <string.h>

#include "problem_keys.h"
#include "text.h"

typedef struct writer {
    char *text;
    size_t cap, used;
} writer;

#define PUT(w, ...) text_append((w)->text, (w)->cap, &(w)->used, __VA_ARGS__)

static void put_int(writer *w, int64_t value)
{
    if (value == INT64_MAX || value == -INT64_MAX)
        PUT(w, "%sinf", value < 0 ? "-" : "");
    else
        PUT(w, "%" PRId64, value);
}

static void put_numbers(writer *w, const int64_t *value, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (i > 0)
            PUT(w, ",");
        put_int(w, value[i]);
    }
}

static void put_double(writer *w, double value)
{
    char number[40];
    text_double(value, number, sizeof number);
    PUT(w, "%s", number);
}

static void put_shape(writer *w, const problem_spec *s)
{
    if (1 << s->op & FOR_SOFTMAX) {
        for (int32_t i = 0; i < s->outer_rank; i++)
            PUT(w, "%c%" PRId64, i == 0 ? 'r' : 'x', s->outer[i]);
        PUT(w, "n%" PRId64, s->n);
        return;
    }
    PUT(w, "b%" PRId64 "h%" PRId64, s->batch, s->heads);
    if (s->heads_k != s->heads && s->op != KILN_OP_ATTENTION_MERGE)
        PUT(w, "k%" PRId64, s->heads_k);
    PUT(w, "q%" PRId64, s->seqlen_q);
    if (s->op != KILN_OP_ATTENTION_MERGE)
        PUT(w, "k%" PRId64, s->seqlen_k);
    PUT(w, "d%" PRId64, s->d);
    if (s->d_v != s->d)
        PUT(w, "v%" PRId64, s->d_v);
    if (s->d2 != 0)
        PUT(w, "x%" PRId64, s->d2);
}

static void put_axes(writer *w, int32_t axes)
{
    if (axes == AXES_PRESENT)
        PUT(w, "1");
    for (int bit = 0; bit < 4; bit++)
        if (axes & 1 << bit)
            PUT(w, "%c", problem_axis_letters[bit]);
}

static void put_flags(writer *w, uint64_t flags)
{
    bool first = true;
    for (int bit = 0; problem_flag_names[bit] != NULL; bit++)
        if (flags >> bit & 1) {
            PUT(w, "%s%s", first ? "" : "+", problem_flag_names[bit]);
            first = false;
        }
}

static bool same_double(double a, double b)
{
    return a == b || (a != a && b != b);
}

/* Writes ":key=value" unless the value is the default. */
static void put_key(writer *w, const problem_key *key, const problem_spec *s, const problem_spec *standard)
{
    const char *at = (const char *)s + key->offset, *was = (const char *)standard + key->offset;
    switch (key->kind) {
    case KEY_INT:
        if (*(const int64_t *)at == *(const int64_t *)was)
            return;
        PUT(w, ":%s=", key->name);
        put_int(w, *(const int64_t *)at);
        return;
    case KEY_UINT:
        if (*(const uint64_t *)at != *(const uint64_t *)was)
            PUT(w, ":%s=%" PRIu64, key->name, *(const uint64_t *)at);
        return;
    case KEY_DOUBLE:
        if (same_double(*(const double *)at, *(const double *)was))
            return;
        PUT(w, ":%s=", key->name);
        put_double(w, *(const double *)at);
        return;
    case KEY_SWITCH:
        if (*(const int32_t *)at != *(const int32_t *)was)
            PUT(w, ":%s%s", key->name, *(const int32_t *)at ? "" : "=off");
        return;
    case KEY_NAME:
        if (*(const int32_t *)at != *(const int32_t *)was)
            PUT(w, ":%s=%s", key->name, key->names[*(const int32_t *)at]);
        return;
    case KEY_TYPE:
        if (*(const int32_t *)at != *(const int32_t *)was)
            PUT(w, ":%s=%s", key->name, problem_type_name(*(const int32_t *)at));
        return;
    case KEY_AXES:
        if (*(const int32_t *)at == *(const int32_t *)was)
            return;
        PUT(w, ":%s=", key->name);
        put_axes(w, *(const int32_t *)at);
        return;
    case KEY_LIST: {
        const problem_list *list = (const problem_list *)at;
        if (list->kind == LIST_ABSENT)
            return;
        PUT(w, ":%s=", key->name);
        if (list->kind == LIST_GIVEN)
            put_numbers(w, list->value, list->count);
        else
            PUT(w, "%s", list->kind == LIST_RANDOM ? "random" : "full");
        return;
    }
    case KEY_FLAGS:
        if (*(const uint64_t *)at == 0)
            return;
        PUT(w, ":%s=", key->name);
        put_flags(w, *(const uint64_t *)at);
        return;
    case KEY_TEXT:
        if (at[0] != '\0')
            PUT(w, ":%s=%s", key->name, at);
        return;
    case KEY_KEEP:
        if (s->keep == KEEP_NONE)
            return;
        PUT(w, ":%s=", key->name);
        if (s->keep == KEEP_RANDOM)
            put_double(w, s->keep_density);
        else
            PUT(w, "%s", problem_keep_names[s->keep]);
        return;
    }
}

static void put_override(writer *w, const char *name, const problem_override *o)
{
    if (o->type != 0)
        PUT(w, ":%s.type=%s", name, problem_type_name(o->type));
    if (o->stride_count > 0) {
        PUT(w, ":%s.strides=", name);
        put_numbers(w, o->stride, o->stride_count);
    }
    if (o->offset != 0) {
        PUT(w, ":%s.offset=", name);
        put_int(w, o->offset);
    }
}

size_t problem_print(const problem_spec *spec, char *text, size_t cap)
{
    writer w = {text, cap, 0};
    problem_spec standard = problem_default(spec->op);
    if (cap > 0)
        text[0] = '\0';
    if (spec->op != KILN_OP_ATTENTION_FORWARD)
        PUT(&w, "%s:", problem_op_name(spec->op));
    put_shape(&w, spec);
    PUT(&w, ":%s", problem_type_name(spec->type));
    if (spec->mask != KILN_MASK_NONE || spec->window_left != 0 || spec->window_right != 0) {
        PUT(&w, ":%s", problem_mask_names[spec->mask]);
        if (spec->mask >= KILN_MASK_WINDOW_TOP_LEFT || spec->window_left != 0 || spec->window_right != 0) {
            PUT(&w, "=");
            put_int(&w, spec->window_left);
            PUT(&w, ",");
            put_int(&w, spec->window_right);
        }
    }
    for (size_t i = 0; i < problem_key_count; i++)
        if (problem_keys[i].ops & 1 << spec->op && problem_key_lacks(&problem_keys[i], spec) == NULL)
            put_key(&w, &problem_keys[i], spec, &standard);
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        put_override(&w, problem_slot_name((problem_slot)slot), &spec->override[slot]);
    return w.used;
}
