#include "engine/core/trust.h"

#include <string.h>

static const char *const names[BT_TRUST_LEVELS] = {"roofline", "transferred", "fitted", "imported",
                                                   "measured"};

const char *bt_trust_name(enum bt_trust t)
{
    BT_ASSERT((uint32_t)t < BT_TRUST_LEVELS);
    return names[t];
}

enum bt_code bt_trust_parse(const char *text, const char *what, enum bt_trust *out,
                            struct bt_error *err)
{
    for (int32_t i = 0; i < BT_TRUST_LEVELS; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum bt_trust)i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "%s: \"%s\" is not one of measured, imported, fitted, transferred, roofline", what,
            text);
}

enum bt_trust bt_trust_min(enum bt_trust a, enum bt_trust b)
{
    return a < b ? a : b;
}
