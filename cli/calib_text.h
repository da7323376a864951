/* Calibration text: a file of plain text (or of token ids) cut into samples of equal length.
 * Threading: no state. */
#ifndef BT_CLI_CALIB_TEXT_H
#define BT_CLI_CALIB_TEXT_H

#include "cli/command.h"
#include "engine/model/model.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_calib_text {
    int32_t *ids; /* owned: [n_samples, sample_tokens] */
    int32_t n_samples;
    int32_t sample_tokens;
    int64_t n_text_tokens; /* in the whole file */
    int32_t n_distinct;    /* different tokens among the samples */
};

/* Reads `path`: UTF-8 text, encoded by the tokenizer in model_dir without BOS; a name that ends in
 * .bin: token ids, little-endian uint16. Samples are spread evenly over the text and do not
 * overlap; fewer than `samples` come out when the text is short. Returns BT_ERR_IO, BT_ERR_INPUT
 * when the text has not even one sample's tokens, or an id is outside the vocabulary; the
 * tokenizer's errors. */
BT_NODISCARD enum bt_code bt_calib_text_read(struct bt_calib_text *t, const char *path,
                                             const char *model_dir, int32_t vocab, int32_t samples,
                                             int32_t sample_tokens, struct bt_error *err);
void bt_calib_text_fini(struct bt_calib_text *t);

#ifdef __cplusplus
}
#endif

#endif
