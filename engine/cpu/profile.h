/* Where the time of a decoder's pass goes, by operation.
 *
 * A profile is a row of sums; a pass that has one adds to them at the end of each operation, at the
 * cost of one reading of the clock. What lies between operations belongs to the next one.
 * Threading: one thread at a time.
 */
#ifndef BT_ENGINE_CPU_PROFILE_H
#define BT_ENGINE_CPU_PROFILE_H

#include "engine/clock.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_cpu_op {
    BT_CPU_OP_EMBED = 0,  /* rows of the embedding table, angles of RoPE */
    BT_CPU_OP_NORM,       /* before attention and MLP */
    BT_CPU_OP_QKV,        /* three products */
    BT_CPU_OP_ROPE,       /* norms of queries and keys too */
    BT_CPU_OP_KV_WRITE,   /* to the pool */
    BT_CPU_OP_ATTENTION,  /* */
    BT_CPU_OP_O,          /* */
    BT_CPU_OP_ADD,        /* to the residual stream */
    BT_CPU_OP_GATE_UP,    /* two products */
    BT_CPU_OP_ACTIVATION, /* silu(gate) * up */
    BT_CPU_OP_DOWN,       /* */
    BT_CPU_OP_FINAL_NORM, /* of the rows that are wanted */
    BT_CPU_OP_LM_HEAD,    /* */
    BT_CPU_OP_SAMPLE,     /* from logits to tokens */
    BT_CPU_OPS,
};

struct bt_cpu_profile {
    enum bt_clock clock;
    int64_t last_ns;
    int64_t ns[BT_CPU_OPS];
    int32_t n[BT_CPU_OPS]; /* marks */
};

/* Forgets what was summed up and starts now. */
static inline void bt_cpu_profile_start(struct bt_cpu_profile *p, enum bt_clock clock)
{
    memset(p, 0, sizeof *p);
    p->clock = clock;
    p->last_ns = bt_clock_ns(clock);
}

/* The time since the last mark was this operation's. p may be NULL. */
static inline void bt_cpu_mark(struct bt_cpu_profile *p, enum bt_cpu_op op)
{
    if (p != NULL) {
        int64_t now_ns = bt_clock_ns(p->clock);
        p->ns[op] += now_ns - p->last_ns;
        p->n[op]++;
        p->last_ns = now_ns;
    }
}

#ifdef __cplusplus
}
#endif

#endif
