# Criterion (unit tests): Debian's libcriterion-dev ships no CMake package.
find_path(CRITERION_INCLUDE_DIR criterion/criterion.h)
find_library(CRITERION_LIBRARY criterion)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Criterion
  REQUIRED_VARS CRITERION_LIBRARY CRITERION_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libcriterion-dev, or configure with -DBT_BUILD_TESTS=OFF")
if(Criterion_FOUND AND NOT TARGET Criterion::Criterion)
  add_library(Criterion::Criterion UNKNOWN IMPORTED)
  set_target_properties(Criterion::Criterion PROPERTIES
    IMPORTED_LOCATION "${CRITERION_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CRITERION_INCLUDE_DIR}")
endif()
