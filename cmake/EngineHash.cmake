# Writes OUT, a header with the SHA-256 of the CPU engine's sources, when it differs from what is
# there: calibrations are keyed by it.
#   cmake -DSOURCE=dir -DOUT=file -P EngineHash.cmake
file(GLOB files RELATIVE "${SOURCE}" "${SOURCE}/engine/cpu/*.c" "${SOURCE}/engine/cpu/*.h")
list(APPEND files engine/core/executor.h engine/block_layout.h engine/sample.c engine/serve.c
  engine/model/qweight.c engine/model/qweight.h)
list(SORT files)
set(all "")
foreach(file IN LISTS files)
  file(SHA256 "${SOURCE}/${file}" hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
set(text "#define BT_ENGINE_CPU_SHA256 \"${hash}\"\n")
set(before "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" before)
endif()
if(NOT before STREQUAL text)
  file(WRITE "${OUT}" "${text}")
endif()
