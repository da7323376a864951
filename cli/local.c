#include "cli/local.h"

#include "cli/engine_hash.h"
#include "db/store.h"
#include "engine/cpu/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char *bt_local_engine_hash(bool cuda)
{
    return cuda ? BT_ENGINE_CUDA_SHA256 : BT_ENGINE_CPU_SHA256;
}

const struct bt_gpu *bt_local_host(const struct bt_local *l)
{
    for (int32_t i = 0; i < l->n_gpus; i++) {
        if (strcmp(l->gpus[i].name, "host") == 0) {
            return &l->gpus[i];
        }
    }
    return NULL;
}

struct bt_cost_sample bt_local_sample(const struct bt_op_sample *s, enum bt_op op)
{
    struct bt_cost_sample c = {
        .op = op,
        .time_ns = (int64_t)(s->median_ns + 0.5),
        .spread_ns = (int64_t)(s->spread_ns + 0.5),
        .kernel = "",
        .gpu = "host",
        .stack = "berth",
        .version = "",
        .source = "",
        .licence = "",
    };
    if (s->weights != BT_WEIGHT_DEFAULT) {
        c.format.weights = bt_num_from_weight(s->weights);
    }
    if (s->activations != BT_ACT_DEFAULT) {
        c.format.activations = bt_num_from_act(s->activations);
    }
    if (s->kv != BT_KV_DEFAULT) {
        c.format.kv = bt_num_from_kv(s->kv);
    }
    c.shape = (struct bt_op_shape){
        .m = s->m_tokens,
        .n = s->n_out,
        .k = s->k_in,
        .heads = s->n_heads,
        .kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
    };
    if (op == BT_OP_ATTN_DECODE) {
        c.shape.m = 0;
        c.shape.batch = s->n_seqs;
        c.shape.ctx = s->context_tokens;
    } else if (op == BT_OP_ATTN_PREFILL) {
        c.shape.m = 0;
        c.shape.batch = s->n_seqs;
        c.shape.q_len = s->m_tokens / (s->n_seqs > 0 ? s->n_seqs : 1);
        c.shape.prefix = s->context_tokens - c.shape.q_len;
    }
    return c;
}

/* One session's samples; those of operations that this program does not know are left out. */
static enum bt_code add_session(struct bt_local *l, const struct bt_calibration *c,
                                struct bt_error *err)
{
    for (int64_t i = 0; i < c->n_ops; i++) {
        enum bt_op op;
        struct bt_error unknown = {0};
        if (bt_op_parse(c->ops[i].op, "op", &op, &unknown) != BT_OK) {
            continue;
        }
        struct bt_cost_sample s = bt_local_sample(&c->ops[i], op);
        if (s.time_ns > 0) {
            BT_TRY(bt_sample_set_add(&l->host.samples, &s, err));
        }
    }
    return BT_OK;
}

/* "AMD EPYC" of "AMD EPYC, 2 threads". */
static size_t processor_length(const char *text)
{
    const char *comma = strrchr(text, ',');
    return comma == NULL ? strlen(text) : (size_t)(comma - text);
}

/* What the samples are worth for the engine that is built here, on the machine that this is. */
static void judge(struct bt_local *l, const struct bt_gpu *host, const char *engine)
{
    char here[BT_HOST_TEXT_BYTES];
    bt_host_describe(1, here);
    size_t n = processor_length(host->product);
    l->host.level = BT_TRUST_MEASURED;
    (void)snprintf(l->host.text, sizeof l->host.text, "this machine");
    if (strcmp(engine, BT_ENGINE_CPU_SHA256) != 0) {
        l->host.level = BT_TRUST_TRANSFERRED;
        (void)snprintf(l->host.text, sizeof l->host.text, "this machine with other engine sources");
    }
    if (n != processor_length(here) || strncmp(host->product, here, n) != 0) {
        l->host.level = BT_TRUST_TRANSFERRED;
        (void)snprintf(l->host.text, sizeof l->host.text, "another machine: %.*s", (int)n,
                       host->product);
    }
}

/* Sessions of the number of threads that the machine's row was written with; the newest engine's
 * word on what they are worth. */
static enum bt_code read_host(struct bt_local *l, struct bt_store *store, struct bt_error *err)
{
    const struct bt_gpu *host = bt_local_host(l);
    if (host == NULL) {
        return BT_OK;
    }
    struct bt_calibration *sessions = NULL;
    int32_t n = 0;
    BT_TRY(bt_store_load_calibrations(store, "host", "berth", &l->arena, &sessions, &n, err));
    const char *engine = "";
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(sessions[i].driver, host->product) == 0) {
            BT_TRY(add_session(l, &sessions[i], err));
            engine = sessions[i].engine_sha256;
        }
    }
    judge(l, host, engine);
    return BT_OK;
}

void bt_local_speaker(const struct bt_spec_config *spec, const char *draft, char out[BT_NAME_BYTES])
{
    switch (spec->kind) {
    case BT_SPEC_DRAFT:
        (void)snprintf(out, BT_NAME_BYTES, "%s", draft);
        return;
    case BT_SPEC_SELF:
        (void)snprintf(out, BT_NAME_BYTES, "self=%d", spec->self_layers);
        return;
    case BT_SPEC_MEDUSA:
        (void)snprintf(out, BT_NAME_BYTES, "medusa");
        return;
    case BT_SPEC_NONE:
        break;
    }
    out[0] = '\0';
}

static bool is_meant(const struct bt_acceptance *a, const char *target, const char *speaker,
                     const struct bt_spec_config *spec)
{
    return strcmp(a->target, target) == 0 && strcmp(a->draft, speaker) == 0 &&
           a->temperature == spec->temperature &&
           (spec->text[0] == '\0' || strcmp(a->text_kind, spec->text) == 0);
}

bool bt_local_acceptance(const struct bt_local *l, const char *target, const char *draft,
                         struct bt_spec_config *spec, char *source, size_t source_bytes)
{
    char speaker[BT_NAME_BYTES];
    int64_t proposed[BT_MAX_SPEC_K] = {0}, accepted[BT_MAX_SPEC_K] = {0};
    bt_local_speaker(spec, draft, speaker);
    for (int32_t i = 0; i < l->n_acceptance; i++) {
        const struct bt_acceptance *a = &l->acceptance[i];
        if (is_meant(a, target, speaker, spec) && a->sample.position <= BT_MAX_SPEC_K) {
            proposed[a->sample.position - 1] += a->sample.n_proposed;
            accepted[a->sample.position - 1] += a->sample.n_accepted;
        }
    }
    int32_t n = 0;
    for (; n < BT_MAX_SPEC_K && proposed[n] > 0; n++) {
        spec->acceptance[n] = (double)accepted[n] / (double)proposed[n];
    }
    spec->n_acceptance = n;
    if (n > 0) {
        (void)snprintf(source, source_bytes,
                       "measured here: %s with %s, temperature %g, %s text, %lld tokens judged",
                       target, speaker, spec->temperature,
                       spec->text[0] != '\0' ? spec->text : "any", (long long)proposed[0]);
    }
    return n > 0;
}

static enum bt_code read_store(struct bt_local *l, const char *path, struct bt_error *err)
{
    struct bt_store *store = NULL;
    struct bt_store_opts opts = {.path = path, .read_only = true};
    if (bt_store_open(&opts, &store, err) != BT_OK) {
        *err = (struct bt_error){0};
        opts.read_only = false; /* an older one is brought up to this program's version */
        BT_TRY(bt_store_open(&opts, &store, err));
    }
    enum bt_code code = bt_store_load_gpus(store, &l->arena, &l->gpus, &l->n_gpus, err);
    if (code == BT_OK) {
        code = read_host(l, store, err);
    }
    if (code == BT_OK) {
        code = bt_store_load_imports(store, false, &l->arena, &l->imports, &l->n_imports, err);
    }
    if (code == BT_OK) {
        code = bt_store_load_imports(store, true, &l->arena, &l->skews, &l->n_skews, err);
    }
    if (code == BT_OK) {
        code = bt_store_load_acceptance(store, &l->arena, &l->acceptance, &l->n_acceptance, err);
    }
    bt_store_close(store);
    return code;
}

void bt_local_read(struct bt_local *l, const struct bt_cli *cli)
{
    *l = (struct bt_local){0};
    bt_arena_init(&l->arena, 0);
    bt_host_calibration_init(&l->host);
    char path[BT_STORE_PATH_BYTES];
    struct bt_error err = {0};
    struct stat st;
    if (cli->db_path != NULL) {
        (void)snprintf(path, sizeof path, "%s", cli->db_path);
    } else if (bt_store_default_path(path, &err) != BT_OK) {
        return; /* nowhere to look */
    }
    if (stat(path, &st) != 0) {
        return;
    }
    if (read_store(l, path, &err) != BT_OK) {
        bt_cli_note(cli, "the store is not read: %s", err.msg);
        l->gpus = NULL;
        l->n_gpus = 0;
        l->n_imports = 0;
        l->n_skews = 0;
        l->n_acceptance = 0;
    }
}

void bt_local_fini(struct bt_local *l)
{
    bt_host_calibration_fini(&l->host);
    bt_arena_fini(&l->arena);
    *l = (struct bt_local){0};
}
