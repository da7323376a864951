/* The clock of real runs: the wall's, or one of work done.
 *
 * On a machine that other programs keep busy the wall clock measures them too. They take time from
 * the engine's thread, and where they run on the other half of the same core, or use its caches,
 * they make the thread half as fast, for milliseconds or for seconds. The work clock counts
 * neither: it advances while the calling thread runs, by the thread's time over how much longer
 * than nominally a fixed piece of work (of the kind that a decoder does) takes at that moment. A
 * thread on an undisturbed core sees about a second of it in a second; what matters is that the
 * same work takes the same time of it, whatever the neighbours do. Waits are skipped.
 *
 * The piece of work is done when the clock is read, not on the clock, and in at most a twentieth of
 * the time: read it often. Threading: BT_CLOCK_WORK is of the calling thread alone.
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

/* This thread's time over what the work clock made of it, since its first reading: above 1 where
 * the core is slower than nominally. NAN: the work clock has not been read. */
double bt_clock_slowness(void);

#ifdef __cplusplus
}
#endif

#endif
