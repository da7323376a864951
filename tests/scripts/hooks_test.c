#include "scripts/host/scenario.h"

#include <criterion/criterion.h>

#include <string.h>

/* A scenario with the given hooks table; asserts that it loads. */
static struct bt_sim_hooks *make(const char *hooks, struct bt_scenario *s)
{
    char text[2048];
    snprintf(text, sizeof text, "local calls = 0\nreturn { hooks = %s }", hooks);
    struct bt_error err = {0};
    cr_assert_eq(bt_scenario_parse(text, strlen(text), "h.lua", s, &err), BT_OK, "%s", err.msg);
    struct bt_sim_hooks *h = NULL;
    cr_assert_eq(bt_scenario_make_hooks(s, &h, &err), BT_OK, "%s", err.msg);
    return h;
}

static const struct bt_req_spec REQUEST = {
    .user = 3, .n_prompt = 100, .max_new_tokens = 50, .priority = 2};
static const struct bt_sched_state STATES[2] = {
    {.n_waiting = 7, .n_running = 4, .kv_blocks_total = 10, .kv_blocks_used = 5},
    {.n_waiting = 1, .n_running = 2, .kv_blocks_total = 10, .kv_blocks_used = 1},
};

Test(hooks, absent_hooks_cost_nothing)
{
    struct bt_scenario s;
    struct bt_sim_hooks *h = make("{}", &s);
    cr_expect_null(h);
    bt_scenario_fini(&s);
}

Test(hooks, each_sees_the_state_and_its_result_counts)
{
    struct bt_scenario s;
    struct bt_sim_hooks *h = make(
        "{ arrival = function(request, states)\n"
        "    if request.prompt_tokens > 1000 then return false end\n"
        "    return { priority = #states, max_new_tokens = 20 } end,\n"
        "  overload = function(state, request)\n"
        "    if state.waiting > 5 and state.kv_used == 0.5 then return request.id * 10 end end,\n"
        "  route = function(request, states)\n"
        "    local best = 1\n"
        "    for i, st in ipairs(states) do\n"
        "      if st.waiting < states[best].waiting then best = i end end\n"
        "    return best end,\n"
        "  speculation = function(state) return state.running < 3 end }",
        &s);
    struct bt_req_spec r = REQUEST;
    cr_expect(h->arrival(h->ctx, &r, STATES, 2, 0));
    cr_expect_eq(r.priority, 2);
    cr_expect_eq(r.max_new_tokens, 20);
    r.n_prompt = 2000;
    cr_expect_not(h->arrival(h->ctx, &r, STATES, 2, 0));
    cr_expect_eq(h->overload(h->ctx, &REQUEST, &STATES[0], 0), 30);
    cr_expect_eq(h->overload(h->ctx, &REQUEST, &STATES[1], 0), -1);
    cr_expect_eq(h->route(h->ctx, &REQUEST, STATES, 2, 0), 1);
    cr_expect_not(h->speculate(h->ctx, &STATES[0], 0));
    cr_expect(h->speculate(h->ctx, &STATES[1], 0));
    cr_expect_not(h->failed);
    bt_scenario_free_hooks(h);
    bt_scenario_fini(&s);
}

Test(hooks, every_simulation_starts_afresh)
{
    struct bt_scenario s;
    struct bt_sim_hooks *a =
        make("{ overload = function() calls = calls + 1 return calls end }", &s);
    cr_expect_eq(a->overload(a->ctx, &REQUEST, STATES, 0), 1);
    cr_expect_eq(a->overload(a->ctx, &REQUEST, STATES, 0), 2);
    struct bt_sim_hooks *b = NULL;
    cr_assert_eq(bt_scenario_make_hooks(&s, &b, NULL), BT_OK);
    cr_expect_eq(b->overload(b->ctx, &REQUEST, STATES, 0), 1);
    bt_scenario_free_hooks(a);
    bt_scenario_free_hooks(b);
    bt_scenario_fini(&s);
}

Test(hooks, failures_stop_the_run_with_a_message)
{
    static const struct {
        const char *hooks, *message;
    } rows[] = {
        {"{ overload = function() while true do end end }",
         "hooks.overload: h.lua:2: stopped after 1000000 instructions: an endless loop?"},
        {"{ overload = function() return os.time() end }",
         "hooks.overload: h.lua:2: \"os\" is not defined (scenarios have no io, os, debug, load, "
         "print, and no globals of their own)"},
        {"{ overload = function() return {} end }",
         "h.lua: hooks.overload: expected nil, false (refuse), or the most new tokens (1..) as its "
         "result, got a table"},
        {"{ overload = function() error('no') end }", "hooks.overload: h.lua:2: no"},
        {"{ overload = function() error({}) end }",
         "h.lua: hooks.overload: an error that is a table, not a text"},
        {"{ overload = function(s) pcall(function() while true do end end) while true do end end }",
         "hooks.overload: h.lua:2: stopped after 1000000 instructions: an endless loop?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_scenario s;
        struct bt_sim_hooks *h = make(rows[i].hooks, &s);
        cr_expect_eq(h->overload(h->ctx, &REQUEST, STATES, 0), -1);
        cr_expect(h->failed);
        cr_expect_str_eq(bt_scenario_hooks_error(h)->msg, rows[i].message);
        /* A failed hook is not called again. */
        cr_expect_eq(h->overload(h->ctx, &REQUEST, STATES, 0), -1);
        bt_scenario_free_hooks(h);
        bt_scenario_fini(&s);
    }
}
