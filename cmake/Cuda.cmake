# The CUDA plug-in, libgac_cuda.so: loaded at run time, so that the library and
# the program need no CUDA. The .cu files go through nvcc by plain commands, for
# a machine without a GPU or a CMake that knows its CUDA will do.
if(GAC_SANITIZE OR GAC_FUZZ)
  set(default OFF)
else()
  set(default AUTO)
endif()
set(GAC_CUDA ${default} CACHE STRING "Build the CUDA plug-in: AUTO (where it can be), ON or OFF")
set_property(CACHE GAC_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GAC_CUDA_ARCHS "80;90;90-virtual" CACHE STRING
    "What the kernels are compiled for: 90 is sm_90, 90-virtual the PTX of compute_90")
if(NOT GAC_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GAC_CUDA: AUTO, ON or OFF, not ${GAC_CUDA}")
endif()
if(NOT GAC_CUDA)
  return()
endif()

find_program(GAC_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(GAC_NVCC)
  get_filename_component(root ${GAC_NVCC} REALPATH)
  get_filename_component(root ${root} DIRECTORY)
  get_filename_component(root ${root} DIRECTORY)
endif()
set(include_hints ${root}/include ${root}/targets/x86_64-linux/include
                  ${root}/targets/sbsa-linux/include)
set(library_hints ${root}/lib64 ${root}/lib ${root}/targets/x86_64-linux/lib
                  ${root}/targets/sbsa-linux/lib)
find_path(GAC_CUDA_INCLUDE cublasLt.h HINTS ${include_hints})
find_path(GAC_CUDNN_INCLUDE cudnn_graph.h HINTS ${include_hints})
find_path(GAC_CUPTI_INCLUDE cupti.h HINTS ${include_hints} ${root}/extras/CUPTI/include)
find_library(GAC_CUBLASLT NAMES cublasLt libcublasLt.so.13 HINTS ${library_hints})
find_library(GAC_CUBLAS NAMES cublas libcublas.so.13 HINTS ${library_hints})
find_library(GAC_CUDART NAMES cudart_static HINTS ${library_hints})

set(missing "")
foreach(thing "GAC_NVCC;nvcc" "GAC_CUDA_INCLUDE;cublasLt.h" "GAC_CUDNN_INCLUDE;cudnn_graph.h"
              "GAC_CUPTI_INCLUDE;cupti.h" "GAC_CUBLASLT;libcublasLt" "GAC_CUBLAS;libcublas"
              "GAC_CUDART;libcudart_static")
  list(GET thing 0 variable)
  list(GET thing 1 name)
  if(NOT ${variable})
    list(APPEND missing ${name})
  endif()
endforeach()
if(GAC_NVCC)
  execute_process(COMMAND ${GAC_NVCC} --version OUTPUT_VARIABLE said ERROR_QUIET)
  if(said MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS 12.4)
    list(APPEND missing "nvcc of CUDA 12.4 or later") # __maxnreg__
  endif()
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(GAC_CUDA STREQUAL AUTO)
    message(NOTICE "CUDA plug-in: not built (not found: ${missing})")
    return()
  endif()
  message(FATAL_ERROR "CUDA plug-in: not found: ${missing}")
endif()
message(STATUS "CUDA plug-in: built with ${GAC_NVCC}")

set(codes "")
foreach(arch ${GAC_CUDA_ARCHS})
  if(arch MATCHES "^([0-9]+[af]?)-virtual$")
    list(APPEND codes -gencode=arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
  elseif(arch MATCHES "^([0-9]+[af]?)(-real)?$")
    list(APPEND codes -gencode=arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1})
  else()
    message(FATAL_ERROR "GAC_CUDA_ARCHS: ${arch} is neither like 90 nor like 90-virtual")
  endif()
endforeach()

set(source_dir ${PROJECT_SOURCE_DIR}/src/device/cuda)
file(GLOB cuda_sources CONFIGURE_DEPENDS ${source_dir}/*.c)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${source_dir}/*.cu)

# Compiles one .cu file, here or in tests/.
function(gac_compile_cuda source object)
  get_filename_component(name ${source} NAME)
  get_filename_component(folder ${object} DIRECTORY)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${GAC_NVCC} -c ${source} -o ${object} -O3 -std=c++17 ${codes} -Werror all-warnings
            -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra -ccbin ${CMAKE_CXX_COMPILER}
            -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -I${GAC_CUDA_INCLUDE}
            -MD -MF ${object}.d
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "Compiling ${name} for ${GAC_CUDA_ARCHS}"
    VERBATIM)
endfunction()

set(kernel_objects "")
foreach(source ${kernel_sources})
  get_filename_component(name ${source} NAME)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
  gac_compile_cuda(${source} ${object})
  list(APPEND kernel_objects ${object})
endforeach()
add_custom_target(gac_kernels DEPENDS ${kernel_objects})

# Nothing is taken from the program that loads it, and one symbol is given. It
# stays loaded: CUDA's libraries keep addresses inside it until the very end.
add_library(gac_cuda MODULE
            ${cuda_sources} ${kernel_objects}
            ${PROJECT_SOURCE_DIR}/src/base/arith.c
            ${PROJECT_SOURCE_DIR}/src/base/clock.c
            ${PROJECT_SOURCE_DIR}/src/base/error.c
            ${PROJECT_SOURCE_DIR}/src/base/floats.c
            ${PROJECT_SOURCE_DIR}/src/op/dtype.c
            ${PROJECT_SOURCE_DIR}/src/device/task_spec.c
            ${PROJECT_SOURCE_DIR}/src/op/numbers.c)
set_source_files_properties(${kernel_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
add_dependencies(gac_cuda gac_kernels)
target_include_directories(gac_cuda PRIVATE include src)
target_include_directories(gac_cuda SYSTEM PRIVATE ${GAC_CUDA_INCLUDE} ${GAC_CUDNN_INCLUDE}
                                                   ${GAC_CUPTI_INCLUDE})
target_link_libraries(gac_cuda PRIVATE ${GAC_CUBLASLT} ${GAC_CUBLAS} ${GAC_CUDART}
                                       ${CMAKE_DL_LIBS} pthread rt m)
target_link_options(gac_cuda PRIVATE -Wl,--no-undefined -Wl,--as-needed -Wl,-z,nodelete
                    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map)
get_filename_component(library_dir ${GAC_CUBLASLT} DIRECTORY)
set_target_properties(gac_cuda PROPERTIES
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
                      LINKER_LANGUAGE CXX
                      C_VISIBILITY_PRESET hidden
                      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/plugin.map
                      BUILD_WITH_INSTALL_RPATH ON
                      INSTALL_RPATH "$ORIGIN;${library_dir};/usr/local/cuda/lib64")
install(TARGETS gac_cuda LIBRARY DESTINATION lib/gac)
