/* Temporary files of the tests of engine/model. */
#ifndef BT_TESTS_ENGINE_MODEL_FILES_H
#define BT_TESTS_ENGINE_MODEL_FILES_H

#include <stddef.h>

/* A fresh folder below the build folder; static storage, one a process. */
const char *bt_test_dir(void);

/* dir/name in one of eight rotating static buffers. */
const char *bt_test_path(const char *dir, const char *name);

/* Writes the bytes to bt_test_dir()/name and returns that path. */
const char *bt_test_write(const char *name, const void *bytes, size_t n_bytes);

/* A safetensors file: length, header text, then n_data zero bytes; returns its path. */
const char *bt_test_write_st(const char *name, const char *header, size_t n_data);

/* The whole file in memory from malloc; the test fails when it cannot be read. */
unsigned char *bt_test_read(const char *path, size_t *n_bytes);

/* Path of a file or folder of tests/models. */
const char *bt_test_model(const char *name);

#endif
