#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# consumer.sh WAY SOURCE BUILD WORK: one way to use the package. `install` comes first: it installs BUILD, moves the package
# to WORK/moved, makes a copy without the shared library in WORK/static, and takes the first program out of the README.
# Exit 77: something that this way needs is not on this machine; it says what.
# Environment: CC, CXX (default: c++), CMAKE, GENERATOR, PYTHON.
set -euo pipefail
way=$1 source=$2 build=$3 work=$4
here=$source/tests/consumer
moved=$work/moved static=$work/static
CC=${CC:-cc} CMAKE=${CMAKE:-cmake}
flags=(-Wall -Werror)
unset LD_LIBRARY_PATH KILN_BACKEND KILN_BACKEND_PATH CFLAGS LDFLAGS

skip() { echo "SKIPPED: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
has() { command -v "$1" >/dev/null || skip "$1 is not installed"; }
libdir() { dirname "$(dirname "$(find "$1" -name kiln.pc)")"; }

# run PROGRAM [linked|archive]: it works, and needs libkiln.so only if it should.
run()
{
    "$1" || fail "$1 returned $?"
    local needed=archive
    if readelf -dW "$1" | grep -q 'NEEDED.*libkiln'; then needed=linked; fi
    [[ $needed == "$2" ]] || fail "$1 should be $2 and is $needed"
}

# Both programs with one command line.
both()
{
    local kind=$1
    shift
    for program in first external; do
        "${compiler[@]}" "${flags[@]}" "$work/$program.c" -o "$work/bin/$way-$program" "$@"
        run "$work/bin/$way-$program" "$kind"
    done
}

# cmake_project PREFIX KIND COMPONENTS: both programs through find_package.
cmake_project()
{
    local tree=$work/$way
    rm -rf "$tree"
    mkdir -p "$tree"
    cat >"$tree/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(kiln 0.1 REQUIRED $3)
foreach(program first external)
    add_executable(\${program} $work/\${program}.c)
    target_link_libraries(\${program} PRIVATE kiln::kiln)
endforeach()
END
    "$CMAKE" -G "${GENERATOR:-Ninja}" -S "$tree" -B "$tree/build" -DCMAKE_C_COMPILER="$CC" -DCMAKE_PREFIX_PATH="$1" >"$tree/log" ||
        { cat "$tree/log"; fail "find_package"; }
    "$CMAKE" --build "$tree/build" >"$tree/log" || { cat "$tree/log"; fail "build"; }
    run "$tree/build/first" "$2"
    run "$tree/build/external" "$2"
}

compiler=("$CC" -std=c11)
case $way in
install)
    rm -rf "$work"
    mkdir -p "$work/bin"
    "$CMAKE" --install "$build" --prefix "$work/installed" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }
    mv "$work/installed" "$moved"
    if grep -rIlE "$work/installed|$build|$source/include" "$(libdir "$moved")"; then fail "these files of the package know where they were made"; fi
    [[ -d $(libdir "$moved")/kiln ]] || fail "the package has no folder for plug-ins"
    cp -r "$moved" "$static"
    rm -f "$(libdir "$static")"/libkiln.so* "$(libdir "$static")"/cmake/kiln/kiln-shared*.cmake
    awk '/^```c$/ { on = 1; next } /^```$/ && on { exit } on' "$source/README.md" >"$work/first.c"
    [[ -s $work/first.c ]] || fail "README.md has no C program"
    cp "$here/external.c" "$work/"
    ;;
cmake)
    cmake_project "$moved" linked ""
    cmake_project "$moved" linked "COMPONENTS shared"
    # A version that is not there must not be accepted: before 1.0 every minor version stands alone.
    sed -i 's/kiln 0.1/kiln 0.0/' "$work/$way/CMakeLists.txt"
    if "$CMAKE" -S "$work/$way" -B "$work/$way/other" -DCMAKE_PREFIX_PATH="$moved" &>"$work/$way/log"; then
        fail "find_package(kiln 0.0) accepts this version"
    fi
    ;;
cmake_static)
    cmake_project "$moved" archive "COMPONENTS static"
    cmake_project "$static" archive ""
    ;;
pkgconfig)
    has pkg-config
    PKG_CONFIG_PATH=$(libdir "$moved")/pkgconfig
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046 # words are wanted
    both linked $(pkg-config --cflags --libs kiln) "-Wl,-rpath,$(libdir "$moved")"
    ;;
pkgconfig_static)
    has pkg-config
    PKG_CONFIG_PATH=$(libdir "$static")/pkgconfig
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046
    both archive $(pkg-config --static --cflags --libs kiln)
    ;;
cc)
    both linked "-I$moved/include" "-L$(libdir "$moved")" -lkiln "-Wl,-rpath,$(libdir "$moved")"
    ;;
cc_static)
    # What an archive needs is written in one place of the package.
    private=$(sed -n 's/^Libs.private: //p' "$(libdir "$moved")/pkgconfig/kiln.pc")
    # shellcheck disable=SC2086
    both archive "-I$moved/include" "$(libdir "$moved")/libkiln.a" $private
    ;;
cxx)
    CXX=${CXX:-c++}
    has "$CXX"
    compiler=("$CXX" -std=c++17 -x c++)
    both linked "-I$moved/include" "-L$(libdir "$moved")" -lkiln "-Wl,-rpath,$(libdir "$moved")"
    ;;
dlopen)
    "$CC" -std=c11 -D_GNU_SOURCE "${flags[@]}" "-I$moved/include" "$here/dlopen.c" -o "$work/bin/dlopen" -ldl -lpthread
    cp -L "$(libdir "$moved")/libkiln.so" "$work/bin/copy_of_kiln.so"
    "$work/bin/dlopen" "$(libdir "$moved")/libkiln.so" "$work/bin/copy_of_kiln.so" || fail "dlopen returned $?"
    ;;
five_minutes)
    # The programs of include/README.md, word for word.
    tree=$work/$way
    mkdir -p "$tree"
    for language in c cpp python; do
        awk -v fence="^\`\`\`$language\$" '$0 ~ fence { on = 1; next } /^```$/ { on = 0 } on' \
            "$source/include/README.md" >"$tree/attention.$language"
        [[ -s $tree/attention.$language ]] || fail "include/README.md has no $language program"
    done
    link=("-I$moved/include" "-L$(libdir "$moved")" -lkiln "-Wl,-rpath,$(libdir "$moved")")
    "$CC" -std=c11 "${flags[@]}" "$tree/attention.c" -o "$tree/c" "${link[@]}"
    run "$tree/c" linked
    CXX=${CXX:-c++}
    has "$CXX"
    "$CXX" -std=c++17 "${flags[@]}" "$tree/attention.cpp" -o "$tree/cpp" "${link[@]}"
    run "$tree/cpp" linked
    for python in ${PYTHON:-python3 /usr/bin/python3}; do
        if "$python" -c 'import numpy' 2>/dev/null; then
            "$python" "$tree/attention.python" "$(libdir "$moved")/libkiln.so"
            exit
        fi
    done
    skip "C and C++ ran; no python3 with NumPy (Debian and Ubuntu: python3-numpy)"
    ;;
program)
    [[ -x $moved/bin/kiln ]] || skip "the program was not built (KILN_BUILD_PROGRAM)"
    (cd / && "$moved/bin/kiln" info) || fail "kiln info"
    ;;
python | numpy)
    for python in ${PYTHON:-python3 /usr/bin/python3}; do
        command -v "$python" >/dev/null || continue
        if [[ $way == python ]] || "$python" -c 'import numpy' 2>/dev/null; then
            "$python" "$here/attention.py" "$(libdir "$moved")/libkiln.so" "$way"
            exit
        fi
    done
    skip "no python3 with what \`$way\` needs (Debian and Ubuntu: python3, python3-numpy)"
    ;;
*) fail "unknown way $way" ;;
esac
