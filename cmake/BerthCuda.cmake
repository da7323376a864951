# Whether engine/cuda is built (BT_CUDA: AUTO, ON, OFF), as BT_HAVE_CUDA; and how.
set(BT_HAVE_CUDA OFF)
if(NOT BT_CUDA STREQUAL "OFF")
  # The toolkit's own folder is often not in PATH.
  find_program(BT_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(BT_NVCC)
    set(BT_HAVE_CUDA ON)
    set(CMAKE_CUDA_COMPILER "${BT_NVCC}")
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    endif()
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
  elseif(BT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "BT_CUDA=ON needs nvcc: install the CUDA toolkit, or set BT_CUDA=OFF")
  endif()
endif()
# Several ranks need NCCL's header; the library itself is looked for when they start.
set(BT_HAVE_NCCL OFF)
if(BT_HAVE_CUDA)
  find_path(BT_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(BT_NCCL_INCLUDE_DIR)
    set(BT_HAVE_NCCL ON)
  endif()
  message(STATUS "engine/cuda: on (${BT_NVCC}), NCCL ${BT_HAVE_NCCL} (${BT_NCCL_INCLUDE_DIR})")
else()
  message(STATUS "engine/cuda: off (BT_CUDA=${BT_CUDA}); everything else is built")
endif()

# Every GPU of the catalog that the engine may meet: Ampere data centre and consumer, Ada, Hopper.
set(BT_CUDA_ALL_ARCHITECTURES 80-real 86-real 89-real 90a-real)

# bt_cuda_library(NAME SOURCES ... PUBLIC libs... PRIVATE libs...): as bt_library, for sources of
# which some are .cu. Beside it, NAME_all_architectures compiles the same sources for all of
# BT_CUDA_ALL_ARCHITECTURES, and target cuda_all_architectures builds all of those.
function(bt_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  bt_library(${name} ${ARGN})
  add_library(${name}_all_architectures OBJECT EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_include_directories(${name}_all_architectures PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name}_all_architectures PRIVATE bt_flags ${ARG_PUBLIC} ${ARG_PRIVATE})
  set_target_properties(${name}_all_architectures PROPERTIES
    CUDA_ARCHITECTURES "${BT_CUDA_ALL_ARCHITECTURES}")
  if(NOT TARGET cuda_all_architectures)
    add_custom_target(cuda_all_architectures)
  endif()
  add_dependencies(cuda_all_architectures ${name}_all_architectures)
endfunction()
