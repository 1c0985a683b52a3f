/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem_parse.c: text -> problem_spec. A hand-written reader of one pass: every failure knows where it is and says what
 * to write instead. Contract: problem.h.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "problem_keys.h"
#include "text.h"

enum { FIELD_MAX = 2048 };

/* What the line has said so far: byte of its field, plus 1; 0 = not yet. */
typedef struct given {
    size_t mask, key[PROBLEM_KEYS_MAX];
    bool property[SLOT_COUNT][3];
} given;

typedef struct reader {
    const char *text;
    problem_spec *spec;
    problem_error *error;
    given *given;
} reader;

static bool fail(const reader *r, size_t position, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool fail(const reader *r, size_t position, const char *format, ...)
{
    va_list list;
    r->error->position = (int32_t)position;
    va_start(list, format);
    vsnprintf(r->error->message, sizeof r->error->message, format, list);
    va_end(list);
    return false;
}

/* The names as one sentence part: "a, b, c". */
static void joined(const char *const *names, char *text, size_t cap)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; names[i] != NULL; i++)
        text_append(text, cap, &used, "%s%s", i > 0 ? ", " : "", names[i]);
}

static size_t name_count(const char *const *names)
{
    size_t n = 0;
    while (names[n] != NULL)
        n++;
    return n;
}

static bool fail_name(const reader *r, size_t position, const char *what, const char *word, const char *const *names)
{
    char all[256];
    const char *near = text_nearest(word, names, name_count(names));
    joined(names, all, sizeof all);
    if (near != NULL)
        return fail(r, position, "unknown %s \"%.40s\": did you mean \"%s\"? It is one of %s", what, word, near, all);
    return fail(r, position, "unknown %s \"%.40s\": write one of %s", what, word, all);
}

static int find_name(const char *const *names, const char *word)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], word) == 0)
            return i;
    return -1;
}

/* Digits at text[*at]; moves *at past them. */
static bool read_size(const reader *r, const char *field, size_t start, size_t *at, const char *what, int64_t *value)
{
    char digits[24];
    size_t n = 0, begin = *at;
    while (isdigit((unsigned char)field[*at])) {
        if (n < sizeof digits - 1)
            digits[n++] = field[*at];
        ++*at;
    }
    digits[n] = '\0';
    if (n == 0)
        return fail(r, start + begin, "a number must follow the letter: %s", what);
    if (*at - begin >= sizeof digits - 1 || !text_int(digits, value))
        return fail(r, start + begin, "%s is too large for 64 bits", what);
    return true;
}

/* b2h32k8q4096k4096d128v64x64 */
static bool read_attention_shape(const reader *r, const char *field, size_t start)
{
    problem_spec *s = r->spec;
    bool merge = s->op == KILN_OP_ATTENTION_MERGE;
    enum { B, H, HK, Q, K, D, V, X, COUNT };
    static const char *const what[] = {"b, the batch size",
                                       "h, the number of query heads",
                                       "k, the number of KV heads",
                                       "q, seqlen_q",
                                       "k, seqlen_k",
                                       "d, the head size",
                                       "v, the head size of v",
                                       "x, the head size of q2 and k2"};
    int64_t *const value[] = {&s->batch, &s->heads, &s->heads_k, &s->seqlen_q, &s->seqlen_k, &s->d, &s->d_v, &s->d2};
    bool seen[COUNT] = {false};
    for (size_t at = 0; field[at] != '\0';) {
        static const char letters[] = "bhkqkdvx";
        const char *found = strchr(letters, field[at]);
        if (found == NULL || (merge && strchr("kvx", field[at]) != NULL))
            return fail(r, start + at,
                        merge ? "\"%c\" is no letter of a merge's shape: write for example b2h8q64d128"
                              : "\"%c\" is no letter of a shape: write for example b2h32k8q4096k4096d128",
                        field[at]);
        int which = (int)(found - letters);
        if (which == HK && seen[Q])
            which = K;
        if (seen[which])
            return fail(r, start + at, "%s is given twice%s", what[which],
                        which == K || which == HK ? " (k before q is heads_k, k after q is seqlen_k)" : "");
        seen[which] = true;
        at++;
        if (!read_size(r, field, start, &at, what[which], value[which]))
            return false;
    }
    if (!seen[Q] || !seen[D])
        return fail(r, start, "the shape must say %s: write for example b2h32k8q4096k4096d128",
                    seen[Q] ? "d, the head size" : "q, seqlen_q");
    if (!seen[HK])
        s->heads_k = s->heads;
    if (!seen[K])
        s->seqlen_k = s->seqlen_q;
    if (!seen[V])
        s->d_v = s->d;
    if (seen[X] && s->d2 == 0)
        return fail(r, start, "x, the head size of q2 and k2, must be at least 1: leave it out for none");
    return true;
}

/* r4x128n1000 */
static bool read_softmax_shape(const reader *r, const char *field, size_t start)
{
    problem_spec *s = r->spec;
    size_t at = 0;
    if (field[0] == 'r') {
        do {
            at++;
            if (s->outer_rank == PROBLEM_SOFTMAX_OUTER)
                return fail(r, start + at, "at most %d outer axes", PROBLEM_SOFTMAX_OUTER);
            if (!read_size(r, field, start, &at, "an outer axis (r4x128)", &s->outer[s->outer_rank++]))
                return false;
        } while (field[at] == 'x');
    }
    if (field[at] != 'n')
        return fail(r, start + at, "n, the length of a row, is missing: write for example r4x128n1000");
    at++;
    if (!read_size(r, field, start, &at, "n, the length of a row", &s->n))
        return false;
    if (field[at] != '\0')
        return fail(r, start + at, "nothing may follow n: write for example r4x128n1000");
    return true;
}

static bool read_numbers(const reader *r, const char *key, const char *text, size_t start, int64_t *value, int32_t most,
                         int32_t *count)
{
    *count = 0;
    for (size_t at = 0;;) {
        char number[24];
        size_t n = strcspn(text + at, ",");
        if (*count == most)
            return fail(r, start + at, "%s: at most %d numbers%s", key, most,
                        most == PROBLEM_LIST_MAX ? "; write random for longer lists" : "");
        if (n >= sizeof number)
            return fail(r, start + at, "%s: this is no number", key);
        memcpy(number, text + at, n);
        number[n] = '\0';
        if (!text_int(number, &value[*count]))
            return fail(r, start + at, "%s: \"%s\" is no whole number", key, number);
        ++*count;
        at += n;
        if (text[at] == '\0')
            return true;
        at++;
    }
}

static bool read_axes(const reader *r, const char *key, const char *text, size_t start, int32_t *axes)
{
    *axes = AXES_PRESENT;
    if (strcmp(text, "1") == 0)
        return true;
    for (size_t i = 0; text[i] != '\0'; i++) {
        const char *found = strchr(problem_axis_letters, text[i]);
        if (found == NULL)
            return fail(r, start + i, "%s: \"%c\" is no axis: write letters of bhqk, or 1 for none of them", key,
                        text[i]);
        if (*axes & 1 << (found - problem_axis_letters))
            return fail(r, start + i, "%s: the axis %c is given twice", key, text[i]);
        *axes |= 1 << (found - problem_axis_letters);
    }
    if (*axes == AXES_PRESENT)
        return fail(r, start, "%s needs its axes: write letters of bhqk, or 1 for none of them", key);
    return true;
}

static bool read_flags(const reader *r, const char *text, size_t start, uint64_t *flags)
{
    *flags = 0;
    for (size_t at = 0;;) {
        char name[32];
        size_t n = strcspn(text + at, "+");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), text + at);
        int bit = find_name(problem_flag_names, name);
        if (bit < 0)
            return fail_name(r, start + at, "flag", name, problem_flag_names);
        if (*flags >> bit & 1)
            return fail(r, start + at, "the flag %s is given twice", name);
        *flags |= (uint64_t)1 << bit;
        at += n;
        if (text[at] == '\0')
            return true;
        at++;
    }
}

static bool read_type(const reader *r, const char *text, size_t start, int32_t *type)
{
    *type = problem_type_find(text);
    return *type != 0 || fail_name(r, start, "type", text, problem_type_names);
}

/* One key's value. `value` is NULL when the field had no '='. */
static bool read_value(const reader *r, const problem_key *key, const char *value, size_t start)
{
    char *at = (char *)r->spec + key->offset;
    if (value == NULL) {
        if (key->kind != KEY_SWITCH)
            return fail(r, start, "%s needs a value: write %s=...", key->name, key->name);
        *(int32_t *)at = 1;
        return true;
    }
    switch (key->kind) {
    case KEY_INT:
        return text_int(value, (int64_t *)at) ||
               fail(r, start, "%s: \"%.40s\" is no whole number of 64 bits", key->name, value);
    case KEY_UINT:
        return text_uint(value, (uint64_t *)at) ||
               fail(r, start, "%s: \"%.40s\" is no whole number from 0 to 2^64-1", key->name, value);
    case KEY_DOUBLE:
        return text_float(value, (double *)at) || fail(r, start, "%s: \"%.40s\" is no number", key->name, value);
    case KEY_SWITCH:
        if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
            return fail(r, start, "%s: write on or off, not \"%.40s\"", key->name, value);
        *(int32_t *)at = strcmp(value, "on") == 0;
        return true;
    case KEY_NAME: {
        int index = find_name(key->names, value);
        if (index < 0)
            return fail_name(r, start, key->name, value, key->names);
        *(int32_t *)at = index;
        return true;
    }
    case KEY_TYPE: return read_type(r, value, start, (int32_t *)at);
    case KEY_AXES: return read_axes(r, key->name, value, start, (int32_t *)at);
    case KEY_LIST: {
        problem_list *list = (problem_list *)at;
        if (strcmp(value, "random") == 0 || strcmp(value, "full") == 0) {
            list->kind = value[0] == 'r' ? LIST_RANDOM : LIST_FULL;
            return true;
        }
        list->kind = LIST_GIVEN;
        if (value[0] == '\0') /* one number per sequence, of which a batch of 0 has none */
            return true;
        return read_numbers(r, key->name, value, start, list->value, PROBLEM_LIST_MAX, &list->count);
    }
    case KEY_FLAGS: return read_flags(r, value, start, (uint64_t *)at);
    case KEY_TEXT:
        if (value[0] == '\0' || strlen(value) >= PROBLEM_NAME_MAX)
            return fail(r, start, "%s: a name of 1 to %d letters", key->name, PROBLEM_NAME_MAX - 1);
        memcpy(at, value, strlen(value) + 1);
        return true;
    case KEY_KEEP:
        r->spec->keep = find_name(problem_keep_names, value);
        if (r->spec->keep == KEEP_TREE || r->spec->keep == KEEP_DIAGONAL)
            return true;
        r->spec->keep = KEEP_RANDOM;
        if (text_float(value, &r->spec->keep_density) && r->spec->keep_density >= 0 && r->spec->keep_density <= 1)
            return true;
        return fail(r, start,
                    "attn_mask: write the share of visible keys from 0 to 1, tree, or diagonal, not \"%.40s\"", value);
    }
    return false;
}

/* causal_br, window_br=128,0. */
static bool read_mask(const reader *r, int32_t mask, size_t field, const char *value, size_t start)
{
    bool window = mask == KILN_MASK_WINDOW_TOP_LEFT || mask == KILN_MASK_WINDOW_BOTTOM_RIGHT;
    int64_t sides[2];
    int32_t count = 0;
    if (r->given->mask != 0)
        return fail(r, field, "a second mask, %s: %s is given already, and a problem has one", problem_mask_names[mask],
                    problem_mask_names[r->spec->mask]);
    r->given->mask = field + 1;
    r->spec->mask = mask;
    if (window && value == NULL)
        return fail(r, start, "%s needs its sides: write %s=LEFT,RIGHT, for example %s=127,0", problem_mask_names[mask],
                    problem_mask_names[mask], problem_mask_names[mask]);
    if (value == NULL)
        return true;
    if (!read_numbers(r, problem_mask_names[mask], value, start, sides, 2, &count))
        return false;
    if (count != 2)
        return fail(r, start, "%s: two numbers, LEFT,RIGHT, for example %s=127,0", problem_mask_names[mask],
                    problem_mask_names[mask]);
    r->spec->window_left = sides[0];
    r->spec->window_right = sides[1];
    return true;
}

/* q.strides=..., bias.type=fp32 */
static bool read_override(const reader *r, const char *name, size_t dot, const char *value, size_t start,
                          size_t value_at)
{
    static const char *const fields[] = {"type", "strides", "offset", NULL};
    const char *slots[SLOT_COUNT + 1];
    char tensor[32];
    for (int i = 0; i < SLOT_COUNT; i++)
        slots[i] = problem_slot_name((problem_slot)i);
    slots[SLOT_COUNT] = NULL;
    snprintf(tensor, sizeof tensor, "%.*s", (int)(dot < sizeof tensor ? dot : sizeof tensor - 1), name);
    int slot = find_name(slots, tensor);
    if (slot < 0) {
        const char *near = text_nearest(tensor, slots, SLOT_COUNT);
        return fail(r, start, "no tensor is called \"%s\": %s%s%s", tensor,
                    near ? "did you mean \"" : "write q, k, v, o, bias", near ? near : ", ... as in kiln.h",
                    near ? "\"?" : "");
    }
    problem_override *o = &r->spec->override[slot];
    int field = find_name(fields, name + dot + 1);
    if (field < 0)
        return fail_name(r, start + dot + 1, "property of a tensor", name + dot + 1, fields);
    if (value == NULL)
        return fail(r, start, "%s needs a value: write %s=...", name, name);
    if (r->given->property[slot][field])
        return fail(r, start, "%s is given twice", name);
    r->given->property[slot][field] = true;
    if (field == 0)
        return read_type(r, value, value_at, &o->type);
    if (field == 1)
        return read_numbers(r, name, value, value_at, o->stride, KILN_MAX_RANK, &o->stride_count);
    if (!text_int(value, &o->offset))
        return fail(r, value_at, "%s: \"%.40s\" is no whole number", name, value);
    return o->offset != 0 || fail(r, value_at, "%s: 0 moves nothing: leave it out", name);
}

static bool fail_key(const reader *r, const char *name, size_t start)
{
    const char *names[128];
    size_t count = 0;
    for (size_t i = 0; i < problem_key_count && count < 120; i++) {
        if (strcmp(problem_keys[i].name, name) == 0)
            return fail(r, start, "%s has no meaning for %s", name, problem_op_name(r->spec->op));
        if (problem_keys[i].ops & 1 << r->spec->op)
            names[count++] = problem_keys[i].name;
    }
    for (size_t i = 0; problem_mask_names[i] != NULL; i++)
        names[count++] = problem_mask_names[i];
    const char *near = text_nearest(name, names, count);
    if (near != NULL)
        return fail(r, start, "unknown option \"%.40s\": did you mean \"%s\"?", name, near);
    return fail(r, start, "unknown option \"%.40s\": `kiln verify --help` lists them all", name);
}

/* One field after the type. */
static bool read_option(const reader *r, char *field, size_t start)
{
    char *equals = strchr(field, '='), *value = NULL, *dot;
    if (equals != NULL) {
        *equals = '\0';
        value = equals + 1;
    }
    size_t value_at = value != NULL ? start + (size_t)(value - field) : start;
    if (field[0] == '\0')
        return fail(r, start, "an empty field: write an option between the colons, or remove one");
    if ((dot = strchr(field, '.')) != NULL)
        return read_override(r, field, (size_t)(dot - field), value, start, value_at);
    if (1 << r->spec->op & FOR_ATTENTION) {
        int mask = find_name(problem_mask_names, field);
        if (mask >= 0)
            return read_mask(r, mask, start, value, value_at);
    }
    for (size_t i = 0; i < problem_key_count; i++)
        if (strcmp(problem_keys[i].name, field) == 0 && problem_keys[i].ops & 1 << r->spec->op) {
            if (r->given->key[i] != 0)
                return fail(r, start, "%s is given twice", field);
            r->given->key[i] = start + 1;
            return read_value(r, &problem_keys[i], value, value_at);
        }
    return fail_key(r, field, start);
}

/* Keys for which 0 is not a number but stands for their absence. */
static bool absent_if_zero(const problem_key *key)
{
    return key->offset == offsetof(problem_spec, page_size) || key->offset == offsetof(problem_spec, mask_len) ||
           key->offset == offsetof(problem_spec, cache_batch);
}

/* Why a key that was given would be ignored because of others, or NULL. */
static const char *ignored(const problem_key *key, const problem_spec *s)
{
    bool fused = s->layout == LAYOUT_QKV || s->layout == LAYOUT_KV;
    switch (key->offset) {
    case offsetof(problem_spec, cache_batch):
        return s->lens_k.kind != LIST_ABSENT ? "contradicts lens_k: packed keys have no batch axis" : NULL;
    case offsetof(problem_spec, alias_kv):
        return s->alias_kv && fused ? "contradicts layout=qkv and kv, where v has a place of its own" : NULL;
    case offsetof(problem_spec, layout):
        return fused && s->op == KILN_OP_ATTENTION_MERGE ? "of a merge is bhsd, bshd or sbhd" : NULL;
    case offsetof(problem_spec, keep_axes):
        return s->keep_axes & AXIS_KEY ? "has letters of bhq: mask_len says how many keys there are" : NULL;
    default: return NULL;
    }
}

/* After all options: is each that was given of any effect? */
static bool check_options(const reader *r)
{
    for (size_t i = 0; i < problem_key_count; i++) {
        const problem_key *key = &problem_keys[i];
        if (r->given->key[i] == 0)
            continue;
        size_t start = r->given->key[i] - 1;
        const char *lacks = problem_key_lacks(key, r->spec), *why = ignored(key, r->spec);
        if (absent_if_zero(key) && *(const int64_t *)((const char *)r->spec + key->offset) == 0)
            return fail(r, start, "%s=0 has no meaning: write at least 1, or leave it out", key->name);
        if (lacks != NULL)
            return fail(r, start, "%s has no effect without %s: add that, or leave it out", key->name, lacks);
        if (why != NULL)
            return fail(r, start, "%s %s", key->name, why);
    }
    return true;
}

static bool read_op(const reader *r, const char *field, bool *is_op)
{
    kiln_op op = problem_op_find(field);
    *is_op = true;
    if (op != KILN_OP_COUNT) {
        *r->spec = problem_default(op);
        return true;
    }
    *is_op = false;
    if (strchr(field, '_') == NULL) /* no shape holds an underscore, every operation does */
        return true;
    const char *names[KILN_OP_COUNT + 1];
    for (int i = 0; i < KILN_OP_COUNT; i++)
        names[i] = problem_op_name((kiln_op)i);
    names[KILN_OP_COUNT] = NULL;
    return fail_name(r, 0, "operation", field, names);
}

bool problem_parse(const char *text, kiln_op op, problem_spec *spec, problem_error *error)
{
    given said = {0};
    reader r = {text, spec, error, &said};
    bool is_op;
    int part = 0; /* 0: operation or shape, 1: shape, 2: type, 3: options */
    *spec = problem_default(op);
    for (size_t start = 0;;) {
        char field[FIELD_MAX];
        size_t n = strcspn(text + start, ":");
        if (n >= sizeof field)
            return fail(&r, start, "a field of more than %d letters", FIELD_MAX - 1);
        memcpy(field, text + start, n);
        field[n] = '\0';
        if (part == 0) {
            if (!read_op(&r, field, &is_op))
                return false;
            part = is_op ? 1 : 0;
            if (is_op)
                goto next;
        }
        if (part <= 1) {
            bool softmax = 1 << spec->op & FOR_SOFTMAX;
            if (n == 0)
                return fail(&r, start, "the shape is missing: write for example %s",
                            softmax ? "r4x128n1000:fp32" : "b2h32k8q4096k4096d128:bf16");
            if (!(softmax ? read_softmax_shape(&r, field, start) : read_attention_shape(&r, field, start)))
                return false;
            part = 2;
        } else if (part == 2) {
            if (!read_type(&r, field, start, &spec->type))
                return false;
            part = 3;
        } else if (!read_option(&r, field, start)) {
            return false;
        }
    next:
        start += n;
        if (text[start] == '\0')
            break;
        start++;
    }
    if (part < 3)
        return fail(&r, strlen(text), "the type is missing: write fp32, fp16 or bf16 after the shape, as in %s",
                    1 << spec->op & FOR_SOFTMAX ? "r4x128n1000:fp32" : "b1h8q128d64:fp32");
    return check_options(&r);
}
