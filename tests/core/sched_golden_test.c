/* Plans as text, compared with tests/golden/sched. BT_UPDATE_GOLDEN=1 rewrites them.
 *
 * A line is a plan: its time and number, copies, then sequences as user@ctx+tokens (decodes before
 * the bar): kN draft tokens, dN draft catch-up, s first step of a residency, ! a token comes out.
 */
#include "tests/core/sched_rig.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static struct rig rig;

struct user_row {
    int32_t submit_ms, n_prompt, max_new, true_output, priority, n_shared;
};

struct golden {
    const char *name;
    void (*change)(struct bt_sched_opts *o);
    struct user_row users[6];
};

static void chunked(struct bt_sched_opts *o)
{
    o->max_batched_tokens = 32;
}

static void whole(struct bt_sched_opts *o)
{
    o->max_batched_tokens = 32;
    o->chunked_prefill = false;
}

static void static_batch(struct bt_sched_opts *o)
{
    o->batching = BT_BATCHING_STATIC;
    o->max_seqs = 2;
}

static void prefix(struct bt_sched_opts *o)
{
    o->prefix_cache = true;
}

static void recompute(struct bt_sched_opts *o)
{
    o->n_blocks = 9;
    o->prefix_cache = true;
}

static void swap(struct bt_sched_opts *o)
{
    o->n_blocks = 9;
    o->n_host_blocks = 16;
    o->preempt = BT_PREEMPT_SWAP;
}

static void look_ahead(struct bt_sched_opts *o)
{
    o->inflight_max = 2;
    o->n_blocks = 9;
}

static void priority(struct bt_sched_opts *o)
{
    o->order = BT_ORDER_PRIORITY;
    o->priority_preempts = true;
    o->max_seqs = 2;
}

static void window(struct bt_sched_opts *o)
{
    o->window_low_ns = 2000000;
    o->window_high_ns = 6000000;
}

static void speculation(struct bt_sched_opts *o)
{
    o->spec = (struct bt_spec_opts){.k = 3, .off_above_batch = 2, .has_draft_kv = true};
    o->inflight_max = 2;
}

static const struct golden CASES[] = {
    {"chunked", chunked, {{0, 50, 4, 4, 0, 0}, {0, 20, 6, 3, 0, 0}, {2, 40, 3, 3, 0, 0}}},
    {"whole",
     whole,
     {{0, 20, 4, 4, 0, 0}, {0, 10, 4, 4, 0, 0}, {1, 50, 3, 3, 0, 0}, {3, 8, 3, 3, 0, 0}}},
    {"static", static_batch, {{0, 10, 3, 3, 0, 0}, {0, 10, 6, 6, 0, 0}, {0, 10, 2, 2, 0, 0}}},
    {"prefix", prefix, {{0, 64, 3, 3, 0, 64}, {1, 64, 3, 3, 0, 64}, {1, 80, 3, 3, 0, 48}}},
    {"recompute", recompute, {{0, 46, 20, 20, 0, 0}, {0, 40, 30, 30, 0, 32}, {0, 30, 4, 4, 0, 0}}},
    {"swap", swap, {{0, 46, 20, 20, 0, 0}, {0, 40, 30, 30, 0, 0}, {0, 30, 4, 4, 0, 0}}},
    {"look_ahead", look_ahead, {{0, 46, 40, 19, 0, 0}, {0, 40, 60, 24, 0, 0}, {0, 30, 4, 4, 0, 0}}},
    {"priority", priority, {{0, 20, 9, 9, 3, 0}, {0, 20, 9, 9, 2, 0}, {3, 30, 3, 3, 0, 0}}},
    {"window",
     window,
     {{0, 10, 9, 9, 0, 0}, {1, 10, 3, 3, 0, 0}, {3, 10, 3, 3, 0, 0}, {3, 10, 3, 3, 0, 0}}},
    {"speculation", speculation, {{0, 20, 30, 22, 0, 0}, {2, 10, 9, 9, 0, 0}, {3, 10, 4, 4, 0, 0}}},
};

static char *run_case(const struct golden *g, size_t *size)
{
    struct bt_sched_opts o = {
        .max_seqs = 4,
        .max_batched_tokens = 128,
        .chunked_prefill = true,
        .max_model_len = 256,
        .n_blocks = 64,
        .block_tokens = 16,
        .inflight_max = 1,
        .max_requests = 16,
    };
    g->change(&o);
    rig_init(&rig, &o, 1);
    rig.check = true;
    rig.accept_percent = 70;
    char *text = NULL;
    rig.trace = open_memstream(&text, size);
    for (size_t i = 0; i < sizeof g->users / sizeof *g->users && g->users[i].n_prompt > 0; i++) {
        const struct user_row *u = &g->users[i];
        int32_t user =
            rig_add(&rig, u->submit_ms * 1000000LL, u->n_prompt, u->max_new, u->true_output);
        rig.users[user].spec.priority = u->priority;
        if (u->n_shared > 0) {
            rig_share(&rig, user, 3, u->n_shared, 16);
        }
    }
    cr_assert(rig_run(&rig, 10000));
    rig_check_ends(&rig);
    fclose(rig.trace);
    rig_fini(&rig);
    return text;
}

static void golden_path(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/tests/golden/sched/%s.txt", BT_TEST_SOURCE_DIR, name);
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return NULL;
    }
    static char text[1 << 16];
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

Test(core_sched_golden, plans_are_those_recorded)
{
    bool update = getenv("BT_UPDATE_GOLDEN") != NULL;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t size = 0;
        char *text = run_case(&CASES[i], &size);
        char path[512];
        golden_path(path, sizeof path, CASES[i].name);
        if (update) {
            FILE *f = fopen(path, "wb");
            cr_assert_not_null(f, "%s", path);
            fwrite(text, 1, size, f);
            fclose(f);
        }
        const char *want = read_all(path);
        cr_assert_not_null(want, "%s is missing", path);
        cr_expect_eq(strcmp(want, text), 0, "%s: plans differ; now:\n%s", path, text);
        free(text);
    }
}
