/* The clock of real runs: the wall's, or the time that the engine's own thread has worked.
 *
 * On a machine that other programs keep busy the wall clock measures them too. The work clock
 * stands still while the thread is not running, and waits are skipped: a run on one thread measures
 * as it would on an idle machine (shared caches and memory aside). Threading: BT_CLOCK_WORK counts
 * the calling thread alone.
 */
#ifndef BT_ENGINE_CLOCK_H
#define BT_ENGINE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_clock { BT_CLOCK_WALL = 0, BT_CLOCK_WORK };

/* Nanoseconds from some moment on. */
int64_t bt_clock_ns(enum bt_clock clock);

#ifdef __cplusplus
}
#endif

#endif
