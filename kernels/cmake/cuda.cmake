# The GPU plug-in, lib/libholdfast_cuda.so, and whether it is built.
#
# HOLDFAST_CUDA = AUTO builds it where nvcc 13 or later, cuBLASLt and NCCL are
# found and nothing is sanitized; ON makes a missing one an error. The programs
# load it at run time (kernels/device_plugin.h) and link no CUDA library. The
# plug-in links the CUDA runtime statically, cuBLASLt and NCCL, never the driver
# (libcuda): what links that does not start on a machine without one.
#
# Part of it: kernels/cuda_*.cu and *.cc, kernels/*_cuda.cu, trainer/parallel/nccl_*.cc
# and nccl_*.cu. Their object code is kept apart from the rest (hidden, only the
# entry points are seen), because the program and the plug-in hold copies of the
# same libraries.
set(HOLDFAST_CUDA "AUTO" CACHE STRING "Build the GPU plug-in: AUTO, ON or OFF")
set_property(CACHE HOLDFAST_CUDA PROPERTY STRINGS AUTO ON OFF)

# What program and plug-in compare: the headers that both include.
file(GLOB plugin_headers CONFIGURE_DEPENDS kernels/*.h trainer/parallel/*collectives.h
     trainer/parallel/*_wire.h)
list(FILTER plugin_headers EXCLUDE REGEX "/cuda_[^/]*$")
string(REPLACE ";" ":" plugin_headers_joined "${plugin_headers}")
set(plugin_build ${CMAKE_BINARY_DIR}/generated/kernels/plugin_build.h)
add_custom_command(
  OUTPUT ${plugin_build}
  COMMAND
    ${CMAKE_COMMAND} -DVERSION=${PROJECT_VERSION}
    "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    -DOUTPUT=${plugin_build} -DHEADERS=${plugin_headers_joined} -P
    ${CMAKE_SOURCE_DIR}/kernels/cmake/plugin_build.cmake
  DEPENDS ${plugin_headers} kernels/cmake/plugin_build.cmake)
add_custom_target(plugin_build DEPENDS ${plugin_build})
add_dependencies(kernels plugin_build)
target_include_directories(kernels PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_link_libraries(kernels PUBLIC ${CMAKE_DL_LIBS})

# holdfast_find_cuda(): sets `without`, the reason why there is no plug-in, or "";
# NVCC, NCCL_LIBRARY, NCCL_INCLUDE; CUDA_HEADERS, which tests of the plug-in's host
# code need under sanitizers too.
function(holdfast_find_cuda)
  set(without "" PARENT_SCOPE)
  if(NOT HOLDFAST_CUDA)
    set(without "HOLDFAST_CUDA is OFF" PARENT_SCOPE)
    return()
  endif()
  find_program(NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(NOT NVCC)
    set(without "no nvcc found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE words)
  string(REGEX MATCH "release ([0-9.]+)" release "${words}")
  if(CMAKE_MATCH_1 VERSION_LESS 13)
    set(without "${NVCC} is of CUDA ${CMAKE_MATCH_1}, and 13 is needed"
        PARENT_SCOPE)
    return()
  endif()
  set(CMAKE_CUDA_COMPILER ${NVCC})
  find_package(CUDAToolkit 13.0 QUIET)
  if(NOT TARGET CUDA::cublasLt OR NOT TARGET CUDA::cudart_static)
    set(without "no cuBLASLt or static CUDA runtime beside ${NVCC}" PARENT_SCOPE)
    return()
  endif()
  set(CUDA_HEADERS ${CUDAToolkit_INCLUDE_DIRS} PARENT_SCOPE)
  if(HOLDFAST_SANITIZE OR HOLDFAST_FUZZ)
    set(without "sanitizers and fuzzing build no GPU code" PARENT_SCOPE)
    return()
  endif()
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT NCCL_LIBRARY OR NOT NCCL_INCLUDE)
    set(without "no NCCL found" PARENT_SCOPE)
  endif()
endfunction()

holdfast_find_cuda()
if(without)
  if(HOLDFAST_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HOLDFAST_CUDA is ON: ${without}")
  endif()
  message(STATUS "GPU plug-in: not built: ${without}")
  set(HOLDFAST_WITH_CUDA OFF)
  return()
endif()
set(HOLDFAST_WITH_CUDA ON)

set(CMAKE_CUDA_COMPILER ${NVCC})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
# Compute capability 9.0 (H100, H200) and 10.0 (B200), and code that a later
# processor's driver can compile.
set(CMAKE_CUDA_ARCHITECTURES "90-real;100")
if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -lineinfo")
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O2 -lineinfo")
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)
message(STATUS "GPU plug-in: built with CUDA ${CUDAToolkit_VERSION} for compute "
               "capability 9.0 and 10.0")

add_library(holdfast_cuda_flags INTERFACE)
# CMake before 3.25.2 does not know C++20 in CUDA: a standard asked of it is
# dropped in silence, or refused where it is required.
target_compile_options(
  holdfast_cuda_flags
  INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off,-fno-omit-frame-pointer>"
)
target_include_directories(holdfast_cuda_flags SYSTEM INTERFACE ${NCCL_INCLUDE})
target_link_libraries(
  holdfast_cuda_flags INTERFACE CUDA::cudart_static CUDA::cublasLt
                                ${NCCL_LIBRARY} absl::status absl::statusor
                                absl::strings absl::str_format Threads::Threads)

# holdfast_cuda_plugin(DEPENDENCY...): the target holdfast_cuda.
function(holdfast_cuda_plugin)
  file(GLOB sources CONFIGURE_DEPENDS kernels/cuda_*.cu kernels/cuda_*.cc
       kernels/*_cuda.cu trainer/parallel/nccl_*.cc trainer/parallel/nccl_*.cu)
  # What every device shares.
  list(APPEND sources kernels/check.cc kernels/device.cc)
  add_library(holdfast_cuda MODULE ${sources})
  add_dependencies(holdfast_cuda plugin_build)
  set_target_properties(
    holdfast_cuda
    PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
               CXX_VISIBILITY_PRESET hidden
               CUDA_VISIBILITY_PRESET hidden
               CUDA_STANDARD_REQUIRED OFF
               # Where CUDA is on other machines; what was linked comes first.
               BUILD_RPATH "/usr/local/cuda/lib64"
               INSTALL_RPATH "/usr/local/cuda/lib64"
               INSTALL_RPATH_USE_LINK_PATH ON
               VISIBILITY_INLINES_HIDDEN ON
               LINK_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cmake/cuda_exports.map)
  target_include_directories(holdfast_cuda PRIVATE ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(holdfast_cuda PRIVATE holdfast_cuda_flags ${ARGN})
  target_link_options(
    holdfast_cuda PRIVATE LINKER:-z,defs LINKER:-Bsymbolic LINKER:--as-needed
    LINKER:--gc-sections LINKER:--exclude-libs,ALL
    LINKER:--version-script=${CMAKE_SOURCE_DIR}/kernels/cmake/cuda_exports.map)
  # Where programs look for it: ../lib from bin.
  install(TARGETS holdfast_cuda LIBRARY DESTINATION lib COMPONENT programs)
endfunction()
