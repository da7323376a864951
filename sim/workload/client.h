/* A ServeGen client model: one production client's arrival windows and length tables.
 *
 * NAME-trace.csv has no header: window start (s), rate (1/s), CV of the gaps, Gamma, Weibull or
 * blank, and the distribution's shape and scale. NAME-dataset.json maps window starts to Python
 * literals {tokens: probability} for input_tokens and output_tokens.
 * Source: Xiang et al., ServeGen (2025), client decomposition.
 */
#ifndef BT_SIM_WORKLOAD_CLIENT_H
#define BT_SIM_WORKLOAD_CLIENT_H

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "sim/workload/arrival.h"
#include "sim/workload/dist.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_client_window {
    double start_s, end_s;
    double rate_per_s;
    struct bt_gap gap; /* the file's shape; its scale follows from the rate */
};

struct bt_client_lengths {
    double start_s;
    struct bt_dist *prompt, *output; /* owned; NULL where the file's table is empty */
};

struct bt_client {
    struct bt_client_window *windows; /* owned */
    int64_t n_windows, windows_cap;
    struct bt_client_lengths *lengths; /* owned, by start */
    int64_t n_lengths, lengths_cap;
};

/* Reads a client from DIR/NAME-trace.csv and DIR/NAME-dataset.json into zeroed storage; call
 * bt_client_fini also after a failure. Fails with BT_ERR_INPUT (file:line or key), BT_ERR_IO,
 * BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_client_load(struct bt_client *c, const char *dir, const char *name,
                                         struct bt_error *err);
void bt_client_fini(struct bt_client *c);

/* Arrivals expected in [from_s, to_s). */
double bt_client_expected(const struct bt_client *c, double from_s, double to_s);

/* The length tables in force at a time: of the last window begun with tables that are not empty,
 * or else of the next one. Never NULL for a loaded client. */
const struct bt_client_lengths *bt_client_lengths_at(const struct bt_client *c, double t_s);

#ifdef __cplusplus
}
#endif

#endif
