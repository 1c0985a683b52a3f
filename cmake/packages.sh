#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# packages.sh build|test|ci|hip|aarch64 ...: installs what is missing for building (compiler, CMake, hwloc, jansson, gnuplot), for
# the tests (Check, C++, Python), for .ci/run, for building the HIP backend without ROCm, or for building and testing the preset
# aarch64, by apt-get, as root or through sudo. Touches nothing when nothing is missing.
# On a system without apt-get it says what to install. No GPU toolkit is needed.
set -euo pipefail

missing=()
need() # need PACKAGE COMMAND...: PACKAGE is missing unless COMMAND succeeds
{
    local package=$1
    shift
    "$@" &>/dev/null || missing+=("$package")
}
find_header() { echo "#include <$1>" | cc -E -; } # for libraries whose pkg-config file needs pkg-config to be seen

for purpose in "$@"; do
    case $purpose in
    build)
        need gcc command -v cc
        need libc6-dev find_header stdio.h
        need cmake command -v cmake
        need ninja-build command -v ninja
        need pkg-config command -v pkg-config
        need libhwloc-dev find_header hwloc.h
        need libjansson-dev find_header jansson.h
        need gnuplot-nox command -v gnuplot
        ;;
    test)
        need check find_header check.h
        need g++ command -v c++
        need binutils command -v readelf
        need python3 command -v python3
        ;;
    ci)
        need clang command -v clang
        need clang-19 command -v clang++-19
        need libomp-dev test -n "$(find /usr/lib/llvm-*/lib -name 'libomp.so' -print -quit 2>/dev/null)"
        need clang-format-14 command -v clang-format-14
        need doxygen command -v doxygen
        need shellcheck command -v shellcheck
        need mandoc command -v mandoc
        need git command -v git
        need python3-numpy /usr/bin/python3 -c 'import numpy'
        ;;
    hip) # one compiler for all chips; llvm's tools are for the gates
        need clang-22 command -v clang++-22
        need lld-22 command -v ld.lld-22
        need llvm-22 command -v llvm-readelf-22
        ;;
    aarch64) # cross compiler, emulator, and the libraries of Debian's architecture arm64
        need gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
        need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
        need qemu-user command -v qemu-aarch64
        need libgomp1:arm64 test -e /usr/lib/aarch64-linux-gnu/libgomp.so.1
        need check:arm64 test -e /usr/lib/aarch64-linux-gnu/pkgconfig/check.pc
        need libjansson-dev:arm64 test -e /usr/lib/aarch64-linux-gnu/pkgconfig/jansson.pc
        ;;
    *)
        echo "packages.sh: unknown purpose $purpose; it takes build, test, ci, hip, aarch64" >&2
        exit 2
        ;;
    esac
done

if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null; then
        echo "Missing, and there is no apt-get: install what your system calls ${missing[*]}, then run this again." >&2
        exit 1
    fi
    root=()
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || {
            echo "Missing: ${missing[*]}. Neither root nor sudo: ask for apt-get install ${missing[*]}" >&2
            exit 1
        }
        root=(sudo)
    fi
    echo "== installing ${missing[*]}"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 "$@" &>"$log"; }
    if [[ "${missing[*]}" == *:arm64* ]]; then "${root[@]}" dpkg --add-architecture arm64; fi
    # A fresh machine has no package lists, an old one stale ones.
    if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
        cat "$log" >&2
        exit 1
    fi
fi

version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
if [[ $(printf '%s\n' 3.25 "$version" | sort -V | head -n 1) != 3.25 ]]; then
    echo "CMake is $version; Kiln needs 3.25 (Debian 12, Ubuntu 23.04 or newer have it; else https://cmake.org/download)." >&2
    exit 1
fi
