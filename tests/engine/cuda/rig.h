/* What the tests of the CUDA engine share: the device, random data, and how far results may be off.
 */
#ifndef BT_TESTS_ENGINE_CUDA_RIG_H
#define BT_TESTS_ENGINE_CUDA_RIG_H

#include "engine/cuda/device.h"

/* The device under test. Where there is none the test is skipped with a message. */
const struct bt_cuda_device *rig_device(void);

#endif
