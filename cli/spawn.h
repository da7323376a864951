/* Running another program without a shell. Threading: any. */
#ifndef BT_CLI_SPAWN_H
#define BT_CLI_SPAWN_H

#include "engine/core/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_SPAWN_SAID_BYTES = 400 };

/* Runs argv[0], looked for in PATH, with argv (ended by NULL) and waits for its end. Its input is
 * empty, and what it prints is kept out of ours: `said` gets the last line that is not blank.
 * *status is its exit status, or 128 + the signal that ended it. BT_ERR_MISSING when there is no
 * such program; BT_ERR_IO when it cannot be run. */
BT_NODISCARD enum bt_code bt_spawn(char *const argv[], int *status, char said[BT_SPAWN_SAID_BYTES],
                                   struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
