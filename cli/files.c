#include "cli/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

bool bt_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool bt_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum bt_code make_one(const char *path, struct bt_error *err)
{
    int error = mkdir(path, 0777) == 0 ? 0 : errno;
    if (error != 0 && !bt_is_folder(path)) {
        BT_FAIL(err, BT_ERR_IO, error, "%s: expected a folder that exists or can be made: %s", path,
                error == EEXIST ? "it is a file" : strerror(error));
    }
    return BT_OK;
}

enum bt_code bt_make_folder(const char *path, struct bt_error *err)
{
    char part[PATH_BYTES];
    int n = snprintf(part, sizeof part, "%s", path);
    if (path[0] == '\0' || n < 0 || (size_t)n >= sizeof part) {
        BT_FAIL(err, BT_ERR_IO, 0, "'%s': expected the name of a folder, at most %d bytes", path,
                PATH_BYTES - 1);
    }
    for (char *at = part + 1; *at != '\0'; at++) {
        if (*at == '/') {
            *at = '\0';
            BT_TRY(make_one(part, err));
            *at = '/';
        }
    }
    BT_TRY(make_one(part, err));
    if (access(part, W_OK) != 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: nothing can be written there: %s", path,
                strerror(errno));
    }
    return BT_OK;
}

/* All that is left of a stream; NULL: no memory. One byte more than the most is read, so that it
 * can be seen. */
static char *read_all(FILE *f, size_t *n_bytes)
{
    size_t cap = 1 << 16, n = 0;
    char *text = malloc(cap + 1);
    while (text != NULL) {
        n += fread(text + n, 1, cap - n, f);
        if (n < cap || n > BT_FILE_MAX_BYTES) {
            text[n] = '\0';
            break;
        }
        cap = 2 * cap < BT_FILE_MAX_BYTES ? 2 * cap : BT_FILE_MAX_BYTES + 1;
        char *grown = realloc(text, cap + 1);
        if (grown == NULL) {
            free(text);
        }
        text = grown;
    }
    *n_bytes = n;
    return text;
}

enum bt_code bt_read_file(const char *path, char **text, size_t *n_bytes, struct bt_error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    *text = NULL;
    *n_bytes = 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", path, strerror(errno));
    }
    size_t n = 0;
    char *all = read_all(f, &n);
    bool bad = ferror(f) != 0;
    int why = errno;
    if (!is_stdin) {
        (void)fclose(f);
    }
    if (bad || all == NULL || n > BT_FILE_MAX_BYTES) {
        bool no_memory = all == NULL;
        free(all);
        if (bad) {
            BT_FAIL(err, BT_ERR_IO, why, "%s: cannot read: %s", path, strerror(why));
        }
        BT_FAIL(err, no_memory ? BT_ERR_NOMEM : BT_ERR_LIMIT, (int64_t)n,
                no_memory ? "%s: no memory for more than %zu bytes"
                          : "%s: has %zu bytes or more, above what is read of a file",
                path, n);
    }
    *text = all;
    *n_bytes = n;
    return BT_OK;
}

enum bt_code bt_read_token_file(const char *path, struct bt_ids *out, struct bt_error *err)
{
    char *bytes = NULL;
    size_t n = 0;
    BT_TRY(bt_read_file(path, &bytes, &n, err));
    *out = (struct bt_ids){0};
    int32_t *ids = malloc((n / 2 + 1) * sizeof *ids);
    if (n == 0 || n % 2 != 0 || ids == NULL) {
        free(bytes);
        free(ids);
        BT_FAIL(err, ids == NULL ? BT_ERR_NOMEM : BT_ERR_INPUT, (int64_t)n,
                ids == NULL ? "%s: no memory for the tokens of %zu bytes"
                            : "%s: %zu bytes are no tokens of two bytes each",
                path, n);
    }
    for (size_t i = 0; i < n / 2; i++) {
        ids[i] = (uint8_t)bytes[2 * i] | (uint8_t)bytes[2 * i + 1] << 8;
    }
    free(bytes);
    out->ids = ids;
    out->n = (int64_t)(n / 2);
    return BT_OK;
}
