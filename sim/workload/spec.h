/* The description of a workload: the seam between scenario files or options and the generators.
 *
 * Whoever fills it (the Lua host, the command line, a test) zeroes it first: zero is the documented
 * default of every field. All pointers are borrowed for the duration of a call; a source copies
 * what it needs, except `trace_table`, which outlives it.
 */
#ifndef BT_SIM_WORKLOAD_SPEC_H
#define BT_SIM_WORKLOAD_SPEC_H

#include "engine/core/error.h"
#include "sim/workload/arrival.h"
#include "sim/workload/dist.h"
#include "sim/workload/source.h"
#include "sim/workload/trace.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_workload_kind {
    BT_WORKLOAD_NONE = 0,  /* not given: an error */
    BT_WORKLOAD_GENERATED, /* w.poisson, w.gamma, w.weibull, w.constant, w.diurnal, w.closed */
    BT_WORKLOAD_SERVEGEN,  /* w.servegen */
    BT_WORKLOAD_TRACE,     /* w.trace */
};

enum {
    BT_WORKLOAD_MAX_CLASSES = 64,
    BT_WORKLOAD_MAX_PREFIXES = 4096,
    BT_WORKLOAD_MAX_KINDS = 64,
    BT_WORKLOAD_MAX_POINTS = 100000,
    BT_WORKLOAD_MAX_USERS = 1 << 20,
};

/* A priority class. */
struct bt_class_spec {
    double share;     /* >= 0; shares are scaled to their sum */
    int32_t priority; /* 0 (most urgent) to BT_MAX_PRIORITY */
    double timeout_s; /* from arrival; 0: none */
};

/* A group of requests that share the first tokens of their prompts. */
struct bt_prefix_spec {
    double weight;  /* >= 0 */
    int32_t tokens; /* >= 0; 0: none. Part of the prompt, which is at least tokens + 1 */
};

struct bt_workload_spec {
    enum bt_workload_kind kind;

    /* Every kind. */
    double rate_scale; /* > 0, 0 means 1: arrival times are divided by it, the requests stay */

    /* GENERATED: arrivals. */
    enum bt_arrival_kind arrival;
    double rate_per_s;                  /* > 0 to BT_RATE_MAX; not with points or CLOSED */
    double cv;                          /* GAMMA, WEIBULL: of the gaps, 0.01 to 100 */
    const struct bt_rate_point *points; /* w.diurnal: a rate profile instead of rate_per_s */
    int32_t n_points;
    double period_s;             /* > 0: the profile repeats; 0: the last rate stays */
    int32_t users;               /* CLOSED: 1 to BT_WORKLOAD_MAX_USERS */
    struct bt_dist_spec think_s; /* CLOSED: pause between answer and next request; NONE: 0 s */

    /* GENERATED and SERVEGEN: the end; at least one for GENERATED. The stream's own time, before
     * rate_scale. */
    double duration_s;  /* no arrival at or after this; 0: none. SERVEGEN: length of the cut */
    int64_t n_requests; /* 0: none */

    /* GENERATED: requests. */
    struct bt_dist_spec prompt; /* tokens, the shared prefix included */
    struct bt_dist_spec output; /* tokens */
    const struct bt_prefix_spec *prefixes;
    int32_t n_prefixes;
    double timeout_s; /* default of every class; 0: none. Also SERVEGEN, and TRACE by file */
    const struct bt_class_spec *classes;
    int32_t n_classes;         /* 0: one class, priority 0 */
    const double *kind_shares; /* shares of the kinds of text; n_kinds 0: one kind */
    int32_t n_kinds;

    /* GENERATED, open loop: conversations. Each arrival starts one; the next turn comes turn_gap_s
     * after the one before, and its prompt is everything said before plus a draw of `prompt`. */
    struct bt_dist_spec turns;      /* turns of a conversation; NONE: single requests */
    struct bt_dist_spec turn_gap_s; /* with turns: from one turn's arrival to the next one's */

    /* SERVEGEN. */
    const char *dir;          /* directory of NAME-trace.csv and NAME-dataset.json files */
    double start_s;           /* cut: the stream starts at this second of the recording */
    double target_rate_per_s; /* > 0: rates scaled so that the cut's mean is this; 0: as recorded */

    /* TRACE. */
    const char *file;
    struct bt_trace_opts trace; /* its rate_scale multiplies the one above; its seed is not used */
    const struct bt_trace *trace_table; /* loaded already (then file and trace are not used) */
};

/* Checks every range; an error is BT_ERR_INPUT and names the key: "workload.rate_per_s: expected
 * > 0 to 1e+09, got -1". Files are not opened. */
BT_NODISCARD enum bt_code bt_workload_validate(const struct bt_workload_spec *spec,
                                               struct bt_error *err);

/* The source of a validated or not yet validated description. The same (spec, seed) gives the same
 * stream. Fails with BT_ERR_INPUT (bad value, malformed file), BT_ERR_IO, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_source_create(const struct bt_workload_spec *spec, uint64_t seed,
                                           struct bt_source **out, struct bt_error *err);

/* Mean arrival rate of a generated workload in requests a second after rate_scale: the profile's
 * mean over its period (or duration_s, or its points). -1 where the description does not tell
 * (closed loop, trace, ServeGen). */
double bt_workload_mean_rate(const struct bt_workload_spec *spec);

#ifdef __cplusplus
}
#endif

#endif
