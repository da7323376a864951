/* Generated sources: arrivals, streams that do not disturb one another, groups, classes, turns. */
#include "sim/workload/spec.h"
#include "tests/sim/workload/same_request.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct bt_workload_spec base_spec(void)
{
    return (struct bt_workload_spec){
        .kind = BT_WORKLOAD_GENERATED,
        .arrival = BT_ARRIVAL_POISSON,
        .rate_per_s = 50,
        .n_requests = 2000,
        .prompt = {.kind = BT_DIST_LOGNORMAL, .mean = 650, .p95 = 900},
        .output = {.kind = BT_DIST_LOGNORMAL, .mean = 80, .p95 = 200},
    };
}

/* All requests of a description; *n of them. Hash pointers are not kept. */
static struct bt_request *collect(const struct bt_workload_spec *spec, uint64_t seed, int64_t *n)
{
    struct bt_error err = {0};
    struct bt_source *s = NULL;
    cr_assert_eq(bt_source_create(spec, seed, &s, &err), BT_OK, "%s", err.msg);
    struct bt_request *all = NULL;
    int64_t cap = 0;
    *n = 0;
    struct bt_request q;
    enum bt_source_status status;
    while ((status = bt_source_next(s, &q, &err)) == BT_SOURCE_MORE) {
        if (*n == cap) {
            cap = cap == 0 ? 1024 : cap * 2;
            all = realloc(all, (size_t)cap * sizeof *all);
        }
        cr_assert(*n == 0 || q.arrival_ns >= all[*n - 1].arrival_ns);
        cr_assert_eq(q.id, *n);
        cr_assert(q.n_prompt > 0 && q.n_output > 0);
        all[(*n)++] = q;
    }
    cr_assert_eq(status, BT_SOURCE_END, "%s", err.msg);
    cr_assert_eq(bt_source_next(s, &q, &err), BT_SOURCE_END);
    bt_source_destroy(s);
    return all;
}

Test(generate, rewinding_and_the_same_seed_give_the_same_stream)
{
    struct bt_workload_spec spec = base_spec();
    struct bt_error err = {0};
    struct bt_source *s = NULL;
    int64_t n;
    struct bt_request *all = collect(&spec, 7, &n);
    cr_assert_eq(bt_source_create(&spec, 7, &s, &err), BT_OK);
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < n; i++) {
            struct bt_request q;
            cr_assert_eq(bt_source_next(s, &q, &err), BT_SOURCE_MORE);
            cr_assert(same_request(&q, &all[i]));
        }
        cr_assert_eq(bt_source_rewind(s, &err), BT_OK);
    }
    bt_source_destroy(s);
    int64_t n_other;
    struct bt_request *other = collect(&spec, 8, &n_other);
    cr_expect_neq(other[10].arrival_ns, all[10].arrival_ns);
    free(other);
    free(all);
}

Test(generate, changing_one_distribution_moves_no_other)
{
    struct bt_workload_spec spec = base_spec();
    int64_t n, m;
    struct bt_request *a = collect(&spec, 7, &n);
    spec.prompt = (struct bt_dist_spec){.kind = BT_DIST_PARETO, .alpha = 2, .scale = 100};
    struct bt_class_spec classes[] = {{.share = 1, .priority = 0}, {.share = 3, .priority = 2}};
    spec.classes = classes;
    spec.n_classes = 2;
    struct bt_request *b = collect(&spec, 7, &m);
    cr_assert_eq(n, m);
    int64_t same_prompts = 0;
    for (int64_t i = 0; i < n; i++) {
        cr_assert_eq(a[i].arrival_ns, b[i].arrival_ns);
        cr_assert_eq(a[i].n_output, b[i].n_output);
        same_prompts += a[i].n_prompt == b[i].n_prompt;
    }
    cr_expect_lt(same_prompts, n / 10);
    free(b);
    spec = base_spec();
    spec.arrival = BT_ARRIVAL_GAMMA;
    spec.cv = 4;
    b = collect(&spec, 7, &m);
    for (int64_t i = 0; i < n; i++) {
        cr_assert_eq(a[i].n_prompt, b[i].n_prompt);
        cr_assert_eq(a[i].n_output, b[i].n_output);
    }
    free(a);
    free(b);
}

Test(generate, rate_and_cv_of_arrivals_are_as_asked)
{
    static const struct {
        enum bt_arrival_kind kind;
        double cv, gaps_cv;
    } cases[] = {{BT_ARRIVAL_POISSON, 0, 1},
                 {BT_ARRIVAL_GAMMA, 2.5, 2.5},
                 {BT_ARRIVAL_WEIBULL, 1.8, 1.8},
                 {BT_ARRIVAL_CONSTANT, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_workload_spec spec = base_spec();
        spec.arrival = cases[i].kind;
        spec.cv = cases[i].cv;
        spec.rate_per_s = 40;
        spec.n_requests = 0;
        spec.duration_s = 3000;
        int64_t n;
        struct bt_request *q = collect(&spec, 3, &n);
        cr_expect_float_eq((double)n, 120000, 120000 * 0.015, "%zu: %lld requests", i,
                           (long long)n);
        double sum = 0;
        double sum2 = 0;
        for (int64_t j = 1; j < n; j++) {
            double gap = (double)(q[j].arrival_ns - q[j - 1].arrival_ns);
            sum += gap;
            sum2 += gap * gap;
        }
        double mean = sum / (double)(n - 1);
        double cv = sqrt(fmax(sum2 / (double)(n - 1) - mean * mean, 0)) / mean;
        cr_expect_float_eq(cv, cases[i].gaps_cv, 0.03 * cases[i].gaps_cv + 1e-6, "%zu: cv %g", i,
                           cv);
        cr_expect_lt(q[n - 1].arrival_ns, 3000000000000);
        free(q);
    }
}

Test(generate, constant_arrivals_start_at_zero_and_fill_the_duration)
{
    struct bt_workload_spec spec = base_spec();
    spec.arrival = BT_ARRIVAL_CONSTANT;
    spec.rate_per_s = 4;
    spec.n_requests = 0;
    spec.duration_s = 10;
    int64_t n;
    struct bt_request *q = collect(&spec, 1, &n);
    cr_expect_eq(n, 40);
    cr_expect_eq(q[0].arrival_ns, 0);
    cr_expect_eq(q[39].arrival_ns, 9750000000);
    free(q);
}

Test(generate, a_rate_profile_shapes_the_load)
{
    static const struct bt_rate_point day[] = {{0, 10}, {100, 50}, {200, 10}};
    struct bt_workload_spec spec = base_spec();
    spec.rate_per_s = 0;
    spec.points = day;
    spec.n_points = 3;
    spec.period_s = 200;
    spec.n_requests = 0;
    spec.duration_s = 4000;
    cr_expect_float_eq(bt_workload_mean_rate(&spec), 30, 1e-9);
    int64_t n;
    struct bt_request *q = collect(&spec, 2, &n);
    cr_expect_float_eq((double)n, 120000, 1500);
    int64_t at_peak = 0;
    for (int64_t i = 0; i < n; i++) {
        double t = fmod((double)q[i].arrival_ns / 1e9, 200.0);
        at_peak += t >= 90 && t < 110;
    }
    /* 20 periods x 20 s x 48 a second (the mean of 46, 50, 46). */
    cr_expect_float_eq((double)at_peak, 20 * 20 * 48, 600, "%lld", (long long)at_peak);
    free(q);
}

Test(generate, rate_scale_compresses_time_and_keeps_the_requests)
{
    struct bt_workload_spec spec = base_spec();
    int64_t n, m;
    struct bt_request *a = collect(&spec, 7, &n);
    spec.rate_scale = 2.5;
    struct bt_request *b = collect(&spec, 7, &m);
    cr_assert_eq(n, m);
    for (int64_t i = 0; i < n; i++) {
        cr_assert_eq(b[i].n_prompt, a[i].n_prompt);
        cr_assert_float_eq((double)b[i].arrival_ns, (double)a[i].arrival_ns / 2.5, 1.0);
    }
    free(a);
    free(b);
}

Test(generate, prefix_groups_are_shared_and_prompts_longer_than_them)
{
    static const struct bt_prefix_spec groups[] = {
        {.weight = 3, .tokens = 800}, {.weight = 1, .tokens = 0}, {.weight = 1, .tokens = 50}};
    struct bt_workload_spec spec = base_spec();
    spec.prefixes = groups;
    spec.n_prefixes = 3;
    struct bt_source *s = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_source_create(&spec, 4, &s, &err), BT_OK);
    uint64_t id_of_800 = 0;
    uint64_t id_of_50 = 0;
    int count[3] = {0};
    struct bt_request q;
    while (bt_source_next(s, &q, &err) == BT_SOURCE_MORE) {
        if (q.n_hashes == 0) {
            count[1]++;
            continue;
        }
        cr_assert_eq(q.n_hashes, 1);
        cr_assert_gt(q.n_prompt, q.hash_tokens);
        uint64_t *seen = q.hash_tokens == 800 ? &id_of_800 : &id_of_50;
        count[q.hash_tokens == 800 ? 0 : 2]++;
        cr_assert(*seen == 0 || *seen == q.hashes[0]);
        *seen = q.hashes[0];
    }
    cr_expect_neq(id_of_800, id_of_50);
    cr_expect_float_eq(count[0], 1200, 80);
    cr_expect_float_eq(count[1], 400, 60);
    cr_expect_float_eq(count[2], 400, 60);
    bt_source_destroy(s);
}

Test(generate, classes_and_kinds_take_their_shares)
{
    static const struct bt_class_spec classes[] = {{.share = 0.2, .priority = 0, .timeout_s = 5},
                                                   {.share = 0.8, .priority = 3}};
    static const double kinds[] = {1, 1, 2};
    struct bt_workload_spec spec = base_spec();
    spec.classes = classes;
    spec.n_classes = 2;
    spec.kind_shares = kinds;
    spec.n_kinds = 3;
    spec.timeout_s = 60;
    int64_t n;
    struct bt_request *q = collect(&spec, 5, &n);
    int urgent = 0;
    int of_kind[3] = {0};
    for (int64_t i = 0; i < n; i++) {
        cr_assert(q[i].priority == 0 || q[i].priority == 3);
        cr_assert_eq(q[i].timeout_ns, q[i].priority == 0 ? 5000000000 : 60000000000);
        urgent += q[i].priority == 0;
        of_kind[q[i].kind]++;
    }
    cr_expect_float_eq(urgent, 400, 70);
    cr_expect_float_eq(of_kind[0], 500, 80);
    cr_expect_float_eq(of_kind[2], 1000, 90);
    free(q);
}

Test(generate, a_closed_loop_gives_think_times_instead_of_arrivals)
{
    struct bt_workload_spec spec = base_spec();
    spec.arrival = BT_ARRIVAL_CLOSED;
    spec.rate_per_s = 0;
    spec.users = 12;
    spec.think_s = (struct bt_dist_spec){.kind = BT_DIST_EXPONENTIAL, .mean = 0.25};
    struct bt_source *s = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_source_create(&spec, 4, &s, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(s->closed_users, 12);
    struct bt_request q;
    double think_s = 0;
    int n = 0;
    while (bt_source_next(s, &q, &err) == BT_SOURCE_MORE) {
        cr_assert_eq(q.arrival_ns, BT_ARRIVAL_ON_COMPLETION);
        think_s += (double)q.think_ns / 1e9;
        n++;
    }
    cr_expect_eq(n, 2000);
    cr_expect_float_eq(think_s / n, 0.25, 0.02);
    bt_source_destroy(s);
}

Test(generate, a_conversation_carries_what_was_said_before)
{
    enum { MAX_SESSIONS = 4096, MAX_BLOCKS = 4096 };
    static const struct bt_prefix_spec prefix = {.weight = 1, .tokens = 100};
    struct bt_workload_spec spec = base_spec();
    spec.rate_per_s = 2;
    spec.prompt = (struct bt_dist_spec){.kind = BT_DIST_UNIFORM, .min = 20, .max = 200};
    spec.turns = (struct bt_dist_spec){.kind = BT_DIST_UNIFORM, .min = 1, .max = 5};
    spec.turn_gap_s = (struct bt_dist_spec){.kind = BT_DIST_EXPONENTIAL, .mean = 10};
    spec.prefixes = &prefix;
    spec.n_prefixes = 1;
    struct bt_source *s = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_source_create(&spec, 4, &s, &err), BT_OK, "%s", err.msg);
    static int32_t context[MAX_SESSIONS], turns[MAX_SESSIONS], blocks[MAX_SESSIONS];
    static uint64_t last_hash[MAX_SESSIONS];
    uint64_t first_hash = 0;
    int64_t before_ns = 0;
    struct bt_request q;
    int n_later = 0;
    while (bt_source_next(s, &q, &err) == BT_SOURCE_MORE) {
        cr_assert_geq(q.arrival_ns, before_ns);
        before_ns = q.arrival_ns;
        cr_assert(q.session >= 0 && q.session < MAX_SESSIONS);
        cr_assert_eq(q.hash_tokens, 16);
        cr_assert_eq(q.n_hashes, q.n_prompt / 16);
        cr_assert(first_hash == 0 || first_hash == q.hashes[0], "the system prompt is shared");
        first_hash = q.hashes[0];
        if (turns[q.session] > 0) {
            cr_assert_gt(q.n_prompt, context[q.session]);
            cr_assert_eq(q.hashes[blocks[q.session] - 1], last_hash[q.session]);
            n_later++;
        }
        context[q.session] = q.n_prompt + q.n_output;
        blocks[q.session] = q.n_hashes;
        last_hash[q.session] = q.hashes[q.n_hashes - 1];
        cr_assert_leq(++turns[q.session], 5);
    }
    cr_expect_gt(n_later, 1000);
    cr_expect_neq(last_hash[0], last_hash[1]);
    bt_source_destroy(s);
}

Test(generate, bad_values_name_the_key)
{
    static const struct bt_rate_point late[] = {{1, 5}};
    static const struct bt_rate_point back[] = {{0, 5}, {9, 5}, {8, 5}};
    static const struct bt_rate_point zero[] = {{0, 0}, {9, 0}};
    static const struct bt_class_spec bad_class[] = {{.share = 1, .priority = 99}};
    static const struct bt_prefix_spec bad_prefix[] = {{.weight = 1, .tokens = -1}};
    struct bt_workload_spec s[16];
    for (int i = 0; i < 16; i++) {
        s[i] = base_spec();
    }
    const char *says[16];
    int n = 0;
    s[n].rate_per_s = -1;
    says[n++] = "workload.rate_per_s: expected > 0 and <= 1000000000, got -1";
    s[n].arrival = BT_ARRIVAL_GAMMA;
    says[n++] = "workload.cv: expected >= 0.01 and <= 100, got 0";
    s[n].n_requests = 0;
    says[n++] = "workload: expected duration_s or n_requests";
    s[n].duration_s = NAN;
    says[n++] = "workload.duration_s: expected >= 0";
    s[n].points = late;
    s[n].n_points = 1;
    says[n++] = "workload.rate_per_s: not together with a rate profile";
    s[n].points = late;
    s[n].n_points = 1;
    s[n].rate_per_s = 0;
    says[n++] = "workload.points[1].t_s: expected 0";
    s[n].points = back;
    s[n].n_points = 3;
    s[n].rate_per_s = 0;
    says[n++] = "workload.points[3].t_s: expected a time not before";
    s[n].points = zero;
    s[n].n_points = 2;
    s[n].rate_per_s = 0;
    says[n++] = "workload.points: the rate is 0 everywhere";
    s[n].arrival = BT_ARRIVAL_CLOSED;
    s[n].rate_per_s = 0;
    says[n++] = "workload.users: expected >= 1";
    s[n].classes = bad_class;
    s[n].n_classes = 1;
    says[n++] = "workload.classes[1].priority: expected 0 to 15, got 99";
    s[n].prefixes = bad_prefix;
    s[n].n_prefixes = 1;
    says[n++] = "workload.prefixes[1].tokens: expected 0 to";
    s[n].output.p95 = 1000;
    says[n++] = "workload.output.p95: no lognormal with mean 80 has p95 1000";
    s[n].rate_scale = -2;
    says[n++] = "workload.rate_scale: expected > 0";
    s[n].kind = BT_WORKLOAD_NONE;
    says[n++] = "workload: none is given";
    s[n].kind = BT_WORKLOAD_TRACE;
    says[n++] = "workload.file: a trace file is required";
    s[n].kind = BT_WORKLOAD_SERVEGEN;
    says[n++] = "workload.dir: a directory of client models is required";
    for (int i = 0; i < n; i++) {
        struct bt_error err = {0};
        struct bt_source *source = NULL;
        cr_expect_eq(bt_source_create(&s[i], 1, &source, &err), BT_ERR_INPUT, "%d", i);
        cr_expect_not_null(strstr(err.msg, says[i]), "%d: \"%s\" lacks \"%s\"", i, err.msg,
                           says[i]);
        cr_expect_null(source);
    }
}

Test(source, an_array_is_shared_by_cursors_of_their_own)
{
    static const struct bt_request q[] = {
        {.arrival_ns = 0, .n_prompt = 1, .n_output = 1, .session = -1},
        {.arrival_ns = 5, .n_prompt = 2, .n_output = 1, .session = -1, .id = 1},
    };
    struct bt_source *a = NULL;
    struct bt_source *b = NULL;
    struct bt_request out;
    cr_assert_eq(bt_source_create_array(q, 2, &a, NULL), BT_OK);
    cr_assert_eq(bt_source_create_array(q, 2, &b, NULL), BT_OK);
    cr_assert_eq(bt_source_next(a, &out, NULL), BT_SOURCE_MORE);
    cr_assert_eq(bt_source_next(a, &out, NULL), BT_SOURCE_MORE);
    cr_assert_eq(out.id, 1);
    cr_assert_eq(bt_source_next(a, &out, NULL), BT_SOURCE_END);
    cr_assert_eq(bt_source_next(b, &out, NULL), BT_SOURCE_MORE);
    cr_assert_eq(out.n_prompt, 1);
    cr_assert_eq(bt_source_rewind(a, NULL), BT_OK);
    cr_assert_eq(bt_source_next(a, &out, NULL), BT_SOURCE_MORE);
    cr_assert_eq(out.id, 0);
    bt_source_destroy(a);
    bt_source_destroy(b);
}
