/* The trust of a figure made of many operations: the weakest decides, and is named. */
#ifndef BT_SIM_COST_OP_TRUST_H
#define BT_SIM_COST_OP_TRUST_H

#include "engine/core/trust.h"
#include "sim/cost/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_OP_TRUST_NOTE_BYTES = 160 };

/* All zero is the trust of a bare roofline; start from bt_op_trust_best(). */
struct bt_op_trust {
    enum bt_trust level;
    enum bt_op op;                     /* the weakest one (the first of equals) */
    double log_error;                  /* its error bound, logarithm: 0.1 is about 10% */
    bool is_set;                       /* an operation has been counted */
    char note[BT_OP_TRUST_NOTE_BYTES]; /* where its times come from */
};

/* The trust of nothing yet: measured, no operation. */
struct bt_op_trust bt_op_trust_best(void);

/* Counts an operation in: it becomes the named one if its level is lower, or equal and its error
 * larger. The note is copied, cut to fit. */
void bt_op_trust_count(struct bt_op_trust *t, enum bt_trust level, enum bt_op op, double log_error,
                       const char *note);

#ifdef __cplusplus
}
#endif

#endif
