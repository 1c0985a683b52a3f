/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* calls.c: the four calls of every operation behind one signature, and the rules that they must obey together. */
#include "fixture.h"

#include <stdio.h>

kiln_status test_supported(kiln_op op, const kiln_context *context, const void *args, char *why, size_t cap)
{
    switch (op) {
    case KILN_OP_SOFTMAX_FORWARD: return kiln_softmax_forward_supported(context, args, why, cap);
    case KILN_OP_SOFTMAX_BACKWARD: return kiln_softmax_backward_supported(context, args, why, cap);
    case KILN_OP_ATTENTION_FORWARD: return kiln_attention_forward_supported(context, args, why, cap);
    case KILN_OP_ATTENTION_BACKWARD: return kiln_attention_backward_supported(context, args, why, cap);
    case KILN_OP_ATTENTION_MERGE: return kiln_attention_merge_supported(context, args, why, cap);
    default: return KILN_INTERNAL;
    }
}

kiln_status test_workspace(kiln_op op, const kiln_context *context, const void *args, size_t *bytes)
{
    switch (op) {
    case KILN_OP_SOFTMAX_FORWARD: return kiln_softmax_forward_workspace(context, args, bytes);
    case KILN_OP_SOFTMAX_BACKWARD: return kiln_softmax_backward_workspace(context, args, bytes);
    case KILN_OP_ATTENTION_FORWARD: return kiln_attention_forward_workspace(context, args, bytes);
    case KILN_OP_ATTENTION_BACKWARD: return kiln_attention_backward_workspace(context, args, bytes);
    case KILN_OP_ATTENTION_MERGE: return kiln_attention_merge_workspace(context, args, bytes);
    default: return KILN_INTERNAL;
    }
}

kiln_status test_prepare(kiln_op op, kiln_context *context, const void *args)
{
    switch (op) {
    case KILN_OP_SOFTMAX_FORWARD: return kiln_softmax_forward_prepare(context, args);
    case KILN_OP_SOFTMAX_BACKWARD: return kiln_softmax_backward_prepare(context, args);
    case KILN_OP_ATTENTION_FORWARD: return kiln_attention_forward_prepare(context, args);
    case KILN_OP_ATTENTION_BACKWARD: return kiln_attention_backward_prepare(context, args);
    case KILN_OP_ATTENTION_MERGE: return kiln_attention_merge_prepare(context, args);
    default: return KILN_INTERNAL;
    }
}

kiln_status test_call(kiln_op op, kiln_context *context, const void *args, void *workspace, size_t bytes)
{
    switch (op) {
    case KILN_OP_SOFTMAX_FORWARD: return kiln_softmax_forward(context, args, workspace, bytes, NULL);
    case KILN_OP_SOFTMAX_BACKWARD: return kiln_softmax_backward(context, args, workspace, bytes, NULL);
    case KILN_OP_ATTENTION_FORWARD: return kiln_attention_forward(context, args, workspace, bytes, NULL);
    case KILN_OP_ATTENTION_BACKWARD: return kiln_attention_backward(context, args, workspace, bytes, NULL);
    case KILN_OP_ATTENTION_MERGE: return kiln_attention_merge(context, args, workspace, bytes, NULL);
    default: return KILN_INTERNAL;
    }
}

/* Workspace with sentinels behind it: NaN inside, a pattern after it. Reused while it is large enough. */
enum { WORKSPACE_GUARD = 256, WORKSPACE_POISON = 0xff, GUARD_PATTERN = 0x5a };

kiln_status test_run(kiln_op op, kiln_context *context, const void *args, char *why, size_t cap)
{
    char text[512] = "";
    size_t bytes = 0;
    void *workspace = NULL;
    unsigned char guard[WORKSPACE_GUARD];

    kiln_status expected = test_supported(op, context, args, text, sizeof text);
    TEST_REQUIRE(text[0] != '\0', "supported says %s and leaves `why` empty", kiln_status_name(expected));
    kiln_status status = test_workspace(op, context, args, &bytes);
    TEST_REQUIRE(status == expected, "supported says %s, workspace says %s", kiln_status_name(expected),
                 kiln_status_name(status));
    status = test_prepare(op, context, args);
    TEST_REQUIRE(status == expected, "supported says %s, prepare says %s", kiln_status_name(expected),
                 kiln_status_name(status));
    if (expected != KILN_OK)
        bytes = 4096; /* the call must refuse for the same reason, not for want of a workspace */

    test_upload();
    TEST_REQUIRE(kiln_malloc(context, bytes + WORKSPACE_GUARD, &workspace) == KILN_OK, "kiln_malloc of %zu: %s", bytes,
                 kiln_last_error());
    TEST_REQUIRE((uintptr_t)workspace % 256 == 0, "kiln_malloc is not aligned to 256 bytes");
    kiln_fill(context, workspace, WORKSPACE_POISON, bytes, NULL);
    kiln_fill(context, (char *)workspace + bytes, GUARD_PATTERN, WORKSPACE_GUARD, NULL);
    status = test_call(op, context, args, bytes ? workspace : NULL, bytes);
    TEST_REQUIRE(kiln_stream_synchronize(context, NULL) == KILN_OK, "synchronize: %s", kiln_last_error());
    if (status == KILN_OK && expected == KILN_OK) {
        test_check_memory();
    } else {
        /* A call may in addition refuse the contents of lengths; then it says so and has written nothing. */
        TEST_REQUIRE(status == expected || (expected == KILN_OK && status == KILN_INVALID_ARGUMENT),
                     "supported says %s (%s), the call says %s (%s)", kiln_status_name(expected), text,
                     kiln_status_name(status), kiln_last_error());
        snprintf(text, sizeof text, "%s", kiln_last_error());
        TEST_REQUIRE(text[0] != '\0', "%s without a sentence", kiln_status_name(status));
        test_check_untouched("refused");
    }
    kiln_copy(context, guard, (char *)workspace + bytes, WORKSPACE_GUARD, NULL);
    for (int i = 0; i < WORKSPACE_GUARD; i++)
        TEST_REQUIRE(guard[i] == GUARD_PATTERN, "the call wrote %d bytes past its workspace of %zu", i, bytes);
    kiln_free(context, workspace);
    if (why && cap)
        snprintf(why, cap, "%s", text);
    return status;
}
