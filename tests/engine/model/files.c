#include "tests/engine/model/files.h"

#include <criterion/criterion.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, N_PATHS = 8 };

static char dir_made[PATH_BYTES];
static pid_t dir_owner;

static void remove_dir(void)
{
    if (dir_owner == getpid()) {
        char command[PATH_BYTES + 16];
        snprintf(command, sizeof command, "rm -rf '%s'", dir_made);
        (void)!system(command);
    }
}

const char *bt_test_dir(void)
{
    if (dir_owner != getpid()) {
        snprintf(dir_made, sizeof dir_made, "%s/test-XXXXXX", BT_TEST_BINARY_DIR);
        cr_assert_not_null(mkdtemp(dir_made));
        dir_owner = getpid();
        atexit(remove_dir);
    }
    return dir_made;
}

const char *bt_test_path(const char *dir, const char *name)
{
    static char paths[N_PATHS][PATH_BYTES];
    static int next;
    char *path = paths[next++ % N_PATHS];
    snprintf(path, PATH_BYTES, "%s/%s", dir, name);
    return path;
}

const char *bt_test_write(const char *name, const void *bytes, size_t n_bytes)
{
    const char *path = bt_test_path(bt_test_dir(), name);
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, n_bytes, f), n_bytes);
    cr_assert_eq(fclose(f), 0);
    return path;
}

const char *bt_test_write_st(const char *name, const char *header, size_t n_data)
{
    size_t n_header = strlen(header);
    unsigned char *bytes = calloc(1, 8 + n_header + n_data);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)n_header >> (8 * i));
    }
    memcpy(bytes + 8, header, n_header);
    const char *path = bt_test_write(name, bytes, 8 + n_header + n_data);
    free(bytes);
    return path;
}

unsigned char *bt_test_read(const char *path, size_t *n_bytes)
{
    struct stat sb;
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fstat(fileno(f), &sb), 0);
    *n_bytes = (size_t)sb.st_size;
    unsigned char *bytes = malloc(*n_bytes + 1);
    cr_assert_eq(fread(bytes, 1, *n_bytes, f), *n_bytes);
    bytes[*n_bytes] = '\0';
    fclose(f);
    return bytes;
}

const char *bt_test_model(const char *name)
{
    return bt_test_path(BT_TEST_SOURCE_DIR "/tests/models", name);
}
