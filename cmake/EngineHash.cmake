# Writes OUT, a header with the SHA-256 of each engine's sources, when it differs from what is there:
# calibrations are keyed by them.
#   cmake -DSOURCE=dir -DOUT=file -P EngineHash.cmake
set(shared engine/backend.h engine/block_ids.c engine/block_layout.h engine/core/executor.h engine/executor_opts.c
  engine/executor_opts.h engine/meter.c engine/meter.h engine/model/qweight.c engine/model/qweight.h
  engine/sample.c engine/serve.c engine/step_work.c)
function(hash_of name)
  file(GLOB files RELATIVE "${SOURCE}" ${ARGN})
  list(APPEND files ${shared})
  list(SORT files)
  set(all "")
  foreach(file IN LISTS files)
    file(SHA256 "${SOURCE}/${file}" hash)
    string(APPEND all "${file} ${hash}\n")
  endforeach()
  string(SHA256 hash "${all}")
  set(${name} "${hash}" PARENT_SCOPE)
endfunction()
hash_of(cpu "${SOURCE}/engine/cpu/*.c" "${SOURCE}/engine/cpu/*.h")
hash_of(cuda "${SOURCE}/engine/cuda/*.c" "${SOURCE}/engine/cuda/*.cu" "${SOURCE}/engine/cuda/*.cuh"
  "${SOURCE}/engine/cuda/*.h")
set(text
  "#define BT_ENGINE_CPU_SHA256 \"${cpu}\"\n#define BT_ENGINE_CUDA_SHA256 \"${cuda}\"\n")
file(CONFIGURE OUTPUT "${OUT}" CONTENT "${text}" @ONLY)
