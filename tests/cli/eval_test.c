#include "cli/eval_file.h"
#include "cli/eval_windows.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

Test(eval_windows, student_quantiles_are_those_of_the_tables)
{
    static const struct {
        int32_t df;
        double t;
    } rows[] = {{1, 12.706}, {2, 4.303},  {8, 2.306},   {9, 2.262},     {10, 2.228},
                {20, 2.086}, {30, 2.042}, {254, 1.969}, {100000, 1.960}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_float_eq(bt_student_975(rows[i].df), rows[i].t, 0.001, "df %d: %.4f", rows[i].df,
                           bt_student_975(rows[i].df));
    }
}

/* Means that differ much from window to window, but alike in both: the difference is certain. */
Test(eval_windows, pairing_removes_what_windows_have_in_common)
{
    struct bt_error err = {0};
    struct bt_eval_windows a;
    struct bt_eval_windows b;
    cr_assert_eq(bt_eval_windows_init(&a, 4, 10, &err), BT_OK);
    cr_assert_eq(bt_eval_windows_init(&b, 4, 10, &err), BT_OK);
    static const double common[4] = {10.0, 30.0, 20.0, 40.0};
    static const double own[4] = {0.9, 1.1, 1.0, 1.0};
    for (int32_t i = 0; i < 4; i++) {
        bt_eval_windows_set(&b, i, common[i], i);
        bt_eval_windows_set(&a, i, common[i] + own[i], i + 1);
    }
    struct bt_interval nll = bt_eval_nll(&b);
    cr_assert_float_eq(nll.mean, 2.5, 1e-12);
    /* Standard deviation of 1, 3, 2, 4 is 1.2910; half width 3.182 * 1.2910 / 2. */
    cr_assert_float_eq(nll.high - nll.mean, 2.054, 1e-3);
    struct bt_interval delta = bt_eval_delta_nll(&a, &b);
    cr_assert_float_eq(delta.mean, 0.1, 1e-12);
    cr_assert_float_eq(delta.high - delta.mean, 3.182 * 0.0081650 / 2.0, 1e-5);
    cr_assert_float_eq(delta.mean - delta.low, delta.high - delta.mean, 1e-12);
    struct bt_interval points = bt_eval_delta_accuracy(&a, &b);
    cr_assert_float_eq(points.mean, 0.1, 1e-12);
    cr_assert_float_eq(points.low, 0.1, 1e-12);
    bt_eval_windows_fini(&a);
    bt_eval_windows_fini(&b);
}

Test(eval_windows, one_window_has_no_interval)
{
    struct bt_error err = {0};
    struct bt_eval_windows a;
    cr_assert_eq(bt_eval_windows_init(&a, 1, 5, &err), BT_OK);
    bt_eval_windows_set(&a, 0, 10.0, 5);
    struct bt_interval nll = bt_eval_nll(&a);
    cr_assert_eq(nll.mean, 2.0);
    cr_assert(isnan(nll.low) && isnan(nll.high));
    cr_assert_eq(bt_eval_accuracy(&a).mean, 1.0);
    bt_eval_windows_fini(&a);
}

/* Scores come back as they were, to the windows that are asked for, and to no other text's. */
Test(eval_file, scores_come_back_for_the_same_tokens_alone)
{
    enum { N = 3, TOKENS = 4 };
    int32_t ids[N * TOKENS + 1];
    for (int32_t i = 0; i <= N * TOKENS; i++) {
        ids[i] = 7 * i % 5;
    }
    struct bt_error err = {0};
    struct bt_eval_windows a, b;
    char path[] = BT_TEST_BINARY_DIR "/scores-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(close(fd), 0);
    cr_assert_eq(bt_eval_windows_init(&a, N, TOKENS, &err), BT_OK);
    for (int32_t i = 0; i < N; i++) {
        bt_eval_windows_set(&a, i, 1.0 / (i + 3), i);
    }
    cr_assert_eq(bt_eval_file_write(path, &a, ids, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_eval_file_read(path, 2, TOKENS, ids, &b, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(b.n, 2);
    cr_expect_arr_eq(b.nll, a.nll, 2 * sizeof *a.nll);
    cr_expect_arr_eq(b.accuracy, a.accuracy, 2 * sizeof *a.accuracy);
    bt_eval_windows_fini(&b);
    cr_expect_eq(bt_eval_file_read(path, N + 1, TOKENS, ids, &b, &err), BT_ERR_INPUT);
    cr_expect(strstr(err.msg, "3 windows of 4 tokens; the comparison needs 4 of 4") != NULL, "%s",
              err.msg);
    err = (struct bt_error){0};
    ids[TOKENS + 1] ^= 1;
    cr_expect_eq(bt_eval_file_read(path, N, TOKENS, ids, &b, &err), BT_ERR_INPUT);
    cr_expect(strstr(err.msg, "window 1 is of another text") != NULL, "%s", err.msg);
    err = (struct bt_error){0};
    cr_expect_eq(truncate(path, 40), 0);
    cr_expect_eq(bt_eval_file_read(path, N, TOKENS, ids, &b, &err), BT_ERR_INPUT);
    cr_assert_eq(unlink(path), 0);
    err = (struct bt_error){0};
    cr_expect_eq(bt_eval_file_read(path, N, TOKENS, ids, &b, &err), BT_ERR_IO, "%s", err.msg);
    bt_eval_windows_fini(&a);
}
