/* Measuring this machine: every operation of a model on an executor, the serving loop beside
 * it, and how many draft tokens a target accepts. Threading: the main thread; OpenMP inside.
 */
#ifndef BT_CLI_CALIBRATE_H
#define BT_CLI_CALIBRATE_H

#include "cli/command.h"
#include "cli/engine.h"
#include "db/store.h"
#include "engine/clock.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_calibrate_opts {
    const struct bt_engine *engine; /* borrowed */
    bool quick;                     /* fewer shapes and repeats */
    int32_t block_tokens;
    int64_t memory_bytes; /* of this machine: KV takes an eighth of it at most */
    int32_t n_threads;
    enum bt_clock clock;
};

/* Growing rows; zero-initialise, free(samples). */
struct bt_op_rows_kept {
    struct bt_op_sample *samples; /* owned */
    int64_t n, cap;
};

/* Measures every operation, and what a step takes beside them. Errors of the executor,
 * BT_ERR_NOMEM.
 */
BT_NODISCARD enum bt_code bt_calibrate_ops(const struct bt_cli *cli,
                                           const struct bt_calibrate_opts *opts,
                                           struct bt_op_rows_kept *out, struct bt_error *err);

/* Puts the operations of a GPU into the berth stack's tables of that card, one an operation: those
 * of the store (before its first, the shipped ones), which simulations use, and the files of a
 * folder (NULL: none), named and written as db/calibrations holds them. What a table holds of other
 * formats and shapes stays; a point measured again is replaced; the source line names every
 * session. BT_ERR_IO, BT_ERR_NOMEM, the store's; BT_ERR_INPUT for a file of that name that is no
 * table or another's; BT_ERR_LIMIT for more sessions than a source line names. */
BT_NODISCARD enum bt_code bt_calibrate_put_tables(const struct bt_op_rows_kept *ops,
                                                  const struct bt_gpu *gpu, const char *model,
                                                  const char *date, struct bt_store *store,
                                                  const char *folder, struct bt_error *err);

enum { BT_KIND_BYTES = 32, BT_KINDS_MAX = 16 };

/* Draft tokens judged and accepted, by position in the proposal. */
struct bt_acceptance_row {
    char kind[BT_KIND_BYTES]; /* of text */
    double temperature;
    int32_t n_prompts;
    int32_t n; /* positions reached */
    struct bt_acceptance_sample positions[BT_MAX_SPEC_K];
    int64_t n_verifications, n_proposed, n_emitted;
};

struct bt_acceptance_opts {
    const struct bt_engine *engine; /* borrowed: tokenizer and draft are there */
    const struct bt_config *config; /* speculation */
    const char *prompts;            /* JSON lines: {"prompt": TEXT, "kind": WORD}, kind optional */
    int32_t max_prompts;            /* 0: all */
    int32_t max_prompt_tokens;      /* prompts are cut to it */
    int32_t max_new_tokens;
    int32_t n_threads;
    uint64_t seed;
};

/* Lets the engine speculate on the prompts, greedy and at temperature 1; a row for each kind of
 * text and temperature. BT_ERR_IO, BT_ERR_INPUT with file:line, the engine's errors, BT_ERR_LIMIT
 * for more than BT_KINDS_MAX kinds. */
BT_NODISCARD enum bt_code bt_calibrate_acceptance(const struct bt_cli *cli,
                                                  const struct bt_acceptance_opts *opts,
                                                  struct bt_acceptance_row rows[2 * BT_KINDS_MAX],
                                                  int32_t *n, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
