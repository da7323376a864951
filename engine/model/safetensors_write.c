#include "engine/model/json_file.h"
#include "engine/model/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_size_then_name(const void *a, const void *b)
{
    const struct bt_st_entry *x = *(const struct bt_st_entry *const *)a;
    const struct bt_st_entry *y = *(const struct bt_st_entry *const *)b;
    size_t bx = bt_dtype_bytes(x->dtype);
    size_t by = bt_dtype_bytes(y->dtype);
    if (bx != by) {
        return bx > by ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int64_t entry_bytes(const struct bt_st_entry *e)
{
    int64_t n = (int64_t)bt_dtype_bytes(e->dtype);
    for (int32_t d = 0; d < e->n_dims; d++) {
        n *= e->shape[d];
    }
    return n;
}

/* The header's JSON, padded with spaces so that the data start at a multiple of 8; NULL when memory
 * is short or a name repeats (*repeated is set then). */
static char *header_text(const struct bt_st_entry *const *order, int32_t n, const char **repeated)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int64_t at = 0;
    bool ok = root != NULL;
    for (int32_t i = 0; i < n && ok; i++) {
        const struct bt_st_entry *e = order[i];
        if (e->name[0] == '\0' || json_object_get(root, e->name) != NULL) {
            *repeated = e->name;
            ok = false;
            break;
        }
        int64_t end = at + entry_bytes(e);
        json_t *shape = json_array();
        for (int32_t d = 0; d < e->n_dims; d++) {
            ok = json_array_append_new(shape, json_integer(e->shape[d])) == 0 && ok;
        }
        json_t *entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", bt_dtype_name(e->dtype), "shape",
                                  shape, "data_offsets", (json_int_t)at, (json_int_t)end);
        ok = entry != NULL && json_object_set_new(root, e->name, entry) == 0 && ok;
        at = end;
    }
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL) {
        return NULL;
    }
    size_t len = strlen(text);
    size_t padded = (len + 7) / 8 * 8;
    char *out = realloc(text, padded + 1);
    if (out == NULL) {
        free(text);
        return NULL;
    }
    memset(out + len, ' ', padded - len);
    out[padded] = '\0';
    return out;
}

static bool write_all(FILE *f, const char *header, const struct bt_st_entry *const *order,
                      int32_t n)
{
    uint64_t len = strlen(header);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)(len >> (8 * i));
    }
    bool ok = fwrite(prefix, 1, sizeof prefix, f) == sizeof prefix;
    ok = ok && fwrite(header, 1, (size_t)len, f) == len;
    for (int32_t i = 0; i < n && ok; i++) {
        size_t bytes = (size_t)entry_bytes(order[i]);
        ok = bytes == 0 || fwrite(order[i]->bytes, 1, bytes, f) == bytes;
    }
    return ok;
}

static enum bt_code write_file(const char *path, const char *header,
                               const struct bt_st_entry *const *order, int32_t n,
                               struct bt_error *err)
{
    char part[BT_PATH_BYTES];
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: path longer than %d bytes", path, BT_PATH_BYTES);
    }
    FILE *f = fopen(part, "wb");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", part, strerror(errno));
    }
    bool ok = write_all(f, header, order, n);
    ok = fclose(f) == 0 && ok;
    ok = ok && rename(part, path) == 0;
    if (!ok) {
        int saved = errno;
        (void)unlink(part);
        BT_FAIL(err, BT_ERR_IO, saved, "%s: %s", path, strerror(saved));
    }
    return BT_OK;
}

enum bt_code bt_safetensors_write(const char *path, const struct bt_st_entry *entries,
                                  int32_t n_entries, struct bt_error *err)
{
    BT_ASSERT(n_entries >= 0);
    const struct bt_st_entry **order = malloc(((size_t)n_entries + 1) * sizeof *order);
    if (order == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %d tensors", path, n_entries);
    }
    for (int32_t i = 0; i < n_entries; i++) {
        BT_ASSERT(entries[i].n_dims >= 0 && entries[i].n_dims <= BT_ST_MAX_DIMS);
        order[i] = &entries[i];
    }
    qsort(order, (size_t)n_entries, sizeof *order, by_size_then_name);
    const char *repeated = NULL;
    char *header = header_text(order, n_entries, &repeated);
    if (header == NULL) {
        free(order);
        if (repeated != NULL) {
            BT_FAIL(err, BT_ERR_ARG, 0, "%s: tensor name \"%s\" is empty or given twice", path,
                    repeated);
        }
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for the header", path);
    }
    enum bt_code code = write_file(path, header, order, n_entries, err);
    free(header);
    free(order);
    return code;
}
