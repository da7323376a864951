/* What ships with the source: GPUs, models, prices, PCIe curves and which kernels exist, each row
 * with its source and date (text under db/catalog, embedded at build).
 *
 * Names are matched without regard to case, blanks, '-' and '_' ("Llama2 13B" is llama-2-13b);
 * common spellings, Hugging Face ids and the driver's product names are aliases.
 *
 * A catalog is immutable once opened: any number of threads may read it. Everything it hands out is
 * borrowed from it.
 */
#ifndef BT_DB_CATALOG_H
#define BT_DB_CATALOG_H

#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_catalog;

struct bt_catalog_gpu {
    struct bt_gpu gpu;
    const char *aliases; /* separated by '|' */
    const char *source;
    const char *date;
    const char *notes;
    bool shipped; /* came with the source, not given to bt_catalog_open */
};

struct bt_catalog_model {
    struct bt_arch arch;
    const char *aliases; /* separated by '|' */
    const char *hf_id;
    int64_t params; /* as published, elements */
    const char *source;
    const char *date;
    const char *notes;
};

struct bt_price {
    const char *gpu; /* catalog name */
    const char *provider;
    const char *term; /* on-demand, spot, reserved */
    const char *date;
    const char *offer; /* "p4de per GPU"; "" when there is nothing to add */
    double usd_per_h;  /* one GPU */
};

/* A published accuracy of a quantised model beside that of its 16-bit original. Formats that no
 * enum names (one scale a channel of int4, 4-bit KV) are kept as text only. */
struct bt_published_accuracy {
    const char *model;                      /* catalog name or as published */
    const char *weights, *activations, *kv; /* as published */
    enum bt_weight_format weight_format;    /* BT_WEIGHT_FORMATS: none of ours */
    enum bt_act_format act_format;          /* BT_ACT_FORMATS: none of ours */
    enum bt_kv_format kv_format;            /* BT_KV_FORMATS: none of ours */
    const char *method;                     /* rtn, gptq, awq, smoothquant ... */
    const char *metric;                     /* "mmlu 0-shot", "perplexity wikitext2 2048" */
    const char *unit;                       /* "percent", "perplexity": part of every number */
    double baseline, value;
    const char *source, *date, *notes;
};

/* Opens the embedded catalog. `extra` (n_extra GPUs, may be NULL) are added or replace the shipped
 * ones of their names: the machine's own CPU ("host") as calibration measured it. Returns
 * BT_ERR_NOMEM, or BT_ERR_INPUT with file:line and column for a row that is malformed. */
BT_NODISCARD enum bt_code bt_catalog_open(const struct bt_gpu *extra, int32_t n_extra,
                                          struct bt_catalog **out, struct bt_error *err);
void bt_catalog_close(struct bt_catalog *c); /* NULL is allowed */

int32_t bt_catalog_n_gpus(const struct bt_catalog *c);
int32_t bt_catalog_n_models(const struct bt_catalog *c);
int32_t bt_catalog_n_prices(const struct bt_catalog *c);

/* In the order of the files. */
const struct bt_catalog_gpu *bt_catalog_gpu_at(const struct bt_catalog *c, int32_t i);
const struct bt_catalog_model *bt_catalog_model_at(const struct bt_catalog *c, int32_t i);
const struct bt_price *bt_catalog_price_at(const struct bt_catalog *c, int32_t i);

/* The largest loss in percentage points that was published for exactly these formats (none of them
 * the default) on this model with a calibrated or plain method (rtn, gptq, awq, smoothquant, int8):
 * the row, or NULL when nobody published one in percent. Nothing is borrowed from other formats or
 * models, but 16-bit formats count as one. */
const struct bt_published_accuracy *
bt_catalog_accuracy_loss(const struct bt_catalog *c, const char *model, enum bt_weight_format w,
                         enum bt_act_format a, enum bt_kv_format kv);

/* By name or alias. BT_ERR_NOTFOUND: "gpu: "rtx4900" is not known; did you mean rtx4090? (known:
 * ...)". `what` is the option or key path in the message. */
BT_NODISCARD enum bt_code bt_catalog_find_gpu(const struct bt_catalog *c, const char *name,
                                              const char *what, const struct bt_catalog_gpu **out,
                                              struct bt_error *err);
BT_NODISCARD enum bt_code bt_catalog_find_model(const struct bt_catalog *c, const char *name,
                                                const char *what,
                                                const struct bt_catalog_model **out,
                                                struct bt_error *err);

/* Whether two models may speculate together: the same vocabulary family, both known. */
bool bt_catalog_same_vocabulary(const struct bt_arch *a, const struct bt_arch *b);

/* Whether a kernel for these formats (none of them the default) exists on this GPU in this stack.
 * The text tells which one, or why not. BT_ERR_NOTFOUND for a stack without a table. */
BT_NODISCARD enum bt_code bt_catalog_kernel(const struct bt_catalog *c, const char *stack,
                                            const struct bt_gpu *gpu, enum bt_weight_format w,
                                            enum bt_act_format a, bool *exists, const char **text,
                                            struct bt_error *err);
BT_NODISCARD enum bt_code bt_catalog_kv_kernel(const struct bt_catalog *c, const char *stack,
                                               const struct bt_gpu *gpu, enum bt_kv_format kv,
                                               bool *exists, const char **text,
                                               struct bt_error *err);

/* Prices of one ranking: one provider and term, so that candidates compare, and the user's own
 * figures before them. */
enum { BT_PRICES_MAX_OVERRIDES = 64, BT_PROVIDER_BYTES = 32 };

struct bt_price_list {
    const struct bt_catalog *catalog; /* borrowed */
    char provider[BT_PROVIDER_BYTES];
    char term[BT_PROVIDER_BYTES];
    int32_t n_overrides;
    struct {
        char gpu[BT_GPU_NAME_BYTES];
        double usd_per_h;
    } overrides[BT_PRICES_MAX_OVERRIDES];
};

/* Prices of one provider (NULL: RunPod, which prices most of the catalog) and term (NULL:
 * on-demand). BT_ERR_NOTFOUND names the providers or terms there are. */
BT_NODISCARD enum bt_code bt_price_list_init(struct bt_price_list *p, const struct bt_catalog *c,
                                             const char *provider, const char *term,
                                             struct bt_error *err);

/* Takes "GPU=USD_PER_H" ("l40s=0.95"; GPU by name or alias); a later one wins. BT_ERR_ARG,
 * BT_ERR_NOTFOUND, BT_ERR_LIMIT. */
BT_NODISCARD enum bt_code bt_price_list_override(struct bt_price_list *p, const char *text,
                                                 struct bt_error *err);

/* USD an hour of one GPU by its catalog name; NAN when unpriced. */
double bt_price_list_get(const struct bt_price_list *p, const char *gpu);

/* The row behind it; NULL when unpriced or the user's own. */
const struct bt_price *bt_price_list_row(const struct bt_price_list *p, const char *gpu);

#ifdef __cplusplus
}
#endif

#endif
