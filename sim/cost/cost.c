#include "sim/cost/cost.h"

#include <stddef.h>

void bt_cost_fini(struct bt_cost *c)
{
    if (c->ops != NULL) {
        c->ops->destroy(c->self);
    }
    *c = (struct bt_cost){0};
}
