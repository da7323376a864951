/* What the store knows of this machine and of the user's own cards: read by every command that
 * looks cards up, written by calibrate. A store that is not there, or cannot be read, is an empty
 * one.
 *
 * Ownership: the struct owns what it read. Threading: the main thread; then read-only.
 */
#ifndef BT_CLI_LOCAL_H
#define BT_CLI_LOCAL_H

#include "cli/command.h"
#include "db/store.h"
#include "engine/core/arena.h"
#include "engine/core/gpu.h"
#include "sim/config.h"
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
    struct bt_acceptance *acceptance; /* [n_acceptance]: of draft tokens, by pair and position */
    int32_t n_acceptance;
};

/* Never fails: what is wrong with the store is told on stderr. */
void bt_local_read(struct bt_local *l, const struct bt_cli *cli);
void bt_local_fini(struct bt_local *l);

/* This machine among the cards; NULL: not calibrated. */
const struct bt_gpu *bt_local_host(const struct bt_local *l);

/* Fills spec->acceptance with what was measured for exactly this target and speculation at
 * spec->temperature on spec->text (empty: all kinds together), and says so in `source`; false:
 * nothing was. `draft` is NULL without a draft model. */
bool bt_local_acceptance(const struct bt_local *l, const char *target, const char *draft,
                         struct bt_spec_config *spec, char *source, size_t source_bytes);

/* What a speculation's proposals are stored under: the draft model's name, "self=N" or "medusa". */
void bt_local_speaker(const struct bt_spec_config *spec, const char *draft,
                      char out[BT_NAME_BYTES]);

/* A stored sample as the cost model takes it, of this machine's processor; strings are empty. */
struct bt_cost_sample bt_local_sample(const struct bt_op_sample *s, enum bt_op op);

/* SHA-256 of an engine's sources, in hexadecimal: the CPU's or the CUDA one's. */
const char *bt_local_engine_hash(bool cuda);

#ifdef __cplusplus
}
#endif

#endif
