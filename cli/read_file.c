#include "cli/read_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum bt_code bt_read_file(const char *path, size_t max_bytes, char **text, size_t *n_bytes,
                          struct bt_error *err)
{
    *text = NULL;
    *n_bytes = 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", path, strerror(errno));
    }
    size_t cap = 1 << 16;
    char *buf = malloc(cap + 1);
    size_t n = 0;
    while (buf != NULL) {
        n += fread(buf + n, 1, cap - n, f);
        if (n < cap) {
            break;
        }
        char *grown = cap > max_bytes ? NULL : realloc(buf, cap * 2 + 1);
        if (grown == NULL) {
            free(buf);
        }
        buf = grown;
        cap *= 2;
    }
    bool bad = ferror(f) != 0;
    int why = errno;
    (void)fclose(f);
    if (buf == NULL || bad) {
        free(buf);
        BT_FAIL(err, bad ? BT_ERR_IO : BT_ERR_NOMEM, why, "%s: cannot read: %s", path,
                bad ? strerror(why) : "more text than fits");
    }
    buf[n] = '\0';
    *text = buf;
    *n_bytes = n;
    return BT_OK;
}
