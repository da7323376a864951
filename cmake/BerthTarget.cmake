# bt_library(NAME SOURCES ... PUBLIC libs... PRIVATE libs...): a static library of the project with
# its warnings, include root and alias berth::NAME (without the bt_ prefix).
add_library(bt_flags INTERFACE)
target_compile_options(bt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wswitch-enum -Wvla
  -Wstrict-prototypes -Wmissing-prototypes -ffp-contract=off>
  # These two guess from what the optimiser happens to see: warnings, never errors.
  $<$<AND:$<COMPILE_LANGUAGE:C>,$<BOOL:${BT_WERROR}>>:-Werror -Wno-error=maybe-uninitialized
  -Wno-error=format-truncation>)
if(BT_SANITIZE)
  target_compile_options(bt_flags INTERFACE
    -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(bt_flags INTERFACE -fsanitize=address,undefined)
endif()
target_compile_definitions(bt_flags INTERFACE _XOPEN_SOURCE=700)

function(bt_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE bt_flags ${ARG_PRIVATE})
  string(REGEX REPLACE "^bt_" "" alias ${name})
  add_library(berth::${alias} ALIAS ${name})
endfunction()

# bt_suite(NAME SOURCES ... LIBS ... LABELS ... TIMEOUT s): one Criterion test program registered
# with CTest. Criterion exits 0 when nothing matched and when a leak was reported, hence the
# FAIL_REGULAR_EXPRESSION.
function(bt_suite name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS;DEFINES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(test_${name} ${ARG_SOURCES})
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(test_${name} PRIVATE bt_flags ${ARG_LIBS} Criterion::Criterion)
  target_compile_definitions(test_${name} PRIVATE
    BT_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}" BT_TEST_BINARY_DIR="${PROJECT_BINARY_DIR}"
    ${ARG_DEFINES})
  # Criterion's macros use GNU forms.
  target_compile_options(test_${name} PRIVATE -Wno-pedantic -Wno-conversion)
  add_test(NAME ${name} COMMAND test_${name} --jobs 1)
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    FAIL_REGULAR_EXPRESSION "Tested: 0 |LeakSanitizer|AddressSanitizer|runtime error:")
endfunction()
