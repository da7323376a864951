#include "engine/core/rng.h"
#include "engine/core/spec.h"
#include "tests/core/sched_rig.h"

#include <criterion/criterion.h>

#include <math.h>

Test(core_spec, switches_with_hysteresis)
{
    struct bt_spec c;
    bt_spec_init(&c, &(struct bt_spec_opts){.k = 4, .off_above_batch = 8});
    cr_expect_eq(bt_spec_decide(&c, 8), 4);
    cr_expect_eq(bt_spec_decide(&c, 9), 0);
    cr_expect_eq(bt_spec_decide(&c, 8), 0);
    cr_expect_eq(bt_spec_decide(&c, 7), 0);
    cr_expect_eq(bt_spec_decide(&c, 6), 4); /* 8 * 3/4 */
    cr_expect_eq(bt_spec_decide(&c, 8), 4);
    c.allowed = false;
    cr_expect_eq(bt_spec_decide(&c, 1), 0);
    bt_spec_init(&c, &(struct bt_spec_opts){.k = 2, .off_above_batch = 8, .on_below_batch = 3});
    cr_expect_eq(bt_spec_decide(&c, 100), 0);
    cr_expect_eq(bt_spec_decide(&c, 4), 0);
    cr_expect_eq(bt_spec_decide(&c, 3), 2);
    bt_spec_init(&c, &(struct bt_spec_opts){.k = 2});
    cr_expect_eq(bt_spec_decide(&c, 60000), 2);
    bt_spec_init(&c, &(struct bt_spec_opts){.off_above_batch = 8});
    cr_expect_eq(bt_spec_decide(&c, 1), 0);
}

/* Best K by brute force over (1 - a^(K+1)) / (1 - a) / (1 + K c), the closed form for constant a.
 */
static int32_t best_k(double a, double c, int32_t k_max)
{
    int32_t best = 1;
    double best_gain = 0;
    for (int32_t k = 1; k <= k_max; k++) {
        double gain = (1 - pow(a, k + 1)) / (1 - a) / (1 + k * c);
        if (gain > best_gain * (1 + 1e-12)) {
            best_gain = gain;
            best = k;
        }
    }
    return best;
}

Test(core_spec, best_k_is_the_closed_form_for_constant_acceptance)
{
    for (int32_t a = 1; a <= 19; a++) {
        for (int32_t c = 1; c <= 20; c++) {
            struct bt_spec s;
            bt_spec_init(&s, &(struct bt_spec_opts){.k = 8});
            for (int32_t i = 0; i < 8; i++) {
                s.reached[i] = 1000;
                s.accepted[i] = a * 50;
            }
            cr_expect_eq(bt_spec_best_k(&s, 8, c * 0.03), best_k(a * 0.05, c * 0.03, 8),
                         "a %g c %g", a * 0.05, c * 0.03);
        }
    }
}

Test(core_spec, adaptive_k_finds_the_best_for_what_it_observes)
{
    static const double rates[] = {0.3, 0.6, 0.75, 0.9};
    for (size_t j = 0; j < sizeof rates / sizeof *rates; j++) {
        struct bt_spec s;
        bt_spec_init(&s,
                     &(struct bt_spec_opts){.k = 8, .k_adaptive = true, .draft_cost_ratio = 0.1});
        struct bt_rng r;
        bt_rng_init(&r, 7, "acceptance", j);
        double k_sum = 0;
        for (int32_t i = 0; i < 20000; i++) {
            int32_t n = 0;
            while (n < s.k && bt_rng_uniform(&r) < rates[j]) {
                n++;
            }
            bt_spec_observe(&s, s.k, n);
            cr_assert(s.k >= 1 && s.k <= 8);
            k_sum += i >= 10000 ? s.k : 0;
        }
        double want = best_k(rates[j], 0.1, 8);
        cr_expect(fabs(k_sum / 10000 - want) < 0.6, "rate %g: K %g, best %g", rates[j],
                  k_sum / 10000, want);
        cr_expect(fabs(bt_spec_conditional(&s, 0) - rates[j]) < 0.08);
    }
}

/* Acceptance that falls with the position is seen as such, and K stops before it. */
Test(core_spec, adaptive_k_sees_acceptance_fall_with_position)
{
    struct bt_spec s;
    bt_spec_init(&s, &(struct bt_spec_opts){.k = 6, .k_adaptive = true, .draft_cost_ratio = 0.05});
    struct bt_rng r;
    bt_rng_init(&r, 8, "acceptance", 0);
    for (int32_t i = 0; i < 20000; i++) {
        int32_t n = 0;
        while (n < s.k && bt_rng_uniform(&r) < (n < 2 ? 0.95 : 0.02)) {
            n++;
        }
        bt_spec_observe(&s, s.k, n);
    }
    cr_expect_eq(s.k, 2);
}

static struct rig rig;

static struct bt_sched_opts base_opts(void)
{
    return (struct bt_sched_opts){
        .max_seqs = 8,
        .max_batched_tokens = 64,
        .chunked_prefill = true,
        .max_model_len = 256,
        .n_blocks = 64,
        .block_tokens = 16,
        .inflight_max = 2,
        .max_requests = 64,
        .spec = {.k = 3, .has_draft_kv = true},
    };
}

static const struct bt_step_plan *plan(void)
{
    const struct bt_step_plan *p;
    int64_t wake_ns;
    rig_plan(&rig, &p, &wake_ns);
    return p;
}

static void start(const struct bt_sched_opts *o)
{
    rig_init(&rig, o, 1);
    rig.check = true;
}

Test(core_spec, verification_moves_by_what_was_accepted)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    rig_add(&rig, 0, 10, 11, 11);
    rig_submit(&rig, 0);
    const struct bt_step_plan *p = plan();
    cr_expect_not(p->speculative);
    cr_expect_eq(p->seqs[0].draft_catchup, 10); /* the draft reads the prompt too */
    cr_expect_null(plan());                     /* no look-ahead while speculating */
    rig_complete(&rig);
    p = plan();
    cr_expect(p->speculative);
    cr_expect_eq(p->seqs[0].k_spec, 3);
    cr_expect_eq(p->seqs[0].n_tokens, 4);
    cr_expect_eq(p->seqs[0].draft_catchup, 0);
    cr_expect_null(plan());
    rig_complete(&rig); /* all accepted: four tokens, and the draft lacks the last one's KV */
    p = plan();
    cr_expect_eq(p->seqs[0].ctx, 14);
    cr_expect_eq(p->seqs[0].n_generated, 5);
    cr_expect_eq(p->seqs[0].draft_catchup, 1);
    rig_complete(&rig);
    p = plan();
    cr_expect_eq(p->seqs[0].n_generated, 9);
    cr_expect_eq(p->seqs[0].k_spec, 1); /* two tokens are left: one draft, one bonus */
    rig_complete(&rig);
    cr_expect_eq(rig.users[0].record.n_output, 11);
    static struct bt_summary sum;
    bt_metrics_finish(rig.metrics, rig.now_ns, 0, 0, &sum);
    cr_expect_eq(sum.spec_proposed, 7);
    cr_expect_eq(sum.spec_accepted, 7);
    cr_expect_float_eq(sum.accepted_len, 10.0 / 3.0, 1e-12);
    rig_fini(&rig);
}

Test(core_spec, off_phase_is_caught_up)
{
    struct bt_sched_opts o = base_opts();
    o.spec.off_above_batch = 1;
    o.spec.on_below_batch = 1;
    start(&o);
    rig_add(&rig, 0, 10, 40, 40);
    rig_add(&rig, 0, 10, 6, 6);
    rig_submit(&rig, 0);
    rig_submit(&rig, 1);
    int32_t most = 0;
    for (;;) {
        const struct bt_step_plan *p = plan();
        if (p == NULL && rig.n_flight == 0) {
            break;
        }
        for (int32_t i = 0; p != NULL && i < p->n_seqs && p->speculative; i++) {
            most = p->seqs[i].draft_catchup > most ? p->seqs[i].draft_catchup : most;
        }
        if (rig.n_flight > 0) {
            rig_complete(&rig);
        }
    }
    cr_expect_geq(most, 5); /* tokens of the time when two decoded */
    rig_check_ends(&rig);
    rig_fini(&rig);
}

Test(core_spec, speculation_never_preempts_and_never_starves_prompts)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 10;
    o.max_batched_tokens = 8;
    o.spec.k = 7;
    start(&o);
    rig_add(&rig, 0, 16, 60, 60);
    rig_add(&rig, 0, 16, 60, 60);
    rig_submit(&rig, 0);
    rig_submit(&rig, 1);
    for (int32_t i = 0; i < 5; i++) {
        plan();
        rig_complete(&rig);
    }
    int32_t waiting = rig_add(&rig, rig.now_ns, 30, 4, 4);
    rig_submit(&rig, waiting);
    const struct bt_step_plan *p = plan();
    cr_expect_geq(p->n_prefill_tokens, 3); /* half of what two decodes leave of 8 */
    rig_complete(&rig);
    cr_assert(rig_run(&rig, 1000));
    struct bt_sched_state st;
    bt_sched_get_state(rig.sched, &st);
    cr_expect_eq(st.n_preempts, 0);
    rig_fini(&rig);
}

Test(core_spec, a_hook_may_forbid_it)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    rig_add(&rig, 0, 10, 20, 20);
    rig_submit(&rig, 0);
    bt_sched_allow_spec(rig.sched, false);
    for (int32_t i = 0; i < 3; i++) {
        cr_expect_not(plan()->speculative);
        rig_complete(&rig);
    }
    bt_sched_allow_spec(rig.sched, true);
    const struct bt_step_plan *p = plan();
    cr_expect(p->speculative);
    cr_expect_eq(p->seqs[0].draft_catchup, p->seqs[0].ctx);
    rig_fini(&rig);
}
