#include "sim/plan/parallel.h"
#include "sim/plan/stats.h"
#include "sim/plan/stream.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

/* Two-sided 95% and 99% points from the tables of Student 1908 as reprinted since. */
Test(plan_stats, student_quantiles_match_the_tables)
{
    static const struct {
        int32_t n;
        double p, t;
    } rows[] = {{1, 0.975, 12.7062},  {2, 0.975, 4.30265},  {3, 0.975, 3.18245},
                {4, 0.995, 4.60409},  {7, 0.975, 2.36462},  {10, 0.95, 1.81246},
                {30, 0.995, 2.75000}, {120, 0.975, 1.97993}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_float_eq(bt_student_quantile(rows[i].p, rows[i].n), rows[i].t, 1e-4 * rows[i].t);
        cr_expect_float_eq(bt_student_cdf(-rows[i].t, rows[i].n), 1 - rows[i].p, 1e-6);
    }
    cr_expect_float_eq(bt_mean_half_width(2, 4, 0.05), 3.18245, 1e-4);
}

enum { N = 100 };

static void fill(struct bt_request *r)
{
    static const uint64_t hashes[3] = {11, 12, 13};
    for (int32_t i = 0; i < N; i++) {
        r[i] = (struct bt_request){
            .arrival_ns = 1000 * i, .id = i, .n_prompt = 10 + i, .n_output = 5, .session = -1};
        if (i % 10 == 3) {
            r[i].hashes = hashes;
            r[i].n_hashes = 3;
            r[i].hash_tokens = 4;
        }
    }
}

Test(plan_stream, views_share_and_scale_the_same_requests)
{
    struct bt_request requests[N];
    fill(requests);
    struct bt_source *source = NULL;
    cr_assert_eq(bt_source_create_array(requests, N, &source, NULL), BT_OK);
    struct bt_stream s;
    cr_assert_eq(bt_stream_read(source, &s, NULL), BT_OK);
    bt_source_destroy(source);
    cr_expect_eq(s.n_requests, N);
    cr_expect_eq(s.span_ns, 99000);
    cr_expect_float_eq(s.prompt_mean, 59.5, 1e-9);
    struct bt_stream_view view = {.share = 7, .rate_scale = 2};
    cr_assert_eq(bt_stream_source(&s, &view, &source, NULL), BT_OK);
    for (int32_t pass = 0; pass < 2; pass++) {
        struct bt_request r;
        int64_t n = 0;
        while (bt_source_next(source, &r, NULL) == BT_SOURCE_MORE) {
            cr_expect_eq(r.id, 7 * n);
            cr_expect_eq(r.arrival_ns, 500 * r.id);
            cr_expect_eq(r.n_hashes, r.id % 10 == 3 ? 3 : 0);
            if (r.n_hashes == 3) {
                cr_expect_eq(r.hashes[2], 13);
            }
            n++;
        }
        cr_expect_eq(n, bt_stream_view_n(&s, &view));
        cr_assert_eq(bt_source_rewind(source, NULL), BT_OK);
    }
    bt_source_destroy(source);
    bt_stream_fini(&s);
}

Test(plan_stream, an_empty_workload_is_an_error)
{
    struct bt_source *source = NULL;
    struct bt_request none[1] = {{0}};
    cr_assert_eq(bt_source_create_array(none, 0, &source, NULL), BT_OK);
    struct bt_stream s;
    struct bt_error err = {0};
    cr_expect_eq(bt_stream_read(source, &s, &err), BT_ERR_INPUT);
    cr_expect_str_eq(err.msg, "workload: there is no request in it");
    bt_source_destroy(source);
}

static enum bt_code square(void *ctx, int64_t i, struct bt_error *err)
{
    if (i == 777 || i == 900) {
        BT_FAIL(err, BT_ERR_ARG, i, "task %lld", (long long)i);
    }
    ((int64_t *)ctx)[i] = i * i;
    return BT_OK;
}

Test(plan_parallel, every_task_runs_once_and_the_first_failure_wins)
{
    static int64_t out[1000];
    for (int32_t jobs = 1; jobs <= 8; jobs *= 2) {
        cr_expect_eq(bt_parallel_for(jobs, 700, square, out, NULL), BT_OK);
        for (int64_t i = 0; i < 700; i++) {
            cr_expect_eq(out[i], i * i);
            out[i] = 0;
        }
        struct bt_error err = {0};
        cr_expect_eq(bt_parallel_for(jobs, 1000, square, out, &err), BT_ERR_ARG);
        cr_expect_eq(err.detail, 777);
    }
    cr_expect_eq(bt_parallel_for(4, 0, square, out, NULL), BT_OK);
}
