#include "cli/eval_stress.h"

#include "engine/core/rng.h"

#include <math.h>
#include <stdlib.h>

enum { LONGEST = 2048, CHUNK = 32 };

struct stress {
    const struct bt_engine *engine;
    struct bt_session *session;
    int32_t n_max;    /* tokens of the longest sequence */
    int32_t large_id; /* the row of the embedding with the greatest norm */
    int32_t small_id; /* .. and with the least */
    int32_t *ids;     /* [n_max] */
    float *logits;    /* [CHUNK, vocab] */
    bool finite;      /* all so far */
};

/* Fills s->ids and returns how many. */
typedef int32_t (*fill_fn)(struct stress *s);

static int32_t vocab_of(const struct stress *s)
{
    return s->engine->model.config.arch.vocab;
}

static int32_t repeat(struct stress *s, int32_t id)
{
    for (int32_t i = 0; i < s->n_max; i++) {
        s->ids[i] = id;
    }
    return s->n_max;
}

static int32_t one_token(struct stress *s)
{
    s->ids[0] = vocab_of(s) - 1;
    return 1;
}

static int32_t first_id(struct stress *s)
{
    return repeat(s, 0);
}

static int32_t last_id(struct stress *s)
{
    return repeat(s, vocab_of(s) - 1);
}

static int32_t largest(struct stress *s)
{
    return repeat(s, s->large_id);
}

static int32_t smallest(struct stress *s)
{
    return repeat(s, s->small_id);
}

static int32_t in_turns(struct stress *s)
{
    for (int32_t i = 0; i < s->n_max; i++) {
        s->ids[i] = i % 2 == 0 ? s->large_id : s->small_id;
    }
    return s->n_max;
}

/* One large token, then small ones only: what a static scale found on usual text does not cover. */
static int32_t outlier(struct stress *s)
{
    (void)repeat(s, s->small_id);
    s->ids[0] = s->large_id;
    return s->n_max;
}

static int32_t random_ids(struct stress *s)
{
    struct bt_rng rng;
    bt_rng_init(&rng, 1, "stress", 0);
    for (int32_t i = 0; i < s->n_max; i++) {
        s->ids[i] = (int32_t)bt_rng_below(&rng, (uint64_t)vocab_of(s));
    }
    return s->n_max;
}

static const struct {
    const char *name;
    fill_fn fill;
} INPUTS[] = {
    {"one token", one_token},
    {"first id only", first_id},
    {"last id only", last_id},
    {"largest embedding only", largest},
    {"smallest embedding only", smallest},
    {"largest and smallest in turns", in_turns},
    {"one largest, then smallest", outlier},
    {"random ids", random_ids},
};

static void find_extremes(struct stress *s, float *row)
{
    const struct bt_model *m = &s->engine->model;
    double most = -1.0;
    double least = INFINITY;
    for (int32_t id = 0; id < vocab_of(s); id++) {
        double sum = 0.0;
        bt_linear_row_f32(&m->embed, id, row);
        for (int32_t i = 0; i < m->config.arch.hidden; i++) {
            sum += (double)row[i] * (double)row[i];
        }
        if (sum > most) {
            most = sum;
            s->large_id = id;
        }
        if (sum < least) {
            least = sum;
            s->small_id = id;
        }
    }
}

/* Runs one input; *worst is the greatest |logit|, and finite tells whether all were numbers. */
static enum bt_code run_input(struct stress *s, int32_t n, double *worst, bool *finite,
                              struct bt_error *err)
{
    *worst = 0.0;
    *finite = true;
    for (int32_t i = 0; i < n; i += CHUNK) {
        int32_t rows = n - i < CHUNK ? n - i : CHUNK;
        BT_TRY(s->engine->backend->session_run(s->session, s->ids + i, rows, i, 0, s->logits, err));
        for (int64_t j = 0; j < (int64_t)rows * vocab_of(s); j++) {
            double x = fabs((double)s->logits[j]);
            *finite = *finite && isfinite(x);
            *worst = x > *worst ? x : *worst;
        }
    }
    return BT_OK;
}

static enum bt_code run_all(struct stress *s, json_t *rows, struct bt_error *err)
{
    for (size_t i = 0; i < sizeof INPUTS / sizeof *INPUTS; i++) {
        double worst;
        bool finite;
        int32_t n = INPUTS[i].fill(s);
        BT_TRY(run_input(s, n, &worst, &finite, err));
        json_t *row = bt_out_object();
        bt_out_set(row, "input", bt_out_text(INPUTS[i].name));
        bt_out_set(row, "tokens", bt_out_int(n));
        bt_out_set(row, "max_abs_logit", bt_out_real(worst));
        bt_out_set(row, "finite", json_boolean(finite));
        bt_out_append(rows, row);
        s->finite = s->finite && finite;
    }
    return BT_OK;
}

static enum bt_code stress_init(struct stress *s, int32_t n_threads, struct bt_error *err)
{
    const struct bt_arch *a = &s->engine->model.config.arch;
    s->n_max = a->max_position < LONGEST ? a->max_position : LONGEST;
    struct bt_session_opts so = {
        .model = &s->engine->model,
        .compute = s->engine->compute,
        .kv = s->engine->kv,
        .max_ctx = s->n_max,
        .n_threads = n_threads,
    };
    BT_TRY(s->engine->backend->session_create(&so, &s->session, err));
    s->ids = calloc((size_t)s->n_max, sizeof *s->ids);
    s->logits = calloc((size_t)CHUNK * (size_t)a->vocab, sizeof *s->logits);
    float *row = calloc((size_t)a->hidden, sizeof *row);
    if (s->ids == NULL || s->logits == NULL || row == NULL) {
        free(row);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "stress: no memory");
    }
    find_extremes(s, row);
    free(row);
    return BT_OK;
}

enum bt_code bt_eval_stress(struct bt_cli *cli, const struct bt_engine *e, struct bt_error *err)
{
    struct stress s = {.engine = e, .finite = true};
    json_t *rows = bt_out_list();
    enum bt_code code = stress_init(&s, (int32_t)bt_args_int(&cli->args, "jobs", 0), err);
    if (code == BT_OK) {
        code = run_all(&s, rows, err);
    }
    json_t *doc = bt_out_object();
    bt_out_set(doc, "finite", json_boolean(s.finite));
    bt_out_set(doc, "rows", rows);
    if (code == BT_OK) {
        cli->answer_is_no = !s.finite;
        code = bt_cli_write(cli, doc, NULL, err);
    }
    json_decref(doc);
    free(s.ids);
    free(s.logits);
    e->backend->session_destroy(s.session);
    return code;
}
