#include "db/csv.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static enum bt_code read_csv(struct bt_arena *arena, const char *text, struct bt_csv *csv,
                             struct bt_error *err)
{
    bt_arena_init(arena, 0);
    *err = (struct bt_error){0};
    return bt_csv_read(arena, text, strlen(text), "t.csv", csv, err);
}

Test(csv, quotes_crlf_comments_and_a_missing_last_newline)
{
    static const char text[] = "# made by hand\r\n"
                               "a,\"b, c\",d\r\n"
                               "\r\n"
                               "1,\"say \"\"hi\"\"\",\r\n"
                               "# between\n"
                               "\"two\nlines\",2.5,yes";
    struct bt_arena arena;
    struct bt_csv csv;
    struct bt_error err;
    cr_assert_eq(read_csv(&arena, text, &csv, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(csv.n_columns, 3);
    cr_expect_eq(csv.n_rows, 2);
    cr_expect_eq(bt_csv_column(&csv, "b, c"), 1);
    cr_expect_eq(bt_csv_column(&csv, "x"), -1);
    struct bt_csv_row r = {.csv = &csv, .err = &err};
    cr_expect_eq(bt_csv_int(&r, "a", 0, 9, -1), 1);
    cr_expect_str_eq(bt_csv_text(&r, "b, c"), "say \"hi\"");
    cr_expect_str_eq(bt_csv_text(&r, "d"), "");
    cr_expect_eq(bt_csv_int(&r, "d", 0, 9, 7), 7);
    cr_expect(!bt_csv_bool(&r, "d"));
    cr_expect_eq(csv.lines[0], 4);
    r.row = 1;
    cr_expect_str_eq(bt_csv_text(&r, "a"), "two\nlines");
    cr_expect_float_eq(bt_csv_real(&r, "b, c", 0, 9, 0), 2.5, 1e-12);
    cr_expect(bt_csv_bool(&r, "d"));
    cr_expect_eq(csv.lines[1], 6);
    cr_expect_eq(r.code, BT_OK);
    bt_arena_fini(&arena);
}

Test(csv, malformed_text_is_named_by_line)
{
    static const struct {
        const char *text;
        const char *msg;
    } rows[] = {
        {"", "t.csv:1: empty; expected a header line"},
        {"# only\n", "t.csv:1: empty; expected a header line"},
        {"a,b\n1\n", "t.csv:2: 1 cells; the header has 2"},
        {"a,b\n1,2,3\n", "t.csv:2: 3 cells; the header has 2"},
        {"a,b\n1,\"2\n", "t.csv:2: a quote is opened and never closed"},
        {"a\n\"1\"x\n", "t.csv:2: text after a closing quote"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_arena arena;
        struct bt_csv csv;
        struct bt_error err;
        cr_expect_eq(read_csv(&arena, rows[i].text, &csv, &err), BT_ERR_INPUT, "%s", rows[i].text);
        cr_expect_str_eq(err.msg, rows[i].msg);
        bt_arena_fini(&arena);
    }
}

Test(csv, cells_are_checked_and_the_first_failure_is_kept)
{
    struct bt_arena arena;
    struct bt_csv csv;
    struct bt_error err;
    cr_assert_eq(read_csv(&arena, "n,x\n12,1e9\nabc,2\n", &csv, &err), BT_OK);
    struct bt_csv_row r = {.csv = &csv, .err = &err};
    char small[2];
    cr_expect_eq(bt_csv_int(&r, "n", 0, 9, 0), 0);
    cr_expect_eq(r.code, BT_ERR_INPUT);
    cr_expect_str_eq(err.msg, "t.csv:2: n: expected an integer 0..9, got \"12\"");
    cr_expect_float_eq(bt_csv_real(&r, "x", 0, 1, 5), 0, 1e-12);
    cr_expect_str_eq(err.msg, "t.csv:2: n: expected an integer 0..9, got \"12\"");
    bt_error_clear(&err);
    r = (struct bt_csv_row){.csv = &csv, .err = &err, .row = 1};
    cr_expect_eq(bt_csv_real(&r, "n", 0, 1, 0), 0);
    cr_expect_str_eq(err.msg, "t.csv:3: n: expected a number 0..1, got \"abc\"");
    bt_error_clear(&err);
    r = (struct bt_csv_row){.csv = &csv, .err = &err, .row = 1};
    bt_csv_copy(&r, "n", small, sizeof small);
    cr_expect_str_eq(err.msg, "t.csv:3: n: too long");
    bt_error_clear(&err);
    r = (struct bt_csv_row){.csv = &csv, .err = &err, .row = 1};
    cr_expect_str_eq(bt_csv_text(&r, "y"), "");
    cr_expect_str_eq(err.msg, "t.csv:3: y: there is no such column");
    bt_arena_fini(&arena);
}
