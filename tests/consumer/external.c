/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A whole program: one query, two keys with equal scores, so o is the mean of their values, "3 4". */
#include <kiln/kiln.h>
#include <stdio.h>
int main(void)
{
    float data[4][4] = {{1, 1}, {1, 0, 0, 1}, {1, 2, 5, 6}, {0, 0}}; /* q, k, v, o */
    int64_t shape[4][4] = {{1, 1, 1, 2}, {1, 1, 2, 2}, {1, 1, 2, 2}, {1, 1, 1, 2}};
    kiln_device cpu = {KILN_DEVICE_CPU, 0};
    kiln_tensor t[4];
    for (int i = 0; i < 4; i++)
        t[i] = kiln_tensor_make(cpu, data[i], KILN_FLOAT32, 4, shape[i], NULL);
    kiln_attention_forward_args args = {sizeof args, &t[0], &t[1], &t[2], &t[3]};
    kiln_context_options options = {sizeof options, "cpu"};
    kiln_context *context;
    size_t bytes;
    void *workspace;
    if (kiln_context_create(&context, &options) || kiln_attention_forward_workspace(context, &args, &bytes) ||
        kiln_malloc(context, bytes, &workspace) || kiln_attention_forward(context, &args, workspace, bytes, NULL))
        return puts(kiln_last_error()), 1;
    printf("%g %g\n", data[3][0], data[3][1]);
    kiln_free(context, workspace);
    kiln_context_destroy(context);
    return !(data[3][0] == 3 && data[3][1] == 4);
}
