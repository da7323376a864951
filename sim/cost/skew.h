/* Decode batches of unequal contexts: LLMServingSim's skew_fit.
 *
 * A batch of two lengths takes the time of its mean context plus alpha x (time of the longer one
 * - time of the mean). Alpha was fitted by number of decodes, share of long ones, their length and
 * the prefill chunk beside them, a few samples each; single rows run from -3 to 5, so the table
 * keeps the weighted median of a class and holds it to 0 .. 1.
 */
#ifndef BT_SIM_COST_SKEW_H
#define BT_SIM_COST_SKEW_H

#include "engine/core/error.h"
#include "sim/cost/import.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_SKEW_COUNTS_MAX = 16, /* classes of the number of decodes */
    BT_SKEW_SHARES_MAX = 8,  /* classes of the share of long ones */
};

/* Share of long ones by which a batch of mixed lengths stands for one of two lengths with the same
 * mean and variance, as the profiles had them: (mean - shortest) / (longest - shortest) is 0.2 to
 * 0.3 for lognormal lengths. */
#define BT_SKEW_USUAL_SHARE 0.25

struct bt_skew {
    int32_t n_counts;
    int64_t count_most[BT_SKEW_COUNTS_MAX]; /* rising: class i holds up to this many decodes */
    int32_t n_shares;
    double share_most[BT_SKEW_SHARES_MAX]; /* rising, the last is 1 */
    /* [chunk beside it or not][decodes][share]; the last share's column is of all shares together.
     * NAN: nobody measured that class. */
    double alpha[2][BT_SKEW_COUNTS_MAX][BT_SKEW_SHARES_MAX + 1];
};

/* Reads a skew_fit table. BT_ERR_INPUT names file, line, label and what is allowed; BT_ERR_LIMIT,
 * BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_skew_read(const struct bt_import_text *file, struct bt_skew *out,
                                       struct bt_error *err);

/* Alpha for n_decode >= 1 decodes beside a chunk of `chunk` tokens (0: none); share is that of long
 * ones, 0 .. 1, negative when not known. 0 where the table has no such class. */
double bt_skew_alpha(const struct bt_skew *s, int64_t chunk, int64_t n_decode, double share);

#ifdef __cplusplus
}
#endif

#endif
