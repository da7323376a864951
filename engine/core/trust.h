/* How far a number may be trusted: a ladder on which the weakest operation decides. */
#ifndef BT_ENGINE_CORE_TRUST_H
#define BT_ENGINE_CORE_TRUST_H

#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weakest first, so that the least of two decides. */
enum bt_trust {
    BT_TRUST_ROOFLINE = 0, /* from data-sheet rates alone */
    BT_TRUST_TRANSFERRED,  /* from another GPU's measurements */
    BT_TRUST_FITTED,       /* fitted to the user's own run */
    BT_TRUST_IMPORTED,     /* somebody's measurement, named */
    BT_TRUST_MEASURED,     /* this GPU, this stack */
    BT_TRUST_LEVELS,
};

/* "roofline", "transferred", "fitted", "imported", "measured"; never NULL. */
const char *bt_trust_name(enum bt_trust t);

/* Reads a name; BT_ERR_ARG names the value and what is allowed. */
BT_NODISCARD enum bt_code bt_trust_parse(const char *text, const char *what, enum bt_trust *out,
                                         struct bt_error *err);

/* The weaker of two. */
enum bt_trust bt_trust_min(enum bt_trust a, enum bt_trust b);

#ifdef __cplusplus
}
#endif

#endif
