# SPDX-License-Identifier: MIT OR Apache-2.0
# Options of the build and what was found for them.
# KILN_ENABLE_x: AUTO = use it if it is there; ON = missing is an error; OFF = do not look.
option(BUILD_SHARED_LIBS "kiln::kiln is the shared library; OFF: the archive" ON)
option(KILN_BUILD_PROGRAM "Build the kiln program (needs jansson)" ${PROJECT_IS_TOP_LEVEL})
option(KILN_BUILD_TESTS "Build the tests (needs Check)" ${PROJECT_IS_TOP_LEVEL})
option(KILN_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
option(KILN_WERROR "Treat warnings as errors" OFF)
option(KILN_AMX_EMULATE "Tests only: the tile kernels run on any processor with AVX-512, very slowly" OFF)
option(KILN_BUILD_FUZZERS "Build the libFuzzer targets of tests/fuzz, everything with their sanitizers (needs clang)" OFF)
set(KILN_SANITIZE "" CACHE STRING "Sanitizers for everything, for example address,undefined or thread")
if(KILN_AMX_EMULATE)
    add_compile_definitions(KILN_AMX_EMULATE) # the library and the tests that use tiles themselves
endif()
if(KILN_BUILD_FUZZERS)
    if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
        message(FATAL_ERROR "KILN_BUILD_FUZZERS=ON, but the compiler is ${CMAKE_C_COMPILER_ID}; libFuzzer comes with clang. "
            "Set CMAKE_C_COMPILER=clang, or the option to OFF: the kept corpus is replayed with any compiler.")
    endif()
    set(KILN_SANITIZE fuzzer-no-link,address,undefined)
endif()
foreach(feature OPENMP HWLOC CUDA HIP SIMT)
    set(KILN_ENABLE_${feature} AUTO CACHE STRING "AUTO, ON or OFF")
    set_property(CACHE KILN_ENABLE_${feature} PROPERTY STRINGS AUTO ON OFF)
    string(TOUPPER "${KILN_ENABLE_${feature}}" KILN_ENABLE_${feature})
    if(NOT KILN_ENABLE_${feature} MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "KILN_ENABLE_${feature} is ${KILN_ENABLE_${feature}}; allowed are AUTO, ON and OFF.")
    endif()
endforeach()

# Plug-ins, by the toolchain that they need: FindKiln*.cmake.
set(KilnCuda_MISSING "nvcc of a CUDA toolkit 12.4 or newer was not found")
set(KilnHip_MISSING "clang++ 19 or newer with lld was not found")
set(KilnSimt_MISSING "clang++ 19 or newer was not found")
foreach(plugin Cuda Hip Simt)
    string(TOUPPER ${plugin} upper)
    set(KILN_HAVE_${upper} OFF)
    if(NOT KILN_ENABLE_${upper} STREQUAL "OFF")
        find_package(Kiln${plugin} QUIET)
        if(Kiln${plugin}_FOUND)
            set(KILN_HAVE_${upper} ON)
        elseif(KILN_ENABLE_${upper} STREQUAL "ON")
            message(FATAL_ERROR "KILN_ENABLE_${upper}=ON, but ${Kiln${plugin}_MISSING}. Nothing else needs it: set it to "
                "AUTO or OFF to build without.")
        endif()
    endif()
endforeach()

set(KILN_HAVE_OPENMP OFF)
if(NOT KILN_ENABLE_OPENMP STREQUAL "OFF")
    find_package(OpenMP COMPONENTS C QUIET)
    if(OpenMP_C_FOUND)
        set(KILN_HAVE_OPENMP ON)
    elseif(KILN_ENABLE_OPENMP STREQUAL "ON")
        message(FATAL_ERROR "KILN_ENABLE_OPENMP=ON, but this compiler has no OpenMP for C. "
            "Install it (Debian and Ubuntu: libomp-dev for clang; gcc brings its own) or set it to AUTO or OFF.")
    endif()
endif()

set(KILN_HAVE_HWLOC OFF)
if(NOT KILN_ENABLE_HWLOC STREQUAL "OFF")
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
        pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc>=2.1)
    endif()
    if(HWLOC_FOUND)
        set(KILN_HAVE_HWLOC ON)
    elseif(KILN_ENABLE_HWLOC STREQUAL "ON")
        message(FATAL_ERROR "KILN_ENABLE_HWLOC=ON, but pkg-config does not find hwloc >= 2.1. "
            "Install it (Debian and Ubuntu: libhwloc-dev pkg-config) or set it to AUTO or OFF.")
    endif()
endif()

if(KILN_SANITIZE MATCHES "thread" AND KILN_HAVE_OPENMP AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    message(WARNING "ThreadSanitizer does not see how gcc's libgomp synchronises and reports races that are none. "
        "Use the preset tsan: clang, without OpenMP.")
endif()
message(STATUS "kiln ${PROJECT_VERSION}: OpenMP ${KILN_HAVE_OPENMP}, hwloc ${KILN_HAVE_HWLOC}, CUDA ${KILN_HAVE_CUDA}, HIP ${KILN_HAVE_HIP}, simt ${KILN_HAVE_SIMT}, "
    "shared ${BUILD_SHARED_LIBS}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_BUILD_TYPE}")
