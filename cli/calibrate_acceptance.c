/* Acceptance of draft tokens, by kind of text. */
#include "cli/calibrate.h"
#include "cli/progress.h"
#include "engine/serve.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 8, LINE_BYTES = 1 << 20 };

struct prompts {
    struct bt_gen_request *requests; /* owned */
    int32_t *kind;                   /* owned: of each */
    int32_t n, cap;
    char kinds[BT_KINDS_MAX][BT_KIND_BYTES];
    int32_t n_kinds;
};

static void prompts_fini(struct prompts *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        free((void *)p->requests[i].prompt);
        free(p->requests[i].out);
    }
    free(p->requests);
    free(p->kind);
}

static enum bt_code kind_index(struct prompts *p, const char *kind, const char *where, int32_t *out,
                               struct bt_error *err)
{
    *out = 0;
    while (*out < p->n_kinds && strcmp(p->kinds[*out], kind) != 0) {
        (*out)++;
    }
    if (*out < p->n_kinds) {
        return BT_OK;
    }
    if (p->n_kinds == BT_KINDS_MAX || strlen(kind) >= BT_KIND_BYTES) {
        BT_FAIL(err, BT_ERR_LIMIT, p->n_kinds,
                "%s: kind \"%s\": at most %d kinds of at most %d bytes", where, kind, BT_KINDS_MAX,
                BT_KIND_BYTES - 1);
    }
    (void)snprintf(p->kinds[p->n_kinds++], BT_KIND_BYTES, "%s", kind);
    return BT_OK;
}

static enum bt_code prompts_add(struct prompts *p, struct bt_ids *ids, int32_t kind,
                                const struct bt_acceptance_opts *o, struct bt_error *err)
{
    if (p->n == p->cap) {
        int32_t cap = p->cap == 0 ? 64 : 2 * p->cap;
        struct bt_gen_request *r = realloc(p->requests, (size_t)cap * sizeof *r);
        p->requests = r != NULL ? r : p->requests;
        int32_t *k = realloc(p->kind, (size_t)cap * sizeof *k);
        p->kind = k != NULL ? k : p->kind;
        if (r == NULL || k == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, cap, "%s: no memory", o->prompts);
        }
        p->cap = cap;
    }
    int32_t *out = malloc((size_t)o->max_new_tokens * sizeof *out);
    if (out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, p->n, "%s: no memory", o->prompts);
    }
    int64_t most = o->max_prompt_tokens;
    p->kind[p->n] = kind;
    p->requests[p->n++] =
        (struct bt_gen_request){.prompt = ids->ids,
                                .n_prompt = (int32_t)(ids->n < most ? ids->n : most),
                                .max_new_tokens = o->max_new_tokens,
                                .ignore_eos = true,
                                .out = out};
    ids->ids = NULL; /* taken */
    return BT_OK;
}

static enum bt_code take_line(struct prompts *p, const char *text, const char *where,
                              const struct bt_acceptance_opts *o, struct bt_error *err)
{
    json_error_t why;
    json_t *doc = json_loads(text, 0, &why);
    const char *prompt = json_string_value(json_object_get(doc, "prompt"));
    const json_t *named = json_object_get(doc, "kind");
    const char *kind = named == NULL ? "text" : json_string_value(named);
    if (prompt == NULL || kind == NULL || kind[0] == '\0') {
        json_decref(doc);
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: expected {\"prompt\": TEXT, \"kind\": WORD} (kind may be left out)%s%s", where,
                doc == NULL ? ": " : "", doc == NULL ? why.text : "");
    }
    struct bt_ids ids = {0};
    int32_t index = 0;
    enum bt_code code = kind_index(p, kind, where, &index, err);
    if (code == BT_OK) {
        code = bt_engine_encode(o->engine, prompt, strlen(prompt), where, &ids, err);
    }
    if (code == BT_OK) {
        code = prompts_add(p, &ids, index, o, err);
    }
    bt_ids_fini(&ids);
    json_decref(doc);
    return code;
}

static enum bt_code read_prompts(struct prompts *p, const struct bt_acceptance_opts *o,
                                 struct bt_error *err)
{
    FILE *f = fopen(o->prompts, "r");
    char *line = malloc(LINE_BYTES);
    if (f == NULL || line == NULL) {
        int why = errno;
        free(line);
        if (f != NULL) {
            (void)fclose(f);
        }
        BT_FAIL(err, BT_ERR_IO, why, "%s: cannot read: %s", o->prompts, strerror(why));
    }
    enum bt_code code = BT_OK;
    int32_t most = o->max_prompts > 0 ? o->max_prompts : INT32_MAX;
    for (int32_t n = 1; code == BT_OK && p->n < most && fgets(line, LINE_BYTES, f) != NULL; n++) {
        char where[512];
        (void)snprintf(where, sizeof where, "%s:%d", o->prompts, n);
        if (strspn(line, " \t\r\n") < strlen(line)) {
            code = take_line(p, line, where, o, err);
        }
    }
    free(line);
    (void)fclose(f);
    if (code == BT_OK && p->n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: no prompt in it", o->prompts);
    }
    return code;
}

static bool on_step(void *ctx, const struct bt_sched_state *state, int64_t n_ended, int64_t now_ns)
{
    (void)state;
    (void)now_ns;
    struct bt_progress *progress = ctx;
    bt_progress_update(progress, (double)n_ended, (double)n_ended + SEQS);
    return true;
}

static enum bt_code serve(const struct bt_cli *cli, struct prompts *p,
                          const struct bt_acceptance_opts *o, struct bt_error *err)
{
    struct bt_gen_table table = {.requests = p->requests, .n = p->n};
    struct bt_executor_opts eo = bt_engine_executor_opts(o->engine, o->config);
    int32_t span = o->max_prompt_tokens + o->max_new_tokens + eo.spec_k + 1;
    eo.max_seqs = SEQS;
    eo.n_blocks = SEQS * (span / eo.block_tokens + 2);
    eo.max_model_len = o->max_prompt_tokens + o->max_new_tokens;
    eo.n_threads = o->n_threads;
    eo.requests = &table;
    struct bt_executor x = {0};
    const struct bt_backend *backend = o->engine->backend;
    BT_TRY(backend->create(&eo, &x, err));
    struct bt_progress progress;
    struct bt_serve_opts so = {.executor = &x,
                               .sched = bt_engine_sched_opts(o->engine, o->config),
                               .requests = &table,
                               .fast = true,
                               .on_step = on_step,
                               .ctx = &progress};
    so.sched.spec.off_above_batch = 0;
    so.sched.spec.k_adaptive = false;
    backend->fit_sched(&x, &so.sched);
    struct bt_serve_result result;
    bt_progress_start(&progress, "acceptance", NULL, cli->quiet);
    enum bt_code code = bt_serve_run(&so, &result, err);
    bt_progress_finish(&progress);
    x.ops->destroy(x.self);
    return code;
}

static void add_counts(struct bt_acceptance_row *row, const struct bt_spec_counts *c)
{
    row->n_prompts++;
    row->n_verifications += c->n_verifications;
    row->n_proposed += c->n_proposed;
    row->n_emitted += c->n_emitted;
    for (int32_t i = 0; i < BT_MAX_SPEC_K; i++) {
        row->positions[i].position = i + 1;
        row->positions[i].n_proposed += c->reached[i];
        row->positions[i].n_accepted += c->accepted[i];
        row->n = row->positions[i].n_proposed > 0 && i + 1 > row->n ? i + 1 : row->n;
    }
}

enum bt_code bt_calibrate_acceptance(const struct bt_cli *cli,
                                     const struct bt_acceptance_opts *opts,
                                     struct bt_acceptance_row rows[2 * BT_KINDS_MAX], int32_t *n,
                                     struct bt_error *err)
{
    static const float temperatures[] = {0, 1};
    struct prompts p = {0};
    *n = 0;
    enum bt_code code = read_prompts(&p, opts, err);
    for (int32_t t = 0; t < 2 && code == BT_OK; t++) {
        for (int32_t i = 0; i < p.n; i++) {
            p.requests[i].sampling = (struct bt_sampling){.temperature = temperatures[t],
                                                          .seed = opts->seed + (uint64_t)i};
        }
        code = serve(cli, &p, opts, err);
        for (int32_t k = 0; k < p.n_kinds && code == BT_OK; k++) {
            struct bt_acceptance_row *row = &rows[(*n)++];
            *row = (struct bt_acceptance_row){.temperature = temperatures[t]};
            (void)snprintf(row->kind, sizeof row->kind, "%s", p.kinds[k]);
            for (int32_t i = 0; i < p.n; i++) {
                if (p.kind[i] == k) {
                    add_counts(row, &p.requests[i].spec);
                }
            }
        }
    }
    prompts_fini(&p);
    return code;
}
