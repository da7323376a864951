/* A GPU's operations as the berth stack's tables: in the store, in files, and in the cost model. */
#include "cli/calibrate.h"
#include "sim/cost/calib.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_op_sample gemm_of(enum bt_weight_format weights, int32_t m, double ns)
{
    struct bt_op_sample s = {.weights = weights,
                             .activations = BT_ACT_FP16,
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

static struct bt_catalog *catalog;
static struct bt_store *store;
static char folder[64];
static const char name[] = "l4__berth-0.1.0__gemm.cal";

static void setup(void)
{
    struct bt_error err = {0};
    char db[96];
    (void)snprintf(folder, sizeof folder, "/tmp/berth-tables-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(db, sizeof db, "%s/x.db", folder);
    cr_assert_eq(bt_catalog_open(NULL, 0, &catalog, &err), BT_OK, "%s", err.msg);
    struct bt_store_opts so = {.path = db, .catalog = catalog};
    cr_assert_eq(bt_store_open(&so, &store, &err), BT_OK, "%s", err.msg);
}

static void teardown(void)
{
    char command[128];
    bt_store_close(store);
    bt_catalog_close(catalog);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0);
}

TestSuite(calibrate_tables, .init = setup, .fini = teardown);

static enum bt_code put(struct bt_op_sample *rows, int64_t n, const char *gpu, const char *model,
                        const char *date, struct bt_error *err)
{
    struct bt_op_rows_kept ops = {.samples = rows, .n = n};
    struct bt_gpu card = {.product = "NVIDIA L4"};
    (void)snprintf(card.name, sizeof card.name, "%s", gpu);
    return bt_calibrate_put_tables(&ops, &card, model, date, store, folder, err);
}

static void read_set(const char *text, struct bt_sample_set *set)
{
    struct bt_error err = {0};
    struct bt_import_text file = {.text = text, .size_bytes = strlen(text), .name = name};
    bt_sample_set_init(set);
    cr_assert_eq(bt_calib_read(&file, set, &err), BT_OK, "%s", err.msg);
}

/* Time at m in a format; 0: none. */
static int64_t time_at(const struct bt_sample_set *set, enum bt_num weights, int64_t m)
{
    for (int64_t i = 0; i < set->n_samples; i++) {
        if (set->samples[i].format.weights == weights && set->samples[i].shape.m == m) {
            return set->samples[i].time_ns;
        }
    }
    return 0;
}

Test(calibrate_tables, are_read_back_without_a_graphs_node)
{
    struct bt_error err = {0};
    /* The last takes less than a kernel beside its node: it is part of another. */
    struct bt_op_sample rows[] = {gemm_of(BT_WEIGHT_INT4_G128, 1, 10500),
                                  gemm_of(BT_WEIGHT_INT4_G128, 16, 12500),
                                  gemm_of(BT_WEIGHT_INT4_G128, 64, 600)};
    cr_assert_eq(put(rows, 3, "l4", "some-13b", "2026-11-29T00:00:00Z", &err), BT_OK, "%s",
                 err.msg);
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    const struct bt_embedded *imports = NULL;
    int32_t n = 0;
    cr_assert_eq(bt_store_load_imports(store, false, &arena, &imports, &n, &err), BT_OK);
    cr_assert_eq(n, 1);
    cr_expect_str_eq(imports[0].name, name);
    const char *text = text_of(folder, name);
    cr_expect_str_eq(imports[0].text, text);

    struct bt_sample_set set;
    read_set(text, &set);
    cr_assert_eq(set.n_samples, 2);
    cr_expect_eq(time_at(&set, BT_NUM_INT4_G128, 1), 10000);
    cr_expect_eq(time_at(&set, BT_NUM_INT4_G128, 16), 12000);
    for (int64_t i = 0; i < set.n_samples; i++) {
        cr_expect_eq(set.samples[i].format.activations, BT_NUM_BF16, "FP16 is BF16 in a table");
        cr_expect_str_eq(set.samples[i].stack, "berth");
        cr_expect_not_null(strstr(set.samples[i].source, "NVIDIA L4"));
    }
    bt_sample_set_fini(&set);
    bt_arena_fini(&arena);
}

Test(calibrate_tables, take_a_session_in_and_keep_the_rest)
{
    struct bt_error err = {0};
    struct bt_op_sample first[] = {gemm_of(BT_WEIGHT_INT4_G128, 1, 10500),
                                   gemm_of(BT_WEIGHT_FP16, 1, 20500),
                                   gemm_of(BT_WEIGHT_FP16, 8, 22500)};
    struct bt_op_sample second[] = {gemm_of(BT_WEIGHT_FP16, 8, 33500),
                                    gemm_of(BT_WEIGHT_INT8, 1, 8500)};
    struct bt_op_sample third[] = {gemm_of(BT_WEIGHT_FP16, 16, 44500)};
    cr_assert_eq(put(first, 3, "l4", "some-13b", "2026-11-29T00:00:00Z", &err), BT_OK);
    cr_assert_eq(put(second, 2, "l4", "some-1", "2026-11-29T01:00:00Z", &err), BT_OK);
    cr_assert_eq(put(second, 2, "l4", "some-13b", "2026-11-29T02:00:00Z", &err), BT_OK);
    cr_assert_eq(put(third, 1, "l4", "some-1", "2026-11-30T00:00:00Z", &err), BT_OK, "%s", err.msg);

    struct bt_sample_set set;
    read_set(text_of(folder, name), &set);
    cr_expect_eq(set.n_samples, 5);
    cr_expect_eq(time_at(&set, BT_NUM_INT4_G128, 1), 10000);
    cr_expect_eq(time_at(&set, BT_NUM_BF16, 1), 20000);
    cr_expect_eq(time_at(&set, BT_NUM_BF16, 8), 33000, "measured again");
    cr_expect_eq(time_at(&set, BT_NUM_BF16, 16), 44000);
    cr_expect_eq(time_at(&set, BT_NUM_INT8, 1), 8000);
    const char *source = set.samples[0].source;
    cr_expect_not_null(strstr(source, ", 2026-11-29: some-13b, some-1; "), "%s", source);
    cr_expect_not_null(strstr(source, ", 2026-11-30: some-1"), "%s", source);
    bt_sample_set_fini(&set);
}

Test(calibrate_tables, of_another_card_and_more_sessions_than_a_line_holds_are_refused)
{
    struct bt_error err = {0};
    struct bt_op_sample rows[] = {gemm_of(BT_WEIGHT_FP16, 1, 20500)};
    char path[128], text[1 << 12];
    cr_assert_eq(put(rows, 1, "l40s", "some-13b", "2026-11-29T00:00:00Z", &err), BT_OK);
    (void)snprintf(text, sizeof text, "%s", text_of(folder, "l40s__berth-0.1.0__gemm.cal"));
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    cr_assert(fputs(text, f) >= 0);
    cr_assert_eq(fclose(f), 0);
    cr_expect_eq(put(rows, 1, "l4", "some-13b", "2026-11-29T00:00:00Z", &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "holds gemm of berth 0.1.0 on l40s"), "%s", err.msg);
    cr_expect_str_eq(text_of(folder, name), text, "left as it was");

    err = (struct bt_error){0};
    enum bt_code code = BT_OK;
    for (int day = 10; day < 29 && code == BT_OK; day++) {
        char date[32];
        (void)snprintf(date, sizeof date, "2026-11-%dT00:00:00Z", day);
        code = put(rows, 1, "l40s", "some-13b", date, &err);
    }
    cr_expect_eq(code, BT_ERR_LIMIT);
    cr_expect_not_null(strstr(err.msg, "too many sessions"), "%s", err.msg);
}
