/* Other people's measurements into operation samples.
 *
 * Each reader takes the text of one file, appends what it holds to a bt_sample_set and fills a
 * report. A file is taken whole or not at all: after an error the set holds what it held before.
 * Errors name file and line, the value and what is allowed: an unknown column, a time that is not
 * positive, points that repeat and disagree, a time whose unit cannot be that of its neighbours, a
 * rate above the hardware's dense peak. One thread at a time.
 *
 * Units of the formats: aiconfigurator and Vidur/Frontier give ms, LLMServingSim us.
 * aiconfigurator's message_size counts elements, not bytes; its int4_wo has one scale an output
 * channel (no groups).
 */
#ifndef BT_SIM_COST_IMPORT_H
#define BT_SIM_COST_IMPORT_H

#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "sim/cost/sample.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Repeated points may differ by this much; beyond it the file contradicts itself. */
    BT_IMPORT_DUPLICATE_PERCENT = 20,
    /* A time this many times above or below both neighbours of its series is in another unit. */
    BT_IMPORT_UNIT_FACTOR = 100,
    BT_IMPORT_NOTE_BYTES = 256,
};

struct bt_import_opts {
    const char *gpu;     /* catalog name, required */
    const char *stack;   /* required */
    const char *version; /* NULL: unknown */
    const char *source;  /* required: project and file */
    const char *licence; /* required: SPDX identifier */

    /* Collectives of a file that has no op_name column, in the order of its blocks, as
     * "allgather,alltoall,reducescatter,allreduce". NULL: such a file is an error. */
    const char *collective_order;

    /* False: a repeated point that disagrees by more than BT_IMPORT_DUPLICATE_PERCENT, or a time
     * <= 0, is an error. True: the median is taken, the row is dropped, and the report says so. */
    bool lenient;

    /* Dense peaks to check rates against; NULL: not checked. */
    const struct bt_gpu *hardware;

    /* LLMServingSim: the model and tensor-parallel degree that were profiled, and the format. */
    const struct bt_arch *arch;
    int32_t tp; /* 0: 1 */
    enum bt_num format;
};

struct bt_import_report {
    int64_t n_rows;                  /* read */
    int64_t n_samples;               /* kept */
    int64_t n_merged;                /* repeats folded into another sample */
    int64_t n_dropped;               /* times <= 0, lenient only */
    char note[BT_IMPORT_NOTE_BYTES]; /* the worst that lenient let pass; "" for nothing */
};

/* A file's text and name; the text need not end with a zero byte. */
struct bt_import_text {
    const char *text;
    size_t size_bytes;
    const char *name;
};

/* aiconfigurator operation tables: GEMM, attention (prefill or decode), NCCL, custom all-reduce,
 * compute_scale; which one is told by the columns. */
BT_NODISCARD enum bt_code bt_import_aiconfigurator(const struct bt_import_text *file,
                                                   const struct bt_import_opts *opts,
                                                   struct bt_sample_set *set,
                                                   struct bt_import_report *report,
                                                   struct bt_error *err);

/* LLMServingSim: dense (layer, tokens), per_sequence (layer, sequences), attention (prefill_chunk,
 * kv_prefill, n_decode, kv_decode) or the first profiler's layers (layer_name, input, in ns), told
 * by the columns. */
BT_NODISCARD enum bt_code bt_import_llmservingsim(const struct bt_import_text *file,
                                                  const struct bt_import_opts *opts,
                                                  struct bt_sample_set *set,
                                                  struct bt_import_report *report,
                                                  struct bt_error *err);

/* Vidur and Frontier profiles: linear operations (mlp, linear_op) or attention. Shapes come from
 * the file's own columns. */
BT_NODISCARD enum bt_code bt_import_vidur(const struct bt_import_text *file,
                                          const struct bt_import_opts *opts,
                                          struct bt_sample_set *set,
                                          struct bt_import_report *report, struct bt_error *err);

/* Shared by the readers. */

/* What every sample of a file has in common, interned; BT_ERR_ARG names a missing option. */
BT_NODISCARD enum bt_code bt_import_begin(const struct bt_import_opts *opts,
                                          struct bt_sample_set *set, struct bt_cost_sample *common,
                                          struct bt_error *err);

/* Checks and appends a sample whose time is `time` in units of unit_ns nanoseconds. */
BT_NODISCARD enum bt_code bt_import_add(const struct bt_import_text *file,
                                        const struct bt_import_opts *opts,
                                        struct bt_sample_set *set, struct bt_cost_sample *sample,
                                        double time, double unit_ns,
                                        struct bt_import_report *report, struct bt_error *err);

/* Folds repeats and checks units among the samples from index `first` on. */
BT_NODISCARD enum bt_code bt_import_finish(const struct bt_import_text *file,
                                           const struct bt_import_opts *opts,
                                           struct bt_sample_set *set, int64_t first,
                                           struct bt_import_report *report, struct bt_error *err);

/* Rate of the hardware's unit that multiplies these formats, FLOP/s; 0: no such unit. Weight-only
 * formats multiply in 16 bits. */
double bt_import_peak(const struct bt_gpu *g, const struct bt_op_format *f);

#ifdef __cplusplus
}
#endif

#endif
