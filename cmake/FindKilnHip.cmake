# SPDX-License-Identifier: MIT OR Apache-2.0
# A compiler for AMD GPUs, for the plug-in: KilnHip_FOUND with KILN_HIP_CXX and KILN_HIP_ARCHITECTURES, or what is missing in
# KilnHip_MISSING. Nothing else of ROCm is needed: neither headers nor device libraries, and the runtime is found when it is
# used. clang++ 19 or newer with lld will do, ROCm's amdclang++ and hipcc too; the first that compiles a kernel is taken.
set(KilnHip_FOUND FALSE)

# kiln_hip_compiles(gfx942 result): can KILN_HIP_CXX compile and link for it? What it said in KilnHip_text.
function(kiln_hip_compiles architecture result)
    set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/hip_probe.hip)
    file(WRITE ${probe} "extern \"C\" __attribute__((global)) void kernel(float *p) { *p = __builtin_amdgcn_exp2f(*p); }\n")
    execute_process(COMMAND ${KILN_HIP_CXX} -x hip --cuda-device-only --offload-arch=${architecture} -nogpulib -nogpuinc
            -std=c++17 -mcode-object-version=5 --no-gpu-bundle-output ${probe} -o ${probe}.co
        RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(failed)
        string(STRIP "${text}" text)
        set(KilnHip_text "${text}" PARENT_SCOPE)
        set(${result} FALSE PARENT_SCOPE)
    else()
        set(${result} TRUE PARENT_SCOPE)
    endif()
endfunction()

set(KilnHip_MISSING "no compiler for AMD GPUs was found. Install clang++ 22 and lld 22 (Debian and Ubuntu: clang-22 lld-22), or \
ROCm's (or set KILN_HIP_CXX)")
if(KILN_HIP_CXX)
    set(KilnHip_candidates ${KILN_HIP_CXX})
else()
    set(KilnHip_candidates clang++-22 clang++-21 clang++-20 amdclang++ hipcc clang++-19 clang++)
endif()
foreach(KilnHip_name IN LISTS KilnHip_candidates)
    find_program(KilnHip_program ${KilnHip_name} NO_CACHE HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES bin llvm/bin)
    if(KilnHip_program)
        set(KILN_HIP_CXX ${KilnHip_program})
        kiln_hip_compiles(gfx942 KilnHip_FOUND) # which a clang++ knows from 18 on
        if(KilnHip_FOUND)
            set(KILN_HIP_CXX ${KilnHip_program} CACHE FILEPATH "The compiler of the HIP backend's kernels")
            mark_as_advanced(KILN_HIP_CXX)
            break()
        endif()
        set(KilnHip_MISSING "${KilnHip_program} cannot compile a kernel for gfx942 (a clang++ 19 or newer and its lld are \
needed): ${KilnHip_text}")
        unset(KILN_HIP_CXX)
    endif()
    unset(KilnHip_program)
endforeach()
if(NOT KilnHip_FOUND)
    return()
endif()

# Everything of this list that the compiler knows. gfx90a: MI200, gfx942: MI300, gfx950: MI350.
if(NOT "${KILN_HIP_CHECKED}" STREQUAL "${KILN_HIP_CXX}")
    set(KilnHip_default "")
    foreach(KilnHip_architecture gfx90a gfx942 gfx950)
        kiln_hip_compiles(${KilnHip_architecture} KilnHip_known)
        if(KilnHip_known)
            list(APPEND KilnHip_default ${KilnHip_architecture})
        endif()
    endforeach()
    set(KILN_HIP_CHECKED "${KILN_HIP_CXX}" CACHE INTERNAL "compiler whose architectures were asked for")
    set(KILN_HIP_KNOWN "${KilnHip_default}" CACHE INTERNAL "and what it knows")
endif()
set(KILN_HIP_ARCHITECTURES "${KILN_HIP_KNOWN}" CACHE STRING "Chips that the HIP backend has machine code for: gfx90a;gfx942;...")
foreach(KilnHip_architecture IN LISTS KILN_HIP_ARCHITECTURES)
    if(NOT KilnHip_architecture IN_LIST KILN_HIP_KNOWN)
        set(KilnHip_FOUND FALSE)
        set(KilnHip_MISSING "KILN_HIP_ARCHITECTURES names ${KilnHip_architecture}; ${KILN_HIP_CXX} and Kiln know ${KILN_HIP_KNOWN}")
    endif()
endforeach()
