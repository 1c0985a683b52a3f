/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_cuda_faults.c: cuda_faults NAME: what needs a process of its own: faults that spoil it, and first calls of a process.
 * Exit code 0, 1 with a line that says why, or 77 where there is no device.
 */
#include <stdio.h>
#include <string.h>

#include "../support/rows.h"
#include "driver.h"

static const cuda_driver *cuda;

static int complain(const char *what)
{
    printf("failed: %s (%s)\n", what, kiln_last_error());
    return 1;
}

/* A tensor that lies nowhere: the call is accepted, waiting reports the fault, and so do later calls. Nothing crashes. */
static int illegal_address(void)
{
    known_rows r;
    void *more = NULL;
    kiln_context *context = rows_context(0);
    if (!context || rows_new(&r, context) != KILN_OK)
        return complain("the memory");
    r.tx.data = (void *)(uintptr_t)4096;
    kiln_status status = rows_run(&r, NULL);
    if (status != KILN_OK && status != KILN_DEVICE_ERROR)
        return complain("the call");
    if (kiln_stream_synchronize(context, NULL) != KILN_DEVICE_ERROR)
        return complain("waiting does not report the fault");
    printf("%s\n", kiln_last_error());
    if (!strstr(kiln_last_error(), "cuda device 0"))
        return complain("the sentence does not say where");
    if (kiln_malloc(context, 256, &more) != KILN_DEVICE_ERROR || rows_run(&r, NULL) != KILN_DEVICE_ERROR)
        return complain("the device works again");
    kiln_context_destroy(context);
    return 0;
}

/* A stream that belongs to another CUDA context: the driver takes the launch, and then it is right, or refuses it, and then
 * there is a status. The next call works. */
static int foreign_stream(void)
{
    int device;
    known_rows r;
    void *other, *stream;
    kiln_context *context = rows_context(0);
    if (!context || rows_new(&r, context) != KILN_OK)
        return complain("the memory");
    if (cuda->DeviceGet(&device, 0) || cuda->CtxCreate_v2(&other, 0, device) || cuda->StreamCreate(&stream, 1) ||
        cuda->CtxSetCurrent(NULL))
        return complain("the driver");
    if (rows_set(&r, 2, NULL) != KILN_OK)
        return complain("the input");
    kiln_status status = rows_run(&r, stream);
    printf("status %s: %s\n", kiln_status_name(status), kiln_last_error());
    if (status == KILN_OK && !rows_right(&r, 2, stream))
        return complain("the launch was taken, and its result is wrong");
    if (rows_run(&r, NULL) != KILN_OK || !rows_right(&r, 2, NULL))
        return complain("the call after it");
    if (rows_free(&r) != KILN_OK)
        return complain("freeing");
    kiln_context_destroy(context);
    return 0;
}

/* The first call of a process is captured, without kiln_<op>_prepare(). */
static int first_call_captured(void)
{
    known_rows r;
    kiln_stream stream;
    void *graph, *replay;
    kiln_context *context = rows_context(0);
    if (!context || rows_new(&r, context) != KILN_OK)
        return complain("the memory");
    if (rows_set(&r, 4, NULL) != KILN_OK || kiln_stream_create(context, &stream) != KILN_OK ||
        kiln_stream_synchronize(context, NULL) != KILN_OK)
        return complain("the stream");
    if (ON_DEVICE(cuda->StreamBeginCapture_v2(stream, CUDA_CAPTURE_GLOBAL)) || rows_run(&r, stream) != KILN_OK)
        return complain("the call inside the capture");
    if (ON_DEVICE(cuda->StreamEndCapture(stream, &graph)) ||
        ON_DEVICE(cuda->GraphInstantiateWithFlags(&replay, graph, 0)) || ON_DEVICE(cuda->GraphLaunch(replay, stream)))
        return complain("the driver");
    if (!rows_right(&r, 4, stream))
        return complain("the replay");
    return 0;
}

/* What cannot be captured says so and leaves the process whole. */
static int malloc_in_capture(void)
{
    known_rows r;
    kiln_stream stream;
    void *graph = NULL, *memory = NULL;
    kiln_context *context = rows_context(0);
    if (!context || rows_new(&r, context) != KILN_OK)
        return complain("the memory");
    if (kiln_stream_create(context, &stream) != KILN_OK ||
        ON_DEVICE(cuda->StreamBeginCapture_v2(stream, CUDA_CAPTURE_GLOBAL)))
        return complain("the stream");
    kiln_status status = kiln_malloc(context, 1 << 20, &memory);
    printf("status %s: %s\n", kiln_status_name(status), status == KILN_OK ? "" : kiln_last_error());
    if (status != KILN_OK && status != KILN_UNSUPPORTED)
        return complain("kiln_malloc() inside a capture");
    (void)ON_DEVICE(cuda->StreamEndCapture(stream, &graph)); /* perhaps spoiled: that is the caller's doing */
    if (rows_set(&r, 1, NULL) != KILN_OK || rows_run(&r, NULL) != KILN_OK || !rows_right(&r, 1, NULL))
        return complain("a call after the capture");
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } tests[] = {{"illegal_address", illegal_address},
                 {"foreign_stream", foreign_stream},
                 {"first_call_captured", first_call_captured},
                 {"malloc_in_capture", malloc_in_capture}};
    kiln_context_options options = {.struct_size = sizeof options, .backend = "cuda"};
    kiln_context *context;
    cuda = cuda_driver_get();
    kiln_status status = kiln_context_create(&context, &options);
    if (!cuda || status == KILN_UNAVAILABLE) {
        printf("skipped: %s\n", cuda ? kiln_last_error() : "no CUDA device");
        return 77;
    }
    kiln_context_destroy(context);
    for (size_t i = 0; argc == 2 && i < sizeof tests / sizeof *tests; i++)
        if (strcmp(argv[1], tests[i].name) == 0)
            return tests[i].run();
    printf("usage: cuda_faults illegal_address|foreign_stream|first_call_captured|malloc_in_capture\n");
    return 1;
}
