#include "cli/command.h"
#include "cli/run_opts.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

enum { MAX_WORDS = 32 };

static enum bt_code parse(struct bt_args *args, const char *line, struct bt_error *err)
{
    static char buf[512];
    char *argv[MAX_WORDS];
    int argc = 0;
    (void)snprintf(buf, sizeof buf, "%s", line);
    for (char *word = strtok(buf, " "); word != NULL; word = strtok(NULL, " ")) {
        cr_assert_lt(argc, MAX_WORDS);
        argv[argc++] = word;
    }
    struct bt_opt_table tables[] = {bt_trace_opt_table(), bt_run_opt_table()};
    return bt_args_parse(args, tables, 2, argc, argv, err);
}

Test(run_opts, defaults)
{
    struct bt_args args;
    struct bt_trace_opts trace;
    struct bt_run_opts run;
    cr_assert_eq(parse(&args, "", NULL), BT_OK);
    cr_assert_eq(bt_trace_opts_read(&args, &trace, NULL), BT_OK);
    cr_assert_eq(bt_run_opts_read(&args, &run, NULL), BT_OK);
    cr_expect_eq(trace.format, BT_TRACE_AUTO);
    cr_expect_null(trace.columns);
    cr_expect_eq(trace.rate_scale, 1);
    cr_expect_eq(trace.from_s, 0);
    cr_expect_eq(trace.to_s, 0);
    cr_expect_eq(trace.limit, 0);
    cr_expect_not(trace.keep_ticks);
    cr_expect_eq(run.n_slos, 0);
    cr_expect(isnan(run.warmup));
    cr_expect_eq(run.seed, 1);
    cr_expect_geq(run.jobs, 1);
    cr_expect_eq(run.executor, BT_EXECUTOR_SIM);
    cr_expect_null(run.per_request);
    bt_args_fini(&args);
}

Test(run_opts, values_are_read)
{
    struct bt_args args;
    struct bt_trace_opts trace;
    struct bt_run_opts run;
    cr_assert_eq(
        parse(&args,
              "--format mooncake --columns timestamp=t:ms,prompt=p,output=o --rate-scale 2 "
              "--from 10 --to 20.5 --limit 100 --spread-ticks off --warmup 0.2 --seed 7 "
              "--jobs 3 --per-request r.csv --executor cuda --slo e2e.p95=1.5,ttft.p99=0.5",
              NULL),
        BT_OK);
    cr_assert_eq(bt_trace_opts_read(&args, &trace, NULL), BT_OK);
    cr_assert_eq(bt_run_opts_read(&args, &run, NULL), BT_OK);
    cr_expect_eq(trace.format, BT_TRACE_MOONCAKE);
    cr_expect_str_eq(trace.columns, "timestamp=t:ms,prompt=p,output=o");
    cr_expect_eq(trace.rate_scale, 2);
    cr_expect_eq(trace.from_s, 10);
    cr_expect_eq(trace.to_s, 20.5);
    cr_expect_eq(trace.limit, 100);
    cr_expect(trace.keep_ticks);
    cr_expect_eq(run.warmup, 0.2);
    cr_expect_eq(run.seed, 7);
    cr_expect_eq(run.jobs, 3);
    cr_expect_str_eq(run.per_request, "r.csv");
    cr_expect_eq(run.executor, BT_EXECUTOR_CUDA);
    cr_assert_eq(run.n_slos, 2);
    cr_expect_eq(run.slos[0].metric, BT_SLO_E2E);
    cr_expect_eq(run.slos[0].stat, BT_STAT_P95);
    cr_expect_eq(run.slos[0].limit_ns, 1500000000);
    bt_args_fini(&args);
}

/* The option's words and the library's names must not drift apart. */
Test(run_opts, every_format_of_the_option_is_known)
{
    const char *allowed = NULL;
    struct bt_opt_table table = bt_trace_opt_table();
    for (int32_t i = 0; i < table.n_opts; i++) {
        if (strcmp(table.opts[i].name, "format") == 0) {
            allowed = table.opts[i].allowed;
        }
    }
    cr_assert_not_null(allowed);
    char joined[256] = "";
    for (int f = BT_TRACE_AUTO; f <= BT_TRACE_JSONL; f++) {
        size_t n = strlen(joined);
        (void)snprintf(joined + n, sizeof joined - n, "%s%s", f == BT_TRACE_AUTO ? "" : "|",
                       bt_trace_format_name((enum bt_trace_format)f));
    }
    cr_expect_str_eq(allowed, joined, "%s", joined);
}

Test(run_opts, mistakes_name_the_option)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--from 5 --to 5", "--to: '5' is not after --from 5"},
        {"--to 0", "--to: '0' is not after --from 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_args args;
        struct bt_trace_opts trace;
        struct bt_error err = {0};
        cr_assert_eq(parse(&args, cases[i].line, NULL), BT_OK);
        cr_expect_eq(bt_trace_opts_read(&args, &trace, &err), BT_ERR_ARG);
        cr_expect_str_eq(err.msg, cases[i].message, "%s", err.msg);
        bt_args_fini(&args);
    }
    struct bt_args args;
    struct bt_run_opts run;
    struct bt_error err = {0};
    cr_assert_eq(parse(&args, "--slo e2e.p96=1", NULL), BT_OK);
    cr_expect_eq(bt_run_opts_read(&args, &run, &err), BT_ERR_ARG);
    cr_expect_eq(strncmp(err.msg, "--slo: ", 7), 0, "%s", err.msg);
    bt_args_fini(&args);
}

/* Two options of one name in the tables of a command would hide each other. */
Test(run_opts, no_command_declares_an_option_twice)
{
    for (int32_t c = 0; bt_commands[c] != NULL; c++) {
        struct bt_opt_table tables[BT_ARGS_MAX_TABLES];
        int32_t n = bt_command_tables(bt_commands[c], tables);
        for (int32_t t = 0; t < n; t++) {
            for (int32_t i = 0; i < tables[t].n_opts; i++) {
                const char *name = tables[t].opts[i].name;
                int same = 0;
                for (int32_t u = 0; u < n; u++) {
                    for (int32_t j = 0; j < tables[u].n_opts; j++) {
                        same += strcmp(tables[u].opts[j].name, name) == 0;
                    }
                }
                cr_expect_eq(same, 1, "berth %s --%s", bt_commands[c]->name, name);
            }
        }
    }
}
