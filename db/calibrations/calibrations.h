/* The calibrations that ship with the source, as text: files of sim/cost/calib.h's format. */
#ifndef BT_DB_CALIBRATIONS_CALIBRATIONS_H
#define BT_DB_CALIBRATIONS_CALIBRATIONS_H

#include "cmake/embedded.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ended by a row whose name is NULL; sorted by name. */
extern const struct bt_embedded bt_calibration_texts[];

/* Corrections for decode batches of unequal contexts (sim/cost/skew.h), as
 * "GPU__STACK-VERSION.skew"; ended likewise. */
extern const struct bt_embedded bt_skew_texts[];

#ifdef __cplusplus
}
#endif

#endif
