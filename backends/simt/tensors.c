/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * tensors.c: global memory. The views in a launch's arguments are its tensors, under the names of views.h; an access is judged
 * against the view that the kernel names (logical indices) and against the memory of the tensor that it belongs to.
 */
#include "state.h"

#include "../../common/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Is it one of the names of KILN_SIMT_NAN? */
static bool is_watched(const char *name)
{
    const char *names = getenv("KILN_SIMT_NAN");
    const size_t length = strlen(name);
    for (; names && *names; names += names[0] == ',') {
        const size_t n = strcspn(names, ",");
        if (n == length && strncmp(names, name, n) == 0)
            return true;
        names += n;
    }
    return false;
}

static _Thread_local launch *collecting; /* the launch whose arguments are being read */

void simt_tensor(const char *name, const kiln_view *view)
{
    launch *l = collecting;
    if (view->type == 0 || l->tensor_count == TENSORS)
        return;
    tensor *t = &l->tensors[l->tensor_count++];
    *t = (tensor){.name = name, .view = view, .begin = (uintptr_t)view->data, .end = (uintptr_t)view->data};
    t->element = (int32_t)kiln_type_size(view->type);
    t->watched = is_watched(name);
    size_t place = (size_t)((const char *)view - (const char *)l->args);
    if (place < ARGS_LIMIT)
        l->tensor_of[place / 8] = (uint8_t)l->tensor_count;
    for (int axis = 0; axis < 4; axis++)
        if (view->size[axis] == 0)
            return;
    for (int axis = 0; axis < 4; axis++) {
        int64_t far = (view->size[axis] - 1) * view->stride[axis] * t->element;
        *(far < 0 ? &t->begin : &t->end) += (uintptr_t)far;
    }
    t->end += (uintptr_t)t->element;
}

static size_t touched_bytes(const tensor *t)
{
    return (t->end - t->begin) / (size_t)t->element / 8 + 1;
}

void *zeroed(size_t bytes)
{
    if (bytes < (size_t)1 << 16)
        return calloc(1, bytes);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void zeroed_free(void *memory, size_t bytes)
{
    if (bytes < (size_t)1 << 16)
        free(memory);
    else if (memory)
        munmap(memory, bytes);
}

bool tensors_of_launch(launch *l)
{
    collecting = l;
    ((simt_entry)l->kernel->entry)(l->args, NULL);
    collecting = NULL;
    for (int32_t t = 0; t < l->tensor_count; t++)
        for (int write = 0; write < 2; write++)
            if (!(l->tensors[t].touched[write] = zeroed(touched_bytes(&l->tensors[t]))))
                return false;
    return regions_of_launch(l);
}

void tensors_free(launch *l)
{
    for (int32_t t = 0; t < l->tensor_count; t++)
        for (int write = 0; write < 2; write++)
            zeroed_free(l->tensors[t].touched[write], touched_bytes(&l->tensors[t]));
    regions_free(l);
}

/* The tensor of an access: the view's own place in the arguments, or, for a view that the kernel made, whose memory it is. */
static int tensor_number(const launch *l, const kiln_view *view, uintptr_t p)
{
    uintptr_t place = (uintptr_t)view - (uintptr_t)l->args;
    if (place < (uintptr_t)l->kernel->args_bytes && place < ARGS_LIMIT && l->tensor_of[place / 8])
        return l->tensor_of[place / 8] - 1;
    for (int t = 0; t < l->tensor_count; t++)
        if (p >= l->tensors[t].begin && p < l->tensors[t].end)
            return t;
    return -1;
}

static void describe(char *text, size_t cap, const int64_t *index, int indices)
{
    if (indices == 2)
        snprintf(text, cap, "row %lld column %lld", (long long)index[0], (long long)index[1]);
    else
        snprintf(text, cap, "(%lld, %lld, %lld, %lld)", (long long)index[0], (long long)index[1], (long long)index[2],
                 (long long)index[3]);
}

static bool is_nan(const unsigned char *element, int32_t type)
{
    uint16_t half;
    float x = 0;
    memcpy(&half, element, sizeof half);
    if (type == KILN_FLOAT32)
        memcpy(&x, element, sizeof x);
    else if (type == KILN_FLOAT16)
        x = kiln_f16_to_float(half);
    else if (type == KILN_BFLOAT16)
        x = kiln_bf16_to_float(half);
    return x != x;
}

void stored_check(lane *me)
{
    const stored s = me->stored;
    me->stored.of = NULL;
    for (int32_t i = 0; s.of && i < s.bytes; i += s.of->element)
        if (is_nan(s.place + i, s.of->view->type)) {
            int64_t index[4];
            char place[96];
            memcpy(index, s.index, sizeof index);
            index[s.indices - 1] += i / s.of->element;
            describe(place, sizeof place, index, s.indices);
            simt_fault(s.at, "NaN stored in tensor %s at %s", s.of->name, place);
        }
}

void simt_global_access(const kiln_view *view, const void *p, int bytes, int align, int element, bool write,
                        bool inside, const int64_t *index, int indices, simt_at at)
{
    simt_machine *m = this_machine();
    lane *me = this_lane();
    const launch *l = m->launch;
    if (me->stored.of)
        stored_check(me);
    const uintptr_t address = (uintptr_t)p;
    const int number = tensor_number(l, view, address);
    const tensor *t = number < 0 ? NULL : &l->tensors[number];
    const char *name = t ? t->name : "(no argument)";
    if (!inside || !t || address < t->begin || address + (uintptr_t)bytes > t->end) {
        char place[96];
        describe(place, sizeof place, index, indices);
        simt_fault(at, "%s of %d bytes outside tensor %s (%lld x %lld x %lld x %lld) at %s", write ? "store" : "load",
                   bytes, name, (long long)view->size[0], (long long)view->size[1], (long long)view->size[2],
                   (long long)view->size[3], place);
    }
    if (element != t->element)
        simt_fault(at, "%s of %d-byte elements of tensor %s, which has %d-byte ones", write ? "store" : "load", element,
                   name, t->element);
    if (address % (uintptr_t)align) {
        char place[96];
        describe(place, sizeof place, index, indices);
        simt_fault(at, "misaligned %d-byte %s of tensor %s at %s", align, write ? "store" : "load", name, place);
    }
    simt_tensor_counters *c = &m->count.tensor[number];
    *(write ? &c->written : &c->read) += bytes;
    count_record(at, address, bytes, write ? GLOBAL_STORE : GLOBAL_LOAD, number);
    size_t first = (address - t->begin) / (size_t)t->element;
    for (size_t i = first; i < first + (size_t)(bytes / element); i++) {
        uint8_t *byte = &t->touched[write][i / 8];
        const uint8_t bit = (uint8_t)(1u << i % 8);
        if (!(__atomic_load_n(byte, __ATOMIC_RELAXED) & bit) && !(__atomic_fetch_or(byte, bit, __ATOMIC_RELAXED) & bit))
            *(write ? &c->distinct_written : &c->distinct_read) += element;
    }
    region_access(m, t, address, bytes, write, at);
    if (write && t->watched) {
        me->stored = (stored){.of = t, .place = p, .bytes = bytes, .indices = indices, .at = at};
        memcpy(me->stored.index, index, sizeof *index * (size_t)indices);
    }
}

void simt_atomic_access(const kiln_view *view, const void *p, int bytes, bool inside, simt_at at)
{
    simt_machine *m = this_machine();
    const uintptr_t address = (uintptr_t)p;
    if (view) {
        const int number = tensor_number(m->launch, view, address);
        const tensor *t = number < 0 ? NULL : &m->launch->tensors[number];
        if (!inside || !t || address < t->begin || address + (uintptr_t)bytes > t->end)
            simt_fault(at, "atomic access outside tensor %s", t ? t->name : "(no argument)");
    }
    if (address % (uintptr_t)bytes)
        simt_fault(at, "misaligned atomic access");
    m->count.atomics++;
}
