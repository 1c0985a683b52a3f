# SPDX-License-Identifier: MIT OR Apache-2.0
# For AArch64 Linux with Debian's cross compiler; programs run under qemu-user. Libraries are those of Debian's architecture
# arm64, which lie beside the host's own (packages.sh aarch64). No -L for qemu: with the folder of the cross compiler as its
# root, programs get one glibc's loader and another's libc.so, and hang in pthread_create().
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(kiln_triplet aarch64-linux-gnu)
set(CMAKE_C_COMPILER ${kiln_triplet}-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE ${kiln_triplet})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)

# Programs of the host, everything else of the target; pkg-config must not find the host's libraries.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/${kiln_triplet}/pkgconfig:/usr/share/pkgconfig)
