/* The contract of docs/SCENARIOS.md: which hook is called when, how often, and what it sees. A
 * scenario's Lua hooks serve whole simulations behind a spy that writes every call down. */
#include "scripts/host/scenario.h"
#include "tests/sim/harness.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { N_REQUESTS = 3000, N_REPLICAS = 2, AT_WAITING = 4, MAX_CALLS = 1 << 16 };

struct call {
    char kind; /* A arrival, R route, O overload, S speculation */
    uint64_t user;
    int64_t now_ns, arrival_ns;
    int32_t replica; /* the one asked about; of R: the answer */
    int32_t n_waiting, n_running;
    bool let_in; /* of A */
};

/* In front of the scenario's hooks. */
struct spy {
    struct bt_sim_hooks hooks; /* what the run sees */
    struct bt_sim_hooks *lua;
    struct call calls[MAX_CALLS];
    int32_t n;
};

static struct spy spy;

static struct call *add(char kind, const struct bt_req_spec *spec, int64_t now_ns)
{
    cr_assert_lt(spy.n, MAX_CALLS);
    struct call *c = &spy.calls[spy.n++];
    *c = (struct call){.kind = kind, .now_ns = now_ns, .user = UINT64_MAX};
    if (spec != NULL) {
        c->user = spec->user;
        c->arrival_ns = spec->arrival_ns;
    }
    return c;
}

static bool spy_arrival(void *ctx, struct bt_req_spec *spec, const struct bt_sched_state *states,
                        int32_t n, int64_t now_ns)
{
    (void)ctx;
    struct call *c = add('A', spec, now_ns);
    cr_assert_eq(n, N_REPLICAS);
    for (int32_t i = 0; i < n; i++) {
        cr_assert_eq(states[i].replica, i);
    }
    c->let_in = spy.lua->arrival(spy.lua->ctx, spec, states, n, now_ns);
    return c->let_in;
}

static int32_t spy_route(void *ctx, const struct bt_req_spec *spec,
                         const struct bt_sched_state *states, int32_t n, int64_t now_ns)
{
    (void)ctx;
    struct call *c = add('R', spec, now_ns);
    cr_assert_eq(n, N_REPLICAS);
    c->replica = spy.lua->route(spy.lua->ctx, spec, states, n, now_ns);
    return c->replica;
}

static int32_t spy_overload(void *ctx, const struct bt_req_spec *spec,
                            const struct bt_sched_state *state, int64_t now_ns)
{
    (void)ctx;
    struct call *c = add('O', spec, now_ns);
    c->replica = state->replica;
    c->n_waiting = state->n_waiting;
    return spy.lua->overload(spy.lua->ctx, spec, state, now_ns);
}

static bool spy_speculation(void *ctx, const struct bt_sched_state *state, int64_t now_ns)
{
    (void)ctx;
    struct call *c = add('S', NULL, now_ns);
    c->replica = state->replica;
    c->n_running = state->n_running;
    return spy.lua->speculate(spy.lua->ctx, state, now_ns);
}

/* Refuses every fourth request, routes by parity, cuts or refuses under load; each hook also fails
 * when what it sees is not what the contract says. */
static const char SCENARIO[] =
    "return { hooks = {\n"
    "  arrival = function(request, states)\n"
    "    assert(#states == 2 and states[1].replica == 1 and states[2].replica == 2)\n"
    "    assert(request.arrival_s == states[1].time_s and request.prompt_tokens > 0)\n"
    "    return request.id % 4 ~= 3 end,\n"
    "  route = function(request, states)\n"
    "    assert(#states == 2 and request.id % 4 ~= 3)\n"
    "    return request.id % 2 + 1 end,\n"
    "  overload = function(state, request)\n"
    "    assert(state.waiting > 4 and state.replica == request.id % 2 + 1)\n"
    "    if state.waiting > 12 then return false end\n"
    "    return 2 end,\n"
    "  speculation = function(state)\n"
    "    assert(state.replica == 1 or state.replica == 2)\n"
    "    return state.running < 6 end } }\n";

/* Serves N_REQUESTS behind the spy; asserts that no Lua hook has failed. */
static struct bt_sim_result *serve(int32_t at_waiting, int32_t spec_k)
{
    static struct bt_scenario scenario;
    struct bt_error err = {0};
    cr_assert_eq(bt_scenario_parse(SCENARIO, strlen(SCENARIO), "contract.lua", &scenario, &err),
                 BT_OK, "%s", err.msg);
    spy.n = 0;
    cr_assert_eq(bt_scenario_make_hooks(&scenario, &spy.lua, &err), BT_OK, "%s", err.msg);
    spy.hooks = (struct bt_sim_hooks){.arrival = spy_arrival,
                                      .route = spy_route,
                                      .overload = spy_overload,
                                      .speculate = spy_speculation};
    struct given_cost cost = {
        .step_ps = 20000000, .prefill_token_ps = 200000, .decode_ps = 1000000, .ctx_ps = 20};
    struct bt_deploy d = given_deploy(&cost, 16, 400, 8);
    d.config.degrade_at_waiting = at_waiting;
    d.sched.spec = (struct bt_spec_opts){.k = spec_k, .draft_cost_ratio = 0.1};
    d.config.spec.n_acceptance = 1;
    d.config.spec.acceptance[0] = 0.7;
    struct drawn_source s = {
        .seed = 5, .n = N_REQUESTS, .gap_ns = 18000, .prompt = 40, .output = 5, .output_range = 40};
    struct bt_sim_opts o = {.deploy = &d,
                            .replicas = N_REPLICAS,
                            .source = drawn_start(&s),
                            .seed = 4,
                            .hooks = &spy.hooks};
    struct bt_sim_result *r = run_checked(&o);
    cr_assert_not(spy.lua->failed, "%s", bt_scenario_hooks_error(spy.lua)->msg);
    bt_scenario_free_hooks(spy.lua);
    bt_scenario_fini(&scenario);
    return r;
}

static int32_t count(char kind)
{
    int32_t n = 0;
    for (int32_t i = 0; i < spy.n; i++) {
        n += spy.calls[i].kind == kind;
    }
    return n;
}

Test(hooks_contract, arrival_then_route_then_overload_once_a_request)
{
    struct bt_sim_result *r = serve(AT_WAITING, 0);
    uint64_t next = 0;
    int32_t n_overload = 0;
    for (int32_t i = 0; i < spy.n;) {
        const struct call *a = &spy.calls[i];
        cr_assert_eq(a->kind, 'A', "call %d is %c", i, a->kind);
        cr_assert_eq(a->user, next++, "in order of arrival");
        cr_assert_eq(a->now_ns, a->arrival_ns, "at the arrival itself");
        cr_assert_eq(a->let_in, a->user % 4 != 3);
        i++;
        if (!a->let_in) {
            continue;
        }
        const struct call *route = &spy.calls[i++];
        cr_assert(route->kind == 'R' && route->user == a->user && route->now_ns == a->now_ns);
        if (i < spy.n && spy.calls[i].kind == 'O') {
            const struct call *over = &spy.calls[i++];
            cr_assert(over->user == a->user && over->now_ns == a->now_ns);
            cr_assert_eq(over->replica, route->replica,
                         "the replica chosen is the one asked about");
            cr_assert_gt(over->n_waiting, AT_WAITING);
            n_overload++;
        }
    }
    cr_expect_eq(count('A'), N_REQUESTS);
    cr_expect_eq(count('R'), N_REQUESTS * 3 / 4);
    cr_expect_eq(count('S'), 0, "without speculation it is not asked about");
    cr_expect_gt(n_overload, 100);
    cr_expect_gt(r->summary.degraded, 0);
    cr_expect_gt(r->summary.rejected, N_REQUESTS / 4);
}

Test(hooks_contract, overload_is_asked_only_with_a_threshold)
{
    (void)serve(0, 0);
    cr_expect_eq(count('O'), 0);
    cr_expect_eq(count('A'), N_REQUESTS);
}

Test(hooks_contract, speculation_is_asked_when_the_running_count_has_changed)
{
    struct bt_sim_result *r = serve(AT_WAITING, 3);
    int32_t last[N_REPLICAS] = {-1, -1};
    int64_t seen_ns = 0;
    for (int32_t i = 0; i < spy.n; i++) {
        const struct call *c = &spy.calls[i];
        cr_assert_geq(c->now_ns, seen_ns, "time does not go back");
        seen_ns = c->now_ns;
        if (c->kind == 'S') {
            cr_assert_neq(c->n_running, last[c->replica], "call %d", i);
            last[c->replica] = c->n_running;
        }
    }
    cr_expect_gt(count('S'), 100);
    cr_expect_lt(count('S'), r->steps, "fewer than one a step, let alone a token");
    cr_expect_eq(count('A'), N_REQUESTS);
    cr_expect_gt(r->summary.spec_verifications, 0);
}
