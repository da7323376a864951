/* The CUDA executor as a backend. */
#ifndef BT_ENGINE_CUDA_BACKEND_H
#define BT_ENGINE_CUDA_BACKEND_H

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct bt_backend bt_cuda_backend;

#ifdef __cplusplus
}
#endif

#endif
