/* Shipped calibrations: operation samples as compact text, one file a GPU, stack and operation.
 *
 *   # berth calibration 1
 *   gpu h200                       catalog name
 *   stack trtllm
 *   version 1.2.0rc5
 *   op gemm
 *   source ai-dynamo/aiconfigurator: h200_sxm__...csv
 *   licence Apache-2.0
 *   section int8 int8 - NAME       formats of weights, activations, KV; the rest of the line names
 *                                  the kernel (may be empty)
 *   fixed head_dim 128             shape fields that all rows share (optional, repeatable)
 *   columns m 1 2 4 8              the field that runs along a row, and its values
 *   rows n k                       the fields that a row starts with
 *   4096 5120 7700 7700 - 8100     their values, then times in ns; - where nothing was measured;
 *                                  trailing ones may be left out
 *
 * Keys before the first section hold for the file. Errors name file and line.
 */
#ifndef BT_SIM_COST_CALIB_H
#define BT_SIM_COST_CALIB_H

#include "engine/core/error.h"
#include "sim/cost/import.h"
#include "sim/cost/sample.h"

#include "cmake/embedded.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Appends the samples of one calibration text. After an error the set holds what it held before.
 * BT_ERR_INPUT, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_calib_read(const struct bt_import_text *file,
                                        struct bt_sample_set *set, struct bt_error *err);

/* Appends the samples of those embedded texts (db/calibrations/calibrations.h) whose name,
 * GPU__STACK-VERSION__OP[__N].cal, is of this GPU (NULL: any) and operation (BT_OPS: any). None is
 * no error. */
BT_NODISCARD enum bt_code bt_calib_read_texts(const struct bt_embedded *texts, const char *gpu,
                                              enum bt_op op, struct bt_sample_set *set,
                                              struct bt_error *err);

/* Writes samples of one GPU, stack, version and operation (whose order it changes). BT_ERR_IO when
 * the stream fails. */
BT_NODISCARD enum bt_code bt_calib_write(FILE *out, struct bt_cost_sample *samples, int64_t n,
                                         struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
