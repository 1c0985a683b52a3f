/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dlopen LIBRARY [COPY]: a host loads libkiln at run time with RTLD_LOCAL, runs attention on four threads, closes it,
 * and goes on. The worker threads of OpenMP outlive the dlclose(); the code they sleep in must still be there when they
 * wake. Three rounds, once also from a thread that ends afterwards (destructors of thread-local data run after the
 * dlclose()). Then the same with another file of the same library, as two parts of a host may bring along one each.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <kiln/kiln.h>

static const char *library;

/* POSIX wants this detour from an object pointer to a function pointer. */
#define LOAD(name)                                                                                                     \
    __typeof__(&name) p_##name;                                                                                        \
    *(void **)&p_##name = dlsym(handle, #name);                                                                        \
    if (!p_##name) {                                                                                                   \
        fprintf(stderr, "%s\n", dlerror());                                                                            \
        exit(1);                                                                                                       \
    }

static void *round_trip(void *unused)
{
    enum { H = 8, S = 256, D = 64 };
    static float q[H][S][D], k[H][S][D], v[H][S][D], o[H][S][D];
    int64_t shape[] = {1, H, S, D};
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    LOAD(kiln_context_create)
    LOAD(kiln_context_destroy)
    LOAD(kiln_context_device)
    LOAD(kiln_attention_forward)
    LOAD(kiln_attention_forward_workspace)
    LOAD(kiln_last_error)
    for (int h = 0; h < H; h++)
        for (int j = 0; j < S; j++)
            v[h][j][0] = (float)h, o[h][j][0] = -1;

    kiln_context_options options = {.struct_size = sizeof options, .backend = "cpu", .max_threads = 4};
    kiln_context *context;
    if (p_kiln_context_create(&context, &options) != KILN_OK) {
        fprintf(stderr, "%s\n", p_kiln_last_error());
        exit(1);
    }
    kiln_device cpu = p_kiln_context_device(context);
    kiln_tensor tq = kiln_tensor_make(cpu, q, KILN_FLOAT32, 4, shape, NULL);
    kiln_tensor tk = kiln_tensor_make(cpu, k, KILN_FLOAT32, 4, shape, NULL);
    kiln_tensor tv = kiln_tensor_make(cpu, v, KILN_FLOAT32, 4, shape, NULL);
    kiln_tensor to = kiln_tensor_make(cpu, o, KILN_FLOAT32, 4, shape, NULL);
    kiln_attention_forward_args args = {.struct_size = sizeof args, .q = &tq, .k = &tk, .v = &tv, .o = &to};
    size_t bytes = 0;
    kiln_status status = p_kiln_attention_forward_workspace(context, &args, &bytes);
    void *workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
    if (status == KILN_OK)
        status = p_kiln_attention_forward(context, &args, workspace, bytes, NULL);
    if (status != KILN_OK || !(o[H - 1][S - 1][0] > H - 1.001f && o[H - 1][S - 1][0] < H - 0.999f)) {
        fprintf(stderr, "status %d, %s, o = %g\n", (int)status, p_kiln_last_error(), (double)o[H - 1][S - 1][0]);
        exit(1);
    }
    free(workspace);
    p_kiln_context_destroy(context);
    if (dlclose(handle) != 0) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    nanosleep(&(struct timespec){0, 100000000}, NULL); /* long enough for a spinning worker to fall asleep */
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc != 2 && argc != 3)
        return 2;
    library = argv[1];
    round_trip(NULL);
    if (pthread_create(&thread, NULL, round_trip, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 1;
    round_trip(NULL);
    library = argv[argc - 1];
    round_trip(NULL);
    puts("loaded, used and closed four times");
    return 0;
}
