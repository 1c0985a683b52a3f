# SPDX-License-Identifier: MIT OR Apache-2.0
# How every target of Kiln is compiled (kiln_flags), what libkiln needs (kiln_deps), and how the two libraries are linked.

# Tensors are untyped memory: what is stored as float by one is loaded as bits by another, so -fno-strict-aliasing.
# No fast-math and no contraction: bits must not depend on what a compiler feels like fusing; kernels fuse explicitly.
add_library(kiln_flags INTERFACE)
target_include_directories(kiln_flags INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(kiln_flags INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
    -fno-math-errno -ffp-contract=off -fno-strict-aliasing
    $<$<BOOL:${KILN_WERROR}>:-Werror>
    $<$<NOT:$<BOOL:${KILN_HAVE_OPENMP}>>:-Wno-unknown-pragmas>) # -Wall names every omp pragma of a build without OpenMP
target_compile_definitions(kiln_flags INTERFACE _POSIX_C_SOURCE=200809L _DEFAULT_SOURCE)
if(KILN_SANITIZE) # all but targets with the property KILN_UNSANITIZED
    target_compile_options(kiln_flags INTERFACE
        $<$<NOT:$<BOOL:$<TARGET_PROPERTY:KILN_UNSANITIZED>>>:-fsanitize=${KILN_SANITIZE}> -fno-sanitize-recover=all
        -fno-omit-frame-pointer -g)
    target_link_options(kiln_flags INTERFACE -fsanitize=${KILN_SANITIZE})
endif()

# Never more than these (tests/abi/needed.sh). KILN_PRIVATE_LIBS is the same as names, for those who link the archive.
find_package(Threads REQUIRED)
add_library(kiln_deps INTERFACE)
target_link_libraries(kiln_deps INTERFACE m ${CMAKE_DL_LIBS} Threads::Threads)
set(KILN_PRIVATE_LIBS m dl pthread)
if(KILN_HAVE_OPENMP)
    target_link_libraries(kiln_deps INTERFACE OpenMP::OpenMP_C)
    # By name and not as a flag: objects made by gcc need libgomp, and clang's libomp, whoever links them.
    foreach(name IN LISTS OpenMP_C_LIB_NAMES)
        if(NOT name STREQUAL "pthread")
            get_filename_component(folder ${OpenMP_${name}_LIBRARY} DIRECTORY)
            cmake_path(NORMAL_PATH folder)
            if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES) # Debian's clang finds its libomp by flag only
                list(APPEND KILN_PRIVATE_LIBS -L${folder})
            endif()
            list(APPEND KILN_PRIVATE_LIBS ${name})
        endif()
    endforeach()
endif()
if(KILN_HAVE_HWLOC)
    target_link_libraries(kiln_deps INTERFACE PkgConfig::HWLOC)
    target_compile_definitions(kiln_deps INTERFACE KILN_HAVE_HWLOC=1)
    list(APPEND KILN_PRIVATE_LIBS hwloc)
endif()

# Before 1.0 there is no ABI promise between minor versions, and the soname says so: libkiln.so.0.1. From 1.0 on: the major.
set(KILN_SOVERSION ${PROJECT_VERSION_MAJOR})
if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(KILN_SOVERSION 0.${PROJECT_VERSION_MINOR})
endif()

function(kiln_configure_common target)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:kiln_flags> $<BUILD_INTERFACE:kiln_deps>)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME kiln EXPORT_NAME kiln LINKER_LANGUAGE C)
endfunction()

# Exports exactly the list in cmake/kiln.map. nodelete: worker threads of OpenMP outlive a dlclose() and would run unmapped
# code. no-undefined is not for sanitizers: clang leaves their runtime to the executable.
function(kiln_configure_shared target)
    kiln_configure_common(${target})
    set(map ${PROJECT_SOURCE_DIR}/cmake/kiln.map)
    target_link_options(${target} PRIVATE LINKER:--version-script=${map} LINKER:-z,nodelete)
    if(NOT KILN_SANITIZE)
        target_link_options(${target} PRIVATE LINKER:-z,defs LINKER:--as-needed)
    endif()
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${KILN_SOVERSION} LINK_DEPENDS ${map})
endfunction()

# The exported archive names its private libraries; kiln::hwloc is made by the package config.
function(kiln_configure_static target)
    kiln_configure_common(${target})
    foreach(name IN LISTS KILN_PRIVATE_LIBS)
        if(name STREQUAL "hwloc")
            set(name kiln::hwloc)
        endif()
        target_link_libraries(${target} INTERFACE $<INSTALL_INTERFACE:$<LINK_ONLY:${name}>>)
    endforeach()
endfunction()

# Where the build puts plug-ins (kiln_plugin() in backends/gpu): bin/kiln finds them there.
set(KILN_PLUGIN_DIR ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}/kiln)
