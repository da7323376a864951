/* Names that a configuration holds, resolved: models and GPUs from the catalog or from files.
 *
 * Threading: as the catalog's; no state of its own.
 */
#ifndef BT_CLI_LOOKUP_H
#define BT_CLI_LOOKUP_H

#include "db/catalog.h"
#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "sim/config.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The architecture of a catalog name or alias, of a config.json, or of a folder that holds one. A
 * text that ends in .json, or names a folder that exists, is a file; everything else is a name.
 * `what` is the option or key path in the message. BT_ERR_NOTFOUND, BT_ERR_IO, BT_ERR_INPUT. */
BT_NODISCARD enum bt_code bt_lookup_model(const struct bt_catalog *c, const char *name,
                                          const char *what, struct bt_arch *out,
                                          struct bt_error *err);

/* What a configuration's names stand for. */
struct bt_lookup {
    struct bt_arch arch;
    struct bt_arch draft; /* when has_draft */
    bool has_draft;
    struct bt_gpu gpu;
};

/* Resolves model, draft model and GPU of a configuration. BT_ERR_ARG when model or GPU is not
 * given, else as bt_lookup_model. */
BT_NODISCARD enum bt_code bt_lookup_config(const struct bt_catalog *c,
                                           const struct bt_config *config, struct bt_lookup *out,
                                           struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
