#include "engine/model/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum bt_code read_whole(FILE *f, const char *path, int64_t max_bytes, char **out,
                               size_t *n_bytes, struct bt_error *err)
{
    struct stat sb;
    if (fstat(fileno(f), &sb) != 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(sb.st_mode)) {
        BT_FAIL(err, BT_ERR_IO, 0, "%s: not a regular file", path);
    }
    if (sb.st_size > max_bytes) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %lld bytes, at most %lld are allowed", path,
                (long long)sb.st_size, (long long)max_bytes);
    }
    size_t size = (size_t)sb.st_size;
    char *text = malloc(size + 1);
    if (text == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %zu bytes", path, size);
    }
    size_t got = fread(text, 1, size, f);
    if (got != size) {
        free(text);
        BT_FAIL(err, BT_ERR_IO, errno, "%s: read %zu of %zu bytes", path, got, size);
    }
    *out = text;
    *n_bytes = size;
    return BT_OK;
}

enum bt_code bt_json_load_object(const char *path, int64_t max_bytes, json_t **out,
                                 struct bt_error *err)
{
    *out = NULL;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        enum bt_code code = errno == ENOENT ? BT_ERR_NOTFOUND : BT_ERR_IO;
        BT_FAIL(err, code, errno, "%s: %s", path, strerror(errno));
    }
    char *text = NULL;
    size_t n_bytes = 0;
    enum bt_code code = read_whole(f, path, max_bytes, &text, &n_bytes, err);
    (void)fclose(f);
    BT_TRY(code);
    json_error_t je;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    free(text);
    if (root == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, je.line, "%s:%d:%d: %s", path, je.line, je.column, je.text);
    }
    if (!json_is_object(root)) {
        const char *type = bt_json_type_name(root);
        json_decref(root);
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: expected a JSON object, got %s", path, type);
    }
    *out = root;
    return BT_OK;
}

enum bt_code bt_json_save(const char *path, const json_t *root, struct bt_error *err)
{
    char part[BT_PATH_BYTES];
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: path longer than %d bytes", path, BT_PATH_BYTES);
    }
    FILE *f = fopen(part, "wb");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", part, strerror(errno));
    }
    bool ok = json_dumpf(root, f, JSON_INDENT(2)) == 0;
    ok = fputc('\n', f) != EOF && ok;
    ok = fclose(f) == 0 && ok;
    ok = ok && rename(part, path) == 0;
    if (!ok) {
        int saved = errno;
        (void)unlink(part);
        BT_FAIL(err, BT_ERR_IO, saved, "%s: %s", path, strerror(saved));
    }
    return BT_OK;
}

const char *bt_json_type_name(const json_t *v)
{
    if (v == NULL) {
        return "nothing";
    }
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "?";
}

enum bt_code bt_path_join(char *buf, size_t cap_bytes, const char *dir, const char *name,
                          struct bt_error *err)
{
    int n = snprintf(buf, cap_bytes, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= cap_bytes) {
        BT_FAIL(err, BT_ERR_ARG, 0, "path %s/%s: longer than %zu bytes", dir, name, cap_bytes - 1);
    }
    return BT_OK;
}

bool bt_path_exists(const char *path)
{
    return access(path, R_OK) == 0;
}
