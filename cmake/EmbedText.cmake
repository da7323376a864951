# bt_embed_text(OUT_C SYMBOL FILES ...): generates OUT_C (in the build tree), which defines
#   const struct bt_embedded SYMBOL[]  (name relative to the current source dir, bytes, size),
# ended by a row whose name is NULL. See cmake/embedded.h.
function(bt_embed_text out symbol)
  set(script "${PROJECT_SOURCE_DIR}/cmake/EmbedTextRun.cmake")
  set(paths)
  foreach(f IN LISTS ARGN)
    list(APPEND paths "${CMAKE_CURRENT_SOURCE_DIR}/${f}")
  endforeach()
  string(REPLACE ";" "|" names "${ARGN}")
  add_custom_command(OUTPUT "${out}"
    COMMAND ${CMAKE_COMMAND} "-DOUT=${out}" "-DSYMBOL=${symbol}" "-DNAMES=${names}"
            "-DROOT=${CMAKE_CURRENT_SOURCE_DIR}" -P "${script}"
    DEPENDS ${paths} "${script}" VERBATIM)
endfunction()
