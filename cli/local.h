/* What the store knows of this machine and of the user's own cards: read by every command that
 * looks cards up, written by calibrate. A store that is not there, or cannot be read, is an empty
 * one.
 *
 * Ownership: the struct owns what it read. Threading: the main thread; then read-only.
 */
#ifndef BT_CLI_LOCAL_H
#define BT_CLI_LOCAL_H

#include "cli/command.h"
#include "engine/core/arena.h"
#include "engine/core/gpu.h"
#include "sim/cost/host_law.h"

#include "cmake/embedded.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_local {
    struct bt_arena arena;
    struct bt_gpu *gpus; /* cards that did not come with the catalog */
    int32_t n_gpus;
    struct bt_host_calibration host;           /* samples of "host"; empty: not calibrated */
    const struct bt_embedded *imports, *skews; /* what berth import read, as names and texts */
    int32_t n_imports, n_skews;
};

/* Never fails: what is wrong with the store is told on stderr. */
void bt_local_read(struct bt_local *l, const struct bt_cli *cli);
void bt_local_fini(struct bt_local *l);

/* This machine among the cards; NULL: not calibrated. */
const struct bt_gpu *bt_local_host(const struct bt_local *l);

/* SHA-256 of the CPU engine's sources, in hexadecimal. */
const char *bt_local_engine_hash(void);

#ifdef __cplusplus
}
#endif

#endif
