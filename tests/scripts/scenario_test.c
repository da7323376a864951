#include "scripts/host/sandbox.h"
#include "scripts/host/scenario.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum bt_code parse(const char *text, struct bt_scenario *s, struct bt_error *err)
{
    *err = (struct bt_error){0};
    return bt_scenario_parse(text, strlen(text), "dir/s.lua", s, err);
}

static const char SUPPORT[] =
    "local w, slo = require 'berth.workload', require 'berth.slo'\n"
    "local berth = require 'berth'\n"
    "return {\n"
    "  name = 'support-13b', seed = 7,\n"
    "  model = 'llama-2-13b', stack = 'berth',\n"
    "  gpu = { 'rtx4090', 'h200' }, tp = { 1, 2 }, replicas = 'auto', redundancy = 1,\n"
    "  weights = { 'fp16', 'int8', 'int4-g128' }, activations = { 'fp16', 'int8-dynamic' },\n"
    "  kv = { dtype = { 'fp16', 'int8' }, block_tokens = { 8, 16, 32 } },\n"
    "  batching = { mode = 'continuous', max_seqs = 'auto',\n"
    "               window_ms = w.dynamic { low = 2, high = 10 } },\n"
    "  preempt = { 'recompute', 'swap' },\n"
    "  spec = { false, { draft = 'tinyllama-1.1b', k = 4, acceptance = 0.72,\n"
    "                    off_above_batch = 8 } },\n"
    "  workload = w.poisson { rate_per_s = 50, duration_s = 120,\n"
    "    prompt = w.lognormal { mean = 650, p95 = 900 }, shared_prefix_tokens = 500,\n"
    "    output = w.lognormal { mean = 80, p95 = 200 } },\n"
    "  slo = slo { e2e_s = { p95 = 1.5 }, memory_headroom = 0.10, accuracy_drop_points = 1.5 },\n"
    "  budget = { usd_per_h = 20 },\n"
    "}\n";

Test(scenario, the_designs_example_is_read_whole)
{
    struct bt_scenario s;
    struct bt_error err;
    cr_assert_eq(parse(SUPPORT, &s, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(s.name, "support-13b");
    cr_expect_eq(s.seed, 7);
    cr_expect_str_eq(s.base.gpu, "rtx4090");
    cr_expect_eq(s.base.replicas, BT_AUTO);
    cr_expect_eq(s.base.max_seqs, BT_AUTO);
    cr_expect_eq(s.base.window_low_ns, 2000000);
    cr_expect_eq(s.base.window_high_ns, 10000000);
    cr_expect_eq(s.base.spec.kind, BT_SPEC_NONE);
    cr_expect_eq(s.n_dims, 8);
    cr_expect_eq(bt_scenario_n_configs(&s), 2 * 2 * 3 * 2 * 2 * 3 * 2 * 2);
    cr_expect_eq(s.n_slos, 1);
    cr_expect_eq(s.slos[0].metric, BT_SLO_E2E);
    cr_expect_eq(s.slos[0].stat, BT_STAT_P95);
    cr_expect_eq(s.slos[0].limit_ns, 1500000000);
    cr_expect_float_eq(s.memory_headroom, 0.1, 1e-12);
    cr_expect_float_eq(s.accuracy_drop_points, 1.5, 1e-12);
    cr_expect_float_eq(s.budget_usd_per_h, 20, 1e-12);
    cr_expect_eq(s.workload.kind, BT_WORKLOAD_GENERATED);
    cr_expect_eq(s.workload.n_prefixes, 1);
    cr_expect_eq(s.workload.prefixes[0].tokens, 500);
    cr_expect_float_eq(s.workload.prompt.p95, 900, 1e-12);
    cr_expect_float_eq(s.warmup_fraction, 0.1, 1e-12);

    /* Dimensions are in the order of their keys, the last one fastest. */
    struct bt_config c;
    char label[256];
    bt_scenario_config(&s, bt_scenario_n_configs(&s) - 1, &c, label, sizeof label);
    cr_expect_str_eq(c.gpu, "h200");
    cr_expect_eq(c.tp, 2);
    cr_expect_eq(c.kv_block_tokens, 32);
    cr_expect_eq(c.spec.kind, BT_SPEC_DRAFT);
    cr_expect_eq(c.spec.off_above_batch, 8);
    cr_expect_float_eq(c.spec.acceptance[0], 0.72, 1e-12);
    cr_expect_str_eq(label, "activations=int8-dynamic gpu=h200 kv.block_tokens=32 kv.dtype=int8 "
                            "preempt=swap spec=draft=tinyllama-1.1b,k=4,acceptance=0.72,"
                            "off-above=8 tp=2 weights=int4-g128");
    bt_scenario_fini(&s);
}

Test(scenario, variants_override_the_base_and_its_dimensions)
{
    static const char text[] =
        "return { model = 'm', gpu = 'h200', kv = { dtype = {'fp16','int8'} },"
        " batching = { max_seqs = 8 },"
        " variants = { { label = 'base' },"
        "              { label = 'wide', batching = { max_seqs = 64 } },"
        "              { label = 'int8', kv = { dtype = 'int8' } } } }";
    struct bt_scenario s;
    struct bt_error err;
    cr_assert_eq(parse(text, &s, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(bt_scenario_n_configs(&s), 5);
    static const char *const labels[] = {"base kv.dtype=fp16", "base kv.dtype=int8",
                                         "wide kv.dtype=fp16", "wide kv.dtype=int8", "int8"};
    for (int64_t i = 0; i < 5; i++) {
        struct bt_config c;
        char label[128];
        bt_scenario_config(&s, i, &c, label, sizeof label);
        cr_expect_str_eq(label, labels[i]);
        cr_expect_eq(c.max_seqs, i == 2 || i == 3 ? 64 : 8);
    }
    bt_scenario_fini(&s);
}

/* Each message names the file, the key's path, the value and what is allowed. */
static const struct {
    const char *name, *text;
    enum bt_code code;
    const char *message;
} BAD[] = {
    {"unknown key", "return { modle = 'x' }", BT_ERR_INPUT,
     "dir/s.lua: modle: unknown key; did you mean \"model\"?"},
    {"unknown nested key", "return { kv = { dtyp = 'x' } }", BT_ERR_INPUT,
     "dir/s.lua: kv.dtyp: unknown key; did you mean \"dtype\"?"},
    {"wrong type", "return { kv = { block_tokens = '16' } }", BT_ERR_INPUT,
     "dir/s.lua: kv.block_tokens: expected integer 1..1048576 tokens, got \"16\""},
    {"out of range", "return { kv = { block_tokens = 0 } }", BT_ERR_INPUT,
     "dir/s.lua: kv.block_tokens: expected integer 1..1048576 tokens, got \"0\""},
    {"fraction for an integer", "return { tp = 1.5 }", BT_ERR_INPUT,
     "dir/s.lua: tp: expected integer 1..64 GPUs, got \"1.5\""},
    {"boolean for a name", "return { model = true }", BT_ERR_INPUT,
     "dir/s.lua: model: expected a name of 1..511 bytes, got true"},
    {"bad value in a list", "return { weights = { 'fp16', 'int3' } }", BT_ERR_INPUT,
     "dir/s.lua: weights[2]: expected default, fp32, fp16, bf16, int8, int8-tensor, int4-g128, "
     "int4-g64, int4-g32, int4-tensor or fp8, got \"int3\""},
    {"twice in a list", "return { tp = { 1, 2, 1 } }", BT_ERR_INPUT,
     "dir/s.lua: tp[3]: expected a value that is not in the list already, got 1"},
    {"table where a text is due", "return { kv = 'int8' }", BT_ERR_INPUT,
     "dir/s.lua: kv: expected a table, got \"int8\""},
    {"unknown spec key", "return { spec = { draft = 'a', k = 2, speed = 1 } }", BT_ERR_INPUT,
     "dir/s.lua: spec.speed: unknown key; allowed: draft, self, medusa, k, acceptance, "
     "temperature, text, adaptive, off_above_batch"},
    {"acceptance out of range", "return { spec = { draft = 'a', k = 2, acceptance = 1.2 } }",
     BT_ERR_INPUT, "dir/s.lua: spec.acceptance: expected number 0..1, got 1.2"},
    {"slo metric", "return { slo = { e2e = { p95 = 1 } } }", BT_ERR_INPUT,
     "dir/s.lua: slo.e2e: unknown key; did you mean \"e2e_s\"?"},
    {"slo statistic", "return { slo = { e2e_s = { p96 = 1 } } }", BT_ERR_INPUT,
     "dir/s.lua: slo.e2e_s.p96: unknown key; did you mean \"p90\"?"},
    {"negative budget", "return { budget = { usd_per_h = -3 } }", BT_ERR_INPUT,
     "dir/s.lua: budget.usd_per_h: expected number 1e-06..1e+09, got -3"},
    {"plain table as workload", "return { workload = { rate_per_s = 1 } }", BT_ERR_INPUT,
     "dir/s.lua: workload: expected a workload (w.poisson, w.gamma, w.weibull, w.constant, "
     "w.diurnal, w.closed, w.servegen, w.trace of berth.workload), got a table"},
    {"key of another workload",
     "return { workload = require 'berth.workload'.poisson { rate_per_s = 1, users = 3 } }",
     BT_ERR_INPUT, NULL},
    {"distribution key",
     "local w = require 'berth.workload'\n"
     "return { workload = w.poisson { rate_per_s = 1, duration_s = 1, output = 3,\n"
     "  prompt = w.lognormal { mean = 5, p99 = 9 } } }",
     BT_ERR_INPUT, "dir/s.lua: workload.prompt.p99: unknown key; did you mean \"p95\"?"},
    {"not a table", "return 7", BT_ERR_INPUT,
     "dir/s.lua: scenario: expected a file that returns a table, got 7"},
    {"syntax error", "return {", BT_ERR_SCRIPT, NULL},
    {"endless loop", "while true do end", BT_ERR_SCRIPT,
     "dir/s.lua:1: stopped after 200000000 instructions: an endless loop?"},
    {"finalizer", "setmetatable({}, { __gc = function() while true do end end })", BT_ERR_SCRIPT,
     "dir/s.lua:1: setmetatable: scenarios have no finalizers (__gc)"},
    {"pattern that tries everything", "return string.find(('a'):rep(3000), ('a*'):rep(20) .. 'b')",
     BT_ERR_SCRIPT,
     "dir/s.lua:1: string.find may take more steps than the 200000000 that are allowed"},
    {"method that tries everything", "return (('a'):rep(3000)):gsub('.-.-.-b', '')", BT_ERR_SCRIPT,
     "dir/s.lua:1: string.gsub may take more steps than the 200000000 that are allowed"},
    {"nothing, very often", "return (''):rep(1e18)", BT_ERR_SCRIPT,
     "dir/s.lua:1: string.rep may take more steps than the 200000000 that are allowed"},
    {"move of nothing", "table.move({}, 1, math.maxinteger - 9, 2)", BT_ERR_SCRIPT,
     "dir/s.lua:1: table.move may take more steps than the 200000000 that are allowed"},
    {"length that is not there",
     "table.insert(setmetatable({}, { __len = function() return 1 << 50 end }), 1, 5)",
     BT_ERR_SCRIPT,
     "dir/s.lua:1: table.insert may take more steps than the 200000000 that are allowed"},
    {"more requests than any machine serves",
     "local w = require 'berth.workload'\nreturn { model = 'x', gpu = 'h200', workload = w.poisson "
     "{ rate_per_s = 1e9, duration_s = 1e9, prompt = 5, output = 5 } }",
     BT_ERR_INPUT, NULL},
    {"io", "io.open('x')", BT_ERR_SCRIPT,
     "dir/s.lua:1: \"io\" is not defined (scenarios have no io, os, debug, load, print, and no "
     "globals of their own)"},
    {"os", "os.exit(1)", BT_ERR_SCRIPT,
     "dir/s.lua:1: \"os\" is not defined (scenarios have no io, os, debug, load, print, and no "
     "globals of their own)"},
    {"load", "load('return 1')()", BT_ERR_SCRIPT, NULL},
    {"random", "return { seed = math.random(3) }", BT_ERR_SCRIPT, NULL},
    {"global", "x = 1", BT_ERR_SCRIPT, "dir/s.lua:1: assignment to the global \"x\": use local"},
    {"module", "require 'socket'", BT_ERR_SCRIPT,
     "dir/s.lua:1: no module \"socket\"; there are berth, berth.workload and berth.slo"},
    {"memory", "local t = {} for i = 1, 1e9 do t[i] = {} end", BT_ERR_SCRIPT, NULL},
    {"bytecode", "\x1bLua", BT_ERR_SCRIPT,
     "dir/s.lua: attempt to load a binary chunk (mode is 't')"},
    {"hook is no function", "return { hooks = { overload = 3 } }", BT_ERR_INPUT,
     "dir/s.lua: hooks.overload: expected a function, got 3"},
    {"unknown hook", "return { hooks = { overlod = function() end } }", BT_ERR_INPUT,
     "dir/s.lua: hooks.overlod: unknown key; did you mean \"overload\"?"},
    {"variant with a list", "return { variants = { { label = 'a', tp = { 1, 2 } } } }",
     BT_ERR_INPUT, "dir/s.lua: variants[1].tp: a variant takes one value, not a list"},
    {"unknown key of the second variant",
     "return { variants = { { label = 'a' }, { label = 'b', kv = { dtyp = 'x' } } } }",
     BT_ERR_INPUT, "dir/s.lua: variants[2].kv.dtyp: unknown key; did you mean \"dtype\"?"},
    {"limits that hold themselves, 64 times",
     "local t = {} for i = 1, 64 do t[i] = t end return { slo = { ttft_s = t } }", BT_ERR_INPUT,
     "dir/s.lua: slo.ttft_s: expected a table with named keys only, got 1"},
    {"a sort, very often",
     "local t = {} for i = 1, 1000000 do t[i] = i end while true do table.sort(t) end",
     BT_ERR_SCRIPT,
     "dir/s.lua:1: table.sort may take more steps than the 200000000 that are allowed"},
    {"nothing, joined",
     "table.concat(setmetatable({}, { __index = function() return '' end }), '', 1, 1 << 60)",
     BT_ERR_SCRIPT,
     "dir/s.lua:1: table.concat may take more steps than the 200000000 that are allowed"},
    {"a long text, counted", "local s = ('x'):rep(20000000) while true do utf8.len(s) end",
     BT_ERR_SCRIPT,
     "dir/s.lua:1: utf8.len may take more steps than the 200000000 that are allowed"},
    {"an error without a place", "error(nil)", BT_ERR_SCRIPT,
     "dir/s.lua: an error that is a nil, not a text"},
    {"a memory bomb", "local s = 'x' for i = 1, 60 do s = s .. s end", BT_ERR_SCRIPT,
     "dir/s.lua: out of the scenario's memory budget"},
};

Test(scenario, bad_input_gets_a_message_that_helps)
{
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct bt_scenario s;
        struct bt_error err;
        cr_expect_eq(parse(BAD[i].text, &s, &err), BAD[i].code, "%s: %s", BAD[i].name, err.msg);
        if (BAD[i].message != NULL) {
            cr_expect_str_eq(err.msg, BAD[i].message, "%s: %s", BAD[i].name, err.msg);
        } else {
            cr_expect(strstr(err.msg, "s.lua") != NULL || strstr(err.msg, "memory") != NULL,
                      "%s: %s", BAD[i].name, err.msg);
        }
    }
}

Test(scenario, files_are_relative_to_the_scenario)
{
    static const char text[] = "return { workload = require 'berth.workload'.trace {"
                               " file = 'traces/a.csv', format = 'azure', spread_ticks = false } }";
    struct bt_scenario s;
    struct bt_error err;
    cr_assert_eq(parse(text, &s, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(s.workload.file, "dir/traces/a.csv");
    cr_expect_eq(s.workload.trace.format, BT_TRACE_AZURE);
    cr_expect(s.workload.trace.keep_ticks);
    cr_expect_float_eq(s.warmup_fraction, 0, 1e-12);
    bt_scenario_fini(&s);
}

Test(scenario, a_missing_file_is_named)
{
    struct bt_scenario s;
    struct bt_error err = {0};
    cr_expect_eq(bt_scenario_load("no/such.lua", &s, &err), BT_ERR_IO);
    cr_expect_str_eq(err.msg, "no/such.lua: cannot open: No such file or directory");
}

/* docs/SCENARIOS.md shows what this prints. */
Test(scenario, the_schema_names_every_key)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    bt_scenario_print_schema(f);
    fclose(f);
    for (const struct bt_config_field *c = bt_config_fields; c->path != NULL; c++) {
        char key[128];
        snprintf(key, sizeof key, "| `%s` |", c->path);
        cr_expect_not_null(strstr(text, key), "%s", key);
    }
    cr_expect_not_null(strstr(text, "| `slo.memory_headroom` |"));
    cr_expect_not_null(strstr(text, "| `shared_prefix_tokens` |"));
    free(text);
}

/* What the guarded library functions answer is what Lua's own would. */
Test(scenario, guarded_functions_are_as_lua_has_them)
{
    static const char text[] =
        "local ok, e = pcall(error, 'boom') assert(not ok and e == 'boom')\n"
        "local a, b, c = pcall(function(...) return ... end, 1, 2) assert(a and b == 1 and c == "
        "2)\n"
        "local d, m = xpcall(function(x) error('q' .. x, 0) end, function(y) return 'H' .. y end, "
        "7)\n"
        "assert(not d and m == 'Hq7')\n"
        "local f, g, h = xpcall(function(...) return ... end, function() end, 3, 4)\n"
        "assert(f and g == 3 and h == 4)\n"
        "local n = 0 for k in ('a,b,c'):gmatch('[^,]+') do n = n + 1 end assert(n == 3)\n"
        "assert((('x y'):gsub('%s', '_')) == 'x_y' and ('ab'):rep(2, '-') == 'ab-ab')\n"
        "assert(('k=v'):match('(%w+)=(%w+)') == 'k' and ('a.b'):find('.', 1, true) == 2)\n"
        "local t = { 1, 2 } table.insert(t, 3) table.insert(t, 1, 0)\n"
        "assert(#t == 4 and table.remove(t, 1) == 0 and table.remove(t) == 3 and #t == 2)\n"
        "assert(#table.move({ 1, 2, 3 }, 1, 3, 2) == 4)\n"
        "assert(getmetatable(setmetatable({}, { __metatable = 5 })) == 5)\n"
        "assert(not pcall(setmetatable, setmetatable({}, { __metatable = 5 }), {}))\n"
        "assert(not pcall(setmetatable, {}, 3))\n"
        "return { name = 'fine' }";
    struct bt_sandbox_opts opts = {0};
    struct bt_sandbox *s = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_sandbox_create(&opts, &s, &err), BT_OK);
    cr_expect_eq(bt_sandbox_run(s, text, sizeof text - 1, "s.lua", &err), BT_OK, "%s", err.msg);
    bt_sandbox_destroy(s);
}

/* Few instructions may take long; also the processor's time is limited. */
Test(scenario, slow_instructions_are_stopped)
{
    static const char text[] =
        "local a, b = ('x'):rep(4000000), ('x'):rep(4000000) while true do local c = a == b end";
    struct bt_sandbox_opts opts = {.load_instructions = 10000000};
    struct bt_sandbox *s = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_sandbox_create(&opts, &s, &err), BT_OK);
    cr_expect_eq(bt_sandbox_run(s, text, sizeof text - 1, "s.lua", &err), BT_ERR_SCRIPT);
    cr_expect_str_eq(err.msg, "s.lua:1: stopped after 2000 ms: an endless loop?");
    bt_sandbox_destroy(s);
}

/* 1024 values in each of 8 lists are more configurations than an int64 counts. */
Test(scenario, too_many_configurations_are_many)
{
    static const char text[] =
        "local function r(n) local t = {} for i = 1, n do t[i] = i end return t end\n"
        "return { model = 'm', gpu = 'g', max_model_len = r(1024), redundancy = r(64),\n"
        "  kv = { block_tokens = r(1024), long_above_tokens = r(1024), blocks = r(1024) },\n"
        "  batching = { max_seqs = r(1024), max_batched_tokens = r(1024) },\n"
        "  degrade = { at_waiting = r(1024), max_tokens = r(1024) } }";
    struct bt_scenario s;
    struct bt_error err;
    cr_assert_eq(parse(text, &s, &err), BT_OK, "%s", err.msg);
    cr_expect_gt(bt_scenario_n_configs(&s), INT64_C(1) << 50);
    bt_scenario_fini(&s);
}

Test(scenario, a_byte_order_mark_is_passed_over)
{
    char path[] = "/tmp/berth_scenario_XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    FILE *f = fdopen(fd, "wb");
    fputs("\xef\xbb\xbfreturn { name = 'marked' }", f);
    fclose(f);
    struct bt_scenario s;
    struct bt_error err = {0};
    cr_assert_eq(bt_scenario_load(path, &s, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(s.name, "marked");
    bt_scenario_fini(&s);
    (void)remove(path);
}

/* The end of a budget is not an error like others. */
Test(scenario, a_spent_budget_cannot_be_caught)
{
    static const char *const texts[] = {
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() end) end",
        "while true do xpcall(error, function() while true do end end) end",
        "local s = ('x'):rep(5000000) while true do local t = s .. 'y' end",
        "local s = ('x'):rep(5000000) while true do pcall(string.upper, s) end",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct bt_sandbox_opts opts = {.load_instructions = 10000000};
        struct bt_sandbox *s = NULL;
        struct bt_error err = {0};
        cr_assert_eq(bt_sandbox_create(&opts, &s, &err), BT_OK);
        enum bt_code code = bt_sandbox_run(s, texts[i], strlen(texts[i]), "s.lua", &err);
        cr_expect_eq(code, BT_ERR_SCRIPT);
        cr_expect_not_null(strstr(err.msg, "stopped"), "%s: %s", texts[i], err.msg);
        /* The next call has a budget of its own. */
        cr_expect_eq(bt_sandbox_run(s, "return 1", 8, "s.lua", &err), BT_OK);
        bt_sandbox_destroy(s);
    }
}
