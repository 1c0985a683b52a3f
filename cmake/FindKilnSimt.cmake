# SPDX-License-Identifier: MIT OR Apache-2.0
# clang++ for the emulated devices: KilnSimt_FOUND with KILN_SIMT_CXX, or what is missing in KilnSimt_MISSING.
# A test tool: without KILN_ENABLE_SIMT=ON it is made only together with the tests.
set(KilnSimt_FOUND FALSE)
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/backends/simt/CMakeLists.txt)
    set(KilnSimt_MISSING "this version has no emulated device")
    return()
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(KilnSimt_MISSING "the emulated device runs on x86-64 only")
    return()
endif()
if(NOT KILN_BUILD_TESTS AND NOT KILN_ENABLE_SIMT STREQUAL "ON")
    return()
endif()
find_program(KILN_SIMT_CXX NAMES clang++-22 clang++-21 clang++-20 clang++-19 clang++
    DOC "The compiler of the emulated devices")
mark_as_advanced(KILN_SIMT_CXX)
if(KILN_SIMT_CXX)
    execute_process(COMMAND ${KILN_SIMT_CXX} -dumpversion OUTPUT_VARIABLE KilnSimt_version ERROR_QUIET
        OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(KilnSimt_version VERSION_GREATER_EQUAL 19)
        set(KilnSimt_FOUND TRUE)
    else()
        set(KilnSimt_MISSING "${KILN_SIMT_CXX} is version ${KilnSimt_version}; 19 or newer is needed (Debian and Ubuntu: clang-19)")
    endif()
endif()
