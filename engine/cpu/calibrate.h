/* What quantisers ask of somebody who can run the model: statistics of activations, layer by layer,
 * and what quantisation did to each layer's output.
 *
 * Samples are sequences of equal length. The residual stream of all of them is kept between layers,
 * so a layer runs twice: once as it is, while its inputs are looked at, and once quantised, so that
 * the next layer sees what it will get. Memory: 4 bytes x tokens x hidden size.
 *
 * Ownership: as said at each function. Threading: one call at a time; OpenMP inside.
 */
#ifndef BT_ENGINE_CPU_CALIBRATE_H
#define BT_ENGINE_CPU_CALIBRATE_H

#include "engine/core/error.h"
#include "engine/model/quantize.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_cpu_samples {
    const int32_t *ids; /* borrowed: [n_samples, sample_tokens], within the vocabulary */
    int32_t n_samples;
    int32_t sample_tokens; /* at most the model's context */
    int32_t n_threads;     /* 0: all that OpenMP would use */
    /* Called with the share done, 0 .. 1; may be NULL. */
    void (*on_progress)(void *ctx, double done);
    void *ctx;
};

struct bt_cpu_calib;

/* A source for one bt_model_quantise of a model with this architecture. The samples are borrowed
 * until it is destroyed. BT_ERR_ARG for samples longer than the model's context; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_cpu_calib_create(const struct bt_cpu_samples *samples,
                                              const struct bt_arch *arch, struct bt_cpu_calib **out,
                                              struct bt_error *err);
/* NULL is allowed. */
void bt_cpu_calib_destroy(struct bt_cpu_calib *c);

/* The source, valid until the calibration is destroyed. */
struct bt_calib_source bt_cpu_calib_source(struct bt_cpu_calib *c);

/* Squared errors of one layer, each relative to what the exact layer adds to the residual stream
 * (output) or to the stream behind it (stream). */
struct bt_cpu_layer_error {
    double output; /* on the exact model's input: what this layer alone loses */
    double stream; /* on the quantised model's own input: what all layers so far have lost */
};

/* Runs an exact model and a quantised one of the same shapes on the samples: out [n_layers].
 * BT_ERR_ARG, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_cpu_layer_errors(const struct bt_model *exact,
                                              const struct bt_model *quantised,
                                              const struct bt_cpu_samples *samples,
                                              struct bt_cpu_layer_error *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
