/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* args.c: argument structs of other versions of the header. */
#include <string.h>

#include "context.h"

kiln_status kiln_args_copy(void *copy, size_t size, const void *args, const char *name)
{
    if (!args)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is NULL; pass the address of one", name);
    size_t theirs;
    memcpy(&theirs, args, sizeof theirs);
    if (theirs < sizeof theirs || theirs % sizeof(void *)) /* no version of the struct ends inside a pointer */
        return kiln_fail(KILN_VERSION_MISMATCH,
                         "%s.struct_size is %zu; set it to sizeof(%s), which is %zu in this version of the library",
                         name, theirs, name, size);
    for (size_t i = size; i < theirs; i++)
        if (((const unsigned char *)args)[i])
            return kiln_fail(KILN_VERSION_MISMATCH,
                             "%s.struct_size is %zu but this library (%s) knows %zu bytes, and byte %zu is not zero: a "
                             "field that it does not have is set",
                             name, theirs, kiln_version_string(), size, i);
    memset(copy, 0, size);
    memcpy(copy, args, theirs < size ? theirs : size);
    return KILN_OK;
}
