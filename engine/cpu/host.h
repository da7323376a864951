/* This machine's own processor as a card of the catalog: "host".
 *
 * Its memory is the system's (or the container's limit), its rates are measured by the engine's own
 * loops. Threading: the main thread; OpenMP inside.
 */
#ifndef BT_ENGINE_CPU_HOST_H
#define BT_ENGINE_CPU_HOST_H

#include "engine/core/error.h"
#include "engine/core/gpu.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_HOST_TEXT_BYTES = 128 };

/* Measures this machine with so many threads (0: all that OpenMP would use): memory, memory
 * bandwidth, float and int8 rates of the engine's matrix products, copies of 64 KiB to 16 MiB.
 * Takes about a third of a second. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_host_measure(int32_t n_threads, struct bt_gpu *out,
                                          struct bt_error *err);

/* The machine's memory, or the container's limit. */
int64_t bt_host_memory_bytes(void);

/* Threads that n_threads stands for. */
int32_t bt_host_threads(int32_t n_threads);

/* "PROCESSOR, N threads": what measurements of this machine hold for. */
void bt_host_describe(int32_t n_threads, char out[BT_HOST_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
