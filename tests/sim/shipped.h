/* What ships with the program, opened as commands open it: the catalog, and the surfaces of all its
 * cards. */
#ifndef BT_TESTS_SIM_SHIPPED_H
#define BT_TESTS_SIM_SHIPPED_H

#include "db/calibrations/calibrations.h"
#include "db/catalog.h"
#include "sim/cost/library.h"

/* On failure *catalog may be open; bt_catalog_close and bt_surface_library_destroy end both. */
static inline enum bt_code shipped_open(struct bt_catalog **catalog,
                                        struct bt_surface_library **library, struct bt_error *err)
{
    enum { GPUS_MAX = 64 };
    struct bt_gpu cards[GPUS_MAX];
    BT_TRY(bt_catalog_open(NULL, 0, catalog, err));
    int32_t n = bt_catalog_n_gpus(*catalog);
    BT_ASSERT(n <= GPUS_MAX);
    for (int32_t i = 0; i < n; i++) {
        cards[i] = bt_catalog_gpu_at(*catalog, i)->gpu;
    }
    struct bt_surface_library_opts o = {.texts = bt_calibration_texts, .gpus = cards, .n_gpus = n};
    return bt_surface_library_create(&o, library, err);
}

#endif
