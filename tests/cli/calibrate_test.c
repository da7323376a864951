/* berth calibrate, --gpu host and berth validate: this machine measured, simulated, compared. The
 * work clock keeps other programs out of the numbers. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 2048 };

static const char columns[] = "--format csv --columns timestamp=t:s,prompt=prompt,output=output";

/* A light load, then a burst. */
static const char *trace(void)
{
    static char path[LINE], text[1 << 12];
    size_t at = (size_t)snprintf(text, sizeof text, "t,prompt,output\n");
    for (int32_t i = 0; i < 60; i++) {
        double t = i < 30 ? 0.02 * i : 0.7 + 0.001 * i;
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
    json_decref(program_json("calibrate --model tests/models/tiny-llama-mha --quick --jobs 1", 0));
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

static double row_member(const json_t *doc, const char *list, const char *key, const char *name,
                         const char *member)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_at(doc, list), i, row)
    {
        if (strcmp(json_text_at(row, key), name) == 0) {
            return json_number_at(row, member);
        }
    }
    cr_assert_fail("%s has no %s", list, name);
    return 0;
}

/* The gate is generous: CI machines differ from minute to minute. docs/VALIDATION_CPU.md has the
 * precise table. */
Test(calibrate, the_simulator_agrees_with_the_engine)
{
    static const char *const names[] = {
        "ttft_s.p50", "ttft_s.p95", "tpot_s.p50",           "tpot_s.p95",
        "e2e_s.p50",  "e2e_s.p95",  "throughput_req_per_s", "throughput_out_tok_per_s"};
    expect_samples();
    char line[2 * LINE], report[LINE];
    (void)snprintf(report, sizeof report, "%s", program_path("report.md"));
    (void)snprintf(
        line, sizeof line,
        "validate %s %s --model tests/models/berth-1m --jobs 1 --clock work --within 0.4 "
        "--report %s",
        trace(), columns, report);
    json_t *doc = program_json(line, 0);
    cr_expect_eq(json_number_at(doc, "requests"), 60);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double predicted = row_member(doc, "rows", "metric", names[i], "predicted");
        double measured = row_member(doc, "rows", "metric", names[i], "measured");
        double error = row_member(doc, "rows", "metric", names[i], "error_fraction");
        cr_expect_float_eq(error, predicted / measured - 1, 1e-9, "%s", names[i]);
        cr_expect_lt(fabs(error), 0.4, "%s: %g, measured %g", names[i], predicted, measured);
        cr_expect_geq(row_member(doc, "rows", "metric", names[i], "noise_fraction"), 0);
    }
    double steps = 0;
    for (size_t i = 0; i < json_array_size(json_at(doc, "steps")); i++) {
        steps += json_number_at(json_array_get(json_at(doc, "steps"), i), "steps");
    }
    cr_expect_gt(steps, 60);
    cr_expect_lt(fabs(row_member(doc, "steps", "kind", "decode 1", "error_fraction")), 0.3);
    json_decref(doc);
    /* What is stored can be looked up; a limit of nothing is not met, and that is an answer. */
    struct outcome o = program_run("db export validations");
    cr_assert_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, "ttft_s.p95") != NULL, "%s", o.out);
    (void)snprintf(line, sizeof line,
                   "validate %s %s --model tests/models/berth-1m --against 1 --within 0", trace(),
                   columns);
    doc = program_json(line, 1);
    cr_expect(json_is_null(json_at(doc, "rows.0.noise_fraction")));
    cr_expect(json_is_false(json_at(doc, "rows.0.within")));
    json_decref(doc);
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
}

static const struct bad {
    const char *args, *message;
    int status;
} bad[] = {
    {"calibrate", "--model is missing", 2},
    {"calibrate --model tests/models/berth-1m --gpu h200", "measures host", 2},
    {"calibrate --model tests/models/berth-1m --clock work --jobs 2", "counts one thread", 2},
    {"calibrate --model tests/models/berth-1m --prompts x.jsonl", "that speculates", 2},
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
        struct outcome o = program_run(bad[i].args);
        cr_expect_eq(o.status, bad[i].status, "%s gave %d: %s", bad[i].args, o.status, o.err);
        cr_expect(strstr(o.err, bad[i].message) != NULL, "%s: %s", bad[i].args, o.err);
        cr_expect_str_eq(o.out, "", "%s", bad[i].args);
    }
}
