#include "sim/cost/op_trust.h"

#include <stdio.h>

struct bt_op_trust bt_op_trust_best(void)
{
    return (struct bt_op_trust){.level = BT_TRUST_MEASURED};
}

void bt_op_trust_count(struct bt_op_trust *t, enum bt_trust level, enum bt_op op, double log_error,
                       const char *note)
{
    BT_ASSERT((uint32_t)level < BT_TRUST_LEVELS);
    BT_ASSERT(log_error >= 0);
    bool weaker = level < t->level || (level == t->level && log_error > t->log_error);
    if (t->is_set && !weaker) {
        return;
    }
    t->level = bt_trust_min(t->level, level);
    t->op = op;
    t->log_error = log_error;
    t->is_set = true;
    (void)snprintf(t->note, sizeof t->note, "%s", note);
}
