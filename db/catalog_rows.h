/* The catalog's inside: its tables, and how rows become them. Internal to db/catalog*.c. */
#ifndef BT_DB_CATALOG_ROWS_H
#define BT_DB_CATALOG_ROWS_H

#include "db/catalog.h"
#include "db/csv.h"
#include "engine/core/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rule of a kernel table: the first that matches decides. Sets are bit masks by format. */
struct bt_kernel_rule {
    const char *stack;
    int32_t family; /* enum bt_gpu_family, -1: any */
    int32_t min_cc; /* x 10; 0: any */
    uint32_t weights;
    uint32_t activations;
    uint32_t kv;
    bool exists;
    const char *note;
};

struct bt_kernel_table {
    int32_t n_rules;
    struct bt_kernel_rule *rules;
};

struct bt_catalog {
    struct bt_arena arena;
    int32_t n_gpus;
    struct bt_catalog_gpu *gpus;
    int32_t n_models;
    struct bt_catalog_model *models;
    int32_t n_prices;
    struct bt_price *prices;
    int32_t n_accuracy;
    struct bt_published_accuracy *accuracy;
    struct bt_kernel_table gemm;
    struct bt_kernel_table kv;
};

/* Reads every table of the catalog from the embedded text. */
BT_NODISCARD enum bt_code bt_catalog_read(struct bt_catalog *c, int32_t n_extra,
                                          struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
