#include "tests/cases/memory_cases.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char cases_path[] = BT_TEST_SOURCE_DIR "/tests/data/cases/memory_cases.csv";
static const char page_path[] = BT_TEST_SOURCE_DIR "/docs/MEMORY_CASES.md";

static struct bt_catalog *catalog;
static struct memory_cases cases;

static void setup(void)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_catalog_open(NULL, 0, &catalog, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(memory_cases_read(cases_path, catalog, &cases, &err), BT_OK, "%s", err.msg);
}

static void teardown(void)
{
    memory_cases_free(&cases);
    bt_catalog_close(catalog);
}

static const struct memory_case *find(const char *id)
{
    for (int32_t i = 0; i < cases.n; i++) {
        if (strcmp(cases.rows[i].id, id) == 0) {
            return &cases.rows[i];
        }
    }
    cr_assert_fail("no row %s", id);
    return NULL;
}

TestSuite(memory_cases, .init = setup, .fini = teardown);

Test(memory_cases, complete_rows_are_met_within_three_percent)
{
    cr_expect_leq(memory_cases_median(&cases, CASE_COMPLETE), 0.03);
    int32_t n = 0;
    for (int32_t i = 0; i < cases.n; i++) {
        n += cases.rows[i].basis == CASE_COMPLETE;
    }
    cr_expect_geq(n, 8);
}

Test(memory_cases, incomplete_rows_are_met_in_the_middle)
{
    cr_expect_leq(memory_cases_median(&cases, CASE_FULL), 0.05);
    cr_expect_leq(memory_cases_median(&cases, CASE_POOL), 0.002);
}

Test(memory_cases, every_miss_has_its_reason)
{
    for (int32_t i = 0; i < cases.n; i++) {
        const struct memory_case *c = &cases.rows[i];
        bool misses = c->basis == CASE_NOTHING || fabs(c->error) > 0.10;
        cr_expect(!misses || c->reason[0] != '\0', "%s", c->id);
    }
}

Test(memory_cases, refusals_are_predicted)
{
    const struct memory_case *c = find("M048");
    cr_expect(c->refused);
    cr_expect(c->predicted_refused);
}

/* One EAGLE layer takes its share of every block: without it, 3% more tokens. */
Test(memory_cases, draft_head_takes_its_share_of_every_block)
{
    cr_expect_lt(fabs(find("M015")->error), 0.02);
}

Test(memory_cases, swap_space_gives_the_blocks_that_engines_print)
{
    static const char *const ids[] = {"M002", "M009", "M044", "M046", "M048", "M052"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const struct memory_case *c = find(ids[i]);
        cr_expect_float_eq(c->cpu_blocks, c->cpu_blocks_stated, 0.5, "%s: %g, not %g", ids[i],
                           c->cpu_blocks, c->cpu_blocks_stated);
    }
}

Test(memory_cases, versions_pick_their_family)
{
    cr_expect_str_eq(find("M002")->stack, "vllm-0.6.4");
    cr_expect_str_eq(find("M042")->stack, "vllm-0.8.5-v0");
    cr_expect_str_eq(find("M103")->stack, "vllm-0.2.5");
    cr_expect_str_eq(find("M127")->stack, "trtllm-1.0");
}

Test(memory_cases, page_is_up_to_date)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    cr_assert_not_null(f);
    memory_cases_print(&cases, f);
    (void)fclose(f);
    FILE *page = fopen(page_path, "rb");
    cr_assert_not_null(page, "%s", page_path);
    char *stored = malloc(n + 2);
    size_t n_stored = fread(stored, 1, n + 1, page);
    (void)fclose(page);
    cr_expect(n_stored == n && memcmp(stored, text, n) == 0,
              "docs/MEMORY_CASES.md: make it again with memory_cases");
    free(stored);
    free(text);
}

Test(memory_cases, unreadable_file_is_an_error, .init = NULL, .fini = NULL)
{
    struct bt_error err = {0};
    struct memory_cases c;
    cr_expect_eq(memory_cases_read("/nowhere.csv", NULL, &c, &err), BT_ERR_IO);
}
