# SPDX-License-Identifier: MIT OR Apache-2.0
# The CUDA toolkit, for the plug-in: KilnCuda_FOUND with KILN_NVCC, KILN_CUDART and KILN_CUDA_ARCHITECTURES, or what is
# missing in KilnCuda_MISSING. nvcc is looked for in $CUDA_PATH, $CUDA_HOME, PATH and /usr/local/cuda.
set(KilnCuda_FOUND FALSE)
find_program(KILN_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin
    DOC "The CUDA compiler")
mark_as_advanced(KILN_NVCC)
if(NOT KILN_NVCC)
    set(KilnCuda_MISSING "nvcc is neither in PATH nor in /usr/local/cuda/bin. Install the CUDA toolkit 12.4 or newer (or set \
CUDA_PATH or KILN_NVCC)")
    return()
endif()

execute_process(COMMAND ${KILN_NVCC} --version OUTPUT_VARIABLE KilnCuda_text ERROR_QUIET)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" KilnCuda_found "${KilnCuda_text}")
set(KILN_CUDA_VERSION ${CMAKE_MATCH_1})
if(NOT KilnCuda_found OR KILN_CUDA_VERSION VERSION_LESS 12.4)
    set(KilnCuda_MISSING "${KILN_NVCC} is version ${KILN_CUDA_VERSION}; 12.4 or newer is needed")
    return()
endif()

cmake_path(GET KILN_NVCC PARENT_PATH KilnCuda_bin)
file(REAL_PATH ${KILN_NVCC} KilnCuda_real)
cmake_path(GET KilnCuda_real PARENT_PATH KilnCuda_real)
find_library(KILN_CUDART NAMES libcudart_static.a HINTS ${KilnCuda_bin}/.. ${KilnCuda_real}/.. ENV CUDA_PATH
    PATH_SUFFIXES lib64 lib targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib lib/${CMAKE_LIBRARY_ARCHITECTURE}
    DOC "The static CUDA runtime")
mark_as_advanced(KILN_CUDART)
if(NOT KILN_CUDART)
    set(KilnCuda_MISSING "libcudart_static.a was not found beside ${KILN_NVCC}")
    return()
endif()

# Does it accept the host compiler, and are the headers there? Asked once per nvcc.
if(NOT "${KILN_CUDA_CHECKED}" STREQUAL "${KILN_NVCC} ${KILN_CUDA_VERSION}")
    set(KilnCuda_probe ${PROJECT_BINARY_DIR}/CMakeFiles/cuda_probe.cu)
    file(WRITE ${KilnCuda_probe} "#include <cuda_runtime.h>\n#include <mma.h>\n__global__ void kernel() {}\n")
    execute_process(COMMAND ${KILN_NVCC} -std=c++17 -arch=sm_80 -c ${KilnCuda_probe} -o ${KilnCuda_probe}.o
        RESULT_VARIABLE KilnCuda_failed OUTPUT_VARIABLE KilnCuda_text ERROR_VARIABLE KilnCuda_text)
    if(KilnCuda_failed)
        string(STRIP "${KilnCuda_text}" KilnCuda_text)
        set(KilnCuda_MISSING "${KILN_NVCC} cannot compile an empty kernel: ${KilnCuda_text}")
        return()
    endif()
    set(KILN_CUDA_CHECKED "${KILN_NVCC} ${KILN_CUDA_VERSION}" CACHE INTERNAL "nvcc that was seen to work")
endif()

# Everything of this list that the toolkit knows. 80 and 86: Ampere, 89: Ada, 90 and 90a: Hopper, 100 and 120: Blackwell.
execute_process(COMMAND ${KILN_NVCC} --list-gpu-code OUTPUT_VARIABLE KilnCuda_known ERROR_QUIET)
set(KilnCuda_default "")
foreach(KilnCuda_architecture 80 86 89 90 90a 100 120)
    string(REGEX REPLACE "a$" "" KilnCuda_base ${KilnCuda_architecture})
    if(KilnCuda_known MATCHES "sm_${KilnCuda_base}[^0-9]")
        list(APPEND KilnCuda_default ${KilnCuda_architecture})
    endif()
endforeach()
set(KILN_CUDA_ARCHITECTURES "${KilnCuda_default}" CACHE STRING
    "Chips that the CUDA backend has machine code for: 80;90;... (PTX of the last is added), or native")
set(KilnCuda_FOUND TRUE)
