/* Bad scenarios, as the built program meets them: a message that says what is wrong, exit status 3,
 * nothing on stdout, nothing in the store. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#define WORKLOAD                                                                                   \
    "workload = w.poisson { rate_per_s = 1, duration_s = 2, prompt = 100, output = 10 }, "
#define GOOD "model = 'llama-2-7b', gpu = 'h200', " WORKLOAD

struct bad {
    const char *name, *fields, *message;
};

/* What is put between the braces of a scenario, and what the message says after "FILE: ". */
static const struct bad TABLES[] = {
    {"unknown key", GOOD "bacthing = { max_seqs = 3 }",
     "bacthing: unknown key; did you mean \"batching\"?"},
    {"unknown key below", GOOD "kv = { block_token = 16 }",
     "kv.block_token: unknown key; did you mean \"block_tokens\"?"},
    {"unknown key of a workload", "workload = w.poisson { rate = 1 }",
     "workload.rate: unknown key; did you mean \"rate_per_s\"?"},
    {"unknown statistic", GOOD "slo = slo { e2e_s = { p94 = 1 } }",
     "slo.e2e_s.p94: unknown key; did you mean \"p90\"?"},
    {"unknown hook", GOOD "hooks = { arival = function() end }",
     "hooks.arival: unknown key; did you mean \"arrival\"?"},
    {"wrong type", GOOD "kv = { block_tokens = 'many' }",
     "kv.block_tokens: expected integer 1..1048576 tokens, got \"many\""},
    {"wrong type of a switch", GOOD "prefix_cache = 1",
     "prefix_cache: expected true or false, got 1"},
    {"table for a number", GOOD "tp = {}", "tp: expected integer 1..64 GPUs, got a table"},
    {"out of range", GOOD "mem_fraction = 1.5",
     "mem_fraction: expected number 0.05..1, got \"1.5\""},
    {"out of range in a list", GOOD "tp = { 1, 128 }",
     "tp[2]: expected integer 1..64 GPUs, got \"128\""},
    {"out of range in a workload",
     "workload = w.poisson { rate_per_s = -1, duration_s = 5, prompt = 100, output = 10 }",
     "workload.rate_per_s: expected number 1e-09..1e+09, got -1"},
    {"impossible distribution",
     "workload = w.poisson { rate_per_s = 1, duration_s = 5, output = 10, "
     "prompt = w.lognormal { mean = 10, p95 = 100 } }",
     "workload.prompt.p95: no lognormal with mean 10 has p95 100"},
};

/* Hooks that fail while the simulation runs; {line} is 2. */
static const struct bad HOOKS[] = {
    {"endless loop", "function() while true do end end",
     "stopped after 1000000 instructions: an endless loop?"},
    {"io", "function() io.open('/etc/passwd') end", "\"io\" is not defined"},
    {"os", "function() return os.time() end", "\"os\" is not defined"},
    {"load", "function() return load('return 1') end", "\"load\" is not defined"},
    {"a global of its own", "function() seen = true end", "\"seen\""},
    {"result of a wrong type", "function() return 'no' end", "got a string"},
    {"result out of range", "function() return { priority = 99 } end", "priority = 0..15"},
};

/* Whole files. */
static const struct bad FILES[] = {
    {"io at load", "local f = io.open('x')\nreturn {}\n", "1: \"io\" is not defined"},
    {"os at load", "\nos.exit(0)\n", "2: \"os\" is not defined"},
    {"endless loop at load", "while true do end\n", "an endless loop?"},
    {"syntax", "return {\n", "unexpected symbol near <eof>"},
    {"control characters", "error('a\\27[2Jb')\n", "bad.lua:1: a\\x1b[2Jb"},
    {"deep recursion in C", "local function f() return ('x'):gsub('x', f) end f()\n",
     "bad.lua: C stack overflow"},
    {"more configurations than can be counted",
     "local w = require 'berth.workload'\n"
     "local function r(n) local t = {} for i = 1, n do t[i] = i end return t end\n"
     "return { model = 'llama-2-7b', gpu = 'h200', slo = { e2e_s = { p95 = 1 } }, " WORKLOAD
     "max_model_len = r(1024), kv = { block_tokens = r(1024), long_above_tokens = r(1024),\n"
     "blocks = r(1024) }, batching = { max_seqs = r(1024), max_batched_tokens = r(1024) } }\n",
     "bad.lua: spans 36028797018963967 configurations, at most"},
    {"no table", "return 3\n", "expected a file that returns a table, got 3"},
    {"no workload", "return { model = 'llama-2-7b', gpu = 'h200' }\n", "workload: missing"},
    {"unknown model",
     "local w = require 'berth.workload'\nreturn { model = 'llama-2-7', "
     "slo = { e2e_s = { p95 = 1 } }, "
     "gpu = 'h200', " WORKLOAD "}\n",
     "model: \"llama-2-7\" is not known; did you mean llama-2-7b?"},
    {"unknown GPU",
     "local w = require 'berth.workload'\nreturn { slo = { e2e_s = { p95 = 1 } }, model = "
     "'llama-2-7b', "
     "gpu = 'h2000', " WORKLOAD "}\n",
     "gpu: \"h2000\" is not known; did you mean h200?"},
};

static int n_runs(void)
{
    json_t *doc = program_json("db list", 0);
    int n = (int)json_array_size(json_at(doc, "runs"));
    json_decref(doc);
    return n;
}

static void expect_bad(const char *command, const struct bad *b, const char *text)
{
    char args[2048];
    const char *path = program_write("bad.lua", text);
    (void)snprintf(args, sizeof args, "%s '%s'", command, path);
    struct outcome o = program_run(args);
    cr_expect_eq(o.status, 3, "%s: %s gave %d: %s", b->name, command, o.status, o.err);
    cr_expect_str_eq(o.out, "", "%s", b->name);
    cr_expect_not_null(strstr(o.err, b->message), "%s: %s\n%s", b->name, command, o.err);
    cr_expect_eq(strchr(o.err, '\n'), o.err + strlen(o.err) - 1, "%s: one line: %s", b->name,
                 o.err);
}

/* A good run first, so that there is a store whose runs can be counted. */
static void make_store(void)
{
    const char *path = program_write("good.lua", "local w = require 'berth.workload'\n"
                                                 "return { " GOOD "}\n");
    char args[2048];
    (void)snprintf(args, sizeof args, "simulate '%s'", path);
    cr_assert_eq(program_run(args).status, 0);
    cr_assert_eq(n_runs(), 1);
}

Test(bad_scenario, keys_and_values_are_named_with_what_is_allowed)
{
    make_store();
    for (size_t i = 0; i < sizeof TABLES / sizeof *TABLES; i++) {
        char text[2048], message[512];
        (void)snprintf(text, sizeof text,
                       "local w, slo = require 'berth.workload', require 'berth.slo'\n"
                       "return { %s }\n",
                       TABLES[i].fields);
        (void)snprintf(message, sizeof message, "bad.lua: %s", TABLES[i].message);
        struct bad b = {TABLES[i].name, NULL, message};
        expect_bad("simulate", &b, text);
        expect_bad("plan", &b, text);
    }
    cr_expect_eq(n_runs(), 1);
}

Test(bad_scenario, failing_hooks_end_the_run_and_leave_nothing)
{
    make_store();
    for (size_t i = 0; i < sizeof HOOKS / sizeof *HOOKS; i++) {
        char text[2048];
        (void)snprintf(text, sizeof text,
                       "local w = require 'berth.workload'\n"
                       "return { " GOOD "hooks = { arrival = %s } }\n",
                       HOOKS[i].fields);
        expect_bad("simulate", &HOOKS[i], text);
        cr_expect_not_null(strstr(program_last()->err, "hooks.arrival: "), "%s", HOOKS[i].name);
    }
    cr_expect_eq(n_runs(), 1);
}

Test(bad_scenario, a_hook_that_fails_late_leaves_nothing_of_the_runs_before)
{
    make_store();
    static const char text[] =
        "local w = require 'berth.workload'\n"
        "local calls = 0\n"
        "return { " GOOD "batching = { max_seqs = { 4, 8 } }, hooks = { arrival = function(r, s)\n"
        "  calls = calls + 1\n"
        "  if s[1].max_seqs == 8 then error('on purpose') end end } }\n";
    struct bad b = {"second run", NULL, "5: on purpose"};
    expect_bad("simulate", &b, text);
    cr_expect_not_null(strstr(program_last()->err, "hooks.arrival: "));
    cr_expect_eq(n_runs(), 1);
}

Test(bad_scenario, files_that_are_no_scenarios)
{
    make_store();
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        expect_bad("simulate", &FILES[i], FILES[i].fields);
        expect_bad("plan", &FILES[i], FILES[i].fields);
    }
    struct bad no_slo = {"no SLO", NULL, "bad.lua: slo: a plan needs at least one limit"};
    expect_bad("plan", &no_slo, "local w = require 'berth.workload'\nreturn { " GOOD "}\n");
    struct outcome o = program_run("simulate scenarios/evening_pek.lua");
    cr_expect_eq(o.status, 3);
    cr_expect_not_null(strstr(o.err, "scenarios/evening_pek.lua: cannot open"), "%s", o.err);
    cr_expect_eq(n_runs(), 1);
}
