/* The real engine as a configuration asks for it: checkpoints loaded, tokenizer at hand, options of
 * executor and scheduler filled in.
 *
 * On the CPU the arithmetic is float32 unless --activations says otherwise, and so is the KV cache
 * unless --kv does: the reference's own numbers. On a GPU both are the checkpoint's 16-bit type
 * unless they say otherwise. Weights are the checkpoint's unless --weights rounds them while
 * loading.
 *
 * Ownership: the struct owns what it loaded. Threading: the main thread.
 */
#ifndef BT_CLI_ENGINE_H
#define BT_CLI_ENGINE_H

#include "cli/command.h"
#include "db/catalog.h"
#include "engine/backend.h"
#include "engine/model/model.h"
#include "engine/model/tokenizer.h"
#include "sim/config.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of commands that compute here and nothing else: where (bt_backend_of_args reads it), and
 * on how many threads. */
#define BT_ENGINE_OPT_EXECUTOR                                                                     \
    {                                                                                              \
        .name = "executor", .kind = BT_OPT_ENUM, .value = "WHERE", .default_text = "cpu",          \
        .allowed = "cpu|cuda", .help = "what computes"                                             \
    }
#define BT_ENGINE_OPT_JOBS                                                                         \
    {                                                                                              \
        .name = "jobs", .kind = BT_OPT_INT, .value = "N", .default_text = "<cores>", .min = 1,     \
        .max = 1024, .help = "threads; the answer does not depend on it"                           \
    }

struct bt_engine_opts {
    const struct bt_config *config;
    const struct bt_backend *backend; /* what will run it */
    /* Not NULL: a model that is no folder is one of the catalog, with random weights. */
    const struct bt_catalog *catalog;
    uint64_t seed;          /* of random weights */
    bool tokenizer;         /* needed */
    const char *medusa_dir; /* folder of the Medusa heads; NULL: the model's, else "MODEL-medusa" */
    bool lm_head, embeddings, norms; /* an integer --weights applies to them too */
};

struct bt_engine {
    const struct bt_backend *backend;
    bool random; /* weights; the draft's too */
    struct bt_model model, draft;
    struct bt_medusa medusa;
    bool has_draft, has_medusa;
    struct bt_tokenizer *tokenizer; /* owned; NULL unless asked for */
    enum bt_act_format compute;     /* FP32, FP16 or BF16 */
    enum bt_kv_format kv;
};

/* Loads what the configuration names. Notes on the checkpoints go to stderr. Returns BT_ERR_ARG
 * when --model is neither a folder nor, where that is allowed, a catalog model; for a draft of
 * another vocabulary, and for formats that have no arithmetic here; else the loaders' errors. On
 * failure *e is zeroed. */
BT_NODISCARD enum bt_code bt_engine_load(const struct bt_cli *cli,
                                         const struct bt_engine_opts *opts, struct bt_engine *e,
                                         struct bt_error *err);
void bt_engine_fini(struct bt_engine *e);

/* Notes where inputs left what static activation scales were calibrated on: sequences longer than
 * any of the calibration's, or a larger share of values cut than there. */
void bt_engine_tell_cover(const struct bt_cli *cli, const struct bt_model *m,
                          int32_t longest_tokens, struct bt_clip_counts clipped);

/* The executor's options for these models, speculation included; blocks, rows and requests are left
 * to the caller. */
struct bt_executor_opts bt_engine_executor_opts(const struct bt_engine *e,
                                                const struct bt_config *c);

/* The scheduler's policy as the configuration says; the backend's fit_sched fills in the rest. */
struct bt_sched_opts bt_engine_sched_opts(const struct bt_engine *e, const struct bt_config *c);

/* Ids of a text. Returns BT_ERR_INPUT when it is empty, or has an id that the model has no row for.
 * Free with bt_ids_fini. */
BT_NODISCARD enum bt_code bt_engine_encode(const struct bt_engine *e, const char *text,
                                           size_t n_bytes, const char *what, struct bt_ids *out,
                                           struct bt_error *err);

/* The same of a file; "-" is stdin. Errors of bt_read_file too. */
BT_NODISCARD enum bt_code bt_engine_encode_file(const struct bt_engine *e, const char *path,
                                                struct bt_ids *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
