/* A GPU's operations as the berth stack's tables: in the store, in files, and in the cost model. */
#include "cli/calibrate.h"
#include "sim/cost/calib.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_op_sample gemm_of(int32_t m, double ns)
{
    struct bt_op_sample s = {.weights = BT_WEIGHT_INT4_G128,
                             .activations = BT_ACT_BF16,
                             .m_tokens = m,
                             .n_out = 4096,
                             .k_in = 5120,
                             .tp = 1,
                             .median_ns = ns,
                             .n_repeats = 3};
    (void)snprintf(s.op, sizeof s.op, "gemm");
    return s;
}

static char *text_of(const char *folder, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    static char text[1 << 14];
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

Test(calibrate_tables, are_read_back_without_a_graphs_node)
{
    struct bt_op_sample rows[] = {gemm_of(1, 10500), gemm_of(16, 12500), gemm_of(64, 300)};
    struct bt_op_rows_kept ops = {.samples = rows, .n = 3};
    struct bt_gpu gpu = {.name = "h200", .product = "NVIDIA H200"};
    struct bt_error err = {0};
    char folder[] = "/tmp/berth-tables-XXXXXX", db[64];
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(db, sizeof db, "%s/x.db", folder);
    struct bt_catalog *catalog = NULL;
    cr_assert_eq(bt_catalog_open(NULL, 0, &catalog, &err), BT_OK, "%s", err.msg);
    struct bt_store *store = NULL;
    struct bt_store_opts so = {.path = db, .catalog = catalog};
    cr_assert_eq(bt_store_open(&so, &store, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_calibrate_put_tables(&ops, &gpu, "some-13b", "2026-11-29T00:00:00Z", store,
                                         folder, &err),
                 BT_OK, "%s", err.msg);

    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    const struct bt_embedded *imports = NULL;
    int32_t n = 0;
    cr_assert_eq(bt_store_load_imports(store, false, &arena, &imports, &n, &err), BT_OK);
    cr_assert_eq(n, 1);
    const char *name = "h200__berth-0.1.0__gemm__some-13b-int4-g128-bf16.cal";
    cr_expect_str_eq(imports[0].name, name);
    const char *text = text_of(folder, name);
    cr_expect_str_eq(imports[0].text, text);

    struct bt_sample_set set;
    bt_sample_set_init(&set);
    struct bt_import_text file = {.text = text, .size_bytes = strlen(text), .name = name};
    cr_assert_eq(bt_calib_read(&file, &set, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(set.n_samples, 3);
    static const int64_t want[] = {10000, 12000, 200}; /* no less than a kernel takes */
    for (int64_t i = 0; i < 3; i++) {
        cr_expect_eq(set.samples[i].time_ns, want[i]);
        cr_expect_eq(set.samples[i].format.weights, BT_NUM_INT4_G128);
        cr_expect_str_eq(set.samples[i].stack, "berth");
        cr_expect_not_null(strstr(set.samples[i].source, "NVIDIA H200"));
    }
    bt_sample_set_fini(&set);
    bt_arena_fini(&arena);
    bt_store_close(store);
    bt_catalog_close(catalog);
    char path[512];
    (void)snprintf(path, sizeof path, "rm -r %s", folder);
    cr_expect_eq(system(path), 0);
}
