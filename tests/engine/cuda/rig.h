/* What the tests of the CUDA engine share: the device, its memory, random numbers.
 */
#ifndef BT_TESTS_ENGINE_CUDA_RIG_H
#define BT_TESTS_ENGINE_CUDA_RIG_H

#include "engine/core/rng.h"
#include "engine/cuda/device.h"

/* The device under test. Where there is none the test is skipped with a message. */
const struct bt_cuda_device *rig_device(void);

/* What rig_take fills memory with. */
enum { RIG_POISON = 0xa5 };

/* Device memory, poisoned, or filled from host memory. A failure ends the test. */
void *rig_take(struct bt_cuda_arena *a, int64_t bytes);
void *rig_upload(struct bt_cuda_arena *a, const void *src, int64_t bytes);

/* Overwrites device memory, and poisons it. */
void rig_write(void *device, const void *src, int64_t bytes);
void rig_poison(void *device, int64_t bytes);

/* Waits for the device and reads; an error of a launch before ends the test. */
void rig_download(void *dst, const void *device, int64_t bytes);

/* Random numbers that differ from run to run; the seed is printed, BT_TEST_SEED sets it. */
void rig_rng(struct bt_rng *rng, const char *name);

#endif
