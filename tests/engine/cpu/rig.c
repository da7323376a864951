#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum rig_scale rig_scale(void)
{
    const char *full = getenv("BT_FULL");
    if (full != NULL && strcmp(full, "1") == 0) {
        return RIG_FULL;
    }
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
    return RIG_CI;
#else
    return RIG_REDUCED;
#endif
}

const char *rig_model_path(const char *name)
{
    static char path[1024];
    (void)snprintf(path, sizeof path, "%s/tests/models/%s", BT_TEST_SOURCE_DIR, name);
    const char *other = getenv("BT_MODELS");
    if (access(path, R_OK) != 0 && other != NULL) {
        (void)snprintf(path, sizeof path, "%s/%s", other, name);
    }
    return path;
}

void rig_load(struct bt_model *m, const char *name, const struct bt_model_opts *opts)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_model_load(m, rig_model_path(name), opts, &err), BT_OK, "%s: %s", name,
                 err.msg);
}

struct bt_session *rig_session(const struct bt_model *m, enum bt_kv_format kv)
{
    struct bt_error err = {0};
    struct bt_session_opts o = {.model = m, .kv = kv, .n_threads = 1};
    struct bt_session *s;
    cr_assert_eq(bt_cpu_session_create(&o, &s, &err), BT_OK, "%s", err.msg);
    return s;
}

json_t *rig_json(const char *name)
{
    json_error_t e;
    json_t *root = json_load_file(rig_model_path(name), 0, &e);
    cr_assert_not_null(root, "%s: %s", name, e.text);
    return root;
}

int32_t *rig_ids(const json_t *array, int32_t *n)
{
    cr_assert(json_is_array(array));
    *n = (int32_t)json_array_size(array);
    int32_t *ids = calloc((size_t)*n + 1, sizeof *ids);
    for (int32_t i = 0; i < *n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    }
    return ids;
}

int32_t rig_argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

void rig_test_tokens(int64_t from, int32_t n, int32_t *out)
{
    FILE *f = fopen(rig_model_path("test_tokens_u16.bin"), "rb");
    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, (long)(2 * from), SEEK_SET), 0);
    for (int32_t i = 0; i < n; i++) {
        uint8_t b[2];
        cr_assert_eq(fread(b, 1, 2, f), 2);
        out[i] = b[0] | b[1] << 8;
    }
    (void)fclose(f);
}
