/* berth calibrate, --gpu host and berth validate: this machine measured, simulated, compared. The
 * work clock keeps other programs out of the numbers. */
#include "db/store.h"
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 2048, ATTEMPTS = 4 };

static const double GATE = 0.4; /* generous: machines differ from minute to minute */

static const char columns[] = "--format csv --columns timestamp=t:s,prompt=prompt,output=output";

/* A light load, then a burst: twice as many, so that no percentile falls between the two. */
static const char *trace(void)
{
    static char path[LINE], text[1 << 12];
    size_t at = (size_t)snprintf(text, sizeof text, "t,prompt,output\n");
    for (int32_t i = 0; i < 60; i++) {
        double t = i < 20 ? 0.02 * i : 0.5 + 0.001 * i;
        at += (size_t)snprintf(text + at, sizeof text - at, "%.4f,%d,%d\n", t, 16 + 37 * i % 150,
                               4 + 13 * i % 40);
    }
    (void)snprintf(path, sizeof path, "%s", program_write("load.csv", text));
    return path;
}

static json_t *calibrate(void)
{
    return program_json("calibrate --model tests/models/berth-1m --quick --jobs 1 --clock work", 0);
}

static double op_time(const json_t *doc, const char *op, double tokens, double n_out)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_at(doc, "rows"), i, row)
    {
        const json_t *n = json_object_get(row, "n_out");
        bool same_n = n_out == 0 || (json_is_number(n) && json_number_value(n) == n_out);
        if (strcmp(json_text_at(row, "op"), op) == 0 && json_number_at(row, "tokens") == tokens &&
            same_n) {
            return json_number_at(row, "median_ns");
        }
    }
    cr_assert_fail("no %s of %g tokens and %g outputs", op, tokens, n_out);
    return 0;
}

static void expect_samples(void)
{
    json_t *doc = calibrate();
    /* lm_head of berth-1m: 8192 x 128; gate and up: 2 x 384 x 128. */
    cr_expect_lt(op_time(doc, "gemm", 1, 768), op_time(doc, "gemm", 1, 8192));
    cr_expect_lt(op_time(doc, "gemm", 4, 768), op_time(doc, "gemm", 64, 768));
    cr_expect_gt(op_time(doc, "host", 1, 0), 0);
    cr_expect_gt(json_number_at(doc, "host.fp32_flops_per_s"), 1e8);
    cr_expect_gt(json_number_at(doc, "host.read_bytes_per_s"), 1e8);
    size_t n = json_array_size(json_at(doc, "rows"));
    json_decref(doc);
    struct outcome o = program_run("db export operation_samples");
    cr_assert_eq(o.status, 0, "%s", o.err);
    size_t lines = 0;
    for (const char *p = o.out; *p != '\0'; p++) {
        lines += *p == '\n';
    }
    cr_expect_eq(lines, n + 1);
}

Test(calibrate, host_is_a_card_once_it_is_calibrated)
{
    char line[2 * LINE];
    (void)snprintf(line, sizeof line, "replay %s %s --model tests/models/tiny-llama-mha --gpu host",
                   trace(), columns);
    struct outcome o = program_run(line);
    cr_expect_eq(o.status, 3, "%s", o.err);
    cr_expect(strstr(o.err, "not calibrated yet") != NULL, "%s", o.err);
    json_decref(program_json(
        "calibrate --model tests/models/tiny-llama-mha --quick --jobs 1 --clock work", 0));
    json_t *doc = program_json("memory --model tests/models/tiny-llama-mha --gpu host", 0);
    cr_expect_gt(json_number_at(doc, "kv_blocks_total"), 0);
    json_decref(doc);
    doc = program_json(line, 0);
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "measured");
    cr_expect_lt(json_number_at(doc, "trust.step_error"), 0.5);
    cr_expect_eq(json_number_at(doc, "metrics.finished"), 60);
    json_decref(doc);
    /* Formats that were not measured are not claimed to be. */
    (void)snprintf(line, sizeof line,
                   "replay %s %s --model tests/models/tiny-llama-mha --gpu host --weights int8",
                   trace(), columns);
    doc = program_json(line, 0);
    cr_expect_str_neq(json_text_at(doc, "trust.level"), "measured");
    json_decref(doc);
}

/* Rewrites the store's session with all its times multiplied. */
static void plant_wrong_times(double factor)
{
    struct bt_store_opts opts = {.path = program_path("store.db")};
    struct bt_store *store = NULL;
    struct bt_error err = {0};
    struct bt_calibration *c = NULL;
    struct bt_arena arena;
    int32_t n = 0;
    bt_arena_init(&arena, 0);
    cr_assert_eq(bt_store_open(&opts, &store, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_load_calibrations(store, "host", NULL, &arena, &c, &n, &err), BT_OK);
    cr_assert_eq(n, 1);
    for (int64_t i = 0; i < c->n_ops; i++) {
        c->ops[i].median_ns *= factor;
    }
    struct bt_store_calibration session = {
        .name = c->name,
        .gpu = c->gpu,
        .stack = c->stack,
        .stack_version = c->stack_version,
        .engine_sha256 = c->engine_sha256,
        .trust = c->trust,
        .driver = c->driver,
        .started_utc = c->started_utc,
        .notes = "",
        .provenance = {.kind = "measured", .source = c->source},
    };
    cr_assert_eq(
        bt_store_add_calibration(store, &session, c->ops, c->n_ops, c->pcie, c->n_pcie, &err),
        BT_OK, "%s", err.msg);
    bt_store_close(store);
    bt_arena_fini(&arena);
}

static const char *validation(const char *options)
{
    static char line[2 * LINE];
    (void)snprintf(line, sizeof line,
                   "validate %s %s --model tests/models/berth-1m --jobs 1 --clock work %s", trace(),
                   columns, options);
    return line;
}

/* The engine served the same requests in the time that was predicted, overall and in its steps. */
static void expect_agreement(const json_t *doc)
{
    static const char *const names[] = {
        "ttft_s.p50", "ttft_s.p95", "tpot_s.p50",           "tpot_s.p95",
        "e2e_s.p50",  "e2e_s.p95",  "throughput_req_per_s", "throughput_out_tok_per_s"};
    cr_expect_eq(json_number_at(doc, "requests"), 60);
    cr_expect_eq(json_number_at(doc, "runs"), 3);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double predicted = json_number_at(json_row(doc, "rows", "metric", names[i]), "predicted");
        double measured = json_number_at(json_row(doc, "rows", "metric", names[i]), "measured");
        double error = json_number_at(json_row(doc, "rows", "metric", names[i]), "error_fraction");
        double noise = json_number_at(json_row(doc, "rows", "metric", names[i]), "noise_fraction");
        cr_expect_float_eq(error, predicted / measured - 1, 1e-9, "%s", names[i]);
        cr_expect_geq(noise, 0);
        cr_expect_leq(fabs(error), fmax(GATE, noise), "%s: %g, measured %g", names[i], predicted,
                      measured);
    }
    double steps = 0, step_s = 0, predicted_s = 0;
    for (size_t i = 0; i < json_array_size(json_at(doc, "steps")); i++) {
        const json_t *s = json_array_get(json_at(doc, "steps"), i);
        steps += json_number_at(s, "steps");
        step_s += json_number_at(s, "steps") * json_number_at(s, "measured_s");
        predicted_s += json_number_at(s, "steps") * json_number_at(s, "predicted_s");
    }
    cr_expect_gt(steps, 60);
    cr_expect_lt(fabs(predicted_s / step_s - 1), GATE, "%g s of steps, measured %g s", predicted_s,
                 step_s);
}

/* Calibrates and validates until the two agree: a busy neighbour slows a shared core down to half
 * its speed for seconds, between calibration and run too. A model that is wrong never agrees. */
static json_t *agreement(void)
{
    char options[LINE];
    (void)snprintf(options, sizeof options, "--within %g --report %s", GATE,
                   program_path("report.md"));
    for (int32_t attempt = 1;; attempt++) {
        json_t *doc = program_json(validation(options), -1);
        if (program_last()->status == 0) {
            return doc;
        }
        cr_assert_lt(attempt, ATTEMPTS, "%s", program_last()->out);
        json_decref(doc);
        json_decref(calibrate());
    }
}

/* docs/VALIDATION_CPU.md has the precise table. */
Test(calibrate, the_simulator_agrees_with_the_engine)
{
    expect_samples();
    json_t *doc = agreement();
    expect_agreement(doc);
    json_decref(doc);
    struct outcome o = program_run("db export validations");
    cr_assert_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, "ttft_s.p95") != NULL, "%s", o.out);
    /* A limit of nothing is not met, and of a stored run no noise is known. */
    doc = program_json(validation("--against 1 --within 0"), 1);
    cr_expect(json_is_null(json_at(doc, "rows.0.noise_fraction")));
    cr_expect(json_is_false(json_at(doc, "rows.0.within")));
    json_decref(doc);
    plant_wrong_times(3);
    char options[LINE];
    (void)snprintf(options, sizeof options, "--within %g", GATE);
    doc = program_json(validation(options), 1);
    cr_expect_gt(json_number_at(json_row(doc, "rows", "metric", "tpot_s.p50"), "error_fraction"),
                 GATE);
    cr_expect_lt(json_number_at(doc, "slowness"), 1 - GATE);
    json_decref(doc);
    /* A machine that is as much faster as its steps say: most of the error is gone. */
    (void)snprintf(options, sizeof options, "--within %g --follow-speed", GATE);
    doc = program_json(validation(options), -1);
    cr_expect_lt(json_number_at(json_row(doc, "rows", "metric", "tpot_s.p50"), "error_fraction"),
                 2 * GATE);
    json_decref(doc);
}

static const char *speculating(const char *spec)
{
    static char line[2 * LINE];
    (void)snprintf(line, sizeof line,
                   "replay %s %s --model tests/models/berth-1m --gpu h200 --spec %s", trace(),
                   columns, spec);
    return line;
}

/* A simulation takes what was measured for its pair, temperature and kind of text, and says so;
 * what was measured for another is not taken. */
static void expect_looked_up(void)
{
    json_t *doc = program_json(speculating("self=1,k=2,text=prose,temperature=1"), 0);
    const char *source = json_text_at(doc, "acceptance_source");
    cr_expect(strstr(source, "berth-1m with self=1, temperature 1, prose text") != NULL, "%s",
              source);
    cr_expect(strstr(json_text_at(doc, "config.spec"), "acceptance=0.") != NULL);
    json_decref(doc);
    doc = program_json(speculating("self=1,k=2"), 0);
    cr_expect(strstr(json_text_at(doc, "acceptance_source"), "any text") != NULL);
    json_decref(doc);
    doc = program_json(speculating("self=1,k=2,acceptance=0.5"), 0);
    cr_expect_null(json_object_get(doc, "acceptance_source"));
    json_decref(doc);
    static const char *const others[] = {"self=1,k=2,temperature=0.7", "self=1,k=2,text=code",
                                         "draft=tests/models/berth-1m,k=2"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct outcome o = program_run(speculating(others[i]));
        cr_expect_eq(o.status, 2, "%s: %s", others[i], o.err);
        cr_expect(strstr(o.err, "not measured for this pair") != NULL, "%s", o.err);
    }
}

Test(calibrate, acceptance_is_measured_by_kind_of_text)
{
    const char *path = program_write(
        "prompts.jsonl",
        "{\"prompt\":\"The Internet Protocol is the network layer.\",\"kind\":\"docs\"}\n"
        "{\"prompt\":\"It was a bright cold day in April.\",\"kind\":\"prose\"}\n"
        "{\"prompt\":\"He said that he would come.\",\"kind\":\"prose\"}\n");
    char line[LINE];
    (void)snprintf(line, sizeof line,
                   "calibrate --model tests/models/berth-1m --spec self=1,k=2 --quick --jobs 1 "
                   "--prompts %s",
                   path);
    json_t *doc = program_json(line, 0);
    const json_t *rows = json_at(doc, "acceptance");
    cr_assert_eq(json_array_size(rows), 4); /* two kinds, greedy and T = 1 */
    for (size_t i = 0; i < 4; i++) {
        double length = json_number_at(json_array_get(rows, i), "accepted_len");
        cr_expect(length >= 1 && length <= 3, "%g", length);
    }
    cr_expect_eq(json_number_at(json_array_get(rows, 1), "prompts"), 2);
    json_decref(doc);
    struct outcome o = program_run("db export acceptance_samples");
    cr_expect(strstr(o.out, "berth-1m,self=1,0") != NULL, "%s%s", o.out, o.err);
    expect_looked_up();
}

static const struct bad {
    const char *args, *message;
    int status;
} bad[] = {
    {"calibrate", "--model is missing", 2},
    {"calibrate --model tests/models/berth-1m --gpu h200", "measures host", 2},
    {"calibrate --model tests/models/berth-1m --clock work --jobs 2", "counts one thread", 2},
    {"calibrate --model tests/models/berth-1m --prompts x.jsonl", "that speculates", 2},
    {"calibrate --model tests/models/berth-1m --slo e2e.p95=1", "--slo: steps are measured", 2},
    {"bench --model tests/models/berth-1m --per-request x.csv", "--per-request: steps", 2},
    {"calibrate --model no-such-model", "no-such-model", 3},
    {"calibrate --model tests/models/berth-1m --spec self=1,k=2 --prompts none.jsonl --quick",
     "cannot read", 3},
    {"validate none.csv --model tests/models/berth-1m", "not calibrated", 4},
    {"validate none.csv", "--model is missing", 2},
    {"validate none.csv --model tests/models/berth-1m --executor sim", "real engine", 2},
    {"validate none.lua --model tests/models/berth-1m", "none.lua", 3},
};

Test(calibrate, bad_input_is_told)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        program_refuses(bad[i].args, bad[i].status, bad[i].message);
    }
}
