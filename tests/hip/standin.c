/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* standin.c: devices, memory, code objects and errors of the stand-in HIP runtime. See standin.h. */
#define _GNU_SOURCE
#include "standin_state.h"

#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

standin state;
_Thread_local int current_device;
static _Thread_local int last_error;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The emulated kernels that are linked in: a section of their descriptions. */
extern const gpu_kernel kernels_begin[] __asm__("__start_simt_kernels") __attribute__((visibility("hidden")));
extern const gpu_kernel kernels_end[] __asm__("__stop_simt_kernels") __attribute__((visibility("hidden")));

static void read_environment(void)
{
    const char *devices = getenv("KILN_STANDIN_DEVICES"), *rocm = getenv("KILN_STANDIN_ROCM");
    char text[256];
    snprintf(text, sizeof text, "%s", devices ? devices : "gfx942,gfx942");
    for (char *rest = text, *name; (name = strsep(&rest, ",")) && *name && state.device_count < DEVICES;)
        state.architecture[state.device_count++] = (int32_t)strtol(name + 3, NULL, 16);
    state.rocm5 = rocm && strcmp(rocm, "5") == 0;
    for (int i = 0; i < DEVICES; i++)
        state.defaults[i].device = i;
}

/* ------------------------------------------------------------------------------------------------ calls and errors */

static const char *fail_name, *failed_name;
static char fail_name_text[64];
static int fail_in, fail_error;

bool begin(const char *name, int *error)
{
    pthread_once(&once, read_environment);
    pthread_mutex_lock(&lock);
    state.counts.calls++;
    if (fail_in > 0 && (!fail_name || strcmp(name, fail_name) == 0) && --fail_in == 0) {
        failed_name = name;
        *error = fail_error;
    }
    return *error == 0;
}

int end(int error)
{
    pthread_mutex_unlock(&lock);
    if (error)
        last_error = error;
    return error;
}

API void standin_fail(const char *name, int n, int error);
void standin_fail(const char *name, int n, int error)
{
    pthread_mutex_lock(&lock);
    snprintf(fail_name_text, sizeof fail_name_text, "%s", name ? name : "");
    fail_name = name ? fail_name_text : NULL;
    fail_in = n, fail_error = error, failed_name = NULL;
    pthread_mutex_unlock(&lock);
}

API const char *standin_failed(void);
const char *standin_failed(void)
{
    return failed_name;
}

API void standin_count(standin_counts *counts);
void standin_count(standin_counts *counts)
{
    pthread_mutex_lock(&lock);
    *counts = state.counts;
    pthread_mutex_unlock(&lock);
}

API int hipGetLastError(void);
int hipGetLastError(void)
{
    const int error = last_error;
    last_error = 0;
    return error;
}

API const char *hipGetErrorString(int error);
const char *hipGetErrorString(int error)
{
    static _Thread_local char text[64];
    if (error == LAUNCH_FAILURE)
        return fault_text();
    snprintf(text, sizeof text, "stand-in error %d", error);
    return text;
}

/* ------------------------------------------------------------------------------------------------ devices */

API int hipGetDeviceCount(int *count);
int hipGetDeviceCount(int *count)
{
    CALL("hipGetDeviceCount", {
        *count = state.device_count;
        error = state.device_count ? 0 : NO_DEVICE;
    });
}

API int hipGetDevice(int *device);
int hipGetDevice(int *device)
{
    CALL("hipGetDevice", *device = current_device;);
}

API int hipSetDevice(int device);
int hipSetDevice(int device)
{
    CALL("hipSetDevice", {
        if (device < 0 || device >= state.device_count)
            error = INVALID_DEVICE;
        else
            current_device = device;
    });
}

API int hipDeviceGetAttribute(int *value, int attribute, int device);
int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    CALL("hipDeviceGetAttribute", {
        const int32_t number = device >= 0 && device < state.device_count ? state.architecture[device] : 0;
        switch (number ? attribute : -1) {
        case 19: *value = 4 << 20; break;
        case 23: *value = (number >> 12) * 10 + (number >> 8 & 15); break; /* gfx1100: 11 */
        case 61: *value = number >> 4 & 15; break;
        case 63: *value = 304; break;
        case 74:
        case 10002: *value = 64 << 10; break;
        case 87: *value = number >> 8 == 9 ? 64 : 32; break;
        default: error = number ? INVALID_VALUE : INVALID_DEVICE;
        }
    });
}

API int hipDeviceGetName(char *name, int length, int device);
int hipDeviceGetName(char *name, int length, int device)
{
    CALL("hipDeviceGetName", snprintf(name, (size_t)length, "stand-in for an AMD device, %d", device););
}

API int hipDeviceTotalMem(size_t *bytes, int device);
int hipDeviceTotalMem(size_t *bytes, int device)
{
    (void)device;
    CALL("hipDeviceTotalMem", *bytes = (size_t)1 << 37;);
}

/* ------------------------------------------------------------------------------------------------ memory */

enum { PAGE = 4096 };

piece *piece_of(const void *pointer, size_t bytes)
{
    const uintptr_t at = (uintptr_t)pointer;
    for (piece *p = state.pieces; p; p = p->next)
        if (at >= (uintptr_t)p->begin && at + bytes <= (uintptr_t)p->begin + p->bytes)
            return p;
    return NULL;
}

void device_works(bool works)
{
    for (piece *p = state.pieces; p; p = p->next)
        mprotect(p->begin, p->pages, works ? PROT_READ | PROT_WRITE : PROT_NONE);
}

API int hipMalloc(void **pointer, size_t bytes);
int hipMalloc(void **pointer, size_t bytes)
{
    CALL("hipMalloc", {
        const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
        piece *p = calloc(1, sizeof *p);
        unsigned char *memory = p && bytes < (size_t)1 << 40 ? mmap(NULL, pages + 2 * PAGE, PROT_NONE,
                                                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                                             : MAP_FAILED;
        if (state.captures)
            error = CAPTURE_UNSUPPORTED;
        else if (memory == MAP_FAILED)
            error = OUT_OF_MEMORY;
        if (error) {
            free(p);
            if (memory != MAP_FAILED)
                munmap(memory, pages + 2 * PAGE);
        } else {
            *p = (piece){state.pieces, memory + PAGE, bytes, pages, current_device};
            state.pieces = p;
            state.counts.allocations++;
            *pointer = p->begin;
        }
    });
}

API int hipFree(void *pointer);
int hipFree(void *pointer)
{
    CALL("hipFree", {
        piece **link = &state.pieces;
        while (*link && (*link)->begin != pointer)
            link = &(*link)->next;
        piece *p = *link;
        if (state.captures)
            error = CAPTURE_UNSUPPORTED;
        else if (pointer && !p)
            error = INVALID_VALUE;
        else if (p && (error = run_device(p->device)) == 0) {
            *link = p->next;
            munmap(p->begin - PAGE, p->pages + 2 * PAGE);
            free(p);
            state.counts.allocations--;
        }
    });
}

API int hipPointerGetAttribute(void *data, int attribute, void *pointer);
int hipPointerGetAttribute(void *data, int attribute, void *pointer)
{
    CALL("hipPointerGetAttribute", {
        const bool known = piece_of(pointer, 1) != NULL;
        const uint32_t type = !known ? 0 : state.rocm5 ? 1 : 2;
        if (attribute != 2 || (!known && state.rocm5))
            error = INVALID_VALUE;
        else
            memcpy(data, &type, sizeof type);
    });
}

/* ------------------------------------------------------------------------------------------------ code objects */

/* The number of the architecture that an ELF file is for; 0: it is no code object of version 5 or older. */
static int32_t architecture_of(const unsigned char *image)
{
    static const struct {
        int mach;
        int32_t number;
    } known[] = {{0x3f, 0x90a}, {0x4c, 0x942}, {0x4f, 0x950}};
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != 224 || header.e_ident[EI_OSABI] != 64 ||
        header.e_ident[EI_ABIVERSION] > 3)
        return 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].mach == (int)(header.e_flags & 0xff))
            return known[i].number;
    return 0;
}

/* The descriptor of the kernel with this name, the 64 bytes at the symbol NAME.kd; NULL: there is none. */
static const unsigned char *descriptor_of(const unsigned char *image, const char *name)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
    char wanted[160];
    snprintf(wanted, sizeof wanted, "%s.kd", name);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM)
            continue;
        const char *names = (const char *)image + sections[sections[i].sh_link].sh_offset;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
        for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++)
            if (strcmp(names + symbols[n].st_name, wanted) == 0) {
                const Elf64_Shdr *in = &sections[symbols[n].st_shndx];
                return image + in->sh_offset + (symbols[n].st_value - in->sh_addr);
            }
    }
    return NULL;
}

/*
 * Does the machine code want what the description says? Shared memory: as much, or 64 bytes more where a block votes (more
 * would be private arrays that the compiler has put there). Arguments: as many bytes, 256 of HIP's own behind them. fp32 and
 * fp16 round to nearest and keep subnormals.
 */
static bool descriptor_fits(const unsigned char *descriptor, const gpu_kernel *kernel)
{
    uint32_t shared, args, modes;
    memcpy(&shared, descriptor, 4);
    memcpy(&args, descriptor + 8, 4);
    memcpy(&modes, descriptor + 48, 4);
    /* A struct without members has a byte, which nothing uses. */
    const uint32_t said = (uint32_t)kernel->shared_bytes;
    return shared <= said + 64 && (shared >= said || shared == 0) &&
           args == ((uint32_t)kernel->args_bytes + 7) / 8 * 8 + 256 && (modes >> 12 & 0xff) == 0xf0;
}

API int hipModuleLoadData(void **handle, const void *image);
int hipModuleLoadData(void **handle, const void *image)
{
    CALL("hipModuleLoadData", {
        const int32_t number = architecture_of(image);
        module *m = NULL;
        if (state.captures)
            error = CAPTURE_UNSUPPORTED;
        else if (number == 0)
            error = INVALID_IMAGE;
        else if (number != state.architecture[current_device])
            error = NO_BINARY_FOR_GPU;
        else if (!(m = calloc(1, sizeof *m)))
            error = OUT_OF_MEMORY;
        else {
            *m = (module){.next = state.modules, .image = image, .device = current_device};
            state.modules = m;
            state.counts.modules++;
            *handle = m;
        }
    });
}

static module **module_link(void *handle)
{
    module **link = &state.modules;
    while (*link && *link != handle)
        link = &(*link)->next;
    return link;
}

API int hipModuleUnload(void *handle);
int hipModuleUnload(void *handle)
{
    CALL("hipModuleUnload", {
        module **link = module_link(handle), *m = *link;
        if (!m)
            error = INVALID_HANDLE;
        else if ((error = run_device(m->device)) == 0) {
            *link = m->next;
            for (function *f = m->functions, *next; f; f = next)
                next = f->next, free(f);
            free(m);
            state.counts.modules--;
        }
    });
}

API int hipModuleGetFunction(void **result, void *handle, const char *name);
int hipModuleGetFunction(void **result, void *handle, const char *name)
{
    CALL("hipModuleGetFunction", {
        module *m = *module_link(handle);
        const gpu_kernel *kernel = kernels_begin;
        while (kernel != kernels_end && strcmp(kernel->name, name) != 0)
            kernel++;
        const unsigned char *descriptor = m ? descriptor_of(m->image, name) : NULL;
        function *f = NULL;
        if (!m)
            error = INVALID_HANDLE;
        else if (kernel == kernels_end || !descriptor)
            error = NOT_FOUND;
        else if (!descriptor_fits(descriptor, kernel))
            error = INVALID_IMAGE;
        else if (!(f = calloc(1, sizeof *f)))
            error = OUT_OF_MEMORY;
        else {
            *f = (function){m->functions, m, kernel};
            m->functions = f;
            *result = f;
        }
    });
}

static const function *function_of(const void *handle)
{
    for (const module *m = state.modules; m; m = m->next)
        for (const function *f = m->functions; f; f = f->next)
            if (f == handle)
                return f;
    return NULL;
}

API int hipModuleLaunchKernel(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream_handle,
                              void **parameters, void **extra);
int hipModuleLaunchKernel(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream_handle,
                          void **parameters, void **extra)
{
    CALL("hipModuleLaunchKernel", {
        const function *f = function_of(handle);
        stream *s = stream_of(stream_handle);
        operation *o = NULL;
        if (!f || !s)
            error = INVALID_HANDLE;
        else if (f->of->device != current_device)
            error = INVALID_DEVICE_FUNCTION;
        else if (!parameters || extra || shared_bytes != 0 || block_x != (unsigned)f->kernel->threads || block_y != 1 ||
                 block_z != 1 || grid_x == 0 || grid_y != 1 || grid_z != 1 || (uint64_t)grid_x * block_x > UINT32_MAX ||
                 f->kernel->shared_bytes > 64 << 10)
            error = INVALID_CONFIGURATION;
        else if (!(o = operation_new(LAUNCH, (size_t)f->kernel->args_bytes)))
            error = OUT_OF_MEMORY;
        else {
            o->kernel = f->kernel;
            o->blocks = (int32_t)grid_x;
            memcpy(o->args, parameters[0], (size_t)f->kernel->args_bytes);
            state.counts.launches++;
            error = enqueue(s, o);
        }
    });
}
