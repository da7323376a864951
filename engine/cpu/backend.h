/* The CPU executor as a backend. */
#ifndef BT_ENGINE_CPU_BACKEND_H
#define BT_ENGINE_CPU_BACKEND_H

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct bt_backend bt_cpu_backend;

#ifdef __cplusplus
}
#endif

#endif
