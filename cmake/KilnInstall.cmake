# SPDX-License-Identifier: MIT OR Apache-2.0
# The package: header, both libraries, CMake config, pkg-config file, the program (bench/), the plug-in folder.
# Everything in it is relative to the prefix, so it may be moved as a whole after the installation.
if(NOT KILN_INSTALL)
    return()
endif()
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kiln)

install(FILES include/kiln/kiln.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kiln COMPONENT development)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
install(DIRECTORY DESTINATION ${CMAKE_INSTALL_LIBDIR}/kiln COMPONENT runtime) # plug-ins go there: beside libkiln

# One target name, kiln::kiln, whatever the linkage: each linkage has an export set, kiln-config.cmake includes one of them.
if(BUILD_SHARED_LIBS)
    set(archive kiln_static)
    install(TARGETS kiln EXPORT kiln-shared
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
    install(EXPORT kiln-shared NAMESPACE kiln:: DESTINATION ${config_dir} FILE kiln-shared.cmake COMPONENT development)
else()
    set(archive kiln)
endif()
install(TARGETS ${archive} EXPORT kiln-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT static)
install(EXPORT kiln-static NAMESPACE kiln:: DESTINATION ${config_dir} FILE kiln-static.cmake COMPONENT static)

configure_package_config_file(cmake/kiln-config.cmake.in kiln-config.cmake INSTALL_DESTINATION ${config_dir}
    NO_SET_AND_CHECK_MACRO)
# SameMinorVersion until 1.0, because only 0.1.x is compatible with 0.1.y; then SameMajorVersion.
if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(compatibility SameMinorVersion)
else()
    set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake COMPATIBILITY ${compatibility})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake
    DESTINATION ${config_dir} COMPONENT development)

set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_prefix ${pc_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
list(TRANSFORM KILN_PRIVATE_LIBS PREPEND "-l" OUTPUT_VARIABLE pc_private)
list(TRANSFORM pc_private REPLACE "^-l-L" "-L")
list(JOIN pc_private " " pc_private)
configure_file(cmake/kiln.pc.in kiln.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
