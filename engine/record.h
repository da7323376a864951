/* A run written down: every call of the scheduler with its time, and every result of the executor.
 *
 * The scheduler is a function of those calls, so replaying a recording makes the same step plans;
 * bt_sched_plan_hash proves it. The serving loop records; a replay executor gives the recorded
 * results back in order, whatever made them.
 *
 * The file is JSON lines, one object a line, in order of the calls:
 *   {"recording":1,"executor":"cpu","sched":{...}}         the first line: every option
 *   {"submit":USER,"now":NS,"arrival":NS,"timeout":NS,"prompt":N,"max_new":N,"priority":N,
 *    "hash_tokens":N,"hashes":["0123456789abcdef",...]}
 *   {"cancel":USER,"now":NS}
 *   {"plan":STEP,"now":NS}                                  STEP is -1 when there was nothing to do
 *   {"complete":STEP,"now":NS,"start":NS,"busy":NS,"host":NS,"flops":N,"bytes":N,
 *    "seqs":[[emitted,accepted,eos,failed],...],"copies":[TICKET,...]}
 *   {"end":NS,"plan_hash":"0123456789abcdef"}
 * Times are nanoseconds from the start of the run.
 *
 * Ownership: a recording owns its memory. Threading: one thread.
 */
#ifndef BT_ENGINE_RECORD_H
#define BT_ENGINE_RECORD_H

#include "engine/core/error.h"
#include "engine/core/executor.h"
#include "engine/core/sched.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_rec_kind { BT_REC_SUBMIT, BT_REC_CANCEL, BT_REC_PLAN, BT_REC_COMPLETE };

struct bt_rec_event {
    enum bt_rec_kind kind;
    int64_t now_ns;
    int64_t i; /* submit, complete: row of submits, completes; cancel: user; plan: step or -1 */
};

struct bt_rec_submit {
    struct bt_req_spec spec; /* hashes: set when it is replayed, from first_hash on */
    int64_t first_hash;
};

struct bt_rec_complete {
    struct bt_step_result result; /* its arrays: set when it is replayed */
    int32_t n_seqs;
    int64_t first_seq;
    int64_t first_copy;
};

struct bt_recording {
    char executor[16];
    struct bt_sched_opts sched; /* its pointers are NULL */
    int64_t end_ns;
    uint64_t plan_hash;

    struct bt_rec_event *events; /* this and what follows: owned, malloc */
    struct bt_rec_submit *submits;
    struct bt_rec_complete *completes;
    struct bt_result_seq *seqs;
    uint32_t *copies;
    uint64_t *hashes;
    int64_t n_events, n_submits, n_completes, n_seqs, n_copies, n_hashes;
    int64_t cap_events, cap_submits, cap_completes, cap_seqs, cap_copies, cap_hashes;
};

/* Starts an empty recording of a run with these options. */
void bt_recording_init(struct bt_recording *r, const char *executor,
                       const struct bt_sched_opts *sched);
void bt_recording_fini(struct bt_recording *r);

/* One call of the scheduler each; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_recording_submit(struct bt_recording *r,
                                              const struct bt_req_spec *spec, int64_t now_ns,
                                              struct bt_error *err);
BT_NODISCARD enum bt_code bt_recording_cancel(struct bt_recording *r, uint64_t user, int64_t now_ns,
                                              struct bt_error *err);
BT_NODISCARD enum bt_code bt_recording_plan(struct bt_recording *r, const struct bt_step_plan *plan,
                                            int64_t now_ns, struct bt_error *err);
BT_NODISCARD enum bt_code bt_recording_complete(struct bt_recording *r, int32_t n_seqs,
                                                const struct bt_step_result *result, int64_t now_ns,
                                                struct bt_error *err);

/* Writes and reads the file. Reading: BT_ERR_IO, BT_ERR_INPUT with file:line. */
BT_NODISCARD enum bt_code bt_recording_write(const struct bt_recording *r, const char *path,
                                             struct bt_error *err);
BT_NODISCARD enum bt_code bt_recording_read(struct bt_recording *r, const char *path,
                                            struct bt_error *err);

/* An executor that answers the i-th plan with the i-th recorded result; a plan with another number
 * of sequences is BT_SUBMIT_FAILED. The recording is borrowed. */
BT_NODISCARD enum bt_code bt_replay_executor_create(const struct bt_recording *r,
                                                    struct bt_executor *out, struct bt_error *err);

struct bt_replay_opts {
    struct bt_metrics *metrics;                                    /* may be NULL */
    void (*on_end)(void *ctx, const struct bt_req_record *record); /* may be NULL */
    void *ctx;
};

/* Makes the recorded calls of a new scheduler with the recorded results from `executor` (the replay
 * executor). *plan_hash is what its plans hash to. Returns BT_ERR_INPUT, naming the event, where
 * the scheduler has nothing to do though it had then, or the other way round. opts may be NULL. */
BT_NODISCARD enum bt_code bt_recording_replay(const struct bt_recording *r,
                                              const struct bt_executor *executor,
                                              const struct bt_replay_opts *opts,
                                              uint64_t *plan_hash, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
