# Writes OUT, a header that says which commit is built, when it differs from what is there:
#   cmake -DSOURCE=dir -DOUT=file -DBUILD_TYPE=type -P BuildInfo.cmake
find_program(GIT git)
set(commit "")
set(dirty 0)
if(GIT)
  execute_process(COMMAND "${GIT}" -C "${SOURCE}" rev-parse HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND "${GIT}" -C "${SOURCE}" status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT changes STREQUAL "")
    set(dirty 1)
  endif()
endif()
set(text "#define BT_BUILD_COMMIT \"${commit}\"\n#define BT_BUILD_DIRTY ${dirty}\n")
string(APPEND text "#define BT_BUILD_TYPE \"${BUILD_TYPE}\"\n")
file(CONFIGURE OUTPUT "${OUT}" CONTENT "${text}" @ONLY)
