/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* version.c: the version of the library that runs. */
#include <kiln/kiln.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

int32_t kiln_version(void)
{
    return KILN_VERSION;
}

const char *kiln_version_string(void)
{
    return TEXT(KILN_VERSION_MAJOR) "." TEXT(KILN_VERSION_MINOR) "." TEXT(KILN_VERSION_PATCH);
}
