#include "sim/workload/source.h"

#include <stdlib.h>

enum bt_source_status bt_source_next(struct bt_source *s, struct bt_request *out,
                                     struct bt_error *err)
{
    return s->ops->next(s->self, out, err);
}

enum bt_code bt_source_rewind(struct bt_source *s, struct bt_error *err)
{
    return s->ops->rewind(s->self, err);
}

void bt_source_destroy(struct bt_source *s)
{
    if (s != NULL) {
        s->ops->destroy(s->self);
    }
}

struct array_source {
    struct bt_source base;
    const struct bt_request *requests; /* borrowed */
    int64_t n;
    int64_t next_i;
};

static enum bt_source_status array_next(void *self, struct bt_request *out, struct bt_error *err)
{
    (void)err;
    struct array_source *s = self;
    if (s->next_i == s->n) {
        return BT_SOURCE_END;
    }
    *out = s->requests[s->next_i++];
    return BT_SOURCE_MORE;
}

static enum bt_code array_rewind(void *self, struct bt_error *err)
{
    (void)err;
    ((struct array_source *)self)->next_i = 0;
    return BT_OK;
}

static const struct bt_source_ops array_ops = {
    .name = "array", .next = array_next, .rewind = array_rewind, .destroy = free};

enum bt_code bt_source_create_array(const struct bt_request *requests, int64_t n,
                                    struct bt_source **out, struct bt_error *err)
{
    BT_ASSERT(n >= 0);
    BT_ASSERT(n == 0 || requests != NULL);
    for (int64_t i = 1; i < n; i++) {
        BT_ASSERT(requests[i].arrival_ns >= requests[i - 1].arrival_ns);
    }
    struct array_source *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for a source");
    }
    s->base = (struct bt_source){.ops = &array_ops, .self = s};
    s->requests = requests;
    s->n = n;
    *out = &s->base;
    return BT_OK;
}
