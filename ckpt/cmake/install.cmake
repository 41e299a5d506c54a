# What `cmake --install` puts where, of the checkpoint layer:
#
#   include/holdfast_ckpt.h            the C interface, and holdfast_ckpt/*.h, which
#                                      it includes
#   lib/libholdfast_ckpt.so            that and nothing else; loads anywhere
#   include/holdfast/ckpt/...          the C++ face and what it includes
#   lib/holdfast/libckpt*.a            the layer's libraries
#   lib/cmake/HoldfastCkpt, lib/pkgconfig
#   share/doc/holdfast                 license, format, examples
#
# and the programs holdfast, ckptctl and ckpt-reshard, as component `programs`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(holdfast_ckpt SHARED $<TARGET_OBJECTS:ckpt_c>)
target_link_libraries(holdfast_ckpt PRIVATE ckpt)
target_link_options(
  holdfast_ckpt PRIVATE
  LINKER:--version-script=${CMAKE_SOURCE_DIR}/ckpt/c/exports.map)
if(NOT HOLDFAST_SANITIZE)  # a sanitizer's functions come with the program
  target_link_options(holdfast_ckpt PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(
  holdfast_ckpt PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 1
  EXPORT_NAME ckpt_c LINK_DEPENDS ${CMAKE_SOURCE_DIR}/ckpt/c/exports.map)
target_include_directories(
  holdfast_ckpt INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

set(ckpt_libraries ckpt_base ckpt_layout ckpt_format ckpt_plan ckpt_snapshot
                   ckpt_storage ckpt_group ckpt_session ckpt)
target_include_directories(
  ckpt_base PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/holdfast>)
target_compile_features(ckpt_base PUBLIC cxx_std_20)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/HoldfastCkpt)
install(TARGETS holdfast_ckpt EXPORT HoldfastCkptCTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
        NAMELINK_COMPONENT library)
install(TARGETS ${ckpt_libraries} EXPORT HoldfastCkptCxxTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/holdfast COMPONENT library)
foreach(set C Cxx)
  install(EXPORT HoldfastCkpt${set}Targets NAMESPACE Holdfast::
          DESTINATION ${package_dir} COMPONENT library)
endforeach()

install(FILES ckpt/c/holdfast_ckpt.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT library)
install(DIRECTORY ckpt/c/holdfast_ckpt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT library FILES_MATCHING PATTERN "*.h")
# The face, and what it and the examples include.
foreach(header checkpointer.h base/aligned_buffer.h base/clock.h base/log.h
               base/types.h group/group.h group/inproc_group.h
               group/local_group.h group/mpi_group.h layout/box.h
               layout/holding.h layout/tensor.h snapshot/async_copier.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ckpt/${header} COMPONENT library
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/holdfast/ckpt/${folder})
endforeach()

# Packages that the libraries link and that have no CMake package.
set(HOLDFAST_CKPT_PKG_CONFIG "")
foreach(module ${ckpt_pkg_config_modules})
  string(REPLACE ":" ";" parts ${module})
  list(GET parts 0 name)
  list(GET parts 1 package)
  string(APPEND HOLDFAST_CKPT_PKG_CONFIG
         "pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${package})\n    ")
endforeach()
configure_package_config_file(
  ckpt/cmake/HoldfastCkptConfig.cmake.in
  ${CMAKE_BINARY_DIR}/HoldfastCkptConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${CMAKE_BINARY_DIR}/HoldfastCkptConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/HoldfastCkptConfig.cmake
              ${CMAKE_BINARY_DIR}/HoldfastCkptConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT library)

file(RELATIVE_PATH HOLDFAST_PREFIX_FROM_PC
     /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(ckpt/cmake/holdfast_ckpt.pc.in
               ${CMAKE_BINARY_DIR}/holdfast_ckpt.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/holdfast_ckpt.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)

install(FILES LICENSE ckpt/DESIGN.md ckpt/FORMAT.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/holdfast COMPONENT library)
install(DIRECTORY ckpt/examples DESTINATION
        ${CMAKE_INSTALL_DATADIR}/doc/holdfast COMPONENT library)
install(TARGETS holdfast ckptctl ckpt-reshard RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        COMPONENT programs)
