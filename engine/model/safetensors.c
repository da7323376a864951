#include "engine/model/safetensors.h"

#include "engine/core/arena.h"
#include "engine/model/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ST_MAX_INDEX_BYTES = 256 * 1000 * 1000,
    ST_PREFIX_BYTES = 8, /* u64 length of the header */
};

/* Tensors are little-endian on disk and are read as they lie. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "needs a little-endian machine");

struct st_file {
    char *path;   /* in the arena */
    char *name;   /* last part of path, as the index calls it; in the arena */
    int fd;       /* owned; -1 when closed */
    json_t *meta; /* owned; "__metadata__" or NULL */
};

struct bt_safetensors {
    struct bt_arena arena; /* names and tables */
    struct st_file *files; /* in the arena */
    int32_t n_files;
    struct bt_st_tensor *tensors; /* owned, malloc: grows while files are opened */
    int32_t n_tensors;
    int32_t cap_tensors;
};

const char *bt_st_shape_text(int32_t n_dims, const int64_t *shape, char *buf, size_t cap_bytes)
{
    size_t at = 0;
    int n = snprintf(buf, cap_bytes, "[");
    for (int32_t d = 0; d <= n_dims; d++) {
        at = n > 0 && at + (size_t)n < cap_bytes ? at + (size_t)n : at;
        if (d == n_dims) {
            (void)snprintf(buf + at, cap_bytes - at, "]");
        } else {
            n = snprintf(buf + at, cap_bytes - at, d == 0 ? "%lld" : ", %lld", (long long)shape[d]);
        }
    }
    return buf;
}

static enum bt_code read_at(int fd, const char *path, void *dst, int64_t n_bytes, int64_t offset,
                            struct bt_error *err)
{
    char *p = dst;
    int64_t done = 0;
    while (done < n_bytes) {
        ssize_t got = pread(fd, p + done, (size_t)(n_bytes - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", path, strerror(errno));
        }
        if (got == 0) {
            BT_FAIL(err, BT_ERR_IO, 0, "%s: ends at byte %lld, expected %lld", path,
                    (long long)(offset + done), (long long)(offset + n_bytes));
        }
        done += got;
    }
    return BT_OK;
}

static enum bt_code tensor_new(struct bt_safetensors *st, struct bt_st_tensor **out,
                               struct bt_error *err)
{
    if (st->n_tensors == st->cap_tensors) {
        int32_t cap = st->cap_tensors == 0 ? 256 : 2 * st->cap_tensors;
        struct bt_st_tensor *grown = realloc(st->tensors, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "safetensors: no memory for %d tensors", cap);
        }
        st->tensors = grown;
        st->cap_tensors = cap;
    }
    *out = &st->tensors[st->n_tensors++];
    **out = (struct bt_st_tensor){0};
    return BT_OK;
}

static enum bt_code read_shape(struct bt_st_tensor *t, const json_t *shape, struct bt_error *err)
{
    if (!json_is_array(shape)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: shape: expected an array, got %s", t->file, t->name,
                bt_json_type_name(shape));
    }
    if (json_array_size(shape) > BT_ST_MAX_DIMS) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: shape: %zu dimensions, at most %d are allowed",
                t->file, t->name, json_array_size(shape), BT_ST_MAX_DIMS);
    }
    t->n_dims = (int32_t)json_array_size(shape);
    t->n_elements = 1;
    for (int32_t d = 0; d < t->n_dims; d++) {
        const json_t *dim = json_array_get(shape, (size_t)d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: shape[%d]: expected an integer >= 0", t->file,
                    t->name, d);
        }
        t->shape[d] = json_integer_value(dim);
        if (__builtin_mul_overflow(t->n_elements, t->shape[d], &t->n_elements)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: shape: the number of elements overflows",
                    t->file, t->name);
        }
    }
    int64_t element_bytes = (int64_t)bt_dtype_bytes(t->dtype);
    if (__builtin_mul_overflow(t->n_elements, element_bytes, &t->n_bytes)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: shape: the number of bytes overflows", t->file,
                t->name);
    }
    return BT_OK;
}

static enum bt_code read_offsets(struct bt_st_tensor *t, const json_t *offsets, int64_t data_bytes,
                                 struct bt_error *err)
{
    const json_t *jb = json_array_get(offsets, 0);
    const json_t *je = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(jb) || !json_is_integer(je)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: data_offsets: expected two integers", t->file,
                t->name);
    }
    int64_t begin = json_integer_value(jb);
    int64_t end = json_integer_value(je);
    if (begin < 0 || end < begin) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: data_offsets [%lld, %lld): not an ascending range",
                t->file, t->name, (long long)begin, (long long)end);
    }
    if (end > data_bytes) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: %s: data_offsets [%lld, %lld): the file is truncated, it holds %lld bytes of "
                "data",
                t->file, t->name, (long long)begin, (long long)end, (long long)data_bytes);
    }
    if (end - begin != t->n_bytes) {
        char shape[128];
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: %s: data_offsets [%lld, %lld): %lld bytes, but %s %s takes %lld", t->file,
                t->name, (long long)begin, (long long)end, (long long)(end - begin),
                bt_dtype_name(t->dtype), bt_st_shape_text(t->n_dims, t->shape, shape, sizeof shape),
                (long long)t->n_bytes);
    }
    t->offset_bytes = begin; /* from the start of the data until the file's order is checked */
    return BT_OK;
}

static enum bt_code read_entry(struct bt_safetensors *st, int32_t file_i, const char *name,
                               const json_t *entry, int64_t data_bytes, struct bt_error *err)
{
    const char *path = st->files[file_i].path;
    if (!json_is_object(entry)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected an object, got %s", path, name,
                bt_json_type_name(entry));
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: unknown key \"%s\"", path, name, key);
        }
    }
    struct bt_st_tensor *t;
    BT_TRY(tensor_new(st, &t, err));
    t->file_i = file_i;
    t->file = path;
    t->name = bt_arena_strdup(&st->arena, name);
    if (t->name == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for names", path);
    }
    const json_t *dtype = json_object_get(entry, "dtype");
    if (!json_is_string(dtype) || !bt_dtype_parse(json_string_value(dtype), &t->dtype)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: %s: dtype %s: expected F32, F16, BF16, F8_E4M3, I8, I32, I64 or U8", path,
                name, json_is_string(dtype) ? json_string_value(dtype) : bt_json_type_name(dtype));
    }
    BT_TRY(read_shape(t, json_object_get(entry, "shape"), err));
    return read_offsets(t, json_object_get(entry, "data_offsets"), data_bytes, err);
}

static int by_offset(const void *a, const void *b)
{
    const struct bt_st_tensor *x = a;
    const struct bt_st_tensor *y = b;
    if (x->offset_bytes != y->offset_bytes) {
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    }
    if (x->n_bytes != y->n_bytes) {
        return x->n_bytes < y->n_bytes ? -1 : 1; /* empty tensors come before what they touch */
    }
    return strcmp(x->name, y->name);
}

/* The data must be covered exactly once: what no tensor claims could hide anything. */
static enum bt_code check_dense(struct bt_safetensors *st, int32_t first, int64_t data_bytes,
                                int64_t data_start, const char *path, struct bt_error *err)
{
    int32_t n = st->n_tensors - first;
    int64_t end = 0;
    if (n > 0) {
        qsort(st->tensors + first, (size_t)n, sizeof *st->tensors, by_offset);
    }
    for (int32_t i = first; i < st->n_tensors; i++) {
        struct bt_st_tensor *t = &st->tensors[i];
        if (t->offset_bytes < end) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: %s: data_offsets start at %lld inside %s, which ends at %lld", path,
                    t->name, (long long)t->offset_bytes, st->tensors[i - 1].name, (long long)end);
        }
        if (t->offset_bytes > end) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: %s: data_offsets start at %lld, bytes from %lld on belong to no tensor",
                    path, t->name, (long long)t->offset_bytes, (long long)end);
        }
        end = t->offset_bytes + t->n_bytes;
        t->offset_bytes += data_start;
    }
    if (end != data_bytes) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %lld bytes after the last tensor", path,
                (long long)(data_bytes - end));
    }
    return BT_OK;
}

static enum bt_code keep_metadata(struct st_file *f, json_t *meta, struct bt_error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: __metadata__: expected an object, got %s", f->path,
                bt_json_type_name(meta));
    }
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: __metadata__.%s: expected a string, got %s", f->path,
                    key, bt_json_type_name(value));
        }
    }
    f->meta = json_incref(meta);
    return BT_OK;
}

static enum bt_code read_header_json(struct bt_safetensors *st, int32_t file_i, json_t *root,
                                     int64_t data_bytes, struct bt_error *err)
{
    const char *name;
    json_t *entry;
    if (!json_is_object(root)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: header: expected an object, got %s",
                st->files[file_i].path, bt_json_type_name(root));
    }
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            BT_TRY(keep_metadata(&st->files[file_i], entry, err));
        } else {
            BT_TRY(read_entry(st, file_i, name, entry, data_bytes, err));
        }
    }
    return BT_OK;
}

static enum bt_code header_size(const struct st_file *f, int64_t file_bytes, int64_t *out,
                                struct bt_error *err)
{
    unsigned char prefix[ST_PREFIX_BYTES];
    if (file_bytes < ST_PREFIX_BYTES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %lld bytes: too short for a safetensors file", f->path,
                (long long)file_bytes);
    }
    BT_TRY(read_at(f->fd, f->path, prefix, ST_PREFIX_BYTES, 0, err));
    uint64_t n = 0;
    for (int i = ST_PREFIX_BYTES - 1; i >= 0; i--) {
        n = n << 8 | prefix[i];
    }
    if (n > BT_ST_MAX_HEADER_BYTES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: header of %llu bytes, at most %d are allowed", f->path,
                (unsigned long long)n, BT_ST_MAX_HEADER_BYTES);
    }
    if ((int64_t)n > file_bytes - ST_PREFIX_BYTES) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: header of %llu bytes, but the file is truncated at %lld bytes", f->path,
                (unsigned long long)n, (long long)file_bytes);
    }
    *out = (int64_t)n;
    return BT_OK;
}

static enum bt_code read_header(struct bt_safetensors *st, int32_t file_i, struct bt_error *err)
{
    struct st_file *f = &st->files[file_i];
    struct stat sb;
    if (fstat(f->fd, &sb) != 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", f->path, strerror(errno));
    }
    if (!S_ISREG(sb.st_mode)) {
        BT_FAIL(err, BT_ERR_IO, 0, "%s: not a regular file", f->path);
    }
    int64_t n_header = 0;
    BT_TRY(header_size(f, (int64_t)sb.st_size, &n_header, err));
    char *text = malloc((size_t)n_header + 1);
    if (text == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a header of %lld bytes", f->path,
                (long long)n_header);
    }
    enum bt_code code = read_at(f->fd, f->path, text, n_header, ST_PREFIX_BYTES, err);
    if (code != BT_OK) {
        free(text);
        return code;
    }
    json_error_t je;
    json_t *root = json_loadb(text, (size_t)n_header, JSON_REJECT_DUPLICATES, &je);
    free(text);
    if (root == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, je.position, "%s: header: byte %d: %s", f->path, je.position,
                je.text);
    }
    int64_t data_start = ST_PREFIX_BYTES + n_header;
    int64_t data_bytes = (int64_t)sb.st_size - data_start;
    int32_t first = st->n_tensors;
    code = read_header_json(st, file_i, root, data_bytes, err);
    json_decref(root);
    BT_TRY(code);
    return check_dense(st, first, data_bytes, data_start, f->path, err);
}

static enum bt_code open_file(struct bt_safetensors *st, int32_t file_i, const char *path,
                              struct bt_error *err)
{
    struct st_file *f = &st->files[file_i];
    f->path = bt_arena_strdup(&st->arena, path);
    if (f->path == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", path);
    }
    char *slash = strrchr(f->path, '/');
    f->name = slash == NULL ? f->path : slash + 1;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    return read_header(st, file_i, err);
}

static int by_name(const void *a, const void *b)
{
    const struct bt_st_tensor *x = a;
    const struct bt_st_tensor *y = b;
    return strcmp(x->name, y->name);
}

static enum bt_code sort_and_check_names(struct bt_safetensors *st, struct bt_error *err)
{
    if (st->n_tensors > 0) {
        qsort(st->tensors, (size_t)st->n_tensors, sizeof *st->tensors, by_name);
    }
    for (int32_t i = 1; i < st->n_tensors; i++) {
        if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) == 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: also in %s", st->tensors[i].file,
                    st->tensors[i].name, st->tensors[i - 1].file);
        }
    }
    return BT_OK;
}

static enum bt_code files_new(struct bt_safetensors **out, int32_t n_files, struct bt_error *err)
{
    struct bt_safetensors *st = calloc(1, sizeof *st);
    if (st == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "safetensors: no memory");
    }
    bt_arena_init(&st->arena, 0);
    st->files = bt_arena_take_zeroed(&st->arena, (size_t)n_files, sizeof *st->files);
    if (st->files == NULL) {
        free(st);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "safetensors: no memory for %d files", n_files);
    }
    for (int32_t i = 0; i < n_files; i++) {
        st->files[i].fd = -1;
    }
    st->n_files = n_files;
    *out = st;
    return BT_OK;
}

enum bt_code bt_safetensors_open(const char *path, struct bt_safetensors **out,
                                 struct bt_error *err)
{
    *out = NULL;
    struct bt_safetensors *st;
    BT_TRY(files_new(&st, 1, err));
    enum bt_code code = open_file(st, 0, path, err);
    if (code == BT_OK) {
        code = sort_and_check_names(st, err);
    }
    if (code != BT_OK) {
        bt_safetensors_close(st);
        return code;
    }
    *out = st;
    return BT_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of a weight_map, sorted; names are borrowed from the JSON. */
static enum bt_code shard_names(const char *path, json_t *map, const char ***out, int32_t *n_out,
                                struct bt_error *err)
{
    const char *tensor;
    json_t *file;
    size_t n = json_object_size(map);
    const char **names = malloc((n + 1) * sizeof *names);
    if (names == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %zu names", path, n);
    }
    n = 0;
    json_object_foreach(map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (name == NULL || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL) {
            free(names);
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: weight_map.%s: expected a file name, got %s", path,
                    tensor, name == NULL ? bt_json_type_name(file) : name);
        }
        names[n++] = name;
    }
    qsort(names, n, sizeof *names, by_text);
    int32_t distinct = 0;
    for (size_t i = 0; i < n; i++) {
        if (distinct == 0 || strcmp(names[distinct - 1], names[i]) != 0) {
            names[distinct++] = names[i];
        }
    }
    *out = names;
    *n_out = distinct;
    return BT_OK;
}

static enum bt_code check_index(const struct bt_safetensors *st, const char *path, json_t *map,
                                struct bt_error *err)
{
    const char *tensor;
    json_t *file;
    json_object_foreach(map, tensor, file)
    {
        const struct bt_st_tensor *t = bt_safetensors_find(st, tensor);
        const char *want = json_string_value(file);
        if (t == NULL) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: weight_map.%s: %s has no such tensor", path, tensor,
                    want);
        }
        if (strcmp(st->files[t->file_i].name, want) != 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: weight_map.%s: %s has no such tensor, %s has", path,
                    tensor, want, st->files[t->file_i].name);
        }
    }
    return BT_OK;
}

static enum bt_code open_shards(const char *dir, const char *index_path, json_t *map,
                                const char **names, int32_t n_names, struct bt_safetensors **out,
                                struct bt_error *err)
{
    struct bt_safetensors *st;
    BT_TRY(files_new(&st, n_names, err));
    enum bt_code code = BT_OK;
    for (int32_t i = 0; i < n_names && code == BT_OK; i++) {
        char path[BT_PATH_BYTES];
        code = bt_path_join(path, sizeof path, dir, names[i], err);
        if (code == BT_OK && !bt_path_exists(path)) {
            code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                                "%s: weight_map names %s, which is missing", index_path, names[i]);
        }
        if (code == BT_OK) {
            code = open_file(st, i, path, err);
        }
    }
    if (code == BT_OK) {
        code = sort_and_check_names(st, err);
    }
    if (code == BT_OK) {
        code = check_index(st, index_path, map, err);
    }
    if (code != BT_OK) {
        bt_safetensors_close(st);
        return code;
    }
    *out = st;
    return BT_OK;
}

static enum bt_code open_index(const char *dir, const char *path, json_t *root,
                               struct bt_safetensors **out, struct bt_error *err)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: weight_map: expected an object with tensors, got %s",
                path, bt_json_type_name(map));
    }
    const char **names = NULL;
    int32_t n_names = 0;
    BT_TRY(shard_names(path, map, &names, &n_names, err));
    if (n_names > BT_ST_MAX_SHARDS) {
        free(names);
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: weight_map: %d shards, at most %d are allowed", path,
                n_names, BT_ST_MAX_SHARDS);
    }
    enum bt_code code = open_shards(dir, path, map, names, n_names, out, err);
    free(names);
    return code;
}

enum bt_code bt_safetensors_open_dir(const char *dir, struct bt_safetensors **out,
                                     struct bt_error *err)
{
    *out = NULL;
    char path[BT_PATH_BYTES];
    BT_TRY(bt_path_join(path, sizeof path, dir, "model.safetensors.index.json", err));
    if (bt_path_exists(path)) {
        json_t *root = NULL;
        BT_TRY(bt_json_load_object(path, ST_MAX_INDEX_BYTES, &root, err));
        enum bt_code code = open_index(dir, path, root, out, err);
        json_decref(root);
        return code;
    }
    BT_TRY(bt_path_join(path, sizeof path, dir, "model.safetensors", err));
    if (!bt_path_exists(path)) {
        BT_FAIL(err, BT_ERR_IO, ENOENT,
                "%s: neither model.safetensors nor model.safetensors.index.json is there", dir);
    }
    return bt_safetensors_open(path, out, err);
}

void bt_safetensors_close(struct bt_safetensors *st)
{
    if (st == NULL) {
        return;
    }
    for (int32_t i = 0; i < st->n_files; i++) {
        if (st->files[i].fd >= 0) {
            (void)close(st->files[i].fd);
        }
        json_decref(st->files[i].meta);
    }
    free(st->tensors);
    bt_arena_fini(&st->arena);
    free(st);
}

int32_t bt_safetensors_count(const struct bt_safetensors *st)
{
    return st->n_tensors;
}

const struct bt_st_tensor *bt_safetensors_at(const struct bt_safetensors *st, int32_t i)
{
    BT_ASSERT(i >= 0 && i < st->n_tensors);
    return &st->tensors[i];
}

const struct bt_st_tensor *bt_safetensors_find(const struct bt_safetensors *st, const char *name)
{
    struct bt_st_tensor key = {.name = name};
    if (st->n_tensors == 0) {
        return NULL;
    }
    return bsearch(&key, st->tensors, (size_t)st->n_tensors, sizeof key, by_name);
}

const char *bt_safetensors_metadata(const struct bt_safetensors *st, const char *key)
{
    for (int32_t i = 0; i < st->n_files; i++) {
        const char *value = json_string_value(json_object_get(st->files[i].meta, key));
        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}

enum bt_code bt_safetensors_read_part(const struct bt_safetensors *st, const struct bt_st_tensor *t,
                                      int64_t offset_bytes, int64_t n_bytes, void *dst,
                                      struct bt_error *err)
{
    BT_ASSERT(offset_bytes >= 0 && n_bytes >= 0);
    BT_ASSERT(n_bytes <= t->n_bytes && offset_bytes <= t->n_bytes - n_bytes);
    const struct st_file *f = &st->files[t->file_i];
    return read_at(f->fd, f->path, dst, n_bytes, t->offset_bytes + offset_bytes, err);
}

enum bt_code bt_safetensors_read(const struct bt_safetensors *st, const struct bt_st_tensor *t,
                                 void *dst, struct bt_error *err)
{
    return bt_safetensors_read_part(st, t, 0, t->n_bytes, dst, err);
}

enum bt_code bt_safetensors_read_f32(const struct bt_safetensors *st, const struct bt_st_tensor *t,
                                     float *dst, struct bt_error *err)
{
    unsigned char buf[16384];
    int64_t element_bytes = (int64_t)bt_dtype_bytes(t->dtype);
    int64_t chunk = (int64_t)sizeof buf / element_bytes;
    for (int64_t i = 0; i < t->n_elements; i += chunk) {
        int64_t n = t->n_elements - i < chunk ? t->n_elements - i : chunk;
        BT_TRY(bt_safetensors_read_part(st, t, i * element_bytes, n * element_bytes, buf, err));
        bt_dtype_to_f32(t->dtype, buf, dst + i, (size_t)n);
    }
    return BT_OK;
}

enum bt_code bt_st_tensor_expect(const struct bt_st_tensor *t, int32_t n_dims, const int64_t *shape,
                                 struct bt_error *err)
{
    bool same = t->n_dims == n_dims;
    for (int32_t d = 0; same && d < n_dims; d++) {
        same = t->shape[d] == shape[d];
    }
    if (!same) {
        char got[128];
        char want[128];
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: shape %s, expected %s", t->file, t->name,
                bt_st_shape_text(t->n_dims, t->shape, got, sizeof got),
                bt_st_shape_text(n_dims, shape, want, sizeof want));
    }
    return BT_OK;
}
